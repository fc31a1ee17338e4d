"""Which kernels one launch starts on a GPU, as torch's profiler records them, outside of all timing."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.harness.timing.samplers import EventSampler
from results.stats.samples import median

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of what the GPU does, in a recording."""

CALLS = ("cuda_runtime", "cuda_driver")
STARTING = re.compile(r"(cuda|cu|hip)\w*(LaunchKernel|LaunchCooperativeKernel|Memcpy|Memset)")
"""Categories of calls on the host, and the names of those that make the GPU do one thing each."""

RECORDED_LAUNCHES = 3
SESSIONS = 2
"""The first recording of a process may lose a part; then another is made."""

SPIN = "spin_kernel"
"""In the name of the kernel of `torch.cuda._sleep`, which is in a recording wherever a sample is."""

_recordings = itertools.count(1)

EAGER_SAMPLES = 3
EAGER_SAMPLE_S = 1e-3
MOST_EAGER_LAUNCHES = 30
"""Launches of a sample without a spin: enough for the tick of CUDA events not to show, few enough to cost nothing."""

LONGEST_LAUNCH_S = 0.1
"""Launches that take longer than this are not repeated to be looked at."""

LONGEST_NAME = 300
"""Characters of a kernel's name that are kept: names of C++ templates may have thousands."""

PROFILER_ENVIRONMENT = {"TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1", "KINETO_LOG_LEVEL": "99"}
"""Environment in which CUDA graphs may be captured and replayed after a recording, and none writes lines to stderr.

Source: torch 2.11, `torch/profiler/profiler.py`: taking CUPTI down and up again crashes with CUDA graphs."""


@dataclass(frozen=True)
class Kernel:
    """Something that a GPU did: a kernel, a copy or a fill."""

    name: str
    begin: int
    """Nanoseconds, as `end`."""
    end: int
    correlation: int | None
    """The same number as that of the call on the host that launched it."""
    grid: tuple[int, ...] | None = None
    """Thread blocks along each axis; None for a copy or a fill, as the other facts of a kernel."""
    block: tuple[int, ...] | None = None
    """Threads of a block along each axis."""
    registers: int | None = None
    """Registers of a thread."""
    shared_bytes: int | None = None
    """Shared memory of a block."""


@dataclass(frozen=True)
class Launched:
    """What one launch starts, and the time of a launch seen in two other ways than by its samples."""

    kernels: tuple[dict[str, Any], ...]
    """In the order of their first start, equal ones once: `name`, `count`, `time_s` of all of them, `grid`, `block`,
    `registers` and `shared_bytes`. Empty where nothing was recorded."""
    kernel_s: float | None
    """Seconds that the kernels of a launch run, by the profiler; None where nothing was recorded."""
    eager_s: float
    """Seconds a launch where the host launches one after the other, as eager code does, with what the host takes."""


def kernels_of(document: Mapping[str, Any]) -> list[Kernel]:
    """Return what the GPU did in a recording of the form of `export_chrome_trace`, by the beginnings."""
    events = (one for one in document["traceEvents"] if one.get("ph") == "X" and one.get("cat") in ON_GPU)
    return sorted(map(_kernel, events), key=lambda kernel: kernel.begin)


def span_of(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return the begin and the end of an event of a recording, in nanoseconds."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


def _kernel(event: Mapping[str, Any]) -> Kernel:
    args = event.get("args", {})
    grid, block = (tuple(args[key]) if isinstance(args.get(key), list) else None for key in ("grid", "block"))
    facts = args.get("registers per thread"), args.get("shared memory")
    return Kernel(event["name"], *span_of(event), args.get("correlation"), grid, block, *facts)


def launched(
    calls: Sequence[Callable[[], object]], launch_s: float, synchronize: Callable[[], None]
) -> Launched | None:
    """Return what a launch starts; None where it takes so long that it is not repeated.

    Args:
        calls: one call for each copy of the inputs; those that were called longest ago come first.
        launch_s: of one launch, roughly.
        synchronize: waits for the device.
    """
    if launch_s > LONGEST_LAUNCH_S:
        return None
    eager_s = _eager_s(calls, launch_s)
    for _ in range(SESSIONS):
        if launches := recorded(calls, synchronize):
            return Launched(*of_one_launch(launches), eager_s)
    return Launched((), None, eager_s)


def _eager_s(calls: Sequence[Callable[[], object]], launch_s: float) -> float:
    launches = min(MOST_EAGER_LAUNCHES, math.ceil(EAGER_SAMPLE_S / launch_s))
    sampler = EventSampler(calls, launches, enqueue_s=0.0)
    for _ in range(math.ceil(len(calls) / launches)):
        sampler.sample()  # results of one round have to be given memory, which a capture before has taken back
    return median([sampler.sample() for _ in range(EAGER_SAMPLES)]) / launches


def recorded(calls: Sequence[Callable[[], object]], synchronize: Callable[[], None]) -> list[list[Kernel]]:
    """Return what the GPU did in each of a few launches, without those of which a part was lost; nothing where the
    profiler does not work here or writes no trace.
    """
    from torch.profiler import ProfilerActivity, profile

    prepare_profiler()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a torch that cannot record a GPU
        path = Path(folder) / "trace.json"
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as recording:
                empty = launch_empty_kernels()
                for call in islice(cycle(calls), RECORDED_LAUNCHES):
                    synchronize()
                    call()
                synchronize()
            recording.export_chrome_trace(str(path))
            return whole_launches(json.loads(path.read_text()), empty)
        except (RuntimeError, AssertionError, OSError, ValueError, LookupError, TypeError, AttributeError):
            return []  # a torch without CUDA asserts that it has it; a trace may be torn


def prepare_profiler() -> None:
    """Set the environment that torch's profiler reads when it is first used; what the user has set stays."""
    for name, value in PROFILER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def launch_empty_kernels() -> int:
    """Launch empty kernels, as many as a recording that has begun may lose, and return how many they are.

    CUPTI of CUDA 12.6 to 13.0 loses as many kernels at the beginning of a recording as the process has made of them.
    Source: pytorch#192021.
    """
    import torch

    count = next(_recordings)
    for _ in range(count):
        torch.cuda._sleep(0)
    return count


def whole_launches(document: Mapping[str, Any], empty: int) -> list[list[Kernel]]:
    """Return the kernels of each launch of a recording of which none is missing, in order.

    What the host started tells how many there should be. Where a recording has nothing of the host, the count of the
    kernels has to do. A replay of a graph starts as many as the graph has, so that none could be missed: nothing is
    returned then.

    Args:
        document: of the form of `export_chrome_trace`.
        empty: kernels that were started before the first launch.
    """
    kernels = kernels_of(document)
    calls = [one for one in document["traceEvents"] if one.get("ph") == "X" and one.get("cat") in CALLS]
    if any("GraphLaunch" in one["name"] for one in calls):
        return []
    hosts = [one for one in calls if STARTING.match(one["name"])]
    numbers = (one.get("args", {}).get("correlation") for one in sorted(hosts, key=lambda one: one["ts"]))
    started = list(dict.fromkeys(numbers))  # a call of the driver within one of the runtime has its number
    parts: list[Kernel | None] = list(kernels)
    if started:
        of_call = {kernel.correlation: kernel for kernel in kernels}
        parts = [of_call.get(correlation) for correlation in started]
    each, rest = divmod(len(parts) - empty, RECORDED_LAUNCHES)
    if each < 1 or rest:
        return []
    launches = [parts[start : start + each] for start in range(empty, len(parts), each)]
    return [[kernel for kernel in launch if kernel] for launch in launches if None not in launch]


def of_one_launch(launches: Sequence[Sequence[Kernel]]) -> tuple[tuple[dict[str, Any], ...], float]:
    """Return the kernels of the last of the recorded launches, and the median of the seconds that those of each run."""
    alike: dict[tuple[Any, ...], list[Kernel]] = {}
    for kernel in launches[-1]:
        key = kernel.name, kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes
        alike.setdefault(key, []).append(kernel)
    found = [
        {"name": name[:LONGEST_NAME], "count": len(ones), "time_s": _busy_s(ones)}
        | {"grid": grid and list(grid), "block": block and list(block)}
        | {"registers": registers, "shared_bytes": shared_bytes}
        for (name, grid, block, registers, shared_bytes), ones in alike.items()
    ]
    return tuple(found), median([_busy_s(launch) for launch in launches])


def _busy_s(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.end - kernel.begin for kernel in kernels) / 1e9
