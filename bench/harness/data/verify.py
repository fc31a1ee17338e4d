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

All rows of a large product would take too long in fp64. Every n-th row is compared, from a random
one on, and all elements enter the sums of `_blocks`: for each row and 64 columns, the sum of the
elements with random signs is compared with A (B r), which costs 1/64 of the product. Source:
Freivalds, Probabilistic machines can use less running time, IFIP Congress 1977.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.harness import clock
from bench.harness.data.inputs import InputSet
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device
    from bench.harness.op import Inputs, Launch
    from bench.harness.timing.protocol import Samples

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

NORMAL_MEDIAN = 0.6745
"""Median of the absolute value of a normal variable, in standard deviations."""

SCALE_ELEMENTS = 1024
"""Minimum number of elements to check the scale of a result: rounding errors average out."""

LEAST_SCALE_ERROR = 1e-3
"""Scale error that is always accepted: polynomial approximations and tf32 products err by less, in
one direction.
"""

FULL_CHECK_FLOPS = {"cpu": 2**31, "cuda": 2**39}
"""FLOPs above which a product is compared in every n-th row and in sums of blocks, by torch's
device type: fp64 is slow."""

BLOCK_COLUMNS = 64
"""Columns of a block. The rounding of its sum grows with the root, the cost falls with the number;
over a whole row an error of one element would be below the rounding of the others."""

BLOCK_CHUNKS = 8
"""Factor on the rows that are compared at a time, for sums of blocks: they need less memory."""

BLOCK_DEVIATIONS = 6.0
"""Standard deviations that a sum of a block may be off: with rounding alone, one of 10^9 is."""

MAX_SPREAD = 4.0
"""Largest factor on the standard deviation by how much the sums spread: a library may round partial
sums to the dtype, and fp8 tensor cores add with 14 bits.

Source: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), section 3.3.2, for fp8."""


@dataclass(frozen=True)
class CheckResult:
    """What is wrong with a result, and its error."""

    reason: str | None
    """None: nothing is."""
    max_error_of_bound: float = math.nan
    """Largest error over its bound; 1 is the limit. NaN without a reference."""
    checked_elements: int = 0
    elements: int = 0
    reference: str = "fp64"
    """`fp64`, or `rule`: the op's own `check_result`."""
    wrong: dict[str, Any] | None = None
    """Number of wrong elements, index and values of the worst; None unless single elements are
    wrong.
    """
    blocks: dict[str, float] | None = None
    """Number of sums of blocks, and the smallest error of one element that they show, as a fraction
    of the RMS of the result; None if all elements were compared.
    """
    unverified: str | None = None
    """Why it was not verified on fresh contents, in a check that should."""

    @property
    def is_right(self) -> bool:
        return self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object saved under `verified`, with null or text for infinity and NaN."""
        keys = {name: value for name, value in asdict(self).items() if value is not None}
        keys.pop("reason", None)
        if not math.isfinite(self.max_error_of_bound):
            keys["max_error_of_bound"] = None
        if self.wrong and not math.isfinite(self.wrong["got"]):
            keys["wrong"]["got"] = str(self.wrong["got"])
        return keys


class Worst(NamedTuple):
    """The element of a result, or of a part, that is furthest off."""

    ratio: float = 0.0
    """Its error over its limit."""
    at: int = 0
    """Its place among all elements."""
    expected: Any = 0.0
    got: Any = 0.0


def worst_of(ratio: Tensor, expected: Tensor, got: Tensor) -> Worst:
    at = int(ratio.argmax())
    flat = [x.reshape(-1)[at].item() for x in (ratio, expected, got)]
    return Worst(flat[0], at, flat[1], flat[2])


def poison(out: Tensor) -> None:
    """Fill an output with NaN or a rare integer, so that elements that are not written show."""
    rare = -(2**30) - 7 if out.element_size() >= 4 else 1
    out.fill_(math.nan if out.is_floating_point() or out.is_complex() else rare)


def same_bytes(x: Tensor, other: Tensor) -> bool:
    import torch

    # Views of complex numbers may be conjugate or negative, others have strides.
    pair = [each.resolve_conj().resolve_neg().contiguous() for each in (x, other)]
    return torch.equal(*(each.view(-1).view(torch.uint8) for each in pair))


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
        return CheckResult(f"wrong result: {got} instead of {wanted}", elements=data.out.numel())
    if op.check_result is not None:
        problem = op.check_result(case, (data.inputs, result), earlier)
        reason = f"wrong result: {problem}" if problem else None
        return CheckResult(reason, math.nan, result.numel(), result.numel(), "rule")
    return compared(op, case, data.inputs, result)


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
    checked: CheckResult = field(init=False)
    """Of the last call."""
    _right: Tensor | None = field(init=False, default=None)
    """The result of the last check of an earlier visit."""

    def check(
        self,
        call: Callable[[], Any],
        data: InputSet,
        earlier: Launch | None = None,
        is_poisoned: bool = True,
    ) -> CheckResult:
        """Check a call; no elements are checked if there is a problem besides the values."""
        if is_poisoned:
            poison(data.out)
        problem = self.run(call, data, is_sampled=not is_poisoned)
        if problem is not None:
            return CheckResult(problem, elements=data.out.numel())
        self.checked = check(self.op, self.case, data, self.result, earlier)
        return self.checked

    def remember(self) -> None:
        """Keep the last result, which was right, for `last`."""
        self._right = self.result.clone()

    def run(self, call: Callable[[], Any], data: InputSet, is_sampled: bool = False) -> str | None:
        """Call a provider, with `is_sampled` a user's in a sample of the timer; return a problem
        besides the values of the result, or None.

        The result is the returned tensor or stacked tuple, else the output, or in inputs that are
        then restored.
        """
        import torch

        before = [x.clone() for x in data.inputs] if self.op.result_in else []
        start = clock.now()
        returned = call()
        self.device.synchronize()
        if isinstance(returned, tuple):
            returned = torch.stack(returned)
        self.result = returned if isinstance(returned, torch.Tensor) else data.out
        self.call_s = clock.now() - start
        if self.op.result_in:
            self.result = self.op.result_in(data.inputs)
            for x, values in zip(data.inputs, before, strict=True):
                x.copy_(values)
        return None

    def last(
        self, call: Callable[[], Any], data: InputSet, earlier: Launch | None, samples: Samples
    ) -> CheckResult:
        """Check a call after timing, which took `samples`.

        No reference is computed again for the same bytes as in an earlier visit.
        """
        if self._right is not None:
            poison(data.out)
            self.run(call, data)
            if same_bytes(self.result, self._right):
                return self.checked
        return self.check(call, data, earlier)


def compared(op: Op, case: Case, inputs: Inputs, result: Tensor) -> CheckResult:
    """Compare a result with the reference, part by part, and the scale of each output."""
    import torch

    worst = Worst()
    rows_of_worst = slice(None)
    checked = 0
    count = 0
    sums = torch.zeros(2, op.outputs, dtype=torch.float64)
    step = _step(op, case, result)
    blocks = _blocks(op, case, inputs, result) if step > 1 else None
    for rows in _rows_to_check(op, case, result, step, blocks):
        part_inputs, part = op.part(inputs, result, rows)
        ratio, truth, got = ratios(op, case, part_inputs, part)
        checked += part.numel()
        # The reference is rounded too, because the rounding of equal elements would look like a
        # wrong scale.
        off = (got - truth.to(part.dtype)).mul_(truth)
        sums += torch.stack(
            [values.reshape(op.outputs, -1).sum(1) for values in (off, truth.square())]
        ).cpu()
        worst_of_part = worst_of(ratio, truth, got)
        if worst_of_part.ratio > op.tolerance:
            count += int((ratio > op.tolerance).sum())
        if worst_of_part.ratio > worst.ratio:
            worst = worst_of_part
            rows_of_worst = rows
    scale_error = max(abs(dot / square) if square else 0.0 for dot, square in sums.T.tolist())
    allowed_scale_error = op.tolerance * max(
        UNIT_ROUNDOFF[op.output_dtype(case.dtype)], LEAST_SCALE_ERROR
    )
    largest = worst.ratio
    reason = None
    wrong = None
    if largest > op.tolerance:
        how = f"{largest:.3g} times further from the fp64 reference than rounding explains"
        if largest == math.inf:
            how = "NaN, infinite, or different although nothing is rounded"
        numbers = torch.arange(result.numel(), device=result.device).view(result.shape)
        _, numbers = op.part(inputs, numbers, rows_of_worst)
        index = list(
            map(int, torch.unravel_index(numbers.reshape(-1)[worst.at].cpu(), result.shape))
        )
        wrong = {
            "count": count,
            "checked": checked,
            "index": index,
            "expected": worst.expected,
            "got": worst.got,
        }
        where = f"expected {worst.expected:.6g} at {index}, got {worst.got:.6g}"
        many = f"{count:,} of {checked:,} elements {'is' if count == 1 else 'are'} wrong"
        reason = f"wrong result: an element is {how}; {where}; {many}"
    elif blocks and blocks.worst > op.tolerance:
        reason = (
            f"wrong result: a sum of {BLOCK_COLUMNS} columns of row {blocks.row} is "
            f"{blocks.worst:.3g} times further from A (B r) than rounding explains"
        )
        largest = blocks.worst
    elif checked >= SCALE_ELEMENTS and scale_error > allowed_scale_error:
        reason = f"wrong result: off by {scale_error:.2%} on the whole, more than rounding explains"
    seen = None
    if blocks and reason is None:
        seen = {"sums": blocks.sums, "smallest_error": blocks.smallest_error}
    return CheckResult(reason, largest, checked, result.numel(), wrong=wrong, blocks=seen)


def _step(op: Op, case: Case, out: Tensor) -> int:
    """Return n if every n-th row is compared: only where sums of blocks hold all elements."""
    if op.columns_of is None:
        return 1
    all_flops = 2 * out.numel() * op.terms(case)
    step = -(-all_flops // FULL_CHECK_FLOPS.get(out.device.type, 2**31))
    return max(1, min(step, op.rows(case)))


def _rows_to_check(
    op: Op, case: Case, out: Tensor, step: int, blocks: Blocks | None
) -> Iterator[slice]:
    """Yield chunks of every n-th row, and the row whose sums are furthest off."""
    if op.take_rows is None:
        yield slice(None)
        return
    rows = op.rows(case)
    chunk = _chunk_rows(op, case, out) * step
    for start in range(secrets.randbelow(step), rows, chunk):
        yield slice(start, min(start + chunk, rows), step)
    if blocks:
        yield slice(blocks.row, blocks.row + 1)


def chunk_elements(x: Tensor) -> int:
    """Return the number of elements that are compared at a time on the device of `x`."""
    return CHUNK_ELEMENTS * (1 if x.device.type == "cpu" else GPU_CHUNKS)


def _chunk_rows(op: Op, case: Case, out: Tensor) -> int:
    """Return the number of rows that are compared at a time."""
    return max(1, chunk_elements(out) // max(1, out.numel() // op.rows(case), op.terms(case)))


class Blocks(NamedTuple):
    """Sums of the elements of a product in blocks of columns, against those of A (B r)."""

    sums: int
    worst: float
    """Largest difference over its limit; infinite for NaN."""
    row: int
    """Row of the worst."""
    smallest_error: float
    """Smallest error of one element that cannot be hidden, as a fraction of the RMS."""


def _blocks(op: Op, case: Case, inputs: Inputs, result: Tensor) -> Blocks:
    """Compare sums of blocks of a result, each element with a random sign.

    The rounding errors of elements are independent, so the variance of a sum is the sum of theirs:
    (u |ref|)^2 / 5 for rounding elements (1/12 to 1/3 by their fractions), K u_acc^2 / 2 norm^2 for
    a chain of K additions, and (2 u_p)^2 (|ref|^2 + norm^2) for factors that are rounded or cut
    first.
    """
    import torch

    assert op.columns_of is not None
    signs = torch.randint(0, 2, result.shape[-1:], dtype=torch.float64) * 2 - 1
    signs = signs.to(result.device)
    wide = inputs[op.columns_of].double()
    summed = list(inputs)
    summed[op.columns_of] = _block_sums(wide * signs)
    squared = list(inputs)
    squared[op.columns_of] = _block_sums(wide.square())
    del wide
    unit = UNIT_ROUNDOFF[op.output_dtype(case.dtype)]
    accumulator = ACCUMULATOR_ROUNDOFF.get(case.dtype, FP32_ROUNDOFF)
    product = 2 * PRODUCT_ROUNDOFF.get(case.dtype, 0.0)
    rounding = unit**2 / 5 + product**2
    chain = op.terms(case) / 2 * accumulator**2 + product**2
    errors = []
    variances = []
    rows = op.rows(case)
    chunk = _chunk_rows(op, case, result) * BLOCK_CHUNKS
    for start in range(0, rows, chunk):
        taken = slice(start, start + chunk)
        part_inputs, part = op.part(tuple(summed), result, taken)
        got = part.double()
        errors.append(_block_sums(got * signs) - op.reference(*widened(part_inputs)))
        part_inputs, _ = op.part(tuple(squared), result, taken)
        squares = [x.square() if x.is_floating_point() else x for x in widened(part_inputs)]
        squares[op.columns_of] = part_inputs[op.columns_of]
        variance = rounding * _block_sums(got.square())
        variances.append(variance + chain * op.reference(*squares))
    error = torch.cat(errors, -2)
    deviation = torch.cat(variances, -2).sqrt()
    ratio = (error.abs() / deviation).masked_fill_(error == 0, 0.0).nan_to_num_(math.inf, math.inf)
    spread = min(max(1.0, float(ratio.median()) / NORMAL_MEDIAN), MAX_SPREAD)
    limit = BLOCK_DEVIATIONS * spread
    at = int(ratio.argmax())
    rms = float(result.double().square().mean().sqrt())
    return Blocks(
        sums=ratio.numel(),
        worst=float(ratio.reshape(-1)[at]) / limit,
        row=at // ratio.shape[-1] % rows,
        smallest_error=2 * limit * float(deviation.max()) / rms if rms else 0.0,
    )


def _block_sums(values: Tensor) -> Tensor:
    """Return sums of `BLOCK_COLUMNS` neighbors of the last axis; the last may have fewer."""
    import torch

    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % BLOCK_COLUMNS))
    blocks: Tensor = padded.unflatten(-1, (-1, BLOCK_COLUMNS))
    return blocks.sum(-1)


def widened(inputs: Inputs) -> Inputs:
    """Return copies of the inputs in fp64, except masks of bools, packed numbers, which are uint8,
    and labels, seeds and indices, which are int64 or int32.
    """
    import torch

    as_they_are = (torch.bool, torch.uint8, torch.int64, torch.int32)
    return tuple(x if x.dtype in as_they_are else x.to(torch.float64, copy=True) for x in inputs)


def ratios(op: Op, case: Case, inputs: Inputs, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ratio of each element's error to its bound, infinite for NaN, the reference, and
    the result in fp64.

    fp64 copies of the inputs are squared in place, because B of a large matmul and its square would
    not both fit.
    """
    import torch

    wide = widened(inputs)
    numbers = filter(torch.is_floating_point, wide)
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
        # A sum may have one term: that of a matrix with one column and a vector.
        if terms > 1 or any(x.dim() > truth.dim() for x in wide):
            for x in numbers:
                x.square_()
            size = op.reference(*wide).abs_().sqrt_()
        else:
            size = truth.abs()
            for x in numbers:
                size = size + x.abs()
        bound = truth.abs().mul_(4 * (unit + product))
        bound = bound + (8 * (math.sqrt(terms) * accumulator + product) + rounded) * size
        if terms > 1:
            bound = bound + 4 * unit * truth.square().mean().sqrt()
    if out.dtype.is_floating_point:
        bound.add_(torch.finfo(out.dtype).tiny * torch.finfo(out.dtype).eps)
    # Equal values need no bound (0 against 0, an exact integer, inf against inf).
    ratio = ((got - truth).abs_() / bound).masked_fill_(got == truth, 0.0)
    return ratio.nan_to_num_(math.inf, math.inf), truth, got
