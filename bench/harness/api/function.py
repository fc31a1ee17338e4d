"""Measures one Python function as the commands measure an operation; the Python API and the pytest fixture stand on it.

The function may work on tensors of a GPU or a CPU, or on none at all. Nothing is verified here: whoever passes the
function holds its result, and knows what is right.
"""

from __future__ import annotations

import functools
import json
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from bench.harness.api.records import JudgedRecord
from bench.harness.calibrate.calibration import MeasuredCeilings, ceilings_of
from bench.harness.cli.arguments import UsageError
from bench.harness.data import inputs as copies
from bench.harness.device.device import Device, NoDeviceError, cpu_device, detect
from bench.harness.measure.errors import one_line
from bench.harness.measure.flags import Flag, recorded
from bench.harness.measure.measure_row import interpreted
from bench.harness.measure.rows import Settings
from bench.harness.measure.samples import take_samples
from bench.harness.run import stamp
from bench.harness.timing.protocol import limits_of
from results.record import MAX_COUNT, Environment, Record
from results.store.runs import new_run_id, runs_directory
from roofline.ceilings import Ceilings
from roofline.model import judge
from roofline.work import DTYPES

CACHES = ("cold", "warm")

BY_FLOPS = ("flops_per_s", "mfu", "peak_kind")
BY_BYTES = ("bytes_per_s", "mbu", "bandwidth_kind", "mix", "mix_pct")
BY_BOTH = ("intensity", "bound", "peak_units", "held_back_by", "roofline_pct", "measured_pct")
"""Judged keys that mean nothing without the FLOPs, without the bytes, and without either."""


def measure_function(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    make_args: Callable[[], tuple[Any, ...]] | None,
    blank: Record,
    cache: str,
    device: str | None = None,
    budget_s: float | None = None,
    is_counted: bool = False,
) -> JudgedRecord:
    """Call a function once for its result, then measure it.

    Args:
        fn: what is measured; a call of it is a launch.
        args: its positional arguments, the same for every launch.
        kwargs: its keyword arguments, the same for every launch.
        make_args: makes a fresh set of positional arguments at each call, in place of `args`.
        blank: the record of the function with its declared work, as of `declared`.
        cache: `cold` goes round sets of arguments, `warm` uses the first one again and again.
        device: `cpu`, `cuda` or `cuda:N`; None: where the tensors are.
        budget_s: time that sampling may take at most, beside its own cap.
        is_counted: whether work that was not declared is counted, by one more call.

    Raises:
        UsageError: what was asked for cannot be.
        Exception: whatever the function raises.
    """
    __tracebackhide__ = True  # a test that fails in the function shows the function, not this file
    first = tuple(args) if make_args is None else make_args()
    under_test = device_of(device, [first, kwargs])
    start = time.perf_counter()
    result = fn(*first, **kwargs)
    under_test = under_test or device_of(device, [result]) or only_device()
    under_test.synchronize()
    first_call_s = time.perf_counter() - start
    if is_counted:
        from bench.harness.api.counted import with_work

        blank = with_work(blank, fn, first, kwargs)
    sets, reached, also = [first], "warm", interpreted(fn)
    with current(under_test):
        if make_args is not None and cache == "cold":
            sets, reached = rotation(first, make_args, under_test)
        elif cache == "cold":
            reason = "no tensor is among the arguments, so that there is nothing to go round: it is warm"
            cache, also = "warm", (Flag("not-cold", reason, ""), *also)
        calls = [functools.partial(fn, *one, **kwargs) for one in sets]
        samples = take_samples(calls, reached, under_test, limits_of(under_test), blank.flops or None, budget_s)
    ceilings = known_ceilings(under_test)
    # The advice of a flag is about options of the commands, which a function has none of.
    record = recorded(blank, samples, under_test, ceilings, cache, also, has_advice=False)
    record = replace(record, copies=len(sets), first_call_s=first_call_s)
    return JudgedRecord.of(record, environment_of(under_test, "measure"), judged(record, ceilings), result)


# ---- what is refused ----------------------------------------------------------------------------------------------


def declared(
    fn: Callable[..., Any],
    flops: int | None = None,
    bytes_read: int | None = None,
    bytes_written: int | None = None,
    dtype: str | None = None,
) -> Record:
    """Return the record of a function with nothing measured; counts that are not given are None.

    Raises:
        UsageError: it cannot be called, or a value cannot be.
    """
    counts = {"flops": flops, "bytes_read": bytes_read, "bytes_written": bytes_written}
    for name, value in counts.items():
        check_count(name, value)
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(
            f"dtype={dtype!r} must be one of {', '.join(DTYPES)}; "
            "a dtype that is meant for the function itself goes in with functools.partial"
        )
    if bytes_read is not None or bytes_written is not None:
        counts |= {"bytes_read": bytes_read or 0, "bytes_written": bytes_written or 0}
    known: dict[str, Any] = {name: None if value is None else int(value) for name, value in counts.items()}
    known |= {"provider": "function", "shape": {"calls": 1}, "case": "-", "status": "skipped"}
    return Record(op=name_of(fn), dtype=dtype or "", **known)


def check_count(name: str, value: object) -> None:
    """Reject what is no count.

    Raises:
        UsageError: with the value.
    """
    try:
        count = -1 if isinstance(value, bool) else operator.index(0 if value is None else value)  # type: ignore[arg-type]
    except TypeError:
        count = -1
    if not 0 <= count <= MAX_COUNT:
        raise UsageError(f"{name}={value!r:.60} must be a whole number from 0 to 10**30, counted for one call")


def check_options(args: Sequence[Any], inputs: object, cache: object, device: object, budget_s: object = None) -> None:
    """Reject ways to measure a function that are not allowed.

    Raises:
        UsageError: in one line, with the value and what is allowed.
    """
    if inputs is not None and not callable(inputs):
        raise UsageError(f"inputs={inputs!r:.60} must be a function that makes the arguments")
    if inputs is not None and args:
        raise UsageError(f"inputs= makes the positional arguments, so that {len(args)} more have no place")
    if cache not in CACHES:
        raise UsageError(f"cache={cache!r} must be 'cold' or 'warm'")
    is_number = isinstance(budget_s, int | float) and not isinstance(budget_s, bool)
    if budget_s is not None and not (is_number and 0 < budget_s < float("inf")):  # type: ignore[operator]
        raise UsageError(f"budget_s={budget_s!r} must be a number of seconds above 0")
    check_device(device)


def check_device(name: object) -> None:
    """Reject a device that has no such name.

    Raises:
        UsageError: with the value.
    """
    kind, colon, index = name.partition(":") if isinstance(name, str) else ("", "", "")
    is_index = kind == "cuda" and index.isascii() and index.isdecimal()
    if name is not None and not (is_index if colon else kind in ("cpu", "cuda")):
        raise UsageError(f"device={name!r} must be 'cpu', 'cuda' or 'cuda:N'")


def name_of(fn: Any) -> str:
    """Return what a function is called.

    Raises:
        UsageError: it cannot be called.
    """
    if not callable(fn):
        raise UsageError(f"{fn!r:.60} cannot be called; give a function or a module")
    return str(getattr(fn, "__name__", type(fn).__name__))


def called(name: str, call: Callable[[], Any]) -> Any:
    """Return what a call of a user's code returns.

    Raises:
        UsageError: it raised; the message is one line, and the error itself its cause.
        NoDeviceError: it needs a GPU, and there is none.
    """
    try:
        return call()
    except (UsageError, NoDeviceError):
        raise
    except Exception as error:
        raise UsageError(f"{name} raised {one_line(error)}") from error


# ---- where it runs ------------------------------------------------------------------------------------------------


detected = functools.cache(detect)


def device_of(name: str | None, values: Iterable[Any]) -> Device | None:
    """Return the device of that name, else that of the tensors among `values`; None where neither tells.

    Raises:
        UsageError: there is no such device, or the tensors lie on several GPUs.
    """
    import torch

    if name is None:
        names = {str(array.device) for array in arrays_in(values) if isinstance(array, torch.Tensor)}
        if not names:
            return None
        gpus = sorted(names - {"cpu"})
        if len(gpus) > 1:
            raise UsageError(f"the tensors lie on {' and '.join(gpus)}; device= says which of them is measured")
        name = gpus[0] if gpus else "cpu"
        check_device(name)
    try:
        device = detected(name)
    except NoDeviceError as error:
        raise UsageError(str(error).partition(";")[0]) from None
    # Threads are the caller's choice here; the ceilings of another number of threads are another machine's.
    return device if device.is_gpu else cpu_device(torch.get_num_threads())


def only_device() -> Device:
    """Return the CPU where torch sees no other device.

    Raises:
        UsageError: there is a GPU too, so that nobody knows where the function computes.
    """
    import torch

    if torch.cuda.is_available():
        raise UsageError(
            "neither arguments nor result are tensors, so that device='cpu' or device='cuda' must be given"
        )
    return cpu_device(torch.get_num_threads())


def current(device: Device) -> Any:
    """Return a context in which a GPU is torch's current one."""
    import torch

    return torch.cuda.device(device.torch_name) if device.is_gpu else nullcontext()


def known_ceilings(device: Device) -> Ceilings:
    """Return the ceilings that are known of a device, measured ones too where a bench command has kept them."""
    kept = MeasuredCeilings(device, runs_directory(), lambda _: None, lambda _: None).load()
    return ceilings_of(device, None).with_entries(kept)


@functools.cache
def _stamped(device: Device, command: str, hardware: str) -> Environment:
    ceilings = Ceilings.from_dict(json.loads(hardware))
    return stamp("bench", device, ceilings, Settings().to_dict(), (command,))


def environment_of(device: Device, command: str) -> Environment:
    """Return the environment of a new run in this process on a device; its ceilings are those known now."""
    known = _stamped(device, command, json.dumps(known_ceilings(device).to_dict(), sort_keys=True))
    return replace(known, run_id=new_run_id(), started_at=datetime.now(UTC).isoformat(timespec="seconds"))


# ---- what it goes round -------------------------------------------------------------------------------------------


def as_arguments(made: Any) -> tuple[Any, ...]:
    """Return a set of positional arguments; anything but a tuple is the only argument, a list of tensors too."""
    return made if isinstance(made, tuple) else (made,)


def rotation(
    first: tuple[Any, ...], make_args: Callable[[], tuple[Any, ...]], device: Device
) -> tuple[list[tuple[Any, ...]], str]:
    """Return sets of arguments that flush each other out of the cache, and `cold`, or `warm` where they do not.

    Raises:
        UsageError: the sets hold no array that is not in all of them.
    """
    sets = [first, make_args()]
    shared = {_address(array) for array in arrays_in(first)}
    fresh_bytes = sum(_bytes(array) for array in arrays_in(sets[1]) if _address(array) not in shared)
    if not fresh_bytes:
        found = "the same tensors again" if shared else "nothing with bytes"
        raise UsageError(f"inputs= made {found}: make new tensors or arrays at each call, or measure with cache='warm'")
    plan = copies.plan_rotation(fresh_bytes, device.cache_bytes, device.free_bytes(), device.type, "cold")
    sets += [make_args() for _ in range(plan.copies - len(sets))]
    return sets[: plan.copies], plan.cache


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield the tensors and arrays in nested tuples, lists and mappings."""
    if isinstance(value, Mapping):
        yield from arrays_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from arrays_in(part)
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


def judged(record: Record, ceilings: Ceilings) -> dict[str, Any]:
    """Return the judged keys of a record, None for those that need a count which nobody knows."""
    whole = replace(
        record,
        flops=record.flops or 0,
        bytes_read=record.bytes_read or 0,
        bytes_written=record.bytes_written or 0,
    )
    values = asdict(judge(whole, ceilings))
    if record.flops is None:
        values |= dict.fromkeys((*BY_FLOPS, *BY_BOTH))
    if record.bytes_read is None:
        values |= dict.fromkeys((*BY_BYTES, *BY_BOTH))
    return values
