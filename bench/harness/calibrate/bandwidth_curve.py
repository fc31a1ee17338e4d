"""Bandwidth against size: the launch, the last-level cache and memory in one curve, so that each checks the others.

A warm curve goes over the same bytes again and again and shows the cache: its plateau, and the size where that ends.
A cold curve finds its bytes in memory at every size, so one line fits it: T = a + V / b, where a is the launch and b
the ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bench.harness.calibrate.bandwidth import CACHE, Stream, candidates_of, named
from bench.harness.calibrate.search import Launch, Measure, Note, NotMeasuredError, Summary, Trial, best_of, silent
from bench.harness.data.inputs import COLD_CACHES, MAX_COPIES
from bench.harness.device.device import Device
from bench.harness.timing.protocol import Limits, Samples
from results.stats.samples import median, median_ci95

SMALLEST_BYTES = 64 * 1024
"""Where a curve starts."""

PAGE_BYTES = 4096
"""Sizes are whole pages, so every stretch of an array starts on one."""

PLATEAU = 0.9
"""Points of a warm curve within this fraction of its highest belong to the plateau; at this fraction of the plateau is
the knee."""

PRIVATE_CACHES = 8
"""The plateau of a CPU starts at this fraction of the last-level cache, `1 / PRIVATE_CACHES`: what is smaller may be
served by the caches that belong to one core."""

GPU_PLATEAU_BYTES = 2 * 2**20
"""Smallest working set of the L2 curve: below it many programs read the same line at the same time."""

FEWEST_POINTS = 4
"""A line has two unknowns; with fewer points than this its residuals say nothing."""


@dataclass(frozen=True)
class CurvePoint:
    """Bandwidth at one size."""

    working_set_bytes: int
    """Bytes of all operands together: what a cache would have to hold."""
    bytes_per_launch: int
    samples: Samples

    def value(self, summary: Summary = median) -> float:
        """Return the bandwidth, B/s."""
        return self.bytes_per_launch / summary(self.samples.samples_s)

    @property
    def ci95(self) -> tuple[float, float]:
        """95 % confidence interval of the bandwidth from the median time, B/s."""
        low_s, high_s = self.samples.ci95_s
        return self.bytes_per_launch / high_s, self.bytes_per_launch / low_s


@dataclass(frozen=True)
class Fit:
    """The line T = launch_s + bytes / bandwidth through the points of a cold curve."""

    launch_s: float
    """Time of a launch that moves nothing. At or below zero where the points do not resolve it."""
    launch_ci95_s: tuple[float, float]
    bandwidth: float
    """Of a launch without end, B/s: the ceiling."""
    bandwidth_ci95: tuple[float, float]
    worst_residual: float
    """Largest distance of a point from the line, as a fraction of its time: how well one line describes them."""


@dataclass(frozen=True)
class Plateau:
    """Bandwidth of the last-level cache (L2 on a GPU), and where it ends."""

    value: float
    """Median bandwidth of the points of the plateau, B/s."""
    ci95: tuple[float, float]
    """Of that median: how much the points differ."""
    config: str
    """The configuration in words."""
    working_sets_bytes: tuple[int, ...]
    """Those of the points of the plateau."""
    knee_bytes: float | None
    """Working set at which the bandwidth falls to `PLATEAU` of `value`, between two points; None: it never does."""
    points: tuple[CurvePoint, ...]
    """The whole curve."""


def sizes(largest_bytes: int, smallest_bytes: int = SMALLEST_BYTES, per_octave: int = 1) -> list[int]:
    """Return sizes from about `smallest_bytes` to `largest_bytes`, whole pages, in even steps of the logarithm.

    Args:
        largest_bytes: the last size.
        smallest_bytes: no size is below it.
        per_octave: steps from a size to its double.
    """
    if largest_bytes < smallest_bytes:
        return []
    steps = math.floor(math.log2(largest_bytes / smallest_bytes) * per_octave + 1e-9)
    grown = (int(largest_bytes / 2 ** (step / per_octave)) // PAGE_BYTES * PAGE_BYTES for step in range(steps, -1, -1))
    return list(dict.fromkeys(size for size in grown if size >= smallest_bytes))


def warm_curve(
    stream: Stream, operand_sizes: Iterable[int], measure: Measure, limits: Limits, note: Note = silent
) -> list[CurvePoint]:
    """Return the bandwidth at growing sizes, each launch on the same bytes as the one before.

    Sizes that are too small for the stream's configuration are left out.
    """
    points = []
    for size_bytes in operand_sizes:
        launch = _launch(stream, size_bytes)
        if launch is not None:
            note(f"{stream.mix} of {size_bytes / 1e6:.3g} MB, warm")
            points.append(_point(stream, size_bytes, launch, measure([launch.call], limits)))
    return points


def cold_curve(
    stream: Stream,
    operand_sizes: Iterable[int],
    capacity_bytes: int,
    device: Device,
    measure: Measure,
    limits: Limits,
    note: Note = silent,
) -> list[CurvePoint]:
    """Return the bandwidth at growing sizes, each launch on bytes that have left the cache.

    Launches go round all of the arrays. A size at which that does not fill the cache `COLD_CACHES` times is left out:
    what is not cold is not claimed.

    Args:
        stream: what moves the bytes.
        operand_sizes: bytes of each operand.
        capacity_bytes: size of each array.
        device: tells the cache.
        measure: the timing protocol.
        limits: of each point.
        note: told each size.
    """
    points = []
    for size_bytes in operand_sizes:
        first = _launch(stream, size_bytes)
        copies = cold_copies(first.work, capacity_bytes // size_bytes, device) if first else None
        if first is None or copies is None:
            continue
        note(f"{stream.mix} of {size_bytes / 1e6:.3g} MB at {copies} places")
        calls = [first.call, *(stream.launch(size_bytes, place * size_bytes).call for place in range(1, copies))]
        points.append(_point(stream, size_bytes, first, measure(calls, limits)))
    return points


def cold_copies(launch_bytes: int, places: int, device: Device) -> int | None:
    """Return how many places to use in turn so that each is cold when it is used again; None where there are too few.

    All places are used: a cache that does not replace the oldest line first keeps a share of everything, which is
    smaller the longer the round is.

    Args:
        launch_bytes: what one launch touches.
        places: how many such stretches the arrays have.
        device: tells the cache.
    """
    copies = min(places, MAX_COPIES)
    return copies if copies * launch_bytes >= COLD_CACHES[device.type] * device.cache_bytes else None


def _launch(stream: Stream, size_bytes: int) -> Launch | None:
    try:
        return stream.launch(size_bytes, 0)
    except ValueError:
        return None


def _point(stream: Stream, size_bytes: int, launch: Launch, samples: Samples) -> CurvePoint:
    return CurvePoint(size_bytes if stream.is_loop else launch.work, launch.work, samples)


def fit(points: Sequence[CurvePoint], summary: Summary = median) -> Fit:
    """Return the least-squares line T = a + V / b through the times of a cold curve.

    Every point weighs as much as any other in relative terms: residuals are fractions of the measured times, so the
    microseconds of small sizes count beside the milliseconds of large ones. The intervals are those of the normal
    approximation, from the spread of the residuals.

    Args:
        points: a cold curve.
        summary: the time that stands for the samples of a point.

    Raises:
        NotMeasuredError: there are fewer than `FEWEST_POINTS` sizes.

    Source: weighted linear least squares; the model as RRZE-HPC/gpu-benches fits it in gpu-small-kernels.
    """
    import numpy as np

    if len(points) < FEWEST_POINTS:
        raise NotMeasuredError(f"a line through {len(points)} sizes says nothing; {FEWEST_POINTS} or more are needed")
    times_s = np.array([summary(point.samples.samples_s) for point in points])
    volumes = np.array([point.bytes_per_launch for point in points], dtype=np.float64)
    unit_bytes = volumes.max()  # both columns are then of similar size, and the inverse below keeps its digits
    design = np.stack([1 / times_s, volumes / unit_bytes / times_s], axis=1)
    solution, *_ = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)
    residuals = 1 - design @ solution
    variance = residuals @ residuals / (len(points) - 2)
    errors = 1.96 * np.sqrt(np.diag(variance * np.linalg.inv(design.T @ design)))
    (launch_s, unit_s), (launch_error_s, unit_error_s) = solution.tolist(), errors.tolist()
    least_unit_s = unit_s - unit_error_s
    return Fit(
        launch_s=launch_s,
        launch_ci95_s=(launch_s - launch_error_s, launch_s + launch_error_s),
        bandwidth=float(unit_bytes) / unit_s,
        bandwidth_ci95=(
            float(unit_bytes) / (unit_s + unit_error_s),
            float(unit_bytes) / least_unit_s if least_unit_s > 0 else math.inf,
        ),
        worst_residual=float(np.abs(residuals).max()),
    )


def cache_plateau(among: Sequence[Stream], largest_bytes: int, device: Device, trial: Trial) -> Plateau:
    """Return the bandwidth of the last-level cache, by the stream that is fastest at a quarter of it.

    Args:
        among: what `cache_streams` returns.
        largest_bytes: the last size of the curve; should be twice the cache or more, so that the knee shows.
        device: tells the cache.
        trial: how the stream is chosen; `confirming` are the limits of each point of the curve.

    Raises:
        NotMeasuredError: nothing runs here, or no size lies inside the cache.
    """
    screened = replace(trial, confirming=trial.screening)
    config = best_of(candidates_of(CACHE, among, device.cache_bytes // 4), screened).rate.config
    smallest_bytes = GPU_PLATEAU_BYTES if device.has_cuda else device.cache_bytes // PRIVATE_CACHES
    sets = sizes(largest_bytes, smallest_bytes, 2)
    points = warm_curve(named(among, CACHE, config), sets, trial.measure, trial.confirming, trial.note)
    return plateau(points, config, device.cache_bytes, trial.summary)


def plateau(points: Sequence[CurvePoint], config: str, cache_bytes: int, summary: Summary = median) -> Plateau:
    """Return the cache bandwidth that a warm curve shows.

    Args:
        points: a warm curve, by growing working set.
        config: the configuration in words, passed on.
        cache_bytes: largest working set that the cache can hold.
        summary: the time that stands for the samples of a point.

    Raises:
        NotMeasuredError: no working set fits, or larger ones are read faster, so that it was not the cache that was
            measured: on a busy machine each launch waits for its turn, and the bytes hardly matter.
    """
    inside = [point for point in points if point.working_set_bytes <= cache_bytes]
    if not inside:
        raise NotMeasuredError(f"no working set of {cache_bytes / 1e6:.3g} MB or less was measured")
    bar = PLATEAU * max(point.value(summary) for point in inside)
    level = [point for point in inside if point.value(summary) >= bar]
    values = [point.value(summary) for point in level]
    beyond = max((point.value(summary) for point in points if point.working_set_bytes > cache_bytes), default=0.0)
    if beyond * PLATEAU > median(values):
        raise NotMeasuredError(
            f"{median(values) / 1e9:.3g} GB/s inside the last-level cache and {beyond / 1e9:.3g} GB/s beyond it: "
            "launches were measured, not the cache; is the machine busy?"
        )
    return Plateau(
        value=median(values),
        ci95=median_ci95(values),
        config=config,
        working_sets_bytes=tuple(point.working_set_bytes for point in level),
        knee_bytes=knee_bytes(points[points.index(level[-1]) :], median(values), summary),
        points=tuple(points),
    )


def knee_bytes(points: Sequence[CurvePoint], plateau_value: float, summary: Summary = median) -> float | None:
    """Return the working set at which the bandwidth first falls to `PLATEAU` of a value, or None where it does not.

    Between two points the bandwidth is taken as a straight line over the logarithm of the working set.
    """
    bar = PLATEAU * plateau_value
    for before, after in pairwise(points):
        above, below = before.value(summary), after.value(summary)
        if below < bar <= above:
            share = (above - bar) / (above - below)
            low, high = math.log(before.working_set_bytes), math.log(after.working_set_bytes)
            return math.exp(low + share * (high - low))
    return None
