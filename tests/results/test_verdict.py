"""Verdicts on pairs of series: right as often as they claim on simulated machines, and in plain
words.
"""

import math
from collections import Counter
from statistics import median

import numpy as np
import pytest
from correlated import autoregressive
from scipy import stats

from results.stats.comparison import (
    FASTER,
    MIN_PAIRS,
    SAME,
    SLOWER,
    UNSURE,
    Comparison,
    compare_pairs,
    judge_rounds,
    smallest_detectable_change,
    verdict_of,
    with_holm,
)
from results.stats.samples import Interval

TRIALS = 300


def noise_of(random, count, sigma, correlation):
    values = random.normal(size=count)
    for i in range(1, count if correlation else 0):
        values[i] = correlation * values[i - 1] + math.sqrt(1 - correlation**2) * values[i]
    return np.exp(sigma * values)


def interleaved(seed, pairs, sigma, slowdown=1.0, drift=0.0, correlation=0.0, slow_share=0.0):
    """Return two series taken in turns, in random order within each pair, on a machine that drifts
    and wanders.
    """
    random = np.random.default_rng(seed)
    at = np.arange(2 * pairs)
    wander = 0.3 * drift * np.cumsum(random.normal(size=2 * pairs)) / math.sqrt(2 * pairs)
    level = 1 + drift * at / (2 * pairs) + wander
    second = random.integers(0, 2, size=pairs)
    series = []
    for turn, factor in ((second, 1.0), (1 - second, slowdown)):
        slow = 1 + 0.05 * (random.random(pairs) < slow_share)
        series.append(
            1e-3
            * factor
            * level[2 * np.arange(pairs) + turn]
            * noise_of(random, pairs, sigma, correlation)
            * slow
        )
    return series[0].tolist(), series[1].tolist()


def verdicts(trials=TRIALS, margin=0.01, **machine):
    return Counter(
        compare_pairs(*interleaved(seed, **machine), margin=margin).verdict
        for seed in range(trials)
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sigma", [0.005, 0.01, 0.03, 0.05])
@pytest.mark.parametrize(
    "machine",
    [{}, {"drift": 0.05}, {"drift": 0.05, "correlation": 0.3}, {"drift": 0.05, "slow_share": 0.4}],
    ids=["steady", "drifts", "drifts, correlated", "drifts, bimodal"],
)
@pytest.mark.parametrize("pairs", [30, 200])
def test_the_same_code_twice_is_hardly_ever_called_different(sigma, machine, pairs):
    found = verdicts(sigma=sigma, pairs=pairs, **machine)
    assert found[FASTER] + found[SLOWER] <= 0.05 * TRIALS


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("sigma", "pairs"), [(0.005, 100), (0.01, 200), (0.02, 500)])
def test_same_code_is_same_with_enough_pairs(sigma, pairs):
    assert verdicts(sigma=sigma, pairs=pairs, drift=0.05)[SAME] >= 0.95 * TRIALS


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("slowdown", "sigma", "pairs"),
    [(1.02, 0.01, 200), (1.1, 0.05, 100), (1.02, 0.002, 30)],
    ids=str,
)
@pytest.mark.parametrize(
    "machine", [{}, {"drift": 0.05}, {"drift": 0.05, "correlation": 0.3}], ids=str
)
def test_a_true_change_is_found_both_ways(slowdown, sigma, pairs, machine):
    assert verdicts(slowdown=slowdown, sigma=sigma, pairs=pairs, **machine)[SLOWER] >= 0.95 * TRIALS
    assert (
        verdicts(slowdown=1 / slowdown, sigma=sigma, pairs=pairs, **machine)[FASTER]
        >= 0.95 * TRIALS
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("drift", [0.0, 0.05])
def test_95_percent_of_the_intervals_hold_the_true_ratio(drift):
    held = 0
    for seed in range(1000):
        low, high = compare_pairs(
            *interleaved(seed, pairs=100, sigma=0.02, slowdown=1.05, drift=drift)
        ).ci95
        held += low <= 1.05 <= high
    assert 930 <= held <= 970


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "machine", [{"sigma": 0.01, "pairs": 100}, {"sigma": 0.03, "pairs": 200}], ids=str
)
def test_smallest_detectable_change_is_detected_but_not_a_third(machine):
    percents = [
        smallest_detectable_change(*interleaved(seed + 5000, **machine)) for seed in range(50)
    ]
    percent = median(percents)
    assert max(percents) < 2 * min(percents)
    assert verdicts(slowdown=1 + percent / 100, **machine)[SLOWER] >= 0.9 * TRIALS
    assert verdicts(slowdown=1 + percent / 300, **machine)[SLOWER] <= 0.2 * TRIALS


@pytest.mark.parametrize(
    ("ratio", "verdict", "reason"),
    [
        (1.0, SAME, "time +0.00 % to +0.00 %: all of it within the margin of 1 %"),
        (1.0099, SAME, "time +0.99 % to +0.99 %: all of it within the margin of 1 %"),
        (1.0101, SLOWER, "time +1.01 % to +1.01 %: all of it beyond the margin of 1 %"),
        (2.0, SLOWER, "time +100.00 % to +100.00 %: all of it beyond the margin of 1 %"),
        (0.9902, SAME, "time -0.98 % to -0.98 %: all of it within the margin of 1 %"),
        (0.99, FASTER, "time -1.00 % to -1.00 %: all of it beyond the margin of 1 %"),
    ],
)
def test_the_margin_parts_the_verdicts(ratio, verdict, reason):
    found = compare_pairs([2.0] * 20, [2.0 * ratio] * 20, margin=0.01)
    assert found.ratio == pytest.approx(ratio)
    assert found.ci95 == pytest.approx((ratio, ratio))
    assert (found.verdict, found.reason, found.pairs, found.margin) == (verdict, reason, 20, 0.01)


@pytest.mark.parametrize(
    ("low", "high", "pairs", "verdict"),
    [
        (0.5, 1 / 1.01, 50, UNSURE),
        (0.5, 0.99, 50, FASTER),
        (1.01, 2.0, 50, UNSURE),
        (1.0101, 2.0, 50, SLOWER),
        (1 / 1.01, 1.01, 50, SAME),
        (0.99, 1.01, 50, UNSURE),
        (1 / 1.01, 1.0101, 50, UNSURE),
        (1.5, 2.0, 15, SLOWER),
        (1.5, 2.0, 14, UNSURE),
        (2.03, 3.0, 6, SLOWER),
        (2.02, 3.0, 6, UNSURE),
        (2.03, 3.0, 5, UNSURE),
        (0.3, 0.49, 6, FASTER),
        (0.3, 1 / 2.02, 6, UNSURE),
    ],
)
def test_verdicts_at_their_limits(low, high, pairs, verdict):
    assert verdict_of(low, high, 0.01, pairs) == verdict


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.8, 1.0, "wider than the margin"),
        (1.0, 1.2, "wider than the margin"),
        (0.8, 0.999, "different, but possibly within"),
        (1.001, 1.2, "different, but possibly within"),
        (0.5, 2.0, "wider than the margin"),
        (0.5, 2.002, "too noisy; more samples may decide"),
        (2.0, 99.9, "time +100.00 % to +9890.00 %: all of it beyond"),
        (2.0, 100.1, "time +100.00 % to more than 100 times: all of it beyond"),
    ],
)
def test_reasons_at_their_limits(low, high, words):
    assert words in Comparison.of(Interval(0.0, math.log(low), math.log(high), 9), 50, 0.01).reason


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.017, "±1.7 % is"),
        (0.99, "±99 % is"),
        (4.1, "a factor of 5.1 is"),
        (1e100, "a factor above 100 is"),
    ],
)
def test_a_large_spread_is_a_factor(share, words):
    interval = Interval(0.0, -9.0, 9.0, 9)
    reason = Comparison.of(interval, 50, 0.01, drift=math.log1p(share)).reason
    assert f"; {words}" in reason
    assert reason.endswith("the spread between measurements")


@pytest.mark.parametrize(("p_value", "verdict"), [(0.0099, SLOWER), (0.0101, UNSURE)])
def test_a_verdict_has_at_most_one_percent_of_chance(p_value, verdict):
    """20 degrees: the center is that many half widths beyond the margin, of 2.086 deviates each."""
    half = 0.01
    center = math.log(1.01) + half * stats.t.isf(p_value / 2, 20) / stats.t.isf(0.025, 20)
    for sign, name in ((1, verdict), (-1, FASTER if verdict == SLOWER else UNSURE)):
        row = Comparison.of(
            Interval(sign * center, sign * center - half, sign * center + half, 20), 50, 0.01
        )
        assert row.p_value == pytest.approx(p_value)
        assert [found.verdict for found in with_holm([row])] == [name]


def test_the_interval_of_a_hopeless_comparison_is_finite():
    assert Comparison.of(Interval(0.0, -900.0, 900.0, 20), 50, 0.01).ci95 == (0.0, math.exp(700))


def test_comparisons_that_chance_explains_are_unsure_in_a_table():
    sure = Comparison.of(Interval(0.5, 0.4, 0.6, 30), 50, 0.01)
    faster = Comparison.of(Interval(-0.5, -0.6, -0.4, 30), 50, 0.01)
    doubtful = Comparison.of(Interval(0.03, 0.011, 0.05, 30), 50, 0.01)
    same = Comparison.of(Interval(0.0, -0.001, 0.001, 30), 50, 0.01)
    table = with_holm([sure, doubtful, same, faster])
    assert [row.verdict for row in table] == [SLOWER, UNSURE, SAME, FASTER]
    assert table[1].p_value == 1.0
    assert "possibly by chance among 4 rows" in table[1].reason


@pytest.mark.parametrize(
    ("count", "ratio", "verdict"),
    [(14, 1.0, UNSURE), (14, 1.5, UNSURE), (14, 3.0, SLOWER), (15, 1.5, SLOWER)],
)
def test_fewer_than_15_pairs_show_no_correlation_and_get_no_verdict(count, ratio, verdict):
    found = compare_pairs([2.0] * count, [2.0 * ratio] * count)
    assert found.verdict == verdict
    assert ("14 pairs are too few to estimate their correlation" in found.reason) is (
        verdict == UNSURE
    )


@pytest.mark.parametrize("pairs", range(1, MIN_PAIRS))
def test_too_few_pairs_are_never_sure(pairs):
    found = compare_pairs([1.0] * pairs, [2.0] * pairs)
    assert found.verdict == UNSURE
    assert found.reason == f"only {pairs} pair{'' if pairs == 1 else 's'} of at least 6"
    with pytest.raises(ValueError, match=f"expected at least 6 pairs, got {pairs}"):
        smallest_detectable_change([1.0] * pairs, [2.0] * pairs)


def test_the_ratio_is_that_of_the_pairs():
    # A machine that slows down sevenfold, between the pairs.
    baseline = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    ratios = [2.0, 2.0, 2.0, 1.1, 1.1, 1.1, 1.1]
    found = compare_pairs(
        baseline, [time_s * ratio for time_s, ratio in zip(baseline, ratios, strict=True)]
    )
    assert found.ratio == pytest.approx(1.1)  # the medians alone stand at 5.5 to 4
    assert found.ci95 == pytest.approx((1.1, 2.0))


def test_exchanging_the_series_exchanges_everything():
    baseline, candidate = interleaved(4, pairs=81, sigma=0.01, slowdown=1.03)
    there, back = compare_pairs(baseline, candidate, 0.01), compare_pairs(candidate, baseline, 0.01)
    assert (there.verdict, back.verdict) == (SLOWER, FASTER)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.ci95 == pytest.approx((1 / there.ci95[1], 1 / there.ci95[0]), rel=2e-3)


def test_strongly_correlated_rounds_are_too_few():
    # One swing in all of them.
    slow = [math.exp(0.3 + 0.05 * math.sin(place / 8)) for place in range(20)]
    found = compare_pairs([1.0] * 20, slow)
    assert (found.verdict, found.p_value) == (UNSURE, 1.0)
    assert found.reason.endswith("20 pairs that resemble their neighbors are too few")
    mixed = np.random.default_rng(1).permutation(slow).tolist()
    assert compare_pairs([1.0] * 20, mixed).verdict == SLOWER


@pytest.mark.parametrize(("seed", "is_too_few"), [(1, True), (3, True), (4, False)])
def test_rounds_are_too_few_if_their_interval_needs_more(seed, is_too_few):
    """The half width in ranks is somewhat more or somewhat less than half of all ranks."""
    (noise,) = autoregressive(np.random.default_rng(seed), 1, 20, 0.7)
    found = compare_pairs([1.0] * 20, np.exp(0.3 + 0.02 * noise).tolist())
    assert (found.verdict, "are too few" in found.reason) == (
        (UNSURE, True) if is_too_few else (SLOWER, False)
    )


def test_contradicting_rounds_raise_the_p_value_of_a_narrow_interval():
    """Three quarters of the rounds agree to a hair, and the others find nothing."""
    most = np.random.default_rng(0).permutation([1.03] * 44 + [1.0] * 16).tolist()
    p_values = [
        judge_rounds([1.0] * 60, ratios, 0.01).p_value for ratios in (most, [1.03, 1.031] * 30)
    ]
    assert p_values[1] < 1e-6
    assert p_values[0] > 0.01
    assert judge_rounds([1.0] * 60, most, 0.01).ci95 == pytest.approx((1.03, 1.03))


@pytest.mark.parametrize(
    ("ratios", "verdict", "ratio", "reason"),
    [
        ([1.001] * 80, UNSURE, 1.001, "within the margin of 1 %, but waiting in both times hides"),
        ([1.2] * 80, SLOWER, 1.2, "time at least 20.00 % longer: beyond the margin of 1 % in each"),
        ([0.75] * 80, FASTER, 0.75, "time at least 25.00 % shorter: beyond"),
        ([1.0, 1.2, 1.2] * 14 + [1.2] * 38, UNSURE, 1.2, "but not in each half of the rounds"),
        ([1.2] * 28, UNSURE, 1.2, "but 28 disturbed rounds are too few"),
    ],
)
def test_disturbed_rounds_bound_a_difference_that_both_halves_show(ratios, verdict, ratio, reason):
    """Without interference, each of these series has a verdict of its own."""
    assert judge_rounds([1.0] * len(ratios), ratios, 0.01).verdict != UNSURE
    found = judge_rounds([1.0] * len(ratios), ratios, 0.01, is_disturbed=True)
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(ratio)
    assert reason in found.reason
    assert bool(found.bound) == (verdict != UNSURE)


def test_the_bound_of_disturbed_rounds_is_the_end_nearer_to_1():
    ratios = [1.2, 1.3] * 40
    slower = judge_rounds([1.0] * 80, ratios, 0.01, is_disturbed=True)
    faster = judge_rounds(ratios, [1.0] * 80, 0.01, is_disturbed=True)
    assert (slower.bound, faster.bound) == ("at least ", "at most ")
    low, high = slower.ci95
    assert low < high
    assert f"time at least {100 * (low - 1):.2f} % longer" in slower.reason
    assert f"time at least {100 * (1 - 1 / low):.2f} % shorter" in faster.reason
    unsure = slower.unsure(", but possibly by chance")
    assert unsure.bound == ""
