"""How one version stands to another: the ratio of their times, its interval, a verdict with its reason.

Whatever the way to the interval, from pairs or from two medians, the verdict is found here, and so is what holds for
many comparisons at once: the correction for their number, their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.stats.samples import LEAST_CORRELATED, student_t

DEFAULT_MARGIN = 0.01
"""Change of the time below which two versions count as equally fast."""

LEAST_PAIRS = 6
"""With fewer pairs, even their whole range holds the true median in less than 95 % of cases: 1 - 2 / 2^n."""

FAMILY_ERROR = 0.05
"""How often one or more of many hypotheses that all hold may be rejected."""

VERDICT_ERROR = 0.01
"""How often one or more of all rows may be called FASTER or SLOWER though none of them is. An interval of 95 % alone
would call one of twenty rows so whose margin lies within their noise, as on a busy machine."""

DISTURBANCE = 2.0
"""Times by which a disturbed measurement may be off. Beside another thread that is as busy, a thread has half of its
core; a GPU in hardware slowdown halves its clock.

Source: NVIDIA, NVML API reference, clocks event reasons: hardware slowdown reduces the clocks by a factor of 2 or more.
"""

UNKNOWN = (0.0, math.inf)
"""The interval of a ratio of which nothing is known."""

MAX_LOG = 700.0
"""Largest logarithm of a ratio whose exponential is a float."""

MORE_SAMPLES = "more samples would tell"
"""What helps where an interval is too wide."""

FASTER, SLOWER, SAME, UNSURE = "FASTER", "SLOWER", "SAME", "UNSURE"


@dataclass(frozen=True)
class Comparison:
    """How the times of a candidate stand to those of a baseline."""

    ratio: float
    """Candidate over baseline: above 1 the candidate is slower."""
    ci95: tuple[float, float]
    verdict: str
    """`FASTER` or `SLOWER`: the whole interval is beyond the margin; `SAME`: all of it is within; else `UNSURE`."""
    reason: str
    pairs: int
    """Interleaved pairs of samples; of series that were not interleaved, the samples of the shorter one."""
    margin: float
    p_value: float = 1.0
    """How likely a change within the margin would look so large by chance, in either direction; not yet corrected for
    how many rows are looked at. It is 0.05 where the interval touches the margin."""
    drift: float = 0.0
    """Half width, in logarithms, of the part of the interval that is for drift between two windows. Rows of the same
    two windows share it, so that it does not shrink in a mean of rows."""
    degrees: float = 1.0
    """Degrees of freedom behind the interval."""


def judged(
    center: float,
    low: float,
    high: float,
    degrees: float,
    count: int,
    margin: float,
    unit: str = "sample",
    drift: float = 0.0,
    remedy: str = MORE_SAMPLES,
    note: str = "",
    is_too_narrow: bool = False,
    halves_in_ranks: float = math.inf,
) -> Comparison:
    """Return what an interval in logarithms means.

    Args:
        center: logarithm of the ratio.
        low: lower end of its interval.
        high: upper end.
        degrees: degrees of freedom behind the interval.
        count: samples of the shorter side, or pairs.
        margin: as a fraction.
        unit: what is counted, a word for one of them.
        drift: half width of what the interval holds for drift, see `Comparison`.
        remedy: what would narrow the interval, in words.
        note: what else the reason is to say.
        is_too_narrow: whether the samples correlate so much that even their whole range is too narrow an interval.
        halves_in_ranks: how many half widths of the interval lie between center and margin, counted in samples.
    """
    ends = (math.exp(low), math.exp(min(high, MAX_LOG)))
    verdict = verdict_of(*ends, margin, count)
    p_value = _p_value(center, low, high, degrees, math.log1p(margin), halves_in_ranks)
    reason = _reason(*ends, margin, remedy) + note
    if count < LEAST_PAIRS:
        p_value, reason = 1.0, f"only {count} {unit}{'s' * (count != 1)}: {LEAST_PAIRS} or more can tell"
    elif is_too_narrow and not is_beyond_disturbance(ends, margin):
        verdict, p_value = UNSURE, 1.0
        reason += f"; the interval is too narrow: each {unit} resembles the one before it, and {count} are too few"
    elif verdict != _verdict_of(*ends, margin):
        p_value, reason = 1.0, f"{reason}, but {count} {unit}s are too few to know how they correlate"
    return Comparison(math.exp(center), ends, verdict, reason, count, margin, p_value, drift, degrees)


def _p_value(center: float, low: float, high: float, degrees: float, margin: float, halves_in_ranks: float) -> float:
    """Return the probability of so large a ratio, in either direction, where the true one is at the margin.

    Tails that are heavier than normal ones reach further than the width of the interval tells, so that the samples
    between center and margin count too.
    """
    distance, half = (center - margin, center - low) if center > 0 else (-margin - center, high - center)
    if distance <= 0:
        return 1.0
    from scipy.special import stdtr

    halves = min(distance / half if half > 0 else math.inf, halves_in_ranks)
    return float(2 * stdtr(degrees, -halves * student_t(degrees)))  # 0.05 where the interval touches the margin


def is_beyond_disturbance(ci95: tuple[float, float], margin: float) -> bool:
    """Return whether all of an interval of ratios is further from 1 than a disturbance of one side can explain."""
    low, high = ci95
    return low > DISTURBANCE * (1 + margin) or high < 1 / (DISTURBANCE * (1 + margin))


def verdict_of(low: float, high: float, margin: float, pairs: int) -> str:
    """Return the verdict on an interval of the ratio of the times of `pairs` pairs or samples.

    Fewer than `LEAST_CORRELATED` of them do not show how neighbors correlate, so only a change that no disturbance
    explains gets a verdict. 10 % of simulated comparisons of 14 pairs, with neighbors that correlate by 0.8 and the
    true change at the margin, were called FASTER or SLOWER without this rule.
    """
    is_enough = pairs >= LEAST_CORRELATED or (pairs >= LEAST_PAIRS and is_beyond_disturbance((low, high), margin))
    return _verdict_of(low, high, margin) if is_enough else UNSURE


def _verdict_of(low: float, high: float, margin: float) -> str:
    if high < 1 / (1 + margin):
        return FASTER
    if low > 1 + margin:
        return SLOWER
    return SAME if low >= 1 / (1 + margin) and high <= 1 + margin else UNSURE


def _reason(low: float, high: float, margin: float, remedy: str) -> str:
    """Return where an interval is, in one sentence."""
    verdict = _verdict_of(low, high, margin)
    between = f"time {100 * (low - 1):+.2f} % to {100 * (high - 1):+.2f} %"
    allowed = f"the margin of {100 * margin:g} %"
    if verdict in (FASTER, SLOWER):
        return f"{between}: all of it beyond {allowed}"
    if verdict == SAME:
        return f"{between}: all of it within {allowed}"
    if low > 1 or high < 1:
        return f"{between}: different, but perhaps by less than {allowed}; {remedy}"
    return f"{between}: wider than {allowed}, and perhaps not different at all; {remedy}"


def geometric_mean(comparisons: Sequence[Comparison]) -> tuple[float, tuple[float, float]] | None:
    """Return the geometric mean of the ratios with its 95 % interval; None where no row has an interval.

    It is the mean of these rows and of no others: the interval holds how far each was off, not how rows differ. What an
    interval holds for drift is taken to be the same in all rows, as they are of the same two windows of time. Rows
    without an interval are left out.

    Source: Fleming and Wallace, How not to lie with statistics: the correct way to summarize benchmark results, CACM 29
        (1986) 218; for the interval, as of `compare_sides`.
    """
    known = [compared for compared in comparisons if compared.ci95 != UNKNOWN]
    if not known:
        return None
    count = len(known)
    center = math.fsum(math.log(compared.ratio) for compared in known) / count
    shared = math.fsum(compared.drift for compared in known) / count

    def reach(end: int) -> float:
        squares = [math.log(one.ci95[end] / one.ratio) ** 2 - one.drift**2 for one in known]
        return math.hypot(math.sqrt(math.fsum(max(0.0, square) for square in squares)) / count, shared)

    return math.exp(center), (math.exp(center - reach(0)), math.exp(center + reach(1)))


def holm(p_values: Sequence[float], family_error: float = FAMILY_ERROR) -> list[bool]:
    """Return for each hypothesis whether it is rejected, so that any false rejection at all has a small probability.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian J. Statistics 6 (1979) 65.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    rejected = [False] * len(p_values)
    for rank, place in enumerate(order):
        if not p_values[place] <= family_error / (len(p_values) - rank):
            break
        rejected[place] = True
    return rejected


def with_holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of one table: FASTER and SLOWER only where that holds among so many rows, else UNSURE."""
    confirmed = holm([compared.p_value for compared in comparisons], VERDICT_ERROR)
    among = f" among {len(comparisons):,} rows" if len(comparisons) > 1 else ""
    return [
        replace(compared, verdict=UNSURE, reason=f"{compared.reason}, but that may be chance{among}")
        if compared.verdict in (FASTER, SLOWER) and not holds
        else compared
        for compared, holds in zip(comparisons, confirmed, strict=True)
    ]


def check_times(times_s: Sequence[float]) -> None:
    """Raise ValueError for a time that is not finite and above 0."""
    for time_s in times_s:
        if not (time_s > 0 and math.isfinite(time_s)):
            raise ValueError(f"a time must be above 0, found {time_s!r}")


def check_margin(margin: float) -> None:
    """Raise ValueError for a margin that is no fraction from 0 up."""
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"the margin must be a fraction from 0 up, found {margin:g}")
