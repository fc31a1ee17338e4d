"""The golden figures: what the compiler made of each shipped kernel when its version was accepted.

A row that needs more registers or instructions than recorded by over 5 %, or that got worse in kind (spills, narrower
accesses, another tensor-core instruction), is a regression. Older versions are held to their own figures, faults
included. Register and instruction counts are those of one minor release of Triton: with another, only kinds are
compared.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from kernels.audit.errors import AuditError, one_line
from kernels.audit.rows import AuditRow
from kernels.audit.sass import TMA

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 0.05
COUNTS = ("registers", "instructions")
SIZES = ("stack_bytes", "spill_bytes", "double_precision")
WIDTHS = ("load_bits", "store_bits")
KEPT = (*COUNTS, *SIZES, *WIDTHS, "mma", "fp_fusion")


@dataclass(frozen=True)
class Golden:
    """Recorded figures by the key of a row, and the versions they are of."""

    triton: str
    ptxas: Mapping[str, str]
    """By architecture."""
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def same_triton(self) -> bool:
        """Whether the installed Triton is of the same minor release."""
        return minor(self.triton) == minor(triton.__version__)


@dataclass(frozen=True)
class GoldenComparison:
    """What `compare` found."""

    worse: tuple[str, ...]
    """A line for each figure that got worse."""
    missing: tuple[str, ...]
    """Rows that are not recorded."""
    gone: tuple[str, ...]
    """Recorded rows of the same kernels and architectures that are no more."""


def minor(version: str) -> str:
    """Return `3.9` of `3.9.0`."""
    return ".".join(version.split(".")[:2])


def is_of_another_triton() -> bool:
    """Return whether there are figures of which none can be kept beside new ones.

    Raises:
        AuditError: The file cannot be read.
    """
    return FILE.exists() and load(FILE).triton != triton.__version__


def record(rows: Sequence[AuditRow], path: Path = FILE, *, known: Set[str] = frozenset()) -> None:
    """Write the figures of `rows`; others stay as they are, if they are of the same Triton.

    Args:
        rows: What was compiled.
        path: The file.
        known: Keys of rows that there still are; of the kernels and architectures in `rows`, others are forgotten.

    Raises:
        AuditError: The file cannot be read or written.
    """
    old = load(path) if path.exists() else None
    kept = dict(old.rows) if old and old.triton == triton.__version__ else {}
    audited = {row.kernel for row in rows}
    arches = {row.arch for row in rows}
    kept = {key: value for key, value in kept.items() if key in known or not _is_of(key, audited, arches)}
    kept |= {row.key: {name: getattr(row, name) for name in KEPT} for row in rows}
    ptxas = {**(old.ptxas if old else {}), **{row.arch: row.ptxas for row in rows}}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
    head = f'{{"triton": {json.dumps(triton.__version__)}, "ptxas": {json.dumps(ptxas, sort_keys=True)}, "rows": {{\n'
    try:
        path.write_text(f"{head}{lines}\n}}}}\n", encoding="utf-8")
    except OSError as error:
        raise AuditError(f"cannot write {path}: {error.strerror}") from None


def load(path: Path = FILE) -> Golden:
    """Return the recorded figures.

    Raises:
        AuditError: There are none, or the file cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Golden(found["triton"], found["ptxas"], found["rows"])
    except FileNotFoundError:
        raise AuditError(f"there are no recorded figures in {path}; record them with --record") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AuditError(f"cannot read the recorded figures in {path}: {one_line(error)}") from None


def compare(rows: Sequence[AuditRow], golden: Golden, known: Set[str] = frozenset()) -> GoldenComparison:
    """Compare rows with what is recorded of them; rows among the `known` keys are there, compiled or not."""
    worse, missing = [], []
    for row in rows:
        before = golden.rows.get(row.key)
        if before is None:
            missing.append(row.key)
        else:
            worse += [f"{row.key}: {line}" for line in _differences(row, before, golden.same_triton)]
    now, audited, arches = {row.key for row in rows}, {row.kernel for row in rows}, {row.arch for row in rows}
    gone = sorted(key for key in golden.rows if key not in now | known and _is_of(key, audited, arches))
    return GoldenComparison(tuple(worse), tuple(missing), tuple(gone))


def _differences(row: AuditRow, before: Mapping[str, Any], with_counts: bool) -> list[str]:
    lines = []
    for name in COUNTS if with_counts else ():
        old, new = before[name], getattr(row, name)
        if new > old * (1 + TOLERANCE):
            lines.append(f"{name} {old} -> {new} (+{100 * (new / old - 1):.1f} %)")
    for name in SIZES:
        if getattr(row, name) > before[name]:
            lines.append(f"{name} {before[name]} -> {getattr(row, name)}")
    for name in WIDTHS:
        if _bits(getattr(row, name)) < _bits(before[name]):
            lines.append(f"{name} {before[name]} -> {getattr(row, name)}")
    lines += [f"{n} {before[n]} -> {getattr(row, n)}" for n in ("mma", "fp_fusion") if getattr(row, n) != before[n]]
    return lines


def _bits(width: Any) -> int:
    return 10**6 if width == TMA else width or 0


def _is_of(key: str, kernels: set[str], arches: set[str]) -> bool:
    words = key.split(" | ")
    return words[0] in kernels and words[-1] in arches
