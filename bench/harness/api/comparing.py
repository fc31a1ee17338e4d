"""`bench.compare`: which of several functions is faster, by the paired rounds of `python -m bench compare`."""

from __future__ import annotations

import functools
import html
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.api import function as measuring
from bench.harness.api.counted import with_work
from bench.harness.api.function import called, environment_of
from bench.harness.api.measuring import fresh, maker_of
from bench.harness.api.records import Records
from bench.harness.api.sweeping import functions_of
from bench.harness.cli.arguments import UsageError
from results.compare.row import ComparedRow
from results.record import Record
from results.stats.comparison import DEFAULT_MARGIN
from roofline.work import dtype_named

if TYPE_CHECKING:
    import pandas as pd

    from bench.harness.compare.meter import InterleavingMeter, Ready
    from bench.harness.compare.rounds import Rule
    from bench.harness.device.device import Device
    from results.compare.comparison import Compared
    from roofline.ceilings import Ceilings


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
        from results.compare.output import describe

        return [describe(one) for one in self.compared.unmatched]

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each candidate with the keys of `bench compare --format json`; times are in seconds."""
        import pandas as pd

        from results.compare.output import json_rows

        return pd.DataFrame(json_rows(self.compared))

    def save(self, path: Path | str | None = None) -> Path:
        """Keep the records as a run file, as of `Records.save`; `python -m results compare` judges them again."""
        return self.records.save(path)

    def __repr__(self) -> str:
        """Return the table of the command."""
        from results.compare.output import as_text

        return as_text(self.compared, "table", "slower", sys.stdout)

    def _repr_html_(self) -> str:
        """Return the table for a notebook, all names escaped."""
        return f"<pre>{html.escape(repr(self))}</pre>"


@dataclass(frozen=True)
class How:
    """How functions are compared."""

    margin: float
    budget_s: float
    rounds: int | None
    seed: int
    tolerance: float | None
    is_checked: bool

    def __post_init__(self) -> None:
        """Refuse values that are not allowed.

        Raises:
            UsageError: with the value.
        """
        for name in ("margin", "budget_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UsageError(f"{name}={value!r:.60} must be a number above 0")
        if self.rounds is not None and (not isinstance(self.rounds, int) or self.rounds < 2):
            raise UsageError(f"rounds={self.rounds!r:.60} must be a whole number from 2, or None")


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
    named = _ordered(functions_of(functions), baseline)
    how = How(margin, budget_s, rounds, seed, tolerance, check)
    measuring.check_options(args, inputs, cache, device)
    fn, name = next(iter(named.values())), None if dtype is None else dtype_named(str(dtype))
    blank = measuring.declared(fn, flops, bytes_read, bytes_written, name)
    return _Comparison(named, args, kwargs, inputs, blank, cache, device, how).verdicts()


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


class _Comparison:
    """One comparison, from the first call to the verdicts."""

    def __init__(
        self,
        named: dict[str, Callable[..., Any]],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Callable[[], Any] | None,
        blank: Record,
        cache: str,
        device: str | None,
        how: How,
    ) -> None:
        self._named, self._kwargs, self._how = named, kwargs, how
        self._declared, self._cache, self._asked_device = blank, cache, device
        self._names = list(named)
        self._make = maker_of(args, inputs, cache)
        self._first: tuple[Any, ...] = self._make() if inputs is not None and self._make else tuple(args)
        self._truth: Any = None
        self._is_truth_known = False

    def verdicts(self) -> Verdicts:
        """Call each, let all that are right take turns, and judge them."""
        from results.compare.live import compare_live, with_request
        from results.compare.output import describe

        wrong = {name: reason for name in self._names if (reason := self._wrong(name)) is not None}
        device = self._device()
        environment = with_request(environment_of(device, "compare"), self._names[0], self._how.margin)
        known = called(
            self._names[0],
            lambda: with_work(self._declared, self._named[self._names[0]], fresh(self._first), self._kwargs),
        )
        right = [name for name in self._names if name not in wrong]
        with measuring.current(device):
            timed = self._timed(right, known, device) if len(right) > 1 else {}
        records = [timed.get(name) or self._refused(name, known, wrong.get(name)) for name in self._names]
        found = compare_live(environment, records, self._names[0], self._how.margin)
        if not found.rows:
            why = [one for one in found.unmatched if one.side == "candidate"] or found.unmatched
            raise UsageError(f"nothing could be compared: {describe(why[0])}")
        return Verdicts(found, Records(environment, records))

    def _wrong(self, name: str) -> str | None:
        """Return what is wrong with the result of a function, or None; the first one is the truth.

        Raises:
            UsageError: the baseline raised.
        """
        try:
            result = called(name, lambda: self._named[name](*fresh(self._first), **self._kwargs))
        except UsageError as error:
            if name == self._names[0]:
                raise
            return f"failed: {str(error).removeprefix(f'{name} ')}"
        if not self._is_truth_known:
            self._truth, self._is_truth_known = result, True
        if not self._how.is_checked:
            return None
        differs = difference(self._truth, result, self._how.tolerance)
        return None if differs is None else f"invalid: {differs}"

    def _device(self) -> Device:
        asked, values = self._asked_device, [self._first, self._kwargs]
        return (
            measuring.device_of(asked, values) or measuring.device_of(asked, [self._truth]) or measuring.only_device()
        )

    def _blank(self, name: str, known: Record) -> Record:
        """Return the record of a function with nothing measured; the work is that of the baseline for all."""
        work = f"{known.extra['work']}, of {self._names[0]}"
        return replace(known, op="function", provider=name, extra={**known.extra, "work": work})

    def _refused(self, name: str, known: Record, reason: str | None) -> Record:
        status, _, why = (reason or "skipped: nothing to compare with").partition(": ")
        return replace(self._blank(name, known), status=status, reason=why)

    def _timed(self, names: Sequence[str], known: Record, device: Device) -> dict[str, Record]:
        """Return the records of functions that took turns.

        Raises:
            UsageError: the baseline failed while it was timed.
        """
        from bench.harness.compare.meter import InterleavingMeter
        from bench.harness.compare.rounds import Rule

        sets, cache = [self._first], "warm"
        if self._make is not None and self._cache == "cold":
            sets, cache = measuring.rotation(self._first, self._make, device)
        ready = [self._ready(self._named[name], sets, cache) for name in names]
        how, meter = self._how, InterleavingMeter(device)
        rule = Rule(how.margin, len(names) - 1, how.budget_s, how.seed, how.rounds)
        found = meter.interleave(ready, rule)
        if 0 in found.rounds.errors:
            error = found.rounds.errors[0]
            raise UsageError(f"{names[0]} raised {type(error).__name__} while it was timed") from error
        ceilings = measuring.known_ceilings(device)
        return {
            name: self._finished(name, known, (meter, ready[order], order, found, rule, names), device, ceilings)
            for order, name in enumerate(names)
        }

    def _ready(self, fn: Callable[..., Any], sets: Sequence[tuple[Any, ...]], cache: str) -> Ready:
        from bench.harness.compare.meter import Ready

        def call(copy: int) -> Callable[[], Any]:
            return functools.partial(fn, *sets[copy], **self._kwargs)

        return Ready([call(copy) for copy in range(len(sets))], cache, new_call=call)

    def _finished(
        self,
        name: str,
        known: Record,
        turns: tuple[InterleavingMeter, Ready, int, Any, Rule, Sequence[str]],
        device: Device,
        ceilings: Ceilings,
    ) -> Record:
        """Return the record of one function, its result checked once more."""
        from bench.harness.compare.case import interleaving
        from bench.harness.measure.errors import one_line
        from bench.harness.measure.flags import recorded
        from bench.harness.measure.measure_row import interpreted

        meter, ready, order, found, rule, names = turns
        blank = self._blank(name, known)
        try:
            samples = meter.samples_of(ready, order, found)
        except Exception as error:
            return replace(blank, status="failed", reason=f"raised {one_line(error)}")
        also = interpreted(self._named[name])
        record = recorded(blank, samples, device, ceilings, self._cache, also, has_advice=False)
        note = interleaving(found.rounds, rule, order, names, list(range(len(names))))
        record = replace(record, interleaved=note, copies=len(ready.calls))
        reason = self._wrong(name)
        if reason is None:
            return record
        status, _, why = reason.partition(": ")
        return replace(blank, status=status, reason=f"after timing: {why}")


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
