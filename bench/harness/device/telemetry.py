"""Telemetry of a record: clocks, power, energy, temperature and throttling, between two snapshots.

    monitor = Monitor(device)
    before = monitor.snapshot()
    ...                                      # the measurement
    after = monitor.snapshot()
    row = row_telemetry(before, after, launches=launches, flops=flops)

Keys of the JSON object, the same for every device, SI base units, None where not known:

- `window_s`: seconds between the snapshots.
- `sm_clock_hz`: the median of what was polled while samples ran, and `sm_clock_min_hz` and `sm_clock_max_hz` its ends;
  where nothing was polled (`polls` is None) at the end. `memory_clock_hz`, `temperature_c`: at the end;
  `sm_clock_start_hz`: at the start.
- `power_w` and `power_source`: `energy-counter` (the true mean over the window), `polled` (the median while samples
  ran, with the ends `power_min_w` and `power_max_w`) or `power-usage` (NVML's own mean or moment at the end, see
  `nvml.Gpu.power_w`).
- `energy_j`: J per launch, with whatever the GPU drew between launches; `flops_per_j`: FLOP/J, which is FLOP/s per W.
- `throttle`: share of the window that the device lost to each cause; `throttle_resolution`: by how much a share can be
  off. Causes overlap in time, so that the sum of their shares may exceed 1.
- `host_throttle`: the same for the cores of the host of a GPU; None on a CPU, where `throttle` has it.
- `clock_events`: what held the clocks down at the first or the last moment, words of `nvml.CLOCK_EVENTS`.
- `involuntary_switches_per_s`, `voluntary_switches_per_s`, `cgroup_throttled_periods`, `load_average`, `governor`,
  `turbo`: of the host, see `host_load`.
- `errors`: why a value is None, by its key; `throttle.<cause>` for a share, `nvml` where no GPU could be asked at all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from bench.harness.device import host_load, nvml, reading
from bench.harness.device.device import Device
from bench.harness.device.reading import Reading, failed
from bench.harness.device.system import ROOT, here
from results.stats.samples import median

COUNTER_STEP_S = 0.1
"""The driver's counters of energy and of throttled time advance in steps up to this long, so that a difference is off
by up to one step.

Source: PETSc manual page of PetscLogGpuEnergyMeter ("every 20-100ms" on newer GPUs); ml-energy/zeus 0.6.1, whose
`approx_instant_energy` exists because the counter's update period may exceed the measurement."""

MIN_ENERGY_WINDOW_S = 1.0
"""Shortest window for which energy is told: there a step is a tenth of it."""

MIN_THROTTLE_WINDOW_S = 2 * COUNTER_STEP_S
"""Shortest window for which shares of throttled time are told: below it a counter may not have moved at all."""

MIN_LOST_SHARE = 0.01
"""Smallest share of lost time that is reported; boosting GPUs touch their power limit for moments at any load."""


@dataclass(frozen=True)
class GpuSnapshot:
    """One GPU at one moment."""

    error: str | None
    """Why NVML could not be asked at all; every reading then has the same error."""
    sm_clock_hz: Reading
    memory_clock_hz: Reading
    power_w: Reading
    clock_events: Reading
    throttle_s: dict[str, Reading]
    energy_j: Reading
    temperature_c: Reading


@dataclass(frozen=True)
class Snapshot:
    """The device and its host at one moment; counters mean something between two of them only."""

    taken_s: float
    """`time.perf_counter()` at the reading of the counters."""
    host: host_load.HostSnapshot
    gpu: GpuSnapshot | None
    """None on a CPU."""
    cores: int
    """Cores that this process may use."""


@dataclass(frozen=True)
class ClockAndPower:
    """Clock and power, by which a GPU has settled or not; None where they cannot be read."""

    sm_clock_hz: float | None
    power_w: float | None
    power_limit_w: float | None = None
    """As it was when the monitor was opened."""


POLL_EVERY_S = 0.05
"""Time between two readings while samples run: one costs up to a few milliseconds."""


class Poller:
    """Reads clock and power while samples run: called during each of them, it asks every `POLL_EVERY_S`."""

    def __init__(self, monitor: Monitor, now: Callable[[], float] = time.perf_counter) -> None:
        """Read from `monitor`; `now` gives seconds of a clock that only runs forward."""
        self._monitor, self._now = monitor, now
        self._next_s, self._samples = -math.inf, 0
        self.seen: list[ClockAndPower] = []
        self.places: list[int] = []
        """For each reading the number of samples before it."""

    def __call__(self) -> None:
        """Read, if the last reading is long enough ago."""
        if self._now() >= self._next_s:
            self.seen.append(self._monitor.clock_and_power())
            self.places.append(self._samples)
            self._next_s = self._now() + POLL_EVERY_S
        self._samples += 1

    def begin(self) -> None:
        """Forget what was read, and read at the next call."""
        self._next_s, self._samples = -math.inf, 0
        self.seen, self.places = [], []

    def between(self, first: int, end: int) -> list[ClockAndPower]:
        """Return what was read during the samples from number `first` to the one before `end`, or nearest to them."""
        within = [seen for place, seen in zip(self.places, self.seen, strict=True) if first <= place < end]
        before = [seen for place, seen in zip(self.places, self.seen, strict=True) if place < first]
        return within or before[-1:] or self.seen[:1]


class Monitor:
    """Reads the telemetry of one device; opened once a run, asked as often as wanted. It never raises."""

    def __init__(self, device: Device, root: Path = ROOT) -> None:
        """Find the GPU, if the device is one.

        Args:
            device: the device under test.
            root: folder below which Linux shows its state.
        """
        self._root = root
        self._gpu: nvml.NvmlGpu | None = None
        if device.type == "cuda":
            self._gpu = nvml.open_gpu(device.uuid)
        elif device.is_gpu:
            self._gpu = nvml.no_gpu("NotNvidia")
        self._power_limit_w = None if self._gpu is None else self._gpu.power_limit_w().value

    def snapshot(self) -> Snapshot:
        """Return everything that a record's telemetry is made from, as it is now."""
        cores = here().allowed_cores()
        if self._gpu is None:
            host = host_load.snapshot(cores, self._root)
            return Snapshot(time.perf_counter(), host, None, len(cores))
        # Clocks fall within milliseconds once a GPU idles, so they come first; the counters stand beside the clock
        # that their differences are divided by.
        moment = self._gpu.sm_clock_hz(), self._gpu.memory_clock_hz(), self._gpu.power_w(), self._gpu.clock_events()
        host = host_load.snapshot(cores, self._root)
        taken_s = time.perf_counter()
        counters = self._gpu.throttle_s(), self._gpu.energy_j()
        error = self._gpu.handle.error or self._gpu.board.error
        gpu = GpuSnapshot(error, *moment, *counters, self._gpu.temperature_c())
        return Snapshot(taken_s, host, gpu, len(cores))

    def clock_and_power(self) -> ClockAndPower:
        """Return SM clock and power now, from two calls: what a settling warm-up polls. All None on a CPU."""
        if self._gpu is None:
            return ClockAndPower(None, None)
        return ClockAndPower(self._gpu.sm_clock_hz().value, self._gpu.power_w().value, self._power_limit_w)


def row_telemetry(
    before: Snapshot,
    after: Snapshot,
    duration_s: float | None = None,
    launches: int | None = None,
    flops: int | None = None,
    polled: Sequence[ClockAndPower] = (),
) -> dict[str, Any]:
    """Return the JSON object kept under `telemetry` of a record.

    Args:
        before: snapshot right before the launches.
        after: snapshot right after the last of them has finished.
        duration_s: seconds between the two; by default what their own clocks tell.
        launches: all launches between the two, warm-up included; without it there is no energy per launch.
        flops: FLOPs of one launch.
        polled: what was read between the two while samples ran; clock and power are the medians of it.

    Returns:
        The keys that this file's opening lists, the same for every device.
    """
    window_s = after.taken_s - before.taken_s if duration_s is None else duration_s
    window_s = window_s if reading.is_positive(window_s) else math.nan
    host = host_load.switches_and_state(before.host, after.host, window_s)
    host_lost = host_load.lost_shares(before.host, after.host, window_s, after.cores)
    row: dict[str, Any] = {"window_s": None if math.isnan(window_s) else window_s}
    if before.gpu is None or after.gpu is None:
        step_s = here().tick_s()
        row |= dict.fromkeys(GPU_KEYS) | {"power_source": None, "throttle": reading.values(host_lost)}
        row |= {"throttle_resolution": _resolution(step_s, window_s), "host_throttle": None}
        row |= dict.fromkeys(POLLED_KEYS)
        problems = reading.errors(host_lost, "throttle.")
    else:
        row |= _gpu_row(before.gpu, after.gpu, window_s, launches, flops)
        row |= {"host_throttle": reading.values(host_lost)} | polled_row(row, polled)
        problems = row.pop("errors") | reading.errors(host_lost, "host_throttle.")
    return row | reading.values(host) | {"errors": problems | reading.errors(host)}


def polled_row(row: Mapping[str, Any], polled: Sequence[ClockAndPower]) -> dict[str, Any]:
    """Return clock and power while samples ran; what the energy counter tells of the power is better than that.

    Args:
        row: telemetry of the whole window, of which `power_source` says where its power is from.
        polled: what was read while the samples ran.
    """
    clocks = [seen.sm_clock_hz for seen in polled if seen.sm_clock_hz is not None]
    powers = [seen.power_w for seen in polled if seen.power_w is not None]
    found: dict[str, Any] = dict.fromkeys(POLLED_KEYS) | {"polls": len(polled) or None}
    if clocks:
        found |= {"sm_clock_hz": median(clocks), "sm_clock_min_hz": min(clocks), "sm_clock_max_hz": max(clocks)}
    if powers:
        found |= {"power_min_w": min(powers), "power_max_w": max(powers)}
        if row["power_source"] != "energy-counter":
            found |= {"power_w": median(powers), "power_source": "polled"}
    return found


POLLED_KEYS = ("polls", "sm_clock_min_hz", "sm_clock_max_hz", "power_min_w", "power_max_w")
GPU_KEYS = (
    *("sm_clock_hz", "sm_clock_start_hz", "memory_clock_hz", "temperature_c", "power_w"),
    *("energy_j", "flops_per_j", "clock_events"),
)
"""Keys of a record's telemetry that only a GPU has."""


def _gpu_row(
    before: GpuSnapshot, after: GpuSnapshot, window_s: float, launches: int | None, flops: int | None
) -> dict[str, Any]:
    energy = window_energy_j(before.energy_j, after.energy_j, window_s)
    per_launch = _per_launch(energy, launches)
    readings = {
        "sm_clock_hz": after.sm_clock_hz,
        "sm_clock_start_hz": before.sm_clock_hz,
        "memory_clock_hz": after.memory_clock_hz,
        "temperature_c": after.temperature_c,
        "power_w": after.power_w if energy.error else Reading(energy.value / window_s),
        "energy_j": per_launch,
        "flops_per_j": per_launch.map(lambda energy_j: flops / energy_j) if flops else failed("NoFlops"),
        "clock_events": _both(before.clock_events, after.clock_events),
    }
    shares = {
        cause: share_of_time(before.throttle_s[cause], after.throttle_s[cause], window_s) for cause in after.throttle_s
    }
    unreachable = after.error or before.error
    problems = reading.errors(readings) | reading.errors(shares, "throttle.")
    source = "power-usage" if energy.error else "energy-counter"
    return reading.values(readings) | {
        "power_source": None if readings["power_w"].error else source,
        "throttle": reading.values(shares),
        "throttle_resolution": _resolution(COUNTER_STEP_S, window_s),
        "errors": {"nvml": unreachable} if unreachable else problems,
    }


def window_energy_j(before: Reading, after: Reading, window_s: float) -> Reading:
    """Return the energy used between two readings of the counter, J, or why it cannot be told."""
    used = reading.difference(before, after)
    if used.error is not None:
        return used
    if not window_s >= MIN_ENERGY_WINDOW_S:
        return failed(f"WindowTooShort: {window_s:.3g} s, needs {MIN_ENERGY_WINDOW_S:g} s")
    if used.value == 0:
        return failed("CounterStoodStill")
    if used.value > nvml.MAX_POWER_MW * 1e-3 * window_s:
        return failed(f"CounterTooFast: {used.value:.3g} J in {window_s:.3g} s")
    return used


def _per_launch(energy: Reading, launches: int | None) -> Reading:
    if energy.error is not None:
        return energy
    return Reading(energy.value / launches) if launches else failed("NoLaunches")


def share_of_time(before: Reading, after: Reading, window_s: float) -> Reading:
    """Return the share of a window by which a counter of lost seconds grew, or why it cannot be told.

    Args:
        before: counter at the start, s.
        after: counter at the end, s.
        window_s: seconds between the two.

    Returns:
        0 to 1, up to one step of the counter above 1: the step is not cut off.
    """
    lost = reading.difference(before, after)
    if lost.error is not None:
        return lost
    if not window_s >= MIN_THROTTLE_WINDOW_S:
        return failed(f"WindowTooShort: {window_s:.3g} s, needs {MIN_THROTTLE_WINDOW_S:g} s")
    if lost.value > window_s + COUNTER_STEP_S:
        return failed(f"CounterTooFast: {lost.value:.3g} s in {window_s:.3g} s")
    return Reading(lost.value / window_s)


def _resolution(step_s: float | None, window_s: float) -> float | None:
    return step_s / window_s if step_s is not None and reading.is_positive(window_s) else None


def _both(before: Reading, after: Reading) -> Reading:
    """Return the words seen at either moment, in the order of their bits."""
    if before.error is not None or after.error is not None:
        return after if after.error is not None else before
    seen = {*before.value, *after.value}
    known = [word for word in nvml.CLOCK_EVENTS.values() if word in seen]
    return Reading(known + sorted(seen - set(known)))


def slowdowns(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what slowed the device down during a measurement, words of its `throttle`.

    A cause counts where its share is above `MIN_LOST_SHARE` and above what the counter resolves. Where there is no
    share, a clock event seen at the start or the end counts instead: weaker evidence, and better than none.

    Args:
        row: what `row_telemetry` returned, or the `telemetry` of an old record, which may lack any key.
    """
    shares, events, resolution = (row.get(key) for key in ("throttle", "clock_events", "throttle_resolution"))
    if not isinstance(shares, Mapping):
        return ()
    seen = events if isinstance(events, list | tuple) else ()
    least = max(MIN_LOST_SHARE, resolution if _is_number(resolution) else 0.0)
    return tuple(
        cause
        for cause, share in shares.items()
        if (_is_number(share) and share > least) or (share is None and cause in seen)
    )


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
