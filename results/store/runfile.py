"""The run file: JSON Lines, the environment, then one record per line.

Each record is one `write` and one `fsync`, so a killed process leaves all records that it finished.
No file with content is overwritten, and concurrent runs write separate files.

A truncated last line becomes a note; any other invalid line becomes a problem with its number.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, Self

import msgspec

from results.record import SCHEMA, Environment, Object, Record, RecordError
from results.show.terminal import reason_of


def _refuse_constant(literal: str) -> NoReturn:
    raise ValueError(f"{literal} is not a JSON number")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
MEASURING = "the run is still being measured"
"""End of the note on a file whose writer has it open."""


class StoreError(Exception):
    """A run cannot be written, found or read; the message is one line with path and cause."""


class RunFileError(StoreError):
    """A file is not a readable run."""


@dataclass(frozen=True)
class Run:
    """The content of a run file."""

    path: Path
    environment: Environment
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()
    """Messages on normal states, such as a truncated last line."""
    problems: tuple[str, ...] = ()
    """A message for each invalid line, `file:line: cause`."""


def load_run(path: Path | str) -> Run:
    """Read a run file of this or an older schema."""
    path = Path(path)
    records = []
    notes = []
    problems = []
    with _opened(path) as (environment, file):
        try:
            lock_file(file.fileno(), kind="LOCK_SH")
            lock_file(file.fileno(), kind="LOCK_UN")
        except BlockingIOError:
            notes.append(f"{path}: {MEASURING}")
        is_old = environment.schema < SCHEMA
        record_of: Callable[[Object], Record] = Record.from_dict
        if is_old:
            from results.store import schema_1

            record_of = schema_1.record_of
        for number, raw in enumerate(file, start=2):
            try:
                records.append(record_of(_object(raw, kind="record")))
            except RecordError as error:
                if raw.endswith(b"\n"):
                    problems.append(f"{path}:{number}: {error}")
                else:
                    notes.append(f"{path}:{number}: the last line is truncated; left out")
    if is_old:
        try:
            environment = schema_1.environment_of(environment, records)
        except RecordError as error:
            problems.append(f"{path}: {error}")
    return Run(path, environment, latest_visits(records), tuple(notes), tuple(problems))


def latest_visits(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return the last record of each row: each visit appends a record with the samples of all
    visits so far.
    """
    latest = dict(enumerate(records))
    numbers: dict[tuple[object, ...], list[int]] = {}
    for number, record in enumerate(records):
        row = record.row._replace(cache=None)
        if len(record.visits) > 1:
            earlier = numbers.get((row, record.visits[:-1]))
            if earlier:
                del latest[earlier.pop(0)]
        numbers.setdefault((row, record.visits), []).append(number)
    return tuple(latest.values())


def read_head(path: Path, counts_records: bool = True) -> tuple[Environment, int | None]:
    """Return the environment of a run file and its number of complete records: 0 if none, None if
    not counted.
    """
    with _opened(path) as (environment, file):
        if not counts_records:
            return environment, None if file.read(1) else 0
        return environment, sum(raw.endswith(b"\n") for raw in file)


def lock_file(descriptor: int, waits: bool = False, kind: str = "LOCK_EX") -> None:
    """Lock a file until it is closed; does nothing on a system without `fcntl`.

    Raises:
        BlockingIOError: another process has it, and `waits` is False.
    """
    try:
        import fcntl

        fcntl.flock(descriptor, getattr(fcntl, kind) | (0 if waits else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except (ImportError, OSError):
        pass


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Environment, BinaryIO]]:
    """Open a run file and read its first line."""
    try:
        with path.open("rb") as file:
            raw = file.readline()
            if not raw:
                raise RunFileError(f"{path} is empty: the run was stopped before its first line")
            try:
                environment = Environment.from_dict(_object(raw, kind="environment"))
            except RecordError as error:
                raise RunFileError(f"{path} is not a readable run file: line 1: {error}") from None
            yield environment, file
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {reason_of(error)}") from None


def _object(raw: bytes, kind: str) -> Object:
    try:
        try:
            data = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            # A lone surrogate, or not JSON, for which `json` has the better message.
            data = DECODER.decode(raw.decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON ({getattr(error, 'msg', error)})") from None
    if not isinstance(data, dict) or data.get("kind") != kind:
        raise RecordError(f"not a JSON object with 'kind' '{kind}'")
    return data


def target_of(path: Path) -> Path:
    """Return the file that a path leads to.

    Raises:
        OSError: its links form a loop.
    """
    try:
        path.stat()  # `resolve` raises RuntimeError for a loop, and nothing from Python 3.13 on
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
    return path.resolve()


def write_output(path: Path, data: bytes) -> None:
    """Replace a file atomically; missing directories are created."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe
            return
        target = target_of(path)  # keep a link, replace its target
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
    except OSError as error:
        raise _write_error(path, error) from None


SUFFIX = ".jsonl"
RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-(?:(.+)-)?([0-9a-f]+)")
"""A run id `<UTC>-<short id>`, or the stem of its file `<UTC>-<op>-<short id>`."""


def runs_directory() -> Path:
    """Return the directory of saved runs.

    It is `ROOFMARK_RUNS` if set, `results/runs` of a clone, else the user's data directory: an
    installed wheel must not write into site-packages.
    """
    chosen = os.environ.get("ROOFMARK_RUNS")
    if chosen:
        return Path(chosen)
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():
        return root / "results" / "runs"
    from platformdirs import user_data_path

    return user_data_path("roofmark") / "runs"


def encode_line(line: Environment | Record) -> bytes:
    """Return a line of a run file with its newline.

    Raises:
        RecordError: a value cannot be written as JSON, or could not be read again.
    """
    try:
        text = json.dumps(line.to_dict(), allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise RecordError(f"a value cannot be written as JSON: {error}") from None
    # Validate the decoded text: a NumPy float, for example, has its final type only then.
    (Environment if isinstance(line, Environment) else Record).from_dict(json.loads(text))
    return f"{text}\n".encode("ascii")


class RunWriter:
    """Appends records to a new run file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_new = not path.exists()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        cause = None
        try:
            lock_file(self._descriptor)
            if os.fstat(self._descriptor).st_size:
                cause = "exists and is not empty"
        except BlockingIOError:
            cause = "is being written by another run"
        if cause:
            self.close()
            raise StoreError(f"cannot write {path}: it {cause}; choose another --output")

    @classmethod
    def create(
        cls, environment: Environment, op: str, output: Path | str | None = None
    ) -> RunWriter:
        """Create the file of a run and write the environment.

        `output` is an empty or new file, or a directory (existing, or text that ends with a slash)
        for a file of the default name, `<UTC>-<op>-<short id>.jsonl`. The default directory is
        `<runs>/<device slug>`.
        """
        start, _, end = environment.run_id.partition("-")
        name = f"{_word(start)}-{_word(op)}-{_word(end)}{SUFFIX}"
        path = (
            Path(output) if output else runs_directory() / _word(environment.device["slug"]) / name
        )
        is_directory = isinstance(output, str) and output.endswith(("/", os.sep))
        try:
            path = path / name if is_directory or path.is_dir() else path
            path.parent.mkdir(parents=True, exist_ok=True)
            writer = cls(path)
        except OSError as error:
            raise _write_error(path, error) from None
        try:
            writer.append(environment)
        except (StoreError, RecordError):
            writer.close()
            if writer._is_new:
                with suppress(OSError):
                    path.unlink()
            raise
        return writer

    def append(self, line: Environment | Record) -> None:
        """Write a line to disk.

        Raises:
            StoreError: the file cannot be written; it is unchanged.
            RecordError: a value cannot be written, such as NaN.
        """
        if self._descriptor < 0:
            raise StoreError(f"cannot write {self.path}: the run is closed")
        # An interrupted write may have added a line.
        size_before = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(encode_line(line))
            while rest:  # once, except on a disk that is nearly full
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as error:
            # Half a line would make the next one invalid too.
            with suppress(OSError):
                os.ftruncate(self._descriptor, size_before)
            raise _write_error(self.path, error) from None

    def finish(self, environment: Environment, records: Iterable[Record]) -> None:
        """Close the file and replace it with these records, also if it was removed; a device or a
        link is left unchanged.

        Raises:
            StoreError: the new file cannot be written; the old one is unchanged.
        """
        self.close()
        if not self.path.exists() or (self.path.is_file() and not self.path.is_symlink()):
            write_output(
                self.path, b"".join([encode_line(environment), *map(encode_line, records)])
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor = self._descriptor
            self._descriptor = -1  # closed, even if `os.close` raises
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60].strip("-.") or "unknown"


def _write_error(path: Path, error: OSError) -> StoreError:
    cause = reason_of(error)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):  # "File exists" would not say what is wrong
        cause = "a parent is a file"
    return StoreError(f"cannot write {path}: {cause}; choose another path")
