"""How much the time of the same code differs from one measurement to the next on one machine.

An interval from the samples of one run describes the seconds in which they were taken. Two runs differ by more: the
clock, the temperature, other processes. That spread is learned from repeated measurements on the same machine, never
taken from another one: from the visits of a row within its run, and from earlier runs of the same code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from results.stats.samples import student_t

OTHERS_DEGREES = 4.0
"""Degrees of freedom at most that the other rows of a table count for in the spread of one row.

A row has few repeats of its own: three visits on either side give four degrees of freedom. Rows of one machine have
similar spreads, so the median of the others steadies the estimate without replacing it.

Source: moderated variances, Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and
Molecular Biology 3 (2004) article 3, with the median in place of a fitted prior."""

CERTAIN = 1e9
"""Degrees of freedom of a spread that was given."""

VISITS, RUNS, GIVEN = "visits of each row in its run", "earlier runs of the same code", "--drift"
"""Source of a spread, as text: what was repeated, or the option that gives it."""

QUANTILES = {VISITS: 0.995, RUNS: 0.975, GIVEN: 0.975}
"""Probability at which Student's t is taken for the interval, by source.

Visits are seconds apart and runs are minutes apart, in which a machine drifts further. Of 1,140 pairs of rows from 20
runs in 5 minutes, 2.2 % were FASTER or SLOWER by chance with 0.975 for visits, 0.4 % with 0.995."""


class Repeats(NamedTuple):
    """Repeated measurements of the same code, as logarithms of their times."""

    squares: float = 0.0
    """Sum of the squared deviations from the mean of each group."""
    degrees: int = 0

    @classmethod
    def of(cls, groups: Iterable[Iterable[float]]) -> Repeats:
        """Return the repeats of groups, each the logarithms of times of the same code."""
        squares, degrees = 0.0, 0
        for group in groups:
            logs = list(group)
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

    def half_width(self, before: int, after: int) -> float:
        """Return the half width of the 95 % interval of a difference of two means of measurements, in logarithms."""
        return student_t(self.degrees, QUANTILES[self.source]) * self.deviation * math.sqrt(1 / before + 1 / after)

    @property
    def share(self) -> float:
        """Change of the time, as a fraction, within which 95 % of two measurements of the same code are."""
        return math.expm1(self.half_width(1, 1))


def given_spread(share: float) -> Spread:
    """Return the spread that `--drift` gives: 95 % of two measurements are within `share` of each other."""
    return Spread(math.log1p(share) / (student_t(CERTAIN) * math.sqrt(2)), CERTAIN, GIVEN)


class Typical(NamedTuple):
    """The spread of a typical row of a table."""

    variance: float
    degrees: int
    """Degrees of freedom of all rows together."""

    @classmethod
    def of(cls, rows: Iterable[Repeats]) -> Typical:
        """Return the median variance of the rows that were repeated."""
        known = [one for one in rows if one.degrees]
        variance = median(one.squares / one.degrees for one in known) if known else 0.0
        return cls(variance, sum(one.degrees for one in known))


def spread_of(row: Repeats, table: Typical, source: str) -> Spread | None:
    """Return the spread of a row, steadied by the other rows of its table; None if nothing was repeated.

    Args:
        row: repeats of the row.
        table: of all rows, this one among them.
        source: what was repeated, as text.
    """
    weight = min(OTHERS_DEGREES, table.degrees - row.degrees)
    degrees = row.degrees + weight
    if not degrees:
        return None
    return Spread(math.sqrt((row.squares + weight * table.variance) / degrees), degrees, source)


def widest(spreads: Iterable[Spread | None]) -> Spread | None:
    """Return the spread with the widest interval; None if none is known."""
    return max(filter(None, spreads), key=lambda spread: spread.half_width(1, 1), default=None)
