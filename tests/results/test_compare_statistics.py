"""Verdicts on series that were not interleaved: as right as they claim on simulated machines, many
rows at once.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from results.stats.comparison import (
    FASTER,
    SLOWER,
    UNKNOWN,
    UNSURE,
    Comparison,
    compare_sides,
    geometric_mean,
    holm,
    side_of,
    with_holm,
)
from results.stats.samples import Interval, given_spread

TRIALS = 1000


def compare_many(rows, margin=0.01):
    """Return the comparisons of rows on a machine whose measurements of the same code do not
    differ.
    """
    return [
        compare_sides(side_of(before), side_of(after), margin, given_spread(0.0))
        for before, after in rows
    ]


def compare_windows(baseline, candidate, margin=0.01):
    return compare_many([(baseline, candidate)], margin)[0]


def compare_unpaired(baseline_s, candidate_s, margin=0.01):
    return compare_windows([baseline_s], [candidate_s], margin)


def correlated(random, rows, count, correlation):
    values = random.normal(size=(rows, count))
    for at in range(1, count):
        values[:, at] = (
            correlation * values[:, at - 1] + math.sqrt(1 - correlation**2) * values[:, at]
        )
    return values


NOISE = {
    "normal": lambda random, rows, count: random.normal(size=(rows, count)),
    "one-sided": lambda random, rows, count: random.exponential(size=(rows, count)),
    "heavy-tailed": lambda random, rows, count: random.standard_t(3, size=(rows, count)),
    "correlated": lambda random, rows, count: correlated(random, rows, count, 0.3),
    "bimodal": lambda random, rows, count: (
        random.normal(size=(rows, count)) + 8 * (random.random((rows, count)) < 0.4)
    ),
}


def series(seed, sigma, count, slowdown=1.0, noise="normal", trials=TRIALS):
    """Return rows of a baseline and a candidate, each measured in one window."""
    random = np.random.default_rng(seed)
    sides = [
        factor * np.exp(sigma * NOISE[noise](random, trials, count))
        for factor in (1e-3, 1e-3 * slowdown)
    ]
    return [([before], [after]) for before, after in zip(*sides, strict=True)]


def verdicts(rows, margin=0.01):
    return Counter(row.verdict for row in compare_many(rows, margin))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("count", [100, 200])
def test_95_percent_of_the_intervals_hold_the_true_ratio(noise, count):
    compared = compare_many(series(1, 0.02, count, 1.05, noise))
    held = sum(low <= 1.05 <= high for low, high in (row.ci95 for row in compared))
    assert 930 <= held <= 980


@pytest.mark.sampled(4)
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("sigma", "count"), [(0.005, 30), (0.01, 30), (0.03, 30), (0.05, 200)])
def test_the_same_code_twice_is_hardly_ever_called_different(noise, sigma, count):
    found = verdicts(series(3, sigma, count, noise=noise))
    assert found[FASTER] + found[SLOWER] <= 0.05 * TRIALS


@pytest.mark.parametrize(("slowdown", "sigma"), [(1.02, 0.01), (1.1, 0.05)])
def test_a_true_change_is_found_both_ways(slowdown, sigma):
    assert verdicts(series(5, sigma, 120, slowdown))[SLOWER] >= 0.95 * TRIALS
    assert verdicts(series(6, sigma, 120, 1 / slowdown))[FASTER] >= 0.95 * TRIALS


def test_the_ratio_is_that_of_the_medians():
    found = compare_unpaired([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [6.0] * 9)
    assert found.ratio == pytest.approx(1.5)
    assert found.pairs == 7


@pytest.mark.parametrize("count", range(1, 6))
def test_too_few_samples_are_never_sure(count):
    found = compare_unpaired([1.0] * 100, [2.0] * count)
    assert (found.verdict, found.ci95, found.p_value) == (UNSURE, UNKNOWN, 1.0)
    assert found.reason == f"only {count} sample{'s' * (count > 1)} of at least 6"
    assert found.ratio == pytest.approx(2.0)


def test_fewer_than_15_samples_get_no_verdict():
    """Neighboring samples correlate, and so few do not show by how much."""
    few, enough = (compare_unpaired([1.0] * 40, [1.5] * count) for count in (14, 15))
    assert (few.verdict, enough.verdict) == (UNSURE, SLOWER)
    assert few.reason.endswith("14 samples are too few to estimate their correlation")


@pytest.mark.parametrize("degrees", [3.5, 8, 60])
def test_p_value_is_5_percent_if_the_interval_touches_the_margin(degrees):
    margin = math.log(1.01)
    above = Comparison.of(Interval(margin + 0.02, margin, margin + 0.05, degrees), 50, 0.01)
    below = Comparison.of(Interval(-margin - 0.02, -margin - 0.05, -margin, degrees), 50, 0.01)
    assert above.p_value == pytest.approx(0.05, rel=1e-6)
    assert below.p_value == pytest.approx(0.05, rel=1e-6)


def test_the_probability_is_that_of_student_s_distribution():
    # Twice as far from the margin as the interval reaches: t = 2 x 2.228 at 10 degrees, two-sided
    # 0.00122 by the table.
    margin, half = math.log(1.01), 0.01
    center = margin + 2 * half
    found = Comparison.of(Interval(center, center - half, center + half, 10), 50, 0.01)
    assert found.p_value == pytest.approx(0.00122, rel=0.005)


def test_holm_steps_down():
    """The example of four hypotheses: 0.01 <= 0.05/4, 0.015 <= 0.05/3, 0.03 > 0.05/2, so the rest
    stand.
    """
    assert holm([0.03, 0.01, 0.04, 0.015]) == [False, True, False, True]
    assert holm([0.05]) == [True]
    assert holm([]) == []
    assert holm([0.02, 0.02]) == [True, True]


def test_among_many_rows_a_weak_finding_is_chance():
    margin = math.log(1.01)
    weak = Comparison.of(Interval(margin + 0.0105, margin + 0.003, margin + 0.02, 100), 50, 0.01)
    weaker = Comparison.of(Interval(margin + 0.0105, margin + 0.001, margin + 0.02, 100), 50, 0.01)
    same = Comparison.of(Interval(0.0, -0.001, 0.001, 100), 50, 0.01)
    assert [row.verdict for row in with_holm([weak])] == [SLOWER]
    (alone,) = with_holm([weaker])  # its interval of 95 % alone lies beyond the margin
    assert (weaker.verdict, alone.verdict) == (SLOWER, UNSURE)
    assert alone.reason.endswith("beyond the margin of 1 %, but possibly by chance")
    found = with_holm([weak] + [same] * 9)
    assert found[0].verdict == UNSURE
    assert found[0].reason.endswith("but possibly by chance among 10 rows")
    assert found[1:] == [same] * 9


@pytest.mark.exhaustive
def test_tables_at_the_margin_rarely_have_a_false_row():
    """200 tables of 20 rows, each at the margin itself, where every single row would be wrong in
    2.5 % of cases.
    """
    compared = compare_many(series(15, 0.01, 60, 1.01, trials=4000))
    tables = [compared[start : start + 20] for start in range(0, 4000, 20)]
    alone = sum(any(row.verdict == SLOWER for row in table) for table in tables)
    together = sum(any(row.verdict == SLOWER for row in with_holm(table)) for table in tables)
    assert alone > 0.15 * len(tables)
    assert together <= 0.05 * len(tables)


def test_the_geometric_mean_and_its_interval():
    rows = [
        Comparison.of(
            Interval(math.log(ratio), math.log(ratio) - 0.03, math.log(ratio) + 0.04, 20), 50, 0.01
        )
        for ratio in (1, 2, 4)
    ]
    assert rows[1].reason == "time +94.09 % to +108.16 %: all of it beyond the margin of 1 %"
    ratio, (low, high) = geometric_mean(rows)
    assert ratio == pytest.approx(2.0)
    assert math.log(ratio / low) == pytest.approx(0.03 / math.sqrt(3))
    assert math.log(high / ratio) == pytest.approx(0.04 / math.sqrt(3))
    few = compare_unpaired([1.0], [9.0])
    assert geometric_mean([*rows, few]) == (ratio, (low, high))
    assert geometric_mean([few]) is None
    assert geometric_mean([*rows, replace(rows[0], bound="at least ")]) is None


@pytest.mark.exhaustive
def test_geometric_mean_interval_holds_in_95_percent():
    compared = compare_many(series(16, 0.02, 100, 1.03, trials=4_000))
    means = [geometric_mean(compared[start : start + 10])[1] for start in range(0, 4_000, 10)]
    assert 372 <= sum(low <= 1.03 <= high for low, high in means) <= 392


@pytest.mark.parametrize(("drift", "said"), [(0.03, "±3 % is"), (3.0, "a factor of 20 is")])
def test_a_spread_without_meaning_has_no_digits(drift, said):
    found = Comparison.of(Interval(0.0, -drift, drift, 10), 50, 0.01, drift=drift)
    assert f"; {said} the spread between measurements" in found.reason
