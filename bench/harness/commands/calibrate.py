"""`python -m bench calibrate`: measures the ceilings of this machine and keeps them for every other command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import add_device, add_list, add_output, chosen, dtype_words
from bench.harness.cli.interrupt import INTERRUPTED
from bench.harness.cli.terminal import Progress, print_path
from bench.harness.op import Op
from results.show.grid import Column, print_grid
from results.show.table import format_rate, format_time, header_lines
from results.show.terminal import drawn, print_out, printable

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.calibrate.calibration import MeasuredCeilings
    from bench.harness.calibrate.setup import CalibrationPart, PartOutcome
    from bench.harness.device.device import Device
    from bench.harness.run import Run
    from results.record import Environment, Record
    from roofline.ceilings import Ceiling, Ceilings

DESCRIPTION = """\
Measure the ceilings of this machine, and keep them for every other bench command.

Memory bandwidth by its mix of reads and writes, the fastest of which is the ceiling; the fastest matmul of each dtype,
fused multiply-adds, and the shortest launch. On a GPU a long run of the fastest matmul, begun on an idle device, also
gives the rate of its first 0.1 s (burst) and of its later half (sustained), each with clock and power.

A CPU is judged by these ceilings. A GPU of the table is still judged by its datasheet, and its measured ceilings stand
beside it. They hold until the device, its driver, torch, triton, the power limit or the threads change."""

EPILOG = """\
exit codes: 0 ok; 1 nothing could be measured; 2 usage, or the records could not be kept; 3 no such device;
            130 interrupted, the ceilings that were finished are kept

examples:
  python -m bench calibrate                        under two minutes on a CPU, five on a GPU
  python -m bench calibrate --quick --dtype bf16   under half a minute on a CPU, one on a GPU"""

COLUMNS = (
    *("quantity", "name", "value", "unit", "ci95_low", "ci95_high", "p5", "p95", "config", "work_per_launch"),
    *("sm_clock_hz", "memory_clock_hz", "power_w", "flops_per_j", "at_power_limit", "measured_at"),
)
"""Of CSV and Markdown."""


def add_parser(commands: Any) -> None:
    """Add the command to `python -m bench`."""
    parser = commands.add_parser("calibrate", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--quick", action="store_true", help="a third of the time, and wider intervals")
    words = "dtypes of matmul and FMA (default: bf16,fp32 on a CPU, on a GPU all it has)"
    add_list(parser, "--dtype", words, dtype_words)
    add_device(parser)
    group = parser.add_argument_group("what to do with it")
    add_output(group, detail="what each part found when it is done")
    parser.set_defaults(run=run)


@dataclass
class Calibration:
    """What one calibration gathers."""

    known: Ceilings
    """Before anything was measured."""
    kept: MeasuredCeilings
    run: Run
    found: list[Ceiling] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """What was not measured, and why."""

    def take(self, outcome: PartOutcome) -> None:
        """Keep what a part found, on disk first."""
        self.found += outcome.ceilings
        self.missing += outcome.notes
        self.kept.save(self.all())
        for record in outcome.records:
            self.run.keep(record)

    def all(self) -> Ceilings:
        """Return everything known of this machine now."""
        from bench.harness.calibrate.calibration import merged

        return merged(self.known, self.found)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Calibrate and return the exit code."""
    from bench.harness.cli import main

    args.gpu = None
    chosen("dtype", args.dtype, families["matmul"][0].dtypes, ())
    main.check_places(args)
    under_test = main.device_of(args)
    return calibrate(args, under_test, families["matmul"][0], argv)


def calibrate(args: argparse.Namespace, device: Device, matmul: Op, argv: Sequence[str] | None) -> int:
    """Measure part by part, keep each when it is finished, print all; return the exit code.

    Raises:
        StoreError: the records could not be kept; the ceilings have been shown.
    """
    from bench.harness.calibrate.calibration import MeasuredCeilings
    from bench.harness.calibrate.parts import plan_parts
    from bench.harness.calibrate.setup import FULL, QUICK, CalibrationSetup
    from bench.harness.run import Run
    from results.store.runs import runs_directory

    effort = QUICK if args.quick else FULL
    run = Run(args, "bench", "calibrate", device, asdict(effort), argv)
    progress, known = run.progress, run.ceilings
    job = Calibration(known, MeasuredCeilings(device, runs_directory(), progress.note, progress.say), run)
    with run:
        run.start(None)
        dtypes = chosen_dtypes(args, device, matmul, job)
        parts = plan_parts(CalibrationSetup(device, effort, matmul), dtypes)
        with job.kept.alone():
            job.known = known.with_entries(job.kept.load())
            measure_all(job, device, parts, progress, args.verbose)
    assert run.environment is not None
    show(args, replace(run.environment, hardware=job.all().to_dict()), job)
    run.raise_if_unsaved()
    if run.is_interrupted:
        return INTERRUPTED
    return 0 if job.found else 1


def chosen_dtypes(args: argparse.Namespace, device: Device, matmul: Op, job: Calibration) -> list[str]:
    """Return the dtypes to measure; one that was asked for and is not there is noted."""
    from bench.harness.calibrate.parts import DTYPES
    from bench.harness.measure.plan import has_dtype

    wanted = args.dtype or DTYPES["gpu" if device.is_gpu else "cpu", args.quick]
    there = [d for d in dict.fromkeys(wanted) if d in matmul.dtypes and has_dtype(device, d)]
    job.missing += [f"{d}: {device.name} has no such arithmetic" for d in args.dtype or () if d not in there]
    return there


def measure_all(
    job: Calibration, device: Device, parts: Sequence[CalibrationPart], progress: Progress, verbose: bool
) -> None:
    """Measure part after part; one that fails is noted, and the others are measured."""
    from bench.harness.measure.runner import DEVICE_LOST, one_line, release

    # Off a terminal every note would be a line, a hundred of them.
    note = progress.say if sys.stderr.isatty() else lambda line: None
    progress.expect(len(parts))
    for part in parts:
        if not release(device):
            job.missing.append(f"{part.name}: {DEVICE_LOST}")
            continue
        progress.say(part.name)
        try:
            outcome = part.measure(note)
        except Exception as error:  # compilers, drivers and libraries raise classes of their own
            job.missing.append(f"{part.name}: {one_line(error)}")
        else:
            job.take(outcome)
            for ceiling in outcome.ceilings if verbose else ():
                progress.note(f"{ceiling.quantity} {ceiling.name}: {value_text(ceiling)}, {ceiling.config}")
        progress.advance()


# ---- what is printed ----------------------------------------------------------------------------------------------


def show(args: argparse.Namespace, environment: Environment, job: Calibration) -> None:
    """Print the ceilings, draw them where that was asked for, and say where all is kept."""
    from roofline.plot.figure import plot_run

    print_out(text_of(args.format, environment, job), f"; the ceilings are in {job.kept.path}")
    if job.run.writer is not None:
        print_path("saved", job.run.writer.path, args.format)
    if args.plot is not None:
        plot_run(environment, [r for r in job.run.records if r.op == "calibrate-matmul"], args.plot, args.theme)
        print_path("plot", args.plot, args.format)


def text_of(output_format: str, environment: Environment, job: Calibration) -> str:
    """Return the ceilings in the format asked for; JSON holds the records too."""
    from bench.harness.calibrate.calibration import peak_sentences
    from results.show.export import csv_text, json_text, markdown_text
    from results.show.rows import document

    ceilings = job.all()
    sentences = peak_sentences(ceilings, dict.fromkeys(c.name for c in job.found if c.quantity in ("flops", "fma")))
    if output_format == "json":
        extra = {
            "ceilings": [asdict(entry) | {"unit": unit_of(entry)} for entry in job.found],
            "decomposition": sentences,
            "not_measured": job.missing,
            "doubts": doubts(job.run.records),
        }
        return json_text(document(environment, job.run.records) | extra)
    rows = [row_of(entry) for entry in job.found]
    if output_format != "table":
        return (csv_text if output_format == "csv" else markdown_text)(rows, COLUMNS)
    return table_text(environment, job, sentences)


def doubts(records: Sequence[Record]) -> list[str]:
    """Return a line for each flag with the measurements that carry it: their ceilings may be too low."""
    flags = dict.fromkeys(flag for record in records for flag in record.flags)
    named = {
        flag: [f"{r.op.removeprefix('calibrate-')} {r.dtype}" for r in records if flag in r.flags] for flag in flags
    }
    return [f"{flag}, so these may read low: {', '.join(dict.fromkeys(names))}" for flag, names in named.items()]


def unit_of(ceiling: Ceiling) -> str:
    """Return the unit of a ceiling's value."""
    from roofline.ceilings import QUANTITIES

    return QUANTITIES[ceiling.quantity]


def row_of(ceiling: Ceiling) -> dict[str, Any]:
    """Return a ceiling as one row of plain values, SI base units."""
    low, high = ceiling.ci95 or (None, None)
    p5, p95 = ceiling.p5_p95 or (None, None)
    values = asdict(ceiling) | {"unit": unit_of(ceiling), "ci95_low": low, "ci95_high": high, "p5": p5, "p95": p95}
    values["flops_per_j"] = ceiling.flops_per_j
    return {name: values[name] for name in COLUMNS}


def value_text(ceiling: Ceiling, value: float | None = None) -> str:
    """Return a ceiling's value, or another of its unit, as people read it."""
    shown = ceiling.value if value is None else value
    return format_time(shown) if unit_of(ceiling) == "s" else format_rate(shown, unit_of(ceiling))


def interval_text(ceiling: Ceiling) -> str:
    """Return a ceiling's interval, with what it is where the value beside it is another one's: a CPU's fastest."""
    text = " to ".join(value_text(ceiling, end) for end in ceiling.ci95 or () if end) or "-"
    is_of_it = ceiling.ci95 is None or ceiling.ci95[0] <= ceiling.value <= ceiling.ci95[1]
    return text if is_of_it else f"{text}, of the median; the value is the fastest"


def table_text(environment: Environment, job: Calibration, sentences: Sequence[str]) -> str:
    """Return the machine, a row for each ceiling, how the peaks come about, and what was not measured."""
    found = job.found
    facts = {
        "SM clock": [f"{entry.sm_clock_hz / 1e6:.0f} MHz" if entry.sm_clock_hz else "-" for entry in found],
        "power": [f"{entry.power_w:.0f} W" if entry.power_w else "-" for entry in found],
        "per J": [f"{entry.flops_per_j / 1e12:.3g} TFLOP/J" if entry.flops_per_j else "-" for entry in found],
    }
    columns = [
        Column("ceiling", [entry.quantity for entry in found]),
        Column("of", [entry.name for entry in found]),
        Column("value", [value_text(entry) for entry in found], "right"),
        Column("95% CI", [interval_text(entry) for entry in found], goes_below=1),
    ]
    for place, (title, texts) in enumerate(facts.items(), 1):
        if set(texts) != {"-"}:
            columns.append(Column(title, texts, "right", leaves=place))
    missing = [f"not measured: {reason}" for reason in job.missing]
    below = [*sentences, *missing, *doubts(job.run.records), f"ceilings: {job.kept.path}"]

    def draw(console: Console) -> None:
        for line in header_lines(environment):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        console.print("" if found else "\nno ceiling was measured", markup=False, highlight=False)
        if found:
            print_grid(console, columns, [entry.config or "" for entry in found], "by")
        console.print("", markup=False)
        for line in below:
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    return drawn(draw)
