"""Which records of two sides belong together, and which have no counterpart.

Records belong together where op, dtype, case, shape, options, fill and cache state are the same, and the provider too
unless it is what differs. None is left out in silence: each is in a pair or in `unmatched`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from results.compare.load import Measured
from results.compare.sides import CompareError
from results.record import DEFINITION_PREFIX

WRONG = ("invalid", "failed")
"""What a result that cannot be used is called; one that was skipped is none."""


class RowKey(NamedTuple):
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
    def of(cls, one: Measured, with_provider: bool) -> RowKey:
        """Return the key of a record."""
        key = cls._make(_KEY_OF(one))
        return key if with_provider else key._replace(provider=None)


_KEY_OF = itemgetter(*map(Measured._fields.index, RowKey._fields))
"""The fields of a record that are those of a key: in one step, as there are a hundred thousand."""


class MatchedPair(NamedTuple):
    """The records of one key on either side; several where it was measured several times."""

    key: RowKey
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


Groups = dict[tuple[RowKey, str], list[Measured]]
"""Finished records by key and provider."""


@dataclass(frozen=True)
class Matching:
    """The pairs, and what is in none."""

    pairs: list[MatchedPair]
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
        force: whether records that differ in fill or cache alone do as well, or in the definition of their op.

    Raises:
        CompareError: records differ in fill or cache alone or in the definition of their op, and it is not forced.
    """
    first, rest = _grouped("baseline", baseline, with_provider)
    second, more = _grouped("candidate", candidate, with_provider)
    by_key = {key: records for (key, _), records in first.items()}
    pairs: list[MatchedPair] = []
    left: Groups = {}
    for (key, provider), records in second.items():
        if (found := by_key.get(key)) is None:
            left[key, provider] = records
        else:
            pairs.append(MatchedPair(key, found, records))
    taken = {one for one in second if one not in left} if left else set()
    loose, notes = _loosely_paired(by_key, left, taken, force)
    pairs += loose
    notes += _redefined(pairs, force) + _of_other_work(pairs)
    used = {*map(id, [pair.baseline for pair in pairs]), *map(id, [pair.candidate for pair in pairs])}
    for side, groups, lost in (("baseline", first, rest), ("candidate", left, more)):
        other = "candidate" if side == "baseline" else "baseline"
        lonely = [one for records in groups.values() if id(records) not in used for one in records]
        lost += [Unmatched(side, one, f"not in the {other}") for one in lonely]
    right = {_without_cache(key) for key in by_key} if more else set()
    return Matching(pairs, rest + [_with_blame(one, right, with_provider) for one in more], notes)


def _grouped(side: str, records: Iterable[Measured], with_provider: bool) -> tuple[Groups, list[Unmatched]]:
    """Return the finished records by key and provider, and the others as unmatched.

    Of what was measured several times, one wrong or failed result is enough: such a row is not compared at all.
    """
    groups: Groups = {}
    unmatched = []
    wrong: dict[tuple[RowKey, str], str] = {}
    for one in records:
        key = RowKey.of(one, with_provider)
        if one.status == "ok":
            groups.setdefault((key, one.provider), []).append(one)
            continue
        reason = f"{one.status}: {one.reason or 'no reason was kept'}"
        unmatched.append(Unmatched(side, one, reason))
        if one.status in WRONG:
            wrong[_without_cache(key), one.provider] = reason
    if wrong:
        for key, provider in list(groups):
            reason = wrong.get((_without_cache(key), provider), "")
            if reason:
                also = f"it was {reason} in another measurement"
                unmatched += [Unmatched(side, one, also) for one in groups.pop((key, provider))]
    return groups, unmatched


def _without_cache(key: RowKey) -> RowKey:
    """Return a key without the cache state, which a record that failed before it was timed does not have."""
    return key._replace(cache=None)


def _loosely_paired(
    by_key: dict[RowKey, list[Measured]], left: Groups, taken: set[tuple[RowKey, str]], force: bool
) -> tuple[list[MatchedPair], list[str]]:
    """Pair what differs in fill or cache alone, where that is forced; refuse it else.

    Each of several candidates has all of the baseline before it, and takes each of its records once: first what
    differs in the cache alone, then what differs in the fill alone, then the rest.
    """
    if not left:
        return [], []
    similar: dict[Alike, list[RowKey]] = {}
    for key in by_key:
        similar.setdefault(_alike(key), []).append(key)
    pairs, notes, waiting = [], dict[str, None](), dict(left)
    for same in (("fill",), ("cache",), ()):
        for (key, provider), records in list(waiting.items()):
            free = [
                other
                for other in similar.get(_alike(key), ())
                if (other, provider) not in taken and all(getattr(other, name) == getattr(key, name) for name in same)
            ]
            if not free:
                continue
            what = _difference(free[0], key)
            if not force:
                raise CompareError(
                    f"{key.op} {key.case} {key.dtype} was not measured alike: {what}; --force compares all the same"
                )
            notes[f"compared by force: {what}"] = None
            taken.add((free[0], provider))
            del waiting[key, provider]
            pairs.append(MatchedPair(key, by_key[free[0]], records))
    return pairs, list(notes)


Alike = tuple[str | None, ...]


def _alike(key: RowKey) -> Alike:
    """Return a key without fill and cache."""
    return key[:-2]


def _difference(before: RowKey, after: RowKey) -> str:
    return " and ".join(
        f"{name} {getattr(before, name) or 'unknown'} against {getattr(after, name) or 'unknown'}"
        for name in ("fill", "cache")
        if getattr(before, name) != getattr(after, name)
    )


def definitions(records: Iterable[Measured]) -> list[str]:
    """Return the distinct hashes of the op's definition, without those of older versions."""
    known = (one.op_sha256 for one in records)
    return list(dict.fromkeys(sha for sha in known if sha is not None and sha.startswith(DEFINITION_PREFIX)))


def _redefined(pairs: Iterable[MatchedPair], force: bool) -> list[str]:
    """Return a note on the pairs that were measured by two definitions of their op, where that is forced; refuse else.

    A change of their times may be one of the op. Records that do not tell their definition are compared as ever.
    """
    found = [
        (pair.key, known)
        for pair in pairs
        if len({one.op_sha256 for one in (*pair.baseline, *pair.candidate)}) > 1  # quick, as there may be many rows
        and len(known := definitions((*pair.baseline, *pair.candidate))) > 1
    ]
    if not found:
        return []
    key, known = found[0]
    ops = ", ".join(dict.fromkeys(key.op for key, _ in found))
    hashes = " against ".join(one.removeprefix(DEFINITION_PREFIX)[:10] for one in known)
    rows = f"{len(found)} row{'s' * (len(found) != 1)}"
    text = f"{rows} of {ops} measured by two definitions of the op, such as {key.op} {key.case} {key.dtype} ({hashes})"
    if not force:
        raise CompareError(
            f"{text}: the time may have changed because the op did; choose other ops with --op, or add --force"
        )
    return [f"compared by force: {text}"]


def _of_other_work(pairs: Iterable[MatchedPair]) -> list[str]:
    """Return a note on the pairs whose sides count other FLOPs or bytes: their times are of other work."""
    found = [
        pair.key
        for pair in pairs
        if len({(one.flops, one.bytes_read, one.bytes_written) for one in (*pair.baseline, *pair.candidate)}) > 1
    ]
    if not found:
        return []
    rows, key = f"{len(found)} row{'s' * (len(found) != 1)}", found[0]
    return [f"{rows} with other FLOPs or bytes on the two sides, such as {key.op} {key.case} {key.dtype}: not one work"]


def _with_blame(one: Unmatched, baselines: Set[RowKey], with_provider: bool) -> Unmatched:
    """Mark what is wrong or failed in the candidate although the baseline is right."""
    is_broken = one.measured.status in WRONG and _without_cache(RowKey.of(one.measured, with_provider)) in baselines
    return Unmatched(one.side, one.measured, one.reason, is_broken)
