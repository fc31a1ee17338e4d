"""Rows printed: a table for people, JSON, CSV or Markdown for programs and pages."""

import csv
import io
import itertools
import json
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kernels.audit.errors import AuditError

FORMATS = ("table", "json", "csv", "md")
TITLES = {
    "shape_class": "shapes",
    "registers": "regs",
    "stack_bytes": "stack",
    "spill_bytes": "spills",
    "shared_bytes": "shared",
    "load_bits": "load",
    "store_bits": "store",
    "instructions": "inst",
    "instructions_per_element": "inst/elem",
    "issue_budget_instructions_per_element": "budget",
    "double_precision": "fp64",
}
"""What a column is called in the table, where its key is long."""

AUDIT_COLUMNS = (
    *("kernel", "version", "arch", "dtype", "part", "shape_class", "registers", "stack_bytes", "spill_bytes"),
    *("shared_bytes", "occupancy", "load_bits", "store_bits", "mma", "instructions", "instructions_per_element"),
    *("issue_budget_instructions_per_element", "double_precision", "bound"),
)
ABSENT = "-"
LIST_WIDTH = 40  # of a list in a table, which goes on below


def render(rows: Sequence[Mapping[str, Any]], how: str, columns: Sequence[str], environment: Mapping[str, Any]) -> str:
    """Return rows as text.

    Args:
        rows: The same keys in each.
        how: One of `FORMATS`.
        columns: Those of the table and of Markdown; the other formats have all.
        environment: What the rows have in common, for JSON.
    """
    if how == "json":
        return json.dumps({"environment": dict(environment), "rows": list(rows)}, indent=1) + "\n"
    if how == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]) if rows else list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _plain(value) for key, value in row.items()} for row in rows)
        return text.getvalue()
    used = [
        name for name in columns if name == "occupancy" or any(row[name] not in (None, "", 0) for row in rows)
    ] or list(columns)
    cells = [[TITLES.get(name, name) for name in used], *([_shown(name, row[name]) for name in used] for row in rows)]
    numeric = [all(isinstance(row[name], int | float | None) for row in rows) for name in used]
    return _markdown(cells, numeric) if how == "md" else _table(cells, numeric)


def _plain(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return ABSENT
    if isinstance(value, list):
        return "\n".join(textwrap.wrap(", ".join(map(str, value)), LIST_WIDTH, break_on_hyphens=False))
    if name == "occupancy":
        return f"{100 * value:.0f}%"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return str(value)


def _table(cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    folded = [
        line for row in cells for line in itertools.zip_longest(*(text.split("\n") for text in row), fillvalue="")
    ]
    sizes = [max(map(len, column)) for column in zip(*folded, strict=True)]
    lines = [
        "  ".join(
            text.rjust(size) if right else text.ljust(size)
            for text, size, right in zip(line, sizes, numeric, strict=True)
        ).rstrip()
        for line in folded
    ]
    lines.insert(1, "─" * (sum(sizes) + 2 * (len(sizes) - 1)))
    return "\n".join(lines) + "\n"


def _markdown(cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    lines = ["| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in line) + " |" for line in cells]
    lines.insert(1, "|" + "|".join(" ---: " if right else " --- " for right in numeric) + "|")
    return "\n".join(lines) + "\n"


def print_out(text: str) -> None:
    """Write to stdout; a reader that has seen enough, as `head` has, is no error.

    Raises:
        AuditError: stdout cannot be written, as on a full disk.
    """
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:  # a terminal that knows only ASCII gets question marks
            sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):  # or leaving would fail once more on what is still in the buffer
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise AuditError(f"cannot write the output: {error.strerror}") from None


def say(text: str) -> None:
    """Print one line on stderr."""
    print(" ".join(text.split()), file=sys.stderr, flush=True)
