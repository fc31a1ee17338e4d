"""Version 1 of matmul: one tile of C per program, in row-major order, with a mask on every access.

Computes C = A B for A (m, k), B (k, n), C (m, n), and for a batch of them in one launch. FLOPs 2 m
n k, compulsory bytes (m k + k n + m n) e for elements of e bytes.

Rounding: products of 16-bit numbers are exact, sums are fp32, and C is rounded once, to the nearest
even. fp32 is multiplied and added in fp32.

This is the tiled matmul of Triton tutorial 03 without its order of tiles. What is slow:
- in row-major order, the programs that run together read the same few rows of A, but all of B;
- rows, columns and terms are masked in every step of the loop, although only the edges need it;
- the tile is 64 x 64 on every GPU, for every shape and dtype. A step computes 64 x 64 x 32 products
  from 4096 loaded numbers, or 32 per number, half of what 128 x 128 reaches, so the cache becomes
  the limit sooner.

Not supported: tf32, int8 and fp8; layout tt. If the stride of stored rows is not a multiple of 16
elements, they are loaded element by element, because most rows do not start at a multiple of 16
bytes.
"""

from functools import cache, partial

import triton
import triton.language as tl

from kernels.matmul import launcher
from kernels.matmul.tiles import Table, Tile, one_tile_each, pointer_variant, variants_of

LABEL = "matmul v1"
SIZES = {"any": Tile(64, 64, 32, warps=4, stages=3)}
TILES: Table = {0: {"fp32": SIZES, "fp16": SIZES, "bf16": SIZES}}


@triton.jit
def tile_matmul(
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
    BLOCK_M: tl.constexpr,  # rows per program
    BLOCK_N: tl.constexpr,  # columns per program
    BLOCK_K: tl.constexpr,  # terms per step
):
    tile = tl.program_id(0).to(tl.int64)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles_of_one = tl.cdiv(m, BLOCK_M) * tiles_n
    batch = tile // tiles_of_one
    tile -= batch * tiles_of_one
    rows = (tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    cols = (tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    a_ptr += batch * a_batch
    b_ptr += batch * b_batch
    out_ptr += batch * out_batch
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        terms = start + tl.arange(0, BLOCK_K).to(tl.int64)
        down = terms[:, None]
        across = terms[None, :]
        a_offsets = across * a_stride + rows if A_TRANSPOSED else rows * a_stride + across
        b_offsets = cols * b_stride + down if B_TRANSPOSED else down * b_stride + cols
        a = tl.load(a_ptr + a_offsets, mask=(rows < m) & (across < k), other=0.0)
        b = tl.load(b_ptr + b_offsets, mask=(down < k) & (cols < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(
        out_ptr + rows * out_stride + cols,
        acc.to(out_ptr.dtype.element_ty),
        mask=(rows < m) & (cols < n),
    )


_variant = cache(partial(pointer_variant, tile_matmul))


variants = variants_of(TILES, _variant)


KERNELS = {"matmul": launcher(LABEL, one_tile_each(TILES, _variant))}
