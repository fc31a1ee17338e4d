"""Statistics of samples: the median, its confidence interval, and what a look at all samples would show.

NumPy and SciPy are imported by the functions that need them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

Z_975 = NormalDist().inv_cdf(0.975)
"""The normal deviate that leaves 2.5 % on either side."""

MIN_VARIANCE = 0.5
"""Neighbors that alternate can make an interval narrower than independent ones would, down to this share of its
variance: a series that alternates strictly would otherwise get an interval of no width."""

MIN_FOR_CORRELATION = 15
"""Fewer samples tell nothing about how neighbors correlate."""

BIAS = 8
"""A correlation between neighbors comes out too small, the more so the fewer the samples; so many are taken off their
count. Chosen by simulation: 0.93 to 0.97 of the intervals hold the true median for 20, 60 and 200 normal samples whose
neighbors correlate by 0 to 0.8. Theory has 4 for small correlations, Kendall, Note on bias in the estimation of
autocorrelation, Biometrika 41 (1954) 403."""

MAX_CORRELATION = 0.98
MAX_LAGS = 400
"""Samples over which the largest correlation fades to nothing: 0.98^400 = 0.0003."""

OUTLIER_MADS = 5
"""Median absolute deviations from the median beyond which a sample is an outlier: 0.07 % of normal noise."""

MODE_SHARE = 0.15
"""Share of the samples that each of two modes must have: fewer are outliers."""

MODE_GAP = 0.03
"""Distance of two modes, as a fraction of the lower one, from which on it matters which of them the median is in."""

FINE_STEP = 4e-3
"""Step of the samples, as a fraction of the least one, up to which it makes no valley between two modes: the smallest
stretch in which samples are counted, a third of `MODE_GAP`, holds two or three steps, and that is none."""

VALLEY_DEPTH = 0.5
"""Between two modes there are at most so many samples as in the smaller one."""

VALLEY_DEVIATES = 2.75
"""Standard deviations by which the valley must be emptier than chance would leave it. In simulation, samples of one
mode (normal, uniform, exponential, Laplace; 20 to 300 of them) then look like two in at most 0.5 % of series."""

MIN_DRIFT = 0.01
"""Change from the first third to the last that is worth a word: twice the interval that a GPU row aims at."""

DRIFT_DEVIATES = 4.0
"""Standard errors that the change must exceed: the two thirds have few samples, and neighbors correlate."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, `share` from 0 to 1, between the two nearest values."""
    import numpy as np

    return float(np.quantile(values, share))


def median_ci95(samples_s: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, between two samples; see `interval_of_median`.

    Fewer than six samples cannot reach 95 %: their interval is their range, and that of one sample has no width.
    """
    interval = interval_of_median(samples_s)
    return interval.low, interval.high


@dataclass(frozen=True)
class Interval:
    """The median of a series with its 95 % interval."""

    center: float
    low: float
    high: float
    degrees: float
    """Degrees of freedom of Student's t distribution behind the interval."""
    share_needed: float
    """Half of the interval in ranks, over half of all ranks; above 1 the interval should be wider than all samples."""


def interval_of_median(samples: Sequence[float], widening: float = 1.0) -> Interval:
    """Return the median of a series with its 95 % interval.

    The number of samples below the true median is half of them, give or take what its variance allows; the interval
    lies between the samples at those ranks. The variance is that of independent samples times a factor for their
    correlation: by that between neighbors, as if it faded by the same share from each sample to the next, or by blocks
    of consecutive samples, whichever is larger. `widening` is a factor on the distance of both ends from the median, in
    ranks.

    Source: ranks instead of values, Woodruff, Confidence intervals for medians and other position measures, JASA 47
        (1952) 635; blocks that go on from the last sample to the first, Politis and Romano, A circular
        block-resampling procedure for stationary data (1992), in closed form: the sum of a resample has the variance of
        the sums of its blocks times their number; a fitted correlation in place of long blocks, Andrews and Monahan,
        An improved heteroskedasticity and autocorrelation consistent covariance matrix estimator, Econometrica 60
        (1992) 953.
    """
    count, factor = len(samples), 1.0
    if count >= MIN_FOR_CORRELATION:
        import numpy as np

        values = np.asarray(samples, dtype=np.float64)
        # Of equal samples the first, or the last, is the lower: the mean of both ways.
        first = _centered_ranks(values)
        ways = first, first if len(set(samples)) == count else _centered_ranks(values[::-1])[::-1]
        factor = max(MIN_VARIANCE, _factor_by_neighbors((ways[0] + ways[1]) / 2))
        # Samples of a block, because neighbors in time correlate: three times the cube root of the count, the order of
        # Hall, Horowitz and Jing, Biometrika 82 (1995) 561; at least ten blocks, or they do not show how blocks differ.
        block = min(round(3 * math.cbrt(count)), count // 10)
        if block > 2:
            factor = max(factor, _variance_of_sum((np.sign(ways[0]) + np.sign(ways[1])) / 2, block) / count)
    degrees = max(1.0, count / factor - 2)
    middle = count / 2
    half = widening * student_t(degrees) * math.sqrt(factor * count) / 2
    ordered = sorted(samples)
    center, low, high = (_at_rank(ordered, rank) for rank in (middle, middle - half, middle + half))
    return Interval(center, low, high, degrees, half / middle)


def _at_rank(ordered: Sequence[float], rank: float) -> float:
    below = min(max(math.floor(rank - 0.5), 0), len(ordered) - 1)
    above = min(below + 1, len(ordered) - 1)
    part = min(max(rank - (below + 0.5), 0.0), 1.0)
    return ordered[below] + (ordered[above] - ordered[below]) * part


def _centered_ranks(values: NDArray[float64]) -> NDArray[float64]:
    order = values.argsort(kind="stable")
    return order.argsort().astype(float) - (len(values) - 1) / 2


def _factor_by_neighbors(ranks: NDArray[float64]) -> float:
    """Return by what the correlation of neighbors multiplies the variance of the count below the median.

    Source: the sides on which two normal values lie correlate by 2/pi asin(rho), Sheppard, Phil. Trans. R. Soc. A 192
        (1899) 101; rho from the correlation of ranks, 2 sin(pi r / 6), Pearson (1907).
    """
    import numpy as np

    count, squares = len(ranks), float(ranks @ ranks)
    if not squares:
        return 1.0
    found = float(ranks[1:] @ ranks[:-1]) / squares
    unbiased = (found * count + 1) / (count - min(BIAS, count / 2))
    rho = 2 * math.sin(math.pi / 6 * min(max(unbiased, -MAX_CORRELATION), MAX_CORRELATION))
    lags, weights = _lags(count)
    return 1 + 4 / math.pi * float(np.arcsin(rho**lags) @ weights)


@cache
def _lags(count: int) -> tuple[NDArray[int64], NDArray[float64]]:
    import numpy as np

    lags = np.arange(1, min(count, MAX_LAGS))
    return lags, 1 - lags / count


def _variance_of_sum(side: NDArray[float64], block: int) -> float:
    import numpy as np

    count = len(side)
    running = np.cumsum(np.concatenate(([0.0], side, side[:block])))
    sums = running[block : block + count] - running[:count]
    # Sides balance exactly, so that any two of them differ a little more often than by chance; the last factor, 1 for
    # blocks of one, gives back what that takes from the variance of independent samples.
    return float(np.var(sums)) * count / block * max(1, count - 1) / max(1, count - block)


@cache
def student_t(degrees: float, probability: float = 0.975) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def half_width(interval: tuple[float, float], center: float) -> float:
    """Return half the width of `interval` as a fraction of `center`; of a center of 0 no width is a fraction."""
    low, high = interval
    return (high - low) / 2 / center if center else math.inf


def outlier_count(samples_s: Sequence[float]) -> int:
    """Return how many samples are further than 5 median absolute deviations from the median; none is ever dropped.

    Where more than half of the samples are equal, as with a coarse tick, the mean absolute deviation takes the place
    of the median one.

    Source: the fallback, Iglewicz and Hoaglin, How to detect and handle outliers (1993).
    """
    middle = median(samples_s)
    deviations = [abs(sample - middle) for sample in samples_s]
    spread = median(deviations) or sum(deviations) / len(deviations)
    return sum(deviation > OUTLIER_MADS * spread for deviation in deviations)


@dataclass(frozen=True)
class Modes:
    """Two clusters of samples with few between them."""

    low_s: float
    """Median of the lower cluster."""
    high_s: float
    high_share: float
    """Share of all samples in the upper cluster."""


def two_modes(samples_s: Sequence[float], step_s: float = 0.0) -> Modes | None:
    """Return the two clusters that samples fall into, or None where they are one, however noisy.

    The samples are parted where the sum of the distances to the two medians is least. Both parts must be large and
    far apart, and somewhere between the medians there must be a valley that chance does not explain.

    `step_s` is the step of the samples, as a clock's tick makes it: samples of a coarse step are spread over it,
    because else every step would be a mode.

    Source: the parting, k-medians with k = 2 in one dimension, Bradley, Mangasarian and Street, Clustering via concave
        minimization, NIPS 9 (1997); a difference of Poisson counts has the variance of their sum.
    """
    import numpy as np

    values = np.sort(np.asarray(samples_s, dtype=np.float64))
    if len(values) and step_s > FINE_STEP * values[0]:
        values = _spread_over_step(values, step_s)
    least = math.floor(MODE_SHARE * len(values)) + 1
    if len(values) < 2 * least:
        return None
    split = _best_split(values, least)
    low, high = float(np.median(values[:split])), float(np.median(values[split:]))
    gap = high - low
    if gap <= MODE_GAP * low:
        return None

    centers = np.array([low, high, *(low + gap * part for part in (0.35, 0.425, 0.5, 0.575, 0.65))])
    near = np.searchsorted(values, centers + gap / 6) - np.searchsorted(values, centers - gap / 6)
    peak, valley = int(near[:2].min()), int(near[2:].min())
    if valley > VALLEY_DEPTH * peak or peak - valley <= VALLEY_DEVIATES * math.sqrt(peak + valley):
        return None
    # The parting had to give each part its least share, be there a valley or not: what lies beyond the valley counts.
    high_share = float(np.mean(values > (low + high) / 2))
    return Modes(low, high, high_share) if MODE_SHARE <= high_share <= 1 - MODE_SHARE else None


def _spread_over_step(ordered: NDArray[float64], step_s: float) -> NDArray[float64]:
    import numpy as np

    on_grid = np.round(ordered / step_s) * step_s
    _, first, counts = np.unique(on_grid, return_index=True, return_counts=True)
    place = np.arange(len(ordered)) - np.repeat(first, counts)
    spread: NDArray[float64] = on_grid + step_s * ((place + 0.5) / np.repeat(counts, counts) - 0.5)
    return spread


def _best_split(ordered: NDArray[float64], least: int) -> int:
    import numpy as np

    total = np.concatenate(([0.0], np.cumsum(ordered)))
    splits = np.arange(least, len(ordered) - least + 1)
    start = np.stack([np.zeros_like(splits), splits])  # of the lower and of the upper part
    end = np.stack([splits, np.full_like(splits, len(ordered))])
    middle = (start + end) // 2
    below = ordered[middle] * (middle - start) - (total[middle] - total[start])
    above = total[end] - total[middle] - ordered[middle] * (end - middle)
    return int(splits[np.argmin((below + above).sum(axis=0))])


def drift(samples_s: Sequence[float]) -> float | None:
    """Return the change from the first third of the samples to the last, as a fraction, or None where there is none.

    Positive means slower. A change counts where it is worth a word and more than the noise of the two medians.

    Source: three groups and their medians, the resistant line of Tukey, Exploratory Data Analysis (1977), chapter 5.
    """
    import numpy as np

    third = len(samples_s) // 3
    if third < 3:
        return None
    values = np.asarray(samples_s, dtype=np.float64)
    first, last = float(np.median(values[:third])), float(np.median(values[-third:]))
    # The trend itself must not count as noise of the thirds.
    flat = values - (last - first) * np.arange(len(values)) / (len(values) - third)
    intervals = [interval_of_median(part.tolist()) for part in (flat[:third], flat[-third:])]
    errors = [(interval.high - interval.low) / 2 / Z_975 for interval in intervals]
    change = last / first - 1
    if abs(change) <= MIN_DRIFT or abs(last - first) <= DRIFT_DEVIATES * math.hypot(*errors):
        return None
    return change
