"""The median and its interval: against the standard library, against the promise of 95 %, and for trends in time."""

import random
import statistics

import pytest

from results.stats.samples import block_length, half_width, median, median_ci95


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101])
def test_the_median_is_that_of_the_standard_library(count):
    random.seed(count)
    samples = [random.lognormvariate(0, 1) for _ in range(count)]
    assert median(samples) == statistics.median(samples)


@pytest.mark.parametrize("function", [median, median_ci95])
def test_no_samples_have_no_median(function):
    with pytest.raises(ValueError, match="no samples"):
        function([])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count", [10, 30, 100])
def test_the_interval_covers_the_true_median_about_as_often_as_it_says(count):
    random.seed(count)
    trials = 400
    covered = 0
    for _ in range(trials):
        low, high = median_ci95([random.gauss(1.0, 0.05) for _ in range(count)])
        covered += low <= 1.0 <= high
    assert 0.90 <= covered / trials <= 0.99


def test_the_interval_narrows_with_more_samples():
    random.seed(1)
    samples = [random.gauss(1.0, 0.05) for _ in range(900)]
    of_thirty = [half_width(median_ci95(samples[start : start + 30]), 1.0) for start in range(0, 900, 30)]
    # The standard error falls with the root of the count, so 30 times the samples narrow it 5.5-fold.
    assert half_width(median_ci95(samples), 1.0) < statistics.mean(of_thirty) / 4


def test_a_resample_has_ten_blocks_or_more():
    assert [block_length(count) for count in (1, 9, 10, 19, 20, 30, 64, 1000)] == [1, 1, 1, 1, 2, 3, 4, 10]
    assert all(block_length(count) * 10 <= count for count in range(10, 2000))


def test_samples_that_drift_together_have_a_wider_interval_than_the_same_ones_shuffled():
    random.seed(2)
    drifting = [1.0]
    for _ in range(299):
        drifting.append(1.0 + 0.95 * (drifting[-1] - 1.0) + random.gauss(0, 0.01))
    shuffled = random.sample(drifting, len(drifting))
    assert half_width(median_ci95(drifting), 1.0) > 1.5 * half_width(median_ci95(shuffled), 1.0)


def test_the_same_seed_gives_the_same_interval_and_another_one_another():
    random.seed(3)
    samples = [random.gauss(1.0, 0.05) for _ in range(30)]
    assert median_ci95(samples, seed=7) == median_ci95(samples, seed=7)
    assert median_ci95(samples, seed=7) != median_ci95(samples, seed=8)


def test_the_interval_holds_the_median_and_lies_within_the_samples():
    random.seed(4)
    for count in (1, 2, 5, 9, 50):
        samples = [random.lognormvariate(0, 1) for _ in range(count)]
        low, high = median_ci95(samples)
        assert min(samples) <= low <= median(samples) <= high <= max(samples)


def test_half_the_width_is_a_fraction_of_the_center():
    assert half_width((9.0, 11.0), 10.0) == pytest.approx(0.1)
