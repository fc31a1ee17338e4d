"""Shares a budget among the rows of a run: the first rows get time for a narrow interval, the last may get none."""

from __future__ import annotations

import time
from collections.abc import Callable

from results.record import Record

LEAST_ROW_S = 1.0
"""Seconds that a row gets as long as the budget lasts: in less time few intervals become narrow."""

MOST_SHARES = 3.0
"""A row may take this many times its share of the time, because most rows take less than theirs."""


class Pace:
    """The time that is left of a budget, and what the rows so far have taken beside their samples."""

    def __init__(self, deadline: float | None, rows: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin with all rows to come; `deadline` is a reading of the clock, None without a budget."""
        self._deadline, self._rows, self._clock = deadline, rows, clock
        self._began = clock()
        self._overheads_s: list[float] = []
        self._expected_s = 0.0

    def left_s(self) -> float | None:
        """Return the seconds that are left; None without a budget."""
        return None if self._deadline is None else self._deadline - self._clock()

    def together(self, done: int) -> int:
        """Return how many rows share the time that is left when so many are done: fewer than all where it is short."""
        left_s = self.left_s()
        to_come = self._rows - done
        return to_come if left_s is None else max(1, min(to_come, int(left_s / LEAST_ROW_S)))

    @property
    def slowdown(self) -> float:
        """How many times as long as expected the rows so far took beside their samples; 1 before the first."""
        return sum(self._overheads_s) / self._expected_s if self._expected_s else 1.0

    def has_time(self, expected_s: float = 0.0) -> bool:
        """Return whether another row could end in time.

        Args:
            expected_s: what it is expected to take beside its samples. It takes at least the least that any row took,
                and where rows take longer than expected, it is taken to do so too. The first row is tried in any case.
        """
        left_s = self.left_s()
        if left_s is None or not self._overheads_s:
            return left_s is None or left_s > 0
        return left_s > max(min(self._overheads_s), self.slowdown * expected_s)

    def is_too_long(self, expected_s: float, done: int) -> bool:
        """Return whether a row that is expected to take so long would take several times its share of what is left."""
        left_s = self.left_s()
        return left_s is not None and self.slowdown * expected_s > MOST_SHARES * left_s / self.together(done)

    def took(self, record: Record, began: float, expected_s: float = 0.0) -> None:
        """Note what a row has taken that began at a reading of the clock; one that was not measured took no samples."""
        timed_s = sum(record.samples_s) * (record.launches_per_sample or 0)
        if record.status == "ok":
            self._overheads_s.append(max(0.0, self._clock() - began - timed_s))
            self._expected_s += expected_s

    def enough_s(self, done: int) -> int:
        """Return a budget in whole seconds that would do for about all rows, going by those that are done."""
        return round((self._clock() - self._began) / max(1, done) * self._rows) + 1
