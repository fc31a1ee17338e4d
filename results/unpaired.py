"""Is one version slower than another that was measured at another time? The ratio of two medians, with its interval.

The interval holds the scatter within the two series. How the machine differed between the two times is in it only where
each side was measured in several windows, such as processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from results.comparison import (
    DEFAULT_MARGIN,
    LEAST_PAIRS,
    SMALL_T_975,
    UNKNOWN,
    Comparison,
    check_margin,
    check_times,
    judged,
)
from results.stats import LogMedians, log_medians, student_t_975

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray


def compare_unpaired(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float = DEFAULT_MARGIN
) -> Comparison:
    """Return the ratio of the medians of two series that were not interleaved, with its interval and its meaning.

    The interval holds the scatter within the two series and no drift from the one to the other: identical code differs
    by 1 to 3 % between two windows on some GPUs. Where that matters, interleave (`compare_pairs`), or measure each
    several times (`compare_windows`).

    Arguments and errors as of `compare_pairs`, but for the lengths, which may differ.
    """
    return compare_windows([baseline_s], [candidate_s], margin)


def compare_windows(
    baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]], margin: float = DEFAULT_MARGIN
) -> Comparison:
    """Return the comparison of two sides, each measured in one or several windows, such as processes.

    Of each window the median counts, and of each side the geometric mean of its medians. The interval is the wider one
    of what the samples within the windows tell and what the windows tell by differing from each other; a side with one
    window borrows the spread of the other one.

    Args:
        baseline: for each window its times, in the order taken.
        candidate: likewise, in the same unit.
        margin: change of the time, as a fraction, that does not matter.

    Raises:
        ValueError: a side without windows, a window without times, a time that is not above 0, or a margin that is no
            fraction from 0 up.
    """
    import numpy as np

    for times_s in (*baseline, *candidate):
        check_times(times_s)
    sides = [[np.asarray(times_s, dtype=np.float64) for times_s in side] for side in (baseline, candidate)]
    return compare_many([(sides[0], sides[1])], margin)[0]


Windows = Sequence["NDArray[float64]"]
"""The times of each window of one side, already checked."""


def compare_many(
    rows: Sequence[tuple[Windows, Windows]], margin: float = DEFAULT_MARGIN, factors: Sequence[float] | None = None
) -> list[Comparison]:
    """Return `compare_windows` of many rows at once: a hundred thousand in a few seconds.

    Args:
        rows: windows of the baseline and of the candidate, at least one each.
        margin: change of the time, as a fraction, that does not matter.
        factors: for each row, by what its ratio is to be multiplied: 2 where the candidate did half the work.

    Raises:
        ValueError: the margin is no fraction from 0 up, a side has no windows, or a window has no times.

    Source: the limits of a difference from the limits of its parts, Zou and Donner, Construction of confidence limits
        about effect measures, Statistics in Medicine 27 (2008) 1693; the spread of repeated runs above that of the
        samples within, Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013.
    """
    check_margin(margin)
    medians = log_medians([times_s for row in rows for side in row for times_s in side])
    compared, start = [], 0
    for place, (baseline, candidate) in enumerate(rows):
        middle, end = start + len(baseline), start + len(baseline) + len(candidate)
        shift = math.log(factors[place]) if factors else 0.0
        samples = min(sum(map(len, baseline)), sum(map(len, candidate)))
        compared.append(_difference(_side(medians, start, middle), _side(medians, middle, end), shift, samples, margin))
        start = end
    return compared


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison, in logarithms."""

    center: float
    below: float
    """How far the 95 % interval reaches below the center, by the scatter within the windows."""
    above: float
    degrees: float
    windows: int
    squares: float
    """Sum of the squared deviations of the windows from their center."""

    def variance_of_mean(self) -> float:
        """Return the squared standard error behind the interval."""
        return ((self.below + self.above) / 2 / student_t_975(self.degrees)) ** 2


def _side(medians: LogMedians, start: int, end: int) -> _Side:
    count = end - start
    if not count:
        raise ValueError("there are no windows to compare")
    centers = medians.center[start:end].tolist()
    center = math.fsum(centers) / count
    below = math.hypot(*(medians.center[start:end] - medians.low[start:end]).tolist()) / count
    above = math.hypot(*(medians.high[start:end] - medians.center[start:end]).tolist()) / count
    squares = math.fsum((value - center) ** 2 for value in centers)
    return _Side(center, below, above, math.fsum(medians.degrees[start:end].tolist()), count, squares)


def _difference(baseline: _Side, candidate: _Side, shift: float, samples: int, margin: float) -> Comparison:
    """Return what the difference of two sides means, with `shift` added to it."""
    center = candidate.center - baseline.center + shift
    if samples < LEAST_PAIRS:  # their range is no interval of 95 %
        return replace(judged(center, center, center, 1.0, samples, margin), ci95=UNKNOWN)
    below, above, degrees = _within(baseline, candidate)
    repeated = baseline.windows + candidate.windows - 2
    if repeated:
        spread = math.sqrt((baseline.squares + candidate.squares) / repeated)
        deviate = SMALL_T_975.get(repeated) or student_t_975(repeated)
        between = deviate * spread * math.sqrt(1 / baseline.windows + 1 / candidate.windows)
        if between > min(below, above):
            below, above, degrees = max(below, between), max(above, between), repeated
    return judged(center, center - below, center + above, degrees, samples, margin)


def _within(baseline: _Side, candidate: _Side) -> tuple[float, float, float]:
    """Return how far the interval reaches below and above by the scatter within the windows, and degrees of freedom.

    Source: the degrees of freedom of a difference, Welch, The generalization of Student's problem when several
        different population variances are involved, Biometrika 34 (1947) 28.
    """
    first, second = baseline.variance_of_mean(), candidate.variance_of_mean()
    if not first + second:
        return 0.0, 0.0, baseline.degrees + candidate.degrees
    degrees = (first + second) ** 2 / (first**2 / baseline.degrees + second**2 / candidate.degrees)
    together = student_t_975(degrees)
    base, other = (together / student_t_975(side.degrees) for side in (baseline, candidate))
    below = math.hypot(other * candidate.below, base * baseline.above)
    above = math.hypot(other * candidate.above, base * baseline.below)
    return below, above, degrees
