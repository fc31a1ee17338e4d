"""The command of a scenario, which measures steps such as a training step or a transfer, not ops.

A file in `bench/` builds one `Scenario`, as its constant `SCENARIO`, and ends in `main(SCENARIO)`. Arguments, ceilings,
progress, the run file, Ctrl-C, formats, plot and exit codes are those of every other command; `python -m bench list`
finds the constant. No torch here, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import add_machine, add_output
from bench.harness.cli.main import check_places, device_of, guarded, refuse_all
from bench.harness.cli.pace import Pace
from bench.harness.cli.terminal import Progress
from bench.harness.definition import modules_sha256
from results.record import Environment, Record
from results.show.table import describe
from results.show.terminal import Parser

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.device.device import Device
    from bench.harness.measure.plan import Settings
    from bench.harness.run import Run
    from roofline.ceilings import Ceilings

EXIT_CODES = "exit codes: 0 ok; 1 a wrong result; 2 usage; 3 no such device; 130 interrupted, what was finished is kept"


@dataclass(frozen=True)
class ScenarioContext:
    """What a row is measured with."""

    device: Device
    settings: Settings
    ceilings: Ceilings
    progress: Progress
    deadline: float | None
    """Reading of `time.perf_counter` after which the budget is spent; None without one."""
    rows_left: int
    """Rows that the time until the deadline is for, this one among them."""

    def left_s(self) -> float | None:
        """Return the seconds of the budget that this row may take; None without a budget."""
        return None if self.deadline is None else max(0.0, self.deadline - time.perf_counter()) / self.rows_left


@dataclass(frozen=True)
class ScenarioRow:
    """One row of a run."""

    blank: Record
    """What the row is, with its work and nothing measured, as `skipped`; with a reason where it cannot run here."""
    measure: Callable[[ScenarioContext], Record]
    """Returns the finished record. What it raises makes the row `failed`, running out of memory `skipped`."""
    label: str
    """What progress calls it."""


LAST_TURN = 100
"""Larger than every `goes_below` that a column states."""


@dataclass(frozen=True)
class Column:
    """One column of a table for people; left out where no row has a value."""

    title: str
    cell: Callable[[Record, Mapping[str, Any]], str | None]
    """Returns the text for a record and its judged keys; None where there is nothing to say."""
    is_text: bool = False
    """Whether it stands on the left."""
    is_quiet: bool = False
    """Whether it is left out where all rows say the same; the command line above the table has it then."""
    goes_below: int = 0
    """In which order columns move below their row where a terminal has no room, 1 first; numbers without an order
    follow, from right to left, and texts never move."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command whose rows are no ops."""

    name: str
    """The `op` of its records, and the middle of the run file's name: `train-step`."""
    command: str
    """What follows `python -m`: `bench.train_step`."""
    formula: str
    """What is measured, in one line, for `python -m bench list`."""
    axes: str
    """How `--shape` is written, for the list: `BxS`."""
    dtypes: Sequence[str]
    providers: Sequence[str]
    doc: str
    """The file's docstring, shown by `--help`."""
    notes: str
    """The meaning of the columns, shown by `--help`."""
    examples: Sequence[tuple[str, str]]
    """Argument lines and what they do."""
    add_options: Callable[[Any], None]
    """Adds what only this command has to a group of the parser."""
    check: Callable[[argparse.Namespace], None]
    """Raises `UsageError` for arguments that cannot be measured, before torch is loaded."""
    plan: Callable[[argparse.Namespace, Device, Settings], Sequence[ScenarioRow]]
    """Returns the rows, those that cannot run here with their reason."""
    columns: Sequence[Column]
    """Of the table for people."""
    more_tables: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    """Columns of further tables with the same rows, by title."""
    footer: Callable[[Sequence[Record]], Sequence[str]] = lambda records: ()
    """Returns the lines below the tables."""
    defined_in: Sequence[str] = ()
    """Modules of this project, by their full names, that say what a row measures, beside the command's own file."""
    describe: Callable[[Record], Sequence[str]] = describe
    """Returns how a row was verified and measured, a line each, for `-v`."""


def main(scenario: Scenario, argv: Sequence[str] | None = None) -> int:
    """Run the command of a scenario and return its exit code; `argv` None stands for the process's arguments."""
    return guarded(build_parser(scenario), lambda args: run(scenario, args, argv), argv)


def build_parser(scenario: Scenario) -> Parser:
    """Return the parser of a scenario's command."""
    prog = f"python -m {scenario.command}"
    width = max((len(arguments) for arguments, _ in scenario.examples), default=0)
    lines = [f"  {prog} {arguments:<{width}}  {meaning}" for arguments, meaning in scenario.examples]
    parser = Parser(
        prog=prog,
        usage=f"{prog} [options]",
        description=scenario.doc,
        epilog="\n".join([scenario.notes, "", EXIT_CODES, *(["", "examples:", *lines] if lines else [])]),
    )
    scenario.add_options(parser.add_argument_group("what to measure"))
    add_machine(parser.add_argument_group("how to measure"))
    add_output(parser.add_argument_group("what to do with it"))
    return parser


def run(scenario: Scenario, args: argparse.Namespace, argv: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for and return the exit code; `guarded` answers what this raises."""
    return measured_run(scenario, args, argv).conclude(partial(render, scenario))


def measured_run(scenario: Scenario, args: argparse.Namespace, argv: Sequence[str] | None = None) -> Run:
    """Measure what the arguments ask for.

    Raises:
        UsageError, NoDeviceError, PlotError: it cannot be measured.
    """
    scenario.check(args)
    check_places(args)
    from bench.harness.measure.plan import Settings
    from bench.harness.run import Run

    under_test = device_of(args)
    settings = Settings(cache="warm", budget_s=args.budget, seed=args.seed)
    rows = scenario.plan(args, under_test, settings)
    refuse_all([f"{row.label}: {row.blank.reason}" for row in rows if row.blank.reason], len(rows))
    dtypes = tuple(dict.fromkeys(row.blank.dtype for row in rows if not row.blank.reason))
    rows = with_definition(scenario, rows)
    with Run(args, scenario.command, scenario.name, under_test, settings.to_dict(), argv) as run:
        run.start(dtypes)
        measure_rows(run, rows, settings, scenario.describe)
        run.note_time()
        run.judge_again()
    return run


def with_definition(scenario: Scenario, rows: Sequence[ScenarioRow]) -> list[ScenarioRow]:
    """Return rows whose records say which definition of the scenario was measured."""
    sha256 = modules_sha256((scenario.command, *scenario.defined_in))

    def measure(row: ScenarioRow, bench: ScenarioContext) -> Record:
        return replace(row.measure(bench), op_sha256=sha256)

    return [replace(row, blank=replace(row.blank, op_sha256=sha256), measure=partial(measure, row)) for row in rows]


def measure_rows(
    run: Run, rows: Sequence[ScenarioRow], settings: Settings, describe: Callable[[Record], Sequence[str]]
) -> None:
    """Measure row by row, each kept as soon as it is finished."""
    from bench.harness.measure.plan import out_of_time

    progress, deadline = run.progress, run.deadline
    pace = Pace(deadline, len(rows))
    progress.expect(len(rows), pace.left_s)
    for done, row in enumerate(rows):
        if not (row.blank.reason or pace.has_time()):
            run.keep(replace(row.blank, reason=out_of_time(settings.budget_s)))
            continue
        progress.say(row.label)
        together, began = pace.together(done), time.perf_counter()
        record = measured(row, ScenarioContext(run.device, settings, run.ceilings, progress, deadline, together))
        pace.took(record, began)
        run.keep(record)
        progress.advance()
        if run.args.verbose:
            for line in describe(record):
                progress.note(line)


def measured(row: ScenarioRow, bench: ScenarioContext) -> Record:
    """Return the record of one row, whatever becomes of it."""
    from bench.harness.measure.runner import DEVICE_LOST, is_out_of_memory, one_line, release

    if row.blank.reason:
        return row.blank
    if not release(bench.device):
        return replace(row.blank, status="failed", reason=DEVICE_LOST)
    try:
        return row.measure(bench)
    except Exception as error:
        if is_out_of_memory(error):
            return replace(row.blank, reason="out of memory")
        return replace(row.blank, status="failed", reason=one_line(error))


def render(scenario: Scenario, environment: Environment, records: Sequence[Record], console: Console) -> None:
    """Print a run with the columns of its own command: machine and ceilings, what was measured, what was not."""
    from results.show.judge import judged
    from results.show.table import header_lines
    from results.show.terminal import printable

    measured = [pair for pair in zip(records, judged(environment, records), strict=True) if pair[0].status == "ok"]
    for line in header_lines(environment, records):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    tables = {"": scenario.columns, **scenario.more_tables}
    for title, columns in tables.items() if measured else ():
        console.print(f"\n{title}" if title else "", markup=False, highlight=False)
        flags = [] if title else [", ".join(record.flags) for record, _ in measured]
        print_table(console, columns, measured, flags)
    console.print()
    lines = [f"{label_of(record)}: {record.status}: {record.reason}" for record in records if record.status != "ok"]
    lines += [f"{label_of(record)}: {score['excess']}" for record, score in measured if score["excess"]]
    for line in [*lines, *scenario.footer(records)]:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def print_table(
    console: Console,
    columns: Sequence[Column],
    rows: Sequence[tuple[Record, Mapping[str, Any]]],
    flags: Sequence[str],
) -> None:
    """Print records with their judged keys, without the columns that say nothing."""
    from results.show import grid
    from results.show.table import ABSENT

    shown = []
    for place, column in enumerate(columns):
        cells = [column.cell(*row) for row in rows]
        if any(cell is not None for cell in cells) and not (column.is_quiet and len(set(cells)) == 1):
            texts = [ABSENT if cell is None else cell for cell in cells]
            turn = column.goes_below or (0 if column.is_text else LAST_TURN - place)
            shown.append(grid.Column(column.title, texts, "left" if column.is_text else "right", goes_below=turn))
    grid.print_grid(console, shown, flags, "flags")


def spread(record: Record) -> str | None:
    """Return the cell with half the width of the confidence interval of the median; None where it has none."""
    from results.show.table import format_half_width

    return format_half_width(record.ci95_s, record.median_s) if record.ci95_s and record.median_s else None


def percent_of(share: float | None) -> str | None:
    """Return the cell of a share; None where it is not known."""
    from results.show.table import format_percent

    return None if share is None else format_percent(100 * share)


def label_of(record: Record) -> str:
    """Return what tells a record from the others of its run, in words: op, case, dtype, provider, options."""
    options = [str(value) for value in record.options.values()]
    return " ".join([record.op, record.case, record.dtype, record.provider, *options])
