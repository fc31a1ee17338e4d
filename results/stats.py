"""Statistics of samples: the median and its confidence interval. NumPy is imported by the function that needs it."""

from __future__ import annotations

from collections.abc import Sequence

BLOCK_SAMPLES = 10
"""Consecutive samples drawn together by the bootstrap, because neighbors in time correlate."""

RESAMPLES = 500
"""Bootstrap resamples: the 2.5 % tails then rest on about 12 values each, enough for a stopping rule."""


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
    """Return the 95 % confidence interval of the median, by a moving-block bootstrap.

    The same samples and seed always give the same interval. One sample gives an interval of no width, which says
    nothing: callers ask for more samples first.

    Raises:
        ValueError: there are no samples.

    Source: percentile bootstrap, Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3;
        moving blocks for dependent data, Kunsch, Annals of Statistics 17 (1989) 1217.
    """
    import numpy as np

    if not samples_s:
        raise ValueError("the interval of no samples does not exist")
    values = np.asarray(samples_s, dtype=np.float64)
    count = len(values)
    # At least five blocks, or a resample would be one block and the interval would have no width.
    block = max(1, min(BLOCK_SAMPLES, count // 5))
    blocks = -(-count // block)
    starts = np.random.default_rng(seed).integers(0, count - block + 1, size=(RESAMPLES, blocks))
    indices = (starts[:, :, None] + np.arange(block)).reshape(RESAMPLES, -1)[:, :count]
    low, high = np.quantile(np.median(values[indices], axis=1), [0.025, 0.975])
    return float(low), float(high)


def half_width(interval: tuple[float, float], center: float) -> float:
    """Return half the width of `interval` as a fraction of `center`."""
    low, high = interval
    return (high - low) / 2 / center
