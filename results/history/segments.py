"""One case over many runs: its time in each, and the verdict against the run before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise

from results.compare.flags import flags_of, with_flags
from results.compare.load import LoadedRun, Measured, Wanted, load, windows
from results.compare.match import RowKey, definitions
from results.compare.sides import METRICS, CompareError, revision_of
from results.stats.comparison import DEFAULT_MARGIN, LEAST_PAIRS, Comparison, with_holm
from results.stats.drift import drift_of
from results.stats.samples import median, median_ci95
from results.stats.unpaired import compare_many
from results.store.runfile import RunFileError
from results.store.runs import RunSummary

LISTED = 6
"""Names in a message before it is cut."""

LEAST_RUNS = 9
"""Fewer runs tell nothing about how much runs of one code differ."""

MAD_FACTOR, MAD_EFFICIENCY = 1.4826, 0.37
"""Standard deviation of normal noise over its median absolute deviation; samples that a standard deviation would need
to be known as well, as a fraction.

Source: Rousseeuw and Croux, Alternatives to the median absolute deviation, JASA 88 (1993) 1273."""


@dataclass(frozen=True)
class HistoryPoint:
    """The case in one run."""

    run_id: str
    started_at: str
    revision: str | None
    """Ten digits of the git revision, `-dirty` where files were changed; of a user's kernel that of its repository."""
    source_sha256: str | None
    """Hash of the kernel's file."""
    op_sha256: str | None
    """Hash of the definition of the op; None where it is not known."""
    path: str
    median_s: float
    ci95_s: tuple[float, float] | None
    value: float
    """The metric: seconds, FLOP/s, or a fraction of the peak."""
    ci95: tuple[float, float] | None
    flags: tuple[str, ...] = ()
    """What speaks against the measurement."""
    since_last: Comparison | None = None
    """Against the run before; None for the first."""
    is_redefined: bool = False
    """From here on, the op is defined otherwise than in the last run before that tells its definition."""


@dataclass(frozen=True)
class Series:
    """One case by one provider on one machine, by date."""

    key: RowKey
    provider: str
    metric: str
    device: str
    points: tuple[HistoryPoint, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def history(
    runs: Iterable[RunSummary],
    wanted: Wanted,
    metric: str = "time",
    margin: float = DEFAULT_MARGIN,
    device: str | None = None,
) -> list[Series]:
    """Return the history of one case: a series for each provider, the oldest run first.

    Args:
        runs: those to look through.
        wanted: which records; together they must be of one case.
        metric: a key of `METRICS`.
        margin: change of the time, as a fraction, that does not matter.
        device: slug of the machine; None where all runs are of one.

    Raises:
        CompareError: nothing fits, or more than one case or machine does.
    """
    loaded, skipped = _read(runs, wanted, device)
    found: dict[tuple[RowKey, str], list[tuple[LoadedRun, list[Measured]]]] = {}
    for run in loaded:
        groups: dict[tuple[RowKey, str], list[Measured]] = {}
        for one in run.measured:
            if one.status == "ok":
                groups.setdefault((RowKey.of(one, with_provider=False), one.provider), []).append(one)
        for group, records in groups.items():
            found.setdefault(group, []).append((run, records))
    _check_one_case([key for key, _ in found], wanted)
    _check_one_device(loaded)
    problems = tuple(problem for run in loaded for problem in run.problems)
    raws = [_raw(*group, entries, metric) for group, entries in found.items()]
    return _judged(raws, metric, margin, skipped, problems)


def _read(runs: Iterable[RunSummary], wanted: Wanted, device: str | None) -> tuple[list[LoadedRun], tuple[str, ...]]:
    """Return the runs that hold what is wanted, the oldest first, and a note on each that cannot be read."""
    loaded, skipped = [], []
    for run in sorted(runs, key=lambda run: (run.started_s, run.run_id)):
        if run.error is None and device is not None and run.device_slug != device:
            continue
        try:
            one = load(run.path, wanted)
        except RunFileError as error:
            skipped.append(f"left out: {error}")
            continue
        skipped += one.notes
        if one.measured:
            loaded.append(one)
    return loaded, tuple(skipped)


def _check_one_case(keys: Sequence[RowKey], wanted: Wanted) -> None:
    keys = list(dict.fromkeys(keys))
    if not keys:
        raise CompareError(f"no run has a finished record of {describe(wanted)}: python -m results list shows the runs")
    for name in ("op", "dtype", "case", "fill", "cache", "options"):
        values = list(dict.fromkeys(str(getattr(key, name)) for key in keys))
        if len(values) > 1:
            shown = ", ".join(values[:LISTED]) + (", ..." if len(values) > LISTED else "")
            raise CompareError(
                f"the history is of one case, and {len(values)} values of --{name} fit: {shown}; name one"
            )
    if len(keys) > 1:
        raise CompareError(f"the history is of one case, and {len(keys)} shapes are called {keys[0].case}")


def _check_one_device(loaded: Sequence[LoadedRun]) -> None:
    devices = list(dict.fromkeys(run.environment.device["slug"] for run in loaded))
    if len(devices) > 1:
        raise CompareError(f"the runs are of {len(devices)} machines: {', '.join(devices)}; name one with --gpu")


def describe(wanted: Wanted) -> str:
    """Return what is wanted in words."""
    parts = (wanted.ops, wanted.dtypes, wanted.cases, wanted.providers)
    return " ".join(",".join(sorted(part)) for part in parts if part) or "anything"


@dataclass(frozen=True)
class _Raw:
    """One series before its verdicts, which hold for all series together."""

    key: RowKey
    provider: str
    runs: list[LoadedRun]
    records: list[list[Measured]]
    """Of each run; several where it measured the case several times."""
    factors: list[float]
    """What is divided by the time of each run to get its metric; 1 where that is the time."""
    notes: list[str]
    levels_s: list[float]
    """The median of each run."""

    def redefined(self) -> list[int]:
        """Return the places of the runs whose op is defined otherwise than in the last run before that tells it."""
        places, last = [], None
        for at, records in enumerate(self.records):
            known = definitions(records)
            if known and known != [last]:
                places += [at] * (last is not None or len(known) > 1)
                last = known[-1]
        return places


def _raw(key: RowKey, provider: str, entries: Sequence[tuple[LoadedRun, list[Measured]]], metric: str) -> _Raw:
    """Return the runs whose metric is known, with a note on each other one."""
    known = [(run, records, 1.0 if metric == "time" else run.work(records[0], metric)) for run, records in entries]
    usable = [(run, records, factor) for run, records, factor in known if factor is not None]
    if not usable:
        raise CompareError(
            f"the {METRICS[metric]} of {key.op} {key.case} {key.dtype} {provider} is not known in any run"
        )
    notes = [
        f"{run.path}: its {METRICS[metric]} is not known, or 0: left out" for run, _, factor in known if factor is None
    ]
    runs, records, factors = (list(column) for column in zip(*usable, strict=True))
    levels_s = [median([one.median_s for one in found if one.median_s]) for found in records]
    raw = _Raw(key, provider, runs, records, factors, notes, levels_s)
    return replace(raw, notes=notes + _unclear_revisions(raw) + _redefinitions(raw))


def _redefinitions(raw: _Raw) -> list[str]:
    """Return a note on the runs from which on the op was defined otherwise: a change there may be one of the op."""
    dates = [short_date(raw.runs[at].environment.started_at) for at in raw.redefined()]
    if not dates:
        return []
    text = f"{raw.key.op} is defined otherwise from {', '.join(dates)} on: a change there may be one of the op"
    return [f"{raw.provider}: {text}"]


def _unclear_revisions(raw: _Raw) -> list[str]:
    """Return a note on each revision that stands for several texts of the kernel: files changed without a commit."""
    texts: dict[str, set[str]] = {}
    for run, (one, *_) in zip(raw.runs, raw.records, strict=True):
        name = revision_of(one, run.environment)
        if name is not None and one.source_sha256 is not None:
            texts.setdefault(name, set()).add(one.source_sha256)
    return [
        f"{raw.provider}: {len(found)} texts of its source file were measured at revision {name}"
        for name, found in texts.items()
        if len(found) > 1
    ]


def _judged(
    raws: Sequence[_Raw], metric: str, margin: float, skipped: tuple[str, ...], problems: tuple[str, ...]
) -> list[Series]:
    """Return all series with their verdicts, corrected for how many there are."""
    changes = iter(with_holm(list(chain.from_iterable(_steps(raw, margin) for raw in raws))))
    series = []
    for raw in raws:
        redefined = set(raw.redefined())
        points = tuple(
            _point(raw, at, metric, next(changes) if at else None, at in redefined) for at in range(len(raw.runs))
        )
        device = raw.runs[0].environment.device["slug"]
        series.append(Series(raw.key, raw.provider, metric, device, points, (*skipped, *raw.notes), problems))
    return series


def _steps(raw: _Raw, margin: float) -> list[Comparison]:
    """Return each run against the run before, with an allowance for how much runs of one code differ."""
    drift = drift_of(None, *_spread_of_runs(raw.levels_s))
    steps = list(pairwise([windows(records) for records in raw.records]))
    compared = compare_many(steps, margin, drift=drift)
    sides = pairwise(raw.records)
    return [with_flags(one, *both, is_paired=False) for one, both in zip(compared, sides, strict=True)]


def _spread_of_runs(levels_s: Sequence[float]) -> tuple[float, float]:
    """Return the standard deviation of the logarithm between runs of one code, and its degrees of freedom.

    It is taken from the median of the steps from run to run, most of which are between runs of one code. Of few runs
    nothing is known: a change would be taken for spread.
    """
    if len(levels_s) < LEAST_RUNS:
        return 0.0, 0.0
    steps = [abs(math.log(after / before)) for before, after in pairwise(levels_s)]
    return MAD_FACTOR * median(steps) / math.sqrt(2), MAD_EFFICIENCY * len(steps)


def _point(raw: _Raw, at: int, metric: str, change: Comparison | None, is_redefined: bool) -> HistoryPoint:
    records, factor, environment = raw.records[at], raw.factors[at], raw.runs[at].environment
    is_time, level_s = metric == "time", raw.levels_s[at]
    spread = _spread(records)
    ends = spread if is_time or spread is None else (factor / spread[1], factor / spread[0])
    return HistoryPoint(
        run_id=environment.run_id,
        started_at=environment.started_at,
        revision=revision_of(records[0], environment),
        source_sha256=records[0].source_sha256,
        op_sha256=records[0].op_sha256,
        path=str(raw.runs[at].path),
        median_s=level_s,
        ci95_s=spread,
        value=level_s if is_time else factor / level_s,
        ci95=ends,
        flags=flags_of(records),
        since_last=change,
        is_redefined=is_redefined,
    )


def _spread(records: Sequence[Measured]) -> tuple[float, float] | None:
    """Return the interval of the median, as it was kept or from the samples; None for several windows or none."""
    if len(records) > 1:
        return None
    samples_s = windows(records)[0].tolist()
    return records[0].ci95_s or (median_ci95(samples_s) if len(samples_s) >= LEAST_PAIRS else None)


def short_date(text: str) -> str:
    """Return a date as people write it, in UTC: `2026-11-20 21:03`."""
    moment = datetime.fromisoformat(text)
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"
