"""Is one version slower than another that was measured at another time? The ratio of two medians, with its interval.

The interval includes the scatter within the two series, and the spread between measurements of the same code
(`results.stats.spread`). Without a known spread there is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.stats.comparison import (
    DEFAULT_MARGIN,
    LEAST_PAIRS,
    MORE_SAMPLES,
    UNKNOWN,
    UNSURE,
    Comparison,
    check_margin,
    judged,
)
from results.stats.samples import LEAST_CORRELATED, interval_of_median, student_t
from results.stats.spread import Spread

MORE_RUNS = "save more runs of both, or compare them live with bench compare"
"""What helps if the interval is mostly the spread between runs."""

MOSTLY = 0.5**0.5
"""Fraction of an interval's half width from which on its larger part, in squares, is the spread."""

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
    samples: int


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
        samples=sum(map(len, windows)),
    )


def compare_sides(
    baseline: SideMean,
    candidate: SideMean,
    margin: float = DEFAULT_MARGIN,
    spread: Spread | None = None,
) -> Comparison:
    """Return the ratio of two sides that were not interleaved, with its interval and verdict.

    Args:
        baseline: as `side_of` returns it.
        candidate: likewise.
        margin: change of the time, as a fraction, that does not matter.
        spread: between measurements of the same code; None if unknown, and then there is no verdict.

    Source: the limits of a difference from the limits of its parts, Zou and Donner, Construction of confidence limits
        about effect measures, Statistics in Medicine 27 (2008) 1693; the spread of repeated runs above that of the
        samples within, Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013; degrees of freedom of
        a sum of variances, Satterthwaite, Biometrics Bulletin 2 (1946) 110.
    """
    check_margin(margin)
    below, above, degrees = _within(baseline, candidate)
    between = spread.half_width if spread else 0.0
    if spread and between:
        half = (below + above) / 2
        degrees = (half**2 + between**2) ** 2 / (half**4 / degrees + between**4 / spread.degrees)
        below, above = math.hypot(below, between), math.hypot(above, between)
    center = candidate.center - baseline.center
    samples = min(baseline.samples, candidate.samples)
    is_by_spread = between > (below + above) / 2 * MOSTLY
    compared = judged(
        *(center, center - below, center + above, degrees, samples, margin),
        drift=between,
        remedy=MORE_RUNS if is_by_spread else MORE_SAMPLES,
        note=f"; ±{100 * math.expm1(between):.2g} % is the spread between measurements" if between else "",
    )
    if samples < LEAST_PAIRS:  # the range of a few samples is no interval of 95 %
        return replace(compared, ci95=UNKNOWN, drift=0.0)
    if spread is None or not spread.has_runs:
        return without_verdict(compared, f"nothing shows how much runs of the same code differ here; {MORE_RUNS}")
    if samples < LEAST_CORRELATED and compared.verdict != UNSURE:
        return without_verdict(compared, f"{samples} samples are too few to know how they correlate")
    return compared


def without_verdict(compared: Comparison, reason: str) -> Comparison:
    """Return a comparison as UNSURE, with the reason why its interval gives no verdict."""
    return replace(compared, verdict=UNSURE, reason=f"{compared.reason}, but {reason}", p_value=1.0)


def _within(baseline: SideMean, candidate: SideMean) -> tuple[float, float, float]:
    """Return how far the interval reaches below and above by the scatter within the windows, and degrees of freedom.

    Source: the degrees of freedom of a difference, Welch, The generalization of Student's problem when several
        different population variances are involved, Biometrika 34 (1947) 28.
    """
    sides = (baseline, candidate)
    deviates = [student_t(side.degrees) for side in sides]
    variances = [((side.below + side.above) / 2 / deviate) ** 2 for side, deviate in zip(sides, deviates, strict=True)]
    squares = math.fsum(variance**2 / side.degrees for variance, side in zip(variances, sides, strict=True))
    # If nothing scatters, any degrees of freedom do.
    degrees = max(1.0, sum(variances) ** 2 / squares) if squares else baseline.degrees + candidate.degrees
    first, second = (student_t(degrees) / deviate for deviate in deviates)
    below = math.hypot(second * candidate.below, first * baseline.above)
    return below, math.hypot(second * candidate.above, first * baseline.below), degrees
