"""The run file: JSON Lines, the environment first, then one record a line.

A last line that was cut off is normal and becomes a note. Any other line that cannot be used becomes a problem with its
number; none is dropped in silence.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import msgspec

from results.record import Environment, Record, RecordError


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not a number of JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
MEASURING = "the run is still being measured"
"""Note on a file whose writer has it open."""


class StoreError(Exception):
    """A run cannot be written, found or read; the message is one line that names the path and the cause."""


class RunFileError(StoreError):
    """A file is not a run that this version can read."""


@dataclass(frozen=True)
class Run:
    """One run file, read."""

    path: Path
    environment: Environment
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    """What is normal and yet worth saying: the last line was cut off."""
    problems: tuple[str, ...] = ()
    """One text for each line that could not be used, `file:line: what`."""


def load_run(path: Path | str) -> Run:
    """Read a run file of this or an older schema."""
    path = Path(path)
    records: list[Record] = []
    notes: list[str] = []
    problems: list[str] = []
    with _opened(path) as file:
        environment = _environment(path, file)
        if _is_being_written(file.fileno()):
            notes.append(f"{path}: {MEASURING}")
        for number, raw in enumerate(file, start=2):
            try:
                records.append(Record.from_dict(_object(raw, kind="record")))
            except RecordError as error:
                if raw.endswith(b"\n"):
                    problems.append(f"{path}:{number}: {error}")
                else:
                    notes.append(f"{path}:{number}: the last line was cut off and is left out")
    return Run(path, environment, latest_visits(records), tuple(notes), tuple(problems))


def latest_visits(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return records without those that a later line of the same row contains.

    While a run is measured, each visit of a row appends a record with the samples of all its visits so far.
    """
    found = dict(enumerate(records))
    numbers: dict[tuple[object, ...], list[int]] = {}
    for number, one in enumerate(records):
        row = (one.op, one.provider, one.dtype, one.case, str(one.options), one.fill)
        if len(one.visits) > 1 and (earlier := numbers.get((*row, one.visits[:-1]))):
            del found[earlier.pop(0)]
        numbers.setdefault((*row, one.visits), []).append(number)
    return tuple(found.values())


def read_head(path: Path, counts_records: bool = True) -> tuple[Environment, int | None]:
    """Return the environment of a run file and its whole lines after it: 0 if none, None if not counted."""
    with _opened(path) as file:
        environment = _environment(path, file)
        if not counts_records:
            return environment, None if file.read(1) else 0
        return environment, sum(raw.endswith(b"\n") for raw in file)


def _is_being_written(descriptor: int) -> bool:
    """Return whether a writer holds its lock on a run file; False if the system has no such locks."""
    try:
        lock_file(descriptor, kind="LOCK_SH")
    except BlockingIOError:
        return True
    lock_file(descriptor, kind="LOCK_UN")
    return False


def lock_file(descriptor: int, waits: bool = False, kind: str = "LOCK_EX") -> None:
    """Take a file for this process until it is closed; a system without such locks is no obstacle.

    If another process has it and `waits` is False, BlockingIOError is raised.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, getattr(fcntl, kind) | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """Return the cause of a failed system call as a few words, without its number and path."""
    return error.strerror or os.strerror(error.errno or 0)


def _environment(path: Path, file: BinaryIO) -> Environment:
    raw = file.readline()
    if not raw:
        raise RunFileError(f"{path} is empty: the run was stopped before its first line")
    try:
        return Environment.from_dict(_object(raw, kind="environment"))
    except RecordError as error:
        raise RunFileError(f"{path} is not a run file that can be read: line 1: {error}") from None


def _object(raw: bytes, kind: str) -> dict[str, Any]:
    """Return the JSON object of one line."""
    try:
        try:
            data = msgspec.json.decode(raw)
        except msgspec.DecodeError:  # of a lone surrogate; of what is no JSON, `json` gives the better reason
            data = DECODER.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise RecordError(f"not a JSON object of 'kind' '{kind}'")
    return data


def write_output(path: Path, data: bytes) -> None:
    """Write a file so that it is either the old file or the whole new one at any moment; missing folders are made."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe: nothing to replace
            return
        target = path.resolve()  # the file behind a link is replaced, not the link
        unfinished = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with unfinished.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, unfinished)
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    except (FileExistsError, NotADirectoryError):
        raise StoreError(f"cannot write {path}: a part of its folder is a file; choose another place") from None
    except OSError as error:
        raise StoreError(f"cannot write {path}: {reason_of(error)}; choose another place") from None
