"""Measures one case with several providers: all are prepared and verified, take turns on the clock, and are verified
again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bench.harness import worker
from bench.harness.compare.rounds import ComparePolicy
from bench.harness.compare.turns import Contender, take_turns
from bench.harness.data.checks import ReplayCheck
from bench.harness.data.inputs import InputSet
from bench.harness.device.device import Device
from bench.harness.measure.budget import CALLS_PER_CASE, Budget
from bench.harness.measure.errors import failed
from bench.harness.measure.measure_row import finish, make_copies, prepare
from bench.harness.measure.rows import Row
from bench.harness.providers.registry import numerics
from bench.harness.timing.protocol import Samples
from results.record import Record
from roofline.ceilings import Ceilings

PROBES = 3
SLOW_CALL_S = 0.01
"""Calls from this length on are checked against the time that is left, and their place in memory does not matter."""


def interleave(
    rows: Sequence[Row], device: Device, ceilings: Ceilings | None, policy: ComparePolicy, budget: Budget
) -> list[Record]:
    """Return a record for each row, whatever becomes of it.

    If the baseline or all others cannot run, or their results are wrong, nothing is timed.

    Args:
        rows: one case, a provider each, the baseline first.
        device: the device under test.
        ceilings: what the rows are evaluated against.
        policy: of this case.
        budget: the time that is left for the run.
    """
    contenders = [ProviderContender(row, index, device, ceilings) for index, row in enumerate(rows)]
    baseline, copies = contenders[0], shared_copies(rows[0], device, len(rows))
    for contender in contenders:
        others_s = sum(other.least_s for other in contenders[: contender.index] if other.record is None)
        together = len(rows) - contender.index
        if baseline.record is None:
            contender.attempt(partial(contender.prepare, budget, copies, together, others_s))
    ready = [contender for contender in contenders if contender.record is None]
    if baseline.record is None and len(ready) > 1:
        with numerics(rows[0].case.dtype):
            take_turns(ready, device, policy)
    return completed(rows, {contender.index: contender.record for contender in contenders})


def interleave_in_worker(
    rows: Sequence[Row],
    device: Device,
    ceilings: Ceilings | None,
    policy: ComparePolicy,
    deadline: float | None,
    timeout_s: float,
    note: Callable[[str], None],
) -> list[Record]:
    """Return what `interleave` does in a new process, because a user's function may end its process or never return.

    All providers of a case are measured in one process: in two they would also differ by where each process has its
    code and memory. If the process ends, the provider whose code was running has failed, and the others are measured
    again without it.

    Args:
        rows: as of `interleave`, and so are the next three.
        device: the device under test.
        ceilings: what the rows are evaluated against.
        policy: of this case.
        deadline: reading of `time.perf_counter` when the budget of the run is spent.
        timeout_s: longest call of a provider.
        note: called with the reason why a case is measured again.
    """
    records: dict[int, Record | None] = {}
    left = list(range(len(rows)))
    while 0 in left and len(left) > 1:
        what = [rows[index] for index in left], device, ceilings, policy, deadline
        try:
            measured, _ = worker.call(_interleave, *what, timeout_s=timeout_s, deadline=policy.deadline)
        except worker.WorkerError as error:
            culprit = left.pop(error.index or 0)  # if none is to blame, the baseline has the reason
            blank = rows[culprit].blank()
            records[culprit] = replace(blank, status="failed", reason=str(error))
            if 0 in left and len(left) > 1:
                note(f"{blank.provider}: {error}; the others are measured again without it")
        else:
            records |= dict(zip(left, measured, strict=True))
            break
    return completed(rows, records)


def _interleave(
    rows: Sequence[Row], device: Device, ceilings: Ceilings | None, policy: ComparePolicy, deadline: float | None
) -> list[Record]:
    device.use()
    return interleave(rows, device, ceilings, policy, Budget(device, rows[0].settings, deadline))


def completed(rows: Sequence[Row], records: Mapping[int, Record | None]) -> list[Record]:
    """Return the records of all rows; one that has none was not timed, because the baseline or all others have not
    been either.
    """
    finished = [records.get(index) for index in range(len(rows))]
    reasons = [f"{one.provider} {one.status}: {one.reason}" for one in finished if one is not None]
    return [
        one or replace(row.blank(), reason=f"nothing to compare with: {reasons[0]}")
        for row, one in zip(rows, finished, strict=True)
    ]


class ProviderContender(Contender):
    """A row that is compared with the others of its case."""

    least_s = 0.0
    """Time of the fewest calls that a comparison makes; 0 for short calls."""

    def __init__(self, row: Row, index: int, device: Device, ceilings: Ceilings | None) -> None:
        """Begin with a row, of which nothing is prepared; `index` is that in its case."""
        super().__init__(row.blank().provider, index, device)
        self.row, self.ceilings = row, ceilings

    def prepare(
        self, budget: Budget, copies: Iterator[tuple[list[InputSet], str]], together: int, others_s: float
    ) -> None:
        """Verify the first result, and see how long the calls take; set the record if the row ends here.

        Args:
            budget: the time that is left for the run.
            copies: as `shared_copies` yields them.
            together: providers that are still to be prepared.
            others_s: time of the fewest calls of those that are prepared.
        """
        row, device = self.row, self.device
        if row.refused is not None:
            self.record = row.refused
            return
        if (reason := budget.refusal(row, together)) is not None:
            self.record = replace(row.blank(), reason=reason)
            return
        ready = prepare(row, device, budget.deadline, next(copies))
        if isinstance(ready, Record):
            self.record = ready
            return
        left_s = budget.left_s()
        with numerics(row.case.dtype):
            call_s = slow_call_s(ready.calls[0], device)
        self.ready, self.calls, self.cache, self.least_s = ready, ready.calls, ready.cache, CALLS_PER_CASE * call_s
        needed_s = self.least_s + others_s
        if left_s is not None and call_s and needed_s > left_s:
            reason = f"a call takes {call_s:.2g} s and the fewest of a comparison {needed_s:.2g} s, more than the "
            reason += f"{max(0.0, left_s):.2g} s that are left; a larger --budget allows it"
            self.record = replace(row.blank(), reason=reason)
        if not call_s:
            self.new_call = lambda copy: ready.provider.call(ready.sets[copy])

    def replay_check(self, first: int) -> ReplayCheck | None:
        """Return what verifies a graph that begins with the copy `first`; the last one is verified at the end too."""
        ready, sets = self.ready, self.ready.sets
        replay = ReplayCheck(ready.row.op, ready.row.case, [*sets[first:], *sets[:first]])
        self.ready = replace(ready, replay=replay if self.device.is_gpu else None)
        return self.ready.replay

    def finish(self, samples: Samples) -> Record:
        """Verify the result again and return the record."""
        return finish(self.ready, samples, self.device, self.ceilings)

    def failed(self, error: BaseException) -> Record:
        """Return the record of an error."""
        return failed(self.row, error)


def shared_copies(row: Row, device: Device, providers: int) -> Iterator[tuple[list[InputSet], str]]:
    """Yield for each provider the same copies of the inputs in tensors of its own, and what launches find in the
    cache.

    Where in memory the copies are makes up to 5 % of the time of a short launch, so providers with separate copies
    would differ though their code does not. So does the address of a tensor object: those of a copy are made one after
    the other for all providers.
    """
    with numerics(row.case.dtype):
        sets, cache = make_copies(row, device)
    views: list[list[InputSet]] = [[] for _ in range(providers)]
    for data in sets:
        for view in views:
            view.append(InputSet(tuple(x.detach() for x in data.inputs), data.out.detach()))
    for view in views:
        yield view, cache


def slow_call_s(call: Callable[[], object], device: Device) -> float:
    """Return the seconds of a call; 0 if it is short."""
    seconds = math.inf
    for _ in range(PROBES):  # the minimum: an interrupted call is not a slow one
        worker.announce()
        start = time.perf_counter()
        call()
        device.synchronize()
        seconds = min(seconds, time.perf_counter() - start)
        if seconds < SLOW_CALL_S:
            return 0.0
    return seconds
