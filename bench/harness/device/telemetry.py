"""Telemetry of a record: clocks, power, energy, temperature and throttling, between two snapshots.

    monitor = Monitor(device)
    before = monitor.snapshot()
    ...                                      # the measurement
    after = monitor.snapshot()
    row = row_telemetry(before, after, launches=launches, flops=flops)

Keys of the JSON object, the same for every device, SI base units, None if unknown:

- `window_s`: seconds between the snapshots.
- `sm_clock_hz`: the median of what was polled while samples ran, and `sm_clock_min_hz` and `sm_clock_max_hz` its ends;
  at the end if nothing was polled (`polls` is None). `sm_clock_start_hz`: at the start. `memory_clock_hz`,
  `temperature_c`: at the end.
- `power_w` and `power_source`: `energy-counter` (the true mean over the window), `polled` (the median while samples
  ran) or `power-usage` (one reading at the end). `power_min_w` and `power_max_w`: the ends of what was polled.
- `energy_j`: J per launch, with whatever the GPU drew between launches; `flops_per_j`: FLOP/J, which is FLOP/s per W.
- `throttle`: fraction of the window that the device lost to each cause. Causes overlap in time, so the sum may exceed
  1. `sw_thermal`, `hw_thermal` and `power_brake` have clock events only, and are None: drivers number their counters
  differently. `throttle_resolution`: by how much a fraction can be off.
- `host_throttle`: the same for the cores of the host of a GPU; None on a CPU, where `throttle` has it.
- `clock_events`: what held the clocks down at the first or the last moment, names of `nvml.CLOCK_EVENTS`.
- `thread_switches_per_s`, `involuntary_switches_per_s`, `voluntary_switches_per_s`, `cgroup_throttled_periods`,
  `load_average`, `governor`, `turbo`: of the host, see `host`.
- `errors`: `nvml`, the name of the error if NVML could not be asked at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.device import host, nvml
from bench.harness.device.device import Device
from results.stats.samples import median

COUNTER_STEP_S = 0.1
"""The driver's counters of energy and of throttled time advance in steps up to this long, so that a difference is off
by up to one step.

Source: PETSc manual page of PetscLogGpuEnergyMeter ("every 20-100ms" on newer GPUs); ml-energy/zeus 0.6.1, whose
`approx_instant_energy` exists because the counter's update period may exceed the measurement."""

CPU_TICK_S = 0.01
"""Step in which the kernel counts CPU time. Source: proc_stat(5), `USER_HZ` is 100."""

MIN_ENERGY_WINDOW_S = 1.0
"""Shortest window for which energy is reported: there a step is a tenth of it."""

MIN_THROTTLE_WINDOW_S = 2 * COUNTER_STEP_S
"""Shortest window for which fractions of throttled time are reported: below it a counter may not have moved at all."""

MIN_LOST_SHARE = 0.01
"""Smallest fraction of lost time that is reported; boosting GPUs touch their power limit for moments at any load."""

POLL_EVERY_S = 0.5
"""Time between two readings: for each of them the GPU works 0.05 s that no sample counts."""

EVENT_CAUSES = ("sw_thermal", "hw_thermal", "power_brake")
"""Causes that only the clock events show."""

GPU_KEYS = (
    *("sm_clock_hz", "memory_clock_hz", "temperature_c", "power_w", "power_source", "energy_j", "flops_per_j"),
    *("clock_events", "polls", "sm_clock_start_hz"),
    *("sm_clock_min_hz", "sm_clock_max_hz", "power_min_w", "power_max_w"),
)
"""Keys of a record's telemetry that only a GPU has."""


@dataclass(frozen=True)
class GpuSnapshot:
    """One GPU at one moment."""

    sm_clock_hz: float | None
    memory_clock_hz: float | None
    power_w: float | None
    clock_events: tuple[str, ...] | None
    throttle_s: dict[str, float | None]
    energy_j: float | None
    temperature_c: int | None
    error: str | None
    """Why NVML could not be asked at all."""


@dataclass(frozen=True)
class Snapshot:
    """The device and its host at one moment; counters mean something between two of them only."""

    taken_s: float
    """`time.perf_counter()` at the reading of the counters."""
    host: host.HostSnapshot
    gpu: GpuSnapshot | None
    """None on a CPU."""
    cores: int
    """Cores that this process may use."""


@dataclass(frozen=True)
class ClockAndPower:
    """Clock and power now; None if they cannot be read."""

    sm_clock_hz: float | None
    power_w: float | None


class Poller:
    """Reads clock and power of a GPU at work: called after each sample, it asks every `POLL_EVERY_S`."""

    def __init__(self, monitor: Monitor, now: Callable[[], float] = time.perf_counter) -> None:
        """Read from `monitor`; `now` gives seconds of a clock that only runs forward."""
        self._monitor, self._now = monitor, now
        self._next_s, self._samples = -math.inf, 0
        self.seen: list[ClockAndPower] = []
        self.places: list[int] = []
        """For each reading the number of samples before that which it follows."""
        self.launches = 0
        """Queued for the readings."""

    def __call__(self, keep_busy: Callable[[], int]) -> None:
        """Read if the last reading is long enough ago, behind the launches that `keep_busy` queues and counts."""
        if self._now() >= self._next_s:
            self.launches += keep_busy()
            self.seen.append(self._monitor.clock_and_power())
            self.places.append(self._samples)
            self._next_s = self._now() + POLL_EVERY_S
        self._samples += 1

    def begin(self) -> None:
        """Forget what was read, and read at the next call."""
        self._next_s, self._samples, self.launches = -math.inf, 0, 0
        self.seen, self.places = [], []

    def between(self, first: int, end: int) -> list[ClockAndPower]:
        """Return what was read during the samples from number `first` to the one before `end`, or nearest to them."""
        within = [seen for place, seen in zip(self.places, self.seen, strict=True) if first <= place < end]
        before = [seen for place, seen in zip(self.places, self.seen, strict=True) if place < first]
        return within or before[-1:] or self.seen[:1]


class Monitor:
    """Reads the telemetry of one device; opened once a run. It never raises."""

    def __init__(self, device: Device) -> None:
        """Find the GPU, if the device is one."""
        self._gpu = nvml.NvmlGpu(device.uuid) if device.is_gpu else None

    def snapshot(self) -> Snapshot:
        """Return everything that a record's telemetry is made from, as it is now."""
        cores, gpu = host.allowed_cores(), self._gpu
        if gpu is None:
            return Snapshot(time.perf_counter(), host.snapshot(cores), None, len(cores))
        # Clocks fall within milliseconds once a GPU idles, so they come first; the counters stand beside the clock
        # that their differences are divided by.
        clocks = gpu.clock_hz(nvml.CLOCK_SM), gpu.clock_hz(nvml.CLOCK_MEMORY)
        power_w, events = gpu.power_w(), gpu.clock_events()
        of_host = host.snapshot(cores)
        taken_s = time.perf_counter()
        counters = gpu.throttle_s(), gpu.energy_j()
        of_gpu = GpuSnapshot(*clocks, power_w, events, *counters, gpu.temperature_c(), gpu.error)
        return Snapshot(taken_s, of_host, of_gpu, len(cores))

    def clock_and_power(self) -> ClockAndPower:
        """Return SM clock and power now, from two calls. All None on a CPU."""
        if self._gpu is None:
            return ClockAndPower(None, None)
        return ClockAndPower(self._gpu.clock_hz(nvml.CLOCK_SM), self._gpu.power_w())


def row_telemetry(
    before: Snapshot,
    after: Snapshot,
    launches: int | None = None,
    flops: int | None = None,
    polled: Sequence[ClockAndPower] = (),
) -> dict[str, Any]:
    """Return the JSON object saved under `telemetry` of a record.

    Args:
        before: snapshot right before the launches.
        after: snapshot right after the last of them has finished.
        launches: all launches between the two, warm-up included; without it there is no energy per launch.
        flops: FLOPs of one launch.
        polled: what was read between the two while samples ran; clock and power are the medians of it.

    Returns:
        The keys that this file's opening lists, the same for every device.
    """
    window_s = after.taken_s - before.taken_s if after.taken_s > before.taken_s else None
    host_lost = host.lost_shares(before.host, after.host, window_s, after.cores)
    row: dict[str, Any] = {"window_s": window_s} | dict.fromkeys(GPU_KEYS)
    if before.gpu is None or after.gpu is None:
        row |= {"throttle": host_lost, "throttle_resolution": window_s and CPU_TICK_S / window_s}
        row |= {"host_throttle": None}
    else:
        row |= _gpu_row(before.gpu, after.gpu, window_s, launches, flops) | {"host_throttle": host_lost}
        row |= polled_row(row, polled)
    row |= host.rates(before.host, after.host, window_s)
    error = after.gpu.error if after.gpu else None
    return row | host.state() | {"errors": {"nvml": error} if error else {}}


def polled_row(row: Mapping[str, Any], polled: Sequence[ClockAndPower]) -> dict[str, Any]:
    """Return clock and power while samples ran; the mean power from the energy counter is better than the polled one.

    Args:
        row: telemetry of the whole window, of which `power_source` says how its power was measured.
        polled: what was read while the samples ran.
    """
    clocks = [seen.sm_clock_hz for seen in polled if seen.sm_clock_hz is not None]
    powers = [seen.power_w for seen in polled if seen.power_w is not None]
    found: dict[str, Any] = {"polls": len(polled) or None}
    if clocks:
        found |= {"sm_clock_hz": median(clocks), "sm_clock_min_hz": min(clocks), "sm_clock_max_hz": max(clocks)}
    if powers:
        found |= {"power_min_w": min(powers), "power_max_w": max(powers)}
    if powers and row["power_source"] != "energy-counter":
        found |= {"power_w": median(powers), "power_source": "polled"}
    return found


def _gpu_row(
    before: GpuSnapshot, after: GpuSnapshot, window_s: float | None, launches: int | None, flops: int | None
) -> dict[str, Any]:
    energy_j = window_energy_j(before.energy_j, after.energy_j, window_s)
    per_launch = energy_j / launches if energy_j and launches else None
    power_w, source = (
        (energy_j / window_s, "energy-counter") if energy_j and window_s else (after.power_w, "power-usage")
    )
    events = [*(before.clock_events or ()), *(after.clock_events or ())]
    shares = {
        cause: share_of_time(before.throttle_s[cause], after.throttle_s[cause], window_s) for cause in after.throttle_s
    }
    return {
        "sm_clock_hz": after.sm_clock_hz,
        "sm_clock_start_hz": before.sm_clock_hz,
        "memory_clock_hz": after.memory_clock_hz,
        "temperature_c": after.temperature_c,
        "power_w": power_w,
        "power_source": None if power_w is None else source,
        "energy_j": per_launch,
        "flops_per_j": flops / per_launch if flops and per_launch else None,
        "clock_events": None if None in (before.clock_events, after.clock_events) else list(dict.fromkeys(events)),
        "throttle": shares | dict.fromkeys(EVENT_CAUSES),
        "throttle_resolution": window_s and COUNTER_STEP_S / window_s,
    }


def window_energy_j(before: float | None, after: float | None, window_s: float | None) -> float | None:
    """Return the energy used between two readings of the counter, J.

    None in a window that is too short, or if the counter stood still or ran faster than any GPU can draw.
    """
    used = host.growth(before, after)
    if not used or window_s is None or window_s < MIN_ENERGY_WINDOW_S or used > nvml.MAX_POWER_W * window_s:
        return None
    return used


def share_of_time(before: float | None, after: float | None, window_s: float | None) -> float | None:
    """Return the fraction of a window by which a counter of lost seconds grew, or None if unknown.

    Args:
        before: counter at the start, s.
        after: counter at the end, s.
        window_s: seconds between the two.

    Returns:
        0 to 1, up to one step of the counter above 1: the step is not cut off.
    """
    lost = host.growth(before, after)
    if lost is None or window_s is None or window_s < MIN_THROTTLE_WINDOW_S or lost > window_s + COUNTER_STEP_S:
        return None
    return lost / window_s


def slowdowns(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what slowed the device down during a measurement, keys of its `throttle`.

    A cause counts if its fraction is above `MIN_LOST_SHARE` and above what the counter resolves. Without a fraction, a
    clock event seen at the start or the end counts instead: weaker evidence, and better than none.

    Args:
        row: what `row_telemetry` returned, or the `telemetry` of an old record, which may lack any key.
    """
    shares, seen = row.get("throttle") or {}, row.get("clock_events") or ()
    least = max(MIN_LOST_SHARE, row.get("throttle_resolution") or 0.0)
    return tuple(cause for cause, share in shares.items() if (cause in seen if share is None else share > least))
