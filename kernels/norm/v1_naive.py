"""Version 1 of the row norms: one row per program, in one block under one mask.

Computes, for each row x of n elements (w weight, b bias, r residual; means are over the row):

    rmsnorm             y = x / sqrt(mean(x^2) + 1e-6) * w
    layernorm           y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + 1e-5) * w + b
    residual-rmsnorm    out[0] = x + r, rounded to the dtype; out[1] = rmsnorm of out[0] as stored

Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019); Ba, Kiros and Hinton,
"Layer Normalization" (2016); 1e-6 is the eps of Llama and Gemma, 1e-5 that of torch.nn.LayerNorm.

Bytes moved, for m rows of elements of e bytes: read (m n + n) e, by layernorm (m n + 2 n) e, by
residual-rmsnorm (2 m n + n) e; written m n e, by residual-rmsnorm 2 m n e.

Rounding: all arithmetic is fp32, including the product with the weight, with one rounding at the
end, the order of Gemma. Llama rounds before the multiplication by the weight; that is not computed
here. The residual sum is rounded once and used as rounded, so the result equals a residual-add
followed by an rmsnorm. The variance is computed from the centered values, so nothing cancels. The
mean of the centered values, which is the rounding error of the mean, is subtracted again; so the
error depends on the spread of a row and not on its mean.

Each element is read once, and offsets have 64 bits. What is slow:
- the number of warps is fixed. A thread has 4 elements of a row of 1024 and 256 of a row of 65,536.
  On sm_90 that takes 20 to 27 registers for 1024 columns and 120 to 188 for 16,384. From 32,768 on
  some variants spill, and at 65,536 all do: 568 bytes of stack per thread for rmsnorm in bf16, 5776
  for layernorm in fp32;
- if n or a row stride is not a multiple of 16, no access is 16 bytes wide;
- up to half of a block is idle. Rows beyond 65,536 columns are rejected.
"""

import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant, on_any_arch
from kernels.norm import Operands, launchers

RMS_EPS = 1e-6
LAYER_EPS = 1e-5
WARPS = 8
# Columns; a row takes the smallest that holds it.
BLOCKS = (
    1024,
    2048,
    4096,
    8192,
    16384,
    32768,
    65536,
)


@triton.jit
def norm_row(
    x_ptr,  # x, one row of n elements per program
    r_ptr,  # residual, as many rows; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, as many rows; before it the sum, as many, if RESIDUAL
    n,  # columns, at most BLOCK; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y, or 0; a multiple of 16 makes stores of y wide
    b_ptr,  # bias of layernorm, n elements, or None
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    BLOCK: tl.constexpr,  # a power of two
):
    """Write the norm of one row of x, or of its rounded sum with the residual, and that sum."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0)
    h = x.to(tl.float32)
    if RESIDUAL:
        r = tl.load(r_ptr + row * r_stride + columns, mask=inside, other=0.0)
        x = (h + r.to(tl.float32)).to(x.dtype)
        h = x.to(tl.float32)
    w = tl.load(w_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    out_ptrs = out_ptr + row * out_stride + columns
    if RESIDUAL:
        tl.store(out_ptrs, x, mask=inside)
    if b_ptr is not None:
        h = tl.where(inside, h - tl.sum(h) / n, 0.0)
        h = tl.where(inside, h - tl.sum(h) / n, 0.0)
    y = h * tl.rsqrt(tl.sum(h * h) / n + EPS) * w
    if b_ptr is not None:
        y += tl.load(b_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptrs + plane, y, mask=inside)


CONSTANTS: dict[str, dict[str, Any]] = {
    "rmsnorm": {"EPS": RMS_EPS, "RESIDUAL": False, "b_ptr": None},
    "layernorm": {"EPS": LAYER_EPS, "RESIDUAL": False},
    "residual-rmsnorm": {"EPS": RMS_EPS, "RESIDUAL": True, "b_ptr": None},
}
"""Constants of the kernels that all operations share."""


def _variant(op: str, dtype: torch.dtype, block: int) -> Variant:
    return Variant(
        kernel=norm_row,
        constants=CONSTANTS[op] | {"BLOCK": block},
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        shape_class=f"n <= {block}",
        elements=block,
        bytes=block * dtype.itemsize * (4 if op == "residual-rmsnorm" else 2),
    )


VARIANTS = {key: _variant(*key) for key in itertools.product(CONSTANTS, DTYPES, BLOCKS)}
"""By operation, dtype and columns of the block. residual-rmsnorm counts the elements of one
matrix.
"""
variants = on_any_arch(VARIANTS)


def launch(op: str, operands: Operands) -> None:
    """Launch the variant with the smallest block that holds a row."""
    block = min(block for block in BLOCKS if operands.n <= block)
    VARIANTS[op, operands.out.dtype, block].launch(operands.m, *operands.arguments())


KERNELS = launchers("v1", BLOCKS[-1], launch)
