"""The files that ops are defined in: those of `bench/` by their names, and a user's own by its path.

A family is one such file. It is called by the name of the file in `bench/`, `matmul`, or by the whole path of a user's
own, so that every process finds it again.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from bench.harness.op import Op, Option
from roofline.work import UNITS

BENCH = Path(__file__).resolve().parents[1]


class OpFileError(ValueError):
    """A file of ops cannot be used; the message says why in one line."""


def family_of(file: str | Path) -> str:
    """Return the family of an op file."""
    path = Path(file).resolve()
    return path.stem if path.parent == BENCH else str(path)


def is_own(family: str) -> bool:
    """Return whether a family is a user's file."""
    return family.endswith(".py")


def command_of(family: str) -> str:
    """Return the command of a family as a user types it."""
    if not is_own(family):
        return f"python -m bench.{family}"
    path = Path(family)
    return f"python {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}"


def own_file(word: str) -> tuple[Path, str | None] | None:
    """Return the file that a word of `--op` names, and one of its ops: `path/mine_op.py` or `path/mine_op.py:name`."""
    path, _, name = word.rpartition(":") if not word.endswith(".py") else (word, "", "")
    return (Path(path).resolve(), name or None) if path.endswith(".py") else None


def module_of(family: str) -> ModuleType:
    """Return the module of a family, imported."""
    return import_file(Path(family)) if is_own(family) else importlib.import_module(f"bench.{family}")


def options_of(family: str) -> Sequence[Option]:
    """Return the options that only this family has."""
    options: Sequence[Option] = getattr(module_of(family), "OPTIONS", ())
    return options


def load_ops(family: str, others: Mapping[str, Sequence[Op]]) -> tuple[Op, ...]:
    """Return the ops of a family.

    Raises:
        OpFileError: it has none, cannot be imported, or has what cannot stand beside the `others`.
    """
    path = Path(family) if is_own(family) else BENCH / f"{family}.py"
    try:
        module = module_of(family)
    except (Exception, SystemExit) as error:
        raise OpFileError(error_text(error, path)) from None
    ops, options = getattr(module, "OPS", ()), getattr(module, "OPTIONS", ())
    if not ops:
        raise OpFileError("it has no OPS (of an operation) and no SCENARIO")
    if not (isinstance(ops, tuple) and all(isinstance(op, Op) for op in ops)):
        raise OpFileError("its OPS must be a tuple of Op")
    if not all(isinstance(option, Option) for option in options):
        raise OpFileError("its OPTIONS must be a tuple of Option")
    if wrong := next((op for op in ops if op.units not in (None, *UNITS)), None):
        raise OpFileError(f"units of '{wrong.name}' must be {' or '.join(UNITS)}, found {wrong.units!r}")
    known = {op.name: other for other, ops in others.items() for op in ops}
    for op in ops:
        if op.name in known:
            place = known[op.name] if is_own(known[op.name]) else f"bench/{known[op.name]}.py"
            raise OpFileError(f"{place} has an op '{op.name}' too; give it another name")
    return ops


def own_families(words: Iterable[str], others: Mapping[str, Sequence[Op]]) -> dict[str, tuple[Op, ...]]:
    """Return the ops of the users' files among the words of `--op`, by their families.

    Raises:
        OpFileError: with the file that cannot be used.
    """
    found: dict[str, tuple[Op, ...]] = {}
    for named in filter(None, map(own_file, words)):
        family = str(named[0])
        if family not in found:
            try:
                found[family] = load_ops(family, {k: v for k, v in {**others, **found}.items() if k != family})
            except OpFileError as error:
                raise OpFileError(f"{named[0].name} cannot be used: {error}") from None
    return found


def import_file(file: Path) -> ModuleType:
    """Return the module of a user's file; modules beside it are found while it is imported, as for a script.

    Raises:
        OSError: it cannot be read.
        Exception: whatever the file raises.
    """
    name = f"user_file_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        # Last from here on: what the measuring code still has to import must not be found beside the user's file.
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.append(folder)
    return module


def error_text(error: BaseException, file: Path | None) -> str:
    """Return the class and first line of an error, with the line of the user's file that it came through."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}{line_in(error, file)}"


def line_in(error: BaseException, file: Path | None) -> str:
    """Return ` (line N)`, the last line of the user's file that an error came through, or nothing."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if file is not None and Path(trace.tb_frame.f_code.co_filename) == file:
            found = f" (line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
