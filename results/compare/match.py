"""Which records of two sides belong together, and which have no counterpart.

Records belong together if op, dtype, case, shape, options, fill and cache state are the same, and the provider too
unless it is what differs. None is left out in silence: each is in a pair or in `unmatched`, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from results.compare.load import text_of
from results.compare.sides import CompareError
from results.record import DEFINITION_PREFIX, Record

WRONG = ("invalid", "failed")
"""Statuses of a result that cannot be used."""


class RowKey(NamedTuple):
    """What must agree for two records to be compared."""

    op: str
    dtype: str
    case: str
    shape: str
    options: str
    provider: str | None
    """None if the provider is what differs."""
    fill: str | None
    cache: str | None

    @classmethod
    def of(cls, one: Record, with_provider: bool) -> RowKey:
        """Return the key of a record."""
        provider = one.provider if with_provider else None
        return cls(one.op, one.dtype, one.case, text_of(one.shape), text_of(one.options), provider, one.fill, one.cache)


class MatchedPair(NamedTuple):
    """The records of one key on either side; several if it was measured several times."""

    key: RowKey
    baseline: list[Record]
    candidate: list[Record]


@dataclass(frozen=True)
class Unmatched:
    """A record that could not be compared."""

    side: str
    """`baseline` or `candidate`."""
    record: Record
    reason: str
    is_broken: bool = False
    """It is a wrong or failed result of the candidate."""


Groups = dict[tuple[RowKey, str], list[Record]]
"""Records by key and provider."""


@dataclass(frozen=True)
class Matching:
    """The pairs, and what is in none."""

    pairs: list[MatchedPair]
    unmatched: list[Unmatched]
    notes: list[str]


def match(
    baseline: Sequence[Record], candidate: Sequence[Record], with_provider: bool, force: bool = False
) -> Matching:
    """Return which records of two sides belong together.

    Args:
        baseline: records of one side; with one provider only, unless `with_provider`.
        candidate: records of the other.
        with_provider: whether only records of the same provider belong together.
        force: whether sides that differ in fill or cache, or in the definition of an op, are compared all the same.

    Raises:
        CompareError: the sides differ in fill or cache or in the definition of an op, and it is not forced.
    """
    ignored, notes = _unlike(baseline, candidate, force)

    def key_of(one: Record) -> RowKey:
        return RowKey.of(one, with_provider)._replace(**ignored)

    sides = {"baseline": baseline, "candidate": candidate}
    # A record that failed before it was timed has no cache state.
    wrong = {
        side: {(key_of(one)._replace(cache=None), one.provider): one for one in records if one.status in WRONG}
        for side, records in sides.items()
    }
    finished: dict[str, Groups] = {side: {} for side in sides}
    unmatched = []
    right = {key_of(one)._replace(cache=None) for one in baseline if one.status == "ok"}
    for side, records in sides.items():
        for one in records:
            key = key_of(one)
            failed = wrong[side].get((key._replace(cache=None), one.provider))
            if one.status != "ok":
                is_broken = one.status in WRONG and side == "candidate" and key._replace(cache=None) in right
                unmatched.append(Unmatched(side, one, _status(one), is_broken))
            elif failed is not None:  # one wrong result of several is enough
                unmatched.append(Unmatched(side, one, f"it was {_status(failed)} in another measurement"))
            else:
                finished[side].setdefault((key, one.provider), []).append(one)
    by_key = {key: records for (key, _), records in finished["baseline"].items()}
    pairs, used = [], set()
    for (key, _), records in finished["candidate"].items():
        if key in by_key:
            pairs.append(MatchedPair(RowKey.of(records[0], with_provider), by_key[key], records))
            used.add(key)
            continue
        failed = next((one for (other, _), one in wrong["baseline"].items() if other == key._replace(cache=None)), None)
        reason = f"the baseline {failed.provider} is {_status(failed)}" if failed else "not in the baseline"
        unmatched += [Unmatched("candidate", one, reason) for one in records]
    lonely = [one for key, records in by_key.items() if key not in used for one in records]
    unmatched += [Unmatched("baseline", one, "not in the candidate") for one in lonely]
    notes += _redefined(pairs, force) + _of_other_work(pairs)
    return Matching(pairs, sorted(unmatched, key=lambda one: one.side), notes)


def _status(one: Record) -> str:
    return f"{one.status}: {one.reason or 'no reason was saved'}"


def _unlike(baseline: Sequence[Record], candidate: Sequence[Record], force: bool) -> tuple[dict[str, Any], list[str]]:
    """Return fill and cache as None if they differ between two sides that have one value each, and a note on it.

    Raises:
        CompareError: one differs, and it is not forced.
    """
    names, found = [], []
    for name in ("fill", "cache"):
        before, after = ({getattr(one, name) for one in side if one.status == "ok"} for side in (baseline, candidate))
        if len(before) == len(after) == 1 and before != after:
            names.append(name)
            found.append(f"{name} {before.pop() or 'unknown'} against {after.pop() or 'unknown'}")
    if not found:
        return {}, []
    text = " and ".join(found)
    if not force:
        raise CompareError(f"the two sides were not measured alike: {text}; --force compares all the same")
    return dict.fromkeys(names), [f"compared by force: {text}"]


def definitions(records: Iterable[Record]) -> list[str]:
    """Return the distinct hashes of the op's definition, without those of older versions."""
    known = (one.op_sha256 for one in records)
    return list(dict.fromkeys(sha for sha in known if sha is not None and sha.startswith(DEFINITION_PREFIX)))


def _redefined(pairs: Iterable[MatchedPair], force: bool) -> list[str]:
    """Return a note on the pairs that were measured by two definitions of their op, if that is forced.

    A change of their times may be one of the op. Records without a definition are compared as ever.

    Raises:
        CompareError: there are such pairs, and it is not forced.
    """
    found = [(pair.key, known) for pair in pairs if len(known := definitions((*pair.baseline, *pair.candidate))) > 1]
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
    """Return a note on the pairs whose sides count different FLOPs or bytes: their times are of different work."""
    found = [
        pair.key
        for pair in pairs
        if len({(one.flops, one.bytes_read, one.bytes_written) for one in (*pair.baseline, *pair.candidate)}) > 1
    ]
    if not found:
        return []
    rows, key = f"{len(found)} row{'s' * (len(found) != 1)}", found[0]
    return [f"{rows} with other FLOPs or bytes on the two sides, such as {key.op} {key.case} {key.dtype}: not one work"]
