"""The shipped kernels: every version of every family, and which of them a name means."""

import ast
import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from kernels import versions
from kernels.audit.errors import AuditError, one_line
from kernels.launch import Variant

ARCHES = (80, 90, 100)
"""What the shipped kernels are configured for."""


@dataclass(frozen=True)
class Version:
    """One version of one family."""

    family: str
    name: str
    """`v2`."""
    module_name: str

    @property
    def path(self) -> Path:
        """The file."""
        return versions.PACKAGE / self.family / f"{self.module_name.rpartition('.')[2]}.py"

    @property
    def module(self) -> ModuleType:
        """The file as a module; it is imported when first asked for."""
        return importlib.import_module(self.module_name)

    @property
    def change(self) -> str:
        """What the opening line of the file says of it."""
        docstring = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or ""
        opening = " ".join(docstring.partition("\n\n")[0].split())
        head, colon, rest = opening.partition(": ")
        return (rest if colon and head.startswith("Version") else opening).rstrip(".")

    def variants(self, arch: int) -> tuple[Variant, ...]:
        """Return what the version compiles for an architecture."""
        return _variants(self.module_name, arch)


@functools.cache
def _variants(module_name: str, arch: int) -> tuple[Variant, ...]:
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever the file does when it is imported
        raise AuditError(f"{module_name} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    if not hasattr(module, "variants"):
        raise AuditError(f"{module_name} has no variants(arch); kernels/versions.py says what a version file has")
    return tuple(module.variants(arch))


def shipped() -> list[Version]:
    """Return every version of every family, families by name, versions oldest first."""
    return [
        Version(family, name, module_name)
        for family in versions.families()
        for name, module_name in versions.modules(family).items()
    ]


def newest() -> list[Version]:
    """Return the newest version of each family."""
    return list({version.family: version for version in shipped()}.values())


@dataclass(frozen=True)
class Choice:
    """One variant of one version, where to find it again in another process."""

    version: Version
    arch: int
    index: int
    """Its place among the variants of the version for the architecture."""

    @property
    def variant(self) -> Variant:
        """The variant itself."""
        return self.version.variants(self.arch)[self.index]

    @property
    def kernel(self) -> str:
        """Family and operation."""
        return f"{self.version.family}/{self.variant.op}"


def choices(arches: Sequence[int] = ARCHES) -> list[Choice]:
    """Return every variant of every version for the architectures."""
    return [
        Choice(version, arch, index)
        for version in shipped()
        for arch in arches
        for index in range(len(version.variants(arch)))
    ]


def quick(every: Sequence[Choice]) -> list[Choice]:
    """Return what is compiled by default, in less than a minute: of the newest versions and what is recorded of them.

    For sm_90 the first and the last shape class, for the other architectures the first.
    """
    kept = recorded(every)
    chosen = {group[at] for group in _groups(kept) for at in ((0, -1) if group[0].arch == 90 else (0,))}
    return [choice for choice in kept if choice in chosen and is_newest(choice)]


def recorded(every: Sequence[Choice]) -> list[Choice]:
    """Return the variants of which golden figures are kept; they tell nearly all that all variants would.

    Each kernel of each version is there for each architecture, in fewer dtypes and shapes.

    bf16 stands for fp16, which has the same width. fp32 is left out of what has bf16 as well, but for one variant of
    the newest version of each operation, on sm_90. Of an older version, the first and the last shape class stand for
    those between.
    """
    latest = newest()
    in_bf16 = {(choice.version, choice.kernel) for choice in every if choice.variant.dtype == "bf16"}
    kept, in_fp32 = [], set()
    for choice in every:
        plain = choice.variant.dtype in ("fp16", "fp32") and (choice.version, choice.kernel) in in_bf16
        first = (choice.kernel, choice.variant.part)
        one_fp32 = choice.variant.dtype == "fp32" and choice.arch == 90 and choice.version in latest
        if not plain or (one_fp32 and first not in in_fp32):
            kept.append(choice)
            if plain:
                in_fp32.add(first)
    ends = _ends(kept)
    return [choice for choice in kept if choice in ends or is_newest(choice)]


def is_newest(choice: Choice) -> bool:
    """Return whether no later version of its family has anything for the same architecture."""
    family = [version for version in shipped() if version.family == choice.version.family]
    return choice.version == [version for version in family if version.variants(choice.arch)][-1]


def _ends(kept: Sequence[Choice]) -> set[Choice]:
    """Return the first and the last choice of each kernel, part, dtype and architecture of a version."""
    return {choice for group in _groups(kept) for choice in (group[0], group[-1])}


def _groups(kept: Sequence[Choice]) -> list[list[Choice]]:
    """Return the choices in groups of one kernel, part, dtype and architecture of a version, in the order of shapes."""
    groups: dict[tuple[object, ...], list[Choice]] = {}
    for choice in kept:
        variant = choice.variant
        key = (choice.version, choice.arch, choice.kernel, variant.part, variant.dtype)
        groups.setdefault(key, []).append(choice)
    return list(groups.values())


def select(
    names: Sequence[str], arches: Sequence[int], dtypes: Sequence[str] = (), wanted_versions: Sequence[str] = ()
) -> list[Choice]:
    """Return the variants that names, dtypes and versions ask for.

    Args:
        names: Families, operations, `family/operation`, each with `/v2` behind it or without; none means all.
        arches: Architectures, 90 for sm_90.
        dtypes: None means all.
        wanted_versions: None means all.

    Raises:
        AuditError: A name, dtype or version that nothing has; or nothing has all that is asked for together.
    """
    every = choices()
    known = sorted({word for choice in every for word in _words(choice)})
    for name in names:
        if name not in known:
            raise AuditError(f"unknown kernel '{name}'; {_hint(name, known, every)}")
    _require_known("dtype", dtypes, sorted({choice.variant.dtype for choice in every}))
    _require_known("version", wanted_versions, sorted({choice.version.name for choice in every}))
    found = [
        choice
        for choice in every
        if choice.arch in arches
        and (not names or _words(choice) & set(names))
        and (not dtypes or choice.variant.dtype in dtypes)
        and (not wanted_versions or choice.version.name in wanted_versions)
    ]
    if not found:
        asked = ", ".join([*names, *dtypes, *wanted_versions, *(f"sm_{arch}" for arch in arches)])
        raise AuditError(f"no kernel fits all of {asked}; `python -m kernels list` shows what there is")
    return found


def _words(choice: Choice) -> set[str]:
    """Return the names that mean a variant."""
    family, op, version = choice.version.family, choice.variant.op, choice.version.name
    plain = {family, op, f"{family}/{op}"}
    return plain | {f"{word}/{version}" for word in plain}


def _hint(name: str, known: Sequence[str], every: Sequence[Choice]) -> str:
    stem = name.partition("/")[0]
    mine = sorted({choice.version.name for choice in every if stem in _words(choice)})
    if mine and "/" in name:
        return f"{stem} has {', '.join(f'{stem}/{version}' for version in mine)}"
    close = get_close_matches(name, known, 3, 0.5)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"families are {', '.join(sorted({choice.version.family for choice in every}))}"


def _require_known(what: str, asked: Sequence[str], known: Sequence[str]) -> None:
    for value in asked:
        if value not in known:
            raise AuditError(f"unknown {what} '{value}'; allowed are {', '.join(known)}")


def listing() -> list[dict[str, object]]:
    """Return a row for each operation of each version; see `kernels.listing`, which keeps them."""
    rows: list[dict[str, object]] = []
    for version in shipped():
        dtypes: dict[str, dict[str, None]] = {}
        for arch in ARCHES:
            for variant in version.variants(arch):
                dtypes.setdefault(variant.op, {})[variant.dtype] = None
        rows += [
            {
                "family": version.family,
                "op": op,
                "version": version.name,
                "dtypes": list(found),
                "file": version.path.relative_to(versions.PACKAGE.parent).as_posix(),
                "change": version.change,
            }
            for op, found in dtypes.items()
        ]
    return rows
