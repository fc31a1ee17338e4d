"""Is one series of times longer than another? Two interleaved series, a ratio with its interval, a verdict in words.

Sample i of one series and sample i of the other were taken one right after the other, so that whatever the machine did
meanwhile is in both. The ratio is taken within each pair, where it cancels, and the median of the ratios is judged.
Series that were not interleaved are compared by `results.stats.unpaired.compare_sides`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from results.stats.comparison import (
    DEFAULT_MARGIN,
    LEAST_PAIRS,
    UNSURE,
    Comparison,
    check_margin,
    check_times,
    judged,
)
from results.stats.samples import LEAST_CORRELATED, Z_975, Interval, interval_of_median

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

MOST_TIMES_LONGER = 100.0
"""A comparison that needs so many times longer is too near the margin to be told."""


def compare_pairs(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float = DEFAULT_MARGIN
) -> Comparison:
    """Return the ratio of two interleaved series, with its interval and what it means.

    With the series exchanged, everything is exchanged: the ratio is the inverse, FASTER is SLOWER.

    Args:
        baseline_s: times in the order taken, any unit.
        candidate_s: times in the same unit; each right before or after the baseline's of the same place.
        margin: change of the time, as a fraction, that does not matter: 0.01 is from 1 / 1.01 to 1.01.

    Raises:
        ValueError: no pairs, unequal lengths, a time that is not above 0, or a margin that is no fraction from 0 up.

    Source: Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013, for a ratio with its interval
        instead of a test; Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987) 657, for an equivalence that
        must be shown like a difference.
    """
    return _judged_pairs(baseline_s, candidate_s, margin, 1.0, "pair")


def judge_rounds(
    baseline_s: Sequence[float],
    candidate_s: Sequence[float],
    margin: float,
    is_fixed: bool = False,
) -> Comparison:
    """Return the comparison of two series of rounds; its interval may have been looked at after any doubling of them.

    Args:
        baseline_s: one time a round.
        candidate_s: likewise, of the same rounds.
        margin: change of the time, as a fraction, that does not matter.
        is_fixed: whether the count of rounds was set beforehand, so that there was one look.

    Raises:
        ValueError: as `compare_pairs`.
    """
    widening = 1.0 if is_fixed else LOOKING_FOR_A_VERDICT
    return _judged_pairs(baseline_s, candidate_s, margin, widening, "round")


def _judged_pairs(
    baseline_s: Sequence[float],
    candidate_s: Sequence[float],
    margin: float,
    widening: float,
    unit: str,
) -> Comparison:
    check_margin(margin)
    ratios = _log_ratios(baseline_s, candidate_s)
    found = interval_of_median(ratios, widening)
    is_too_narrow = found.share_needed > 1 and len(ratios) >= LEAST_CORRELATED
    return judged(
        *(found.center, found.low, found.high, found.degrees, len(ratios), margin, unit),
        is_too_narrow=is_too_narrow,
        halves_in_ranks=_halves_in_ranks(ratios, found, math.log1p(margin)),
    )


def _halves_in_ranks(ratios: Sequence[float], found: Interval, edge: float) -> float:
    """Return how many half widths of an interval lie between center and margin, counted in samples.

    Where all samples are beyond the margin it is infinite: how many they are does not limit what their distance tells.
    """
    sign = math.copysign(1, found.center)
    within = sum(sign * ratio <= edge for ratio in ratios)
    return (1 - 2 * within / len(ratios)) / found.share_needed if within else math.inf


def times_longer(compared: Comparison) -> float | None:
    """Return how many times as many rounds would make an UNSURE verdict clear; None: more than it is worth.

    The half width of an interval goes with one over the square root of the rounds.
    """
    if compared.verdict != UNSURE or compared.pairs < LEAST_PAIRS:
        return None
    low, high = (math.log(end) for end in compared.ci95)
    gap = abs(abs(math.log(compared.ratio)) - math.log1p(compared.margin))
    longer = ((high - low) / 2 / gap) ** 2 if gap else math.inf
    return max(1.0, longer) if longer <= MOST_TIMES_LONGER else None


def smallest_detectable_change(
    baseline_s: Sequence[float], candidate_s: Sequence[float], margin: float = DEFAULT_MARGIN
) -> float:
    """Return the change of the time, in percent, that as many pairs of this noise would show.

    So large a slowdown is called SLOWER in about 95 % of comparisons: the lower end of its interval lies beyond the
    margin even where its middle falls short of the truth by 1.64 standard errors. The ratio of the two series does not
    count, only how far it scatters.

    Args:
        baseline_s: times in the order taken.
        candidate_s: times of the same work, interleaved.
        margin: change of the time, as a fraction, that does not matter.

    Raises:
        ValueError: as for `compare_pairs`, or fewer than `LEAST_PAIRS` pairs.
    """
    compared = compare_pairs(baseline_s, candidate_s, margin)
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
    check_times((*baseline_s, *candidate_s))
    return [math.log(candidate / baseline) for baseline, candidate in zip(baseline_s, candidate_s, strict=True)]
