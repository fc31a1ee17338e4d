"""Records as a comparison needs them: which are wanted, how they took turns, whose revision they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from results.record import Record
from results.store.runfile import Run, load_run

PROCESS = "process"
"""Option of older records: which process measured them. It does not distinguish cases."""


class Interleaving(NamedTuple):
    """How the samples of one record and those of the other providers of its case were interleaved."""

    samples_per_round: int
    is_fixed: bool
    """Whether the number of rounds was set beforehand."""
    rounds: tuple[Any, ...]
    """The same in all records of the same rounds, and in no others."""
    clocks_hz: tuple[float, ...] | None
    """SM clock of each round; None if unknown."""
    seconds: float | None
    """Duration of all rounds; None if unknown."""


def turns_of(record: Record) -> Interleaving | None:
    """Return how a record was interleaved with others; None if it was not, or if that does not fit its samples."""
    found = record.interleaved
    names, size, is_fixed = (found.get(name) for name in ("with", "samples_per_round", "is_fixed"))
    if not isinstance(names, list) or not isinstance(is_fixed, bool):
        return None
    samples = len(record.samples_s)
    if type(size) is not int or size < 1 or not samples or samples % size:
        return None
    clocks_hz, seconds = found.get("sm_clock_hz"), found.get("seconds")
    same = (*map(str, names), str(found.get("seed")), str(seconds), samples // size)
    clocks = tuple(clocks_hz) if clocks_hz and len(clocks_hz) == samples // size else None
    return Interleaving(size, is_fixed, same, clocks, seconds)


def text_of(values: Mapping[str, Any]) -> str:
    """Return names and values as one text that does not depend on their order."""
    return " ".join(f"{name}={values[name]}" for name in sorted(values) if name != PROCESS)


def is_users(record: Record) -> bool:
    """Return whether the provider is a user's own function: no built-in name has a colon."""
    return ":" in record.provider


def revision_text(git: Mapping[str, Any] | None) -> str | None:
    """Return a git revision, ten digits, with `-dirty` if files were changed; None if unknown."""
    sha = git.get("sha") if git else None
    return f"{str(sha)[:10]}{'-dirty' if git and git.get('dirty') else ''}" if sha else None


def windows(records: Iterable[Record]) -> list[list[float]]:
    """Return the samples of each visit of each record, seconds; its median alone if it has no samples."""
    found = []
    for one in records:
        samples_s = list(one.samples_s) or [one.median_s or 0.0]
        ends = list(accumulate(one.visits)) or [len(samples_s)]
        found += [samples_s[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return found


@dataclass(frozen=True)
class Wanted:
    """Which records to read; an empty set wants all."""

    ops: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    cases: frozenset[str] = frozenset()
    providers: frozenset[str] = frozenset()

    def has(self, record: Record) -> bool:
        """Return whether a record is among those wanted."""
        return (
            (not self.ops or record.op in self.ops)
            and (not self.dtypes or record.dtype in self.dtypes)
            and (not self.cases or record.case in self.cases)
            and (not self.providers or record.provider in self.providers)
        )


EVERYTHING = Wanted()


def load(path: Path, wanted: Wanted = EVERYTHING) -> Run:
    """Read a run with the records that are wanted.

    Raises:
        RunFileError: as `load_run`.
    """
    return selected(load_run(path), wanted)


def selected(run: Run, wanted: Wanted) -> Run:
    """Return a run with those of its records that are wanted."""
    return replace(run, records=tuple(record for record in run.records if wanted.has(record)))
