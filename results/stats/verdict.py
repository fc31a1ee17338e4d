"""Verdicts on two series of times, interleaved or separate.

Samples i of two interleaved series were taken in succession, so interference is in both. The
verdict is on the median of the ratios of the pairs. Separate series also differ by the spread
between measurements, see `results.stats.spread`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from results.stats.comparison import (
    DEFAULT_MARGIN,
    MIN_PAIRS,
    MORE_SAMPLES,
    SAME,
    SLOWER,
    UNKNOWN,
    UNSURE,
    Comparison,
)
from results.stats.samples import (
    MIN_FOR_CORRELATION,
    Z_975,
    Interval,
    interval_of_median,
    student_t,
)
from results.stats.spread import Spread

SEQUENTIAL_WIDENING = 1.45
"""Factor on the width of an interval, because a comparison stops as soon as its verdict is clear.

With it, all intervals of ten looks at 20, 40, ... 10,240 rounds contain the true ratio in 95 % of
comparisons. A simulation of 40,000 sums of normal noise gives 2.71 standard errors instead of 1.96,
a factor of 1.39. The rest is for few rounds: with the true change at the margin and 2 % noise, 2.4
% of 2,000 comparisons were SLOWER, 3.2 % with 1.39.

Source: one constant for all looks, Pocock, Group sequential methods in the design and analysis of
clinical trials, Biometrika 64 (1977) 191; as an interval, Jennison and Turnbull, Interim analyses:
the repeated confidence interval approach, J. Royal Statistical Society B 51 (1989) 305."""

DETECTION = 0.95
"""Probability of detecting the smallest detectable change."""

MAX_TIMES_LONGER = 100.0
"""No advice is given if the comparison would need more time than this factor."""

MORE_RUNS = "save more runs of both, or use python -m bench compare"
"""Advice if the interval is mostly the spread between runs."""

MIN_SPREAD_SHARE = 0.5**0.5
"""From this fraction of the half width, the spread is the larger part of its square."""


def compare_pairs(
    baseline_s: Sequence[float],
    candidate_s: Sequence[float],
    margin: float = DEFAULT_MARGIN,
    widening: float = 1.0,
    unit: str = "pair",
) -> Comparison:
    """Return the ratio of two interleaved series of times, in seconds, with its interval and
    verdict.

    Exchanging the series inverts the ratio and exchanges FASTER and SLOWER. `margin` is the change
    of the time, as a fraction, that does not matter: 0.01 is from 1 / 1.01 to 1.01. `widening` is a
    factor on the width of the interval.

    Source: Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013, for a ratio
    with its interval instead of a test; Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15
    (1987) 657, for an equivalence that must be shown like a difference.
    """
    # Logarithms treat twice as fast and twice as slow alike.
    ratios = [
        math.log(candidate / baseline)
        for baseline, candidate in zip(baseline_s, candidate_s, strict=True)
    ]
    interval = interval_of_median(ratios, widening)
    sign = math.copysign(1, interval.center)
    within = sum(sign * ratio <= math.log1p(margin) for ratio in ratios)
    halves = math.inf  # widths between center and margin, counted in samples
    if within:
        halves = (1 - 2 * within / len(ratios)) / interval.share_needed
    return Comparison.of(interval, len(ratios), margin, unit, halves_in_ranks=halves)


def judge_rounds(
    baseline_s: Sequence[float],
    candidate_s: Sequence[float],
    margin: float,
    is_fixed: bool = False,
    is_disturbed: bool = False,
) -> Comparison:
    """Return the comparison of two series of rounds, which may have stopped after any doubling of
    their number.

    With `is_fixed`, the number of rounds was set beforehand. `is_disturbed`: other work took time
    from the samples. A wait that is part of both times brings their ratio closer to 1, so nothing
    is SAME, and only a bound of the ratio is known. It must show in each half of the rounds.
    """
    widening = 1.0 if is_fixed else SEQUENTIAL_WIDENING
    compared = compare_pairs(baseline_s, candidate_s, margin, widening, "round")
    if not is_disturbed or compared.verdict == UNSURE:
        return compared
    if compared.verdict == SAME:
        return compared.unsure(", but waiting in both times hides a difference")
    middle = len(baseline_s) // 2
    for half in (slice(middle), slice(middle, None)):
        of_half = compare_pairs(baseline_s[half], candidate_s[half], margin, widening, "round")
        if of_half.verdict == UNSURE and of_half.pairs < MIN_FOR_CORRELATION:
            return compared.unsure(f", but {compared.pairs} disturbed rounds are too few")
        if of_half.verdict != compared.verdict:
            return compared.unsure(", but not in each half of the rounds")
    bound = replace(compared, is_bound=True)
    word = "longer" if compared.verdict == SLOWER else "shorter"
    reason = (
        f"time at least {100 * abs(bound.shown_ratio - 1):.2f} % {word}: beyond the margin of "
        f"{100 * margin:g} % in each half of the rounds"
    )
    return replace(bound, reason=reason)


def times_longer(compared: Comparison) -> float | None:
    """Return the factor on the number of rounds that would decide an UNSURE row; None if above
    `MAX_TIMES_LONGER`.

    The half width is proportional to 1 / sqrt(rounds).
    """
    if compared.verdict != UNSURE or compared.pairs < MIN_PAIRS:
        return None
    low, high = (math.log(end) for end in compared.ci95)
    gap = abs(abs(math.log(compared.ratio)) - math.log1p(compared.margin))
    longer = ((high - low) / 2 / gap) ** 2 if gap else math.inf
    return max(1.0, longer) if longer <= MAX_TIMES_LONGER else None


def smallest_detectable_change(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float = DEFAULT_MARGIN
) -> float:
    """Return the smallest slowdown, in percent, that is SLOWER in about 95 % of comparisons of as
    many such pairs.

    Even if the measured ratio is 1.64 standard errors below the true one, its interval is beyond
    the margin. Only the scatter of the ratio counts, not its value.

    Raises:
        ValueError: fewer than `MIN_PAIRS` pairs.
    """
    compared = compare_pairs(baseline_s, candidate_s, margin)
    if compared.pairs < MIN_PAIRS:
        raise ValueError(f"expected at least {MIN_PAIRS} pairs, got {compared.pairs}")
    low, high = compared.ci95
    half = math.log(high / low) / 2
    shortfall = NormalDist().inv_cdf(DETECTION) / Z_975 * half
    return 100 * ((1 + margin) * math.exp(half + shortfall) - 1)


@dataclass(frozen=True)
class SideMean:
    """Mean of the windows of one side, in logarithms."""

    center: float
    below: float
    """Distance from the center to the lower end of the 95 % interval, from the scatter within the
    windows.
    """
    above: float
    degrees: float
    samples: int


def side_of(windows: Sequence[Sequence[float]]) -> SideMean:
    """Return the mean of the log medians of windows, each a series of times above 0."""
    medians = [interval_of_median([math.log(time_s) for time_s in times_s]) for times_s in windows]
    count = len(medians)
    return SideMean(
        center=math.fsum(interval.center for interval in medians) / count,
        below=math.hypot(*(interval.center - interval.low for interval in medians)) / count,
        above=math.hypot(*(interval.high - interval.center for interval in medians)) / count,
        degrees=math.fsum(interval.degrees for interval in medians),
        samples=sum(map(len, windows)),
    )


def compare_sides(
    baseline: SideMean,
    candidate: SideMean,
    margin: float = DEFAULT_MARGIN,
    spread: Spread | None = None,
) -> Comparison:
    """Return the ratio of two sides that were not interleaved, with its interval and verdict.

    Without a `spread` between measurements of the same code, it is UNSURE.

    Source: the limits of a difference from the limits of its parts, Zou and Donner, Construction of
    confidence limits about effect measures, Statistics in Medicine 27 (2008) 1693; the spread of
    repeated runs above that of the samples within, Kalibera and Jones, Rigorous benchmarking in
    reasonable time, ISMM 2013; degrees of freedom of a sum of variances, Satterthwaite, Biometrics
    Bulletin 2 (1946) 110.
    """
    below, above, degrees = _within(baseline, candidate)
    between = spread.half_width if spread else 0.0
    if spread and between:
        half = (below + above) / 2
        degrees = (half**2 + between**2) ** 2 / (half**4 / degrees + between**4 / spread.degrees)
        below = math.hypot(below, between)
        above = math.hypot(above, between)
    center = candidate.center - baseline.center
    samples = min(baseline.samples, candidate.samples)
    remedy = MORE_RUNS if between > (below + above) / 2 * MIN_SPREAD_SHARE else MORE_SAMPLES
    interval = Interval(center, center - below, center + above, degrees)
    compared = Comparison.of(interval, samples, margin, drift=between, remedy=remedy)
    if samples < MIN_PAIRS:  # the range of a few samples is not a 95 % interval
        return replace(compared, ci95=UNKNOWN, drift=0.0)
    if spread is None or not spread.has_runs:
        return compared.unsure(
            f", but the spread between runs of the same code is unknown; {MORE_RUNS}"
        )
    if samples < MIN_FOR_CORRELATION and compared.verdict != UNSURE:
        return compared.unsure(f", but {samples} samples are too few to estimate their correlation")
    return compared


def _within(baseline: SideMean, candidate: SideMean) -> tuple[float, float, float]:
    """Return the distances of the interval's ends from the scatter within the windows, and its
    degrees of freedom.

    Source: the degrees of freedom of a difference, Welch, The generalization of Student's problem
    when several different population variances are involved, Biometrika 34 (1947) 28.
    """
    sides = (baseline, candidate)
    deviates = [student_t(side.degrees) for side in sides]
    variances = [
        ((side.below + side.above) / 2 / deviate) ** 2
        for side, deviate in zip(sides, deviates, strict=True)
    ]
    squares = math.fsum(
        variance**2 / side.degrees for variance, side in zip(variances, sides, strict=True)
    )
    # Without scatter, any degrees of freedom will do.
    degrees = (
        max(1.0, sum(variances) ** 2 / squares) if squares else baseline.degrees + candidate.degrees
    )
    first, second = (student_t(degrees) / deviate for deviate in deviates)
    below = math.hypot(second * candidate.below, first * baseline.above)
    return below, math.hypot(second * candidate.above, first * baseline.below), degrees
