"""Ratio of the times of two versions with its interval and verdict; Holm's correction and the mean
of many rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.show.options import Parameter, margin
from results.show.units import count as counted
from results.stats.samples import MIN_FOR_CORRELATION, Interval, student_t

DEFAULT_MARGIN = 0.01
"""Changes of the time up to this fraction do not matter."""

MARGIN = Parameter(
    f"ignore differences in time up to this fraction, such as 0.02 or 2% (default: "
    f"{100 * DEFAULT_MARGIN:g}%)",
    margin,
    "",
    "FRACTION",
    key="margin",
    default=DEFAULT_MARGIN,
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
    is_bound: bool = False
    """Whether only a bound of the ratio is known, because other work took time from the samples:
    the true ratio is `shown_ratio` or further from 1."""

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
        widths between center and margin, counted in samples.
        """
        ends = (math.exp(interval.low), math.exp(min(interval.high, MAX_LOG)))
        reason = _reason(*ends, margin, remedy)
        if drift:
            factor = math.exp(drift)
            shown = f"a factor of {factor:.2g}"
            if factor > MAX_SHOWN:
                shown = f"more than {MAX_SHOWN} times"
            elif factor < 2:
                shown = f"±{100 * (factor - 1):.2g} %"
            reason += f"; {shown} is the spread between measurements"
        compared = cls(
            ratio=math.exp(interval.center),
            ci95=ends,
            verdict=_verdict_of(*ends, margin),
            reason=reason,
            pairs=count,
            margin=margin,
            p_value=_p_value(interval, math.log1p(margin), halves_in_ranks),
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

    @property
    def shown_ratio(self) -> float:
        """`ratio`, or the end of the interval nearer to 1 if only a bound is known."""
        if not self.is_bound:
            return self.ratio
        return min(self.ci95) if self.ratio > 1 else max(self.ci95)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the ratio; None if unknown, or if only a bound is known."""
        return None if self.is_bound or self.ci95 == UNKNOWN else self.ci95

    @property
    def bound(self) -> str:
        """What to print before `shown_ratio`: `at least `, `at most ` or nothing."""
        if not self.is_bound:
            return ""
        return "at least " if self.ratio > 1 else "at most "

    def unsure(self, reason: str) -> Comparison:
        return replace(
            self, verdict=UNSURE, reason=self.reason + reason, p_value=1.0, is_bound=False
        )


def _p_value(interval: Interval, margin: float, halves_in_ranks: float) -> float:
    """Return `Comparison.p_value`; for heavy tails, the samples between center and margin count
    too.
    """
    center = interval.center
    distance = abs(center) - margin
    if distance <= 0:
        return 1.0
    from scipy.special import stdtr

    half = center - interval.low if center > 0 else interval.high - center
    halves = min(distance / half if half > 0 else math.inf, halves_in_ranks)
    return float(2 * stdtr(interval.degrees, -halves * student_t(interval.degrees)))


def is_beyond_disturbance(ci95: tuple[float, float], margin: float) -> bool:
    """Return whether a whole interval of ratios is further from 1 than interference with one side
    explains.
    """
    low, high = ci95
    return low > DISTURBANCE * (1 + margin) or high < 1 / (DISTURBANCE * (1 + margin))


def verdict_of(low: float, high: float, margin: float, pairs: int) -> str:
    """Return the verdict on an interval of the ratio of the times of `pairs` pairs or samples.

    Fewer than `MIN_FOR_CORRELATION` do not show how neighbors correlate, so only a change beyond
    any interference gets a verdict. Without this rule, 10 % of simulated comparisons of 14 pairs
    were FASTER or SLOWER whose neighbors correlate by 0.8 and whose true change is at the margin.
    """
    is_enough = pairs >= MIN_FOR_CORRELATION or (
        pairs >= MIN_PAIRS and is_beyond_disturbance((low, high), margin)
    )
    return _verdict_of(low, high, margin) if is_enough else UNSURE


def _verdict_of(low: float, high: float, margin: float) -> str:
    if high < 1 / (1 + margin):
        return FASTER
    if low > 1 + margin:
        return SLOWER
    return SAME if low >= 1 / (1 + margin) and high <= 1 + margin else UNSURE


def _reason(low: float, high: float, margin: float, remedy: str) -> str:
    verdict = _verdict_of(low, high, margin)
    upper = f"{100 * (high - 1):+.2f} %" if high <= MAX_SHOWN else f"more than {MAX_SHOWN} times"
    between = f"time {100 * (low - 1):+.2f} % to {upper}"
    allowed = f"the margin of {100 * margin:g} %"
    if verdict in (FASTER, SLOWER):
        return f"{between}: all of it beyond {allowed}"
    if verdict == SAME:
        return f"{between}: all of it within {allowed}"
    if high > TOO_NOISY * low:
        return f"too noisy; {remedy}"
    if low > 1 or high < 1:
        return f"{between}: different, but possibly within {allowed}; {remedy}"
    return f"{between}: wider than {allowed}, possibly no difference; {remedy}"


def geometric_mean(comparisons: Sequence[Comparison]) -> tuple[float, tuple[float, float]] | None:
    """Return the geometric mean of the ratios with its 95 % interval; None if no row has an
    interval, or if only a bound of a ratio is known.

    The interval covers the errors of the rows, not the differences between rows. Rows without an
    interval are left out.

    Source: Fleming and Wallace, How not to lie with statistics: the correct way to summarize
    benchmark results, CACM 29 (1986) 218; for the interval see `compare_sides`.
    """
    known = [compared for compared in comparisons if compared.ci95 != UNKNOWN]
    if not known or any(compared.is_bound for compared in comparisons):
        return None
    count = len(known)
    center = math.fsum(math.log(compared.ratio) for compared in known) / count
    shared = math.fsum(compared.drift for compared in known) / count

    def reach(end: int) -> float:
        squares = [math.log(row.ci95[end] / row.ratio) ** 2 - row.drift**2 for row in known]
        return math.hypot(
            math.sqrt(math.fsum(max(0.0, square) for square in squares)) / count, shared
        )

    return math.exp(center), (math.exp(center - reach(0)), math.exp(center + reach(1)))


def holm(p_values: Sequence[float], family_error: float = 0.05) -> list[bool]:
    """Return whether each hypothesis is rejected; `family_error` is the maximum probability of any
    false rejection.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian J.
    Statistics 6 (1979) 65.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    rejected = [False] * len(p_values)
    for rank, index in enumerate(order):
        if not p_values[index] <= family_error / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def benjamini_hochberg(p_values: Sequence[float], false_share: float) -> list[bool]:
    """Return whether each hypothesis is rejected; `false_share` is the maximum expected fraction of
    wrong ones among the rejected.

    Source: Benjamini and Hochberg, Controlling the false discovery rate, J. R. Stat. Soc. B 57
    (1995) 289.
    """
    step = false_share / max(1, len(p_values))
    passing = [p for rank, p in enumerate(sorted(p_values), start=1) if p <= step * rank]
    limit = max(passing, default=-1.0)
    return [p <= limit for p in p_values]


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
