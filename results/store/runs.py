"""The store of runs: where they are kept, how one is written so that nothing finished is lost, how one is found.

A run is an append-only file of JSON Lines. Each record is one `write` and one `fsync`, so that a process killed at any
moment leaves every finished record behind. No file is ever overwritten, and two runs at once write two files.
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from results.record import Environment, Record, RecordError
from results.store.runfile import RunFileError, StoreError, lock_file, read_head, reason_of, write_output

SUFFIX = ".jsonl"
RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-(?:(.+)-)?([0-9a-f]+)")
"""A run id `<UTC>-<short id>`, or the stem of its file `<UTC>-<op>-<short id>`."""

LISTED_MATCHES = 5
"""Runs named in a message before it is cut."""


class RunNotFoundError(StoreError):
    """No run, or more than one, has the name that was asked for."""


def runs_directory() -> Path:
    """Return where runs are kept: `RIDGEPOINT_RUNS` if that is set, else `results/runs`."""
    chosen = os.environ.get("RIDGEPOINT_RUNS")
    if chosen and Path(chosen).is_file():
        raise StoreError(f"RIDGEPOINT_RUNS is {chosen}, which is a file; it must name a folder")
    return Path(chosen) if chosen else Path(__file__).resolve().parents[1] / "runs"


def new_run_id() -> str:
    """Return a run id `<UTC>-<short id>`: ids sort by their start, and two of the same second differ at random."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(5)}"


def encode_line(line: Environment | Record) -> bytes:
    """Return the line of a run file, with its newline; what is encoded is known to be readable."""
    try:
        text = json.dumps(line.to_dict(), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise RecordError(f"a value cannot be written as JSON: {error}") from None
    # As it will be read: a NumPy float, for one, is only then what its key promises.
    (Environment if isinstance(line, Environment) else Record).from_dict(json.loads(text))
    return f"{text}\n".encode("ascii")


class RunWriter:
    """Appends records to one new run file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, environment: Environment, op: str, output: Path | str | None = None) -> RunWriter:
        """Create the file of a run and write its first line, the environment.

        `output` is the file, which must not hold anything yet, or a folder for a file of the usual name: one that
        exists, or text that ends with a slash. Missing folders are made. By default, the file is
        `<runs>/<device slug>/<UTC>-<op>-<short id>.jsonl`.
        """
        first_line = encode_line(environment)
        match = RUN_ID.fullmatch(environment.run_id)
        begin, end = (match[1], match[3]) if match else (f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}", environment.run_id)
        name = f"{begin}-{_word(op)}-{_word(end)}{SUFFIX}"
        path = Path(output) if output else runs_directory() / _word(environment.device["slug"]) / name
        is_folder = isinstance(output, str) and output.endswith(("/", os.sep))
        try:
            path = path / name if is_folder or path.is_dir() else path
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.exists()
            writer = cls(path, _open_new(path))
        except OSError as error:
            raise _write_error(path, error) from None
        try:
            writer._write(first_line)
        except StoreError:
            writer.close()
            if is_new:
                with suppress(OSError):
                    path.unlink()
            raise
        return writer

    def append(self, record: Record) -> None:
        """Write one record as one whole line; when this returns, the line is on the disk.

        If it raises StoreError or, for a value such as NaN, RecordError, the file is as it was before.
        """
        self._write(encode_line(record))

    def finish(self, environment: Environment, records: Iterable[Record]) -> None:
        """Close the file and replace it by one with these records, each row once; a device or a link stays as it is.

        If the new file cannot be written, which raises StoreError, the old one is unchanged.
        """
        self.close()
        if self.path.is_file() and not self.path.is_symlink():
            write_output(self.path, b"".join([encode_line(environment), *map(encode_line, records)]))

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        if self._descriptor < 0:
            raise StoreError(f"cannot write {self.path}: the run is closed")
        size_before = os.fstat(self._descriptor).st_size  # an interrupted write may have added a line
        try:
            rest = memoryview(line)
            while rest:  # one turn, but for a disk that is about to be full
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # Half a line in the middle of the file would spoil the next one too.
            with suppress(OSError):
                os.ftruncate(self._descriptor, size_before)
            raise _write_error(self.path, error) from None


def _word(text: str) -> str:
    """Return `text` as a part of a file name: letters, digits, `.`, `_` and `-`, at most 60 of them."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60].strip("-.") or "unknown"


def _open_new(path: Path) -> int:
    """Open an empty file for appending, lock it, and return its descriptor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        lock_file(descriptor)
        if os.fstat(descriptor).st_size == 0:
            return descriptor
        why = "exists and is not empty"
    except BlockingIOError:
        why = "is being written by another run"
    os.close(descriptor)
    raise StoreError(f"cannot write {path}: it {why}, and nothing is overwritten; choose another --output")


def _write_error(path: Path, error: OSError) -> StoreError:
    # A parent that is a file has made mkdir or open fail; say so instead of "File exists".
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return StoreError(f"cannot write {path}: a part of its folder is a file; choose another --output")
    return StoreError(f"cannot write {path}: {reason_of(error)}; choose another --output, or --no-save")


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
