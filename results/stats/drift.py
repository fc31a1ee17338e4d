"""How much the same code differs from one window of time to the next, which no sample within a window tells.

Two versions that were measured one after the other differ by what the machine became meanwhile: its clock, its heat,
its neighbors. An interval from their samples alone knows nothing of that. What it must allow for comes from what was
given, else from what was measured several times, else from what was published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from results.stats.samples import Z_975, student_t_975

ASSUMED = 0.03
"""Allowance where nothing is known of a machine: identical configurations differ by 1 to 3 % between two windows on a
B200. That is taken as the range of 95 % of differences.

Source: sequential windows of a kernel autotuner, pytorch/helion pull request 3523."""

LEAST_REPEATS = 3
"""Degrees of freedom from which on a spread is taken from repeats alone: Student's deviate is 12.7 with one, and 3.2
with three."""

CERTAIN = 1e9
"""Degrees of freedom of an allowance that is no estimate."""


@dataclass(frozen=True)
class Drift:
    """An allowance for what differs between two windows."""

    share: float
    """Change of the time, as a fraction, within which 95 % of two windows of the same code lie."""
    source: str
    """Where the number comes from, in words."""
    degrees: float = CERTAIN
    """Degrees of freedom behind it."""

    @property
    def half_width(self) -> float:
        """The same in logarithms."""
        return math.log1p(self.share)

    @property
    def words(self) -> str:
        """The allowance in a reason."""
        return f"±{100 * self.share:.2g} % allowed for drift between the two measurements"


def drift_of(given: float | None, spread: float, degrees: float) -> Drift:
    """Return the allowance for two windows.

    Args:
        given: as a fraction; None where the user did not say.
        spread: standard deviation of the logarithm of the time between windows of the same code.
        degrees: degrees of freedom of that estimate, 0 where nothing was measured twice.
    """
    if given is not None:
        return Drift(given, "given by --drift")
    if degrees >= LEAST_REPEATS:
        share = math.expm1(student_t_975(degrees) * spread * math.sqrt(2))
        return Drift(share, f"from {degrees:.0f} repeats of rows of these runs", degrees)
    seen = math.expm1(Z_975 * spread * math.sqrt(2))
    if seen > ASSUMED:
        return Drift(seen, "from few repeats of rows of these runs")
    return Drift(ASSUMED, "assumed: identical code differed by 1 to 3 % between two times on a B200, helion#3523")
