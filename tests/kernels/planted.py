"""Planted bugs: a kernel file with one thing broken, which the checks of its family must notice.

Each family lists its bugs in `bugs.py`. Those that show in a result are caught in the interpreter, by `battery` of the
family's cases; those that need more memory than a test has, such as an offset that wraps at 2^31 elements of a flat
operation, by reading what the compiler makes of the file.
"""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Bug:
    kind: str
    file: str
    """The kernel file, from the root of the repository: `kernels/norm/v2_wide.py`."""
    old: str
    """What is replaced; occurs in the file exactly `count` times."""
    new: str
    count: int = 1
    only_compiled: bool = False
    """Whether only the compiled form shows it."""
    seen_in: str = ""
    """If `file` is shared by versions and is none itself: the version that shows the bug."""

    @property
    def label(self) -> str:
        version = Path(self.seen_in or self.file)
        return f"{version.parent.name}-{version.stem.partition('_')[0]}-{self.kind}"


def plant(bug: Bug, folder: Path) -> ModuleType:
    """Return the module of the version with the bug in it, imported from a copy in `folder`."""
    text = (ROOT / bug.file).read_text(encoding="utf-8")
    assert text.count(bug.old) == bug.count, f"{bug.file} has {bug.old!r} {text.count(bug.old)} times, not {bug.count}"
    wrong = _imported(bug.file, text.replace(bug.old, bug.new), folder)
    if not bug.seen_in:
        return wrong
    version = _imported(bug.seen_in, (ROOT / bug.seen_in).read_text(encoding="utf-8"), folder)
    for name in vars(wrong).keys() & vars(version).keys():
        kernel = getattr(wrong, name)
        if hasattr(kernel, "fn") and kernel.fn.__module__ == wrong.__name__:
            setattr(version, name, kernel)
    return version


def _imported(file: str, text: str, folder: Path) -> ModuleType:
    copy = folder / Path(file).name
    copy.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"planted_{folder.name.replace('-', '_')}_{copy.stem}", copy)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
