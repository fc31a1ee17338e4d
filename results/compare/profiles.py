"""Two profiles side by side: the time of each group of rows, the largest difference first.

A profile times each operation in one step, so the differences have no interval and no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from results.compare.sides import CompareError
from results.record import StepTotals
from results.show.grid import Cell, Cells, Row, Table, escaped, print_cells, print_lines, texts_of
from results.show.profile import Group, groups_of, scored
from results.show.terminal import printable
from results.show.units import duration, percent
from results.store.runfile import Run

if TYPE_CHECKING:
    from rich.console import Console

BY = ("op", "category", "module", "kernel")
"""Groups of rows that can be compared, see `results.show.profile.groups_of`."""


@dataclass(frozen=True)
class Change:
    """A group of rows in both profiles."""

    name: str
    before: Group
    after: Group

    @property
    def difference_s(self) -> float:
        return self.after.time_s - self.before.time_s

    def to_row(self, by: str) -> Row:
        return {
            by: self.name,
            "baseline_s": self.before.time_s,
            "candidate_s": self.after.time_s,
            "difference_s": self.difference_s,
            "baseline_calls": self.before.calls,
            "candidate_calls": self.after.calls,
        }

    def cells(self, by: str) -> Cells:
        calls = str(self.before.calls)
        if self.after.calls != self.before.calls:
            calls += f" -> {self.after.calls}"
        return {
            by: Cell(self.name, goes_below=4),
            "baseline": Cell(duration(self.before.time_s or None), "right"),
            "candidate": Cell(duration(self.after.time_s or None), "right"),
            "difference": Cell(difference(self.before.time_s, self.after.time_s), "right"),
            "calls": Cell(calls, "right", leaves=1),
        }


def difference(before_s: float, after_s: float) -> str:
    """Return the difference of two times, and as a part of the first, such as `-2 ms (-50%)`."""
    change_s = after_s - before_s
    sign = "-" if change_s < 0 else "+"
    text = f"{sign}{duration(abs(change_s))}"
    return f"{text} ({sign}{percent(abs(change_s) / before_s)})" if before_s else text


def step_of(run: Run) -> StepTotals:
    """Return the totals of a profile.

    Raises:
        CompareError: the run is no profile, or its step could not be timed.
    """
    step = run.environment.profile
    if step is None:
        raise CompareError(f"{run.environment.run_id} is no profile with times; compare two")
    return step


def table_of(baseline: Run, candidate: Run, by: str) -> Table:
    """Return the comparison of two profiles by groups of rows, one of `BY`.

    Raises:
        CompareError: one of the runs is no profile.
    """
    before_s = step_of(baseline).time_s
    after_s = step_of(candidate).time_s
    before = groups_of(scored(baseline.environment, baseline.records), by)
    after = groups_of(scored(candidate.environment, candidate.records), by)
    changes = []
    for path in before | after:
        group = before.get(path, Group())
        changes.append(Change(".".join(path), group, after.get(path, Group())))
    changes.sort(key=lambda change: -abs(change.difference_s))
    names = f"{baseline.environment.run_id} -> {candidate.environment.run_id}"
    head = printable(
        f"{names}: {duration(before_s)} -> {duration(after_s)}, {difference(before_s, after_s)}"
    )

    rows = [change.to_row(by) for change in changes]
    cells = [change.cells(by) for change in changes]
    document = {
        "baseline": baseline.environment.run_id,
        "candidate": candidate.environment.run_id,
        "baseline_s": before_s,
        "candidate_s": after_s,
        "rows": rows,
    }

    def draw(console: Console) -> None:
        print_lines(console, head, "")
        print_cells(console, cells)

    return Table(
        rows=lambda: rows,
        shown=lambda: texts_of(cells),
        document=lambda: document,
        draw=draw,
        head=lambda: f"{escaped(head)}\n\n",
    )
