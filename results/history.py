"""One case over many runs: how its time changed, run by run, and where it stayed changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from results.compare_load import Loaded, Measured, Wanted, load, windows
from results.compare_match import Key
from results.compare_sides import METRICS, CompareError, revision
from results.comparison import DEFAULT_MARGIN, LEAST_PAIRS, Comparison
from results.runfile import RunFileError
from results.stats import median, median_ci95
from results.store import RunSummary
from results.unpaired import compare_many

if TYPE_CHECKING:
    from numpy import float64, int64
    from numpy.typing import NDArray

PERMUTATIONS = 1999
"""With so many, a probability of 0.05 is known to 0.005."""

SIGNIFICANCE = 0.05

LEAST_RUNS = 8
"""Fewer runs in two equal parts cannot be told from chance: of eight, one order in thirty-five is as clear as 4 + 4."""

LISTED = 6
"""Names in a message before it is cut."""


@dataclass(frozen=True)
class Point:
    """The case in one run."""

    run_id: str
    started_at: str
    revision: str | None
    """Ten digits of the git revision, `-dirty` where files were changed."""
    path: str
    median_s: float
    ci95_s: tuple[float, float] | None
    value: float
    """The metric: seconds, FLOP/s, or a fraction of the peak."""
    ci95: tuple[float, float] | None
    since_last: Comparison | None = None
    """Against the run before; None for the first."""
    is_change: bool = False
    """From here on, the level is another one."""


@dataclass(frozen=True)
class Series:
    """One case by one provider on one machine, by date."""

    key: Key
    provider: str
    metric: str
    device: str
    points: tuple[Point, ...]
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
    loaded, skipped = _read(runs, wanted, metric, device)
    found: dict[tuple[Key, str], list[tuple[Loaded, list[Measured]]]] = {}
    for run in loaded:
        groups: dict[tuple[Key, str], list[Measured]] = {}
        for one in run.measured:
            if one.status == "ok":
                groups.setdefault((Key.of(one, with_provider=False), one.provider), []).append(one)
        for group, records in groups.items():
            found.setdefault(group, []).append((run, records))
    _check_one_case([key for key, _ in found], wanted)
    _check_one_device(loaded)
    problems = tuple(problem for run in loaded for problem in run.problems)
    return [
        _series(key, provider, entries, metric, margin, skipped, problems) for (key, provider), entries in found.items()
    ]


def _read(
    runs: Iterable[RunSummary], wanted: Wanted, metric: str, device: str | None
) -> tuple[list[Loaded], tuple[str, ...]]:
    """Return the runs that hold what is wanted, the oldest first, and a note on each that cannot be read."""
    loaded, skipped = [], []
    for run in sorted(runs, key=lambda run: (run.started_s, run.run_id)):
        if run.error is None and device is not None and run.device_slug != device:
            continue
        try:
            one = load(run.path, wanted, metric == "mbu")
        except RunFileError as error:
            skipped.append(f"left out: {error}")
            continue
        skipped += one.notes
        if one.measured:
            loaded.append(one)
    return loaded, tuple(skipped)


def _check_one_case(keys: Sequence[Key], wanted: Wanted) -> None:
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


def _check_one_device(loaded: Sequence[Loaded]) -> None:
    devices = list(dict.fromkeys(run.environment.device["slug"] for run in loaded))
    if len(devices) > 1:
        raise CompareError(f"the runs are of {len(devices)} machines: {', '.join(devices)}; name one with --gpu")


def describe(wanted: Wanted) -> str:
    """Return what is wanted in words."""
    parts = (wanted.ops, wanted.dtypes, wanted.cases, wanted.providers)
    return " ".join(",".join(sorted(part)) for part in parts if part) or "anything"


def _series(
    key: Key,
    provider: str,
    entries: Sequence[tuple[Loaded, list[Measured]]],
    metric: str,
    margin: float,
    skipped: tuple[str, ...],
    problems: tuple[str, ...],
) -> Series:
    notes = list(skipped)
    known = [(run, records, _factor(run, records[0], metric)) for run, records in entries]
    for run, _, factor in known:
        if factor is None:
            notes.append(f"{run.path}: its {METRICS[metric]} is not known, or 0: left out")
    usable = [(run, records, factor) for run, records, factor in known if factor is not None]
    if not usable:
        raise CompareError(
            f"the {METRICS[metric]} of {key.op} {key.case} {key.dtype} {provider} is not known in any run"
        )
    samples = [windows(records) for _, records, _ in usable]
    changes = compare_many(list(pairwise(samples)), margin)
    levels = [median([one.median_s for one in records if one.median_s]) for _, records, _ in usable]
    marked = set(change_points(levels, margin))
    points = [
        _point(run, records, level, factor, metric, changes[at - 1] if at else None, at in marked)
        for at, ((run, records, factor), level) in enumerate(zip(usable, levels, strict=True))
    ]
    if len(points) < LEAST_RUNS:
        notes.append(f"{len(points)} runs: change points are looked for from {LEAST_RUNS} on")
    device = usable[0][0].environment.device["slug"]
    return Series(key, provider, metric, device, tuple(points), tuple(notes), problems)


def _factor(run: Loaded, one: Measured, metric: str) -> float | None:
    """Return the metric times the median; for the time, by which it is multiplied."""
    if metric == "time" or not one.median_s:
        return 1.0
    value = {
        "flops": (one.flops or 0) / one.median_s,
        "mfu": run.mfu(one, one.median_s),
        "mbu": run.mbu(one, one.median_s),
    }[metric]
    return value * one.median_s if value else None


def _point(
    run: Loaded,
    records: Sequence[Measured],
    level_s: float,
    factor: float,
    metric: str,
    change: Comparison | None,
    is_change: bool,
) -> Point:
    is_time = metric == "time"
    spread = _spread(records)
    ends = spread if is_time or spread is None else (factor / spread[1], factor / spread[0])
    return Point(
        run_id=run.environment.run_id,
        started_at=run.environment.started_at,
        revision=revision(run.environment),
        path=str(run.path),
        median_s=level_s,
        ci95_s=spread,
        value=level_s if is_time else factor / level_s,
        ci95=ends,
        since_last=change,
        is_change=is_change,
    )


def _spread(records: Sequence[Measured]) -> tuple[float, float] | None:
    """Return the interval of the median, as it was kept or from the samples; None for several windows or none."""
    if len(records) > 1:
        return None
    samples_s = windows(records)[0].tolist()
    return records[0].ci95_s or (median_ci95(samples_s) if len(samples_s) >= LEAST_PAIRS else None)


def change_points(levels_s: Sequence[float], margin: float = DEFAULT_MARGIN, seed: int = 0) -> list[int]:
    """Return where the level of a series of medians changes for longer than one run: the first place of each new level.

    Binary segmentation: the series is parted where the two means of the logarithms differ most clearly, and each part
    again, as long as a permutation test says that no order of the same values would part them so clearly by chance.

    Args:
        levels_s: one median for each run, in order, above 0.
        margin: change, as a fraction, that does not matter.
        seed: of the permutations.

    Source: the segmentation, Scott and Knott, A cluster analysis method for grouping means in the analysis of variance,
        Biometrics 30 (1974) 507; with a permutation test on benchmark medians, Daly, Brown, Ingo, O'Leary and Bradford,
        The use of change point detection to identify software performance regressions in a continuous integration
        system, ICPE 2020.
    """
    import numpy as np

    logs = np.log(np.asarray(levels_s, dtype=np.float64))
    generator = np.random.default_rng(seed)
    found: list[int] = []
    waiting = [(0, len(logs))]
    while waiting:
        start, end = waiting.pop()
        part = logs[start:end]
        if len(part) < LEAST_RUNS:
            continue
        place, clearness = _best_split(part[None, :])
        shuffled = generator.permuted(np.tile(part, (PERMUTATIONS, 1)), axis=1)
        by_chance = _best_split(shuffled)[1] >= clearness[0] * (1 - 1e-9)
        at = int(place[0])
        change = abs(float(part[at:].mean() - part[:at].mean()))
        if (1 + by_chance.sum()) / (1 + PERMUTATIONS) <= SIGNIFICANCE and change > math.log1p(margin):
            found.append(start + at)
            waiting += [(start, start + at), (start + at, end)]
    return sorted(found)


def _best_split(rows: NDArray[float64]) -> tuple[NDArray[int64], NDArray[float64]]:
    """Return for each row where to part it, and the sum of squares between the parts there."""
    import numpy as np

    count = rows.shape[1]
    left = np.arange(1, count)
    sums = np.cumsum(rows - rows.mean(axis=1, keepdims=True), axis=1)[:, :-1]
    between = sums**2 * count / (left * (count - left))
    places = between.argmax(axis=1)
    return places + 1, np.take_along_axis(between, places[:, None], axis=1)[:, 0]


def short_date(text: str) -> str:
    """Return a date as people write it, in UTC: `2026-11-20 21:03`."""
    moment = datetime.fromisoformat(text)
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"
