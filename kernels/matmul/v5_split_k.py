"""Version 5 of matmul: splits k among programs if there are few tiles, and can autotune its tiles.

Computes the same as version 4, with the same rounding except for the order of the sums if k is
split.

Changes from version 4:
- split k: if the tiles leave over half of the multiprocessors idle, as in decoding or with few rows
  and a large k, 2 or 4 programs compute each tile. Each program writes the sums of its terms in
  fp32 (int32 for int8), and a second launch adds them in a fixed order, so the same call gives the
  same bits. These sums, written and read once more, are not counted as bytes;
- autotune: `AUTOTUNED` times a short list of tiles with `triton.autotune` in the first call of each
  shape, each with the loops over tiles and terms flattened or not. `KERNELS` uses the tiles of
  version 4.

Limits: those of version 4 except for the split. As there, the sums of a k that is not a multiple of
the terms of a step rely on zeros from the TMA. The second launch costs a few microseconds, so with
matmuls as short as that, two programs per tile may not pay off.
"""

import itertools
from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import Variant
from kernels.matmul import Operands, launcher, layouts_of, output_type, triton_type, v4_tma
from kernels.matmul.tiles import Tile, constants_of, size_class, sizes, tile_position, variant_of
from kernels.matmul.v3_persistent import multiply

LABEL = "matmul v5"
MINIMUM_ARCH = 90
TILES = v4_tma.TILES
SPLITS = 4, 2  # programs that share the terms of a tile
MIN_STEPS_PER_SPLIT = 4
ROWS = 4  # of a program of the second launch, as are the next two
COLUMNS = 256
FINISH_WARPS = 4
UNIT = tl.constexpr(16)  # divisor of the row stride of partial sums, in elements
TUNING_KEY = ["m", "n", "k", "batches", "A_TRANSPOSED", "B_TRANSPOSED"]
HALF = (
    Tile(128, 256, 64, 8, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 64, 4, 4),
    Tile(64, 256, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
)
INT8 = (
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 128, 8, 3),
    Tile(64, 128, 64, 8, 4),
    Tile(64, 64, 64, 8, 3),
)
FP8 = (
    Tile(128, 256, 128, 8, 3),
    Tile(128, 128, 128, 8, 4),
    Tile(64, 128, 128, 4, 4),
    Tile(64, 64, 128, 4, 4),
)
TF32 = (
    Tile(128, 128, 32, 8, 3),
    Tile(128, 128, 32, 4, 3),
    Tile(64, 64, 32, 8, 3),
    Tile(64, 64, 32, 4, 3),
)
FP32 = (Tile(128, 64, 16, 8, 3), Tile(128, 128, 16, 8, 3), Tile(64, 64, 16, 4, 3))
TUNED = {
    "fp32": FP32,
    "tf32": TF32,
    "fp16": HALF,
    "bf16": HALF,
    "int8": INT8,
    "fp8e4m3": FP8,
    "fp8e5m2": FP8,
}
"""Tiles that autotune tries, by dtype. Source: fast.cu and Triton tutorial 09."""


@triton.jit
def split_matmul(
    a_desc,  # A, or its transpose, in boxes of one tile: batches x rows x columns
    b_desc,  # B, or its transpose, in boxes of one tile
    sums_desc,  # sums in boxes of one tile, as many matrices as splits times batches
    m,  # rows of A and C
    n,  # columns of B and C
    k,  # terms that a program adds up for a tile
    batches,  # number of matmuls
    splits,  # programs that share the terms of a tile
    A_TRANSPOSED: tl.constexpr,  # whether A is stored as k rows of m elements
    B_TRANSPOSED: tl.constexpr,  # whether B is stored as n rows of k elements
    PRECISION: tl.constexpr,  # of fp32 operands, "ieee" or "tf32"
    ACCUMULATOR: tl.constexpr,  # dtype of the sums
    BLOCK_M: tl.constexpr,  # rows per tile
    BLOCK_N: tl.constexpr,  # columns per tile
    BLOCK_K: tl.constexpr,  # terms per step
    GROUP_M: tl.constexpr,  # rows of tiles in a group
):
    """Write the sums of one split of a tile. There are at most as many programs as
    multiprocessors.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    part = tl.program_id(0).to(tl.int64)
    tile = part // splits
    split = (part - tile * splits).to(tl.int32)
    batch_64, tile_m, tile_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
    # Coordinates count rows and columns, not elements, and descriptors take 32 bits.
    batch = batch_64.to(tl.int32)
    row = (tile_m * BLOCK_M).to(tl.int32)
    col = (tile_n * BLOCK_N).to(tl.int32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for step in range(0, k, BLOCK_K):
        start = split * k + step  # beyond the last term descriptors return zeros
        if A_TRANSPOSED:
            a = a_desc.load([batch, start, row]).reshape(BLOCK_K, BLOCK_M).T
        else:
            a = a_desc.load([batch, row, start]).reshape(BLOCK_M, BLOCK_K)
        if B_TRANSPOSED:
            b = b_desc.load([batch, col, start]).reshape(BLOCK_N, BLOCK_K).T
        else:
            b = b_desc.load([batch, start, col]).reshape(BLOCK_K, BLOCK_N)
        acc = multiply(a, b, acc, PRECISION, BLOCK_K)
    sums_desc.store([split * batches + batch, row, col], acc[None, :, :])


@triton.jit(
    do_not_specialize=["m", "n", "batches", "splits", "sums_stride", "out_stride", "out_batch"]
)
def add_splits(
    sums_ptr,  # splits x batches matrices of m rows
    out_ptr,  # C
    scale_a_ptr,  # factor of A, or None
    scale_b_ptr,  # factor of B, or None
    m,  # rows of C
    n,  # columns of C
    batches,  # number of matmuls
    splits,  # matrices to add
    sums_stride,  # elements from one row of sums to the next, a multiple of UNIT
    out_stride,  # elements from one row of C to the next
    out_batch,  # elements from one C to the next
    ROWS: tl.constexpr,  # rows per program, a power of two
    COLUMNS: tl.constexpr,  # columns per program, a power of two
):
    """Write a block of C as the sum over all splits, in order."""
    across = tl.cdiv(n, COLUMNS)
    blocks = tl.cdiv(m, ROWS) * across
    block = tl.program_id(0).to(tl.int64)
    batch = block // blocks
    block -= batch * blocks
    rows = (block // across * ROWS + tl.arange(0, ROWS))[:, None]
    cols = (block % across * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    stride = sums_stride // UNIT * UNIT
    inside = (rows < m) & (cols < stride)
    total = tl.zeros((ROWS, COLUMNS), dtype=sums_ptr.dtype.element_ty)
    for split in range(splits):
        first = (split * batches + batch) * m + rows
        total += tl.load(sums_ptr + first * stride + cols, mask=inside, other=0)
    if scale_a_ptr is not None:
        total *= tl.load(scale_a_ptr) * tl.load(scale_b_ptr)
    out_ptrs = out_ptr + batch * out_batch + rows * out_stride + cols
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=(rows < m) & (cols < n))


def _with_room(tile: Tile, arch: int) -> Tile:
    """Return the tile with enough warps to store 4-byte sums: on sm_100 4 warps have too few
    registers.
    """
    return tile._replace(warps=8) if arch >= 100 else tile


def chosen(operands: Operands) -> tuple[Tile, int]:
    """Return the tile, and the number of programs that share its terms: 1 unless there are few
    tiles.
    """
    table = sizes(TILES, operands.gpu.arch, operands.dtype)
    tile = table[size_class(table, operands)]
    tiles = operands.tiles(tile.m, tile.n)
    steps = triton.cdiv(operands.k, tile.k)
    for splits in SPLITS:
        if splits * tiles <= operands.gpu.processors and steps >= splits * MIN_STEPS_PER_SPLIT:
            return _with_room(tile, operands.gpu.arch), splits
    return tile, 1


@cache
def _partial(dtype: str, layout: str, tile: Tile) -> Variant:
    names = ("a_desc", "b_desc", "sums_desc")
    kinds = (triton_type(dtype), triton_type(dtype), _sums_type(dtype))
    types = v4_tma.descriptor_types(names, kinds, v4_tma.boxes_of(layout, tile, 1))
    return variant_of(split_matmul, dtype, layout, "split", tile, types, part="partial")


def _sums_type(dtype: str) -> str:
    return "i32" if dtype == "int8" else "fp32"


@cache
def _finish(dtype: str) -> Variant:
    is_scaled = dtype.startswith("fp8")
    scales = dict.fromkeys(("scale_a_ptr", "scale_b_ptr"), "*fp32" if is_scaled else None)
    return Variant(
        kernel=add_splits,
        constants={"ROWS": ROWS, "COLUMNS": COLUMNS, **({} if is_scaled else scales)},
        warps=FINISH_WARPS,
        op="matmul",
        dtype=dtype,
        part="finish",
        shape_class="split",
        types={
            "sums_ptr": f"*{_sums_type(dtype)}",
            "out_ptr": f"*{output_type(dtype)}",
            **(scales if is_scaled else {}),
        },
        elements=ROWS * COLUMNS,
        bytes=4 * ROWS * COLUMNS,  # of one split
    )


def variants(arch: int) -> tuple[Variant, ...]:
    result = list(v4_tma.variants(arch))
    for dtype in dict.fromkeys(variant.dtype for variant in result):
        smallest = _with_room(list(sizes(TILES, arch, dtype).values())[-1], arch)
        result += [
            *(_partial(dtype, layout, smallest) for layout in layouts_of(dtype)),
            _finish(dtype),
        ]
    return tuple(result)


def _fit_boxes(arguments: dict[str, Any]) -> None:
    """Set the block shapes of the descriptors to the tile that autotune is about to launch."""
    tile = Tile(arguments["BLOCK_M"], arguments["BLOCK_N"], arguments["BLOCK_K"], warps=0, stages=0)
    layout = "".join("t" if arguments[name] else "n" for name in ("A_TRANSPOSED", "B_TRANSPOSED"))
    names = ("a_desc", "b_desc", "out_desc")
    for name, box in zip(names, v4_tma.boxes_of(layout, tile, arguments["SLICES"]), strict=True):
        arguments[name].block_shape = box


@cache
def tuner(dtype: str) -> triton.runtime.Autotuner:
    """Return the autotuned kernel of a dtype.

    There is one for each dtype, because autotune's own key includes the dtypes of tensors but not
    of descriptors.
    """
    configs = [
        triton.Config(
            {**tile.constants, "SLICES": v4_tma.slices_of(dtype, tile), "FLATTEN": flatten},
            num_warps=tile.warps,
            num_stages=tile.stages,
            pre_hook=_fit_boxes,
        )
        for tile, flatten in itertools.product(TUNED[dtype], (True, False))
    ]
    return triton.autotune(configs=configs, key=TUNING_KEY)(v4_tma.descriptor_matmul)


def _launch_split(operands: Operands, tile: Tile, splits: int) -> None:
    out = operands.tensors[-1]
    variant = _partial(operands.dtype, operands.layout, tile)
    finish = _finish(operands.dtype)
    boxes = v4_tma.boxes_of(operands.layout, tile, 1)
    stride = triton.cdiv(operands.n, UNIT.value) * UNIT.value
    kind = torch.int32 if operands.dtype == "int8" else torch.float32
    # From torch's allocator at every launch, so that it is safe on any stream and in a CUDA graph.
    sums = torch.empty((splits * operands.batch, operands.m, stride), dtype=kind, device=out.device)
    descriptors = v4_tma.describe(operands, boxes)
    descriptors[2] = v4_tma.TensorDescriptor.from_tensor(sums, boxes[2])
    terms = triton.cdiv(triton.cdiv(operands.k, splits), tile.k) * tile.k
    shape = {
        "m": operands.m,
        "n": operands.n,
        "k": terms,
        "batches": operands.batch,
        "splits": splits,
    }
    programs = splits * operands.tiles(tile.m, tile.n)
    variant.kernel[(programs,)](*descriptors, **shape, **variant.constants, **variant.options)
    blocks = operands.batch * triton.cdiv(operands.m, ROWS) * triton.cdiv(operands.n, COLUMNS)
    out_strides = (operands.strides[2], operands.batch_strides[2])
    sizes = (operands.m, operands.n, operands.batch, splits, stride, *out_strides)
    # By name: without scales, two arguments in the middle are constants.
    names = [name for name in add_splits.arg_names if name not in finish.constants]
    arguments = dict(zip(names, (sums, out, *operands.scales, *sizes), strict=True))
    add_splits[(blocks,)](**arguments, **finish.constants, **finish.options)


def _launch_tuned(operands: Operands, tile: Tile) -> None:
    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (min(operands.gpu.processors, operands.tiles(meta["BLOCK_M"], meta["BLOCK_N"])),)

    descriptors = v4_tma.describe(operands, v4_tma.boxes_of(operands.layout, tile, 1))
    shape = {"m": operands.m, "n": operands.n, "k": operands.k, "batches": operands.batch}
    constants = constants_of(operands.dtype, operands.layout)
    tuner(operands.dtype)[grid](
        *descriptors, *operands.scales, **shape, **constants, enable_fp_fusion=True
    )


def _launch(operands: Operands, is_tuned: bool = False) -> None:
    tile, splits = chosen(operands)
    if splits > 1:
        _launch_split(operands, tile, splits)
    elif is_tuned:
        _launch_tuned(operands, tile)
    else:
        v4_tma.launch(operands)


KERNELS = {"matmul": launcher(LABEL, v4_tma.with_descriptors(_launch))}
AUTOTUNED = {"matmul": launcher(LABEL, v4_tma.with_descriptors(partial(_launch, is_tuned=True)))}
