"""Plots of estimates: parts of a total as bars, and values along one or two options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from results.show.picture import (
    LABEL_PT,
    MUTED,
    SERIES_MARKERS,
    frame,
    own_style,
    plain,
    series_color,
    titled_figure,
    tone,
)
from results.show.units import duration, number, percent, quantity
from roofline.accounting.config import ConfigError
from roofline.estimate.answer import SMALL, Answer, Step, cell, folded
from roofline.estimate.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.8
"""Width of the figure, inches. In a column of 650 pixels its smallest text has 12."""
PANEL = 5.0
"""Height of a panel, inches."""
ROW = 0.42
"""Height of a bar, inches."""
MAX_MARKERS = 20
"""Lines with more points have no markers."""
ROOM_FOR_WORDS = 1.25
"""Length of the axis over the longest bar, for its text."""
MAX_TICKS = 12
"""With at most this many values each has a tick, unless it is too close to the one before."""
TICK_SHARE = 0.06
"""Distance of two ticks on a logarithmic axis, as a fraction of its length."""
MIN_LOG_RATIO = 16
"""Ratio of largest to smallest value from which an axis is logarithmic."""
MAX_BESIDE = 8
"""Names of at most this many letters are in a legend beside the lines, others between them."""


def draw_answer(answer: Answer, theme: str = "light") -> Figure:
    """Return the plot of an answer: its curve, or its parts with the largest first."""
    words = ", ".join(answer.main_texts())
    if answer.curve:
        title = f"{answer.title}: {words}" if words else answer.title
        return draw_lines(title, *answer.curve, theme)
    steps = [step for step in folded(answer)[::-1] if step.amount]
    if not steps:
        raise ConfigError("no picture of this answer: give a machine, or a layout of devices")
    return draw_parts(answer.title, words, steps, theme)


def draw_parts(title: str, words: str, steps: Sequence[Step], theme: str = "light") -> Figure:
    """Return a plot of the parts of a total as bars, the last at the top."""
    amounts = [step.amount or 0 for step in steps]
    with own_style(theme):
        figure, top = titled_figure(WIDTH, title, words, ROW * len(steps) + 0.8)
        axes = figure.add_axes((0.28, 0.06, 0.58, top - 0.08))
        frame(axes, "x")
        axes.barh([plain(step.label) for step in steps], amounts, color=series_color(0))
        for row, step in enumerate(steps):
            text = f" {step.result}, {percent(amounts[row], sum(amounts))}"
            axes.text(amounts[row], row, text, va="center", fontsize=LABEL_PT)
        axes.set_xlim(right=ROOM_FOR_WORDS * max(amounts))
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    return figure


def draw_sweep(sweep: Sweep, subject: str, y: str, theme: str = "light") -> Figure:
    """Return the plot of `y` along the first option of a sweep, with a line for each value of the
    others; if its values are words, a bar for each with the parts of the total.

    The subject of the estimate is the subtitle. The memory of the devices is a line; in plots of
    something else, what does not fit is a line of its own.
    """
    x = sweep.overs[0].option
    apart = ("gpu", "dtype", "convention", *(over.option for over in sweep.overs[1:]))
    varying = [name for name in sweep.columns if name in apart]
    drawn: dict[str, list[dict[str, Any]]] = {}
    limits: dict[str, float] = {}
    for row in sweep.rows:
        if y == "total_bytes" and row.get("gpu"):
            limits[f"memory of {row['gpu']}"] = row["memory_bytes"]
        if not isinstance(row[x], str) and isinstance(row.get(y), int | float):
            words = [f"{key} {row[key]}" for key in varying]
            if row.get("fits") is False and y != "total_bytes":
                words.append("does not fit in memory")
            drawn.setdefault(", ".join(words), []).append(row)
    if not drawn and any(sweep.parts.values()):
        return draw_stacks(sweep.parts, y, x, subject, theme)
    if not drawn:
        raise ConfigError(f"a plot requires numbers along --{x}, but {y or 'the answer'} has none")
    lines = {name: [(row[x], row[y]) for row in own] for name, own in drawn.items()}
    quantity = _quantity(y)
    if len(drawn) == 1:
        (points,) = lines.values()
        ordered = sorted(points)
        ends = [f"{cell(y, value)} at {x} {number(at)}" for at, value in (ordered[0], ordered[-1])]
        title = f"{quantity} goes from {ends[0]} to {ends[1]}"
    else:
        others = [name for name in varying if name != x]
        title = f"{quantity} changes with {' and '.join([x, *others])}"
    title = title[:1].upper() + title[1:]
    return draw_lines(title, x, y.replace("_", " "), lines, theme, subject, limits)


def draw_stacks(
    bars: Mapping[str, Mapping[str, float]], y: str, x: str, subject: str, theme: str = "light"
) -> Figure:
    """Return a plot of bars of parts, with those of the same first word in one color and without
    the smallest.
    """
    stacks: dict[str, dict[str, float]] = {}
    for bar, parts in bars.items():
        for name, size in parts.items():
            stacks.setdefault(name.partition("_")[0], dict.fromkeys(bars, 0.0))[bar] += size
    least = SMALL * max(sum(parts.values()) for parts in bars.values())
    below = [0.0] * len(bars)
    with own_style(theme):
        axes = _new_axes(f"{_quantity(y).capitalize()} by {x}", subject, 0.605)
        for name, of_bars in stacks.items():
            sizes = list(of_bars.values())
            if max(sizes) > least:
                color = series_color(len(axes.containers))
                axes.bar(list(map(plain, bars)), sizes, 0.6, below, color=color, label=name)
                below = list(map(sum, zip(below, sizes, strict=True)))
        _name_ticks(axes, (), y)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), reverse=True, fontsize=LABEL_PT)
    return axes.figure.figure


def _new_axes(title: str, subtitle: str, width: float) -> Axes:
    figure, top = titled_figure(WIDTH, title, subtitle, PANEL)
    axes = figure.add_axes((0.18, 0.12, width, top - 0.15))
    frame(axes)
    return axes


def _quantity(key: str) -> str:
    return re.sub("seconds$", "time", re.sub("bytes$", "size", key.replace("_", " ")))


def draw_lines(
    title: str,
    x_name: str,
    y_name: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    theme: str = "light",
    subtitle: str = "",
    limits: Mapping[str, float] = MappingProxyType({}),
) -> Figure:
    """Return a plot of named lines, and lines at `limits`."""
    from matplotlib.ticker import MaxNLocator

    with own_style(theme):
        is_beside = 0 < max(map(len, lines)) <= MAX_BESIDE
        width = 0.645 if is_beside else 0.78
        axes = _new_axes(title, subtitle or f"{y_name} by {x_name}", width)
        for index, (name, points) in enumerate(lines.items()):
            color = series_color(index)
            marker = SERIES_MARKERS[index % len(SERIES_MARKERS)]
            line = axes.plot(*zip(*points, strict=True), color=color, lw=1.8, label=plain(name))[0]
            if len(points) <= MAX_MARKERS:
                line.set(marker=marker, markersize=5)
        muted = tone(MUTED)
        text: dict[str, Any] = {"color": muted, "fontsize": LABEL_PT, "ha": "right"}
        for name, value in limits.items():
            axes.axhline(value, color=muted, linewidth=1, linestyle=(0, (4, 2)))
            words = plain(f"{name}, {quantity(value, 'B')}")
            axes.text(0.99, value, words, va="bottom", transform=axes.get_yaxis_transform(), **text)
        xs, ys = zip(*chain.from_iterable(lines.values()), strict=True)
        for values, scale in ((xs, axes.set_xscale), (ys, axes.set_yscale)):
            if min(values) > 0 and max(values) >= MIN_LOG_RATIO * min(values):
                scale("log")
        _name_ticks(axes, sorted(set(xs)), y_name)
        if axes.get_xscale() == "linear" and all(isinstance(x, int) for x in xs):
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))  # no column 0.5
        axes.set_xlabel(plain(x_name))
        axes.set_ylabel(plain(_quantity(y_name)))
        if is_beside:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=LABEL_PT)
        elif any(lines):
            axes.legend(fontsize=LABEL_PT)
    return axes.figure.figure


def _name_ticks(axes: Axes, xs: Sequence[float], y_name: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if axes.get_xscale() == "log":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 3)))
        if len(xs) <= MAX_TICKS:
            least = (xs[-1] / xs[0]) ** TICK_SHARE
            shown: list[float] = []
            for x in xs:
                if not shown or x >= least * shown[-1]:
                    shown.append(x)
            axes.set_xticks(shown)
            axes.xaxis.set_minor_locator(NullLocator())
    text: Callable[[float], str] = partial(number, digits=1)
    if y_name.endswith("seconds"):
        text = duration
    elif y_name.endswith(("bytes", "/s")):
        text = partial(quantity, unit="B" if y_name.endswith("bytes") else y_name)
    elif axes.get_yscale() != "log":
        return
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: text(value) if value > 0 else "0")
    )
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
