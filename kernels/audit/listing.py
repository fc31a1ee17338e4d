"""Rows of `python -m kernels list`. Importing torch alone takes longer than a second, so no kernel is imported."""

import ast
from pathlib import Path
from typing import Any

from kernels import versions

FLOATS = "fp32 fp16 bf16"
OPERATIONS = {
    "bandwidth": {"v1": ("read write copy triad", "int32")},
    "cross_entropy": {"v1": ("cross-entropy", FLOATS)},
    "elementwise": {
        "v1": ("copy add mul triad relu gelu gelu-tanh silu swiglu bias-gelu residual-add dropout", FLOATS),
    },
    "fma": {"v1": ("fma", "fp32 fp16 bf16 fp64")},
    "launch_floor": {"v1": ("launch-floor", "fp32")},
    "matmul": {
        "v1": ("matmul", FLOATS),
        "v2": ("matmul", "fp32 tf32 fp16 bf16"),
        "v3": ("matmul", "fp32 tf32 fp16 bf16 int8 fp8e4m3 fp8e5m2"),
    },
    "matvec": {"v1": ("matvec", FLOATS), "v3": ("matvec matvec-int8", FLOATS)},
    "norm": {"v1": ("rmsnorm layernorm residual-rmsnorm", FLOATS)},
    "reduction": {"v1": ("sum dot", FLOATS)},
    "softmax": {"v1": ("softmax", FLOATS)},
}
"""Operations and dtypes of each family. An entry also holds for later versions, up to the next entry. A test compares
them with the variants of each version."""


def by_version() -> list[dict[str, Any]]:
    """Return a row for each version of each family, oldest first: what the table and Markdown show."""
    rows = []
    for family in versions.families():
        for version, module in versions.modules(family).items():
            if version in OPERATIONS[family]:
                ops, dtypes = (names.split() for names in OPERATIONS[family][version])
            row = {"family": family, "version": version, "ops": ops, "dtypes": dtypes}
            rows.append(row | {"change": _change(versions.PACKAGE.parent / _file(module))})
    return rows


def by_operation() -> list[dict[str, Any]]:
    """Return a row for each operation of each version: what JSON and CSV have."""
    return [
        {"family": row["family"], "op": op, "version": row["version"], "dtypes": row["dtypes"]}
        | {"file": _file(versions.modules(row["family"])[row["version"]]), "change": row["change"]}
        for row in by_version()
        for op in row["ops"]
    ]


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def _change(path: Path) -> str:
    """Return what is new, from the first paragraph of a file: `Version 2 of softmax: ...`."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return " ".join(docstring.partition("\n\n")[0].partition(": ")[2].split()).rstrip(".")
