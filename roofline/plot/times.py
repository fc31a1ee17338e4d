"""The roofline in time: the least time of each launch by the model against the time measured.

Source: Wang and others, Time-based roofline for deep learning performance analysis, arXiv 2009.04598, for times in
place of rates; the band up to the sum is the case without overlap of computing, memory and launch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from results.record import Record
from results.show.picture import INK, MUTED, POINT_PT, own_style, plain, series_color
from results.show.theme import apply_theme
from roofline.model import limits_s
from roofline.plot.draw import label_line, write_label
from roofline.plot.labels import Placer, box_around, boxes_along
from roofline.plot.marks import CROSS, MARKER_PT, marker
from roofline.plot.point_labels import PointLabel, place_labels
from roofline.plot.scene import (
    DOUBTFUL,
    MANY_POINTS,
    PlotError,
    PlotMachine,
    build_scene,
    ordered_dtypes,
    provenance,
    title_lines,
)
from roofline.plot.sheet import AxesSheet, Key, Sheet, View, fitted
from roofline.plot.style import FILLINGS, TIME_UNITS, dtype_color, short_case, significant, text_color, time_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.0
"""Of the figure, inches."""
SUM_PT = 7.0
"""Width of the pale bar from the least time up to the sum, points."""


@dataclass(frozen=True)
class TimePoint:
    """One record: the times that the model gives it, and the one measured, seconds."""

    machine: int
    record: Record
    least_s: float
    """The longest of computing, memory and launch: they overlap wholly."""
    sum_s: float
    """Their sum: they do not overlap at all."""
    measured_s: float
    low_s: float
    high_s: float
    """The 95 % confidence interval of the median."""


def time_points(
    machines: Sequence[PlotMachine], dtypes: Sequence[str] | None = None
) -> tuple[list[TimePoint], Counter[str]]:
    """Return the points of all records that can be judged, those without FLOPs too, and reasons why others are not.

    Args:
        machines: with their records.
        dtypes: those to draw; None for all.
    """
    points, left_out = [], Counter[str]()
    for index, machine in enumerate(machines):
        for record in machine.records:
            limits, time_s = limits_s(record, machine.ceilings), record.median_s
            if dtypes is not None and record.dtype not in dtypes:
                left_out["of other dtypes"] += 1
            elif record.status != "ok" or not time_s:
                left_out[record.status if record.status != "ok" else "without a time"] += 1
            elif limits is None or not 0 < max(limits) < math.inf:
                left_out["without a least time"] += 1
            else:
                low, high = record.ci95_s or (time_s, time_s)
                points.append(TimePoint(index, record, max(limits), sum(limits), time_s, low or time_s, high))
    return points, left_out


def draw_times(
    machines: Sequence[PlotMachine],
    dtypes: Sequence[str] | None = None,
    title: str | None = None,
    axes: Axes | None = None,
    theme: str = "light",
) -> Figure:
    """Return the times of records against the least that the model gives them; on the diagonal nothing is lost.

    Args:
        machines: at least one with a record whose least time is known.
        dtypes: those to draw; None for all.
        title: in place of the names of the machines.
        axes: to draw in, without the caption; a figure of its own where there are none.
        theme: one of `THEMES`.

    Raises:
        PlotError: no record has a least time.
    """
    points, left_out = time_points(machines, dtypes)
    if not points:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "no record"
        raise PlotError(f"no time can be drawn against its least: {reasons}")
    scene = build_scene(machines, dtypes)
    heading = (
        plain(title, 200) if title is not None else title_lines(scene)[0],
        "Measured time against the least time by the model",
    )
    looks = _Looks(machines, points)
    view = _view(points)
    words = _caption(provenance(scene), points, left_out)
    with own_style():
        if axes is not None:
            sheet: Sheet = AxesSheet(view, heading, looks.keys(), axes)
        else:
            sheet = Sheet(view, heading, looks.keys(), words, WIDTH)
        _draw(points, machines, looks, sheet)
        sheet.write_caption(words)
        apply_theme(sheet.figure if axes is None else axes, theme)
    return sheet.figure


def _view(points: Sequence[TimePoint]) -> View:
    across = [math.log10(point.least_s) for point in points]
    up = [math.log10(time_s) for point in points for time_s in (point.low_s, point.high_s, point.least_s, point.sum_s)]
    factor = next((unit for unit in TIME_UNITS if 10 ** max(up) >= 5 * unit[0]), TIME_UNITS[-1])
    names = ("Least time by the model", "Measured time, median")
    view = View(min(across) - 0.35, max(across) + 0.6, min(up) - 0.35, max(up) + 0.3, *names, factor, factor)
    return fitted(view)


class _Looks:
    """Which color, shape and filling a point has.

    Color tells the machine where there are several, else the dtype. Shape tells the same where there is one op; where
    shape tells the op, filling does, so that gray keeps all apart.
    """

    def __init__(self, machines: Sequence[PlotMachine], points: Sequence[TimePoint]) -> None:
        self.is_overlay = len(machines) > 1
        self.ops = list(dict.fromkeys(point.record.op for point in points))
        self.dtypes = ordered_dtypes(point.record.dtype for point in points)
        self.colors = {plain(dtype, 12): dtype_color(dtype) for dtype in self.dtypes}
        if self.is_overlay:
            slugs = (plain(machine.ceilings.slug, 24) for machine in machines)
            self.colors = {slug: series_color(index) for index, slug in enumerate(slugs)}
        self.has_shapes_of_ops = len(self.ops) > 1
        found = {self._variant(point) for point in points}
        cold, warm = ([one for one in sorted(found) if one[1] is is_warm] for is_warm in (False, True))
        order = [index for index, filling in enumerate(FILLINGS) if filling != "none"]
        order.insert(len(cold), FILLINGS.index("none"))  # as in the roofline, hollow is from a cache
        self.fillings = {one: order[index % len(order)] for index, one in enumerate((*cold, *warm))}

    def _series(self, point: TimePoint) -> int:
        return point.machine if self.is_overlay else self.dtypes.index(point.record.dtype)

    def _variant(self, point: TimePoint) -> tuple[int, bool]:
        """Return what filling tells of a point: its series unless shape tells that, and whether it is from a cache."""
        return self._series(point) if self.has_shapes_of_ops else 0, point.record.cache == "warm"

    def color(self, point: TimePoint) -> str:
        """Return the color of a point."""
        return list(self.colors.values())[self._series(point)]

    def style(self, point: TimePoint) -> dict[str, Any]:
        """Return the marker of a point."""
        shape = self.ops.index(point.record.op) if self.has_shapes_of_ops else self._series(point)
        return marker(self.color(point), shape, self.fillings[self._variant(point)])

    def groups(self, points: Sequence[TimePoint]) -> list[list[TimePoint]]:
        """Return the points that look alike together, in the order of their appearance."""
        found: dict[tuple[object, ...], list[TimePoint]] = {}
        for point in points:
            found.setdefault((point.record.op, self._series(point), self._variant(point)), []).append(point)
        return list(found.values())

    def keys(self) -> list[Key]:
        """Return the entries of the legend."""
        keys = [Key("machine" if self.is_overlay else "dtype")]
        names = list(self.colors.items())
        if self.has_shapes_of_ops:
            for (series, is_warm), filling in self.fillings.items():
                name, color = names[series]
                keys.append(Key(f"{name} from cache" if is_warm else name, marker(color, 0, filling)))
            return [*keys, Key("op"), *(Key(plain(op, 24), marker(MUTED, at, 0)) for at, op in enumerate(self.ops))]
        keys += [Key(name, marker(color, shape, 0)) for shape, (name, color) in enumerate(names)]
        if (0, True) in self.fillings:
            keys.append(Key("from cache", marker(MUTED, 0, self.fillings[0, True])))
        return keys


def _draw(points: Sequence[TimePoint], machines: Sequence[PlotMachine], looks: _Looks, sheet: Sheet) -> None:
    placer, view = Placer(sheet.bounds), sheet.view
    first, last = 10 ** max(view.left, view.bottom), 10 ** min(view.right, view.top)
    sheet.plot([(first, first), (last, last)], color=INK, linewidth=1.8, zorder=3)
    ends = (sheet.inches(first, first), sheet.inches(last, last))
    placer.block("line", boxes_along(*ends))
    floors = {floor.value for machine in machines if (floor := machine.ceilings.launch_floor())}
    for floor_s in sorted(floors):
        if view.left < math.log10(floor_s) < view.right:
            _draw_floor(floor_s, sheet, placer)
    for alike in looks.groups(points):
        _draw_points(alike, looks, sheet, placer)
    label_line(sheet, placer, "measured = least time", ends, 0.5, INK)
    _label(points, looks, sheet, placer)


def _draw_floor(floor_s: float, sheet: Sheet, placer: Placer) -> None:
    ends = ((floor_s, 10**sheet.view.bottom), (floor_s, 10**sheet.view.top))
    sheet.plot(ends, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)), zorder=2)
    low, high = sheet.inches(*ends[0]), sheet.inches(*ends[1])
    placer.block("line", boxes_along(low, high))
    label_line(sheet, placer, f"launch floor {time_words(floor_s)}", (low, high), 0.8, MUTED)


def _draw_points(points: Sequence[TimePoint], looks: _Looks, sheet: Sheet, placer: Placer) -> None:
    """Draw the points of one look: all their bars as one line, and all their markers as another."""
    style, lifted = looks.style(points[0]), (math.nan, math.nan)  # between two bars the pen is lifted
    spots = [(point.least_s, point.measured_s) for point in points]
    sums = [s for p in points for s in ((p.least_s, p.least_s), (p.least_s, p.sum_s), lifted)]
    bar: dict[str, Any] = {"linewidth": SUM_PT, "alpha": 0.25, "solid_capstyle": "butt"}
    sheet.plot(sums, color=style["color"], zorder=3.5, **bar)
    intervals = [s for p in points for s in ((p.least_s, p.low_s), (p.least_s, p.high_s), lifted)]
    ends: dict[str, Any] = {"marker": "_", "markersize": 5, "markeredgewidth": 1.2}
    sheet.plot(intervals, color=style["color"], linewidth=1.2, zorder=6, **ends)
    sheet.plot(spots, **style, zorder=7)
    doubtful = [s for s, point in zip(spots, points, strict=True) if not DOUBTFUL.isdisjoint(point.record.flags)]
    if doubtful:
        sheet.plot(doubtful, **CROSS, zorder=7.5)
    side = (MARKER_PT + 2) / 72
    placer.block("mark", [box_around(*sheet.inches(*spot), side, side) for spot in spots])


def _label(points: Sequence[TimePoint], looks: _Looks, sheet: Sheet, placer: Placer) -> None:
    """Name the points that lose most, all where there are few: op, case, and the least as a share of the measured."""
    chosen = sorted(points, key=lambda point: point.least_s / point.measured_s)[:MANY_POINTS]
    texts = [
        f"{plain(point.record.op, 16)} {short_case(point.record.case)} "
        f"{significant(100 * point.least_s / point.measured_s, 2)} %"
        for point in chosen
    ]
    spots = [sheet.inches(point.least_s, point.measured_s) for point in points]
    labels = [
        PointLabel(sheet.inches(point.least_s, point.measured_s), sheet.measure(text, POINT_PT), 0.14)
        for point, text in zip(chosen, texts, strict=True)
    ]
    for place, point, text in zip(place_labels(placer, labels, spots), chosen, texts, strict=True):
        if place:
            write_label(sheet, place, text, POINT_PT, text_color(looks.color(point)))


def _caption(facts: Sequence[str], points: Sequence[TimePoint], left_out: Counter[str]) -> str:
    parts = [
        *facts,
        "Least time: the longest of FLOPs / peak, bytes / bandwidth and the launch floor",
        "Pale bars: up to their sum, the time without overlap",
        "Labels: the least time as a share of the measured",
    ]
    doubts = Counter(flag for point in points for flag in point.record.flags if flag in DOUBTFUL)
    if doubts:
        parts.append("Crossed out: " + ", ".join(f"{count} {plain(flag, 24)}" for flag, count in doubts.items()))
    if len(points) > MANY_POINTS:
        parts.append(f"Named: the {MANY_POINTS} of {len(points)} that lose most")
    if left_out:
        parts.append("Not drawn: " + ", ".join(f"{count} {plain(reason, 24)}" for reason, count in left_out.items()))
    return " ".join(f"{part}." for part in parts)
