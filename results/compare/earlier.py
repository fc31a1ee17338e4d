"""Spread between runs of the same code, estimated from saved runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from statistics import fmean

from results.compare.flags import DISTURBED
from results.compare.sides import Code, Side, code_of, machine_facts
from results.record import Environment, Record, Rounds, RowKey
from results.stats.samples import Repeats, Spread, spread_of_row, spread_of_visits, widest
from results.store.runfile import Run, RunFileError, load_run

MAX_RUNS = 40
"""Maximum number of runs to read, newest first: a spread needs tens of repeats."""


def machine_of(environment: Environment) -> str:
    """Return a text that is equal for runs of one device on one machine."""
    return f"{environment.device.get('uuid')} {machine_facts(environment)}"


def runs_beside(runs: Sequence[Run]) -> list[Run]:
    """Return these runs, whole, and others of their machine in the same directories."""
    known = {run.path.resolve() for run in runs}
    machine = machine_of(runs[0].environment)
    paths = []
    for directory in {run.path.parent for run in runs}:
        paths += [path for path in directory.glob("*.jsonl") if path.resolve() not in known]
    runs_found = [load_run(run.path) for run in runs]
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        with suppress(RunFileError):
            run = load_run(path)
            if machine_of(run.environment) == machine:
                runs_found.append(run)
        if len(runs_found) == MAX_RUNS:
            break
    return runs_found


class SavedRuns:
    """Repeats of the same code in runs of one machine, and the spread between them."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """Collect successful rows without interference; the same run given twice is not a
        repeat.
        """
        self._rows: dict[tuple[RowKey, str, Code], dict[str, list[Record]]] = {}
        for run_id, run in {run.environment.run_id: run for run in runs}.items():
            machine = machine_of(run.environment)
            for record in run.records:
                is_timed = record.status == "ok" and record.median_s
                is_alone = not isinstance(record.details, Rounds)
                if is_timed and is_alone and DISTURBED.isdisjoint(record.flags):
                    key = (record.row, machine, code_of(record, run.environment))
                    self._rows.setdefault(key, {}).setdefault(run_id, []).append(record)
        groups: dict[RowKey, list[list[float]]] = {}
        for (row, _, _), by_run in self._rows.items():
            means = []
            for records in by_run.values():
                means.append(fmean(math.log(each.median_s) for each in records if each.median_s))
            groups.setdefault(row, []).append(means)
        self._repeats = {row: Repeats.of(means) for row, means in groups.items()}

    def count_steps(self, sides: Sequence[Side]) -> None:
        """Count a history of a row as its repeats, unless more of them are known."""
        key = sides[0].records[0].row
        steps = Repeats.of_steps([math.log(side.time_s) for side in sides])
        self._repeats[key] = max(steps, self._repeats.get(key, steps), key=attrgetter("degrees"))

    def repeated(self, side: Side) -> Side:
        """Return a side with the collected records of its code in all runs; unchanged if no other
        run has any.
        """
        first = side.records[0]
        own_id = side.environment.run_id
        by_run = self._rows.get((first.row, machine_of(side.environment), side.code), {})
        if not side.code.is_known or by_run.keys() <= {own_id}:
            return side
        own_first = sorted(by_run, key=lambda run_id: run_id != own_id)
        records = list(chain.from_iterable(by_run[run_id] for run_id in own_first))
        return Side.of(side.label, records, side.environment, len(by_run))

    def between(self, before: Side, after: Side) -> Spread | None:
        """Return the spread between the means of two rows, at least that between visits; None if
        nothing was repeated.

        The spread of a mean is proportional to 1 / sqrt(runs).
        """
        rows = {before.records[0].row, after.records[0].row}
        known = [self._repeats.get(row, Repeats()) for row in rows]
        squares = sum(repeats.squares for repeats in known)
        degrees = sum(repeats.degrees for repeats in known)
        runs = spread_of_row(Repeats(squares, degrees), self._repeats.values())
        if runs is not None:
            mean_of = (1 / before.runs + 1 / after.runs) / 2
            runs = replace(runs, deviation=runs.deviation * math.sqrt(mean_of))
        spread = widest([runs, spread_of_visits(before.windows, after.windows)])
        return spread and replace(spread, has_runs=runs is not None)
