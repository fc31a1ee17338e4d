"""One case over many runs: its time in each, and the verdict against the run before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from results.compare.comparison import Side
from results.compare.earlier import SavedRuns, compare_apart
from results.compare.selection import Wanted, load
from results.compare.sides import CompareError, RowKey, definitions, revision_of
from results.record import Record
from results.show.terminal import printable
from results.stats.comparison import DEFAULT_MARGIN, LEAST_PAIRS, Comparison, with_holm
from results.stats.samples import median_ci95
from results.store.runfile import Run, RunFileError
from results.store.runs import RunSummary

METRICS = {"time": "time", "flops": "FLOP/s", "mfu": "MFU", "mbu": "MBU"}
"""What a history can show, and its name in a sentence."""

LISTED = 6
"""Names in a message before it is cut."""


@dataclass(frozen=True)
class HistoryPoint:
    """The case in one run."""

    run: Run
    records: list[Record]
    """Several if the run measured the case several times."""
    median_s: float
    ci95_s: tuple[float, float] | None
    value: float
    """The metric: seconds, FLOP/s, or a fraction of the peak."""
    ci95: tuple[float, float] | None
    flags: tuple[str, ...]
    is_redefined: bool
    """The definition of the op differs from that of the last run before with a known definition."""
    since_last: Comparison | None = None
    """Comparison with the run before; None for the first."""

    @property
    def run_id(self) -> str:
        return self.run.environment.run_id

    @property
    def started_at(self) -> str:
        return self.run.environment.started_at

    @property
    def revision(self) -> str | None:
        """Ten digits of the git revision, `-dirty` if files were changed; of a user's kernel, of its repository."""
        return revision_of(self.records[0], self.run.environment)


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
        device: slug of the machine; None if all runs are of one.

    Raises:
        CompareError: nothing fits, or more than one case or machine does.
    """
    whole, skipped = _read(runs, device)
    loaded = [run for run in map(wanted.of, whole) if run.records]
    found: dict[tuple[RowKey, str], dict[str, tuple[Run, list[Record]]]] = {}
    for run in loaded:
        for one in run.records:
            if one.status == "ok":
                entries = found.setdefault((RowKey.of(one, with_provider=False), one.provider), {})
                entries.setdefault(str(run.path), (run, []))[1].append(one)
    _check_one_case([key for key, _ in found], wanted)
    devices = list(dict.fromkeys(run.environment.device["slug"] for run in loaded))
    if len(devices) > 1:
        raise CompareError(f"the runs are of {len(devices)} machines: {', '.join(devices)}; name one with --gpu")
    problems = tuple(problem for run in loaded for problem in run.problems)
    spreads, series = SavedRuns(whole), []
    for (key, provider), entries in found.items():
        points, notes = _points(list(entries.values()), metric)
        if not points:
            raise CompareError(
                f"the {METRICS[metric]} of {key.op} {key.case} {key.dtype} {provider} is not known in any run"
            )
        notes = [*skipped, *notes, *_redefinitions(provider, points)]
        series.append(Series(key, provider, metric, devices[0], tuple(points), tuple(notes), problems))
    changes = iter(with_holm([change for one in series for change in _changes(one.points, margin, spreads)]))
    return [
        replace(one, points=(one.points[0], *(replace(point, since_last=next(changes)) for point in one.points[1:])))
        for one in series
    ]


def _read(runs: Iterable[RunSummary], device: str | None) -> tuple[list[Run], tuple[str, ...]]:
    """Return the runs of a machine, the oldest first, and a note on each that cannot be read."""
    loaded, skipped = [], []
    for run in sorted(runs, key=lambda run: (run.started_s, run.run_id)):
        if run.error is None and device is not None and run.device_slug != device:
            continue
        try:
            one = load(run.path)
        except RunFileError as error:
            skipped.append(f"left out: {error}")
            continue
        skipped += one.notes
        loaded.append(one)
    return loaded, tuple(skipped)


def _check_one_case(keys: Sequence[RowKey], wanted: Wanted) -> None:
    keys = list(dict.fromkeys(keys))
    if not keys:
        parts = (wanted.ops, wanted.dtypes, wanted.cases, wanted.providers)
        shown = " ".join(",".join(sorted(part)) for part in parts if part) or "anything"
        raise CompareError(f"no run has a finished record of {shown}: python -m results list shows the runs")
    for name in ("op", "dtype", "case", "fill", "cache", "options"):
        values = list(dict.fromkeys(str(getattr(key, name)) for key in keys))
        if len(values) > 1:
            shown = ", ".join(values[:LISTED]) + (", ..." if len(values) > LISTED else "")
            raise CompareError(
                f"the history is of one case, and {len(values)} values of --{name} fit: {shown}; name one"
            )
    if len(keys) > 1:
        raise CompareError(f"the history is of one case, and {len(keys)} shapes are called {keys[0].case}")


def _points(entries: Sequence[tuple[Run, list[Record]]], metric: str) -> tuple[list[HistoryPoint], list[str]]:
    points, notes = [], []
    last: str | None = None
    for run, records in entries:
        side = Side("", records, run.environment)
        value = side.time_s if metric == "time" else side.rate("flops_per_s" if metric == "flops" else metric)
        if value is None:
            notes.append(f"{run.path}: its {METRICS[metric]} is not known, or 0: left out")
            continue
        known = definitions(records)
        is_redefined = bool(known) and known != [last] and (last is not None or len(known) > 1)
        last = known[-1] if known else last
        ends = ends_s = _interval(records)
        if metric != "time" and ends_s is not None:
            ends = value * side.time_s / ends_s[1], value * side.time_s / ends_s[0]
        points.append(HistoryPoint(run, records, side.time_s, ends_s, value, ends, side.flags, is_redefined))
    return points, notes


def _interval(records: Sequence[Record]) -> tuple[float, float] | None:
    """Return the interval of the median, as saved or from the samples; None for several windows or none."""
    if len(records) > 1:
        return None
    samples_s = records[0].samples_s
    return records[0].ci95_s or (median_ci95(samples_s) if len(samples_s) >= LEAST_PAIRS else None)


def _redefinitions(provider: str, points: Sequence[HistoryPoint]) -> list[str]:
    """Return a note on the runs from which on the op was defined otherwise: a change there may be one of the op."""
    dates = [short_date(point.started_at) for point in points if point.is_redefined]
    if not dates:
        return []
    op = points[0].records[0].op
    return [f"{provider}: {op} is defined otherwise from {', '.join(dates)} on: a change there may be one of the op"]


def _changes(points: Sequence[HistoryPoint], margin: float, saved: SavedRuns) -> list[Comparison]:
    """Return each run compared with the run before, by the same rule as `results compare`."""
    return [
        compare_apart(
            (before.records, after.records), (before.run.environment, after.run.environment), margin, saved
        ).compared
        for before, after in pairwise(points)
    ]


def short_date(text: str) -> str:
    """Return a date as people write it, in UTC: `2026-11-20 21:03`."""
    moment = datetime.fromisoformat(text)
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"


def heading(series: Sequence[Series]) -> str:
    key = series[0].key
    words = (key.op, key.case, key.dtype, key.fill, key.cache, f"on {series[0].device}")
    return printable(" ".join(word for word in words if word))
