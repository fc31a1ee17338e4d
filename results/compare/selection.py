"""The options that select runs and records."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from results.show.terminal import ADVANCED, Parser
from results.store.runfile import Run, StoreError, load_run
from results.store.runs import RunSummary, find_run, unix_time

SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
NAMED = "--op, --dtype, --case and --provider"
NAMES = {
    "op": "ops",
    "dtype": "dtypes",
    "case": "cases, such as 1024x1024x1024",
    "provider": "providers",
}
"""Options that select records by a name."""
LATEST = ("op", "provider")
"""Such options of the commands that plot: their --dtype selects what is plotted."""


@dataclass(frozen=True)
class Selection:
    """Selected runs and records; by default all."""

    names: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Selected values by field of a record, one of `NAMES`; none select all."""
    machine: str | None = None
    since_s: float | None = None

    @classmethod
    def of(cls, options: argparse.Namespace, only: Iterable[str] = NAMES) -> Selection:
        names = {name: frozenset[str]().union(*getattr(options, name)) for name in only}
        return cls(names, options.machine, options.since)

    @property
    def has_names(self) -> bool:
        return any(self.names.values())

    @property
    def is_everything(self) -> bool:
        return not self.has_names and self.machine is None and self.since_s is None

    def records_of(self, run: Run) -> Run:
        chosen = run.records
        for name, values in self.names.items():
            if values:
                chosen = tuple(record for record in chosen if getattr(record, name) in values)
        return replace(run, records=chosen)

    def find(self, name: str, directory: Path | None = None) -> Path:
        return find_run(name, directory, self.fits)

    def load(self, name: str, directory: Path | None = None) -> Run:
        """Read a run with the selected records; raise StoreError if there are none."""
        run = self.records_of(load_run(self.find(name, directory)))
        if not run.records and self.has_names:
            raise StoreError(self.nothing_in(run))
        return run

    def nothing_in(self, run: Run) -> str:
        matching = f" that matches {NAMED}" if self.has_names else ""
        return "; ".join([f"{run.path} has no record{matching}", *run.notes[:1], *run.problems[:1]])

    def fits_run(self, run: RunSummary) -> bool:
        """Return whether a run is of the machine and the time."""
        is_of_machine = self.machine in (None, run.device_slug)
        return is_of_machine and run.started_s >= (self.since_s or 0.0)

    def fits(self, run: RunSummary) -> bool:
        """Return whether a run is of the machine and the time, and has a selected record."""
        has_record = not self.has_names or bool(self.records_of(load_run(run.path)).records)
        return has_record and self.fits_run(run)


EVERYTHING = Selection()


def names(text: str) -> list[str]:
    listed = [name.strip() for name in text.split(",") if name.strip()]
    if not listed:
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got '{text}'")
    return listed


class SinceError(argparse.ArgumentTypeError, ValueError):
    """A text is no time; the message is one line."""


def since(value: object) -> float:
    """Parse a time ago such as `2d`, or an ISO 8601 date or time in UTC such as `2026-11-20`, into
    Unix time.

    Raises:
        SinceError: it is neither.
    """
    text = str(value)
    ago = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if ago:
        return time.time() - float(ago[1]) * SECONDS[ago[2]]
    try:
        return unix_time(text.strip())
    except (ValueError, OverflowError):
        raise SinceError(
            f"expected a time ago such as 30m, 12h, 2d or 1w, or a date such as 2026-11-20, got "
            f"'{text}'"
        ) from None


def add_selection(parser: Parser, which: str, only: Iterable[str] = NAMES) -> None:
    """Add the options of a selection: those of records in `only`, and those of runs, whose help
    starts with `which`.
    """
    for name in only:
        options = ("--case", "--shape") if name == "case" else (f"--{name}",)
        text = f"only these {NAMES[name]}"
        parser.add_argument(
            *options, type=names, action="append", default=[], metavar="NAMES", help=text
        )
    text = f"{which} of this machine; `python -m results list` shows the names"
    parser.group(ADVANCED).add_argument("--machine", metavar="SLUG", help=text)
    text = f"{which} since 30m, 12h, 2d or 1w ago, or since a date such as 2026-11-20"
    parser.add_argument("--since", type=since, metavar="WHEN", help=text)
