"""How much the time of the same code differs from one measurement to the next on one machine.

An interval from the samples of one run describes the seconds in which they were taken. Two runs differ by more: the
clock, the temperature, other processes. That spread is learned from repeated runs of the same code on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from results.stats.samples import quantile, student_t

OTHERS_DEGREES = 4
"""Degrees of freedom at most that the other rows count for in the spread of one row, because rows differ; and no more
than it has itself, because all rows of a run move together.

Source: moderated variances, Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and
Molecular Biology 3 (2004) article 3, with a quantile of the other rows in place of a fitted prior."""

OTHERS_QUANTILE = 0.9
"""Quantile of the variances of all rows that a row without its own repeats is assumed to have. Of six rows of matmuls
of 256 to 1,024, the standard deviation between 20 runs was 1.8 to 5.7 %."""

CERTAIN = 1e9
"""Degrees of freedom of a spread that was given."""

VISITS = "visits of each row in its run"
RUNS = "runs of the same row and code"
OTHER_ROWS = "other rows whose code is the same in several runs"
GIVEN = "--drift"
"""Source of a spread, as text: what was repeated, or the option that gives it."""

QUANTILES = {VISITS: 0.995}
"""Probability at which Student's t is taken for the interval, by source; 0.975 for the others. Visits are seconds
apart, and a machine drifts further until it measures the last row of a run."""


class Repeats(NamedTuple):
    """Repeated measurements of the same code, as logarithms of their times."""

    squares: float = 0.0
    """Sum of the squared deviations from the mean of each group."""
    degrees: int = 0

    @classmethod
    def of(cls, groups: Iterable[Sequence[float]]) -> Repeats:
        squares, degrees = 0.0, 0
        for logs in groups:
            mean = math.fsum(logs) / len(logs)
            squares += math.fsum((value - mean) ** 2 for value in logs)
            degrees += len(logs) - 1
        return cls(squares, degrees)


@dataclass(frozen=True)
class Spread:
    """The standard deviation between two measurements of the same code."""

    deviation: float
    """Of the logarithm of the time."""
    degrees: float
    source: str
    has_runs: bool = True
    """False: two runs are compared, and only visits were repeated. That widens the interval and justifies no verdict,
    because visits are seconds apart and runs are minutes apart."""

    @property
    def half_width(self) -> float:
        """Half width of the 95 % interval of the difference of two measurements, in logarithms."""
        return student_t(self.degrees, QUANTILES.get(self.source, 0.975)) * self.deviation * math.sqrt(2)

    @property
    def share(self) -> float:
        """Change of the time, as a fraction, within which 95 % of two measurements of the same code are."""
        return math.expm1(self.half_width)


def given_spread(share: float) -> Spread:
    """Return the spread that `--drift` gives: 95 % of two measurements are within `share` of each other."""
    return Spread(math.log1p(share) / (student_t(CERTAIN) * math.sqrt(2)), CERTAIN, GIVEN)


def spread_of_visits(before: Sequence[float], after: Sequence[float]) -> Spread | None:
    """Return the spread of the means of two rows' visits, each the logarithms of its times; None if all are single."""
    squares, degrees = Repeats.of([before, after])
    mean_of = (1 / len(before) + 1 / len(after)) / 2
    return Spread(math.sqrt(squares / degrees * mean_of), degrees, VISITS) if degrees else None


class RowSpreads:
    """Spreads between runs of the rows of one machine."""

    def __init__(self, rows: Iterable[Repeats]) -> None:
        """Pool rows. All rows of a run move together, so many rows have no more degrees of freedom than one row."""
        known = [row for row in rows if row.degrees]
        self._degrees = max((row.degrees for row in known), default=0)
        self._variances = [row.squares / row.degrees for row in known]

    def of(self, row: Repeats) -> Spread | None:
        """Return the spread of a row by its own repeats, steadied by the other rows; by those alone if it has none.

        Nothing is known, and None returned, if no row was repeated.
        """
        if not self._degrees:
            return None
        if not row.degrees:
            deviation = math.sqrt(quantile(self._variances, OTHERS_QUANTILE))
            return Spread(deviation, min(OTHERS_DEGREES, self._degrees), OTHER_ROWS)
        others = min(OTHERS_DEGREES, row.degrees, len(self._variances) - 1)
        degrees = row.degrees + others
        return Spread(math.sqrt((row.squares + others * median(self._variances)) / degrees), degrees, RUNS)


def widest(spreads: Iterable[Spread | None]) -> Spread | None:
    return max(filter(None, spreads), key=lambda spread: spread.half_width, default=None)
