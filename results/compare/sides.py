"""The two sides of a comparison, and the matching of their records.

Records match if op, dtype, case, shape, options, fill and cache state are equal, and the provider
unless it is compared. Each record is in a pair or, with the reason, in `unmatched`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, NamedTuple

from results.record import DEFINITION_PREFIX, Environment, Record, RowKey
from results.stats.comparison import DEFAULT_MARGIN
from results.store.runfile import Run, StoreError

MODES = ("provider", "version", "git")
"""What distinguishes the candidate from the baseline if not the run."""

VERSION = re.compile(r".*-v\d+(-.*)?|.+:.+")
"""Providers that are versions of a kernel: `triton-v2`, `path/to/file.py:function`."""

USUAL_BASELINE = "torch"

SAME_MACHINE = ("clock_mode", "power_limit_w", "governor", "turbo")
"""Keys of the settings, the preflight or the device that must be equal if both runs have them."""

WRONG = ("invalid", "failed")
"""Statuses of a result that cannot be used."""


class CompareError(StoreError):
    """The runs cannot be compared; the message has the cause and the remedy."""


@dataclass(frozen=True)
class CompareOptions:
    """How to compare."""

    by: str | None = None
    """One of `MODES`; None if the run distinguishes candidate and baseline."""
    baseline: str | None = None
    """Name of the baseline's provider."""
    margin: float = DEFAULT_MARGIN
    force: bool = False
    """Compare runs even if machine, fill, cache or definitions differ."""

    @property
    def by_provider(self) -> bool:
        return self.by in ("provider", "version")


def is_users(record: Record) -> bool:
    """Return whether the provider is a user's function: built-in names have no colon."""
    return ":" in record.provider


def revision_text(git: Mapping[str, Any] | None) -> str | None:
    """Return a git revision, ten digits, with `-dirty` if files were changed; None if unknown."""
    sha = git.get("sha") if git else None
    return f"{str(sha)[:10]}{'-dirty' if git and git.get('dirty') else ''}" if sha else None


def revision_of(record: Record, environment: Environment) -> str | None:
    """Return the git revision of the measured kernel; a user's kernel has another one than the
    measuring code.
    """
    return revision_text(record.source_git if is_users(record) else environment.git)


def definitions(records: Iterable[Record]) -> list[str]:
    """Return the distinct hashes of the op's definition, without those of older versions."""
    known = (record.op_sha256 for record in records)
    return list(
        dict.fromkeys(sha for sha in known if sha is not None and sha.startswith(DEFINITION_PREFIX))
    )


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a row: records of one provider and case, from one or several windows of time."""

    label: str
    records: Sequence[Record]
    environment: Environment
    judge: Callable[[Record], Mapping[str, Any]]
    """See `roofline.model.judge_of`."""
    runs: int = 1
    """Number of runs of the records, all of the same code."""

    @property
    def provider(self) -> str:
        return self.records[0].provider

    @cached_property
    def time_s(self) -> float:
        medians_s = [record.median_s for record in self.records if record.median_s]
        return (
            medians_s[0]
            if len(medians_s) == 1
            else math.exp(math.fsum(map(math.log, medians_s)) / len(medians_s))
        )

    @cached_property
    def windows(self) -> list[list[float]]:
        """Samples of each visit of each record, seconds; the median if a record has no samples."""
        windows = []
        for record in self.records:
            samples_s = list(record.samples_s) or [record.median_s or 0.0]
            ends = list(accumulate(record.visits)) or [len(samples_s)]
            windows += [samples_s[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return windows

    @cached_property
    def _score(self) -> Mapping[str, Any]:
        return self.judge(self.records[0])

    def rate(self, key: str) -> float | None:
        """Return a rate or utilization at `time_s`; all records have the same work."""
        value = self._score[key]
        median_s = self.records[0].median_s
        return value * median_s / self.time_s if value and median_s else None

    @property
    def of_ceiling(self) -> tuple[float, str] | None:
        """Fraction of the ceiling that binds, and `compute` or `memory`; None if unknown."""
        share_pct = self.rate("roofline_pct")
        mbu = self.rate("mbu")
        if share_pct is None:
            return None
        is_memory = mbu is not None and math.isclose(100 * mbu, share_pct, rel_tol=1e-9)
        return share_pct / 100, "memory" if is_memory else "compute"

    @property
    def clock_hz(self) -> float | None:
        """Mean SM clock of all records; None if any is unknown."""
        clocks_hz: list[Any] = [record.telemetry.get("sm_clock_hz") for record in self.records]
        return sum(clocks_hz) / len(clocks_hz) if all(clocks_hz) else None

    @cached_property
    def flags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(record.flags for record in self.records)))


def check_request(first: Run, second: Run, request: CompareOptions, is_one_run: bool) -> None:
    """Raise CompareError if options conflict with each other or with the runs."""
    if is_one_run and not request.by_provider:
        text = "--by git: " if request.by == "git" else ""
        raise CompareError(f"{text}expected two runs, got one; add a second, or use --by provider")
    if request.baseline is not None and not request.by_provider:
        raise CompareError(f"--baseline {request.baseline} requires --by provider")
    if request.by == "git":
        before, after = revisions(first, second)
        if None in (before, after):
            raise CompareError(
                "--by git: a run has no revision (its function is not in a git repository); "
                "omit --by to compare the runs"
            )
        if before == after and not request.force:
            raise CompareError(
                f"--by git: both runs are of revision {before}; omit --by to compare them"
            )


def revisions(first: Run, second: Run) -> tuple[str | None, str | None]:
    """Return the revisions that distinguish two runs, None if unknown.

    They are those of the users' kernels, or of the measuring code if the users' are equal or
    unknown.
    """
    users = [
        dict.fromkeys(
            revision_text(record.source_git) for record in run.records if is_users(record)
        )
        for run in (first, second)
    ]
    pairs: list[tuple[str | None, str | None]] = []
    if all(users):
        before, after = (None if None in names else " + ".join(map(str, names)) for names in users)
        pairs.append((before, after))
    if all(any(not is_users(record) for record in run.records) for run in (first, second)):
        pairs.append((revision_text(first.environment.git), revision_text(second.environment.git)))
    known = [pair for pair in pairs if None not in pair]
    different = [pair for pair in known if pair[0] != pair[1]]
    for preferred in (different, known, pairs):
        if preferred:
            return preferred[0]
    return None, None


def _providers(run: Run, request: CompareOptions) -> list[str]:
    names = list(dict.fromkeys(record.provider for record in run.records))
    return [name for name in names if VERSION.fullmatch(name)] if request.by == "version" else names


def sides_of(
    run: Run, other: Run, request: CompareOptions
) -> tuple[str | None, list[Record], list[Record]]:
    """Return the provider of the baseline, None if the run is the baseline, and the records of both
    sides.
    """
    if not request.by_provider:
        return None, list(run.records), list(other.records)
    names = _providers(run, request)
    if request.by == "version":
        numbers = {}
        for name in names:
            version = re.search(r"-v(\d+)", name)
            numbers[name] = int(version[1]) if version else 0
        names.sort(key=lambda name: (numbers[name], name))
    if not names:
        raise CompareError(
            f"{run.path}: no provider is a version of a kernel, such as triton-v1 or "
            f"file.py:function"
        )
    chosen = request.baseline or (USUAL_BASELINE if USUAL_BASELINE in names else names[0])
    if chosen not in names:
        raise CompareError(f"unknown baseline {chosen} (choose from {', '.join(names)})")
    others = {name for name in _providers(other, request) if name != chosen}
    if not others:
        kind = "version of a kernel" if request.by == "version" else "provider"
        raise CompareError(f"{other.path}: no other {kind} to compare with {chosen}")
    baseline = [record for record in run.records if record.provider == chosen]
    return chosen, baseline, [record for record in other.records if record.provider in others]


def labels_of(
    first: Run, second: Run, request: CompareOptions, baseline: str | None
) -> tuple[str, str]:
    if baseline is not None:
        others = [name for name in _providers(second, request) if name != baseline]
        return baseline, others[0] if len(others) == 1 else f"{len(others)} providers"
    before, after = revisions(first, second)
    if request.by == "git" or (None not in (before, after) and before != after):
        return str(before), str(after)
    return first.environment.run_id, second.environment.run_id


def differences(first: Environment, second: Environment, force: bool) -> list[str]:
    """Return notes on differences between two runs; CompareError if the machine differs, unless
    `force`.
    """
    facts = [
        (
            "GPU" if first.device["type"] != "cpu" else "device",
            first.device["name"],
            second.device["name"],
        ),
        ("device type", first.device["type"], second.device["type"]),
        ("host", first.host.get("name") or None, second.host.get("name") or None),
        ("threads", first.device.get("threads"), second.device.get("threads")),
        *((key, _fact(first, key), _fact(second, key)) for key in SAME_MACHINE),
    ]
    refused = [
        f"{name} {before} against {after}"
        for name, before, after in facts
        if before is not None and after is not None and before != after
    ]
    if refused and not force:
        raise CompareError(
            f"not the same machine: {'; '.join(refused)}; --force compares them anyway"
        )
    changed = [
        f"{name} {first.versions.get(name)} to {second.versions.get(name)}"
        for name in dict.fromkeys((*first.versions, *second.versions))
        if first.versions.get(name) != second.versions.get(name)
    ]
    notes = [f"compared by force: {text}" for text in refused]
    return notes + ([f"other versions: {', '.join(changed)}"] if changed else [])


def _fact(environment: Environment, key: str) -> Any:
    groups = (environment.settings, environment.preflight, environment.device)
    return next((group[key] for group in groups if group.get(key) is not None), None)


class MatchedPair(NamedTuple):
    """Records of the same key on both sides; several if measured several times."""

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
    """Whether it is a wrong or failed result of the candidate."""


def match(
    baseline: Sequence[Record],
    candidate: Sequence[Record],
    with_provider: bool,
    force: bool = False,
) -> tuple[list[MatchedPair], list[Unmatched], list[str]]:
    """Return pairs, unmatched records and notes; `force` matches even if fill or cache of the sides
    differ.
    """
    ignored, notes = _measured_differently(baseline, candidate, force)
    anyone: dict[str, Any] = {} if with_provider else {"provider": None}
    keyed = {
        side: [(record.row._replace(**ignored, **anyone), record) for record in records]
        for side, records in (("baseline", baseline), ("candidate", candidate))
    }
    # Keys without the cache state, their last field: a record that failed before timing has none.
    wrong = {
        side: {
            (key[:-1], record.provider): record for key, record in records if record.status in WRONG
        }
        for side, records in keyed.items()
    }
    right = {key[:-1] for key, record in keyed["baseline"] if record.status == "ok"}
    finished: dict[str, dict[tuple[RowKey, str], list[Record]]] = {side: {} for side in keyed}
    unmatched = []
    for side, records in keyed.items():
        for key, record in records:
            failed = wrong[side].get((key[:-1], record.provider))
            if record.status != "ok":
                is_broken = record.status in WRONG and side == "candidate" and key[:-1] in right
                unmatched.append(Unmatched(side, record, _status(record), is_broken))
            elif failed is not None:  # one wrong result is enough
                unmatched.append(
                    Unmatched(side, record, f"another measurement was {_status(failed)}")
                )
            else:
                finished[side].setdefault((key, record.provider), []).append(record)
    by_key = {key: records for (key, _), records in finished["baseline"].items()}
    wrong_by_key = {key: record for (key, _), record in reversed(wrong["baseline"].items())}
    pairs = []
    used = set()
    for (key, _), matching in finished["candidate"].items():
        if key in by_key:
            pairs.append(MatchedPair(matching[0].row._replace(**anyone), by_key[key], matching))
            used.add(key)
            continue
        failed = wrong_by_key.get(key[:-1])
        reason = (
            f"the baseline {failed.provider} is {_status(failed)}"
            if failed
            else "not in the baseline"
        )
        unmatched += [Unmatched("candidate", record, reason) for record in matching]
    for key, matching in by_key.items():
        if key not in used:
            reason = "not in the candidate"
            unmatched += [Unmatched("baseline", record, reason) for record in matching]
    notes += _redefined(pairs, force) + _with_other_work(pairs)
    return pairs, sorted(unmatched, key=lambda row: row.side), notes


def _status(record: Record) -> str:
    return f"{record.status}: {record.reason or 'no reason was saved'}"


def _measured_differently(
    baseline: Sequence[Record], candidate: Sequence[Record], force: bool
) -> tuple[dict[str, Any], list[str]]:
    names = []
    differences = []
    for name in ("fill", "cache"):
        before, after = (
            {getattr(record, name) for record in side if record.status == "ok"}
            for side in (baseline, candidate)
        )
        if len(before) == len(after) == 1 and before != after:
            names.append(name)
            differences.append(
                f"{name} {before.pop() or 'unknown'} against {after.pop() or 'unknown'}"
            )
    if not differences:
        return {}, []
    text = " and ".join(differences)
    if not force:
        raise CompareError(
            f"the two sides were measured differently: {text}; --force compares them anyway"
        )
    return dict.fromkeys(names), [f"compared by force: {text}"]


def _redefined(pairs: Iterable[MatchedPair], force: bool) -> list[str]:
    rows_found = []
    for pair in pairs:
        known = definitions(pair.baseline + pair.candidate)
        if len(known) > 1:
            rows_found.append((pair.key, known))
    if not rows_found:
        return []
    key, known = rows_found[0]
    ops = ", ".join(dict.fromkeys(key.op for key, _ in rows_found))
    hashes = " against ".join(sha.removeprefix(DEFINITION_PREFIX)[:10] for sha in known)
    rows = "1 row" if len(rows_found) == 1 else f"{len(rows_found)} rows"
    text = (
        f"{rows} of {ops} measured by two definitions of the op, such as {key.op} {key.case} "
        f"{key.dtype} ({hashes})"
    )
    if not force:
        raise CompareError(
            f"{text}: the time may have changed because the op did; choose other ops with --op, "
            f"or use --force"
        )
    return [f"compared by force: {text}"]


def _with_other_work(pairs: Iterable[MatchedPair]) -> list[str]:
    work_of = attrgetter("flops", "bytes_read", "bytes_written")
    rows_found = [
        pair.key for pair in pairs if len(set(map(work_of, pair.baseline + pair.candidate))) > 1
    ]
    if not rows_found:
        return []
    rows = "1 row" if len(rows_found) == 1 else f"{len(rows_found)} rows"
    key = rows_found[0]
    return [
        (
            f"{rows} with other FLOPs or bytes on the two sides, such as {key.op} {key.case} "
            f"{key.dtype}"
        )
    ]
