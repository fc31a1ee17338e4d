"""Times a step as a whole, then its operations: torch.profiler records steps whose operations are tagged.

A trace has the form of `export_chrome_trace`: JSON with times in microseconds. Times are kept as whole nanoseconds, so
that the parts of a step sum to it exactly.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import UsageError
from bench.harness.measure.measure_row import sample_steps
from bench.harness.profile.step import MODULE, STEP, TAG, Breakdown, Operation, ProfiledStep
from bench.harness.timing.launched import Kernel, kernels_of, prepare_profiler, span_of
from results.stats.samples import median

if TYPE_CHECKING:
    from bench.harness.device.device import Device

MAX_STEPS = 10
MAX_OPERATIONS = 60_000
"""Of all recorded steps together: a longer trace takes longer to read than the steps take."""

RECORDING_S = 5.0
"""Seconds that recorded steps may take together; one step is recorded in any case."""

ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
MODE = "PythonDispatchMode"
"""Name of the events in which torch calls a dispatch mode."""

PRECOMPILED = "## Call CompiledFxGraph"
"""Beginning of the names of events of regions that torch compiled before the profiler was started."""


def time_step(
    step: ProfiledStep, breakdown: Breakdown, device: Device, left_s: float | None = None, keep: Path | None = None
) -> None:
    """Add to a breakdown the times of its step: whole without a profiler, then operation by operation.

    Args:
        step: is run often.
        breakdown: its operations, as they were counted.
        device: the device.
        left_s: time that samples of the whole step may take, at most.
        keep: file for the Chrome trace, which Perfetto and speedscope open too.

    Raises:
        UsageError: the trace cannot be written there.
    """
    breakdown.samples_s = list(sample_steps(step, "warm", device, left_s).samples_s)
    typical_s = median(breakdown.samples_s)
    divide(breakdown, recorded(step, steps_worth(typical_s, len(breakdown.operations)), keep))


def steps_worth(step_s: float, operations: int) -> int:
    """Return how many steps of some seconds and operations are recorded."""
    return max(1, min(MAX_STEPS, MAX_OPERATIONS // max(1, operations), int(RECORDING_S / step_s)))


def recorded(step: ProfiledStep, steps: int, keep: Path | None = None) -> Mapping[str, Any]:
    """Return the Chrome trace of some marked steps, their modules and their operations.

    Raises:
        UsageError: it cannot be kept.
    """
    from torch._C._profiler import _RecordFunctionFast as Range  # unlike record_function, no operation
    from torch.profiler import ProfilerActivity, profile

    from bench.harness.profile.account import Tags, watched

    prepare_profiler()
    ranges: list[Any] = []

    def enter(module: str) -> None:
        ranges.append(Range(MODULE + module))
        ranges[-1].__enter__()

    def leave(_: str) -> None:
        ranges.pop().__exit__(None, None, None)

    is_gpu, tags = step.target.device.startswith("cuda"), Tags()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with (
        profile(activities=activities, record_shapes=keep is not None) as profiler,
        watched(step, tags, enter, leave, is_eager=False),
    ):
        step()  # the first step under a profiler is slower
        for _ in range(steps):
            tags.number = 0
            with Range(STEP):
                step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        if keep is not None:
            try:
                shutil.copyfile(path, keep)
            except OSError as error:
                raise UsageError(f"cannot write '{keep}': {error.strerror or error}") from None
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document


@dataclass
class Event:
    """Something that a thread of the host did, with what happened within it."""

    name: str
    begin: int
    """Nanoseconds, as `end`."""
    end: int
    thread: Any = None
    correlation: int | None = None
    """Of a launch, with the kernel that it launched."""
    children: list[Event] = field(default_factory=list)

    @property
    def own(self) -> int:
        """Nanoseconds in which no child ran."""
        return self.end - self.begin - sum(child.end - child.begin for child in self.children)

    @property
    def is_tagging(self) -> bool:
        """Whether its own time is that of tagging an operation, or of the way to it."""
        names = [self.name, *(child.name for child in self.children)]
        return MODE in names or self.name.startswith(TAG)

    @property
    def is_operation(self) -> bool:
        """Whether it is a torch operation."""
        return "::" in self.name and not self.name.startswith(("autograd::", "torch::", "profiler::"))

    def all(self) -> Iterator[Event]:
        """Yield it and all within it."""
        yield self
        for child in self.children:
            yield from child.all()


def nested(document: Mapping[str, Any]) -> list[Event]:
    """Return the outermost events of all threads by their beginnings; the others are children of what they are in."""
    events = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ON_HOST:
            thread, correlation = (event.get("pid"), event.get("tid")), event.get("args", {}).get("correlation")
            events.append(Event(event["name"], *span_of(event), thread, correlation))
    roots: list[Event] = []
    open_events: dict[Any, list[Event]] = {}
    for event in sorted(events, key=lambda event: (event.begin, -event.end)):
        stack = open_events.setdefault(event.thread, [])
        while stack and stack[-1].end <= event.begin:
            stack.pop()
        if stack:
            event.end = min(event.end, stack[-1].end)  # clocks are rounded: a child never outlasts its parent
            stack[-1].children.append(event)
        else:
            roots.append(event)
        stack.append(event)
    return roots


def divide(breakdown: Breakdown, document: Mapping[str, Any]) -> None:
    """Divide the recorded step that took most nearly as long as one without a profiler among its owners."""
    roots, kernels = nested(document), kernels_of(document)
    steps = [event for root in roots for event in root.all() if event.name == STEP]
    expected = median(breakdown.samples_s) * 1e9
    if not kernels:
        step = min(steps, key=lambda step: abs(_untagged(step) - expected))
        _divide_host(breakdown, step)
        return
    step = min(steps, key=lambda step: abs(step.end - step.begin - expected))
    beside = [root for root in roots if step.begin <= root.begin and root.end <= step.end and root is not step]
    _divide_gpu(breakdown, [step, *beside], kernels)


def _untagged(event: Event) -> int:
    """Return the nanoseconds of an event of one thread without those of tagging the operations in it."""
    return sum(part.own for part in event.all() if not part.is_tagging)


def _divide_host(
    breakdown: Breakdown, event: Event, module: str = "", owner: Operation | None = None
) -> Operation | None:
    """Give the time of an event and of all within it to its owners; return the first operation in it."""
    if event.name.startswith(PRECOMPILED) and owner is None:
        _add(breakdown.unattributed, event.name, _untagged(event))
        return None
    if event.name.startswith(TAG):
        owner = _tagged(breakdown, event)
    elif event.name.startswith(MODULE):
        module = event.name.removeprefix(MODULE)
    first = owner
    for child in event.children:
        operation = _divide_host(breakdown, child, module, owner)
        first = first or operation
    if event.is_tagging:
        return first
    if owner is not None:
        owner.time_ns += event.own
    elif not event.is_operation:
        # What autograd does for a node belongs to the module of the node.
        is_node = first is not None and not event.name.startswith((STEP, MODULE))
        _add(breakdown.gaps, first.module if first is not None and is_node else module, event.own)
    elif first is None:
        _add(breakdown.unattributed, event.name, event.own)
    else:
        first.time_ns += event.own  # `aten::linear` on its way to `aten::addmm`
    return first


def _divide_gpu(breakdown: Breakdown, hosts: Sequence[Event], kernels: Sequence[Kernel]) -> None:
    """Give the time of a step to the kernels that it launched; in the rest of it the GPU stood still."""
    step = hosts[0]
    owners = {launch.correlation: owner for host in hosts for launch, owner in _launches(breakdown, host)}
    reached = step.begin
    for kernel in kernels:
        if step.begin <= kernel.begin and kernel.end <= step.end:
            spent = max(0, kernel.end - max(kernel.begin, reached))  # what overlaps counts once
            reached = max(reached, kernel.end)
            owner = owners.get(kernel.correlation)
            if owner is None:
                _add(breakdown.unattributed, kernel.name, spent)
            else:
                owner.kernels.add(kernel.name)
                owner.time_ns += spent
    breakdown.gaps[""] = step.end - step.begin - breakdown.duration_ns


def _launches(
    breakdown: Breakdown, event: Event, owner: Operation | None = None
) -> Iterator[tuple[Event, Operation | None]]:
    if event.name.startswith(PRECOMPILED) and owner is None:
        yield from ((launch, None) for launch in event.all() if launch.correlation is not None)
        return
    owner = _tagged(breakdown, event) if event.name.startswith(TAG) else owner
    if event.correlation is not None:
        yield event, owner
    for child in event.children:
        yield from _launches(breakdown, child, owner)


def _tagged(breakdown: Breakdown, event: Event) -> Operation | None:
    """Return the operation of a tag; None if the step called another one than when it was counted."""
    index, _, name = event.name.removeprefix(TAG).partition(" ")
    known = breakdown.operations[int(index) : int(index) + 1]
    return known[0] if known and known[0].op == name else None


def _add(sums: dict[str, int], name: str, value: int) -> None:
    sums[name] = sums.get(name, 0) + value
