"""A Chrome trace of torch.profiler as a breakdown, without the model.

`record_shapes=True` records the shapes, strides, dtypes and numbers that each operation was called
with. The call is repeated on the meta device and counted by `counts`; `tracing` gives each
operation its time. Operations are those that `bench profile` counts: the outermost ones that torch
does not decompose, such as `aten::addmm` in `aten::linear`.
"""

from __future__ import annotations

import gzip
import json
import warnings
import zlib
from ast import literal_eval
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device, slugify
from bench.harness.measure.rows import one_line
from bench.harness.timing.launched import ON_GPU, span_of
from bench.harness.torch_private import has_kernel
from bench.profiling.counts import (
    count,
    dtypes_of,
    is_data_dependent,
    is_decomposed,
    shapes_text,
    tensors_in,
)
from bench.profiling.operation import NO_SHAPE, STEP, UNMODELLED, Breakdown, Operation
from bench.profiling.tracing import ON_HOST, PRECOMPILED, Event, divide
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

Events = Sequence[Mapping[str, Any]]


def from_trace(path: Path) -> tuple[Breakdown, Device | None, str]:
    """Return the operations of a trace, plain or compressed by gzip, the GPU of its kernels if any,
    and its host.

    Raises:
        UsageError: the file is not a trace with operations and their shapes.
    """
    try:
        document = load(path.read_bytes())
        breakdown = breakdown_of(document["traceEvents"])
        return breakdown, gpu_of(document), str(document.get("host_name", ""))
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}") from None
    except UsageError as error:
        raise UsageError(f"'{path}' {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"'{path}' has an event that torch.profiler does not write: {one_line(error)}"
        ) from None


def load(content: bytes) -> dict[str, Any]:
    """Return a trace with the events that are needed."""
    try:
        document = json.loads(
            gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        )
    except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(
            "is not JSON; expected a trace of torch.profiler's export_chrome_trace"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise UsageError(
            "is not a Chrome trace; expected one of torch.profiler's export_chrome_trace"
        )
    events = []
    for event in document["traceEvents"]:
        is_known = event.get("ph") == "X" and event.get("cat") in (*ON_HOST, *ON_GPU)
        if is_known and not event["name"].startswith(OURS):
            events.append({"dur": 0, "args": {}} | event)
    has_shapes = ["Input Dims" in event["args"] for event in events if event["cat"] == "cpu_op"]
    if not has_shapes:
        raise UsageError("has no torch operations; record it with ProfilerActivity.CPU")
    if not any(has_shapes):
        raise UsageError("has no shapes; record it with torch.profiler.profile(record_shapes=True)")
    return {**document, "traceEvents": events}


def gpu_of(document: Mapping[str, Any]) -> Device | None:
    """Return the GPU of the kernels in a trace, as the trace describes it; None if there are no
    kernels.
    """
    numbers = {
        event["args"].get("device") for event in document["traceEvents"] if event["cat"] in ON_GPU
    }
    if not numbers:
        return None
    if len(numbers) > 1:
        raise UsageError(f"has kernels of {len(numbers)} GPUs; record a trace for each")
    listed = document.get("deviceProperties", ())
    facts: Mapping[str, Any] = next((facts for facts in listed if facts["id"] in numbers), {})
    name = facts.get("name", "unknown GPU")
    memory_bytes = facts.get("totalGlobalMem")
    sm_count = facts.get("numSms")
    named = gpus_named(name, memory_bytes, sm_count)
    slug = named[0].slug if len(named) == 1 else slugify(name)
    return Device(
        "cuda", "cuda", slug, name, cache_bytes=0, memory_bytes=memory_bytes or 0, sm_count=sm_count
    )


def breakdown_of(events: Events) -> Breakdown:
    """Return the operations of all steps of a trace; on a CPU, those of the thread that computed
    longest.
    """
    if not any(event["cat"] in ON_GPU for event in events):
        spent: Counter[Any] = Counter()
        for event in events:
            if event["cat"] == "cpu_op":
                spent[thread_of(event)] += event["dur"]
        [(longest, _)] = spent.most_common(1)
        events = [event for event in events if thread_of(event) == longest]
    spans = list(map(span_of, events))
    begin = min(begin for begin, _ in spans)
    duration = max(end for _, end in spans) - begin
    if not duration:
        raise UsageError("has operations that took no time")
    whole = {
        **events[0],
        "cat": "user_annotation",
        "name": STEP,
        "ts": min(event["ts"] for event in events),
        "dur": duration / 1000,
    }
    calls = Calls(events)
    breakdown = Breakdown(calls.operations, samples_s=[duration / 1e9], is_trace=True)
    divide(breakdown, {"traceEvents": [whole, *events]}, calls.set_owner)
    if not calls.operations:
        raise UsageError("has no torch operations")
    return breakdown


def thread_of(event: Mapping[str, Any]) -> tuple[Any, Any]:
    return event.get("pid"), event.get("tid")


class Calls:
    """Counts calls; those that were recorded alike are counted once."""

    def __init__(self, events: Events) -> None:
        kinds: Counter[str] = Counter()
        for event in events:
            kinds.update(event["args"].get("Input type", ()))
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
        # What has no rule may call operations that have one: the own time stays with it.
        if isinstance(event.owner, Operation) and event.owner.is_modelled:
            return
        operation = None
        namespace, _, op = event.name.partition("::")
        if event.name.startswith(PRECOMPILED):
            number = self._regions.setdefault(event.name, len(self._regions))
            operation = Operation(f"compiled.region{number}", NO_SHAPE, flags=(UNMODELLED,))
        elif event.category == "cpu_op" and namespace.isidentifier() and op.isidentifier():
            operation = self._operation(namespace, op, event.args)
        if operation is not None:
            event.owner = replace(operation, phase=event.phase, kernels=set())
            self.operations.append(event.owner)

    def _operation(self, namespace: str, op: str, args: Mapping[str, Any]) -> Operation | None:
        kinds = args.get("Input type", ())
        dims = args.get("Input Dims", ())
        # Older versions of torch record neither strides nor numbers.
        strides = args.get("Input Strides") or [None] * len(dims)
        numbers = args.get("Concrete Inputs") or [""] * len(dims)
        given = list(map(Argument, kinds, map(self._dtypes.get, kinds), dims, strides, numbers))
        key = f"{namespace} {op} {given}"
        if key not in self._known:
            self._known[key] = operation_of(namespace, op, given)
        return self._known[key]


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

    def value(self, expected: Any) -> Any:
        """Return what an argument of a schema is given."""
        if self.dtype is not None:
            return self.tensors()
        if "Device" in str(expected.type):
            return "meta"
        if not self.number:
            return expected.default_value
        try:
            return literal_eval(self.number)
        except ValueError:
            return float(self.number)  # inf


def operation_of(namespace: str, op: str, given: Sequence[Argument]) -> Operation | None:
    """Return the operation of a call, not modelled if the call cannot be repeated; None if torch
    decomposes it.
    """
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
    tensors = [argument.tensors() for argument in given if argument.dtype is not None]
    shapes = shapes_text(tensors) or NO_SHAPE
    unknown = Operation(
        f"{namespace}.{op}", shapes, dtypes_of(tensors_in(tensors)), flags=(UNMODELLED,)
    )
    if func is None:
        return unknown
    args = []
    kwargs = {}
    try:
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
            result = None if is_data_dependent(func) else func(*args, **kwargs)
            return count(func, args, kwargs, result)[0]
    except Exception:  # operations raise classes of their own, and some cannot run without data
        return unknown
