"""Every table of the project: on a terminal as it has room, and as JSON, CSV or Markdown.

On a terminal a table is columns, which hold the texts of their cells, and notes, each of which belongs to a row:

    print_grid(console, [Column("op", ops), Column("median", times, "right", leaves=1)], flags, "flags")

If there is no room for all of it, notes stand on the line below their row; columns with `heads` become one line above
the rows that share their cells; then columns with `leaves` leave, named on one line, and those with `goes_below` join
the notes, all in the order of these numbers. No cell is ever cut. In a pipe or a file each row is one line with all
columns and its note, so that it can be cut and searched. The cells are aligned here: `rich.Table` takes ten times as
long for tables of thousands of rows.

Text may come from a file of unknown origin: what a terminal could take for a command is shown as its escape.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from results.show.terminal import WIDE, drawn, printable

if TYPE_CHECKING:
    from rich.console import Console

GAP = "  "
INDENT = "    "
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
NOTHING = ("", "-")
"""Cells that are not worth a line below their row."""


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    title: str
    cells: Sequence[str]
    side: Literal["left", "right"] = "left"
    leaves: int = 0
    """Its turn to leave if there is no room, 1 first; 0: it never leaves."""
    goes_below: int = 0
    """Its turn, among those that leave, to join the notes below the rows; 0: it never does."""
    heads: bool = False
    """If there is no room, its cells stand once above the rows that share them."""
    styles: Sequence[str] = ()
    """Rich style of each cell; it never says more than the text does."""

    @cached_property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, (self.title, *self.cells)))


def print_grid(
    console: Console,
    columns: Iterable[Column],
    notes: Sequence[str] = (),
    notes_title: str = "note",
    hint: str = "--format csv has all",
) -> None:
    """Print a table as the console has room for it; one as wide as `terminal.WIDE` is a pipe or a file.

    There is a note for each row, empty if there is nothing to say, or none at all. `hint` says where the columns are
    that left.
    """
    is_terminal = console.width < WIDE
    shown = [_printable(column) for column in columns]
    below = [printable(note) for note in notes] if any(notes) else []
    beside = [*shown, Column(notes_title, below)] if below else shown
    left: list[str] = []
    headings: list[str] = []
    if not is_terminal or width_of(beside) <= console.width:
        shown, below = beside, []
    else:
        shown, headings = _with_headings(shown)
        shown, below, left = _fitting(shown, below, console.width)
    _print_rows(console, shown, headings, below)
    if left:
        print_lines(console, f"the terminal is too narrow for: {', '.join(left)} ({hint})", style="dim")


def rows_of(columns: Sequence[Column]) -> list[dict[str, str]]:
    titles = [column.title for column in columns]
    return [dict(zip(titles, cells, strict=True)) for cells in zip(*(column.cells for column in columns), strict=True)]


def width_of(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def _printable(column: Column) -> Column:
    return replace(column, title=printable(column.title), cells=[printable(cell) for cell in column.cells])


def _with_headings(columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """Return the columns that stay, and for each row the heading above it, empty if it is that of the row before.

    Rows that share no heading keep their cells: a line more for each row would tell less.
    """
    keys = [" ".join(cells) for cells in zip(*(column.cells for column in columns if column.heads), strict=True)]
    headings = [key if row == 0 or key != keys[row - 1] else "" for row, key in enumerate(keys)]
    if 2 * sum(map(bool, headings)) > max(len(headings), 2):
        return list(columns), []
    return [column for column in columns if not column.heads or not keys], headings


def _fitting(columns: Sequence[Column], notes: Sequence[str], width: int) -> tuple[list[Column], list[str], list[str]]:
    staying = list(columns)
    turns = [column for column in columns if column.leaves or column.goes_below]
    for column in sorted(turns, key=lambda column: column.leaves or column.goes_below):
        if width_of(staying) > width:
            staying.remove(column)
    going = [(column.title, column) for column in columns if column not in staying]
    texts = []
    for row, note in enumerate(notes or [""] * len(columns[0].cells)):
        cells = [(title, column.cells[row]) for title, column in going if not column.leaves]
        words = [f"{title} {cell}" for title, cell in cells if cell not in NOTHING]
        texts.append("; ".join([*words, note] if note else words))
    return staying, texts, [title for title, column in going if column.leaves]


def _print_rows(console: Console, columns: Sequence[Column], headings: Sequence[str], notes: Sequence[str]) -> None:
    from rich.text import Text

    lines = [Text(GAP.join(_padded(column.title, column) for column in columns).rstrip(), "bold")]
    if console.width < WIDE:
        lines.append(Text("─" * width_of(columns)))
    for row in range(len(columns[0].cells)):
        if headings and headings[row]:
            lines.append(Text(headings[row], "bold"))
        text = Text(GAP.join(_padded(column.cells[row], column) for column in columns).rstrip())
        start = 0
        for column in columns:
            if column.styles:
                text.stylize(column.styles[row], start, start + column.width)
            start += column.width + len(GAP)
        lines.append(text)
        below = textwrap.wrap(notes[row], console.width - len(INDENT), **WHOLE_WORDS) if notes else ()
        lines += [Text(INDENT + line, "dim") for line in below]
    # All at once: a call takes a tenth of a millisecond, and a table may have thousands of rows.
    console.print(Text("\n").join(lines), soft_wrap=True)


def _padded(cell: str, column: Column) -> str:
    from rich.cells import cell_len

    space = " " * (column.width - cell_len(cell))
    return space + cell if column.side == "right" else cell + space


def print_lines(console: Console, *lines: str, style: str = "", indent: str = "") -> None:
    """Print lines, wrapped at words on a terminal; `indent` stands before what is wrapped."""
    width = console.width if console.width < WIDE else sys.maxsize
    for line in "\n".join(lines).split("\n") if lines else ():
        for part in textwrap.wrap(line, width, subsequent_indent=indent, **WHOLE_WORDS) or [""]:
            console.print(part, style=style, markup=False, highlight=False, soft_wrap=True)


# ---- the formats -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a command prints, in each format that there is; only what a format shows is computed."""

    rows: Callable[[], Sequence[Mapping[str, Any]]]
    """Returns rows of plain values for programs, all with the same keys."""
    columns: Iterable[str] = ()
    """The header if there is no row."""
    shown: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Returns the rows with the columns and texts for people; None: as `rows`."""
    titles: Iterable[str] = ()
    """Their header if there is no row."""
    document: Callable[[], Any] | None = None
    """Returns what JSON holds; None: the rows."""
    draw: Callable[[Console], object] | None = None
    """Prints the table on a terminal."""
    head: str = ""
    """What stands above the table in Markdown, with an empty line at its end; escaped as `escaped` does."""
    notes: str = ""
    """What stands below it there."""

    def render(self, form: str) -> str:
        """Return the table in one of `TABLE_FORMATS`, with a newline at the end."""
        if form == "table":
            return drawn(self.draw) if self.draw else ""
        if form == "json":
            return json_text((self.document or self.rows)())
        if form == "csv":
            return csv_text(self.rows(), self.columns)
        rows, columns = (self.shown, self.titles) if self.shown else (self.rows, self.columns)
        return f"{self.head}{markdown_text(rows(), columns)}{self.notes}"


def json_text(value: Any) -> str:
    """Return a value as indented JSON in ASCII, which every terminal and every reader takes."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Return rows as CSV; an empty cell is a value that is not known. `columns` is the header if there is no row."""
    names = list(rows[0] if rows else columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(printable, names))
    writer.writerows([_cell(row[name]) for name in names] for row in rows)
    return text.getvalue()


def markdown_text(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> str:
    """Return rows as a Markdown table; a column without any value is left out. Arguments as of `csv_text`."""
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)] if rows else list(columns)
    lines = [names, ["---"] * len(names)]
    for row in rows:
        values = [row[name] for name in names]
        lines.append([f"{value:.6g}" if isinstance(value, float) else _cell(value) for value in values])
    return "".join(f"| {' | '.join(map(escaped, line))} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else printable(value)


def escaped(text: str) -> str:
    """Return a text that stays within its cell of a Markdown table."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
