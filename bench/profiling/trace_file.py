"""A Chrome trace of torch.profiler as a breakdown, without the model.

`record_shapes=True` records the shapes, strides, dtypes and numbers that each operation was called
with. The call is repeated on the meta device and counted by `counts`; `tracing` gives each
operation its time. Operations are those that `bench profile` counts: the outermost ones that torch
does not decompose, such as `aten::addmm` in `aten::linear`.
"""

from __future__ import annotations

import gc
import gzip
import math
import warnings
import zlib
from ast import literal_eval
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Required, TypedDict

import msgspec
import torch
from msgspec import Meta

from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device, slugify
from bench.harness.measure.rows import one_line
from bench.harness.timing import protocol
from bench.harness.timing.recording import ON_GPU, kernels_of
from bench.harness.torch_private import has_kernel
from bench.profiling.counts import (
    BY_VALUES,
    RULES,
    base_name,
    count,
    declare,
    dtypes_of,
    is_decomposed,
    shapes_text,
    tensors_in,
)
from bench.profiling.operation import NO_SHAPE, UNMODELLED, Breakdown, Operation
from bench.profiling.tracing import (
    NN_MODULE,
    ON_HOST,
    PRECOMPILED,
    PYTHON,
    Event,
    divide_gpu,
    divide_host,
    host_events,
    nest,
)
from results.record import Object
from roofline.gpu_table import gpus_named

DTYPES = {
    "double": "float64",
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "long long": "int64",
    "__int64": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
    "unsigned long": "uint64",
    "unsigned int": "uint32",
    "unsigned short": "uint16",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    **{
        f"c10::Float8_{kind}": f"float8_{kind}"
        for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")
    },
}
"""Dtypes by the C++ names of their types, which depend on the compiler. Source: torch,
`scalarTypeToTypeMeta`.
"""

TENSORS = "TensorList"
PHASES = {"autograd::engine::evaluate_function": "backward", "Optimizer.": "optimizer"}
"""Phases of what runs within events, by the prefixes of their names."""

OURS = "roofmark "
"""Prefix of the events that `bench profile` adds to its own traces: `STEP`, `MODULE` and `TAG`."""

MAX_BYTES = 2_000_000_000
"""Size of the largest trace that is read by default, after decompression."""

CHUNK_BYTES = 1 << 24

MAX_ELEMENTS = 2**48
MAX_FLOPS = 2**56
"""Limits of a tensor and of a call: 280 TB, and 32 s of the fastest GPU; above, it is forged."""

MAX_US = 1e16
"""Largest time of an event: 317 years, in microseconds."""

STEP_OF_PROFILER = "ProfilerStep#"
"""Prefix of the events of the steps of `torch.profiler.schedule`."""

TraceArgs = TypedDict(
    "TraceArgs",
    {
        "Input type": list[str],
        "Input Dims": list[Any],
        "Input Strides": list[Any],
        "Concrete Inputs": list[str],
        "Collective name": str,
        "correlation": int,
        "device": Any,
    },
    total=False,
)
"""What is read of the arguments of an event; the others are skipped."""


class TraceEvent(TypedDict, total=False):
    """What is read of an event; times are microseconds."""

    ph: str
    cat: str
    name: Required[str]
    pid: Any
    tid: Any
    ts: Annotated[float, Meta(ge=-MAX_US, le=MAX_US)]
    dur: Annotated[float, Meta(ge=0, le=MAX_US)]
    args: TraceArgs


class DeviceProperties(TypedDict, total=False):
    """What is read of the properties of a GPU."""

    id: Required[Any]
    name: str
    totalGlobalMem: int
    numSms: int


class TraceDocument(TypedDict, total=False):
    """What is read of a trace."""

    traceEvents: list[TraceEvent]
    deviceProperties: list[DeviceProperties]
    host_name: str


Events = Sequence[Mapping[str, Any]]


def from_trace(
    path: Path,
    max_bytes: int = MAX_BYTES,
    gpu: int | None = None,
    step: int | None = None,
) -> tuple[Breakdown, Device | None, str]:
    """Return the operations of a trace, plain or compressed by gzip, the GPU of its kernels if any,
    and its host.

    Args:
        path: Chrome trace of torch.profiler.
        max_bytes: size after decompression of the largest file that is read.
        gpu: number of the GPU whose kernels are read; None: there must be only one.
        step: number of the step of `torch.profiler.schedule` that is read; None: the whole trace.

    Raises:
        UsageError: the file cannot be read, is larger, or is not a trace with operations or
            kernels.
    """
    gc.disable()  # it would search millions of events again and again, a third of the time
    try:
        document = load(content_of(path, max_bytes), gpu)
        breakdown = breakdown_of(document["traceEvents"], step)
        return breakdown, gpu_of(document), str(document.get("host_name", ""))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"'{path}' is not a whole gzip file: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}") from None
    except UsageError as error:
        raise UsageError(f"'{path}' {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"'{path}' has an event that torch.profiler does not write: {one_line(error)}"
        ) from None
    finally:
        gc.enable()


def content_of(path: Path, max_bytes: int) -> bytearray:
    content = bytearray()
    with path.open("rb") as packed:
        is_gzip = packed.peek(2).startswith(b"\x1f\x8b")
        file = gzip.GzipFile(fileobj=packed) if is_gzip else packed
        for chunk in iter(partial(file.read, CHUNK_BYTES), b""):
            content += chunk
            if len(content) > max_bytes:
                raise UsageError(
                    f"has more than {max_bytes / 1e9:.3g} GB; record fewer steps, or use --max-size"
                )
    return content


def load(content: bytes | bytearray, gpu: int | None = None) -> Object:
    """Return a trace with the events that are needed: those of the host, and of one GPU."""
    try:
        document = msgspec.json.decode(content, type=TraceDocument | list[TraceEvent])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"is not a trace of torch.profiler's export_chrome_trace: {error}"
        ) from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    events = []
    for event in document.get("traceEvents", ()):
        if event.get("ph") != "X" or event["name"].startswith(OURS):
            continue
        category = event.get("cat")
        is_module = category == PYTHON and event["name"].startswith(NN_MODULE)
        if category in (*ON_HOST, *ON_GPU) or is_module:
            event.setdefault("dur", 0)
            event.setdefault("args", {})
            events.append(event)
    numbers = gpu_numbers(events)
    is_one = len(numbers) <= 1 if gpu is None else gpu in numbers
    if not is_one:
        listed = ", ".join(sorted(map(str, numbers))) or "none"
        raise UsageError(f"has kernels of GPUs {listed}; choose one with --trace-device")
    if gpu is not None:
        events = [event for event in events if gpu_numbers([event]) <= {gpu}]
    if not any(event["cat"] in ("cpu_op", *ON_GPU) for event in events):
        raise UsageError(
            "has no torch operations and no kernels; record it with ProfilerActivity.CPU"
        )
    return {**document, "traceEvents": events}


def gpu_numbers(events: Events) -> set[Any]:
    """Return the numbers of the GPUs that ran the kernels among events."""
    return {event["args"].get("device") for event in events if event["cat"] in ON_GPU}


def gpu_of(document: Object) -> Device | None:
    """Return the GPU of the kernels in a trace, as the trace describes it; None if there are no
    kernels.
    """
    numbers = gpu_numbers(document["traceEvents"])
    if not numbers:
        return None
    every = document.get("deviceProperties", ())
    same = [facts for facts in every if facts["id"] in numbers]
    if not same and len({facts.get("name") for facts in every}) == 1:
        same = every  # AMD numbers the visible GPUs differently
    facts = same[0] if same else {}
    name = facts.get("name") or "unknown GPU"
    memory_bytes = facts.get("totalGlobalMem")
    sm_count = facts.get("numSms")
    named = gpus_named(name, memory_bytes, sm_count)
    slug = named[0].slug if len(named) == 1 else slugify(name)
    return Device(
        "cuda", "cuda", slug, name, cache_bytes=0, memory_bytes=memory_bytes or 0, sm_count=sm_count
    )


def breakdown_of(events: Events, step: int | None) -> Breakdown:
    """Return the operations of one or of all steps of a trace; on a CPU, those of the thread that
    computed longest.
    """
    kernels = kernels_of({"traceEvents": events})
    host = host_events({"traceEvents": events})
    others = []
    named = [event for event in host if event.name.startswith(STEP_OF_PROFILER)]
    steps = {event.name.removeprefix(STEP_OF_PROFILER): event for event in named}
    if step is not None:
        host = of_step(host, steps, step)
    launches = {event.args.get("correlation") for event in host} - {None}
    if step is not None:
        others = [kernel for kernel in kernels if kernel.correlation not in launches]
        kernels = [kernel for kernel in kernels if kernel.correlation in launches]
    if not kernels:
        spent: Counter[Any] = Counter()
        for event in host:
            if event.category == "cpu_op":
                spent[event.thread] += event.end - event.begin
        [(longest, _)] = spent.most_common(1)
        host = [event for event in host if event.thread == longest]
    calls = Calls(host, bool(kernels))
    breakdown = Breakdown(calls.operations, is_trace=True)
    if step is None and len(steps) > 1:
        breakdown.steps_s = [(each.end - each.begin) / 1e9 for each in steps.values()]
    # What was launched before the recording began is older than all launches in it.
    launched = [kernel.begin for kernel in kernels if kernel.correlation in launches]
    first = min(launched, default=kernels[0].begin if kernels else 0)
    early = [each for each in kernels if each.begin < first]
    kernels = [each for each in kernels if each.begin >= first]
    breakdown.early_s = tuple((kernel.end - kernel.begin) / 1e9 for kernel in early)
    every: list[Any] = [*host, *kernels]
    begin = min(each.begin for each in every)
    end = max(each.end for each in every)
    if kernels:  # the host may be ahead: until then the GPU runs the step before
        busy = [each.end for each in others if each.begin < kernels[0].begin]
        begin = min(max([begin, *busy]), kernels[0].begin)
    if early:
        computed = [event.begin for event in host if event.category == "cpu_op"]
        ended = max(kernel.end for kernel in early)
        begin = min(first, max(min(computed, default=begin), ended))
    if begin == end:
        raise UsageError("has operations that took no time")
    breakdown.samples_s = [(end - begin) / 1e9]
    nest(host, calls.set_owner)
    if kernels:
        divide_gpu(breakdown, (begin, end), host, kernels, others)
    else:
        divide_host(breakdown, host)
        breakdown.gaps[""] += end - begin - sum(event.own for event in host)
        if not calls.operations:
            raise UsageError("has no torch operations")
    return breakdown


def of_step(host: Sequence[Event], steps: Mapping[str, Event], step: int) -> list[Event]:
    """Return the events of all threads that begin in a step.

    Raises:
        UsageError: the trace has no such step.
    """
    if str(step) not in steps:
        known = ", ".join(steps) or "none, torch.profiler.schedule makes them"
        raise UsageError(f"has no step {step}; its steps: {known}")
    span = steps[str(step)]
    return [event for event in host if span.begin <= event.begin < span.end]


class Owner(Operation):
    """An event that is no torch operation and owns the kernels that are launched in it."""


class Calls:
    """Counts calls; those that were recorded alike are counted once."""

    def __init__(self, events: Sequence[Event], has_gpu: bool) -> None:
        self._has_gpu = has_gpu
        recorded = (event.args.get("Input type", ()) for event in events)
        kinds = Counter(chain.from_iterable(recorded))
        dtypes = [DTYPES.get(kind, "") for kind, _ in kinds.most_common()]
        floats = [dtype for dtype in dtypes if "float" in dtype]
        # Dtypes of lists of tensors are not recorded: the most frequent one is assumed.
        self._dtypes = DTYPES | {TENSORS: floats[0] if floats else "float32"}
        self._known: dict[str, Operation | None] = {}
        self._regions: dict[str, int] = {}
        self.operations: list[Operation] = []

    def set_owner(self, event: Event) -> None:
        """Set the phase of an event, and its operation if it is one and in no other."""
        for prefix, phase in PHASES.items():
            if event.name.startswith(prefix):
                event.phase = phase
        if event.name.startswith(NN_MODULE):
            # `nn.Module: Linear_3`: the number is that of the instance, not of a layer.
            class_name = event.name.removeprefix(NN_MODULE).rpartition("_")[0]
            event.module = ".".join(filter(None, (event.module, class_name)))
        # What has no rule may call operations that have one: the own time stays with it.
        if isinstance(event.owner, Operation) and event.owner.is_modelled:
            return
        operation = None
        namespace, _, op = event.name.partition("::")
        if event.name.startswith(PRECOMPILED):
            number = self._regions.setdefault(event.name, len(self._regions))
            operation = Operation(f"compiled.region{number}", NO_SHAPE, flags=(UNMODELLED,))
        elif event.category == "cpu_op" and namespace.isidentifier() and op.isidentifier():
            call = f"{event.name} {event.args}"
            if call not in self._known:
                args = event.args
                kinds = args.get("Input type", ())
                dims = args.get("Input Dims", ())
                # Older versions of torch record neither strides nor numbers.
                strides = args.get("Input Strides") or [None] * len(dims)
                numbers = args.get("Concrete Inputs") or [""] * len(dims)
                dtypes = map(self._dtypes.get, kinds)
                given = list(map(Argument, kinds, dtypes, dims, strides, numbers))
                self._known[call] = operation_of(namespace, op, given)
            operation = self._known[call]
        is_within = isinstance(event.owner, Operation) and not isinstance(event.owner, Owner)
        name = owner_name(event) if self._has_gpu and not is_within else ""
        if operation is not None:
            event.owner = replace(operation, phase=event.phase, module=event.module, kernels={})
            self.operations.append(event.owner)
        elif name:
            event.owner = Owner(name, "", (), event.module, event.phase, flags=(UNMODELLED,))
            self.operations.append(event.owner)


def owner_name(event: Event) -> str:
    """Return the name under which an event that is no torch operation owns the kernels that are
    launched in it; empty if it owns none.
    """
    if "GraphLaunch" in event.name:  # cudaGraphLaunch, hipGraphLaunch
        return f"{event.owner.op}: {event.name}" if isinstance(event.owner, Owner) else event.name
    is_named = event.category in ("cpu_op", "user_annotation")
    if not is_named or event.name.startswith(STEP_OF_PROFILER):
        return ""
    return f"{event.name} {event.args.get('Collective name', '')}".strip()


class Argument(NamedTuple):
    """An argument as it was recorded."""

    kind: str
    """C++ type of a tensor, `TensorList`, `Scalar` or `ScalarList`; empty for None and for what is
    not recorded.
    """
    dtype: str | None
    """Of a tensor or of a list of tensors."""
    dims: Sequence[Any]
    strides: Sequence[Any] | None
    number: str
    """A number or a list of numbers."""

    def tensors(self) -> Any:
        """Return a tensor or a list of tensors without data."""
        if self.kind != TENSORS:
            return self._tensor(self.dims, self.strides)
        return list(map(self._tensor, self.dims, self.strides or [None] * len(self.dims)))

    def _tensor(self, dims: Sequence[int], strides: Sequence[int] | None) -> torch.Tensor:
        dtype = getattr(torch, str(self.dtype))
        # torch lets an extent overflow.
        extents = [(size - 1) * stride for size, stride in zip(dims, strides or (), strict=False)]
        is_negative = min(strides or (), default=0) < 0  # torch accepts them without data
        if is_negative or max(math.prod(dims), sum(extents)) > MAX_ELEMENTS:
            raise ValueError("no memory holds such a tensor")
        if strides is None:
            return torch.empty(dims, dtype=dtype, device="meta")
        return torch.empty_strided(dims, strides, dtype=dtype, device="meta")

    def fits(self, expected: Any) -> bool:
        """Whether an argument of a schema takes it."""
        name = str(expected.type)
        is_alike = ("List[" in name, "Tensor" in name) == (
            self.kind.endswith("List"),
            self.dtype is not None,
        )
        return is_alike or not self.kind

    def value(self, expected: Any = None) -> Any:
        """Return what an argument of a schema is given, or that of a rule without a schema."""
        if self.dtype is not None:
            return self.tensors()
        if expected is not None and "Device" in str(expected.type):
            return "meta"
        if not self.number:
            return expected and expected.default_value
        try:
            return literal_eval(self.number)
        except ValueError:
            return float(self.number)  # inf


def operation_of(namespace: str, op: str, given: Sequence[Argument]) -> Operation | None:
    """Return the operation of a call, not modelled if the call cannot be repeated; None if torch
    decomposes it.
    """
    unknown = Operation(f"{namespace}.{op}", NO_SHAPE, flags=(UNMODELLED,))
    if (namespace, base_name(op)) in RULES and given:
        return declared(unknown, given)
    packet = getattr(getattr(torch.ops, namespace), op, None)
    overloads = [getattr(packet, name) for name in packet.overloads()] if packet is not None else []
    # Overloads without a kernel are TorchScript's.
    overloads = [func for func in overloads if has_kernel(func.name())]
    alike = [func for func in overloads if len(func._schema.arguments) == len(given)]
    func = next(
        (func for func in alike if all(map(Argument.fits, given, func._schema.arguments))), None
    )
    if overloads and all(map(is_decomposed, [func] if func else overloads)):
        return None
    args = []
    kwargs = {}
    try:
        tensors = [argument.tensors() for argument in given if argument.dtype is not None]
        unknown.shapes = shapes_text(tensors) or NO_SHAPE
        unknown.dtypes = dtypes_of(tensors_in(tensors))
        if func is None:
            return unknown
        for expected, argument in zip(func._schema.arguments, given, strict=True):
            kind = str(expected.type)
            if kind.startswith("List[") and "Tensor" in kind and not argument.dims:
                # Of optional tensors, or of more than 30.
                return replace(unknown, shapes=NO_SHAPE)
            if expected.kwarg_only:
                kwargs[expected.name] = argument.value(expected)
            else:
                args.append(argument.value(expected))
        with warnings.catch_warnings(action="ignore"):
            result = func(*args, **kwargs) if BY_VALUES.isdisjoint(func.tags) else None
            operation = count(func, args, kwargs, result)
        # Each call has tensors of its own here, so what it reads of others is not known.
        return replace(operation, reads={}) if operation.flops <= MAX_FLOPS else unknown
    except (
        Exception
    ):  # of many classes: some operations need data, some traces are damaged or forged
        return unknown


def declared(operation: Operation, given: Sequence[Argument]) -> Operation:
    """Return an operation with the work that its rule declares.

    Raises:
        UsageError: the rule raises an exception.
    """
    try:
        args = [argument.value() for argument in given]
        protocol.announce()
        declare(operation, *args)
        protocol.announce(runs=False)
    except Exception as error:
        raise UsageError(f"has {operation.op}, whose rule failed: {one_line(error)}") from None
    operation.shapes = shapes_text(args) or NO_SHAPE
    operation.dtypes = dtypes_of(tensors_in(args))
    operation.flags = ()
    return operation
