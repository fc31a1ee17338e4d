"""Functions without an op: the results of others against those of a baseline.

The reference is the result of the baseline in fp64, else in fp32. The baseline is off by q in its
worst row, as a multiple of the RMS of that row, a row being the last axis. An element may be off by

    4 max(q, eps) rms(row) + eps |reference|

with eps the distance from 1 to the next number of the result's dtype. If the baseline takes neither
fp64 nor fp32, its own result is the reference and q is 0. A row of zeros has the RMS of all rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.harness.data.verify import CheckResult

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ERRORS = 4.0
"""Errors of the baseline that another function may have: it may sum in another order."""

MAX_ERROR = 1 / 8
"""Largest q with which a run in higher precision is a reference: random results differ by more."""

CHUNK_ELEMENTS = 2**22
"""Elements compared at a time."""

BASELINE = "baseline"


class NotComparableError(Exception):
    """A result has nothing that can be compared; the message says what it is."""


def arrays_of(result: object) -> list[Tensor]:
    """Return the tensors, arrays and numbers of a result, without a gradient; NotComparableError if
    there are others.
    """
    import numpy as np
    import torch

    from bench.harness.torch_private import tree_leaves

    leaves = tree_leaves(result)
    arrays = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            arrays.append(leaf.detach())
        elif isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex):
            arrays.append(torch.as_tensor(leaf))
        elif leaf is not None:
            raise NotComparableError(f"a {type(leaf).__name__}")
    if not arrays:
        raise NotComparableError("None" if result is None else f"a {type(result).__name__}")
    return arrays


@dataclass(frozen=True)
class Expected:
    """The results of the baseline, and what they are compared with."""

    results: Sequence[Tensor]
    references: Sequence[Tensor]
    precision: str
    """`fp64`, `fp32`, or `baseline`, if it takes neither."""

    @classmethod
    def of(
        cls, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: object
    ) -> Expected:
        """Run the baseline in higher precision; `result` is what it returned for these arguments.

        Raises:
            NotComparableError: the result has no tensor, array or number, or only NaN.
        """
        import torch

        results = arrays_of(result)
        if all(bool(torch.isnan(x).all()) and x.numel() for x in results):
            raise NotComparableError("only NaN")
        for name, dtype in (("fp64", torch.float64), ("fp32", torch.float32)):
            references = _run_in(dtype, fn, args, kwargs)
            if references and _is_alike(results, references):
                return cls(results, references, name)
        return cls(results, results, BASELINE)

    def check(self, result: object, tolerance: float) -> CheckResult:
        """Compare what another function returned; `tolerance` multiplies the allowed difference."""
        count = sum(x.numel() for x in self.results)
        arrays = []
        problem = None
        try:
            arrays = arrays_of(result)
        except NotComparableError as error:
            problem = f"it returned {error}"
        if problem is None and len(arrays) != len(self.results):
            problem = f"it returned {len(arrays)} arrays, the baseline {len(self.results)}"
        worst = 0.0
        for mine, truth, other in zip(self.results, self.references, arrays, strict=False):
            if problem is None:
                problem, ratio = _difference(mine, truth, other.to(mine.device), tolerance)
                worst = max(worst, ratio)
        return CheckResult(problem is None, problem, worst, count, count, self.precision)


def _run_in(
    dtype: torch.dtype, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Tensor] | None:
    """Return the results of a function in higher precision; None if it does not take it."""
    import torch

    from bench.harness.torch_private import tree_map

    has_changed = False

    def raised(value: Any) -> Any:
        nonlocal has_changed
        if isinstance(value, torch.nn.Module):
            has_changed = True
            return copy.deepcopy(value).to(dtype)
        if not isinstance(value, torch.Tensor):
            return value
        wanted = dtype.to_complex() if value.is_complex() else dtype
        is_raised = value.dtype.is_floating_point or value.is_complex()
        has_changed |= is_raised and torch.finfo(value.dtype).eps > torch.finfo(dtype).eps
        copied = copy.deepcopy(value.detach())
        return copied.to(wanted).requires_grad_(value.requires_grad) if is_raised else copied

    try:
        function = raised(fn)
        arguments = tree_map(raised, tuple(args))
        options = tree_map(raised, dict(kwargs))
        return arrays_of(function(*arguments, **options)) if has_changed else None
    except Exception:  # of a user's function, or too little memory
        return None


def _is_alike(results: Sequence[Tensor], references: Sequence[Tensor]) -> bool:
    """Return whether a run in higher precision computes the same as the baseline."""
    if [x.shape for x in references] != [x.shape for x in results]:
        return False
    pairs = zip(results, references, strict=True)
    return all(_largest_error(mine, truth) <= MAX_ERROR for mine, truth in pairs)


def _difference(
    mine: Tensor, truth: Tensor, other: Tensor, tolerance: float
) -> tuple[str | None, float]:
    """Return how a result differs, or None, and the largest error over its limit.

    Where the baseline is infinite or NaN the result must be the same.
    """
    import torch

    if mine.shape != other.shape:
        shapes = f"{tuple(other.shape)}, the baseline's {tuple(mine.shape)}"
        return f"its result has the shape {shapes}", math.inf
    dtypes = [mine.dtype, other.dtype]
    if not all(dtype.is_floating_point or dtype.is_complex for dtype in dtypes):
        count = int((mine != other).sum())
        many = f"{count:,} of {mine.numel():,} elements"
        problem = f"its result differs from the baseline's in {many}" if count else None
        return problem, math.inf if count else 0.0
    if not mine.numel():
        return None, 0.0
    eps = max(torch.finfo(dtype).eps for dtype in dtypes)
    share = max(eps, _largest_error(mine, truth))
    typical = _rms(truth.abs().double().reshape(1, -1))
    worst = 0.0
    problem = None
    for first, second, third in _parts(mine, truth, other):
        is_same = torch.isclose(third, first, rtol=0.0, atol=0.0, equal_nan=True)
        rms = _rms(second)
        rms = torch.where(rms == 0, typical, rms)
        limit = ERRORS * share * rms + eps * second.abs()
        ratio = ((third - second).abs() / limit).nan_to_num(math.inf, math.inf)
        ratio = ratio.masked_fill(~first.isfinite(), math.inf).masked_fill(is_same, 0.0)
        if float(ratio.max()) > worst:
            worst = float(ratio.max())
            at = int(ratio.argmax())
            got = third.reshape(-1)[at].item()
            expected = second.reshape(-1)[at].item()
            problem = (
                f"its result differs from the baseline's: {got:.4g} instead of {expected:.4g}, "
                f"{worst:.3g} times as much as rounding explains"
            )
    return (problem if worst > tolerance else None), worst


def _parts(*arrays: Tensor) -> Any:
    """Yield rows of arrays in fp64, so many at a time that they fit in memory."""
    import torch

    if not arrays[0].numel():
        return
    columns = arrays[0].shape[-1] if arrays[0].dim() else 1
    rows = max(1, CHUNK_ELEMENTS // columns)
    flat = [array.reshape(-1, columns) for array in arrays]
    for start in range(0, len(flat[0]), rows):
        taken = [each[start : start + rows] for each in flat]
        is_complex = any(each.is_complex() for each in taken)
        yield [each.to(torch.complex128 if is_complex else torch.float64) for each in taken]


def _rms(rows: Tensor) -> Tensor:
    """Return the RMS of the finite elements of each row."""
    import torch

    sizes = rows.abs()
    is_finite = sizes.isfinite()
    squares = torch.where(is_finite, sizes, 0.0).square().sum(-1, keepdim=True)
    return (squares / is_finite.sum(-1, keepdim=True).clamp(min=1)).sqrt()


def _largest_error(mine: Tensor, truth: Tensor) -> float:
    """Return q: the largest error of a row over its RMS, of the elements that are finite."""
    import torch

    worst = 0.0
    for first, second in _parts(mine, truth):
        off = (first - second).abs()
        off = torch.where(off.isfinite(), off, 0.0).amax(-1, keepdim=True)
        worst = max(worst, float((off / _rms(second)).nan_to_num(0.0, 0.0).max()))
    return worst
