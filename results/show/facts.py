"""Tables of the code's own, in TOML files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def facts_of(path: Path) -> dict[str, Any]:
    """Return the content of a file; ValueError if it is not TOML, OSError if it cannot be read."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def facts_beside(module: str, name: str) -> dict[str, Any]:
    """Return the content of a file in the folder of a module, given its `__file__`."""
    return facts_of(Path(module).with_name(name))
