"""Statistics of samples: the median and its confidence interval. NumPy is imported by the function that needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray

RESAMPLES = 500
"""Bootstrap resamples: a standard deviation from so many is known to 3 %, which moves the coverage by 0.4 %."""

Z_975 = NormalDist().inv_cdf(0.975)
"""The normal deviate that leaves 2.5 % on either side."""

LEAST_VARIANCE = 0.5
"""Neighbors that alternate can make an interval narrower than independent ones would, down to this share of its
variance: a series that alternates strictly would otherwise get an interval of no width."""


def median(samples_s: Sequence[float]) -> float:
    """Return the median of `samples_s`, in the unit given.

    Raises:
        ValueError: there are no samples.
    """
    if not samples_s:
        raise ValueError("the median of no samples does not exist")
    ordered = sorted(samples_s)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2)


def median_ci95(samples_s: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median: between two ranks, set apart by a circular block bootstrap.

    The bootstrap tells how far the number of samples below the true median may be from half of them. The interval
    lies between the samples at those ranks. Taking percentiles of resampled medians instead covers too little: 88 to
    92 % with 30 samples, where this covers 94 to 97 %.

    The same samples and seed always give the same interval. Fewer than six samples cannot reach 95 %: their interval
    is their range, and that of one sample has no width.

    Raises:
        ValueError: there are no samples.

    Source: ranks instead of values, Woodruff, Confidence intervals for medians and other position measures, JASA 47
        (1952) 635; blocks that go on from the last sample to the first, Politis and Romano, A circular
        block-resampling procedure for stationary data (1992).
    """
    import numpy as np

    if not samples_s:
        raise ValueError("the interval of no samples does not exist")
    values = np.asarray(samples_s, dtype=np.float64)
    count = len(values)
    half = _half_width_in_ranks(values, np.random.default_rng(seed))
    ranks = np.arange(count) + 0.5
    low, high = np.interp([count / 2 - half, count / 2 + half], ranks, np.sort(values))
    return float(low), float(high)


def _half_width_in_ranks(values: NDArray[float64], generator: Generator) -> float:
    """Return how many ranks the true median may be away from the sample's, with 95 % confidence.

    Source: the extrapolation in the block's length, which takes away most of what short blocks miss of a correlation,
        Politis and Romano, Bias-corrected nonparametric spectral estimation, J. Time Series Analysis 16 (1995) 67.
    """
    import numpy as np

    count = len(values)
    # Equal samples, as a coarse tick makes them, fall above or below the median by lot, not by their place in time.
    order = np.lexsort((generator.random(count), values))
    side = np.empty(count)
    side[order] = np.sign(2 * np.arange(count) - (count - 1))
    block = block_length(count)
    variance = _variance_of_sum(side, block, generator)
    if block > 1:
        variance = max(variance, 2 * variance - _variance_of_sum(side, block // 2, generator))
    variance = max(variance, LEAST_VARIANCE * count)
    return student_t_975(_degrees_of_freedom(count, block)) * math.sqrt(variance) / 2


def _variance_of_sum(side: NDArray[float64], block: int, generator: Generator) -> float:
    """Return the variance of the sum of a series, by resampling blocks of it."""
    import numpy as np

    count = len(side)
    blocks = -(-count // block)
    running = np.concatenate(([0.0], np.cumsum(np.concatenate((side, side[:block])))))
    sums = running[block : block + count] - running[:count]
    resampled = sums[generator.integers(0, count, size=(RESAMPLES, blocks))].sum(axis=1)
    # Sides balance exactly, so that any two of them differ a little more often than by chance; the last factor, 1 for
    # blocks of one, gives back what that takes from the variance of independent samples.
    return float(np.var(resampled)) * count / (blocks * block) * max(1, count - 1) / max(1, count - block)


def _degrees_of_freedom(count: int, block: int) -> float:
    """Return how many independent blocks would tell as much as all overlapping ones do, less one for the mean.

    Source: overlapping blocks have 2/3 of the variance of separate ones, Kunsch, The jackknife and the bootstrap for
        general stationary observations, Annals of Statistics 17 (1989) 1217.
    """
    return max(1.0, 1.5 * count / block - 1)


def student_t_975(degrees_of_freedom: float) -> float:
    """Return the deviate of Student's t distribution that leaves 2.5 % on either side; within 1 % from 4 degrees on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5.
    """
    z, nu = Z_975, degrees_of_freedom
    terms = (
        (z**3 + z) / (4 * nu),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3),
    )
    return z + sum(terms)


def block_length(count: int) -> int:
    """Return how many consecutive ones of `count` samples are drawn together, because neighbors in time correlate.

    The cube root of the count, and never so much that fewer than ten blocks make a resample: fewer tell too little
    about how the blocks differ.

    Source: the cube root, Hall, Horowitz and Jing, Biometrika 82 (1995) 561.
    """
    return max(1, min(round(math.cbrt(count)), count // 10))


def half_width(interval: tuple[float, float], center: float) -> float:
    """Return half the width of `interval` as a fraction of `center`."""
    low, high = interval
    return (high - low) / 2 / center
