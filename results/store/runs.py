"""The store of runs: which runs are kept, and how one is found by its name."""

from __future__ import annotations

import difflib
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from results.store.runfile import RUN_ID, SUFFIX, RunFileError, StoreError, read_head, reason_of, runs_directory

LISTED_MATCHES = 5
"""Runs named in a message before it is cut."""


class RunNotFoundError(StoreError):
    """No run, or more than one, has the name that was asked for."""


@dataclass(frozen=True)
class RunSummary:
    """One run file as the list shows it."""

    path: Path
    run_id: str
    """From the first line; the file's own name where that cannot be read."""
    started_at: str | None = None
    device_slug: str | None = None
    op: str | None = None
    """From the file's name; None where it has another form."""
    records: int | None = None
    """Whole lines after the first; None where there are some that were not counted."""
    command: str | None = None
    """What was typed to take the run."""
    error: str | None = None
    """Why the file cannot be read."""
    started_s: float = 0.0
    """Start of the run in Unix time, which the list is sorted by; 0 if the file cannot be read."""


def list_runs(directory: Path | None = None, counts_records: bool = True) -> list[RunSummary]:
    """Return the runs of a directory, the newest first; a file that cannot be read is listed with its error.

    A directory that does not exist has no runs. Counting the records reads every byte of every file.
    """
    summaries = [_summary(path, counts_records) for path in _run_files(directory or runs_directory())]
    return sorted(summaries, key=lambda run: (run.started_s, run.run_id), reverse=True)


def _run_files(directory: Path) -> list[Path]:
    try:
        inside = sorted(directory.iterdir())
        nested = [path for folder in inside if folder.is_dir() for path in sorted(folder.iterdir())]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read the runs in {directory}: {reason_of(error)}") from None
    return [path for path in (*inside, *nested) if path.suffix == SUFFIX and not path.is_dir()]


def _summary(path: Path, counts_records: bool) -> RunSummary:
    match = RUN_ID.fullmatch(path.stem)
    op = match[2] if match else None
    try:
        environment, records = read_head(path, counts_records)
    except RunFileError as error:
        return RunSummary(path, path.stem, op=op, error=str(error))
    return RunSummary(
        path=path,
        run_id=environment.run_id,
        started_at=environment.started_at,
        device_slug=environment.device["slug"],
        op=op,
        records=records,
        command=shlex.join(environment.argv),
        started_s=unix_time(environment.started_at),
    )


def unix_time(text: str) -> float:
    """Return a date or time of ISO 8601 in Unix time; without a time zone it is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def find_run(name: str, directory: Path | None = None, fits: Callable[[RunSummary], bool] | None = None) -> Path:
    """Return the file of a run.

    `name` is a path; or a run id, its short id or the name of its file, or a beginning of one of them that no other run
    shares; or `latest`, the newest run that holds a record, or, if none does, that can be read. `latest` is chosen from
    the runs that `fits` accepts.
    """
    directory = directory or runs_directory()
    if name != "latest" and (os.sep in name or Path(name).is_file()):
        if not Path(name).is_file():
            raise RunNotFoundError(f"there is no run file {name}")
        return Path(name)
    runs = list_runs(directory, counts_records=False)
    if not runs:
        raise RunNotFoundError(f"no run '{name}': there is no run yet in {directory}")
    if name == "latest":
        return _latest(runs, directory, fits)
    exact = [run for run in runs if name in _names(run)]
    matches = exact or [run for run in runs if any(known.startswith(name) for known in _names(run))]
    if len(matches) == 1:
        return matches[0].path
    if matches:
        shown = ", ".join(str(run.path) if exact else run.path.stem for run in matches[:LISTED_MATCHES])
        more = ", ..." if len(matches) > LISTED_MATCHES else ""
        raise RunNotFoundError(f"'{name}' fits {len(matches)} runs: {shown}{more}; write more of it, or a path")
    known = [known for run in runs for known in _names(run)]
    near = difflib.get_close_matches(name, known, n=LISTED_MATCHES) or [run.path.stem for run in runs[:LISTED_MATCHES]]
    shown = f"there is {', '.join(near)} (python -m results list shows all)"
    raise RunNotFoundError(f"no run '{name}' in {directory}; {shown}")


def _latest(runs: list[RunSummary], directory: Path, fits: Callable[[RunSummary], bool] | None) -> Path:
    readable = [run for run in runs if run.error is None]
    for run in readable:
        if run.records != 0 and (fits is None or fits(run)):
            return run.path
    if fits is not None:
        raise RunNotFoundError(f"no run in {directory} has a record of what was asked for: python -m results list")
    if not readable:
        raise RunNotFoundError(f"no run in {directory} can be read: python -m results list says why")
    return readable[0].path


def _names(run: RunSummary) -> tuple[str, ...]:
    return (run.run_id, run.path.stem, run.path.name, run.run_id.rpartition("-")[2])
