"""The one loop over the rows of a run: three visits of each, within the budget; user's functions in workers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.pace import Pace
from bench.harness.measure.compile import compile_rows
from bench.harness.measure.cost import CostEstimator, total
from bench.harness.measure.isolated import launched_fields, load_problem, measure_isolated
from bench.harness.measure.plan import Row, blank_record, out_of_time
from bench.harness.measure.runner import Runner, release
from bench.harness.measure.visits import VISITS, limits_of_visit, with_visit
from bench.harness.providers.user_kernel import is_user_kernel
from bench.harness.timing.protocol import limits_of
from results.record import Record
from results.show.table import describe, name_of

if TYPE_CHECKING:
    from bench.harness.run import Run


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
        checked.append(row if problem is None else _failed(row, problem))
    reasons = list(dict.fromkeys(problem for problem in problems.values() if problem is not None))
    if reasons and all(row.refused for row in checked):
        raise UsageError(reasons[0])
    for reason in reasons:
        run.progress.note(f"{reason}; it fails, the others are measured")
    return checked


def _failed(row: Row, problem: str) -> Row:
    """Return a row that cannot be measured; one that was refused before stays as it is."""
    if row.refused is not None:
        return row
    blank = blank_record(row.op, row.case, row.provider, row.settings)
    reason = problem.removeprefix(f"provider '{row.provider}': ")
    return replace(row, refused=replace(blank, status="failed", reason=reason))


def measure_rows(run: Run, rows: Sequence[Row], may_reorder: bool = False) -> None:
    """Measure all rows, then visit each of them again; what is measured is saved after each visit."""
    device, progress, deadline = run.device, run.progress, run.deadline
    settings = rows[0].settings
    estimator = CostEstimator(device, settings.fill, settings.seed)
    whole = limits_of(device)
    limits = limits_of_visit(whole)
    runners = {
        family: Runner(family, device, settings, estimator, limits, deadline, run.ceilings)
        for family in dict.fromkeys(row.family for row in rows)
    }
    pace, done, late = Pace(deadline, len(rows)), 0, 0
    for name, reason in compile_rows([(row.family, row) for row in rows], device).items():
        progress.note(f"{name} does not compile: {reason}")
    progress.expect(len(rows) * VISITS, pace.left_s)

    def visit(row: Row, share: int) -> Record:
        """Measure a row once, in its share of the time that is left."""
        progress.say(f"{row.op.name} {row.case.name} {row.case.dtype} {row.provider}")
        runner, has_device = runners[row.family], release(device)
        if has_device and not is_user_kernel(row.provider):
            return runner.measure(row, share)
        refused = runner.refused(row) if has_device else row.refused
        how = limits, run.ceilings, run.args.timeout, deadline, share
        return refused or measure_isolated(row, device, *how)

    waiting = deque(rows)
    measured: list[tuple[Row, Record]] = []
    while waiting:
        row = waiting.popleft()
        may_not_fit = deadline is not None and not row.refused and pace.has_time() and release(device)
        expected_s = runners[row.family].expected_s(row) if may_not_fit else 0.0
        if may_reorder and put_off(row, waiting, pace, done, expected_s):
            continue
        if not (row.refused or pace.has_time(expected_s)):
            run.keep(replace(runners[row.family].blank(row), reason=out_of_time(settings.budget_s)))
            late += 1
            continue
        began = time.perf_counter()
        record = with_visit(None, visit(row, pace.together(done) + (VISITS - 1) * len(rows)), whole)
        done += 1
        pace.took(record, began, expected_s)
        measured.append((row, run.keep(record)))
        progress.advance()
        for line in passed_over(record):
            progress.note(line)
    for number in range(1, VISITS):
        rest = [(row, record) for row, record in measured if record.status == "ok"]
        for index, (row, record) in enumerate(rest):
            if not pace.has_time():
                break
            share = len(rest) - index + (VISITS - 1 - number) * len(rest)
            visited = with_visit(record, visit(row, share), whole)
            if visited is record:
                continue
            visited = run.keep(visited, replaces=record)
            measured[next(at for at, (_, one) in enumerate(measured) if one is record)] = (row, visited)
            progress.advance()
    for index, (row, record) in enumerate(measured):
        if settings.kernels and device.is_gpu and record.status == "ok" and pace.has_time():
            as_measured = replace(row, provider=record.provider)
            fields = launched_fields(as_measured, record.median_s or 0.0, device, run.args.timeout, deadline)
            record = run.keep(replace(record, **fields), replaces=record)
            measured[index] = row, record
    run.rewrite()
    if run.args.verbose:
        for _, record in measured:
            printed = [f"  | {line}" for line in (record.output or "").splitlines()]
            for line in [*describe(record), *printed]:
                progress.note(line)
    if late:
        enough = pace.enough_s(done)
        progress.note(f"no time was left for {late} of {len(rows)} rows; --budget {enough} would do for about all")


def passed_over(record: Record) -> list[str]:
    """Return a line for each version that refused a case before the one that was measured."""
    name = name_of(record)
    return [f"{name}: {provider} was passed over: {reason}" for provider, reason in record.passed_over.items()]


def put_off(row: Row, waiting: deque[Row], pace: Pace, done: int, expected_s: float) -> bool:
    """Put a row that would take far more than its share of the time behind a smaller case of its op; return whether.

    The smaller one comes next, the larger one at its place, so that a short budget tells something of every op.

    Args:
        row: the row.
        waiting: the rows that come after it; changed.
        pace: the time that is left.
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
    if row.refused or smaller is None or not pace.has_time() or not pace.is_too_long(expected_s, done):
        return False
    waiting[smaller], taken = row, waiting[smaller]
    waiting.appendleft(taken)
    return True
