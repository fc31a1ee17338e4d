"""Runs as a comparison needs them: of each record little, so that two of a hundred thousand fit in little memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose
from pathlib import Path
from sys import intern
from typing import Any, NamedTuple

from results.record import Environment, Record
from results.show.judge import judged
from results.store.runfile import scan_run

MAX_CLOCK_HZ = 1e12
"""No clock of a GPU is faster; more is a reading that is none."""

PROCESS = "process"
"""Key, among the options or the telemetry of a record, of the process that measured it."""


class Interleaving(NamedTuple):
    """How the samples of one record lie among those of the others of its case, where they took turns on the clock."""

    samples_per_round: int
    is_fixed: bool
    """Whether the count of rounds was set beforehand."""
    rounds: tuple[Any, ...]
    """What is the same in all records of the same rounds, and in no others."""
    clocks_hz: tuple[float, ...] | None
    """SM clock of each round; None where it is not known."""
    seconds: float | None
    """Time that all rounds took; None where it is not known."""


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
    flops: int | None
    bytes_read: int | None
    bytes_written: int | None
    median_s: float | None
    ci95_s: tuple[float, float] | None
    sm_clock_hz: float | None
    samples: bytes
    """The samples as 64-bit floats, seconds; empty where none were kept."""
    source_sha256: str | None
    source_revision: str | None
    """Revision of the repository of a user's kernel, see `revision_text`; None for kernels of ours, or not known."""
    flags: tuple[str, ...]
    """What speaks against the measurement."""
    turns: Interleaving | None
    """How it took turns with others; None where it was measured alone."""
    op_sha256: str | None
    """Hash of the definition of the op; None where it is not known, as in runs of before."""
    units: str | None
    """Which units the op runs on, `matrix` or `vector`; None: its name tells."""

    @property
    def is_users(self) -> bool:
        """Whether the provider is a user's own function: no name of ours has a colon."""
        return ":" in self.provider

    @property
    def moved(self) -> int | None:
        """Bytes read and written; None where they are not known."""
        return None if self.bytes_read is None or self.bytes_written is None else self.bytes_read + self.bytes_written

    @property
    def read_share(self) -> float | None:
        """Share of reads in all bytes; None where they are not known or none."""
        return (self.bytes_read or 0) / self.moved if self.moved else None


def measured_of(record: Record) -> Measured:
    """Return what a comparison needs of a record."""
    clock: Any = record.telemetry.get("sm_clock_hz")
    git = record.source_git
    return Measured(
        op=intern(record.op),
        dtype=intern(record.dtype),
        case=record.case,
        shape=_text(record.shape),
        options=intern(_text(record.options)),
        fill=_shared(record.fill),
        cache=_shared(record.cache),
        provider=intern(record.provider),
        process=_process(record),
        status=intern(record.status),
        reason=record.reason,
        flops=record.flops,
        bytes_read=record.bytes_read,
        bytes_written=record.bytes_written,
        median_s=record.median_s,
        ci95_s=record.ci95_s,
        sm_clock_hz=float(clock) if _is_clock(clock) else None,
        samples=array("d", record.samples_s).tobytes(),
        source_sha256=_shared(record.source_sha256),
        source_revision=revision_text(git) if git else None,
        flags=tuple(map(intern, record.flags)),
        turns=_turns(record),
        op_sha256=_shared(record.op_sha256),
        units=record.units or ("vector" if record.extra.get("matmul_flops") == 0 else None),
    )


def _turns(record: Record) -> Interleaving | None:
    """Return how a record took turns; None where it did not, or where what is kept of that does not fit its samples."""
    found = record.interleaved
    names, size, is_fixed = (found.get(name) for name in ("with", "samples_per_round", "is_fixed"))
    if not isinstance(names, list) or not isinstance(is_fixed, bool):
        return None
    samples = len(record.samples_s)
    if type(size) is not int or size < 1 or not samples or samples % size:
        return None
    clocks_hz, seconds = found.get("sm_clock_hz"), found.get("seconds")
    is_known = isinstance(clocks_hz, list) and len(clocks_hz) == samples // size and all(map(_is_clock, clocks_hz))
    same = (*map(str, names), str(found.get("seed")), str(seconds), samples // size)
    clocks = tuple(clocks_hz) if is_known and clocks_hz else None
    return Interleaving(size, is_fixed, same, clocks, float(seconds) if isinstance(seconds, int | float) else None)


def _is_clock(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_CLOCK_HZ


def _process(record: Record) -> str | None:
    places = (record.options.get(PROCESS), record.telemetry.get(PROCESS), record.process)
    return next((str(process) for process in places if process is not None), None)


def _shared(text: str | None) -> str | None:
    """Return a text of which all records that have it hold the same object."""
    return None if text is None else intern(text)


def _text(values: Mapping[str, Any]) -> str:
    """Return names and values as one text that does not depend on their order, without the process."""
    return " ".join([f"{name}={values[name]}" for name in sorted(values) if name != PROCESS])


def revision_text(git: Mapping[str, Any]) -> str | None:
    """Return a git revision, ten digits, with `-dirty` where files were changed; None where it is not known."""
    sha = git.get("sha")
    return intern(f"{str(sha)[:10]}{'-dirty' if git.get('dirty') else ''}") if sha else None


def windows(measured: Iterable[Measured]) -> list[Any]:
    """Return the samples of each record, seconds; of one that kept none, its median alone."""
    import numpy as np

    return [np.frombuffer(one.samples) if one.samples else np.array([one.median_s]) for one in measured]


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


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """One run, as far as a comparison needs it."""

    path: Path
    environment: Environment
    measured: Sequence[Measured]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    rates: dict[tuple[str, float | None], float | None] = field(default_factory=dict)
    """What the machine can do, as far as it was asked for: FLOP/s by dtype, bytes/s by dtype and share of reads."""
    shares: dict[tuple[Any, ...], tuple[float, str] | None] = field(default_factory=dict)
    """Share of the ceiling that binds which a launch of one second reaches, by what is launched."""

    def mfu(self, measured: Measured, median_s: float | None) -> float | None:
        """Return the MFU of a record of this run at a median time, None where a count or the peak is not known."""
        if not measured.flops or not median_s:
            return None
        peak = self._rate(measured, None, "flops_per_s", "mfu")
        return measured.flops / median_s / peak if peak else None

    def mbu(self, measured: Measured, median_s: float | None) -> float | None:
        """Return the MBU of a record of this run at a median time, None where a count or the bandwidth is not known."""
        share = measured.read_share
        if share is None or not median_s:
            return None
        bandwidth = self._rate(measured, share, "bytes_per_s", "mbu")
        return (measured.moved or 0) / median_s / bandwidth if bandwidth else None

    def of_ceiling(self, measured: Measured, median_s: float | None) -> tuple[float, str] | None:
        """Return the share of the ceiling that binds at a median time, and whether that is `compute` or `memory`.

        It is the judge's share of the roofline, as in the table of a run; None where the judge knows none.
        """
        launched = (measured.op, measured.dtype, measured.units, measured.flops, measured.bytes_read)
        key = (*launched, measured.bytes_written)
        if key not in self.shares:
            (score,) = judged(self.environment, [_probe(measured)])
            share, mbu = score["roofline_pct"], score["mbu"]
            is_memory = share is not None and mbu is not None and isclose(100 * mbu, share, rel_tol=1e-9)
            self.shares[key] = None if share is None else (share / 100, "memory" if is_memory else "compute")
        found = self.shares[key]
        return (found[0] / median_s, found[1]) if found and median_s else None

    def work(self, measured: Measured, metric: str) -> float | None:
        """Return what is divided by the time of a launch to give a metric; None where it is not known, or 0.

        Args:
            measured: a record of this run.
            metric: `flops`, `mfu` or `mbu`.
        """
        if metric == "flops":
            return measured.flops or None
        return (self.mfu if metric == "mfu" else self.mbu)(measured, 1.0) or None

    def _rate(self, measured: Measured, share: float | None, rate: str, utilization: str) -> float | None:
        """Return the rate at which a utilization would be 1: it is in proportion, so one judged record tells it."""
        if (measured.dtype, share) not in self.rates:
            probe = replace(
                _probe(measured),
                flops=measured.flops or 1,
                bytes_read=measured.bytes_read or 0,
                bytes_written=measured.bytes_written or (0 if measured.bytes_read else 1),
            )
            (score,) = judged(self.environment, [probe])
            self.rates[measured.dtype, share] = score[rate] / score[utilization] if score[utilization] else None
        return self.rates[measured.dtype, share]


def _probe(measured: Measured) -> Record:
    """Return a record of the same work that takes one second."""
    return Record(
        op=measured.op,
        provider=measured.provider,
        dtype=measured.dtype,
        shape={"n": 1},
        case=measured.case,
        status="ok",
        flops=measured.flops,
        bytes_read=measured.bytes_read,
        bytes_written=measured.bytes_written,
        median_s=1.0,
        units=measured.units,
    )


def load(path: Path, wanted: Wanted = EVERYTHING) -> LoadedRun:
    """Read those records of a run that are wanted.

    Raises:
        RunFileError: as `load_run`.
    """

    def take(data: dict[str, Any]) -> Measured | None:
        record = Record.from_dict(data)
        return measured_of(record) if wanted.has(record) else None

    environment, measured, notes, problems = scan_run(path, take)
    return LoadedRun(path, environment, measured, notes, problems)
