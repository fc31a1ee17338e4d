"""The GPU work in a recording of torch's profiler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of GPU work in a recording."""

PROFILER_ENVIRONMENT = {
    "TEARDOWN_CUPTI": "0",
    "DISABLE_CUPTI_LAZY_REINIT": "1",
    "KINETO_LOG_LEVEL": "99",
}
"""Environment in which CUDA graphs work after a recording, and the profiler prints nothing to
stderr.

Source: torch 2.11, `torch/profiler/profiler.py`: restarting CUPTI crashes with CUDA graphs."""


class Kernel(NamedTuple):
    """A kernel, a copy or a fill. Times are nanoseconds."""

    name: str
    begin: int
    end: int
    correlation: int | None
    """Number shared with the host call that launched it."""


def kernels_of(document: Mapping[str, Any]) -> list[Kernel]:
    """Return the GPU work of a recording by `export_chrome_trace`, in the order of start times."""
    kernels = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ON_GPU:
            begin, end = span_of(event)
            correlation = event.get("args", {}).get("correlation")
            kernels.append(Kernel(event["name"], begin, end, correlation))
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
