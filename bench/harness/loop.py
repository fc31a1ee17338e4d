"""The one loop over the rows of a run: three visits of each, within the budget; users' functions in workers.

A row is visited several times, among the other rows, and its record holds the samples of all visits. Slow changes of
the machine are then inside the samples, and the visits show how much they differ.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness.cli.arguments import UsageError
from bench.harness.measure.budget import Budget, total
from bench.harness.measure.compile import compile_rows
from bench.harness.measure.flags import judged, not_converged, reasons_of
from bench.harness.measure.isolated import launched_fields, load_problem, measure_isolated
from bench.harness.measure.measure_row import measure_row, release
from bench.harness.measure.rows import Row, failed, out_of_time
from bench.harness.providers.user_kernel import is_user_kernel
from bench.harness.timing.protocol import Limits, Samples, limits_of
from results.record import Record
from results.show.table import describe, name_of
from results.stats.samples import half_width, median, median_ci95, outlier_count

if TYPE_CHECKING:
    from bench.harness.run import Run

VISITS = 3
"""Two visits cannot show which of them is unusual; more would cost more preparation than they add."""

NOT_CONVERGED = "not-converged"
"""This flag and those of ceilings are decided again by all samples; the others are those of any visit."""


def measure_run(run: Run, rows: Sequence[Row], may_reorder: bool = False) -> None:
    """Measure the rows of a run from the import of users' functions to the last visit.

    Args:
        run: not started yet.
        rows: of any families.
        may_reorder: whether a case that takes too much of a budget may be measured after a smaller one of its op.

    Raises:
        UsageError: no row is left that could be measured.
    """
    dtypes = tuple(dict.fromkeys(row.case.dtype for row in rows if not row.refused))
    with run:
        rows = check_user_kernels(rows, run)
        run.start(dtypes)
        measure_rows(run, rows, may_reorder)
        run.note_time()
        run.judge_again()


def check_user_kernels(rows: Sequence[Row], run: Run) -> list[Row]:
    """Return all rows of a run; those of a user's function that cannot be used have failed already, with the reason.

    Raises:
        UsageError: no row is left that could be measured.
    """
    problems: dict[tuple[str, str, str], str | None] = {}
    checked = []
    for row in rows:
        key = row.family, row.op.name, row.provider
        if is_user_kernel(row.provider) and row.refused is None and key not in problems:
            run.progress.say(f"importing {row.provider}")
            problems[key] = load_problem(row, run.device, run.args.timeout)
        problem = problems.get(key)
        checked.append(row if problem is None else _unusable(row, problem))
    reasons = list(dict.fromkeys(problem for problem in problems.values() if problem is not None))
    if reasons and all(row.refused for row in checked):
        raise UsageError(reasons[0])
    for reason in reasons:
        run.progress.note(f"{reason}; it fails, the others are measured")
    return checked


def _unusable(row: Row, problem: str) -> Row:
    if row.refused is not None:
        return row
    reason = problem.removeprefix(f"provider '{row.provider}': ")
    return replace(row, refused=replace(row.blank(), status="failed", reason=reason))


def measure_rows(run: Run, rows: Sequence[Row], may_reorder: bool = False) -> None:
    """Measure all rows, then visit each of them again; what is measured is saved after each visit."""
    budget = Budget(run.device, rows[0].settings, run.deadline, len(rows))
    for name, reason in (compile_rows(rows, run.device) if run.device.is_gpu else {}).items():
        run.progress.note(f"{name} does not compile: {reason}")
    run.progress.expect(len(rows) * VISITS, budget.left_s)
    measured = first_visits(run, rows, budget, may_reorder)
    late = len(rows) - len(measured)
    for number in range(1, VISITS):
        visit_again(run, measured, budget, number)
    for index, (row, record) in enumerate(measured):
        if row.settings.kernels and run.device.is_gpu and record.status == "ok" and budget.has_time():
            as_measured, how = replace(row, provider=record.provider), (run.device, run.args.timeout, run.deadline)
            fields = launched_fields(as_measured, record.median_s or 0.0, *how)
            measured[index] = row, run.keep(replace(record, **fields), replaces=record)
    run.rewrite()
    for _, record in measured if run.args.verbose else ():
        for line in [*describe(record), *(f"  | {line}" for line in (record.output or "").splitlines())]:
            run.progress.note(line)
    if late:
        enough = f"--budget {budget.enough_s(len(measured))} would do for about all"
        run.progress.note(f"no time was left for {late} of {len(rows)} rows; {enough}")


def first_visits(run: Run, rows: Sequence[Row], budget: Budget, may_reorder: bool) -> list[tuple[Row, Record]]:
    """Visit each row for which there is time once; return those rows with their records."""
    waiting, whole = deque(rows), limits_of(run.device)
    measured: list[tuple[Row, Record]] = []
    while waiting:
        row = waiting.popleft()
        may_not_fit = run.deadline is not None and not row.refused and budget.has_time() and release(run.device)
        expected_s = budget.expected_s(row) if may_not_fit else 0.0
        if may_reorder and put_off(row, waiting, budget, len(measured), expected_s):
            continue
        if not (row.refused or budget.has_time(expected_s)):
            run.keep(replace(row.blank(), reason=out_of_time(row.settings.budget_s)))
            continue
        began, share = time.perf_counter(), budget.sharing(len(measured)) + (VISITS - 1) * len(rows)
        record = with_visit(None, visit(run, row, budget, share), whole)
        budget.took(record, began, expected_s)
        measured.append((row, run.keep(record)))
        run.progress.advance()
        for line in passed_over(record):
            run.progress.note(line)
    return measured


def visit_again(run: Run, measured: list[tuple[Row, Record]], budget: Budget, number: int) -> None:
    """Visit each row that was measured once more, as long as there is time; `measured` gets the new records."""
    places = [place for place, (_, record) in enumerate(measured) if record.status == "ok"]
    for index, place in enumerate(places):
        if not budget.has_time():
            break
        row, record = measured[place]
        share = len(places) - index + (VISITS - 1 - number) * len(places)
        merged = with_visit(record, visit(run, row, budget, share), limits_of(run.device))
        if merged is not record:
            merged = judged(merged, run.device, run.ceilings)  # the median of one visit alone may be above a ceiling
            measured[place] = row, run.keep(merged, replaces=record)
            run.progress.advance()


def visit(run: Run, row: Row, budget: Budget, share: int) -> Record:
    """Measure a row once, in one of `share` equal parts of the time that is left.

    A user's function is measured in a worker, and so is every row after an error that the GPU keeps.
    """
    run.progress.say(f"{row.op.name} {row.case.name} {row.case.dtype} {row.provider}")
    if row.refused:
        return row.refused
    limits, has_device = limits_of_visit(limits_of(run.device)), release(run.device)
    if has_device:
        try:
            reason = budget.refusal(row)
        except Exception as error:  # a pilot runs the op's own code
            return failed(row, error)
        if reason:
            return replace(row.blank(), reason=reason)
    how = run.device, run.ceilings, limits, run.deadline, share
    if is_user_kernel(row.provider) or not has_device:
        return measure_isolated(row, *how, timeout_s=run.args.timeout)
    record = measure_row(row, *how)
    if row.provider == "torch" and record.status == "ok" and record.median_s:
        budget.learn(row, record.median_s)
    return record


def limits_of_visit(limits: Limits, visits: int = VISITS) -> Limits:
    """Return when to stop one visit, so that all of them together reach `limits`."""
    return replace(
        limits,
        min_samples=math.ceil(limits.min_samples / visits),
        fewest_samples=math.ceil(limits.fewest_samples / visits),
        target_half_width=limits.target_half_width * math.sqrt(visits),
        min_time_s=limits.min_time_s / visits,
        cap_s=limits.cap_s / visits,
        visits=visits,
    )


def with_visit(record: Record | None, visit: Record, limits: Limits) -> Record:
    """Return a record with the samples of one more visit; a wrong or failed visit replaces it.

    Times that are not samples (host latency, warm time) and telemetry are those of the visit with the middle median.

    Args:
        record: of the visits so far; None before the first.
        visit: the record of the visit alone.
        limits: of the whole row.
    """
    if record is not None and visit.status == "skipped":  # no time was left for it
        return record
    if record is None or visit.status != "ok":
        return replace(visit, visits=(len(visit.samples_s),)) if visit.status == "ok" else visit
    samples_s = (*record.samples_s, *visit.samples_s)
    middle, interval = median(samples_s), median_ci95(samples_s)
    converged = half_width(interval, middle) <= limits.target_half_width
    typical = min((record, visit), key=lambda one: abs((one.median_s or 0.0) - middle))
    target = limits.target_half_width
    samples = Samples(samples_s, 1, "", "", middle, interval, converged, target_half_width=target)
    reasons = {**record.flag_reasons, **visit.flag_reasons}
    reasons = {name: reason for name, reason in reasons.items() if name != NOT_CONVERGED}
    if not converged:
        reasons |= reasons_of([not_converged(samples)])
    return replace(
        typical,
        samples_s=samples_s,
        visits=(*record.visits, len(visit.samples_s)),
        median_s=middle,
        ci95_s=interval,
        converged=converged,
        outliers=outlier_count(samples_s),
        first_call_s=record.first_call_s,
        verified=visit.verified,
        flags=tuple(reasons),
        flag_reasons=reasons,
    )


def passed_over(record: Record) -> list[str]:
    name = name_of(record)
    return [f"{name}: {provider} was passed over: {reason}" for provider, reason in record.passed_over.items()]


def put_off(row: Row, waiting: deque[Row], budget: Budget, done: int, expected_s: float) -> bool:
    """Put a row that would take far more than its share of the time behind a smaller case of its op; return whether.

    The smaller one comes next, the larger one at its place, so that a short budget tells something of every op.

    Args:
        row: the row.
        waiting: the rows that come after it; changed.
        budget: the time that is left.
        done: how many rows have been measured.
        expected_s: what the row is expected to take beside its samples.
    """
    same, size = (row.op.name, row.case.dtype, row.provider), total(row.op.work(row.case))
    others = (
        place
        for place, other in enumerate(waiting)
        if (other.op.name, other.case.dtype, other.provider) == same and total(other.op.work(other.case)) < size
    )
    smaller = next(others, None)
    if row.refused or smaller is None or not budget.has_time() or not budget.is_too_long(expected_s, done):
        return False
    waiting[smaller], taken = row, waiting[smaller]
    waiting.appendleft(taken)
    return True
