"""Version 3 of matmul: persistent, one or two programs per multiprocessor that compute many tiles;
fp8 and int8.

Computes C = A B for A (m, k), B (k, n), C (m, n), and for a batch of them in one launch; in fp8 C =
s_A s_B A B with one factor for each matrix, read from memory. FLOPs 2 m n k, compulsory bytes e (m
k + k n) + e_out m n for elements of e and e_out bytes; int8 gives int32, fp8 gives bf16.

Rounding: as in version 1 for 16 and 32 bits. int8 sums are exact in int32 up to k = 2^17. The
tensor cores of sm_90 accumulate fp8 products with about 14 bits, so there each step of BLOCK_K
terms starts at zero and is added to a sum in fp32. Source: DeepSeek-V3 technical report (2024),
section 3.3.2, which does so every 128 terms.

Changes from version 2:
- persistent: there are as many programs as run at the same time, and each takes every P-th tile, so
  no multiprocessor waits for a program to end and another to start. Two fit on a multiprocessor if
  8 warps need at most 128 registers per thread (`TWO_FIT`), or if there are 4 warps: one stores its
  tile while the other computes. In the other cases, for example nn and tn in 16 bits, only one
  fits, because the addresses of A and B take registers, so version 2, of which two fit, may be
  faster there;
- one loop body instead of two: every step masks the terms again. If stored rows are multiples of 16
  bytes, that costs a comparison and no wide access;
- the launcher tells the compiler whether stored rows of A and B are multiples of 16 bytes. Triton
  itself recognizes only multiples of 16 elements, and one odd size makes it treat all of them as
  unaligned. So loads stay 16 bytes wide if only C has odd rows, for example layout `nt` with an odd
  n;
- smaller tiles for unaligned rows. With a pointer, a mask and a register for each element, 128 x
  256 tiles spill up to 1256 bytes per thread in bf16; 64 x 64 x 32 with 8 warps does not spill.
  Such loads are not asynchronous, so only other programs hide their latency: the grid then has one
  program per tile;
- int8 and fp8.

To avoid spills if C has odd rows, 16-bit tiles on sm_90 and later are 128 x 128: tiles of 128 x 256
in nn need over 255 registers for the addresses of C.

Limits: every thread still computes addresses, and every load passes through its registers or
`cp.async`; version 4 avoids that on GPUs with a tensor memory accelerator. This is the newest
version for sm_80. k is not split, so few tiles with a large k leave multiprocessors idle. No layout
tt; no fp8 before sm_90, and fp8 only in layout nt. In tf32 on sm_90 and later, dense operands must
have their terms adjacent in shared memory, so A in tn and B in nn and tn are loaded 4 bytes at a
time. Rows of A and B that are not multiples of 16 bytes are loaded element by element, and rows of
C that are not multiples of 16 elements are stored so.
"""

import itertools
from functools import cache, partial

import triton
import triton.language as tl

from kernels.launch import Variant
from kernels.matmul import (
    LAYOUTS,
    MAX_TILES,
    Operands,
    aligned_unit,
    launcher,
    layouts_of,
    unsupported_dtype,
)
from kernels.matmul.tiles import (
    Sizes,
    Table,
    Tile,
    pointer_variant,
    size_class,
    sizes,
    tile_position,
)

LABEL = "matmul v3"
FP32_80 = {"any": Tile(64, 64, 16, 4, 3)}
FP32 = {"any": Tile(64, 64, 16, 8, 3)}
TF32 = {"any": Tile(128, 64, 32, 8, 4)}
HALF_80 = {"large": Tile(128, 256, 32, 8, 3), "small": Tile(64, 64, 64, 4, 4)}
HALF = {"large": Tile(128, 128, 64, 8, 3), "small": Tile(64, 64, 64, 4, 4)}
INT8 = {"any": Tile(128, 128, 64, 8, 4)}
FP8 = {"any": Tile(128, 128, 64, 8, 4)}
SINCE_90 = {
    "fp32": FP32,
    "tf32": TF32,
    "fp16": HALF,
    "bf16": HALF,
    "int8": INT8,
    "fp8e4m3": FP8,
    "fp8e5m2": FP8,
}
TILES: Table = {
    80: {"fp32": FP32_80, "tf32": TF32, "fp16": HALF_80, "bf16": HALF_80, "int8": INT8},
    90: SINCE_90,
    100: SINCE_90,
}
TWO_FIT = {"fp32": LAYOUTS, "tf32": ("nt",), "fp16": ("nt",), "bf16": ("nt",)}
"""Layouts in which tiles of up to 128 x 128 take 8 warps at most 128 registers per thread."""
SHIFTED = {"shifted": Tile(64, 64, 32, 8, 3)}
SHIFTED_FP32 = {"shifted": Tile(64, 64, 16, 8, 3)}


@triton.jit
def in_units(
    number,  # a multiple of UNIT
    UNIT: tl.constexpr,  # known divisor
):
    """Return the number in a form that shows the compiler its divisor."""
    return number // UNIT * UNIT


@triton.jit(do_not_specialize=["m", "k", "batches", "a_stride", "b_stride", "a_batch", "b_batch"])
def persistent_matmul(
    a_ptr,  # A, m rows of k elements, or its transpose
    b_ptr,  # B, k rows of n elements, or its transpose
    out_ptr,  # C, m rows of n elements
    m,  # rows of A and C
    n,  # columns of B and C
    k,  # terms of a sum
    batches,  # number of matmuls
    a_stride,  # elements from one stored row of A to the next
    b_stride,  # the same of B
    out_stride,  # the same of C
    a_batch,  # elements from one A to the next
    b_batch,  # the same of B
    out_batch,  # the same of C
    scale_a_ptr,  # factor of A, or None
    scale_b_ptr,  # factor of B, or None
    A_TRANSPOSED: tl.constexpr,  # whether A is stored as k rows of m elements
    B_TRANSPOSED: tl.constexpr,  # whether B is stored as n rows of k elements
    PRECISION: tl.constexpr,  # of fp32 operands, "ieee" or "tf32"
    ACCUMULATOR: tl.constexpr,  # dtype of the sums
    BLOCK_M: tl.constexpr,  # rows per tile
    BLOCK_N: tl.constexpr,  # columns per tile
    BLOCK_K: tl.constexpr,  # terms per step
    GROUP_M: tl.constexpr,  # rows of tiles in a group
    UNIT: tl.constexpr,  # known divisor of the length and stride of stored rows of A and B
):
    """Write every P-th tile of C, where P is the number of programs."""
    a_stride = in_units(a_stride, UNIT)
    a_batch = in_units(a_batch, UNIT)
    b_stride = in_units(b_stride, UNIT)
    b_batch = in_units(b_batch, UNIT)
    a_end = in_units(m if A_TRANSPOSED else k, UNIT)  # of a stored row
    b_end = in_units(k if B_TRANSPOSED else n, UNIT)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tl.cast(tiles_m, tl.int64) * tiles_n * batches
    lanes_m = tl.arange(0, BLOCK_M)
    lanes_n = tl.arange(0, BLOCK_N)
    lanes_k = tl.arange(0, BLOCK_K)
    for tile in tl.range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0)):
        batch, tile_m, tile_n = tile_position(tl.cast(tile, tl.int64), tiles_m, tiles_n, GROUP_M)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
        for start in tl.range(0, k, BLOCK_K):
            rows = (tile_m * BLOCK_M + lanes_m)[:, None]
            cols = (tile_n * BLOCK_N + lanes_n)[None, :]
            down = (start + lanes_k.to(tl.int64))[:, None]
            across = (start + lanes_k.to(tl.int64))[None, :]
            # The dense axis is masked and the other one clamped, which costs no wide access.
            if A_TRANSPOSED:
                a_ptrs = a_ptr + batch * a_batch + across * a_stride + rows
                a = tl.load(a_ptrs, mask=(rows < a_end) & (lanes_k < k - start)[None, :], other=0.0)
            else:
                a_ptrs = a_ptr + batch * a_batch + tl.minimum(rows, m - 1) * a_stride + across
                a = tl.load(a_ptrs, mask=(lanes_k < a_end - start)[None, :], other=0.0)
            if B_TRANSPOSED:
                b_ptrs = b_ptr + batch * b_batch + tl.minimum(cols, n - 1) * b_stride + down
                b = tl.load(b_ptrs, mask=(lanes_k < b_end - start)[:, None], other=0.0)
            else:
                b_ptrs = b_ptr + batch * b_batch + down * b_stride + cols
                b = tl.load(b_ptrs, mask=(lanes_k < k - start)[:, None] & (cols < b_end), other=0.0)
            acc = multiply(a, b, acc, PRECISION, BLOCK_K)
        rows = (tile_m * BLOCK_M + lanes_m)[:, None]
        cols = (tile_n * BLOCK_N + lanes_n)[None, :]
        if scale_a_ptr is not None:
            acc *= tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
        out_ptrs = out_ptr + batch * out_batch + rows * out_stride + cols
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(rows < m) & (cols < n))


@triton.jit
def multiply(
    a,  # block (BLOCK_M, BLOCK_K)
    b,  # block (BLOCK_K, BLOCK_N)
    acc,  # sums so far
    PRECISION: tl.constexpr,  # of fp32 operands, "ieee" or "tf32"
    BLOCK_K: tl.constexpr,  # terms per step
):
    if a.dtype.is_fp8():
        # Costs sm_90 one addition per element of the tile and step; later tensor cores ignore it.
        return tl.dot(a, b, acc, max_num_imprecise_acc=BLOCK_K)
    return tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)


def tiles_for(arch: int, dtype: str, unit: int) -> Sizes:
    """Return the tiles for a dtype on an architecture; `unit` is a known divisor of the stored
    rows.
    """
    tiles = sizes(TILES, arch, dtype)
    if unit > 1 or not tiles:
        return tiles
    return SHIFTED_FP32 if dtype == "fp32" else SHIFTED


_variant = cache(partial(pointer_variant, persistent_matmul))


def variants(arch: int) -> tuple[Variant, ...]:
    found = []
    for dtype in TILES[90]:
        for layout, unit in itertools.product(layouts_of(dtype), (aligned_unit(dtype), 1)):
            for size, tile in tiles_for(arch, dtype, unit).items():
                found.append(_variant(dtype, layout, size, tile, UNIT=unit))
    return tuple(found)


def _programs(operands: Operands, tile: Tile) -> int:
    programs = MAX_TILES
    if operands.unit > 1:
        is_small = tile.n <= 128 and operands.layout in TWO_FIT.get(operands.dtype, ())
        programs = operands.gpu.processors * (2 if is_small or tile.warps == 4 else 1)
    return min(programs, operands.tiles(tile.m, tile.n))


def _launch(operands: Operands) -> None:
    tiles = tiles_for(operands.gpu.arch, operands.dtype, operands.unit)
    if not tiles:
        raise unsupported_dtype(operands, "fp8 needs sm_90 or sm_100")
    if not operands.tensors[-1].numel():
        return
    size = size_class(tiles, operands)
    variant = _variant(operands.dtype, operands.layout, size, tiles[size], UNIT=operands.unit)
    variant.launch(
        _programs(operands, tiles[size]),
        *operands.tensors,
        operands.m,
        operands.n,
        operands.k,
        operands.batch,
        *operands.strides,
        *operands.batch_strides,
        *operands.scales,
    )


KERNELS = {"matmul": launcher(LABEL, _launch)}
