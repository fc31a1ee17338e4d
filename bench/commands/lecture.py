"""`python -m bench lecture`: the statements of lecture notes, corrected, with what this machine
measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bench.harness.cli.arguments import EXIT_CODES, UsageError
from bench.harness.op import Families
from bench.harness.settings import Argv, Settings
from results.show.grid import Cell, Row, Table, print_cells, print_lines
from results.show.options import OUTPUT, Parameter, add, given, number, parameters, path
from results.show.table import describe
from results.show.terminal import OK, Parser, say
from results.show.units import count, duration, percent, quantity
from results.show.units import number as number_text
from roofline.commands.notes import SECTIONS, load_notes, print_by_subject, verdict_counts

if TYPE_CHECKING:
    from rich.console import Console

DESCRIPTION = """\
Check the statements of five study notes on CS336 lecture 2, in the order of the lecture: what the
notes say, the correct value, the value measured on this machine, and the commands that give both.
The measured rows are saved as one run.

Sections: {sections}."""

EPILOG = f"""\
{EXIT_CODES}

examples:
  python -m bench lecture -o lecture.html       # about two minutes on two cores
  python -m bench lecture --quick               # smaller sizes and fewer samples
  python -m bench lecture --section 3           # arithmetic intensity and the roofline"""

BUDGET_S = {False: 160.0, True: 32.0}
"""Default budget by `--quick`."""

COLUMNS = {
    "statement": 0,
    "notes": 3,
    "right": 4,
    "verdict": 0,
    "measured here": 2,
    "command": 1,
}
"""Columns of the table, with the turn in which each leaves a narrow terminal; 0: never."""

ASYNCHRONOUS = (
    "Without synchronizing, a timer reads the time to launch a kernel, here of an operation on one "
    "element, not the time of the kernel."
)
SYNCHRONOUS = (
    "Nothing is asynchronous on a CPU: a call returns when its result is finished. On a GPU, a "
    "timer that does not synchronize would read only the caller's overhead."
)


@dataclass(frozen=True)
class Options:
    """The sections of the lecture, and where to write them."""

    section: Annotated[
        list[int] | None,
        f"sections, 1 to {len(SECTIONS)} (default: all)",
        number(1, len(SECTIONS), f"an integer from 1 to {len(SECTIONS)}", int),
    ] = None
    quick: Annotated[bool, "smaller sizes and fewer samples", bool, ""] = False
    page: Annotated[
        Path | str | None, Parameter("HTML page", path, OUTPUT, "PATH", flags=("-o", "--output"))
    ] = None


def add_options(parser: Parser) -> None:
    sections = ", ".join(f"{index} {name}" for index, name in enumerate(SECTIONS, 1))
    parser.description = DESCRIPTION.format(sections=sections)
    add(parser, parameters(Options))
    add(
        parser,
        parameters(Settings),
        ("device", "threads", "gpu", "seed", "format", "budget_s", "no_save", "quiet"),
        budget_s=f"time limit for measuring the rows (default: {BUDGET_S[False]:g}, with --quick "
        f"{BUDGET_S[True]:g})",
    )


def run(args: argparse.Namespace, families: Families, argv: Argv) -> int:
    from bench.harness.cli import main

    options = given(Options, args)
    settings = given(Settings, args)
    if options.page is not None:
        _check_page(options.page)
    main.check_places(settings)
    device = main.device_of(settings)
    from bench.harness.run import Run, print_path
    from bench.lecture import measured

    chosen = [SECTIONS[index - 1] for index in options.section or range(1, len(SECTIONS) + 1)]
    notes = load_notes()
    claims = [claim for claim in notes["claims"] if claim["subject"] in chosen]
    names = measured.needed([claim["claim"] for claim in claims], options.quick)
    kind = "gpu" if device.is_gpu else "cpu"
    sizes = measured.SIZES[kind] | (measured.QUICK[kind] if options.quick else {})
    settings = replace(
        settings,
        budget_s=settings.budget_s or BUDGET_S[options.quick],
        no_save=settings.no_save or not names,
    )
    lecture = Run(settings, "bench", "lecture", device, argv)
    found = measured.measure(lecture, names, sizes)
    environment = lecture.environment
    rows = [measured.statement(claim, found, sizes) for claim in claims]
    trap = measured.synchronize_trap(lecture, found["matmul"]) if "matmul" in found else []
    note = ASYNCHRONOUS if device.is_gpu else SYNCHRONOUS

    def draw(console: Console) -> None:
        shown = [row | {"measured here": figure_text(row)} for row in rows]
        print_by_subject(console, shown, "section", COLUMNS, "statement")
        if trap:
            print_cells(
                console,
                [
                    {
                        "one matmul, timed": Cell(timing),
                        "time": Cell(time),
                        "MFU that it implies": Cell(mfu),
                    }
                    for timing, time, mfu in trap_texts(trap)
                ],
            )
            print_lines(console, note, "")
        print_lines(console, summary(rows))

    table = Table(
        rows=lambda: rows,
        document=lambda: {
            "environment": environment.to_dict(),
            "rows": rows,
            "synchronize": {"rows": trap, "note": note},
        },
        draw=draw,
    )
    lecture.show(table)
    for record in lecture.records:
        if record.status != "ok":  # its statements have no figure
            say(describe(record)[0])
    if isinstance(options.page, Path):
        from bench.lecture.page import write_page

        texts = {
            "summary": summary(rows),
            "titles": notes["notes"],
            "trap": trap_texts(trap),
            "note": note,
        }
        shown = [row | {"figure": figure_text(row)} for row in rows]
        write_page(options.page, environment, lecture.records, shown, **texts)
        print_path("page", options.page, settings.format)
    return lecture.exit_code() if names else OK


def _check_page(page: Path | str) -> None:
    from bench.harness.cli.main import check_output
    from roofline.picture.page import check_extra

    check_extra(("jinja2",))
    if isinstance(page, str) or page.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--output {page}: expected a path that ends with .html")
    check_output(page, replaces=True)


def figure_text(row: Row) -> str:
    """Return the figure of a row with its unit, and `*` if a measurement is flagged."""
    value = row["measured"]
    unit = row["unit"]
    if value is None:
        return "-"
    text = str(value)
    if unit == "%" and not isinstance(value, bool | str):
        text = percent(value, 100)
    elif unit in ("FLOP/s", "B/s"):
        text = quantity(value, unit)
    elif not isinstance(value, bool | str):
        shown = count(value) if unit or value == int(value) else number_text(value, 5)
        text = f"{shown} {unit}".rstrip()
    return f"{text} *" if row["flags"] else text


def trap_texts(trap: Sequence[Row]) -> list[tuple[str, str, str]]:
    marks = {True: "", False: ", impossible"}
    return [
        (
            row["timing"],
            duration(row["seconds"]),
            percent(row["mfu"]) + marks[row["possible"]],
        )
        for row in trap
    ]


def summary(rows: Sequence[Row]) -> str:
    measured = sum(row["measured"] is not None for row in rows)
    flags = ", ".join(dict.fromkeys(chain.from_iterable(row["flags"] for row in rows)))
    marked = f"; *: a measurement is flagged {flags}" if flags else ""
    return f"{len(rows)} statements: {verdict_counts(rows)}; {measured} measured here{marked}."
