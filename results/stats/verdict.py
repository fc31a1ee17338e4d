"""Is one series of times longer than another? A ratio with its interval, from pairs or from two medians.

Sample i of one interleaved series and sample i of the other were taken one right after the other, so a disturbance of
the machine is in both. The ratio is taken within each pair, and the median of the ratios is judged. Series that were
not interleaved differ by the spread between measurements too, see `results.stats.spread`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from results.stats.comparison import DEFAULT_MARGIN, MIN_PAIRS, MORE_SAMPLES, UNKNOWN, UNSURE, Comparison, judged
from results.stats.samples import MIN_FOR_CORRELATION, Z_975, Interval, interval_of_median, student_t
from results.stats.spread import Spread

LOOKING_FOR_A_VERDICT = 1.45
"""Factor by which an interval is widened because a comparison ends when its verdict happens to be clear.

Of ten looks at 20, 40, ... 10,240 rounds, all intervals so widened hold the true ratio in 95 % of comparisons, so that
any of them may end the comparison: 2.71 standard errors instead of 1.96, a factor of 1.39, by simulation of 40,000 sums
of normal noise. The rest makes up for few rounds: with the true change just at the margin and 2 % noise, 2.4 % of 2,000
comparisons called it SLOWER, and 3.2 % with 1.39.

Source: one constant for all looks, Pocock, Group sequential methods in the design and analysis of clinical trials,
Biometrika 64 (1977) 191; as an interval, Jennison and Turnbull, Interim analyses: the repeated confidence interval
approach, J. Royal Statistical Society B 51 (1989) 305."""

DETECTION = 0.95
"""How often the smallest detectable change is to be found."""

MAX_TIMES_LONGER = 100.0
"""A comparison that needs so many times longer is too near the margin to be told."""

MORE_RUNS = "save more runs of both, or compare them live with bench compare"
"""What helps if the interval is mostly the spread between runs."""

MOSTLY = 0.5**0.5
"""Fraction of an interval's half width from which on its larger part, in squares, is the spread."""


# ---- interleaved series ----------------------------------------------------------------------------------------------


def compare_pairs(
    baseline_s: Sequence[float],
    candidate_s: Sequence[float],
    margin: float = DEFAULT_MARGIN,
    widening: float = 1.0,
    unit: str = "pair",
) -> Comparison:
    """Return the ratio of two interleaved series of times, with its interval and verdict.

    With the series exchanged, everything is exchanged: the ratio is the inverse, FASTER is SLOWER. `margin` is the
    change of the time, as a fraction, that does not matter: 0.01 is from 1 / 1.01 to 1.01. `widening` is a factor on
    the width of the interval, in ranks.

    Source: Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013, for a ratio with its interval
        instead of a test; Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987) 657, for an equivalence that
        must be shown like a difference.
    """
    # In logarithms, twice as fast and twice as slow are alike.
    ratios = [math.log(candidate / baseline) for baseline, candidate in zip(baseline_s, candidate_s, strict=True)]
    interval = interval_of_median(ratios, widening)
    return judged(
        *(interval.center, interval.low, interval.high, interval.degrees, len(ratios), margin, unit),
        is_too_narrow=interval.share_needed > 1 and len(ratios) >= MIN_FOR_CORRELATION,
        halves_in_ranks=_halves_in_ranks(ratios, interval, math.log1p(margin)),
    )


def judge_rounds(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float, is_fixed: bool = False
) -> Comparison:
    """Return the comparison of two series of rounds; its interval may have been looked at after any doubling of them.

    `is_fixed` says that the count of rounds was set beforehand, so that there was one look.
    """
    return compare_pairs(baseline_s, candidate_s, margin, 1.0 if is_fixed else LOOKING_FOR_A_VERDICT, "round")


def _halves_in_ranks(ratios: Sequence[float], interval: Interval, edge: float) -> float:
    """Return half widths of an interval between center and margin, counted in samples.

    It is infinite if all samples are beyond the margin: their number does not limit what their distance tells.
    """
    sign = math.copysign(1, interval.center)
    within = sum(sign * ratio <= edge for ratio in ratios)
    return (1 - 2 * within / len(ratios)) / interval.share_needed if within else math.inf


def times_longer(compared: Comparison) -> float | None:
    """Return how many times as many rounds would make an UNSURE verdict clear; None: more than it is worth.

    The half width of an interval goes with one over the square root of the rounds.
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
    """Return the change of the time, in percent, that as many pairs of this noise would show.

    So large a slowdown is called SLOWER in about 95 % of comparisons: the lower end of its interval lies beyond the
    margin even if its middle falls short of the truth by 1.64 standard errors. Only the scatter of the ratio counts,
    not its value. Fewer than `MIN_PAIRS` pairs raise ValueError.
    """
    compared = compare_pairs(baseline_s, candidate_s, margin)
    if compared.pairs < MIN_PAIRS:
        raise ValueError(f"{compared.pairs} pairs tell nothing about noise, {MIN_PAIRS} or more do")
    low, high = compared.ci95
    half = math.log(high / low) / 2
    shortfall = NormalDist().inv_cdf(DETECTION) / Z_975 * half
    return 100 * ((1 + margin) * math.exp(half + shortfall) - 1)


# ---- series of two measurements --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SideMean:
    """The mean of the windows of one side, in logarithms."""

    center: float
    below: float
    """Distance from the center to the lower end of the 95 % interval, by the scatter within the windows."""
    above: float
    degrees: float
    samples: int


def side_of(windows: Sequence[Sequence[float]]) -> SideMean:
    """Return the geometric mean of the medians of the windows of one side, each a series of times above 0."""
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
    baseline: SideMean, candidate: SideMean, margin: float = DEFAULT_MARGIN, spread: Spread | None = None
) -> Comparison:
    """Return the ratio of two sides that were not interleaved, with its interval and verdict.

    Without a `spread` between measurements of the same code there is no verdict.

    Source: the limits of a difference from the limits of its parts, Zou and Donner, Construction of confidence limits
        about effect measures, Statistics in Medicine 27 (2008) 1693; the spread of repeated runs above that of the
        samples within, Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013; degrees of freedom of
        a sum of variances, Satterthwaite, Biometrics Bulletin 2 (1946) 110.
    """
    below, above, degrees = _within(baseline, candidate)
    between = spread.half_width if spread else 0.0
    if spread and between:
        half = (below + above) / 2
        degrees = (half**2 + between**2) ** 2 / (half**4 / degrees + between**4 / spread.degrees)
        below, above = math.hypot(below, between), math.hypot(above, between)
    center = candidate.center - baseline.center
    samples = min(baseline.samples, candidate.samples)
    remedy = MORE_RUNS if between > (below + above) / 2 * MOSTLY else MORE_SAMPLES
    compared = judged(*(center, center - below, center + above, degrees, samples, margin), drift=between, remedy=remedy)
    if samples < MIN_PAIRS:  # the range of a few samples is no interval of 95 %
        return replace(compared, ci95=UNKNOWN, drift=0.0)
    if spread is None or not spread.has_runs:
        return compared.unsure(f", but nothing shows how much runs of the same code differ here; {MORE_RUNS}")
    if samples < MIN_FOR_CORRELATION and compared.verdict != UNSURE:
        return compared.unsure(f", but {samples} samples are too few to know how they correlate")
    return compared


def _within(baseline: SideMean, candidate: SideMean) -> tuple[float, float, float]:
    """Return the distances of the interval's ends by the scatter within the windows, and its degrees of freedom.

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
