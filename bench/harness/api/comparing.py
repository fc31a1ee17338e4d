"""`bench.compare`: which of several functions is faster, by the paired rounds of `python -m bench compare`."""

from __future__ import annotations

import functools
import html
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.api.counted import with_work
from bench.harness.api.function import (
    called,
    check_options,
    current,
    declared,
    device_of,
    environment_of,
    known_ceilings,
    only_device,
    rotation,
)
from bench.harness.api.measuring import fresh, maker_of
from bench.harness.api.records import Records
from bench.harness.api.sweeping import functions_of
from bench.harness.cli.arguments import UsageError
from bench.harness.compare.rounds import ComparePolicy
from bench.harness.compare.turns import Contender, take_turns
from bench.harness.device.device import Device
from bench.harness.measure.errors import one_line
from bench.harness.measure.flags import recorded
from bench.harness.measure.measure_row import interpreted
from bench.harness.timing.protocol import Samples
from results.compare.comparison import Compared, compare_live
from results.compare.output import as_text, describe, json_rows
from results.compare.row import ComparedRow
from results.record import Record
from results.stats.comparison import DEFAULT_MARGIN
from roofline.work import dtype_named

if TYPE_CHECKING:
    import pandas as pd

Wrong = Callable[[Callable[..., Any]], str | None]
"""Calls a function and returns what is wrong with its result, or None."""


class Verdicts:
    """A comparison: its rows by the name of the candidate, its records, and the command's table as its text."""

    def __init__(self, compared: Compared, records: Records) -> None:
        """Show what was compared, and keep the records that it was computed from."""
        self.compared, self.records = compared, records

    @property
    def rows(self) -> dict[str, ComparedRow]:
        """By candidate: `ratio` of the times, candidate over baseline, `ci95` of it, `compared.verdict`, `reason`."""
        return {row.candidate.label: row for row in self.compared.rows}

    @property
    def verdicts(self) -> dict[str, str]:
        """By candidate: FASTER, SLOWER, SAME or UNSURE; one whose result is wrong or that failed has none."""
        return {name: row.compared.verdict for name, row in self.rows.items()}

    @property
    def unmatched(self) -> list[str]:
        """Why a function was not compared, a line each."""
        return [describe(one) for one in self.compared.unmatched]

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each candidate with the keys of `bench compare --format json`; times are in seconds."""
        import pandas as pd

        return pd.DataFrame(json_rows(self.compared))

    def save(self, path: Path | str | None = None) -> Path:
        """Keep the records as a run file, as of `Records.save`; `python -m results compare` judges them again."""
        return self.records.save(path)

    def __repr__(self) -> str:
        """Return the table of the command."""
        return as_text(self.compared, "table", "slower", sys.stdout)

    def _repr_html_(self) -> str:
        """Return the table for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


def compare(
    functions: Mapping[str, Callable[..., Any]],
    /,
    *args: Any,
    baseline: str | None = None,
    inputs: Callable[[], Any] | None = None,
    flops: int | None = None,
    bytes_read: int | None = None,
    bytes_written: int | None = None,
    dtype: Any = None,
    cache: str = "cold",
    device: str | None = None,
    margin: float = DEFAULT_MARGIN,
    budget_s: float = 10.0,
    rounds: int | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    check: bool = True,
    **kwargs: Any,
) -> Verdicts:
    """Compare functions on the same arguments by paired rounds, and say of each whether it is faster.

    All take turns in random order, round after round, on the same copies of the arguments, until every verdict is clear
    or the time is over; the verdicts hold together. Before the clock and after it, the result of each is held against
    the baseline's: what differs is not compared. A function that writes into its arguments is called with what the
    others left there.

    Args:
        functions: two or more, by the names that they are shown under.
        args: positional arguments of each call.
        baseline: the name that the others are set against; by default the first.
        inputs: makes the positional arguments in place of `args`, as of `bench.measure`.
        flops: floating-point operations of one call, the same for all; so are the next two. What is not declared is
            counted of the baseline.
        bytes_read: compulsory bytes that one call reads.
        bytes_written: compulsory bytes that one call writes.
        dtype: dtype whose peak judges them.
        cache: `cold` or `warm`, as of `bench.measure`.
        device: as of `bench.measure`.
        margin: change of the time, as a fraction, that does not matter: within it a verdict is SAME.
        budget_s: seconds of rounds after which no further one begins.
        rounds: exactly so many rounds; None: until the verdicts are clear.
        seed: of the order of turns.
        tolerance: difference of results that counts as equal, as a fraction of the largest element of the baseline's;
            by default the square root of the dtype's epsilon: 3.5e-4 in fp32, 0.09 in bf16.
        check: whether results are held against each other; False where they are random.
        kwargs: keyword arguments of each call.

    Raises:
        UsageError: an argument cannot be, the baseline failed, or nothing could be compared.
        NoDeviceError: there is no such device.
    """
    named, policy = _ordered(functions_of(functions), baseline), policy_of(margin, budget_s, rounds, seed)
    check_options(args, inputs, cache, device)
    name, dtype_name = next(iter(named)), None if dtype is None else dtype_named(str(dtype))
    blank = declared(named[name], flops, bytes_read, bytes_written, dtype_name)
    make = maker_of(args, inputs, cache)
    first = make() if inputs is not None and make else tuple(args)
    truth = called(name, lambda: named[name](*fresh(first), **kwargs))
    under_test = device_of(device, [first, kwargs]) or device_of(device, [truth]) or only_device()
    blank = called(name, lambda: with_work(blank, named[name], fresh(first), kwargs))
    blank = replace(blank, op="function", extra={**blank.extra, "work": f"{blank.extra['work']}, of {name}"})

    def wrong(fn: Callable[..., Any]) -> str | None:
        result = fn(*fresh(first), **kwargs)
        return difference(truth, result, tolerance) if check else None

    contenders = [
        _Function(replace(blank, provider=name), index, under_test, cache, fn, wrong)
        for index, (name, fn) in enumerate(named.items())
    ]
    for contender in contenders[1:]:
        contender.attempt(contender.verify)
    right = [contender for contender in contenders if contender.record is None]
    with current(under_test):
        if len(right) > 1:
            sets, reached = rotation(first, make, under_test) if make and cache == "cold" else ([first], "warm")
            for contender in right:
                contender.prepare(sets, kwargs, reached)
            take_turns(right, under_test, replace(policy, rows=len(right) - 1))
    return _judged([contender.outcome() for contender in contenders], under_test, policy)


def policy_of(margin: float, budget_s: float, rounds: int | None, seed: int) -> ComparePolicy:
    """Return how functions are compared.

    Raises:
        UsageError: a value that is not allowed.
    """
    for name, value in (("margin", margin), ("budget_s", budget_s)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise UsageError(f"{name}={value!r:.60} must be a number above 0")
    if rounds is not None and (not isinstance(rounds, int) or rounds < 2):
        raise UsageError(f"rounds={rounds!r:.60} must be a whole number from 2, or None")
    return ComparePolicy(float(margin), budget_s, rounds, seed)


def _ordered(named: dict[str, Callable[..., Any]], baseline: str | None) -> dict[str, Callable[..., Any]]:
    """Return the functions with the baseline first.

    Raises:
        UsageError: there is only one, or the baseline is none of them.
    """
    if len(named) < 2:
        raise UsageError(f"'{next(iter(named))}' alone has nothing to be compared with; give two functions or more")
    if baseline is None:
        return named
    if baseline not in named:
        raise UsageError(f"baseline={baseline!r:.60} must be one of {', '.join(named)}")
    return {baseline: named[baseline], **named}


def _judged(records: Sequence[Record], device: Device, policy: ComparePolicy) -> Verdicts:
    """Return the verdicts of records, the baseline first.

    Raises:
        UsageError: nothing could be compared.
    """
    environment, baseline = environment_of(device, "compare"), records[0].provider
    settings = {**environment.settings, "baseline": baseline, "margin": policy.margin}
    environment = replace(environment, settings=settings)
    compared = compare_live(environment, records, baseline, policy.margin)
    if not compared.rows:
        reasons = [one for one in compared.unmatched if one.side == "candidate"] or compared.unmatched
        raise UsageError(f"nothing could be compared: {describe(reasons[0])}")
    return Verdicts(compared, Records(environment, records))


class _Function(Contender):
    """A function whose result must be that of the baseline, the first of its comparison."""

    def __init__(
        self, blank: Record, index: int, device: Device, cache: str, fn: Callable[..., Any], wrong: Wrong
    ) -> None:
        super().__init__(blank.provider, index, device)
        self._blank, self._asked_cache, self._fn, self._wrong = blank, cache, fn, wrong

    def verify(self, when: str = "") -> None:
        """Call the function once more; what differs from the baseline ends its part."""
        reason = self._wrong(self._fn)
        if reason is not None:
            self.record = replace(self._blank, status="invalid", reason=when + reason)

    def prepare(self, sets: Sequence[tuple[Any, ...]], kwargs: Mapping[str, Any], cache: str) -> None:
        """Make a call for each set of arguments."""

        def call(copy: int) -> Callable[[], Any]:
            return functools.partial(self._fn, *sets[copy], **kwargs)

        self.calls, self.cache, self.new_call = [call(copy) for copy in range(len(sets))], cache, call

    def finish(self, samples: Samples) -> Record:
        """Verify the result again and return the record."""
        ceilings, also = known_ceilings(self.device), interpreted(self._fn)
        record = recorded(self._blank, samples, self.device, ceilings, self._asked_cache, also, has_advice=False)
        self.verify("after timing: ")
        return self.record or replace(record, copies=len(self.calls))

    def failed(self, error: BaseException) -> Record:
        """Return the record of an error.

        Raises:
            UsageError: it is the baseline's.
        """
        if not self.index:
            raise UsageError(f"{self.name} raised {type(error).__name__} while it was timed") from error
        return replace(self._blank, status="failed", reason=f"raised {one_line(error)}")

    def outcome(self) -> Record:
        """Return the record, that of a function that was not timed if there is none."""
        return self.record or replace(self._blank, reason="nothing to compare with")


def difference(truth: Any, result: Any, tolerance: float | None = None) -> str | None:
    """Return how a result differs from the baseline's, or None; only tensors are looked at.

    Args:
        truth: what the baseline returned, a tensor or nested tuples, lists and mappings of them.
        result: what another function returned.
        tolerance: as a fraction of the largest element of the truth; None: the square root of the dtype's epsilon.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    ours, theirs = (
        [one.detach() for one in tree_leaves(value) if isinstance(one, torch.Tensor)] for value in (truth, result)
    )
    if len(ours) != len(theirs):
        return f"it returned {len(theirs)} tensors, the baseline {len(ours)}"
    for mine, other in zip(ours, theirs, strict=True):
        if mine.shape != other.shape:
            return f"its result has the shape {tuple(other.shape)}, the baseline's {tuple(mine.shape)}"
        if (found := _of_tensors(mine, other.to(mine.device), tolerance)) is not None:
            return found
    return None


def _of_tensors(truth: Any, result: Any, tolerance: float | None) -> str | None:
    import torch

    if not truth.numel():
        return None
    if truth.is_complex() and result.is_complex():
        truth, result = torch.view_as_real(truth.resolve_conj()), torch.view_as_real(result.resolve_conj())
    if not truth.dtype.is_floating_point or not result.dtype.is_floating_point:
        count = int((truth != result).sum())
        return f"its result differs from the baseline's in {count:,} of {truth.numel():,} elements" if count else None
    epsilon = max(torch.finfo(truth.dtype).eps, torch.finfo(result.dtype).eps)
    allowed = math.sqrt(epsilon) if tolerance is None else tolerance
    ours, theirs = truth.double(), result.double()
    is_same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    finite = ours[ours.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    worst = float(torch.where(is_same, 0.0, (ours - theirs).abs()).nan_to_num(math.inf).max())
    if worst <= allowed * scale:
        return None
    return f"its result differs from the baseline's by up to {worst:.3g}, more than {allowed:.2g} of {scale:.3g}"
