"""The tables of `python -m kernels`: which columns they have, and what a narrow terminal
moves below the rows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from results.show.grid import Cell, Cells, Table
from results.show.units import number, percent

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
LEAVING = (
    "dtypes",
    "ops",
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
    "instructions_per_element",
)
"""Columns that move below their rows on a narrow terminal, in this order."""
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
        cells=lambda: _cells(rows, used),
        notes_title=NOTE if NOTE in used else "",
        document=lambda: {"environment": dict(environment), "rows": list(rows)},
    )
    return table.render(form)


def _shown(name: str, value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list):
        return ", ".join(value)
    if name == "occupancy":
        return percent(value)
    if isinstance(value, float):
        return number(value, 3)
    return str(value)


def _cells(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Cells]:
    cells: list[Cells] = [{} for _ in rows]
    for name in names:
        is_number = all(isinstance(row[name], int | float | None) for row in rows)
        leaves = LEAVING.index(name) + 1 if name in LEAVING else 0
        for row, shown in zip(rows, cells, strict=True):
            text = _shown(name, row[name])
            shown[TITLES.get(name, name)] = Cell(text, "right" if is_number else "left", leaves)
    return cells
