"""Is one version slower than another that was measured at another time? The ratio of two medians, with its interval.

The interval includes the scatter within the two series. How the machine differed between the two times is included if
a side was measured in several windows, or if it is allowed for (`results.stats.drift`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from results.stats.comparison import (
    DEFAULT_MARGIN,
    LEAST_PAIRS,
    MORE_SAMPLES,
    UNKNOWN,
    Comparison,
    check_margin,
    judged,
)
from results.stats.drift import Drift
from results.stats.samples import interval_of_median, student_t_975

MORE_WINDOWS = "measuring both again, or in turns (bench compare), would tell"
"""What helps if the interval is mostly an allowance for drift."""

MOSTLY = 0.5**0.5
"""Fraction of an interval's half width from which on its larger part, in squares, is for drift."""

Windows = Sequence[Sequence[float]]
"""The times of each window of one side, above 0."""


@dataclass(frozen=True)
class SideMean:
    """The mean of the windows of one side, in logarithms."""

    center: float
    below: float
    """How far the 95 % interval reaches below the center, by the scatter within the windows."""
    above: float
    degrees: float
    windows: int
    squares: float
    """Sum of the squared deviations of the windows from their center."""
    samples: int


def compare_many(
    rows: Iterable[tuple[Windows, Windows]], margin: float = DEFAULT_MARGIN, drift: Drift | None = None
) -> list[Comparison]:
    """Return the comparison of each row, which is the windows of the baseline and of the candidate.

    Arguments and errors as of `side_of` and `compare_sides`.
    """
    check_margin(margin)
    return [compare_sides(side_of(baseline), side_of(candidate), margin, drift) for baseline, candidate in rows]


def side_of(windows: Windows) -> SideMean:
    """Return the geometric mean of the medians of the windows of one side.

    Raises:
        ValueError: there are no windows, or a window has no times.
    """
    if not windows:
        raise ValueError("there are no windows to compare")
    medians = [interval_of_median([math.log(time_s) for time_s in times_s]) for times_s in windows]
    count = len(medians)
    center = math.fsum(one.center for one in medians) / count
    return SideMean(
        center=center,
        below=math.hypot(*(one.center - one.low for one in medians)) / count,
        above=math.hypot(*(one.high - one.center for one in medians)) / count,
        degrees=math.fsum(one.degrees for one in medians),
        windows=count,
        squares=math.fsum((one.center - center) ** 2 for one in medians),
        samples=sum(map(len, windows)),
    )


def spread_between(sides: Iterable[SideMean]) -> tuple[float, float]:
    """Return the standard deviation between windows of the same side, over all sides, and its degrees of freedom."""
    sides = list(sides)
    degrees = sum(side.windows - 1 for side in sides)
    return math.sqrt(math.fsum(side.squares for side in sides) / degrees) if degrees else 0.0, float(degrees)


def compare_sides(
    baseline: SideMean, candidate: SideMean, margin: float = DEFAULT_MARGIN, drift: Drift | None = None
) -> Comparison:
    """Return the ratio of two sides that were not interleaved, with its interval and what it means.

    The interval is the wider one of what the samples within the windows tell and what the windows tell by differing
    from each other; a side with one window borrows the spread of the other one. How the machine differed between two
    single windows is only included as `drift`.

    Args:
        baseline: as `side_of` returns it.
        candidate: likewise.
        margin: change of the time, as a fraction, that does not matter.
        drift: what to allow for if both sides have one window; None for nothing.

    Source: the limits of a difference from the limits of its parts, Zou and Donner, Construction of confidence limits
        about effect measures, Statistics in Medicine 27 (2008) 1693; the spread of repeated runs above that of the
        samples within, Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013.
    """
    below, above, degrees = _within(baseline, candidate)
    drift_half = 0.0
    if repeated := baseline.windows + candidate.windows - 2:
        spread = math.sqrt((baseline.squares + candidate.squares) / repeated)
        between = student_t_975(repeated) * spread * math.sqrt(1 / baseline.windows + 1 / candidate.windows)
        degrees = repeated if between > min(below, above) else degrees
        below, above = max(below, between), max(above, between)
    elif drift is not None and drift.share:
        drift_half, half = drift.half_width, (below + above) / 2
        degrees = (half**2 + drift_half**2) ** 2 / (half**4 / degrees + drift_half**4 / drift.degrees)
        below, above = math.hypot(below, drift_half), math.hypot(above, drift_half)
    center = candidate.center - baseline.center
    is_by_drift = drift_half > (below + above) / 2 * MOSTLY
    compared = judged(
        *(center, center - below, center + above, degrees, min(baseline.samples, candidate.samples), margin),
        drift=drift_half,
        remedy=MORE_WINDOWS if is_by_drift else MORE_SAMPLES,
        note=f"; {drift.words}" if drift and drift_half else "",
    )
    # The range of a few samples is no interval of 95 %.
    return replace(compared, ci95=UNKNOWN, drift=0.0) if compared.pairs < LEAST_PAIRS else compared


def _within(baseline: SideMean, candidate: SideMean) -> tuple[float, float, float]:
    """Return how far the interval reaches below and above by the scatter within the windows, and degrees of freedom.

    Source: the degrees of freedom of a difference, Welch, The generalization of Student's problem when several
        different population variances are involved, Biometrika 34 (1947) 28.
    """
    sides = (baseline, candidate)
    deviates = [student_t_975(side.degrees) for side in sides]
    variances = [((side.below + side.above) / 2 / deviate) ** 2 for side, deviate in zip(sides, deviates, strict=True)]
    squares = math.fsum(variance**2 / side.degrees for variance, side in zip(variances, sides, strict=True))
    # If nothing scatters, any degrees of freedom do.
    degrees = max(1.0, sum(variances) ** 2 / squares) if squares else baseline.degrees + candidate.degrees
    first, second = (student_t_975(degrees) / deviate for deviate in deviates)
    below = math.hypot(second * candidate.below, first * baseline.above)
    return below, math.hypot(second * candidate.above, first * baseline.below), degrees
