"""Median with its confidence interval, outliers, modes and drift of samples, and the spread between
measurements of the same code on one machine.

The interval of one run describes only the seconds of its samples. Runs differ by more: clock,
temperature, other processes. That spread is estimated from repeated runs.

NumPy and SciPy are imported by the functions that need them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import NormalDist, median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

Z_975 = NormalDist().inv_cdf(0.975)
"""97.5 % quantile of the normal distribution."""

MIN_VARIANCE = 0.5
"""Minimum factor on the variance of independent samples: a strictly alternating series would get an
interval of zero width."""

MIN_FOR_CORRELATION = 15
"""Fewer samples do not show how neighbors correlate."""

BIAS = 8
"""Subtracted from the number of samples, because few samples underestimate the correlation of
neighbors. Chosen by simulation: 0.93 to 0.97 of the intervals contain the true median for 20, 60
and 200 normal samples whose neighbors correlate by 0 to 0.8. Theory gives 4 for small correlations,
Kendall, Note on bias in the estimation of autocorrelation, Biometrika 41 (1954) 403."""

MAX_CORRELATION = 0.98
MAX_LAGS = 400
"""The maximum correlation vanishes over this many samples: 0.98^400 = 0.0003."""

OUTLIER_MADS = 5
"""Median absolute deviations from the median to an outlier: 0.07 % of normal noise."""

MODE_SHARE = 0.15
"""Minimum fraction of the samples in each of two modes: fewer are outliers."""

MODE_GAP = 0.03
"""Minimum distance of two modes, as a fraction of the lower mode."""

FINE_STEP = 4e-3
"""Timer steps up to this fraction of the smallest sample make no valley between two modes: samples
are counted in intervals of at least a third of `MODE_GAP`, which is two or three steps."""

VALLEY_DEPTH = 0.5
"""Maximum density between two modes, as a fraction of that of the smaller mode."""

VALLEY_DEVIATES = 2.75
"""Standard deviations by which the valley must be emptier than by chance. In simulation, at most
0.5 % of series of one mode (normal, uniform, exponential, Laplace; 20 to 300 samples) then have
two."""

MIN_DRIFT = 0.01
"""Minimum change from the first to the last third, as a fraction: twice the target interval of a
GPU row.
"""

DRIFT_DEVIATES = 4.0
"""Standard errors that the change must exceed: thirds have few samples, and neighbors correlate."""


MAX_OTHER_DEGREES = 4
"""Maximum degrees of freedom that the other rows add to the spread of a row, because rows differ.
They add no more than the row's own, because all rows of a run move together.

Source: moderated variances, Smyth, Linear models and empirical Bayes methods, Statistical
Applications in Genetics and Molecular Biology 3 (2004) article 3, with a quantile of the other rows
in place of a fitted prior."""

OTHERS_QUANTILE = 0.9
"""Quantile of the variances of all rows, assumed for a row without repeats. The standard deviation
between 20 runs of matmuls of 256 to 1,024 was 1.8 to 5.7 % in six rows."""

CERTAIN = 1e9
"""Degrees of freedom of the spread given by `--drift`."""

VISITS = "visits of each row in its run"
RUNS = "runs of the same row and code"
OTHER_ROWS = "other rows whose code is the same in several runs"
GIVEN = "--drift"
"""Source of a spread: the repeated measurements, or the option."""

QUANTILES = {VISITS: 0.995}
"""Quantile of Student's t for the interval by source, 0.975 by default. It is higher for visits:
they are seconds apart, and a machine drifts further during a run."""

MAD_EFFICIENCY = 0.37
"""Efficiency of the median absolute deviation for normal values. Source: Rousseeuw and Croux,
Alternatives to the median absolute deviation, JASA 88 (1993) 1273."""

MEDIAN_EFFICIENCY = 0.64
"""Efficiency of the median for normal values, 2 / pi."""


def quantile(values: Sequence[float], share: float) -> float:
    import numpy as np

    return float(np.quantile(values, share))


def median_ci95(samples_s: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median; see `interval_of_median`.

    Fewer than six samples cannot reach 95 %: their interval is their range.
    """
    interval = interval_of_median(samples_s)
    return interval.low, interval.high


@dataclass(frozen=True)
class Interval:
    """Median of a series with its 95 % interval."""

    center: float
    low: float
    high: float
    degrees: float
    """Degrees of freedom of Student's t distribution behind the interval."""
    share_needed: float = 0.0
    """Half width in ranks over half of all ranks; above 1 the interval should be wider than all
    samples.
    """


def interval_of_median(samples: Sequence[float], widening: float = 1.0) -> Interval:
    """Return the median of a series with its 95 % interval.

    The ends are the samples at the ranks between which the true median is, given the variance of
    the number of samples below it. That variance is that of independent samples times a factor for
    their correlation: the larger one of an exponential decay fitted to neighbors and of blocks of
    consecutive samples. `widening` is a factor on the distance of both ends from the median, in
    ranks.

    Source: ranks instead of values, Woodruff, Confidence intervals for medians and other position
    measures, JASA 47 (1952) 635; blocks that go on from the last sample to the first, Politis and
    Romano, A circular block-resampling procedure for stationary data (1992), in closed form: the
    sum of a resample has the variance of the sums of its blocks times their number; a fitted
    correlation in place of long blocks, Andrews and Monahan, An improved heteroskedasticity and
    autocorrelation consistent covariance matrix estimator, Econometrica 60 (1992) 953.
    """
    import numpy as np

    values = np.asarray(samples, dtype=np.float64)
    count = len(samples)
    factor = 1.0
    if count >= MIN_FOR_CORRELATION:
        # Mean of ranking equal samples from the first and from the last.
        first = _centered_ranks(values)
        last = first if len(set(samples)) == count else _centered_ranks(values[::-1])[::-1]
        factor = max(MIN_VARIANCE, _factor_by_neighbors((first + last) / 2))
        # Block length: three times the cube root of the count, the order of Hall, Horowitz and
        # Jing, Biometrika 82 (1995) 561, but at least ten blocks.
        block = min(round(3 * math.cbrt(count)), count // 10)
        if block > 2:
            side = (np.sign(first) + np.sign(last)) / 2
            running = np.cumsum(np.concatenate(([0.0], side, side[:block])))
            sums = running[block : block + count] - running[:count]
            # The last factor corrects for the sides, which balance exactly.
            factor = max(factor, float(np.var(sums)) / block * (count - 1) / (count - block))
    degrees = max(1.0, count / factor - 2)
    middle = count / 2
    half = widening * student_t(degrees) * math.sqrt(factor * count) / 2
    ends = middle, middle - half, middle + half
    center, low, high = np.interp(ends, np.arange(0.5, count), np.sort(values)).tolist()
    return Interval(center, low, high, degrees, half / middle)


def _centered_ranks(values: NDArray[float64]) -> NDArray[float64]:
    order = values.argsort(kind="stable")
    return order.argsort().astype(float) - (len(values) - 1) / 2


def _factor_by_neighbors(ranks: NDArray[float64]) -> float:
    """Return the factor of the correlation of neighbors on the variance of the count below the
    median.

    Source: the sides on which two normal values lie correlate by 2/pi asin(rho), Sheppard, Phil.
    Trans. R. Soc. A 192 (1899) 101; rho from the correlation of ranks, 2 sin(pi r / 6), Pearson
    (1907).
    """
    import numpy as np

    count = len(ranks)
    squares = float(ranks @ ranks)
    if not squares:
        return 1.0
    correlation = float(ranks[1:] @ ranks[:-1]) / squares
    unbiased = (correlation * count + 1) / (count - min(BIAS, count / 2))
    rho = 2 * math.sin(math.pi / 6 * min(max(unbiased, -MAX_CORRELATION), MAX_CORRELATION))
    lags = np.arange(1, min(count, MAX_LAGS))
    return 1 + 4 / math.pi * float(np.arcsin(rho**lags) @ (1 - lags / count))


@cache
def student_t(degrees: float, probability: float = 0.975) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def half_width(interval: tuple[float, float], center: float) -> float:
    """Return half the width of `interval` as a fraction of `center`; infinite for a center of 0."""
    low, high = interval
    return (high - low) / 2 / center if center else math.inf


def outlier_count(samples_s: Sequence[float]) -> int:
    """Return the number of samples further than 5 median absolute deviations from the median.

    If more than half of the samples are equal, as with a coarse timer, the mean absolute deviation
    is used.

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
    """Fraction of all samples in the upper cluster."""


def two_modes(samples_s: Sequence[float], step_s: float = 0.0) -> Modes | None:
    """Return the two clusters of the samples; None if they are one cluster, however noisy.

    The samples are split to minimize the sum of the distances to the two medians. Both parts must
    be large and far apart, with a valley between the medians that is not by chance.

    `step_s` is the timer resolution: samples are spread over a coarse step, or every step would be
    a mode.

    Source: the split, k-medians with k = 2 in one dimension, Bradley, Mangasarian and Street,
    Clustering via concave minimization, NIPS 9 (1997); a difference of Poisson counts has the
    variance of their sum.
    """
    import numpy as np

    values = np.sort(np.asarray(samples_s, dtype=np.float64))
    if len(values) and step_s > FINE_STEP * values[0]:
        values = _spread_over_step(values, step_s)
    least = math.floor(MODE_SHARE * len(values)) + 1
    if len(values) < 2 * least:
        return None
    split = _best_split(values, least)
    low = float(np.median(values[:split]))
    high = float(np.median(values[split:]))
    gap = high - low
    if gap <= MODE_GAP * low:
        return None

    centers = np.array([low, high, *(low + gap * part for part in (0.35, 0.425, 0.5, 0.575, 0.65))])
    near = np.searchsorted(values, centers + gap / 6) - np.searchsorted(values, centers - gap / 6)
    peak = int(np.min(near[:2]))
    valley = int(np.min(near[2:]))
    if valley > VALLEY_DEPTH * peak or peak - valley <= VALLEY_DEVIATES * math.sqrt(peak + valley):
        return None
    # The split has the minimum fractions even without a valley: count the samples beyond the
    # valley.
    high_share = float(np.mean(values > (low + high) / 2))
    return Modes(low, high, high_share) if MODE_SHARE <= high_share <= 1 - MODE_SHARE else None


def _spread_over_step(ordered: NDArray[float64], step_s: float) -> NDArray[float64]:
    import numpy as np

    on_grid = np.round(ordered / step_s) * step_s
    _, first, counts = np.unique(on_grid, return_index=True, return_counts=True)
    position = np.arange(len(ordered)) - np.repeat(first, counts)
    return on_grid + step_s * ((position + 0.5) / np.repeat(counts, counts) - 0.5)


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
    """Return the change from the first to the last third of the samples, as a fraction; None if
    none is significant.

    Positive means slower. The change must exceed `MIN_DRIFT` and the noise of the two medians.

    Source: three groups and their medians, the resistant line of Tukey, Exploratory Data Analysis
    (1977), chapter 5.
    """
    import numpy as np

    third = len(samples_s) // 3
    if third < 3:
        return None
    values = np.asarray(samples_s, dtype=np.float64)
    first = float(np.median(values[:third]))
    last = float(np.median(values[-third:]))
    # Without the trend, which is not noise of the thirds.
    flat = values - (last - first) * np.arange(len(values)) / (len(values) - third)
    intervals = [interval_of_median(part.tolist()) for part in (flat[:third], flat[-third:])]
    errors = [(interval.high - interval.low) / 2 / Z_975 for interval in intervals]
    change = last / first - 1
    if abs(change) <= MIN_DRIFT or abs(last - first) <= DRIFT_DEVIATES * math.hypot(*errors):
        return None
    return change


class Repeats(NamedTuple):
    """Sums over repeated measurements of the same code, in logarithms of the time."""

    squares: float = 0.0
    """Sum of the squared deviations from the mean of each group."""
    degrees: int = 0

    @classmethod
    def of(cls, groups: Iterable[Sequence[float]]) -> Repeats:
        squares = 0.0
        degrees = 0
        for logs in groups:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((value - mean) ** 2 for value in logs)
            degrees += len(logs) - 1
        return cls(squares, degrees)

    @classmethod
    def of_steps(cls, logs: Sequence[float]) -> Repeats:
        """Return the repeats that a history is worth: most changes from one value to the next are
        noise, and a few large ones count as little as a steady drift.
        """
        steps = [after - before for before, after in pairwise(logs)]
        degrees = int(MAD_EFFICIENCY * (len(steps) - 1))
        if degrees < 1:
            return cls()
        middle = median(steps)
        mad = median(abs(step - middle) for step in steps)
        return cls(degrees * (1.4826 * mad) ** 2 / 2, degrees)


@dataclass(frozen=True)
class Spread:
    """The standard deviation between two measurements of the same code."""

    deviation: float
    """Standard deviation of the logarithm of the time."""
    degrees: float
    source: str
    has_runs: bool = True
    """False if two runs are compared but only visits were repeated. That widens the interval
    without a verdict: visits are seconds apart, runs minutes."""

    @property
    def half_width(self) -> float:
        """Half width of the 95 % interval of the difference of two measurements, in logarithms."""
        return (
            student_t(self.degrees, QUANTILES.get(self.source, 0.975))
            * self.deviation
            * math.sqrt(2)
        )

    @property
    def share(self) -> float:
        """Change of the time, as a fraction, that 95 % of pairs of measurements of the same code do
        not exceed.
        """
        return math.expm1(self.half_width)


def given_spread(share: float) -> Spread:
    """Return the spread for which 95 % of pairs of measurements are within `share` of each
    other.
    """
    return Spread(math.log1p(share) / (student_t(CERTAIN) * math.sqrt(2)), CERTAIN, GIVEN)


def spread_of_visits(
    before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
) -> Spread | None:
    """Return the spread of the means of two rows, given the times of each visit; None if each has
    one visit.
    """
    logs = []
    for visits in (before, after):
        logs.append([math.log(median(times_s)) for times_s in visits])
    squares, degrees = Repeats.of(logs)
    mean_of = (1 / len(before) + 1 / len(after)) / 2
    return Spread(math.sqrt(squares / degrees * mean_of), degrees, VISITS) if degrees else None


def spread_of_row(row: Repeats, others: Iterable[Repeats]) -> Spread | None:
    """Return the spread of a row from its repeats, moderated by the rows of its machine, itself
    among them; from those alone without repeats. None if no row was repeated.

    All rows of a run move together, so many rows have no more degrees of freedom than one row.
    """
    known = [other for other in others if other.degrees]
    if not known:
        return None
    variances = [other.squares / other.degrees for other in known]
    if not row.degrees:
        variance = quantile(variances, OTHERS_QUANTILE)
        most = max(other.degrees for other in known)
        return Spread(math.sqrt(variance), min(MAX_OTHER_DEGREES, most), OTHER_ROWS)
    added = min(MAX_OTHER_DEGREES, row.degrees, len(variances) - 1)
    degrees = row.degrees + added
    squares = row.squares + added * median(variances)
    return Spread(math.sqrt(squares / degrees), degrees, RUNS)


def widest(spreads: Iterable[Spread | None]) -> Spread | None:
    return max(filter(None, spreads), key=lambda spread: spread.half_width, default=None)
