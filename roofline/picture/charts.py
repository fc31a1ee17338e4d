"""Plots of estimates: parts of a total as bars, and values along one or two options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.show.picture import (
    AXIS_PT,
    LABEL_PT,
    LEGEND_PT,
    MUTED,
    SERIES_MARKERS,
    frame,
    new_figure,
    own_style,
    plain,
    series_color,
    tone,
    write_head,
)
from results.show.units import duration, significant, tick
from roofline.accounting.config import ConfigError
from roofline.estimate.answer import Answer, folded
from roofline.estimate.sweep import Sweep, memory_marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PANEL, ROW = 10.0, 5.0, 0.42
"""Width of the figure, height of a panel, and height of a bar, inches."""
MAX_MARKERS = 20
"""Lines with more points have no markers."""
ROOM_FOR_WORDS = 1.12
"""Length of the axis over the longest bar, for its text."""
MAX_TICKS = 12
"""With at most this many values each has a tick."""
MIN_LOG_RATIO = 16
"""Ratio of largest to smallest value from which an axis is logarithmic."""


def draw_answer(answer: Answer, theme: str = "light") -> Figure:
    """Return the plot of an answer: its curve, or its parts with the largest first."""
    words = ", ".join(answer.main_texts())
    if answer.curve:
        x, y, lines = answer.curve
        return draw_lines(f"{answer.title}: {words}", x, y, lines, {}, theme)
    steps = [step for step in folded(answer)[::-1] if step.amount]
    if not steps:
        raise ConfigError("plots exist for params, flops, memory, train and chinchilla; for others use sweep")
    amounts = [step.amount or 0 for step in steps]
    with own_style(theme):
        figure = new_figure(WIDTH, PANEL)
        below = ROW * len(steps) + 0.8
        top = write_head(figure, plain(answer.title, 200), plain(words, 200), below)
        axes = figure.add_axes((0.28, 0.06, 0.58, top - 0.08))
        frame(axes, "x")
        axes.barh([plain(step.label) for step in steps], amounts, color=series_color(0))
        for row, step in enumerate(steps):
            text = f" {step.result}, {100 * amounts[row] / sum(amounts):.1f} %"
            axes.text(amounts[row], row, text, va="center", fontsize=LABEL_PT)
        axes.set_xlim(right=ROOM_FOR_WORDS * max(amounts))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    return figure


def draw_sweep(sweep: Sweep, title: str, y: str, theme: str = "light") -> Figure:
    """Return the plot of `y` along the first option of a sweep, with a line for each value of the others."""
    x = sweep.overs[0].option
    apart = ("gpu", "dtype", "convention", *(over.option for over in sweep.overs[1:]))
    varying = [name for name in sweep.columns if name in apart]
    drawn: dict[str, list[dict[str, Any]]] = {}
    for row in sweep.rows:
        if not isinstance(row[x], str) and isinstance(row.get(y), int | float):
            drawn.setdefault(", ".join(f"{key} {row[key]}" for key in varying), []).append(row)
    if not drawn:
        raise ConfigError(f"a plot requires numbers along --{x}, but {y or 'the answer'} has none")
    marks: dict[str, float] = {}
    for name, rows in drawn.items():
        turn = rows[0].get("critical_batch")
        if turn and x == "batch" and turn <= max(row[x] for row in rows):
            marks[f"critical batch {turn:,} {name}".strip()] = turn
        marks |= {f"{words} {name}".strip(): value for words, value in memory_marks(rows, x).items()}
    lines = {name: [(row[x], row[y]) for row in rows] for name, rows in drawn.items()}
    return draw_lines(title, x, y.replace("_", " "), lines, marks, theme)


def draw_lines(
    title: str,
    x_name: str,
    y_name: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float],
    theme: str = "light",
) -> Figure:
    """Return a plot of named lines, with vertical lines at `marks`."""
    is_time = y_name.endswith("seconds")
    with own_style(theme):
        figure = new_figure(WIDTH, PANEL)
        top = write_head(figure, plain(title, 200), plain(f"{y_name} by {x_name}", 200), PANEL)
        axes = figure.add_axes((0.09, 0.12, 0.87, top - 0.15))
        frame(axes)
        for index, (name, points) in enumerate(lines.items()):
            style = {"color": series_color(index), "marker": SERIES_MARKERS[index % len(SERIES_MARKERS)]}
            if len(points) > MAX_MARKERS:
                style["marker"] = ""
            marked = 11 if len(points) == 1 else 5
            axes.plot(*zip(*points, strict=True), label=plain(name), linewidth=1.8, markersize=marked, **style)  # type: ignore[arg-type]
        for name, value in marks.items():
            axes.axvline(value, color=tone(MUTED), linewidth=1, linestyle=(0, (4, 2)))
            axes.text(value, 0.98, f"{plain(name)} ", color=tone(MUTED), fontsize=LABEL_PT, ha="right", va="top",
                      transform=axes.get_xaxis_transform())  # fmt: skip
        everything = [point for points in lines.values() for point in points]
        for values, scale in (
            ([x for x, _ in everything], axes.set_xscale),
            ([y for _, y in everything], axes.set_yscale),
        ):
            if min(values) > 0 and max(values) >= MIN_LOG_RATIO * min(values):
                scale("log")
        _name_ticks(axes, sorted({x for x, _ in everything}), is_time=is_time)
        axes.set_xlabel(plain(x_name), fontsize=AXIS_PT)
        axes.set_ylabel(plain(y_name.removesuffix("seconds") + "time" if is_time else y_name), fontsize=AXIS_PT)
        if any(lines):
            axes.legend(fontsize=LEGEND_PT, frameon=False)
    return figure


def _name_ticks(axes: Axes, xs: Sequence[float], is_time: bool) -> None:
    from matplotlib.ticker import FuncFormatter, NullLocator

    if axes.get_xscale() == "log":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value)))
        if len(xs) <= MAX_TICKS:
            axes.set_xticks(xs)
            axes.xaxis.set_minor_locator(NullLocator())
    if is_time:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value) if value > 0 else "0"))
    elif axes.get_yscale() == "log":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
