"""One invocation of a command that measures: ceilings, environment, run file, records, and what is
shown of them.
"""

from __future__ import annotations

import math
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.harness import clock
from bench.harness.calibrate.calibration import MIXES, MeasuredCeilings, ceilings_of
from bench.harness.cli.arguments import UsageError
from bench.harness.device import gpu_state
from bench.harness.device.device import Device, environment_facts, git_state, host_state
from bench.harness.measure.flags import judged, too_low
from bench.harness.providers.registry import is_user_kernel
from bench.harness.providers.user_kernel import find, source_git_state
from bench.harness.settings import Argv, Settings
from bench.harness.timing import samplers
from results.record import Environment, Rank, Record, StepTotals
from results.show.grid import Table
from results.show.table import table_of_run
from results.show.terminal import (
    INTERRUPTED,
    OK,
    USAGE,
    WRONG_RESULT,
    OutputError,
    print_out,
    printable,
    say,
)
from results.store.runfile import RunWriter, StoreError, runs_directory
from roofline.machine import Ceiling, Machine

MIN_LEFT_S = 2.0
"""Time left that is worth an estimate."""


class Progress:
    """Progress on stderr: a bar on a terminal, else a line per row; nothing if quiet."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._is_live = not quiet and sys.stderr.isatty()
        self._total = self._done = 0
        self._deadline = math.inf
        self._bar: Any = None

    def _redraw(self, **changes: Any) -> None:
        """Redraw the bar. It is drawn between rows, because a thread that refreshes it would
        disturb samples.
        """
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True, emoji=False),
                transient=True,
                auto_refresh=False,
            )
            self._bar.start()
            self._bar.add_task("starting", total=None)
        self._bar.update(self._bar.task_ids[0], **changes, refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, rows: int, deadline: float = math.inf) -> None:
        """Set the number of rows, and when the budget is spent; without a budget, the rows so far
        give an estimate.
        """
        self._total = rows
        self._done = 0
        self._deadline = deadline
        self._began = clock.now()
        if self._is_live and rows:
            self._redraw(total=rows, completed=0)

    def say(self, text: str) -> None:
        """Show the current work."""
        left = ""
        if self._deadline < math.inf:
            left = f", {max(0.0, self._deadline - clock.now()):.0f} s left"
        elif self._done:
            others_s = (clock.now() - self._began) / self._done * (self._total - self._done)
            left = f", about {others_s:.0f} s left" if others_s >= MIN_LEFT_S else ""
        if self._is_live:
            self._redraw(description=printable(f"{text}{left}"))
        elif not self._quiet:
            say(f"[{self._done + 1}/{self._total}{left}] {text}" if self._total else text)

    def advance(self) -> None:
        self._done += 1
        if self._is_live:
            self._redraw(completed=self._done)

    def note(self, text: str) -> None:
        """Print a permanent line."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
        else:
            say(text)


class Run(AbstractContextManager["Run"]):
    """One invocation of a command that measures.

        run = Run(settings, "bench.matmul", "matmul", device, argv)
        with run:                        # progress on stderr: run.progress.say, .note, .advance
            run.start(dtypes)            # ceilings, environment line, run file; starts the budget
            run.progress.expect(len(rows), run.deadline)
            for row in rows:
                run.keep(measure(row))   # on disk when it returns
            run.judge_again()            # on a CPU: measures ceilings again that records exceed
        return run.conclude()            # prints, plots, names the file; returns the exit code

    The end of the block writes the run file again, with one record per row and the last ceilings.

    Ctrl-C before `start` has returned ends the command. Afterwards it ends the `with` block and
    sets `is_interrupted`; `conclude` shows the records so far and returns 130.

    After `start`, `ceilings` are complete, `environment` is set, and `deadline` is a reading of
    `clock.now`, infinite without a budget. `saved` are the options of the environment line, which
    may be replaced before `start`. `writer` writes the run file; it is None with `--no-save`, and
    after the error `problem`.
    """

    environment: Environment

    def __init__(
        self,
        settings: Settings,
        command: str,
        name: str,
        device: Device,
        argv: Argv = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        """Find the ceilings that are known without measuring.

        Args:
            settings: options of the command.
            command: module after `python -m`: `bench.matmul`.
            name: middle of the run file's name: `matmul`.
            device: the device under test.
            argv: arguments; None: those of the process.
            saved: measurement options, saved in the environment line; None: those of `settings`.

        Raises:
            UsageError: `--gpu` names a GPU other than the device.
        """
        self.settings = settings
        self.device = device
        self.progress = Progress(settings.quiet)
        self.records: list[Record] = []
        self.is_interrupted = False
        self.writer: RunWriter | None = None
        self.problem: StoreError | None = None
        self.deadline = math.inf
        self.has_started = False
        self._command = command
        self._name = name
        self._argv = argv
        self.saved = saved_options(settings) if saved is None else saved
        self._saved = 0
        self._calibration = MeasuredCeilings(
            device, runs_directory(), self.progress.note, self.progress.say
        )
        self.ceilings = ceilings_of(device, settings.gpu)

    def __getstate__(self) -> dict[str, Any]:
        """Send to a worker only what the measurement of a row reads."""
        return {
            name: getattr(self, name) for name in ("settings", "device", "ceilings", "deadline")
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.has_started:
            self.environment = replace(self.environment, machine=self.ceilings)
        if self.writer is not None:
            try:
                self.writer.finish(self.environment, self.records)
            except StoreError as problem:
                if self.writer.path.exists():
                    say(f"the run file still has a record for each visit of a row: {problem}")
                else:
                    self.writer = None
                    self.problem = problem
        self.is_interrupted = self.has_started and isinstance(error, KeyboardInterrupt)
        if self.is_interrupted:
            self.progress.note("interrupted: finished rows are saved")
        self.progress.close()
        return self.is_interrupted

    def start(
        self,
        dtypes: Sequence[str] | None,
        is_here: bool = True,
        fleet: Rank | None = None,
        profile: StepTotals | None = None,
        mixes: Sequence[str] = MIXES,
    ) -> None:
        """Measure missing ceilings, create the run file, start the budget.

        The ceilings are the peaks of `dtypes` (None: no ceilings at all) and the bandwidths of
        `mixes`.

        Unless the device `is_here`, nothing of this machine is measured or stamped. `fleet` is the
        rank of this run, `profile` the step that it profiles.
        """
        if is_here:
            self.device.use()
        if dtypes is not None:
            self.ceilings = self._calibration.complete(self.ceilings, dtypes, mixes)
        environment = stamp(
            self._command, self.device, self.ceilings, self.saved, self._argv, is_here
        )
        environment = replace(environment, fleet=fleet, profile=profile)
        self.environment = environment
        if not self.settings.no_save:
            self.writer = RunWriter.create(environment, self._name, self.settings.output)
        self._dtypes = dtypes or ()
        self._mixes = mixes
        self.has_started = True
        self._started_s = clock.now()
        if self.settings.budget_s is not None:
            self.deadline = self._started_s + self.settings.budget_s

    def share_s(self, rows: int = 1) -> float:
        """Return the seconds left of the budget, divided by `rows`."""
        return max(0.0, self.deadline - clock.now()) / rows

    def keep(self, record: Record, index: int | None = None) -> None:
        """Save a record, in place of an earlier one with `index`; if the disk is full it is still
        shown at the end.
        """
        if is_user_kernel(record.provider):
            revision = source_git_state(find(record.provider), record.source_sha256)
            record = replace(record, source_git=revision)
        if self.writer is not None:
            try:
                self.writer.append(record)
            except StoreError as error:
                self.writer.close()
                self.writer = None
                self.problem = error
                self._saved = len(self.records)
                say(f"records are no longer saved: {error}")
        if index is None:
            self.records.append(record)
        else:
            self.records[index] = record

    def note_time(self) -> None:
        took_s = clock.now() - self._started_s
        timed_s = sum(
            sum(record.samples_s) * (record.launches_per_sample or 0) for record in self.records
        )
        if self.records:
            share = f"{timed_s:.3g} s of it timed ({100 * timed_s / took_s:.0f} %)"
            self.progress.note(f"measuring took {took_s:.3g} s, {share}")

    def judge_again(self) -> None:
        """Measure ceilings again that records exceed, and evaluate all records against them.

        Each is measured again once. A record that still exceeds one by a factor of
        `AGAIN_GATE_MARGIN` is invalid, unless its data may have come from the cache. On a GPU
        nothing is measured again: records are evaluated against its datasheet.
        """
        if self.device.is_gpu:
            return
        self.progress.expect(0)
        low: dict[Ceiling, None] = {}
        for record in self.records:
            low |= dict.fromkeys(too_low(record, self.ceilings))
        if low:
            self.ceilings = self._calibration.complete(
                replace(self.ceilings, note=None), self._dtypes, self._mixes, list(low)
            )
            again = {(ceiling.quantity, ceiling.name) for ceiling in low}
            self.records[:] = [
                judged(record, self.device, self.ceilings, again=again) for record in self.records
            ]

    def conclude(
        self,
        table: Callable[[Environment, Sequence[Record]], Table] = table_of_run,
        draws: bool = False,
    ) -> int:
        """Print the records, draw the plot, print the path of the run file, and return the exit
        code.

        Args:
            table: makes the table.
            draws: whether to plot next to the run file if there is no `--plot`.

        Raises:
            StoreError: not all records could be saved; they have been printed.
        """
        path = self.show(table(self.environment, self.records))
        plot = self.settings.plot
        if not plot and draws and path is not None:
            plot = path.with_suffix(".png")
        if plot is not None:
            from roofline.picture.figure import plot_run
            from roofline.picture.scene import NoCeilingError

            try:
                plot_run(self.environment, self.records, plot)
                print_path("plot", plot, self.settings.format)
            except NoCeilingError as error:
                if self.settings.plot is not None:
                    raise
                self.progress.note(f"no plot: {error}")
        return self.exit_code()

    def show(self, table: Table) -> Path | None:
        """Print a table and the path of the run file; return the path."""
        path = self.writer.path if self.writer else None
        saved = f"; the run is saved in {path}" if path else ""
        try:
            text = table.render(self.settings.format)
        except OutputError as error:  # rich writes to a stdout without a buffer while it captures
            raise OutputError(f"{error}{saved}") from None
        print_out(text, saved)
        if path is not None:
            print_path("saved", path, self.settings.format)
        return path

    def exit_code(self) -> int:
        """Return the exit code of the command, after what has been printed.

        Raises:
            StoreError: not all records could be saved.
        """
        self.raise_if_unsaved()
        if self.is_interrupted:
            return INTERRUPTED
        if self.settings.budget_s is not None and all(
            record.status == "skipped" for record in self.records
        ):
            return USAGE  # the budget is too short for any row
        if any(record.status in ("invalid", "failed") for record in self.records):
            return WRONG_RESULT
        return OK

    def raise_if_unsaved(self) -> None:
        if self.problem is not None:
            count = len(self.records)
            raise StoreError(
                f"{count - self._saved} of {count} records were not saved: {self.problem}"
            )


def refused_all(records: Iterable[Record]) -> UsageError:
    """Return the error of a run in which no row can be measured: the first reason and the number of
    others.
    """
    reasons = list(
        dict.fromkeys(
            f"{record.op} {record.dtype} {record.case}: {record.reason}" for record in records
        )
    )
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return UsageError(reasons[0] + more)


def saved_options(settings: Settings) -> dict[str, Any]:
    """Return the options that a run file has."""
    saved = {name: getattr(settings, name) for name in ("fill", "cache", "budget_s", "seed")}
    for name in ("tolerance", "in_place", "peak_memory"):
        value = getattr(settings, name)
        if value != getattr(Settings, name):
            saved[name] = value
    return saved


def stamp(
    command: str,
    device: Device,
    ceilings: Machine,
    settings: Mapping[str, Any],
    argv: Argv,
    is_here: bool = True,
) -> Environment:
    """Return the environment of this run, without facts of this machine if the device is not here.

    `argv` None: the arguments of the process.
    """
    as_module = () if command.endswith(".py") else ("-m",)  # the former is a user's op file
    now = datetime.now(UTC)
    environment = Environment(
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(5)}",
        started_at=now.isoformat(timespec="seconds"),
        argv=("python", *as_module, command, *(sys.argv[1:] if argv is None else argv)),
        device=asdict(device),
        machine=ceilings,
        settings=dict(settings),
    )
    if not is_here:
        return environment
    facts = environment_facts()
    state = host_state()
    costs = {
        "tick_s": samplers.tick_s(device),
        "host_launch_s": samplers.empty_launch_s(device),
    }
    # Runs with different modes cannot be compared; an idle GPU does not report its clock settings.
    if device.is_gpu:
        modes = gpu_state.modes(device.uuid)
    else:
        modes = {key: state[key] for key in ("governor", "turbo")}
    return replace(
        environment,
        device=asdict(device) | modes,
        host=facts["host"],
        versions=facts["versions"],
        git=git_state(),
        preflight=costs,
    )


def print_path(title: str, path: Path, output_format: str) -> None:
    """Print the path of a file: below the table, or on stderr if stdout has data."""
    line = f"{title}: {path}"
    if output_format == "table":
        print_out(printable(line) + "\n")
    else:
        say(line)
