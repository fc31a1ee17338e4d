"""The timing protocol: warm-up, when to stop sampling, and the interval of the median.

A *launch* is one call of a provider. A *sample* is one reading of the timer around
`launches_per_sample` launches. What differs between a CPU and a GPU is in `samplers.py`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Protocol

from bench.harness import clock
from bench.harness.op import UsageError
from results.stats.samples import interval_of_median

Now = Callable[[], float]
"""A clock, seconds."""


class Sampler(Protocol):
    """Times a fixed number of launches."""

    method: str
    """`graph`, `events` or `host`."""
    launches_per_sample: int
    why_no_graph: str | None
    """Reason that a CUDA graph was tried and not used, else None."""
    reading: Any
    """Called after each sample on a GPU, see `samplers.Reading`."""
    untimed_s: float
    """Seconds to renew inputs on a CPU, of all samples together."""

    def sample(self) -> float:
        """Run one sample and return its duration in seconds, of all launches together."""


@dataclass(frozen=True)
class Limits:
    """When to stop a measurement."""

    min_samples: int
    target_half_width: float
    """Half width of the 95 % interval of the median, as a fraction of the median, at which to
    stop.
    """
    min_time_s: float
    """Minimum time of all samples."""
    cap_s: float
    """Time limit, converged or not."""
    warm_up_s: float
    """Minimum time of the warm-up."""
    min_sample_s: float
    """Minimum time of a sample, much longer than the timer resolution."""
    fewest_samples: int = 5
    """Minimum number of samples even at the time limit: fewer have no interval."""
    visits: int = 1
    """Visits that share the time of a row, each with its own limits."""
    warm_up_cap_s: float = 1.0
    """Time limit of the warm-up."""
    sampling_ratio: float = 1.8
    """Time of all samples of long launches over the time that the row takes besides, also if that
    exceeds `cap_s`. With 1.8, 1.8 / 2.8 = 64 % of a run is spent on samples."""


CPU_LIMITS = Limits(20, 0.02, 0.0, 2.0, 0.1, 1e-3)
"""A shared machine reaches 2 % in reasonable time."""

GPU_LIMITS = Limits(30, 0.005, 0.25, 5.0, 0.5, 5e-3, warm_up_cap_s=5.0)
"""The 3 to 6 us between the events and the work are 0.1 % of a sample of 5 ms. Clocks swing for
about 3 s under a heavy load: NVIDIA, CUTLASS, GEMM performance measurement methodology guidelines
(2026)."""

LIMITS = {"cpu": CPU_LIMITS, "cuda": GPU_LIMITS, "rocm": GPU_LIMITS}
"""Limits of a row, by the type of its device."""

CHECK_EVERY = 1.25
"""Factor by which samples grow until the interval is computed again, which takes up to 1 ms."""

RECHECK_WIDENING = 1.05
"""Factor that widens an interval checked twice or more, because stopping at a narrow interval
favors intervals that are too narrow. In simulation (3 % noise, a correlation of 0 to 0.6 between
neighbors, up to 12 checks), 92 to 96 % of intervals contained the true median without the factor
and 93 to 96 % with it.

Source of the effect: Chow and Robbins, On the asymptotic theory of fixed-width sequential
confidence intervals for the mean, Annals of Mathematical Statistics 36 (1965) 457."""

BLOCKS = 3
"""A warm-up ends when the medians of this many blocks agree; together they last the minimum
warm-up.
"""

MAX_BLOCK_SPREAD = 0.01
"""Maximum difference between the medians of the blocks, as a fraction, unless their scatter
explains more.
"""

SETTLING_SHARE = 1 / 3
"""Maximum share of the time left of a budget: the samples need the rest."""

SCATTER_DEVIATES = 3.0
"""Two blocks are equal within this many standard deviations of their medians."""


progress: MutableSequence[int] = [0, 0, 0]
"""Index of the provider, whether its code runs, number of announcements; a worker shares them with
its parent.
"""


def announce(index: int | None = None, runs: bool = True) -> None:
    """Restart the time limit: a call of a user's code starts or, if not `runs`, has returned.

    `index` is that of its provider; None: unchanged.
    """
    if index is not None:
        progress[0] = index
    progress[1] = int(runs)
    progress[2] += 1


report: Callable[[float, int], object] | None = None
"""In a worker, tells its parent the sum of all samples since the last call, and their number; 0
before the first."""


class Settling(NamedTuple):
    """The end of a warm-up: `settled` unless the time limit was reached; `launches` is the number
    of runs.
    """

    settled: bool
    seconds: float
    launches: int


@dataclass(frozen=True)
class Samples:
    """The result of a measurement; `results.record.Record` documents the fields that records have
    too.
    """

    samples_s: tuple[float, ...]
    launches_per_sample: int
    method: str
    cache: str
    median_s: float
    ci95_s: tuple[float, float]
    converged: bool
    settled: bool | None = None
    warm_median_s: float | None = None
    host_launch_s: float | None = None
    """Host time of one call; on a CPU the launch itself. None if no launch waits for the host."""
    host_latency_s: float | None = None
    tick_s: float | None = None
    """Resolution of the timer of the samples."""
    target_half_width: float | None = None
    """`Limits.target_half_width`."""
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    why_no_graph: str | None = None
    """As of `Sampler`."""
    is_single: bool = False
    """Whether a sample is one launch because the inputs are renewed before it and have one copy."""
    sampler: Sampler | None = None
    overhead_s: float = 0.0
    """For another visit: what took the samples, and the time of the row outside its samples."""

    @property
    def total_s(self) -> float:
        """Return the seconds of all samples."""
        return sum(self.samples_s) * self.launches_per_sample


def settle(
    work: Callable[[], float],
    limits: Limits,
    now: Now = clock.now,
    left_s: float = math.inf,
) -> Settling:
    """Run `work`, which returns the seconds of its launches, until its time no longer changes, at
    least once.

    Of the seconds left of a budget it takes `SETTLING_SHARE` at most, but at least the minimum
    warm-up.

    Raises:
        UsageError: the clock does not advance.
    """
    start = now()
    times_s: list[float] = []
    cap_s = min(limits.warm_up_cap_s, max(limits.warm_up_s, SETTLING_SHARE * left_s))
    while True:
        announce()
        times_s.append(work())
        elapsed_s = now() - start
        require_advance(elapsed_s)
        block_s = limits.warm_up_s / BLOCKS
        has_converged = elapsed_s >= limits.warm_up_s and (
            not block_s or _blocks_agree(times_s, block_s)
        )
        if has_converged or elapsed_s >= cap_s:
            return Settling(has_converged, elapsed_s, len(times_s))


def require_advance(elapsed_s: float) -> None:
    """Raise `UsageError` unless time has passed; otherwise a measurement would never end."""
    if elapsed_s <= 0:
        raise UsageError(
            "the clock does not advance, as under libfaketime; measure with the real clock"
        )


def _blocks_agree(times_s: Sequence[float], block_s: float) -> bool:
    """Return whether the medians of the last `BLOCKS` blocks of `block_s` agree within their
    scatter.

    Source: standard error of a median, 1.2533 sigma / sqrt(n) for normal noise, Kendall and Stuart,
    The Advanced Theory of Statistics 1, section 14.12; sigma = 1.4826 MAD, Hampel, JASA 69 (1974)
    383.
    """
    size = max(1, math.ceil(block_s / max(median(times_s[-BLOCKS:]), 1e-9)))
    if len(times_s) < BLOCKS * size:
        return False
    blocks = [
        times_s[len(times_s) - (i + 1) * size : len(times_s) - i * size] for i in range(BLOCKS)
    ]
    medians = list(map(median, blocks))
    deviations: list[float] = []
    for block, middle in zip(blocks, medians, strict=True):
        deviations += [abs(value - middle) for value in block]
    error = 1.2533 * 1.4826 * median(deviations) / math.sqrt(size)
    allowed = max(MAX_BLOCK_SPREAD * median(medians), SCATTER_DEVIATES * math.sqrt(2) * error)
    return max(medians) - min(medians) <= allowed


def collect(sampler: Sampler, limits: Limits, cache: str, now: Now = clock.now) -> Samples:
    """Sample until the interval of the median is narrow enough, or to the time limit; `cache` is
    passed on.
    """
    samples: list[float] = []
    next_check = limits.min_samples
    looks = 0
    start = now()
    with no_garbage_collection():
        while True:
            announce()
            samples.append(sampler.sample() / sampler.launches_per_sample)
            elapsed = now() - start
            is_over = elapsed >= limits.cap_s and len(samples) >= limits.fewest_samples
            if not is_over and (len(samples) < next_check or elapsed < limits.min_time_s):
                continue
            looks += not is_over
            middle = median(samples)
            interval = interval_of_median(samples)
            low = interval.low
            high = interval.high
            if looks > 1 and middle > 0:  # widened as ratios, so that the lower end stays a time
                low = middle * (low / middle) ** RECHECK_WIDENING
                high = middle * (high / middle) ** RECHECK_WIDENING
            is_narrow = middle > 0 and (high - low) / 2 <= limits.target_half_width * middle
            if is_over or is_narrow:
                break
            next_check = math.ceil(len(samples) * CHECK_EVERY)
    return Samples(
        samples_s=tuple(samples),
        launches_per_sample=sampler.launches_per_sample,
        method=sampler.method,
        cache=cache,
        median_s=middle,
        ci95_s=(low, high),
        converged=is_narrow and len(samples) >= limits.min_samples,
        target_half_width=limits.target_half_width,
    )


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector from running inside a sample."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
