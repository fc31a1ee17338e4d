"""The command of every op file: read the arguments, plan, calibrate, measure, keep, show."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.arguments import UsageError, build_parser, make_cases
from bench.harness.op import Op, Option
from bench.harness.table import Progress, describe, print_run
from results.record import Environment, Record

if TYPE_CHECKING:
    from bench.harness.device import Device
    from bench.harness.runner import Row, Runner, Settings
    from results.store import RunWriter
    from roofline.ceilings import Ceilings

OK, WRONG_RESULT, USAGE, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes, the same for all commands."""


def main(
    file: str,
    doc: str | None,
    examples: Sequence[tuple[str, str]],
    ops: Sequence[Op],
    options: Sequence[Option] = (),
    argv: Sequence[str] | None = None,
) -> int:
    """Run the command of one family and return its exit code.

    Args:
        file: the op file; its stem names the family.
        doc: the op file's docstring, shown by `--help`.
        examples: argument lines and what they do.
        ops: the family's operations.
        options: command-line options that only this family has.
        argv: arguments, by default those of the process.
    """
    family = Path(file).stem
    args = build_parser(family, doc or "", examples, ops, options).parse_args(argv)
    from results.store import StoreError
    from roofline.plot import PlotError

    try:
        return run(family, args, ops, options)
    except (UsageError, StoreError, PlotError) as error:
        return _fail(family, str(error), USAGE)
    except KeyboardInterrupt:
        return _fail(family, "interrupted before anything was measured", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of stdout is gone: nothing is left to say, and nowhere to say it
        return OK


def _fail(family: str, message: str, code: int) -> int:
    print(f"python -m bench.{family}: error: {' '.join(message.split())}", file=sys.stderr)
    return code


@dataclass
class Session:
    """What one run gathers: the environment once it is known, and the records as they are finished."""

    writer: RunWriter | None = None
    records: list[Record] = field(default_factory=list)

    def keep(self, record: Record) -> None:
        """Take a finished record, on disk first."""
        if self.writer is not None:
            self.writer.append(record)
        self.records.append(record)


def run(family: str, args: argparse.Namespace, ops: Sequence[Op], options: Sequence[Option]) -> int:
    """Measure what the arguments ask for and return the exit code.

    Raises:
        UsageError: something asked for cannot be.
    """
    from bench.harness import calibrate, device, providers, runner
    from results.store import RunWriter
    from roofline.plot import check_path, plot_run

    make_cases(args, ops, options, "cpu")  # a typing error shows before torch is loaded
    names = chosen_providers(args, family)
    if args.plot is not None:
        check_path(args.plot)
    start = time.perf_counter()
    try:
        under_test = device.detect(args.device)
    except device.NoDeviceError as error:
        return _fail(family, str(error), NO_DEVICE)
    settings = runner.Settings(args.fill, args.cache, args.budget, args.seed)
    cases = make_cases(args, ops, options, under_test.type)
    rows = runner.plan(cases, names or providers.default_providers(family, under_test), under_test, settings)
    if all(row.refused for row in rows):
        reasons = dict.fromkeys(f"{row.op.name} {row.case.dtype} {row.case.name}: {_reason(row)}" for row in rows)
        raise UsageError(next(iter(reasons)) + (f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""))
    try:
        ceilings = calibrate.ceilings_of(under_test, args.gpu)
    except ValueError as error:
        raise UsageError(str(error)) from None
    session = Session()
    interrupted = False
    with Progress(args.quiet) as progress:
        use_threads(under_test)
        ceilings = calibrated(args, rows, under_test, ceilings, progress)
        environment = stamp(family, args, under_test, ceilings, settings)
        if not args.no_save:
            session.writer = RunWriter.create(environment, family, args.output)
        deadline = None if args.budget is None else start + args.budget
        progress.expect(len(rows))
        try:
            measure_all(runner.Runner(family, under_test, settings, deadline=deadline), rows, session, progress, args)
        except KeyboardInterrupt:
            interrupted = True
            progress.note("interrupted: what was finished is kept")
    saved = session.writer.path if session.writer else None
    print_run(environment, session.records, args.format, args.baseline, saved)
    if args.plot is not None:
        plot_run(environment, session.records, args.plot)
        print(f"plot: {args.plot}", file=sys.stdout if args.format == "table" else sys.stderr)
    if interrupted:
        return INTERRUPTED
    return WRONG_RESULT if any(record.status in ("invalid", "failed") for record in session.records) else OK


def chosen_providers(args: argparse.Namespace, family: str) -> list[str]:
    """Return the providers asked for, the baseline first; empty where none is named.

    Raises:
        UsageError: one of them does not exist.
    """
    from bench.harness.providers import UnknownProviderError, check_names

    if args.provider == []:
        raise UsageError("--provider is empty; name at least one")
    names = list(dict.fromkeys(([args.baseline] if args.baseline else []) + (args.provider or [])))
    if names == [args.baseline]:
        raise UsageError("--baseline needs other providers to set against it; name them with --provider")
    try:
        check_names(names, family)
    except UnknownProviderError as error:
        raise UsageError(str(error)) from None
    return names


def _reason(row: Row) -> str:
    return str(row.refused.reason) if row.refused else ""


def use_threads(device: Device) -> None:
    """Set the threads of a CPU measurement to those that this process really has."""
    if not device.is_gpu and device.threads:
        import torch

        torch.set_num_threads(device.threads)


def calibrated(
    args: argparse.Namespace, rows: Sequence[Row], device: Device, ceilings: Ceilings, progress: Progress
) -> Ceilings:
    """Return the ceilings with what has to be measured on this machine."""
    from bench.harness.calibrate import MeasuredCeilings
    from bench.matmul import OPS as MATMUL
    from results.store import runs_directory

    dtypes = dict.fromkeys(row.case.dtype for row in rows if not row.refused)
    measured = MeasuredCeilings(device, runs_directory(), progress.note, progress.say)
    return measured.complete(ceilings, dtypes, MATMUL[0], again=args.recalibrate)


def stamp(family: str, args: argparse.Namespace, device: Device, ceilings: Ceilings, settings: Settings) -> Environment:
    """Return the environment of this run."""
    from dataclasses import asdict

    from bench.harness import device as machine
    from results.store import new_run_id

    return Environment(
        run_id=new_run_id(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=tuple(machine.command_line(f"bench.{family}")),
        device=device.to_dict(),
        host=machine.host(),
        versions=machine.versions(),
        git=machine.git_state(),
        hardware=ceilings.to_dict(),
        settings=asdict(settings),
    )


def measure_all(
    runner: Runner, rows: Sequence[Row], session: Session, progress: Progress, args: argparse.Namespace
) -> None:
    """Measure row by row, each kept as soon as it is finished."""
    for row in rows:
        progress.say(f"{row.op.name} {row.case.name} {row.case.dtype} {row.provider}")
        record = runner.measure(row)
        session.keep(record)
        progress.advance()
        if args.verbose:
            progress.note(describe(record))
