"""The matmul shapes among which the fastest of a machine is searched.

A library gives each multiprocessor one tile of C after the other, so shapes win that fill whole rounds of tiles: where
the last round is half empty, half of the machine waits.

Source: wave quantization, NVIDIA, Matrix Multiplication Background User's Guide; the extents of k and the layouts, the
ranges that mamf-finder (stas00/ml-engineering) searches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.harness.op import Case
from bench.harness.op_file import options_of
from roofline.work import matmul_work


@dataclass(frozen=True)
class Shape:
    """A matmul C (m, n) = A (m, k) B (k, n)."""

    m: int
    n: int
    k: int
    layout: str = "nn"
    """How A and B are stored, as in `bench/matmul.py`."""

    @property
    def flops(self) -> int:
        """FLOPs of one product."""
        return matmul_work(self.m, self.n, self.k, "fp32", "fp32").flops

    def case(self, dtype: str) -> Case:
        """Return the case of `bench.matmul` that this is in a dtype."""
        extents = {"m": self.m, "n": self.n, "k": self.k}
        return Case.of("matmul", dtype, extents, options_of("matmul"), {"layout": self.layout, "batch": 1})

    def bytes(self, dtype: str, out_dtype: str) -> int:
        """Return what the three matrices take in memory."""
        return matmul_work(self.m, self.n, self.k, dtype, out_dtype).bytes

    @property
    def name(self) -> str:
        """The name of its case."""
        return self.case("fp32").name


TILES = ((128, 128), (128, 256), (256, 128), (192, 192), (256, 256))
"""Tiles of C that libraries give to a multiprocessor, (m, n)."""

WAVES = (1, 2, 4)
"""Tiles of C for each multiprocessor."""

DEPTHS = (4096, 8192, 16384, 32768 + 128)
"""Extents of k; the last is no power of two, whose rows would all fall on the same memory channels."""

SQUARES = (4096, 8192, 16384)

CPU_EXTENTS = (
    *((size, size, size) for size in (128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096)),
    *((512, 4096, 512), (4096, 512, 1024), (1024, 1024, 4096), (1024, 4096, 1024), (2048, 2048, 512)),
    *((4096, 1024, 1024), (2048, 512, 2048), (512, 2048, 4096), (2048, 4096, 2048)),
)
"""(m, n, k) worth trying on a CPU."""

GPU_STEP, CPU_STEP = 128, 128
"""By how much a local step changes one extent."""


def gpu_shapes(sm_count: int, layouts: Sequence[str] = ("nn", "nt", "tn")) -> list[Shape]:
    """Return matmuls that give nearly every multiprocessor the same count of whole tiles, and some squares.

    Args:
        sm_count: multiprocessors.
        layouts: those that the dtype allows; fp8 takes `nt` only.
    """
    extents = {
        (rows * tile_m, columns * tile_n, depth)
        for tile_m, tile_n in TILES
        for waves in WAVES
        for rows, columns in [_grid_of_tiles(sm_count * waves, tile_n / tile_m)]
        for depth in DEPTHS
    }
    extents |= {(size, size, size) for size in SQUARES}
    return [Shape(m, n, k, layout) for m, n, k in sorted(extents) for layout in layouts]


def _grid_of_tiles(tiles: int, tile_aspect: float) -> tuple[int, int]:
    """Return rows and columns of at most `tiles` tiles: 97 % of them or more, and C as square as that allows."""

    def squareness(rows: int) -> tuple[bool, float]:
        columns = tiles // rows
        return rows * columns < 0.97 * tiles, abs(math.log(columns * tile_aspect / rows))

    rows = min(range(1, tiles + 1), key=squareness)
    return rows, tiles // rows


def cpu_shapes(layouts: Sequence[str] = ("nn", "nt")) -> list[Shape]:
    """Return the matmuls worth trying on a CPU."""
    return [Shape(*extents, layout) for extents in CPU_EXTENTS for layout in layouts]


def fitting(shapes: Iterable[Shape], dtype: str, out_dtype: str, memory_bytes: int) -> list[Shape]:
    """Return the shapes whose matrices take no more than `memory_bytes`."""
    return [shape for shape in shapes if shape.bytes(dtype, out_dtype) <= memory_bytes]


def neighbors(shape: Shape, step: int) -> list[Shape]:
    """Return the shapes that differ by `step` in one extent."""
    moved = [
        replace(shape, **{axis: getattr(shape, axis) + sign * step}) for axis in ("m", "n", "k") for sign in (-1, 1)
    ]
    return [other for other in moved if min(other.m, other.n, other.k) >= step]
