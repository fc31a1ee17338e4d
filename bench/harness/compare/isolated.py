"""Measures a case in a new process, because a user's function may end its process or never return.

All providers of a case are interleaved in one process: in two they would also differ by where each process has its code
and memory. If the process dies, it has announced whose code was running: that provider is `failed`, and the others
are measured again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.harness import worker
from bench.harness.compare.case import InterleavingRunner, all_without, without_baseline
from bench.harness.compare.rounds import Rule
from bench.harness.device.device import Device
from bench.harness.measure.budget import Budget
from bench.harness.measure.rows import Row, plan
from results.record import Record
from roofline.ceilings import Ceilings


def records_of_case(
    rows: Sequence[Row],
    blanks: Sequence[Record],
    device: Device,
    ceilings: Ceilings,
    rule: Rule,
    deadline: float | None,
    timeout_s: float,
    note: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Measure a case in a new process, and again without the provider that broke it, as often as needed.

    Args:
        rows: the case with each provider, the baseline first.
        blanks: for each row a record with the provider's name and nothing measured.
        device: the device under test.
        ceilings: what the rows are evaluated against.
        rule: when the rounds end.
        deadline: reading of `time.perf_counter` when the budget is spent.
        timeout_s: longest call of a provider.
        note: prints why a case is measured again.
    """
    kept: dict[int, Record] = {}
    left = list(range(len(rows)))
    while len(left) > 1 and 0 in left:
        names = [blanks[index].provider for index in left]
        what = [rows[index] for index in left], names, device, ceilings, rule, deadline
        try:
            records, _ = worker.call(_measure_case, *what, timeout_s=timeout_s, deadline=rule.deadline)
        except worker.WorkerError as error:
            if error.index is None:
                records = all_without([blanks[index] for index in left], "failed", str(error))
            else:
                culprit = left.pop(error.index)
                kept[culprit] = replace(blanks[culprit], status="failed", reason=str(error))
                if len(left) > 1 and 0 in left:
                    note(f"{blanks[culprit].provider}: {error}; the others are measured again without it")
                continue
        kept |= dict(zip(left, records, strict=True))
        return [kept[index] for index in sorted(kept)]
    for index in left:
        if index:
            kept[index] = without_baseline(blanks[index], kept[0])
        else:
            kept[index] = replace(blanks[index], status="skipped", reason="nothing to compare with: no other is left")
    return [kept[index] for index in sorted(kept)]


def _measure_case(
    rows: Sequence[Row], names: Sequence[str], device: Device, ceilings: Ceilings, rule: Rule, deadline: float | None
) -> list[Record]:
    device.use()
    op, case, family, settings = rows[0].op, rows[0].case, rows[0].family, rows[0].settings
    budget = Budget(device, settings, deadline)
    planned = plan([(op, case)], [row.provider for row in rows], device, settings, family=family)
    return InterleavingRunner(device, budget, deadline, ceilings).measure_case(planned, names, rule)
