"""Statistics against published worked examples, and against the formulas they cite, computed
here a second time with numpy and scipy.
"""

import math
from statistics import mean, stdev, variance

import numpy as np
import pytest
from correlated import autoregressive
from scipy import stats

from results.stats.comparison import (
    MORE_RUNS,
    MORE_SAMPLES,
    SEQUENTIAL_WIDENING,
    SLOWER,
    UNKNOWN,
    UNSURE,
    Comparison,
    PeerSpread,
    SideMean,
    benjamini_hochberg,
    compare_sides,
    geometric_mean,
    holm,
    judge_rounds,
    side_of,
    smallest_detectable_change,
    times_longer,
)
from results.stats.samples import (
    RUNS,
    VISITS,
    Z_975,
    Interval,
    Repeats,
    Spread,
    given_spread,
    interval_of_median,
    spread_of_row,
    spread_of_visits,
    widest,
)

KNOWN = 1e9
"""Degrees of freedom at which Student's t is the normal distribution."""


def log_limits(compared):
    return tuple(math.log(end) for end in compared.ci95)


def wilson(successes, trials):
    """Return a proportion with the distances to its limits.

    Source: Wilson, Probable inference, the law of succession, and statistical inference, JASA 22
    (1927) 209.
    """
    share = successes / trials
    square = Z_975**2 / trials
    center = (share + square / 2) / (1 + square)
    half = math.sqrt(share * (1 - share) * square + square**2 / 4) / (1 + square)
    return SideMean(share, share - center + half, center + half - share, KNOWN, trials)


@pytest.mark.parametrize(
    ("first", "second", "published"),
    [
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((6, 7), (2, 7), (0.0582, 0.8062)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)),
    ],
)
def test_asymmetric_limits_of_a_difference_as_published(first, second, published):
    """Differences of two proportions, method 10 of Newcombe, Statistics in Medicine 17 (1998) 873,
    table II; Zou and Donner (2008) show that it is the special case of theirs for Wilson's limits.
    """
    compared = compare_sides(wilson(*second), wilson(*first), spread=given_spread(0.0))
    assert math.log(compared.ratio) == pytest.approx(first[0] / first[1] - second[0] / second[1])
    if min(first[1], second[1]) >= 6:
        assert log_limits(compared) == pytest.approx(published, abs=6e-5)


def mean_of(values):
    """Return the mean with Student's interval."""
    count = len(values)
    half = stats.t.ppf(0.975, count - 1) * stdev(values) / math.sqrt(count)
    return SideMean(mean(values), half, half, count - 1, count)


@pytest.mark.parametrize(("counts", "scales"), [((8, 30), (5.0, 1.0)), ((40, 7), (1.0, 3.0))])
def test_welch_with_unequal_counts_and_variances(counts, scales):
    """Against scipy.stats.ttest_ind; Welch, Biometrika 34 (1947) 28."""
    random = np.random.default_rng(5)
    sides = [
        (scale * random.normal(size=count)).tolist()
        for count, scale in zip(counts, scales, strict=True)
    ]
    expected = stats.ttest_ind(sides[1], sides[0], equal_var=False)
    compared = compare_sides(*map(mean_of, sides), margin=0.0, spread=given_spread(0.0))
    assert compared.degrees == pytest.approx(expected.df)
    assert log_limits(compared) == pytest.approx(tuple(expected.confidence_interval()))
    assert compared.p_value == pytest.approx(expected.pvalue)


def test_spread_adds_to_the_interval_and_to_its_degrees():
    """Half widths of 3 % and 4 % with 10 and 5 degrees of freedom: 5 %, and by Satterthwaite,
    Biometrics Bulletin 2 (1946) 110, (9 + 16)^2 / (9^2 / 10 + 16^2 / 5) = 10.54 degrees.
    """
    exact = SideMean(0.0, below=0.0, above=0.0, degrees=10, samples=40)
    noisy = SideMean(0.2, below=0.03, above=0.03, degrees=10, samples=40)
    deviation = 0.04 / (stats.t.ppf(0.975, 5) * math.sqrt(2))
    compared = compare_sides(exact, noisy, spread=Spread(deviation, 5, RUNS))
    assert log_limits(compared) == pytest.approx((0.15, 0.25))
    assert compared.drift == pytest.approx(0.04)
    assert compared.degrees == pytest.approx(625 / (8.1 + 51.2))
    assert compared.verdict == SLOWER
    t_value = (0.2 - math.log(1.01)) / 0.05 * stats.t.ppf(0.975, compared.degrees)
    assert compared.p_value == pytest.approx(2 * stats.t.sf(t_value, compared.degrees))


@pytest.mark.parametrize(("between", "remedy"), [(0.031, MORE_RUNS), (0.029, MORE_SAMPLES)])
def test_advice_is_for_the_larger_part_of_the_interval(between, remedy):
    exact = SideMean(0.0, below=0.0, above=0.0, degrees=10, samples=40)
    noisy = SideMean(0.0, below=0.03, above=0.03, degrees=10, samples=40)
    deviation = between / (stats.t.ppf(0.975, 5) * math.sqrt(2))
    compared = compare_sides(exact, noisy, spread=Spread(deviation, 5, RUNS))
    assert f"; {remedy}; " in compared.reason


@pytest.mark.parametrize(
    ("spread", "words"),
    [
        (None, ": wider than the margin of 1 %, possibly no difference"),
        (
            Spread(2.0, 5, VISITS, False),
            "too noisy; a factor above 100 is the spread between measurements",
        ),
    ],
)
def test_if_the_spread_between_runs_is_unknown_that_is_the_only_advice(spread, words):
    side = SideMean(0.0, below=0.03, above=0.03, degrees=10, samples=40)
    unknown = "but the spread between runs of the same code is unknown"
    reason = compare_sides(side, side, spread=spread).reason
    assert reason.endswith(f"{words}, {unknown}; {MORE_RUNS}")
    assert reason.count(MORE_RUNS) == 1


def test_sides_without_scatter_have_the_degrees_of_both():
    first = SideMean(0.0, below=0.0, above=0.0, degrees=10, samples=40)
    second = SideMean(0.5, below=0.0, above=0.0, degrees=7, samples=40)
    compared = compare_sides(first, second, spread=given_spread(0.0))
    assert (compared.degrees, compared.verdict) == (17, SLOWER)
    assert compared.ci95 == pytest.approx((math.exp(0.5),) * 2)


@pytest.mark.parametrize(
    ("samples", "has_spread", "words"),
    [
        (14, True, ", but 14 samples are too few to estimate their correlation"),
        (40, False, f", but the spread between runs of the same code is unknown; {MORE_RUNS}"),
        (5, True, "only 5 samples of at least 6"),
    ],
)
def test_sides_without_runs_or_with_few_samples_are_unsure(samples, has_spread, words):
    first = SideMean(0.0, below=0.01, above=0.01, degrees=10, samples=samples)
    second = SideMean(0.5, below=0.01, above=0.01, degrees=7, samples=40)
    for sides in ((first, second), (second, first)):
        compared = compare_sides(*sides, spread=Spread(0.001, 5, RUNS, has_spread))
        assert (compared.verdict, compared.p_value) == (UNSURE, 1.0)
        assert compared.reason.endswith(words)
        assert (compared.ci95 == UNKNOWN, compared.drift == 0) == (samples < 6, samples < 6)
    assert compare_sides(second, second).verdict == UNSURE


def test_spread_of_visits_is_the_pooled_variance():
    """The 99 % interval of a difference of two means with one variance, of scipy.stats.ttest_ind:
    `QUANTILES` gives visits a probability of 0.995 on either side.
    """
    before = [0.00, 0.02, -0.01, 0.04]
    after = [0.11, 0.08, 0.10]
    interval = stats.ttest_ind(after, before).confidence_interval(0.99)
    visits = [[[math.exp(log)] for log in logs] for logs in (before, after)]
    spread = spread_of_visits(*visits)
    assert spread.half_width == pytest.approx((interval.high - interval.low) / 2)
    assert spread.degrees == 5
    assert spread.share == pytest.approx(math.exp(spread.half_width) - 1)


def test_spread_of_a_row_is_moderated_by_other_rows():
    """(d0 s0^2 + d s^2) / (d0 + d): Smyth (2004), with the median of all rows as s0^2."""
    variances = [1e-4, 4e-4, 9e-4, 25e-4]
    rows = [Repeats(6 * own, 6) for own in variances]
    own = spread_of_row(Repeats(6 * 25e-4, 6), rows)
    assert own.degrees == 6 + 3  # of the other rows at most four, and three here
    assert own.deviation**2 == pytest.approx((6 * 25e-4 + 3 * 6.5e-4) / 9)
    few = spread_of_row(Repeats(2 * 25e-4, 2), rows)
    assert few.degrees == 2 + 2  # no more than its own
    assert few.deviation**2 == pytest.approx((2 * 25e-4 + 2 * 6.5e-4) / 4)
    unknown = spread_of_row(Repeats(), rows)
    assert unknown.degrees == 4
    assert unknown.deviation**2 == pytest.approx(np.quantile(variances, 0.9))
    many = spread_of_row(Repeats(9e-4, 9), [Repeats(9 * own, 9) for own in [1e-4] * 8])
    assert many.degrees == 9 + 4
    assert spread_of_row(Repeats(), [Repeats()]) is None
    assert spread_of_row(Repeats(), [Repeats(1e-4, 2), Repeats(1e-4, 3)]).degrees == 3


def test_widest_spread_is_that_of_the_largest_half_width():
    spreads = [Spread(0.01, 50, RUNS), Spread(0.009, 2, RUNS), None, Spread(0.012, 50, RUNS)]
    assert widest(spreads) == spreads[1]  # Student's t of few degrees
    assert widest([None]) is None


def test_repeats_sum_the_squares_within_groups():
    repeats = Repeats.of([[1.0, 2.0, 6.0], [10.0, 12.0], [5.0]])
    assert repeats == (14 + 2, 3)
    assert Repeats() == (0, 0)
    assert repeats.squares / 2 == pytest.approx(variance([1.0, 2.0, 6.0]) + 1)


def test_repeats_of_a_history_ignore_a_few_large_steps():
    logs = np.cumsum([0.0, 0.02, 0.03, 0.01, 0.5, 0.0, 0.02, 0.04, 0.02, 0.03, 0.01, 0.0, 0.4])
    mad = 1.4826 * 0.01  # around the middle of the steps, 0.02
    repeats = Repeats.of_steps(logs.tolist())
    assert repeats == (pytest.approx(4 * mad**2 / 2), 4)
    assert Repeats.of_steps(logs[:5].tolist()).degrees == 1
    assert Repeats.of_steps(logs[:4].tolist()) == Repeats()


@pytest.mark.parametrize("values", [[3.0, 3.1, 2.8, 9.0, 3.2, 3.05, -4.0], [1.0, 1.2, 1.5]])
def test_spread_of_peers_is_a_moderated_median_absolute_deviation(values):
    count = len(values)
    own = 0.37 * (count - 1)
    deviation = stats.median_abs_deviation(values, scale="normal") * count / (count - 0.8)
    spread = PeerSpread.of(values, 0.05, 4)
    assert spread.center == np.median(values)
    assert spread.degrees == pytest.approx(4 + own)
    square = (4 * 0.05**2 + own * deviation**2) / (4 + own)
    assert spread.scale == pytest.approx(math.sqrt(square), rel=1e-4)
    below = (spread.center - 2.5) / spread.scale
    assert spread.p_value(2.5) == pytest.approx(stats.t.sf(below, spread.degrees))


def test_two_peers_have_the_assumed_spread_around_the_faster_one():
    spread = PeerSpread.of([1.0, 2.0], 0.05, 4)
    assert (spread.center, spread.degrees) == (2.0, 4)
    assert spread.scale == pytest.approx(0.05)


THROMBOLYSIS = [
    *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262),
    *(0.5719, 0.6528, 0.7590, 1.0000),
]
"""Source: Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995) 289, section 4. With an error of
0.05, Bonferroni and Holm reject three hypotheses."""


def test_holm_rejects_three_hypotheses_as_published():
    assert holm(THROMBOLYSIS) == [True] * 3 + [False] * 12
    assert holm(THROMBOLYSIS[::-1]) == [False] * 12 + [True] * 3


def test_benjamini_hochberg_rejects_four_hypotheses_as_published():
    assert benjamini_hochberg(THROMBOLYSIS, 0.05) == [True] * 4 + [False] * 11
    assert benjamini_hochberg(THROMBOLYSIS[::-1], 0.05) == [False] * 11 + [True] * 4


@pytest.mark.parametrize("seed", range(5))
def test_benjamini_hochberg_steps_up_as_in_scipy(seed):
    p_values = np.random.default_rng(seed).uniform(size=60) ** 3
    adjusted = stats.false_discovery_control(p_values)
    assert benjamini_hochberg(p_values.tolist(), 0.1) == (adjusted <= 0.1).tolist()


def test_benjamini_hochberg_starts_at_the_largest():
    assert benjamini_hochberg([0.045, 0.04], 0.05) == [True, True]  # 0.04 > 0.05 / 2
    assert benjamini_hochberg([], 0.05) == []


def limit_of_looks(counts, trials=50_000):
    """Return the number of standard errors that a sum of normal noise exceeds in 5 % of series, at
    any of the looks.
    """
    random = np.random.default_rng(7)
    total = np.zeros(trials)
    largest = np.zeros(trials)
    before = 0
    for count in counts:
        total += math.sqrt(count - before) * random.normal(size=trials)
        largest = np.maximum(largest, np.abs(total) / math.sqrt(count))
        before = count
    return float(np.quantile(largest, 0.95))


@pytest.mark.parametrize(("looks", "published"), [(1, 1.960), (2, 2.178), (5, 2.413), (10, 2.555)])
def test_pocock_s_constants_by_simulation(looks, published):
    """Pocock, Biometrika 64 (1977) 191, table 1: equally many observations between looks."""
    assert limit_of_looks(range(1, looks + 1)) == pytest.approx(published, abs=0.02)


def test_sequential_widening_covers_ten_looks_at_doublings():
    factor = limit_of_looks([20 * 2**look for look in range(10)]) / 1.96
    assert factor == pytest.approx(2.71 / 1.96, abs=0.01)
    assert factor < SEQUENTIAL_WIDENING < 1.05 * factor


def test_rounds_are_widened_only_if_their_number_was_open():
    ratios = np.exp(np.linspace(-0.1, 0.1, 14)).tolist()  # too few to estimate a correlation
    half = stats.t.ppf(0.975, 12) * math.sqrt(14) / 2  # in ranks
    step = 0.2 / 13
    for is_fixed, factor in ((True, 1.0), (False, 1.45)):
        compared = judge_rounds([1.0] * 14, ratios, 0.01, is_fixed)
        assert log_limits(compared) == pytest.approx((-factor * half * step, factor * half * step))


def test_smallest_detectable_change_by_its_formula():
    """A true change that lies 1.96 + 1.64 standard errors beyond the margin is beyond it in 95 %
    of intervals.
    """
    times = np.exp(np.linspace(-0.1, 0.1, 14)).tolist()
    half = stats.t.ppf(0.975, 12) * math.sqrt(14) / 2 * 0.2 / 13
    expected = math.log(1.01) + half + half * stats.norm.ppf(0.95) / stats.norm.ppf(0.975)
    found = smallest_detectable_change([1.0] * 14, times)
    assert found == pytest.approx(100 * (math.exp(expected) - 1))


@pytest.mark.parametrize(
    ("center", "half", "longer"),
    [(0.0, 0.04, 4.0), (0.0, 0.1, 25.0), (0.03, 0.02, 4.0), (-0.03, 0.02, 4.0), (0.0, 0.21, None)],
)
def test_rounds_that_decide_grow_with_the_square_of_the_width(center, half, longer):
    """The half width is proportional to 1 / sqrt(rounds), and must become the distance between
    center and margin.
    """
    margin = math.exp(0.02) - 1
    compared = Comparison.of(Interval(center, center - half, center + half, 20), 40, margin)
    assert compared.verdict == UNSURE
    assert times_longer(compared) == pytest.approx(longer)


def test_rounds_that_decide_are_unknown_with_a_verdict():
    assert times_longer(Comparison.of(Interval(0.5, 0.4, 0.6, 20), 40, 0.01)) is None
    assert times_longer(Comparison.of(Interval(0.0, -0.1, 0.1, 20), 5, 0.01)) is None
    at_the_margin = Comparison.of(Interval(math.log(1.01), -0.1, 0.1, 20), 40, 0.01)
    assert times_longer(at_the_margin) is None
    assert times_longer(Comparison.of(Interval(0.02, 0.009, 0.0205, 20), 40, 0.01)) == 1.0


def test_mean_of_windows_adds_their_squared_half_widths():
    windows = [[math.exp(value) for value in (1.0, 2.0, 6.0)], [math.exp(3.0)] * 5]
    side = side_of(windows)
    assert side.center == pytest.approx((2 + 3) / 2)
    assert side.below == pytest.approx(1 / 2)  # the interval of three samples is their range
    assert side.above == pytest.approx(4 / 2)
    assert side.degrees == pytest.approx(1 + 3)
    assert side.samples == 8
    twice = side_of([windows[0]] * 2)
    assert twice.above == pytest.approx(4 / math.sqrt(2))


def test_mean_of_rows_does_not_narrow_what_they_share():
    """Three rows whose half widths below are 3, 4 and 5 %, of which 3 % is shared, are 0, sqrt(7)
    and 4 % by themselves; their mean has a third of the root of the sum of squares.
    """
    rows = [
        Comparison.of(Interval(center, center - half, center + 2 * half, 20), 50, 0.01, drift=0.03)
        for center, half in ((0.1, 0.03), (0.2, 0.04), (0.6, 0.05))
    ]
    ratio, (low, high) = geometric_mean(rows)
    assert math.log(ratio) == pytest.approx(0.3)
    assert math.log(ratio / low) == pytest.approx(math.hypot(math.sqrt(0.0023) / 3, 0.03))
    squares = 0.06**2 + 0.08**2 + 0.1**2 - 3 * 0.03**2
    assert math.log(high / ratio) == pytest.approx(math.hypot(math.sqrt(squares) / 3, 0.03))


@pytest.mark.parametrize(("center", "within"), [(0.05, 30), (-0.05, 30), (0.05, 0)])
def test_p_value_counts_the_rounds_within_the_margin(center, within):
    """60 rounds, a share of them at 1, the others beyond the margin: in units of the half width in
    ranks, the center is (1 / 2 - share) / half from the margin, if that is less than its distance.
    """
    random = np.random.default_rng(3)
    logs = random.permutation([0.0] * (within // 2) + [center] * (60 - within // 2))
    compared = judge_rounds([1.0] * 60, np.exp(logs).tolist(), 0.01, is_fixed=True)
    half = interval_of_median(logs.tolist())
    if within:
        halves = (0.5 - within / 2 / 60) / (half.share_needed / 2)
        t_value = halves * stats.t.ppf(0.975, half.degrees)
        assert compared.p_value == pytest.approx(2 * stats.t.sf(t_value, half.degrees))
    else:
        assert compared.p_value == 0.0


def factor_of_neighbors(values):
    """Return the variance of the number of values below the median over that of independent
    values, by the correlation of neighbors.

    Correlation of ranks, with Kendall's correction for its bias; of normal values, 2 sin(pi r / 6),
    Pearson (1907); of the sides of the median, 2 / pi asin(rho), Sheppard (1899).
    """
    count = len(values)
    ranks = stats.rankdata(values) - (count + 1) / 2
    measured = np.sum(ranks[1:] * ranks[:-1]) / np.sum(ranks**2)
    unbiased = (count * measured + 1) / (count - min(8, count / 2))
    rho = 2 * math.sin(math.pi / 6 * min(max(unbiased, -0.98), 0.98))
    lags = range(1, min(count, 400))
    sides = [(1 - lag / count) * 2 / math.pi * math.asin(rho**lag) for lag in lags]
    return 1 + 2 * math.fsum(sides)


def factor_of_blocks(values):
    """Return the same ratio by circular blocks of three times the cube root of the count: Politis
    and Romano (1992), with the sums of all blocks; n - 1 over n - b, because the sides balance.
    """
    count = len(values)
    middle = (count + 1) / 2
    from_first = stats.rankdata(values, "ordinal") - middle  # of equal values the first is lower
    from_last = stats.rankdata(values[::-1], "ordinal")[::-1] - middle
    sides = (np.sign(from_first) + np.sign(from_last)) / 2
    length = min(round(3 * count ** (1 / 3)), count // 10)
    sums = [sum(sides[(first + at) % count] for at in range(length)) for first in range(count)]
    return np.var(sums) / length * (count - 1) / (count - length)


def series_of(kind, count):
    random = np.random.default_rng(count)
    if kind == "trend":
        return np.arange(count) / count
    if kind == "alternating":
        return np.tile([0.0, 1.0], count // 2) + random.random(count) / 1000
    if kind == "neighbors":
        return autoregressive(random, 1, count, 0.6)[0]
    slow = autoregressive(random, 1, count, 0.9)[0] if kind == "blocks" else 0.0
    values = slow + random.normal(size=count)
    return values.round(1) if kind == "equal" else values


def test_interval_of_equal_samples_is_that_of_independent_ones():
    found = interval_of_median([3.0] * 20)
    assert (found.low, found.center, found.high, found.degrees) == (3.0, 3.0, 3.0, 18.0)
    assert found.share_needed == pytest.approx(stats.t.ppf(0.975, 18) / math.sqrt(20))


@pytest.mark.parametrize("widening", [1.0, 1.3])
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("independent", 15),
        ("neighbors", 29),
        ("neighbors", 40),
        ("neighbors", 700),
        ("blocks", 90),
        ("blocks", 300),
        ("blocks", 1000),
        ("equal", 150),
        ("trend", 60),
        ("trend", 1000),
        ("alternating", 60),
    ],
)
def test_interval_of_the_median_by_its_formulas(kind, count, widening):
    values = series_of(kind, count)
    by_blocks = factor_of_blocks(values) if count >= 30 else 0.0
    by_neighbors = factor_of_neighbors(values)
    assert kind != "blocks" or by_blocks > 1.1 * by_neighbors
    factor = max(0.5, by_blocks, by_neighbors)
    degrees = max(1.0, count / factor - 2)
    half = widening * stats.t.ppf(0.975, degrees) * math.sqrt(factor * count) / 2
    found = interval_of_median(values.tolist(), widening)
    assert found.degrees == pytest.approx(degrees)
    assert found.share_needed == pytest.approx(half / (count / 2))
    assert found.center == pytest.approx(np.median(values))
    # The sample of rank r is at r - 1/2, and samples between two of them are interpolated.
    low = np.quantile(values, max(0.0, count / 2 - half - 0.5) / (count - 1))
    high = np.quantile(values, min(count - 1.0, count / 2 + half - 0.5) / (count - 1))
    assert (found.low, found.high) == pytest.approx((low, high))
