"""The host's cores beside this process: cgroup throttling, steal time, context switches, load, clocks.

Counters are read before and after a measurement and differenced; what a system does not tell is None with the error's
name, never 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.device import reading
from bench.harness.device.linux import CgroupCounters
from bench.harness.device.reading import Reading, failed
from bench.harness.device.system import ROOT, here

CGROUP_PERIOD_S = 0.1
"""The usual period of a cgroup's CPU quota, and so the step in which throttled time is counted.

Source: Linux documentation, scheduler/sched-bwc: the default period is 100 ms."""


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
    system = here()
    switches, ticks = system.context_switches(), system.clock_ticks(cores, root)
    return HostSnapshot(
        involuntary_switches=switches.map(lambda found: found[0]),
        voluntary_switches=switches.map(lambda found: found[1]),
        cgroups=system.throttling(root),
        steal_ticks=ticks.map(lambda found: found[0]),
        total_ticks=ticks.map(lambda found: found[1]),
        load_average=system.load_average(root),
        governor=system.governor(root),
        turbo=system.turbo(root),
    )


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
