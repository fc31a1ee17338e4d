"""Tile sizes of matmul, and the rule that picks one.

Each version lists its tiles by architecture, dtype and size class, so a given shape always runs the
same binary, which can be audited and reproduced. The entries are taken from published search
spaces: the Triton tutorials 03 (tiles of 64 to 256, warps, stages on sm_80) and 09 (128 x 128 and
128 x 256 on sm_90 and later, 64 or 128 deep, groups of 8), and fast.cu (128 x 256 on an H100). If
such a tile spills registers or exceeds shared memory when compiled, the next smaller one is used.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import triton
import triton.language as tl

from kernels.launch import Variant
from kernels.matmul import (
    MAX_TILES,
    Operands,
    layouts_of,
    output_type,
    triton_type,
    unsupported_dtype,
)

GROUP_M = 8  # rows of tiles that are traversed together; source: Triton tutorials 03 and 09
MIN_BUSY_FRACTION = 0.75  # of the multiprocessors
# 160 KiB of shared memory and more; others get the smallest tiles.
LARGE_SHARED_ARCHES = (
    80,
    90,
    100,
    103,
)


class Tile(NamedTuple):
    """Rows and columns of C per program, terms per step, warps, and pipeline stages."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k}


Sizes = Mapping[str, Tile]
"""Tiles of one dtype on one architecture by size class, largest first."""
Table = Mapping[int, Mapping[str, Sizes]]
"""Tiles by architecture and dtype."""


def sizes(table: Table, arch: int, dtype: str) -> Sizes:
    """Return the tiles for a dtype on an architecture, largest first; empty if the version has no
    kernel.

    An architecture that is not in the table gets the smallest tile of the nearest older one. It has
    the same instructions, but may have only 99 KiB of shared memory, as sm_86, sm_89 and sm_120.
    """
    if arch < min(table):
        return {}
    tiles = table.get(arch // 10 * 10, table[min(table)]).get(dtype, {})
    return tiles if arch in LARGE_SHARED_ARCHES else dict(list(tiles.items())[-1:])


def variants_of(
    table: Table, variant: Callable[[str, str, str, Tile], Variant]
) -> Callable[[int], tuple[Variant, ...]]:
    """Return the function `variants(arch)` of a version with a variant for each dtype, layout and
    tile of a table.
    """

    def variants(arch: int) -> tuple[Variant, ...]:
        found = []
        for dtype in table[min(table)]:
            for layout in layouts_of(dtype):
                for size, tile in sizes(table, arch, dtype).items():
                    found.append(variant(dtype, layout, size, tile))
        return tuple(found)

    return variants


def constants_of(dtype: str, layout: str) -> dict[str, Any]:
    """Return the compile-time arguments that do not depend on the tile."""
    return {
        "A_TRANSPOSED": layout[0] == "t",
        "B_TRANSPOSED": layout[1] == "t",
        "PRECISION": "tf32" if dtype == "tf32" else "ieee",
        "ACCUMULATOR": tl.int32 if dtype == "int8" else tl.float32,
        "GROUP_M": GROUP_M,
        **({} if dtype.startswith("fp8") else {"scale_a_ptr": None, "scale_b_ptr": None}),
    }


def size_class(tiles: Sizes, operands: Operands) -> str:
    """Return the largest size whose tiles keep `MIN_BUSY_FRACTION` of the multiprocessors busy,
    else the smallest.
    """
    for name, tile in tiles.items():
        if operands.tiles(tile.m, tile.n) >= MIN_BUSY_FRACTION * operands.gpu.processors:
            return name
    return list(tiles)[-1]


def scale_types(dtype: str) -> dict[str, str]:
    return {"scale_a_ptr": "*fp32", "scale_b_ptr": "*fp32"} if dtype.startswith("fp8") else {}


@triton.jit
def tile_position(
    tile,  # index of a tile among those of all batches
    tiles_m,  # tiles from top to bottom of C
    tiles_n,  # tiles from left to right
    GROUP_M: tl.constexpr,  # rows of tiles in a group
):
    """Return the batch of a tile and its row and column among the tiles of C, in 64 bits."""
    batch = tile // (tiles_m * tiles_n)
    tile -= batch * (tiles_m * tiles_n)
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    in_group = tile - first * tiles_n
    height = tl.minimum(tiles_m - first, GROUP_M)  # the last group may have fewer rows
    return batch, first + in_group % height, in_group // height


def variant_of(
    kernel: Any,
    dtype: str,
    layout: str,
    size: str,
    tile: Tile,
    types: Mapping[str, str],
    part: str = "",
    **others: Any,
) -> Variant:
    """Return the variant of a kernel for one tile; `others` are compile-time arguments of its
    version.
    """
    constants = {**constants_of(dtype, layout), **tile.constants, **others}
    return Variant(
        kernel=kernel,
        constants={name: value for name, value in constants.items() if name in kernel.arg_names},
        warps=tile.warps,
        op="matmul",
        dtype=dtype,
        part=part,
        shape_class=f"{layout}, {size}",
        types=types,
        stages=tile.stages,
    )


def pointer_variant(
    kernel: Any, dtype: str, layout: str, size: str, tile: Tile, **others: Any
) -> Variant:
    """Return the variant of a kernel that reads and writes through pointers."""
    operand = f"*{triton_type(dtype)}"
    types = {
        "a_ptr": operand,
        "b_ptr": operand,
        "out_ptr": f"*{output_type(dtype)}",
        **scale_types(dtype),
    }
    return variant_of(kernel, dtype, layout, size, tile, types, **others)


def one_tile_each(
    table: Table, variant: Callable[[str, str, str, Tile], Variant]
) -> Callable[[Operands], None]:
    """Return the launch of a version with one program per tile, without scales."""

    def start(operands: Operands) -> None:
        tiles = sizes(table, operands.gpu.arch, operands.dtype)
        if not tiles:
            raise unsupported_dtype(operands, f"it has {', '.join(table[min(table)])}")
        size = size_class(tiles, operands)
        tile = tiles[size]
        programs = operands.tiles(tile.m, tile.n)
        if programs > MAX_TILES:
            raise ValueError(
                f"{operands.label}: {programs} tiles of {tile.m}x{tile.n}; at most {MAX_TILES} are "
                f"supported"
            )
        if programs:
            chosen = variant(operands.dtype, operands.layout, size, tile)
            chosen.launch(
                programs,
                *operands.tensors,
                operands.m,
                operands.n,
                operands.k,
                *operands.strides,
                *operands.batch_strides,
            )

    return start
