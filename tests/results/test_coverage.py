"""Intervals of the median contain the true median as often as the docstrings claim."""

import numpy as np
import pytest
from correlated import autoregressive

from results.stats.samples import interval_of_median


@pytest.mark.sampled(6)
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("count", [20, 60, 200])
def test_coverage_is_93_to_97_percent_as_documented(count, correlation):
    """The docstring of `BIAS`: normal samples whose neighbors correlate by 0 to 0.8."""
    random = np.random.default_rng(11)
    found = [
        interval_of_median(row) for row in autoregressive(random, 2000, count, correlation).tolist()
    ]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in found])
    assert 0.93 <= covered <= 0.97


def test_coverage_of_noise_on_a_slow_machine():
    """Neighbors correlate by 0.4, but more slowly less than by an exponential decay from there:
    only long blocks see that.
    """
    random = np.random.default_rng(12)
    values = autoregressive(random, 1000, 400, 0.8) + random.normal(size=(1000, 400))
    found = [interval_of_median(row) for row in values.tolist()]
    covered = np.mean([interval.low <= 0 <= interval.high for interval in found])
    assert 0.9 <= covered <= 0.97
