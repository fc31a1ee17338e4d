"""Verification: a provider's result against the same computation in fp64, element by element.

The bound on an element is what correct arithmetic may lose and no more:

    4 u |ref|                        rounding of the result to its dtype, a few times over
    4 u rms(ref)                     where terms are summed: libraries may round partial sums to the dtype
    8 sqrt(K) u_acc norm(terms)      accumulating K terms in fp32 (fp64 for fp64)
    4 u_p |ref| + 8 u_p norm(terms)  rounding the factors of each product to tf32
    8 u_acc magnitude                in place of what concerns terms, where the op gives its own `magnitude`
    2 R u norm(terms)                R roundings to the dtype on the way; of a `magnitude`, its share by sqrt(K)
    s                                rounding of a result below the normal numbers of its dtype

with u the unit roundoff of the output dtype, norm the root of the sum of squares and s the distance of subnormal
numbers, which softmax over a large vocabulary in fp16 meets. Inputs are random with mean 0,
so the partial sums of K terms grow like a random walk, and even one long chain of K additions is off by
u_acc sqrt(K / 2) norm(terms) only: a tenth of the bound. The sum of |terms| in place of the norm would hold for any
inputs, and would let a dot of 16 million elements pass whatever the result. Source of the square root: Higham and
Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41 (2019) A2815.

A sum of K positive terms, as below a norm or a softmax, has a relative error of u_acc sqrt(K / 3) in one long chain;
`sum_roundings` allows 3.5 times that, so that 64 columns of a vocabulary of 262,144 that are forgotten show.

A wrong scale of half a percent hides below a bf16 bound on single elements, so the projection of the result on the
reference, rounded as it should be, is held to 1 within one unit roundoff too.

A random result, as of dropout, has no reference: its op checks what must hold of every result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.harness.data.inputs import InputSet
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.op import Launch

UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-24,  # the result is stored as fp32
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int32": 0.0,
}
"""Half the distance from 1 to the next larger number of an output dtype, the largest relative error of rounding.

Source: IEEE 754-2019 table 3.5; bf16 has 7 stored bits of fraction."""

ACCUMULATOR_ROUNDOFF = {"fp64": 2.0**-53, "int8": 0.0}
"""Unit roundoff of sums where it is not that of fp32."""

PRODUCT_ROUNDOFF = {"tf32": 2.0**-11}
"""Unit roundoff of the factors of a product where they are rounded first; tf32 has 10 stored bits of fraction."""

FP32_ROUNDOFF = 2.0**-24
CHUNK_ELEMENTS = 2**18
"""Elements compared at once: 2 MiB in fp64, so that memory once touched is used again and stays in a CPU's caches; four
times as many take twice as long there, a gigabyte several times."""

GPU_CHUNKS = 16
"""Factor by which a GPU compares more elements at once: the host waits for the result of each piece."""

SCALE_ELEMENTS = 1024
"""Elements from which on rounding errors average out, so that the scale of a result can be judged."""

LEAST_SCALE_ERROR = 1e-3
"""Largest scale error that is always accepted: polynomial approximations and tf32 products err by less, all in one
direction."""

FULL_CHECK_FLOPS = {"cpu": 2**31, "cuda": 2**39}
"""FLOPs above which only every n-th row of a product is checked, by torch's device type: fp64 is slow. Every tile of 64
rows is still hit by any n up to 64."""


@dataclass(frozen=True)
class WrongElements:
    """How many elements of a result are wrong, and the one with the largest error over its bound."""

    count: int
    checked: int
    index: tuple[int, ...]
    """In the shape of the result."""
    expected: float
    got: float
    """May be NaN or infinite."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; JSON has no NaN and no infinity, so these are text."""
        got = self.got if math.isfinite(self.got) else str(self.got)
        return asdict(self) | {"index": list(self.index), "got": got}

    def __str__(self) -> str:
        """Return all of it in one line."""
        verb = "is" if self.count == 1 else "are"
        return (
            f"at {list(self.index)} {self.expected:.6g} is expected, {self.got:.6g} found; "
            f"{self.count:,} of {self.checked:,} elements {verb} wrong"
        )


@dataclass(frozen=True)
class CheckResult:
    """Whether a result is right, and how far off it is."""

    is_right: bool
    reason: str | None
    max_error_of_bound: float
    """Largest error over its bound; 1 is the limit. NaN where there is no reference."""
    checked_elements: int
    elements: int
    reference: str = "fp64"
    """`fp64`, or `rule`: the op's own `check_result`."""
    wrong: WrongElements | None = None
    """None if the finding is not about single elements."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object kept under `verified`; JSON has no infinity, so an error beyond any bound is null."""
        return {
            "reference": self.reference,
            "max_error_of_bound": self.max_error_of_bound if math.isfinite(self.max_error_of_bound) else None,
            "checked_elements": self.checked_elements,
            "elements": self.elements,
        } | ({} if self.wrong is None else {"wrong": self.wrong.to_dict()})


def poison(out: Tensor) -> None:
    """Fill an output with NaN or a rare integer, neither of which is a result, so that what is not written shows."""
    out.fill_(float("nan") if out.dtype.is_floating_point else -(2**30) - 7)


def run_poisoned(call: Callable[[], object], out: Tensor, synchronize: Callable[[], None]) -> Tensor:
    """Run `call` on a poisoned output.

    Returns:
        What the call returned if it is a tensor, stacked if it is several, else `out`.
    """
    import torch

    poison(out)
    result = call()
    synchronize()
    if isinstance(result, tuple):
        result = torch.stack(result)
    return result if isinstance(result, torch.Tensor) else out


def sum_roundings(terms: int) -> float:
    """Return the relative error that a sum of positive terms may have, in the unit of `Op.magnitude`, 8 u_acc."""
    return math.sqrt(terms) / 4


def check(op: Op, case: Case, data: InputSet, result: Tensor, earlier: Launch | None = None) -> CheckResult:
    """Compare the result of one launch with the fp64 reference on the same inputs.

    Args:
        op: gives the reference and what its errors are proportional to, or its own check.
        case: the dtype sets the bounds.
        data: the inputs of the launch; its `out` gives shape and dtype that the result must have.
        result: what the provider computed.
        earlier: inputs and result of a launch on other inputs; what is random must differ from it.
    """
    if result.shape != data.out.shape or result.dtype != data.out.dtype:
        found, wanted = f"{tuple(result.shape)} {result.dtype}", f"{tuple(data.out.shape)} {data.out.dtype}"
        return CheckResult(False, f"wrong result: {found} instead of {wanted}", float("inf"), 0, data.out.numel())
    if op.check_result is not None:
        against_the_rule = op.check_result(case, (data.inputs, result), earlier)
        reason = f"wrong result: {against_the_rule}" if against_the_rule else None
        return CheckResult(reason is None, reason, math.nan, result.numel(), result.numel(), "rule")
    worst, checked, dots, squares = 0.0, 0, [0.0] * op.outputs, [0.0] * op.outputs
    for inputs, part in _parts(op, case, data.inputs, result):
        ratio, projections = _compare(op, case, inputs, part)
        worst, checked = max(worst, ratio), checked + part.numel()
        for index, (dot, square) in enumerate(projections):
            dots[index] += dot
            squares[index] += square
    scale_error = max(abs(dot / square) if square else 0.0 for dot, square in zip(dots, squares, strict=True))
    allowed_scale_error = op.tolerance * max(UNIT_ROUNDOFF[op.output_dtype(case.dtype)], LEAST_SCALE_ERROR)
    reason = None
    wrong = None if worst <= op.tolerance else _wrong_elements(op, case, data.inputs, result)
    if worst == math.inf:
        reason = "wrong result: an element is NaN, infinite, or off where no rounding takes place"
    elif not worst <= op.tolerance:
        reason = f"wrong result: an element is {worst:.3g} times further from the fp64 reference than rounding explains"
    elif checked >= SCALE_ELEMENTS and scale_error > allowed_scale_error:
        reason = f"wrong result: off by {scale_error:.2%} on the whole, more than rounding explains"
    if wrong is not None:
        reason = f"{reason}; {wrong}"
    return CheckResult(reason is None, reason, worst, checked, result.numel(), wrong=wrong)


def _wrong_elements(op: Op, case: Case, inputs: tuple[Tensor, ...], result: Tensor) -> WrongElements:
    """Compare a wrong result once more, and return its wrong elements."""
    import torch

    numbers = torch.arange(result.numel(), device=result.device).view(result.shape)
    count = checked = 0
    worst, number, expected, got = -1.0, 0, math.nan, math.nan
    parts = _parts(op, case, inputs, result), _parts(op, case, inputs, numbers)
    for (part_inputs, part), (_, part_numbers) in zip(*parts, strict=True):
        ratio, truth, found = (x.reshape(-1) for x in _ratios(op, case, part_inputs, part))
        ratio = ratio.nan_to_num(math.inf, math.inf)
        count, checked = count + int((ratio > op.tolerance).sum()), checked + len(ratio)
        at = int(ratio.argmax())
        if float(ratio[at]) > worst:
            worst, number = float(ratio[at]), int(part_numbers.reshape(-1)[at])
            expected, got = float(truth[at]), float(found[at])
    index = tuple(int(place) for place in torch.unravel_index(torch.tensor(number), result.shape))
    return WrongElements(count, checked, index, expected, got)


def _parts(op: Op, case: Case, inputs: tuple[Tensor, ...], out: Tensor) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
    """Yield the rows to check, as many at a time as fit: all rows, or every n-th where all would take too long."""
    if op.take_rows is None:
        yield inputs, out
        return
    rows = op.rows(case)
    sums = 2 * out.numel() * op.terms(case)
    step = 1 if op.terms(case) == 1 else max(1, -(-sums // FULL_CHECK_FLOPS.get(out.device.type, 2**31)))
    elements = CHUNK_ELEMENTS * (1 if out.device.type == "cpu" else GPU_CHUNKS)
    chunk = max(1, elements // max(1, out.numel() // rows, op.terms(case))) * step
    for start in range(0, rows, chunk):
        yield op.take_rows(inputs, out, slice(start, min(start + chunk, rows), step))
    if (rows - 1) % step:  # the last row is where the last tile ends
        yield op.take_rows(inputs, out, slice(rows - 1, rows))


def widened(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the inputs in fp64; labels, seeds and places, which are int64 or int32, are exact as they are."""
    import torch

    return tuple(x if x.dtype in (torch.int64, torch.int32) else x.double() for x in inputs)


def _compare(op: Op, case: Case, inputs: tuple[Tensor, ...], out: Tensor) -> tuple[float, list[tuple[float, float]]]:
    """Return the largest error over its bound, and for each output <out - ref, ref> and <ref, ref>.

    In the product, ref is rounded to the dtype of the output first: what rounding alone does to a result whose
    elements are all alike would look like a wrong scale.
    """
    import torch

    ratio, truth, found = _ratios(op, case, inputs, out)
    worst = float(ratio.max())  # NaN where an element is
    off = (found - truth.to(out.dtype)).mul_(truth)
    sums = torch.stack([values.reshape(op.outputs, -1).sum(1) for values in (off, truth.square())])
    return math.inf if math.isnan(worst) else worst, [(dot, square) for dot, square in sums.T.tolist()]


def _ratios(op: Op, case: Case, inputs: tuple[Tensor, ...], out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the error of each element over its bound, the reference, and the result in fp64."""
    import torch

    wide = widened(inputs)
    truth, found = op.reference(*wide), out.double()
    bound = _bound(op, case, inputs, wide, truth)
    if out.dtype.is_floating_point:
        bound.add_(torch.finfo(out.dtype).tiny * torch.finfo(out.dtype).eps)
    # Equal values need no bound (0 against 0, an exact integer, inf against inf); NaN and inf stay visible.
    return ((found - truth).abs_() / bound).masked_fill_(found == truth, 0.0), truth, found


def _bound(op: Op, case: Case, inputs: tuple[Tensor, ...], wide: tuple[Tensor, ...], truth: Tensor) -> Tensor:
    """Return the bound of each element.

    The inputs in fp64 are squared where they are, unless they are the inputs themselves: B of a large matmul and its
    square would not fit beside each other.
    """
    terms, unit = op.terms(case), UNIT_ROUNDOFF[op.output_dtype(case.dtype)]
    accumulator, product = ACCUMULATOR_ROUNDOFF.get(case.dtype, FP32_ROUNDOFF), PRODUCT_ROUNDOFF.get(case.dtype, 0.0)
    if op.magnitude is not None:
        size = op.magnitude(truth, *wide)
        rounded = 2 * op.intermediate_roundings * unit / math.sqrt(terms)
        return truth.abs().mul_(4 * unit) + (8 * accumulator + rounded) * size
    if terms > 1:
        squares = (x.square() if x is own else x.square_() for x, own in zip(wide, inputs, strict=True))
        size = op.reference(*squares).sqrt_()
    else:
        size = truth.abs()
        for x in wide:
            size = size + x.abs()
    bound = truth.abs().mul_(4 * (unit + product))
    bound = bound + (8 * (math.sqrt(terms) * accumulator + product) + 2 * op.intermediate_roundings * unit) * size
    return bound + 4 * unit * truth.square().mean().sqrt() if terms > 1 else bound
