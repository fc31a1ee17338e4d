"""Runs as a comparison needs them: of each record little, so that two of a hundred thousand fit in little memory.

What is kept is checked as it is for a `Record`; what is not, such as how the result was verified, is only known to be
JSON.
"""

from __future__ import annotations

import gc
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from results.compare.number_columns import Numbers
from results.compare.turns import Turns, turns_of
from results.record import MAX_TIME_S, MIN_TIME_S, ROUNDING, Environment, Record, checked_fields
from results.show.judge import judged
from results.stats.samples import LogMedians, log_medians_of
from results.store.runfile import RunFileError, scan_run

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

WORDS = ("op", "provider", "dtype", "status", "reason", "method", "cache", "fill", "source_sha256", "op_sha256")
"""Fields of a record that are looked at and have few values in a run: what was right once is right again."""

VALUES = (
    *("status", "shape", "case", "options", "flops", "bytes_read", "bytes_written", "samples_s", "median_s", "ci95_s"),
    *("flags", "telemetry", "source_git"),
)
"""Fields that are looked at in each record."""


PARALLEL_BYTES = 20_000_000
"""Length of two files together from which on a second process, which takes a fifth of a second to start, pays."""

MAX_CLOCK_HZ = 1e12
"""No clock of a GPU is faster; more is a reading that is none."""

PROCESS = "process"
"""Key, among the options or the telemetry of a record, of the process that measured it."""


class Measured(NamedTuple):
    """One record, as far as a comparison needs it."""

    op: str
    dtype: str
    case: str
    shape: str
    options: str
    fill: str | None
    cache: str | None
    provider: str
    process: str | None
    """Which of several processes measured it; None where it was one."""
    status: str
    reason: str | None
    method: str | None
    flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    median_s: float | None
    ci95_s: tuple[float, float] | None
    sm_clock_hz: float | None
    samples: bytes
    """The samples as 64-bit floats, seconds; empty where none were kept, or where their median is enough."""
    source_sha256: str | None = None
    source_revision: str | None = None
    """Revision of the repository of a user's kernel, see `revision_text`; None for kernels of ours, or not known."""
    flags: tuple[str, ...] = ()
    """What speaks against the measurement."""
    taken: int = 0
    """Samples that were taken."""
    place: int = -1
    """Where its median is among those of its run; -1 where it has none."""
    turns: Turns | None = None
    """How it took turns with others; None where it was measured alone."""
    op_sha256: str | None = None
    """Hash of the definition of the op; None where it is not known, as in runs of before."""

    @property
    def is_users(self) -> bool:
        """Whether the provider is a user's own function: no name of ours has a colon."""
        return ":" in self.provider


@dataclass(frozen=True)
class Wanted:
    """Which records to read; an empty set wants all."""

    ops: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    cases: frozenset[str] = frozenset()
    providers: frozenset[str] = frozenset()

    def has(self, record: Mapping[str, Any]) -> bool:
        """Return whether the fields of a record are among those wanted."""
        return (
            (not self.ops or record["op"] in self.ops)
            and (not self.dtypes or record["dtype"] in self.dtypes)
            and (not self.cases or record["case"] in self.cases)
            and (not self.providers or record["provider"] in self.providers)
        )


EVERYTHING = Wanted()


@dataclass(frozen=True)
class Loaded:
    """One run, as far as a comparison needs it."""

    path: Path
    environment: Environment
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    peaks: Mapping[str, float]
    """FLOP/s that are an MFU of 1, by dtype; without those that no peak is known of."""
    bandwidths: Mapping[tuple[str, float], float]
    """Bytes/s that are an MBU of 1, by dtype and share of reads."""
    medians: LogMedians
    """The median of the samples of each finished record, by `Measured.place`; of one that kept none, its median."""
    counts: NDArray[int64]
    """Samples behind each of them, 1 where none were kept."""

    def mfu(self, measured: Measured, median_s: float | None) -> float | None:
        """Return the MFU of a record of this run at a median time, None where a count or the peak is not known."""
        peak = self.peaks.get(measured.dtype)
        return measured.flops / median_s / peak if peak and measured.flops and median_s else None

    def mbu(self, measured: Measured, median_s: float | None) -> float | None:
        """Return the MBU of a record of this run at a median time, None where a count or the bandwidth is not known."""
        share = read_share(measured.bytes_read, measured.bytes_written)
        bandwidth = None if share is None else self.bandwidths.get((measured.dtype, share))
        moved = (measured.bytes_read or 0) + (measured.bytes_written or 0)
        return moved / median_s / bandwidth if bandwidth and median_s else None


def read_share(bytes_read: int | None, bytes_written: int | None) -> float | None:
    """Return the share of reads in all bytes; None where they are not known or none."""
    if bytes_read is None or bytes_written is None or not bytes_read + bytes_written:
        return None
    return bytes_read / (bytes_read + bytes_written)


def load(path: Path, wanted: Wanted = EVERYTHING, with_bandwidths: bool = False, keeps_samples: bool = True) -> Loaded:
    """Read one run.

    Args:
        path: the run file.
        wanted: the records to keep.
        with_bandwidths: whether `bandwidths` are to be known; they are looked up for each mix of reads and writes.
        keeps_samples: whether all records keep their samples; else only those do that took turns with others.

    Raises:
        RunFileError: as `load_run`.
    """
    reader = _Reader(wanted, with_bandwidths, keeps_samples)
    environment, measured, notes, problems = scan_run(path, reader.take, checks_numbers=False)
    if not reader.are_numbers_right():  # then each line is looked at by itself, to tell which one is wrong
        reader = _Reader(wanted, with_bandwidths, keeps_samples, is_careful=True)
        environment, measured, notes, problems = scan_run(path, reader.take, checks_numbers=False)
    ceiling_of = partial(_ceilings, environment)
    return Loaded(
        path,
        environment,
        tuple(measured),
        notes,
        problems,
        ceiling_of(reader.by_dtype, "flops_per_s", "mfu"),
        ceiling_of(reader.by_mix, "bytes_per_s", "mbu"),
        *reader.medians(),
    )


class _Reader:
    """Takes from each record what is needed.

    Numbers are looked at all together in the end, unless it is to be careful: that takes a tenth of the time.
    """

    def __init__(self, wanted: Wanted, with_bandwidths: bool, keeps_samples: bool, is_careful: bool = False) -> None:
        self._wanted, self._with_bandwidths, self._keeps_samples = wanted, with_bandwidths, keeps_samples
        self._is_careful = is_careful
        self._medians_s: list[float] = []
        self._numbers = Numbers()
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._times_s: array[float] = array("d")
        """The samples of all finished records, one after the other; of one that kept none, its median."""
        self._counts: list[int] = []
        self._texts: dict[Any, Any] = {}
        self.by_dtype: dict[str, Record] = {}
        """One finished record of each dtype."""
        self.by_mix: dict[tuple[str, float], Record] = {}
        """One of each dtype and mix of reads and writes, where bandwidths are to be known."""

    def take(self, data: dict[str, Any]) -> Measured | None:
        """Return what is needed of a record, None where it is not wanted.

        Raises:
            RecordError: as `Record.from_dict`, of the fields that are looked at.
        """
        values = self._checked(data)
        if not self._wanted.has(values):
            return None
        if values["status"] == "ok":
            self._remember(values, data)
        return self._measured(values, data)

    def are_numbers_right(self) -> bool:
        """Return whether all numbers can be what they stand for: what `checked_fields` asks of each record."""
        import numpy as np

        if self._is_careful or not self._counts:
            return True
        if not self._numbers.are_right():
            return False
        times_s, counts = self._columns()
        starts = np.cumsum(counts) - counts
        low, high = np.minimum.reduceat(times_s, starts), np.maximum.reduceat(times_s, starts)
        medians_s = np.array(self._medians_s)
        is_right = (low >= MIN_TIME_S) & (high <= MAX_TIME_S)
        is_right &= (low * (1 - ROUNDING) <= medians_s) & (medians_s <= high * (1 + ROUNDING))
        return bool(is_right.all())

    def medians(self) -> tuple[LogMedians, NDArray[int64]]:
        """Return the medians of what was taken, by place, and how many samples are behind each."""
        times_s, counts = self._columns()
        return log_medians_of(times_s, counts), counts

    def _columns(self) -> tuple[NDArray[float64], NDArray[int64]]:
        """Return all times, seconds, and how many of them each record has."""
        import numpy as np

        return np.frombuffer(self._times_s), np.array(self._counts, dtype=np.int64)

    def _checked(self, data: dict[str, Any]) -> dict[str, Any]:
        words = tuple(map(data.get, WORDS))
        try:
            checked = self._known.get(words)
        except TypeError:  # a list or an object in the place of a word: refused below
            checked = None
        if checked is not None:
            if checked["status"] == "ok" and not self._is_careful and (values := self._numbers.take(data)) is not None:
                return checked | values
            return checked | checked_fields(data, VALUES)
        values = checked_fields(data, (*WORDS, *VALUES))
        self._known[words] = {name: values[name] for name in WORDS if name in values}
        return values

    def _remember(self, values: dict[str, Any], data: dict[str, Any]) -> None:
        """Keep the first record of each kind, by which the machine's ceilings are told."""
        if values["dtype"] not in self.by_dtype and values.get("flops"):
            self.by_dtype[values["dtype"]] = Record.from_dict(data)
        if not self._with_bandwidths:
            return
        share = read_share(values.get("bytes_read"), values.get("bytes_written"))
        if share is not None and (values["dtype"], share) not in self.by_mix:
            self.by_mix[values["dtype"], share] = Record.from_dict(data)

    def _measured(self, values: dict[str, Any], data: dict[str, Any]) -> Measured:
        get, place = values.get, -1
        options, telemetry, git = get("options", {}), get("telemetry", {}), get("source_git")
        samples = array("d", get("samples_s", ()))
        clock, flags, turns = telemetry.get("sm_clock_hz"), get("flags", ()), turns_of(data, len(samples))
        if values["status"] == "ok":
            place = len(self._counts)
            self._times_s.extend(samples or (values["median_s"],))
            self._counts.append(len(samples) or 1)
            self._medians_s.append(values["median_s"])
        return Measured(
            values["op"],
            values["dtype"],
            values["case"],
            _text(values["shape"]),
            intern(_text(options)),
            get("fill"),
            get("cache"),
            values["provider"],
            _process(options, telemetry, data),
            values["status"],
            get("reason"),
            get("method"),
            get("flops"),
            get("bytes_read"),
            get("bytes_written"),
            get("median_s"),
            get("ci95_s"),
            float(clock) if isinstance(clock, (int, float)) and 0 < clock < MAX_CLOCK_HZ else None,
            samples.tobytes() if self._keeps_samples or turns else b"",
            get("source_sha256"),
            revision_text(git) if git else None,
            self._texts.setdefault(flags, flags),
            len(samples),
            place,
            turns,
            get("op_sha256"),
        )


def load_both(
    first: Path, second: Path, wanted: Wanted = EVERYTHING, with_bandwidths: bool = False
) -> tuple[Loaded, Loaded]:
    """Read two runs, without samples, long ones side by side in two processes. Arguments and errors as of `load`."""
    read = partial(load, wanted=wanted, with_bandwidths=with_bandwidths, keeps_samples=False)
    if _size(first) + _size(second) < PARALLEL_BYTES or _cores() < 2:
        return read(first), read(second)
    from concurrent.futures.process import BrokenProcessPool

    from results.compare.second_process import second_process

    try:
        with second_process(_has_one_thread()) as pool:
            other = pool.submit(_load_or_error, read, second)
            loaded, found = read(first), other.result()
    except (OSError, BrokenProcessPool):  # where no second process may be started, one reads both
        return read(first), read(second)
    if isinstance(found, str):
        raise RunFileError(found)
    return loaded, replace(found, measured=tuple(map(Measured._make, found.measured)))


def _cores() -> int:
    """Return the cores that this process may use; only some systems tell which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _has_one_thread() -> bool:
    """Return whether this process may be copied, which starts at once: no other thread holds a lock in the copy.

    Only Linux tells; elsewhere a new process starts afresh.
    """
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  # names alone, of a place that is no folder
    except OSError:
        return False


def _load_or_error(read: Callable[[Path], Loaded], path: Path) -> Loaded | str:
    """Return a run with its records as plain tuples, which travel between processes three times as fast."""
    try:
        loaded = read(path)
    except RunFileError as error:
        return str(error)
    gc.disable()  # this process only has to send what it has read, and then ends
    return replace(loaded, measured=tuple(map(tuple, loaded.measured)))  # type: ignore[arg-type]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _ceilings(environment: Environment, records: Mapping[Any, Record], rate: str, share: str) -> dict[Any, float]:
    """Return the rate at which a share of the machine would be 1, from one judged record of each kind.

    A share is in proportion to its rate, so that one judgment tells that of all records of the kind.
    """
    scores = judged(environment, records.values())
    return {
        kind: score[rate] / score[share]
        for kind, score in zip(records, scores, strict=True)
        if score[rate] and score[share]
    }


def _process(*places: Mapping[str, Any]) -> str | None:
    for place in places:
        if PROCESS in place and place[PROCESS] is not None:
            return str(place[PROCESS])
    return None


def _text(values: Mapping[str, Any]) -> str:
    """Return names and values as one text that does not depend on their order, without the process."""
    return " ".join([f"{name}={values[name]}" for name in sorted(values) if name != PROCESS])


def revision_text(git: Mapping[str, Any]) -> str | None:
    """Return a git revision, ten digits, with `-dirty` where files were changed; None where it is not known."""
    sha = git.get("sha")
    return intern(f"{str(sha)[:10]}{'-dirty' if git.get('dirty') else ''}") if sha else None


def windows(measured: Sequence[Measured]) -> list[Any]:
    """Return the samples of each record, seconds; of one that kept none, its median alone."""
    import numpy as np

    return [np.frombuffer(one.samples) if one.samples else np.array([one.median_s]) for one in measured]
