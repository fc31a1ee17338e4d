"""Which versions of which families there are, by the names of their files; nothing is imported to find out.

A family is a folder of this package, a version one file `vN_<what_changed>.py` in it; a family of `CALIBRATION` is one
file with its version 1. Each of these files has

    KERNELS     launchers by the name of the operation, `launcher(*inputs, out=...)`
    variants    `variants(arch)`: every `Variant` it would compile for an architecture, 80 for sm_80
"""

import hashlib
import re
from modulefinder import ModuleFinder
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
    """Return the files of this package that a module is made of: its own first, then all it imports, by their paths.

    They are found by the import statements, at any depth and in functions too; nothing is imported. The packages that
    they lie in count too, as importing a module runs them.
    """
    finder = ModuleFinder([str(PACKAGE.parent)])
    finder.import_hook(module)
    own = Path(finder.modules.pop(module).__file__)
    others = (Path(found.__file__) for found in finder.modules.values() if found.__file__)
    return [own, *sorted(path for path in others if path.is_relative_to(PACKAGE))]


def source_sha256(module: str) -> str:
    """Return the hash of all text that a module is made of: of the hashes of its `source_files`, in their order."""
    digests = [hashlib.sha256(path.read_bytes()).digest() for path in source_files(module)]
    return hashlib.sha256(b"".join(digests)).hexdigest()
