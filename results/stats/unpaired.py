"""Is one version slower than another that was measured at another time? The ratio of two medians, with its interval.

The interval holds the scatter within the two series. How the machine differed between the two times is in it where a
side was measured in several windows, such as processes, or where it is allowed for (`results.stats.drift`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from results.stats.comparison import (
    DEFAULT_MARGIN,
    LEAST_PAIRS,
    MORE_SAMPLES,
    SMALL_T_975,
    TIME,
    UNKNOWN,
    Comparison,
    check_margin,
    judged,
)
from results.stats.drift import Drift
from results.stats.samples import log_medians, student_t_975

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

MORE_WINDOWS = "measuring both again, or in turns (bench compare), would tell"
"""What helps where the interval is mostly for drift."""

MOSTLY = 0.5**0.5
"""Share of an interval's half width from which on its larger part, in squares, is for drift."""


Windows = Sequence["NDArray[float64]"]
"""The times of each window of one side, already checked."""


def compare_many(
    rows: Sequence[tuple[Windows, Windows]],
    margin: float = DEFAULT_MARGIN,
    factors: Sequence[float] | None = None,
    quantity: str = TIME,
    drift: Drift | None = None,
) -> list[Comparison]:
    """Return the ratios of the two sides of many rows, with interval and verdict: 100,000 rows in a few seconds.

    The sides were not interleaved; each was measured in one or several windows, such as processes. Of each window the
    median counts, and of each side the geometric mean of its medians. The interval is the wider one of what the samples
    within the windows tell and what the windows tell by differing from each other; a side with one window borrows the
    spread of the other one. How the machine differed between two single windows is only in it as `drift`.

    Args:
        rows: windows of the baseline and of the candidate, at least one each.
        margin: change of the time, as a fraction, that does not matter.
        factors: for each row, by what its ratio is to be multiplied: 2 where the candidate did half the work.
        quantity: what the reasons speak of, see `judged`.
        drift: what to allow for where both sides have one window; None for nothing.

    Raises:
        ValueError: the margin is no fraction from 0 up, a side has no windows, or a window has no times.
    """
    check_margin(margin)
    return judge_sides(sides_of(rows), margin, factors, quantity, drift) if rows else []


def judge_sides(
    sides: Sides,
    margin: float = DEFAULT_MARGIN,
    factors: Sequence[float] | None = None,
    quantity: str = TIME,
    drift: Drift | None = None,
) -> list[Comparison]:
    """Return the comparison of each row; arguments as of `compare_many`.

    Source: the limits of a difference from the limits of its parts, Zou and Donner, Construction of confidence limits
        about effect measures, Statistics in Medicine 27 (2008) 1693; the spread of repeated runs above that of the
        samples within, Kalibera and Jones, Rigorous benchmarking in reasonable time, ISMM 2013.
    """
    import numpy as np

    ends, degrees, drifts = _differences(sides, drift)
    ends += np.log(factors) if factors is not None else 0.0
    is_by_drift = drifts > (ends[2] - ends[1]) / 2 * MOSTLY
    remedies = [MORE_WINDOWS if by_drift else MORE_SAMPLES for by_drift in is_by_drift.tolist()]
    words = f"; {drift.words}" if drift and drift.share else ""
    notes = [words if allowed else "" for allowed in drifts.tolist()]
    columns = (*ends.tolist(), degrees.tolist(), sides.samples.tolist(), drifts.tolist(), remedies, notes)
    compared = [
        judged(center, low, high, degrees_of_row, count, margin, "sample", quantity, allowed, remedy, note)
        for center, low, high, degrees_of_row, count, allowed, remedy, note in zip(*columns, strict=True)
    ]
    # The range of a few samples is no interval of 95 %.
    return [replace(row, ci95=UNKNOWN, drift=0.0) if row.pairs < LEAST_PAIRS else row for row in compared]


@dataclass(frozen=True)
class Sides:
    """Both sides of every row, in logarithms: a column of baselines, a column of candidates."""

    center: NDArray[float64]
    below: NDArray[float64]
    """How far the 95 % interval reaches below the center, by the scatter within the windows."""
    above: NDArray[float64]
    degrees: NDArray[float64]
    windows: NDArray[float64]
    squares: NDArray[float64]
    """Sum of the squared deviations of the windows from their center."""
    samples: NDArray[int64]
    """Samples of the smaller side of each row."""

    def spread_between(self) -> tuple[float, float]:
        """Return the standard deviation between windows of the same row and side, over all rows, and its degrees."""
        degrees = float((self.windows - 1).sum())
        return (float(self.squares.sum()) / degrees) ** 0.5 if degrees else 0.0, degrees


def sides_of(rows: Sequence[tuple[Windows, Windows]]) -> Sides:
    """Return the mean of the windows of each side.

    Args:
        rows: windows of the baseline and of the candidate, at least one each.

    Raises:
        ValueError: a side has no windows, or a window has no times.
    """
    import numpy as np

    counts = np.array([(len(baseline), len(candidate)) for baseline, candidate in rows], dtype=np.int64).reshape(-1, 2)
    if not counts.all():
        raise ValueError("there are no windows to compare")
    windows = [times_s for row in rows for side in row for times_s in side]
    medians, samples = log_medians(windows), np.array([len(times_s) for times_s in windows])
    of_side = counts.ravel()
    starts = np.cumsum(of_side) - of_side

    def total(values: NDArray[float64]) -> NDArray[float64]:
        summed: NDArray[float64] = np.add.reduceat(values, starts)
        return summed

    def column(values: NDArray[float64]) -> NDArray[float64]:
        return values.reshape(-1, 2)

    center = total(medians.center) / of_side
    return Sides(
        center=column(center),
        below=column(np.sqrt(total((medians.center - medians.low) ** 2)) / of_side),
        above=column(np.sqrt(total((medians.high - medians.center) ** 2)) / of_side),
        degrees=column(total(medians.degrees)),
        windows=column(of_side.astype(np.float64)),
        squares=column(total((medians.center - np.repeat(center, of_side)) ** 2)),
        samples=np.add.reduceat(samples, starts).reshape(-1, 2).min(axis=1),
    )


def _differences(sides: Sides, drift: Drift | None) -> tuple[NDArray[float64], NDArray[float64], NDArray[float64]]:
    """Return candidate less baseline of each row, as three lines (center, low, high), its degrees of freedom, and the
    half width of what it holds for drift.
    """
    import numpy as np

    center = sides.center[:, 1] - sides.center[:, 0]
    below, above, degrees = _within(sides)
    repeated = sides.windows.sum(axis=1) - 2
    known = np.maximum(repeated, 1)
    deviate = np.select([known == count for count in SMALL_T_975], list(SMALL_T_975.values()), student_t_975(known))
    spread = np.sqrt(sides.squares.sum(axis=1) / known)
    between = deviate * spread * np.sqrt((1 / sides.windows).sum(axis=1))
    degrees = np.where(between > np.minimum(below, above), known, degrees)
    below, above = np.maximum(below, between), np.maximum(above, between)
    drifts = np.where(repeated == 0, drift.half_width if drift else 0.0, 0.0)
    if drift is not None and drift.share:
        half = (below + above) / 2
        joined = (half**2 + drifts**2) ** 2 / (half**4 / degrees + drifts**4 / drift.degrees)
        degrees = np.where(drifts > 0, joined, degrees)
    return np.stack((center, center - np.hypot(below, drifts), center + np.hypot(above, drifts))), degrees, drifts


def _within(sides: Sides) -> tuple[NDArray[float64], NDArray[float64], NDArray[float64]]:
    """Return how far each interval reaches below and above by the scatter within the windows, and degrees of freedom.

    Source: the degrees of freedom of a difference, Welch, The generalization of Student's problem when several
        different population variances are involved, Biometrika 34 (1947) 28.
    """
    import numpy as np

    deviate = student_t_975(sides.degrees)
    variance = ((sides.below + sides.above) / 2 / deviate) ** 2
    total = variance.sum(axis=1)
    # Where nothing scatters, any degrees of freedom do.
    welch = total**2 / np.maximum((variance**2 / sides.degrees).sum(axis=1), np.finfo(np.float64).tiny)
    degrees = np.where(total > 0, np.maximum(welch, 1), sides.degrees.sum(axis=1))
    scale = student_t_975(degrees)[:, None] / deviate
    below, above = scale * sides.below, scale * sides.above
    return np.hypot(below[:, 1], above[:, 0]), np.hypot(above[:, 1], below[:, 0]), degrees
