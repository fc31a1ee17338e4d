"""Version 1 of the elementwise kernels: one flat loop-free pass, one block of consecutive elements a program.

Computes, element by element (b is the bias of the element's column):

    copy          x                                 add, residual-add   x + y
    relu          max(x, 0)                         mul                 x * y
    gelu          g(x) = x/2 * (1 + erf(x/sqrt 2))  bias-gelu           g(x + b)
    gelu-tanh     x * s(2z)                         silu                x * s(x)
                                                    swiglu              x * s(x) * y
    s(v) = 1 / (1 + exp(-v)), z = sqrt(2/pi) * (x + 0.044715 x^3)

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), for both forms of GELU; Shazeer, "GLU
Variants Improve Transformer" (2020), for SwiGLU. The tanh form of GELU is x/2 * (1 + tanh z), and
1 + tanh z = 2 s(2z): written with s nothing cancels, so the negative tail keeps its digits.

Bytes moved, for n elements of e bytes: read n e for one input, 2 n e for two, n e + cols e for bias-gelu;
written n e.

Rounding: operands are widened to fp32, the whole formula runs in fp32, the result is rounded once, to the
nearest even. So x + b is not rounded before GELU, nor silu(x) before its product with y, where a chain of
separate operations in a 16-bit dtype would round. copy moves the bits unchanged.

Changed against the last version: nothing, this is the starting point. It already has
- 16 bytes a thread, whatever the dtype;
- a full path without a mask beside a masked tail. Under one mask an n that is not a multiple of 16 costs
  the wide accesses of every block, not only of the last;
- 64-bit offsets, so tensors may exceed 2^31 elements.

What the model of bytes leaves out: instruction issue. erf-GELU in a 16-bit dtype compiles to about 37
instructions an element, and an H100 that moves 3 TB/s has issue slots for about 40. A bias whose length is no
multiple of 16 is fetched element by element, from cache.
What the formula leaves out: 1 + erf cancels in the negative tail. The absolute error of GELU stays below
|x| 2^-22, but below x = -5 few digits of the result are right. Where exp leaves the range of fp32, at 2^-126,
silu and gelu-tanh return zero. `out` may be one of the inputs, but must not overlap one in part.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, require_contiguous, require_shape, require_tensors

WARPS = 4
BLOCK_BYTES = WARPS * 32 * ALIGNMENT_BYTES  # one widest access for each thread of the program
MAX_COLUMNS = 2**30  # a column number plus one block still fits 32 bits

SQRT_HALF = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)
SQRT_2_OVER_PI = tl.constexpr(0.7978845608028654)  # sqrt(2 / pi)
CUBIC = tl.constexpr(0.044715)  # of the tanh form, as published


@triton.jit
def copy(
    x,  # block in its own dtype
):
    """Pass a block through, bits unchanged."""
    return x


@triton.jit
def add(
    x,  # block in its own dtype
    y,  # block of the same dtype
):
    """Add two blocks in fp32."""
    return x.to(tl.float32) + y.to(tl.float32)


@triton.jit
def mul(
    x,  # block in its own dtype
    y,  # block of the same dtype
):
    """Multiply two blocks in fp32."""
    return x.to(tl.float32) * y.to(tl.float32)


@triton.jit
def relu(
    x,  # block in its own dtype
):
    """Clip below at zero; NaN stays NaN."""
    # The default of tl.maximum returns the number beside a NaN, torch.relu the NaN.
    return tl.maximum(x.to(tl.float32), 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def gelu(
    x,  # block in its own dtype
):
    """Apply GELU by the error function, in fp32."""
    v = x.to(tl.float32)
    return 0.5 * v * (1.0 + tl.erf(v * SQRT_HALF))


@triton.jit
def gelu_tanh(
    x,  # block in its own dtype
):
    """Apply the tanh form of GELU as a logistic function of twice its argument, in fp32."""
    v = x.to(tl.float32)
    z = SQRT_2_OVER_PI * (v + CUBIC * v * v * v)
    return v * tl.sigmoid(2.0 * z)


@triton.jit
def silu(
    x,  # block in its own dtype
):
    """Multiply a block by its own logistic function, in fp32."""
    v = x.to(tl.float32)
    return v * tl.sigmoid(v)


@triton.jit
def swiglu(
    x,  # gate, block in its own dtype
    y,  # block of the same dtype
):
    """Gate one block with SiLU of the other, in fp32."""
    return silu(x) * y.to(tl.float32)


@triton.jit
def bias_gelu(
    x,  # block in its own dtype
    bias,  # bias of each element, same dtype
):
    """Add the bias and apply GELU by the error function, in fp32."""
    return gelu(x.to(tl.float32) + bias.to(tl.float32))


def _formula_name(specialization: Any) -> str:
    # A profiler shows this name: `gelu_flat` says more than `unary_kernel`.
    return f"{specialization.constants['FORMULA'].__name__}_flat"


@triton.jit(do_not_specialize=["n"], repr=_formula_name)
def unary_kernel(
    x_ptr,  # input, n elements
    out_ptr,  # output, n elements
    n,  # number of elements, not specialized: one binary serves every n
    FORMULA: tl.constexpr,  # block of x -> block of out
    BLOCK: tl.constexpr,  # elements a program, a power of two
):
    """Write FORMULA of every element of x."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        x = tl.load(x_ptr + offsets)
        tl.store(out_ptr + offsets, FORMULA(x))
    else:
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside)
        tl.store(out_ptr + offsets, FORMULA(x), mask=inside)


@triton.jit(do_not_specialize=["n"], repr=_formula_name)
def binary_kernel(
    x_ptr,  # first input, n elements
    y_ptr,  # second input, n elements
    out_ptr,  # output, n elements
    n,  # number of elements, not specialized: one binary serves every n
    FORMULA: tl.constexpr,  # blocks of x and y -> block of out
    BLOCK: tl.constexpr,  # elements a program, a power of two
):
    """Write FORMULA of every pair of elements of x and y."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= n:
        x = tl.load(x_ptr + offsets)
        y = tl.load(y_ptr + offsets)
        tl.store(out_ptr + offsets, FORMULA(x, y))
    else:
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside)
        y = tl.load(y_ptr + offsets, mask=inside)
        tl.store(out_ptr + offsets, FORMULA(x, y), mask=inside)


@triton.jit(do_not_specialize=["n"], repr=_formula_name)
def row_bias_kernel(
    x_ptr,  # input, n elements, rows of cols elements one after another
    bias_ptr,  # bias, cols elements
    out_ptr,  # output, n elements
    n,  # rows * cols, not specialized: one binary serves every n
    cols,  # elements a row; a multiple of 16 makes the bias loads wide
    FORMULA: tl.constexpr,  # blocks of x and bias -> block of out
    BLOCK: tl.constexpr,  # elements a program, a power of two
):
    """Write FORMULA of every element of x and the bias of its column."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    offsets = start + lanes
    # start < n, so the integer type of n holds it, and a 64-bit division costs several times a 32-bit one. No `%`:
    # Triton 3.6 forgets that a remainder of two multiples of 16 is one, and reads the bias element by element.
    first = start.to(n.dtype)
    column = (first - first // cols * cols).to(tl.int32)
    if start + BLOCK <= n:
        x = tl.load(x_ptr + offsets)
        if column + BLOCK <= cols:
            bias = tl.load(bias_ptr + column + lanes)
        else:
            bias = tl.load(bias_ptr + (column + lanes) % cols)
        tl.store(out_ptr + offsets, FORMULA(x, bias))
    else:
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside)
        bias = tl.load(bias_ptr + (column + lanes) % cols, mask=inside)
        tl.store(out_ptr + offsets, FORMULA(x, bias), mask=inside)


_KERNEL_AND_FORMULA = {
    "copy": (unary_kernel, copy),
    "add": (binary_kernel, add),
    "mul": (binary_kernel, mul),
    "relu": (unary_kernel, relu),
    "gelu": (unary_kernel, gelu),
    "gelu-tanh": (unary_kernel, gelu_tanh),
    "silu": (unary_kernel, silu),
    "swiglu": (binary_kernel, swiglu),
    "bias-gelu": (row_bias_kernel, bias_gelu),
    "residual-add": (binary_kernel, add),
}

VARIANTS: dict[tuple[str, torch.dtype], Variant] = {
    (op, dtype): Variant(
        kernel=kernel,
        constants={"FORMULA": formula, "BLOCK": BLOCK_BYTES // dtype.itemsize},
        options={"num_warps": WARPS, "enable_fp_fusion": True},
    )
    for op, (kernel, formula) in _KERNEL_AND_FORMULA.items()
    for dtype in DTYPES
}


def _launch(op: str, inputs: tuple[torch.Tensor, ...], out: torch.Tensor, *sizes: int) -> None:
    n = out.numel()
    if n == 0:
        return
    variant = VARIANTS[op, out.dtype]
    variant.launch(triton.cdiv(n, variant.constants["BLOCK"]), *inputs, out, n, *sizes)


def _unary(op: str) -> Callable[..., None]:
    def launch(x: torch.Tensor, *, out: torch.Tensor) -> None:
        label = f"{op} v1"
        require_tensors(label, x=x, out=out)
        require_contiguous(label, x=x, out=out)
        require_shape(label, "out", out, x.shape)
        _launch(op, (x,), out)

    return launch


def _binary(op: str, second: str = "y") -> Callable[..., None]:
    def launch(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor) -> None:
        label = f"{op} v1"
        operands = {"x": x, second: y, "out": out}
        require_tensors(label, **operands)
        require_contiguous(label, **operands)
        require_shape(label, second, y, x.shape)
        require_shape(label, "out", out, x.shape)
        _launch(op, (x, y), out)

    return launch


def _bias_gelu(x: torch.Tensor, bias: torch.Tensor, *, out: torch.Tensor) -> None:
    label = "bias-gelu v1"
    require_tensors(label, x=x, bias=bias, out=out)
    require_contiguous(label, x=x, bias=bias, out=out)
    if x.dim() != 2:
        raise ValueError(f"{label}: x has shape {tuple(x.shape)}; two dimensions are needed, (rows, cols)")
    cols = x.shape[1]
    if cols > MAX_COLUMNS:
        raise ValueError(f"{label}: x has {cols} columns; at most {MAX_COLUMNS} are supported")
    require_shape(label, "bias", bias, (cols,))
    require_shape(label, "out", out, x.shape)
    _launch("bias-gelu", (x, bias), out, cols)


KERNELS: dict[str, Callable[..., None]] = {
    "copy": _unary("copy"),
    "add": _binary("add"),
    "mul": _binary("mul"),
    "relu": _unary("relu"),
    "gelu": _unary("gelu"),
    "gelu-tanh": _unary("gelu-tanh"),
    "silu": _unary("silu"),
    "swiglu": _binary("swiglu"),
    "bias-gelu": _bias_gelu,
    "residual-add": _binary("residual-add", second="residual"),
}
