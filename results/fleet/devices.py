"""Devices of a fleet: one for each rank's run file.

A file or line that is not usable becomes a note; the others count.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median, median_high
from typing import Any, NamedTuple

from results.record import Environment, Object, Rank, Record, unix_time
from results.show.facts import facts_of
from results.show.terminal import reason_of
from results.store.runfile import SUFFIX, StoreError, load_run

DATA = facts_of(Path(__file__).with_name("rules.toml"))

OPS = {
    "matmul": ("tensor", "sm_clock_hz"),
    "fma": ("vector", "sm_clock_hz"),
    "copy": ("memory", "memory_clock_hz"),
    "h2d": ("link", ""),
    "d2h": ("link", ""),
    "launch": ("launch", ""),
}
"""Ceiling that each op measures, and the clock that it is proportional to."""

SOFTWARE = ("driver", "vbios", "torch", "cuda")
PHASES = ("solo", "together")
MAX_SAMPLE = 2.0
"""A sample counts at most as this multiple of the median, so that a single one is no slowness."""
SLOW_SAMPLE = 1.2
"""A sample is slow from this multiple of the median on."""
FLOORS = {name: math.log1p(-share) for name, share in DATA["smallest"].items()}
"""Logarithm of the smallest difference that counts, by ceiling."""
DAY_S = 86_400


class Metric(NamedTuple):
    """What a row measures; rows of different definitions are not comparable."""

    ceiling: str
    op: str
    provider: str
    dtype: str
    case: str
    op_sha256: str | None


class Reading(NamedTuple):
    """Measured rate of one metric in one phase, as logarithms; relative to another one, their
    difference.
    """

    metric: Metric
    phase: str
    rate: float
    below: float
    """Distance to the lower end of the 95 % interval; infinite if unknown."""
    above: float
    clock: float | None
    mean: float
    """Rate by the mean of the samples, which intermittent slowness lowers."""

    @property
    def per_clock(self) -> float | None:
        return None if self.clock is None else self.rate - self.clock

    def relative_to(self, other: Reading) -> Reading:
        return self._replace(
            rate=self.rate - other.rate,
            mean=self.mean - other.mean,
            clock=None if self.clock is None else self.clock - (other.clock or 0.0),
        )


def middle_of(readings: Sequence[Reading]) -> Reading:
    """Return the medians of readings; of an even number, the faster one."""
    clocks = [reading.clock for reading in readings if reading.clock is not None]
    return readings[0]._replace(
        rate=median_high(reading.rate for reading in readings),
        below=median(reading.below for reading in readings),
        above=median(reading.above for reading in readings),
        clock=median_high(clocks) if clocks else None,
        mean=median_high(reading.mean for reading in readings),
    )


@dataclass
class Device:
    """A device as its rank measured it."""

    run_id: str
    started_s: float
    """Unix time."""
    fleet: Rank
    uuid: str | None
    group: tuple[Any, ...]
    """What comparable devices share, see `judge.GROUP_PARTS`."""
    readings: dict[tuple[Metric, str], Reading] = field(default_factory=dict)  # by metric and phase
    software: dict[str, str] = field(default_factory=dict)
    """Versions that should be equal in a fleet, by name."""
    wrong: list[str] = field(default_factory=list)
    """Ceilings of the rows with wrong results."""
    facts: dict[str, float] = field(default_factory=dict)
    """What may explain a slow device, see `rules.toml`."""
    failures: list[str] = field(default_factory=list)

    @property
    def identity(self) -> tuple[Any, ...]:
        return (self.uuid,) if self.uuid else (self.fleet.node, self.fleet.rank)

    def observe(self, name: str, value: object) -> None:
        """Keep the largest value of a fact; a value that is not a number is left out."""
        known = finite(value)
        if known is not None:
            self.facts[name] = max(known, self.facts.get(name, known))


def finite(value: object) -> float | None:
    """Return a number from 0 that a driver or a file reports; None for anything else."""
    return float(value) if isinstance(value, int | float) and 0 <= value < math.inf else None


AGE = attrgetter("started_s", "fleet.rank", "run_id")
"""Order of devices, the oldest first."""

Earlier = dict[tuple[Any, ...], list[Device]]
"""Earlier measurements of each device by its identity, oldest first."""


def read_fleet(
    directories: Iterable[Path], history: Iterable[Path] = ()
) -> tuple[list[Device], Earlier, list[str]]:
    """Return the devices of all ranks, their history, and a note for each file with a problem.

    The newest file of each device and rank counts, if it is at most a day older than the newest
    of all. Older files of a device, and those of `history`, are its history. A rank without a file
    is a device without readings.

    Raises:
        StoreError: a directory cannot be read.
    """
    notes: list[str] = []
    read = _read(directories, notes)
    after_s = max((device.started_s for device in read), default=0.0) - DAY_S
    last = {device.identity: device for device in read if device.started_s >= after_s}
    by_slot = {}
    for device in sorted(last.values(), key=AGE):
        rank = device.fleet
        has_peers = (rank.world_size or 1) > 1  # without a launcher, every device is rank 0 of 1
        slot = (rank.node, rank.rank, rank.world_size) if has_peers else device.identity
        by_slot[slot] = device
    newest = list(by_slot.values())
    if len(newest) < len(read):
        notes.append(
            f"older or duplicate files: {len(read) - len(newest)}; the newest of each rank in the "
            f"last day is judged"
        )
    earlier = defaultdict(list)
    run_ids = {device.run_id for device in newest}
    for device in sorted([*read, *_read(history, notes)], key=AGE):
        if device.run_id not in run_ids:  # a copied file is not a second measurement
            run_ids.add(device.run_id)
            earlier[device.identity].append(device)
    launches: dict[tuple[int, str], dict[int, Device]] = defaultdict(dict)
    for device in newest:
        rank = device.fleet
        size = rank.world_size or 0  # unknown: no rank is known to be missing
        # A launch within a node has ranks 0 to `size` - 1, as that of another node may have.
        launches[size, rank.node if size == rank.local_world_size else ""][rank.rank] = device
    for (size, node), launch in launches.items():
        for absent in set(range(size)) - launch.keys():
            near = launch.get(absent - 1, next(iter(launch.values())))
            rank = Rank(rank=absent, node=node or near.fleet.node, world_size=size)
            failures = ["no file of this rank"]
            newest.append(
                Device(near.run_id, near.started_s, rank, None, near.group, failures=failures)
            )
    return newest, earlier, notes


def _read(paths: Iterable[Path], notes: list[str]) -> list[Device]:
    """Return the devices of files and directories, oldest first."""
    devices = []
    for path in paths:
        files = [path]
        if not path.is_file():
            try:
                files = sorted(file for file in path.iterdir() if file.suffix == SUFFIX)
            except OSError as error:
                raise StoreError(f"cannot read {path}: {reason_of(error)}") from None
        found = list(filter(None, (read_device(file, notes) for file in files)))
        if not found and files != [path]:
            notes.append(f"{path}: no file of bench.fleet; subdirectories are not read")
        devices += found
    return sorted(devices, key=AGE)


def read_device(path: Path, notes: list[str]) -> Device | None:
    """Return the device of a rank's file; None if it is not one, or has the rank's collectives."""
    try:
        if not path.is_file():  # a pipe would block
            raise StoreError("not a file")
        run = load_run(path)
        rank = run.environment.fleet
        if rank is None:
            raise StoreError("its run has no ranks")
    except StoreError as error:
        notes.append(f"{path}: not a rank's file: {error}; left out")
        return None
    rows = [record for record in run.records if record.op in OPS]
    if run.records and not rows:
        return None
    notes += run.notes
    if run.problems:
        notes.append(f"{run.problems[0]}; invalid lines left out: {len(run.problems):,}")
    device = _device(run.environment, rank)
    for row in rows:
        _add(device, row, run.environment.device)
    return device


def _device(environment: Environment, rank: Rank) -> Device:
    """Return a device without rows."""
    about = environment.device
    health = rank.health
    limit_w = finite(health.get("power_limit_w"))
    default_w = finite(health.get("power_limit_default_w"))
    group = (
        about["name"],
        2 * round((about.get("memory_bytes") or 0) / 2**31),  # reserved pages differ by megabytes
        # A limit below the default is evidence: a capped node is compared with the others, not with
        # itself.
        default_w or limit_w,
        bool(health.get("mig_mode")),
        about.get("threads"),
        bool(environment.settings.get("quick")),
    )
    started_s = unix_time(environment.started_at)
    device = Device(environment.run_id, started_s, rank, about.get("uuid"), group)
    known = environment.versions | health
    device.software = {name: str(known[name]) for name in SOFTWARE if known.get(name)}
    if limit_w and default_w:
        device.observe("power_limit_lost", 1 - limit_w / default_w)
    for fact, keys in DATA["health"].items():
        value: Any = health
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        device.observe(fact, value)
    return device


def _add(device: Device, row: Record, about: Object) -> None:
    """Add a row of the device `about` to the readings, facts and failures."""
    phase = str(row.options.get("phase"))
    ceiling, clock_key = OPS[row.op]
    if row.status == "invalid":
        device.wrong.append(ceiling)
        device.observe("wrong_results", len(device.wrong))
    if row.status in ("failed", "invalid"):
        device.failures.append(f"{row.op} {phase} {row.status}: {row.reason}")
    if row.status != "ok" or phase not in PHASES or row.median_s is None:
        return
    below = math.inf
    above = math.inf
    if row.ci95_s:
        low_s, high_s = row.ci95_s
        below = math.log(high_s / row.median_s)
        above = math.log(row.median_s / low_s)
    clock_hz = finite(row.telemetry.get(clock_key))
    clock = math.log(clock_hz) if clock_hz else None  # some drivers report 0 Hz
    metric = Metric(ceiling, row.op, row.provider, row.dtype, row.case, row.op_sha256)
    rate = -math.log(row.median_s)
    times = [min(sample / row.median_s, MAX_SAMPLE) for sample in row.samples_s] or [1.0]
    mean = rate - math.log(fmean(times))
    device.readings[metric, phase] = Reading(metric, phase, rate, below, above, clock, mean)
    device.observe("slow_samples", fmean(time >= SLOW_SAMPLE for time in times))
    floor = floor_of(about, row)
    if floor:
        work = row.flops or row.moved_bytes or math.inf
        device.observe(f"{ceiling}_below_floor", 1 - work / row.median_s / floor)
    shares: Object = {}
    for key in ("throttle", "host_throttle"):
        part = row.telemetry.get(key)
        shares |= part if isinstance(part, dict) else {}
    events = row.telemetry.get("clock_events")
    for fact, names in DATA["throttle"].items():
        for name in names:
            if finite(shares.get(name)) is not None:
                device.observe(fact, shares[name])
            elif isinstance(events, list):
                device.observe(fact, name in events)
    for name in ("generation", "width"):
        value = finite(row.telemetry.get(f"link_{name}"))
        full = finite(device.fleet.health.get(f"link_{name}_max"))
        if value and full:
            device.observe(f"link_{name}_lost", 1 - value / full)
    device.observe("pcie_replays", row.telemetry.get("pcie_replays"))


def floor_of(about: Object, row: Record) -> float | None:
    """Return the rate below which a row is slow on a GPU, whatever its peers; None if unknown.

    FLOP/s of a matmul from its published rate, bytes/s of a copy from the datasheet.
    """
    shares = DATA["floor"]
    if row.op == "copy" and about["type"] != "cpu":
        from roofline.gpu_table import load_gpus

        gpu = load_gpus().get(about["slug"])
        bandwidth = gpu.memory_bandwidth_bytes_per_s if gpu else None
        return bandwidth and bandwidth * float(shares["copy_of_datasheet"])
    published = DATA["published"].get(about["slug"], {}).get(row.dtype)
    if row.op == "matmul" and published:
        return float(published * shares["matmul_of_published"])
    return None
