"""Times a step as a whole, then each of its operations.

torch.profiler records steps whose operations are tagged. A trace is the JSON of
`export_chrome_trace`, with times in microseconds. They become integer nanoseconds here, so the
parts of a step sum to it exactly.
"""

from __future__ import annotations

import json
import math
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile

from bench.harness.cli.arguments import UsageError
from bench.harness.measure.measure_row import sample_steps
from bench.harness.timing.recording import Kernel, kernels_of, prepare_profiler, span_of
from bench.harness.torch_private import RecordFunctionFast
from bench.profiling.operation import MODULE, STEP, TAG, Breakdown, Operation
from bench.profiling.step import ProfiledStep, Watcher, compiled, state_kept
from bench.profiling.target import guarded_call
from results.record import Object
from results.show.category import is_communication

if TYPE_CHECKING:
    from bench.harness.device.device import Device

MAX_STEPS = 10
MAX_OPERATIONS = 60_000
"""Operations of all recorded steps; reading a longer trace would take too long."""

RECORDING_S = 5.0
"""Total time of the recorded steps; at least one is recorded."""

ON_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
PYTHON = "python_function"
NN_MODULE = "nn.Module: "
"""Category and prefix of the events of modules that `with_stack` or `with_modules` records."""

NO_OPERATION = ("autograd::", "torch::", "profiler::")
"""Prefixes of other events whose names look like those of operations."""

MODE = "PythonDispatchMode"
"""Name of the events of a dispatch mode."""

PRECOMPILED = "## Call CompiledFxGraph"
"""Prefix of the events of regions that were compiled before the profiler started."""


def timed(
    step: ProfiledStep,
    breakdown: Breakdown,
    device: Device,
    left_s: float = math.inf,
    trace: Path | None = None,
    is_compiled: bool = False,
) -> Breakdown:
    with guarded_call(step.target.name, is_heard=False), state_kept(step.target):
        if is_compiled:
            step, breakdown = compiled(step, breakdown)
        breakdown.samples_s = list(sample_steps(step, "warm", device, left_s).samples_s)
        steps_by_count = MAX_OPERATIONS // len(breakdown.operations)
        steps_by_time = int(RECORDING_S / median(breakdown.samples_s))
        steps = max(1, min(MAX_STEPS, steps_by_count, steps_by_time))
        divide(breakdown, recorded(step, steps, trace))
    return breakdown


def recorded(step: ProfiledStep, steps: int, keep: Path | None = None) -> Object:
    prepare_profiler()
    watcher = Watcher(step, is_counting=False)
    activities = [ProfilerActivity.CPU]
    if step.target.device.startswith("cuda"):
        activities.append(ProfilerActivity.CUDA)
    with (
        profile(
            activities=activities,
            record_shapes=keep is not None,
            acc_events=True,  # torch 2.11 warns without it
        ) as profiler,
        watcher.watching(is_eager=False),
    ):
        step()  # the first step under a profiler is slower
        for _ in range(steps):
            watcher.number = 0
            with RecordFunctionFast(STEP):
                step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        document: Object = json.loads(path.read_text(encoding="utf-8"))
    if keep is not None:
        try:  # torch 2.11 does not name the host
            keep.write_text(
                json.dumps({"host_name": platform.node(), **document}), encoding="utf-8"
            )
        except OSError as error:
            raise UsageError(f"cannot write '{keep}': {error.strerror or error}") from None
    return document


@dataclass(slots=True)  # a trace has hundreds of thousands
class Event:
    """An event of a host thread; times in nanoseconds."""

    name: str
    begin: int
    end: int
    thread: Any
    category: str
    args: Object
    own: int = 0
    """Time outside of nested events."""
    module: str = ""
    phase: str = "forward"
    owner: Operation | str | None = None
    """The operation around it, or the name of a compiled region without a tag."""
    first: Operation | None = None
    """The first operation within it."""
    is_tagging: bool = False
    """Whether its own time is overhead of tagging."""


def host_events(document: Object) -> list[Event]:
    events = []
    for event in document["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in (*ON_HOST, PYTHON):
            thread = (event.get("pid"), event.get("tid"))
            begin, end = span_of(event)
            events.append(
                Event(event["name"], begin, end, thread, event["cat"], event.get("args", {}))
            )
    return events


def nest(events: list[Event], set_owner: Callable[[Event], None]) -> None:
    """Sort host events by start, and give each its own time and what it belongs to.

    `set_owner` is given each event with the owner, the module and the phase of the event around it,
    and replaces what differs.
    """
    events.sort(key=lambda event: (event.begin, -event.end))
    open_events: dict[Any, list[Event]] = {}
    for event in events:
        around = open_events.setdefault(event.thread, [])
        while around and around[-1].end <= event.begin:
            around.pop()
        event.is_tagging = event.name == MODE or event.name.startswith(TAG)
        if around:
            parent = around[-1]
            # Times are rounded: an event must not outlast the one around it.
            event.end = min(event.end, parent.end)
            event.owner = parent.owner
            event.module = parent.module
            event.phase = parent.phase
            parent.own -= event.end - event.begin
            parent.is_tagging |= event.name == MODE
        event.own = event.end - event.begin
        set_owner(event)
        around.append(event)
        if isinstance(event.owner, Operation):
            for outer in reversed(around):
                if outer.first is not None:
                    break  # so have all around it
                outer.first = event.owner


def divide(breakdown: Breakdown, document: Object) -> None:
    """Attribute the time of the recorded step whose duration is nearest to that without a
    profiler.
    """

    def set_tagged(event: Event) -> None:
        if event.name.startswith(PRECOMPILED):
            event.owner = event.owner or event.name
        elif event.name.startswith(MODULE):
            event.module = event.name.removeprefix(MODULE)
        elif event.name.startswith(TAG) and not isinstance(event.owner, str):
            # None if the step called a different operation than when it was counted.
            index, _, name = event.name.removeprefix(TAG).partition(" ")
            known = breakdown.operations[int(index) :][:1]
            event.owner = known[0] if known and known[0].op == name else None

    events = host_events(document)
    nest(events, set_tagged)
    kernels = kernels_of(document)
    expected_ns = median(breakdown.samples_s) * 1e9
    steps = []
    for step in events:
        if step.name == STEP:
            spent_ns = step.end - step.begin
            inside = [each for each in events if step.begin <= each.begin and each.end <= step.end]
            if not kernels:
                inside = [
                    each for each in inside if each.thread == step.thread and not each.is_tagging
                ]
                spent_ns = sum(each.own for each in inside)
            steps.append((abs(spent_ns - expected_ns), step, inside))
    _, step, inside = min(steps, key=lambda each: each[0])
    if kernels:
        divide_gpu(breakdown, (step.begin, step.end), inside, kernels)
    else:
        divide_host(breakdown, inside)


def divide_host(breakdown: Breakdown, events: Sequence[Event]) -> None:
    """Attribute the own times of the events of a step."""
    for event in events:
        owner = event.owner
        first = event.first
        is_operation = "::" in event.name and not event.name.startswith(NO_OPERATION)
        if isinstance(owner, str):
            breakdown.unattributed[owner].append(event.own)
        elif owner is not None:
            owner.time_ns += event.own
        elif is_operation and first is not None:
            first.time_ns += event.own  # `aten::linear` on its way to `aten::addmm`
        elif is_operation:
            breakdown.unattributed[event.name].append(event.own)
        elif first is None or event.name.startswith((STEP, MODULE, NN_MODULE)):
            breakdown.gaps[event.module] += event.own
        else:  # time of autograd for a node belongs to the module of the node
            breakdown.gaps[first.module] += event.own


def divide_gpu(
    breakdown: Breakdown,
    span: tuple[int, int],
    events: Sequence[Event],
    kernels: Sequence[Kernel],
    others: Sequence[Kernel] = (),
) -> None:
    """Attribute the time of a step to its kernels; the GPU was idle while no kernel ran at all.

    Overlapping time counts once, so that the parts sum to the step; in a trace from a file each
    kernel counts in full.

    Args:
        breakdown: its operations get the times.
        span: begin and end of the step, in nanoseconds.
        events: the host's, with the launches of the kernels, which share an id with them.
        kernels: in the order of their start.
        others: kernels of other steps, which may run in the span.
    """
    begin, end = span
    launches = {event.args["correlation"]: event for event in events if "correlation" in event.args}
    inside = [kernel for kernel in kernels if begin <= kernel.begin and kernel.end <= end]
    reached = begin
    for kernel in inside:
        fresh = max(0, kernel.end - max(kernel.begin, reached))
        reached = max(reached, kernel.end)
        spent = kernel.end - kernel.begin if breakdown.is_trace else fresh
        launch = launches.get(kernel.correlation)
        owner = launch.owner if launch is not None else None
        if isinstance(owner, Operation):
            owner.kernels.setdefault(kernel.name, []).append(spent)
            owner.time_ns += spent
        else:
            breakdown.unattributed[kernel.name].append(spent)
    busy_ns = covered_ns(inside, span)
    every_ns = covered_ns(sorted([*inside, *others], key=lambda kernel: kernel.begin), span)
    breakdown.others_ns = every_ns - busy_ns
    breakdown.gaps[""] = end - begin - every_ns
    communication = [kernel for kernel in inside if is_communication(kernel.name)]
    computing = [kernel for kernel in inside if not is_communication(kernel.name)]
    breakdown.communication_s = covered_ns(communication, span) / 1e9
    breakdown.exposed_s = (busy_ns - covered_ns(computing, span)) / 1e9


def covered_ns(kernels: Sequence[Kernel], span: tuple[int, int]) -> int:
    """Return the time of a span in which at least one of the kernels, in the order of their start,
    ran.
    """
    covered = 0
    reached, end = span
    for kernel in kernels:
        covered += max(0, min(end, kernel.end) - max(kernel.begin, reached))
        reached = max(reached, kernel.end)
    return covered
