"""Devices of a fleet: one for each rank's run file.

Only the keys that the report needs are decoded. A file or line that is not usable becomes a note; the others count.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.json import Decoder

from results.store.runfile import SUFFIX, StoreError, reason_of

CEILINGS = {"matmul": "tensor", "fma": "vector", "copy": "memory", "h2d": "link", "d2h": "link", "launch": "launch"}
"""Ceiling that each op measures."""

CLOCKS = {"tensor": "sm_clock_hz", "vector": "sm_clock_hz", "memory": "memory_clock_hz"}
"""Clock that a ceiling is proportional to."""

PHASES = ("solo", "together")
"""One device at a time; all devices at once."""

MAX_FILE_BYTES, MAX_ROWS = 2**26, 10_000
"""What is read of a file."""

MAX_START_GAP_S = 3600.0
"""Files of one run start within this time of each other."""

HEALTH = {
    "remapped_pending": ("remapped_rows", "pending"),
    "remapped_failed": ("remapped_rows", "failed"),
    "ecc_uncorrected": ("ecc_errors", "uncorrected"),
    **{name: (name,) for name in ("utilization", "other_processes", "memory_used_bytes", "recommended_action")},
}
"""Facts in `fleet.health`."""

THROTTLE = {
    "power_cap": ("sw_power_cap",),
    "thermal": ("thermal", "sw_thermal", "hw_thermal"),
    "power_brake": ("power_brake",),
    "locked": ("applications_clocks", "sync_boost"),
}
"""Facts in a row's telemetry: a share of time under `throttle`, or an event in `clock_events`."""

Count = Annotated[int, Meta(ge=0)]


class Rank(Struct):
    """Key `fleet` of a rank's environment."""

    rank: Count
    world_size: Annotated[int, Meta(ge=1, le=100_000)]
    node: str
    local_rank: Count | None = None
    rack: str | None = None
    pci_bus_id: str | None = None
    health: dict[str, Any] | None = None


class _Environment(Struct):
    kind: Literal["environment"]
    run_id: str
    started_at: str
    device: dict[str, Any]
    fleet: Rank
    versions: dict[str, Any] | None = None


class _Record(Struct):
    kind: Literal["record"]
    op: str
    status: str
    provider: str = ""
    dtype: str = ""
    case: str = ""
    reason: str | None = None
    options: dict[str, Any] = {}
    median_s: float | None = None
    ci95_s: tuple[float, float] | None = None
    visits: list[int] | None = None
    op_sha256: str | None = None
    telemetry: dict[str, Any] = {}


_ENVIRONMENTS, _RECORDS = Decoder(_Environment), Decoder(_Record)


class Metric(NamedTuple):
    """What a row measures; rows of different definitions are not comparable."""

    op: str
    provider: str
    dtype: str
    case: str
    op_sha256: str | None

    @property
    def ceiling(self) -> str:
        return CEILINGS[self.op]


class Reading(NamedTuple):
    """Measured rate of one metric in one phase; all values are natural logarithms."""

    rate: float
    """Of launches per second."""
    below: float
    """Distance to the lower end of the 95 % interval; infinite if unknown."""
    above: float
    clock: float | None
    """Of the clock in Hz that the ceiling is proportional to; None if unknown."""


Readings = dict[tuple[Metric, str], Reading]


@dataclass
class Device:
    """A device as its rank measured it."""

    run_id: str
    started_s: float
    """Unix time."""
    fleet: Rank
    name: str
    uuid: str | None
    group: tuple[Any, ...]
    """Name, memory in GiB, MIG, default power limit in W, driver and VBIOS."""
    readings: Readings = field(default_factory=dict)
    """By metric and phase."""
    facts: dict[str, float] = field(default_factory=dict)
    """What may explain a slow device, by the names of `rules.toml`."""
    failures: list[str] = field(default_factory=list)

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.uuid,) if self.uuid else (self.fleet.node, self.fleet.rank)

    def observe(self, name: str, value: object) -> None:
        """Keep the largest value of a fact."""
        if (known := number(value)) is not None:
            self.facts[name] = max(known, self.facts.get(name, known))


def number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else None


@dataclass
class Fleet:
    """All devices of one or more directories."""

    devices: list[Device]
    """A missing rank has no readings, but a failure."""
    earlier: dict[tuple[Any, ...], list[Device]]
    """Earlier measurements of each device by its identity, oldest first."""
    notes: list[str]
    """A line for each file with a problem."""


def read_fleet(directories: Iterable[Path], history: Iterable[Path] = ()) -> Fleet:
    """Read the rank files of `directories`; older files of a device, and those of `history`, are its history.

    Raises:
        StoreError: a directory cannot be read.
    """
    notes: list[str] = []
    read, old = (
        sorted(
            (device for path in _files(paths) if (device := read_device(path, notes))),
            key=lambda device: (device.started_s, device.fleet.rank, device.run_id),
        )
        for paths in (directories, history)
    )
    newest = list({device.identity: device for device in read}.values())
    newest = list({_slot(device): device for device in newest}.values())
    run_ids = {device.run_id for device in newest}
    if replaced := {device.fleet.rank for device in read} if len(newest) < len(read) else None:
        notes.append(f"{len(read) - len(newest)} older or duplicate files, of {_ranks(replaced)}: the newest are used")
    earlier: dict[tuple[Any, ...], list[Device]] = defaultdict(list)
    for device in sorted([*read, *old], key=lambda device: device.started_s):
        if device.run_id not in run_ids:  # a copied file is not a second measurement
            run_ids.add(device.run_id)
            earlier[device.identity].append(device)
    return Fleet(_with_missing(read, newest, notes), earlier, notes)


def _files(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        try:
            found = sorted(path.iterdir()) if not path.is_file() else [path]
        except OSError as error:
            raise StoreError(f"cannot read {path}: {reason_of(error)}") from None
        yield from (file for file in found if file.suffix == SUFFIX)


def read_device(path: Path, notes: list[str]) -> Device | None:
    """Return the device of a rank's file; None if it is not one. Problems are added to `notes`."""
    try:
        if not path.is_file():
            raise ValueError("not a file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
        first, *lines = content.split(b"\n", MAX_ROWS + 1)
        device = _device(_ENVIRONMENTS.decode(first))
    except OSError as error:
        notes.append(f"{path}: {reason_of(error)}; left out")
        return None
    except (ValueError, RecursionError) as error:
        notes.append(f"{path}: not a rank's file: {error}; left out")
        return None
    visited: dict[tuple[Metric, str], list[tuple[int, Reading]]] = defaultdict(list)
    bad, ops, zero_clocks = [], set(), 0
    for index, line in enumerate(lines[:MAX_ROWS]):
        if line:
            try:
                row = _RECORDS.decode(line)
            except (ValueError, RecursionError) as error:
                bad.append(f"line {index + 2}: {error}")
                continue
            ops.add(row.op)
            if row.op in CEILINGS:
                zero_clocks += 0 in (row.telemetry.get("sm_clock_hz"), row.telemetry.get("memory_clock_hz"))
                _add(device, row, visited)
    if ops and ops.isdisjoint(CEILINGS):
        notes.append(f"{path}: no op of a fleet run; left out")
        return None
    device.readings = {key: _combined([reading for _, reading in repeats]) for key, repeats in visited.items()}
    problems = [f"{len(bad)} invalid lines left out, {bad[0]}"] if bad else []
    problems += [f"a clock of 0 Hz in {zero_clocks} rows ignored"] if zero_clocks else []
    if len(content) == MAX_FILE_BYTES or len(lines) > MAX_ROWS:
        problems.append(f"only {MAX_ROWS:,} rows and {MAX_FILE_BYTES >> 20} MiB are read")
    if problems:
        notes.append(f"{path}: {'; '.join(problems)}")
    return device


def _device(environment: _Environment) -> Device:
    """Return a device without rows.

    Raises:
        ValueError: the rank or the start time is impossible.
    """
    rank, about = environment.fleet, environment.device
    if rank.rank >= rank.world_size:
        raise ValueError(f"rank {rank.rank} of {rank.world_size}")
    started = datetime.fromisoformat(environment.started_at)
    health = rank.health = rank.health or {}
    name, uuid = (value if isinstance(value := about.get(key), str) and value else None for key in ("name", "uuid"))
    limit_w, default_w = number(health.get("power_limit_w")), number(health.get("power_limit_default_w"))
    group = (
        name,
        # Reserved pages differ by megabytes.
        2 * round((number(about.get("memory_bytes")) or 0) / 2**31),
        bool(health.get("mig_mode")),
        # A limit below the default is evidence: a capped node is compared with the others, not with itself.
        default_w or limit_w,
        str(health.get("driver") or (environment.versions or {}).get("driver")),
        str(health.get("vbios")),
    )
    started_s = (started if started.tzinfo else started.replace(tzinfo=UTC)).timestamp()
    device = Device(environment.run_id, started_s, rank, name or "unknown", uuid, group)
    if limit_w and default_w:
        device.observe("power_limit_lost", 1 - limit_w / default_w)
    for fact, (key, *inner) in HEALTH.items():
        value = health.get(key)
        device.observe(fact, value.get(inner[0]) if inner and isinstance(value, dict) else value)
    return device


def _add(device: Device, row: _Record, visited: dict[tuple[Metric, str], list[tuple[int, Reading]]]) -> None:
    """Add a row to the readings, facts and failures of a device."""
    phase = row.options.get("phase") if row.options.get("phase") in PHASES else PHASES[0]
    if row.status == "invalid":
        device.observe("wrong_results", device.facts.get("wrong_results", 0.0) + 1)
    if row.status in ("failed", "invalid"):
        device.failures.append(f"{row.op} {phase} {row.status}: {row.reason}")
    if row.status != "ok" or not row.median_s or not 0 < row.median_s < math.inf:
        return
    low_s, high_s = row.ci95_s or (0.0, math.inf)
    ends = math.inf, math.inf
    if 0 < low_s <= row.median_s <= high_s < math.inf:
        ends = math.log(high_s / row.median_s), math.log(row.median_s / low_s)
    clock_hz = number(row.telemetry.get(CLOCKS.get(CEILINGS[row.op], "")))
    reading = Reading(-math.log(row.median_s), *ends, math.log(clock_hz) if clock_hz else None)
    repeats = visited[Metric(row.op, row.provider, row.dtype, row.case, row.op_sha256), str(phase)]
    visits = len(row.visits or ())
    if repeats and 1 < visits == repeats[-1][0] + 1:  # has the samples of the earlier visits too
        repeats.pop()
    repeats.append((visits or 1, reading))
    _observe(device, row.telemetry)


def _observe(device: Device, telemetry: Mapping[str, Any]) -> None:
    throttle, host, events = (telemetry.get(key) for key in ("throttle", "host_throttle", "clock_events"))
    throttle = throttle if isinstance(throttle, dict) else {}
    for name, causes in THROTTLE.items():
        known = [share for cause in causes if (share := number(throttle.get(cause))) is not None]
        if known:
            device.observe(name, max(known))
        elif isinstance(events, list):
            device.observe(name, float(any(cause in events for cause in causes)))
    for cause in ("cgroup_quota", "steal"):
        device.observe("host_throttle", (host if isinstance(host, dict) else throttle).get(cause))
    for name in ("generation", "width"):
        value, full = (
            number(known.get(key))
            for known, key in ((telemetry, f"link_{name}"), (device.fleet.health or {}, f"link_{name}_max"))
        )
        if value and full:
            device.observe(f"link_{name}_lost", 1 - value / full)
    device.observe("pcie_replays", telemetry.get("pcie_replays"))


def _combined(repeats: Sequence[Reading]) -> Reading:
    """Return one reading with an interval that includes those of all repeats."""
    rate = median_low(reading.rate for reading in repeats)
    clocks = [reading.clock for reading in repeats if reading.clock is not None]
    return Reading(
        rate,
        max(rate - reading.rate + reading.below for reading in repeats),
        max(reading.rate - rate + reading.above for reading in repeats),
        median_low(clocks) if clocks else None,
    )


def _slot(device: Device) -> tuple[Any, ...]:
    # Without a launcher every device is rank 0 of 1.
    rank = device.fleet
    return (rank.node, rank.rank, rank.world_size) if rank.world_size > 1 else device.identity


def _with_missing(read: Sequence[Device], newest: Sequence[Device], notes: list[str]) -> list[Device]:
    """Return the newest devices; one that the latest run of its world size lacks has no readings.

    Several nodes may each have launched ranks 0 to `world_size` - 1: most ranks then have several files.
    """
    current = {id(device): device for device in newest}
    for size in {device.fleet.world_size for device in read} - {1}:
        run = _latest_run([device for device in read if device.fleet.world_size == size])
        counts = Counter(device.fleet.rank for device in run)
        launches = median_low(counts.values())
        if repeated := {rank for rank, count in counts.items() if count > launches}:
            notes.append(f"{_ranks(repeated)}: claimed by more than one device; all are judged")
        older = {device.fleet.rank: device for device in newest if device.fleet.world_size == size and launches == 1}
        for rank in range(size):
            if counts[rank] < launches:
                nodes = {d.fleet.node for d in run} - {d.fleet.node for d in run if d.fleet.rank == rank}
                node = nodes.pop() if launches > 1 and len(nodes) == 1 else ""
                known = older.get(rank) or replace(run[0], name="unknown", uuid=None, fleet=Rank(rank, size, node))
                failures = ["no file of this rank"]
                current[id(known)] = replace(known, readings={}, facts={}, failures=failures)
    return list(current.values())


def _latest_run(ordered: Sequence[Device]) -> list[Device]:
    """Return the files since the last long gap, or since a device was last seen again."""
    run, seen = [ordered[-1]], {ordered[-1].identity}
    for device in reversed(ordered[:-1]):
        if device.identity in seen or run[-1].started_s - device.started_s > MAX_START_GAP_S:
            break
        seen.add(device.identity)
        run.append(device)
    return run


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return f"rank{'s' * (len(listed) > 1)} {', '.join(map(str, listed[:8]))}{more}"
