"""Planted bugs: mutations of kernel files that the checks of their family must catch.

The interpreter runs the `battery` of a family on them. Bugs that would need too much memory, such
as an offset that wraps at 2^31 elements of a flat operation, are checked in the compiled code.
"""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    kind: str
    file: str
    old: str
    """The text to replace, which occurs in the file exactly `count` times."""
    new: str
    count: int = 1
    only_compiled: bool = False
    seen_in: str = ""
    """The version that shows the bug, if versions share `file`."""

    @property
    def label(self):
        version = Path(self.seen_in or self.file)
        return f"{version.parent.name}-{version.stem.partition('_')[0]}-{self.kind}"


def plant(bug, folder):
    """Return the module of the version with the bug, imported from a copy in `folder`."""
    text = (ROOT / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.old) == bug.count, (
        f"{bug.file} has {bug.old!r} {text.count(bug.old)} times, not {bug.count}"
    )
    wrong = _imported(bug.file, text.replace(bug.old, bug.new), folder)
    if not bug.seen_in:
        return wrong
    shared = bug.file.removesuffix(".py").replace("/", ".")
    with patch.dict(sys.modules, {shared: wrong}):
        return _imported(bug.seen_in, (ROOT / bug.seen_in).read_text(encoding="utf-8"), folder)


def _imported(file, text, folder):
    copy = folder / Path(file).name
    copy.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(
        f"planted_{folder.name.replace('-', '_')}_{copy.stem}", copy
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
