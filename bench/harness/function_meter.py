"""Measures any Python function by the protocol of the bench commands: settle, sample until it is precise, raise flags.

The function may work on tensors of a GPU or a CPU, or on none at all. Nothing is verified here: whoever passes the
function holds its result, and knows what is right.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.harness import inputs as copies
from bench.harness.arguments import UsageError
from bench.harness.calibrate import MeasuredCeilings, ceilings_of
from bench.harness.device.device import Device, NoDeviceError, cpu_device, detect
from bench.harness.evidence import Context, Flag, flags_of
from bench.harness.meter import Measurement, Meter
from bench.harness.roofs import roofs_of
from bench.harness.runner import INVALID_FLAGS, filled
from bench.harness.timing import CPU_LIMITS, GPU_LIMITS, Limits
from results.record import MAX_COUNT, Record
from results.store import runs_directory
from roofline.ceilings import Ceilings
from roofline.model import judge
from roofline.work import DTYPES, Work

COUNTS = ("flops", "bytes_moved", "bytes_read", "bytes_written")
CACHES = ("cold", "warm")

BY_FLOPS = ("flops_per_s", "mfu", "peak_kind")
BY_BYTES = ("bytes_per_s", "mbu", "bandwidth_kind", "mix", "mix_pct")
BY_BOTH = ("intensity", "bound", "roofline_pct", "measured_pct")
"""Judged keys that mean nothing without the FLOPs, without the bytes, and without either."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is known of a function before it runs, and how it is to be measured."""

    flops: int | None = None
    """Floating-point operations of one call; a fused multiply-add counts as 2."""
    bytes_moved: int | None = None
    """Compulsory bytes of one call, in place of the next two; judged as those of a copy, half of them read."""
    bytes_read: int | None = None
    bytes_written: int | None = None
    dtype: str | None = None
    """Dtype whose peak MFU is taken over."""
    cache: str | None = None
    """`cold`, `warm`, or None: cold where there is something to rotate."""
    device: str | None = None
    """`cpu`, `cuda`, `cuda:N` or `mps`; None: where the tensors are."""
    budget_s: float | None = None
    """Time that sampling may take at most, beside its own cap."""

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            UsageError: in one line, with the value and what is allowed.
        """
        for name in COUNTS:
            _check_count(name, getattr(self, name))
        if self.bytes_moved is not None and not (self.bytes_read is None and self.bytes_written is None):
            raise UsageError(
                "bytes_moved= stands for the sum; leave it out where bytes_read= or bytes_written= is given"
            )
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(
                f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}; "
                "a dtype that is meant for the function itself goes in with functools.partial"
            )
        if self.cache is not None and self.cache not in CACHES:
            raise UsageError(f"cache={self.cache!r} must be 'cold' or 'warm'")
        is_number = isinstance(self.budget_s, int | float) and not isinstance(self.budget_s, bool)
        if self.budget_s is not None and not (is_number and 0 < self.budget_s < float("inf")):
            raise UsageError(f"budget_s={self.budget_s!r} must be a number of seconds above 0")
        _check_device(self.device)

    def check_inputs(self, has_inputs: bool, arguments: int) -> None:
        """Refuse arguments that nothing can be measured with.

        Args:
            has_inputs: whether there is a function that makes the positional arguments.
            arguments: number of positional arguments given beside it.

        Raises:
            UsageError: there is nothing to go round for a cold measurement, or too much.
        """
        if not has_inputs and self.cache == "cold":
            raise UsageError("cache='cold' needs inputs=, a function that makes a fresh set of arguments at each call")
        if has_inputs and arguments:
            raise UsageError(f"inputs= makes the positional arguments, so that {arguments} more have no place")

    @property
    def work(self) -> Work:
        """FLOPs and bytes of one call, 0 where they are not known."""
        if self.bytes_moved is not None:
            read, written = self.bytes_moved - self.bytes_moved // 2, self.bytes_moved // 2
        else:
            read, written = self.bytes_read or 0, self.bytes_written or 0
        return Work(int(self.flops or 0), int(read), int(written))

    @property
    def is_bytes_known(self) -> bool:
        """Whether anything was said of the bytes of a call."""
        return not (self.bytes_moved is None and self.bytes_read is None and self.bytes_written is None)


def _check_count(name: str, value: object) -> None:
    """Refuse what is no count.

    Raises:
        UsageError: with the value.
    """
    if value is None:
        return
    try:
        count = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if not 0 <= count <= MAX_COUNT:
        raise UsageError(f"{name}={value!r:.60} must be a whole number from 0 to 10**30, counted for one call")


def _check_device(name: object) -> None:
    """Refuse a device that has no such name.

    Raises:
        UsageError: with the value.
    """
    kind, _, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    is_name = kind in ("cpu", "cuda", "mps") if not index else kind == "cuda" and index.isascii() and index.isdecimal()
    if name is not None and (not is_name or str(name).endswith(":")):
        raise UsageError(f"device={name!r} must be 'cpu', 'cuda', 'cuda:N' or 'mps'")


@dataclass(frozen=True)
class Answer:
    """What came out."""

    result: Any
    """What the first call returned."""
    record: Record
    device: Device
    limits: Limits
    """When sampling was to stop."""
    judged: Mapping[str, Any]
    """The judged keys of the record, None where a count or a ceiling is missing."""


def measure_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    make_inputs: Callable[[], Any] | None,
    question: Question,
) -> Answer:
    """Call a function once for its result, then measure it.

    Args:
        function: what is measured; a call of it is a launch.
        args: its positional arguments, the same for every launch.
        kwargs: its keyword arguments, the same for every launch.
        make_inputs: makes a fresh set of positional arguments at each call, a tuple or a single one, in place of
            `args`; a cold measurement goes round such sets.
        question: what is known, and how to measure.

    Raises:
        UsageError: what was asked for cannot be.
        Exception: whatever the function raises.
    """
    __tracebackhide__ = True  # a test that fails in the function shows the function, not this file
    question.check_inputs(make_inputs is not None, len(args))
    first = tuple(args) if make_inputs is None else as_arguments(make_inputs())
    device = _device_of(question.device, [first, kwargs])
    start = time.perf_counter()
    result = function(*first, **kwargs)
    if device is None:
        device = _device_of(question.device, [result]) or _only_device()
    device.synchronize()
    first_call_s = time.perf_counter() - start
    asked_cache = question.cache or ("warm" if make_inputs is None else "cold")
    limits = _limits(device)
    with _current(device):
        sets, cache = [first], "warm"
        if make_inputs is not None and asked_cache == "cold":
            sets, cache = _rotation(first, make_inputs, device)
        calls = [functools.partial(function, *one, **kwargs) for one in sets]
        meter = Meter(device, limits)
        measured = meter.measure(calls, cache, question.work.flops or None, question.budget_s)
        tick_s = meter.tick_s
    ceilings = _known_ceilings(device)
    context = _context(measured, tick_s, device, ceilings, question)
    flags = flags_of(measured.samples, replace(context, asked_cache=asked_cache))
    record = replace(_record(function, measured, flags, question), copies=len(sets), first_call_s=first_call_s)
    return Answer(result, record, device, limits, _judged(record, ceilings, question))


def as_arguments(made: Any) -> tuple[Any, ...]:
    """Return a set of positional arguments; what is neither a tuple nor a list is the only one."""
    return tuple(made) if isinstance(made, tuple | list) else (made,)


# ---- where it runs ------------------------------------------------------------------------------------------------


_detect = functools.cache(detect)


def _device_of(name: str | None, values: Iterable[Any]) -> Device | None:
    """Return the device of that name, else that of the tensors among `values`; None where neither tells.

    Raises:
        UsageError: there is no such device, or the tensors lie on several GPUs.
    """
    import torch

    if name is None:
        found = {array.device for array in _arrays(values) if isinstance(array, torch.Tensor)}
        others = sorted(str(device) for device in found if device.type != "cpu")
        if not found:
            return None
        if len(others) > 1:
            raise UsageError(f"the tensors lie on {' and '.join(others)}; device= says which of them is measured")
        name = others[0].replace("mps:0", "mps") if others else "cpu"
    try:
        _check_device(name)
        device = _detect(name)
    except NoDeviceError as error:
        raise UsageError(str(error).partition(";")[0]) from None
    if device.is_gpu:
        return device
    # Threads are the caller's choice here; the roofs of another number of threads are another machine's.
    return cpu_device(torch.get_num_threads())


def _only_device() -> Device:
    """Return the CPU where torch sees nothing else.

    Raises:
        UsageError: there is a GPU too, so that nobody knows where the function computes.
    """
    import torch

    if torch.cuda.is_available() or torch.backends.mps.is_available():
        gpu = "cuda" if torch.cuda.is_available() else "mps"
        raise UsageError(
            f"neither arguments nor result are tensors, so that device='cpu' or device='{gpu}' must be given"
        )
    device = _device_of("cpu", ())
    assert device is not None
    return device


def _limits(device: Device) -> Limits:
    """Return when sampling stops, as for the bench commands."""
    return GPU_LIMITS if device.has_cuda else CPU_LIMITS


def _current(device: Device) -> Any:
    """Return a context in which a GPU is torch's current one; there is one Apple GPU."""
    import torch

    return torch.cuda.device(device.torch_name) if device.has_cuda else nullcontext()


def _known_ceilings(device: Device) -> Ceilings:
    """Return the ceilings that are known of a device, measured ones too where a bench command has kept them."""
    kept = MeasuredCeilings(device, runs_directory(), lambda _: None, lambda _: None).load()
    return ceilings_of(device, None).with_entries(kept)


# ---- what it goes round -------------------------------------------------------------------------------------------


def _rotation(
    first: tuple[Any, ...], make_inputs: Callable[[], Any], device: Device
) -> tuple[list[tuple[Any, ...]], str]:
    """Return sets of arguments that flush each other out of the cache, and `cold`, or `warm` where they do not.

    Raises:
        UsageError: the sets hold no array that is not in all of them.
    """
    sets = [first, as_arguments(make_inputs())]
    shared = {_address(array) for array in _arrays(first)}
    fresh_bytes = sum(_bytes(array) for array in _arrays(sets[1]) if _address(array) not in shared)
    if not fresh_bytes:
        found = "the same tensors again" if shared else "nothing with bytes"
        raise UsageError(f"inputs= made {found}: make new tensors or arrays at each call, or measure with cache='warm'")
    plan = copies.plan_rotation(fresh_bytes, device.cache_bytes, device.free_bytes(), device.type, "cold")
    sets += [as_arguments(make_inputs()) for _ in range(plan.copies - len(sets))]
    return sets[: plan.copies], plan.cache


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the tensors and arrays in nested tuples, lists and mappings."""
    if isinstance(value, Mapping):
        yield from _arrays(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _arrays(part)
    elif isinstance(getattr(value, "nbytes", None), int):
        yield value


def _bytes(array: Any) -> int:
    """Return the bytes in memory that an array reaches: of one that is expanded, less than its elements would take."""
    if hasattr(array, "untyped_storage"):
        return int(min(array.nbytes, array.untyped_storage().nbytes()))
    return int(array.nbytes)


def _address(array: Any) -> int:
    """Return what tells memory of one array from that of another, as long as both live."""
    return int(array.data_ptr()) if hasattr(array, "data_ptr") else id(array)


# ---- what it means ------------------------------------------------------------------------------------------------


def _context(measured: Measurement, tick_s: float, device: Device, ceilings: Ceilings, question: Question) -> Context:
    """Return what is known of a measurement beside its samples."""
    work = question.work
    return Context(
        is_gpu=device.has_cuda,
        tick_s=tick_s,
        host_launch_s=measured.host_launch_s,
        target_half_width=_limits(device).target_half_width,
        flops=work.flops or None,
        bytes_moved=work.bytes or None,
        cache_bytes=device.cache_bytes,
        warm_s=measured.warm_s,
        **roofs_of(ceilings, question.dtype or "", work),
        telemetry=measured.telemetry,
        tail_s=measured.tail_s,
    )


def _record(function: Callable[..., Any], measured: Measurement, flags: tuple[Flag, ...], question: Question) -> Record:
    """Return the record of a measurement; one with a time that cannot be is `invalid`."""
    work = question.work
    damning = next((flag for flag in flags if flag.name in INVALID_FLAGS), None)
    blank = Record(
        op=getattr(function, "__name__", type(function).__name__),
        provider="function",
        dtype=question.dtype or "",
        shape={},
        case="",
        status="ok" if damning is None else "invalid",
        reason=None if damning is None else damning.reason,
        flops=work.flops,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
    )
    # The advice of a flag is about options of the commands, which a function has none of.
    reasons = {flag.name: flag.reason for flag in flags}
    return replace(filled(blank, measured, flags), flag_reasons=reasons)


def _judged(record: Record, ceilings: Ceilings, question: Question) -> dict[str, Any]:
    """Return the judged keys of a record, None for those that need a count which nobody gave."""
    judged = asdict(judge(record, ceilings))
    if question.flops is None:
        judged |= dict.fromkeys((*BY_FLOPS, *BY_BOTH))
    if not question.is_bytes_known:
        judged |= dict.fromkeys((*BY_BYTES, *BY_BOTH))
    return judged
