"""The median and its interval: against the standard library, against the promise of 95 %, and for trends in time."""

import math
import random
from statistics import median

import numpy as np
import pytest

from results.stats.samples import half_width, interval_of_median, median_ci95


def test_no_samples_have_no_interval():
    with pytest.raises(ValueError, match="no samples"):
        median_ci95([])


def correlated(count, correlation, trials=1000):
    """Return normal series, a row each, whose neighbors correlate so much and whose median is 0."""
    drawn = np.random.default_rng(count).normal(size=(trials, count))
    for place in range(1, count):
        step = math.sqrt(1 - correlation**2) * drawn[:, place]
        drawn[:, place] = correlation * drawn[:, place - 1] + step
    return drawn


@pytest.mark.parametrize("kind", ["normal", "heavy tails"])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("count", [20, 60, 200])
def test_93_to_97_percent_of_the_intervals_hold_the_true_median_also_where_neighbors_correlate(
    count, correlation, kind
):
    values = correlated(count, correlation)
    found = [interval_of_median(row) for row in (values if kind == "normal" else values**3).tolist()]
    held = sum(one.low <= 0 <= one.high for one in found) / len(found)
    assert 0.91 <= held <= 0.98  # the trials leave 0.7 % to chance


def test_an_interval_that_should_be_wider_than_all_samples_says_so():
    steady, slow = correlated(20, 0.0, trials=400), np.sin(np.arange(20) / 8)
    assert interval_of_median(slow.tolist()).share_needed > 1
    assert sum(interval_of_median(row).share_needed > 1 for row in steady.tolist()) <= 0.05 * 400


def test_samples_that_drift_together_have_a_wider_interval_than_the_same_ones_shuffled():
    random.seed(2)
    drifting = [1.0]
    for _ in range(299):
        drifting.append(1.0 + 0.95 * (drifting[-1] - 1.0) + random.gauss(0, 0.01))
    shuffled = random.sample(drifting, len(drifting))
    assert half_width(median_ci95(drifting), 1.0) > 1.5 * half_width(median_ci95(shuffled), 1.0)


def test_the_interval_holds_the_median_and_lies_within_the_samples():
    random.seed(4)
    for count in (1, 2, 5, 9, 50):
        samples = [random.lognormvariate(0, 1) for _ in range(count)]
        low, high = median_ci95(samples)
        assert min(samples) <= low <= median(samples) <= high <= max(samples)
