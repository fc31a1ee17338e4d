"""Warm-up by state, not by count: the real work runs for a while, and on until its time no longer changes."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results.stats.samples import median

BLOCKS = 3
"""The medians of this many blocks are compared; together they span the shortest warm-up."""

MAX_BLOCK_SPREAD = 0.01
"""Largest difference between the medians of the blocks, as a fraction; or what their own scatter explains."""

SCATTER_DEVIATES = 3.0
"""Standard deviations of a block's median within which two blocks count as equal: noise alone is rarely further off."""


@dataclass(frozen=True)
class Settling:
    """How a warm-up ended."""

    settled: bool
    """False: the cap was reached first."""
    seconds: float
    launches: int
    """How often the work was run."""


@dataclass(frozen=True)
class SettleLimits:
    """Shortest and longest warm-up, seconds."""

    min_s: float
    cap_s: float


GPU_SETTLE = SettleLimits(min_s=0.5, cap_s=5.0)
"""Clocks swing for about 3 s under a heavy load. Source: NVIDIA, CUTLASS, GEMM performance measurement methodology
guidelines (2026)."""

CPU_SETTLE = SettleLimits(min_s=0.1, cap_s=1.0)


def settle(work: Callable[[], float], limits: SettleLimits, now: Callable[[], float] = time.perf_counter) -> Settling:
    """Run `work` again and again until its time has converged, at least once.

    Args:
        work: runs some launches of what is to be measured, waits for them, and returns their seconds.
        limits: shortest and longest time.
        now: seconds of a clock that only runs forward.
    """
    start, times_s = now(), list[float]()
    while True:
        times_s.append(work())
        elapsed_s = now() - start
        has_converged = elapsed_s >= limits.min_s and blocks_agree(times_s, limits.min_s / BLOCKS)
        if has_converged or elapsed_s >= limits.cap_s:
            return Settling(has_converged, elapsed_s, len(times_s))


def blocks_agree(times_s: Sequence[float], block_s: float) -> bool:
    """Return whether the medians of the last `BLOCKS` blocks of times agree, except for their own scatter.

    Args:
        times_s: the times so far, at least one.
        block_s: time that a block spans, unless a single one is longer.

    Source: standard error of a median, 1.2533 sigma / sqrt(n) for normal noise, Kendall and Stuart, The Advanced
        Theory of Statistics 1, section 14.12; sigma = 1.4826 MAD, Hampel, JASA 69 (1974) 383.
    """
    size = max(1, math.ceil(block_s / max(median(times_s[-BLOCKS:]), 1e-9)))
    if len(times_s) < BLOCKS * size:
        return False
    blocks = [times_s[len(times_s) - (i + 1) * size : len(times_s) - i * size] for i in range(BLOCKS)]
    medians = [median(block) for block in blocks]
    deviations = [abs(value - middle) for block, middle in zip(blocks, medians, strict=True) for value in block]
    error = 1.2533 * 1.4826 * statistics.median(deviations) / math.sqrt(size)
    allowed = max(MAX_BLOCK_SPREAD * median(medians), SCATTER_DEVIATES * math.sqrt(2) * error)
    return max(medians) - min(medians) <= allowed
