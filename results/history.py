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
    from numpy.random import Generator
    from numpy.typing import NDArray

PERMUTATIONS = 1999
"""With so many, a probability of 0.05 is known to 0.005."""

ALLOWED = 0.05 / 2 * (1 + PERMUTATIONS)
"""Orders, the one that was seen among them, that may look as clear; 5 % shared by two tests."""

LEAST_RUNS = 9
"""Fewer runs cannot be told from chance: of 4 + 5, one order in 63 is as clear as the one seen, of 4 + 4 one in 35."""

LEAST_STRETCH = 2
"""Runs of a level between two others; one alone is an outlier."""

MAX_TWO_CUTS = 200
"""Runs up to which two cuts at once are tried: their number grows with the square."""

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

    Binary segmentation: the series is parted where the means of the logarithms before and after differ most clearly,
    and each part again, as long as a permutation test says that no order of the same values would part them so clearly
    by chance. A level that comes back would hide from one cut, so that two cuts at once are tried as well.

    Args:
        levels_s: one median for each run, in order, above 0.
        margin: change, as a fraction, that does not matter.
        seed: of the permutations.

    Source: one cut, Scott and Knott, A cluster analysis method for grouping means in the analysis of variance,
        Biometrics 30 (1974) 507; two cuts, Olshen, Venkatraman, Lucito and Wigler, Circular binary segmentation,
        Biostatistics 5 (2004) 557; on the medians of benchmarks, Daly, Brown, Ingo, O'Leary and Bradford, The use of
        change point detection to identify software performance regressions, ICPE 2020.
    """
    import numpy as np

    logs = np.log(np.asarray(levels_s, dtype=np.float64))
    generator = np.random.default_rng(seed)
    found: set[int] = set()
    waiting = [(0, len(logs))]
    while waiting:
        start, end = waiting.pop()
        cuts = [start + cut for cut in _cuts(logs[start:end], margin, generator)]
        found.update(cuts)
        ends = [start, *cuts, end]
        waiting += [] if not cuts else list(pairwise(ends))
    return sorted(found)


def _cuts(part: NDArray[float64], margin: float, generator: Generator) -> list[int]:
    """Return where to part a series: at one place, else at two, else nowhere."""
    import numpy as np

    count = len(part)
    if count < LEAST_RUNS:
        return []
    orders = generator.permuted(np.tile(part, (PERMUTATIONS, 1)), axis=1)
    inner = range(1, count - LEAST_STRETCH) if count <= MAX_TWO_CUTS else ()
    for starts in filter(None, ([0], inner)):
        clearness, first, last = _clearest(part[None, :], starts)
        if 1 + (_clearest(orders, starts)[0] >= clearness * (1 - 1e-9)).sum() > ALLOWED:
            continue
        at, end = int(first[0]), int(last[0])
        inside = np.zeros(count, dtype=bool)
        inside[at:end] = True
        if abs(float(part[inside].mean() - part[~inside].mean())) > math.log1p(margin):
            return [cut for cut in (at, end) if 0 < cut < count]
    return []


def _clearest(rows: NDArray[float64], starts: Sequence[int]) -> tuple[NDArray[float64], NDArray[int64], NDArray[int64]]:
    """Return for each row the stretch that differs most from the rest: the sum of squares between, first, end."""
    import numpy as np

    count = rows.shape[1]
    sums = np.cumsum(np.pad(rows - rows.mean(axis=1, keepdims=True), ((0, 0), (1, 0))), axis=1)
    best, first, last = np.full(len(rows), -1.0), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    for start in starts:
        least = 1 if start == 0 else LEAST_STRETCH
        ends = np.arange(start + least, count if start == 0 else count + 1)
        length = ends - start
        between = (sums[:, ends] - sums[:, [start]]) ** 2 * count / (length * (count - length))
        place = between.argmax(axis=1)
        value = np.take_along_axis(between, place[:, None], axis=1)[:, 0]
        is_better = value > best
        best, first, last = (
            np.where(is_better, new, old) for new, old in ((value, best), (start, first), (ends[place], last))
        )
    return best, first, last


def short_date(text: str) -> str:
    """Return a date as people write it, in UTC: `2026-11-20 21:03`."""
    moment = datetime.fromisoformat(text)
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"
