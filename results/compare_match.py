"""Which records of two sides belong together, and which have no counterpart.

Records belong together where op, dtype, case, shape, options, fill and cache state are the same, and the provider too
unless it is what differs. None is left out in silence: each is in a pair or in `unmatched`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from results.compare_load import Measured
from results.compare_sides import CompareError


class Key(NamedTuple):
    """What must agree for two records to be compared."""

    op: str
    dtype: str
    case: str
    shape: str
    options: str
    provider: str | None
    """None where the provider is what differs."""
    fill: str | None
    cache: str | None

    @classmethod
    def of(cls, one: Measured, with_provider: bool) -> Key:
        """Return the key of a record."""
        provider = one.provider if with_provider else None
        return cls(one.op, one.dtype, one.case, one.shape, one.options, provider, one.fill, one.cache)


class Pair(NamedTuple):
    """The records of one key on either side; several where it was measured several times."""

    key: Key
    baseline: list[Measured]
    candidate: list[Measured]


@dataclass(frozen=True)
class Unmatched:
    """A record that could not be compared."""

    side: str
    """`baseline` or `candidate`."""
    measured: Measured
    reason: str
    is_broken: bool = False
    """It is a wrong or failed result of the candidate."""


Groups = dict[tuple[Key, str], list[Measured]]
"""Finished records by key and provider."""


@dataclass(frozen=True)
class Matching:
    """The pairs, and what is in none."""

    pairs: list[Pair]
    unmatched: list[Unmatched]
    notes: list[str]


def match(
    baseline: Iterable[Measured], candidate: Iterable[Measured], with_provider: bool, force: bool = False
) -> Matching:
    """Return which records of two sides belong together.

    Args:
        baseline: records of one side; with one provider only, unless `with_provider`.
        candidate: records of the other.
        with_provider: whether only records of the same provider belong together.
        force: whether records that differ in fill or cache alone do as well.

    Raises:
        CompareError: records differ in fill or cache alone, and it is not forced.
    """
    first, rest = _grouped("baseline", baseline, with_provider)
    second, more = _grouped("candidate", candidate, with_provider)
    by_key = {key: records for (key, _), records in first.items()}
    pairs: list[Pair] = []
    left: Groups = {}
    for (key, provider), records in second.items():
        if (found := by_key.get(key)) is None:
            left[key, provider] = records
        else:
            pairs.append(Pair(key, found, records))
    loose, notes = _loosely_paired(by_key, left, {pair.key for pair in pairs}, force)
    pairs += loose
    used = {id(records) for pair in pairs for records in (pair.baseline, pair.candidate)}
    for side, groups, lost in (("baseline", first, rest), ("candidate", left, more)):
        other = "candidate" if side == "baseline" else "baseline"
        lonely = [one for records in groups.values() if id(records) not in used for one in records]
        lost += [Unmatched(side, one, f"not in the {other}") for one in lonely]
    return Matching(pairs, rest + [_with_blame(one, by_key, with_provider) for one in more], notes)


def _grouped(side: str, records: Iterable[Measured], with_provider: bool) -> tuple[Groups, list[Unmatched]]:
    """Return the finished records by key and provider, and the others as unmatched."""
    groups: Groups = {}
    unmatched = []
    for one in records:
        if one.status == "ok":
            groups.setdefault((Key.of(one, with_provider), one.provider), []).append(one)
        else:
            unmatched.append(Unmatched(side, one, f"{one.status}: {one.reason or 'no reason was kept'}"))
    return groups, unmatched


def _loosely_paired(
    by_key: dict[Key, list[Measured]], left: Groups, used: set[Key], force: bool
) -> tuple[list[Pair], list[str]]:
    """Pair what differs in fill or cache alone, where that is forced; refuse it else."""
    if not left:
        return [], []
    waiting = {key[:-2]: key for key in by_key if key not in used}
    pairs, notes = [], dict[str, None]()
    for (key, _), records in left.items():
        found = waiting.get(key[:-2])
        if found is None:
            continue
        what = " and ".join(
            f"{name} {before or 'unknown'} against {after or 'unknown'}"
            for name, before, after in (("fill", found.fill, key.fill), ("cache", found.cache, key.cache))
            if before != after
        )
        if not force:
            raise CompareError(
                f"{key.op} {key.case} {key.dtype} was not measured alike: {what}; --force compares all the same"
            )
        notes[f"compared by force: {what}"] = None
        pairs.append(Pair(key, by_key[found], records))
    return pairs, list(notes)


def _with_blame(one: Unmatched, baselines: dict[Key, list[Measured]], with_provider: bool) -> Unmatched:
    """Mark what is wrong or failed in the candidate although the baseline is right."""
    is_wrong = one.measured.status in ("invalid", "failed")
    return Unmatched(one.side, one.measured, one.reason, is_wrong and Key.of(one.measured, with_provider) in baselines)
