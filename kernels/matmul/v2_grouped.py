"""Version 2 of matmul: tiles in groups that share their operands in L2, and masks only at the
edges.

Computes the same as version 1, with the same rounding.

Changes from version 1:
- order: GROUP_M rows of tiles are traversed column by column. P programs that run together then
  read about GROUP_M rows and P / GROUP_M columns of tiles instead of one row and P columns, so more
  reads hit in L2. Source: Triton tutorial 03, "L2 cache optimizations";
- masks: the loop covers whole steps without a mask on the terms, and a last step takes the rest of
  k. Along the axis that is not dense in memory, rows and columns beyond the edge repeat the last
  one, which costs no wide access; their results are not stored;
- tiles by architecture and dtype, 128 x 128 in 16 bits, for 64 products per loaded number instead
  of 32;
- tf32: fp32 on tensor cores, which use the upper 19 bits of each operand, if torch's setting
  `torch.backends.cuda.matmul.fp32_precision` is `tf32`.

Limits: no int8 and fp8; no layout tt. Tiles of 128 x 128 leave an H100 half idle up to 1024 x 1024.
When a program ends, its multiprocessor loads nothing until the next program has filled its
pipeline; version 3 solves that. If the stride of stored rows is not a multiple of 16 elements, they
are loaded element by element.
"""

from functools import cache, partial

import triton
import triton.language as tl

from kernels.matmul import launcher
from kernels.matmul.tiles import (
    Table,
    Tile,
    one_tile_each,
    pointer_variant,
    tile_position,
    variants_of,
)

LABEL = "matmul v2"
FP32 = {"any": Tile(64, 64, 16, 4, 3)}
TF32 = {"any": Tile(128, 64, 32, 4, 4)}
HALF_80 = {"any": Tile(128, 128, 32, 4, 4)}
HALF = {"any": Tile(128, 128, 64, 8, 3)}
TILES: Table = {
    80: {"fp32": FP32, "tf32": TF32, "fp16": HALF_80, "bf16": HALF_80},
    90: {"fp32": FP32, "tf32": TF32, "fp16": HALF, "bf16": HALF},
    100: {"fp32": FP32, "tf32": TF32, "fp16": HALF, "bf16": HALF},
}


@triton.jit
def load(
    ptrs,  # block of pointers
    inside,  # block of the same shape, or one that broadcasts to it
    MASKED: tl.constexpr,  # whether to apply `inside`
):
    return tl.load(ptrs, mask=inside, other=0.0) if MASKED else tl.load(ptrs)


@triton.jit
def grouped_matmul(
    a_ptr,  # A, m rows of k elements, or its transpose
    b_ptr,  # B, k rows of n elements, or its transpose
    out_ptr,  # C, m rows of n elements
    m,  # rows of A and C
    n,  # columns of B and C
    k,  # terms of a sum
    a_stride,  # elements from one stored row of A to the next
    b_stride,  # the same of B
    out_stride,  # the same of C
    a_batch,  # elements from one A to the next
    b_batch,  # the same of B
    out_batch,  # the same of C
    A_TRANSPOSED: tl.constexpr,  # whether A is stored as k rows of m elements
    B_TRANSPOSED: tl.constexpr,  # whether B is stored as n rows of k elements
    PRECISION: tl.constexpr,  # of fp32 products, "ieee" or "tf32"
    BLOCK_M: tl.constexpr,  # rows per program
    BLOCK_N: tl.constexpr,  # columns per program
    BLOCK_K: tl.constexpr,  # terms per step
    GROUP_M: tl.constexpr,  # rows of tiles in a group
):
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0).to(tl.int64)
    batch, tile_m, tile_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    terms = tl.arange(0, BLOCK_K).to(tl.int64)

    row_inside = (rows < m)[:, None]
    col_inside = (cols < n)[None, :]
    if A_TRANSPOSED:
        a_ptrs = a_ptr + batch * a_batch + rows[:, None] + terms[None, :] * a_stride
        a_step = tl.cast(a_stride, tl.int64) * BLOCK_K
    else:
        a_ptrs = (
            a_ptr + batch * a_batch + tl.minimum(rows, m - 1)[:, None] * a_stride + terms[None, :]
        )
        a_step = BLOCK_K
    if B_TRANSPOSED:
        b_ptrs = (
            b_ptr + batch * b_batch + tl.minimum(cols, n - 1)[None, :] * b_stride + terms[:, None]
        )
        b_step = BLOCK_K
    else:
        b_ptrs = b_ptr + batch * b_batch + cols[None, :] + terms[:, None] * b_stride
        b_step = tl.cast(b_stride, tl.int64) * BLOCK_K

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, k // BLOCK_K):
        a = load(a_ptrs, row_inside, A_TRANSPOSED)
        b = load(b_ptrs, col_inside, not B_TRANSPOSED)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += a_step
        b_ptrs += b_step
    rest = k - k // BLOCK_K * BLOCK_K  # not `k % BLOCK_K`: Triton 3.6 loses its divisibility by 16
    if rest > 0:
        a = load(a_ptrs, row_inside & (terms < rest)[None, :], True)
        b = load(b_ptrs, col_inside & (terms < rest)[:, None], True)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    out_ptrs = out_ptr + batch * out_batch + rows[:, None] * out_stride + cols[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=row_inside & col_inside)


_variant = cache(partial(pointer_variant, grouped_matmul))


variants = variants_of(TILES, _variant)


KERNELS = {"matmul": launcher(LABEL, one_tile_each(TILES, _variant))}
