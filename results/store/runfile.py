"""The run file: JSON Lines, the environment first, then one record a line.

Reading is strict, because a file may come from a killed process, from another tool or from a stranger. A last line
that was cut off is normal and becomes a note. Any other line that cannot be used becomes a problem with its number;
none is dropped in silence.
"""

from __future__ import annotations

import gc
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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


class _NotJsonError(RecordError):
    """A line is not JSON at all, as the last line of a killed run is not."""


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
    type(line).from_dict(_decode(raw))
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
    path: Path | str, take: Callable[[dict[str, Any]], T | None], checks_numbers: bool = True
) -> tuple[Environment, list[T], tuple[str, ...], tuple[str, ...]]:
    """Read a run file, keeping of each record only what is taken from it.

    Args:
        path: the run file.
        take: is given the JSON object of a record line and returns what to keep, None for nothing; where it raises
            RecordError, the line becomes a problem.
        checks_numbers: whether a number that is too large for a float makes a line a problem wherever it stands. Where
            not, reading takes a tenth less time, and `take` looks at the numbers that it keeps.

    Returns:
        The environment, what was kept of each record, and notes and problems as of `Run`.

    Raises:
        RunFileError: as `load_run`.
    """
    path = Path(path)
    kept: list[T] = []
    notes: list[str] = []
    problems: list[str] = []
    decoder = _DECODER if checks_numbers else _QuickDecoder()
    with _opened(path) as file, without_collector():
        environment = _environment(path, file)
        if _is_being_written(file.fileno()):
            notes.append(f"{path}: {MEASURING}")
        for number, raw in _lines(file):
            try:
                taken = take(_object(raw, kind="record", decoder=decoder))
                if taken is not None:
                    kept.append(taken)
            except _NotJsonError as error:
                is_last = not file.peek(1)
                if is_last and _looks_torn(raw):
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


def read_head(path: Path) -> tuple[Environment, int]:
    """Return the environment of a run file and the number of whole lines after it, without reading the records.

    Raises:
        RunFileError: as `load_run`.
    """
    with _opened(path) as file:
        environment = _environment(path, file)
        count = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    return environment, count


def read_environment(path: Path) -> Environment:
    """Return the environment of a run file, and read no more than its first line takes.

    Raises:
        RunFileError: as `load_run`.
    """
    with _opened(path, HEAD_BYTES) as file:
        return _environment(path, file)


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


def _looks_torn(raw: bytes) -> bool:
    """Return whether a last line that is not JSON can be what a killed process leaves."""
    return not raw.endswith(b"\n") or raw.startswith(b"{")


def _object(raw: bytes, kind: str, decoder: json.JSONDecoder | _QuickDecoder | None = None) -> dict[str, Any]:
    """Return the JSON object of one line of the kind that is due.

    Raises:
        RecordError: it is something else.
    """
    data = _decode(raw, decoder)
    if data.get("kind") != kind:
        raise RecordError(f"'kind' must be '{kind}' here, found {_shortened(data.get('kind'))}")
    return data


def _decode(raw: bytes, decoder: json.JSONDecoder | _QuickDecoder | None = None) -> dict[str, Any]:
    if len(raw) > MAX_LINE_BYTES:
        raise RecordError(f"longer than {MAX_LINE_BYTES // 1024**2} MiB")
    try:
        data = (decoder or _DECODER).decode(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise _NotJsonError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        what = "an empty line" if raw.isspace() else f"not JSON ({error.msg}, column {error.colno})"
        raise _NotJsonError(what) from None
    except RecursionError:
        raise RecordError(f"nested deeper than {MAX_DEPTH} levels") from None
    except RecordError:
        raise
    except ValueError:  # Python's own limit on the digits of a whole number
        raise RecordError("holds a whole number of thousands of digits") from None
    if not isinstance(data, dict):
        raise RecordError(f"must be a JSON object, found {_shortened(data)}")
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


def _shortened(value: Any) -> str:
    try:
        shown = repr(value)
    except ValueError:  # a whole number of thousands of digits
        shown = "a huge number"
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _finite(literal: str) -> float:
    """Read a number; `1e999` is legal JSON and yet becomes infinity."""
    value = float(literal)
    if not math.isfinite(value):
        raise RecordError(f"the number {literal[:20]} is too large")
    return value


def _refuse_constant(literal: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python's reader accepts though they are not JSON."""
    raise RecordError(f"{literal} is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; of two values for one key, Python's reader would drop the first in silence."""
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RecordError(f"the key {_shortened(twice)} is there twice")
    return data


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)
_DECODER_OF_ANY_NUMBER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_PLAIN_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)

MAX_KINDS = 64
"""Kinds of lines that a reader remembers; a run has few."""

Objects = tuple[Callable[[dict[str, Any]], tuple[Any, ...]], list[tuple[str, str]]]
"""Which values of a line are objects: what returns those at its top, and the names that lead to those within these."""


class _QuickDecoder:
    """Reads record lines, numbers unchecked, without a look at each key for whether it is there twice.

    Each key has a colon. So where an object has as many keys as its line has colons, no key was dropped. Which values
    are objects is known from the first line with so many colons. Lines of which the counts do not tell, such as those
    with a colon within a text, are read the slow way.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, Objects | None] = {}
        """By the count of colons; None where the counts do not tell."""

    def decode(self, text: str) -> Any:
        """Return the value of a line; errors as of the other decoders."""
        colons = text.count(":")
        if objects := self._kinds.get(colons):
            try:
                data = _PLAIN_DECODER.decode(text)
                if _count_keys(data, objects) == colons:
                    return data
            except (ValueError, TypeError, KeyError, RecursionError, RecordError):
                pass  # the slow way tells what is wrong
            self._kinds[colons] = None
        data = _DECODER_OF_ANY_NUMBER.decode(text)
        if colons not in self._kinds and len(self._kinds) < MAX_KINDS:
            objects = _objects_of(data)
            is_told = objects is not None and _count_keys(data, objects) == colons
            self._kinds[colons] = objects if is_told else None
        return data


def _count_keys(data: Any, objects: Objects) -> int:
    """Return the keys of an object and of those named within it; TypeError or KeyError where one is none."""
    size, (outer, inner) = dict.__len__, objects
    return size(data) + sum(map(size, outer(data))) + sum([size(data[first][second]) for first, second in inner])


def _objects_of(data: Any) -> Objects | None:
    """Return which values of an object are objects, down to the second level; None where there are less than two."""
    if not isinstance(data, dict):
        return None
    outer = [name for name, value in data.items() if isinstance(value, dict)]
    inner = [(first, name) for first in outer for name, value in data[first].items() if isinstance(value, dict)]
    return (itemgetter(*outer), inner) if len(outer) > 1 else None
