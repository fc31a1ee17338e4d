"""The families of kernels and their versions, from file names, without importing them.

A family is a directory of this package, a version a file `vN_<what_changed>.py` in it. A family of `CALIBRATION` is a
single file, its version 1. Each of these files defines

    KERNELS     launchers by operation, `launcher(*inputs, out=...)`
    variants    `variants(arch)`: every `Variant` that it compiles for an architecture, 80 for sm_80
"""

import hashlib
import re
from modulefinder import ModuleFinder
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CALIBRATION = ("bandwidth", "fma", "launch_floor")
"""Families of one version that measure ceilings, not an operation of `bench`."""
VERSION_FILE = re.compile(r"(v[1-9]\d*)_\w+\.py")


def families() -> list[str]:
    folders = [folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and modules(folder.name)]
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


def source_files(module: str) -> list[Path]:
    """Return the files of this package that a module consists of: its own, then all that it imports, sorted by path.

    They are found from import statements, also nested and inside functions, without importing anything. Their packages
    are included, because importing a module runs them.
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
