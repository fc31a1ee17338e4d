"""Verification: a provider's result against the same computation in fp64, element by element.

The bound on the error of an element is the sum of:

    4 u |ref|                        rounding of the result to its dtype, a few times
    4 u rms(ref)                     if terms are summed: libraries may round partial sums to the
                                     dtype
    8 sqrt(K) u_acc norm(terms)      accumulating K terms in fp32 (fp64 for fp64)
    4 u_p |ref| + 8 u_p norm(terms)  rounding the factors of each product to tf32
    8 u_acc magnitude                instead of all with terms, if the op has its own `magnitude`
    2 R u norm(terms)                R intermediate roundings to the dtype; divided by sqrt(K) for a
                                     `magnitude`
    s                                rounding of a result below the normal numbers of its dtype

with u the unit roundoff of the output dtype, norm the root of the sum of squares and s the distance
of subnormal numbers, which occur in softmax over a large vocabulary in fp16. Inputs are random with
mean 0, so the partial sums of K terms grow like a random walk, and the error of one long chain of K
additions is only u_acc sqrt(K / 2) norm(terms), a tenth of the bound. A bound by the sum of |terms|
would hold for any inputs, but accept any result of a dot product of 16 million elements. Source:
Higham and Mary, A new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41
(2019) A2815.

A wrong scale of half a percent is below the bf16 bound on single elements, so the projection of the
result on the rounded reference must also be 1 within one unit roundoff. A random result, as of
dropout, has no reference: its op checks conditions that hold for every result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from bench.harness import clock
from bench.harness.data.inputs import InputSet
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device
    from bench.harness.op import Launch

UNIT_ROUNDOFF = {
    "fp64": 2.0**-53,
    "fp32": 2.0**-24,
    "tf32": 2.0**-24,  # the result is stored as fp32
    "fp16": 2.0**-11,
    "bf16": 2.0**-8,
    "int32": 0.0,
}
"""Half the distance from 1 to the next larger number of an output dtype, the largest relative error
of rounding.

Source: IEEE 754-2019 table 3.5; bf16 has 7 stored bits of fraction."""

ACCUMULATOR_ROUNDOFF = {"fp64": 2.0**-53, "int8": 0.0}
"""Unit roundoff of sums if it is not that of fp32."""

PRODUCT_ROUNDOFF = {"tf32": 2.0**-11}
"""Unit roundoff of the factors of a product if they are rounded first; tf32 has 10 stored bits of
fraction.
"""

FP32_ROUNDOFF = 2.0**-24

CHUNK_ELEMENTS = 2**18
"""Elements compared at a time: 2 MiB in fp64, which fit in a CPU's caches; four times as many take
twice as long.
"""

GPU_CHUNKS = 16
"""Factor on `CHUNK_ELEMENTS` for a GPU: the host waits for the result of each part."""

SCALE_ELEMENTS = 1024
"""Minimum number of elements to check the scale of a result: rounding errors average out."""

LEAST_SCALE_ERROR = 1e-3
"""Scale error that is always accepted: polynomial approximations and tf32 products err by less, in
one direction.
"""

FULL_CHECK_FLOPS = {"cpu": 2**31, "cuda": 2**39}
"""FLOPs above which only every n-th row of a matmul is checked, by torch's device type: fp64 is
slow. Any n up to 64 still checks every tile of 64 rows."""


@dataclass(frozen=True)
class CheckResult:
    """Whether a result is right, and its error."""

    is_right: bool
    reason: str | None
    max_error_of_bound: float
    """Largest error over its bound; 1 is the limit. NaN without a reference."""
    checked_elements: int
    elements: int
    reference: str = "fp64"
    """`fp64`, or `rule`: the op's own `check_result`."""
    wrong: dict[str, Any] | None = None
    """Number of wrong elements, index and values of the worst; None unless single elements are
    wrong.
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object saved under `verified`, with null or text for infinity and NaN."""
        keys = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("is_right", "reason")
        }
        if not math.isfinite(self.max_error_of_bound):
            keys["max_error_of_bound"] = None
        if keys["wrong"] is None:
            del keys["wrong"]
        elif not math.isfinite(keys["wrong"]["got"]):
            keys["wrong"]["got"] = str(keys["wrong"]["got"])
        return keys


def poison(out: Tensor) -> None:
    """Fill an output with NaN or a rare integer, so that elements that are not written show."""
    out.fill_(float("nan") if out.dtype.is_floating_point else -(2**30) - 7)


def sum_roundings(terms: int) -> float:
    """Return the relative error allowed for a sum of positive terms, in the unit of `Op.magnitude`,
    8 u_acc.

    It is 3.5 times u_acc sqrt(K / 3), the error of one long chain. It finds 64 missing columns of
    262,144.
    """
    return math.sqrt(terms) / 4


def check(
    op: Op, case: Case, data: InputSet, result: Tensor, earlier: Launch | None = None
) -> CheckResult:
    """Compare the result of a launch on `data` with the fp64 reference, or use the op's own check.

    A random result must differ from the `earlier` launch on other inputs.
    """
    if result.shape != data.out.shape or result.dtype != data.out.dtype:
        got = f"{tuple(result.shape)} {result.dtype}"
        wanted = f"{tuple(data.out.shape)} {data.out.dtype}"
        return CheckResult(
            False, f"wrong result: {got} instead of {wanted}", math.inf, 0, data.out.numel()
        )
    if op.check_result is not None:
        problem = op.check_result(case, (data.inputs, result), earlier)
        reason = f"wrong result: {problem}" if problem else None
        return CheckResult(reason is None, reason, math.nan, result.numel(), result.numel(), "rule")
    return _compared(op, case, data.inputs, result)


@dataclass
class Checks:
    """Verifies calls of built-in providers, whose code is known."""

    op: Op
    case: Case
    device: Device
    call_s: float = field(init=False, default=0.0)
    """Seconds from the last call to its finished result."""
    result: Tensor = field(init=False)
    """Result of the last call."""

    def check(
        self, call: Callable[[], Any], data: InputSet, earlier: Launch | None = None
    ) -> CheckResult:
        """Check a call on a poisoned output. The result is the returned tensor or stacked tuple,
        else the output.
        """
        import torch

        start = clock.now()
        poison(data.out)
        returned = call()
        self.device.synchronize()
        if isinstance(returned, tuple):
            returned = torch.stack(returned)
        self.result = returned if isinstance(returned, torch.Tensor) else data.out
        self.call_s = clock.now() - start
        return check(self.op, self.case, data, self.result, earlier)

    last = check
    """The check after timing."""


def _compared(op: Op, case: Case, inputs: tuple[Tensor, ...], result: Tensor) -> CheckResult:
    """Compare a result with the reference, part by part, and the scale of each output."""
    import torch

    worst = 0.0
    checked = 0
    count = 0
    wrong: dict[str, Any] | None = None
    sums = torch.zeros(2, op.outputs, dtype=torch.float64)
    for rows in _rows_to_check(op, case, result):
        part_inputs, part = op.take_rows(inputs, result, rows) if op.take_rows else (inputs, result)
        ratio, truth, got = _ratios(op, case, part_inputs, part)
        checked += part.numel()
        # The reference is rounded too, because the rounding of equal elements would look like a
        # wrong scale.
        off = (got - truth.to(part.dtype)).mul_(truth)
        sums += torch.stack(
            [values.reshape(op.outputs, -1).sum(1) for values in (off, truth.square())]
        ).cpu()
        largest = float(ratio.max())  # NaN if an element is
        if not largest <= op.tolerance:
            flat = ratio.reshape(-1).nan_to_num(math.inf, math.inf)
            count += int((flat > op.tolerance).sum())
            at = int(flat.argmax())
            largest = float(flat[at])
            if largest > worst:
                expected = float(truth.reshape(-1)[at])
                actual = float(got.reshape(-1)[at])
                wrong = {
                    "index": _index_of(op, inputs, result, rows, at),
                    "expected": expected,
                    "got": actual,
                }
        worst = max(worst, largest)
    scale_error = max(abs(dot / square) if square else 0.0 for dot, square in sums.T.tolist())
    allowed_scale_error = op.tolerance * max(
        UNIT_ROUNDOFF[op.output_dtype(case.dtype)], LEAST_SCALE_ERROR
    )
    reason = None
    if wrong:
        how = f"{worst:.3g} times further from the fp64 reference than rounding explains"
        if worst == math.inf:
            how = "NaN, infinite, or different although nothing is rounded"
        where = f"expected {expected:.6g} at {wrong['index']}, got {actual:.6g}"
        many = f"{count:,} of {checked:,} elements {'is' if count == 1 else 'are'} wrong"
        reason = f"wrong result: an element is {how}; {where}; {many}"
        wrong = {"count": count, "checked": checked} | wrong
    elif checked >= SCALE_ELEMENTS and scale_error > allowed_scale_error:
        reason = f"wrong result: off by {scale_error:.2%} on the whole, more than rounding explains"
    return CheckResult(reason is None, reason, worst, checked, result.numel(), wrong=wrong)


def _index_of(
    op: Op, inputs: tuple[Tensor, ...], result: Tensor, rows: slice, at: int
) -> list[int]:
    import torch

    numbers = torch.arange(result.numel(), device=result.device).view(result.shape)
    numbers = op.take_rows(inputs, numbers, rows)[1] if op.take_rows else numbers
    return [
        int(index) for index in torch.unravel_index(numbers.reshape(-1)[at].cpu(), result.shape)
    ]


def _rows_to_check(op: Op, case: Case, out: Tensor) -> Iterator[slice]:
    """Yield chunks of all rows, or of every n-th row if all would take too long."""
    if op.take_rows is None:
        yield slice(None)
        return
    rows = op.rows(case)
    terms = op.terms(case)
    step = 1
    if terms != 1:
        all_flops = 2 * out.numel() * terms
        step = max(1, -(-all_flops // FULL_CHECK_FLOPS.get(out.device.type, 2**31)))
    elements = CHUNK_ELEMENTS * (1 if out.device.type == "cpu" else GPU_CHUNKS)
    chunk = max(1, elements // max(1, out.numel() // rows, terms)) * step
    for start in range(0, rows, chunk):
        yield slice(start, min(start + chunk, rows), step)
    if (rows - 1) % step:  # the last row is where the last tile ends
        yield slice(rows - 1, rows)


def widened(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the inputs in fp64, except labels, seeds and indices, which are int64 or int32."""
    import torch

    return tuple(x if x.dtype in (torch.int64, torch.int32) else x.double() for x in inputs)


def _ratios(
    op: Op, case: Case, inputs: tuple[Tensor, ...], out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ratio of each element's error to its bound, the reference, and the result in fp64.

    fp64 copies of the inputs are squared in place, because B of a large matmul and its square would
    not both fit.
    """
    import torch

    wide = widened(inputs)
    truth = op.reference(*wide)
    got = out.double()
    terms = op.terms(case)
    unit = UNIT_ROUNDOFF[op.output_dtype(case.dtype)]
    accumulator = ACCUMULATOR_ROUNDOFF.get(case.dtype, FP32_ROUNDOFF)
    product = PRODUCT_ROUNDOFF.get(case.dtype, 0.0)
    rounded = 2 * op.intermediate_roundings * unit
    if op.magnitude is not None:
        size = op.magnitude(truth, *wide)
        bound = truth.abs().mul_(4 * unit) + (8 * accumulator + rounded / math.sqrt(terms)) * size
    else:
        if terms > 1:
            squares = (
                x.square() if x is own else x.square_() for x, own in zip(wide, inputs, strict=True)
            )
            size = op.reference(*squares).sqrt_()
        else:
            size = truth.abs()
            for x in wide:
                size = size + x.abs()
        bound = truth.abs().mul_(4 * (unit + product))
        bound = bound + (8 * (math.sqrt(terms) * accumulator + product) + rounded) * size
        if terms > 1:
            bound = bound + 4 * unit * truth.square().mean().sqrt()
    if out.dtype.is_floating_point:
        bound.add_(torch.finfo(out.dtype).tiny * torch.finfo(out.dtype).eps)
    # Equal values need no bound (0 against 0, an exact integer, inf against inf); NaN and inf stay
    # visible.
    return ((got - truth).abs_() / bound).masked_fill_(got == truth, 0.0), truth, got
