"""Measures a case in a new process, because a user's function may end its process or never return.

All providers of a case are interleaved in one process: in two they would also differ by where each process has its code
and memory. If the process dies, it has announced whose code was running: that provider is `failed`, and the others
are measured again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bench.harness import worker
from bench.harness.compare.case import InterleavingRunner, all_without, without_baseline
from bench.harness.compare.rounds import Rule
from bench.harness.device.device import Device
from bench.harness.measure.cost import CostEstimator
from bench.harness.measure.plan import Settings, plan
from bench.harness.op import Case
from bench.harness.op_file import module_of
from results.record import Record
from roofline.ceilings import Ceilings


@dataclass(frozen=True, kw_only=True)
class CaseJob:
    """A case to measure in a child process."""

    family: str
    case: Case
    providers: Sequence[str]
    """As they are loaded, the baseline first."""
    names: Sequence[str]
    """As they are called in the records."""
    device: Device
    settings: Settings
    ceilings: Ceilings
    rule: Rule
    deadline: float | None
    """Reading of `time.perf_counter` when the budget is spent."""


def measure_case(job: CaseJob) -> list[Record]:
    """Return the records of a case; runs in the worker."""
    job.device.use()
    op = next(op for op in module_of(job.family).OPS if op.name == job.case.op)
    estimator = CostEstimator(job.device, job.settings.fill, job.settings.seed)
    how = (job.settings, estimator, job.deadline, job.ceilings)
    rows = plan([(op, job.case)], job.providers, job.device, job.settings)
    return InterleavingRunner(job.family, job.device, *how).measure_case(rows, job.names, job.rule)


def records_of_case(
    job: CaseJob, timeout_s: float, blanks: Sequence[Record], note: Callable[[str], None] = lambda text: None
) -> list[Record]:
    """Measure a case in a new process, and once more without the provider that broke it, as often as needed.

    Args:
        job: the case.
        timeout_s: longest call of a provider.
        blanks: for each provider a record with its name and nothing measured.
        note: is told why a case is measured again.
    """
    kept: dict[int, Record] = {}
    places = list(range(len(blanks)))
    while len(places) > 1 and 0 in places:
        providers, names = [job.providers[place] for place in places], [job.names[place] for place in places]
        try:
            left = replace(job, providers=providers, names=names)
            records, _ = worker.call(measure_case, left, timeout_s=timeout_s, deadline=job.rule.deadline)
        except worker.WorkerError as error:
            if error.index is None or error.index >= len(places):
                records = all_without([blanks[place] for place in places], "failed", str(error))
            else:
                culprit = places.pop(error.index)
                kept[culprit] = replace(blanks[culprit], status="failed", reason=str(error))
                if len(places) > 1 and 0 in places:
                    note(f"{blanks[culprit].provider}: {error}; the others are measured again without it")
                continue
        kept |= dict(zip(places, records, strict=True))
        return [kept[place] for place in sorted(kept)]
    for place in places:
        if place:
            kept[place] = without_baseline(blanks[place], kept[0])
        else:
            kept[place] = replace(blanks[place], status="skipped", reason="nothing to compare with: no other is left")
    return [kept[place] for place in sorted(kept)]
