"""`bench.measure` and `bench.sweep`, and what all measurements of a Python function share.

Nothing is verified: whoever passes the function holds its result, and knows what is right.
"""

from __future__ import annotations

import copy
import functools
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Integral
from typing import TYPE_CHECKING, Any

from bench.harness.api.records import JudgedRecord, Records
from bench.harness.calibrate.calibration import MeasuredCeilings, ceilings_of
from bench.harness.cli.arguments import UsageError
from bench.harness.data import inputs as rotation
from bench.harness.device.device import Device, NoDeviceError, cpu_device, detect
from bench.harness.measure.flags import Flag, recorded
from bench.harness.measure.measure_row import interpreted, take_samples
from bench.harness.measure.rows import Settings, one_line
from bench.harness.profile.target import TORCH_DTYPES
from bench.harness.run import stamp
from bench.harness.timing.protocol import LIMITS
from results.record import MAX_COUNT, Environment, Record
from results.store.runfile import new_run_id, runs_directory
from roofline.machine import Machine
from roofline.work import DTYPES, dtype_named

if TYPE_CHECKING:
    import pandas as pd

MOVED = ("bytes_read", "bytes_written")
Inputs = Callable[[], Any]
Shape = int | str | Iterable[int]


def measure(
    fn: Callable[..., Any],
    /,
    *args: Any,
    inputs: Inputs | None = None,
    flops: int | None = None,
    bytes_read: int | None = None,
    bytes_written: int | None = None,
    dtype: Any = None,
    cache: str = "cold",
    device: str | None = None,
    budget_s: float | None = None,
    **kwargs: Any,
) -> JudgedRecord:
    """Measure `fn(*args, **kwargs)` until its interval is narrow, and judge it by the ceilings of this machine.

    A call is a launch: on a GPU calls are captured in a graph where that can be, else timed by events; on a CPU by the
    host's clock. Work that is not declared is counted by the rules of `bench.profile`, and the record says so; what
    torch does not see, such as a Triton kernel without a torch operation of its own, must be declared. Nothing is
    verified: whoever passes the function holds its `result`.

    Args:
        fn: a function or a module.
        args: its positional arguments.
        inputs: makes the positional arguments in place of `args`, fresh ones at each call, a tuple or a single one.
        flops: floating-point operations of one call; a fused multiply-add counts as 2.
        bytes_read: compulsory bytes that one call reads: each input once.
        bytes_written: compulsory bytes that one call writes: each output once.
        dtype: dtype whose peak judges it, `bf16` or `torch.bfloat16`; by default the one in which most is computed.
        cache: `cold`: calls go round so many copies of the tensors among `args` that none finds its own in the cache
            (weights of a module, keyword arguments and what a function closes over are not copied); a call without
            a tensor among its arguments is measured warm, and flagged. `warm`: the same arguments again.
        device: `cpu`, `cuda` or `cuda:N`; by default where the tensors are.
        budget_s: seconds that sampling may take at most, beside the warm-up.
        kwargs: its keyword arguments.

    Raises:
        UsageError: an argument cannot be, there is no such device, or `fn` raised (its error is the cause).
    """
    work = {"flops": flops, "bytes_read": bytes_read, "bytes_written": bytes_written}
    return Function(fn, args, kwargs, inputs, work, dtype, cache, device).measure(budget_s)


def sweep(
    fn_by_name: Mapping[str, Callable[..., Any]],
    shapes: Iterable[Shape],
    dtypes: Any = ("fp32",),
    inputs: Callable[..., Any] | None = None,
    cache: str = "cold",
    device: str | None = None,
    budget_s: float | None = None,
) -> pd.DataFrame:
    """Measure each function at each shape in each dtype; a row for each, with the columns of `results.load`.

    `provider` is the name of the function, `case` the shape, `median_s` seconds per call, with `ci95_low_s`,
    `ci95_high_s`, `samples_s`, `flags`, the work and what is judged. A function that raises at one shape has a row with
    the status `failed` and its reason. Whether one is faster than another is a question for `bench.compare`.

    Args:
        fn_by_name: the functions, each taking what `inputs` makes.
        shapes: `4096`, `(4096, 1024)` or `"4096x1024"`, each a shape.
        dtypes: one of `fp64`, `fp32`, `bf16`, `fp16`, a torch dtype, or several of them.
        inputs: `inputs(shape, dtype, device)` returns fresh arguments of one call, as a tuple or a single one; it is
            given a tuple of extents, a torch dtype and the name of a torch device. By default one tensor of normally
            distributed numbers in that shape.
        cache: `cold` or `warm`, as of `bench.measure`.
        device: `cpu`, `cuda` or `cuda:N`; by default the first GPU, else the CPU.
        budget_s: seconds that sampling one row may take at most.

    Raises:
        UsageError: an argument cannot be, or every row failed.
        NoDeviceError: there is no such device.
    """
    import torch

    functions, sizes = functions_of(fn_by_name), [extents(shape) for shape in shapes]
    given = dtypes if isinstance(dtypes, list | tuple | set) else [dtypes]
    names = [dtype_named(str(dtype)) for dtype in given]
    if not names or not set(names) <= TORCH_DTYPES.keys():
        raise UsageError(f"dtypes={dtypes!r:.60} must be of {', '.join(TORCH_DTYPES)}")
    if not sizes:
        raise UsageError("shapes= is empty; give at least one")
    for fn in functions.values():
        Function(fn, (), {}, inputs, {}, None, cache, device)
    place = detected(device).torch_name
    make = inputs or (lambda shape, dtype, device: torch.randn(shape, device=device).to(dtype))

    def row(name: str, fn: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> Record:
        axes = {f"d{axis}": extent for axis, extent in enumerate(shape)}
        row: dict[str, Any] = {"provider": name, "case": "x".join(map(str, shape)), "shape": axes, "dtype": dtype}
        arguments = functools.partial(make, shape, rotation.torch_dtype(dtype), place)
        try:
            record = measure(fn, inputs=arguments, dtype=dtype, cache=cache, device=place, budget_s=budget_s)
        except UsageError as error:
            return Record(op=name_of(fn), status="failed", reason=str(error), **row)
        return replace(record, **row)

    under_test = device_of(place, ())
    assert under_test is not None
    environment = environment_of(under_test, "sweep")
    records = [row(name, fn, shape, dtype) for shape in sizes for dtype in names for name, fn in functions.items()]
    if all(record.status == "failed" for record in records):
        raise UsageError(f"every row failed: {records[0].provider} at {records[0].case}: {records[0].reason}")
    return Records(environment, records).to_dataframe()


def functions_of(fn_by_name: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    if not isinstance(fn_by_name, Mapping) or not fn_by_name:
        raise UsageError('give functions by name, such as {"old": f, "new": g}')
    for name, fn in fn_by_name.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"{name!r:.60} must be a text: the name of a function")
        name_of(fn)
    return dict(fn_by_name)


def extents(shape: Shape) -> tuple[int, ...]:
    words = shape.split("x") if isinstance(shape, str) else [shape] if isinstance(shape, int) else shape
    try:
        found = tuple(int(word) for word in words)
    except (TypeError, ValueError):
        found = ()
    if not found or min(found) < 1 or isinstance(shape, bool):
        raise UsageError(f"{shape!r:.60} is no shape: write 4096, (4096, 1024) or '4096x1024'")
    return found


@dataclass
class Function:
    """A function with its arguments and how to measure it, as of `measure`; its `blank` has nothing measured."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    inputs: Inputs | None
    work: Mapping[str, Any]
    """Declared FLOPs and bytes; what is missing or None is unknown."""
    dtype: Any
    cache: str
    device: str | None
    blank: Record = field(init=False)

    def __post_init__(self) -> None:
        check_counts(self.work)
        dtype = "" if self.dtype is None else dtype_named(str(self.dtype))
        if dtype and dtype not in DTYPES:
            raise UsageError(
                f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}; "
                "a dtype that is meant for the function itself goes in with functools.partial"
            )
        if self.inputs is not None and not callable(self.inputs):
            raise UsageError(f"inputs={self.inputs!r:.60} must be a function that makes the arguments")
        if self.inputs is not None and self.args:
            raise UsageError(f"inputs= makes the positional arguments, so that {len(self.args)} more have no place")
        if self.cache not in ("cold", "warm"):
            raise UsageError(f"cache={self.cache!r} must be 'cold' or 'warm'")
        check_device(self.device)
        counts = {name: None if count is None else int(count) for name, count in self.work.items()}
        if any(counts.get(name) is not None for name in MOVED):
            counts |= {name: counts.get(name) or 0 for name in MOVED}
        values: dict[str, Any] = {"provider": "function", "dtype": dtype, "shape": {"calls": 1}, "case": "-", **counts}
        self.blank = Record(op=name_of(self.fn), status="skipped", **values)

    def measure(self, budget_s: float | None = None, is_counted: bool = True) -> JudgedRecord:
        """Return the record, with the result of the first call; unknown work is counted by one more call."""
        __tracebackhide__ = True  # a test that fails in the function shows the function, not this file
        if budget_s is not None:
            check_number("budget_s", budget_s, "of seconds above 0")
        first = self.first_set()
        interpreted()  # forgets the kernels of other functions
        with raising(self.blank.op):
            result, device, first_call_s = self.call(first)
            blank = self.counted(first) if is_counted else self.blank
            with current(device):
                sets, reached, flags = self.copies(first, device)
                calls = [functools.partial(self.fn, *each, **self.kwargs) for each in sets]
                samples = take_samples(calls, reached, device, LIMITS[device.type], blank.flops or None, budget_s)
        ceilings = known_ceilings(device)
        flags += interpreted()
        # The advice of a flag is about options of the commands, which a function does not have.
        record = recorded(blank, samples, device, ceilings, self.cache, flags, has_advice=False)
        record = replace(record, copies=len(sets), first_call_s=first_call_s)
        return JudgedRecord.of(record, environment_of(device, "measure"), result)

    def first_set(self) -> tuple[Any, ...]:
        """Return a set of positional arguments; anything but a tuple is the only argument, a list of tensors too."""
        if self.inputs is None:
            return tuple(self.args)
        with raising("inputs"):
            made = self.inputs()
        if made is None:
            raise UsageError("inputs= returned nothing; it must return the arguments of one call")
        return made if isinstance(made, tuple) else (made,)

    def call(self, args: Sequence[Any]) -> tuple[Any, Device, float]:
        """Return the result of a call, the device under test, and the seconds of the call."""
        import torch

        __tracebackhide__ = True
        device, start = device_of(self.device, [args, self.kwargs]), time.perf_counter()
        result = self.fn(*args, **self.kwargs)
        device = device or device_of(self.device, result)
        if device is None and torch.cuda.is_available():
            raise UsageError("no argument or result is a tensor, so that device='cpu' or device='cuda' must be given")
        device = device or cpu_device(torch.get_num_threads())
        device.synchronize()
        return result, device, time.perf_counter() - start

    def counted(self, args: Sequence[Any]) -> Record:
        """Return the blank record with the work that was not declared; complex numbers have no peak."""
        from bench.harness.api.profiling import with_work

        record = with_work(self.blank, self.fn, args, self.kwargs)
        is_complex = any("complex" in str(getattr(array, "dtype", "")) for array in arrays_in([args, self.kwargs]))
        return replace(record, dtype="") if is_complex and not self.blank.dtype else record

    def copies(self, first: tuple[Any, ...], device: Device) -> tuple[list[tuple[Any, ...]], str, tuple[Flag, ...]]:
        """Return sets of arguments that flush each other out of the cache, what launches find there, flags."""
        if self.cache == "warm":
            return [first], "warm", ()
        if self.inputs is None and not arrays_in(first):
            reason = "no tensor is among the arguments, so that there is nothing to go round: it is warm"
            return [first], "warm", (Flag("not-cold", reason, ""),)
        make = self.first_set if self.inputs is not None else functools.partial(fresh, first)
        sets = [first, make()]
        shared = {_address(array) for array in arrays_in(first)}
        fresh_bytes = sum(_bytes(array) for array in arrays_in(sets[1]) if _address(array) not in shared)
        if not fresh_bytes:
            made = "the same tensors again" if shared else "nothing with bytes"
            raise UsageError(f"inputs= made {made}: make new tensors or arrays at each call, or use cache='warm'")
        plan = rotation.plan_rotation(fresh_bytes, device.cache_bytes, device.free_bytes(), device.type, "cold")
        sets += [make() for _ in range(plan.copies - len(sets))]
        return sets[: plan.copies], plan.cache, ()


def check_counts(work: Mapping[str, Any]) -> None:
    for name, count in work.items():
        is_count = isinstance(count, Integral) and not isinstance(count, bool)
        if count is not None and not (is_count and 0 <= count <= MAX_COUNT):
            raise UsageError(f"{name}={count!r:.60} must be a whole number from 0 to 2**63 - 1, counted for one call")


def check_number(name: str, value: object, what: str, or_zero: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 < value < math.inf or (or_zero and value == 0)):  # type: ignore[operator]
        raise UsageError(f"{name}={value!r:.60} must be a number {what}")


def check_device(name: object) -> None:
    if name is not None and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", str(name)):
        raise UsageError(f"device={name!r} must be 'cpu', 'cuda' or 'cuda:N'")


def name_of(fn: Any) -> str:
    if not callable(fn):
        raise UsageError(f"{fn!r:.60} cannot be called; give a function or a module")
    return str(getattr(fn, "__name__", type(fn).__name__))


@contextmanager
def raising(name: str) -> Iterator[None]:
    """Turn what a user's code raises into a `UsageError` of one line, with the error as its cause."""
    __tracebackhide__ = True
    try:
        yield
    except (UsageError, NoDeviceError):
        raise
    except Exception as error:
        raise UsageError(f"{name} raised {one_line(error)}") from error


detected = functools.cache(detect)


def device_of(name: str | None, values: Any) -> Device | None:
    """Return the device of that name, by default that of the tensors in `values`; None if there are none."""
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
        device = detected(str(name))
    except NoDeviceError as error:
        raise UsageError(str(error).partition(";")[0]) from None
    # The caller chooses the threads here; the ceilings of another number of threads are another machine's.
    return device if device.is_gpu else cpu_device(torch.get_num_threads())


def current(device: Device) -> Any:
    import torch

    return torch.cuda.device(device.torch_name) if device.is_gpu else nullcontext()


def known_ceilings(device: Device) -> Machine:
    """Return the ceilings of a device that are known, with those that bench commands have measured and saved."""
    saved = MeasuredCeilings(device, runs_directory(), lambda _: None, lambda _: None).load()
    return ceilings_of(device, None).with_entries(saved)


@functools.cache
def _stamped(device: Device, command: str) -> Environment:
    return stamp("bench", device, known_ceilings(device), Settings().to_dict(), (command,))


def environment_of(device: Device, command: str) -> Environment:
    """Return the environment of a new run in this process, with the ceilings that are known now."""
    started_at, hardware = datetime.now(UTC).isoformat(timespec="seconds"), known_ceilings(device).to_dict()
    return replace(_stamped(device, command), run_id=new_run_id(), started_at=started_at, hardware=hardware)


def arrays_in(value: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(getattr(leaf, "nbytes", None), int)]


def fresh(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with copies of the tensors and arrays among them: those that share memory still do."""
    import torch
    from torch.utils._pytree import tree_map

    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copy.deepcopy(value.detach(), memo).requires_grad_(value.requires_grad)
        return copy.deepcopy(value, memo) if isinstance(getattr(value, "nbytes", None), int) else value

    made: tuple[Any, ...] = tree_map(copied, args)
    return made


def _bytes(array: Any) -> int:
    """Return the bytes in memory that an array reaches: of an expanded one, less than its elements would take."""
    is_tensor = hasattr(array, "untyped_storage")
    return int(min(array.nbytes, array.untyped_storage().nbytes()) if is_tensor else array.nbytes)


def _address(array: Any) -> int:
    return int(array.data_ptr()) if hasattr(array, "data_ptr") else id(array)
