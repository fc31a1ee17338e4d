"""Normalization of each row of x (m, n) by its own statistics.

    rmsnorm            out = x / sqrt(mean(x^2) + 1e-6) weight
    layernorm          out = (x - mean(x)) / sqrt(var(x) + 1e-5) weight + bias, var over n,
                       not n - 1
    residual-rmsnorm   out[0] = x + residual, rounded to the dtype; out[1] = rmsnorm of out[0]

FLOPs   Per element: rmsnorm 4 (square, addition, two multiplications), layernorm 7 (addition;
        subtraction, square, addition; two multiplications, addition), residual-rmsnorm 5. The three
        operations per row, such as the square root, are not counted.
Bytes   w m n for each of x, residual and the results, w n for weight and bias, where w is the bytes
        per element.
Ridge   0.6 to 1.8 FLOP/byte in bf16: memory-bound on any machine if each row is read once, which
        requires that it fits into registers or shared memory. A wider row is read again, at best
        from cache.
Shape   mxn, or n for 4096 rows of n elements.
Torch   Eager torch returns new tensors, because it cannot write into a given one without a copy. It
        adds the residual in a separate kernel.

Source  RMSNorm: Zhang and Sennrich, arXiv 1910.07467. LayerNorm: Ba, Kiros and Hinton, arXiv
        1607.06450. Epsilons: Llama 2 (1e-6) and torch.nn.LayerNorm (1e-5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import ANY_ROW, Change, each, one_differs
from bench.harness.data.verify import sum_roundings
from bench.harness.op import ROW_SHAPES, Case, Op, TensorMaker, rows_by_width
from roofline.work import FLOPS_PER_ELEMENT, elementwise_work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--op rmsnorm --dtype bf16", "rows of several widths"),
    (
        "--op residual-rmsnorm --shape 4096,8192 --provider torch,torch-compile",
        "4096 rows of two widths",
    ),
    ("--op rmsnorm,layernorm --dtype bf16,fp32 --shape 1024x8192", "two norms in two data types"),
)

RMSNORM_EPSILON = 1e-6
LAYERNORM_EPSILON = 1e-5


SCALES = {
    "large": each(methodcaller("mul_", 2.0**12)),
    "small": each(methodcaller("mul_", 2.0**-10)),
    **ANY_ROW,
}
"""Hard inputs. The squares of large ones are beyond fp16, `epsilon` decides for small ones."""

OFFSETS = SCALES | {
    "equal": each(methodcaller("fill_", 33.3)),
    "offset 1000": each(methodcaller("add_", 1000.0)),
    "one differs": one_differs,
}


def rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x / sqrt(mean(x^2) + epsilon) weight for each row."""
    return x * (x.square().mean(-1, keepdim=True) + RMSNORM_EPSILON).rsqrt() * weight


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return (x - mean(x)) / sqrt(var(x) + epsilon) weight + bias for each row."""
    centered = x - x.mean(-1, keepdim=True)
    return (
        centered * (centered.square().mean(-1, keepdim=True) + LAYERNORM_EPSILON).rsqrt() * weight
        + bias
    )


def residual_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    """Return x + residual and its rmsnorm, stacked."""
    import torch

    total = x + residual
    return torch.stack((total, rmsnorm(total, weight)))


def torch_rmsnorm(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    import torch

    return torch.nn.functional.rms_norm(x, weight.shape, weight, RMSNORM_EPSILON)


def torch_layernorm(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor | None = None) -> Tensor:
    import torch

    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, LAYERNORM_EPSILON)


def torch_residual_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return x + residual, and torch's RMSNorm of it."""
    total = x + residual
    return total, torch_rmsnorm(total, weight)


def rmsnorm_magnitude(truth: Tensor, x: Tensor, *others: Tensor) -> Tensor:
    """Return the error scale: the result, for its three roundings and for half the error of the sum
    of squares.
    """
    return truth.abs() * (0.5 + sum_roundings(x.shape[-1]) / 2)


def layernorm_magnitude(truth: Tensor, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the error scale: the operands of the subtraction, scaled like its result, and the
    bias.

    `sum_roundings` bounds the error of the sum of squares, and that of the mean relative to the
    mean of |x|.
    """
    mean = x.mean(-1, keepdim=True)
    scale = ((x - mean).square().mean(-1, keepdim=True) + LAYERNORM_EPSILON).rsqrt() * weight.abs()
    of_sums = (x - mean).abs() / 2 + x.abs().mean(-1, keepdim=True)
    return scale * (x.abs() + mean.abs() + sum_roundings(x.shape[-1]) * of_sums) + bias.abs()


def take_rows(
    inputs: tuple[Tensor, ...], out: Tensor, rows: Any
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return rows of the matrices and of the results, and all of weight and bias."""
    return tuple(x[rows] if x.dim() == 2 else x for x in inputs), out[..., rows, :]


def make_op(
    name: str,
    formula: str,
    matrices: int,
    vectors: int,
    flops_per_element: int,
    reference: Callable[..., Tensor],
    library: Callable[..., Any],
    magnitude: Callable[..., Tensor],
    stress: Mapping[str, Change],
    outputs: int = 1,
) -> Op:
    """Return an op from `matrices` inputs (m, n) and `vectors` inputs (n) to `outputs` results (m,
    n).
    """

    def make_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
        m = case.shape["m"]
        n = case.shape["n"]
        shapes = [(m, n)] * matrices + [(n,)] * vectors
        return tuple(tensor(*shape) for shape in shapes)

    def output_shape(case: Case) -> tuple[int, ...]:
        shape = (case.shape["m"], case.shape["n"])
        return (outputs, *shape) if outputs > 1 else shape

    return Op(
        name=name,
        formula=formula,
        axes=("m", "n"),
        extents=rows_by_width,
        default_shapes=ROW_SHAPES,
        make_inputs=make_inputs,
        output_shape=output_shape,
        outputs=outputs,
        reference=reference,
        eager=library,
        expression=library,
        writes_out_when_compiled=outputs == 1,
        work=lambda case: elementwise_work(
            case.shape["m"] * case.shape["n"],
            flops_per_element,
            matrices,
            case.dtype,
            vectors * case.shape["n"],
            outputs,
        ),
        magnitude=magnitude,
        units="vector",
        take_rows=take_rows,
        stress=stress,
    )


OPS = (
    make_op(
        "rmsnorm",
        "out (m, n) = x / sqrt(mean(x^2) + 1e-6) weight (n)",
        1,
        1,
        FLOPS_PER_ELEMENT["rmsnorm"],
        rmsnorm,
        torch_rmsnorm,
        rmsnorm_magnitude,
        SCALES,
    ),
    make_op(
        "layernorm",
        "out (m, n) = (x - mean(x)) / sqrt(var(x) + 1e-5) weight (n) + bias (n)",
        1,
        2,
        FLOPS_PER_ELEMENT["layernorm"],
        layernorm,
        torch_layernorm,
        layernorm_magnitude,
        OFFSETS,
    ),
    make_op(
        "residual-rmsnorm",
        "out (2, m, n) = x + residual, and its rmsnorm by weight (n)",
        2,
        1,
        FLOPS_PER_ELEMENT["residual-rmsnorm"],
        residual_rmsnorm,
        torch_residual_rmsnorm,
        lambda truth, x, residual, weight: rmsnorm_magnitude(truth, x),
        SCALES,
        outputs=2,
    ),
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
