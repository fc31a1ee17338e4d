"""What else the host's cores were doing: throttling by the cgroup, theft by the hypervisor, switches, load, clocks.

Everything is read from Linux. Counters are read before and after a measurement and differenced; what is not there is
None with the error's name, never 0.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.device import linux, reading
from bench.harness.device.linux import ROOT
from bench.harness.device.reading import Reading, attempt, failed

CGROUP_PERIOD_S = 0.1
"""The usual period of a cgroup's CPU quota, and so the step in which throttled time is counted.

Source: Linux documentation, scheduler/sched-bwc: the default period is 100 ms."""


@dataclass(frozen=True)
class CgroupCounters:
    """How far the quota of a cgroup has held its threads back so far."""

    throttled_periods: int
    throttled_s: float
    """Summed over the cores that stood still."""


@dataclass(frozen=True)
class HostSnapshot:
    """The host at one moment."""

    involuntary_switches: Reading
    voluntary_switches: Reading
    cgroups: Reading
    """Path of each cgroup with a quota -> `CgroupCounters`: that of this process and those above it."""
    steal_ticks: Reading
    """Clock ticks that the hypervisor gave to another guest, summed over the cores of this process."""
    total_ticks: Reading
    """All clock ticks of the same cores."""
    load_average: Reading
    governor: Reading
    turbo: Reading


def snapshot(cores: frozenset[int], root: Path = ROOT) -> HostSnapshot:
    """Return the host's counters and state now.

    Args:
        cores: cores that this process may use.
        root: folder below which Linux shows its state.
    """
    usage = attempt(lambda: resource.getrusage(resource.RUSAGE_SELF))
    ticks = attempt(lambda: _ticks(root / "proc/stat", cores))
    return HostSnapshot(
        involuntary_switches=usage.map(lambda found: found.ru_nivcsw),
        voluntary_switches=usage.map(lambda found: found.ru_nvcsw),
        cgroups=attempt(lambda: _cgroups(root)),
        steal_ticks=ticks.map(lambda found: found[0]),
        total_ticks=ticks.map(lambda found: found[1]),
        load_average=load_average(root),
        governor=governor(root),
        turbo=turbo(root),
    )


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores that the scheduler may use for this process."""
    return frozenset(os.sched_getaffinity(0))


def load_average(root: Path = ROOT) -> Reading:
    """Return the mean number of runnable threads of the last minute. Source: proc_loadavg(5)."""
    return attempt(lambda: float((root / "proc/loadavg").read_text().split()[0]))


def governor(root: Path = ROOT) -> Reading:
    """Return the clock governor of the first core, for example `performance`. Source: Linux documentation, cpufreq."""
    return attempt(lambda: _first_line(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))


def turbo(root: Path = ROOT) -> Reading:
    """Return whether cores may clock above their nominal clock.

    Source: Linux documentation, `intel_pstate/no_turbo` (1: may not) and `cpufreq/boost` (1: may).
    """
    forbidden = attempt(lambda: _first_line(root / "sys/devices/system/cpu/intel_pstate/no_turbo"))
    if forbidden.value in ("0", "1"):
        return Reading(forbidden.value == "0")
    allowed = attempt(lambda: _first_line(root / "sys/devices/system/cpu/cpufreq/boost"))
    return Reading(allowed.value == "1") if allowed.value in ("0", "1") else failed(allowed.error or "Implausible")


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()


def _ticks(path: Path, cores: frozenset[int]) -> tuple[int, int] | None:
    """Return stolen and all ticks of some cores, None where the file has none of them.

    Source: proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user time.
    """
    stolen = total = 0
    seen = False
    for line in path.read_text().splitlines():
        name, *counts = line.split()
        if re.fullmatch(r"cpu\d+", name) and int(name[3:]) in cores:
            states = [int(count) for count in counts[:8]]
            stolen, total, seen = stolen + states[7], total + sum(states), True
    return (stolen, total) if seen else None


def _cgroups(root: Path) -> dict[str, CgroupCounters]:
    """Return the counters of each control group around this process that counts throttling, by its folder.

    Source: Linux documentation, cgroup-v2 (`nr_throttled` and `throttled_usec` in `cpu.stat`, present where the
    controller is enabled) and scheduler/sched-bwc for version 1 (`throttled_time`, nanoseconds).
    """
    found: dict[str, CgroupCounters] = {}
    for group in linux.groups("cpu", root):
        counts = dict(re.findall(r"^(\w+) ([0-9]{1,20})$", linux.text_of(group / "cpu.stat"), re.MULTILINE))
        if "nr_throttled" in counts and "throttled_usec" in counts:
            found[str(group)] = CgroupCounters(int(counts["nr_throttled"]), int(counts["throttled_usec"]) * 1e-6)
        elif "nr_throttled" in counts and "throttled_time" in counts:
            found[str(group)] = CgroupCounters(int(counts["nr_throttled"]), int(counts["throttled_time"]) * 1e-9)
    return found


# ---- from two snapshots -------------------------------------------------------------------------------------------


def switches_and_state(before: HostSnapshot, after: HostSnapshot, window_s: float) -> dict[str, Reading]:
    """Return the host's part of a record's telemetry.

    `involuntary_switches_per_s` and `voluntary_switches_per_s` count threads of this process that lost or gave up
    their core (getrusage(2), `ru_nivcsw` and `ru_nvcsw`); `cgroup_throttled_periods` is how often a quota ran out.
    """
    involuntary = reading.difference(before.involuntary_switches, after.involuntary_switches)
    voluntary = reading.difference(before.voluntary_switches, after.voluntary_switches)
    return {
        "involuntary_switches_per_s": reading.per_second(involuntary, window_s),
        "voluntary_switches_per_s": reading.per_second(voluntary, window_s),
        "cgroup_throttled_periods": _most_throttled(before, after, lambda counters: counters.throttled_periods),
        "load_average": after.load_average,
        "governor": after.governor,
        "turbo": after.turbo,
    }


def lost_shares(before: HostSnapshot, after: HostSnapshot, window_s: float, cores: int) -> dict[str, Reading]:
    """Return the share of the cores' time that was lost to each cause, 0 to 1.

    Args:
        before: snapshot before a measurement.
        after: snapshot after it.
        window_s: time between the two, seconds.
        cores: cores that the process may use: throttled time is summed over them.

    Returns:
        `cgroup_quota`: throttled time over window x cores; a stop is counted when it ends, so one that reaches over
        an end of the window counts whole or not at all. `steal`: stolen over all ticks of these cores.
    """
    throttled = _most_throttled(before, after, lambda counters: counters.throttled_s)
    stolen = reading.difference(before.steal_ticks, after.steal_ticks)
    total = reading.difference(before.total_ticks, after.total_ticks)
    return {"cgroup_quota": _quota_share(throttled, window_s, cores), "steal": _steal_share(stolen, total)}


def _quota_share(throttled: Reading, window_s: float, cores: int) -> Reading:
    if throttled.error is not None:
        return throttled
    if not reading.is_positive(window_s):
        return failed("NoWindow")
    if throttled.value > (window_s + CGROUP_PERIOD_S) * cores:
        return failed(f"CounterTooFast: {throttled.value:.3g} s on {cores} cores in {window_s:.3g} s")
    return Reading(throttled.value / (window_s * cores))


def _steal_share(stolen: Reading, total: Reading) -> Reading:
    if stolen.error is not None or total.error is not None:
        return stolen if stolen.error is not None else total
    if total.value == 0:
        return failed("WindowTooShort")
    return Reading(stolen.value / total.value)


def _most_throttled(before: HostSnapshot, after: HostSnapshot, pick: Callable[[CgroupCounters], Any]) -> Reading:
    """Return the largest growth of a counter among the cgroups: time lost at one level is not lost again above."""
    if before.cgroups.error is not None or after.cgroups.error is not None:
        return before.cgroups if before.cgroups.error is not None else after.cgroups
    changes = [
        reading.difference(Reading(pick(counters)), Reading(pick(after.cgroups.value[path])))
        for path, counters in before.cgroups.value.items()
        if path in after.cgroups.value
    ]
    broken = next((change for change in changes if change.error is not None), None)
    if broken is not None or not changes:
        return broken or failed("NoCounter")
    return max(changes, key=lambda change: float(change.value))
