"""Earlier runs of the rows of a comparison: how much the time of the same code differs from run to run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import fmean

from results.compare.flags import DISTURBED
from results.compare.sides import RowKey, is_users, revision_text
from results.compare.turns import windows
from results.record import DEFINITION_PREFIX, Environment, Record
from results.stats.comparison import FASTER, SLOWER, Comparison
from results.stats.samples import median
from results.stats.spread import Repeats, RowSpreads, Spread, spread_of_visits, widest
from results.store.runfile import Run, RunFileError, load_run, read_head

MAX_RUNS = 40
"""Runs read at most, the newest first: a spread needs tens of repeats, not all that were ever saved."""


def machine_of(environment: Environment) -> tuple[object, ...]:
    """Return what must agree for two runs to be of one machine, measured alike."""
    device = environment.device
    names = ("slug", "name", "uuid", "threads")
    return (environment.host.get("name"), *(device.get(name) for name in names))


def code_of(record: Record, environment: Environment) -> tuple[object, ...]:
    """Return what identifies the code that a record measured: the same for two records of identical code.

    With a known hash of the op's definition, the revision of the rest of this repository does not matter. That of a
    user's repository does: the hash of a user's file does not cover what the file imports.
    """
    has_hash = (record.op_sha256 or "").startswith(DEFINITION_PREFIX)
    git = record.source_git if is_users(record) else None if has_hash else environment.git
    versions = tuple(sorted(environment.versions.items()))
    hashes = record.source_sha256, record.op_sha256
    return record.provider, hashes, str(record.compiled), versions, revision_text(git)


def is_code_known(record: Record, environment: Environment) -> bool:
    """Return whether a record identifies its code: not that of a function measured from Python, or of another library.

    Records of older versions have no hash; a clean revision identifies the code of theirs that torch computed.
    """
    git = environment.git
    is_clean = bool(git.get("sha")) and git.get("dirty") is False and record.op != "function"
    return bool(record.source_sha256 or ((record.op_sha256 or is_clean) and record.provider.startswith("torch")))


def of_same_code(
    compared: Comparison, before: Record, after: Record, environments: tuple[Environment, Environment]
) -> Comparison:
    """Return a comparison without FASTER or SLOWER if both records measured the same code: the machine changed."""
    sides = list(zip((before, after), environments, strict=True))
    is_same = len({code_of(*side) for side in sides}) == 1 and all(is_code_known(*side) for side in sides)
    if not is_same or compared.verdict not in (FASTER, SLOWER):
        return compared
    return compared.unsure(", but the code is the same: the machine changed")


def runs_beside(runs: Sequence[Run]) -> list[Run]:
    """Return the newest other runs of the same machine that are saved beside these."""
    known = {run.path.resolve() for run in runs}
    machine = machine_of(runs[0].environment)
    paths = {path for run in runs for path in run.path.parent.glob("*.jsonl") if path.resolve() not in known}
    found = []
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        with suppress(RunFileError):
            if machine_of(read_head(path, counts_records=False)[0]) == machine:
                found.append(load_run(path))
        if len(found) == MAX_RUNS:
            break
    return found


class RunSpreads:
    """Spreads between runs of one machine, learned from the rows that measured the same code in several runs."""

    def __init__(self, runs: Iterable[Run]) -> None:
        """Collect the finished, undisturbed rows of some runs; a run that is there twice is no repeat."""
        times: dict[RowKey, dict[tuple[object, ...], dict[str, list[float]]]] = {}
        for run_id, run in {run.environment.run_id: run for run in runs}.items():
            for one in run.records:
                if one.status == "ok" and one.median_s and DISTURBED.isdisjoint(one.flags) and not one.interleaved:
                    codes = times.setdefault(RowKey.of(one, with_provider=True), {})
                    code = machine_of(run.environment), *code_of(one, run.environment)
                    codes.setdefault(code, {}).setdefault(run_id, []).append(math.log(one.median_s))
        self._repeats = {
            key: Repeats.of([list(map(fmean, by_run.values())) for by_run in codes.values()])
            for key, codes in times.items()
        }
        self._spreads = RowSpreads(self._repeats.values())

    def between(self, before: Sequence[Record], after: Sequence[Record]) -> Spread | None:
        """Return the spread between two runs of a row, at least that between its visits; None if nothing was repeated.

        Args:
            before: records of the row in the one run.
            after: in the other run.
        """
        keys = {RowKey.of(side[0], with_provider=True) for side in (before, after)}
        known = [self._repeats[key] for key in keys if key in self._repeats]
        runs = self._spreads.of(Repeats(sum(row.squares for row in known), sum(row.degrees for row in known)))
        found = widest([runs, between_visits(before, after)])
        return found and replace(found, has_runs=runs is not None)


def between_visits(*sides: Sequence[Record]) -> Spread | None:
    """Return the spread between two rows of one run by their visits; None if neither was visited again."""
    before, after = ([math.log(median(visit)) for visit in windows(side)] for side in sides)
    return spread_of_visits(before, after)
