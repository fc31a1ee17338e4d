"""Softmax of rows: out = exp(x - max(x)) / sum(exp(x - max(x))) for each of m rows of n elements.

FLOPs   5 m n, counted here: for each element the comparison of the maximum, the subtraction of it, one exponential,
        one addition and one division.
Bytes   w m n read and w m n written, w the bytes of an element.
Ridge   1.25 FLOP/byte in bf16: memory-bound on any machine, if a row is read once. It is while it fits the registers
        or the shared memory of a program; a wider one is read again, from cache at best.
Shape   mxn, or a single number n for 4096 rows of it.

Source  Milakov and Gimelshein, arXiv 1805.02867, for the safe form and how often it must read its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.harness.api.family import run_of
from bench.harness.data.verify import sum_roundings
from bench.harness.op import ROW_SHAPES, Op, library, rows_by_width, rows_of
from roofline.work import FLOPS_PER_ELEMENT, elementwise_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "rows of several widths"),
    ("--dtype bf16,fp32 --shape 1024x8192,64x131072", "two shapes in two dtypes"),
    ("--shape 4096,8192 --provider torch,torch-compile", "4096 rows of two widths, two providers"),
)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def magnitude(truth: Tensor, x: Tensor) -> Tensor:
    """Return what errors are proportional to: the result, by the error of its exponent, of the sum and of the rest."""
    exponent = x.amax(-1, keepdim=True) - x
    return truth * (1 + exponent + sum_roundings(x.shape[-1]))


OPS = (
    Op(
        name="softmax",
        formula="out (m, n) = exp(x - max(x)) / sum(exp(x - max(x))), row by row",
        axes=("m", "n"),
        extents=rows_by_width,
        default_shapes=ROW_SHAPES,
        make_inputs=lambda case, tensor: (tensor(case.shape["m"], case.shape["n"]),),
        output_shape=lambda case: (case.shape["m"], case.shape["n"]),
        reference=softmax,
        eager=library("torch", "softmax", -1),
        work=lambda case: elementwise_work(
            case.shape["m"] * case.shape["n"], FLOPS_PER_ELEMENT["softmax"], 1, case.dtype
        ),
        magnitude=magnitude,
        units="vector",
        take_rows=rows_of(0),
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    from bench.harness.cli.main import main

    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
