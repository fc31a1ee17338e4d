"""Telemetry of a record: clocks, power, energy, temperature and throttling, between two snapshots.

    before = snapshot(device)
    ...                                      # the measurement
    row = row_telemetry(before, snapshot(device), launches=launches, flops=flops)

Keys of the JSON object, the same for every device, SI base units, None if unknown:

- `window_s`: seconds between the snapshots.
- `sm_clock_hz`: the median of readings while samples ran, or a reading at the end (`polls` is
  None). `sm_clock_start_hz`: at the start.
  `memory_clock_hz`, `temperature_c`: at the end.
- `power_w` and `power_source`: `energy-counter` (the mean over the window), `polled` (the median of
  readings) or `power-usage` (one reading at the end).
- `energy_j`: J per launch, including energy between launches; `flops_per_j`: FLOP/J, which is
  FLOP/s per W.
- `throttle`: fraction of the window lost to each cause. Causes overlap, so the sum may exceed 1.
  `sw_thermal`, `hw_thermal` and `power_brake` are None and have clock events only: drivers number
  their counters differently. `throttle_resolution`: maximum error of a fraction.
- `host_throttle`: the same for the host of a GPU; None on a CPU, which has it under `throttle`.
- `clock_events`: reasons for lower clocks at the start or the end, names of
  `gpu_state.CLOCK_EVENTS`.
- `core_wait`: fraction of the window that a thread of this process waited in the run queue for a
  core, the maximum over threads. It decides whether a measurement on a CPU was disturbed; if it is
  None, because the kernel does not count it, `thread_switches_per_s` decides.
- `thread_switches_per_s`, `involuntary_switches_per_s`, `voluntary_switches_per_s`,
  `cgroup_throttled_periods`, `load_average`, `governor`, `turbo`: of the host, see `row_telemetry`
  and `host_state`.
- `errors`: `nvml`, the name of the error if NVML does not work.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple

import psutil

from bench.harness import clock
from bench.harness.device import device as machine
from bench.harness.device import gpu_state
from bench.harness.device.device import Device, control_groups, host_state, text_of, usable_cores
from bench.harness.device.gpu_state import ClockAndPower

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

COUNTER_STEP_S = 0.1
"""Maximum step of the driver's counters of energy and of throttled time, and so the maximum error
of a difference.

Source: PETSc manual page of PetscLogGpuEnergyMeter ("every 20-100ms" on newer GPUs); ml-energy/zeus
0.6.1, whose `approx_instant_energy` exists because the counter's update period may exceed the
measurement."""

CGROUP_PERIOD_S = 0.1
"""Default period of a CPU quota, the resolution of throttled time.

Source: Linux documentation, scheduler/sched-bwc: the default period is 100 ms."""

THROTTLED_UNITS_S = {"usec": 1e-6, "time": 1e-9}
"""Units of `throttled_usec` and `throttled_time`, of control groups of version 2 and 1.

Source: Linux documentation, cgroup-v2 and scheduler/sched-bwc."""

CPU_TICK_S = 0.01
"""Resolution of CPU time in the kernel. Source: proc_stat(5), `USER_HZ` is 100."""

MIN_ENERGY_WINDOW_S = 1.0
"""Minimum window to report energy: a step is then a tenth of it."""

MIN_THROTTLE_WINDOW_S = 2 * COUNTER_STEP_S
"""Minimum window to report throttled time: in a shorter one a counter may not advance at all."""

MAX_POWER_W = 10_000
"""No GPU draws 10 kW; the largest module of 2026 is limited to 1.4 kW."""

POLL_EVERY_S = 0.5
"""Time between two readings; each takes 0.05 s of untimed GPU work."""

EVENT_CAUSES = ("sw_thermal", "hw_thermal", "power_brake")
"""Causes with clock events only."""

GPU_KEYS = (
    "sm_clock_hz",
    "memory_clock_hz",
    "temperature_c",
    "power_w",
    "power_source",
    "energy_j",
    "flops_per_j",
    "clock_events",
    "polls",
    "sm_clock_start_hz",
)
"""Telemetry keys of a GPU only."""


class Snapshot(NamedTuple):
    """Counters of the device and its host; only their differences are meaningful."""

    gpu: dict[str, Any] | None
    """As returned by `gpu_state`; None on a CPU."""
    taken_s: float
    """`clock.now()` when the counters were read."""
    cores: int
    """Cores that this process may use."""
    totals: dict[str, float]
    """If known: `involuntary` and `voluntary` context switches of all threads of this process;
    `stolen_s`, CPU time of other guests, and `total_s`, both summed over the cores of this
    process."""
    switches: dict[str, float]
    """Involuntary context switches of each thread of this process by its id; empty without
    procfs.
    """
    waits_s: dict[str, float]
    """Seconds that each thread waited in the run queue; empty if the kernel does not count them."""
    throttled: dict[str, tuple[int, float]]
    """Throttled periods and throttled seconds, summed over cores, of each control group that has a
    quota.
    """


def snapshot(device: Device) -> Snapshot:
    """Return the counters now.

    Source: getrusage(2), because psutil counts the switches of the main thread alone on Linux;
    proc_pid_status(5); proc_stat(5): guest time is part of user time, so it is left out of the
    total; Linux documentation, scheduler/sched-stats: the second number of `schedstat` is the time
    in the run queue in nanoseconds, and all are 0 if it is not counted; cgroup-v2 and
    scheduler/sched-bwc: `cpu.stat`.
    """
    gpu = gpu_state.gpu_state(device.uuid) if device.is_gpu else None
    cores = usable_cores().allowed
    taken_s = clock.now()
    totals: dict[str, float] = {}
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        totals |= {"involuntary": usage.ru_nivcsw, "voluntary": usage.ru_nvcsw}
    with suppress(Exception):
        times = [cpu for core, cpu in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
        totals |= {
            "stolen_s": sum(cpu.steal for cpu in times),
            "total_s": sum(sum(cpu[:8]) for cpu in times),
        }
    switches = {}
    waits_s = {}
    for task in (machine.ROOT / "proc/self/task").glob("*"):
        if match := re.search(
            r"^nonvoluntary_ctxt_switches:\s*(\d+)$", text_of(task / "status"), re.MULTILINE
        ):
            switches[task.name] = float(match[1])
        match = re.fullmatch(r"\d+ (\d+) [1-9]\d*", text_of(task / "schedstat"))
        if match:
            waits_s[task.name] = int(match[1]) * 1e-9
    throttled = {}
    for group in control_groups("cpu"):
        stat = text_of(group / "cpu.stat")
        periods = re.search(r"^nr_throttled (\d+)$", stat, re.MULTILINE)
        lost = re.search(r"^throttled_(usec|time) (\d+)$", stat, re.MULTILINE)
        if periods and lost:
            throttled[str(group)] = (int(periods[1]), int(lost[2]) * THROTTLED_UNITS_S[lost[1]])
    return Snapshot(gpu, taken_s, len(cores), totals, switches, waits_s, throttled)


class Poller:
    """Reads clock and power of a busy GPU every `every_s` seconds, from `begin` on; called after
    each sample.
    """

    def __init__(self, device: Device, every_s: float = POLL_EVERY_S) -> None:
        self.device = device
        self.every_s = every_s
        self.begin()
        self.next_s = math.inf

    def begin(self) -> None:
        """Delete the readings, and read at the next call; `launches` counts those queued for
        readings.
        """
        self.readings: list[ClockAndPower] = []
        self.launches = 0
        self.next_s = -math.inf

    def __call__(self, keep_busy: Callable[[], int]) -> None:
        """Read, unless a reading is recent, while the launches run that `keep_busy` queues and
        counts.

        Then wait for them: compared providers have separate streams, and the next one would run at
        the same time.
        """
        if clock.now() >= self.next_s:
            self.launches += keep_busy()
            self.readings.append(gpu_state.clock_and_power(self.device.uuid))
            self.device.synchronize()
            self.next_s = clock.now() + self.every_s


def row_telemetry(
    before: Snapshot,
    after: Snapshot,
    launches: int | None = None,
    flops: int | None = None,
    polled: Sequence[ClockAndPower] = (),
) -> dict[str, Any]:
    """Return the JSON object described at the top of this file; `flops` are per launch.

    A stop by a quota is counted when it ends, so one at an end of the window counts fully or not at
    all. `core_wait` and `thread_switches_per_s` are maxima over threads; other counts are totals.
    """
    window_s = max(after.taken_s - before.taken_s, 1e-9)
    both_totals = (
        (name, count, after.totals.get(name, -1.0)) for name, count in before.totals.items()
    )
    grown = {name: end - start for name, start, end in both_totals if end >= start}
    # Time lost in one control group is not lost again in the group around it: the largest increase
    # counts.
    both = [
        (before.throttled[group], after.throttled[group])
        for group in before.throttled.keys() & after.throttled
    ]
    throttled_s = max((end[1] - start[1] for start, end in both), default=-1.0)
    is_possible = 0 <= throttled_s <= (window_s + CGROUP_PERIOD_S) * after.cores
    steal = None
    if "stolen_s" in grown and grown.get("total_s"):
        steal = grown["stolen_s"] / grown["total_s"]
    lost = {
        "cgroup_quota": throttled_s / (window_s * after.cores) if is_possible else None,
        "steal": steal,
    }
    row: dict[str, Any] = {"window_s": window_s, **dict.fromkeys(GPU_KEYS), "errors": {}}
    row |= {"throttle": lost, "host_throttle": None, "throttle_resolution": CPU_TICK_S / window_s}
    if before.gpu is not None and after.gpu is not None:
        row |= {"host_throttle": lost, "throttle_resolution": COUNTER_STEP_S / window_s}
        row |= _gpu_row(before.gpu, after.gpu, window_s, launches, flops, polled)
    counts = (
        ("core_wait", before.waits_s, after.waits_s),
        ("thread_switches_per_s", before.switches, after.switches),
    )
    for name, started, ended in counts:  # a new thread started from 0
        shares = [max(0.0, count - started.get(task, 0.0)) for task, count in ended.items()]
        row[name] = max(shares) / window_s if shares else None
    for name in ("involuntary", "voluntary"):
        row[f"{name}_switches_per_s"] = grown[name] / window_s if name in grown else None
    row["cgroup_throttled_periods"] = max((end[0] - start[0] for start, end in both), default=None)
    return row | host_state()


def _gpu_row(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    window_s: float,
    launches: int | None,
    flops: int | None,
    polled: Sequence[ClockAndPower],
) -> dict[str, Any]:
    """Return the keys of a GPU, ignoring counters that did not advance or advanced impossibly
    fast.

    Clock and power are those of the readings `polled` while samples ran, except that the mean power
    of the energy counter is preferred.
    """
    clocks = [clock_hz for clock_hz, _ in polled if clock_hz is not None]
    powers = [power_w for _, power_w in polled if power_w is not None]
    power_w = median(powers) if powers else after["power_w"]
    source = "polled" if powers else "power-usage"
    per_launch = None
    energy_j = (after["total_energy_j"] or 0.0) - (before["total_energy_j"] or math.inf)
    if energy_j > 0 and window_s >= MIN_ENERGY_WINDOW_S and energy_j <= MAX_POWER_W * window_s:
        power_w = energy_j / window_s
        source = "energy-counter"
        per_launch = energy_j / launches if launches else None
    shares: dict[str, float | None] = dict.fromkeys((*after["throttle_s"], *EVENT_CAUSES))
    for cause, after_s in after["throttle_s"].items():
        before_s = before["throttle_s"][cause]
        if before_s is None or after_s is None or window_s < MIN_THROTTLE_WINDOW_S:
            continue
        if 0 <= after_s - before_s <= window_s + COUNTER_STEP_S:
            # Up to one step above 1, which is not cut off.
            shares[cause] = (after_s - before_s) / window_s
    events = [before["clock_events"], after["clock_events"]]
    return {
        "sm_clock_hz": median(clocks) if clocks else after["sm_clock_hz"],
        "sm_clock_start_hz": before["sm_clock_hz"],
        "memory_clock_hz": after["memory_clock_hz"],
        "temperature_c": after["temperature_c"],
        "power_w": power_w,
        "power_source": None if power_w is None else source,
        "energy_j": per_launch,
        "flops_per_j": flops / per_launch if flops and per_launch else None,
        "clock_events": None if None in events else list(dict.fromkeys(itertools.chain(*events))),
        "throttle": shares,
        "polls": len(polled) or None,
        "errors": after["errors"],
    }
