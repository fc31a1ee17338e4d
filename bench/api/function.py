"""`bench.measure`, `bench.sweep`, and the common parts of measurements of Python functions."""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from bench.api.records import JudgedRecord, Records
from bench.harness import clock
from bench.harness.calibrate.calibration import MIXES, MeasuredCeilings, ceilings_of
from bench.harness.cli.arguments import UsageError
from bench.harness.data import inputs as rotation
from bench.harness.data.agreement import (
    CHANGES_INPUTS,
    EARLIER,
    Call,
    Expected,
    Fn,
    UnfinishedError,
    UnverifiedError,
    arguments_of,
    call_of,
    changed_inputs,
    fresh,
    on_copies,
    on_new_contents,
    renew,
    returns_earlier_result,
    tensors_in,
)
from bench.harness.data.replay import ORDERS, ReplayCheck
from bench.harness.data.torch_settings import settings_kept
from bench.harness.data.verify import CheckResult, same_bytes
from bench.harness.device.device import Device, NoDeviceError, cpu_device, detect
from bench.harness.measure.flags import of_check, of_settings, recorded
from bench.harness.measure.measure_row import interpreted, take_samples
from bench.harness.measure.rows import one_line
from bench.harness.run import saved_options, stamp
from bench.harness.settings import Settings
from bench.harness.timing.protocol import LIMITS
from bench.profiling.target import MODEL_DTYPES
from results.compare.flags import LOST_TIME
from results.record import MAX_COUNT, Environment, Record
from results.store.runfile import runs_directory
from roofline.machine import Machine
from roofline.work import DTYPES, dtype_named

if TYPE_CHECKING:
    from bench.api.sweep_frame import SweepFrame
    from bench.harness.timing.protocol import Samples

LATE_S = 0.01
"""Time after which the result of a call must still be the same."""

LATE = "its result changed after it returned: the work was not done"
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
    in_place: bool = False,
    setup: Inputs | None = None,
    **kwargs: Any,
) -> JudgedRecord:
    """Measure `fn(*args, **kwargs)` until its interval is narrow, and evaluate it against this
    machine's ceilings.

    On a GPU calls are captured in a CUDA graph if possible, else timed by events; on a CPU by the
    host's clock. Undeclared work is counted by the rules of `bench.profile`, and the record says
    so; work outside torch operations, such as a bare Triton kernel, must be declared. The `result`
    is returned; it is verified only against another call on new contents. A function that changes
    its inputs is `invalid` without `in_place` or `setup`; tensors that it overwrites without
    reading are outputs. Settings of torch that the function changes are put back, with the flag
    `settings-restored`.

    Args:
        fn: a function or a module.
        args: its positional arguments.
        inputs: returns new positional arguments, a tuple or a single one, instead of `args`.
        flops: floating-point operations of one call; a fused multiply-add counts as 2.
        bytes_read: compulsory bytes that one call reads: each input once.
        bytes_written: compulsory bytes that one call writes: each output once.
        dtype: dtype of the peak, `bf16` or `torch.bfloat16`; by default the one of most
            computation.
        cache: `cold`: calls rotate through enough copies of the tensors in `args` to evict them
            from the cache (weights of a module, keyword arguments and closures are not copied);
            with no tensor arguments, measurements are warm and flagged. `warm`: the same arguments
            again.
        device: `cpu`, `cuda` or `cuda:N`; by default that of the tensors.
        budget_s: time limit of sampling, seconds, without the warm-up.
        in_place: whether the function changes its positional arguments. Each launch of a sample
            has its own copy, restored before each sample, untimed; with `warm`, or if memory holds
            one copy only, a sample is one launch.
        setup: as `inputs`, but called again before each sample, untimed, for each of its launches,
            which get the contents of its tensors.
        kwargs: its keyword arguments.

    Raises:
        UsageError: invalid arguments, a device that is not available, or `fn` raised (its error is
            the cause).
    """
    work = {"flops": flops, "bytes_read": bytes_read, "bytes_written": bytes_written}
    subject = Function(fn, args, kwargs, inputs, work, dtype, cache, device, in_place, setup)
    return subject.measure(budget_s)


def sweep(
    fn_by_name: Mapping[str, Callable[..., Any]],
    shapes: Iterable[Shape],
    dtypes: Any = ("fp32",),
    inputs: Callable[..., Any] | None = None,
    cache: str = "cold",
    device: str | None = None,
    budget_s: float | None = None,
    in_place: bool = False,
) -> SweepFrame:
    """Measure each function at each shape in each dtype; return a row for each, with the columns of
    `results.load`. `sweep(...).plot("gelu.png")` draws the rates by size, a line for each function.

    `provider` is the name of the function, `case` the shape, `median_s` seconds per call, with
    `ci95_low_s`, `ci95_high_s`, `samples_s`, `flags`, the work and the judged keys. A function that
    raises has a row with the status `failed` and its reason. A warning names rows from which other
    work took time: their times are too long. To decide which one is faster, use
    `bench.compare`.

    Args:
        fn_by_name: functions that take the arguments made by `inputs`.
        shapes: shapes such as `4096`, `(4096, 1024)` or `"4096x1024"`.
        dtypes: one of `fp64`, `fp32`, `bf16`, `fp16`, a torch dtype, or several of them.
        inputs: `inputs(shape, dtype, device)` returns new arguments of one call, a tuple or a
            single one. It gets a tuple of extents, a torch dtype and a torch device name. By
            default it returns normal random numbers.
        cache: `cold` or `warm`, as for `bench.measure`.
        device: `cpu`, `cuda` or `cuda:N`; by default the first GPU, else the CPU.
        budget_s: time limit of sampling a row, seconds.
        in_place: whether functions change their inputs, as for `bench.measure`.

    Raises:
        UsageError: invalid arguments, or every row failed.
        NoDeviceError: the device is not available.
    """
    import torch

    from bench.api.sweep_frame import SweepFrame

    functions = functions_of(fn_by_name)
    sizes = [extents(shape) for shape in shapes]
    given = dtypes if isinstance(dtypes, list | tuple | set) else [dtypes]
    names = [dtype_named(str(dtype)) for dtype in given]
    if not names or not set(names) <= set(MODEL_DTYPES):
        raise UsageError(f"dtypes={dtypes!r:.60} must be of {', '.join(MODEL_DTYPES)}")
    if not sizes:
        raise UsageError("shapes= is empty; give at least one")
    for fn in functions.values():
        Function(fn, (), {}, inputs, {}, None, cache, device)
    device_name = detected(device).torch_name
    make = inputs or (lambda shape, dtype, device: torch.randn(shape, device=device).to(dtype))
    under_test = device_of(device_name, ())
    assert under_test is not None
    environment = environment_of(under_test, "sweep")
    records = []
    for shape, dtype, (name, fn) in itertools.product(sizes, names, functions.items()):
        arguments = functools.partial(make, shape, rotation.torch_dtype(dtype), device_name)
        subject = Function(fn, (), {}, arguments, {}, dtype, cache, device_name, in_place)
        record = subject.blank
        try:
            record = subject.measure(budget_s)
        except UsageError as error:
            record = replace(record, status="failed", reason=str(error))
        axes = {f"d{axis}": extent for axis, extent in enumerate(shape)}
        records.append(replace(record, provider=name, case="x".join(map(str, shape)), shape=axes))
    if all(record.status == "failed" for record in records):
        raise UsageError(
            f"every row failed: {records[0].provider} at {records[0].case}: {records[0].reason}"
        )
    disturbed = [record for record in records if not LOST_TIME.isdisjoint(record.flags)]
    if disturbed:
        first = disturbed[0]
        reasons = [first.flag_reasons[flag] for flag in first.flags if flag in LOST_TIME]
        warnings.warn(
            f"other work took time from {len(disturbed)} of {len(records)} rows, first from "
            f"{first.provider} at {first.case}: {' and '.join(reasons)}",
            stacklevel=2,
        )
    return SweepFrame(Records(environment, records).to_dataframe())


def functions_of(fn_by_name: Mapping[str, Fn]) -> dict[str, Fn]:
    if not isinstance(fn_by_name, Mapping) or not fn_by_name:
        raise UsageError('give functions by name, such as {"old": f, "new": g}')
    for name, fn in fn_by_name.items():
        if not isinstance(name, str) or not name:
            raise UsageError(f"{name!r:.60} must be a text: the name of a function")
        name_of(fn)
    return dict(fn_by_name)


def extents(shape: Shape) -> tuple[int, ...]:
    words: Iterable[str | int]
    if isinstance(shape, str):
        words = re.split("[xX×*]", shape)
    elif isinstance(shape, int):
        words = [shape]
    else:
        words = shape
    try:
        sizes = tuple(int(word) for word in words)
    except (TypeError, ValueError):
        sizes = ()
    if not sizes or min(sizes) < 1 or isinstance(shape, bool):
        raise UsageError(
            f"expected a shape such as 4096, (4096, 1024) or '4096x1024', got {shape!r:.60}"
        )
    return sizes


@dataclass
class Function:
    """A function with the arguments of `measure`; `blank` is its record before measuring."""

    fn: Fn
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    inputs: Inputs | None
    work: Mapping[str, Any]
    """Declared FLOPs and bytes; None or missing if unknown."""
    dtype: Any
    cache: str
    device: str | None
    in_place: bool = False
    setup: Inputs | None = None
    """As `inputs`, but called again before each sample."""
    make: Inputs | None = field(init=False)
    made_again: Inputs | None = field(init=False)
    """Makes other positional arguments; None if there is no function for it."""
    is_renewed: bool = field(init=False)
    blank: Record = field(init=False)

    def __post_init__(self) -> None:
        for name, count in self.work.items():
            is_count = isinstance(count, Integral) and not isinstance(count, bool)
            if count is not None and not (is_count and 0 <= count <= MAX_COUNT):
                raise UsageError(
                    f"{name}= must be an integer from 0 to 2**63 - 1, for one call, got "
                    f"{count!r:.60}"
                )
        if self.setup is not None and (self.inputs is not None or self.in_place):
            raise UsageError("setup= makes the inputs; remove inputs= and in_place=")
        self.make = self.inputs or self.setup
        self.made_again = self.first_set if self.make else None
        self.is_renewed = self.in_place or self.setup is not None
        dtype = "" if self.dtype is None else dtype_named(str(self.dtype))
        if dtype and dtype not in DTYPES:
            raise UsageError(
                f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}; "
                "use functools.partial to pass a dtype to the function"
            )
        if self.make is not None and not callable(self.make):
            raise UsageError(
                f"inputs={self.make!r:.60} must be a function that makes the arguments"
            )
        if self.make is not None and self.args:
            raise UsageError(
                f"inputs= and positional arguments are mutually exclusive, got {len(self.args)} "
                f"of them"
            )
        if self.cache not in ("cold", "warm"):
            raise UsageError(f"cache={self.cache!r} must be 'cold' or 'warm'")
        check_device(self.device)
        counts: dict[str, Any] = {
            name: int(count) for name, count in self.work.items() if count is not None
        }
        if not counts.keys().isdisjoint(MOVED):
            counts = dict.fromkeys(MOVED, 0) | counts
        self.blank = Record(
            op=name_of(self.fn),
            provider="function",
            dtype=dtype,
            shape={"calls": 1},
            case="-",
            status="skipped",
            **counts,
        )

    def measure(self, budget_s: float | None = None) -> JudgedRecord:
        """Return the record, with the result of the first call; another call counts unknown
        work.
        """
        __tracebackhide__ = (
            True  # a test that fails in the function shows the function, not this file
        )
        if budget_s is not None:
            check_number("budget_s", budget_s, "of seconds above 0")
        call = self.first_call()
        device_of(self.device, arguments_of(call))  # refuses what it cannot measure
        before = on_copies(call)
        interpreted()  # forgets the kernels of other functions
        with raising(self.blank.op), settings_kept() as changed:
            result, device, first_call_s = self.called(call)
            returned = result
            with suppress(RuntimeError):  # a subclass of a tensor may not have copies
                returned = fresh(result)
            time.sleep(LATE_S)
            is_late = not all(map(same_bytes, tensors_in(result), tensors_in(returned)))
            if self.is_renewed:
                result = returned
                renew([call.args], lambda: before.args)
            counted = on_copies(before) if self.is_renewed else call
            record = self.counted(counted.args)
            problem = LATE if is_late else None
            if changed_inputs(before, call, result):
                with suppress(ValueError):  # a list that has grown stays
                    renew([arguments_of(call)], lambda: arguments_of(before))
                problem = CHANGES_INPUTS
            if problem is None:
                with current(device):
                    sets, reached = self.copies(call.args, device)
                    calls = [call_of(self.fn, each, self.kwargs) for each in sets]
                    renewal = self.renewal(sets, before.args)
                    samples = take_samples(
                        calls,
                        reached,
                        device,
                        LIMITS[device.type],
                        record.flops or None,
                        budget_s or math.inf,
                        replay=ReplayCheck(calls),
                        before=renewal,
                    )
                    if self.is_renewed:
                        renew(sets[:1], lambda: before.args)
                    found = self.verified(calls[0], returned, device, samples)
                problem = found.reason
        if problem:
            record = replace(record, status="invalid", reason=problem)
        else:
            also = [*of_check(found, ""), *of_settings(changed, "the function"), *interpreted()]
            ceilings = known_ceilings(device)
            # The advice of a flag names options of the commands, which a function does not have.
            record = recorded(record, samples, device, ceilings, self.cache, also, has_advice=False)
            record = replace(record, copies=len(calls), first_call_s=first_call_s)
        return JudgedRecord.of(record, environment_of(device, "measure"), result)

    def first_set(self) -> tuple[Any, ...]:
        """Return a set of positional arguments; anything but a tuple is a single argument."""
        if self.make is None:
            return tuple(self.args)
        name = "setup" if self.setup else "inputs"
        with raising(name):
            arguments = self.make()
        if arguments is None:
            raise UsageError(f"{name}= must return the arguments of one call, got None")
        return arguments if isinstance(arguments, tuple) else (arguments,)

    def first_call(self) -> Call:
        from bench.harness.torch_private import tree_leaves

        call = call_of(self.fn, self.first_set(), self.kwargs)
        for leaf in tree_leaves(arguments_of(call)):
            layout = str(getattr(leaf, "layout", "")).removeprefix("torch.")
            if layout.startswith("sparse"):
                raise UsageError(
                    f"an argument is a {layout} tensor, which cannot be copied: hold it in the "
                    "function, such as lambda: f(x)"
                )
        return call

    def renewal(self, sets: Sequence[Any], first: Any) -> Callable[[], None] | None:
        """Return what renews all sets before each sample; None: nothing does."""
        if not self.is_renewed:
            return None
        return functools.partial(renew, sets, self.first_set if self.setup else lambda: first)

    def called(self, call: Call) -> tuple[Any, Device, float]:
        """Return the result of a call, the device under test, and the seconds of the call."""
        import torch

        __tracebackhide__ = True
        device = device_of(self.device, arguments_of(call))
        start = clock.now()
        result = call()
        device = device or device_of(self.device, result)
        if device is None and torch.cuda.is_available():
            raise UsageError("no argument or result is a tensor; set device='cpu' or device='cuda'")
        device = device or cpu_device(torch.get_num_threads())
        device.synchronize()
        return result, device, clock.now() - start

    def verified(self, call: Call, result: object, device: Device, samples: Samples) -> CheckResult:
        """Check a timed call, which took `samples` and has the contents of the first one, on them
        and on new contents.
        """
        pace = device.synchronize, samples
        try:
            expected = Expected.itself(result)
            if returns_earlier_result(call):
                return CheckResult(EARLIER)
            found = on_new_contents(call, call.func, expected, make=self.made_again, pace=pace)
            again = on_copies(call)
            result = again()
            if not self.is_renewed and changed_inputs(call, again, result):
                return CheckResult(CHANGES_INPUTS)
            if not expected.check(result, ORDERS).is_right:
                raise UnverifiedError("its result is not that of its first call")
        except UnfinishedError as error:
            return CheckResult(str(error))
        except UnverifiedError as error:
            return CheckResult(None, unverified=str(error))
        return found

    def counted(self, args: Sequence[Any]) -> Record:
        """Return the blank record with undeclared work counted; complex numbers have no peak."""
        from bench.api.profiling import with_work

        record = with_work(self.blank, self.fn, args, self.kwargs)
        dtypes = [str(getattr(array, "dtype", "")) for array in arrays_in([args, self.kwargs])]
        is_complex = any("complex" in dtype for dtype in dtypes)
        return replace(record, dtype="") if is_complex and not self.blank.dtype else record

    def copies(self, first: tuple[Any, ...], device: Device) -> tuple[list[tuple[Any, ...]], str]:
        """Return sets of arguments that evict each other from the cache, and the cache state."""
        has_arrays = any(array.nbytes for array in arrays_in(first))
        if self.in_place and not has_arrays:
            raise UsageError("in_place=True restores positional tensors, but there are none")
        if self.cache == "warm" or (self.make is None and not has_arrays):
            return [first], "warm"
        make = self.made_again or functools.partial(fresh, first)
        sets = [first, make()]
        shared = _memory(first)
        sizes = _memory(sets[1]).items()
        fresh_bytes = sum(size for address, size in sizes if address not in shared)
        if not fresh_bytes:
            raise UsageError(
                "inputs= returned no new tensors or arrays; return new ones at each call, or use "
                "cache='warm'"
            )
        plan = rotation.plan_rotation(
            fresh_bytes, device.cache_bytes, device.free_bytes(), device.type, "cold"
        )
        sets += [make() for _ in range(plan.copies - len(sets))]
        return sets[: plan.copies], plan.cache


def check_number(name: str, value: object, expected: str, or_zero: bool = False) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 < value < math.inf or (or_zero and value == 0)):  # type: ignore[operator]
        raise UsageError(f"{name}={value!r:.60} must be a number {expected}")


def check_device(name: object) -> None:
    if name is not None and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", str(name)):
        raise UsageError(f"device={name!r} must be 'cpu', 'cuda' or 'cuda:N'")


def name_of(fn: Any) -> str:
    if not callable(fn):
        raise UsageError(f"expected a function or a module, got {fn!r:.60}")
    return str(getattr(fn, "__name__", type(fn).__name__))


@contextmanager
def raising(name: str) -> Iterator[None]:
    """Raise the errors of a user's code as a `UsageError` of one line, with the error as its
    cause.
    """
    __tracebackhide__ = True
    try:
        yield
    except (UsageError, NoDeviceError):
        raise
    except Exception as error:
        raise UsageError(f"{name} raised {one_line(error)}") from error


detected = functools.cache(detect)


def device_of(name: str | None, values: Any) -> Device | None:
    """Return the named device, by default that of the tensors in `values`; None if there are
    none.
    """
    import torch

    if name is None:
        names = {
            str(array.device) for array in arrays_in(values) if isinstance(array, torch.Tensor)
        }
        if not names:
            return None
        gpus = sorted(names - {"cpu"})
        if len(gpus) > 1:
            raise UsageError(f"the tensors are on {' and '.join(gpus)}; set device= to one of them")
        name = gpus[0] if gpus else "cpu"
        check_device(name)
    try:
        device = detected(str(name))
    except NoDeviceError as error:
        raise UsageError(str(error).partition(";")[0]) from None
    # The caller chooses the number of threads, and ceilings depend on it.
    return device if device.is_gpu else cpu_device(torch.get_num_threads())


def current(device: Device) -> Any:
    import torch

    return torch.cuda.device(device.torch_name) if device.is_gpu else nullcontext()


def known_ceilings(device: Device, gpu: str | None = None) -> Machine:
    """Return the known ceilings of a device, including those saved by bench commands.

    Saved bandwidths are left out unless that of each mix is known: a command measures those of its
    own rows, and a read judged by a copy would exceed its roof.
    """
    saved = MeasuredCeilings(device, runs_directory(), lambda _: None, lambda _: None).load()
    if not {entry.name for entry in saved}.issuperset(MIXES):
        saved = tuple(entry for entry in saved if entry.quantity != "bandwidth")
    return ceilings_of(device, gpu).with_entries(saved)


def environment_of(device: Device, command: str) -> Environment:
    """Return the environment of a new run in this process, with the current ceilings."""
    return stamp("bench", device, known_ceilings(device), saved_options(Settings()), (command,))


def arrays_in(value: Any) -> list[Any]:
    from bench.harness.torch_private import tree_leaves

    return [leaf for leaf in tree_leaves(value) if isinstance(getattr(leaf, "nbytes", None), int)]


def _memory(values: Any) -> dict[int, int]:
    """Return the bytes of arrays by address: those of their memory, which may be less than their
    elements take if they are expanded.
    """
    sizes = {}
    for array in arrays_in(values):
        if hasattr(array, "untyped_storage"):
            sizes[array.data_ptr()] = min(array.nbytes, array.untyped_storage().nbytes())
        else:
            sizes[id(array)] = array.nbytes
    return sizes
