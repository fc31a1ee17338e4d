"""The golden figures: what the compiler made of the newest version of each kernel when it was accepted.

A row that needs more registers or instructions than recorded by over 5 %, or that got worse in kind (spills, narrower
accesses, another tensor-core instruction), is a regression. Register and instruction counts are those of one minor
release of Triton: with another, only kinds are compared.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from kernels.audit.errors import AuditError, one_line
from kernels.audit.rows import AuditRow
from kernels.audit.sass import rank

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 0.05
COUNTS = ("registers", "instructions")
SIZES = ("stack_bytes", "spill_bytes", "double_precision")
WIDTHS = ("load_bits", "store_bits")
KINDS = ("mma", "fp_fusion")


@dataclass(frozen=True)
class Golden:
    """Recorded figures by the key of a row, and the Triton they are of."""

    triton: str
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def same_triton(self) -> bool:
        """Whether the installed Triton is of the same minor release."""
        return self.triton.split(".")[:2] == triton.__version__.split(".")[:2]


def record(rows: Sequence[AuditRow], wanted: Set[str], path: Path = FILE) -> int:
    """Write the figures of the `wanted` rows, and return how many are new; those of the same Triton that are not among
    `rows` stay.

    Raises:
        AuditError: The file cannot be read or written.
    """
    old = load(path) if path.exists() else None
    kept = dict(old.rows) if old and old.triton == triton.__version__ else {}
    new = {row.key: {name: getattr(row, name) for name in (*COUNTS, *SIZES, *WIDTHS, *KINDS)} for row in rows}
    kept = {key: figures for key, figures in (kept | new).items() if key in wanted}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
    try:
        path.write_text(f'{{"triton": "{triton.__version__}", "rows": {{\n{lines}\n}}}}\n', encoding="utf-8")
    except OSError as error:
        raise AuditError(f"cannot write {path}: {error.strerror}") from None
    return len(new.keys() & wanted)


def load(path: Path = FILE) -> Golden:
    """Return the recorded figures.

    Raises:
        AuditError: There are none, or the file cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Golden(found["triton"], found["rows"])
    except FileNotFoundError:
        raise AuditError(f"there are no recorded figures in {path}; record them with --record") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AuditError(f"cannot read the recorded figures in {path}: {one_line(error)}") from None


def compare(rows: Sequence[AuditRow], golden: Golden) -> list[str]:
    """Return a line for each figure that is worse than recorded."""
    return [
        f"{row.key}: {line}"
        for row in rows
        if row.key in golden.rows
        for line in _differences(row, golden.rows[row.key], golden.same_triton)
    ]


def _differences(row: AuditRow, before: Mapping[str, Any], with_counts: bool) -> list[str]:
    def changed(name: str) -> str:
        return f"{name} {before[name]} -> {getattr(row, name)}"

    lines = []
    for name in COUNTS if with_counts else ():
        growth = getattr(row, name) - before[name]
        if growth > TOLERANCE * before[name]:
            lines.append(f"{changed(name)} (+{100 * growth / before[name]:.1f} %)")
    lines += [changed(name) for name in SIZES if getattr(row, name) > before[name]]
    lines += [changed(name) for name in WIDTHS if rank(getattr(row, name)) < rank(before[name])]
    return lines + [changed(name) for name in KINDS if getattr(row, name) != before[name]]
