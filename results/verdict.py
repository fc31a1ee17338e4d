"""Is one series of times longer than another? Two interleaved series, a ratio with its interval, a verdict in words.

Sample i of one series and sample i of the other were taken one right after the other, so that whatever the machine did
meanwhile is in both. The ratio is taken within each pair, where it cancels, and the median of the ratios is judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from results.stats import Z_975, median, median_ci95

DEFAULT_MARGIN = 0.01
"""Change of the time below which two versions count as equally fast."""

LEAST_PAIRS = 6
"""With fewer pairs, even their whole range holds the true median in less than 95 % of cases: 1 - 2 / 2^n."""

DETECTION = 0.95
"""How often the smallest detectable change is to be found."""

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
    margin: float


def compare_pairs(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float = DEFAULT_MARGIN, seed: int = 0
) -> Comparison:
    """Return the ratio of two interleaved series, with its interval and what it means.

    The interval is that of `median_ci95` over the ratios of the pairs: a block bootstrap that keeps pairs together.
    With the series exchanged, everything is exchanged: the ratio is the inverse, FASTER is SLOWER.

    Args:
        baseline_s: times in the order taken, any unit.
        candidate_s: times in the same unit; each right before or after the baseline's of the same place.
        margin: change of the time, as a fraction, that does not matter: 0.01 is from 1 / 1.01 to 1.01.
        seed: of the bootstrap.

    Raises:
        ValueError: no pairs, unequal lengths, a time that is not above 0, or a margin that is no fraction from 0 up.

    Source: Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013, for a ratio with its interval
        instead of a test; Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987) 657, for an equivalence that
        must be shown like a difference.
    """
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"the margin must be a fraction from 0 up, found {margin:g}")
    ratios = _log_ratios(baseline_s, candidate_s)
    ratio = math.exp(median(ratios))
    low, high = (math.exp(end) for end in median_ci95(ratios, seed))
    verdict = _verdict(low, high, margin, len(ratios))
    return Comparison(
        ratio, (low, high), verdict, _reason(verdict, low, high, margin, len(ratios)), len(ratios), margin
    )


def smallest_detectable_change(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float = DEFAULT_MARGIN, seed: int = 0
) -> float:
    """Return the change of the time, in percent, that as many pairs of this noise would show.

    So large a slowdown is called SLOWER in about 95 % of comparisons: the lower end of its interval lies beyond the
    margin even where its middle falls short of the truth by 1.64 standard errors. The ratio of the two series does not
    count, only how far it scatters.

    Args:
        baseline_s: times in the order taken.
        candidate_s: times of the same work, interleaved.
        margin: change of the time, as a fraction, that does not matter.
        seed: of the bootstrap.

    Raises:
        ValueError: as for `compare_pairs`, or fewer than `LEAST_PAIRS` pairs.
    """
    compared = compare_pairs(baseline_s, candidate_s, margin, seed)
    if compared.pairs < LEAST_PAIRS:
        raise ValueError(f"{compared.pairs} pairs tell nothing about noise, {LEAST_PAIRS} or more do")
    low, high = compared.ci95
    half = math.log(high / low) / 2
    shortfall = NormalDist().inv_cdf(DETECTION) / Z_975 * half
    return 100 * ((1 + margin) * math.exp(half + shortfall) - 1)


def _log_ratios(baseline_s: Sequence[float], candidate_s: Sequence[float]) -> list[float]:
    """Return log(candidate / baseline) of each pair: in logarithms, twice as fast and twice as slow are alike."""
    if len(baseline_s) != len(candidate_s):
        raise ValueError(f"pairs need two series of one length, found {len(baseline_s)} and {len(candidate_s)} samples")
    if not baseline_s:
        raise ValueError("there are no pairs to compare")
    for time_s in (*baseline_s, *candidate_s):
        if not (time_s > 0 and math.isfinite(time_s)):
            raise ValueError(f"a time must be above 0, found {time_s!r}")
    return [math.log(candidate / baseline) for baseline, candidate in zip(baseline_s, candidate_s, strict=True)]


def _verdict(low: float, high: float, margin: float, pairs: int) -> str:
    if pairs < LEAST_PAIRS:
        return UNSURE
    if high < 1 / (1 + margin):
        return FASTER
    if low > 1 + margin:
        return SLOWER
    return SAME if low >= 1 / (1 + margin) and high <= 1 + margin else UNSURE


def _reason(verdict: str, low: float, high: float, margin: float, pairs: int) -> str:
    """Return why the verdict is what it is, in one sentence."""
    if pairs < LEAST_PAIRS:
        return f"only {pairs} pair{'s' * (pairs != 1)}: {LEAST_PAIRS} or more can tell"
    between = f"time {100 * (low - 1):+.2f} % to {100 * (high - 1):+.2f} %"
    allowed = f"the margin of {100 * margin:g} %"
    if verdict in (FASTER, SLOWER):
        return f"{between}: all of it beyond {allowed}"
    if verdict == SAME:
        return f"{between}: all of it within {allowed}"
    if low > 1 or high < 1:
        return f"{between}: different, but perhaps by less than {allowed}; more samples would tell"
    return f"{between}: wider than {allowed}, and perhaps not different at all; more samples would tell"
