"""`--kernels`: the GPU kernels of one launch, recorded by torch's profiler after all timing."""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.harness.timing.samplers import Call, EventSampler
from bench.harness.torch_private import spin

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of GPU work in a recording."""

RECORDED_LAUNCHES = 3
SESSIONS = 2
"""The first recording of a process may be incomplete; then another is made."""

EAGER_SAMPLES = 3
EAGER_SAMPLE_S = 1e-3
MAX_EAGER_LAUNCHES = 30
"""Samples without a spin: long compared with the resolution of CUDA events, and quickly taken."""

MAX_LAUNCH_S = 0.1
"""Longer launches are not recorded."""

MAX_NAME = 300
"""Characters of a kernel's name that are saved: names of C++ templates may have thousands."""

PROFILER_ENVIRONMENT = {
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
    "KINETO_LOG_LEVEL": "99",
}
"""Environment in which CUDA graphs work after a recording, and the profiler prints nothing to
stderr.

Source: torch 2.11, `torch/profiler/profiler.py`: restarting CUPTI crashes with CUDA graphs."""


class Kernel(NamedTuple):
    """A kernel, a copy or a fill; only kernels have more than the first four fields. Times are
    nanoseconds.
    """

    name: str
    begin: int
    end: int
    correlation: int | None
    """Number shared with the host call that launched it."""
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers: int | None = None
    """Per thread."""
    shared_bytes: int | None = None
    """Per block."""


def kernels_of(document: Mapping[str, Any]) -> list[Kernel]:
    """Return the GPU work of a recording by `export_chrome_trace`, in the order of start times."""
    kernels = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ON_GPU:
            args = event.get("args", {})
            grid = args.get("grid")
            block = args.get("block")
            begin, end = span_of(event)
            kernels.append(
                Kernel(
                    event["name"],
                    begin,
                    end,
                    args.get("correlation"),
                    tuple(grid) if isinstance(grid, list) else None,
                    tuple(block) if isinstance(block, list) else None,
                    registers=args.get("registers per thread"),
                    shared_bytes=args.get("shared memory"),
                )
            )
    return sorted(kernels, key=lambda kernel: kernel.begin)


def span_of(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return start and end of an event of a recording, in nanoseconds."""
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


def prepare_profiler() -> None:
    """Set the environment that torch's profiler reads at its first use; the user's values have
    priority.
    """
    for name, value in PROFILER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def launched(calls: Sequence[Call], launch_s: float, synchronize: Call) -> dict[str, Any]:
    """Return the fields `launched_kernels`, `kernel_s` and `eager_s` of a record; none if a launch
    takes too long.

    Kernels are in the order of their first start, equal ones once. `kernel_s` is None if nothing
    was recorded. `eager_s` is the time of a launch if the host launches one after the other, as
    eager code does.
    """
    if launch_s > MAX_LAUNCH_S:
        return {}
    fields: dict[str, Any] = {
        "launched_kernels": (),
        "kernel_s": None,
        "eager_s": _eager_s(calls, launch_s),
    }
    for _ in range(SESSIONS):
        kernels = [
            kernel for kernel in recorded(calls, synchronize) if "spin_kernel" not in kernel.name
        ]
        each = max(1, len(kernels) // RECORDED_LAUNCHES)
        launches = [kernels[start : start + each] for start in range(0, len(kernels), each)]
        names = {tuple(kernel.name for kernel in launch) for launch in launches}
        # Else the recording is incomplete.
        if len(launches) == RECORDED_LAUNCHES and len(names) == 1:
            fields["launched_kernels"] = _listed(launches[-1])
            fields["kernel_s"] = median(list(map(_busy_s, launches)))
            break
    return fields


def _eager_s(calls: Sequence[Call], launch_s: float) -> float:
    launches = min(MAX_EAGER_LAUNCHES, math.ceil(EAGER_SAMPLE_S / launch_s))
    sampler = EventSampler(calls, launches, enqueue_s=0.0)
    for _ in range(math.ceil(len(calls) / launches)):
        # Allocates the results of a round, whose memory an earlier capture has freed.
        sampler.sample()
    return median([sampler.sample() for _ in range(EAGER_SAMPLES)]) / launches


def recorded(calls: Sequence[Call], synchronize: Call) -> list[Kernel]:
    """Return the kernels of a few launches; empty if the profiler does not work here."""
    from torch.profiler import ProfilerActivity, profile

    prepare_profiler()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a torch that cannot record a GPU
        path = Path(directory) / "trace.json"
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as recording:
                # CUPTI of CUDA 12.6 to 13.0 loses a kernel a recording: pytorch#192021.
                for _ in range(SESSIONS):
                    spin(0)
                for call in itertools.islice(itertools.cycle(calls), RECORDED_LAUNCHES):
                    synchronize()
                    call()
                synchronize()
            recording.export_chrome_trace(str(path))
            return kernels_of(json.loads(path.read_text()))
        except Exception:  # torch without CUDA asserts; a trace may be incomplete
            return []


def _listed(kernels: Sequence[Kernel]) -> tuple[dict[str, Any], ...]:
    alike: dict[tuple[Any, ...], list[Kernel]] = {}
    for kernel in kernels:
        alike.setdefault((kernel.name, *kernel[4:]), []).append(kernel)
    return tuple(
        {"name": name[:MAX_NAME], "count": len(same), "time_s": _busy_s(same)}
        | {"grid": grid and list(grid), "block": block and list(block)}
        | {"registers": registers, "shared_bytes": shared_bytes}
        for (name, grid, block, registers, shared_bytes), same in alike.items()
    )


def _busy_s(kernels: Sequence[Kernel]) -> float:
    return sum(kernel.end - kernel.begin for kernel in kernels) / 1e9
