"""Rotary position embedding (RoPE) of the query and key heads of t tokens, in one launch.

Ops     rope, rope-interleaved. With c = cos and s = sin of a token, each pair (a, b) of a head of d
        elements becomes (a c - b s, b c + a s):

            rope                the pairs are elements i and i + d/2, as in Llama and GPT-NeoX
            rope-interleaved    the pairs are elements 2i and 2i + 1, as in the paper and GPT-J

Inputs  q (t, heads, d), k (t, kv-heads, d), and tables cos and sin (t, d/2) of the dtype. The
        result is (t, heads + kv-heads, d), first the queries. Angles are random, which does not
        change the time; models use 10000^(-2i/d) per position for pair i.
Heads   Groups of queries share a key head. Defaults: Llama 3 8B.
Bytes   w t d (heads + kv-heads) read and written, and w t d read for both tables, where w is the
        bytes per element.
FLOPs   3 per element: 4 products, a difference and a sum for a pair.
Ridge   0.7 FLOP/byte in bf16: memory-bound on any machine.
NaN     The result for NaN is NaN, for both elements of its pair.
Torch   Eager torch has 6 kernels: it joins q and k, computes a product and a product with an
        addition for each half of the pairs, and joins the halves. It rounds the first product to
        the dtype.

Source  Su et al., RoFormer, arXiv 2104.09864 (2021), section 3.4.2, equation 34. Heads: Llama 3 8B,
        config.json.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.attention import OPTIONS
from bench.harness.cli.main import main
from bench.harness.data.stress import FACTORS
from bench.harness.op import Case, Op, TensorMaker, UnsupportedCaseError, rows_of
from roofline.work import rope_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "prompts of several lengths"),
    ("--op rope --shape 4096 --heads 8 --kv-heads 1,8", "one and eight key heads"),
    ("--shape 1024 --provider torch,torch-compile", "six kernels compared with a fused one"),
)


def check(case: Case, device_type: str) -> None:
    if case.options["head-dim"] % 2:
        raise UnsupportedCaseError(f"pairs need an even --head-dim, got {case.options['head-dim']}")


def output_shape(case: Case) -> tuple[int, int, int]:
    options = case.options
    return case.shape["t"], options["heads"] + options["kv-heads"], options["head-dim"]


def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return q (t, heads, d), k (t, kv-heads, d), and the tables cos and sin (t, d/2)."""
    t, _, d = output_shape(case)
    angles = tensor(t, d // 2)
    q = tensor(t, case.options["heads"], d)
    return q, tensor(t, case.options["kv-heads"], d), angles.cos(), angles.sin()


def pairs_of(x: Tensor, interleaved: bool) -> tuple[Tensor, ...]:
    """Return views of the first and of the second elements of all pairs."""
    return x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, -1)


def rope(interleaved: bool, sign: float, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the heads of q and k, turned if `sign` is -1; with 1, the sums of absolute terms of
    absolute inputs.
    """
    import torch

    a, b = pairs_of(torch.cat((q, k), 1), interleaved)
    c = cos[:, None]
    s = sin[:, None]
    turned = ((a * c).addcmul(b, s, value=sign), (b * c).addcmul(a, s))
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def make_op(name: str, formula: str, interleaved: bool) -> Op:
    return Op(
        name=name,
        formula=formula,
        axes=("t",),
        default_shapes={"cpu": ("256", "4096"), "cuda": ("4096", "16384", "65536")},
        make_inputs=make_inputs,
        output_shape=output_shape,
        reference=partial(rope, interleaved, -1.0),
        eager=lambda *inputs, out: rope(interleaved, -1.0, *inputs),
        work=lambda case: rope_work(*output_shape(case), case.dtype),
        magnitude=lambda truth, *inputs: rope(interleaved, 1.0, *(x.abs() for x in inputs)),
        intermediate_roundings=1,
        units="vector",
        take_rows=rows_of(0, 1, 2, 3),
        stress=FACTORS,
        check=check,
    )


OPS = (
    make_op(
        "rope",
        "out (t, h, d) = (a cos - b sin, b cos + a sin), halves a and b of the heads of q and k",
        False,
    ),
    make_op("rope-interleaved", "out (t, h, d) = rope, even elements a and odd elements b", True),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
