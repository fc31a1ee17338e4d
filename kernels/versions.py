"""Which versions of which families there are, by the names of their files; nothing is imported to find out.

A family is a folder of this package, a version one file `vN_<what_changed>.py` in it; a family of `CALIBRATION` is one
file with its version 1. Each of these files has

    KERNELS     launchers by the name of the operation, `launcher(*inputs, out=...)`
    variants    `variants(arch)`: every `Variant` it would compile for an architecture, 80 for sm_80
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CALIBRATION = ("bandwidth", "fma", "launch_floor")
"""Families of one version, which measure ceilings and compute no operation of `bench`."""
VERSION_FILE = re.compile(r"(v[1-9]\d*)_\w+\.py")


def families() -> list[str]:
    """Return the names of all families, sorted."""
    folders = [folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and modules(folder.name)]
    return sorted([*folders, *CALIBRATION])


def modules(family: str) -> dict[str, str]:
    """Return the versions of a family, oldest first: `v1` to the name of its module. An unknown family has none."""
    if family in CALIBRATION:
        return {"v1": f"kernels.{family}"}
    found = {}
    for path in (PACKAGE / family).glob("v*_*.py"):
        match = VERSION_FILE.fullmatch(path.name)
        if match:
            found[match[1]] = f"kernels.{family}.{path.stem}"
    return dict(sorted(found.items(), key=lambda item: int(item[0].removeprefix("v"))))


def source_files(module: str) -> list[Path]:
    """Return the files of this package that a module is made of: its own first, then all it imports, by their names.

    They are found by the import statements in their text, at any depth; nothing is imported. The packages that they
    lie in count too, as importing a module runs them.

    Args:
        module: `kernels.matmul.v4_tma`.
    """
    found = {module: _file(module)}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        for other in [*_packages(name), *_imported(name, found[name])]:
            path = _file(other)
            if other not in found and path.is_file():
                found[other] = path
                waiting.append(other)
    return [found.pop(module), *(found[name] for name in sorted(found))]


def source_sha256(module: str) -> str:
    """Return the hash of all text that a module is made of: of the hashes of its `source_files`, in their order."""
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in source_files(module)]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _file(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _packages(module: str) -> list[str]:
    words = module.split(".")
    return [".".join(words[:count]) for count in range(1, len(words))]


def _imported(module: str, path: Path) -> Iterator[str]:
    """Yield what may be a module of this package among the names that a file imports."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.split(".")[0] == "kernels")
