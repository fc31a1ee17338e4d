"""Plot of a comparison: ratios with their intervals on the left, rates or utilization of both sides
on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from results.compare.comparison import Compared, ComparedRow
from results.compare.output import foremost, headlines, provider_text
from results.show.picture import (
    AXIS_PT,
    BAND,
    INK,
    LEGEND_PT,
    MUTED,
    POINT_PT,
    end_of,
    frame,
    own_style,
    plain,
    titled_figure,
    tone,
)
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = 40
"""Of more rows, the most important are drawn."""

MAX_LABEL_LETTERS = 44
"""Of a line of a label."""

MAX_LINEAR_RATIO = 2.5
"""A larger ratio switches the axis to logarithmic, to leave room for the others."""

COLORS = {SLOWER: "#D55E00", FASTER: "#009E73", UNSURE: "#E69F00", SAME: MUTED}
MARKS = {SLOWER: ">", FASTER: "<", UNSURE: "o", SAME: "s"}
"""Verdicts are distinguishable without color."""

SIDE_COLORS = ("#B4BDC4", "#0072B2")
"""Baseline and candidate."""

MFU = "MFU, % of the dense peak, 95 % CI"
CEILING = "% of the limiting ceiling"
"""Titles of the right panel."""

WIDTH = 12.0
ROW_HEIGHT = 0.34
FOOT = 1.1
"""Inches below the axes for labels and legends."""


def draw(compared: Compared, theme: str = "light") -> Figure:
    rows = foremost(compared, MAX_ROWS)
    title, _, rest = headlines(compared)[0].partition(": ")
    if len(rows) < len(compared.rows):
        rest += f"; {len(rows)} of {len(compared.rows):,} rows drawn, the most important"
    with own_style(theme):
        below = FOOT + ROW_HEIGHT * (len(rows) + 0.4)
        figure, top = titled_figure(WIDTH, title, rest, below)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        names = []
        for row in rows:
            what = f"{row.key.op} {row.key.case} {row.key.dtype}"
            texts = [what, provider_text(row, compared)]
            names.append("\n".join(plain(end_of(text, MAX_LABEL_LETTERS), 100) for text in texts))
        _draw_ratios(left, rows, compared)
        style = {"fontsize": POINT_PT, "color": tone(INK), "linespacing": 1.0}
        left.set_yticks(range(len(rows)), names, **style)
        _draw_reached(right, rows, compared)
        letters = max(map(len, "\n".join(names).split("\n"))) * POINT_PT / 72 * 0.6 + 0.45
        figure.subplots_adjust(
            letters / WIDTH, FOOT / figure.get_figheight(), 0.985, top, wspace=0.05
        )
    return figure


def _draw_ratios(axes: Axes, rows: Sequence[ComparedRow], compared: Compared) -> None:
    margin = compared.margin
    axes.axvspan(
        1 / (1 + margin), 1 + margin, color=tone(BAND), zorder=0, label=f"margin {100 * margin:g} %"
    )
    axes.axvline(1, color=tone(MUTED), linewidth=0.9, zorder=1)
    labeled = set()
    for index, row in enumerate(rows):
        verdict = row.compared.verdict
        low, high = row.ci95 or (row.ratio, row.ratio)
        axes.errorbar(
            [row.ratio],
            [index],
            xerr=[[max(0, row.ratio - low)], [max(0, high - row.ratio)]] if row.ci95 else None,
            label=None if verdict in labeled else verdict,
            fmt=MARKS[verdict],
            color=tone(COLORS[verdict]),
            capsize=3,
            zorder=2,
        )
        labeled.add(verdict)
    low, high = axes.get_xlim()
    if high > MAX_LINEAR_RATIO or 0 < low < 1 / MAX_LINEAR_RATIO:
        from matplotlib.ticker import LogLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _finish(axes, "time, candidate over baseline, 95 % CI (left is faster)")


def _draw_reached(axes: Axes, rows: Sequence[ComparedRow], compared: Compared) -> None:
    """Draw the MFU of both sides if it is known and limits a row, else the fraction of the ceiling
    that limits each, else the bandwidth.
    """
    sides = [row.baseline for row in rows], [row.candidate for row in rows]
    limits = [side.of_ceiling for side in chain(*sides)]
    has_mfu = any(limit and limit[1] == "compute" for limit in limits)
    title = "GB/s of compulsory bytes"
    if has_mfu and all(side.mfu_ci95 for side in chain(*sides)):
        title = MFU
    elif all(limits):
        title = CEILING
    names = compared.baseline, compared.candidate
    for place, name in enumerate(names):
        at = [index + (place - 0.5) * 0.36 for index in range(len(rows))]
        values = []
        for y, side in zip(at, sides[place], strict=True):
            value = (side.bytes_per_s or 0) / 1e9
            if title == MFU and side.mfu_ci95:
                value = 100 * (side.mfu or 0)
                axes.plot(
                    [100 * end for end in side.mfu_ci95], [y, y], "|-", color=tone(INK), linewidth=1
                )
            elif title == CEILING and side.of_ceiling:
                value = 100 * side.of_ceiling[0]
            values.append(value)
        if len({side.label for side in sides[place]}) > 1:
            name = ("baseline", "candidate")[place]
        label = plain(end_of(name, 30))
        axes.barh(at, values, height=0.34, color=tone(SIDE_COLORS[place]), label=label)
    _finish(axes, title, columns=1)
    axes.tick_params(axis="y", labelleft=False)


def _finish(axes: Axes, title: str, columns: int = 5) -> None:
    frame(axes, "x")
    axes.set_xlabel(title, fontsize=AXIS_PT, labelpad=5)
    style = {"fontsize": LEGEND_PT, "frameon": False, "borderaxespad": 4.2}
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, **style)
