"""Plot of a comparison: ratios with their intervals on the left, rates or utilization of both sides
on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from results.compare.comparison import Compared, ComparedRow
from results.compare.output import foremost, headline
from results.compare.sides import Side
from results.show.picture import (
    AXIS_PT,
    BAND,
    INK,
    LEGEND_PT,
    MUTED,
    POINT_PT,
    end_of,
    frame,
    new_figure,
    own_style,
    plain,
    tone,
    write_head,
)
from results.stats.comparison import FASTER, SAME, SLOWER, UNSURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_ROWS = 40
"""Of more rows, the most important are drawn."""

MAX_LABEL_LETTERS = 44

MAX_LINEAR_RATIO = 2.5
"""A larger ratio switches the axis to logarithmic, to leave room for the others."""

COLORS = {SLOWER: "#D55E00", FASTER: "#009E73", UNSURE: "#E69F00", SAME: MUTED}
MARKS = {SLOWER: ">", FASTER: "<", UNSURE: "o", SAME: "s"}
"""Verdicts are distinguishable without color."""

SIDE_COLORS = ("#B4BDC4", "#0072B2")
"""Baseline and candidate."""

WIDTH = 12.0
ROW_HEIGHT = 0.34
FOOT = 1.1
"""Inches below the axes for labels and legends."""


def draw(compared: Compared, theme: str = "light") -> Figure:
    rows = foremost(compared, MAX_ROWS)
    title, _, rest = headline(compared).partition(": ")
    if len(rows) < len(compared.rows):
        rest += f"; {len(rows)} of {len(compared.rows):,} rows drawn, the most important"
    with own_style(theme):
        figure = new_figure(WIDTH, 1.0)
        top = write_head(
            figure, plain(title, 200), plain(rest, 400), FOOT + ROW_HEIGHT * (len(rows) + 0.4)
        )
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        names = [plain(end_of(_name(row), MAX_LABEL_LETTERS), 100) for row in rows]
        _draw_ratios(left, rows, compared)
        left.set_yticks(range(len(rows)), names, fontsize=POINT_PT, color=tone(INK))
        _draw_reached(right, rows, compared)
        letters = max(map(len, names)) * POINT_PT / 72 * 0.6 + 0.45
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


def _name(row: ComparedRow) -> str:
    parts = [row.key.op, row.key.case, row.key.dtype]
    if row.key.provider or row.candidate.provider != row.baseline.provider:
        parts.append(row.candidate.provider)
    return " ".join(filter(None, parts))


def _draw_reached(axes: Axes, rows: Sequence[ComparedRow], compared: Compared) -> None:
    baselines = [row.baseline for row in rows]
    candidates = [row.candidate for row in rows]
    has_ceilings = all(side.of_ceiling for side in baselines + candidates)
    are_several = len({side.label for side in candidates}) > 1
    name = "candidate" if are_several else compared.candidate
    _draw_bars(axes, baselines, compared.baseline, 0, has_ceilings)
    _draw_bars(axes, candidates, name, 1, has_ceilings)
    title = "% of the limiting ceiling" if has_ceilings else "GB/s of compulsory bytes"
    _finish(axes, title, columns=1)
    axes.tick_params(axis="y", labelleft=False)


def _draw_bars(
    axes: Axes, sides: Sequence[Side], name: str, place: int, has_ceilings: bool
) -> None:
    values = []
    for side in sides:
        share = side.of_ceiling
        if has_ceilings and share:
            values.append(100 * share[0])
        else:
            values.append((side.rate("bytes_per_s") or 0) / 1e9)
    at = [index + (place - 0.5) * 0.36 for index in range(len(sides))]
    label = plain(end_of(name, 30))
    axes.barh(at, values, height=0.34, color=tone(SIDE_COLORS[place]), label=label)


def _finish(axes: Axes, title: str, columns: int = 5) -> None:
    frame(axes, "x")
    axes.set_xlabel(title, fontsize=AXIS_PT, labelpad=5)
    style: dict[str, Any] = {"fontsize": LEGEND_PT, "frameon": False, "borderaxespad": 4.2}
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=columns, **style)
