"""The golden figures: what the compiler made of the quick set of kernels when it was accepted.

A row that needs more registers or instructions than recorded by over 5 %, or that got worse in kind (spills, narrower
accesses, another tensor-core instruction), is a regression. Register and instruction counts are those of one minor
release of Triton: with another, only kinds are compared.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton

from kernels.audit import AuditError
from kernels.audit.rows import Row, key_of
from kernels.audit.sass import rank

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 0.05
COUNTS = ("registers", "instructions")
SIZES = ("stack_bytes", "spill_bytes", "double_precision")
WIDTHS = ("load_bits", "store_bits")
KINDS = ("mma", "fp_fusion")

Golden = dict[str, Any]
"""`triton`, the release that compiled, and `rows`, the figures by the key of a row."""


def record(rows: Sequence[Row]) -> None:
    """Write the figures of the rows, in place of those recorded before."""
    figures = {key_of(row): {name: row[name] for name in (*COUNTS, *SIZES, *WIDTHS, *KINDS)} for row in rows}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(figures[key])}" for key in sorted(figures))
    FILE.write_text(f'{{"triton": "{triton.__version__}", "rows": {{\n{lines}\n}}}}\n', encoding="utf-8")


def load() -> Golden:
    """Return the recorded figures.

    Raises:
        AuditError: The file cannot be read.
    """
    try:
        return json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AuditError(f"cannot read the recorded figures in {FILE}: {error}; write them with --record") from None


def is_same_triton(golden: Golden) -> bool:
    """Return whether the installed Triton is of the same minor release as the one recorded."""
    return golden["triton"].split(".")[:2] == triton.__version__.split(".")[:2]


def compare(rows: Sequence[Row], golden: Golden) -> list[str]:
    """Return a line for each figure that is worse than recorded; a row without recorded figures has none."""
    with_counts = is_same_triton(golden)
    keyed = {key_of(row): row for row in rows}
    return [
        f"{key}: {line}"
        for key, row in keyed.items()
        if key in golden["rows"]
        for line in _differences(row, golden["rows"][key], with_counts)
    ]


def _differences(row: Row, before: dict[str, Any], with_counts: bool) -> list[str]:
    worse = [name for name in SIZES if row[name] > before[name]]
    worse += [name for name in WIDTHS if rank(row[name]) < rank(before[name])]
    worse += [name for name in KINDS if row[name] != before[name]]
    if with_counts:
        worse += [name for name in COUNTS if row[name] > (1 + TOLERANCE) * before[name]]
    return [f"{name} {before[name]} -> {row[name]}" for name in worse]
