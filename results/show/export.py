"""A run in the formats of other tools: CSV, JSON, Markdown and Parquet."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from results.record import Environment, Record
from results.show.judge import Report
from results.show.rows import COLUMNS, document, flat_rows, to_frame
from results.show.table import TABLE_COLUMNS, header_lines, table_rows
from results.show.terminal import printable
from results.store.runfile import Run, StoreError, reason_of

TEXT_FORMATS = ("csv", "json", "md")
FORMATS = (*TEXT_FORMATS, "parquet")


def render(environment: Environment, records: Iterable[Record], format: str, report: Report | None = None) -> str:
    """Return a run as text in one of `TEXT_FORMATS`, with a newline at the end.

    Args:
        environment: where the records were taken.
        records: what was measured.
        format: `csv` holds a row of plain values for each record, `md` the same rows with the columns of the table
            for people, `json` everything.
        report: is told, in one line, of what could not be judged.

    Raises:
        ValueError: the format is unknown.
    """
    if format == "json":
        return json_text(document(environment, records, report))
    if format == "csv":
        return csv_text(flat_rows(environment, records, report), COLUMNS)
    if format == "md":
        records = list(records)
        head = "".join(f"- {_escaped(line)}\n" for line in header_lines(environment, records))
        return f"{head}\n{markdown_text(table_rows(environment, records, report), TABLE_COLUMNS)}"
    raise ValueError(f"unknown format '{format}'; known: {', '.join(TEXT_FORMATS)}")


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
    return "".join(f"| {' | '.join(map(_escaped, line))} |\n" for line in lines)


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


def write_output(path: Path, data: bytes) -> None:
    """Write a file so that it is either the old one or the whole new one, at any moment.

    Folders are made where they are missing.

    Raises:
        StoreError: the file cannot be written.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe: nothing to replace
            return
        target = path.resolve()  # the file behind a link is replaced, not the link
        unfinished = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}.tmp")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_synced(unfinished, data)
            if target.exists():
                shutil.copymode(target, unfinished)
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    except (FileExistsError, NotADirectoryError):
        raise StoreError(f"cannot write {path}: a part of its folder is a file; choose another place") from None
    except OSError as error:
        raise StoreError(f"cannot write {path}: {reason_of(error)}; choose another place") from None


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _cell(value: Any) -> str:
    """Return a value as the text of a cell: empty for None, true or false, numbers so that they read back exactly."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return printable(value)


def _shortened(value: Any) -> str:
    """Return a value as the text of a cell that people read: numbers with six significant digits."""
    return f"{value:.6g}" if isinstance(value, float) else _cell(value)


def _escaped(text: str) -> str:
    """Return a text that stays within its cell of a Markdown table."""
    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
