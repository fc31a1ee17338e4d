"""Tables on a terminal and in a notebook, and as JSON, CSV or Markdown.

    rows = [{"op": Cell("gelu"), "median": Cell("12.3 us", "right", leaves=1), "flags": Cell("")}]
    print_cells(console, rows, "flags")

prints a column for each title, and the flags as the notes of the rows; `print_grid` takes columns.
On a narrow terminal, notes move below their rows, and columns with `leaves` join them in the order
of these numbers, until the others fit; some tables have headings there, and omit numbers. No cell
is cut. In a pipe or a file, each row is one line with all columns and its note. Cells are aligned
here: `rich.Table` takes ten times as long for thousands of rows.

Text from a file may contain control sequences, which are escaped.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from results.show.terminal import WIDE, drawn, printable
from results.show.units import ABSENT

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]
"""A row of plain values by key."""

GAP = "  "
INDENT = "    "
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
NOTHING = ("", "-")
"""Cells that are omitted from the notes."""
SILENT = {*NOTHING, "0", "0%"}
"""Cells of a column that says nothing."""
NEW_LINE = ("\n", "")
"""End of a line, with its style."""
LINE = '<div style="white-space: pre-wrap; min-height: 0.6em">{}</div>'


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    title: str
    cells: Sequence[str]
    side: Literal["left", "right"] = "left"
    leaves: int = 0
    """Order in which columns move below the rows on a narrow terminal, 1 first; 0: never."""
    styles: Sequence[str] = ()
    """Rich style of each cell; it adds no information to the text."""

    @cached_property
    def padded(self) -> list[str]:
        from rich.cells import cell_len

        texts = [self.title, *self.cells]
        widths = list(map(cell_len, texts))
        widest = max(widths)
        padded = []
        for text, width in zip(texts, widths, strict=True):
            spaces = " " * (widest - width)
            padded.append(spaces + text if self.side == "right" else text + spaces)
        return padded


class Cell(NamedTuple):
    """A cell of a row, with the layout of its column; the fields are those of `Column`."""

    text: str
    side: Literal["left", "right"] = "left"
    leaves: int = 0
    style: str = ""


NO_CELL = Cell(ABSENT)

Cells = dict[str, Cell]
"""Cells of a row by title."""


def columns_of(rows: Sequence[Cells]) -> list[Column]:
    """Return the columns of rows, which have their cells by title; `-` if a row lacks one.

    A title that earlier rows lack follows the one that precedes it in its row.
    """
    layouts = {}
    titles: list[str] = []
    for row in rows:
        place = 0
        for title, cell in row.items():
            if title not in layouts:
                layouts[title] = cell
                titles.insert(place, title)
            place = titles.index(title) + 1
    columns = []
    for title in titles:
        cells = [row.get(title, NO_CELL) for row in rows]
        texts = [cell.text for cell in cells]
        styles = [cell.style for cell in cells]
        layout = layouts[title]
        columns.append(Column(title, texts, layout.side, layout.leaves, styles))
    return columns


class HtmlPage:
    """Takes the place of a console in a notebook: lines and tables are added to a page of HTML."""

    width = WIDE
    is_terminal = False

    def __init__(self) -> None:
        self._parts: list[str] = []

    def print(self, *texts: object, sep: str = " ", **_: Any) -> None:
        """Add lines; what a console is told of styles and wrapping does not matter here."""
        self._parts += [LINE.format(escape(line)) for line in sep.join(map(str, texts)).split("\n")]

    def add_table(self, columns: Sequence[Column], notes: Sequence[str], title: str) -> None:
        """Add a table; the notes of its rows are the last column."""
        shown = [*columns, Column(title, notes)] if notes else columns
        lines = []
        for cells in zip(*([column.title, *column.cells] for column in shown), strict=True):
            lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
        lines[0] = lines[0].replace("td>", "th>")
        self._parts.append(f"<table><tr>{'</tr><tr>'.join(lines)}</tr></table>")

    @property
    def text(self) -> str:
        return "".join(self._parts)


def html_of(draw: Callable[[Any], object]) -> str:
    """Return as HTML what `draw` prints to a console."""
    page = HtmlPage()
    draw(page)
    return page.text


def print_cells(
    console: Console,
    rows: Sequence[Cells],
    notes_title: str = "",
    heads: Sequence[str] = (),
    hint: str = "",
) -> None:
    """Print rows as `print_grid` does; the cells of one title are their notes."""
    columns = {column.title: column for column in columns_of(rows)}
    notes = columns.pop(notes_title).cells if notes_title else ()
    print_grid(console, columns.values(), notes, notes_title, heads, hint)


def print_grid(
    console: Console,
    columns: Iterable[Column],
    notes: Sequence[str] = (),
    notes_title: str = "note",
    heads: Sequence[str] = (),
    hint: str = "",
) -> None:
    """Print a table to fit the console; a pipe or a file is as wide as `terminal.WIDE`.

    `notes` has a text for each row, which may be empty, or none at all. On a narrow terminal, the
    cells of the titles in `heads` become headings of the rows that share them, and with a `hint`,
    which says where they are, numbers that do not fit are omitted.
    """
    shown = []
    for column in columns:
        cells = list(map(printable, column.cells))
        shown.append(replace(column, title=printable(column.title), cells=cells))
    below = list(map(printable, notes)) if any(notes) else []
    if isinstance(console, HtmlPage):
        console.add_table(shown, below, notes_title)
        return
    beside = [*shown, Column(notes_title, below)] if below else shown
    if console.width >= WIDE or width_of(beside) <= console.width:
        _print_rows(console, beside, [], [])
        return
    shown, headings = _with_headings(shown, heads)
    staying = list(shown)
    turns = [column for column in shown if column.leaves]
    for column in sorted(turns, key=attrgetter("leaves")):
        if width_of(staying) > console.width:
            staying.remove(column)
    leaving = [column for column in shown if column not in staying]
    omitted = [column for column in leaving if hint and column.side == "right"]
    moved = [column for column in leaving if column not in omitted]
    lines = []
    for row in range(len(headings)):
        named = [(column.title, column.cells[row]) for column in moved]
        words = [f"{title} {cell}" for title, cell in named if cell not in NOTHING]
        lines.append("; ".join(filter(None, [*words, below[row] if below else ""])))
    _print_rows(console, staying, headings, lines)
    if omitted:
        titles = ", ".join(column.title for column in omitted)
        print_lines(console, f"the terminal is too narrow for: {titles} ({hint})")


def drop_silent(rows: Sequence[Cells], always: Collection[str]) -> None:
    """Remove the columns that say nothing, but for those in `always`."""
    for column in columns_of(rows):
        texts = set(column.cells)
        is_silent = texts <= SILENT or (column.side == "left" and len(texts) == 1)
        if is_silent and column.title not in always:
            for row in rows:
                row.pop(column.title, None)


def texts_of(rows: Sequence[Cells]) -> list[dict[str, str]]:
    """Return the text of each cell by title, with all titles in each row; empty if it lacks one."""
    columns = columns_of(rows)
    texts = []
    for row in rows:
        texts.append({column.title: row.get(column.title, Cell("")).text for column in columns})
    return texts


def width_of(columns: Sequence[Column]) -> int:
    from rich.cells import cell_len

    return cell_len(GAP.join(column.padded[0] for column in columns))


def _with_headings(
    columns: Sequence[Column], heads: Sequence[str]
) -> tuple[list[Column], list[str]]:
    """Return the remaining columns, and the heading above each row, empty if the previous row has
    the same. Titles at the end of `heads` whose cells too few rows share keep their columns.
    """
    for count in range(len(heads), 0, -1):
        heading = [column for column in columns if column.title in heads[:count]]
        headings = []
        last = ""
        for cells in zip(*(column.cells for column in heading), strict=True):
            text = " ".join(cells)
            headings.append("" if text == last else text)
            last = text
        if 2 * sum(map(bool, headings)) <= max(len(headings), 2):
            return [column for column in columns if column not in heading], headings
    return list(columns), ["" for _ in columns[0].cells]


def _print_rows(
    console: Console, columns: Sequence[Column], headings: Sequence[str], notes: Sequence[str]
) -> None:
    from rich.segment import Segment, Segments

    titles, *rows = zip(*(column.padded for column in columns), strict=True)
    pieces = [(GAP.join(titles).rstrip(), "bold"), NEW_LINE]
    if console.width < WIDE:
        pieces += [("─" * width_of(columns), ""), NEW_LINE]
    for row, cells in enumerate(rows):
        if headings and headings[row]:
            pieces += [(headings[row], "bold"), NEW_LINE]
        text = GAP.join(cells).rstrip()
        start = 0
        done = 0
        for column, cell in zip(columns, cells, strict=True):
            end = start + len(cell)
            if column.styles and column.styles[row]:
                pieces += [(text[done:start], ""), (text[start:end], column.styles[row])]
                done = end
            start = end + len(GAP)
        pieces += [(text[done:], ""), NEW_LINE]
        if notes:
            for line in textwrap.wrap(notes[row], console.width - len(INDENT), **WHOLE_WORDS):
                pieces += [(INDENT + line, "dim"), NEW_LINE]
    segments = [Segment(text, console.get_style(style)) for text, style in pieces]
    console.print(Segments(segments), end="", soft_wrap=True)


def print_lines(console: Console, *lines: str, indent: str = "") -> None:
    """Print lines, wrapped at words on a terminal; `indent` precedes continuation lines."""
    if not lines:
        return
    width = console.width if console.width < WIDE else sys.maxsize
    for line in "\n".join(lines).split("\n"):
        for part in textwrap.wrap(line, width, subsequent_indent=indent, **WHOLE_WORDS) or [""]:
            console.print(part, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Output of a command in all formats; only the printed one is computed."""

    rows: Callable[[], Sequence[Row]]
    """Returns rows of plain values, all with the same keys, for JSON and CSV."""
    columns: Iterable[str] = ()
    """Header if there is no row."""
    cells: Callable[[], Sequence[Cells]] | None = None
    """Returns the rows for a terminal and Markdown; None: `rows` for Markdown."""
    notes_title: str = ""
    """Title of the cells that are notes of the rows on a terminal."""
    title: str = ""
    """Printed above `cells`."""
    document: Callable[[], Any] | None = None
    """Returns the JSON document; None: the rows."""
    draw: Callable[[Console], object] | None = None
    """Prints the table on a terminal; None: title and cells."""
    head: Callable[[], str] = str
    """Returns Markdown above the table, with an empty line at its end; see `escaped`."""
    notes: Callable[[], str] = str
    """Returns Markdown below the table."""

    def render(self, form: str) -> str:
        """Return the table in one of `TABLE_FORMATS`, with a newline at the end."""
        if form == "table":
            return drawn(self.draw or self._print)
        if form == "json":
            return json_text((self.document or self.rows)())
        if form == "csv":
            return csv_text(self.rows(), self.columns)
        rows = texts_of(self.cells()) if self.cells else self.rows()
        head = f"**{escaped(self.title)}**\n\n" if self.title else self.head()
        return f"{head}{markdown_text(rows, self.columns)}{self.notes()}"

    def _print(self, console: Console) -> None:
        if self.title:
            print_lines(console, printable(self.title), "")
        rows = self.cells() if self.cells else []
        if rows:
            print_cells(console, rows, self.notes_title)


def flat(entry: Row) -> dict[str, Any]:
    """Return a JSON object as a row: an interval in two columns, a list of names in one."""
    row: dict[str, Any] = {}
    for name, value in entry.items():
        if "ci95" in name:
            low, high = value or (None, None)
            row |= {f"{name}_low": low, f"{name}_high": high}
        else:
            row[name] = ",".join(value) if isinstance(value, list | tuple) else value
    return row


def json_text(value: Any) -> str:
    text = json.dumps(value, allow_nan=False)
    try:
        return msgspec.json.format(text, indent=2) + "\n"
    except msgspec.DecodeError:  # a lone surrogate
        return json.dumps(value, indent=2) + "\n"


def csv_text(rows: Sequence[Row], columns: Iterable[str]) -> str:
    """Return rows as CSV, with empty cells for None; `columns` is the header if there is no row."""
    names = list(rows[0] if rows else columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(printable, names))
    writer.writerows([_csv_cell(row[name]) for name in names] for row in rows)
    return text.getvalue()


def markdown_text(rows: Sequence[Row], columns: Iterable[str]) -> str:
    """Return rows as a Markdown table without empty columns; `columns` is the header if there is no
    row.
    """
    names = list(columns)
    if rows:
        names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    lines = [names, ["---"] * len(names)]
    for row in rows:
        line = []
        for name in names:
            value = row[name]
            line.append(f"{value:.6g}" if isinstance(value, float) else _cell(value))
        lines.append(line)
    return "".join(f"| {' | '.join(map(escaped, line))} |\n" for line in lines)


def _csv_cell(value: Any) -> str:
    """Return a cell that a spreadsheet does not evaluate: a name may look like a formula."""
    is_formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@"))
    return f"'{_cell(value)}" if is_formula and value != ABSENT else _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else printable(value)


def escaped(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
