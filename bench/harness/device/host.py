"""The host: processor, caches, memory, load and lost CPU time.

psutil reports what every system has; sysfs and control groups are read on Linux. A fact that the system does not report
is None, never 0, and nothing here raises.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

T = TypeVar("T")

ROOT = Path("/")

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


def text_of(path: Path) -> str:
    """Return the text of a system file without surrounding white space, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def count_of(path: Path) -> int | None:
    """Return the integer in a system file, or None if it has other content, such as `max`."""
    found = re.fullmatch(r"[0-9]{1,20}", text_of(path))
    return int(found[0]) if found else None


# ---- processor and memory -------------------------------------------------------------------------------------------


def cpu_name(root: Path = ROOT) -> str:
    """Return the processor's name, or its architecture if the name is unknown."""
    match = re.search(r"^model name\s*:\s*(.+)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine() or "unknown"


def allowed_cores() -> frozenset[int]:
    """Return the numbers of the cores that the scheduler may use for this process; macOS allows all."""
    affinity: Callable[[], list[int]] | None = getattr(psutil.Process(), "cpu_affinity", None)
    return frozenset(affinity() if affinity else range(os.cpu_count() or 1))


def last_level_cache_bytes(cpus: Iterable[int], threads: int, root: Path = ROOT) -> int | None:
    """Return the total last-level cache of `threads` threads on `cpus`, bytes, or None without sysfs.

    A server has one last-level cache for each group of cores. Data that is spread over the threads is spread over
    these caches, so it is evicted only if it exceeds all that the threads can reach.
    """
    sizes: dict[str, int] = {}
    for cpu in cpus:
        largest = (0, "")
        for folder in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            size = re.fullmatch(r"([0-9]{1,9})([KMG])", text_of(folder / "size"))
            if size:
                size_bytes = int(size[1]) * SIZE_UNITS[size[2]]
                largest = max(largest, (size_bytes, text_of(folder / "shared_cpu_list") or str(cpu)))
        sizes[largest[1]] = largest[0]
    return sum(sorted(sizes.values(), reverse=True)[:threads]) or None


def total_memory_bytes(root: Path = ROOT) -> int:
    """Return the memory of the machine or the lower limit of a control group, bytes."""
    return min([psutil.virtual_memory().total, *(limit for limit, _ in _memory_limits(root))])


def available_memory_bytes(root: Path = ROOT) -> int:
    """Return the memory that can be taken without swapping, bytes, within the limits of the control groups."""
    left = [psutil.virtual_memory().available, *(limit - used for limit, used in _memory_limits(root))]
    return max(0, min(left))


def governor(root: Path = ROOT) -> str | None:
    """Return the clock governor of the first core, for example `performance`. Source: Linux documentation, cpufreq."""
    return text_of(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None


def turbo(root: Path = ROOT) -> bool | None:
    """Return whether cores may exceed their nominal clock.

    Source: Linux documentation, `intel_pstate/no_turbo` (1: may not) and `cpufreq/boost` (1: may).
    """
    forbidden = count_of(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    if forbidden is not None:
        return forbidden == 0
    allowed = count_of(root / "sys/devices/system/cpu/cpufreq/boost")
    return None if allowed is None else allowed == 1


def load_average() -> float | None:
    """Return the mean number of runnable threads over the last minute."""
    return attempt(lambda: psutil.getloadavg()[0])


def why_no_isolation() -> str | None:
    """Return why this system cannot run a user's function in a forked process, or None if it can."""
    calls = [(os, "fork"), (os, "memfd_create"), (os, "pidfd_open"), (socket, "send_fds")]
    missing = [f"{module.__name__}.{name}" for module, name in calls if not hasattr(module, name)]
    return f"this Python has no {' and no '.join(missing)}" if missing else None


def state(root: Path = ROOT) -> dict[str, Any]:
    """Return `load_average`, `governor` and `turbo`."""
    return {"load_average": load_average(), "governor": governor(root), "turbo": turbo(root)}


def facts(root: Path = ROOT) -> dict[str, Any]:
    """Return the keys of `state`, `cores_allowed`, and `cgroup_quota_cores`, None for no quota."""
    return state(root) | {"cores_allowed": len(allowed_cores()), "cgroup_quota_cores": cpu_quota(root)}


# ---- control groups -------------------------------------------------------------------------------------------------


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPU time that this process may spend per unit of wall time, in cores, or None for no limit.

    Every control group around the process may set a limit; the lowest one applies.

    Source: Linux documentation, cgroup-v2 `cpu.max` (quota and period) and cgroup-v1 `cpu.cfs_quota_us`.
    """
    quotas = []
    for group in groups("cpu", root):
        both = re.fullmatch(r"([0-9]{1,15}) ([0-9]{1,15})", text_of(group / "cpu.max"))
        quota = int(both[1]) if both else count_of(group / "cpu.cfs_quota_us")
        period = int(both[2]) if both else count_of(group / "cpu.cfs_period_us")
        if quota and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the directories of this process's control group and of those around it, v2 and v1.

    In a container the mounted tree may start at the process's own group, whatever path the kernel gives, so the top
    is always among them. Files that do not exist read as empty.
    """
    top = root / "sys/fs/cgroup"
    yield from (top, top / controller)
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        base = top / controllers  # v2 names no controllers: the top itself
        own = base / path.lstrip("/")
        if controller in (controllers or controller).split(",") and ".." not in own.parts:
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group that limits memory, bytes.

    Inactive file pages count as free, because the kernel reclaims them first.

    Source: Linux documentation, cgroup-v2 `memory.max`, `memory.current`, `memory.stat`, and their names in v1.
    """
    for group in groups("memory", root):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = count_of(group / limit_name), count_of(group / used_name)
            if limit is not None and used is not None:
                statistics = text_of(group / "memory.stat")
                inactive = re.search(r"^(?:total_)?inactive_file ([0-9]{1,20})$", statistics, re.MULTILINE)
                yield limit, max(0, used - (int(inactive[1]) if inactive else 0))


def _throttling(root: Path) -> dict[str, tuple[int, float]]:
    """Return throttled periods and throttled seconds, summed over cores, of each control group by its directory.

    Source: Linux documentation, cgroup-v2 (`nr_throttled` and `throttled_usec` in `cpu.stat`, present if the
    controller is enabled) and scheduler/sched-bwc for version 1 (`throttled_time`, nanoseconds).
    """
    found: dict[str, tuple[int, float]] = {}
    for group in groups("cpu", root):
        counts = dict(re.findall(r"^(\w+) ([0-9]{1,20})$", text_of(group / "cpu.stat"), re.MULTILINE))
        for key, unit_s in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            if "nr_throttled" in counts and key in counts:
                found[str(group)] = int(counts["nr_throttled"]), int(counts[key]) * unit_s
    return found


# ---- what a measurement lost -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostSnapshot:
    """The host's counters at one moment."""

    switches: tuple[int, int] | None
    """Involuntary and voluntary context switches of all threads of this process."""
    throttled: dict[str, tuple[int, float]]
    """Throttled periods and seconds of each control group that has a quota, see `_throttling`."""
    steal_s: float | None
    """Time that the hypervisor gave to other guests, seconds, summed over the cores of this process."""
    total_s: float | None
    """All time of the same cores."""
    by_thread: Mapping[str, int] = field(default_factory=dict)
    """Involuntary context switches of each thread of this process by its id; empty without procfs."""


def snapshot(cores: frozenset[int], root: Path = ROOT) -> HostSnapshot:
    """Return the host's counters now.

    Args:
        cores: cores that this process may use.
        root: directory below which Linux has its control groups.
    """
    steal_s, total_s = attempt(lambda: _steal_and_total_s(cores)) or (None, None)
    return HostSnapshot(attempt(_switches), _throttling(root), steal_s, total_s, _switches_by_thread(root))


def _switches() -> tuple[int, int]:
    """Source: getrusage(2); psutil counts those of the main thread alone on Linux."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nivcsw, usage.ru_nvcsw


def _switches_by_thread(root: Path) -> dict[str, int]:
    """Source: proc_pid_status(5)."""
    tasks = {path.parent.name: text_of(path) for path in (root / "proc/self/task").glob("*/status")}
    found = {task: re.search(r"^nonvoluntary_ctxt_switches:\s*(\d+)$", text, re.M) for task, text in tasks.items()}
    return {task: int(match[1]) for task, match in found.items() if match}


def _steal_and_total_s(cores: frozenset[int]) -> tuple[float, float]:
    """Source: proc_stat(5): guest time is part of user time, so it is left out of the total."""
    times = [cpu for core, cpu in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
    return sum(cpu.steal for cpu in times), sum(sum(cpu[:8]) for cpu in times)


def growth(before: float | None, after: float | None) -> float | None:
    """Return the increase of a counter, or None if either value is unknown or it went backwards."""
    return None if before is None or after is None or after < before else after - before


def rates(before: HostSnapshot, after: HostSnapshot, window_s: float | None) -> dict[str, Any]:
    """Return context switches per second, from two snapshots that lie `window_s` apart, and throttled periods.

    `involuntary_switches_per_s` and `voluntary_switches_per_s` count threads of this process that lost or gave up
    their core, `thread_switches_per_s` the thread that lost it most often; `cgroup_throttled_periods` is how often a
    quota ran out.
    """
    pairs = zip(before.switches or (None, None), after.switches or (None, None), strict=True)
    involuntary, voluntary = (
        None if count is None or window_s is None else count / window_s for count in (growth(*pair) for pair in pairs)
    )
    by_thread = [growth(before.by_thread.get(task, 0), count) or 0 for task, count in after.by_thread.items()]
    return {
        "thread_switches_per_s": max(by_thread) / window_s if by_thread and window_s else None,
        "involuntary_switches_per_s": involuntary,
        "voluntary_switches_per_s": voluntary,
        "cgroup_throttled_periods": _most_throttled(before, after, 0),
    }


def lost_shares(
    before: HostSnapshot, after: HostSnapshot, window_s: float | None, cores: int
) -> dict[str, float | None]:
    """Return the fraction of the cores' time that was lost to each cause, 0 to 1.

    Args:
        before: snapshot before a measurement.
        after: snapshot after it.
        window_s: time between the two, seconds; None if unknown.
        cores: cores that the process may use: throttled time is summed over them.

    Returns:
        `cgroup_quota`: throttled time over window x cores; a stop is counted when it ends, so one that reaches over
        an end of the window counts whole or not at all. `steal`: stolen over all time of these cores.
    """
    throttled_s = _most_throttled(before, after, 1)
    stolen_s, total_s = growth(before.steal_s, after.steal_s), growth(before.total_s, after.total_s)
    quota = None
    if throttled_s is not None and window_s and throttled_s <= (window_s + CGROUP_PERIOD_S) * cores:
        quota = throttled_s / (window_s * cores)
    return {"cgroup_quota": quota, "steal": stolen_s / total_s if stolen_s is not None and total_s else None}


def _most_throttled(before: HostSnapshot, after: HostSnapshot, column: int) -> Any:
    """Return the largest increase among the control groups: time lost at one level is not lost again above."""
    both = before.throttled.keys() & after.throttled.keys()
    changes = [growth(before.throttled[path][column], after.throttled[path][column]) for path in both]
    known = [change for change in changes if change is not None]
    return max(known) if known and len(known) == len(changes) else None
