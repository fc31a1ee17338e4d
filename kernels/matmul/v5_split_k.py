"""Version 5 of the matrix product: the terms of few tiles are split among programs, and tiles can be autotuned.

Computes what version 4 does, with the same rounding, but for the order of the sums where terms are split.

Changed against the last version:
- split terms: tiles that leave over half of the multiprocessors idle, as in decoding or in products with few rows and
  many terms, are computed by 2 or 4 programs each. Each program writes the sums of its terms in fp32 (int32 for int8),
  a second launch adds them in their order, so the same call gives the same bits. The sums, written and read once more,
  are not counted as bytes;
- autotune: `AUTOTUNED` times a short list of tiles, each with the loops over tiles and terms flattened or not, with
  `triton.autotune` in the first call of a shape. `KERNELS` takes the tiles of version 4.

What it leaves out: as version 4, but for the split. A second launch costs a few microseconds, so that two programs a
tile may not pay where a product takes as few: only timing tells, and nothing here has been timed.
"""

from functools import cache, partial
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import Variant
from kernels.matmul import LAYOUTS, Operands, output_type, triton_type, v4_tma
from kernels.matmul.tiles import Tile, constants_of, size_class, sizes
from kernels.matmul.v3_persistent import multiply, tile_position

LABEL = "matmul v5"
MINIMUM_ARCH = 90
TILES = v4_tma.TILES
SPLITS = 4, 2  # programs that share the terms of a tile
FEWEST_STEPS = 4  # of each of them
ROWS, COLUMNS, FINISH_WARPS = 4, 256, 4  # of a program that adds up sums
UNIT = tl.constexpr(16)  # the rows of partial sums are whole numbers of so many elements, and lie as far apart
TUNING_KEY = ["m", "n", "k", "batches", "A_TRANSPOSED", "B_TRANSPOSED"]
HALF = (
    Tile(128, 256, 64, 8, 3),
    Tile(256, 128, 64, 8, 3),
    Tile(128, 128, 64, 8, 4),
    Tile(128, 128, 64, 4, 4),
    Tile(64, 256, 64, 4, 4),
    Tile(64, 64, 64, 4, 4),
)
INT8 = (Tile(128, 128, 64, 8, 4), Tile(128, 128, 128, 8, 3), Tile(64, 128, 64, 8, 4), Tile(64, 64, 64, 8, 3))
FP8 = (Tile(128, 256, 128, 8, 3), Tile(128, 128, 128, 8, 4), Tile(64, 128, 128, 4, 4), Tile(64, 64, 128, 4, 4))
TF32 = (Tile(128, 128, 32, 8, 3), Tile(128, 128, 32, 4, 3), Tile(64, 64, 32, 8, 3), Tile(64, 64, 32, 4, 3))
FP32 = (Tile(128, 64, 16, 8, 3), Tile(128, 128, 16, 8, 3), Tile(64, 64, 16, 4, 3))
TUNED = {"fp32": FP32, "tf32": TF32, "fp16": HALF, "bf16": HALF, "int8": INT8, "fp8e4m3": FP8, "fp8e5m2": FP8}
"""What autotune tries, by dtype. Source: fast.cu and the Triton tutorial 09."""


@triton.jit
def split_matmul(
    a_desc,  # A, or its transpose, in boxes of one tile: batches x rows x columns
    b_desc,  # B, or its transpose, in boxes of one tile
    sums_desc,  # sums in boxes of one tile, as many matrices as splits times batches
    m,  # rows of A and C
    n,  # columns of B and C
    k,  # terms that a program adds up for a tile
    batches,  # number of products
    splits,  # programs that share the terms of a tile
    A_TRANSPOSED: tl.constexpr,  # whether A is stored as k rows of m elements
    B_TRANSPOSED: tl.constexpr,  # whether B is stored as n rows of k elements
    PRECISION: tl.constexpr,  # of fp32 products, "ieee" or "tf32"
    ACCUMULATOR: tl.constexpr,  # dtype of the sums
    BLOCK_M: tl.constexpr,  # rows a tile
    BLOCK_N: tl.constexpr,  # columns a tile
    BLOCK_K: tl.constexpr,  # terms a step
    GROUP_M: tl.constexpr,  # rows of tiles in a group
):
    """Write the sums of one part of the terms of a tile; there are at most as many parts as multiprocessors."""
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    part = tl.program_id(0).to(tl.int64)
    tile = part // splits
    split = (part - tile * splits).to(tl.int32)
    batch_64, tile_m, tile_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
    # A coordinate is a number of rows or columns, never of elements, and descriptors take 32 bits.
    batch, row, col = batch_64.to(tl.int32), (tile_m * BLOCK_M).to(tl.int32), (tile_n * BLOCK_N).to(tl.int32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for step in range(0, k, BLOCK_K):
        start = split * k + step  # the last split reads beyond the last term, where descriptors give zeros
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


@triton.jit(do_not_specialize=["m", "n", "batches", "splits", "sums_stride", "out_stride", "out_batch"])
def add_splits(
    sums_ptr,  # splits x batches matrices of m rows
    out_ptr,  # C
    scale_a_ptr,  # factor of A, or None
    scale_b_ptr,  # factor of B, or None
    m,  # rows of C
    n,  # columns of C
    batches,  # number of products
    splits,  # matrices that are added up
    sums_stride,  # elements from one row of sums to the next, a multiple of UNIT
    out_stride,  # elements from one row of C to the next
    out_batch,  # elements from one C to the next
    ROWS: tl.constexpr,  # rows a program, a power of two
    COLUMNS: tl.constexpr,  # columns a program, a power of two
):
    """Write the sums of a block of C over all splits, in their order."""
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
    """Return a tile of which sums of 4 bytes can be stored: on sm_100 4 warps have too few registers."""
    return tile._replace(warps=8) if arch >= 100 else tile


def chosen(asked: Operands) -> tuple[Tile, int]:
    """Return the tile for a product and the programs that share its terms: 1 unless tiles are few."""
    found = sizes(TILES, asked.arch, asked.dtype)
    tile = found[size_class(found, asked)]
    tiles, steps = asked.tiles(tile.m, tile.n), triton.cdiv(asked.k, tile.k)
    for splits in SPLITS:
        if splits * tiles <= asked.processors and steps >= splits * FEWEST_STEPS:
            return _with_room(tile, asked.arch), splits
    return tile, 1


@cache
def _partial(dtype: str, layout: str, tile: Tile) -> Variant:
    """Return the kernel that sums up parts of the terms."""
    scales = ("scale_a_ptr", "scale_b_ptr")
    constants = {name: value for name, value in constants_of(dtype, layout).items() if name not in scales}
    names, kinds = ("a_desc", "b_desc", "sums_desc"), (triton_type(dtype), triton_type(dtype), _sums_type(dtype))
    boxes = v4_tma.boxes_of(layout, tile, 1)
    return Variant(
        kernel=split_matmul,
        constants={**constants, **tile.constants},
        options=tile.options,
        op="matmul",
        dtype=dtype,
        part="partial",
        shape_class=f"{layout}, split",
        types={name: f"tensordesc<{kind}{box}>" for name, kind, box in zip(names, kinds, boxes, strict=True)},
    )


def _sums_type(dtype: str) -> str:
    return "i32" if dtype == "int8" else "fp32"


@cache
def _finish(dtype: str) -> Variant:
    """Return the kernel that adds up the sums of split terms."""
    is_scaled = dtype.startswith("fp8")
    scales = dict.fromkeys(("scale_a_ptr", "scale_b_ptr"), "*fp32" if is_scaled else None)
    return Variant(
        kernel=add_splits,
        constants={"ROWS": ROWS, "COLUMNS": COLUMNS, **({} if is_scaled else scales)},
        options={"num_warps": FINISH_WARPS, "enable_fp_fusion": True},
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
    found = list(v4_tma.variants(arch))
    for dtype in dict.fromkeys(variant.dtype for variant in found):
        smallest = _with_room(list(sizes(TILES, arch, dtype).values())[-1], arch)
        layouts = ("nt",) if dtype.startswith("fp8") else LAYOUTS
        found += [*(_partial(dtype, layout, smallest) for layout in layouts), _finish(dtype)]
    return tuple(found)


def _fit_boxes(arguments: dict[str, Any]) -> None:
    """Give the descriptors the boxes of the tile that autotune is about to try or to launch."""
    tile = Tile(arguments["BLOCK_M"], arguments["BLOCK_N"], arguments["BLOCK_K"], warps=0, stages=0)
    layout = "".join("t" if arguments[name] else "n" for name in ("A_TRANSPOSED", "B_TRANSPOSED"))
    names = ("a_desc", "b_desc", "out_desc")
    for name, box in zip(names, v4_tma.boxes_of(layout, tile, arguments["SLICES"]), strict=True):
        arguments[name].block_shape = box


@cache
def tuner(dtype: str) -> triton.runtime.Autotuner:
    """Return the kernel that times the tiles of a dtype in the first launch of each shape and keeps the fastest.

    There is one for each dtype: autotune adds the dtypes of tensors to its key, but descriptors are none.
    """
    configs = [
        triton.Config(
            {**tile.constants, "SLICES": v4_tma.slices_of(dtype, tile), "FLATTEN": flatten},
            num_warps=tile.warps,
            num_stages=tile.stages,
            pre_hook=_fit_boxes,
        )
        for tile in TUNED[dtype]
        for flatten in (True, False)
    ]
    return triton.autotune(configs=configs, key=TUNING_KEY)(v4_tma.descriptor_matmul)


def _launch_split(
    label: str,
    asked: Operands,
    tensors: tuple[torch.Tensor, ...],
    scales: tuple[torch.Tensor, ...],
    tile: Tile,
    splits: int,
) -> None:
    out = tensors[-1]
    variant, finish = _partial(asked.dtype, asked.layout, tile), _finish(asked.dtype)
    boxes = v4_tma.boxes_of(asked.layout, tile, 1)
    stride = triton.cdiv(asked.n, UNIT.value) * UNIT.value
    kind = torch.int32 if asked.dtype == "int8" else torch.float32
    # From torch's allocator at every launch: safe on any stream and in a CUDA graph, and all that is read is written.
    sums = torch.empty((splits * asked.batch, asked.m, stride), dtype=kind, device=out.device)
    described = v4_tma.describe(label, asked, tensors, boxes)
    described[2] = v4_tma.TensorDescriptor.from_tensor(sums, boxes[2])
    share = triton.cdiv(triton.cdiv(asked.k, splits), tile.k) * tile.k
    shape = {"m": asked.m, "n": asked.n, "k": share, "batches": asked.batch, "splits": splits}
    programs = splits * asked.tiles(tile.m, tile.n)
    variant.kernel[(programs,)](*described, **shape, **variant.constants, **variant.options)
    blocks = asked.batch * triton.cdiv(asked.m, ROWS) * triton.cdiv(asked.n, COLUMNS)
    sizes_of_out = (asked.m, asked.n, asked.batch, splits, stride, asked.strides[2], asked.batch_strides[2])
    # By name: without scales two arguments in the middle are constants.
    names = [name for name in add_splits.arg_names if name not in finish.constants]
    arguments = dict(zip(names, (sums, out, *scales, *sizes_of_out), strict=True))
    add_splits[(blocks,)](**arguments, **finish.constants, **finish.options)


def _launch_tuned(
    label: str, asked: Operands, tensors: tuple[torch.Tensor, ...], scales: tuple[torch.Tensor, ...], tile: Tile
) -> None:
    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (min(asked.processors, asked.tiles(meta["BLOCK_M"], meta["BLOCK_N"])),)

    descriptors = v4_tma.describe(label, asked, tensors, v4_tma.boxes_of(asked.layout, tile, 1))
    shape = {"m": asked.m, "n": asked.n, "k": asked.k, "batches": asked.batch}
    constants = constants_of(asked.dtype, asked.layout)
    tuner(asked.dtype)[grid](*descriptors, *scales, **shape, **constants, enable_fp_fusion=True)


def _launch(
    label: str,
    asked: Operands,
    tensors: tuple[torch.Tensor, ...],
    scales: tuple[torch.Tensor, ...],
    is_tuned: bool = False,
) -> None:
    tile, splits = chosen(asked)
    if splits > 1:
        _launch_split(label, asked, tensors, scales, tile, splits)
    elif is_tuned:
        _launch_tuned(label, asked, tensors, scales, tile)
    else:
        v4_tma.launch(label, asked, tensors, scales)


KERNELS = {"matmul": v4_tma.launcher(LABEL, _launch)}
AUTOTUNED = {"matmul": v4_tma.launcher(LABEL, partial(_launch, is_tuned=True))}
