"""`python -m bench calibrate`: measures the ceilings of this machine and saves them for every other
command.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bench.harness.cli.arguments import chosen
from bench.harness.op import Families, Op
from bench.harness.settings import SAVING, Argv, Settings
from results.show.grid import Cell, Cells, Table, drop_silent, flat, print_cells, print_lines
from results.show.options import Names, add, given, parameters
from results.show.terminal import INTERRUPTED, Parser, printable
from results.show.units import ABSENT, quantity
from roofline.work import dtype_named

if TYPE_CHECKING:
    from rich.console import Console

    from bench.harness.calibrate.setup import Part, Setup
    from bench.harness.run import Run
    from results.record import Object, Record
    from roofline.machine import Ceiling

DESCRIPTION = """\
Measure the ceilings of this machine and save them for the other bench commands.

Measured: the bandwidth of four mixes of reads and writes, the fastest matmul of each data
type, fused multiply-adds (GPU only), the shortest launch, and in under a second the bandwidth
of the last level of cache. On a GPU, clock and power are recorded.

Rows on a CPU are compared with these ceilings. Rows on a GPU in the GPU table are compared
with its datasheet, and the measured ceilings are shown too. The ceilings are valid until
the device, its driver, torch, triton, the power limit or the number of threads changes."""

EPILOG = """\
exit codes: 0 ok; 1 nothing could be measured; 2 usage, or records could not be saved; 3 no such device;
            130 interrupted, finished ceilings are saved

examples:
  python -m bench calibrate                        # under two minutes on a CPU, five on a GPU
  python -m bench calibrate --quick --dtype bf16   # under half a minute on a CPU, one on a GPU"""  # noqa: E501

ALWAYS = ("ceiling", "of", "95% CI", "by")
"""Columns that are shown even if all their cells are equal."""

DTYPES = {
    ("cpu", False): ("bf16", "fp32"),
    ("cpu", True): ("bf16", "fp32"),
    ("gpu", False): ("bf16", "fp16", "tf32", "fp32", "fp8e4m3", "int8", "fp64"),
    ("gpu", True): ("bf16", "fp32", "fp8e4m3"),
}
"""Default dtypes by device and `--quick`, most used first."""


@dataclass(frozen=True)
class Options:
    """The ceilings to measure."""

    quick: Annotated[
        bool, "take a third of the time, with wider intervals and without FMAs", bool, ""
    ] = False
    dtype: Annotated[
        Names,
        "data types of matmuls and FMAs (default: bf16,fp32 on a CPU; all supported ones on a GPU)",
        dtype_named,
    ] = None


def add_options(parser: Parser) -> None:
    add(parser, parameters(Options))
    add(
        parser,
        parameters(Settings),
        ("device", "threads", *SAVING),
        verbose="print each ceiling when it is measured",
    )


def run(args: argparse.Namespace, families: Families, argv: Argv) -> int:
    from bench.harness.calibrate.calibration import (
        MeasuredCeilings,
        merged,
        peak_sentences,
    )
    from bench.harness.calibrate.setup import FULL, QUICK, Setup, measure_all
    from bench.harness.cli import main
    from bench.harness.run import Run
    from results.store.runfile import runs_directory

    options = given(Options, args)
    settings = given(Settings, args)
    matmul = families["matmul"][0]
    chosen("dtype", options.dtype, matmul.dtypes, ())
    main.check_places(settings)
    device = main.device_of(settings)
    effort = QUICK if options.quick else FULL
    run = Run(settings, "bench", "calibrate", device, argv, effort._asdict())
    progress = run.progress
    setup = Setup(device, effort)
    saved = MeasuredCeilings(device, runs_directory(), progress.note, progress.say)
    new = []
    rejected = []
    with run:
        run.start(None)
        parts = planned(options, setup, matmul)
        progress.expect(len(parts))
        with saved.alone():
            run.ceilings = run.ceilings.with_entries(saved.load())
            for measured in measure_all(parts, setup, progress.say):
                for ceiling, record in measured:
                    new.append(ceiling)
                    run.ceilings = merged(run.ceilings, [ceiling])
                    saved.save(run.ceilings)
                    run.keep(record)
                    value = quantity(ceiling.value, ceiling.unit)
                    if ceiling not in run.ceilings.entries:
                        rejected.append(
                            f"{ceiling.title}: {value} may be too low; the earlier value is kept"
                        )
                    if settings.verbose:
                        progress.note(
                            f"{ceiling.quantity} {ceiling.name}: {value}, {ceiling.config}"
                        )
                progress.advance()
    dtypes = dict.fromkeys(ceiling.name for ceiling in new if ceiling.unit == "FLOP/s")
    notes = {
        "decomposition": peak_sentences(run.ceilings, dtypes),
        "not_measured": setup.missing,
        "doubts": [*rejected, *doubts(run.records)],
    }
    show(run, new, notes, saved.path)
    if run.is_interrupted:
        return INTERRUPTED
    return 0 if new else 1


def show(
    run: Run, ceilings: Sequence[Ceiling], notes: Mapping[str, Sequence[str]], path: Path
) -> None:
    from bench.harness.run import print_path
    from roofline.picture.figure import plot_run

    settings = run.settings
    run.show(table_of(run, ceilings, notes))
    print_path("ceilings", path, settings.format)
    if settings.plot is not None:
        plot_run(
            run.environment,
            [record for record in run.records if record.op == "calibrate-matmul"],
            settings.plot,
        )
        print_path("plot", settings.plot, settings.format)
    run.raise_if_unsaved()


def planned(options: Options, setup: Setup, matmul: Op) -> list[tuple[str, Part]]:
    from bench.harness.calibrate import calibration, peaks
    from bench.harness.measure.rows import has_dtype

    device = setup.device
    wanted = options.dtype or DTYPES["gpu" if device.is_gpu else "cpu", options.quick]
    dtypes = [d for d in dict.fromkeys(wanted) if d in matmul.dtypes and has_dtype(device, d)]
    setup.missing += [
        f"{d}: not supported by {device.name}" for d in options.dtype or () if d not in dtypes
    ]
    has_fmas = device.is_gpu and not options.quick  # no row is compared with them
    fmas = [d for d in dtypes if has_fmas and d in peaks.FMA_DTYPES]
    return calibration.parts_of(True, calibration.MIXES, dtypes, fmas, not device.cache_is_assumed)


def table_of(run: Run, ceilings: Sequence[Ceiling], notes: Mapping[str, Sequence[str]]) -> Table:
    from results.show.rows import document

    def content() -> Object:
        entries = [asdict(entry) | {"unit": entry.unit} for entry in ceilings]
        return document(run.environment, run.records) | {"ceilings": entries, **notes}

    def draw(console: Console) -> None:
        from results.show.table import print_header

        print_header(run.environment, (), console)
        print_lines(console, "" if ceilings else "\nno ceiling was measured")
        if ceilings:
            rows = list(map(cells_of, ceilings))
            drop_silent(rows, ALWAYS)
            print_cells(console, rows, "by")
        missing = [f"not measured: {reason}" for reason in notes["not_measured"]]
        print_lines(
            console, "", *map(printable, (*notes["decomposition"], *missing, *notes["doubts"]))
        )

    return Table(rows=lambda: list(map(row_of, ceilings)), document=content, draw=draw)


def cells_of(ceiling: Ceiling) -> Cells:
    clock_hz = ceiling.sm_clock_hz
    power_w = ceiling.power_w
    per_j = ceiling.flops_per_j
    return {
        "ceiling": Cell(ceiling.quantity),
        "of": Cell(ceiling.name),
        "value": Cell(quantity(ceiling.value, ceiling.unit), "right"),
        "95% CI": Cell(interval_text(ceiling), leaves=4),
        "SM clock": Cell(f"{clock_hz / 1e6:.0f} MHz" if clock_hz else ABSENT, "right", 1),
        "power": Cell(f"{power_w:.0f} W" if power_w else ABSENT, "right", 2),
        "per J": Cell(f"{per_j / 1e12:.3g} TFLOP/J" if per_j else ABSENT, "right", 3),
        "by": Cell(ceiling.config or ""),
    }


def doubts(records: Sequence[Record]) -> list[str]:
    """Return a line for each record with flags: the ceiling may be too low."""
    lines = []
    for record in records:
        if record.flags:
            name = f"{record.op.removeprefix('calibrate-')} {record.dtype}"
            lines.append(f"{name}: may be too low: {', '.join(record.flags)}")
    return lines


def row_of(ceiling: Ceiling) -> Object:
    row = asdict(ceiling) | {"unit": ceiling.unit, "flops_per_j": ceiling.flops_per_j}
    del row["p5_p95"]
    return flat(row)


def interval_text(ceiling: Ceiling) -> str:
    """Return the interval; on a CPU it is that of the median, because the value is the fastest
    sample.
    """
    if ceiling.ci95 is None:
        return ABSENT
    low, high = ceiling.ci95
    text = f"{quantity(low, ceiling.unit)} to {quantity(high, ceiling.unit)}"
    return text if low <= ceiling.value <= high else f"{text} (median; the value is the fastest)"
