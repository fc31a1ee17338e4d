"""Warm-up by state, not by count: the real work runs until the device has settled.

A GPU has settled when its clock no longer moves, and neither does its power where its limit or the clock cannot be
read. At its power limit, and where neither clock nor power can be read, as on a CPU, the time of the work itself tells:
it has settled when the medians of its last blocks agree.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.harness.device.telemetry import ClockAndPower
from results.stats.samples import median

POLL_EVERY_S = 0.05
"""Time between two polls: one costs up to a few milliseconds. Source of this and of the limits below: they follow
NVIDIA's advice to time at a settled clock, CUTLASS, GEMM performance measurement methodology guidelines (2026)."""

WINDOW_S = 0.5
"""Clock and power must have been constant for so long. NVML's power is itself a mean over up to a second."""

MAX_CLOCK_SPREAD = 0.01
"""(max - min) / median of the SM clock within the window; one clock step of 15 MHz at 1,980 MHz is 0.8 %."""

MAX_POWER_SPREAD = 0.02

NEAR_LIMIT = 0.9
"""Share of the power limit from which on a GPU counts as power-limited. Below it a constant clock is enough, even while
the power still changes: waiting for NVML's power, which is a mean over one second, would cost every row that second.
From it on the clock never stays constant, and the time of the work decides in its place."""

POWER_LIMITED_CAP_S = 2.0
"""Longest warm-up of a GPU at its power limit."""

LEAST_READINGS = 3
"""Two readings may agree by chance, and one always does. Where launches take longer than the window, the latest three
readings count, however far apart."""

AT_THE_LIMIT = "time at the power limit"

BLOCK_S = 0.02
LEAST_BLOCK = 3
"""A block of times lasts so long and has so many of them at least, so that one preempted launch does not move it."""

BLOCKS = 3
MAX_BLOCK_SPREAD = 0.02
"""Largest difference between the medians of the last blocks, as a fraction; or what their own scatter explains."""

SCATTER_DEVIATES = 3.0
"""Standard deviations of a block's median within which two blocks count as equal: noise alone is rarely further off."""


@dataclass(frozen=True)
class SettlingReading:
    """Clock and power at one moment of the warm-up."""

    at_s: float
    """Seconds since the warm-up began."""
    sm_clock_hz: float | None
    power_w: float | None


@dataclass(frozen=True)
class Settling:
    """How a warm-up ended."""

    settled: bool
    """False: the cap was reached first."""
    seconds: float
    judged_by: str
    """`clock`, `power`, `clock and power`, `AT_THE_LIMIT`, or `time` of the work where neither can be read."""
    launches: int
    """How often the work was run."""
    readings: tuple[SettlingReading, ...]
    """What was polled, in order; empty where nothing can be read."""


@dataclass(frozen=True)
class SettleLimits:
    """How long a warm-up lasts at least and at most, seconds."""

    min_s: float
    cap_s: float


GPU_SETTLE = SettleLimits(min_s=0.5, cap_s=5.0)
"""Clocks swing for about 3 s under a heavy load. Source: as for `POLL_EVERY_S`."""

CPU_SETTLE = SettleLimits(min_s=0.1, cap_s=1.0)


def settle(
    work: Callable[[], float],
    poll: Callable[[], ClockAndPower],
    limits: SettleLimits,
    now: Callable[[], float] = time.perf_counter,
) -> Settling:
    """Run `work` again and again until the device has settled, at least once.

    Args:
        work: runs some launches of what is to be measured, waits for them, and returns their seconds. It is never
            interrupted: an idle moment would let the clock fall.
        poll: reads clock and power; asked right after work, every `POLL_EVERY_S`.
        limits: least and longest time.
        now: seconds of a clock that only runs forward.
    """
    start = now()
    readings: list[SettlingReading] = []
    limit_w: float | None = None
    times_s: list[float] = []
    while True:
        times_s.append(work())
        elapsed = now() - start
        if not readings or elapsed - readings[-1].at_s >= POLL_EVERY_S:
            seen = poll()
            readings.append(SettlingReading(elapsed, seen.sm_clock_hz, seen.power_w))
            limit_w = seen.power_limit_w
        judged_by, has_settled = _judgment(readings, times_s, limit_w)
        cap_s = min(limits.cap_s, POWER_LIMITED_CAP_S) if judged_by == AT_THE_LIMIT else limits.cap_s
        if (has_settled and elapsed >= limits.min_s) or elapsed >= cap_s:
            kept = () if judged_by == "time" else tuple(readings)
            return Settling(has_settled, elapsed, judged_by, len(times_s), kept)


def _judgment(readings: Sequence[SettlingReading], times_s: Sequence[float], limit_w: float | None) -> tuple[str, bool]:
    clocks = [(reading.at_s, reading.sm_clock_hz) for reading in readings if reading.sm_clock_hz is not None]
    powers = [(reading.at_s, reading.power_w) for reading in readings if reading.power_w is not None]
    if not clocks and not powers:
        return "time", blocks_agree(times_s)
    if powers and limit_w is not None and powers[-1][1] >= NEAR_LIMIT * limit_w:
        return AT_THE_LIMIT, blocks_agree(times_s)
    if clocks and limit_w is not None:
        powers = []
    is_steady = (not clocks or keeps_still(clocks, MAX_CLOCK_SPREAD)) and (
        not powers or keeps_still(powers, MAX_POWER_SPREAD)
    )
    return " and ".join(name for name, found in (("clock", clocks), ("power", powers)) if found), is_steady


def keeps_still(series: Sequence[tuple[float, float]], max_spread: float) -> bool:
    """Return whether the latest values of a series of (seconds, value) differ by less than `max_spread`.

    The latest values are those that reach back `WINDOW_S`, and `LEAST_READINGS` at least; fewer tell nothing.
    """
    latest_s = series[-1][0]
    first = next((i for i in reversed(range(len(series))) if latest_s - series[i][0] >= WINDOW_S - 1e-9), None)
    if first is None or len(series) < LEAST_READINGS:
        return False
    values = [value for _, value in series[min(first, len(series) - LEAST_READINGS) :]]
    return max(values) - min(values) < max_spread * median(values)


def blocks_agree(times_s: Sequence[float]) -> bool:
    """Return whether the medians of the last `BLOCKS` blocks of times agree, but for their own scatter.

    Source: standard error of a median, 1.2533 sigma / sqrt(n) for normal noise, Kendall and Stuart, The Advanced
        Theory of Statistics 1, section 14.12; sigma = 1.4826 MAD, Hampel, JASA 69 (1974) 383.
    """
    if not times_s:
        return False
    size = max(LEAST_BLOCK, math.ceil(BLOCK_S / max(median(times_s[-LEAST_BLOCK:]), 1e-9)))
    if len(times_s) < BLOCKS * size:
        return False
    blocks = [times_s[len(times_s) - (i + 1) * size : len(times_s) - i * size] for i in range(BLOCKS)]
    medians = [median(block) for block in blocks]
    deviations = [abs(value - middle) for block, middle in zip(blocks, medians, strict=True) for value in block]
    error = 1.2533 * 1.4826 * statistics.median(deviations) / math.sqrt(size)
    allowed = max(MAX_BLOCK_SPREAD * median(medians), SCATTER_DEVIATES * math.sqrt(2) * error)
    return max(medians) - min(medians) <= allowed
