"""Sizes of tiles, and the rule that picks one: what all versions of matmul share about their configurations.

Each version lists its tiles by architecture, dtype and size class, so that a product of one shape is always computed
by the same binary, which can be audited and reproduced. No entry has been measured yet. They are taken from what
others publish as good: the search spaces of the Triton tutorials 03 (tiles of 64 to 256, warps, stages on sm_80) and
09 (128 x 128 and 128 x 256 on sm_90 and later, 64 or 128 deep, groups of 8), and fast.cu (128 x 256 on an H100);
where such a tile spills registers or exceeds shared memory when compiled, the next smaller one stands.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import triton.language as tl

from kernels.matmul import Operands

GROUP_M = 8  # rows of tiles that are walked together; Source: Triton tutorials 03 and 09
FILLED = 3, 4  # share of the multiprocessors that a size class must keep busy
WHOLE_TABLE = (80, 90, 100, 103)  # with 160 KiB of shared memory and more; others get the smallest tiles


class Tile(NamedTuple):
    """The part of C that one program holds, the terms it loads at once, and how the compiler spreads the work."""

    m: int
    n: int
    k: int
    warps: int
    stages: int

    @property
    def constants(self) -> dict[str, int]:
        """The compile-time arguments of a kernel that say how large its tiles are."""
        return {"BLOCK_M": self.m, "BLOCK_N": self.n, "BLOCK_K": self.k}

    @property
    def options(self) -> dict[str, int | bool]:
        """The options of the compiler; they are always given, as their defaults differ between releases."""
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}


Sizes = Mapping[str, Tile]
"""The tiles of one dtype on one architecture by size class, largest first."""
Table = Mapping[int, Mapping[str, Sizes]]
"""The sizes by architecture and dtype."""


def sizes(table: Table, arch: int, dtype: str) -> Sizes:
    """Return the tiles for a dtype on an architecture, largest first; none where the version has no kernel.

    An architecture that is not in the table takes the smallest tile of the nearest older one: it has the same
    instructions, but perhaps 99 KiB of shared memory, as sm_86, sm_89 and sm_120 have.
    """
    column = 100 if 100 <= arch < 110 else 90 if 90 <= arch < 100 else min(table)
    if arch < min(table):
        return {}
    found = table.get(column, {}).get(dtype, {})
    return found if arch in WHOLE_TABLE else dict(list(found.items())[-1:])


def constants_of(dtype: str, layout: str) -> dict[str, Any]:
    """Return the compile-time arguments of a product that do not depend on the tile."""
    return {
        "A_TRANSPOSED": layout[0] == "t",
        "B_TRANSPOSED": layout[1] == "t",
        "PRECISION": "tf32" if dtype == "tf32" else "ieee",
        "ACCUMULATOR": tl.int32 if dtype == "int8" else tl.float32,
        "GROUP_M": GROUP_M,
        **({} if dtype.startswith("fp8") else {"scale_a_ptr": None, "scale_b_ptr": None}),
    }


def size_class(found: Sizes, operands: Operands) -> str:
    """Return the largest size whose tiles keep three quarters of the multiprocessors busy, else the smallest size."""
    part, whole = FILLED
    for name, tile in found.items():
        if whole * operands.tiles(tile.m, tile.n) >= part * operands.processors:
            return name
    return list(found)[-1]
