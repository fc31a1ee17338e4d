"""python -m results history: one case over all runs by date, each compared with the previous or a
chosen run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.compare.command import finish, with_problem
from results.compare.comparison import compare_apart, sides_of_run
from results.compare.earlier import SavedRuns
from results.compare.flags import DISTURBED
from results.compare.selection import Selection, add_selection
from results.compare.sides import CompareError, Side, definitions, revision_of
from results.record import RowKey
from results.show.grid import Column, Table, flat, print_grid, print_lines, rows_of
from results.show.options import add, add_format
from results.show.picture import add_picture
from results.show.table import format_half_width
from results.show.terminal import Parser, busy, printable
from results.show.units import ABSENT, TIME_UNITS, count, duration
from results.stats.comparison import (
    FASTER,
    MARGIN,
    SLOWER,
    Comparison,
    with_holm,
)
from results.store.runfile import Run, RunFileError, StoreError, load_run
from results.store.runs import RunSummary, find_run, list_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console

EPILOG = """A run is marked if the definition of its op changed since the previous run (`op_sha256`,
which ignores comments): the time may have changed because the op did.

examples:
  python -m results history --op gelu --dtype bf16 --case 67108864 --provider triton-v2
  python -m results history --op gelu --dtype bf16 --case 67108864 --against 20261101T09
  python -m results history --op matmul --dtype bf16 --case 4096x4096x4096 -o history.png
"""

LAYOUT: dict[str, dict[str, Any]] = {
    "provider": {"goes_below": 4, "heads": True},
    "time": {"side": "right"},
    "95% CI": {"side": "right"},
    "time ratio to last": {"side": "right", "leaves": 2},
    "time ratio to chosen": {"side": "right", "leaves": 3},
    "run": {"leaves": 1},
}
"""Arguments of `Column` by title."""

LAST = ("ratio_to_last", "ratio_ci95", "verdict", "reason")
CHOSEN = ("ratio_to_chosen", "chosen_ci95", "chosen_verdict", "chosen_reason")
"""Keys of a point: the comparison with the previous run, and with the run of `--against`."""

METHOD = (
    "a run is a change if it is FASTER or SLOWER than the previous run: the 95 % interval of "
    "the ratio of their times is beyond the margin; at most 1 % of histories without a "
    "difference have a change by chance (Holm's correction)"
)

CASE = ("op", "dtype", "case", "options", "fill", "cache")
"""Fields of a record that are equal in all runs of a history."""

MAX_LISTED = 6
"""Maximum number of names in a message."""


Series = dict[str, Any]
"""JSON object of one case by one provider on one host; `points` has its runs by date."""


def add_options(parser: Parser, run_help: str) -> None:
    parser.epilog = EPILOG
    add_selection(parser, "show only runs")
    parser.add_argument(
        "--against", metavar="RUN", help=f"also compare each run with this one: {run_help}"
    )
    add(parser, {"margin": MARGIN})
    add_format(parser)
    add_picture(parser)


def run(options: argparse.Namespace, directory: Path) -> int:
    from results.show.picture import check_picture, save_picture

    if options.output is not None:
        check_picture(options.output)
    runs = [
        run
        for run in list_runs(directory, counts_records=False)
        if run.started_s >= (options.since or 0.0)
    ]
    if not runs:
        since = "" if options.since is None else " in that time"
        raise StoreError(f"no run in {directory}{since}: python -m bench.matmul makes one")
    loaded, notes = _read(runs, options.machine)
    chosen = load_run(find_run(options.against, directory)) if options.against is not None else None
    read = [*loaded, chosen] if chosen else loaded
    try:
        series = history(loaded, chosen, Selection.of(options), options.margin)
    except CompareError as error:
        raise with_problem(error, read) from None
    if options.output is not None:
        with busy("drawing"):
            save_picture(draw(series, options.theme), options.output)
    table = Table(
        rows=lambda: [_flat_row(case, point) for case, point in _points(series)],
        shown=lambda: rows_of(_columns(series)),
        document=lambda: {"method": METHOD, "series": series},
        head=lambda: f"**{_heading(series)}**\n\n",
        draw=lambda console: _print_table(series, console),
    )
    return finish(table.render(options.format), read, notes, picture=options.output)


def _points(series: Iterable[Series]) -> Iterator[tuple[Series, dict[str, Any]]]:
    for case in series:
        for point in case["points"]:
            yield case, point


def _read(runs: Iterable[RunSummary], device: str | None) -> tuple[list[Run], list[str]]:
    loaded: list[Run] = []
    notes: list[str] = []
    for summary in sorted(runs, key=lambda run: (run.started_s, run.run_id)):
        if summary.error is None and device not in (None, summary.device_slug):
            continue
        try:
            loaded.append(load_run(summary.path))
            notes += loaded[-1].notes
        except RunFileError as error:
            notes.append(f"left out: {error}")
    return loaded, notes


def history(
    runs: Sequence[Run], chosen: Run | None, selection: Selection, margin: float
) -> list[Series]:
    """Return the history of one case, a series for each provider and host; each run is also
    compared with `chosen` if given.

    A run without a host name counts as one of the host of the run before it.

    Raises:
        CompareError: no record matches, or the records are of several cases or machines.
    """
    by_row: dict[tuple[RowKey, str], list[Side]] = {}
    selected = [run for run in map(selection.records_of, runs) if run.records]
    host = next(filter(None, map(_host, selected)), "")
    for run in selected:
        host = _host(run) or host
        for key, side in sides_of_run(run).items():
            by_row.setdefault((key, host), []).append(side)
    _check_one_case([key for key, _ in by_row], selection)
    chosen_sides = sides_of_run(selection.records_of(chosen)) if chosen else {}
    if chosen and chosen_sides.keys().isdisjoint(key for key, _ in by_row):
        raise CompareError(f"--against: {chosen.path} has no successful record of this case")
    all_sides = [*chosen_sides.values(), *chain.from_iterable(by_row.values())]
    devices = list(dict.fromkeys(side.environment.device["slug"] for side in all_sides))
    if len(devices) > 1:
        raise CompareError(
            f"the runs are of {len(devices)} machines: {', '.join(devices)}; choose one with "
            f"--machine"
        )
    to_last: dict[Side, Side] = {}
    to_chosen: dict[Side, Side] = {}
    for (key, host), sides in by_row.items():
        to_last |= {side: last for last, side in pairwise(sides)}
        base = chosen_sides.get(key)
        if chosen and base and len({_host(chosen), host} - {""}) < 2:
            others = [s for s in sides if s.environment.run_id != chosen.environment.run_id]
            to_chosen |= dict.fromkeys(others, base)
    saved = SavedRuns([*runs, chosen] if chosen else runs)
    last_verdicts = _compared(to_last, margin, saved)
    chosen_verdicts = _compared(to_chosen, margin, saved)
    series: list[Series] = []
    for (key, host), sides in by_row.items():
        case: Series = {name: getattr(key, name) for name in CASE}
        case |= {"provider": key.provider, "device": devices[0], "host": host, "metric": "time"}
        points = []
        for side, is_redefined in _redefined(sides):
            point = _point(side, last_verdicts.get(side), is_redefined)
            if chosen:
                point |= _verdict(CHOSEN, chosen_verdicts.get(side))
            points.append(point)
        if chosen:
            case["against"] = chosen.environment.run_id
        series.append(case | {"points": points})
    return series


def _compared(
    bases: Mapping[Side, Side], margin: float, saved: SavedRuns
) -> dict[Side, Comparison]:
    """Compare each side with its base."""
    rows = [
        compare_apart(side.records[0].row, base, side, margin, saved).compared
        for side, base in bases.items()
    ]
    return dict(zip(bases, with_holm(rows), strict=True))


def _host(run: Run) -> str:
    return str(run.environment.host.get("name") or "")


def _redefined(sides: Iterable[Side]) -> Iterator[tuple[Side, bool]]:
    last: str | None = None
    for side in sides:
        hashes = definitions(side.records)
        yield side, bool(hashes) and hashes != [last] and (last is not None or len(hashes) > 1)
        last = hashes[-1] if hashes else last


def _check_one_case(keys: Sequence[RowKey], selection: Selection) -> None:
    if not keys:
        parts = [",".join(sorted(part)) for part in selection.names.values() if part]
        shown = " ".join(parts) or "anything"
        raise CompareError(
            f"no run has a successful record of {shown}; list runs with python -m results list"
        )
    for name in CASE:
        values = list(dict.fromkeys(str(getattr(key, name)) for key in keys))
        if len(values) > 1:
            shown = ", ".join(values[:MAX_LISTED]) + (", ..." if len(values) > MAX_LISTED else "")
            raise CompareError(
                f"a history shows one case, but {len(values)} values of --{name} match: {shown}; "
                f"choose one"
            )
    shapes = {key.shape for key in keys}
    if len(shapes) > 1:
        raise CompareError(
            f"a history shows one case, but {len(shapes)} shapes are named {keys[0].case}"
        )


def _point(side: Side, to_last: Comparison | None, is_redefined: bool) -> dict[str, Any]:
    median_s = side.time_s
    ends_s = side.records[0].ci95_s if len(side.records) == 1 else None
    return {
        "run_id": side.environment.run_id,
        "started_at": side.environment.started_at,
        "revision": revision_of(side.records[0], side.environment),
        "source_sha256": side.records[0].source_sha256,
        "op_sha256": side.records[0].op_sha256,
        "path": side.label,
        "median_s": median_s,
        "ci95_s": ends_s,
        "value": median_s,
        "ci95": ends_s,
        **_verdict(LAST, to_last),
        "flags": list(side.flags),
        "is_change": to_last is not None and to_last.verdict in (FASTER, SLOWER),
        "is_redefined": is_redefined,
    }


def _verdict(keys: Sequence[str], compared: Comparison | None) -> dict[str, Any]:
    if compared is None:
        return dict.fromkeys(keys)
    values = (compared.ratio, compared.interval, compared.verdict, compared.reason)
    return dict(zip(keys, values, strict=True))


def _flat_row(case: Series, point: dict[str, Any]) -> dict[str, Any]:
    names = ("op", "dtype", "case", "provider", "host", "metric")
    return {name: case[name] for name in names} | flat(point)


def _columns(series: Sequence[Series]) -> list[Column]:
    shown = []
    styles = []
    for name, case in zip(_names(series), series, strict=True):
        for point in case["points"]:
            shown.append(_cells(point, name, case))
            styles.append("bold" if point["is_redefined"] else "")
    return [
        Column(title, [cells[title] for cells in shown], styles=styles, **LAYOUT.get(title, {}))
        for title in shown[0]
    ]


def _cells(point: Mapping[str, Any], provider: str, case: Series) -> dict[str, str]:
    cells = {
        "date": _short_date(point["started_at"]),
        "revision": point["revision"] or ABSENT,
        "provider": provider,
        "time": duration(point["median_s"]),
        "95% CI": format_half_width(point["ci95_s"], point["median_s"]),
        "time ratio to last": _ratio(point[LAST[0]]),
        "verdict": point["verdict"] or ABSENT,
    }
    if "against" in case:
        cells["time ratio to chosen"] = _ratio(point[CHOSEN[0]])
        cells["verdict to chosen"] = point[CHOSEN[2]] or ABSENT
    flags = list(point["flags"])
    if point["is_redefined"]:
        flags.append("<- the op was redefined")
    cells["flags"] = ", ".join(flags)
    cells["run"] = point["run_id"]
    return cells


def _ratio(value: float | None) -> str:
    return f"{value:.4f}" if value else ABSENT


def _names(series: Sequence[Series]) -> list[str]:
    """Return the providers, with the hosts if there are several."""
    if len({case["host"] for case in series}) == 1:
        return [case["provider"] for case in series]
    return [f"{case['provider']} on {case['host']}" for case in series]


def _print_table(series: Sequence[Series], console: Console) -> None:
    columns = {column.title: column for column in _columns(series)}
    flags = columns.pop("flags").cells
    print_lines(console, f"{_heading(series)}\n")
    print_grid(console, columns.values(), flags, "flags")


def _short_date(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return f"{moment.astimezone(UTC) if moment.tzinfo else moment:%Y-%m-%d %H:%M}"


def _heading(series: Sequence[Series]) -> str:
    case = series[0]
    words = [
        *(case[name] for name in ("op", "case", "dtype", "fill", "cache")),
        f"on {case['device']}",
    ]
    words += [f"against {case['against']}"] if "against" in case else []
    return printable(" ".join(word for word in words if word))


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
    from results.show import picture

    runs = {point["run_id"]: point for _, point in _points(series)}
    order = sorted(runs, key=lambda run_id: (runs[run_id]["started_at"], run_id))
    positions = {run_id: index for index, run_id in enumerate(order)}
    foot = FOOT + 0.2 * len(series)
    largest_s = max(point["median_s"] for _, point in _points(series))
    scale, unit = next((entry for entry in TIME_UNITS if largest_s >= entry[0]), TIME_UNITS[-1])
    with picture.own_style(theme):
        figure = picture.new_figure(WIDTH, 1.0)
        title = picture.plain(_heading(series), 200)
        top = picture.write_head(figure, title, count(len(order), "run"), foot + AXES_HEIGHT)
        axes = figure.subplots()
        figure.subplots_adjust(0.085, foot / figure.get_figheight(), 0.975, top)
        for number, (name, case) in enumerate(zip(_names(series), series, strict=True)):
            _draw_line(axes, name, case["points"], positions, number, scale)
        disturbed = [
            (positions[point["run_id"]], point["median_s"] / scale)
            for _, point in _points(series)
            if not DISTURBED.isdisjoint(point["flags"])
        ]
        if disturbed:
            at, values = zip(*disturbed, strict=True)
            ink = picture.tone(picture.INK)
            axes.plot(at, values, "x", color=ink, markersize=10, zorder=3, label="disturbed")
        step = -(-len(order) // MAX_TICKS)
        dates = [
            f"{_short_date(runs[run_id]['started_at'])} {runs[run_id]['revision'] or ''}"
            for run_id in order
        ]
        axes.set_xticks(range(0, len(order), step), [picture.plain(date) for date in dates[::step]])
        picture.frame(axes, "y")
        axes.tick_params(axis="x", labelsize=picture.CAPTION_PT - 1)
        if len(order) > 4:
            figure.autofmt_xdate(bottom=foot / figure.get_figheight(), rotation=45, ha="right")
        low, high = axes.get_ylim()
        middle = (low + high) / 2
        reach = max(middle - low, middle * MIN_REACH)
        axes.set_ylim(middle - reach, middle + reach)
        axes.set_ylabel(f"time, {unit}, 95 % CI", fontsize=picture.AXIS_PT)
        figure.legend(fontsize=picture.LEGEND_PT, frameon=False, loc="lower left", ncols=3)
    return figure


def _draw_line(
    axes: Axes,
    name: str,
    points: Sequence[Mapping[str, Any]],
    positions: Mapping[str, int],
    number: int,
    scale: float,
) -> None:
    from results.show.picture import SERIES_MARKERS, end_of, plain, series_color

    below = []
    above = []
    for point in points:
        value = point["median_s"]
        low, high = point["ci95_s"] or (value, value)
        below.append(max(0, value - low) / scale)
        above.append(max(0, high - value) / scale)
    axes.errorbar(
        [positions[point["run_id"]] for point in points],
        [point["median_s"] / scale for point in points],
        yerr=[below, above],
        capsize=3,
        linewidth=1.4,
        marker=SERIES_MARKERS[number % len(SERIES_MARKERS)],
        color=series_color(number),
        markersize=5,
        label=plain(end_of(name, 44)),
    )
