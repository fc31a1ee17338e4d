"""Grouped product, as the experts of a mixture compute it: each of t tokens times the matrix of its own expert.

    out[i] (n) = x[i] (k) W[expert of i] (k, n)       x (t, k), W (e, k, n), out (t, n)

Tokens lie sorted by expert; `ends` (e) in int32 holds where those of each expert end. --load says how many an expert
has: `even`, as many as any other, or `skewed`, in proportion to 1, 1/2, 1/3, ..., as routers that are not balanced do.

FLOPs   2 t n k, whatever the load.
Bytes   w t k + 4 e and the matrices of the experts that have a token, w k n each, read; w t n written; w the bytes of
        an element.
Ridge   A matrix is worth reading for the tokens of its expert alone: with t / e tokens each the intensity in 16 bits
        is about t / e FLOP/byte, so that few tokens or many experts are memory-bound.
Torch   torch.nn.functional.grouped_mm; in fp64, which it does not take, a product for each expert. W is stored
        (e, n, k) and passed as a view, as a linear layer's weight is.

Source  Gale et al., MegaBlocks (2022), for the grouped product; experts and matrix by default: Mixtral 8x7B,
        config.json (8 experts, 4096 to 14336), on a CPU a smaller one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bench.harness.api.family import run_of
from bench.harness.op import Case, Op, Option, TensorMaker, UnsupportedCaseError, known_word, whole_number
from roofline.work import DTYPE_BITS, Work, grouped_matmul_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "the usual sizes in bf16"),
    ("--shape 512x1024x1024 --experts 4,16,64", "the same tokens shared by more experts"),
    ("--shape 512x1024x1024 --load even,skewed", "what an unbalanced router costs"),
)

ALIGNED_BYTES = 16
"""Rows of x and of W begin at multiples of it. Source: torch 2.11, `_grouped_mm_validate_inputs`."""

OPTIONS = (
    Option("experts", "matrices", lambda word: whole_number(word, 9999, "experts "), lambda dtype: 8),
    Option(
        "load",
        "tokens of an expert: even, skewed",
        lambda word: known_word(word, ("even", "skewed"), "load"),
        lambda dtype: "even",
    ),
)


def ends_of(case: Case) -> list[int]:
    """Return where the tokens of each expert end, by exact shares rounded down; the last ends with the tokens."""
    tokens, experts = case.shape["t"], case.options["experts"]
    is_even = case.options["load"] == "even"
    shares = [Fraction(1) if is_even else Fraction(1, place + 1) for place in range(experts)]
    total, sums = sum(shares), Fraction(0)
    ends = []
    for share in shares:
        sums += share
        ends.append(math.floor(tokens * sums / total))
    return ends


def tokens_of(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return x (t, k), W (e, k, n), and where the tokens of each expert end (e) in int32."""
    import torch

    t, n, k = case.shape["t"], case.shape["n"], case.shape["k"]
    ends = tensor(case.options["experts"], dtype="int64").copy_(torch.tensor(ends_of(case)))
    return tensor(t, k), tensor(case.options["experts"], n, k).mT, ends.to(torch.int32)


def reference(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the products expert by expert; on the meta device, where numbers have no values, only their shape."""
    import torch

    if x.is_meta:
        return x.new_empty(x.shape[0], weights.shape[2])
    counts = tokens_of(ends.tolist())
    return torch.cat([part @ weight for part, weight in zip(x.split(counts), weights, strict=True)])


def library(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return the products by torch's grouped product where it takes the dtype."""
    import torch

    if x.dtype == torch.float64:
        return reference(x, weights, ends)
    return torch.nn.functional.grouped_mm(x, weights, offs=ends)


def eager(x: Tensor, weights: Tensor, ends: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the products; torch's function has no form that writes into a given tensor."""
    return library(x, weights, ends)


def magnitude(truth: Tensor, x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Return what errors are proportional to: those of k products, of random sign, each as large as its terms."""
    return math.sqrt(x.shape[1]) * reference(x.square(), weights.square(), ends).sqrt()


def take_rows(inputs: tuple[Tensor, ...], out: Tensor, rows: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the rows of x and of the output, and where those of each expert end among them."""
    import torch

    x, weights, ends = inputs
    taken = torch.arange(len(x), device=x.device)[rows].contiguous()
    return (x[rows], weights, torch.searchsorted(taken, ends.to(taken.dtype)).to(ends.dtype)), out[rows]


def check(case: Case, device_type: str) -> None:
    """Refuse extents with which rows of x or of W would not begin at multiples of 16 bytes, as torch needs."""
    multiple = ALIGNED_BYTES * 8 // DTYPE_BITS[case.dtype]
    if case.dtype != "fp64" and (case.shape["n"] % multiple or case.shape["k"] % multiple):
        raise UnsupportedCaseError(f"{case.dtype} needs n and k that are multiples of {multiple}")


def work(case: Case) -> Work:
    """Return FLOPs and compulsory bytes; a matrix that no token needs is not read."""
    return grouped_matmul_work(tokens_of(ends_of(case)), case.shape["n"], case.shape["k"], case.dtype)


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
        check=check,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    from bench.harness.cli.main import main

    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
