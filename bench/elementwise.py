"""Elementwise operations: each output element depends only on the input elements at the same index.

Ops     copy, add, mul, triad, relu, gelu (erf), gelu-tanh, silu, swiglu, bias-gelu, residual-add,
        dropout.
Bytes   w n for each operand and for the result, where w is the bytes per element; dropout also
        reads a seed of 8 bytes.
FLOPs   Per element. An exponential, a division and a negation count 1 each. Both forms of GELU
        count 20, CS336's figure for the tanh form, so they can be compared. Dropout counts 1:
        random bits are integer arithmetic.
Ridge   0 to 5 FLOP/byte: memory-bound on any machine. Fusion saves time: one pass instead of
        several.
NaN     The result for NaN is NaN, also of relu.
Random  Dropout zeroes an element with probability 0.1 and divides the others by 0.9. Triton kernels
        draw from `seed`; torch draws from its own generator, and eager torch also writes a mask.
        Random results differ, so four properties are checked: the values, the number of kept
        elements, a different mask for a different seed, and no mask that repeats itself.

Source  CS336 (2025), lecture 2, for ReLU (1) and GELU (20). GELU: Hendrycks and Gimpel, arXiv
        1606.08415. SwiGLU: Shazeer, arXiv 2002.05202. Triad: McCalpin, STREAM (1995), with a scalar
        of 3. Dropout: Srivastava et al., JMLR 15 (2014) 1929, scaled during training.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import LARGEST, NUMBERS, QUARTER
from bench.harness.data.verify import (
    CHUNK_ELEMENTS,
    LEAST_SCALE_ERROR,
    SCALE_ELEMENTS,
    UNIT_ROUNDOFF,
)
from bench.harness.op import Case, Op, TensorMaker, library, rows_of
from bench.harness.torch_private import NN
from roofline.work import FLOPS_PER_ELEMENT, LABEL_BYTES, elementwise_work

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Launch

EXAMPLES = (
    ("--op gelu,gelu-tanh --dtype bf16", "both forms of GELU"),
    ("--op add --dtype fp32,bf16 --size 64MiB,256MiB", "two sizes, in bytes of one operand"),
    ("--op swiglu --provider torch,torch-compile", "two kernels compared with one fused kernel"),
)

BIAS_COLUMNS = 4096
"""Columns of bias-gelu if the shape is a number of elements: the width of a 7B transformer."""

DROPOUT = 0.1
"""Probability of zeroing an element. Source: Vaswani et al., arXiv 1706.03762, the base
Transformer.
"""

SIGMAS = 5.0
"""Allowed deviation of a count of kept elements; chance exceeds it once in two million."""

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


EAGER_ADD = library("torch", "add")
EAGER_GELU = library(NN, "gelu")
EAGER_SILU = library(NN, "silu")


def eager_swiglu(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """Write silu(gate) up into `out`, in two kernels."""
    EAGER_SILU(gate, out=out)
    out.mul_(up)


def eager_bias_gelu(x: Tensor, bias: Tensor, out: Tensor) -> None:
    """Write gelu(x + bias) into `out`, in two kernels."""
    EAGER_ADD(x, bias, out=out)
    EAGER_GELU(out, out=out)


def dropout(x: Tensor, seed: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x with elements dropped by torch's generator; with `out`, torch would copy the
    result.
    """
    import torch

    return torch.nn.functional.dropout(x, DROPOUT)


def check_dropout(case: Case, launch: Launch, earlier: Launch | None) -> str | None:
    """Return the problem of a result of dropout, or None.

    Each element must be 0, or x / 0.9 within two roundings, because torch on a CPU rounds 1 / 0.9
    first. Their common scale must be right, and the number of kept elements likely. Another seed
    must keep other elements.
    """
    import torch

    (x, seed), out = launch
    tiny = torch.finfo(out.dtype).tiny * torch.finfo(out.dtype).eps
    unit = UNIT_ROUNDOFF[case.dtype]
    sums = torch.zeros(5, dtype=torch.float64, device=out.device)
    for part, found in zip(x.split(CHUNK_ELEMENTS), out.split(CHUNK_ELEMENTS), strict=True):
        truth = part.double() / (1 - DROPOUT)
        error = torch.where(found == 0, 0.0, found.double() - truth)
        is_right = error.abs() <= 3 * unit * truth.abs() + tiny
        # Added on the device: the host waits for the sums of all parts once.
        sums += torch.stack(
            [
                (~is_right).sum(),
                (part != 0).sum(),
                (found != 0).sum(),
                (error * truth).sum(),
                (found.double() * truth).sum(),
            ]
        )
    wrong, drawn, kept, off, square = sums.tolist()
    if wrong:
        return f"an element is neither 0 nor x / {1 - DROPOUT:g}"
    if drawn < SCALE_ELEMENTS:
        return None
    if abs(off) > max(unit, LEAST_SCALE_ERROR) * square:
        return f"off by {abs(off) / square:.2%} on the whole, more than rounding explains"
    if is_unlikely(kept, drawn, 1 - DROPOUT):
        return f"{kept / drawn:.2%} of the elements are kept instead of {1 - DROPOUT:.0%}"
    if earlier is not None and not torch.equal(seed, earlier[0][1]):
        problem = compare_masks(launch, earlier, "two seeds", SIGMAS)
        if problem:
            return problem
    return compare_shifts(launch)


def compare_shifts(launch: Launch) -> str | None:
    """Return a problem if the first part of a mask agrees more than by chance with one that starts
    at a power of two, up to half of the mask, or None.

    Twice `SIGMAS` are allowed: many shifts are compared, and pairs that share a number correlate,
    so their deviation is up to 1.34 times that of independent ones.
    """
    (x, seed), out = launch
    for power in range((len(x) // 2).bit_length()):
        shift = 2**power
        first = slice(min(CHUNK_ELEMENTS, len(x) - shift))
        shifted = slice(shift, shift + first.stop)
        problem = compare_masks(
            ((x[first], seed), out[first]),
            ((x[shifted], seed), out[shifted]),
            f"elements {shift} apart",
            2 * SIGMAS,
        )
        if problem:
            return problem
    return None


def compare_masks(launch: Launch, earlier: Launch, of: str, sigmas: float) -> str | None:
    """Return a problem if two masks agree more than by chance, or None."""
    import torch

    (x, _), out = launch
    (other_x, _), other_out = earlier
    sums = torch.zeros(2, dtype=torch.int64, device=out.device)
    for start in range(0, len(x), CHUNK_ELEMENTS):
        part = slice(start, start + CHUNK_ELEMENTS)
        is_drawn = (x[part] != 0) & (other_x[part] != 0)
        is_alike = (out[part] != 0) == (other_out[part] != 0)
        sums += torch.stack([is_drawn.sum(), (is_drawn & is_alike).sum()])
    drawn, agreed = sums.tolist()
    by_chance = DROPOUT**2 + (1 - DROPOUT) ** 2
    if drawn < SCALE_ELEMENTS or not is_unlikely(agreed, drawn, by_chance, sigmas):
        return None
    return (
        f"the masks of {of} agree in {agreed / drawn:.2%} of the elements, "
        f"{by_chance:.0%} would be chance"
    )


def is_unlikely(count: float, trials: float, probability: float, sigmas: float = SIGMAS) -> bool:
    """Return whether a binomial count is more than `sigmas` standard deviations from its mean."""
    return abs(count - trials * probability) > sigmas * math.sqrt(
        trials * probability * (1 - probability)
    )


def make_op(
    name: str,
    formula: str,
    reference: Callable[..., Tensor],
    eager: Callable[..., None],
    intermediate_roundings: int = 0,
    flops_as: str | None = None,
) -> Op:
    """Return an op from the vectors (n) that `reference` takes to one vector (n)."""
    inputs = len(inspect.signature(reference).parameters)
    flops_per_element = FLOPS_PER_ELEMENT.get(flops_as or name, 0)

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
        take_rows=rows_of(*range(inputs)),
        stress=NUMBERS | (QUARTER if name == "gelu" else LARGEST),
    )


def bias_extents(extents: tuple[int, ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return rows and columns; a number of elements becomes rows of `BIAS_COLUMNS`, rounded up."""
    if len(extents) == 1:
        return -(-extents[0] // BIAS_COLUMNS), min(extents[0], BIAS_COLUMNS)
    if len(extents) != 2:
        raise ValueError("write a count of elements or mxn")
    return extents


def bias_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    return tensor(case.shape["m"], case.shape["n"]), tensor(case.shape["n"])


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
    work=lambda case: elementwise_work(
        case.shape["m"] * case.shape["n"], 21, 1, case.dtype, case.shape["n"]
    ),
    intermediate_roundings=1,
    take_rows=rows_of(0),
    stress=NUMBERS | QUARTER,
)

DROPOUT_OP = Op(
    name="dropout",
    formula="out = 0 with probability 0.1, else x / 0.9",
    axes=("n",),
    extents=lambda extents, axes: (math.prod(extents),),
    is_sized=True,
    default_shapes=SHAPES,
    make_inputs=lambda case, tensor: (tensor(case.shape["n"]), tensor(1, dtype="int64")),
    output_shape=lambda case: (case.shape["n"],),
    reference=lambda x, seed: x / (1 - DROPOUT),  # of the elements that are not zeroed
    eager=dropout,
    expression=dropout,
    work=lambda case: elementwise_work(case.shape["n"], 1, 1, case.dtype, other_bytes=LABEL_BYTES),
    check_result=check_dropout,
)

TANH_FORM = "out = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))"
EAGER_TANH = library(NN, "gelu", approximate="tanh")

OPS = (
    make_op("copy", "out = x", lambda x: x.clone(), lambda x, out: out.copy_(x)),
    make_op("add", "out = x + y", lambda x, y: x + y, EAGER_ADD),
    make_op("mul", "out = x y", lambda x, y: x * y, library("torch", "mul")),
    make_op("triad", "out = x + 3 y", lambda x, y: x + 3 * y, library("torch", "add", alpha=3)),
    make_op("relu", "out = max(x, 0)", lambda x: x.relu(), library("torch", "clamp_min", 0)),
    make_op("gelu", "out = x/2 (1 + erf(x / sqrt 2))", gelu, EAGER_GELU),
    make_op("gelu-tanh", TANH_FORM, gelu_tanh, EAGER_TANH, flops_as="gelu"),
    make_op("silu", "out = x / (1 + exp(-x))", silu, EAGER_SILU),
    make_op("swiglu", "out = silu(gate) up", lambda gate, up: silu(gate) * up, eager_swiglu, 1),
    BIAS_GELU,
    make_op(
        "residual-add",
        "out = x + residual",
        lambda x, residual: x + residual,
        EAGER_ADD,
        flops_as="add",
    ),
    DROPOUT_OP,
)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS))
