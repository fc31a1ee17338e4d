"""Two profiles side by side: the time of each group of rows, the largest difference first.

A profile times each operation in one step, so the differences have no interval and no verdict.
"""

from __future__ import annotations

from results.compare.sides import CompareError
from results.show.grid import Cell, Cells, Row, Table
from results.show.profile import Group, cut, groups_of, scored
from results.show.units import duration, percent
from results.store.runfile import Run

BY = ("op", "category", "module", "kernel")
"""Groups of rows that can be compared, see `results.show.profile.groups_of`."""


def difference(before_s: float, after_s: float) -> str:
    """Return the difference of two times, and as a part of the first, such as `-2 ms (-50%)`."""
    change_s = after_s - before_s
    sign = "-" if change_s < 0 else "+"
    text = f"{sign}{duration(abs(change_s))}"
    return f"{text} ({sign}{percent(abs(change_s) / before_s)})" if before_s else text


def table_of(baseline: Run, candidate: Run, by: str) -> Table:
    """Return the comparison of two profiles by groups of rows, one of `BY`.

    Raises:
        CompareError: one of the runs is no profile, or its step could not be timed.
    """
    times_s = []
    for run in (baseline, candidate):
        step = run.environment.profile
        if step is None:
            raise CompareError(f"{run.environment.run_id} is no profile with times; compare two")
        times_s.append(step.time_s)
    before_s, after_s = times_s
    before = groups_of(scored(baseline.environment, baseline.records), by)
    after = groups_of(scored(candidate.environment, candidate.records), by)
    rows: list[Row] = []
    cells: list[Cells] = []
    for path in before | after:
        old = before.get(path, Group())
        new = after.get(path, Group())
        name = ".".join(path)
        rows.append(
            {
                by: name,
                "baseline_s": old.time_s,
                "candidate_s": new.time_s,
                "difference_s": new.time_s - old.time_s,
                "baseline_calls": old.calls,
                "candidate_calls": new.calls,
            }
        )
    rows.sort(key=lambda row: -abs(row["difference_s"]))
    for row in rows:
        calls = " -> ".join(
            map(str, dict.fromkeys((row["baseline_calls"], row["candidate_calls"])))
        )
        times = (row["baseline_s"], row["candidate_s"])
        cells.append(
            {
                by: Cell(cut(row[by]), leaves=4),
                "baseline": Cell(duration(times[0] or None), "right"),
                "candidate": Cell(duration(times[1] or None), "right"),
                "difference": Cell(difference(*times), "right"),
                "calls": Cell(calls, "right", leaves=1),
            }
        )
    names = f"{baseline.environment.run_id} -> {candidate.environment.run_id}"
    title = f"{names}: {duration(before_s)} -> {duration(after_s)}, {difference(before_s, after_s)}"
    document = {
        "baseline": baseline.environment.run_id,
        "candidate": candidate.environment.run_id,
        "baseline_s": before_s,
        "candidate_s": after_s,
        "rows": rows,
    }

    return Table(rows=lambda: rows, cells=lambda: cells, title=title, document=lambda: document)
