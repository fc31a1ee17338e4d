"""A history as text and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO

from results.compare.flags import DISTURBED
from results.compare.plot import LABEL_LETTERS, one_line
from results.compare.sides import METRICS
from results.history.changes import LEAST_RUNS, PERMUTATIONS
from results.history.segments import HistoryPoint, Series, short_date
from results.show.export import csv_text, json_text, markdown_text
from results.show.grid import Column, print_grid
from results.show.table import ABSENT, format_number, format_percent, format_rate, format_time, printable, table_console
from results.stats.comparison import UNKNOWN
from results.stats.samples import half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHOD = (
    f"change points by binary segmentation of the medians, beyond margin and drift between runs: permutation test at "
    f"5 % among all parts (Holm; {PERMUTATIONS} orders, {LEAST_RUNS} runs or more)"
)

LINE_COLORS = ("#2e86c1", "#ca6f1e", "#1e8449", "#7d3c98", "#c0392b", "#5d6d7e")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""As many of both as have no common factor: so many series look different, in black and white too."""

TITLE_LETTERS = 120
LEAST_REACH = 0.05
"""Share of the middle that the axis reaches up and down at least: noise must not look like a change."""

LABEL_POINTS = 10
"""Height of a label of 7 points, so that those of several series at one place lie below each other."""
TICKS = 24
"""Labels under the picture that have room beside each other."""


def as_json(series: Sequence[Series]) -> str:
    """Return all series as one JSON document."""
    return json_text({"method": METHOD, "series": [_json_series(one) for one in series]})


def _json_series(one: Series) -> dict[str, Any]:
    known: dict[str, Any] = {"op": one.key.op, "dtype": one.key.dtype, "case": one.key.case, "options": one.key.options}
    known |= {"fill": one.key.fill, "cache": one.key.cache, "provider": one.provider}
    return known | {"device": one.device, "metric": one.metric, "points": [_json_point(point) for point in one.points]}


def _json_point(point: HistoryPoint) -> dict[str, Any]:
    change = point.since_last
    return {
        "run_id": point.run_id,
        "started_at": point.started_at,
        "revision": point.revision,
        "source_sha256": point.source_sha256,
        "op_sha256": point.op_sha256,
        "path": point.path,
        "median_s": point.median_s,
        "ci95_s": list(point.ci95_s) if point.ci95_s else None,
        "value": point.value,
        "ci95": list(point.ci95) if point.ci95 else None,
        "ratio_to_last": change.ratio if change else None,
        "ratio_ci95": list(change.ci95) if change and change.ci95 != UNKNOWN else None,
        "verdict": change.verdict if change else None,
        "reason": change.reason if change else None,
        "flags": list(point.flags),
        "is_change": point.is_change,
        "is_redefined": point.is_redefined,
    }


def as_csv(series: Sequence[Series]) -> str:
    """Return a row for each run and provider."""
    rows = []
    for one in series:
        for point in one.points:
            row: dict[str, Any] = {
                "op": one.key.op,
                "dtype": one.key.dtype,
                "case": one.key.case,
                "provider": one.provider,
            }
            for name, value in (row | {"metric": one.metric} | _json_point(point)).items():
                if name in ("ci95_s", "ci95", "ratio_ci95"):
                    row |= {f"{name}_low": value[0] if value else None, f"{name}_high": value[1] if value else None}
                else:
                    row[name] = ",".join(value) if name == "flags" else value
            rows.append(row)
    return csv_text(rows, ())


def as_markdown(series: Sequence[Series]) -> str:
    """Return a heading and one table."""
    rows = [_cells(one, point) for one in series for point in one.points]
    return f"**{heading(series)}**\n\n{markdown_text(rows, list(rows[0]))}\n{METHOD}\n"


def heading(series: Sequence[Series]) -> str:
    """Return what the history is of, in one line."""
    key = series[0].key
    words = (key.op, key.case, key.dtype, key.fill, key.cache, f"on {series[0].device}")
    return printable(" ".join(word for word in words if word))


def _shown(value: float, metric: str) -> str:
    if metric == "time":
        return format_time(value)
    return format_rate(value, "FLOP/s") if metric == "flops" else format_percent(100 * value)


def _marks(point: HistoryPoint) -> list[str]:
    """Return what is otherwise from a run on."""
    return ["<- from here on"] * point.is_change + ["<- the op was redefined"] * point.is_redefined


def _cells(one: Series, point: HistoryPoint) -> dict[str, str]:
    change = point.since_last
    return {
        "date": short_date(point.started_at),
        "revision": point.revision or ABSENT,
        "provider": one.provider,
        METRICS[one.metric]: _shown(point.value, one.metric),
        "95% CI": f"±{format_number(100 * half_width(point.ci95, point.value), 2)}%" if point.ci95 else ABSENT,
        "time ratio to last": f"{change.ratio:.4f}" if change else ABSENT,
        "verdict": change.verdict if change else ABSENT,
        "flags": ", ".join(point.flags),
        "change": ", ".join(_marks(point)),
        "run": point.run_id,
    }


def print_table(series: Sequence[Series], file: TextIO) -> str:
    """Return the table for people."""
    console = table_console(file)
    rows = [_cells(one, point) for one in series for point in one.points]
    leaving = {"run": 1, "time ratio to last": 2}
    words = {"date", "revision", "provider", "verdict", "run"}
    columns = [
        Column(
            title,
            [row[title] for row in rows],
            "left" if title in words else "right",
            leaving.get(title, 0),
            goes_below=int(title == "provider"),
            heads=title == "provider",
            styles=["bold" if row["change"] else "" for row in rows],
        )
        for title in rows[0]
        if title not in ("change", "flags")
    ]
    with console.capture() as text:
        console.print(f"{heading(series)}\n", markup=False, highlight=False, soft_wrap=True)
        notes = ["; ".join(text for text in (row["flags"], row["change"]) if text) for row in rows]
        print_grid(console, columns, notes, "flags")
        console.print(f"\n{METHOD}", markup=False, highlight=False, soft_wrap=True, style="dim")
    return text.get()


def draw(series: Sequence[Series]) -> Figure:
    """Return the picture of a history: a line for each provider, runs by date, change points marked."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # The functions of a user come last, so that their revision, and not that of the measuring code, names a run.
    ordered = sorted(series, key=lambda one: ":" in one.provider)
    runs = {point.run_id: point for one in ordered for point in one.points}
    order = sorted(runs, key=lambda run_id: (runs[run_id].started_at, run_id))
    places = {run_id: place for place, run_id in enumerate(order)}
    metric, scale = series[0].metric, _scale(series)
    for number, one in enumerate(series):
        _draw_series(axes, one, places, number, scale[0])
    if any(_is_disturbed(point) for one in series for point in one.points):
        axes.plot([], [], "o", color="#5d6d7e", markerfacecolor="white", markersize=4, label="disturbed")
    _set_axes(axes, [runs[run_id] for run_id in order])
    axes.set_ylabel(f"{METRICS[metric]}, {scale[1]}, 95 % CI", fontsize=9)
    title = one_line(heading(series), TITLE_LETTERS)
    axes.set_title("\n".join([title, *wrap(METHOD, TITLE_LETTERS)]), fontsize=9, loc="left")
    figure.legend(fontsize=8, frameon=False, loc="outside lower left", ncols=3)
    return figure


def _set_axes(axes: Axes, runs: Sequence[HistoryPoint]) -> None:
    """Name the runs below the picture, and show a range in which noise does not look like a change."""
    step = -(-len(runs) // TICKS)
    texts = [f"{short_date(run.started_at)[:10]}  {run.revision or ''}" for run in runs[::step]]
    axes.set_xticks(range(0, len(runs), step), [one_line(text) for text in texts])
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(runs) > 4 else {}
    for label in axes.get_xticklabels():
        label.set(fontsize=7, **slanted)
    axes.tick_params(axis="y", labelsize=8)
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    reach = max(middle - low, middle * LEAST_REACH)
    axes.set_ylim(middle - reach, middle + reach)
    axes.grid(axis="y", color="#ebedef", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _is_disturbed(point: HistoryPoint) -> bool:
    return not DISTURBED.isdisjoint(point.flags)


def _end_of(provider: str) -> str:
    """Return a provider's name with its end, where that of a function is, if there is no room for the whole."""
    cut = provider if len(provider) <= LABEL_LETTERS else f"…{provider[1 - LABEL_LETTERS :]}"
    return one_line(cut)


def _scale(series: Sequence[Series]) -> tuple[float, str]:
    """Return the unit of the picture: by how much to divide, and its name."""
    metric, largest = series[0].metric, max(point.value for one in series for point in one.points)
    if metric in ("mfu", "mbu"):
        return 0.01, "%"
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
    if metric == "flops":
        units = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s"))
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def _draw_series(axes: Axes, one: Series, places: dict[str, int], number: int, scale: float) -> None:
    color, marker = LINE_COLORS[number % len(LINE_COLORS)], MARKERS[number % len(MARKERS)]
    at = [places[point.run_id] for point in one.points]
    values = [point.value / scale for point in one.points]
    ends = [point.ci95 or (point.value, point.value) for point in one.points]
    below = [max(0.0, point.value - low) / scale for point, (low, _) in zip(one.points, ends, strict=True)]
    above = [max(0.0, high - point.value) / scale for point, (_, high) in zip(one.points, ends, strict=True)]
    axes.errorbar(
        at,
        values,
        yerr=[below, above],
        marker=marker,
        markersize=4,
        capsize=3,
        color=color,
        label=_end_of(one.provider),
    )
    hollow = [place for place, point in enumerate(one.points) if _is_disturbed(point)]
    hollow_at, hollow_values = [at[place] for place in hollow], [values[place] for place in hollow]
    axes.plot(hollow_at, hollow_values, marker, color=color, markerfacecolor="white", markersize=4, zorder=3)
    for place, point in zip(at, one.points, strict=True):
        if point.is_change:
            axes.axvline(place - 0.5, color=color, linestyle="--", linewidth=1)
            name = one_line(f"change: {point.revision or short_date(point.started_at)}")
            axes.annotate(
                name,
                (place - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(3, -3 - LABEL_POINTS * (number % 8)),
                textcoords="offset points",
                fontsize=7,
                color=color,
                va="top",
            )
