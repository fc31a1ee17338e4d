"""The tables of `python -m kernels`: which columns they have, and what a narrow terminal leaves
out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from results.show.grid import Column, Table, print_grid

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
"""Short column titles."""

AUDIT_COLUMNS = (
    "kernel",
    "version",
    "arch",
    "dtype",
    "part",
    "shape_class",
    "registers",
    "stack_bytes",
    "spill_bytes",
    "shared_bytes",
    "occupancy",
    "load_bits",
    "store_bits",
    "mma",
    "instructions",
    "instructions_per_element",
    "issue_budget_instructions_per_element",
    "double_precision",
    "bound",
)
DROPPED_COLUMNS = (
    "double_precision",
    "issue_budget_instructions_per_element",
    "stack_bytes",
    "shared_bytes",
    "instructions",
    "store_bits",
    "part",
    "mma",
    "load_bits",
    "shape_class",
)
"""Columns that a narrow terminal drops, in this order."""
COLUMNS_BELOW = ("dtypes", "ops")
"""Columns that move into the note below their row, in this order."""
NOTE = "change"
"""The column that moves below its row if the terminal is too narrow."""


def render(
    rows: Sequence[Mapping[str, Any]],
    form: str,
    columns: Sequence[str],
    environment: Mapping[str, Any],
) -> str:
    """Return rows in one of `TABLE_FORMATS`. The table and Markdown have only `columns`, CSV and
    JSON have all keys.
    """
    used = [
        name
        for name in columns
        if name == "occupancy" or any(row[name] not in (None, "", 0) for row in rows)
    ]
    table = Table(
        rows=lambda: [
            {key: ",".join(v) if isinstance(v, list) else v for key, v in row.items()}
            for row in rows
        ],
        columns=columns,
        titles=used,
        shown=lambda: [
            {TITLES.get(name, name): _shown(name, row[name]) for name in used} for row in rows
        ],
        document=lambda: {"environment": dict(environment), "rows": list(rows)},
        draw=lambda console: _print_table(console, rows, used),
    )
    return table.render(form)


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list):
        return ", ".join(value)
    if name == "occupancy":
        return f"{100 * value:.0f}%"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    return str(value)


def _print_table(console: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    columns = [
        Column(
            TITLES.get(name, name),
            [_shown(name, row[name]) for row in rows],
            "right" if all(isinstance(row[name], int | float | None) for row in rows) else "left",
            leaves=DROPPED_COLUMNS.index(name) + 1 if name in DROPPED_COLUMNS else 0,
            goes_below=COLUMNS_BELOW.index(name) + 1 if name in COLUMNS_BELOW else 0,
            heads=name == "kernel",
        )
        for name in names
        if name != NOTE
    ]
    print_grid(console, columns, [row[NOTE] for row in rows] if NOTE in names else (), NOTE)
