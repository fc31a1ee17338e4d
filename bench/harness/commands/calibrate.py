"""`python -m bench calibrate`: measures the ceilings of this machine and saves them for every other command."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import OUTPUT, add, chosen
from bench.harness.cli.terminal import Progress, print_path
from bench.harness.op import Op
from results.show.export import Table
from results.show.grid import Column, print_grid
from results.show.table import format_rate, format_time, header_lines
from results.show.terminal import INTERRUPTED, print_out, printable

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.calibrate.setup import Measured, Part, Setup
    from results.record import Environment, Record
    from results.store.runs import RunWriter
    from roofline.ceilings import Ceiling

DESCRIPTION = """\
Measure the ceilings of this machine, and save them for every other bench command.

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
    add(parser, "--dtype", help=words)
    add(parser, "--device", "--threads")
    group = parser.add_argument_group("what to do with it")
    add(group, *OUTPUT[:-1])
    add(group, "--verbose", help="say what each part found when it is done")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None) -> int:
    """Measure part by part, save each ceiling when it is finished, print all; return the exit code.

    Raises:
        StoreError: the records could not be saved; the ceilings have been shown.
    """
    from bench.harness.calibrate.calibration import MeasuredCeilings, merged, peak_sentences
    from bench.harness.calibrate.setup import FULL, QUICK, Setup
    from bench.harness.cli import main
    from bench.harness.run import Run
    from results.store.runs import runs_directory

    args.gpu = None
    chosen("dtype", args.dtype, families["matmul"][0].dtypes, ())
    main.check_places(args)
    device, effort = main.device_of(args), QUICK if args.quick else FULL
    run = Run(args, "bench", "calibrate", device, asdict(effort), argv)
    progress = run.progress
    setup = Setup(device, effort)
    kept = MeasuredCeilings(device, runs_directory(), progress.note, progress.say)
    found: list[Ceiling] = []
    with run:
        run.start(None)
        parts = planned(args, setup, families["matmul"][0])
        with kept.alone():
            run.ceilings = run.ceilings.with_entries(kept.load())
            for ceiling, record in measure_all(parts, setup, progress):
                found.append(ceiling)
                run.ceilings = merged(run.ceilings, [ceiling])
                kept.save(run.ceilings)
                run.keep(record)
                if args.verbose:
                    progress.note(f"{ceiling.quantity} {ceiling.name}: {value_text(ceiling)}, {ceiling.config}")
    assert run.environment is not None
    sentences = peak_sentences(run.ceilings, dict.fromkeys(c.name for c in found if c.quantity in ("flops", "fma")))
    environment = replace(run.environment, hardware=run.ceilings.to_dict())
    show(args, Calibration(environment, run.records, found, sentences, setup.missing, kept.path), run.writer)
    run.raise_if_unsaved()
    if run.is_interrupted:
        return INTERRUPTED
    return 0 if found else 1


def planned(args: argparse.Namespace, setup: Setup, matmul: Op) -> list[tuple[str, Part]]:
    """Return the parts to measure; a requested dtype that the device lacks is missing."""
    from bench.harness.calibrate import bandwidth, fma, parts
    from bench.harness.measure.rows import has_dtype

    device = setup.device
    wanted = args.dtype or parts.DTYPES["gpu" if device.is_gpu else "cpu", args.quick]
    dtypes = [d for d in dict.fromkeys(wanted) if d in matmul.dtypes and has_dtype(device, d)]
    setup.missing += [f"{d}: {device.name} has no such arithmetic" for d in args.dtype or () if d not in dtypes]
    return parts.parts_of(True, bandwidth.MIXES, dtypes, [d for d in dtypes if d in fma.dtypes_of(device)])


def measure_all(parts: Sequence[tuple[str, Part]], setup: Setup, progress: Progress) -> Iterator[Measured]:
    """Yield what each part measures; if one fails, the others are still measured."""
    from bench.harness.measure.errors import DEVICE_LOST, one_line
    from bench.harness.measure.measure_row import release

    progress.expect(len(parts))
    for name, part in parts:
        if not release(setup.device):
            setup.missing.append(f"{name}: {DEVICE_LOST}")
            continue
        progress.say(name)
        try:
            yield from part(setup)
        except Exception as error:  # compilers, drivers and libraries raise classes of their own
            setup.missing.append(f"{name}: {one_line(error)}")
        progress.advance()


# ---- what is printed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """A finished or interrupted calibration, as it is shown."""

    environment: Environment
    records: Sequence[Record]
    found: Sequence[Ceiling]
    sentences: Sequence[str]  # how the measured peaks of a GPU come about
    missing: Sequence[str]  # reasons why something was not measured
    path: Path  # of the ceilings


def show(args: argparse.Namespace, calibration: Calibration, writer: RunWriter | None) -> None:
    """Print the ceilings, plot them if requested, and name the files."""
    from roofline.plot.figure import plot_run

    print_out(text_of(args.format, calibration), f"; the ceilings are in {calibration.path}")
    if writer is not None:
        print_path("saved", writer.path, args.format)
    if args.plot is not None:
        matmuls = [record for record in calibration.records if record.op == "calibrate-matmul"]
        plot_run(calibration.environment, matmuls, args.plot)
        print_path("plot", args.plot, args.format)


def text_of(output_format: str, calibration: Calibration) -> str:
    """Return the ceilings in an output format; JSON holds the records too."""
    from results.show.rows import document

    def content() -> dict[str, Any]:
        return document(calibration.environment, calibration.records) | {
            "ceilings": [asdict(entry) | {"unit": entry.unit} for entry in calibration.found],
            "decomposition": calibration.sentences,
            "not_measured": calibration.missing,
            "doubts": doubts(calibration.records),
        }

    table = Table(
        rows=lambda: [row_of(entry) for entry in calibration.found],
        columns=COLUMNS,
        document=content,
        draw=lambda console: draw(calibration, console),
    )
    return table.render(output_format)


def draw(calibration: Calibration, console: Console) -> None:
    """Print the machine, a row for each ceiling, how the peaks come about, and what was not measured."""
    found = calibration.found
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
    for turn, (title, texts) in enumerate(facts.items(), 1):
        if set(texts) != {"-"}:
            columns.append(Column(title, texts, "right", leaves=turn))

    def print_lines(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    print_lines([*header_lines(calibration.environment), "" if found else "\nno ceiling was measured"])
    if found:
        print_grid(console, columns, [entry.config or "" for entry in found], "by")
    missing = [f"not measured: {reason}" for reason in calibration.missing]
    print_lines(["", *calibration.sentences, *missing, *doubts(calibration.records), f"ceilings: {calibration.path}"])


def doubts(records: Sequence[Record]) -> list[str]:
    """Return a line for each flag with the measurements that carry it: their ceilings may be too low."""
    names: dict[str, dict[str, None]] = {}
    for record in records:
        for flag in record.flags:
            names.setdefault(flag, {})[f"{record.op.removeprefix('calibrate-')} {record.dtype}"] = None
    return [f"{flag}, so these may read low: {', '.join(flagged)}" for flag, flagged in names.items()]


def row_of(ceiling: Ceiling) -> dict[str, Any]:
    """Return a ceiling as one row of plain values, SI base units."""
    low, high = ceiling.ci95 or (None, None)
    p5, p95 = ceiling.p5_p95 or (None, None)
    derived = {"unit": ceiling.unit, "flops_per_j": ceiling.flops_per_j}
    values = asdict(ceiling) | derived | {"ci95_low": low, "ci95_high": high, "p5": p5, "p95": p95}
    return {name: values[name] for name in COLUMNS}


def value_text(ceiling: Ceiling, value: float | None = None) -> str:
    """Return a ceiling's value, or another value of its quantity, with its unit."""
    shown = ceiling.value if value is None else value
    return format_time(shown) if ceiling.unit == "s" else format_rate(shown, ceiling.unit)


def interval_text(ceiling: Ceiling) -> str:
    """Return a ceiling's interval, and that it is the median's if the value is the fastest, as on a CPU."""
    text = " to ".join(value_text(ceiling, end) for end in ceiling.ci95 or () if end) or "-"
    holds_value = ceiling.ci95 is None or ceiling.ci95[0] <= ceiling.value <= ceiling.ci95[1]
    return text if holds_value else f"{text}, of the median; the value is the fastest"
