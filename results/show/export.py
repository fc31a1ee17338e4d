"""A run in the formats of other tools: CSV, JSON, Markdown and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record
from results.show.rows import COLUMNS, Report, document, flat_rows, to_frame
from results.show.table import TABLE_COLUMNS, header_lines, table_rows
from results.show.terminal import TABLE_FORMATS, drawn, printable
from results.store.runfile import Run, StoreError

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a command prints, in each format that there is; only what a format shows is computed."""

    rows: Callable[[], Sequence[Mapping[str, Any]]]
    """Returns rows of plain values for programs, all with the same keys."""
    columns: Sequence[str] = ()
    """The header where there is no row."""
    shown: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Returns the rows with the columns and texts for people; None: as `rows`."""
    titles: Sequence[str] = ()
    """Their header where there is no row."""
    document: Callable[[], Any] | None = None
    """Returns what JSON holds; None: the rows."""
    draw: Callable[[Console], object] | None = None
    """Prints the table on a terminal."""
    head: str = ""
    """What stands above the table in Markdown, with a newline at the end; escaped as `escaped` does."""
    notes: str = ""
    """What stands below it there."""

    def render(self, form: str) -> str:
        """Return the table in one of `TABLE_FORMATS`, with a newline at the end.

        Raises:
            ValueError: the format is unknown.
        """
        if form not in WRITERS:
            raise ValueError(f"unknown format '{form}'; known: {', '.join(TABLE_FORMATS)}")
        return WRITERS[form](self)


def _terminal(table: Table) -> str:
    return "" if table.draw is None else drawn(table.draw)


def _json(table: Table) -> str:
    return json_text((table.document or table.rows)())


def _csv(table: Table) -> str:
    return csv_text(table.rows(), table.columns)


def _markdown(table: Table) -> str:
    head = f"{table.head}\n" if table.head else ""
    rows, columns = (table.rows, table.columns) if table.shown is None else (table.shown, table.titles)
    return f"{head}{markdown_text(rows(), columns)}{table.notes}"


WRITERS: dict[str, Callable[[Table], str]] = {"table": _terminal, "json": _json, "csv": _csv, "md": _markdown}
"""What writes a table in each format: a new one is a function here, and every command that prints a table offers it."""

FORMATS = (*sorted(set(WRITERS) - {"table"}), "parquet")
"""Those that are written to a file."""


def table_of_run(
    environment: Environment,
    records: Iterable[Record],
    report: Report | None = None,
    draw: Callable[[Console], object] | None = None,
    content: Callable[[], Any] | None = None,
) -> Table:
    """Return a run as a table; JSON holds everything, CSV a row of plain values for each record.

    Args:
        environment: where the records were taken.
        records: what was measured.
        report: is told, in one line, of what could not be judged.
        draw: prints it on a terminal.
        content: returns what JSON holds, in place of the environment and all of the records.
    """
    records = list(records)
    return Table(
        rows=lambda: flat_rows(environment, records, report),
        columns=COLUMNS,
        shown=lambda: table_rows(environment, records, report),
        titles=TABLE_COLUMNS,
        document=content or (lambda: document(environment, records, report)),
        draw=draw,
        head="".join(f"- {escaped(line)}\n" for line in header_lines(environment, records)),
    )


def json_text(value: Any) -> str:
    """Return a value as indented JSON in ASCII, which every terminal and every reader takes."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as CSV with a header; an empty cell is a value that is not known.

    Args:
        rows: all with the same keys.
        columns: the header where there is no row.
    """
    names = list(rows[0]) if rows else list(columns)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([printable(name) for name in names])
    writer.writerows([_cell(row[name]) for name in names] for row in rows)
    return text.getvalue()


def markdown_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as a Markdown table; a column without any value is left out. Arguments as of `csv_text`."""
    names = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)] if rows else list(columns)
    lines = [names, ["---"] * len(names), *([_shortened(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(map(escaped, line))} |\n" for line in lines)


def parquet_bytes(run: Run, report: Report | None = None) -> bytes:
    """Return a run as a Parquet file, its samples included.

    Raises:
        StoreError: pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401  # pandas would fail with advice of many lines
    except ImportError:
        raise StoreError("parquet needs pyarrow, which is not installed: pip install pyarrow") from None
    written: bytes = to_frame(run, report).to_parquet(engine="pyarrow", index=False)
    return written


def _cell(value: Any) -> str:
    """Return a value as the text of a cell: empty for None, true or false, numbers so that they read back exactly."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value)


def _shortened(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _cell(value)


def escaped(text: str) -> str:
    """Return a text that stays within its cell of a Markdown table."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
