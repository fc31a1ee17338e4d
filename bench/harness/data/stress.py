"""Hard inputs: numbers that formulas which overflow, cancel or lose NaN get wrong.

A softmax without its maximum is right for random numbers. Each op names changes of a row of its
inputs (`Op.stress`). Before timing, a provider is called on the timed inputs with one row for each
change, or once for each change if there are too few rows, and these rows are compared with the fp64
reference. A smaller case would be cheaper, but `torch.compile` and Triton would compile again, and
a kernel may use another algorithm for it.

fp8 and integers have no hard inputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.harness.data import verify
from bench.harness.data.checks import STALE
from bench.harness.data.inputs import InputSet
from bench.harness.data.verify import Checks
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

Change = Callable[..., object]
"""`change(*inputs)` changes the inputs of one row in place; each has an axis of one row, unless all
rows share it.
"""

STRETCH = 2**16
"""Numbers that `absorb` changes."""


def each(change: Callable[[Tensor], object]) -> Change:
    """Return a change of the first input and of others with its shape, such as a residual."""

    def changed(*inputs: Tensor) -> None:
        for x in inputs:
            if x.shape == inputs[0].shape:
                change(x)

    return changed


def filled(value: float) -> Change:
    return each(lambda x: x.fill_(value))


def shifted(offset: float) -> Change:
    return each(lambda x: x.add_(offset))


def scaled(factor: float, in_fp16: float | None = None) -> Change:
    """Return a multiplication by `factor`, or by `in_fp16`, whose largest number is 65,504."""

    def change(x: Tensor) -> None:
        import torch

        is_narrow = x.dtype == torch.float16 and in_fp16 is not None
        x.mul_(in_fp16 if is_narrow else factor)

    return each(change)


def one(value: float) -> Change:
    """Return a change of the middle number of a row."""
    return each(lambda x: x[..., x.shape[-1] // 2].fill_(value))


def every_other(value: float) -> Change:
    return each(lambda x: x[..., 1::2].fill_(value))


@each
def largest(x: Tensor) -> None:
    import torch

    x.fill_(torch.finfo(x.dtype).max)


@each
def lowest(x: Tensor) -> None:
    import torch

    x.fill_(torch.finfo(x.dtype).min)


@each
def extremes(x: Tensor) -> None:
    """Write the largest number of the dtype first and the lowest last."""
    import torch

    x[..., 0] = torch.finfo(x.dtype).max
    x[..., -1] = torch.finfo(x.dtype).min


@each
def one_differs(x: Tensor) -> None:
    """Fill with 1000, but for one 1004: the variance is far below the rounding of the squares."""
    x.fill_(1000.0)
    x[..., 0] = 1004.0


def absorb(x: Tensor, *others: Tensor) -> None:
    """Write 2^13 and -2^13 in turn with 127 times 1/4 between them, and factors of 1.

    In 16 bits the small ones are lost in partial sums. The sum of all stays below 65,504, because
    torch stores the sums of its threads in 16 bits.
    """
    for factor in others:
        factor[:STRETCH] = 1.0
    x[:STRETCH] = 0.25
    x[:STRETCH:256] = 2.0**13
    x[128:STRETCH:256] = -(2.0**13)


def offset_scores(q: Tensor, keys: Tensor, values: Tensor) -> None:
    """Add 2^12 to all products of queries and keys, of which softmax takes the exponentials."""
    q[..., 0] = 2.0**12
    keys[..., 0] = 1.0


NAN = {"NaN": one(math.nan)}

LOGITS = {
    "equal": filled(33.3),
    "offset 1000": shifted(1000.0),
    "offset -1000": shifted(-1000.0),
    "times 1000": scaled(1000.0),
    "every other -inf": every_other(-math.inf),
    "largest and lowest": extremes,
    **NAN,
}
"""For rows whose exponentials are summed."""

FACTORS = {"large": scaled(2.0**20, in_fp16=2.0**6), **NAN}
"""For rows that are multiplied with a matrix. In fp16 the result stays below 65,504."""

NUMBERS: dict[str, Change] = {
    "30": filled(30.0),
    "-30": filled(-30.0),
    "1000": filled(1000.0),
    "-1000": filled(-1000.0),
    "largest": largest,
    "lowest": lowest,
    **NAN,
}
"""For functions of single numbers."""


def problem(checks: Checks, call: Callable[[], Any], data: InputSet) -> str | None:
    """Call a provider on hard inputs, which are undone; return what is wrong, or None."""
    import torch

    op = checks.op
    if not data.inputs[0].is_floating_point() or data.inputs[0].itemsize == 1:
        return None
    later = copy.copy(checks)  # the time and the result of the first call stay
    names = list(op.stress)
    rows = op.rows(checks.case) if op.take_rows else 1
    for start in range(0, len(names), rows):
        found = _problem_of(names[start : start + rows], later, call, data)
        is_new = later.result is not checks.result
        if found and is_new and torch.equal(later.result, checks.result):
            return STALE
        if found:
            return found
    return None


def _problem_of(
    names: list[str], checks: Checks, call: Callable[[], Any], data: InputSet
) -> str | None:
    """Call a provider with one row for each name."""
    op = checks.op
    changed, _ = _rows(op, data.inputs, data.out, slice(0, len(names)))
    before = [x.clone() for x in changed]
    for row, name in enumerate(names):
        inputs, _ = _rows(op, data.inputs, data.out, slice(row, row + 1))
        op.stress[name](*inputs)
    verify.poison(data.out)
    found = checks.run(call, data)
    for row, name in enumerate(names):
        if found is None:
            part = _rows(op, data.inputs, checks.result, slice(row, row + 1))
            found = _difference(op, checks.case, *part)
            found = found and f"wrong result on hard inputs ({name}): {found}"
    for x, values in zip(changed, before, strict=True):
        x.copy_(values)
    return found


def _rows(
    op: Op, inputs: tuple[Tensor, ...], out: Tensor, rows: slice
) -> tuple[tuple[Tensor, ...], Tensor]:
    return op.take_rows(inputs, out, rows) if op.take_rows else (inputs, out)


def _difference(op: Op, case: Case, inputs: tuple[Tensor, ...], out: Tensor) -> str | None:
    """Compare with the reference; NaN must be NaN, and numbers beyond the dtype infinite."""
    ratio, truth, got = verify.ratios(op, case, inputs, out)
    is_same = (got == truth.to(out.dtype)) | (got.isnan() & truth.isnan())
    ratio = ratio.masked_fill(is_same, 0.0).nan_to_num(math.inf, math.inf).reshape(-1)
    at = int(ratio.argmax())
    if float(ratio[at]) <= op.tolerance:
        return None
    expected = float(truth.reshape(-1)[at])
    return f"expected {expected:.6g}, got {float(got.reshape(-1)[at]):.6g}"
