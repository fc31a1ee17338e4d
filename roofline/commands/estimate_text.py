"""Worked answers as text: steps in columns, one table for several machines, and what it all stands on."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from results.show.terminal import one_line
from roofline.accounting.answers.answer import Answer, duration, memory, number, size

WIDTH = 100


def answer_text(answer: Answer) -> str:
    """Return an answer for people."""
    is_table = len(answer.rows) > 1 or (answer.rows and not answer.worked)
    lines = [answer.title, ""]
    for warning in answer.warnings:
        lines += _paragraph("! ", warning)
    lines += [""] * bool(answer.warnings)
    if is_table:
        header = [title for _, title in answer.columns]
        cells = [[_cell(key, row.get(key)) for key, _ in answer.columns] for row in answer.rows]
        lines += [*columns_text([header, *cells], left=1), ""]
    if answer.steps:
        if answer.worked:
            lines.append(f"Worked for {answer.worked}:")
        lines += [*columns_text([[step.label, step.arithmetic, "=", step.result] for step in answer.steps], left=2), ""]
    lines += _paragraph("formula: ", answer.formula)
    lines += _paragraph("source: ", answer.source)
    for note in answer.assumptions:
        lines += _paragraph("- ", note)
    return "".join(f"{line}\n" for line in lines)


def columns_text(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return rows in columns two spaces apart, the first `left` to the left and the others to the right."""
    shown = [[one_line(cell, 200) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]


def _paragraph(opening: str, text: str) -> list[str]:
    return textwrap.wrap(
        one_line(text, 2000),
        WIDTH,
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
