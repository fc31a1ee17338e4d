"""Elementwise operations: every output element depends on the input elements at the same place only.

Ops     copy, add, mul, relu, gelu (erf), gelu-tanh, silu, swiglu, bias-gelu, residual-add.
Bytes   w n for each operand read and for the result written, w the bytes of an element.
FLOPs   declared per element in `OPS` below. An exponential, a division and a negation count as one each; GELU counts
        as 20 in both forms, CS336's figure for the tanh form, so that the two can be compared.
Ridge   0 to 5 FLOP/byte: memory-bound on any machine. What can be won is fusion: one pass instead of several.

Source  CS336 (2025) lecture 2 for ReLU (1) and GELU (20). GELU: Hendrycks and Gimpel, arXiv 1606.08415.
        SwiGLU: Shazeer, arXiv 2002.05202.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.harness.cli import main
from bench.harness.op import Case, Op, TensorMaker
from roofline.work import elementwise_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--op gelu,gelu-tanh --dtype bf16", "both forms of GELU"),
    ("--op add --dtype fp32,bf16 --size 64MiB,256MiB", "sizes by the bytes of one operand"),
    ("--op swiglu --provider torch,torch-compile", "two kernels against one fused kernel"),
)

BIAS_COLUMNS = 4096
"""Columns of bias-gelu where only a count of elements is given: the width of a 7B transformer."""

SHAPES = {"cpu": ("1048576", "16777216"), "cuda": ("1048576", "16777216", "268435456")}


def gelu(x: Tensor) -> Tensor:
    """Return x/2 (1 + erf(x / sqrt 2))."""
    import torch

    return torch.nn.functional.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    import torch

    return torch.nn.functional.gelu(x, approximate="tanh")


def silu(x: Tensor) -> Tensor:
    """Return x / (1 + exp(-x))."""
    import torch

    return torch.nn.functional.silu(x)


def eager_relu(x: Tensor, out: Tensor) -> None:
    """Write max(x, 0) into `out`."""
    import torch

    torch.clamp_min(x, 0, out=out)


def eager_gelu(x: Tensor, out: Tensor) -> None:
    """Write the erf form of GELU into `out`."""
    import torch

    torch.ops.aten.gelu.out(x, out=out)


def eager_gelu_tanh(x: Tensor, out: Tensor) -> None:
    """Write the tanh form of GELU into `out`."""
    import torch

    torch.ops.aten.gelu.out(x, approximate="tanh", out=out)


def eager_silu(x: Tensor, out: Tensor) -> None:
    """Write SiLU into `out`."""
    import torch

    torch.ops.aten.silu.out(x, out=out)


def eager_swiglu(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """Write silu(gate) up into `out`, as the two kernels that eager torch needs."""
    eager_silu(gate, out)
    out.mul_(up)


def eager_bias_gelu(x: Tensor, bias: Tensor, out: Tensor) -> None:
    """Write gelu(x + bias) into `out`, as the two kernels that eager torch needs."""
    eager_add(x, bias, out)
    eager_gelu(out, out)


def eager_add(x: Tensor, y: Tensor, out: Tensor) -> None:
    """Write x + y into `out`."""
    import torch

    torch.add(x, y, out=out)


def eager_mul(x: Tensor, y: Tensor, out: Tensor) -> None:
    """Write x y into `out`."""
    import torch

    torch.mul(x, y, out=out)


def take_rows(inputs: tuple[Tensor, ...], out: Tensor, rows: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the elements `rows` of each operand and of the result."""
    return tuple(x[rows] for x in inputs), out[rows]


def make_op(
    name: str,
    formula: str,
    inputs: int,
    flops_per_element: int,
    reference: Callable[..., Tensor],
    eager: Callable[..., None],
    intermediate_roundings: int = 0,
) -> Op:
    """Return the op that maps `inputs` vectors of n elements to one."""

    def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
        return tuple(tensor(case.shape["n"]) for _ in range(inputs))

    return Op(
        name=name,
        formula=formula,
        axes=("n",),
        extents=lambda extents, axes: (math.prod(extents),),
        is_sized=True,
        default_shapes=SHAPES,
        make_inputs=make_inputs,
        output_shape=lambda case: (case.shape["n"],),
        reference=reference,
        eager=eager,
        work=lambda case: elementwise_work(case.shape["n"], flops_per_element, inputs, case.dtype),
        intermediate_roundings=intermediate_roundings,
        rows=lambda case: case.shape["n"],
        take_rows=take_rows,
    )


def bias_extents(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return rows and columns; a count of elements becomes whole rows of `BIAS_COLUMNS`, rounded up."""
    if len(extents) == 1:
        return -(-extents[0] // BIAS_COLUMNS), min(extents[0], BIAS_COLUMNS)
    if len(extents) != 2:
        raise ValueError("write a count of elements or mxn")
    return extents


def bias_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return x (m, n) and the bias (n)."""
    return tensor(case.shape["m"], case.shape["n"]), tensor(case.shape["n"])


def bias_rows(inputs: tuple[Tensor, ...], out: Tensor, rows: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the rows of x and of the result; the bias belongs to all of them."""
    x, bias = inputs
    return (x[rows], bias), out[rows]


BIAS_GELU = Op(
    name="bias-gelu",
    formula="out (m, n) = gelu(x (m, n) + bias (n)), erf form",
    axes=("m", "n"),
    extents=bias_extents,
    is_sized=True,
    default_shapes=SHAPES,
    make_inputs=bias_inputs,
    output_shape=lambda case: (case.shape["m"], case.shape["n"]),
    reference=lambda x, bias: gelu(x + bias),
    eager=eager_bias_gelu,
    work=lambda case: elementwise_work(case.shape["m"] * case.shape["n"], 21, 1, case.dtype, case.shape["n"]),
    intermediate_roundings=1,
    rows=lambda case: case.shape["m"],
    take_rows=bias_rows,
)

OPS = (
    make_op("copy", "out = x", 1, 0, lambda x: x.clone(), lambda x, out: out.copy_(x)),
    make_op("add", "out = x + y", 2, 1, lambda x, y: x + y, eager_add),
    make_op("mul", "out = x y", 2, 1, lambda x, y: x * y, eager_mul),
    make_op("relu", "out = max(x, 0)", 1, 1, lambda x: x.relu(), eager_relu),
    make_op("gelu", "out = x/2 (1 + erf(x / sqrt 2))", 1, 20, gelu, eager_gelu),
    make_op("gelu-tanh", "out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))", 1, 20, gelu_tanh, eager_gelu_tanh),
    make_op("silu", "out = x / (1 + exp(-x))", 1, 4, silu, eager_silu),
    make_op("swiglu", "out = silu(gate) up", 2, 5, lambda gate, up: silu(gate) * up, eager_swiglu, 1),
    BIAS_GELU,
    make_op("residual-add", "out = x + residual", 2, 1, lambda x, residual: x + residual, eager_add),
)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
