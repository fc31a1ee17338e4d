"""Times the whole step without a profiler, then records a few steps under torch.profiler."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError
from bench.harness.profile.recording import Trace, read_trace
from bench.harness.profile.step import MODULE, STEP, ProfiledStep, watch_modules
from bench.harness.timing.launched import prepare_profiler

if TYPE_CHECKING:
    from bench.harness.device.device import Device

MOST_STEPS = 10
MOST_CALLS = 60_000
"""Most calls of all recorded steps together: a longer trace takes longer to read than the steps take."""

RECORDING_S = 5.0
"""Seconds that recorded steps may take together; one step is recorded in any case."""


def steps_worth(step_s: float, calls: int) -> int:
    """Return how many steps of some seconds and operations are recorded."""
    return max(1, min(MOST_STEPS, MOST_CALLS // max(1, calls), int(RECORDING_S / step_s)))


def unprofiled_s(step: ProfiledStep, device: Device, left_s: float | None) -> list[float]:
    """Return samples of the whole step by the protocol of all measurements, seconds; at least one."""
    from bench.harness.measure.steps import measure_steps

    return list(measure_steps(step, device, "warm", left_s).samples.samples_s)


def recorded(step: ProfiledStep, steps: int, keep: Path | None = None) -> Trace:
    """Return what torch.profiler saw of some steps; the modules in them are marked in the trace.

    Args:
        step: it is run once more, before those that count.
        steps: how many are recorded.
        keep: where the Chrome trace is kept, which Perfetto and speedscope open too.

    Raises:
        UsageError: it cannot be written there.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record_to(path, step, steps)
        if keep is not None:
            try:
                shutil.copyfile(path, keep)
            except OSError as error:
                raise UsageError(f"cannot write '{keep}': {error.strerror or error}") from None
        return read_trace(json.loads(path.read_text(encoding="utf-8")))


def record_to(path: Path, step: ProfiledStep, steps: int) -> None:
    """Write the Chrome trace of some marked steps to a file."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    prepare_profiler()
    is_gpu = step.target.device.startswith("cuda")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    marked = ProfiledStep(step.target, step.mode, is_marked=True)
    marked._optimizer = step._optimizer
    ranges: list[Any] = []

    def enter(module: str) -> None:
        ranges.append(torch.autograd.profiler.record_function(MODULE + module))
        ranges[-1].__enter__()

    with ExitStack() as held:
        profiler = held.enter_context(profile(activities=activities, record_shapes=True))
        held.enter_context(watch_modules(step.target, enter, lambda _: ranges.pop().__exit__(None, None, None)))
        marked()  # the first step under a profiler is slower
        for _ in range(steps):
            with torch.autograd.profiler.record_function(STEP):
                marked()
    profiler.export_chrome_trace(str(path))
