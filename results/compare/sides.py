"""The two sides of a comparison, and the matching of their records.

Records match if op, dtype, case, shape, options, fill and cache state are equal, and the provider
unless it is compared. Each record is in a pair or, with the reason, in `unmatched`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from results.show.units import count
from results.stats.comparison import DEFAULT_MARGIN, SideMean, side_of
from results.store.runfile import Run, StoreError
from results.store.runs import revision_text
from roofline.model import reached

MODES = ("provider", "version", "git")
"""What distinguishes the candidate from the baseline if not the run."""

BY_PROVIDER = ("provider", "version")
"""Modes that compare providers."""

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


class Code(NamedTuple):
    """Facts that are equal for records of identical code."""

    is_known: bool
    """Whether they identify the code; they do not for functions measured from Python, and for
    libraries other than torch. Records of older versions have no hash: torch's are identified by a
    clean revision."""
    provider: str
    source_sha256: str | None
    op_sha256: str | None
    versions: frozenset[tuple[str, Any]]
    revision: str | None


def code_of(record: Record, environment: Environment) -> Code:
    """Return the code of a record.

    The revision of this repository does not matter if the hash of the op's definition is known.
    That of a user's repository does: the hash of a user's file does not cover its imports.
    """
    git = environment.git
    is_clean = bool(git.get("sha")) and git.get("dirty") is False and record.op != "function"
    is_torch = record.provider.startswith("torch")
    revision = revision_of(record, environment)
    if not is_users(record) and (record.op_sha256 or "").startswith(DEFINITION_PREFIX):
        revision = None
    return Code(
        is_known=bool(record.source_sha256 or ((record.op_sha256 or is_clean) and is_torch)),
        provider=record.provider,
        source_sha256=record.source_sha256,
        op_sha256=record.op_sha256,
        versions=frozenset(environment.versions.items()),
        revision=revision,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One side of a row: records of one provider and case, from one or several windows of time."""

    label: str
    records: Sequence[Record]
    environment: Environment
    runs: int = 1
    """Number of runs of the records, all of the same code."""
    provider: str
    code: Code
    flags: tuple[str, ...]
    time_s: float
    """Geometric mean of the medians."""
    windows: list[list[float]]
    """Samples of each visit of each record, seconds; the median if a record has no samples."""
    times: SideMean
    """Mean of the windows, in logarithms."""
    clock_hz: float | None
    """Mean SM clock of all records; None if any is unknown."""
    bytes_per_s: float | None
    """At `time_s`, as the next three; all records have the same work."""
    mfu: float | None
    mfu_ci95: tuple[float, float] | None
    """95 % interval of the MFU by the scatter within the runs; None if the MFU is unknown."""
    of_ceiling: tuple[float, str] | None
    """Fraction of the roof that binds, and its name; None if unknown."""

    @classmethod
    def of(
        cls, label: str, records: Sequence[Record], environment: Environment, runs: int = 1
    ) -> Side:
        medians_s = [record.median_s for record in records if record.median_s]
        time_s = medians_s[0] if len(medians_s) == 1 else geometric_mean(medians_s)
        windows = []
        for record in records:
            samples_s = list(record.samples_s) or [record.median_s or 0.0]
            ends = [len(samples_s)]
            # Visits of an edited file that do not add up to the samples are one.
            if sum(record.visits) == len(record.samples_s) and 0 not in record.visits:
                ends = list(accumulate(record.visits)) or ends
            windows += [samples_s[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        times = side_of(windows)
        clocks_hz: list[Any] = [record.telemetry.get("sm_clock_hz") for record in records]
        known = reached(records[0], environment.machine) or {}
        rates = {}
        for key in ("bytes_per_s", "mfu", "roofline_pct"):
            value = known.get(key)
            rates[key] = value * records[0].median_s / time_s if value else None
        mfu = rates["mfu"]
        mfu_ci95 = None
        if mfu is not None:
            mfu_ci95 = (mfu * math.exp(-times.above), mfu * math.exp(times.below))
        share_pct = rates["roofline_pct"]
        of_ceiling = None if share_pct is None else (share_pct / 100, known["roof"])
        return cls(
            label=label,
            records=records,
            environment=environment,
            runs=runs,
            provider=records[0].provider,
            code=code_of(records[0], environment),
            flags=tuple(dict.fromkeys(chain.from_iterable(record.flags for record in records))),
            time_s=time_s,
            windows=windows,
            times=times,
            clock_hz=sum(clocks_hz) / len(clocks_hz) if all(clocks_hz) else None,
            bytes_per_s=rates["bytes_per_s"],
            mfu=mfu,
            mfu_ci95=mfu_ci95,
            of_ceiling=of_ceiling,
        )


def revisions(first: Run, second: Run) -> tuple[str, str] | None:
    """Return the revisions that distinguish two runs; None if unknown.

    They are those of the users' kernels, or of the measuring code if the users' are equal or
    unknown.
    """
    known = []
    for of_users in (True, False):
        texts = []
        for run in (first, second):
            names: dict[str | None, None] = {}
            for record in run.records:
                if is_users(record) == of_users:
                    names[revision_of(record, run.environment)] = None
            texts.append("" if None in names else " + ".join(filter(None, names)))
        if all(texts):
            known.append((texts[0], texts[1]))
    different = [pair for pair in known if pair[0] != pair[1]]
    return next(iter(different + known), None)


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
    if request.by in BY_PROVIDER:
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
    facts = {
        "compared by force": (machine_facts(first), machine_facts(second)),
        "other versions": (first.versions, second.versions),
    }
    notes = []
    for kind, (before, after) in facts.items():
        shared = [name for name in before if name in after and before[name] != after[name]]
        changed = ", ".join(f"{name} {before[name]} against {after[name]}" for name in shared)
        if changed and kind == "compared by force" and not force:
            raise CompareError(f"not the same machine: {changed}; --force compares them anyway")
        if changed:
            notes.append(f"{kind}: {changed}")
    return notes


def machine_facts(environment: Environment) -> Object:
    """Return the known facts that are equal for runs of one machine."""
    device = environment.device
    facts = {"device": device["name"], "device type": device["type"]}
    facts |= {"host": environment.host.get("name") or None, "threads": device.get("threads")}
    for group in (device, environment.preflight, environment.settings):
        facts |= {key: group[key] for key in SAME_MACHINE if group.get(key) is not None}
    return {key: value for key, value in facts.items() if value is not None}


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
    usable: dict[str, dict[tuple[RowKey, str], list[Record]]] = {"baseline": {}, "candidate": {}}
    unmatched = []
    right = set()  # cases with a result in the baseline
    for side, records in (("baseline", baseline), ("candidate", candidate)):
        wrong = {}
        rows = []
        for record in records:
            key = record.row._replace(**anyone)
            case = key._replace(cache=None)  # a record that failed before timing has no cache state
            rows.append((key, case, record))
            if record.status in WRONG:
                wrong[case, record.provider] = record
        for key, case, record in rows:
            failed = wrong.get((case, record.provider))
            if record.status != "ok":
                is_broken = record.status in WRONG and case in right
                unmatched.append(Unmatched(side, record, _status(record), is_broken))
            elif failed is not None:  # one wrong result is enough
                reason = f"another measurement was {_status(failed)}"
                unmatched.append(Unmatched(side, record, reason))
            else:
                usable[side].setdefault((key, record.provider), []).append(record)
        right = {case for _, case, record in rows if record.status == "ok"}
    by_key = {key: records for (key, _), records in usable["baseline"].items()}
    pairs = []
    for (key, _), records in usable["candidate"].items():
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
    return pairs, sorted(unmatched, key=lambda row: row.side), _remarks(pairs, force)


def _status(record: Record) -> str:
    return f"{record.status}: {record.reason or 'no reason was saved'}"


def _remarks(pairs: Sequence[MatchedPair], force: bool) -> list[str]:
    """Return notes on pairs whose op or work changed."""
    work_of = attrgetter("flops", "bytes_read", "bytes_written")
    redefined = []
    other = []
    for pair in pairs:
        records = pair.baseline + pair.candidate
        if len(definitions(records)) > 1:
            redefined.append(pair.key)
        if len(set(map(work_of, records))) > 1:
            other.append(pair.key)
    notes = []
    if redefined:
        text = _such_as(redefined, "measured by two definitions of the op")
        if not force:
            raise CompareError(
                f"{text}: the time may have changed because the op did; choose other ops with "
                f"--op, or use --force"
            )
        notes.append(f"compared by force: {text}")
    if other:
        notes.append(_such_as(other, "with other FLOPs or bytes on the two sides"))
    return notes


def _such_as(keys: Sequence[RowKey], what: str) -> str:
    return f"{count(len(keys), 'row')} {what}, such as {keys[0].op} {keys[0].case} {keys[0].dtype}"
