"""The shipped kernels: every version of every family, and selection by name."""

import functools
import importlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from kernels import versions
from kernels.audit import AuditError
from kernels.launch import Variant
from results.show.spelling import did_you_mean

ARCHES = (80, 90, 100)
"""Architectures that the shipped kernels are configured for."""


@dataclass(frozen=True)
class Version:
    """One version of one family, such as `v2` of `softmax`."""

    family: str
    name: str
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
    found = []
    for family in versions.families():
        for name, module_name in versions.modules(family).items():
            found.append(Version(family, name, module_name))
    return found


@dataclass(frozen=True)
class Choice:
    """One variant of one version, in a form that can be pickled."""

    version: Version
    arch: int
    index: int
    """Index among the variants of the version for the architecture."""

    @property
    def variant(self) -> Variant:
        return self.version.variants(self.arch)[self.index]

    @property
    def kernel(self) -> str:
        return f"{self.version.family}/{self.variant.op}"


def choices() -> list[Choice]:
    found = []
    for version, arch in itertools.product(shipped(), ARCHES):
        count = len(version.variants(arch))
        found += [Choice(version, arch, index) for index in range(count)]
    return found


def quick(every: Sequence[Choice]) -> list[Choice]:
    """Return the quick set of choices, which compiles in about a minute.

    It has the newest version of each family: for sm_90 the first and the last shape class, for
    other architectures the first. bf16 represents fp16 and fp32 if the kernel has bf16.
    """
    last = {(choice.version.family, choice.arch): choice.version for choice in every}
    in_bf16 = {
        (choice.version, choice.kernel) for choice in every if choice.variant.dtype == "bf16"
    }
    groups: dict[tuple[object, ...], list[Choice]] = {}
    for choice in every:
        variant = choice.variant
        has_bf16 = variant.dtype in ("fp16", "fp32") and (choice.version, choice.kernel) in in_bf16
        if choice.version == last[choice.version.family, choice.arch] and not has_bf16:
            groups.setdefault((choice.kernel, choice.arch, variant.part, variant.dtype), []).append(
                choice
            )
    chosen = set()
    for group in groups.values():
        chosen.add(group[0])
        if group[0].arch == 90:
            chosen.add(group[-1])
    return [choice for choice in every if choice in chosen]


def select(
    names: Sequence[str],
    arches: Sequence[int],
    dtypes: Sequence[str] = (),
    wanted_versions: Sequence[str] = (),
) -> list[Choice]:
    """Return the variants with one of the names, dtypes, versions and architectures; an empty list
    selects all.

    A name is a family, an operation, or `family/operation`, each with or without a version such as
    `/v2`.

    Raises:
        AuditError: an unknown value, or no variant matches.
    """
    selected = choices()
    for kind, values, names_of in (
        ("kernel", names, _names),
        ("dtype", dtypes, lambda choice: [choice.variant.dtype]),
        ("version", wanted_versions, lambda choice: [choice.version.name]),
    ):
        known = dict.fromkeys(itertools.chain.from_iterable(map(names_of, choices())))
        for value in values:
            if value not in known:
                allowed = ", ".join(name for name in known if "/" not in name)
                hint = did_you_mean(value, known) or f"choose from {allowed}"
                raise AuditError(f"unknown {kind} '{value}'; {hint}")
        selected = [
            choice for choice in selected if not values or set(names_of(choice)) & set(values)
        ]
    selected = [choice for choice in selected if choice.arch in arches]
    if not selected:
        filters = ", ".join([*names, *dtypes, *wanted_versions, *(f"sm_{arch}" for arch in arches)])
        raise AuditError(
            f"no kernel matches all of {filters}; list kernels with `python -m kernels list`"
        )
    return selected


def _names(choice: Choice) -> list[str]:
    family = choice.version.family
    op = choice.variant.op
    version = choice.version.name
    names = [family, op, f"{family}/{op}"]
    return [*names, *(f"{name}/{version}" for name in names)]
