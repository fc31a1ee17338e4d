"""Version 1 of the fp8 quantization: groups in registers, read once.

Computes, for each group of n elements x (a row, or 128 elements of a row):

    scale = max(max |x|, 1e-10) / 448        code = x (1 / scale), rounded to e4m3

Source: DeepSeek-V3 Technical Report (2024), section 3.3, for 1x128 blocks; 448 is the largest
number of e4m3 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).

Bytes moved, for m rows of n elements of e bytes: read m n e, written m n and 4 per scale.

Rounding: fp32 arithmetic. A product by the rounded 1 / scale may be off by 3 ulp of fp32, which
changes a code only if x / scale is that close to the middle of two.

A program has one row, or 32 blocks of 128 elements, and 16 or 32 elements per thread. `out` has the
codes and then the scales, in bytes.

Limits: fp8 conversions need sm_89. Up to half of the lanes idle if n is not a power of two. Rows of
more than 32,768 elements, or not of a multiple of 16, are rejected. NaN is no part of the maximum.
"""

import itertools
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.launch import (
    DTYPES,
    Variant,
    require_companion,
    require_contiguous,
    require_shape,
    require_tensors,
)

MINIMUM_ARCH = 89
WHOLE = {"quantize-fp8": 16, "quantize-fp8-block": 128}  # what the row length is a multiple of
BLOCK = 128
PROGRAM_ELEMENTS = 4096  # of blocks
THREAD_ELEMENTS = 32  # at most
WIDTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768)  # a row takes the smallest that holds it


@triton.jit
def quantize_groups(
    x_ptr,  # groups of n elements
    codes_ptr,  # as many, in fp8
    scales_ptr,  # a scale per group, in fp32
    groups,  # number of groups
    n,  # elements of a group; a multiple of 16 makes accesses wide
    ROWS: tl.constexpr,  # groups per program, a power of two
    WIDTH: tl.constexpr,  # a power of two from n
):
    group = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)[None, :]
    at = group[:, None] * n + columns
    inside = (group < groups)[:, None] & (columns < n)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=1), 1e-10) * (1.0 / 448.0)
    codes = (x * (1.0 / scale)[:, None]).to(codes_ptr.dtype.element_ty)
    tl.store(codes_ptr + at, codes, mask=inside)
    tl.store(scales_ptr + group, scale, mask=group < groups)


def _variant(op: str, dtype: torch.dtype, width: int) -> Variant:
    rows = PROGRAM_ELEMENTS // BLOCK if width == BLOCK else 1
    warps = max(1, rows * width // (32 * THREAD_ELEMENTS))
    return Variant(
        kernel=quantize_groups,
        constants={"ROWS": rows, "WIDTH": width},
        warps=warps,
        op=op,
        dtype=DTYPES[dtype],
        shape_class=f"n <= {width}",
        types={"codes_ptr": "*fp8e4nv", "scales_ptr": "*fp32"},
        elements=rows * width,
        bytes=rows * (width * (dtype.itemsize + 1) + 4),
    )


CONFIGURATIONS = (("quantize-fp8-block", BLOCK), *(("quantize-fp8", width) for width in WIDTHS))
VARIANTS = {
    (op, dtype, width): _variant(op, dtype, width)
    for (op, width), dtype in itertools.product(CONFIGURATIONS, DTYPES)
}
"""By operation, dtype and elements that hold a group."""


def variants(arch: int) -> tuple[Variant, ...]:
    return tuple(VARIANTS.values()) if arch >= MINIMUM_ARCH else ()


def _launch(op: str, x: torch.Tensor, *, out: torch.Tensor) -> None:
    """Launch the variant with the smallest block that holds a group."""
    label = f"{op} v1"
    require_tensors(label, x=x)
    require_companion(label, "out", out, torch.uint8, ("x", x))
    require_contiguous(label, x=x, out=out)
    if x.dim() != 2 or x.shape[1] % WHOLE[op] or x.shape[1] > WIDTHS[-1]:
        raise ValueError(
            f"{label}: x has shape {tuple(x.shape)}; expected rows of a multiple of {WHOLE[op]} "
            f"elements, at most {WIDTHS[-1]}"
        )
    n = BLOCK if op == "quantize-fp8-block" else max(1, x.shape[1])
    count = x.numel()
    groups = count // n
    require_shape(label, "out", out, (count + 4 * groups,))
    if groups:
        width = min(width for name, _, width in VARIANTS if name == op and n <= width)
        variant = VARIANTS[op, x.dtype, width]
        codes = out[:count].view(torch.float8_e4m3fn)
        programs = triton.cdiv(groups, variant.constants["ROWS"])
        variant.launch(programs, x, codes, out[count:].view(torch.float32), groups, n)


KERNELS = {op: partial(_launch, op) for op in WHOLE}
