"""Grouped matmul of a mixture of experts: each of t tokens is multiplied by the matrix of its
expert.

    out[i] (n) = x[i] (k) W[expert of i] (k, n)       x (t, k), W (e, k, n), out (t, n)

Inputs  Tokens are sorted by expert; `ends` (e) in int32 holds the end of each expert's tokens.
Load    `even`: all experts have as many tokens. `skewed`: in proportion to 1, 1/2, 1/3, ..., like
        an unbalanced router.
FLOPs   2 t n k for any load.
Bytes   w t k + 4 e read, and w k n for each expert with tokens; w t n written, where w is the bytes
        per element.
Ridge   Each matrix is read for the tokens of one expert, so with t / e tokens per expert the
        intensity is about t / e FLOP/byte in 16 bits. Few tokens or many experts are memory-bound.
Torch   torch.nn.functional.grouped_mm. It does not support fp64, which uses one matmul per expert.
        W is stored as (e, n, k) and passed as a view, like the weight of a linear layer.

Source  Gale et al., MegaBlocks (2022), for the grouped matmul. Default experts and matrix: Mixtral
        8x7B, config.json (8 experts, 4096 to 14336); smaller on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import FACTORS
from bench.harness.op import (
    Case,
    Op,
    Option,
    TensorMaker,
    UnsupportedCaseError,
    parse_choice,
    parse_count,
)
from roofline.work import DTYPE_BITS, Work, grouped_matmul_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the usual sizes in bf16"),
    ("--shape 512x1024x1024 --experts 4,16,64", "the same tokens shared by more experts"),
    ("--shape 512x1024x1024 --load even,skewed", "cost of an unbalanced router"),
)

ALIGNED_BYTES = 16
"""Alignment of the rows of x and W. Source: torch 2.11, `_grouped_mm_validate_inputs`."""

OPTIONS = (
    Option(
        "experts",
        "number of experts",
        lambda word: parse_count(word, 9999, "experts "),
        lambda dtype: 8,
    ),
    Option(
        "load",
        "distribution of tokens over experts: even, skewed",
        lambda word: parse_choice(word, ("even", "skewed"), "load"),
        lambda dtype: "even",
    ),
)


def ends_of(case: Case) -> list[int]:
    """Return the end of each expert's tokens: cumulative fractions of all tokens, exact and rounded
    down.
    """
    tokens = case.shape["t"]
    experts = case.options["experts"]
    is_even = case.options["load"] == "even"
    shares = [Fraction(1) if is_even else Fraction(1, place + 1) for place in range(experts)]
    total = sum(shares)
    sums = Fraction(0)
    ends = []
    for share in shares:
        sums += share
        ends.append(math.floor(tokens * sums / total))
    return ends


def tokens_of(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return x (t, k), W (e, k, n), and the ends of the experts' tokens (e) in int32."""
    import torch

    t = case.shape["t"]
    n = case.shape["n"]
    k = case.shape["k"]
    ends = tensor(case.options["experts"], dtype="int64").copy_(torch.tensor(ends_of(case)))
    return tensor(t, k), tensor(case.options["experts"], n, k).mT, ends.to(torch.int32)


def reference(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the result, one matmul per expert; on the meta device, which has no values, only its
    shape.
    """
    import torch

    if x.is_meta:
        return x.new_empty(x.shape[0], weights.shape[2])
    counts = tokens_of(ends.tolist())
    return torch.cat([part @ weight for part, weight in zip(x.split(counts), weights, strict=True)])


def library(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the result by torch's grouped matmul if it supports the dtype."""
    import torch

    if x.dtype == torch.float64:
        return reference(x, weights, ends)
    return torch.nn.functional.grouped_mm(x, weights, offs=ends)


def eager(x: Tensor, weights: Tensor, ends: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the result; torch's function has no `out`."""
    return library(x, weights, ends)


def magnitude(truth: Tensor, x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the error scale: k rounding errors of random sign, each proportional to its term."""
    return math.sqrt(x.shape[1]) * reference(x.square(), weights.square(), ends).sqrt()


def take_rows(
    inputs: tuple[Tensor, ...], out: Tensor, rows: Any
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return rows of x and of the output, and the ends of the experts' tokens among them."""
    import torch

    x, weights, ends = inputs
    taken = torch.arange(len(x), device=x.device)[rows].contiguous()
    return (x[rows], weights, torch.searchsorted(taken, ends.to(taken.dtype)).to(ends.dtype)), out[
        rows
    ]


def give_all_to_the_last(x: Tensor, weights: Tensor, ends: Tensor) -> None:
    ends[:-1] = 0


def check(case: Case, device_type: str) -> None:
    """Raise if rows of x or W are not aligned to 16 bytes, as torch requires."""
    multiple = ALIGNED_BYTES * 8 // DTYPE_BITS[case.dtype]
    if case.dtype != "fp64" and (case.shape["n"] % multiple or case.shape["k"] % multiple):
        raise UnsupportedCaseError(f"{case.dtype} needs n and k that are multiples of {multiple}")


def work(case: Case) -> Work:
    return grouped_matmul_work(
        tokens_of(ends_of(case)), case.shape["n"], case.shape["k"], case.dtype
    )


OPS = (
    Op(
        name="grouped-matmul",
        formula="out (t, n) = x (t, k) W (e, k, n), each row by the matrix of its expert",
        axes=("t", "n", "k"),
        default_shapes={
            "cpu": ("64x1024x1024", "512x1024x1024"),
            "cuda": ("64x14336x4096", "1024x14336x4096", "16384x14336x4096"),
        },
        make_inputs=make_inputs,
        output_shape=lambda case: (case.shape["t"], case.shape["n"]),
        reference=reference,
        eager=eager,
        expression=library,
        writes_out_when_compiled=False,
        work=work,
        magnitude=magnitude,
        terms=lambda case: case.shape["k"],
        take_rows=take_rows,
        columns_of=1,
        stress=FACTORS,
        stress_all=give_all_to_the_last,
        check=check,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
