"""The command of every op file: read the arguments, plan, calibrate, measure, keep, show."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness.arguments import UsageError, build_parser, make_cases
from bench.harness.interrupt import INTERRUPTED, exit_undisturbed, leave_when_interrupted, raise_when_interrupted
from bench.harness.op import Op, Option
from bench.harness.table import OutputError, Progress, describe, prepare_streams, print_path, print_run, say
from results.record import Environment, Record

if TYPE_CHECKING:
    from bench.harness.device import Device
    from bench.harness.runner import Row, Runner, Settings
    from results.store import RunWriter
    from roofline.ceilings import Ceilings

OK, WRONG_RESULT, USAGE, NO_DEVICE = 0, 1, 2, 3
"""Exit codes, the same for all commands; the fifth is `INTERRUPTED`."""


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
    if argv is None:
        leave_when_interrupted()
    prepare_streams()
    args = build_parser(family, doc or "", examples, ops, options).parse_args(argv)
    from results.store import StoreError
    from roofline.plot import PlotError

    try:
        return run(family, args, ops, options, argv)
    except (UsageError, OutputError, StoreError, PlotError) as error:
        return _fail(family, str(error), USAGE)
    except KeyboardInterrupt:
        return _fail(family, "interrupted", INTERRUPTED)
    finally:
        if argv is None:
            exit_undisturbed()


def _fail(family: str, message: str, code: int) -> int:
    say(f"python -m bench.{family}: error: {' '.join(message.split())}")
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


def run(
    family: str,
    args: argparse.Namespace,
    ops: Sequence[Op],
    options: Sequence[Option],
    argv: Sequence[str] | None = None,
) -> int:
    """Measure what the arguments ask for and return the exit code.

    Raises:
        UsageError: something asked for cannot be.
        OutputError: stdout cannot be written.
    """
    from bench.harness import calibrate, device, providers, runner
    from results.store import RunWriter

    names = check_arguments(family, args, ops, options)
    start = time.perf_counter()
    try:
        under_test = device.detect(args.device)
    except device.NoDeviceError as error:
        return _fail(family, str(error), NO_DEVICE)
    raise_when_interrupted()
    settings = runner.Settings(args.fill, args.cache, args.budget, args.seed)
    cases = make_cases(args, ops, options, under_test.type)
    rows = runner.plan(cases, names or providers.default_providers(family, under_test), under_test, settings)
    refuse_if_none_can_run(rows)
    try:
        ceilings = calibrate.ceilings_of(under_test, args.gpu)
    except ValueError as error:
        raise UsageError(str(error)) from None
    session = Session()
    interrupted = False
    with Progress(args.quiet) as progress:
        use_threads(under_test)
        ceilings = calibrated(args, rows, under_test, ceilings, progress)
        environment = stamp(family, under_test, ceilings, settings, argv)
        if not args.no_save:
            session.writer = RunWriter.create(environment, family, args.output)
        deadline = None if args.budget is None else start + args.budget
        progress.expect(len(rows))
        try:
            measure_all(runner.Runner(family, under_test, settings, deadline=deadline), rows, session, progress, args)
        except KeyboardInterrupt:
            interrupted = True
            progress.note("interrupted: what was finished is kept")
    show(args, environment, session)
    if interrupted:
        return INTERRUPTED
    return WRONG_RESULT if any(record.status in ("invalid", "failed") for record in session.records) else OK


def check_arguments(family: str, args: argparse.Namespace, ops: Sequence[Op], options: Sequence[Option]) -> list[str]:
    """Find what is wrong before torch is loaded and anything is measured; return the providers asked for.

    Raises:
        UsageError: a value that cannot be, or a place where nothing can be written.
        PlotError: the picture cannot be written.
    """
    from results.store import runs_directory
    from roofline.hardware import UnknownGpuError, find_gpu
    from roofline.plot import check_path

    if sys.stdout is None:
        raise UsageError("stdout is closed; redirect it, to /dev/null for instance")
    make_cases(args, ops, options, "cpu")
    names = chosen_providers(args, family)
    if args.gpu is not None:
        try:
            find_gpu(args.gpu)
        except UnknownGpuError as error:
            raise UsageError(str(error)) from None
    try:
        if args.plot is not None:
            check_path(args.plot)
            check_folder(args.plot.parent, args.plot)
        if not args.no_save:
            check_output(args.output or runs_directory())
    except OSError as error:
        raise UsageError(f"cannot write {error.filename}: {error.strerror}") from None
    return names


def check_output(path: Path) -> None:
    """Refuse a run file that could not be written; the writer would find it too, but after the calibration.

    Raises:
        UsageError: it holds something, or its folder takes no file.
    """
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{path} exists and is not empty; no run is overwritten: choose another --output")
    check_folder(path if path.is_dir() else path.parent, path)


def check_folder(folder: Path, path: Path) -> None:
    """Refuse `path` if its folder, or where that does not exist the nearest one above it, takes no new file.

    A file is really made, because permissions tell neither of read-only nor of virtual file systems.

    Raises:
        UsageError: with the reason.
    """
    nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise UsageError(f"cannot write {path}: {nearest}: {error.strerror}; choose another place") from None


def refuse_if_none_can_run(rows: Sequence[Row]) -> None:
    """Refuse a run in which no row can be measured.

    Raises:
        UsageError: with the reason of the first row.
    """
    reasons = [f"{row.op.name} {row.case.dtype} {row.case.name}: {row.refused.reason}" for row in rows if row.refused]
    if len(reasons) == len(rows):
        others = len(dict.fromkeys(reasons)) - 1
        raise UsageError(reasons[0] + (f" (and {others} more)" if others else ""))


def show(args: argparse.Namespace, environment: Environment, session: Session) -> None:
    """Print what was measured, draw it where that was asked for, and say where it is kept.

    Raises:
        OutputError: stdout cannot be written.
        PlotError: the picture cannot be drawn or written.
    """
    from roofline.plot import plot_run

    saved = session.writer.path if session.writer else None
    print_run(environment, session.records, args.format, args.baseline, saved)
    if args.plot is not None:
        plot_run(environment, session.records, args.plot)
        print_path("plot", args.plot, args.format)


def chosen_providers(args: argparse.Namespace, family: str) -> list[str]:
    """Return the providers asked for, the baseline first; empty where none is named.

    Raises:
        UsageError: one of them does not exist.
    """
    from bench.harness.providers import UnknownProviderError, check_names

    if args.provider == []:
        raise UsageError("--provider is empty; name at least one")
    baseline = [] if args.baseline is None else [args.baseline]
    names = list(dict.fromkeys(baseline + (args.provider or [])))
    try:
        check_names(names, family)
    except UnknownProviderError as error:
        raise UsageError(str(error)) from None
    if baseline and names == baseline:
        raise UsageError(f"--baseline {args.baseline} needs other providers to set against it; name them: --provider")
    return names


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


def stamp(
    family: str, device: Device, ceilings: Ceilings, settings: Settings, argv: Sequence[str] | None
) -> Environment:
    """Return the environment of this run; `argv` None stands for the arguments of the process."""
    from dataclasses import asdict

    from bench.harness import device as machine
    from results.store import new_run_id

    return Environment(
        run_id=new_run_id(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        argv=tuple(machine.command_line(f"bench.{family}", argv)),
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
