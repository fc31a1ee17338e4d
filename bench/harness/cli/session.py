"""One run from the first ceiling to the last line: calibrate, measure, keep, show. Every bench command ends here."""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.cli.arguments import UsageError
from bench.harness.cli.interrupt import INTERRUPTED
from bench.harness.cli.pace import Pace
from bench.harness.cli.terminal import Document, Progress, Render, print_path, print_run, table_of
from bench.harness.providers.user_kernel import is_user_kernel, with_revision
from results.record import Environment, Record
from results.show.table import describe, name_of
from results.show.terminal import say

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.plan import Row, Settings
    from results.store.runs import RunWriter, StoreError
    from roofline.ceilings import Ceiling, Ceilings

    FamilyRow = tuple[str, Row]

OK, WRONG_RESULT, USAGE, NO_DEVICE = 0, 1, 2, 3
"""Exit codes, the same for all commands; the fifth is `INTERRUPTED`."""


@dataclass(frozen=True)
class Request:
    """How the options of every command want a run judged, kept and shown."""

    gpu: str | None
    """The entry of the GPU table to judge by; None for the one that fits the driver's name."""
    recalibrate: bool
    format: str
    baseline: str | None
    output: Path | str | None
    saves: bool
    plot: Path | None
    quiet: bool
    verbose: bool
    theme: str = "light"

    @classmethod
    def of(cls, args: argparse.Namespace) -> Request:
        """Read the options of a command line; a command without a baseline has none."""
        kept = {name: getattr(args, name) for name in ("gpu", "recalibrate", "format", "output", "plot", "theme")}
        seen = {name: getattr(args, name) for name in ("quiet", "verbose")}
        return cls(**kept, **seen, baseline=getattr(args, "baseline", None), saves=not args.no_save)


@dataclass(frozen=True)
class PlannedRun:
    """What is to be measured, decided before anything is."""

    command: str
    """What follows `python -m`, before the arguments: `bench.matmul`."""
    name: str
    """The middle of the run file's name: `matmul`."""
    request: Request
    device: Device
    settings: Settings
    rows: Sequence[FamilyRow] = ()
    """Each row with the family whose kernel versions it may use; none where the rows are no ops."""
    timeout_s: float = 0.0
    """The longest that a call or an import of a user's function may take."""
    argv: Sequence[str] | None = None
    """Arguments; None stands for those of the process."""
    always_draw: bool = False
    """Whether the picture is drawn beside the run file where no other place is named."""
    may_reorder: bool = False
    """Whether a case that takes too much of a budget may be measured after a smaller one of its op."""

    @classmethod
    def of(
        cls,
        args: argparse.Namespace,
        command: str,
        name: str,
        device: Device,
        settings: Settings,
        rows: Sequence[FamilyRow],
        argv: Sequence[str] | None,
    ) -> PlannedRun:
        """Return the run of ops that the options of a command ask for."""
        request = Request.of(args)
        return cls(command, name, request, device, settings, rows, args.timeout, argv)


@dataclass
class Session:
    """The environment of one run once it is known, and its records as they are finished."""

    writer: RunWriter | None = None
    records: list[Record] = field(default_factory=list)
    unsaved: int = 0
    """Records that are in no file, the last ones, because it could not be written."""
    problem: StoreError | None = None
    """Why it could not be written."""

    def keep(self, record: Record, replaces: Record | None = None) -> Record:
        """Take a finished record, on disk first; if the disk is full it is still shown at the end.

        Args:
            record: of a row.
            replaces: the record of the same row that this one adds a visit to.

        Returns:
            The record as it was saved.
        """
        from results.store.runs import StoreError

        record = with_revision(record)
        if self.writer is not None and self.problem is None:
            try:
                self.writer.append(record)
            except StoreError as error:
                self.problem = error
                say(f"records are not kept from here on: {error}")
        if replaces is None:
            self.unsaved += self.problem is not None
            self.records.append(record)
        else:
            self.records[next(at for at, one in enumerate(self.records) if one is replaces)] = record
        return record

    def finish(self, environment: Environment | None = None) -> None:
        """Write the run file once more with each row once, after several visits of the rows, or judged again."""
        from results.store.runs import StoreError

        if self.writer is not None and self.problem is None:
            try:
                self.writer.finish(self.records, environment)
            except StoreError as error:
                say(f"the run file keeps a line for each visit of a row: {error}")

    def close(self) -> None:
        """Close the run file: nothing follows."""
        if self.writer is not None:
            self.writer.close()

    def raise_if_unsaved(self) -> None:
        """End a run that was shown but is not whole in its file.

        Raises:
            StoreError: with what is missing, and why.
        """
        from results.store.runs import StoreError

        if self.problem is not None:
            raise StoreError(f"{self.unsaved} of {len(self.records)} records are in no file: {self.problem}")


def execute(run: PlannedRun) -> int:
    """Measure the ops that are planned and return the exit code."""
    return conclude(run, measure_ops(run), table_of(row.op for _, row in run.rows))


@dataclass(frozen=True)
class Finished:
    """A run that has been measured, to its end or until Ctrl-C."""

    environment: Environment
    session: Session
    is_interrupted: bool


def measure_ops(run: PlannedRun) -> Finished:
    """Measure the ops that are planned.

    Raises:
        UsageError: the GPU named does not fit the device, or no row is left that could be measured.
    """
    rows = list(run.rows)

    def prepare(progress: Progress) -> None:
        rows[:] = check_user_kernels(run, progress)

    def measure(session: Session, progress: Progress, ceilings: Ceilings, deadline: float | None) -> None:
        measure_all(replace(run, rows=rows), session, progress, ceilings, deadline)

    return gather(run, dtypes_of([row for _, row in run.rows]), measure, prepare)


def dtypes_of(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the dtypes of the rows that can run, each once."""
    return tuple(dict.fromkeys(row.case.dtype for row in rows if not row.refused))


def gather(
    run: PlannedRun,
    dtypes: Sequence[str],
    measure: Callable[[Session, Progress, Ceilings, float | None], None],
    prepare: Callable[[Progress], None] = lambda progress: None,
) -> Finished:
    """Go through a run from the ceilings to the last record.

    Args:
        run: what was asked for.
        dtypes: whose peaks are needed, measured first where they are not known.
        measure: takes row after row and keeps each record in the session; may be interrupted. The last argument is
            the reading of `time.perf_counter` when the budget is spent: loading and calibrating do not count.
        prepare: finds what cannot be, before anything is measured.

    Raises:
        UsageError: the GPU named does not fit the device.
    """
    from bench.harness.calibrate.calibration import ceilings_of
    from results.store.runs import RunWriter

    request, session, interrupted = run.request, Session(), False
    try:
        ceilings = ceilings_of(run.device, request.gpu)
    except ValueError as error:
        raise UsageError(str(error)) from None
    with Progress(request.quiet) as progress:
        prepare(progress)
        use_threads(run.device)
        calibrate = partial(calibrated, dtypes=dtypes, device=run.device, ceilings=ceilings, progress=progress)
        ceilings = calibrate(request.recalibrate)
        environment = stamp(run.command, run.device, ceilings, run.settings, run.argv)
        if request.saves:
            session.writer = RunWriter.create(environment, run.name, request.output)
        began, budget_s = time.perf_counter(), run.settings.budget_s
        try:
            measure(session, progress, ceilings, None if budget_s is None else began + budget_s)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            session.close()
        if session.records and "share" not in session.records[0].extra:  # a row of a profile is a part of a step
            progress.note(where_time_went(session.records, time.perf_counter() - began))
        if not (interrupted or run.device.is_gpu):
            progress.expect(0)
            try:
                environment = judge_again(session, environment, run.device, lambda low: calibrate(False, too_low=low))
            except KeyboardInterrupt:
                interrupted = True
        if interrupted:
            progress.note("interrupted: what was finished is kept")
    return Finished(environment, session, interrupted)


def judge_again(
    session: Session, environment: Environment, device: Device, measure: Callable[[Sequence[Ceiling]], Ceilings]
) -> Environment:
    """Measure again the ceilings that rows are above, judge all rows by what comes out, and save both."""
    from bench.harness.measure.finish import judged_again
    from roofline.ceilings import Ceilings

    known = Ceilings.from_dict(environment.hardware)
    low = list(dict.fromkeys(entry for record in session.records for entry in judged_again(record, device, known)[1]))
    if low:
        ceilings = measure(low)
        environment = replace(environment, hardware=ceilings.to_dict())
        session.records[:] = [judged_again(record, device, ceilings)[0] for record in session.records]
        session.finish(environment)
    return environment


def conclude(
    run: PlannedRun, finished: Finished, render: Render | None = None, document: Document | None = None
) -> int:
    """Show a run that has been measured, say where it is kept, and return the exit code.

    Args:
        run: what was asked for.
        finished: what came out.
        render: prints the table; by default that of ops.
        document: what JSON holds, in place of what it holds of ops.

    Raises:
        StoreError: the run file could not be written to its end; what was measured has been shown.
    """
    request, session, beside = run.request, finished.session, None
    if run.always_draw and session.writer is not None and session.problem is None:
        beside = session.writer.path.with_suffix(".png")
    show(request, finished.environment, session, render, beside, document)
    session.raise_if_unsaved()
    if finished.is_interrupted:
        return INTERRUPTED
    if run.settings.budget_s is not None and all(record.status == "skipped" for record in session.records):
        return USAGE  # the budget does not do for a single row
    return WRONG_RESULT if any(record.status in ("invalid", "failed") for record in session.records) else OK


def use_threads(device: Device) -> None:
    """Let torch compute with the threads of a CPU measurement."""
    if device.threads is not None:
        import torch

        torch.set_num_threads(device.threads)


def calibrated(
    again: bool,
    dtypes: Sequence[str],
    device: Device,
    ceilings: Ceilings,
    progress: Progress,
    too_low: Sequence[Ceiling] = (),
) -> Ceilings:
    """Return the ceilings with those that have to be measured on this machine, the peaks of `dtypes` among them."""
    from bench.harness.calibrate.calibration import MeasuredCeilings
    from bench.harness.op_file import module_of
    from results.store.runs import runs_directory

    measured = MeasuredCeilings(device, runs_directory(), progress.note, progress.say)
    return measured.complete(ceilings, dtypes, module_of("matmul").OPS[0], again, too_low)


def stamp(
    command: str, device: Device, ceilings: Ceilings, settings: Settings, argv: Sequence[str] | None
) -> Environment:
    """Return the environment of this run; `argv` None stands for the arguments of the process."""
    from bench.harness.device import stamp as machine
    from results.store.runs import new_run_id

    costs = preflight(device, ceilings)  # before the modes: an idle GPU does not report how its clocks are set
    return Environment(
        run_id=new_run_id(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=tuple(machine.command_line(command, argv)),
        device=device.to_dict() | device.modes(),
        host=machine.host(),
        versions=machine.versions(),
        git=machine.git_state(),
        hardware=ceilings.to_dict(),
        settings=settings.to_dict(),
        preflight=costs,
    )


def preflight(device: Device, ceilings: Ceilings) -> dict[str, float | None]:
    """Return what the clock itself costs on this machine: its tick, an empty pair of events, a launch; seconds."""
    from bench.harness.timing import samplers

    floor = ceilings.launch_floor()
    return {
        "tick_s": samplers.tick_s(device),
        "event_floor_s": samplers.event_floor_s() if device.is_gpu else None,
        "host_launch_s": samplers.empty_launch_s(device),
        "launch_floor_s": floor.value if floor else None,
    }


def check_user_kernels(run: PlannedRun, progress: Progress) -> list[FamilyRow]:
    """Return all rows of a run; those of a user's function that cannot be used have failed already, with the reason.

    Raises:
        UsageError: no row is left that could be measured.
    """
    from bench.harness.measure.isolated import load_problem

    problems: dict[tuple[str, str, str], str | None] = {}
    rows = []
    for family, row in run.rows:
        key = family, row.op.name, row.provider
        if is_user_kernel(row.provider) and row.refused is None and key not in problems:
            progress.say(f"importing {row.provider}")
            problems[key] = load_problem(family, row, run.device, run.timeout_s)
        problem = problems.get(key)
        rows.append((family, row if problem is None else _failed(row, problem, run.settings)))
    found = list(dict.fromkeys(problem for problem in problems.values() if problem is not None))
    if found and all(row.refused for _, row in rows):
        raise UsageError(found[0])
    for problem in found:
        progress.note(f"{problem}; it fails, the others are measured")
    return rows


def _failed(row: Row, problem: str, settings: Settings) -> Row:
    """Return a row that cannot be measured; one that was refused before stays as it is."""
    from bench.harness.measure.plan import blank_record

    if row.refused is not None:
        return row
    blank = blank_record(row.op, row.case, row.provider, settings)
    reason = problem.removeprefix(f"provider '{row.provider}': ")
    return replace(row, refused=replace(blank, status="failed", reason=reason))


def measure_all(
    run: PlannedRun, session: Session, progress: Progress, ceilings: Ceilings, deadline: float | None
) -> None:
    """Measure all rows, then visit each of them again; what is measured is saved after each visit."""
    from bench.harness.measure.compile import compile_rows
    from bench.harness.measure.cost import CostEstimator
    from bench.harness.measure.isolated import launched_fields, measure_isolated
    from bench.harness.measure.plan import out_of_time
    from bench.harness.measure.runner import Runner, release
    from bench.harness.measure.visits import VISITS, limits_of_visit, with_visit
    from bench.harness.timing.protocol import limits_of

    settings = run.settings
    estimator = CostEstimator(run.device, settings.fill, settings.seed)
    whole = limits_of(run.device)
    limits = limits_of_visit(whole)
    runners = {
        family: Runner(family, run.device, settings, estimator, limits, deadline, ceilings)
        for family in dict.fromkeys(family for family, _ in run.rows)
    }
    pace, done, late = Pace(deadline, len(run.rows)), 0, 0
    for name, reason in compile_rows(run.rows, run.device).items():
        progress.note(f"{name} does not compile: {reason}")
    progress.expect(len(run.rows) * VISITS, pace.left_s)

    def visit(family: str, row: Row, share: int) -> Record:
        """Measure a row once, in its share of the time that is left."""
        progress.say(f"{row.op.name} {row.case.name} {row.case.dtype} {row.provider}")
        runner, has_device = runners[family], release(run.device)
        if has_device and not is_user_kernel(row.provider):
            return runner.measure(row, share)
        refused = runner.refused(row) if has_device else row.refused
        how = run.device, settings, limits, ceilings, run.timeout_s, deadline, share
        return refused or measure_isolated(family, row, *how)

    waiting = deque(run.rows)
    measured: list[tuple[FamilyRow, Record]] = []
    while waiting:
        family, row = waiting.popleft()
        may_not_fit = deadline is not None and not row.refused and pace.has_time() and release(run.device)
        expected_s = runners[family].expected_s(row) if may_not_fit else 0.0
        if run.may_reorder and put_off((family, row), waiting, pace, done, expected_s):
            continue
        if not (row.refused or pace.has_time(expected_s)):
            session.keep(replace(runners[family].blank(row), reason=out_of_time(settings.budget_s)))
            late += 1
            continue
        began = time.perf_counter()
        record = with_visit(None, visit(family, row, pace.together(done) + (VISITS - 1) * len(run.rows)), whole)
        done += 1
        pace.took(record, began, expected_s)
        measured.append(((family, row), session.keep(record)))
        progress.advance()
        for line in passed_over(record):
            progress.note(line)
    for number in range(1, VISITS):
        rest = [(row, record) for row, record in measured if record.status == "ok"]
        for index, ((family, row), record) in enumerate(rest):
            if not pace.has_time():
                break
            share = len(rest) - index + (VISITS - 1 - number) * len(rest)
            found = with_visit(record, visit(family, row, share), whole)
            if found is record:
                continue
            found = session.keep(found, replaces=record)
            measured[next(at for at, (_, one) in enumerate(measured) if one is record)] = ((family, row), found)
            progress.advance()
    for index, ((family, row), record) in enumerate(measured):
        if settings.kernels and run.device.is_gpu and record.status == "ok" and pace.has_time():
            measured_row, how = replace(row, provider=record.provider), (run.device, settings, run.timeout_s, deadline)
            fields = launched_fields(family, measured_row, record.median_s or 0.0, *how)
            record = session.keep(replace(record, **fields), replaces=record)
            measured[index] = (family, row), record
    session.finish()
    if run.request.verbose:
        for _, record in measured:
            printed = [f"  | {line}" for line in (record.output or "").splitlines()]
            for line in [*describe(record), *printed]:
                progress.note(line)
    if late:
        enough = pace.enough_s(done)
        progress.note(f"no time was left for {late} of {len(run.rows)} rows; --budget {enough} would do for about all")


def passed_over(record: Record) -> list[str]:
    """Return a line for each version that refused a case before the one that was measured."""
    name = name_of(record)
    return [f"{name}: {provider} was passed over: {reason}" for provider, reason in record.passed_over.items()]


def where_time_went(records: Sequence[Record], measuring_s: float) -> str:
    """Return the share of the measuring time, calibration apart, that was spent on the clock, as a sentence."""
    timed_s = sum(sum(record.samples_s) * (record.launches_per_sample or 0) for record in records)
    share_pct = 100 * timed_s / measuring_s
    return f"measuring took {measuring_s:.3g} s, {timed_s:.3g} s of it timed ({share_pct:.0f} %)"


def put_off(row: FamilyRow, waiting: deque[FamilyRow], pace: Pace, done: int, expected_s: float) -> bool:
    """Put a row that would take far more than its share of the time behind a smaller case of its op; return whether.

    The smaller one comes next, the larger one at its place, so that a short budget tells something of every op.

    Args:
        row: the row.
        waiting: the rows that come after it; changed.
        pace: the time that is left.
        done: how many rows have been measured.
        expected_s: what the row is expected to take beside its samples.
    """
    from bench.harness.measure.cost import total

    _, one = row
    same, size = (one.op.name, one.case.dtype, one.provider), total(one.op.work(one.case))
    others = (
        place
        for place, (_, other) in enumerate(waiting)
        if (other.op.name, other.case.dtype, other.provider) == same and total(other.op.work(other.case)) < size
    )
    smaller = next(others, None)
    if one.refused or smaller is None or not pace.has_time() or not pace.is_too_long(expected_s, done):
        return False
    waiting[smaller], taken = row, waiting[smaller]
    waiting.appendleft(taken)
    return True


def show(
    request: Request,
    environment: Environment,
    session: Session,
    render: Render | None,
    beside: Path | None = None,
    document: Document | None = None,
) -> None:
    """Print what was measured, draw it where that was asked for, and say where it is kept.

    Without a ceiling a picture `beside` the run file, which nobody asked for, gives way to a note.
    """
    from roofline.plot.figure import NoCeilingError, plot_run

    saved = session.writer.path if session.writer else None
    print_run(environment, session.records, request.format, request.baseline, saved, render, document)
    picture = request.plot or beside
    if picture is None:
        return
    try:
        plot_run(environment, session.records, picture, request.theme)
    except NoCeilingError as error:
        if request.plot is not None:
            raise
        if not request.quiet:
            say(f"no picture: {error}")
        return
    print_path("plot", picture, request.format)
