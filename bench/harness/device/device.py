"""The device under test, its memory and its caches; and the host: processor, memory, versions,
revision of the code.

Sources: psutil; on Linux also sysfs and control groups of versions 1 and 2. A fact that the system
does not report is None, never 0. Reading facts of the host raises no errors.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import psutil

from bench.harness.device import gpu_state

MIB = 2**20

DEFAULT_CPU_CACHE_BYTES = 32 * MIB
"""Last-level cache if the system does not report it: that of a common server core complex."""

ROOT = Path("/")
"""Parent of `proc` and `sys` on Linux."""

SIZE_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}

GIT_VARIABLES = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
)
"""Variables that select a repository. Source: git-rev-parse(1), `--local-env-vars`."""


class NoDeviceError(RuntimeError):
    """The requested device is not available."""


QUIET_S = 0.5
"""Time for which the use of the cores is observed."""
MAX_BUSY = 0.1
"""Maximum fraction that other processes may use of a quiet device."""


@dataclass(frozen=True)
class Device:
    """The device under test; run files have its `asdict` under `device`."""

    type: str
    """`cuda`, `rocm` or `cpu`."""
    torch_name: str
    """As in torch: `cpu`, `cuda:0`."""
    slug: str
    """Directory name of its runs."""
    name: str
    """As reported by the driver or the processor."""
    cache_bytes: int
    """Total last-level cache of the threads of a CPU; L2 of a GPU."""
    memory_bytes: int
    threads: int | None = None
    """Threads of a CPU measurement."""
    sm_count: int | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    cache_is_assumed: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether `torch.cuda` supports it, including AMD GPUs: events, graphs, streams, Triton
        kernels.
        """
        return self.type != "cpu"

    def free_bytes(self) -> int:
        if not self.is_gpu:
            return memory_bytes()[1]
        import torch

        try:
            return int(torch.cuda.mem_get_info(self.torch_name)[0])
        except RuntimeError:
            # After an illegal access; what is measured in a new process finds out by itself.
            return self.memory_bytes

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Return the maximum bytes that torch's allocator of a GPU holds during a call, above those
        before it. Memory that a library takes from the driver itself is not included.
        """
        import torch

        torch.cuda.reset_peak_memory_stats(self.torch_name)
        before = torch.cuda.memory_allocated(self.torch_name)
        call()
        return torch.cuda.max_memory_allocated(self.torch_name) - before

    def use(self) -> None:
        import torch

        if self.is_gpu:
            torch.cuda.set_device(self.torch_name)
        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def synchronize(self) -> None:
        if self.is_gpu:
            import torch

            torch.cuda.synchronize(self.torch_name)


def detect(requested: str | None) -> Device:
    """Return the device for `cpu`, `cuda` or `cuda:1`, by default the first GPU, else the CPU.

    Raises:
        NoDeviceError: the device is not available.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if requested == "cpu" or (requested is None and not has_gpu):
        return cpu_device()
    index = int((requested or "cuda").partition(":")[2] or 0)
    if not has_gpu:
        raise NoDeviceError(
            f"device '{requested}' is not available: torch found no GPU; use --device cpu"
        )
    if index >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise NoDeviceError(
            f"device '{requested}' is not available: torch found {count} GPU(s), from cuda:0"
        )
    return gpu_device(index)


@functools.cache  # commands change the number of threads later
def default_threads() -> int:
    """Return torch's initial number of threads, limited by affinity and cgroup quota.

    Torch uses OMP_NUM_THREADS, MKL_NUM_THREADS, or a thread for each physical core. A quota of 1.5
    cores allows 1 thread: a second one would be stopped half of the time.
    """
    import torch

    allowed, quota = usable_cores()
    cores = len(allowed) if quota is None else max(1, min(len(allowed), int(quota)))
    return min(torch.get_num_threads(), cores)


def cpu_device(threads: int | None = None) -> Device:
    host = environment_facts()["host"]
    threads = threads or default_threads()
    cache_bytes = last_level_cache_bytes(sorted(usable_cores().allowed), threads)
    return Device(
        type="cpu",
        torch_name="cpu",
        slug=f"cpu-{slugify(host['cpu'])}-{threads}t",
        name=host["cpu"],
        cache_bytes=cache_bytes or DEFAULT_CPU_CACHE_BYTES,
        cache_is_assumed=cache_bytes is None,
        memory_bytes=host["memory_bytes"],
        threads=threads,
    )


def gpu_device(index: int) -> Device:
    import torch

    from roofline.gpu_table import gpus_named

    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "")) or None
    cache_bytes = int(getattr(properties, "L2_cache_size", 0))
    named = gpus_named(properties.name, properties.total_memory, properties.multi_processor_count)
    memory_clock_mhz = gpu_state.ask(uuid, "nvmlDeviceGetMaxClockInfo", gpu_state.CLOCK_MEMORY)
    return Device(
        type="cuda" if torch.version.hip is None else "rocm",
        torch_name=f"cuda:{index}",
        slug=named[0].slug if len(named) == 1 else slugify(properties.name),
        name=properties.name,
        cache_bytes=cache_bytes or 50 * MIB,
        cache_is_assumed=not cache_bytes,
        memory_bytes=int(properties.total_memory),
        sm_count=properties.multi_processor_count,
        compute_capability=f"{properties.major}.{properties.minor}",
        uuid=uuid,
        memory_clock_hz=memory_clock_mhz * 1e6 if memory_clock_mhz else None,
        memory_bus_bits=gpu_state.ask(uuid, "nvmlDeviceGetMemoryBusWidth") or None,
    )


def slugify(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def text_of(path: str | Path) -> str:
    """Return the stripped text of a system file, empty if it cannot be read."""
    try:
        return (ROOT / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


class Cores(NamedTuple):
    """The CPU cores that this process may use."""

    allowed: frozenset[int]
    """Core numbers of its affinity; macOS allows all."""
    quota: float | None
    """CPU time per wall time, in cores; None: no limit."""


def usable_cores() -> Cores:
    affinity: Callable[[], list[int]] | None = getattr(psutil.Process(), "cpu_affinity", None)
    allowed = frozenset(affinity() if affinity else range(os.cpu_count() or 1))
    limits = []
    for group in control_groups("cpu"):
        both = f"{text_of(group / 'cpu.cfs_quota_us')} {text_of(group / 'cpu.cfs_period_us')}"
        text = text_of(group / "cpu.max") or both
        limits.append(re.fullmatch(r"([1-9][0-9]*) ([1-9][0-9]*)", text))
    return Cores(
        allowed, min((int(limit[1]) / int(limit[2]) for limit in limits if limit), default=None)
    )


def check_quiet(what: str, busy: float) -> None:
    if busy > MAX_BUSY:
        raise NoDeviceError(
            f"the {what} is busy: other processes use {100 * busy:.0f} %, and --require-quiet "
            f"allows {100 * MAX_BUSY:.0f} %"
        )


def busy_cores() -> float:
    """Return the fraction of the allowed cores that is used while this process sleeps."""
    allowed = usable_cores().allowed
    shares = psutil.cpu_percent(QUIET_S, percpu=True)
    used = [share for core, share in enumerate(shares) if core in allowed]
    return fmean(used or [0.0]) / 100


def last_level_cache_bytes(cpus: Iterable[int], threads: int) -> int | None:
    """Return the total last-level cache of `threads` threads on `cpus`, bytes; None without sysfs.

    A server has a last-level cache for each group of cores, and the data of all threads is spread
    over these caches.
    """
    sizes: dict[str, int] = {}
    for cpu in cpus:
        largest = (0, "")
        for directory in (ROOT / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
            size = re.fullmatch(r"([0-9]{1,9})([KMG])", text_of(directory / "size"))
            if size:
                size_bytes = int(size[1]) * SIZE_UNITS[size[2]]
                largest = max(
                    largest, (size_bytes, text_of(directory / "shared_cpu_list") or str(cpu))
                )
        sizes[largest[1]] = largest[0]
    return sum(sorted(sizes.values(), reverse=True)[:threads]) or None


def control_groups(controller: str) -> list[Path]:
    """Return the directories of this process's control groups and their parents, of version 2 and
    of version 1.

    `controller` is `cpu` or `memory`: version 1 has a tree for each. A machine may use both
    versions. The tops are always included, because in a container they may be the process's own
    groups.

    Source: cgroups(7), `/proc/PID/cgroup`.
    """
    top = ROOT / "sys/fs/cgroup"
    trees = {
        top: r"^0::/(.*)$",
        top / controller: rf"^[1-9]\d*:(?:[^:]*,)?{controller}(?:,[^:]*)?:/(.*)$",
    }
    groups: list[Path] = []
    for root, line in trees.items():
        match = re.search(line, text_of("proc/self/cgroup"), re.MULTILINE)
        own = root / match[1] if match and ".." not in match[1] else root
        groups += [path for path in (own, *own.parents) if path.is_relative_to(root)]
    return groups


def memory_bytes() -> tuple[int, int]:
    """Return total and available memory, bytes, within the limits of control groups.

    Inactive file pages of a control group count as available, because the kernel reclaims them
    first.
    """
    memory = psutil.virtual_memory()
    total = memory.total
    available = memory.available
    for group in control_groups("memory"):
        limit = text_of(group / "memory.max") or text_of(group / "memory.limit_in_bytes")
        used = text_of(group / "memory.current") or text_of(group / "memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            # Version 1 lists the group's own pages first, then those of its children too.
            pages = re.findall(
                r"^(?:total_)?inactive_file (\d+)$", text_of(group / "memory.stat"), re.MULTILINE
            )
            held = max(0, int(used) - int(pages[-1] if pages else 0))
            total = min(total, int(limit))
            available = min(available, int(limit) - held)
    return total, max(0, available)


def host_state() -> dict[str, Any]:
    """Return `load_average` of the last minute, `governor` of the first core, and `turbo`.

    `turbo` is whether cores may exceed the nominal clock.

    Source: Linux documentation, cpufreq; `intel_pstate/no_turbo` (1: may not) and `cpufreq/boost`
    (1: may).
    """
    load_average = None
    cpu = ROOT / "sys/devices/system/cpu"
    with suppress(Exception):
        load_average = psutil.getloadavg()[0]
    forbidden = text_of(cpu / "intel_pstate/no_turbo")
    allowed = text_of(cpu / "cpufreq/boost")
    turbo = {"0": True, "1": False}.get(forbidden, {"0": False, "1": True}.get(allowed))
    governor = text_of(cpu / "cpu0/cpufreq/scaling_governor") or None
    return {"load_average": load_average, "governor": governor, "turbo": turbo}


def environment_facts() -> dict[str, dict[str, Any]]:
    """Return `host` and `versions` of the environment line of a run."""
    from importlib import metadata

    import torch

    from bench import __version__

    match = re.search(r"^model name\s*:\s*(.+)$", text_of("proc/cpuinfo"), re.MULTILINE)
    has_gpu = torch.cuda.is_available()
    triton = None
    with suppress(metadata.PackageNotFoundError):
        triton = metadata.version("triton")
    cpu = platform.processor() or platform.machine() or "unknown"
    if match:
        cpu = match[1].strip()
    host = {
        "name": platform.node(),
        "kernel": platform.release(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes()[0],
    }
    versions = {
        "roofmark": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton,
        "cuda": torch.version.cuda if has_gpu else None,
        "driver": gpu_state.driver_version() if has_gpu else None,
    }
    return {"host": host, "versions": versions}


@functools.cache
def git_state() -> dict[str, Any]:
    """Return `sha` and `dirty` of this project, None outside a git checkout."""
    code = ("bench", "kernels", "results", "roofline", ":(exclude)results/published")
    root = Path(__file__).resolve().parents[3]
    status = _git(root, "status", "--porcelain", "--", *code)
    return {
        "sha": _git(root, "rev-parse", "HEAD"),
        "dirty": None if status is None else bool(status),
    }


def file_git_state(file: Path) -> dict[str, Any] | None:
    """Return `sha` and `dirty` of the repository that holds a file; None if there is none or it
    ignores the file.
    """
    directory = file.parent
    sha = _git(directory, "rev-parse", "HEAD")
    if sha is None or _git(directory, "check-ignore", "--quiet", "--", file.name) is not None:
        return None
    status = _git(directory, "status", "--porcelain", "--untracked-files=no")
    is_tracked = (
        _git(directory, "ls-files", "--error-unmatch", "--", f":(literal){file.name}") is not None
    )
    return {"sha": sha, "dirty": None if status is None else bool(status) or not is_tracked}


def _git(directory: Path, *words: str) -> str | None:
    """Return the output of git in a directory, None if it fails; variables of git hooks are
    removed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        output = subprocess.check_output(
            command, cwd=directory, env=environment, stderr=subprocess.DEVNULL, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.decode(errors="replace").strip()
