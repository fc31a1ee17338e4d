"""The run file: JSON Lines, the environment first, then one record a line.

Reading is strict, because a file may come from a killed process, from another tool or from a stranger. A last line
that was cut off is normal and becomes a note. Any other line that cannot be used becomes a problem with its number;
none is dropped in silence.
"""

from __future__ import annotations

import gc
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from results.checked import shortened
from results.record import Environment, Record, RecordError

T = TypeVar("T")

MAX_FILE_BYTES = 2 * 1024**3
"""A run of a million records with a hundred samples each is about this long; more is no run file."""

MAX_LINE_BYTES = 32 * 1024**2
"""About a million samples; a longer line is refused before it fills the memory."""

BUFFER_BYTES = 256 * 1024
"""Read at once. Few lines are then put together from two reads, which halves the time that reading alone takes."""

HEAD_BYTES = 8 * 1024
"""Read at once where only the first line is wanted, which is 2 to 4 KiB long."""

MEASURING = "the run is still being measured"
"""Note on a file whose writer has it open."""

MAX_DEPTH = 32
"""Levels of nesting in one line. Ours have four; what reads the values back must not run out of stack."""


class StoreError(Exception):
    """A run cannot be written, found or read; the message is one line that names the path and the cause."""


class RunFileError(StoreError):
    """A file is not a run that this version can read."""


class _TornError(RecordError):
    """A line is not JSON because its end is missing, as that of the last line of a killed run may be."""


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


def encode_line(line: Environment | Record) -> bytes:
    """Return the line of a run file, with its newline; what is encoded is known to be readable.

    Raises:
        RecordError: a value is not finite, not JSON, or not what its key promises.
    """
    try:
        text = json.dumps(line.to_dict(), allow_nan=False, separators=(",", ":"))
    except RecursionError:
        raise RecordError(f"a value is nested deeper than {MAX_DEPTH} levels") from None
    except (TypeError, ValueError) as error:
        raise RecordError(f"a value cannot be written as JSON: {error}") from None
    raw = f"{text}\n".encode("ascii")
    (Environment if isinstance(line, Environment) else Record).from_dict(_decode(raw))
    return raw


def load_run(path: Path | str) -> Run:
    """Read a run file of this or an older schema.

    Raises:
        RunFileError: the file is missing, empty, no regular file, binary, of a newer schema, or does not start with
            the environment of a run.
    """
    environment, records, notes, problems = scan_run(path, Record.from_dict)
    return Run(Path(path), environment, tuple(records), notes, problems)


def scan_run(
    path: Path | str, take: Callable[[dict[str, Any]], T | None]
) -> tuple[Environment, list[T], tuple[str, ...], tuple[str, ...]]:
    """Read a run file, keeping of each record only what is taken from it.

    Args:
        path: the run file.
        take: is given the JSON object of a record line and returns what to keep, None for nothing; where it raises
            RecordError, the line becomes a problem.

    Returns:
        The environment, what was kept of each record, and notes and problems as of `Run`.

    Raises:
        RunFileError: as `load_run`.
    """
    path = Path(path)
    kept: list[T] = []
    notes: list[str] = []
    problems: list[str] = []
    with _opened(path) as file, without_collector():
        environment = _environment(path, file)
        if _is_being_written(file.fileno()):
            notes.append(f"{path}: {MEASURING}")
        for number, raw in _lines(file):
            try:
                taken = take(_object(raw, kind="record"))
                if taken is not None:
                    kept.append(taken)
            except _TornError as error:
                if not file.peek(1):
                    notes.append(f"{path}:{number}: the last line was cut off and is left out")
                else:
                    problems.append(f"{path}:{number}: {error}")
            except RecordError as error:
                problems.append(f"{path}:{number}: {error}")
    return environment, kept, tuple(notes), tuple(problems)


@contextmanager
def without_collector() -> Iterator[None]:
    """Pause the search for cycles: JSON has none, and a look at all that is kept, again and again, doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read_head(path: Path, counts_records: bool = True) -> tuple[Environment, int | None]:
    """Return the environment of a run file, and the number of whole lines after it.

    Args:
        path: of the file.
        counts_records: whether all of the file is read; else the number is None, but 0 where nothing follows.

    Raises:
        RunFileError: as `load_run`.
    """
    with _opened(path, BUFFER_BYTES if counts_records else HEAD_BYTES) as file:
        environment = _environment(path, file)
        if not counts_records:
            return environment, None if file.peek(1) else 0
        return environment, sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _is_being_written(descriptor: int) -> bool:
    """Return whether a writer holds its lock on a run file; False where the system has no such locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


@contextmanager
def _opened(path: Path, buffer_bytes: int = BUFFER_BYTES) -> Iterator[BufferedReader[Any]]:
    """Open a run file, unless it is none by its kind or size; opening a pipe would wait for its writer."""
    try:
        status = path.stat()
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {reason_of(error)}") from None
    except ValueError:
        raise RunFileError(f"cannot read {str(path)!r}: not a file name") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise RunFileError(f"{path} is {kind}, not a run file")
    if status.st_size == 0:
        raise RunFileError(f"{path} is empty: the run was stopped before its first line")
    if status.st_size > MAX_FILE_BYTES:
        raise RunFileError(f"{path} is {status.st_size / 1e9:.1f} GB long, too long for a run file")
    try:
        with BufferedReader(path.open("rb", buffering=0), buffer_bytes) as file:
            yield file
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """Return the cause of a failed system call as a few words, without its number and path."""
    return error.strerror or os.strerror(error.errno or 0)


def _environment(path: Path, file: BufferedReader) -> Environment:
    raw = file.readline(MAX_LINE_BYTES + 1)
    try:
        if b"\0" in raw:
            raise RecordError("binary data")
        return Environment.from_dict(_object(raw, kind="environment"))
    except RecordError as error:
        raise RunFileError(f"{path} is not a run file that can be read: line 1: {error}") from None


def _lines(file: BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line after the first; of one that is too long, only the start."""
    number = 1
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        yield number, raw
        while len(raw) > MAX_LINE_BYTES and not raw.endswith(b"\n"):
            raw = file.readline(MAX_LINE_BYTES + 1)


def _object(raw: bytes, kind: str) -> dict[str, Any]:
    """Return the JSON object of one line of the kind that is due.

    Raises:
        RecordError: it is something else.
    """
    data = _decode(raw)
    if data.get("kind") != kind:
        raise RecordError(f"'kind' must be '{kind}' here, found {shortened(data.get('kind'))}")
    return data


def _decode(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_LINE_BYTES:
        raise RecordError(f"longer than {MAX_LINE_BYTES // 1024**2} MiB")
    try:
        data = _DECODER.decode(raw)
    except msgspec.ValidationError:  # the one thing that is valid JSON and yet no value here
        raise RecordError("holds a number that is too large") from None
    except UnicodeDecodeError:
        raise (RecordError if raw.endswith(b"\n") else _TornError)("not UTF-8 text") from None
    except msgspec.DecodeError as error:
        data = _with_half_pairs(raw)
        if data is None:
            is_torn = not raw.endswith(b"\n") or (raw.startswith(b"{") and str(error) == TRUNCATED)
            what = "an empty line" if raw.isspace() else f"not JSON ({str(error).removeprefix('JSON is ')})"
            raise (_TornError if is_torn else RecordError)(what) from None
    except RecursionError:
        raise RecordError(f"nested deeper than {MAX_DEPTH} levels") from None
    if not isinstance(data, dict):
        raise RecordError(f"must be a JSON object, found {shortened(data)}")
    # Few lines have so many brackets; the count saves walking through the others.
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise RecordError(f"nested deeper than {MAX_DEPTH} levels")
    return data


def _depth(value: Any) -> int:
    """Return the levels of nesting of a JSON value; a plain value has none."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _with_half_pairs(raw: bytes) -> Any:
    """Return the value of a line with half a surrogate pair, which JSON allows and msgspec does not; else None."""
    with suppress(ValueError, RecursionError):
        return json.loads(raw, parse_constant=_refuse_constant) if rb"\ud" in raw.lower() else None
    return None


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(literal)


_DECODER = msgspec.json.Decoder()
TRUNCATED = "Input data was truncated"
"""What msgspec says of JSON without its end."""
