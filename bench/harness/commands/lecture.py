"""`python -m bench lecture`: the statements of lecture notes, corrected, with what this machine
measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from bench.harness.cli.arguments import EXIT_CODES, UsageError, add, number, path
from bench.harness.op import Op
from results.show.grid import Column, Table, print_grid, print_lines
from results.show.terminal import OK, print_out
from results.show.units import count, format_percent, format_rate, format_share, format_time
from results.show.units import number as number_text
from roofline.commands.notes import SECTIONS, load_notes, verdict_counts

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from bench.harness.lecture.measured import Figure

DESCRIPTION = """\
The statements of five study notes on CS336 lecture 2 in the order of the lecture: what the notes
say, what is right, what this machine measures, and the commands that give both. The measured rows
are saved as one run.

Sections: {sections}."""

EPILOG = f"""\
{EXIT_CODES}

examples:
  python -m bench lecture -o lecture.html       # about two minutes on two cores
  python -m bench lecture --quick               # smaller sizes and fewer samples
  python -m bench lecture --section 3           # arithmetic intensity and the roofline"""

BUDGET_S = {False: 160.0, True: 32.0}
"""Default budget by `--quick`; on a CPU including calibration."""

ASYNCHRONOUS = (
    "Without synchronizing, a timer reads the time to launch a kernel, not the time of the kernel."
)
SYNCHRONOUS = (
    "Nothing is asynchronous on a CPU: a call returns when its result is finished. The caller's "
    "overhead is what a timer would read if it were, as on a GPU without synchronizing."
)


def add_parser(commands: Any) -> None:
    sections = ", ".join(f"{index} {name}" for index, name in enumerate(SECTIONS, 1))
    parser = commands.add_parser(
        "lecture", description=DESCRIPTION.format(sections=sections), epilog=EPILOG
    )
    last = len(SECTIONS)
    section = number(1, last, f"an integer from 1 to {last}", int)
    add(parser, "--section", const=section, help=f"sections, 1 to {last} (default: all)")
    parser.add_argument("--quick", action="store_true", help="smaller sizes and fewer samples")
    add(parser, "--device", "--threads", "--gpu", "--seed", "--format")
    defaults = f"{BUDGET_S[False]:g}, with --quick {BUDGET_S[True]:g}"
    add(
        parser,
        "--budget",
        help=f"time limit, on a CPU including the calibration (default: {defaults})",
    )
    parser.group("output").add_argument(
        "-o", "--output", dest="page", metavar="PATH", type=path, help="HTML page"
    )
    add(parser, "--no-save", "--quiet", "--verbose")
    parser.set_defaults(run=run, output=None, plot=None)


def run(
    args: argparse.Namespace, families: Mapping[str, tuple[Op, ...]], argv: Sequence[str] | None
) -> int:
    from bench.harness.cli import main

    if args.page is not None:
        _check_page(args.page)
    main.check_places(args)
    device = main.device_of(args)
    from bench.harness.lecture import measured
    from bench.harness.lecture.figures import FIGURES
    from bench.harness.run import Run, print_path

    chosen = [SECTIONS[index - 1] for index in args.section or range(1, len(SECTIONS) + 1)]
    notes = load_notes()
    claims = [claim for claim in notes["claims"] if claim["subject"] in chosen]
    args.budget = args.budget or BUDGET_S[args.quick]
    figures = {
        claim["claim"]: FIGURES[claim["claim"]] for claim in claims if claim["claim"] in FIGURES
    }
    plan = measured.Measurements(figures.values(), args, device)
    args.no_save = args.no_save or plan.is_empty
    lecture = Run(args, "bench", "lecture", device, plan.settings.to_dict(), argv)
    measurements = plan.measure(lecture)
    assert lecture.environment is not None
    environment = lecture.environment.to_dict()
    rows = [_row(claim, figures.get(claim["claim"]), measurements, plan.sizes) for claim in claims]
    trap = [] if lecture.is_interrupted else plan.synchronize_trap(lecture)
    note = ASYNCHRONOUS if device.is_gpu else SYNCHRONOUS
    table = Table(
        rows=lambda: rows,
        document=lambda: {
            "environment": environment,
            "rows": rows,
            "synchronize": {"rows": trap, "note": note},
        },
        draw=lambda console: _print_sections(console, rows, trap, note),
    )
    saved = lecture.saved_path()
    print_out(table.render(args.format), f"; the run is saved in {saved}" if saved else "")
    if saved:
        print_path("saved", saved, args.format)
    if args.page is not None:
        from bench.harness.lecture.page import write_page

        shown = [row | {"figure": figure_text(row)} for row in rows]
        texts = {
            "summary": summary(rows),
            "titles": notes["notes"],
            "trap": trap_texts(trap),
            "note": note,
        }
        write_page(args.page, lecture.environment, lecture.records, shown, **texts)
        print_path("page", args.page, args.format)
    lecture.raise_if_unsaved()
    return OK if plan.is_empty else lecture.exit_code()


def _check_page(page: Path | str) -> None:
    from bench.harness.cli.main import check_output
    from roofline.picture.page import check_extra

    check_extra(("jinja2",))
    if isinstance(page, str) or page.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--output {page}: expected a path that ends with .html")
    check_output(page, replaces=True)


def _row(
    claim: Mapping[str, Any],
    figure: Figure | None,
    measurements: Mapping[str, Any],
    sizes: Mapping[str, Any],
) -> dict[str, Any]:
    from bench.harness.lecture.measured import commands_of, rows_of, value_of

    commands = [claim["command"]] if "roofline" in claim["command"] else []
    commands += commands_of(figure, sizes) if figure else []
    named = (
        [measurements[name] for name in rows_of(figure) if name in measurements] if figure else []
    )
    return {
        "section": claim["subject"],
        "statement": claim["claim"],
        "notes": f"{claim['theirs']} ({claim['notes']})",
        "right": claim["ours"],
        "verdict": claim["verdict"],
        "source": claim["formula"],
        "measured": value_of(figure, measurements) if figure else None,
        "unit": claim["unit"],
        "flags": list(dict.fromkeys(chain.from_iterable(row.flags for row in named))),
        "command": "; ".join(commands),
        "remark": claim["remark"],
    }


def figure_text(row: Mapping[str, Any]) -> str:
    """Return the figure of a row with its unit, and `*` if a measurement is flagged."""
    value = row["measured"]
    unit = row["unit"]
    mark = " *" if row["flags"] else ""
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return f"{value}{mark}"
    if unit == "%":
        return f"{format_percent(value)}{mark}"
    if unit in ("FLOP/s", "B/s"):
        return f"{format_rate(value, unit)}{mark}"
    text = count(value) if unit or value == int(value) else number_text(value, 5)
    return f"{text} {unit}".rstrip() + mark


def trap_texts(trap: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    marks = {True: "", False: ", impossible"}
    return [
        (
            row["timing"],
            format_time(row["seconds"]),
            format_share(row["mfu"]) + marks[row["possible"]],
        )
        for row in trap
    ]


def _print_sections(
    console: Console,
    rows: Sequence[Mapping[str, Any]],
    trap: Sequence[Mapping[str, Any]],
    note: str,
) -> None:
    for section in dict.fromkeys(row["section"] for row in rows):
        own = [row for row in rows if row["section"] == section]
        columns = [
            Column(section, [row["statement"] for row in own]),
            Column("notes", [row["notes"] for row in own], goes_below=3),
            Column("right", [row["right"] for row in own], goes_below=4),
            Column("verdict", [row["verdict"] for row in own]),
            Column("measured here", [figure_text(row) for row in own], goes_below=2),
            Column("command", [row["command"] for row in own], goes_below=1),
        ]
        print_grid(console, columns, [row["remark"] for row in own], "remark")
        print_lines(console, "")
        if trap and section == SECTIONS[1]:
            titles = ("one matmul, timed", "time", "MFU that it implies")
            cells = zip(*trap_texts(trap), strict=True)
            print_grid(
                console, [Column(title, texts) for title, texts in zip(titles, cells, strict=True)]
            )
            print_lines(console, note, "")
    print_lines(console, summary(rows))


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    measured = sum(row["measured"] is not None for row in rows)
    flags = ", ".join(dict.fromkeys(chain.from_iterable(row["flags"] for row in rows)))
    marked = f"; *: a measurement is flagged {flags}" if flags else ""
    return f"{len(rows)} statements: {verdict_counts(rows)}; {measured} measured here{marked}."
