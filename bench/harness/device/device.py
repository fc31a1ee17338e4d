"""The device under test: what torch calls it, its memory and its caches."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from bench.harness.device import gpu_state, host

MIB = 2**20

DEFAULT_CPU_CACHE_BYTES = 32 * MIB
"""Assumed last-level cache where the system does not report one: that of a common server core complex."""


class NoDeviceError(RuntimeError):
    """The device that was asked for is not there; the message says what is."""


@dataclass(frozen=True)
class Device:
    """The device under test; `asdict` of it is kept under `device` in a run file."""

    type: str
    """`cuda`, `rocm` or `cpu`."""
    torch_name: str
    """What torch calls it: `cpu`, `cuda:0`."""
    slug: str
    """Folder name of its runs."""
    name: str
    """The driver's or the processor's own name."""
    cache_bytes: int
    """Last-level cache that a CPU's threads have together; L2 of a GPU."""
    memory_bytes: int
    threads: int | None = None
    """Threads that a CPU measurement uses."""
    sm_count: int | None = None
    compute_capability: str | None = None
    uuid: str | None = None
    memory_clock_hz: float | None = None
    memory_bus_bits: int | None = None
    cache_is_assumed: bool = False

    @property
    def is_gpu(self) -> bool:
        """Whether `torch.cuda` drives it, as it does AMD GPUs too: events, graphs, streams, Triton kernels."""
        return self.type != "cpu"

    def free_bytes(self) -> int:
        """Return the memory that a measurement may still take, bytes."""
        if not self.is_gpu:
            return host.memory_bytes()[1]
        import torch

        free, _ = torch.cuda.mem_get_info(self.torch_name)
        return int(free)

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

    def modes(self) -> dict[str, Any]:
        """Return the settings that make two runs on one machine incomparable if they differ; None if unknown."""
        if self.is_gpu:
            return gpu_state.modes(self.uuid)
        return {key: value for key, value in host.state().items() if key != "load_average"}


def detect(requested: str | None) -> Device:
    """Return the device for `cpu`, `cuda` or `cuda:1`, by default the first GPU and else the CPU.

    Raises:
        NoDeviceError: there is no such device.
    """
    import torch

    has_gpu = torch.cuda.is_available()
    if requested == "cpu" or (requested is None and not has_gpu):
        return cpu_device()
    index = int((requested or "cuda").partition(":")[2] or 0)
    if not has_gpu:
        raise NoDeviceError(f"no device '{requested}': torch sees no GPU here; --device cpu measures the CPU")
    if index >= torch.cuda.device_count():
        raise NoDeviceError(f"no device '{requested}': torch sees {torch.cuda.device_count()} GPU(s), from cuda:0")
    return gpu_device(index)


@functools.cache  # commands of this process set another number in torch later
def default_threads() -> int:
    """Return the threads that torch starts with, as far as affinity and cgroup quota allow it.

    Torch starts with OMP_NUM_THREADS, MKL_NUM_THREADS, or a thread for each physical core. A quota of 1.5 cores gives 1
    thread: a second one would be stopped half of the time.
    """
    import torch

    cores, quota = len(host.allowed_cores()), host.cpu_quota()
    return min(torch.get_num_threads(), cores if quota is None else max(1, min(cores, int(quota))))


def cpu_device(threads: int | None = None) -> Device:
    name, threads = host.cpu_name(), threads or default_threads()
    cache_bytes = host.last_level_cache_bytes(sorted(host.allowed_cores()), threads)
    return Device(
        type="cpu",
        torch_name="cpu",
        slug=f"cpu-{slugify(name)}-{threads}t",
        name=name,
        cache_bytes=cache_bytes or DEFAULT_CPU_CACHE_BYTES,
        cache_is_assumed=cache_bytes is None,
        memory_bytes=host.memory_bytes()[0],
        threads=threads,
    )


def gpu_device(index: int) -> Device:
    import torch

    from roofline.gpu_table import gpus_named

    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    uuid, cache_bytes = str(getattr(properties, "uuid", "")) or None, int(getattr(properties, "L2_cache_size", 0))
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
