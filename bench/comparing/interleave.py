"""The rows of one case, one per provider, interleaved in this process or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.comparing.contender import Contender
from bench.comparing.turns import ComparePolicy, compare_contenders, completed
from bench.harness import worker
from bench.harness.data.inputs import InputSet
from bench.harness.device.device import Device
from bench.harness.measure.budget import CALLS_PER_CASE, Budget
from bench.harness.measure.measure_row import finish, make_copies, prepare, release
from bench.harness.measure.rows import Row, failed
from bench.harness.providers.registry import is_user_kernel, numerics
from bench.harness.run import Run
from bench.harness.timing import protocol, samplers
from bench.harness.timing.protocol import Samples
from results.record import Record
from results.show.units import duration
from roofline.machine import Machine

PROBES = 3

SLOW_CALL_S = 0.01
"""The rounds of shorter calls fit any budget."""


def interleave(
    rows: Sequence[Row],
    device: Device,
    ceilings: Machine | None,
    policy: ComparePolicy,
    budget: Budget,
) -> list[Record]:
    """Return a record for each row of one case, the baseline first."""
    device.use()
    copies = SharedCopies(rows[0], device)
    contenders = [
        ProviderContender(
            row.blank(),
            index,
            device,
            row=row,
            ceilings=ceilings,
            budget=budget,
            copies=copies,
            together=len(rows) - index,
        )
        for index, row in enumerate(rows)
    ]
    return compare_contenders(contenders, device, policy, numerics(rows[0].case.dtype))


def interleave_safely(
    rows: Sequence[Row], budget: Budget, run: Run, policy: ComparePolicy
) -> list[Record]:
    """Call `interleave` for a case of a run, in a new process if there are users' functions.

    All providers of a case share a process, because processes differ in the placement of code and
    memory. If the process ends or loses its GPU, the provider whose code was running has failed,
    and the others are measured again without it in a new process. All cases have one budget.
    """
    budget.deadline = run.deadline
    by_name = {row.blank().provider: row for row in rows}
    case = rows[0].case
    run.progress.say(f"{case.op} {case.name} {case.dtype}: {', '.join(by_name)}")
    is_own = any(is_user_kernel(row.provider) for row in rows if not row.refused)
    in_worker = is_own or not release(run.device)

    def measure(left: Sequence[str]) -> tuple[list[Record], str]:
        arguments = ([by_name[name] for name in left], run.device, run.ceilings, policy, budget)
        # Here it fails only if this process cannot go on, and then one of the rows is left out.
        if not in_worker and len(left) == len(rows):
            return interleave(*arguments), ""
        return worker.call(
            interleave, *arguments, timeout_s=run.settings.timeout_s, deadline=policy.deadline
        )

    return without_culprits([row.blank() for row in rows], measure, run.progress.note)


def without_culprits(
    blanks: Sequence[Record],
    measure: Callable[[Sequence[str]], tuple[list[Record], str]],
    note: Callable[[str], None],
) -> list[Record]:
    """Return the records that `measure` returns, as `worker.call` does, for the names of all
    providers, the baseline first; after a `WorkerError` it is called again without the culprit.
    """
    failed = {}
    left = {blank.provider: blank for blank in blanks}
    baseline = blanks[0].provider
    while baseline in left and len(left) > 1:
        names = list(left)
        try:
            measured, _ = measure(names)
            if [record.provider for record in measured] != names:
                raise worker.WorkerError("sent the records of other rows")
        except worker.WorkerError as error:
            # If the culprit is unknown, the baseline fails.
            blank = left.pop(names[error.index or 0])
            failed[blank.provider] = replace(blank, status="failed", reason=str(error))
            if baseline in left and len(left) > 1:
                note(f"{blank.provider}: {error}; the others are measured again without it")
        else:
            failed |= dict(zip(names, measured, strict=True))
            break
    return completed(blanks, [failed.get(blank.provider) for blank in blanks])


@dataclass(kw_only=True, eq=False)
class ProviderContender(Contender):
    """A row of a comparison."""

    row: Row
    ceilings: Machine | None
    budget: Budget
    copies: SharedCopies
    together: int
    """Providers still to be prepared, including this one."""

    def prepare(self, earlier: Sequence[Contender]) -> None:
        row = self.row
        device = self.device
        budget = self.budget
        reason = None if row.refused else budget.refusal(row, self.together)
        refused = replace(self.blank, reason=reason) if reason else row.refused
        ready = refused or prepare(row, device, budget.deadline, self.copies.views())
        if isinstance(ready, Record):
            self.record = ready
            return
        left_s = budget.left_s()
        with numerics(row.case.dtype):
            call_s = slow_call_s(ready.calls, device)
        self.ready = ready
        self.restore = ready.restore
        self.calls = ready.calls
        self.cache = ready.cache
        self.min_s = CALLS_PER_CASE * call_s
        needed_s = self.min_s + sum(contender.min_s for contender in earlier)
        if call_s and needed_s > left_s:
            reason = (
                f"comparing takes at least {duration(needed_s)} ({duration(call_s)} per call), "
                f"{duration(max(0.0, left_s))} are left; increase --budget"
            )
            self.record = replace(self.blank, reason=reason)
        self.new_call = self._call_on
        self.move = self.copies.move

    def _call_on(self, copy: int) -> samplers.Call:
        data = self.copies.view(copy)
        self.ready.sets[copy] = data
        return self.ready.provider.call(data)

    def finish(self, samples: Samples) -> Record:
        self.ready.replay = self.replay
        return finish(self.ready, samples, self.device, self.ceilings)

    def failed(self, error: BaseException) -> Record:
        """Return the record, or raise `WorkerError` if this process can no longer use the GPU."""
        record = failed(self.row, error)
        if not release(self.device):
            raise worker.WorkerError(record.reason or str(error), self.index)
        return record


class SharedCopies:
    """Copies of the inputs of a case, shared by its providers, each with separate tensor objects.

    The memory of the copies changes the time of a short launch by up to 5 %, so equal providers
    with separate copies would differ.
    """

    def __init__(self, row: Row, device: Device) -> None:
        self._row = row
        self._device = device
        self._sets: list[InputSet] = []
        self._cache = ""

    def views(self) -> tuple[list[InputSet], str]:
        """Return a provider's copies, allocated at the first call, and their cache state."""
        if not self._sets:
            with numerics(self._row.case.dtype):
                self._sets, self._cache = make_copies(self._row, self._device)
        return [self.view(copy) for copy in range(len(self._sets))], self._cache

    def view(self, copy: int) -> InputSet:
        data = self._sets[copy]
        return InputSet(tuple(x.detach() for x in data.inputs), data.out.detach())

    def move(self, copy: int) -> None:
        data = self._sets[copy]
        self._sets[copy] = InputSet(tuple(x.clone() for x in data.inputs), data.out.clone())


def slow_call_s(calls: Sequence[samplers.Call], device: Device) -> float:
    """Return the seconds of a call, the minimum of a few; 0 if it is short."""
    protocol.announce()
    seconds = min(samplers.timed_calls(calls, PROBES, device.synchronize, is_awaited=True))
    return seconds if seconds >= SLOW_CALL_S else 0.0
