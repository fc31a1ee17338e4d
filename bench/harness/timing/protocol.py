"""The timing protocol: from a sampler that can read a clock to `Samples` that carry their own error.

A *launch* is one call of a provider. A *sample* is one reading of the clock around `launches_per_sample` launches.
What differs between a CPU and a GPU is in `samplers.py`; what is the same, and can be tested with a fake clock, is
here: warm-up, when to stop, and what the samples say.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from results.stats.samples import half_width, median, median_ci95

if TYPE_CHECKING:
    from bench.harness.device.device import Device


class Sampler(Protocol):
    """Reads a clock around a fixed number of launches."""

    method: str
    """`graph`, `events` or `host`."""
    launches_per_sample: int
    why_no_graph: str | None
    """Why the launches are not timed by replaying a graph, where that was tried; else None."""

    def sample(self) -> float:
        """Run one sample and return its duration in seconds, all launches together."""


@dataclass(frozen=True)
class Limits:
    """When a measurement is good enough, and when it must stop anyway."""

    min_samples: int
    target_half_width: float
    """Half width of the 95 % interval of the median, as a fraction of the median, that ends the measurement."""
    min_time_s: float
    """Time that the samples must span at least."""
    cap_s: float
    """Time after which the measurement ends, converged or not."""
    warm_up_s: float
    """Time that the real launches run before the first sample counts."""
    min_sample_s: float
    """Shortest sample, so that the tick of the clock does not show."""
    fewest_samples: int = 5
    """Taken even if the cap is reached before: fewer carry no interval at all."""
    visits: int = 1
    """Visits that share the time of a row, each with limits of its own."""


CPU_LIMITS = Limits(20, 0.02, 0.0, 2.0, 0.1, 1e-3)
"""A shared machine is noisy: 2 % is what it reaches in reasonable time."""

GPU_LIMITS = Limits(30, 0.005, 0.25, 5.0, 0.5, 5e-3)
"""The 3 to 6 us between the events and the work are 0.1 % of a sample of 5 ms."""


def limits_of(device: Device) -> Limits:
    """Return when a measurement on a device is good enough."""
    return GPU_LIMITS if device.is_gpu else CPU_LIMITS


CHECK_EVERY = 1.25
"""The interval is computed again when there are this many times more samples: it costs up to 1 ms."""

LOOKING_AGAIN = 1.05
"""Factor by which an interval is widened once it was looked at more than once. To stop when an interval happens to be
narrow favors those that are too narrow. In simulation (3 % noise, a correlation of 0 to 0.6 between neighbors, up to 12
looks), 92 to 96 % of intervals held the true median without the factor and 93 to 96 % with it.

Source of the effect: Chow and Robbins, On the asymptotic theory of fixed-width sequential confidence intervals for
the mean, Annals of Mathematical Statistics 36 (1965) 457."""


@dataclass(frozen=True)
class Samples:
    """The outcome of a measurement."""

    samples_s: tuple[float, ...]
    """Seconds per launch, one value a sample, none dropped."""
    launches_per_sample: int
    method: str
    cache: str
    median_s: float
    ci95_s: tuple[float, float]
    converged: bool


def collect(sampler: Sampler, limits: Limits, cache: str, now: Callable[[], float] = time.perf_counter) -> Samples:
    """Sample until the interval of the median is narrow enough, or the cap is reached.

    Args:
        sampler: reads the clock.
        limits: when to stop.
        cache: `cold`, `warm` or `partly-cold`, what the sampler's launches find; only passed on.
        now: seconds of a clock that only runs forward, for the cap.
    """
    samples: list[float] = []
    converged = False
    next_check, looks = limits.min_samples, 0
    start = now()
    with no_garbage_collection():
        while not converged:
            samples.append(sampler.sample() / sampler.launches_per_sample)
            elapsed = now() - start
            if elapsed >= limits.cap_s and len(samples) >= limits.fewest_samples:
                break
            if len(samples) >= next_check and elapsed >= limits.min_time_s:
                looks += 1
                converged = half_width(_interval(samples, looks), median(samples)) <= limits.target_half_width
                next_check = math.ceil(len(samples) * CHECK_EVERY)
    middle, interval = median(samples), _interval(samples, looks)
    return Samples(
        samples_s=tuple(samples),
        launches_per_sample=sampler.launches_per_sample,
        method=sampler.method,
        cache=cache,
        median_s=middle,
        ci95_s=interval,
        converged=half_width(interval, middle) <= limits.target_half_width and len(samples) >= limits.min_samples,
    )


def _interval(samples_s: list[float], looks: int) -> tuple[float, float]:
    """Return the 95 % interval of the median, widened where it was looked at more than once."""
    low, high = median_ci95(samples_s)
    middle = median(samples_s)
    if looks <= 1 or middle == 0:
        return low, high
    # Widened as ratios, so that the lower end stays a time.
    return middle * (low / middle) ** LOOKING_AGAIN, middle * (high / middle) ** LOOKING_AGAIN


def warm_up(sampler: Sampler, warm_up_s: float, now: Callable[[], float] = time.perf_counter) -> None:
    """Run samples that do not count, for `warm_up_s` and at least once."""
    start = now()
    while True:
        sampler.sample()
        if now() - start >= warm_up_s:
            return


def clock_tick_s(now: Callable[[], float] = time.perf_counter, readings: int = 1000) -> float:
    """Return the smallest step seen between readings of a clock, seconds: its tick, or the cost of reading it."""
    steps = []
    before = now()
    for _ in range(readings):
        after = now()
        if after > before:
            steps.append(after - before)
        before = after
    return min(steps, default=0.0)


def launches_for(launch_s: float, min_sample_s: float, tick_s: float, ticks: int = 1000) -> int:
    """Return how many launches make one sample: at least `min_sample_s` and at least `ticks` ticks of the clock."""
    return max(1, math.ceil(max(min_sample_s, ticks * tick_s) / launch_s))


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
