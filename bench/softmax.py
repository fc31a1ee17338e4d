"""Softmax of rows: out = exp(x - max(x)) / sum(exp(x - max(x))) for each of m rows of n elements.

FLOPs   5 m n: per element one comparison for the maximum, subtraction, exponential, addition and
        division.
Bytes   w m n read and w m n written, where w is the bytes per element.
Ridge   1.25 FLOP/byte in bf16: memory-bound on any machine if each row is read once, which requires
        that it fits into registers or shared memory. A wider row is read again, at best from cache.
Shape   mxn, or n for 4096 rows of n elements.

Source  Milakov and Gimelshein, arXiv 1805.02867, for the numerically safe form and its memory
        accesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import LOGITS
from bench.harness.data.verify import sum_roundings
from bench.harness.op import ROW_SHAPES, Op, library, rows_by_width, rows_of
from roofline.work import FLOPS_PER_ELEMENT, elementwise_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--dtype bf16", "rows of several widths"),
    ("--dtype bf16,fp32 --shape 1024x8192,64x131072", "two shapes in two data types"),
    ("--shape 4096,8192 --provider torch,torch-compile", "4096 rows of two widths, two providers"),
)


LOGIT_GAIN = 4.0
"""Logits are this much larger than other inputs: the exponentials of uniform ones would be between
0.37 and 2.7. In fp16, few results over 131,072 numbers are below its range.
"""


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def magnitude(truth: Tensor, x: Tensor) -> Tensor:
    """Return the error scale: the result times the relative errors of its exponent, of the sum and
    of the rest.
    """
    exponent = x.amax(-1, keepdim=True) - x
    return truth * (1 + exponent + sum_roundings(x.shape[-1]))


OPS = (
    Op(
        name="softmax",
        formula="out (m, n) = exp(x - max(x)) / sum(exp(x - max(x))), row by row",
        axes=("m", "n"),
        extents=rows_by_width,
        default_shapes=ROW_SHAPES,
        make_inputs=lambda case, tensor: (
            tensor(case.shape["m"], case.shape["n"]).mul_(LOGIT_GAIN),
        ),
        output_shape=lambda case: (case.shape["m"], case.shape["n"]),
        reference=softmax,
        eager=library("torch", "softmax", -1),
        work=lambda case: elementwise_work(
            case.shape["m"] * case.shape["n"], FLOPS_PER_ELEMENT["softmax"], 1, case.dtype
        ),
        magnitude=magnitude,
        units="vector",
        take_rows=rows_of(0),
        stress=LOGITS,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
