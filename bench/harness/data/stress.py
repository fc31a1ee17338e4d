"""Hard inputs: numbers that formulas which overflow, cancel or lose NaN get wrong.

A softmax without its maximum is right for random numbers. Each op names changes of a row of its
inputs (`Op.stress`). Before timing, a provider is called on the timed inputs with one row for each
change, or once for each change if there are too few rows, and these rows are compared with the fp64
reference. A smaller case would be cheaper, but `torch.compile` and Triton would compile again, and
a kernel may use another algorithm for it.

fp8 has no hard inputs, and integers have those of `Op.integer_stress`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from bench.harness.data import verify
from bench.harness.data.inputs import InputSet
from bench.harness.data.verify import Checks
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

Change = Callable[..., object]
"""`change(*inputs)` changes the inputs of one row in place; each has an axis of one row, unless all
rows share it.
"""

STALE = "returns the result of an earlier call: the inputs changed, the result did not"

STRETCH = 2**16
"""Numbers that `absorb` changes."""


def each(change: Callable[[Tensor], object]) -> Change:
    """Return a change of the first input and of others with its shape, such as a residual."""

    def changed(*inputs: Tensor) -> None:
        for x in inputs:
            if x.shape == inputs[0].shape:
                change(x)

    return changed


@each
def extremes(x: Tensor) -> None:
    """Write the lowest number of the dtype first and in the middle, and the largest last."""
    x[..., 0] = -math.inf
    x[..., x.shape[-1] // 2] = -math.inf
    x[..., -1] = math.inf
    x.nan_to_num_()  # infinity becomes the largest number


@each
def one_differs(x: Tensor) -> None:
    """Write 1000, and one 1004: the variance is far below the rounding of the squares."""
    x.fill_(1000.0)
    x[..., 0] = 1004.0


@each
def enlarge(x: Tensor) -> None:
    """Multiply by 2^32, in fp16 by 16: sums of products stay in the dtype."""
    import torch

    x.mul_(torch.finfo(x.dtype).max ** 0.25)


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


OUTWARDS = [2 * i * (-1.0) ** i for i in range(1, 17)]
"""Integers, of which sums are exact in any order. A sum without some of the last ones is off by at
least 2, more than a bf16 sum of all may be. Beside the exponential of the largest, 32, those of
many zeros are lost, as torch sums them.
"""


@each
def only_ends(x: Tensor) -> None:
    """Write `OUTWARDS` up to the last number and, reversed, from the first one on, and 0 between.

    The error allowed for a sum of many random numbers may be larger than one of them.
    """
    import torch

    ends = torch.tensor(OUTWARDS[-x.shape[-1] :], dtype=x.dtype).to(x.device)
    x.zero_()
    x[..., : len(OUTWARDS)] = ends.flip(0)
    x[..., -len(OUTWARDS) :] = ends


def offset_scores(
    query: float, key: float, key_at_ends: float, q: Tensor, keys: Tensor, values: Tensor
) -> None:
    """Add `query` times `key` to the products of queries with keys, of which softmax takes the
    exponentials, but `query` times `key_at_ends` for the first and the last key. It is the last
    term of a product, so that the others are not rounded to its size one by one.
    """
    q[..., -1] = query
    keys[..., -1] = key
    keys[..., [0, -1], -1] = key_at_ends


ANY_ROW: dict[str, Change] = {
    "only the ends": only_ends,
    "NaN": each(lambda x: x[..., x.shape[-1] // 2].fill_(math.nan)),
}

LOGITS = {
    "equal": each(methodcaller("fill_", 33.3)),
    "offset 1000": each(methodcaller("add_", 1000.0)),
    "offset -1000": each(methodcaller("add_", -1000.0)),
    "every other -inf": each(lambda x: x[..., 1::2].fill_(-math.inf)),
    "largest and lowest": extremes,
    **ANY_ROW,
}
"""For rows whose exponentials are summed."""

SCORES = {
    "scores offset": partial(offset_scores, 2.0**12, 1.0, 1.0),
    "scores offset down": partial(offset_scores, 2.0**12, -1.0, -1.0),
    "only the ends": partial(offset_scores, 2.0**8, 0.0, 1.0),
}
"""For attention."""

FACTORS = {"small": each(methodcaller("mul_", 2.0**-12)), "large": enlarge, **ANY_ROW}
"""For rows that are multiplied with a matrix. Large ones are beyond fp16 in other dtypes."""

NUMBERS: dict[str, Change] = {
    "times 8": each(methodcaller("mul_", 8.0)),
    "-3.5": each(methodcaller("fill_", -3.5)),
    "1000": each(methodcaller("fill_", 1000.0)),
    "-1000": each(methodcaller("fill_", -1000.0)),
    "lowest": each(lambda x: x.fill_(-math.inf).nan_to_num_()),
    **ANY_ROW,
}
LARGEST: dict[str, Change] = {"largest": each(lambda x: x.fill_(math.inf).nan_to_num_())}
QUARTER: dict[str, Change] = {
    "a quarter of the largest": each(lambda x: x.fill_(math.inf).nan_to_num_().mul_(0.25))
}
"""For functions of single numbers. A quarter is for GELU, of a sum of two: oneDNN, torch's library
on CPUs with AVX-512, takes 2x before it halves that.
"""


def problem(checks: Checks, call: Callable[[], Any], data: InputSet) -> str | None:
    """Call a provider on hard inputs, which are undone; return what is wrong, or None."""
    op = checks.op
    if not data.inputs:
        return None
    first = data.inputs[0]
    changes = op.stress if first.is_floating_point() else op.integer_stress
    if first.is_floating_point() and first.itemsize == 1:
        return None
    later = copy.copy(checks)  # the time and the result of the first call stay
    rows = op.rows(checks.case) if op.take_rows else 1
    left = list(changes.items())
    found = None
    while left and found is None:
        taken = left[:rows]
        left = left[rows:]
        changed, _ = op.part(data.inputs, data.out, slice(0, len(taken)))
        if op.stress_all:
            changed = data.inputs
        before = [x.clone() for x in changed]
        if op.stress_all:
            op.stress_all(*changed)
        for row, (_, change) in enumerate(taken):
            inputs, _ = op.part(data.inputs, data.out, slice(row, row + 1))
            change(*inputs)
        verify.poison(data.out)
        found = later.run(call, data)
        for row, (name, _) in enumerate(taken):
            part = op.part(data.inputs, later.result, slice(row, row + 1))
            found = found or _difference(name, op, checks.case, *part)
        for x, values in zip(changed, before, strict=True):
            x.copy_(values)
    is_old = later.result is not checks.result and later.result.equal(checks.result)
    return STALE if found and is_old else found


def _difference(
    name: str, op: Op, case: Case, inputs: tuple[Tensor, ...], out: Tensor
) -> str | None:
    """Use the op's own check, or compare with the reference; NaN must be NaN, and numbers beyond
    the dtype infinite.
    """
    if op.check_result is not None:
        problem = op.check_result(case, (inputs, out), None)
        return f"wrong result on hard inputs ({name}): {problem}" if problem else None
    ratio, truth, got = verify.ratios(op, case, inputs, out)
    is_same = (got == truth.to(out.dtype)) | (got.isnan() & truth.isnan())
    worst = verify.worst_of(ratio.masked_fill(is_same, 0.0), truth, got)
    if worst.ratio <= op.tolerance:
        return None
    how = f"expected {worst.expected:.9g}, got {worst.got:.9g}"
    return f"wrong result on hard inputs ({name}): {how}"
