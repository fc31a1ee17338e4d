"""The loops over the rows of a run, within the budget; users' functions are measured in workers.

A row of an op is visited three times, in turn with the other rows, so that its samples include slow
changes of the machine; the visits share what the first one has prepared. A row of a scenario, such
as a training step or a copy, is measured once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from bench.harness import clock, worker
from bench.harness.calibrate.calibration import mixes_for
from bench.harness.cli.arguments import UsageError
from bench.harness.device.device import Device
from bench.harness.measure.budget import Budget, total
from bench.harness.measure.flags import judged, not_converged, reasons_of
from bench.harness.measure.isolated import (
    compile_rows,
    load_problem,
    measure_isolated,
)
from bench.harness.measure.measure_row import Kept, measure_row, release
from bench.harness.measure.rows import (
    Row,
    failed,
    is_out_of_memory,
    one_line,
    out_of_time,
)
from bench.harness.op_file import modules_sha256
from bench.harness.providers.registry import is_user_kernel
from bench.harness.run import Run, refused_all
from bench.harness.settings import Argv, Settings
from bench.harness.timing.protocol import LIMITS, Limits, Samples
from results.record import Record, name_of
from results.show.table import describe
from results.stats.samples import half_width, median_ci95, outlier_count

VISITS = 3
"""With two visits it would be unclear which is unusual, and the drift between them, from which
comparisons of saved runs take their intervals, would have one degree of freedom.
"""

NOT_CONVERGED = "not-converged"
"""This flag and those of ceilings are decided again from all samples; a record has the other flags
of any visit.
"""


def measure_run(run: Run, rows: Sequence[Row], may_reorder: bool = False) -> None:
    """Start a run and measure its rows, from the import of users' functions to the last visit.

    If `may_reorder`, a case that takes too much of the budget may be measured after a smaller one
    of its op.
    """
    if all(row.refused for row in rows):
        raise refused_all(row.refused for row in rows if row.refused)
    dtypes = tuple(dict.fromkeys(row.case.dtype for row in rows if not row.refused))
    with run:
        if any(is_user_kernel(row.provider) for row in rows):
            rows = check_user_kernels(rows, run)
        works = [row.op.work(row.case) for row in rows if not row.refused]
        run.start(dtypes, mixes=mixes_for(works))
        measure_rows(run, rows, may_reorder)
        run.note_time()
        run.judge_again()


def check_user_kernels(rows: Sequence[Row], run: Run) -> list[Row]:
    """Return all rows of a run, `failed` with the reason if the user's function cannot be used."""
    problems: dict[tuple[str, str, str], str | None] = {}
    checked = []
    for row in rows:
        key = row.family, row.op.name, row.provider
        if is_user_kernel(row.provider) and row.refused is None:
            if key not in problems:
                run.progress.say(f"importing {row.provider}")
                problems[key] = load_problem(row, run.device, run.settings.timeout_s)
            problem = problems[key]
            if problem:
                row = replace(row, refused=replace(row.blank(), status="failed", reason=problem))
        checked.append(row)
    reasons = [f"provider '{key[-1]}': {problem}" for key, problem in problems.items() if problem]
    if reasons and all(row.refused for row in checked):
        raise UsageError(reasons[0])
    return checked


def measure_rows(run: Run, rows: Sequence[Row], may_reorder: bool = False) -> None:
    """Visit all rows `VISITS` times; records are saved after each visit."""
    budget = Budget(run.device, rows[0].settings, run.deadline, len(rows))
    began = clock.now()
    if run.device.is_gpu:
        for name, reason in compile_rows(rows, run.device).items():
            run.progress.note(f"{name} does not compile: {reason}")
    run.progress.expect(len(rows) * VISITS, run.deadline)
    kept = Kept(run.device.free_bytes())
    measured = first_visits(run, rows, budget, may_reorder, kept)
    late = len(rows) - len(measured)
    for number in range(1, VISITS):
        visit_again(run, measured, budget, number, kept)
    del kept  # frees its memory
    if run.settings.verbose:
        for index in measured:
            record = run.records[index]
            output = [f"  | {line}" for line in (record.output or "").splitlines()]
            for line in [*describe(record), *output]:
                run.progress.note(line)
    if late:
        enough = f"use --budget {budget.enough_s(len(measured), clock.now() - began)} for about all"
        run.progress.note(f"no time was left for {late} of {len(rows)} rows; {enough}")


def first_visits(
    run: Run, rows: Sequence[Row], budget: Budget, may_reorder: bool, kept: Kept
) -> dict[int, Row]:
    """Visit each row once while there is time; return these rows by the index of their record."""
    waiting = deque(rows)
    measured: dict[int, Row] = {}
    while waiting:
        row = waiting.popleft()
        expected_s = 0.0
        share = 1
        if run.deadline < math.inf:
            if not row.refused and budget.has_time() and release(run.device):
                expected_s = budget.expected_s(row)
            share = budget.sharing(len(measured)) + (VISITS - 1) * len(rows)
        if may_reorder and put_off(row, waiting, budget, len(measured), expected_s):
            continue
        if not (row.refused or budget.has_time(expected_s)):
            run.keep(replace(row.blank(), reason=out_of_time(row.settings.budget_s)))
            continue
        began = clock.now()
        record = visit(run, row, budget, share, kept)
        budget.took(record, began, expected_s, row)
        if record.status == "ok":
            record = replace(record, visits=(len(record.samples_s),))
        measured[len(run.records)] = row
        run.keep(record)
        run.progress.advance()
        for provider, reason in record.passed_over.items():
            run.progress.note(f"{name_of(record)}: {provider} was skipped: {reason}")
    return measured


def visit_again(
    run: Run, measured: Mapping[int, Row], budget: Budget, number: int, kept: Kept
) -> None:
    """Visit measured rows again while there is time; update their records."""
    indices = [index for index in measured if run.records[index].status == "ok"]
    for done, index in enumerate(indices):
        if not budget.has_time():
            break
        row = measured[index]
        record = run.records[index]
        share = (VISITS - number) * len(indices) - done
        new = visit(run, replace(row, is_again=True), budget, share, kept)
        merged = with_visit(record, new, LIMITS[run.device.type])
        if merged is not record:
            # The median of one visit alone may be above a ceiling.
            run.keep(judged(merged, run.device, run.ceilings), index)
            run.progress.advance()


def visit(run: Run, row: Row, budget: Budget, share: int, kept: Kept) -> Record:
    """Measure a row once, within 1 / `share` of the time left.

    A worker measures users' functions, and all rows after an error that makes the GPU unusable in
    this process.
    """
    run.progress.say(f"{row.op.name} {row.case.name} {row.case.dtype} {row.provider}")
    if row.refused:
        return row.refused
    has_device = not run.device.is_gpu or release(run.device)
    if has_device:
        try:
            kept.make_room(row, run.device)
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
    if is_user_kernel(row.provider) or not has_device:
        return measure_isolated(
            row,
            run.device,
            run.ceilings,
            limits,
            run.deadline,
            share,
            timeout_s=run.settings.timeout_s,
        )
    return measure_row(row, run.device, run.ceilings, limits, run.deadline, share, kept)


def with_visit(record: Record, visit: Record, limits: Limits) -> Record:
    """Return a record with the samples of another visit added; a wrong or failed visit replaces it.

    Other times (host latency, warm time) and telemetry come from the visit with the middle median.
    `limits` are for the whole row.
    """
    if visit.status != "ok":  # skipped: no time was left for it
        return record if visit.status == "skipped" else visit
    samples_s = (*record.samples_s, *visit.samples_s)
    middle = median(samples_s)
    interval = median_ci95(samples_s)
    converged = half_width(interval, middle) <= limits.target_half_width
    typical = min((record, visit), key=lambda each: abs((each.median_s or 0.0) - middle))
    target = limits.target_half_width
    samples = Samples(samples_s, 1, "", "", middle, interval, converged, target_half_width=target)
    reasons = {**record.flag_reasons, **visit.flag_reasons}
    reasons.pop(NOT_CONVERGED, None)
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
        verified=record.verified | visit.verified,
        passed_over=record.passed_over,
        flags=tuple(reasons),
        flag_reasons=reasons,
    )


def put_off(row: Row, waiting: deque[Row], budget: Budget, done: int, expected_s: float) -> bool:
    """Swap a row that would take far more than its share of the time with a smaller case of its op
    in `waiting`.

    Return whether it was swapped. So a short budget measures something of every op.
    """
    if not budget.is_too_long(expected_s, done):
        return False
    same = (row.op.name, row.case.dtype, row.provider)
    size = total(row.op, row.case)
    for index, other in enumerate(waiting):
        is_same = (other.op.name, other.case.dtype, other.provider) == same
        if is_same and total(other.op, other.case) < size:
            waiting[index] = row
            waiting.appendleft(other)
            return True
    return False


Measure = Callable[[Record, Run, int], Record]
"""`measure(blank, run, rows)` returns the record of a row; `rows` share the time left. It can be
pickled.

If it raises, the row is `failed`, or `skipped` if memory ran out.
"""


def measure_once(
    settings: Settings,
    argv: Argv,
    name: str,
    device: Device,
    rows: Sequence[tuple[Record, Measure]],
    defined_in: Sequence[str],
) -> Run:
    """Measure all rows within the budget and return the run, not yet printed.

    Args:
        settings: options of the command; all rows are timed with a warm cache.
        argv: its arguments; None: those of the process.
        name: middle of the run file's name: `train-step` for the command `bench.train_step`.
        device: the device under test.
        rows: blank record of each row, with a `reason` if it cannot be measured here.
        defined_in: modules of this project that define what a row measures, besides the command's
            own.
    """
    if all(blank.reason for blank, _ in rows):
        raise refused_all(blank for blank, _ in rows)
    command = f"bench.{name.replace('-', '_')}"
    sha256 = modules_sha256((command, *defined_in))
    settings = replace(settings, cache="warm")
    with Run(settings, command, name, device, argv) as run:
        run.start(tuple(dict.fromkeys(blank.dtype for blank, _ in rows if not blank.reason)))
        measure_scenarios(
            run, [(replace(blank, op_sha256=sha256), measure) for blank, measure in rows]
        )
        run.note_time()
        run.judge_again()
    return run


def measure_scenarios(run: Run, rows: Sequence[tuple[Record, Measure]], others: int = 0) -> None:
    """Measure each row once; `others` is the number of rows of ops that are measured later in the
    same budget.
    """
    budget = Budget(run.device, run.settings, run.deadline, len(rows) + others)
    run.progress.expect(len(rows), run.deadline)
    for done, (blank, measure) in enumerate(rows):
        if not (blank.reason or budget.has_time()):
            run.keep(replace(blank, reason=out_of_time(run.settings.budget_s)))
            continue
        options = map(str, blank.options.values())
        run.progress.say(" ".join([blank.op, blank.case, blank.dtype, blank.provider, *options]))
        began = clock.now()
        record = _measured(blank, measure, run, budget.sharing(done))
        budget.took(record, began)
        run.keep(record)
        run.progress.advance()
        if run.settings.verbose:
            for line in describe(record):
                run.progress.note(line)


def _measured(blank: Record, measure: Measure, run: Run, rows: int) -> Record:
    if blank.reason:
        return blank
    if release(run.device):
        return _attempt(blank, measure, run, rows)
    try:  # in a new process: after an illegal access this one cannot use the GPU
        return worker.call(
            _attempt,
            blank,
            measure,
            run,
            rows,
            timeout_s=worker.OWN_TIMEOUT_S,
            deadline=run.deadline,
        )[0]
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
