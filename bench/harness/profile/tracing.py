"""Times a step: as a whole, then operation by operation, and the operations that take most of it alone.

torch.profiler records steps whose operations are tagged. A trace has the form of `export_chrome_trace`: JSON with times
in microseconds. Times are kept as whole nanoseconds, so that the parts of a step sum to it exactly.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.harness.cli.arguments import UsageError
from bench.harness.data.inputs import plan_rotation
from bench.harness.measure.measure_row import sample_steps, take_samples
from bench.harness.profile import report
from bench.harness.profile.counts import MODULE, STEP, TAG, Breakdown, Operation
from bench.harness.profile.target import Target, guarded_call
from bench.harness.timing.launched import Kernel, kernels_of, prepare_profiler, span_of
from bench.harness.timing.protocol import Limits, limits_of
from results.record import Record
from results.stats.samples import median

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device
    from bench.harness.profile.step import ProfiledStep

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

REPLAYED = 0.95
"""Share of the time whose operations are measured alone."""

REPLAY_LIMITS = Limits(10, 0.02, 0.0, 0.5, 0.0, 1e-3)
"""For each operation: its time is compared with another to 20 %, not to 1 %."""


class Profiled(NamedTuple):
    """What a profile of a step gives."""

    dtypes: tuple[str, ...]
    """Those whose peaks judge it."""
    records: list[Record]
    """A row for each signature and for each remainder, the longest first."""
    problem: str | None = None
    """Why it was not timed, or its operations not measured alone."""


def profiled(
    target: Target,
    mode: str,
    device: Device,
    left_s: float | None = None,
    trace: Path | None = None,
    is_compiled: bool = False,
    is_replayed: bool = False,
) -> Profiled:
    """Count a step, time it, and return its records; they are `failed` if it could not be timed.

    Args:
        target: is called once in each step.
        mode: what a step does, as of `ProfiledStep`.
        device: where it runs.
        left_s: time that samples of the whole step may take, at most.
        trace: file for the Chrome trace.
        is_compiled: whether it is compiled here, and its operations are regions then.
        is_replayed: whether the operations that take most of the time are measured alone too.

    Raises:
        UsageError: the step raised when it was counted, or called no operation.
    """
    from bench.harness.profile.step import ProfiledStep, account

    step = ProfiledStep(target, mode)
    breakdown = account(step)
    dtypes, problem = report.product_dtypes(breakdown.operations), None
    try:
        breakdown = timed(step, breakdown, device, left_s, trace, is_compiled)
    except UsageError as error:
        return Profiled(dtypes, report.failed_records(breakdown, str(error)), str(error))
    if is_replayed:
        try:
            replay(step, breakdown, device)
        except UsageError as error:
            problem = f"no replay: {error}"
    return Profiled(dtypes, report.records_of(breakdown), problem)


def timed(
    step: ProfiledStep,
    breakdown: Breakdown,
    device: Device,
    left_s: float | None = None,
    trace: Path | None = None,
    is_compiled: bool = False,
) -> Breakdown:
    """Return a breakdown with the times of its step; of a step that is compiled here, its operations are other ones."""
    from bench.harness.profile.step import compiled, state_kept

    with guarded_call(step.target.name, is_heard=False), state_kept(step.target):
        if is_compiled:
            step, breakdown = compiled(step, breakdown)
        breakdown.samples_s = list(sample_steps(step, "warm", device, left_s).samples_s)
        most = MAX_OPERATIONS // len(breakdown.operations), int(RECORDING_S / median(breakdown.samples_s))
        steps = max(1, min(MAX_STEPS, *most))
        divide(breakdown, recorded(step, steps, trace))
    return breakdown


def recorded(step: ProfiledStep, steps: int, keep: Path | None = None) -> Mapping[str, Any]:
    """Return the Chrome trace of some marked steps, their modules and their operations."""
    from torch._C._profiler import _RecordFunctionFast
    from torch.profiler import ProfilerActivity, profile

    from bench.harness.profile.step import Tags

    prepare_profiler()
    is_gpu, tags = step.target.device.startswith("cuda"), Tags(step)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with (
        profile(activities=activities, record_shapes=keep is not None) as profiler,
        tags.watching(is_eager=False),
    ):
        step()  # the first step under a profiler is slower
        for _ in range(steps):
            tags.number = 0
            with _RecordFunctionFast(STEP):
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


# ---- the time of each operation -----------------------------------------------------------------------------------


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
    owner: Operation | str | None = None
    """The operation whose tag it is in, or the name of a compiled region without one."""
    first: Operation | None = None
    """The first operation in it."""
    module: str = ""

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
        return "::" in self.name and not self.name.startswith(("autograd::", "torch::", "profiler::"))

    def all(self) -> Iterator[Event]:
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
    if kernels:
        step = min(steps, key=lambda step: abs(step.end - step.begin - expected))
        beside = [root for root in roots if step.begin <= root.begin and root.end <= step.end and root is not step]
        _divide_gpu(breakdown, [step, *beside], kernels)
    else:
        _divide_host(breakdown, min(steps, key=lambda step: abs(_untagged(step) - expected)))


def _untagged(event: Event) -> int:
    """Return the nanoseconds of an event of one thread without those of tagging the operations in it."""
    return sum(part.own for part in event.all() if not part.is_tagging)


def _own(breakdown: Breakdown, event: Event, module: str = "", owner: Operation | str | None = None) -> None:
    """Find the owner, the module and the first operation of an event and of all within it."""
    if event.name.startswith(PRECOMPILED):
        owner = owner or event.name
    elif event.name.startswith(TAG) and not isinstance(owner, str):
        # None if the step called another operation than when it was counted.
        index, _, name = event.name.removeprefix(TAG).partition(" ")
        owner = next((known for known in breakdown.operations[int(index) :][:1] if known.op == name), None)
    elif event.name.startswith(MODULE):
        module = event.name.removeprefix(MODULE)
    event.owner, event.module = owner, module
    event.first = owner if isinstance(owner, Operation) else None
    for child in event.children:
        _own(breakdown, child, module, owner)
        event.first = event.first or child.first


def _divide_host(breakdown: Breakdown, step: Event) -> None:
    """Give the time of a step to the operations of the host."""
    _own(breakdown, step)
    for event in step.all():
        owner, first = event.owner, event.first
        if event.is_tagging:
            continue
        if isinstance(owner, str):
            _add(breakdown.unattributed, owner, event.own)
        elif owner is not None:
            owner.time_ns += event.own
        elif not event.is_operation:
            # What autograd does for a node belongs to the module of the node.
            is_node = first is not None and not event.name.startswith((STEP, MODULE))
            _add(breakdown.gaps, first.module if first is not None and is_node else event.module, event.own)
        elif first is None:
            _add(breakdown.unattributed, event.name, event.own)
        else:
            first.time_ns += event.own  # `aten::linear` on its way to `aten::addmm`


def _divide_gpu(breakdown: Breakdown, hosts: Sequence[Event], kernels: Sequence[Kernel]) -> None:
    """Give the time of a step to the kernels that it launched; in the rest of it the GPU stood still."""
    for host in hosts:
        _own(breakdown, host)
    launches = [event for host in hosts for event in host.all() if event.correlation is not None]
    owners: dict[int | None, Any] = {launch.correlation: launch.owner for launch in launches}
    step = hosts[0]
    reached = step.begin
    for kernel in kernels:
        if step.begin <= kernel.begin and kernel.end <= step.end:
            spent = max(0, kernel.end - max(kernel.begin, reached))  # what overlaps counts once
            reached = max(reached, kernel.end)
            owner = owners.get(kernel.correlation)
            if isinstance(owner, Operation):
                owner.kernels.add(kernel.name)
                owner.time_ns += spent
            else:
                _add(breakdown.unattributed, kernel.name, spent)
    breakdown.gaps[""] = step.end - step.begin - breakdown.duration_ns


def _add(sums: dict[str, int], name: str, value: int) -> None:
    sums[name] = sums.get(name, 0) + value


# ---- operations alone ---------------------------------------------------------------------------------------------


def replay(step: ProfiledStep, breakdown: Breakdown, device: Device) -> None:
    """Measure the operations that take most of a step alone too, on the arguments that they have in one more step.

    The values of arguments decide what a gather or a mixture of experts moves.
    """
    from bench.harness.profile.step import arguments_of, state_kept

    operations, alone = breakdown.operations, {}
    indices = worth_replaying(operations)
    with guarded_call(step.target.name, is_heard=False), state_kept(step.target):
        arguments = arguments_of(step, operations, set(indices))
        for index in indices:
            alone[operations[index].signature] = _measured(arguments.pop(index), device)
    for operation in operations:
        operation.alone_s = alone.get(operation.signature)


def worth_replaying(operations: Sequence[Operation]) -> list[int]:
    """Return the index of one operation of each signature, those that take `REPLAYED` of the time, longest first."""
    alike: dict[Any, list[int]] = {}
    for index, operation in enumerate(operations):
        if operation.time_ns and operation.bytes_moved:
            alike.setdefault(operation.signature, []).append(index)
    times_ns = {indices[0]: sum(operations[index].time_ns for index in indices) for indices in alike.values()}
    left_ns, worth = REPLAYED * sum(times_ns.values()), []
    for index in sorted(times_ns, key=lambda index: -times_ns[index]):
        if left_ns > 0:
            left_ns -= times_ns[index]
            worth.append(index)
    return worth


def _measured(call: tuple[Any, Any, Any], device: Device) -> tuple[float | None, float]:
    """Return the seconds of one operation, cold and warm; cold is None if its arguments cannot be made cold."""
    import torch
    from torch.utils._pytree import tree_iter

    func, args, kwargs = call
    storages = [one.untyped_storage() for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
    held = sum({storage._cdata: storage.nbytes() for storage in storages}.values())
    plan = plan_rotation(max(1, held), device.cache_bytes, device.free_bytes(), device.type, "cold")
    is_cold = plan.cache == "cold"
    usual = limits_of(device)
    limits = replace(REPLAY_LIMITS, warm_up_s=usual.warm_up_s, warm_up_cap_s=usual.warm_up_cap_s)
    with torch.no_grad():
        sets = [copied(args, kwargs) for _ in range(plan.copies if is_cold else 1)]
        calls = [partial(func, *own_args, **own_kwargs) for own_args, own_kwargs in sets]
        # What an operation calls inside may not be allowed in a capture, and a failed one leaves the stream unusable.
        samples = take_samples(calls, "cold" if is_cold else "warm", device, limits, is_capturable=False)
    if is_cold and samples.warm_median_s is not None:
        return samples.median_s, samples.warm_median_s
    return None, samples.median_s


def copied(args: Any, kwargs: Any) -> Any:
    """Return arguments on storages of their own; what shared a storage shares its copy."""
    import torch
    from torch.utils._pytree import tree_map_only

    storages: dict[int, Any] = {}

    def copy(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride())

    return tree_map_only(torch.Tensor, copy, (args, kwargs))
