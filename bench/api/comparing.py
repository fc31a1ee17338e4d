"""`bench.compare`: which of several functions is faster, with the rounds of
`python -m bench compare`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bench.api.function import (
    Function,
    Inputs,
    check_number,
    current,
    environment_of,
    functions_of,
    known_ceilings,
    raising,
)
from bench.api.records import Records
from bench.comparing.contender import Contender, Within
from bench.comparing.turns import ComparePolicy, compare_contenders
from bench.harness.cli.arguments import UsageError
from bench.harness.data.agreement import (
    CHANGES_INPUTS,
    EARLIER,
    Call,
    Expected,
    Fn,
    NotComparableError,
    UnverifiedError,
    call_of,
    changed_inputs,
    fresh,
    on_copies,
    on_new_contents,
    returns_earlier_result,
)
from bench.harness.data.torch_settings import settings_required
from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.measure.flags import Flag, of_check, recorded
from bench.harness.measure.measure_row import interpreted
from bench.harness.measure.rows import one_line
from bench.harness.timing.protocol import Samples
from results.compare.comparison import Compared, ComparedRow, compare_live
from results.compare.output import (
    UNMATCHED,
    as_text,
    describe,
    json_row,
    json_unmatched,
    print_table,
)
from results.compare.sides import WRONG
from results.record import Record
from results.show.grid import html_of
from results.stats.comparison import DEFAULT_MARGIN

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


class Verdicts:
    """A comparison: its rows by candidate and its records; it prints as the command's table."""

    def __init__(self, compared: Compared, records: Records) -> None:
        self.compared = compared
        self.records = records

    @property
    def rows(self) -> dict[str, ComparedRow]:
        """By candidate: `ratio` of the times, candidate over baseline, its `ci95`,
        `compared.verdict`, `reason`.
        """
        return {row.candidate.label: row for row in self.compared.rows}

    @property
    def verdicts(self) -> dict[str, str]:
        """By candidate: FASTER, SLOWER, SAME or UNSURE; none if it failed or its result is
        wrong.
        """
        return {name: row.compared.verdict for name, row in self.rows.items()}

    @property
    def unmatched(self) -> list[str]:
        """A line for each function that was not compared, with the reason."""
        return list(map(describe, self.compared.unmatched))

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row per candidate with the keys of `bench compare --format json`; times are in
        seconds.

        A candidate that failed or returned a wrong result has the verdict UNMATCHED.
        """
        import pandas as pd

        alone = [
            json_unmatched(each) | {"candidate": each.record.provider, "verdict": UNMATCHED}
            for each in self.compared.unmatched
            if each.side == "candidate"
        ]
        return pd.DataFrame([*map(json_row, self.compared.rows), *alone])

    def save(self, path: Path | str | None = None) -> Path:
        """Save the records as `Records.save` does, for `python -m results compare`."""
        return self.records.save(path)

    def __repr__(self) -> str:
        return as_text(self.compared, "table", "slower")

    def _repr_html_(self) -> str:
        return html_of(lambda page: print_table(self.compared, page))


def compare(
    functions: Mapping[str, Callable[..., Any]],
    /,
    *args: Any,
    baseline: str | None = None,
    inputs: Inputs | None = None,
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
    tolerance: float = 1.0,
    check: bool = True,
    in_place: bool = False,
    setup: Inputs | None = None,
    **kwargs: Any,
) -> Verdicts:
    """Compare functions on the same arguments, and return a verdict for each.

    All are interleaved in rounds in random order, on the same copies of the arguments, until every
    verdict is clear or the time limit is reached; verdicts are corrected for multiple comparisons.
    Before and after timing, each result is compared with the baseline's; a function with a
    different result gets no verdict, nor does one that changes settings of torch, or its inputs
    without `in_place` or `setup`.

    Undeclared work is counted for the baseline. Arguments besides those of `bench.measure`:

        functions: two or more functions by name.
        baseline: name of the function to compare the others with; by default the first.
        margin: change of the time, as a fraction, that does not matter: within it a verdict is
            SAME.
        budget_s: time limit of the rounds, seconds.
        rounds: fixed number of rounds; None: until the verdicts are clear.
        seed: random seed for the order of turns.
        tolerance: factor on the allowed difference of results, which is that of
            `bench.harness.data.agreement`.
        check: whether to compare results; False if they are random.

    Raises:
        UsageError: invalid arguments, or the baseline failed.
        NoDeviceError: the device is not available.
    """
    named = ordered(functions_of(functions), baseline)
    name, fn = next(iter(named.items()))
    check_number("margin", margin, "above 0")
    check_number("budget_s", budget_s, "above 0")
    check_number("tolerance", tolerance, "above 0")
    if rounds is not None and (not isinstance(rounds, int) or rounds < 2):
        raise UsageError(f"rounds= must be an integer from 2, or None, got {rounds!r:.60}")
    policy = ComparePolicy(float(margin), budget_s, rounds, seed, rows=len(named) - 1)
    work = {"flops": flops, "bytes_read": bytes_read, "bytes_written": bytes_written}
    subject = Function(fn, args, kwargs, inputs, work, dtype, cache, device, in_place, setup)
    under_test, records = interleaved(named, subject, policy, tolerance, check)
    environment = environment_of(under_test, "compare")
    environment = replace(
        environment, settings=environment.settings | {"baseline": name} | policy.to_dict()
    )
    compared = compare_live(environment, records, name, policy.margin)
    if records[0].status in WRONG:
        raise UsageError(f"nothing could be compared: {describe(compared.unmatched[0])}")
    return Verdicts(compared, Records(environment, records))


def interleaved(
    named: Mapping[str, Fn],
    subject: Function,
    policy: ComparePolicy,
    tolerance: float = 1.0,
    check: bool = True,
    make_inputs: Inputs | None = None,
    flags: Mapping[str, Sequence[Flag]] | None = None,
    within: Mapping[str, Within] | None = None,
) -> tuple[Device, list[Record]]:
    """Time functions in turns, the baseline first, on the arguments of `subject`; return the device
    and the records.

    `make_inputs` makes others for a check; by function, `flags` has what is known of it, and
    `within` the context of its turns.
    """
    name = next(iter(named))
    first = subject.first_call()
    before = on_copies(first)
    unknown = []
    expected = None
    with raising(name), settings_required():
        truth, under_test, _ = subject.called(on_copies(first))
        blank = subject.counted(on_copies(first).args)
        if check:
            try:
                expected = Expected.of(first, truth)
            except NotComparableError as error:
                reason = f"the result of the baseline cannot be compared: {error}"
                unknown.append(Flag("not-compared", reason, ""))
    blank = replace(blank, op="function", work=f"{blank.work}, of {name}")

    def new_call(fn: Fn, copy: int) -> Call:
        return call_of(fn, sets[copy], subject.kwargs)

    def move(copy: int) -> None:
        sets[copy] = fresh(sets[copy])

    with current(under_test), settings_required():
        sets, reached = subject.copies(first.args, under_test)
        restore = subject.renewal(sets, before.args)
        contenders = []
        for index, (provider, candidate) in enumerate(named.items()):
            also = list((flags or {}).get(provider, ()))
            contenders.append(
                FunctionContender(
                    replace(blank, provider=provider),
                    index,
                    under_test,
                    new_call=functools.partial(new_call, candidate),
                    move=move,
                    restore=restore,
                    calls=[new_call(candidate, copy) for copy in range(len(sets))],
                    within=(within or {}).get(provider, nullcontext),
                    cache=reached,
                    fn=candidate,
                    before=before,
                    expected=expected,
                    tolerance=tolerance,
                    make=make_inputs or subject.made_again,
                    requested_cache=subject.cache,
                    flags=[*also, *unknown] if index else also,
                )
            )
        records = compare_contenders(contenders, under_test, policy, current(under_test))
        if restore:  # the first copy may be that of the caller
            restore()
        return under_test, records


def ordered(named: dict[str, T], baseline: str | None) -> dict[str, T]:
    if len(named) < 2:
        raise UsageError(f"expected at least two functions, got only '{next(iter(named))}'")
    if baseline is None:
        return named
    if baseline not in named:
        raise UsageError(f"baseline={baseline!r:.60} must be one of {', '.join(named)}")
    return {baseline: named[baseline], **named}


@dataclass(kw_only=True, eq=False)
class FunctionContender(Contender):
    """A function whose result must equal that of the baseline."""

    fn: Fn
    before: Call
    """The call of the baseline, with copies of its arguments from before all calls."""
    expected: Expected | None
    """None: results are not compared."""
    tolerance: float
    make: Inputs | None
    """Makes other arguments."""
    requested_cache: str
    flags: list[Flag]
    verified: dict[str, Any] = field(default_factory=dict)

    def prepare(self, earlier: Sequence[Contender]) -> None:
        self._check("before")

    def finish(self, samples: Samples) -> Record:
        interpreted()  # forgets the kernels of the others
        if self.index:
            self._check("after")
        if self.record is None and self.expected:
            if self.restore:
                self.restore()
            pace = self.device.synchronize, samples
            call = self.calls[0]
            baseline = self.before.func
            try:
                found = on_new_contents(
                    call, baseline, self.expected, self.tolerance, self.make, pace
                )
            except UnverifiedError as error:
                found = CheckResult(None, unverified=str(error))
                with suppress(Exception):  # of the function, or no tensor
                    if returns_earlier_result(call):
                        found = CheckResult(EARLIER)
            self._keep(found)
        if self.record is not None:
            return self.record
        record = recorded(
            self.blank,
            samples,
            self.device,
            known_ceilings(self.device),
            self.requested_cache,
            [*self.flags, *interpreted()],
            has_advice=False,
        )
        return replace(record, copies=len(self.calls), verified=self.verified)

    def failed(self, error: BaseException) -> Record:
        is_own = isinstance(error, UsageError)
        reason = str(error) if is_own else f"raised {one_line(error)}"
        return replace(self.blank, status="failed", reason=reason)

    def _check(self, moment: str) -> None:
        """Call the function and compare its result, unless it is the baseline."""
        found = CheckResult(None)
        with settings_required():
            call = on_copies(self.before, self.fn)
            result = call()
            if self.restore is None and changed_inputs(self.before, call, result):
                found = CheckResult(CHANGES_INPUTS)
            elif self.expected and self.index:
                found = self.expected.check(result, self.tolerance)
        self._keep(found, moment)

    def _keep(self, found: CheckResult, moment: str = "") -> None:
        """Keep what a check found; end with a record if the result is wrong."""
        if moment and found.elements:
            self.verified[moment] = found.to_dict()
        self.flags += of_check(found, "tolerance=")
        if found.reason:
            when = "after timing: " if moment == "after" else ""
            self.record = replace(
                self.blank, status="invalid", reason=when + found.reason, verified=self.verified
            )
