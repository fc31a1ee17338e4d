"""The host: processor, caches, memory, load, lost CPU time, versions, and the revision of the code that measures.

psutil reports what every system has; sysfs and control groups (version 2) are read on Linux. A fact that the system
does not report is None, never 0, and nothing here raises.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.harness.device import gpu_state

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ROOT = Path("/")
"""Directory below which Linux has `proc` and `sys`."""

SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

CGROUP_PERIOD_S = 0.1
"""The usual period of a CPU quota, and so the step in which throttled time is counted.

Source: Linux documentation, scheduler/sched-bwc: the default period is 100 ms."""

GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
"""Variables by which a process is bound to one repository. Source: git-rev-parse(1), `--local-env-vars`."""


def text_of(path: str | Path) -> str:
    """Return the text of a system file without surrounding white space, empty if it cannot be read."""
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def cpu_name() -> str:
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
            if size := re.fullmatch(r"([0-9]{1,9})([KMG])", text_of(folder / "size")):
                size_bytes = int(size[1]) * SIZE_UNITS[size[2]]
                largest = max(largest, (size_bytes, text_of(folder / "shared_cpu_list") or str(cpu)))
        sizes[largest[1]] = largest[0]
    return sum(sorted(sizes.values(), reverse=True)[:threads]) or None


def control_groups() -> list[Path]:
    """Return the directories of this process's control group and of those around it, version 2 only.

    In a container the mounted tree may start at the process's own group, whatever path the kernel gives, so the top
    is always among them. Files that do not exist read as empty.
    """
    top = ROOT / "sys/fs/cgroup"
    match = re.search(r"^0::/(.*)$", text_of("proc/self/cgroup"), re.MULTILINE)
    own = top / match[1] if match and ".." not in match[1] else top
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(top)]


def memory_bytes() -> tuple[int, int]:
    """Return the memory of the machine and the part that can be taken without swapping, bytes.

    Every control group around the process may set a lower limit; in it, inactive file pages count as free, because the
    kernel reclaims them first.
    """
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for group in control_groups():
        limit, used = text_of(group / "memory.max"), text_of(group / "memory.current")
        if limit.isdecimal() and used.isdecimal():
            match = re.search(r"^inactive_file (\d+)$", text_of(group / "memory.stat"), re.MULTILINE)
            held = max(0, int(used) - int(match[1] if match else 0))
            total, available = min(total, int(limit)), min(available, int(limit) - held)
    return total, max(0, available)


def cpu_quota() -> float | None:
    """Return the CPU time that this process may spend per unit of wall time, in cores, or None for no limit."""
    limits = [re.fullmatch(r"([1-9][0-9]*) ([1-9][0-9]*)", text_of(group / "cpu.max")) for group in control_groups()]
    return min((int(limit[1]) / int(limit[2]) for limit in limits if limit), default=None)


def state() -> dict[str, Any]:
    """Return `load_average`, the mean number of runnable threads over the last minute, and the clock's settings.

    `governor` of the first core, and `turbo`: whether cores may exceed the nominal clock.

    Source: Linux documentation, cpufreq; `intel_pstate/no_turbo` (1: may not) and `cpufreq/boost` (1: may).
    """
    load_average, cpu = None, ROOT / "sys/devices/system/cpu"
    with suppress(Exception):
        load_average = psutil.getloadavg()[0]
    forbidden, allowed = text_of(cpu / "intel_pstate/no_turbo"), text_of(cpu / "cpufreq/boost")
    turbo = {"0": True, "1": False}.get(forbidden, {"0": False, "1": True}.get(allowed))
    return {
        "load_average": load_average,
        "governor": text_of(cpu / "cpu0/cpufreq/scaling_governor") or None,
        "turbo": turbo,
    }


class HostCounters(NamedTuple):
    """The host's counters at one moment."""

    totals: dict[str, float]
    """As far as the system reports them: `involuntary` and `voluntary` context switches of all threads of this process;
    `stolen_s`, which the hypervisor gave to other guests, and `total_s`, summed over the cores of this process."""
    by_thread: dict[str, int]
    """Involuntary context switches of each thread of this process by its id; empty without procfs."""
    throttled: dict[str, tuple[int, float]]
    """Throttled periods and throttled seconds, summed over cores, of each control group that has a quota."""


def new_pages() -> int:
    """Return the count of memory pages that this process had to wait for, but not for a disk; 0 on Windows."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def counters(cores: frozenset[int]) -> HostCounters:
    """Return the host's counters now; `cores` are those that this process may use.

    Source: getrusage(2), because psutil counts the switches of the main thread alone on Linux; proc_pid_status(5);
    proc_stat(5): guest time is part of user time, so it is left out of the total; cgroup-v2, `cpu.stat`.
    """
    totals: dict[str, float] = {}
    if resource is not None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        totals |= {"involuntary": usage.ru_nivcsw, "voluntary": usage.ru_nvcsw}
    with suppress(Exception):
        times = [cpu for core, cpu in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
        totals |= {"stolen_s": sum(cpu.steal for cpu in times), "total_s": sum(sum(cpu[:8]) for cpu in times)}
    by_thread = {}
    for path in (ROOT / "proc/self/task").glob("*/status"):
        if match := re.search(r"^nonvoluntary_ctxt_switches:\s*(\d+)$", text_of(path), re.MULTILINE):
            by_thread[path.parent.name] = int(match[1])
    throttled = {}
    for group in control_groups():
        counts = dict(re.findall(r"^(nr_throttled|throttled_usec) (\d+)$", text_of(group / "cpu.stat"), re.MULTILINE))
        if len(counts) == 2:
            throttled[str(group)] = int(counts["nr_throttled"]), int(counts["throttled_usec"]) * 1e-6
    return HostCounters(totals, by_thread, throttled)


def changes(
    before: HostCounters, after: HostCounters, window_s: float, cores: int
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return what a process that may use `cores` cores lost in a window, and how often it was interrupted.

    The former are fractions of the time of the cores; a stop by a quota is counted when it ends, so one that reaches
    over an end of the window counts whole or not at all. The latter are counts of all threads, and
    `thread_switches_per_s` of the thread that lost its core most often.
    """
    both_totals = ((name, count, after.totals.get(name, -1.0)) for name, count in before.totals.items())
    grown = {name: end - start for name, start, end in both_totals if end >= start}
    by_thread = [max(0, count - before.by_thread.get(task, 0)) for task, count in after.by_thread.items()]
    # Time lost in one control group is not lost again in the group around it: the largest increase counts.
    both = [(before.throttled[group], after.throttled[group]) for group in before.throttled.keys() & after.throttled]
    throttled_s = max((end[1] - start[1] for start, end in both), default=-1.0)
    is_possible = 0 <= throttled_s <= (window_s + CGROUP_PERIOD_S) * cores
    lost = {
        "cgroup_quota": throttled_s / (window_s * cores) if is_possible else None,
        "steal": grown["stolen_s"] / grown["total_s"] if "stolen_s" in grown and grown.get("total_s") else None,
    }
    counts = {
        "thread_switches_per_s": max(by_thread) / window_s if by_thread else None,
        "involuntary_switches_per_s": grown["involuntary"] / window_s if "involuntary" in grown else None,
        "voluntary_switches_per_s": grown["voluntary"] / window_s if "voluntary" in grown else None,
        "cgroup_throttled_periods": max((end[0] - start[0] for start, end in both), default=None),
    }
    return lost, counts


def versions() -> dict[str, str | None]:
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed_version("triton"),
        "cuda": torch.version.cuda if has_gpu else None,
        "driver": gpu_state.driver_version() if has_gpu else None,
    }


def installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def git_state() -> dict[str, Any]:
    """Return revision and cleanness of the code that measures, None outside of a git checkout."""
    code = ("bench", "kernels", "results", "roofline", ":(exclude)results/published")
    root = Path(__file__).resolve().parents[3]
    status = _git(root, "status", "--porcelain", "--", *code)
    return {"sha": _git(root, "rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def file_git_state(file: Path) -> dict[str, Any] | None:
    """Return `sha` and `dirty` of the repository that holds a file; None if there is none or it ignores the file."""
    folder = file.parent
    sha = _git(folder, "rev-parse", "HEAD")
    if sha is None or _git(folder, "check-ignore", "--quiet", "--", file.name) is not None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    is_tracked = _git(folder, "ls-files", "--error-unmatch", "--", f":(literal){file.name}") is not None
    return {"sha": sha, "dirty": None if status is None else bool(status) or not is_tracked}


def _git(folder: Path, *words: str) -> str | None:
    """Return what git answers in a folder, None if it fails; variables that hooks set must not name another one."""
    environment = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        output = subprocess.check_output(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return output.decode(errors="replace").strip()
