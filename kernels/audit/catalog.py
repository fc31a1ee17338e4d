"""The shipped kernels: every version of every family, and which of them a name means."""

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from kernels import versions
from kernels.audit import AuditError
from kernels.launch import Variant
from results.show.spelling import did_you_mean

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
    def module(self) -> ModuleType:
        return importlib.import_module(self.module_name)

    def variants(self, arch: int) -> tuple[Variant, ...]:
        return _variants(self.module_name, arch)


@functools.cache
def _variants(module_name: str, arch: int) -> tuple[Variant, ...]:
    return tuple(importlib.import_module(module_name).variants(arch))


def shipped() -> list[Version]:
    """Return every version of every family, families by name, versions oldest first."""
    return [
        Version(family, name, module_name)
        for family in versions.families()
        for name, module_name in versions.modules(family).items()
    ]


def newest() -> list[Version]:
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
        return self.version.variants(self.arch)[self.index]

    @property
    def kernel(self) -> str:
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
    """Return what is compiled by default, in about a minute, and what figures are recorded of.

    Of the newest version of each family among `every`, for sm_90 the first and the last shape class, for the other
    architectures the first. bf16 stands for fp16 and fp32 where there is bf16.
    """
    last = {(choice.version.family, choice.arch): choice.version for choice in every}
    in_bf16 = {(choice.version, choice.kernel) for choice in every if choice.variant.dtype == "bf16"}
    groups: dict[tuple[object, ...], list[Choice]] = {}
    for choice in every:
        variant = choice.variant
        has_bf16 = variant.dtype in ("fp16", "fp32") and (choice.version, choice.kernel) in in_bf16
        if choice.version == last[choice.version.family, choice.arch] and not has_bf16:
            groups.setdefault((choice.kernel, choice.arch, variant.part, variant.dtype), []).append(choice)
    chosen = {group[at] for group in groups.values() for at in ((0, -1) if group[0].arch == 90 else (0,))}
    return [choice for choice in every if choice in chosen]


def select(
    names: Sequence[str], arches: Sequence[int], dtypes: Sequence[str] = (), wanted_versions: Sequence[str] = ()
) -> list[Choice]:
    """Return the variants that names, dtypes and versions ask for; no name, dtype or version means all.

    A name is a family, an operation, or `family/operation`, each with `/v2` behind it or without.
    """
    found = choices()
    for what, asked, words_of in (
        ("kernel", names, _words),
        ("dtype", dtypes, lambda choice: [choice.variant.dtype]),
        ("version", wanted_versions, lambda choice: [choice.version.name]),
    ):
        known = dict.fromkeys(word for choice in choices() for word in words_of(choice))
        for value in asked:
            if value not in known:
                allowed = ", ".join(word for word in known if "/" not in word)
                raise AuditError(f"unknown {what} '{value}'; {did_you_mean(value, known) or f'allowed are {allowed}'}")
        found = [choice for choice in found if not asked or set(words_of(choice)) & set(asked)]
    found = [choice for choice in found if choice.arch in arches]
    if not found:
        asked_for = ", ".join([*names, *dtypes, *wanted_versions, *(f"sm_{arch}" for arch in arches)])
        raise AuditError(f"no kernel fits all of {asked_for}; `python -m kernels list` shows what there is")
    return found


def _words(choice: Choice) -> list[str]:
    family, op, version = choice.version.family, choice.variant.op, choice.version.name
    plain = [family, op, f"{family}/{op}"]
    return [*plain, *(f"{word}/{version}" for word in plain)]
