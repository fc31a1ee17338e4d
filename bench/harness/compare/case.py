"""One case, all providers: each is prepared and verified, all take turns on the clock, each is verified again.

All of them share the same memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from bench.harness import worker
from bench.harness.compare.meter import Interleaved, InterleavingMeter, Ready, Turns, least_s
from bench.harness.compare.rounds import Rounds, Rule
from bench.harness.data.inputs import InputSet
from bench.harness.data.replay import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.measure.budget import CALLS_PER_CASE, Budget
from bench.harness.measure.errors import failed
from bench.harness.measure.measure_row import Ready as Prepared
from bench.harness.measure.measure_row import finish, make_copies, prepare, release
from bench.harness.measure.rows import Row
from bench.harness.measure.samples import take_samples
from bench.harness.providers.registry import ProviderUnavailableError, numerics
from bench.harness.timing.protocol import limits_of
from results.record import Record
from roofline.ceilings import Ceilings

T = TypeVar("T")


class InterleavingRunner:
    """Measures all providers of one case together; verifies and records each as in any other run."""

    def __init__(self, device: Device, budget: Budget, deadline: float | None, ceilings: Ceilings) -> None:
        """Prepare.

        Args:
            device: the device under test.
            budget: rejects a case that would take too long.
            deadline: reading of `time.perf_counter` when the budget is spent.
            ceilings: what records are evaluated against.
        """
        self._device, self._budget, self._deadline, self._ceilings = device, budget, deadline, ceilings
        self._turns, self._cache = InterleavingMeter(device), ""
        self._views: list[list[InputSet]] = []

    def measure_case(self, rows: Sequence[Row], names: Sequence[str], rule: Rule) -> list[Record]:
        """Return a record for each row, whatever becomes of it.

        If the baseline cannot run, or its result is wrong, the others have nothing to be compared with and are skipped.

        Args:
            rows: one case, a provider each, the baseline first.
            names: what each provider is called in its record; a provider that is there twice has two names.
            rule: when the rounds end.
        """
        self._views = [[] for _ in rows]
        records: dict[int, Record] = {}
        waiting: dict[int, tuple[Prepared, Ready]] = {}
        for place, row in enumerate(rows):
            if place and not waiting:
                records[place] = without_baseline(row.blank(), records[0])
                continue
            others_s = sum(ready.least_s for _, ready in waiting.values())
            found = self._step(place, row, partial(self._make_ready, row, place, len(rows) - place, others_s))
            if isinstance(found, Record):
                records[place] = found
            else:
                waiting[place] = found
        with numerics(rows[0].case.dtype):
            rounds = self._measure_waiting(rows, waiting, rule, records)
        kept = [replace(records[place], provider=name) for place, name in enumerate(names)]
        if rounds is not None:
            for order, place in enumerate(waiting):
                if kept[place].samples_s:
                    note = interleaving(rounds, rule, order, names, list(waiting))
                    kept[place] = replace(kept[place], interleaved=note)
        return kept

    def _make_ready(self, row: Row, place: int, together: int, others_s: float) -> tuple[Prepared, Ready] | Record:
        """Prepare a provider, and see how long its calls take.

        Raises:
            ProviderUnavailableError: its calls are so slow that the fewest, beside those of the others before it, which
                take `others_s`, do not fit the time that is left.
        """
        if row.refused is not None:
            return row.refused
        if (reason := self._budget.refusal(row, together)) is not None:
            return replace(row.blank(), reason=reason)
        prepared = prepare(row, self._device, self._deadline, self._copies(row))
        if isinstance(prepared, Record):
            return prepared
        left_s = self._budget.left_s()
        with numerics(row.case.dtype):
            slow_s = least_s(prepared.calls[0], self._device.synchronize)
        provider, sets = prepared.provider, prepared.sets
        new_call = None if slow_s else lambda copy: provider.call(sets[copy])
        replay = partial(_replay_check, row, sets) if self._device.is_gpu else None
        ready = Ready(prepared.calls, prepared.cache, place, slow_s, new_call, replay)
        refuse_if_too_slow(ready.least_s, others_s, left_s)
        return prepared, ready

    def _measure_waiting(
        self,
        rows: Sequence[Row],
        waiting: Mapping[int, tuple[Prepared, Ready]],
        rule: Rule,
        records: dict[int, Record],
    ) -> Rounds | None:
        """Measure all that wait, and finish their records; return their rounds, None where there were none.

        A baseline that is left alone is measured as in any other run.
        """
        if not waiting:
            return None
        if len(waiting) == 1:
            records[0] = self._step(0, rows[0], partial(self._measure_alone, *waiting[0], rule))
            return None
        all_ready = [ready for _, ready in waiting.values()]
        found = self._step(0, rows[0], partial(self._turns.interleave, all_ready, rule))
        if isinstance(found, Record):
            records[0] = found
            records |= {place: without_baseline(rows[place].blank(), found) for place in waiting if place}
            return None
        for order, place in enumerate(waiting):
            records[place] = self._step(place, rows[place], partial(self._finish_turns, *waiting[place], order, found))
        return found.rounds

    def _measure_alone(self, prepared: Prepared, ready: Ready, rule: Rule) -> Record:
        left_s = self._budget.left_s() if rule.deadline is None else max(0.0, rule.deadline - time.perf_counter())
        flops, device = prepared.row.op.work(prepared.row.case).flops, self._device
        how = limits_of(device), flops, left_s, prepared.prepared_s, prepared.replay
        return finish(prepared, take_samples(ready.calls, ready.cache, device, *how), device, self._ceilings)

    def _finish_turns(self, prepared: Prepared, ready: Ready, order: int, found: Interleaved) -> Record:
        samples, turns = self._turns.samples_of(ready, order, found), found.turns[order]
        assert isinstance(turns, Turns)
        return finish(replace(prepared, replay=turns.replay), samples, self._device, self._ceilings)

    def _step(self, place: int, row: Row, step: Callable[[], T]) -> T | Record:
        """Return the result of a step, or the record of a row that ended in it; an error that should end the process
        counts too.
        """
        worker.announce(place)
        try:
            found: T | Record = step()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            found = failed(row, error)
        worker.rest()
        if isinstance(found, Record):
            release(self._device)
        return found

    def _copies(self, row: Row) -> tuple[list[InputSet], str]:
        """Return the same copies for every provider of the case, each time in tensors of their own.

        Where in memory the copies are makes up to 5 % of the time of a short launch, so providers with separate copies
        would differ though their code does not. So does the address of a tensor object: those of a copy are made one
        after the other for all providers.
        """
        if not any(self._views):
            with numerics(row.case.dtype):
                copies, self._cache = make_copies(row, self._device)
            for data in copies:
                for views in self._views:
                    views.append(InputSet(tuple(x.detach() for x in data.inputs), data.out.detach()))
        return self._views.pop(), self._cache


def refuse_if_too_slow(least_s: float, others_s: float, left_s: float | None) -> None:
    """Refuse a provider whose slow calls, beside those of the others, would take longer than what is left.

    Args:
        least_s: time of the fewest calls of it; 0 where calls are short.
        others_s: the same of the others.
        left_s: time that is left; None without a limit.

    Raises:
        ProviderUnavailableError: with the times.
    """
    least = least_s + others_s
    if left_s is not None and least_s and least > left_s:
        text = f"a call takes {least_s / CALLS_PER_CASE:.2g} s and the fewest of a comparison {least:.2g} s, "
        text += f"more than the {max(0.0, left_s):.2g} s that are left; a larger --budget allows it"
        raise ProviderUnavailableError(text)


def without_baseline(blank: Record, baseline: Record) -> Record:
    """Return the record of a provider that is not measured because the baseline was not."""
    text = f"nothing to compare with: {baseline.provider} {baseline.status}: {baseline.reason}"
    return replace(blank, status="skipped", reason=text)


def all_without(blanks: Sequence[Record], status: str, reason: str) -> list[Record]:
    """Return the records of a case that cannot be measured at all: the baseline says why, the others name it."""
    baseline = replace(blanks[0], status=status, reason=reason)
    return [baseline, *(without_baseline(blank, baseline) for blank in blanks[1:])]


def interleaving(rounds: Rounds, rule: Rule, order: int, names: Sequence[str], ready: Sequence[int]) -> dict[str, Any]:
    """Return the fields by which the samples of a record can be paired with those of the other providers, round by
    round.
    """
    clocks_hz = rounds.clocks_hz[order]
    return {
        "with": [names[place] for place in ready],
        "rounds": len(rounds.slots[order]),
        "samples_per_round": len(rounds.slots[order][0]) if rounds.slots[order] else None,
        "is_fixed": rule.rounds is not None,
        "is_clear": rounds.is_clear,
        "seconds": rounds.seconds,
        "seed": rule.seed,
        "sm_clock_hz": clocks_hz if clocks_hz and None not in clocks_hz else None,
    }


def _replay_check(row: Row, sets: Sequence[InputSet], first: int) -> ReplayCheck:
    """Return what verifies a graph of calls on these sets that begins with the one on copy `first`."""
    return ReplayCheck(row.op, row.case, [*sets[first:], *sets[:first]])
