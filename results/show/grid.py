"""Lays out every table of the project for the width of the terminal that shows it.

A table is columns, which hold the texts of their cells, and notes, each of which belongs to a row:

    print_grid(console, [Column("op", ops), Column("median", times, "right", leaves=1)], flags, "flags")

On a terminal that has no room for all of it, notes stand on the line below their row; columns with `heads` become one
line above the rows that share their cells; columns with `leaves` leave as a whole, in that order, and one line names
those that left; columns with `goes_below` join the notes. No cell is ever cut. In a pipe or a file each row is one line
with all columns and its note, so that it can be cut and searched.

Text may come from a file of unknown origin: what a terminal could take for a command is shown as its escape.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from results.show.terminal import WIDE, printable

if TYPE_CHECKING:
    from rich.console import Console

GAP = "  "
INDENT = "    "
NOTHING = ("", "-")
"""Cells that are not worth a line below their row."""
ALL_COLUMNS = "--format csv has all"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    """A line break in it holds on a terminal only: a narrow column with a title of two words."""
    cells: Sequence[str]
    side: Literal["left", "right"] = "left"
    leaves: int = 0
    """Its turn to leave where there is no room, 1 first; 0: it never leaves."""
    goes_below: int = 0
    """Its turn to join the notes below the rows where there is still no room, 1 first; those of one turn go together;
    0: it never does."""
    heads: bool = False
    """Where there is no room, its cells stand once above the rows that share them."""
    styles: Sequence[str] = ()
    """Rich style of each cell; it never says more than the text does."""

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, (*self.title.split("\n"), *self.cells)))


def print_grid(
    console: Console,
    columns: Iterable[Column],
    notes: Sequence[str] = (),
    notes_title: str = "note",
    hint: str = ALL_COLUMNS,
) -> None:
    """Print a table as the console has room for it.

    Args:
        console: where to; as wide as `terminal.WIDE` it is a pipe or a file.
        columns: from left to right, with as many cells each.
        notes: one for each row, empty where there is nothing to say; or none at all.
        notes_title: of the column in which they stand where there is room.
        hint: says where the columns are that had none.
    """
    shown = [_printable(column, console.width < WIDE) for column in columns]
    below = [printable(note) for note in notes] if any(notes) else []
    headings: list[str] = []
    left_out: list[str] = []
    if console.width < WIDE and width_of(shown, below, notes_title) > console.width:
        shown, headings = _with_headings(shown)
    if console.width >= WIDE or width_of(shown, below, notes_title) <= console.width:
        shown, below = [*shown, *([Column(notes_title, below)] if below else [])], []
    else:
        shown, left_out = _fitting(shown, console.width)
        shown, below = _with_room(shown, below, console.width)
    _print_rows(console, shown, headings, below)
    if left_out:
        for line in _wrapped(f"the terminal is too narrow for: {', '.join(left_out)} ({hint})", console.width, ""):
            _print_line(console, line, "dim")


def _in_one_line(title: str) -> str:
    return title.replace("\n", " ")


def _printable(column: Column, is_terminal: bool) -> Column:
    title = "\n".join(map(printable, column.title.split("\n")))
    title = title if is_terminal else _in_one_line(title)
    return replace(column, title=title, cells=[printable(cell) for cell in column.cells])


def width_of(columns: Sequence[Column], notes: Sequence[str] = (), title: str = "") -> int:
    """Return the cells of the terminal that columns take side by side, notes with a title behind them if any."""
    shown = [*columns, Column(title, notes)] if notes else columns
    return sum(column.width for column in shown) + len(GAP) * (len(shown) - 1)


def _with_headings(columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """Return the columns that stay, and for each row the heading above it, empty where it is that of the row before.

    Rows that share no heading keep their cells: a line more for each row would tell less.
    """
    keys = list(zip(*(column.cells for column in columns if column.heads), strict=True))
    starts = [row == 0 or key != keys[row - 1] for row, key in enumerate(keys)]
    if 2 * sum(starts) > max(len(starts), 2):
        return list(columns), []
    headings = [" ".join(key) if is_start else "" for key, is_start in zip(keys, starts, strict=True)]
    return [column for column in columns if not column.heads], headings


def _fitting(columns: Sequence[Column], width: int) -> tuple[list[Column], list[str]]:
    """Return the columns that stay, and the titles of those that leave, from left to right."""
    staying = list(columns)
    for leaving in sorted((column for column in columns if column.leaves), key=lambda column: column.leaves):
        if width_of(staying) <= width:
            break
        staying.remove(leaving)
    return staying, [_in_one_line(column.title) for column in columns if column not in staying]


def _with_room(columns: Sequence[Column], notes: Sequence[str], width: int) -> tuple[list[Column], list[str]]:
    """Return the columns for which there is room, and the notes with the cells of those that had to go below."""
    staying = list(columns)
    for turn in sorted({column.goes_below for column in columns} - {0}):
        if width_of(staying) <= width:
            break
        staying = [column for column in staying if column.goes_below != turn]
    going = [column for column in columns if column not in staying]
    texts = []
    for row, note in enumerate(notes or [""] * len(columns[0].cells)):
        named = [
            f"{_in_one_line(column.title)} {column.cells[row]}" for column in going if column.cells[row] not in NOTHING
        ]
        texts.append("; ".join([*named, *([note] if note else [])]))
    return staying, texts


def _print_rows(console: Console, columns: Sequence[Column], headings: Sequence[str], notes: Sequence[str]) -> None:
    from rich.text import Text

    widths = [column.width for column in columns]
    titles = [column.title.split("\n") for column in columns]
    for place in range(-max(map(len, titles)), 0):  # the last line of each title stands above its cells
        words = [title[place] if len(title) >= -place else "" for title in titles]
        _print_line(console, _line(words, columns, widths), "bold")
    if console.width < WIDE:
        _print_line(console, "─" * width_of(columns))
    for row, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if headings and headings[row]:
            _print_line(console, headings[row], "bold")
        text = Text(_line(cells, columns, widths))
        start = 0
        for column, width in zip(columns, widths, strict=True):
            if column.styles:
                text.stylize(column.styles[row], start, start + width)
            start += width + len(GAP)
        console.print(text, soft_wrap=True)
        for line in _wrapped(notes[row], console.width) if notes else ():
            _print_line(console, line, "dim")


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    from rich.cells import cell_len

    parts = []
    for cell, column, width in zip(cells, columns, widths, strict=True):
        space = " " * (width - cell_len(cell))
        parts.append(space + cell if column.side == "right" else cell + space)
    return GAP.join(parts).rstrip()


def _wrapped(text: str, width: int, indent: str = INDENT) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
