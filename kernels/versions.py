"""The families of kernels and their versions, from file names, without importing them.

A family is a directory of this package, a version a file `vN_<what_changed>.py` in it. A family of
`CALIBRATION` is a single file, its version 1. Each of these files defines

    KERNELS     launchers by operation, `launcher(*inputs, out=...)`
    variants    `variants(arch)`: every `Variant` that it compiles for an architecture, 80 for sm_80
"""

import ast
import hashlib
import os
import re
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
CALIBRATION = ("bandwidth", "fma", "launch_floor")
"""Families of one version that measure ceilings, not an operation of `bench`."""
VERSION_FILE = re.compile(r"(v[1-9]\d*)_\w+\.py")
FLOATS = "fp32 fp16 bf16"
OPERATIONS = {
    "adamw": {"v1": ("adamw", FLOATS)},
    "bandwidth": {"v1": ("read write copy triad", "int32")},
    "cross_entropy": {"v1": ("cross-entropy", FLOATS)},
    "elementwise": {
        "v1": (
            "copy add mul triad relu gelu gelu-tanh silu swiglu bias-gelu residual-add dropout",
            FLOATS,
        ),
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
    "quantize": {"v1": ("quantize-fp8 quantize-fp8-block", FLOATS)},
    "reduction": {"v1": ("sum dot", FLOATS)},
    "rope": {"v1": ("rope rope-interleaved", FLOATS)},
    "softmax": {"v1": ("softmax", FLOATS)},
}
"""Operations and dtypes of each family. An entry also holds for later versions, up to the next
entry. A test compares them with the variants of each version."""


def is_interpreted() -> bool:
    """Return whether Triton's interpreter is asked for. Source: triton 3.6, `knobs.py`."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")


def families() -> list[str]:
    folders = [
        folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and modules(folder.name)
    ]
    return sorted([*folders, *CALIBRATION])


def modules(family: str) -> dict[str, str]:
    """Return the module names of a family by version, oldest first; empty for an unknown family."""
    if family in CALIBRATION:
        return {"v1": f"kernels.{family}"}
    names = {}
    for path in (PACKAGE / family).glob("v*_*.py"):
        match = VERSION_FILE.fullmatch(path.name)
        if match:
            names[match[1]] = f"kernels.{family}.{path.stem}"
    return dict(sorted(names.items(), key=lambda item: int(item[0].removeprefix("v"))))


def by_version() -> list[dict[str, Any]]:
    """Return a row for each version of each family, oldest first: what the table and Markdown
    show.
    """
    rows = []
    for family in families():
        for version, module in modules(family).items():
            if version in OPERATIONS[family]:
                ops, dtypes = (names.split() for names in OPERATIONS[family][version])
            # What is new, from the first paragraph of a file: `Version 2 of softmax: ...`.
            tree = ast.parse((PACKAGE.parent / _file(module)).read_text(encoding="utf-8"))
            change = ast.get_docstring(tree).partition("\n\n")[0].partition(": ")[2]
            row = {"family": family, "version": version, "ops": ops, "dtypes": dtypes}
            rows.append(row | {"change": " ".join(change.split()).rstrip(".")})
    return rows


def by_operation() -> list[dict[str, Any]]:
    """Return a row for each operation of each version: what JSON and CSV have."""
    rows = []
    for row in by_version():
        facts = {"version": row["version"], "dtypes": row["dtypes"]}
        facts["file"] = _file(modules(row["family"])[row["version"]])
        facts["change"] = row["change"]
        rows += [{"family": row["family"], "op": op} | facts for op in row["ops"]]
    return rows


def _file(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def source_files(module: str) -> list[Path]:
    """Return the files of this package that a module consists of: its own, then all that it
    imports, sorted by path.

    They are found from import statements, also nested and inside functions, without importing
    anything. Their packages are included, because importing a module runs them.
    """
    finder = ModuleFinder([str(PACKAGE.parent)])
    finder.import_hook(module)
    own = Path(finder.modules.pop(module).__file__)
    others = (Path(imported.__file__) for imported in finder.modules.values() if imported.__file__)
    return [own, *sorted(path for path in others if path.is_relative_to(PACKAGE))]


def source_sha256(module: str) -> str:
    """Return the hash of the hashes of `source_files`, in order."""
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in source_files(module)]
    return hashlib.sha256(b"".join(digests)).hexdigest()
