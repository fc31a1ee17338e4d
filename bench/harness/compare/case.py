"""One case, all providers: each is prepared and verified, all take turns on the clock, each is verified again.

All of them share the same memory. Where a user's function does with it what it must not, it is found out which one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bench.harness.compare.meter import InterleavingMeter
from bench.harness.compare.rounds import Rounds, Rule
from bench.harness.data.checks import ForeignWatch, Watch
from bench.harness.data.guarded_buffers import GuardedBuffers
from bench.harness.data.inputs import Filler, InputSet
from bench.harness.device.device import Device
from bench.harness.isolate.heartbeat import NOBODY
from bench.harness.measure.cost import CostEstimator
from bench.harness.measure.plan import Row, Settings, blank_record
from bench.harness.measure.runner import Runner, one_line, user_line
from bench.harness.op import Case, Op
from bench.harness.providers.registry import Provider
from bench.harness.providers.user_kernel import UserKernelError, is_user_kernel, left_by
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS
from results.record import Record
from roofline.ceilings import Ceilings


class InterleavingRunner(Runner):
    """Measures all providers of one case together; verifies and records each as in any other run."""

    def __init__(
        self,
        family: str,
        device: Device,
        settings: Settings,
        estimator: CostEstimator,
        deadline: float | None,
        ceilings: Ceilings,
        announce: Callable[[int], None] = lambda place: None,
    ) -> None:
        """Prepare; as of `Runner`, and `announce` is told the place of the provider whose code runs, or `NOBODY`."""
        self._announce = announce
        self._place: Callable[[], int] = lambda: 0
        limits = GPU_LIMITS if device.has_cuda else CPU_LIMITS
        super().__init__(family, device, settings, estimator, limits, deadline, ceilings)
        self._meter: InterleavingMeter = InterleavingMeter(device, limits)
        self._row: Row | None = None
        self._memory: GuardedBuffers | None = None
        self._shared: list[InputSet] = []
        self._is_sharing = True
        self._has_foreign = False
        self._harm: str | None = None

    def measure_case(self, rows: Sequence[Row], names: Sequence[str], rule: Rule) -> list[Record]:
        """Return a record for each row, whatever becomes of it.

        Where the baseline cannot run, or its result is wrong, there is nothing to set the others against, and they are
        skipped. Where somebody has damaged the memory that all work on, and several users' functions took part, all
        is measured again with memory of each one's own: then it is known who does it.

        Args:
            rows: one case, a provider each, the baseline first.
            names: what each provider is called in its record; a provider that is there twice has two names.
            rule: when the rounds end.
        """
        self._is_sharing = True
        records, suspects = self._measure_together(rows, names, rule)
        harm = self._harm
        if harm is not None and len(suspects) > 1:
            self._is_sharing = False
            again, _ = self._measure_together(rows, names, rule)
            if any(again[place].status == "invalid" for place in suspects):
                return again
            if all(again[place].status != "skipped" for place in suspects):  # else there was no time left for it
                records = again
            harm += f"; it was one of {', '.join(names[place] for place in suspects)}"
        if harm is not None:
            for place in suspects:
                if records[place].status == "ok":
                    records[place] = _invalid(records[place], f"after timing: {harm}")
        return records

    def _measure_together(
        self, rows: Sequence[Row], names: Sequence[str], rule: Rule
    ) -> tuple[list[Record], list[int]]:
        """Return a record for each row, and the places of those users' functions that took turns."""
        records: dict[int, Record] = {}
        opened: list[int] = []
        ready: list[int] = []

        def open_next() -> None:
            if opened:
                ready.append(opened[-1])  # its row has just asked for the clock
            while len(opened) < len(rows):
                place = len(opened)
                opened.append(place)
                if place and not ready:
                    blank = blank_record(rows[place].op, rows[place].case, rows[place].provider, self._settings)
                    records[place] = without_baseline(blank, records[0])
                    continue
                self._announce(place)
                self.together = len(rows) - place
                records[place] = self.measure(rows[place])

        self._shared, self._memory, self._harm = [], None, None
        self._has_foreign = any(is_user_kernel(row.provider) for row in rows)
        self._place = lambda: opened[-1]
        self._meter.expect(rule, open_next, lambda: partial(self._announce, opened[-1]), self._look_for_harm)
        open_next()
        self._announce(NOBODY)
        kept = [replace(records[place], provider=name) for place, name in enumerate(names)]
        suspects = [place for place in ready if is_user_kernel(rows[place].provider)]
        rounds = self._meter.rounds
        if rounds is None:
            return kept, suspects
        notes = {place: _interleaving(rounds, rule, order, names, ready) for order, place in enumerate(ready)}
        return [
            replace(record, interleaved=notes[place]) if place in notes and record.samples_s else record
            for place, record in enumerate(kept)
        ], suspects

    def measure(self, row: Row) -> Record:
        """Return the record of one row, also where its function wanted to end the process."""
        self._row = row
        try:
            record = super().measure(row)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            what = left_by(error) if isinstance(error, SystemExit) else one_line(error)
            blank = blank_record(row.op, row.case, row.provider, self._settings)
            record = replace(blank, status="failed", reason=what + user_line(row.provider, error))
        self._announce(NOBODY)
        if record.status in ("invalid", "failed") and self._memory is not None:
            self._put_right()  # whatever it has done, the others are to find what was there before
        return record

    def _failed(self, row: Row, blank: Record, error: Exception) -> Record:
        """Return the record of a row that raised, without the class of an error that is a sentence."""
        if isinstance(error, UserKernelError):
            return replace(blank, status="failed", reason=str(error).removeprefix(f"provider '{row.provider}': "))
        return super()._failed(row, blank, error)

    def _watch(self, op: Op, case: Case, provider: Provider) -> Watch:
        """Return how the calls of a provider are checked; of a user's function each is announced."""
        watch = super()._watch(op, case, provider)
        if isinstance(watch, ForeignWatch):
            watch.enter, watch.leave = partial(self._announce, self._place()), partial(self._announce, NOBODY)
            watch.shared_buffers = lambda: self._memory
        self._announce(NOBODY)
        return watch

    def _input_sets(self, op: Op, case: Case, copies: int) -> list[InputSet]:
        """Return the same copies for every provider of the case.

        Where in memory the copies lie makes up to 5 % of the time of a short launch, so providers with copies of their
        own would differ though their code does not.
        """
        if not self._is_sharing:
            return super()._input_sets(op, case, copies)
        if not self._shared:
            self._shared = super()._input_sets(op, case, copies)
            if self._has_foreign:
                self._memory = GuardedBuffers(self._shared, self._device, has_guards=True)
        return list(self._shared) if self._memory is None else self._memory.views()

    def _look_for_harm(self) -> None:
        """Note after the rounds what they have done to the memory that all share, and put it right."""
        self._announce(NOBODY)
        if self._memory is not None:
            self._harm = self._memory.harm()
            if self._harm is not None:
                self._put_right()

    def _put_right(self) -> None:
        assert self._row is not None
        assert self._memory is not None
        case = self._row.case
        filler = Filler(self._settings.fill, case.dtype, self._device, self._settings.seed)
        self._memory.restore(self._row.op, case, filler)


def without_baseline(blank: Record, baseline: Record) -> Record:
    """Return the record of a provider that is not measured because the baseline was not."""
    text = f"nothing to compare with: {baseline.provider} {baseline.status}: {baseline.reason}"
    return replace(blank, status="skipped", reason=text)


def all_without(blanks: Sequence[Record], status: str, reason: str) -> list[Record]:
    """Return the records of a case that cannot be measured at all: the baseline says why, the others name it."""
    baseline = replace(blanks[0], status=status, reason=reason)
    return [baseline, *(without_baseline(blank, baseline) for blank in blanks[1:])]


def _invalid(record: Record, reason: str) -> Record:
    """Return a record without what was measured, because it does not count."""
    fields = ("op", "provider", "dtype", "shape", "case", "options", "flops", "bytes_read", "bytes_written", "fill")
    kept = {name: getattr(record, name) for name in (*fields, "verified", "source_sha256", "op_sha256")}
    return Record(**kept, status="invalid", reason=reason)


def _interleaving(rounds: Rounds, rule: Rule, order: int, names: Sequence[str], ready: Sequence[int]) -> dict[str, Any]:
    """Return what a record must hold so that its samples can be set beside those of the others, round by round."""
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
