"""The families and other commands that can be measured, found by the names of their files in `bench/`.

A file that cannot be used, because it is not finished or raises when it is imported, is left out with a line that says
why, so that the other ops can still be measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType

from bench.harness.op import Op
from bench.harness.op_file import BENCH, OpFileError, load_ops, options_of, own_families


@dataclass(frozen=True)
class Catalog:
    """The families and the other commands, by the names of their files."""

    families: Mapping[str, tuple[Op, ...]]
    commands: Mapping[str, ModuleType]
    """Modules whose rows are not ops, with `LISTED`, `build_parser`, `measure`, `render` and `main`."""
    problems: Sequence[str]
    """One line for each file that is left out."""


def read(reserved: Collection[str] = (), own: Sequence[str] = ()) -> Catalog:
    """Return each public file of `bench` that has `OPS` or `LISTED`.

    Args:
        reserved: names, with underscores, that no option of a family may have, as commands have them.
        own: words of `--op`, whose files are families too; what is wrong with one is told where its ops are chosen.
    """
    families: dict[str, tuple[Op, ...]] = {}
    commands: dict[str, ModuleType] = {}
    problems = []
    for path in sorted(BENCH.glob("[a-z]*.py")):
        try:
            module = _command_of(path.stem)
            if module is not None:
                commands[path.stem] = module
                continue
            ops = load_ops(path.stem, families)
            check_options(path.stem, reserved)
        except OpFileError as error:
            problems.append(f"bench/{path.name} is left out: {error}")
        else:
            families[path.stem] = ops
    with suppress(OpFileError):
        families |= own_families(own, families)
    return Catalog(families, commands, problems)


def _command_of(name: str) -> ModuleType | None:
    try:
        module = importlib.import_module(f"bench.{name}")
    except (Exception, SystemExit):
        return None  # `load_ops` says what is wrong
    return module if hasattr(module, "LISTED") else None


def check_options(family: str, reserved: Collection[str]) -> None:
    """Refuse options that the commands have already.

    Raises:
        OpFileError: with the option.
    """
    options = options_of(family)
    names = [option.dest for option in options]
    for option in options:
        if option.dest in reserved or names.count(option.dest) > 1:
            raise OpFileError(f"another option is called --{option.name} too; give it another name")
