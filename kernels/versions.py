"""Which versions of which families there are, by the names of their files; nothing is imported to find out.

A family is a folder of this package, a version one file `vN_<what_changed>.py` in it. Each version file has

    KERNELS     launchers by the name of the operation, `launcher(*inputs, out=...)`
    variants    `variants(arch)`: every `Variant` it would compile for an architecture, 80 for sm_80
"""

import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
VERSION_FILE = re.compile(r"(v[1-9]\d*)_\w+\.py")


def families() -> list[str]:
    """Return the names of all families, sorted."""
    return sorted(folder.name for folder in PACKAGE.iterdir() if folder.is_dir() and modules(folder.name))


def modules(family: str) -> dict[str, str]:
    """Return the versions of a family, oldest first: `v1` to the name of its module. An unknown family has none."""
    found = {}
    for path in (PACKAGE / family).glob("v*_*.py"):
        match = VERSION_FILE.fullmatch(path.name)
        if match:
            found[match[1]] = f"kernels.{family}.{path.stem}"
    return dict(sorted(found.items(), key=lambda item: int(item[0].removeprefix("v"))))
