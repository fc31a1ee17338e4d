"""The plot of a history: a line for each provider, runs by date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from results.compare.flags import DISTURBED
from results.history.series import METRICS, HistoryPoint, Series, heading, short_date
from results.show.picture import (
    AXIS_PT,
    CAPTION_PT,
    LEGEND_PT,
    MUTED,
    SERIES_MARKERS,
    end_of,
    frame,
    new_figure,
    own_style,
    plain,
    series_color,
    tone,
    write_head,
)
from results.show.table import PREFIXES, TIME_UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, AXES_HEIGHT = 11.0, 3.6
LABEL_LETTERS = 44
LEAST_REACH = 0.05
"""Share of the middle that the axis reaches up and down at least: noise must not look like a change."""
TICKS = 24
"""Labels under the picture that have room beside each other."""
FOOT = 1.25
"""Room below the axes for the names of the runs, inches; the legend is below that."""
ROW = 0.2
"""Height of a line of the legend, inches."""
LEGEND_COLUMNS = 3


def draw(series: Sequence[Series], theme: str = "light") -> Figure:
    # The functions of a user come last, so that their revision, and not that of the measuring code, names a run.
    ordered = sorted(series, key=lambda one: ":" in one.provider)
    runs = {point.run_id: point for one in ordered for point in one.points}
    order = sorted(runs, key=lambda run_id: (runs[run_id].started_at, run_id))
    places = {run_id: place for place, run_id in enumerate(order)}
    metric, scale = series[0].metric, _scale(series)
    are_disturbed = any(_is_disturbed(point) for one in series for point in one.points)
    legend = ROW * -(-(len(series) + are_disturbed) // LEGEND_COLUMNS)
    foot = FOOT + legend + 0.15
    with own_style(theme):
        figure = new_figure(WIDTH, 1.0)
        top = write_head(
            figure, plain(heading(series), 200), f"{len(order)} run{'s' * (len(order) != 1)}", foot + AXES_HEIGHT
        )
        axes = figure.subplots()
        height = figure.get_figheight()
        figure.subplots_adjust(0.085, foot / height, 0.975, top)
        for number, one in enumerate(series):
            _draw_series(axes, one, places, number, scale[0])
        if are_disturbed:
            axes.plot([], [], "o", color=tone(MUTED), markerfacecolor=tone("white"), markersize=5, label="disturbed")
        _set_axes(axes, [runs[run_id] for run_id in order])
        axes.set_ylabel(f"{METRICS[metric]}, {scale[1]}, 95 % CI", fontsize=AXIS_PT)
        at = (0.3 / WIDTH, 0.1 / height)
        figure.legend(fontsize=LEGEND_PT, frameon=False, loc="lower left", bbox_to_anchor=at, ncols=LEGEND_COLUMNS)
    return figure


def _set_axes(axes: Axes, runs: Sequence[HistoryPoint]) -> None:
    """Name the runs below the picture, and show a range in which noise does not look like a change."""
    step = -(-len(runs) // TICKS)
    dates = [short_date(run.started_at) for run in runs[::step]]
    days = [date[:10] for date in dates]
    is_one_year = len({date[:4] for date in dates}) == 1
    times = [date[5:] if is_one_year else date for date in dates]  # a year that all share would only take room
    when = days if len({*days}) == len(days) else times
    texts = [f"{date} {run.revision or ''}" for date, run in zip(when, runs[::step], strict=True)]
    axes.set_xticks(range(0, len(runs), step), [plain(text) for text in texts])
    frame(axes, "y")
    slanted = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(runs) > 4 else {}
    for label in axes.get_xticklabels():
        label.set(fontsize=CAPTION_PT - 1, **slanted)
    low, high = axes.get_ylim()
    middle = (low + high) / 2
    reach = max(middle - low, middle * LEAST_REACH)
    axes.set_ylim(middle - reach, middle + reach)


def _is_disturbed(point: HistoryPoint) -> bool:
    return not DISTURBED.isdisjoint(point.flags)


def _scale(series: Sequence[Series]) -> tuple[float, str]:
    metric, largest = series[0].metric, max(point.value for one in series for point in one.points)
    if metric in ("mfu", "mbu"):
        return 0.01, "%"
    units = [(scale, f"{prefix}FLOP/s") for scale, prefix in PREFIXES] if metric == "flops" else TIME_UNITS
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def _draw_series(axes: Axes, one: Series, places: dict[str, int], number: int, scale: float) -> None:
    color, marker = series_color(number), SERIES_MARKERS[number % len(SERIES_MARKERS)]
    at = [places[point.run_id] for point in one.points]
    values = [point.value / scale for point in one.points]
    ends = [point.ci95 or (point.value, point.value) for point in one.points]
    below = [max(0.0, point.value - low) / scale for point, (low, _) in zip(one.points, ends, strict=True)]
    above = [max(0.0, high - point.value) / scale for point, (_, high) in zip(one.points, ends, strict=True)]
    style: dict[str, Any] = {"marker": marker, "markersize": 5, "capsize": 3, "linewidth": 1.4, "color": color}
    axes.errorbar(at, values, yerr=[below, above], label=end_of(one.provider, LABEL_LETTERS), **style)
    hollow = [place for place, point in enumerate(one.points) if _is_disturbed(point)]
    hollow_at, hollow_values = [at[place] for place in hollow], [values[place] for place in hollow]
    axes.plot(hollow_at, hollow_values, marker, color=color, markerfacecolor=tone("white"), markersize=5, zorder=3)
