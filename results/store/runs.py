"""Listing of saved runs, search by name, and the options that select runs and records."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from results.record import Object, unix_time
from results.show.terminal import ADVANCED, Parser, reason_of
from results.store.runfile import (
    RUN_ID,
    SUFFIX,
    Run,
    RunFileError,
    StoreError,
    load_run,
    read_head,
    runs_directory,
)

MAX_LISTED = 5
"""Maximum number of runs in a message."""

LATEST_NAME = re.compile(r"latest(?:~(\d+))?(?::(.+))?")
"""`latest~1` is the run before the newest, `latest:gelu` the newest of the op in the file name."""

REVISION = re.compile(r"([0-9a-f]{4,40})(-dirty)?")
"""A git revision, as `results history` shows it: with `-dirty` if files were changed."""


@dataclass(frozen=True)
class RunSummary:
    """A run file as `results list` shows it."""

    path: Path
    run_id: str
    """Run id of the first line; if unreadable, the file name."""
    started_at: str | None = None
    device_slug: str | None = None
    op: str | None = None
    """Op in the file name; None if the name has another form."""
    records: int | None = None
    """Number of complete records; None if not counted."""
    command: str | None = None
    """Command line of the run."""
    error: str | None = None
    """Why the file cannot be read."""
    started_s: float = 0.0
    """Start of the run in Unix time; 0 if the file cannot be read."""


def list_runs(directory: Path | None = None, counts_records: bool = True) -> list[RunSummary]:
    """Return the runs of a directory, newest first, also unreadable files; none if the directory
    does not exist.

    Counting the records reads the whole files.
    """
    directory = directory or runs_directory()
    paths = []
    try:
        paths += sorted(directory.iterdir())
        for folder in filter(Path.is_dir, list(paths)):
            paths += sorted(folder.iterdir())
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StoreError(f"cannot read the runs in {directory}: {reason_of(error)}") from None
    summaries = []
    for path in paths:
        if path.suffix != SUFFIX or path.is_dir():
            continue
        match = RUN_ID.fullmatch(path.stem)
        op = match[2] if match else None
        try:
            environment, records = read_head(path, counts_records)
        except RunFileError as error:
            summaries.append(RunSummary(path, path.stem, op=op, error=str(error)))
            continue
        summaries.append(
            RunSummary(
                path=path,
                run_id=environment.run_id,
                started_at=environment.started_at,
                device_slug=environment.device["slug"],
                op=op,
                records=records,
                command=shlex.join(environment.argv),
                started_s=unix_time(environment.started_at),
            )
        )
    return sorted(summaries, key=lambda run: (run.started_s, run.run_id), reverse=True)


def _names(run: RunSummary) -> tuple[str, ...]:
    return (run.run_id, run.path.stem, run.path.name, run.run_id.rpartition("-")[2])


def revision_text(git: Object | None) -> str | None:
    """Return a git revision, ten digits, with `-dirty` if files were changed; None if unknown."""
    if not git or not git.get("sha"):
        return None
    revision = str(git["sha"])[:10]
    return f"{revision}-dirty" if git.get("dirty") else revision


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
    def of(cls, options: Mapping[str, Any], only: Iterable[str] = NAMES) -> Selection:
        """Return the selection of the options that `add_selection` adds, by name."""
        names = {name: frozenset[str]().union(*options[name]) for name in only}
        return cls(names, options["machine"], options["since"])

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
        """Return the file of a run.

        `name` is a path; a run id, short id or file name, or a unique start of one;
        `latest[~N][:OP]`, the newest run, or the N-th before it, that has a selected record; or a
        git revision, such as a hash, or a tag or branch of the repository here, of whose runs the
        newest is found.

        Raises:
            StoreError: no run matches, or several do.
        """
        directory = directory or runs_directory()
        latest = LATEST_NAME.fullmatch(name)
        if not latest and (os.sep in name or Path(name).is_file()):
            if not Path(name).is_file():
                raise StoreError(f"no run file {name}")
            return Path(name)
        runs = list_runs(directory, counts_records=False)
        if not runs:
            raise StoreError(f"no run '{name}': no run in {directory} yet")
        if latest:
            return self._latest(runs, directory, latest)
        exact = [run for run in runs if name in _names(run)]
        matches = exact or [
            run for run in runs if any(known.startswith(name) for known in _names(run))
        ]
        if len(matches) == 1:
            return matches[0].path
        if matches:
            shown = ", ".join(str(run.path) for run in matches[:MAX_LISTED])
            raise StoreError(
                f"'{name}' matches {len(matches)} runs, such as {shown}; use a longer start or a "
                f"path"
            )
        sha = name
        words = [
            "git",
            "rev-parse",
            "--quiet",
            "--verify",
            "--end-of-options",
            f"{name}^{{commit}}",
        ]
        with suppress(OSError, ValueError, subprocess.SubprocessError):  # a tag, branch or HEAD
            sha = subprocess.check_output(words, text=True, stderr=subprocess.DEVNULL, timeout=5)
        match = REVISION.fullmatch(sha.strip())
        if match:
            revision = re.compile(f"{match[1][:10]}[0-9a-f]*{match[2] or ''}")
            for run in runs:
                if run.error is None and self.fits(run):
                    content = load_run(run.path)
                    gits = [
                        content.environment.git,
                        *(record.source_git for record in content.records),
                    ]
                    if any(revision.fullmatch(revision_text(git) or "") for git in gits):
                        return run.path
        raise StoreError(f"no run '{name}' in {directory}; python -m results list shows all")

    def _latest(self, runs: list[RunSummary], directory: Path, name: re.Match[str]) -> Path:
        readable = [run for run in runs if run.error is None]
        filled = [run for run in readable if run.records != 0] or readable
        fitting = (run for run in filled if name[2] in (None, run.op) and self.fits(run))
        found = next(islice(fitting, int(name[1] or 0), None), None)
        if found:
            return found.path
        raise StoreError(
            f"no run in {directory} can be read and has a matching record; python -m results list "
            f"shows all"
        )

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


def cases(text: str) -> list[str]:
    """Return the case, as one of a profile has commas itself, and the cases between commas."""
    return [text, *names(text)]


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
        options = [f"--{name}"]
        values = names
        if name == "case":
            options += ["--shape"]
            values = cases
        text = f"only these {NAMES[name]}"
        parser.add_argument(
            *options,
            type=values,
            action="append",
            default=[],
            metavar="NAMES",
            help=text,
        )
    text = f"{which} of this machine; `python -m results list` shows the names"
    parser.group(ADVANCED).add_argument("--machine", metavar="SLUG", help=text)
    text = f"{which} since 30m, 12h, 2d or 1w ago, or since a date such as 2026-11-20"
    parser.add_argument("--since", type=since, metavar="WHEN", help=text)
