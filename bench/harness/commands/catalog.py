"""What there is to measure: the families and the scenarios, found by the names of their files in `bench/`.

A file that cannot be used, because it is not finished or raises when it is imported, is left out with a line that says
why: what is wrong with one op is no reason that no other can be measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from bench.harness.op import Op, Option
from bench.harness.providers.user_kernel import line_in
from bench.harness.scenarios.scenario import Scenario

BENCH = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Catalog:
    """What there is, by the names of the files."""

    families: Mapping[str, tuple[Op, ...]]
    scenarios: Mapping[str, Scenario]
    problems: Sequence[str]
    """One line for each file that is left out."""


class NotUsableError(ValueError):
    """A file of `bench/` cannot be used; the message says why in one line."""


def read(reserved: Collection[str] = ()) -> Catalog:
    """Return what there is: each public file of `bench` that has `OPS` or `SCENARIO`.

    Args:
        reserved: names, with underscores, that no option of a family may have, as commands have them.
    """
    families: dict[str, tuple[Op, ...]] = {}
    scenarios: dict[str, Scenario] = {}
    problems = []
    for path in sorted(BENCH.glob("[a-z]*.py")):
        try:
            module = importlib.import_module(f"bench.{path.stem}")
            if hasattr(module, "SCENARIO"):
                scenarios[path.stem] = module.SCENARIO
            else:
                families[path.stem] = _ops_of(module, families, reserved)
        except NotUsableError as error:
            problems.append(f"bench/{path.name} is left out: {error}")
        except (Exception, SystemExit) as error:
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            problems.append(f"bench/{path.name} is left out: {type(error).__name__}: {line}{line_in(error, path)}")
    return Catalog(families, scenarios, problems)


def options_of(family: str) -> Sequence[Option]:
    """Return the options that only this family has."""
    options: Sequence[Option] = getattr(importlib.import_module(f"bench.{family}"), "OPTIONS", ())
    return options


def _ops_of(module: ModuleType, families: Mapping[str, tuple[Op, ...]], reserved: Collection[str]) -> tuple[Op, ...]:
    """Return the ops of a family's module.

    Raises:
        NotUsableError: it has none, or what it has cannot stand beside the other families.
    """
    ops, options = getattr(module, "OPS", ()), getattr(module, "OPTIONS", ())
    if not ops:
        raise NotUsableError("it has no OPS (of an operation) and no SCENARIO")
    if not (isinstance(ops, tuple) and all(isinstance(op, Op) for op in ops)):
        raise NotUsableError("its OPS must be a tuple of Op")
    if not all(isinstance(option, Option) for option in options):
        raise NotUsableError("its OPTIONS must be a tuple of Option")
    known = {op.name: family for family, others in families.items() for op in others}
    for op in ops:
        if op.name in known:
            raise NotUsableError(f"bench/{known[op.name]}.py has an op '{op.name}' too; give it another name")
    names = [option.dest for option in options]
    for option in options:
        if option.dest in reserved or names.count(option.dest) > 1:
            raise NotUsableError(f"another option is called --{option.name} too; give it another name")
    return ops
