"""python -m results history: one case over all runs by date, each compared with the previous one or
with the median of several.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from results.compare.command import finish, with_problem
from results.compare.comparison import compare_apart, sides_of_run
from results.compare.earlier import SavedRuns
from results.compare.flags import DISTURBED
from results.compare.output import KEY
from results.compare.sides import CompareError, Side, definitions, revision_of
from results.record import Object, RowKey, unix_time
from results.show.grid import (
    Cell,
    Cells,
    Table,
    flat,
)
from results.show.options import margin, number
from results.show.terminal import Parser, add_format, add_picture, busy
from results.show.units import ABSENT, TIME_UNITS, count, duration, format_half_width, percent
from results.stats.comparison import (
    DEFAULT_MARGIN,
    FASTER,
    MARGIN_HELP,
    SLOWER,
    TOO_NOISY,
    UNKNOWN,
    UNSURE,
    with_holm,
)
from results.stats.samples import MEDIAN_EFFICIENCY
from results.store.runfile import Run, RunFileError, StoreError, load_run
from results.store.runs import Selection, add_selection, list_runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPILOG = """A run is marked if the definition of its op changed since the previous run (`op_sha256`,
which ignores comments): the time may have changed because the op did.

examples:
  python -m results history --op gelu --dtype bf16 --case 67108864 --provider triton-v3
  python -m results history --op gelu --dtype bf16 --case 67108864 --window 20  # finds slow drift
  python -m results history --op matmul --dtype bf16 --case 4096x4096x4096 --metric mfu -o mfu.png
"""

METHOD = (
    "a run is a change if it is FASTER or SLOWER than its baseline (the previous run, or the "
    "median of the last --window runs): the 95 % interval of the ratio of their times is beyond "
    "the margin; if nothing differs, the chance that a history has any change is at most 1 % "
    "(Holm's correction)"
)

METRICS = ("time", "mfu")

MAX_LISTED = 6
"""Maximum number of names in a message."""

MAX_WINDOW = 10_000


Series = Object
"""JSON object of one case by one provider on one host; `points` has its runs by date."""


def add_options(parser: Parser) -> None:
    parser.epilog = EPILOG
    add_selection(parser, "show only runs")
    text = (
        "compare each run with the median of the N runs before it, not with the last, so that a "
        "drift of 0.5 %% a commit is found; needs no repeated runs: what most runs differ by from "
        "the one before is the spread"
    )
    parse = number(2, MAX_WINDOW, f"a whole number from 2 to {MAX_WINDOW}", int)
    parser.add_argument("--window", metavar="N", type=parse, default=1, help=text)
    text = "what the table and the picture show; verdicts are on times (default: time)"
    parser.add_argument("--metric", choices=METRICS, default="time", help=text)
    text = MARGIN_HELP.replace("%", "%%")
    parser.add_argument(
        "--margin", metavar="FRACTION", type=margin, default=DEFAULT_MARGIN, help=text
    )
    add_format(parser)
    add_picture(parser)


def run(options: argparse.Namespace, directory: Path, chosen: Selection) -> int:
    from results.show.picture import save_picture

    runs = list_runs(directory, counts_records=False)
    runs = [run for run in runs if run.error or chosen.fits_run(run)]
    if not runs:
        raise StoreError(f"no run in {directory} matches: python -m bench.matmul makes one")
    loaded = []
    notes: list[str] = []
    for summary in sorted(runs, key=lambda run: (run.started_s, run.run_id)):
        try:
            loaded.append(load_run(summary.path))
            notes += loaded[-1].notes
        except RunFileError as error:
            notes.append(f"left out: {error}")
    try:
        series = history(loaded, chosen, options.margin, options.metric, options.window)
    except CompareError as error:
        raise with_problem(error, loaded) from None
    if options.output is not None:
        with busy("drawing"):
            save_picture(draw(series, options.theme), options.output)
    rows = []
    cells = []
    for name, case in zip(_names(series), series, strict=True):
        names = ("op", "dtype", "case", "provider", "host", "metric")
        shared = {name: case[name] for name in names}
        rows += [shared | flat(point) for point in case["points"]]
        cells += [_cells(point, name, case) for point in case["points"]]
    table = Table(
        rows=lambda: rows,
        cells=lambda: cells,
        notes_title="flags",
        title=_heading(series),
        document=lambda: {"method": METHOD, "series": series},
    )
    return finish(table.render(options.format), loaded, notes, picture=options.output)


def history(
    runs: Sequence[Run],
    selection: Selection,
    margin: float,
    metric: str = "time",
    window: int = 1,
) -> list[Series]:
    """Return the history of one case, a series for each provider and host; each run is compared
    with the median of the `window` runs before it, of those without interference if there are any.

    A run without a host name counts as one of the host of the run before it.

    Raises:
        CompareError: no record matches, the records are of several cases or machines, or their
            MFU is unknown.
    """
    by_row: dict[tuple[RowKey, str], list[Side]] = {}
    selected = [run for run in map(selection.records_of, runs) if run.records]
    host = next(filter(None, map(_host, selected)), "")
    for run in selected:
        host = _host(run) or host
        for key, side in sides_of_run(run).items():
            by_row.setdefault((key, host), []).append(side)
    _check_one_case([key for key, _ in by_row])
    all_sides = chain.from_iterable(by_row.values())
    devices = list(dict.fromkeys(side.environment.device["slug"] for side in all_sides))
    if len(devices) > 1:
        raise CompareError(
            f"the runs are of {len(devices)} machines: {', '.join(devices)}; choose one with "
            f"--machine"
        )
    saved = SavedRuns(runs)
    bases = {}
    for sides in by_row.values():
        if window > 1:
            saved.count_steps(sides)
        for end in range(1, len(sides)):
            before = sides[max(0, end - window) : end]
            quiet = [side for side in before if DISTURBED.isdisjoint(side.flags)]
            ordered = sorted(quiet or before, key=attrgetter("time_s"))
            runs_worth = round(len(ordered) * MEDIAN_EFFICIENCY)
            bases[sides[end]] = replace(ordered[len(ordered) // 2], runs=runs_worth)
    rows = [
        compare_apart(side.records[0].row, base, side, margin, saved).compared
        for side, base in bases.items()
    ]
    compared = dict(zip(bases, with_holm(rows), strict=True))
    against = {"base": "last"}
    if window > 1:
        against = {"base": "window", "against": f"the median of the last {count(window, 'run')}"}
    series = []
    for (key, host), sides in by_row.items():
        case = {name: getattr(key, name) for name in KEY}
        case |= {"provider": key.provider, "device": devices[0], "host": host, "metric": metric}
        case |= against
        points = []
        last = None
        for side in sides:
            hashes = definitions(side.records)
            is_redefined = bool(hashes) and hashes != [last] and (bool(last) or len(hashes) > 1)
            last = hashes[-1] if hashes else last
            first = side.records[0]
            change = compared.get(side)
            base = bases.get(side)
            ends_s = first.ci95_s if len(side.records) == 1 else None
            value = side.mfu if metric == "mfu" else side.time_s
            if value is None:
                raise CompareError(f"the MFU is unknown: no peak of {devices[0]} in {key.dtype}")
            point = {
                "run_id": side.environment.run_id,
                "started_at": side.environment.started_at,
                "revision": revision_of(first, side.environment),
                "source_sha256": first.source_sha256,
                "op_sha256": first.op_sha256,
                "path": side.label,
                "median_s": side.time_s,
                "ci95_s": ends_s,
                "value": value,
                "ci95": side.mfu_ci95 if metric == "mfu" else ends_s,
                f"ratio_to_{against['base']}": change and change.ratio,
                "ratio_ci95": change.ci95 if change and change.ci95 != UNKNOWN else None,
                "verdict": change and change.verdict,
                "reason": change and change.reason,
                "flags": side.flags,
                "is_change": change is not None and change.verdict in (FASTER, SLOWER),
                "is_redefined": is_redefined,
                "is_same_code": bool(base and base.code.is_known and base.code == side.code),
            }
            points.append(point)
        series.append(case | {"points": points})
    return series


def _host(run: Run) -> str:
    return str(run.environment.host.get("name") or "")


def _check_one_case(keys: Sequence[RowKey]) -> None:
    if not keys:
        raise CompareError(
            "no run has a successful record that matches; see python -m results list"
        )
    for name in (*KEY, "shape"):
        values = list(dict.fromkeys(str(getattr(key, name)) for key in keys))
        if len(values) > 1:
            shown = ", ".join(values[:MAX_LISTED])
            raise CompareError(
                f"a history shows one case, but {len(values)} of {name} match, such as {shown}"
            )


def _cells(point: Object, provider: str, case: Series) -> Cells:
    half_width = format_half_width(point["ci95"], point["value"])
    text = percent if case["metric"] == "mfu" else duration
    base = case["base"]
    value = point[f"ratio_to_{base}"]
    ratio = f"{value:.4f}" if value else ABSENT
    low, high = point["ratio_ci95"] or (1, 1)
    if high > TOO_NOISY * low:
        ratio = ABSENT
    flags = list(point["flags"])
    if point["is_redefined"]:
        flags.append("<- the op was redefined")
    if point["verdict"] == UNSURE:
        flags.append(point["reason"])
    return {
        "date": Cell(_short_date(point["started_at"])),
        "revision": Cell(point["revision"] or ABSENT),
        "provider": Cell(provider, leaves=4),
        "MFU" if case["metric"] == "mfu" else "time": Cell(text(point["value"]), "right"),
        "95% CI": Cell(half_width, "right"),
        f"time ratio to {base}": Cell(ratio, "right", leaves=2),
        "verdict": Cell("same code" if point["is_same_code"] else point["verdict"] or ABSENT),
        "flags": Cell(", ".join(flags)),
        "run": Cell(point["run_id"], leaves=1),
    }


def _names(series: Sequence[Series]) -> list[str]:
    """Return the providers, with the hosts if there are several."""
    if len({case["host"] for case in series}) == 1:
        return [case["provider"] for case in series]
    return [f"{case['provider']} on {case['host']}" for case in series]


def _short_date(text: str) -> str:
    return f"{datetime.fromtimestamp(unix_time(text), UTC):%Y-%m-%d %H:%M}"


def _heading(series: Sequence[Series]) -> str:
    case = series[0]
    words = [case[name] for name in ("op", "case", "dtype", "fill", "cache") if case[name]]
    words.append(f"on {case['device']}")
    if "against" in case:
        words.append(f"against {case['against']}")
    return " ".join(words)


WIDTH = 11.0
AXES_HEIGHT = 3.6
FOOT = 1.7
"""Inches below the axes for the names of the runs; a line of the legend takes another 0.2."""
MIN_REACH = 0.05
"""Minimum reach of the axis up and down, as a fraction of its middle: noise must not look like a
change.
"""
MAX_TICKS = 24
"""Maximum number of labels of the time axis."""


def draw(series: Sequence[Series], theme: str = "light") -> Figure:
    """Return the plot: a line for each provider, runs by date, crosses for runs with
    interference.
    """
    from numpy import array

    from results.show import picture

    points = []
    for case in series:
        points += case["points"]
    runs = {point["run_id"]: point for point in points}
    order = sorted(runs, key=lambda run_id: (runs[run_id]["started_at"], run_id))
    positions = {run_id: index for index, run_id in enumerate(order)}
    foot = FOOT + 0.2 * len(series)
    largest = max(point["value"] for point in points)
    scale, unit = next((entry for entry in TIME_UNITS if largest >= entry[0]), TIME_UNITS[-1])
    label = f"time, {unit}, 95 % CI"
    if series[0]["metric"] == "mfu":
        scale = 0.01
        label = "MFU, %, 95 % CI"
    with picture.own_style(theme):
        runs_text = count(len(order), "run")
        below = foot + AXES_HEIGHT
        figure, top = picture.titled_figure(WIDTH, _heading(series), runs_text, below)
        axes = figure.subplots()
        figure.subplots_adjust(0.085, foot / figure.get_figheight(), 0.975, top)
        for number, (name, case) in enumerate(zip(_names(series), series, strict=True)):
            of_case = case["points"]
            values = array([point["value"] for point in of_case]) / scale
            ends = array([point["ci95"] or (point["value"],) * 2 for point in of_case]) / scale
            axes.errorbar(
                [positions[point["run_id"]] for point in of_case],
                values,
                yerr=[(values - ends[:, 0]).clip(0), (ends[:, 1] - values).clip(0)],
                capsize=3,
                linewidth=1.4,
                marker=picture.SERIES_MARKERS[number % len(picture.SERIES_MARKERS)],
                color=picture.series_color(number),
                markersize=5,
                label=picture.plain(picture.end_of(name, 44)),
            )
        disturbed = [point for point in points if not DISTURBED.isdisjoint(point["flags"])]
        if disturbed:
            at = [positions[point["run_id"]] for point in disturbed]
            crossed = [point["value"] / scale for point in disturbed]
            ink = picture.tone(picture.INK)
            axes.plot(at, crossed, "x", color=ink, markersize=10, zorder=3, label="disturbed")
        step = -(-len(order) // MAX_TICKS)
        dates = []
        for run_id in order[::step]:
            point = runs[run_id]
            dates.append(
                picture.plain(f"{_short_date(point['started_at'])} {point['revision'] or ''}")
            )
        axes.set_xticks(range(0, len(order), step), dates)
        picture.frame(axes, "y")
        axes.tick_params(axis="x", labelsize=picture.CAPTION_PT - 1)
        # A horizontal label of the last run would end outside of the picture.
        figure.autofmt_xdate(bottom=foot / figure.get_figheight(), rotation=45, ha="right")
        low, high = axes.get_ylim()
        middle = (low + high) / 2
        reach = max(middle - low, middle * MIN_REACH)
        axes.set_ylim(middle - reach, middle + reach)
        axes.set_ylabel(label, fontsize=picture.AXIS_PT)
        figure.legend(fontsize=picture.LEGEND_PT, frameon=False, loc="lower left", ncols=3)
    return figure
