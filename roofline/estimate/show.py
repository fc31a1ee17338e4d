"""Worked answers as text: steps in columns, one table for several machines, and what it all stands on."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.show.grid import Column, print_grid
from results.show.terminal import one_line
from roofline.estimate.answer import Answer, Step, count, duration, memory, number, size

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Of paragraphs, where the terminal is not narrower."""
LONGEST_CELL = 200
LONGEST_BAR = 24
BAR = "█"
SMALL = 0.01
"""Share of the whole below which its parts are shown as one."""


def print_answer(console: Console, answer: Answer) -> None:
    """Print an answer for people."""
    width = min(console.width, WIDTH)
    _print_lines(console, answer.title, "")
    for warning in answer.warnings:
        _print_lines(console, *_paragraph("! ", warning, width))
    if answer.warnings:
        _print_lines(console, "")
    if main := answer.said():
        _print_lines(console, *_paragraph("=> ", ", ".join(main), width), "")
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        columns = [
            Column(
                title,
                [one_line(cell(key, row.get(key)), LONGEST_CELL) for row in answer.rows],
                "left" if place == 0 else "right",
                goes_below=max(0, place - 1),  # the later columns hold the result
            )
            for place, (key, title) in enumerate(answer.columns)
        ]
        print_grid(console, columns)
        _print_lines(console, "")
    if answer.steps:
        if answer.worked:
            _print_lines(console, f"Worked for {answer.worked}:")
        _print_steps(console, folded(answer))
    for opening, text in (
        ("formula: ", answer.formula),
        ("source: ", answer.source),
        *(("- ", note) for note in sorted(answer.assumptions, key=_is_boilerplate)),
    ):
        _print_lines(console, *_paragraph(opening, text, width))


def print_rows(console: Console, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Print some columns of rows for people."""
    cells = {key: [one_line(cell(key, row.get(key)), LONGEST_CELL) for row in rows] for key in keys}
    print_grid(console, [Column(key.replace("_", " "), texts, "right") for key, texts in cells.items()])


def _print_steps(console: Console, steps: Sequence[Step]) -> None:
    """Print steps, each with its arithmetic; in a terminal, beside the parts of a whole bars of their shares."""
    labels, arithmetic, results = zip(
        *([one_line(text, LONGEST_CELL) for text in step[:3]] for step in steps), strict=True
    )
    columns = [
        Column("step", labels),
        Column("arithmetic", arithmetic, goes_below=1),
        Column("=", ["="] * len(labels), "right"),
        Column("result", results, "right"),
    ]
    whole = sum(step.amount or 0 for step in steps)
    if whole and console.is_terminal:
        bars = [BAR * round(LONGEST_BAR * (step.amount or 0) / whole) for step in steps]
        columns.append(Column("share", bars, leaves=1))
    print_grid(console, columns)
    _print_lines(console, "")


def folded(answer: Answer) -> list[Step]:
    """Return the steps with the parts of a whole sorted by size, those below `SMALL` as one."""
    parts = sorted((step for step in answer.steps if step.amount is not None), key=lambda step: -(step.amount or 0))
    others = [step for step in answer.steps if step.amount is None]
    whole = sum(step.amount or 0 for step in parts)
    small = [step for step in parts if (step.amount or 0) < SMALL * whole]
    if len(small) > 1:
        amount = sum(step.amount or 0 for step in small)
        shown = size(amount) if answer.main and answer.main[0].endswith("_bytes") else count(amount)
        parts = [*parts[: -len(small)], Step(f"{len(small)} more", f"below {100 * SMALL:g} % each", shown, amount)]
    return [*parts, *others]


def _is_boilerplate(note: str) -> bool:
    """Return whether a note says the same of every answer, or what a configuration left out."""
    return note.startswith(("left out", "lower bounds", "'")) and "alone" not in note


def _print_lines(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _paragraph(opening: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        one_line(text, 2000),
        width,
        initial_indent=opening,
        subsequent_indent=" " * len(opening),
        break_long_words=False,
        break_on_hyphens=False,
    )


def cell(key: str, value: Any) -> str:
    """Return a value of a row in the unit that fits its key."""
    if value is None:
        return "never" if key == "critical_batch" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if key in ("mfu", "hfu", "used"):
        return f"{100 * value:.1f} %"
    if key == "memory_bytes":
        return memory(value)
    if key == "bytes" or key.endswith("_bytes"):
        return size(value)
    if key.endswith(("seconds", "_s")) and key not in ("tokens_per_s", "flops_per_s"):
        return duration(value)
    if key == "value":  # rounding shows in the fifth digit
        return number(value, 5)
    return number(value)
