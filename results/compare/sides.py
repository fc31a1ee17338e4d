"""The two sides of a comparison, and the matching of their records.

Records match if op, dtype, case, shape, options, fill and cache state are equal, and the provider
unless it is compared. Each record is in a pair or, with the reason, in `unmatched`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import attrgetter
from statistics import geometric_mean
from typing import Any, NamedTuple

from results.record import (
    DEFINITION_PREFIX,
    Environment,
    Object,
    Record,
    RowKey,
    name_of,
)
from results.show.table import format_half_width
from results.show.units import ABSENT, count, percent
from results.stats.comparison import DEFAULT_MARGIN
from results.stats.verdict import side_of
from results.store.runfile import Run, StoreError
from results.store.runs import revision_text
from roofline.model import Judgment, judge, limits_s

MODES = ("provider", "version", "git")
"""What distinguishes the candidate from the baseline if not the run."""

VERSION = re.compile(r".*-v\d+(-.*)?|.+:.+")
NUMBER = re.compile(r"[-_]v(\d+)")
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
    """Compare runs even if the machine or the definition of an op differs."""

    @property
    def by_provider(self) -> bool:
        return self.by in ("provider", "version")


def is_users(record: Record) -> bool:
    """Return whether the provider is a user's function: built-in names have no colon."""
    return ":" in record.provider


def revision_of(record: Record, environment: Environment) -> str | None:
    """Return the git revision of the measured kernel; a user's kernel has another one than the
    measuring code.
    """
    return revision_text(record.source_git if is_users(record) else environment.git)


def definitions(records: Iterable[Record]) -> list[str]:
    """Return the distinct hashes of the op's definition, without those of older versions."""
    known = (record.op_sha256 or "" for record in records)
    return list(dict.fromkeys(sha for sha in known if sha.startswith(DEFINITION_PREFIX)))


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a row: records of one provider and case, from one or several windows of time."""

    label: str
    records: Sequence[Record]
    environment: Environment
    runs: int = 1
    """Number of runs of the records, all of the same code."""

    @property
    def provider(self) -> str:
        return self.records[0].provider

    @cached_property
    def time_s(self) -> float:
        medians_s = [record.median_s for record in self.records if record.median_s]
        return medians_s[0] if len(medians_s) == 1 else geometric_mean(medians_s)

    @cached_property
    def windows(self) -> list[list[float]]:
        """Samples of each visit of each record, seconds; the median if a record has no samples.

        Visits of a file that do not add up to the samples are one.
        """
        windows = []
        for record in self.records:
            samples_s = list(record.samples_s) or [record.median_s or 0.0]
            ends = [len(samples_s)]
            if sum(record.visits) == len(record.samples_s) and 0 not in record.visits:
                ends = list(accumulate(record.visits)) or ends
            windows += [samples_s[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return windows

    @cached_property
    def _score(self) -> Judgment:
        return judge(self.records[0], self.environment.machine)

    def rate(self, key: str) -> float | None:
        """Return a rate or utilization at `time_s`; all records have the same work."""
        value: float | None = getattr(self._score, key)
        median_s = self.records[0].median_s
        return value * median_s / self.time_s if value and median_s else None

    @cached_property
    def mfu_ci95(self) -> tuple[float, float] | None:
        """95 % interval of the MFU by the scatter within the runs; None if the MFU is unknown."""
        mfu = self.rate("mfu")
        if mfu is None:
            return None
        times = side_of(self.windows)
        return mfu * math.exp(-times.above), mfu * math.exp(times.below)

    @property
    def mfu_text(self) -> str:
        half_width = format_half_width(self.mfu_ci95, self.rate("mfu"))
        return f"{percent(self.rate('mfu'))} {half_width}".removesuffix(f" {ABSENT}")

    @property
    def of_ceiling(self) -> tuple[float, str] | None:
        """Fraction of the roof that binds, and its name; None if unknown."""
        share_pct = self.rate("roofline_pct")
        roofs = limits_s(self.records[0], self.environment.machine.roofs)
        if share_pct is None or roofs is None:
            return None
        return share_pct / 100, max(roofs, key=roofs.__getitem__)

    @property
    def clock_hz(self) -> float | None:
        """Mean SM clock of all records; None if any is unknown."""
        clocks_hz: list[Any] = [record.telemetry.get("sm_clock_hz") for record in self.records]
        return sum(clocks_hz) / len(clocks_hz) if all(clocks_hz) else None

    @cached_property
    def flags(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(record.flags for record in self.records)))


def revisions(first: Run, second: Run) -> tuple[str, str] | None:
    """Return the revisions that distinguish two runs; None if unknown.

    They are those of the users' kernels, or of the measuring code if the users' are equal or
    unknown.
    """
    known = []
    for of_users in (True, False):
        before = _revision(first, of_users)
        after = _revision(second, of_users)
        if before and after:
            known.append((before, after))
    different = [pair for pair in known if pair[0] != pair[1]]
    return next(iter(different + known), None)


def _revision(run: Run, of_users: bool) -> str | None:
    """Return the revisions of the users' kernels in a run, or that of the measuring code."""
    names: dict[str, None] = {}
    for record in run.records:
        if is_users(record) == of_users:
            name = revision_of(record, run.environment)
            if name is None:
                return None
            names[name] = None
    return " + ".join(names)


def _providers(run: Run, request: CompareOptions) -> list[str]:
    names = list(dict.fromkeys(record.provider for record in run.records))
    if request.by != "version":
        return names
    numbered = []
    for name in filter(VERSION.fullmatch, names):
        number = NUMBER.search(name)
        numbered.append((int(number[1]) if number else 0, name))
    return [name for _, name in sorted(numbered)]


def sides_of(
    first: Run, second: Run | None, request: CompareOptions
) -> tuple[tuple[str, str], list[Record], list[Record]]:
    """Return the names of both sides, and the records of each.

    Raises:
        CompareError: options conflict with each other or with the runs.
    """
    if request.by_provider:
        return _sides_by_provider(first, second or first, request)
    if request.baseline is not None:
        raise CompareError(f"--baseline {request.baseline} requires --by provider")
    if second is None:
        raise CompareError(
            "expected two runs, got one; add a second, use --by provider, or measure both "
            "in turns with python -m bench compare"
        )
    labels = revisions(first, second)
    is_one = labels is None or labels[0] == labels[1]
    if is_one and request.by == "git" and not request.force:
        raise CompareError(
            "--by git: the runs are of one revision, or of an unknown one (its function is not in "
            "a git repository); omit --by to compare them"
        )
    if is_one or labels is None:
        labels = (first.environment.run_id, second.environment.run_id)
    return labels, list(first.records), list(second.records)


def _sides_by_provider(
    first: Run, second: Run, request: CompareOptions
) -> tuple[tuple[str, str], list[Record], list[Record]]:
    names = _providers(first, request)
    if not names:
        raise CompareError(
            f"{first.path}: no provider is a version of a kernel, such as triton-v1 or "
            f"file.py:function"
        )
    usual = USUAL_BASELINE if USUAL_BASELINE in names else names[0]
    chosen = request.baseline or usual
    if chosen not in names:
        raise CompareError(f"unknown baseline {chosen} (choose from {', '.join(names)})")
    others = [name for name in _providers(second, request) if name != chosen]
    if not others:
        kind = "version of a kernel" if request.by == "version" else "provider"
        raise CompareError(f"{second.path}: no other {kind} to compare with {chosen}")
    label = others[0] if len(others) == 1 else f"{len(others)} {request.by}s"
    baseline = [record for record in first.records if record.provider == chosen]
    candidate = [record for record in second.records if record.provider in others]
    if request.by == "version":
        candidate.sort(key=lambda record: others.index(record.provider))
    return (chosen, label), baseline, candidate


def differences(first: Environment, second: Environment, force: bool) -> list[str]:
    """Return notes on differences between two runs; CompareError if the machine differs, unless
    `force`.
    """
    notes = []
    before = machine_facts(first)
    after = machine_facts(second)
    changed = []
    for name in before:
        if name in after and before[name] != after[name]:
            changed.append(f"{name} {before[name]} against {after[name]}")
    if changed:
        text = "; ".join(changed)
        if not force:
            raise CompareError(f"not the same machine: {text}; --force compares them anyway")
        notes.append(f"compared by force: {text}")
    versions = []
    for name in first.versions | second.versions:
        old = first.versions.get(name)
        new = second.versions.get(name)
        if old != new:
            versions.append(f"{name} {old} to {new}")
    if versions:
        notes.append(f"other versions: {', '.join(versions)}")
    return notes


def machine_facts(environment: Environment) -> Object:
    """Return the known facts that are equal for runs of one machine."""
    device = environment.device
    facts = {"device": device["name"], "device type": device["type"]}
    known = {"host": environment.host.get("name") or None, "threads": device.get("threads")}
    for group in (device, environment.preflight, environment.settings):
        known |= {key: group[key] for key in SAME_MACHINE if group.get(key) is not None}
    for key, value in known.items():
        if value is not None:
            facts[key] = value
    return facts


class MatchedPair(NamedTuple):
    """Records of the same key on both sides; several if measured several times."""

    key: RowKey
    baseline: list[Record]
    candidate: list[Record]


def from_version_to_version(pairs: Iterable[MatchedPair]) -> list[MatchedPair]:
    """Return the pairs of each version with the one before it, and with the fastest before it if
    that is another one, case by case.

    `pairs` are those of the later versions, in their order, with the first.
    """
    versions: dict[RowKey, list[list[Record]]] = {}
    steps: dict[RowKey, list[MatchedPair]] = {}
    for pair in pairs:
        earlier = versions.setdefault(pair.key, [pair.baseline])
        fastest = min(earlier, key=lambda records: records[0].median_s or math.inf)
        known = steps.setdefault(pair.key, [])
        known.append(pair._replace(baseline=earlier[-1]))
        if fastest is not earlier[-1]:
            known.append(pair._replace(baseline=fastest))
        earlier.append(pair.candidate)
    return list(chain.from_iterable(steps.values()))


@dataclass(frozen=True)
class Unmatched:
    """A record that could not be compared."""

    side: str
    """`baseline` or `candidate`."""
    record: Record
    reason: str
    is_broken: bool = False
    """Whether it is a wrong or failed result of the candidate."""

    @property
    def name(self) -> str:
        record = self.record
        return " ".join(filter(None, (name_of(record), record.fill, record.cache)))


def match(
    baseline: Sequence[Record], candidate: Sequence[Record], with_provider: bool, force: bool
) -> tuple[list[MatchedPair], list[Unmatched], list[str]]:
    """Return pairs, unmatched records and notes; `force` allows two definitions of an op."""
    anyone: Object = {} if with_provider else {"provider": None}
    right = {
        _case_of(record.row._replace(**anyone)) for record in baseline if record.status == "ok"
    }
    before, unmatched = _finished("baseline", baseline, anyone, set())
    after, others = _finished("candidate", candidate, anyone, right)
    unmatched += others
    by_key = {key: records for (key, _), records in before.items()}
    pairs = []
    for (key, _), records in after.items():
        if key in by_key:
            pairs.append(MatchedPair(key, by_key[key], records))
        else:
            reason = "not in the baseline"
            unmatched += [Unmatched("candidate", record, reason) for record in records]
    matched = {pair.key for pair in pairs}
    for key, records in by_key.items():
        if key not in matched:
            reason = "not in the candidate"
            unmatched += [Unmatched("baseline", record, reason) for record in records]
    notes = _redefined(pairs, force)
    work_of = attrgetter("flops", "bytes_read", "bytes_written")
    other = [pair for pair in pairs if len(set(map(work_of, pair.baseline + pair.candidate))) > 1]
    if other:
        notes.append(_such_as(other, "with other FLOPs or bytes on the two sides"))
    return pairs, sorted(unmatched, key=lambda row: row.side), notes


def _finished(
    side: str, records: Sequence[Record], anyone: Object, right: Collection[RowKey]
) -> tuple[dict[tuple[RowKey, str], list[Record]], list[Unmatched]]:
    """Return the usable records by key and provider, and the unusable ones.

    A wrong result of a case in `right` is broken.
    """
    rows = [(record.row._replace(**anyone), record) for record in records]
    wrong = {
        (_case_of(key), record.provider): record for key, record in rows if record.status in WRONG
    }
    finished: dict[tuple[RowKey, str], list[Record]] = {}
    unmatched = []
    for key, record in rows:
        failed = wrong.get((_case_of(key), record.provider))
        if record.status != "ok":
            is_broken = record.status in WRONG and _case_of(key) in right
            unmatched.append(Unmatched(side, record, _status(record), is_broken))
        elif failed is not None:  # one wrong result is enough
            reason = f"another measurement was {_status(failed)}"
            unmatched.append(Unmatched(side, record, reason))
        else:
            finished.setdefault((key, record.provider), []).append(record)
    return finished, unmatched


def _case_of(key: RowKey) -> RowKey:
    """Return a key without the cache state, which a record that failed before timing lacks."""
    return key._replace(cache=None)


def _status(record: Record) -> str:
    return f"{record.status}: {record.reason or 'no reason was saved'}"


def _redefined(pairs: Iterable[MatchedPair], force: bool) -> list[str]:
    found = [pair for pair in pairs if len(definitions(pair.baseline + pair.candidate)) > 1]
    if not found:
        return []
    text = _such_as(found, "measured by two definitions of the op")
    if not force:
        raise CompareError(
            f"{text}: the time may have changed because the op did; choose other ops with --op, "
            f"or use --force"
        )
    return [f"compared by force: {text}"]


def _such_as(pairs: Sequence[MatchedPair], what: str) -> str:
    key = pairs[0].key
    return f"{count(len(pairs), 'row')} {what}, such as {key.op} {key.case} {key.dtype}"
