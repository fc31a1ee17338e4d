"""The median's interval, outliers, two modes and drift: as often right as promised, and not found
in plain noise.
"""

import math

import numpy as np
import pytest

from results.stats.samples import (
    MIN_DRIFT,
    drift,
    half_width,
    interval_of_median,
    median_ci95,
    outlier_count,
    two_modes,
)

SHAPES = {
    "normal": lambda random, n: 1 + 0.03 * random.normal(size=n),
    "narrow": lambda random, n: 1 + 0.001 * random.normal(size=n),
    "uniform": lambda random, n: 1 + 0.2 * random.random(n),
    "one-sided": lambda random, n: 1 + 0.1 * random.exponential(size=n),
    "heavy-tailed": lambda random, n: 1 + 0.03 * random.laplace(size=n),
    "outliers": lambda random, n: 1 + 0.01 * random.normal(size=n) + (random.random(n) < 0.04),
}


def correlated(count, correlation, trials=1000):
    """Return normal series, a row each, whose neighbors correlate so much and whose median is 0."""
    drawn = np.random.default_rng(count).normal(size=(trials, count))
    for place in range(1, count):
        step = math.sqrt(1 - correlation**2) * drawn[:, place]
        drawn[:, place] = correlation * drawn[:, place - 1] + step
    return drawn


def test_an_interval_that_should_be_wider_than_all_samples_says_so():
    steady, slow = correlated(20, 0.0, trials=400), np.sin(np.arange(20) / 8)
    assert interval_of_median(slow.tolist()).share_needed > 1
    assert sum(interval_of_median(row).share_needed > 1 for row in steady.tolist()) <= 0.05 * 400


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_interval_of_very_few_samples_is_their_range(count):
    samples = [1.0, 5.0, 2.0, 4.0, 3.0][:count]
    assert median_ci95(samples) == (min(samples), max(samples))


def test_half_width_is_a_fraction_of_the_center():
    assert half_width((2.0, 6.0), 8.0) == 0.25
    assert half_width((-1.0, 1.0), 0.0) == math.inf


@pytest.mark.parametrize(
    ("samples", "outliers"),
    [
        ([1.0] * 10, 0),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0),
        ([1.0, 2.0, 3.0, 4.0, 9.0], 1),  # median 3, deviations 2 1 0 1 6
        ([1.0, 2.0, 3.0, 4.0, 8.0], 0),  # 5 deviations exactly
        ([-3.0, 2.0, 3.0, 4.0, 9.0], 2),
        ([1.0] * 98 + [2.0] * 2, 2),  # most are equal: mean deviation 0.02
        ([1.0] * 60 + [1.1] * 40, 0),
    ],
)
def test_outliers_are_beyond_five_deviations(samples, outliers):
    assert outlier_count(samples) == outliers


@pytest.mark.parametrize(
    ("gap", "upper", "is_found"),
    [
        (0.04, 30, True),
        (0.02, 30, False),
        (0.04, 10, False),
        (0.04, 90, False),
        (0.5, 10, False),
        (0.5, 20, True),
    ],
)
def test_modes_are_large_and_far_apart(gap, upper, is_found):
    samples = [1 + 0.0001 * (i % 10) + (gap if i < upper else 0) for i in range(100)]
    assert (two_modes(samples) is not None) is is_found


def clusters(peak, places, each):
    """Return `peak` samples at 1 and at 1.3, `each` at every place between."""
    samples = [1.0] * peak + [1.3] * peak
    for place in places:
        samples += [1 + 0.3 * place] * each
    return samples


@pytest.mark.parametrize(
    ("peak", "between", "is_found"),
    [
        (40, 18, True),  # 22 > 2.75 sqrt(58) = 20.9
        (40, 19, False),  # 21 < 2.75 sqrt(59) = 21.1
        (200, 100, True),  # half of a mode
        (200, 101, False),
        (8, 0, True),  # 8 > 2.75 sqrt(8) = 7.8
        (7, 0, False),  # 7 < 2.75 sqrt(7) = 7.3
    ],
)
def test_a_valley_is_half_empty_and_not_by_chance(peak, between, is_found):
    assert (two_modes(clusters(peak, [0.5], between)) is not None) is is_found


@pytest.mark.parametrize(
    "places", [(0.175, 0.53), (0.25, 0.6), (0.3, 0.7), (0.4, 0.75), (0.47, 0.825)]
)
def test_a_valley_is_a_third_of_the_gap_at_any_of_five_places(places):
    """Samples on both sides of a third around 0.35, 0.425, 0.5, 0.575 or 0.65 of the gap."""
    assert two_modes(clusters(40, places, 19)) is not None


def test_two_clusters_minimize_the_distances_to_their_medians():
    """Against all splits: k-medians in one dimension, with at least 15 % in each part."""
    generator = np.random.default_rng(8)
    for upper in (12, 20, 35, 45):
        wide = generator.exponential(0.02, size=60 - upper) + 1
        ordered = np.sort(np.concatenate([wide, generator.normal(1.25, 0.02, size=upper)]))
        splits = range(10, 51)
        cost = {
            split: np.abs(ordered[:split] - np.median(ordered[:split])).sum()
            + np.abs(ordered[split:] - np.median(ordered[split:])).sum()
            for split in splits
        }
        best = min(cost, key=cost.get)
        modes = two_modes(generator.permutation(ordered).tolist())
        assert modes.low_s == pytest.approx(np.median(ordered[:best]))
        assert modes.high_s == pytest.approx(np.median(ordered[best:]))
        middle = (modes.low_s + modes.high_s) / 2
        assert modes.high_share == pytest.approx(np.mean(ordered > middle))


def test_a_few_far_outliers_do_not_hide_two_modes():
    """Alone, the outliers would be the upper part of the best split."""
    modes = two_modes([1.0] * 65 + [1.1] * 30 + [10.0] * 5)
    assert (modes.low_s, modes.high_s, modes.high_share) == (1.0, 1.1, 0.35)


@pytest.mark.parametrize("unit_s", [1e-6, 1e3])
@pytest.mark.parametrize(("step", "has_two"), [(0.05, False), (0.0041, True), (0.0, True)])
def test_modes_and_drift_do_not_depend_on_the_unit(unit_s, step, has_two):
    generator = np.random.default_rng(3)
    samples = np.round((1 + 0.03 * generator.normal(size=300)) / 0.05) * 0.05
    modes = two_modes((unit_s * samples).tolist(), step_s=unit_s * step)
    assert (modes is not None) is has_two
    slope = unit_s * np.linspace(1.0, 1.5, 300)
    assert drift(slope.tolist()) == pytest.approx(drift((slope / unit_s).tolist()))


def test_samples_on_a_coarse_timer_keep_their_medians():
    modes = two_modes([1.0] * 41 + [1.3] * 40, step_s=0.1)
    assert (modes.low_s, modes.high_s) == pytest.approx((1.0, 1.3), abs=1e-9)
    assert modes.high_share == pytest.approx(40 / 81)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("count", [20, 60, 300])
def test_noise_of_one_mode_is_not_called_two(name, count):
    generator = np.random.default_rng(count)
    found = sum(two_modes(SHAPES[name](generator, count).tolist()) is not None for _ in range(300))
    assert found <= 3


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_a_handful_of_samples_has_neither_modes_nor_drift(count):
    samples = [1.0 + 0.5 * (i % 2) for i in range(count)]
    assert two_modes(samples) is None
    assert drift(samples) is None


@pytest.mark.parametrize(("change", "found"), [(0.03, 0.02), (-0.03, -0.02), (0.3, 0.2)])
def test_a_steady_slope_is_told_from_third_to_third(change, found):
    samples = [1 + change * i / 899 for i in range(900)]
    assert drift(samples) == pytest.approx(found, rel=0.08)


@pytest.mark.parametrize(("count", "expected"), [(8, None), (9, 0.5), (10, 0.5), (11, 0.5)])
def test_drift_compares_the_medians_of_thirds(count, expected):
    middle = [1.2] * (count - 6)
    assert drift([1.0] * 3 + middle + [1.5] * 3) == (expected and pytest.approx(expected))


@pytest.mark.parametrize(("noise", "is_found"), [(0.9, True), (1.1, False)])
def test_drift_exceeds_four_standard_errors_of_the_medians(noise, is_found):
    """Thirds of 12 samples, too few to correlate. The change without its trend has the noise of
    both medians: half of their 95 % interval over 1.96.
    """
    step = np.array([0, 5, 1, 4, 2, 3, 8, 6, 11, 7, 10, 9]) - 5.5
    # In ranks, with Student's t of 10 degrees.
    error = math.sqrt(2) * 2.228139 * math.sqrt(12) / 2 / 1.959964
    values = [1 + step, np.full(12, 1.0), 1 + step]
    change = 0.2
    scale = noise * change / (4 * error)
    trend = change * np.arange(36) / 24
    samples = [1 + scale * (part - 1) for part in values]
    found = drift((np.concatenate(samples) + trend).tolist())
    assert (found is not None) is is_found


def test_a_change_too_small_to_matter_is_none():
    assert drift([1 + 1.4 * MIN_DRIFT * i / 899 for i in range(900)]) is None
    assert drift([1 + 1.6 * MIN_DRIFT * i / 899 for i in range(900)]) is not None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("count", [20, 60, 300])
def test_noise_is_not_called_drift(name, count):
    generator = np.random.default_rng(count)
    assert sum(drift(SHAPES[name](generator, count).tolist()) is not None for _ in range(200)) <= 2


@pytest.mark.parametrize("count", [60, 300])
def test_correlated_noise_is_not_called_drift(count):
    assert (
        sum(
            drift((1 + 0.03 * row).tolist()) is not None
            for row in correlated(count, 0.5, trials=200)
        )
        <= 2
    )


def test_outliers_in_the_last_third_are_no_drift():
    assert drift([1.0, 1.001] * 100 + [1.0, 1.001, 1.5] * 33) is None


def test_a_steep_slope_is_no_noise_of_its_own_thirds():
    generator = np.random.default_rng(6)
    for _ in range(100):
        samples = (1 + 0.05 * generator.normal(size=30)) * np.linspace(1, 1.5, 30)
        assert drift(samples.tolist()) is not None
