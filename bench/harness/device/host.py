"""The host: processor, caches, memory, load and lost CPU time.

psutil reports what every system has; sysfs and control groups are read on Linux. A fact that the system does not report
is None, never 0, and nothing here raises.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

ROOT = Path("/")
"""Directory below which Linux has `proc` and `sys`."""

SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

CGROUP_PERIOD_S = 0.1
"""The usual period of a CPU quota, and so the step in which throttled time is counted.

Source: Linux documentation, scheduler/sched-bwc: the default period is 100 ms."""


def attempt(read: Callable[[], T]) -> T | None:
    """Return what `read` returns, or None if it raises: a measurement continues without the fact."""
    try:
        return read()
    except Exception:
        return None


def text_of(path: str | Path) -> str:
    """Return the text of a system file without surrounding white space, empty if it cannot be read."""
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def count_of(path: str | Path) -> int | None:
    """Return the integer in a system file, or None if it has other content, such as `max`."""
    text = text_of(path)
    return int(text) if text.isdecimal() else None


def cpu_name() -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    match = re.search(r"^model name\s*:\s*(.+)$", text_of("proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "unknown"


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores that the scheduler may use for this process; macOS allows all."""
    affinity: Callable[[], list[int]] | None = getattr(psutil.Process(), "cpu_affinity", None)
    return frozenset(affinity() if affinity else range(os.cpu_count() or 1))


def last_level_cache_bytes(cpus: Iterable[int], threads: int) -> int | None:
    """Return the total last-level cache of `threads` threads on `cpus`, bytes, or None without sysfs.

    A server has one last-level cache for each group of cores. Data that is spread over the threads is spread over
    these caches, so it is evicted only if it exceeds all that the threads can reach.
    """
    sizes: dict[str, int] = {}
    for cpu in cpus:
        largest = (0, "")
        for folder in (ROOT / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            size = re.fullmatch(r"([0-9]{1,9})([KMG])", text_of(folder / "size"))
            if size:
                size_bytes = int(size[1]) * SIZE_UNITS[size[2]]
                largest = max(largest, (size_bytes, text_of(folder / "shared_cpu_list") or str(cpu)))
        sizes[largest[1]] = largest[0]
    return sum(sorted(sizes.values(), reverse=True)[:threads]) or None


def total_memory_bytes() -> int:
    """Return the memory of the machine or the lower limit of a control group, bytes."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits())])


def available_memory_bytes() -> int:
    """Return the memory that can be taken without swapping, bytes, within the limits of the control groups."""
    return max(0, min([psutil.virtual_memory().available, *(limit - used for limit, used in _memory_limits())]))


def modes() -> dict[str, Any]:
    """Return `governor`, the clock governor of the first core, and `turbo`, whether cores may exceed the nominal clock.

    Source: Linux documentation, cpufreq; `intel_pstate/no_turbo` (1: may not) and `cpufreq/boost` (1: may).
    """
    cpu = ROOT / "sys/devices/system/cpu"
    forbidden, allowed = count_of(cpu / "intel_pstate/no_turbo"), count_of(cpu / "cpufreq/boost")
    turbo = allowed == 1 if forbidden is None else forbidden == 0
    governor = text_of(cpu / "cpu0/cpufreq/scaling_governor") or None
    return {"governor": governor, "turbo": None if forbidden is allowed is None else turbo}


def state() -> dict[str, Any]:
    """Return `load_average`, the mean number of runnable threads over the last minute, and the keys of `modes`."""
    return {"load_average": attempt(lambda: psutil.getloadavg()[0])} | modes()


def facts() -> dict[str, Any]:
    """Return the keys of `state`, `cores_allowed`, and `cgroup_quota_cores`, None for no quota."""
    return state() | {"cores_allowed": len(allowed_cores()), "cgroup_quota_cores": cpu_quota()}


def why_no_isolation() -> str | None:
    """Return why this system cannot run a user's function in a forked process, or None if it can."""
    return None if hasattr(os, "fork") else "this Python has no os.fork"


def control_groups(controller: str) -> list[Path]:
    """Return the directories of this process's control group and of those around it, versions 1 and 2.

    In a container the mounted tree may start at the process's own group, whatever path the kernel gives, so the top
    is always among them. Files that do not exist read as empty.
    """
    top = ROOT / "sys/fs/cgroup"
    folders = [top, top / controller]
    for line in text_of("proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        base = top / controllers  # version 2 names no controllers: the top itself
        own = base / path.lstrip("/")
        if controller in (controllers or controller).split(",") and ".." not in own.parts:
            folders += [folder for folder in (own, *own.parents) if folder.is_relative_to(base)]
    return list(dict.fromkeys(folders))


def cpu_quota() -> float | None:
    """Return the CPU time that this process may spend per unit of wall time, in cores, or None for no limit.

    Every control group around the process may set a limit; the lowest one applies.

    Source: Linux documentation, cgroup-v2 `cpu.max` (quota and period) and cgroup-v1 `cpu.cfs_quota_us`.
    """
    quotas = []
    for group in control_groups("cpu"):
        both = (
            text_of(group / "cpu.max")
            or f"{text_of(group / 'cpu.cfs_quota_us')} {text_of(group / 'cpu.cfs_period_us')}"
        )
        if match := re.fullmatch(r"([1-9][0-9]{0,15}) ([1-9][0-9]{0,15})", both):
            quotas.append(int(match[1]) / int(match[2]))
    return min(quotas, default=None)


def _memory_limits() -> list[tuple[int, int]]:
    """Return limit and use of each control group that limits memory, bytes.

    Inactive file pages count as free, because the kernel reclaims them first.

    Source: Linux documentation, cgroup-v2 `memory.max`, `memory.current`, `memory.stat`, and their names in v1.
    """
    limits = []
    for group in control_groups("memory"):
        for names in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, used = (count_of(group / name) for name in names)
            if limit is not None and used is not None:
                match = re.search(r"^(?:total_)?inactive_file (\d+)$", text_of(group / "memory.stat"), re.MULTILINE)
                limits.append((limit, max(0, used - int(match[1] if match else 0))))
    return limits


def _throttling() -> dict[str, tuple[int, float]]:
    """Return throttled periods and throttled seconds, summed over cores, of each control group by its directory.

    Source: Linux documentation, cgroup-v2 (`nr_throttled` and `throttled_usec` in `cpu.stat`, present if the
    controller is enabled) and scheduler/sched-bwc for version 1 (`throttled_time`, nanoseconds).
    """
    throttled: dict[str, tuple[int, float]] = {}
    for group in control_groups("cpu"):
        counts = dict(re.findall(r"^(\w+) (\d+)$", text_of(group / "cpu.stat"), re.MULTILINE))
        for key, unit_s in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            if "nr_throttled" in counts and key in counts:
                throttled[str(group)] = int(counts["nr_throttled"]), int(counts[key]) * unit_s
    return throttled


@dataclass(frozen=True)
class HostCounters:
    """The host's counters at one moment."""

    totals: dict[str, float | None]
    """`involuntary` and `voluntary` context switches of all threads of this process; `stolen_s`, which the hypervisor
    gave to other guests, and `total_s`, summed over the cores of this process."""
    by_thread: dict[str, int]
    """Involuntary context switches of each thread of this process by its id; empty without procfs."""
    throttled: dict[str, tuple[int, float]]
    """Throttled periods and throttled seconds, summed over cores, of each control group that has a quota."""


def counters(cores: frozenset[int]) -> HostCounters:
    """Return the host's counters now; `cores` are those that this process may use.

    Source: getrusage(2), because psutil counts the switches of the main thread alone on Linux; proc_pid_status(5);
    proc_stat(5): guest time is part of user time, so it is left out of the total.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF) if resource else None
    times = [cpu for core, cpu in enumerate(attempt(lambda: psutil.cpu_times(percpu=True)) or ()) if core in cores]
    by_thread = {}
    for path in (ROOT / "proc/self/task").glob("*/status"):
        if match := re.search(r"^nonvoluntary_ctxt_switches:\s*(\d+)$", text_of(path), re.MULTILINE):
            by_thread[path.parent.name] = int(match[1])
    totals = {
        "involuntary": usage and usage.ru_nivcsw,
        "voluntary": usage and usage.ru_nvcsw,
        "stolen_s": attempt(lambda: sum(cpu.steal for cpu in times)),
        "total_s": sum(sum(cpu[:8]) for cpu in times),
    }
    return HostCounters(totals, by_thread, _throttling())


def growth(before: float | None, after: float | None) -> float | None:
    """Return the increase of a counter, or None if either value is unknown or it went backwards."""
    return None if before is None or after is None or after < before else after - before


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def changes(
    before: HostCounters, after: HostCounters, window_s: float, cores: int
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return what a process that may use `cores` cores lost in a window, and how often it was interrupted.

    Returns:
        Fractions of the time of the cores, 0 to 1. `cgroup_quota`: a stop is counted when it ends, so one that reaches
        over an end of the window counts whole or not at all. `steal`: what the hypervisor gave to other guests.

        `involuntary_switches_per_s` and `voluntary_switches_per_s` of all threads, which lost or gave up their core;
        `thread_switches_per_s` of the thread that lost it most often; `cgroup_throttled_periods`, how often a quota
        ran out.
    """
    grown = {name: growth(before.totals[name], count) for name, count in after.totals.items()}
    by_thread = [growth(before.by_thread.get(task, 0), count) or 0 for task, count in after.by_thread.items()]
    # Time lost in one control group is not lost again in the group around it: the largest increase counts.
    both = [(before.throttled[group], after.throttled[group]) for group in before.throttled.keys() & after.throttled]
    periods = max((end[0] - start[0] for start, end in both), default=None)
    throttled_s = max((end[1] - start[1] for start, end in both), default=None)
    if throttled_s is not None and not 0 <= throttled_s <= (window_s + CGROUP_PERIOD_S) * cores:
        throttled_s = None
    lost = {
        "cgroup_quota": _ratio(throttled_s, window_s * cores),
        "steal": _ratio(grown["stolen_s"], grown["total_s"]),
    }
    counts = {
        "thread_switches_per_s": _ratio(max(by_thread, default=None), window_s),
        "involuntary_switches_per_s": _ratio(grown["involuntary"], window_s),
        "voluntary_switches_per_s": _ratio(grown["voluntary"], window_s),
        "cgroup_throttled_periods": periods,
    }
    return lost, counts
