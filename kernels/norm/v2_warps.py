"""Version 2 of the row norms: the number of warps follows the width of the row.

Computes what version 1 does, with the same bytes moved and the same rounding.

Changed against version 1:
- At most 64 elements a thread, 32 up to 16,384 columns: 4 warps to 4096 columns, then one for each 1024, 16 at most.
- Weight and bias are loaded when the sums are done, so they and the row do not share the registers.
On sm_90 16,384 columns take 63 to 82 registers where version 1 took 121 to 240. At 32,768 in fp32, layernorm and
residual-rmsnorm still put 24 and 80 bytes a thread on the stack. Rows beyond 32,768 columns are refused: 65,536 in one
block is 64 elements for each of 1024 threads, which may have 64 registers each.

What it leaves out: still one row a program, so one of 1024 columns has 4 warps wait for each other; up to half of a
block is idle; an n that is no multiple of 16, or a row stride that is none, costs every 16-byte access of every row.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant
from kernels.norm.operands import Operands, launchers

RMS_EPS = 1e-6
LAYER_EPS = 1e-5
WARPS = {1024: 4, 2048: 4, 4096: 4, 8192: 8, 16384: 16, 32768: 16}  # by columns; a row takes the first that holds it


@triton.jit
def rms_row(
    x_ptr,  # x, one row of n elements a program
    w_ptr,  # weight, n elements
    out_ptr,  # y, as many rows
    n,  # columns, at most BLOCK; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    out_stride,  # the same of y
    EPS: tl.constexpr,  # added to the mean of squares
    BLOCK: tl.constexpr,  # a power of two
):
    """Write the RMSNorm of one row of x."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / n + EPS)
    w = tl.load(w_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, x * scale * w, mask=inside)


@triton.jit
def residual_rms_row(
    x_ptr,  # x, one row of n elements a program
    residual_ptr,  # r, as many rows
    w_ptr,  # weight, n elements
    out_ptr,  # sum and y, as many rows each
    n,  # columns, at most BLOCK; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    residual_stride,  # the same of r
    out_stride,  # the same of sum and y
    plane,  # elements from the sum to y; a multiple of 16 makes stores of y wide
    EPS: tl.constexpr,  # added to the mean of squares
    BLOCK: tl.constexpr,  # a power of two
):
    """Write the rounded sum of one row of x and r, and its RMSNorm."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    r = tl.load(residual_ptr + row * residual_stride + columns, mask=inside, other=0.0)
    rounded = (x.to(tl.float32) + r.to(tl.float32)).to(x.dtype)
    out_ptrs = out_ptr + row * out_stride + columns
    tl.store(out_ptrs, rounded, mask=inside)
    h = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(h * h) / n + EPS)
    w = tl.load(w_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptrs + plane, h * scale * w, mask=inside)


@triton.jit
def layer_row(
    x_ptr,  # x, one row of n elements a program
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    out_ptr,  # y, as many rows
    n,  # columns, at most BLOCK; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    out_stride,  # the same of y
    EPS: tl.constexpr,  # added to the variance
    BLOCK: tl.constexpr,  # a power of two
):
    """Write the LayerNorm of one row of x."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    d = tl.where(inside, x - tl.sum(x) / n, 0.0)
    scale = tl.rsqrt(tl.sum(d * d) / n + EPS)
    w = tl.load(w_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + columns, d * scale * w + b, mask=inside)


_KERNEL_AND_EPS = {
    "rmsnorm": (rms_row, RMS_EPS),
    "layernorm": (layer_row, LAYER_EPS),
    "residual-rmsnorm": (residual_rms_row, RMS_EPS),
}

VARIANTS: dict[tuple[str, torch.dtype, int], Variant] = {
    (op, dtype, block): Variant(
        kernel=kernel,
        constants={"EPS": eps, "BLOCK": block},
        options={"num_warps": warps, "enable_fp_fusion": True},
        op=op,
        dtype=DTYPES[dtype],
        shape_class=f"n <= {block}",
        elements=block,
        bytes=block * dtype.itemsize * (4 if op == "residual-rmsnorm" else 2),
    )
    for op, (kernel, eps) in _KERNEL_AND_EPS.items()
    for dtype in DTYPES
    for block, warps in WARPS.items()
}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return everything this file compiles, the same for every architecture.

    `elements` of residual-rmsnorm are those of one matrix, where it writes two.
    """
    return tuple(VARIANTS.values())


def _launch(op: str, asked: Operands) -> None:
    block = next(block for block in WARPS if asked.n <= block)
    sizes = (asked.n, *asked.strides, *((asked.plane,) if op == "residual-rmsnorm" else ()))
    VARIANTS[op, asked.out.dtype, block].launch(asked.m, *asked.inputs, asked.out, *sizes)


KERNELS: dict[str, Callable[..., None]] = launchers("v2", max(WARPS), _launch)
