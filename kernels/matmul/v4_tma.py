"""Version 4 of matmul: the tensor memory accelerator (TMA) loads tiles of A and B and stores tiles
of C.

Computes C = A B for A (m, k), B (k, n), C (m, n), and for a batch of them in one launch; in fp8 C =
s_A s_B A B with one factor for each matrix, read from memory. FLOPs, bytes, output dtypes and
rounding are those of version 3.

Changes from version 3, for GPUs with a TMA, from sm_90 on:
- descriptors: one instruction of one thread (UTMALDG) loads a whole tile into shared memory, in the
  order that tensor cores read, where before every thread computed addresses and masks. The TMA
  loads elements beyond an edge as zero, in m, n and k alike, so the loop has no mask: if k is not a
  multiple of the terms of a step, the sums are right only because of these zeros. The host builds
  the descriptors, so a launch in a CUDA graph needs no memory and no fence for them;
- flattened: the loops over tiles and terms become one, so the loads of the next tile start during
  the store of the last one. The loop stays short because it carries no addresses from step to step;
- epilogue in slices: C is stored by the TMA too (UTMASTG), in one or two slices per tile. So a
  slice fits in shared memory next to the pipeline, and its store runs during the conversion of the
  next slice;
- two programs per multiprocessor for `medium` and `small` tiles: in 16 bits they need at most 128
  registers per thread and 99 KB of shared memory, so one computes while the other stores.

Not supported: GPUs before `MINIMUM_ARCH`; strides of stored rows or of batches that are not
multiples of 16 bytes, which a descriptor cannot express; k = 0. Version 3 supports these three. Nor
are there warp specialization, which the compiler documents only for Blackwell, clusters and
multicast, a split k, layout tt, or fp8 in layouts other than nt. If tensor cores need adjacent
terms (tf32 and int8 in nn and tn on sm_90), the compiler transposes each tile in shared memory.
"""

from collections.abc import Callable, Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.launch import ALIGNMENT_BYTES, Variant
from kernels.matmul import Operands, launcher, output_type, triton_type, unsupported_dtype
from kernels.matmul.tiles import (
    Table,
    Tile,
    scale_types,
    size_class,
    sizes,
    tile_position,
    variant_of,
    variants_of,
)
from kernels.matmul.v3_persistent import multiply

LABEL = "matmul v4"
MINIMUM_ARCH = 90
EPILOGUE_BYTES = 32768  # of one slice of C in shared memory, next to the pipeline
TWO_FIT = ("medium", "small")  # sizes of which two programs fit on a multiprocessor
FP32 = {"any": Tile(128, 64, 16, 8, 3)}
TF32_90 = {"large": Tile(128, 128, 32, 8, 3), "small": Tile(64, 64, 32, 4, 3)}
TF32_100 = {"large": Tile(128, 128, 32, 4, 3), "small": Tile(64, 64, 32, 8, 3)}
HALF = {
    "large": Tile(128, 256, 64, 8, 3),
    "medium": Tile(128, 128, 64, 8, 2),
    "small": Tile(64, 64, 64, 4, 4),
}
INT8 = {"large": Tile(128, 128, 64, 8, 4), "small": Tile(64, 64, 64, 4, 3)}
FP8 = {"large": Tile(128, 128, 128, 8, 4), "small": Tile(64, 64, 128, 4, 4)}
SM_90 = {
    "fp32": FP32,
    "tf32": TF32_90,
    "fp16": HALF,
    "bf16": HALF,
    "int8": INT8,
    "fp8e4m3": FP8,
    "fp8e5m2": FP8,
}
TILES: Table = {90: SM_90, 100: SM_90 | {"tf32": TF32_100}}


@triton.jit
def descriptor_matmul(
    a_desc,  # A, or its transpose, in boxes of one tile: batches x rows x columns
    b_desc,  # B, or its transpose, in boxes of one tile
    out_desc,  # C, in boxes of one slice of a tile
    scale_a_ptr,  # factor of A, or None
    scale_b_ptr,  # factor of B, or None
    m,  # rows of A and C
    n,  # columns of B and C
    k,  # terms of a sum
    batches,  # number of matmuls
    A_TRANSPOSED: tl.constexpr,  # whether A is stored as k rows of m elements
    B_TRANSPOSED: tl.constexpr,  # whether B is stored as n rows of k elements
    PRECISION: tl.constexpr,  # of fp32 operands, "ieee" or "tf32"
    ACCUMULATOR: tl.constexpr,  # dtype of the sums
    BLOCK_M: tl.constexpr,  # rows per tile
    BLOCK_N: tl.constexpr,  # columns per tile
    BLOCK_K: tl.constexpr,  # terms per step
    SLICES: tl.constexpr,  # slices in which a tile is stored, 1 or 2
    GROUP_M: tl.constexpr,  # rows of tiles in a group
    FLATTEN: tl.constexpr,  # whether the loops over tiles and terms become one
):
    """Write every P-th tile of C, where P is the number of programs."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    tiles = tl.cast(tiles_m, tl.int64) * tiles_n * batches
    for tile in tl.range(tl.program_id(0).to(tl.int64), tiles, tl.num_programs(0), flatten=FLATTEN):
        batch_64, tile_m, tile_n = tile_position(tl.cast(tile, tl.int64), tiles_m, tiles_n, GROUP_M)
        # Coordinates count rows and columns, not elements, and descriptors take 32 bits.
        batch = batch_64.to(tl.int32)
        row = (tile_m * BLOCK_M).to(tl.int32)
        col = (tile_n * BLOCK_N).to(tl.int32)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
        for start in range(0, k, BLOCK_K):
            if A_TRANSPOSED:
                a = a_desc.load([batch, start, row]).reshape(BLOCK_K, BLOCK_M).T
            else:
                a = a_desc.load([batch, row, start]).reshape(BLOCK_M, BLOCK_K)
            if B_TRANSPOSED:
                b = b_desc.load([batch, col, start]).reshape(BLOCK_N, BLOCK_K).T
            else:
                b = b_desc.load([batch, start, col]).reshape(BLOCK_K, BLOCK_N)
            acc = multiply(a, b, acc, PRECISION, BLOCK_K)
        if scale_a_ptr is not None:
            acc *= tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
        if SLICES == 1:
            out_desc.store([batch, row, col], acc.to(out_desc.dtype)[None, :, :])
        else:
            left, right = acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
            out_desc.store([batch, row, col], left.to(out_desc.dtype)[None, :, :])
            out_desc.store([batch, row, col + BLOCK_N // 2], right.to(out_desc.dtype)[None, :, :])


def boxes_of(layout: str, tile: Tile, slices: int) -> tuple[list[int], list[int], list[int]]:
    """Return the shapes of the blocks of A, B and C that a descriptor moves: batches x stored rows
    x columns.
    """
    a = (tile.m, tile.k) if layout[0] == "n" else (tile.k, tile.m)
    b = (tile.k, tile.n) if layout[1] == "n" else (tile.n, tile.k)
    return [1, *a], [1, *b], [1, tile.m, tile.n // slices]


def slices_of(dtype: str, tile: Tile) -> int:
    bytes_each = {"fp32": 4, "i32": 4}.get(output_type(dtype), 2)
    return 2 if tile.m * tile.n * bytes_each > EPILOGUE_BYTES else 1


def descriptor_types(
    names: Sequence[str], elements: Sequence[str], boxes: Sequence[list[int]]
) -> dict[str, str]:
    return {
        name: f"tensordesc<{kind}{box}>"
        for name, kind, box in zip(names, elements, boxes, strict=True)
    }


@cache
def _variant(dtype: str, layout: str, size: str, tile: Tile) -> Variant:
    slices = 2 if size == "medium" else slices_of(dtype, tile)  # so that two programs fit
    operand = triton_type(dtype)
    names = ("a_desc", "b_desc", "out_desc")
    elements = (operand, operand, output_type(dtype))
    types = descriptor_types(names, elements, boxes_of(layout, tile, slices)) | scale_types(dtype)
    return variant_of(
        descriptor_matmul, dtype, layout, size, tile, types, SLICES=slices, FLATTEN=True
    )


variants = variants_of(TILES, _variant)


def describe(
    operands: Operands, boxes: tuple[list[int], list[int], list[int]]
) -> list[TensorDescriptor]:
    """Return the descriptors of A, B and C as stored, each a stack of matrices.

    Raises:
        ValueError: a descriptor cannot express a stride, or k is 0.
    """
    m = operands.m
    n = operands.n
    k = operands.k
    if not k:
        raise ValueError(
            f"{operands.label}: k is 0; a tensor descriptor needs at least one term (version 3 "
            "writes zeros)"
        )
    a_shape = (m, k) if operands.layout[0] == "n" else (k, m)
    b_shape = (k, n) if operands.layout[1] == "n" else (n, k)
    descriptors = []
    for name, tensor, (rows, columns), stride, batch_stride, box in zip(
        ("a", "b", "out"),
        operands.tensors,
        (a_shape, b_shape, (m, n)),
        operands.strides,
        operands.batch_strides,
        boxes,
        strict=True,
    ):
        unit = ALIGNMENT_BYTES // tensor.itemsize
        # A descriptor needs a stride that is a multiple of 16 bytes also for a single row or
        # matrix.
        row_stride = stride if rows > 1 else triton.cdiv(columns, unit) * unit
        for parts, distance in (("rows", row_stride), ("matrices", batch_stride)):
            if distance % unit:
                raise ValueError(
                    f"{operands.label}: stored {parts} of {name} are "
                    f"{distance * tensor.itemsize} bytes apart; a tensor descriptor needs a "
                    f"multiple of {ALIGNMENT_BYTES} (version 3 supports any)"
                )
        strides = [batch_stride or rows * row_stride, row_stride, 1]
        descriptors.append(TensorDescriptor(tensor, [operands.batch, rows, columns], strides, box))
    return descriptors


def launch(operands: Operands) -> None:
    """Launch the kernel with the tile of its size class on the current device."""
    tiles = sizes(TILES, operands.gpu.arch, operands.dtype)
    size = size_class(tiles, operands)
    tile = tiles[size]
    variant = _variant(operands.dtype, operands.layout, size, tile)
    boxes = boxes_of(operands.layout, tile, variant.constants["SLICES"])
    shape = {"m": operands.m, "n": operands.n, "k": operands.k, "batches": operands.batch}
    programs = operands.gpu.processors * (2 if size in TWO_FIT else 1)
    programs = min(programs, operands.tiles(tile.m, tile.n))
    descriptors = describe(operands, boxes)
    variant.kernel[(programs,)](
        *descriptors, *operands.scales, **shape, **variant.constants, **variant.options
    )


def with_descriptors(launch: Callable[[Operands], None]) -> Callable[[Operands], None]:
    """Return the launch of a version whose kernels need tensor descriptors."""

    def start(operands: Operands) -> None:
        if not sizes(TILES, operands.gpu.arch, operands.dtype):
            allowed = (
                f"tensor descriptors need sm_{MINIMUM_ARCH} or newer, fp8 sm_90 or sm_100 "
                f"(see version 3)"
            )
            raise unsupported_dtype(operands, allowed)
        out = operands.tensors[-1]
        if out.numel():
            with torch.cuda.device_of(out):
                launch(operands)

    return start


KERNELS = {"matmul": launcher(LABEL, with_descriptors(launch))}
