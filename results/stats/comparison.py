"""Ratio of two series of times, interleaved or separate, with its interval and verdict;
comparison with peers; correction for many rows, and their mean.

Samples i of two interleaved series were taken in succession, so interference is in both. The
verdict is on the median of the ratios of the pairs. Separate series also differ by the spread
between measurements, see `results.stats.samples`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median_high, median_low
from typing import NamedTuple

from results.show.units import count as counted
from results.stats.samples import (
    MAD_EFFICIENCY,
    MIN_FOR_CORRELATION,
    Z_975,
    Interval,
    Spread,
    interval_of_median,
    student_t,
)

DEFAULT_MARGIN = 0.01
"""Changes of the time up to this fraction do not matter."""

MARGIN_HELP = (
    f"ignore differences in time up to this fraction, such as 0.02 or 2% (default: "
    f"{100 * DEFAULT_MARGIN:g}%)"
)

MIN_PAIRS = 6
"""The range of n pairs contains the true median in 1 - 2 / 2^n of cases, which reaches 95 % at
6.
"""

MAX_ROUNDS = 10_240
"""After ten looks, the interval is a twentieth as wide as at the first, 20 rounds; more rounds
hardly narrow it.
"""

VERDICT_ERROR = 0.01
"""Maximum probability that a table without differences has a FASTER or SLOWER row. Without the
correction, 95 % intervals would give such a verdict to up to one row in twenty."""

DISTURBANCE = 2.0
"""Maximum factor by which interference may change a time: a thread that shares its core has half of
it, and a GPU in hardware slowdown halves its clock.

Source: NVIDIA, NVML API reference, clocks event reasons: hardware slowdown reduces the clocks by a
factor of 2 or more.
"""

TOO_NOISY = 4
"""Maximum ratio of the ends of a printed interval: beyond it, the half width exceeds the center."""
MAX_SHOWN = 100
"""Larger ratios of times are not printed."""
UNKNOWN = (0.0, math.inf)
"""Interval of an unknown ratio."""

MAX_LOG = 700.0
"""Largest logarithm of a ratio whose exponential is a float."""

MORE_SAMPLES = "more samples may decide"

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

FASTER = "FASTER"
SLOWER = "SLOWER"
SAME = "SAME"
UNSURE = "UNSURE"


@dataclass(frozen=True)
class Comparison:
    """Times of a candidate compared with those of a baseline."""

    ratio: float
    """Candidate over baseline: above 1 the candidate is slower."""
    ci95: tuple[float, float]
    verdict: str
    """`FASTER` or `SLOWER`: the whole interval is beyond the margin; `SAME`: all of it is within;
    else `UNSURE`.
    """
    reason: str
    pairs: int
    """Number of interleaved pairs, or of samples of the shorter series if they were not
    interleaved.
    """
    margin: float
    p_value: float = 1.0
    """Probability of a ratio so far beyond the margin, in either direction, if the true ratio is at
    the margin; not corrected for the number of rows. It is 0.05 if the interval touches the
    margin."""
    drift: float = 0.0
    """Half width, in logarithms, of the part of the interval that allows for the spread between
    measurements. Rows of the same two measurements share it, so it does not shrink in a mean of
    rows."""
    degrees: float = 1.0
    """Degrees of freedom behind the interval."""
    bound: str = ""
    """`at least ` or `at most ` if only a bound of the ratio is known, because other work took time
    from the samples: the true ratio is the end of the interval nearer to 1, or further from 1."""

    @classmethod
    def of(
        cls,
        interval: Interval,
        count: int,
        margin: float,
        unit: str = "sample",
        drift: float = 0.0,
        remedy: str = MORE_SAMPLES,
        halves_in_ranks: float = math.inf,
    ) -> Comparison:
        """Return the comparison for the 95 % interval of the logarithm of a ratio.

        `count` is the number of pairs, or of samples of the shorter side. `halves_in_ranks`: half
        widths between center and margin, counted in samples, which matter for heavy tails.
        """
        ends = (math.exp(interval.low), math.exp(min(interval.high, MAX_LOG)))
        reason = _reason(*ends, margin, remedy)
        if drift:
            factor = math.exp(drift)
            shown = f"a factor of {factor:.2g}"
            if factor > MAX_SHOWN:
                shown = f"a factor above {MAX_SHOWN}"
            elif factor < 2:
                shown = f"±{100 * (factor - 1):.2g} %"
            reason += f"; {shown} is the spread between measurements"
        p_value = 1.0
        distance = abs(interval.center) - math.log1p(margin)
        if distance > 0:
            from scipy.special import stdtr

            half = interval.center - interval.low
            if interval.center < 0:
                half = interval.high - interval.center
            halves = min(distance / half if half > 0 else math.inf, halves_in_ranks)
            deviate = halves * student_t(interval.degrees)
            p_value = float(2 * stdtr(interval.degrees, -deviate))
        compared = cls(
            ratio=math.exp(interval.center),
            ci95=ends,
            verdict=verdict_of(*ends, margin),
            reason=reason,
            pairs=count,
            margin=margin,
            p_value=p_value,
            drift=drift,
            degrees=interval.degrees,
        )
        if count < MIN_PAIRS:
            few = f"only {counted(count, unit)} of at least {MIN_PAIRS}"
            return replace(compared, reason="").unsure(few)
        if is_beyond_disturbance(ends, margin):
            return compared
        if count >= MIN_FOR_CORRELATION and interval.share_needed > 1:
            alike = f"{count} {unit}s that resemble their neighbors are too few"
            return compared.unsure(f"; the interval is too narrow: {alike}")
        if count < MIN_FOR_CORRELATION and compared.verdict != UNSURE:
            few = f"{count} {unit}s are too few to estimate their correlation"
            return compared.unsure(f", but {few}")
        return compared

    def unsure(self, reason: str) -> Comparison:
        return replace(self, verdict=UNSURE, reason=self.reason + reason, p_value=1.0, bound="")


def is_beyond_disturbance(ci95: tuple[float, float], margin: float) -> bool:
    """Return whether a whole interval of ratios is further from 1 than interference with one side
    explains.
    """
    low, high = ci95
    return low > DISTURBANCE * (1 + margin) or high < 1 / (DISTURBANCE * (1 + margin))


def verdict_of(low: float, high: float, margin: float, pairs: int = MIN_FOR_CORRELATION) -> str:
    """Return the verdict on an interval of the ratio of the times of `pairs` pairs or samples.

    Fewer than `MIN_FOR_CORRELATION` do not show how neighbors correlate, so only a change beyond
    any interference gets a verdict. Without this rule, 10 % of simulated comparisons of 14 pairs
    were FASTER or SLOWER whose neighbors correlate by 0.8 and whose true change is at the margin.
    """
    if pairs < MIN_FOR_CORRELATION:
        is_enough = pairs >= MIN_PAIRS and is_beyond_disturbance((low, high), margin)
        if not is_enough:
            return UNSURE
    if high < 1 / (1 + margin):
        return FASTER
    if low > 1 + margin:
        return SLOWER
    return SAME if low >= 1 / (1 + margin) and high <= 1 + margin else UNSURE


def _reason(low: float, high: float, margin: float, remedy: str) -> str:
    verdict = verdict_of(low, high, margin)
    upper = f"{100 * (high - 1):+.2f} %" if high <= MAX_SHOWN else f"more than {MAX_SHOWN} times"
    between = f"time {100 * (low - 1):+.2f} % to {upper}"
    allowed = f"the margin of {100 * margin:g} %"
    if verdict in (FASTER, SLOWER):
        return f"{between}: all of it beyond {allowed}"
    if verdict == SAME:
        return f"{between}: all of it within {allowed}"
    text = f"{between}: wider than {allowed}, possibly no difference"
    if high > TOO_NOISY * low:
        text = "too noisy"
    elif low > 1 or high < 1:
        text = f"{between}: different, but possibly within {allowed}"
    return f"{text}; {remedy}" if remedy else text


def geometric_mean(comparisons: Sequence[Comparison]) -> tuple[float, tuple[float, float]] | None:
    """Return the geometric mean of the ratios with its 95 % interval; None if no row has an
    interval, or if only a bound of a ratio is known.

    The interval covers the errors of the rows, not the differences between rows. Rows without an
    interval are left out.

    Source: Fleming and Wallace, How not to lie with statistics: the correct way to summarize
    benchmark results, CACM 29 (1986) 218; for the interval see `compare_sides`.
    """
    known = [compared for compared in comparisons if compared.ci95 != UNKNOWN]
    if not known or any(compared.bound for compared in comparisons):
        return None
    count = len(known)
    center = math.fsum(math.log(compared.ratio) for compared in known) / count
    shared = math.fsum(compared.drift for compared in known) / count
    reaches = []
    for end in (0, 1):
        squares = [math.log(row.ci95[end] / row.ratio) ** 2 - row.drift**2 for row in known]
        own = math.sqrt(math.fsum(max(0.0, square) for square in squares)) / count
        reaches.append(math.hypot(own, shared))
    return math.exp(center), (math.exp(center - reaches[0]), math.exp(center + reaches[1]))


def holm(p_values: Sequence[float], family_error: float = 0.05) -> list[bool]:
    """Return whether each hypothesis is rejected; `family_error` is the maximum probability of any
    false rejection.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian J.
    Statistics 6 (1979) 65.
    """
    largest = -math.inf
    for rank, p_value in enumerate(sorted(p_values)):
        if p_value > family_error / (len(p_values) - rank):
            break
        largest = p_value
    return [p_value <= largest for p_value in p_values]


def benjamini_hochberg(p_values: Sequence[float], false_share: float) -> list[bool]:
    """Return whether each hypothesis is rejected; `false_share` is the maximum expected fraction of
    false rejections among all rejections.

    Source: Benjamini and Hochberg, Controlling the false discovery rate: a practical and powerful
    approach to multiple testing, J. R. Statistical Society B 57 (1995) 289.
    """
    largest = -math.inf
    for rank, p_value in enumerate(sorted(p_values), start=1):
        if p_value <= false_share * rank / len(p_values):
            largest = p_value
    return [p_value <= largest for p_value in p_values]


def with_holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of a table after Holm's correction: FASTER and SLOWER rows that fail
    it are UNSURE.
    """
    confirmed = holm([compared.p_value for compared in comparisons], VERDICT_ERROR)
    among = f" among {len(comparisons):,} rows" if len(comparisons) > 1 else ""
    return [
        compared.unsure(f", but possibly by chance{among}")
        if compared.verdict in (FASTER, SLOWER) and not holds
        else compared
        for compared, holds in zip(comparisons, confirmed, strict=True)
    ]


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
    is_slower = compared.verdict == SLOWER
    shown = min(compared.ci95) if is_slower else max(compared.ci95)
    word = "longer" if is_slower else "shorter"
    reason = (
        f"time at least {100 * abs(shown - 1):.2f} % {word}: beyond the margin of "
        f"{100 * margin:g} % in each half of the rounds"
    )
    return replace(compared, bound="at least " if is_slower else "at most ", reason=reason)


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


def smallest_detectable_change(baseline_s: Sequence[float], candidate_s: Sequence[float]) -> float:
    """Return the smallest slowdown, in percent, that is SLOWER in about 95 % of comparisons of as
    many such pairs.

    Even if the measured ratio is 1.64 standard errors below the true one, its interval is beyond
    the margin. Only the scatter of the ratio counts, not its value.

    Raises:
        ValueError: fewer than `MIN_PAIRS` pairs.
    """
    compared = compare_pairs(baseline_s, candidate_s, DEFAULT_MARGIN)
    if compared.pairs < MIN_PAIRS:
        raise ValueError(f"expected at least {MIN_PAIRS} pairs, got {compared.pairs}")
    low, high = compared.ci95
    half = math.log(high / low) / 2
    shortfall = NormalDist().inv_cdf(DETECTION) / Z_975 * half
    return 100 * ((1 + DEFAULT_MARGIN) * math.exp(half + shortfall) - 1)


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
    Bulletin 2 (1946) 110; of a difference, Welch, The generalization of Student's problem when
    several different population variances are involved, Biometrika 34 (1947) 28.
    """
    squares = 0.0
    variance = 0.0
    deviates = []
    for side in (baseline, candidate):
        deviates.append(student_t(side.degrees))
        own = ((side.below + side.above) / 2 / deviates[-1]) ** 2
        variance += own
        squares += own**2 / side.degrees
    # Without scatter, any degrees of freedom will do.
    degrees = baseline.degrees + candidate.degrees
    if squares:
        degrees = max(1.0, variance**2 / squares)
    first, second = (student_t(degrees) / deviate for deviate in deviates)
    below = math.hypot(second * candidate.below, first * baseline.above)
    above = math.hypot(second * candidate.above, first * baseline.below)
    between = spread.half_width if spread else 0.0
    if spread and between:
        half = (below + above) / 2
        degrees = (half**2 + between**2) ** 2 / (half**4 / degrees + between**4 / spread.degrees)
        below = math.hypot(below, between)
        above = math.hypot(above, between)
    center = candidate.center - baseline.center
    samples = min(baseline.samples, candidate.samples)
    remedy = MORE_SAMPLES
    if spread is None or not spread.has_runs:
        remedy = ""  # whatever the interval, only more runs help
    elif between > (below + above) / 2 * MIN_SPREAD_SHARE:
        remedy = MORE_RUNS
    interval = Interval(center, center - below, center + above, degrees)
    compared = Comparison.of(interval, samples, margin, drift=between, remedy=remedy)
    if samples < MIN_PAIRS:  # the range of a few samples is not a 95 % interval
        return replace(compared, ci95=UNKNOWN, drift=0.0)
    if not remedy:
        return compared.unsure(
            f", but the spread between runs of the same code is unknown; {MORE_RUNS}"
        )
    if samples < MIN_FOR_CORRELATION and compared.verdict != UNSURE:
        return compared.unsure(f", but {samples} samples are too few to estimate their correlation")
    return compared


class PeerSpread(NamedTuple):
    """Center and scale of values that should be equal, robust against a few that are not."""

    center: float
    """The median, the higher one of two."""
    scale: float
    degrees: float

    @classmethod
    def of(cls, values: Collection[float], prior_scale: float, prior_degrees: float) -> PeerSpread:
        """Return the scaled median absolute deviation, moderated by a prior for few values.

        Of an even number, the faster of both middle values is the center, so that a slow half
        does not hide itself.

        Source: the factor n / (n - 0.8), Croux and Rousseeuw, Time-efficient algorithms for two
        highly robust estimators of scale (1992); moderated variances, see
        `MAX_OTHER_DEGREES` of `results.stats.samples`.
        """
        center = median_high(values)
        count = len(values)
        mad = 1.4826 * median_low(abs(value - center) for value in values) * count / (count - 0.8)
        # Two deviate alike, whatever the spread.
        own = MAD_EFFICIENCY * (count - 1) if count > 2 else 0.0
        degrees = prior_degrees + own
        square = (prior_degrees * prior_scale**2 + own * mad**2) / degrees
        return cls(center, math.sqrt(square), degrees)

    def p_value(self, value: float) -> float:
        """Return the probability of a value so far below the center by chance."""
        from scipy.special import stdtr

        return float(stdtr(self.degrees, (value - self.center) / self.scale))
