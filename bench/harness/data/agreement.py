"""Functions without an op: the results of others against those of a baseline.

The reference is the result of the baseline in fp64, else in fp32. The baseline is off by q in its
worst row, as a multiple of the RMS of that row, a row being the last axis. An element may be off by

    4 max(q, eps) rms(row) + eps |reference|

with eps the distance from 1 to the next number of the result's dtype. q is at least the rounding of
a sum of n numbers in fp32, sqrt(n) 2^-24 with n numbers of the largest argument for each of the
result: the error of a single sum, such as that of a dot product, may be far below it by chance.

Of elements that the baseline gets right to an eighth, at most a fifth may be off by more than half:
a row with a few large elements has an RMS beside which the others disappear. A row of zeros has the
RMS of all rows.

If the baseline takes neither fp64 nor fp32, as where memory is short or it has tensors of its own,
its own result is the reference. q is then that of its first rows or, if they depend on others, the
rounding of sums as long as the longest axis of an argument.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness import clock
from bench.harness.data.verify import (
    LEAST_SCALE_ERROR,
    SCALE_ELEMENTS,
    CheckResult,
    Worst,
    chunk_elements,
    poison,
    same_bytes,
    worst_of,
)
from bench.harness.timing.samplers import timed_result
from results.show.units import duration

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bench.harness.timing.protocol import Samples

MIN_CHANGED = 2
"""Elements and rows that stay at the ends."""

NUMBERS = itertools.count()
"""Numbers of new contents in this process: functions may share what they cache."""

GOLDEN_RATIO = 0.618034
"""Multiples of it, modulo 1, are far from each other."""

ERRORS = 4.0
"""Errors of the baseline that another function may have: it may sum in another order."""

MAX_ERROR = 1 / 8
"""Largest q with which a run in higher precision is a reference: random results differ by more."""

MAX_LOST = 1 / 5
"""Fraction of the elements, of those that the baseline gets right, that may be off by half: of a
normal distribution 2 % are below a 32nd of its RMS, the allowed error in bf16."""

ZERO = 1e-9
"""RMS of a reference in fp64, against the largest, below which it is 0 but for rounding."""

FIRST_ROWS = 64
"""Rows of the baseline that are run in fp64 if not all can be."""

BASELINE = "baseline"

CHANGES_INPUTS = (
    "changes its inputs; if it must, pass them by position and use in_place=True or --in-place"
)

EARLIER = "returns the result of an earlier call"

FRESH_CALLS = 7
"""Calls on new contents, each on others, and as many on the old ones."""

FRESH_SHARE = 0.05
"""Fraction of the row's time that these calls may take; one of each is always made."""

SLOWER = 3.0
SLOWER_S = 20e-6
"""Ratio and difference of the times on new and old contents beyond which work was skipped
on the old ones: caches and branches make less of a difference. The fastest calls are compared, so
the difference is that of one call, and an n-th of it for n up to `FRESH_CALLS`."""

FRESH_ATTEMPTS = 2
FRESH_AGAIN_S = 1.0
FRESH_AGAIN_CALLS = 100
"""Another process may delay a few calls, so those that seem slower are made again, for at least
that time or that often."""

CORNER = 64
"""Elements along each axis that are looked at first, since mostly they are not sorted."""

NORM_ERROR = 0.02
"""Largest error of a sum or a norm of 1 in 16 bits."""

MAX_REUSED_BYTES = 2**25
"""The C library maps memory for more than this anew in each call (mallopt(3)). For less, a call
takes longer if its result does not get the pages of the last one: 340 us instead of 20 for -x of
1 MiB.
"""

SHIFTS = {2: 100.0}
"""What is added to inputs by their bytes, else 1000: exponentials overflow in fp32 above 88.7, 1000
squared is beyond 16 bits of 1 squared, and 16 bits still distinguish numbers around 100.
"""

NONZERO = 0.99
"""Fraction of elements that are not 0, in a tensor that is neither sparse nor padded."""

SHIFTED_ERROR = 2.0**-10
"""A q that is neither overflow nor cancellation, in any dtype."""


class UnverifiedError(Exception):
    """A function could not be verified; the message says why."""


class NotComparableError(UnverifiedError):
    """A result has nothing that can be compared; the message says what it is."""


class UnfinishedError(NotComparableError):
    """A result is of work that nobody has waited for."""


Fn = Callable[..., Any]

Call = partial[Any]
"""A function with its arguments."""

Make = Callable[[], Any]
"""Makes new positional arguments."""


def arrays_of(result: object) -> list[Tensor]:
    """Return the tensors, arrays and numbers of a result, without a gradient; NotComparableError if
    there are others.
    """
    import numpy as np
    import torch

    from bench.harness.torch_private import tree_leaves

    arrays = []
    if isinstance(result, dict):
        result = [result[key] for key in sorted(result, key=str)]
    for leaf in tree_leaves(result):
        if isinstance(leaf, Iterator | Awaitable) or hasattr(leaf, "done"):
            kind = type(leaf).__name__
            raise UnfinishedError(f"returned a {kind}, which may not have done its work")
        if torch.overrides.has_torch_function((leaf,)):  # it may compute when it is read
            raise NotComparableError(f"it returned a {type(leaf).__name__}")
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            arrays.append(leaf.detach())
        elif isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
            try:
                arrays.append(torch.from_numpy(np.array(leaf, order="C")))
            except TypeError:
                raise NotComparableError(
                    f"it returned numbers of type {np.array(leaf).dtype}"
                ) from None
        elif leaf is not None:
            raise NotComparableError(
                f"it returned a {getattr(leaf, 'layout', type(leaf).__name__)}"
            )
    if not arrays:
        kind = "None" if result is None else f"a {type(result).__name__}"
        raise NotComparableError(f"it returned {kind}")
    return arrays


@dataclass(frozen=True)
class Expected:
    """The results of the baseline, and what they are compared with."""

    results: Sequence[Tensor]
    references: Sequence[Tensor]
    precision: str
    """`fp64`, `fp32`, or `baseline` if it takes neither, with the rows that determine `errors`."""
    errors: Sequence[float]
    """q of each result."""

    @classmethod
    def of(cls, call: Call, result: object) -> Expected:
        """Run the baseline in higher precision; `result` is what it returned.

        Raises:
            NotComparableError: the result has no tensor, array or number, or only NaN, or is
                random.
        """
        import torch

        results = [x.clone() for x in arrays_of(result)]  # a later call may overwrite it
        largest = max(map(torch.numel, tensors_in(arguments_of(call))), default=0)
        if all(bool(torch.isnan(x).all()) and x.numel() for x in results):
            raise NotComparableError("it returned only NaN")
        for name, dtype in (("fp64", torch.float64), ("fp32", torch.float32)):
            references = _run_in(dtype, call)
            errors = _errors(results, references)
            if _are_references(references, errors):
                terms = [largest // max(1, x.numel()) for x in results]
                sums = map(_rounding, results, terms)  # a q of few elements is chance
                return cls(results, references, name, list(map(max, errors, sums)))
        errors = _errors(
            [x[:FIRST_ROWS] for x in results if x.dim()],
            _run_in(torch.float64, call, rows_of=results[0].shape[:1]),
        )
        if max(errors, default=math.inf) <= MAX_ERROR:
            return cls(results, results, f"{BASELINE}, {FIRST_ROWS} rows in fp64", errors)
        sizes = [x.shape for x in tensors_in(arguments_of(call))]
        longest = max(itertools.chain.from_iterable(sizes), default=1)
        own = cls(results, results, BASELINE, [_rounding(x, longest) for x in results])
        if not own.check(on_copies(call)(), 1.0).is_right:
            raise NotComparableError("it is random: another call returned other values")
        return own

    @classmethod
    def itself(cls, result: object) -> Expected:
        """Return what a function must return again; NotComparableError as `of`."""
        results = arrays_of(result)
        return cls(results, results, BASELINE, [0.0 for _ in results])

    def check(self, result: object, tolerance: float) -> CheckResult:
        """Compare what another function returned; `tolerance` multiplies the allowed difference."""
        count = sum(x.numel() for x in self.results)
        try:
            arrays = arrays_of(result)
        except NotComparableError as error:
            return CheckResult(str(error), elements=count)
        if len(arrays) != len(self.results):
            counts = f"{len(arrays)} arrays, the baseline {len(self.results)}"
            return CheckResult(f"it returned {counts}", elements=count)
        worst = 0.0
        problem = None
        for index, other in enumerate(arrays):
            mine = self.results[index]
            other = other.to(mine.device)
            found, ratio = _difference(
                mine, self.references[index], other, self.errors[index], tolerance
            )
            problem = problem or found
            worst = max(worst, ratio)
        return CheckResult(problem, worst, count, count, self.precision)


def _rounding(x: Tensor, terms: int) -> float:
    """Return the rounding of sums of `terms` numbers in fp32 or fp64, which is a random walk."""
    import torch

    if not (x.is_floating_point() or x.is_complex()):
        return 0.0
    eps = min(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps)
    return math.sqrt(terms) * eps / 2


def _size(array: Tensor) -> float:
    """Return the RMS of an array."""
    return float(_wide(array).abs().square().mean().sqrt()) if array.numel() else 0.0


def _are_references(references: Sequence[Tensor], errors: Sequence[float]) -> bool:
    """Whether results with these q agree with references.

    Of a result that is 0 but for rounding beside the largest one, as the gradient of the bias of
    the keys of attention, q is the rounding itself.
    """
    if len(references) != len(errors):
        return False
    sizes = list(map(_size, references))
    zero = ZERO * max(sizes)
    return all(
        error <= MAX_ERROR or (size < zero and math.isfinite(error))
        for error, size in zip(errors, sizes, strict=True)
    )


def fresh(values: Any) -> Any:
    """Return arguments with copies of arrays; copies share memory as the originals do."""
    import torch

    from bench.harness.torch_private import tree_map

    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return copy.deepcopy(value.detach(), memo).requires_grad_(value.requires_grad)
        is_array = isinstance(getattr(value, "nbytes", None), int)
        return copy.deepcopy(value, memo) if is_array else value

    return tree_map(copied, values)


def call_of(fn: Fn, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """Return a `partial` whose arguments are only these: one of a `partial` has those of both."""
    return partial(fn.__call__ if isinstance(fn, partial) else fn, *args, **kwargs)


def on_copies(call: Call, function: Fn | None = None) -> Call:
    """Return a call of its function, or of another one, on copies of its arguments."""
    return call_of(function or call.func, *fresh(arguments_of(call)))


def arguments_of(call: Call) -> list[Any]:
    return [call.args, call.keywords]


@contextmanager
def new_contents(values: object, make: Make | None = None) -> Iterator[Callable[[int], None]]:
    """Yield a function that writes contents into the tensors of `values`, in place: the old ones
    for 0, new ones for 1, others at each call. The old ones are restored at the end.

    New contents are those of `make`, if it makes others of the same shapes. Else those of floating
    tensors are changed: the inner rows are rolled and all but the first and the last row are
    scaled; zeros become numbers. Addresses, version counters and the elements at the ends stay,
    which results are cached by. A function may rely on properties of its inputs: masks, which have
    two values, are not changed, probabilities and unit vectors not scaled; sparse, padded and
    sorted tensors and symmetric matrices are only scaled, as a whole; rows of tensors with infinite
    elements stay in their places.

    Raises:
        UnverifiedError: there is no tensor.
    """
    tensors = tensors_in(values)
    if not tensors:
        raise UnverifiedError("it takes no tensor")
    before = [x.clone() for x in tensors]
    changes: list[Callable[[int], None]] = []

    def write(number: int) -> None:
        renew([tensors], lambda: before)
        made = tensors_in(make()) if number and make is not None else []
        for x, source in zip(tensors, made, strict=False):
            if x.shape == source.shape:
                x.copy_(source)
        if not number or not all(map(same_bytes, tensors, before)):
            return
        if not changes:
            for x in filter(_can_change, tensors):
                changes.append(partial(_vary, x, _is_normalized(x), _is_structured(x)))
        for change in changes:
            change(next(NUMBERS))  # so that an output does not follow from an input

    try:
        yield write
    finally:
        renew([tensors], lambda: before)


def tensors_in(values: object) -> list[Tensor]:
    """Return the tensors in arguments, each element of memory once, and tensors that share the
    memory of NumPy arrays.
    """
    import numpy as np
    import torch

    from bench.harness.torch_private import tree_leaves

    tensors = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            x = leaf.data
            for axis, stride in enumerate(leaf.stride()):
                if stride == 0:
                    x = x.select(axis, 0).unsqueeze(axis)
            tensors.append(x)
        elif isinstance(leaf, np.ndarray) and leaf.flags.writeable:
            with suppress(TypeError, ValueError):  # of another type, or with negative strides
                tensors.append(torch.from_numpy(leaf))
    return tensors


def renew(sets: Sequence[Any], source: Make) -> None:
    """Copy the contents of tensors from what `source` returns into each set."""
    for each in sets:
        for x, value in zip(tensors_in(each), tensors_in(source()), strict=True):
            x.copy_(value)


def _can_change(x: Tensor) -> bool:
    """Return whether a tensor has numbers that may change: fp8 cannot be scaled, and masks have two
    values.
    """
    if x.is_complex():
        return True
    if not x.is_floating_point() or x.itemsize == 1 or not x.numel():
        return False
    low, high = x.aminmax()
    return bool(low == high) or not ((x == low) | (x == high)).all()


def _is_normalized(x: Tensor) -> bool:
    """Return whether a tensor may consist of probabilities or unit vectors, along any axis."""
    import torch

    for order, axis in itertools.product((1, 2), range(x.dim())):
        vectors = x.movedim(axis, -1)[(slice(CORNER),) * (x.dim() - 1)]
        norms = torch.linalg.vector_norm(vectors, order, -1)
        if x.shape[axis] > 1 and ((norms - 1).abs() < NORM_ERROR).all():
            return True
    return False


def _is_structured(x: Tensor) -> bool:
    """Return whether a tensor is tiny, sparse or padded, its matrices symmetric, or an axis sorted.

    A constant other than 0 is none of these, so that a function that reads only a part is found.
    """
    is_sparse = x.count_nonzero() < NONZERO * x.numel()
    if x.numel() <= MIN_CHANGED or is_sparse or (x.dim() > 1 and x.equal(x.mH)):
        return True
    return _is_sorted(x[(slice(CORNER),) * x.dim()]) and _is_sorted(x)


def _is_sorted(x: Tensor) -> bool:
    axes = (
        []
        if x.is_complex()
        else [axis for axis, extent in enumerate(x.shape) if extent > MIN_CHANGED]
    )
    steps = (x.diff(dim=axis) for axis in axes)
    return any(step.any() and ((step >= 0).all() or (step <= 0).all()) for step in steps)


def _vary(x: Tensor, is_normalized: bool, is_structured: bool, number: int) -> None:
    """Change the contents in place, differently for each number."""
    scale = 1.0 if is_normalized else 0.25 + 0.5 * (number * GOLDEN_RATIO % 1)
    changed = (x * scale).contiguous()
    if not x.any():
        # Of both signs: a norm gives the same for any constant that is added.
        changed.fill_(scale).view(-1)[::2].neg_()
    if is_structured:
        x.copy_(changed)
        return
    if len(x) > MIN_CHANGED and not x.isinf().any():
        changed[1:-1] = changed[1:-1].roll(1 + number % max(1, len(x) - 3), 0)
    columns = x.shape[-1] if x.numel() > MIN_CHANGED * x.shape[-1] else 1
    for end in (slice(None, columns), slice(-columns, None)):
        changed.view(-1)[end] = x.reshape(-1)[end]
    x.copy_(changed)


def changed_inputs(before: Call, after: Call, result: object) -> bool:
    """Return whether a call has changed its inputs: `before` has copies of them from before the
    call, `result` is what it returned.

    A tensor that the function overwrites without reading is an output: another call gives the same
    if it holds NaN first.
    """
    new = tensors_in(fresh(arguments_of(after)))  # copies of NumPy arrays can be written
    old = tensors_in(fresh(arguments_of(before)))
    if len(new) != len(old):  # a list or a dictionary
        return True
    changed = [not same_bytes(*pair) for pair in zip(new, old, strict=True)]
    if not any(changed):
        return False
    again = on_copies(before, after.func)
    outputs = tensors_in(arguments_of(again))
    try:
        for x in itertools.compress(outputs, changed):
            x.fill_(math.nan if x.is_floating_point() else 1)
        return not Expected.itself([result, new]).check([again(), outputs], 1.0).is_right
    except Exception:  # of the function, or a result that cannot be compared
        return True


def slower_on_new(
    call: Callable[[], Any],
    values: object,
    synchronize: Callable[[], None],
    samples: Samples,
    make: Make | None = None,
) -> str | None:
    """Return that a call is slower on new contents of the tensors in `values`, which it reads, than
    on the old ones and in its `samples`, or None.

    Processors learn the branches of repeated calls on the same contents, as those of a sort, but
    not on all copies of cold inputs.

    Raises:
        UnverifiedError: there is no tensor, or it fails on new contents.
    """
    reused = [x for x in tensors_in(values) if x.nbytes <= MAX_REUSED_BYTES]

    def taken_s(number: int) -> float:
        write(number)
        for x in reused:
            x.clone()  # new contents that stay took the memory of the last result
        synchronize()
        start = clock.now()
        call()
        synchronize()
        return clock.now() - start

    with _raising("it"), new_contents(values, make) as write:
        for attempt in range(1, FRESH_ATTEMPTS + 1):
            pairs: list[tuple[float, float]] = []
            calls = FRESH_CALLS if attempt == 1 else FRESH_AGAIN_CALLS
            until = clock.now() + max(FRESH_SHARE * samples.total_s, (attempt - 1) * FRESH_AGAIN_S)
            while not pairs or (len(pairs) < calls and clock.now() < until):
                write(0)
                call()  # a cache of one result has that of the new contents
                pairs.append((taken_s(0), taken_s(1)))
            old_s = max(samples.median_s, min(old for old, _ in pairs))
            new_s = min(new for _, new in pairs)
            least_s = SLOWER_S / min(len(pairs), FRESH_CALLS)
            if new_s <= max(SLOWER * old_s, old_s + least_s):
                return None
    return f"slower on fresh contents: {duration(new_s)} instead of {duration(old_s)}"


def on_new_contents(
    call: Call,
    baseline: Fn,
    expected: Expected,
    tolerance: float = 1.0,
    make: Make | None = None,
    pace: tuple[Callable[[], None], Samples] | None = None,
) -> CheckResult:
    """Check a function on new contents of the arguments that were timed, against the baseline on
    copies of them; the function may be its own baseline.

    `make` is that of `new_contents`. With `pace`, the `synchronize` and `samples` of
    `slower_on_new`, a function that is slower on new contents is wrong too.

    Raises:
        UnverifiedError: no argument can be changed, one of the two fails on new contents, or the
            result of the baseline is NaN, random, or does not depend on them.
    """
    import torch

    others = on_copies(call)
    with _raising("it"), new_contents(arguments_of(call), make) as write:
        write(1)
        used = on_copies(call)
        kept = fresh(timed_result([call]))  # it may be one of the arguments
        write(0)  # the next result must not be that of the last call
        is_kept = all(map(torch.equal, arrays_of(kept), arrays_of(call())))
        renew([arguments_of(call)], lambda: arguments_of(used))
        result = fresh(timed_result([others, call]))
    with _raising("the baseline"):
        results = [x.clone() for x in arrays_of(on_copies(used, baseline)())]
        again = on_copies(used)() if call.func == baseline else None
    pairs = zip(results, expected.results, strict=False)
    if any(bool(new.isnan().any()) > bool(old.isnan().any()) for new, old in pairs):
        raise UnverifiedError("the result is NaN")
    same = replace(expected, results=results, references=results)
    if call.func == baseline and not same.check(again, tolerance).is_right:
        raise UnverifiedError("the result is random")
    checked = same.check(result, tolerance)
    if checked.is_right and not all(map(torch.equal, arrays_of(kept), arrays_of(result))):
        checked = same.check(kept, tolerance)  # a cache of one call has that of the old contents
    if not checked.is_right:
        return replace(checked, reason=f"on new values in the same tensors: {checked.reason}")
    if expected.check(results, tolerance).is_right:
        raise UnverifiedError("the result did not change with the inputs")
    if is_kept:
        return replace(checked, reason=EARLIER)
    problem = slower_on_new(call, arguments_of(call), *pace, make) if pace else None
    if problem is None and call.func != baseline:
        problem = _wrong_when_shifted(used, baseline, tolerance, results[0].shape)
    return replace(checked, reason=problem)


@contextmanager
def poisoned(results: object, inputs: object) -> Iterator[list[Tensor]]:
    """Poison the tensors of results that share no memory with the inputs, and restore them at the
    end.
    """
    taken = {x.untyped_storage().data_ptr() for x in tensors_in(inputs)}
    own = [x for x in tensors_in(results) if x.untyped_storage().data_ptr() not in taken]
    held = [x.clone() for x in own]
    for x in own:
        poison(x)
    try:
        yield own
    finally:
        renew([own], lambda: held)


def _is_poisoned(x: Tensor) -> bool:
    wanted = x.clone()
    poison(wanted)
    is_rare = x.is_floating_point() or x.is_complex() or x.element_size() >= 4
    return is_rare and same_bytes(x, wanted)


def returns_earlier_result(call: Call) -> bool:
    """Return whether a function, called again, returns a result that was poisoned meanwhile; the
    inputs and the results are restored.

    Raises:
        UnverifiedError: as `new_contents`.
    """
    with new_contents(arguments_of(call)) as write:
        for _ in range(FRESH_ATTEMPTS):
            write(0)
            with poisoned(call(), arguments_of(call)) as results:
                places = [x.data_ptr() for x in results]
                write(0)
                again = tensors_in(call())
                is_old = [x.data_ptr() in places and _is_poisoned(x) for x in again]
            if places and all(is_old):
                return True
    return False


def _wrong_when_shifted(
    call: Call,
    baseline: Fn,
    tolerance: float,
    shape: torch.Size,
) -> str | None:
    """Return how a function overflows or cancels where its baseline does not; None if it does not,
    or if one of them does not take such inputs. The largest input of `call` is changed; `shape` is
    that of the result.

    A function may be off by as much as its baseline is with every other column rounded up, as the
    difference of a logsumexp and a logit is in 16 bits.
    """
    import torch

    try:
        changeable = filter(_can_change, tensors_in(arguments_of(call)))
        numbers = itertools.filterfalse(_is_structured, changeable)
        shifted = max(itertools.filterfalse(_is_normalized, numbers), key=torch.numel)
        shift = SHIFTS.get(shifted.itemsize, 1000.0)
        shifted.add_(shift)
        if shifted.itemsize > 2 and shape[:1] == shifted.shape[:1]:  # half of the rows
            shifted[1::2] -= 2 * shift
        if shape == shifted.shape:  # else the sums of these rows hide those of others
            shifted[2::4][..., -1] += shift
        truth = on_copies(call, baseline)
        expected = Expected.of(truth, on_copies(truth)())
        rounded = on_copies(truth)
        for x in filter(_can_change, tensors_in(arguments_of(rounded))):
            x[..., ::2] *= 1 + torch.finfo(x.dtype).eps
        results = arrays_of(rounded())
        errors = [max(SHIFTED_ERROR, q) for q in _errors(results, expected.references)]
        checked = replace(expected, results=results, errors=errors).check(
            call(), ERRORS * tolerance
        )
    except Exception:  # of a function, no such input, or too little memory
        return None
    is_known = all(x.is_floating_point() and _wide(x).isfinite().all() for x in expected.results)
    if (
        checked.is_right
        or not is_known
        or (shifted.itemsize < 8 and expected.references is expected.results)  # it may be wrong
    ):
        return None
    return f"on inputs shifted by {shift:g}: {checked.reason}"


@contextmanager
def _raising(name: str) -> Iterator[None]:
    """Raise the errors of a function, or of too little memory, as `UnverifiedError`."""
    try:
        yield
    except UnverifiedError:
        raise
    except Exception as error:
        raise UnverifiedError(f"{name} raised {type(error).__name__}") from None


def _run_in(dtype: torch.dtype, call: Call, rows_of: tuple[int, ...] | None = None) -> list[Tensor]:
    """Return the results of a call in higher precision; none if the function does not take it. With
    `rows_of`, tensors whose shape starts with it are cut to `FIRST_ROWS`.
    """
    import torch

    from bench.harness.torch_private import tree_map

    has_changed = False

    def is_coarser(x: Tensor) -> bool:
        has_fraction = x.is_floating_point() or x.is_complex()
        return has_fraction and torch.finfo(x.dtype).eps > torch.finfo(dtype).eps

    def raised(value: Any) -> Any:
        nonlocal has_changed
        if isinstance(value, torch.nn.Module):
            has_changed |= any(map(is_coarser, [*value.parameters(), *value.buffers()]))
            return copy.deepcopy(value).to(dtype)
        if not isinstance(value, torch.Tensor):
            return value
        if value.shape[:1] == rows_of:
            value = value[:FIRST_ROWS]
        wanted = dtype.to_complex() if value.is_complex() else dtype
        is_raised = value.is_floating_point() or value.is_complex()
        has_changed |= is_coarser(value)
        copied = copy.deepcopy(value.detach())
        return copied.to(wanted).requires_grad_(value.requires_grad) if is_raised else copied

    try:
        function = raised(call.func)
        args, kwargs = tree_map(raised, arguments_of(call))
        return arrays_of(function(*args, **kwargs)) if has_changed else []
    except Exception:  # of a user's function, or too little memory
        return []


def _wide(x: Tensor) -> Tensor:
    import torch

    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _errors(results: Sequence[Tensor], references: Sequence[Tensor]) -> list[float]:
    """Return q of each result: the largest error of a row over its RMS, of the elements that are
    finite; infinite if the references have other shapes.
    """
    if [x.shape for x in references] != [x.shape for x in results]:
        return [math.inf]
    errors = []
    for pair in zip(results, references, strict=True):
        worst = 0.0
        for mine, truth in _parts(*pair):
            off = (mine - truth).abs().nan_to_num(0.0, 0.0).amax(-1, keepdim=True)
            worst = max(worst, float((off / _rms(truth)).nan_to_num(0.0, 0.0).max()))
        errors.append(worst)
    return errors


def _difference(
    mine: Tensor, truth: Tensor, other: Tensor, error: float, tolerance: float
) -> tuple[str | None, float]:
    """Return how a result differs, or None, and the largest error over its limit.

    `mine` is the result of the baseline, `truth` its reference, `error` is q. Where the baseline is
    infinite or NaN the result must be the same.
    """
    import torch

    if mine.shape != other.shape:
        shapes = f"{tuple(other.shape)}, the baseline's {tuple(mine.shape)}"
        return f"its result has the shape {shapes}", math.inf
    dtypes = [mine.dtype, other.dtype]
    if not any(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
        count = int((mine != other).sum())
        many = f"{count:,} of {mine.numel():,} elements"
        problem = f"its result differs from the baseline's in {many}; integers must be equal"
        return (problem, math.inf) if count else (None, 0.0)
    if mine.dtype != other.dtype:
        return f"its result is {other.dtype}, the baseline's {mine.dtype}", math.inf
    if torch.equal(mine, other):
        return None, 0.0
    eps = torch.finfo(mine.dtype).eps
    share = max(eps, error)
    worst = Worst()
    sums = torch.zeros(3, dtype=torch.float64)
    known = 0
    lost = 0
    for first, second, third in _parts(mine, truth, other):
        products = [second * second.conj(), (first - second) * second, (third - second) * second]
        sums += torch.stack([x.nan_to_num(0.0, 0.0, 0.0).real.sum() for x in products]).cpu()
        is_same = torch.isclose(third, first, rtol=0.0, atol=0.0, equal_nan=True)
        rms = _rms(second)
        if not rms.all():
            rms = torch.where(rms == 0, _rms(_wide(truth).reshape(1, -1)), rms)
        limit = ERRORS * share * rms + eps * second.abs()
        ratio = ((third - second).abs() / limit).nan_to_num(math.inf, math.inf)
        ratio = ratio.masked_fill(~first.isfinite(), math.inf).masked_fill(is_same, 0.0)
        sizes = second.abs()
        is_known = ((first - second).abs() <= sizes / 8) & (sizes > torch.finfo(mine.dtype).tiny)
        known += int(is_known.sum())
        lost += int((is_known & ((third - second).abs() > sizes / 2)).sum())
        found = worst_of(ratio, torch.where(first.isfinite(), second, first), third)
        if found.ratio > worst.ratio:
            worst = found
    if worst.ratio > tolerance:
        problem = (
            f"its result differs from the baseline's: {worst.got:.4g} instead of "
            f"{worst.expected:.4g}, {worst.ratio:.3g} times as much as rounding explains"
        )
        return problem, worst.ratio
    if truth is not mine and lost > tolerance * MAX_LOST * known:
        return (
            f"{lost:,} of {known:,} elements of its result are off by more than half",
            worst.ratio,
        )
    square, own, off = (abs(value) for value in sums.tolist())
    allowed = max(eps / 2, LEAST_SCALE_ERROR) * square + ERRORS * own
    if mine.numel() >= SCALE_ELEMENTS and off > tolerance * allowed:
        return f"its result is off by {off / square:.2%} on the whole", worst.ratio
    return None, worst.ratio


def _parts(*arrays: Tensor) -> Any:
    """Yield rows of arrays in fp64, so many at a time that they fit in memory; a row is the last
    axis of more than one element.
    """
    if not arrays[0].numel():
        return
    axes = [size for size in arrays[0].shape if size > 1]
    columns = axes[-1] if axes else 1
    rows = max(1, chunk_elements(arrays[0]) // columns)
    flat = [array.reshape(-1, columns) for array in arrays]
    for start in range(0, len(flat[0]), rows):
        yield [_wide(each[start : start + rows]) for each in flat]


def _rms(rows: Tensor) -> Tensor:
    """Return the RMS of the finite elements of each row."""
    sizes = rows.abs()
    squares = sizes.nan_to_num(0.0, 0.0).square().sum(-1, keepdim=True)
    return (squares / sizes.isfinite().sum(-1, keepdim=True).clamp(min=1)).sqrt()
