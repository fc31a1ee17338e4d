"""Spread between measurements of the same code on one machine.

The interval of one run describes only the seconds of its samples. Runs differ by more: clock,
temperature, other processes. That spread is estimated from repeated runs of the same code on the
same machine.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_high, median_low
from typing import NamedTuple

from results.stats.samples import quantile, student_t

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


class PeerSpread(NamedTuple):
    """Center and scale of values that should be equal, robust against a few that are not."""

    center: float
    """The median, the higher one of two."""
    scale: float
    degrees: float

    @classmethod
    def of(cls, values: Collection[float], prior_scale: float, prior_degrees: float) -> PeerSpread:
        """Return the scaled median absolute deviation, moderated by a prior for few values.

        Of an even number, the faster of both middle values is the center, so that a slow half
        does not hide itself.

        Source: the factor n / (n - 0.8), Croux and Rousseeuw, Time-efficient algorithms for two
        highly robust estimators of scale (1992); moderated variances as for `MAX_OTHER_DEGREES`.
        """
        center = median_high(values)
        count = len(values)
        mad = 1.4826 * median_low(abs(value - center) for value in values) * count / (count - 0.8)
        # Two deviate alike, whatever the spread.
        own = MAD_EFFICIENCY * (count - 1) if count > 2 else 0.0
        degrees = prior_degrees + own
        square = (prior_degrees * prior_scale**2 + own * mad**2) / degrees
        return cls(center, math.sqrt(square), degrees)

    def p_value(self, value: float) -> float:
        """Return the probability of a value so far below the center by chance."""
        from scipy.special import stdtr

        return float(stdtr(self.degrees, (value - self.center) / self.scale))


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
