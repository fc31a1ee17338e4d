"""Worked answers as text: steps in columns, one table for several machines, and what it all stands on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from results.show.grid import Column, print_grid
from results.show.terminal import one_line
from roofline.accounting.answers.answer import Answer, duration, memory, number, size

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100
"""Of paragraphs, where the terminal is not narrower."""
LONGEST_CELL = 200


def print_answer(console: Console, answer: Answer) -> None:
    """Print an answer for people."""
    width = min(console.width, WIDTH)
    _print_lines(console, answer.title, "")
    for warning in answer.warnings:
        _print_lines(console, *_paragraph("! ", warning, width))
    if answer.warnings:
        _print_lines(console, "")
    if len(answer.rows) > 1 or (answer.rows and not answer.worked):
        columns = [
            Column(
                title,
                [one_line(_cell(key, row.get(key)), LONGEST_CELL) for row in answer.rows],
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
        labels, arithmetic, results = zip(
            *([one_line(text, LONGEST_CELL) for text in step] for step in answer.steps), strict=True
        )
        signs = Column("=", ["="] * len(labels), "right")
        worked = Column("arithmetic", arithmetic, goes_below=1)
        print_grid(console, [Column("step", labels), worked, signs, Column("result", results, "right")])
        _print_lines(console, "")
    for opening, text in (
        ("formula: ", answer.formula),
        ("source: ", answer.source),
        *(("- ", note) for note in answer.assumptions),
    ):
        _print_lines(console, *_paragraph(opening, text, width))


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


def _cell(key: str, value: Any) -> str:
    """Return a value of a row in the unit that fits its key."""
    if value is None:
        return "never" if key == "critical_batch" else "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if key in ("mfu", "used"):
        return f"{100 * value:.1f} %"
    if key == "memory_bytes":
        return memory(value)
    if key == "bytes" or key.endswith("_bytes"):
        return size(value)
    if key.endswith("seconds"):
        return duration(value)
    if key == "value":  # rounding shows in the fifth digit
        return number(value, 5)
    return number(value)
