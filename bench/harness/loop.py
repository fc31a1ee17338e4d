"""The loops over the rows of a run, within the budget; users' functions are measured in workers.

A row of an op is visited three times, among the other rows, and its record holds the samples of all visits. Slow
changes of the machine are then inside the samples, and the visits show how much they differ. A row of a scenario, such
as a training step or a copy, is measured once.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from bench.harness import worker
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device
from bench.harness.measure.budget import Budget, total
from bench.harness.measure.compile import compile_rows
from bench.harness.measure.flags import judged, not_converged, reasons_of
from bench.harness.measure.isolated import launched_fields, load_problem, measure_isolated
from bench.harness.measure.measure_row import measure_row, release
from bench.harness.measure.rows import Row, Settings, failed, is_out_of_memory, one_line, out_of_time
from bench.harness.op_file import modules_sha256
from bench.harness.providers.registry import is_user_kernel
from bench.harness.run import Run, refused_all
from bench.harness.timing.protocol import LIMITS, Limits, Samples
from results.record import Record
from results.show.table import describe, name_of
from results.stats.samples import half_width, median_ci95, outlier_count

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
    """
    if all(row.refused for row in rows):
        raise refused_all(row.refused for row in rows if row.refused)
    dtypes = tuple(dict.fromkeys(row.case.dtype for row in rows if not row.refused))
    with run:
        if any(is_user_kernel(row.provider) for row in rows):
            rows = check_user_kernels(rows, run)
        run.start(dtypes)
        measure_rows(run, rows, may_reorder)
        run.note_time()
        run.judge_again()


def check_user_kernels(rows: Sequence[Row], run: Run) -> list[Row]:
    """Return all rows of a run; those of a user's function that cannot be used have failed already, with the reason."""
    problems: dict[tuple[str, str, str], str | None] = {}
    checked = []
    for row in rows:
        key = row.family, row.op.name, row.provider
        if is_user_kernel(row.provider) and row.refused is None:
            if key not in problems:
                run.progress.say(f"importing {row.provider}")
                problems[key] = load_problem(row, run.device, run.args.timeout)
            if problem := problems[key]:
                row = replace(row, refused=replace(row.blank(), status="failed", reason=problem))
        checked.append(row)
    reasons = [f"provider '{key[-1]}': {problem}" for key, problem in problems.items() if problem]
    if reasons and all(row.refused for row in checked):
        raise UsageError(reasons[0])
    for reason in dict.fromkeys(reasons):
        run.progress.note(f"{reason}; it fails, the others are measured")
    return checked


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
    waiting, measured = deque(rows), list[tuple[Row, Record]]()
    while waiting:
        row = waiting.popleft()
        expected_s, share = 0.0, 1
        if run.deadline is not None:
            if not row.refused and budget.has_time() and release(run.device):
                expected_s = budget.expected_s(row)
            share = budget.sharing(len(measured)) + (VISITS - 1) * len(rows)
        if may_reorder and put_off(row, waiting, budget, len(measured), expected_s):
            continue
        if run.deadline is not None and not (row.refused or budget.has_time(expected_s)):
            run.keep(replace(row.blank(), reason=out_of_time(row.settings.budget_s)))
            continue
        began = time.perf_counter()
        record = visit(run, row, budget, share)
        budget.took(record, began, expected_s, row)
        if record.status == "ok":
            record = replace(record, visits=(len(record.samples_s),))
        measured.append((row, run.keep(record)))
        run.progress.advance()
        for provider, reason in record.passed_over.items():
            run.progress.note(f"{name_of(record)}: {provider} was passed over: {reason}")
    return measured


def visit_again(run: Run, measured: list[tuple[Row, Record]], budget: Budget, number: int) -> None:
    """Visit each row that was measured once more, as long as there is time; `measured` gets the new records."""
    places = [place for place, (_, record) in enumerate(measured) if record.status == "ok"]
    for index, place in enumerate(places):
        if not budget.has_time():
            break
        row, record = measured[place]
        share = len(places) - index + (VISITS - 1 - number) * len(places)
        merged = with_visit(record, visit(run, row, budget, share), LIMITS[run.device.type])
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
    has_device = not run.device.is_gpu or release(run.device)
    if has_device:
        try:
            reason = budget.refusal(row)
        except Exception as error:  # a pilot runs the op's own code
            return failed(row, error)
        if reason:
            return replace(row.blank(), reason=reason)
    whole = LIMITS[run.device.type]
    limits = replace(  # all visits together reach those of the whole row
        whole,
        min_samples=math.ceil(whole.min_samples / VISITS),
        fewest_samples=math.ceil(whole.fewest_samples / VISITS),
        target_half_width=whole.target_half_width * math.sqrt(VISITS),
        min_time_s=whole.min_time_s / VISITS,
        cap_s=whole.cap_s / VISITS,
        visits=VISITS,
    )
    how = run.device, run.ceilings, limits, run.deadline, share
    if is_user_kernel(row.provider) or not has_device:
        return measure_isolated(row, *how, timeout_s=run.args.timeout)
    return measure_row(row, *how)


def with_visit(record: Record, visit: Record, limits: Limits) -> Record:
    """Return a record with the samples of one more visit; a wrong or failed visit replaces it.

    Times that are not samples (host latency, warm time) and telemetry are those of the visit with the middle median.

    Args:
        record: of the visits so far.
        visit: the record of the visit alone.
        limits: of the whole row.
    """
    if visit.status != "ok":  # skipped: no time was left for it
        return record if visit.status == "skipped" else visit
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
    same, size = (row.op.name, row.case.dtype, row.provider), total(row.op, row.case)
    others = (
        place
        for place, other in enumerate(waiting)
        if (other.op.name, other.case.dtype, other.provider) == same and total(other.op, other.case) < size
    )
    smaller = next(others, None)
    if row.refused or smaller is None or not budget.has_time() or not budget.is_too_long(expected_s, done):
        return False
    waiting[smaller], taken = row, waiting[smaller]
    waiting.appendleft(taken)
    return True


# ---- rows of scenarios ---------------------------------------------------------------------------------------------

Measure = Callable[[Record, Run, int], Record]
"""Returns the finished record of a row: `measure(blank, run, rows)`, where `rows` rows share the time left.

An exception makes the row `failed`, or `skipped` if memory ran out. It can be pickled.
"""


def measure_once(
    args: argparse.Namespace,
    argv: Sequence[str] | None,
    name: str,
    device: Device,
    rows: Sequence[tuple[Record, Measure]],
    defined_in: Sequence[str],
) -> Run:
    """Measure all rows within the budget and return the run, not shown yet.

    Args:
        args: the options of the command.
        argv: its arguments; None stands for those of the process.
        name: the middle of the run file's name: `train-step`; the command is `bench.train_step`.
        device: the device under test.
        rows: the blank record of each row, `skipped` and with a reason if it cannot be measured here.
        defined_in: modules of this project that say what a row measures, besides the command's own.
    """
    if all(blank.reason for blank, _ in rows):
        raise refused_all(blank for blank, _ in rows)
    command = f"bench.{name.replace('-', '_')}"
    sha256 = modules_sha256((command, *defined_in))
    settings = Settings(cache="warm", budget_s=args.budget, seed=args.seed)
    with Run(args, command, name, device, settings.to_dict(), argv) as run:
        run.start(tuple(dict.fromkeys(blank.dtype for blank, _ in rows if not blank.reason)))
        budget = Budget(device, settings, run.deadline, len(rows))
        run.progress.expect(len(rows), budget.left_s)
        for done, (row, measure) in enumerate(rows):
            blank = replace(row, op_sha256=sha256)
            if not (blank.reason or budget.has_time()):
                run.keep(replace(blank, reason=out_of_time(args.budget)))
                continue
            run.progress.say(label_of(blank))
            began = time.perf_counter()
            record = _measured(blank, measure, run, budget.sharing(done))
            budget.took(record, began)
            run.keep(record)
            run.progress.advance()
            for line in describe(record) if args.verbose else ():
                run.progress.note(line)
        run.note_time()
        run.judge_again()
    return run


def _measured(blank: Record, measure: Measure, run: Run, rows: int) -> Record:
    if blank.reason:
        return blank
    if release(run.device):
        return _attempt(blank, measure, run, rows)
    what = blank, measure, run, rows  # in a new process: after an illegal access this one cannot use the GPU
    try:
        return worker.call(_attempt, *what, timeout_s=worker.OWN_TIMEOUT_S, deadline=run.deadline)[0]
    except worker.WorkerError as error:
        return replace(blank, status="failed", reason=str(error))


def _attempt(blank: Record, measure: Measure, run: Run, rows: int) -> Record:
    run.device.use()
    try:
        return measure(blank, run, rows)
    except Exception as error:
        if is_out_of_memory(error):
            return replace(blank, reason="out of memory")
        return replace(blank, status="failed", reason=one_line(error))


def label_of(record: Record) -> str:
    """Return the op, case, dtype, provider and options of a record as text."""
    options = [str(value) for value in record.options.values()]
    return " ".join([record.op, record.case, record.dtype, record.provider, *options])
