"""What a notebook shows: what a command prints to a terminal, with its tables as tables of HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from results.show.terminal import WIDE

LINE = '<div style="white-space: pre-wrap; min-height: 0.6em">{}</div>'
NOTE = '<tr><td colspan="{}" style="text-align: left; opacity: 0.7; padding-left: 2em">{}</td></tr>'


class HtmlPage:
    """Takes the place of a console: lines and tables are added to a page."""

    width, is_terminal = WIDE, False

    def __init__(self) -> None:
        self._parts: list[str] = []

    def print(self, *texts: object, sep: str = " ", **_: Any) -> None:
        """Add lines; what a console is told of styles and wrapping does not matter here."""
        self._parts += [LINE.format(escape(line)) for line in sep.join(map(str, texts)).split("\n")]

    def add_table(self, columns: Sequence[Any], notes: Sequence[str] = ()) -> None:
        """Add a table of `results.show.grid.Column`; the note of a row is below it."""
        # Numbers keep their unit beside them; lists of shapes wrap at commas, so that the other columns are in sight.
        wrapping = {"left": "", "right": "; white-space: nowrap"}
        cells = [f'<td style="text-align: {column.side}{wrapping[column.side]}">{{}}</td>' for column in columns]
        rows = []
        for index, values in enumerate(zip(*(column.cells for column in columns), strict=True)):
            row = "".join(
                cell.format(escape(value).replace(",", ",<wbr>")) for cell, value in zip(cells, values, strict=True)
            )
            note = escape(notes[index]) if notes else ""
            rows.append(f"<tr>{row}</tr>" + (NOTE.format(len(columns), note) if note else ""))
        head = "".join(f'<th style="text-align: {column.side}">{escape(column.title)}</th>' for column in columns)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>")

    @property
    def text(self) -> str:
        return "".join(self._parts)


def html_of(draw: Callable[[Any], object]) -> str:
    """Return as HTML what `draw` prints to a console."""
    page = HtmlPage()
    draw(page)
    return page.text
