"""What Linux tells of the machine: the processor, its caches, memory, load, and what control groups allow and take.

Every function reads text files below a folder that can be another one, and takes a missing or strange file as "not
told": containers and sandboxes show as much of them as they like.
"""

# ruff: noqa: F401  what is imported from `other` is what this system does not tell in its own way
from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.harness.device.other import (
    ROOT,
    allowed_cores,
    context_switches,
    major_faults,
    tick_s,
    why_no_isolation,
)
from bench.harness.device.reading import Reading, attempt, failed

SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def text_of(path: Path) -> str:
    """Return the text of a system file without white space around it, empty where it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def count_of(path: Path) -> int | None:
    """Return the whole number that a system file holds, or None where it holds something else, such as `max`."""
    found = re.fullmatch(r"[0-9]{1,20}", text_of(path))
    return int(found[0]) if found else None


def cpu_name(root: Path = ROOT) -> str:
    """Return the processor's name."""
    match = re.search(r"^model name\s*:\s*(.+)$", text_of(root / "proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def usable_threads(affinity_cpus: int, quota_cpus: float | None) -> int:
    """Return the threads to use: the cores that affinity allows, or fewer where a cgroup quota is below that.

    Args:
        affinity_cpus: cores that the scheduler may use for this process.
        quota_cpus: cores' worth of time that the cgroup may spend, None for no limit. A quota of 1.5 gives 1 thread:
            a second one would be stopped half of the time.
    """
    if quota_cpus is None:
        return affinity_cpus
    return max(1, min(affinity_cpus, int(quota_cpus)))


def last_level_cache_bytes(cpus: Iterable[int], threads: int, root: Path = ROOT) -> int | None:
    """Return the last-level cache that `threads` threads on `cpus` have together, or None where sysfs does not tell.

    A server has one last-level cache for each group of cores. Data that is spread over the threads is spread over
    these caches, so that it has left them only if it exceeds all that the threads can reach.
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


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPU time that this process may spend per unit of wall time, in cores, or None for no limit.

    Every control group around the process may set a limit; the least of them binds.

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


def total_memory_bytes(root: Path = ROOT) -> int | None:
    """Return the memory of the machine, or of a control group where that is less, bytes; None where neither tells."""
    return min([*_meminfo_bytes("MemTotal", root), *(limit for limit, _ in _memory_limits(root))], default=None)


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """Return the memory that can be taken without swapping, bytes, within the limits of the control groups."""
    left = [*_meminfo_bytes("MemAvailable", root), *(limit - used for limit, used in _memory_limits(root))]
    return max(0, min(left)) if left else None


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of each control group that limits memory, bytes.

    Pages of files that nobody has read lately count as free, because the kernel gives them up first.

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


def groups(controller: str, root: Path) -> Iterator[Path]:
    """Yield the folders of the control group that this process is in and of those around it, v2 and v1.

    In a container the mounted tree may begin at the process's own group, whatever its path is said to be, so the top
    is always among them. Folders that are not there read as nothing.
    """
    top = root / "sys/fs/cgroup"
    yield from (top, top / controller)
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        base = top / controllers  # v2 names no controllers: the top itself
        own = base / path.lstrip("/")
        if controller in (controllers or controller).split(",") and ".." not in own.parts:
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _meminfo_bytes(key: str, root: Path) -> list[int]:
    match = re.search(rf"^{key}:\s+(\d+) kB", text_of(root / "proc/meminfo"), re.MULTILINE)
    return [int(match[1]) * 1024] if match else []


# ---- what else the cores were doing ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CgroupCounters:
    """How far the quota of a cgroup has held its threads back so far."""

    throttled_periods: int
    throttled_s: float
    """Summed over the cores that stood still."""


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


def clock_ticks(cores: frozenset[int], root: Path = ROOT) -> Reading:
    """Return stolen and all ticks of some cores since the machine started."""
    return attempt(lambda: _ticks(root / "proc/stat", cores))


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


def throttling(root: Path = ROOT) -> Reading:
    """Return the `CgroupCounters` of each control group around this process, by its folder."""
    return attempt(lambda: _cgroups(root))


def _cgroups(root: Path) -> dict[str, CgroupCounters]:
    """Return the counters of each control group around this process that counts throttling, by its folder.

    Source: Linux documentation, cgroup-v2 (`nr_throttled` and `throttled_usec` in `cpu.stat`, present where the
    controller is enabled) and scheduler/sched-bwc for version 1 (`throttled_time`, nanoseconds).
    """
    found: dict[str, CgroupCounters] = {}
    for group in groups("cpu", root):
        counts = dict(re.findall(r"^(\w+) ([0-9]{1,20})$", text_of(group / "cpu.stat"), re.MULTILINE))
        if "nr_throttled" in counts and "throttled_usec" in counts:
            found[str(group)] = CgroupCounters(int(counts["nr_throttled"]), int(counts["throttled_usec"]) * 1e-6)
        elif "nr_throttled" in counts and "throttled_time" in counts:
            found[str(group)] = CgroupCounters(int(counts["nr_throttled"]), int(counts["throttled_time"]) * 1e-9)
    return found
