"""Reductions to one number: sum, s = x_1 + ... + x_n, and dot, s = x_1 y_1 + ... + x_n y_n.

FLOPs   sum n, dot 2 n. The first addition, to 0, counts.
Bytes   sum reads w n and dot 2 w n; both write w, the bytes per element.
Ridge   0.5 FLOP/byte in bf16 for both: memory-bound on any machine, almost only by reads.

Source  CS336 (2025), lecture 2, which counts n - 1 additions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import absorb, only_ends
from bench.harness.op import Case, Op, TensorMaker, library
from roofline.work import FLOPS_PER_ELEMENT, reduction_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--op dot --dtype bf16", "the usual sizes in bf16"),
    ("--op sum,dot --dtype fp32 --size 64MiB,256MiB", "two sizes, in bytes of one operand"),
)

SHAPES = {"cpu": ("1048576", "16777216", "67108864"), "cuda": ("1048576", "16777216", "268435456")}


def reference_sum(x: Tensor) -> Tensor:
    return x.sum()


def reference_dot(x: Tensor, y: Tensor) -> Tensor:
    return x.dot(y)


def eager_dot(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """Return the inner product of x (n) and y (n); with `out`, torch would copy it by a second
    kernel.
    """
    return x.dot(y)


def make_op(
    name: str,
    formula: str,
    inputs: int,
    flops_per_element: int,
    reference: Callable[..., Tensor],
    eager: Callable[..., Tensor | None],
) -> Op:
    """Return the op that reduces `inputs` vectors of n elements to one number."""

    def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
        return tuple(tensor(case.shape["n"]) for _ in range(inputs))

    return Op(
        name=name,
        formula=formula,
        axes=("n",),
        is_sized=True,
        default_shapes=SHAPES,
        make_inputs=make_inputs,
        output_shape=lambda case: (),
        reference=reference,
        eager=eager,
        writes_out_when_compiled=False,
        work=lambda case: reduction_work(case.shape["n"], flops_per_element, inputs, case.dtype),
        terms=lambda case: case.shape["n"],
        units="vector",
        stress={"large among small": absorb, "only the ends": only_ends},
    )


OPS = (
    make_op(
        "sum",
        "s () = sum of x (n)",
        1,
        FLOPS_PER_ELEMENT["sum"],
        reference_sum,
        library("torch", "sum", 0),
    ),
    make_op("dot", "s () = x (n) . y (n)", 2, FLOPS_PER_ELEMENT["dot"], reference_dot, eager_dot),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
