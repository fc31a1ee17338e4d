"""The drawing of a scene on a sheet: ceilings and points first, then their labels where nothing else stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from roofline.plot.labels import (
    Candidate,
    Placer,
    Spot,
    along_line,
    around_point,
    box_around,
    boxes_along,
    distance_to_box,
)
from roofline.plot.mixes import MIX_WIDTH, mix_ends, mixes_label, places_below, thin_mixes
from roofline.plot.scene import (
    Flat,
    PlotPoint,
    Scene,
    Slope,
    chosen_for_labels,
    flat_label,
    point_label,
    slope_label,
)
from roofline.plot.sheet import LABEL_PT, POINT_PT, Key, Sheet
from roofline.plot.style import (
    FILLINGS,
    INK,
    MARKERS,
    MUTED,
    dtype_color,
    line_pattern,
    machine_mark,
    machine_width,
    pick,
    plain,
    significant,
    text_color,
)

SAME_CEILING = 1.004
"""Ceilings closer than this factor lie on one another in print, and share a label."""
MARKER_PT = 7.5
"""Diameter of the marker of a point."""
MARKER_SCALES = (1.0, 0.72, 1.3)
"""Size of the markers of the first, second, ... machine."""
RING_PT = 16
"""Diameter of the ring around a point above its ceiling."""
OVERHANG = 0.3
"""Share of the label of a flat ceiling that may stand left of its ridge point."""
OFF_LINE_COST = 1.5
"""Dislike of a place off the line, so that it is taken only where a label on it would cover other lines."""
SAME_SPOT = 0.05
"""Ridge points closer than this, in inches, share a label."""
PT = 1 / 72
"""A point of print in inches."""
RIDGE_SIDES = (135, 90, 160, 45, 180, 112, 0, -45, -90, -135)
"""Where the label of a ridge point stands best, degrees: above the ceilings, where there are no points."""
POINT_SIDES = (-90, -45, 0, 90, 180, 45, -135, 135, 20, -20, 160, -160, 70, -70, 110, -110)
"""Where the label of a point stands best, degrees: below it, for above it are the ceilings."""
MARK_STEP = 0.7
"""Distance between the marks along the ceiling of a machine, in inches."""
BAR_WIDTH = 0.07
"""Width of an error bar with its caps, in inches."""
CLEAR_OF_LINES = 0.9
"""Highest cost of a place that is taken for covering no line."""
COLUMN = 0.3
"""Points closer than this in width, in inches, stand above one another."""
FAR_SIDES = (135, 110, 160, 90, 45, -45, -90, -135)
"""Where the label of a ceiling may stand that has no room along its line, degrees."""


@dataclass(frozen=True)
class Labeling:
    """How well the labels of a sheet found their places."""

    cramped: int
    """Labels that found no good place: those of ceilings off their line, those of chosen points nowhere."""
    unlabeled: int
    """Points without a label."""
    unlabeled_ceilings: int


def legend_keys(scene: Scene) -> list[Key]:
    """Return the entries of the legend: what the labels in the picture do not say."""
    groups: dict[str, list[Key]] = {"ceiling": [], "machine": [], "dtype": [], "op": [], "variant": []}
    if len(scene.kinds) > 1:
        groups["ceiling"] = [Key(kind, _line(INK, kind, 0), is_line=True) for kind in scene.kinds]
    if scene.is_overlay:
        for index, machine in enumerate(scene.machines):
            kinds = [entry.kind for entry in machine.ceilings.entries if entry.kind in scene.kinds]
            style = _line(INK, kinds[0] if kinds else "measured", index) | machine_mark(index)
            style["color"] = scene.ceiling_color(index, "")
            groups["machine"].append(Key(plain(machine.ceilings.slug), style, is_line=True))
    labeled = {flat.dtype for flat in scene.flats}
    for dtype in scene.dtypes if scene.colored_by == "dtype" else ():
        if dtype not in labeled and "dtype" not in scene.told_apart:
            groups["dtype"].append(Key(plain(dtype), {"color": dtype_color(dtype), "linewidth": 5}, is_line=True))
    if len(scene.ops) > 1:
        groups["op"] = [Key(plain(op), _marker(MUTED, index, 0)) for index, op in enumerate(scene.ops)]
    for values, point in scene.variants.items():
        color = scene.color_of(point) if scene.colored_by in scene.told_apart else MUTED
        if values:
            shape = 0 if len(scene.ops) > 1 else None
            groups["variant"].append(Key(plain(" ".join(values)), _point_marker(point, scene, color, shape)))
    headings = {"variant": ", ".join(scene.told_apart)}
    return [key for name, keys in groups.items() if keys for key in (Key(headings.get(name, name)), *keys)]


def draw(scene: Scene, sheet: Sheet) -> Labeling:
    """Draw a scene on its sheet, and return how well the labels found their places."""
    placer = Placer(sheet.bounds)
    groups = _groups(scene.flats)
    for slope in scene.slopes:
        _draw_slope(scene, slope, sheet, placer)
    mixes = thin_mixes(scene)
    for mix in mixes:
        _draw_mix(mix, scene.flats, sheet, placer)
    for group in groups:
        _draw_group(group, scene, sheet, placer)
    for _, series in groupby(sorted(scene.points, key=_size_order), key=lambda point: point.series):
        _draw_series(list(series), scene, sheet, placer)
    _draw_ridges(scene, sheet, placer)
    _tell_regimes(scene.flats, sheet, placer)
    standing: list[Candidate | None] = []
    for group in groups:
        colors = {scene.ceiling_color(flat.machine, flat.dtype) for flat in group}
        color = text_color(colors.pop()) if len(colors) == 1 else INK
        ends = _on_sheet(sheet, _flat_ends(group, sheet))
        standing.append(_label_line(sheet, placer, flat_label(group, scene), ends, 1.0, color))
    for slope in scene.slopes:
        ends = _on_sheet(sheet, _slope_ends(scene, slope, sheet))
        color = text_color(scene.ceiling_color(slope.machine, "")) if scene.colored_by == "machine" else INK
        standing.append(_label_line(sheet, placer, slope_label(slope, scene), ends, 0.42, color))
    cramped = _label_ridges(scene, sheet, placer)
    if mixes:
        standing.append(_label_mixes(mixes, scene.flats, sheet, placer))
    cramped += sum(place is None or place.leader is not None for place in standing)
    unlabeled, missed = _label_points(scene, sheet, placer)
    return Labeling(cramped + missed, unlabeled, standing.count(None))


def _groups(flats: Sequence[Flat]) -> list[list[Flat]]:
    """Return flat ceilings that lie on one another together, the highest first."""
    groups: list[list[Flat]] = []
    for flat in sorted(flats, key=lambda flat: -flat.peak.value):
        if groups and groups[-1][0].peak.value <= flat.peak.value * SAME_CEILING:
            groups[-1].append(flat)
        else:
            groups.append([flat])
    return groups


def _slope_ends(scene: Scene, slope: Slope, sheet: Sheet) -> tuple[Spot, Spot]:
    """Return where a slope enters the axes and where the last of its ceilings, or the axes, ends it."""
    bandwidth = slope.bandwidth.value
    mine = [f.ridge for f in scene.flats if f.machine == slope.machine and f.bandwidth == slope.bandwidth and f.ridge]
    view = sheet.view
    level = math.log10(bandwidth)
    first = 10 ** max(view.left, view.bottom - level)
    last = max(mine) if mine else 10 ** min(view.right, view.top - level)
    return (first, first * bandwidth), (last, last * bandwidth)


def _flat_ends(group: Sequence[Flat], sheet: Sheet) -> tuple[Spot, Spot]:
    """Return where the first of some flat ceilings of one height begins, and where the axes end it."""
    first = min(flat.ridge or 10**sheet.view.left for flat in group)
    return (first, group[0].peak.value), (10**sheet.view.right, group[0].peak.value)


def _on_sheet(sheet: Sheet, ends: tuple[Spot, Spot]) -> tuple[Spot, Spot]:
    return sheet.inches(*ends[0]), sheet.inches(*ends[1])


def _draw_slope(scene: Scene, slope: Slope, sheet: Sheet, placer: Placer) -> None:
    ends = _slope_ends(scene, slope, sheet)
    color = scene.ceiling_color(slope.machine, "") if scene.colored_by == "machine" else INK
    sheet.plot(ends, **_line(color, slope.bandwidth.kind, slope.machine), zorder=3)
    _mark_line(sheet, ends, color, slope.machine)
    placer.block("line", boxes_along(*_on_sheet(sheet, ends)))


def _draw_mix(mix: Slope, flats: Sequence[Flat], sheet: Sheet, placer: Placer) -> None:
    ends = mix_ends(mix, flats, sheet.view)
    sheet.plot(ends, color=MUTED, linewidth=MIX_WIDTH, zorder=2.5)
    placer.block("line", boxes_along(*_on_sheet(sheet, ends)))


def _label_mixes(mixes: Sequence[Slope], flats: Sequence[Flat], sheet: Sheet, placer: Placer) -> Candidate | None:
    """Write the names and values of the thin lines below the lowest of them, and return their place."""
    text = mixes_label(mixes)
    ends = _on_sheet(sheet, mix_ends(mixes[-1], flats, sheet.view))
    found = placer.place(places_below(*ends, sheet.measure(text, POINT_PT), liked=0.42))
    if found:
        _write_label(sheet, found, text, POINT_PT, MUTED)
    return found


def _draw_group(group: list[Flat], scene: Scene, sheet: Sheet, placer: Placer) -> None:
    """Draw flat ceilings that lie on one another: a line for each color, in turns."""
    colors = list(dict.fromkeys(scene.ceiling_color(flat.machine, flat.dtype) for flat in group))
    for turn, color in enumerate(colors):
        members = [flat for flat in group if scene.ceiling_color(flat.machine, flat.dtype) == color]
        ends = _flat_ends(members, sheet)
        pattern = (members[0].peak.kind, members[0].machine, turn, len(colors))
        sheet.plot(ends, **_line(color, *pattern), zorder=3)
        _mark_line(sheet, ends, color, members[0].machine)
        placer.block("line", boxes_along(*_on_sheet(sheet, ends)))


def _mark_line(sheet: Sheet, ends: tuple[Spot, Spot], color: str, machine: int) -> None:
    """Draw the marks along a ceiling that tell its machine from one with the same dashes; the first ones have none."""
    start, end = _on_sheet(sheet, ends)
    count = max(1, int(math.dist(start, end) / MARK_STEP))
    spots = [_between(start, end, (index + 0.5) / count) for index in range(count)]
    style = machine_mark(machine)
    if style:
        sheet.draw_line(spots, color=color, linestyle="none", zorder=3.5, **style)


def _draw_ridges(scene: Scene, sheet: Sheet, placer: Placer) -> None:
    for flat in scene.flats:
        if flat.ridge:
            spot = (flat.ridge, flat.peak.value)
            color = scene.ceiling_color(flat.machine, flat.dtype)
            sheet.plot([spot], marker="o", markersize=6, color="white", mec=color, mew=1.6, zorder=5)
            placer.block("mark", [box_around(*sheet.inches(*spot), 0.1, 0.1)])


def _tell_regimes(flats: Sequence[Flat], sheet: Sheet, placer: Placer) -> None:
    """Name the two sides of the ridge point at the foot of the axes, where there is only one ridge point."""
    ridges = {flat.ridge for flat in flats if flat.ridge}
    if len(ridges) != 1 or any(flat.ridge is None for flat in flats):
        return
    ridge, peak = ridges.pop(), max(flat.peak.value for flat in flats)
    sheet.plot([(ridge, 10**sheet.view.bottom), (ridge, peak)], color=MUTED, linewidth=0.9, linestyle=(0, (1, 2.5)))
    top, foot = sheet.inches(ridge, peak), sheet.bounds[1]
    placer.block("line", boxes_along(top, (top[0], foot)))
    for text, side in (("memory-bound", -1), ("compute-bound", 1)):
        width, height = sheet.measure(text, POINT_PT)
        place = Candidate(top[0] + side * (width / 2 + 0.12), foot + height / 2 + 0.03, width, height, cost=0)
        if placer.place([place]):
            sheet.write(place.x, place.y, text, POINT_PT, color=MUTED, ha="center")


def _size_order(point: PlotPoint) -> tuple[object, ...]:
    return (*map(str, point.series), point.intensity, point.record.flops)


def _draw_series(points: list[PlotPoint], scene: Scene, sheet: Sheet, placer: Placer) -> None:
    """Draw the points of one op, dtype and provider, tied by a thin line: what belongs together is seen in gray too."""
    color = scene.color_of(points[0])
    spots = [(point.intensity, point.flops_per_s) for point in points]
    if len(spots) > 1:
        sheet.plot(spots, color=color, linewidth=1.0, alpha=0.45, zorder=4)
        for start, end in pairwise(spots):
            placer.block("line", boxes_along(*_on_sheet(sheet, (start, end))))
    lifted = (math.nan, math.nan)  # between two bars the pen is lifted
    bars = [s for p in points for s in ((p.intensity, p.low), (p.intensity, p.high), lifted)]
    sheet.plot(bars, color=color, linewidth=1.2, zorder=6, marker="_", markersize=5, markeredgewidth=1.2)
    style = _point_marker(points[0], scene, color)
    sheet.plot(spots, **style, zorder=7)
    crossed = [(point.intensity, point.flops_per_s) for point in points if point.is_disturbed]
    if crossed:
        cross = {"marker": "x", "markersize": style["markersize"] + 3, "markeredgewidth": 1.4, "linestyle": "none"}
        sheet.plot(crossed, **cross, color=INK, zorder=7.5)
    rings = [(point.intensity, point.flops_per_s) for point in points if point.is_above_ceiling]
    if rings:
        ring = {"marker": "o", "markersize": RING_PT, "markerfacecolor": "none", "linestyle": "none"}
        sheet.plot(rings, **ring, markeredgecolor=INK, markeredgewidth=1.2, zorder=8)
    for spot in spots:
        side = (RING_PT if spot in rings else style["markersize"] + 2) * PT
        placer.block("mark", [box_around(*sheet.inches(*spot), side, side)])
    for point in points:
        x, low = sheet.inches(point.intensity, point.low)
        high = sheet.inches(point.intensity, point.high)[1]
        placer.block("mark", [(x - BAR_WIDTH / 2, low, x + BAR_WIDTH / 2, high)])


def _label_line(
    sheet: Sheet, placer: Placer, text: str, ends: tuple[Spot, Spot], liked: float, color: str
) -> Candidate | None:
    """Write the label of a ceiling along its line, or near it with a leader line, and return its place."""
    size = sheet.measure(text, LABEL_PT)
    is_flat = ends[0][1] == ends[1][1]
    places = along_line(*ends, size, liked, overhang=OVERHANG * size[0] if is_flat else 0)
    if found := placer.place(places, limit=OFF_LINE_COST):
        _write_label(sheet, found, text, LABEL_PT, color)
        return found
    far = [
        replace(place, cost=place.cost + OFF_LINE_COST)
        for share in (0.9, 0.6, 0.3)
        for place in around_point(_between(*ends, share), size, FAR_SIDES, near=0.12, far=3.0, tied=0)
    ]
    found = (
        placer.place(far, ("text", "mark", "line"))
        or placer.place(places + far)
        or placer.place(places + far, avoid=("text",))
    )
    if found:
        _write_label(sheet, found, text, LABEL_PT, color)
    return found


def _between(start: Spot, end: Spot, share: float) -> Spot:
    return (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))


def _label_ridges(scene: Scene, sheet: Sheet, placer: Placer) -> int:
    """Write the value of each ridge point, once for those in one place; return how many stand badly."""
    labels: dict[tuple[int, int], tuple[Spot, Flat]] = {}
    for flat in sorted(scene.flats, key=lambda flat: flat.ridge or 0):
        if flat.ridge:
            x, y = sheet.inches(flat.ridge, flat.peak.value)
            labels.setdefault((round(x / SAME_SPOT), round(y / SAME_SPOT)), ((x, y), flat))
    cramped = 0
    for spot, flat in labels.values():
        text = f"ridge {significant(flat.ridge or 0)}"
        places = around_point(spot, sheet.measure(text, POINT_PT), RIDGE_SIDES, near=0.12)
        free = placer.place(places)
        found = free or placer.place(places, avoid=("text",))
        cramped += free is None
        if found:
            color = text_color(scene.ceiling_color(flat.machine, flat.dtype))
            _write_label(sheet, found, text, POINT_PT, color)
    return cramped


def _label_points(scene: Scene, sheet: Sheet, placer: Placer) -> tuple[int, int]:
    """Write the labels of the points that get one, the most important first.

    Returns:
        How many points have no label, and how many of them should have one.
    """
    chosen = chosen_for_labels(scene.points)
    spots = {id(point): sheet.inches(point.intensity, point.flops_per_s) for point in scene.points}
    named: set[object] = set()
    written: list[tuple[Spot, Candidate]] = []
    for point in chosen:
        text = point_label(point, scene, is_first=point.series not in named)
        weight = "bold" if point.is_above_ceiling else "normal"
        spot = spots[id(point)]
        near = RING_PT * PT / 2 + 0.06 if point.is_above_ceiling else 0.14
        places = around_point(spot, sheet.measure(text, POINT_PT, weight), POINT_SIDES, near)
        others = [other for key, other in spots.items() if key != id(point)]
        clear = [place for place in places if _is_understood(place, spot, others, written)]
        tied = [place for place in places if place.leader]
        found = (
            placer.place(clear, ("text", "mark", "line"), CLEAR_OF_LINES) or placer.place(clear) or placer.place(tied)
        )
        if found:
            named.add(point.series)
            written.append((spot, found))
            _write_label(sheet, found, text, POINT_PT, text_color(scene.color_of(point)), weight)
    return len(scene.points) - len(written), len(chosen) - len(written)


def _is_understood(
    place: Candidate, spot: Spot, others: Sequence[Spot], written: Sequence[tuple[Spot, Candidate]]
) -> bool:
    """Return whether a label can only be taken for that of its point.

    Without a leader line it is nearer to its point than to any other. Labels on one side of points above one another
    stand above one another in the same order.
    """
    box = box_around(place.x, place.y, place.width, place.height)
    own = distance_to_box(spot, box)
    if not place.leader and any(distance_to_box(other, box) <= own for other in others if other != spot):
        return False
    for other, label in written:
        is_beside = abs(label.x - place.x) < (label.width + place.width) / 2 and abs(other[0] - spot[0]) < COLUMN
        if is_beside and (spot[1] - other[1]) * (place.y - label.y) < 0:
            return False
    return True


def _write_label(sheet: Sheet, place: Candidate, text: str, size: float, color: str, weight: str = "normal") -> None:
    from matplotlib.patheffects import withStroke

    if place.leader:
        sheet.draw_line(place.leader, color=MUTED, linewidth=0.7, zorder=6)
    style: dict[str, Any] = {"ha": "center", "rotation": place.angle, "rotation_mode": "anchor", "zorder": 9}
    if place.is_on_line:
        style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    else:
        style["path_effects"] = [withStroke(linewidth=2.5, foreground="white")]
    sheet.write(place.x, place.y, text, size, color=color, fontweight=weight, **style)


def _line(color: str, kind: str, machine: int, turn: int = 0, turns: int = 1) -> dict[str, Any]:
    """Return the style of a ceiling."""
    pattern = line_pattern(kind, machine, turn, turns)
    style = {"color": color, "linewidth": machine_width(machine), "dash_capstyle": "butt"}
    return style | {"linestyle": (pattern if pattern[1] else "solid")}


def _point_marker(point: PlotPoint, scene: Scene, color: str, shape: int | None = None) -> dict[str, Any]:
    """Return the style of the marker of a point: its shape is that of the op, or of the variant of the only op."""
    variant = scene.variant(point)
    if len(scene.ops) == 1 and scene.colored_by == "provider":
        style = _marker(color, variant, 0)
    else:
        style = _marker(color, scene.ops.index(point.record.op) if shape is None else shape, variant)
    return style | {"markersize": style["markersize"] * MARKER_SCALES[point.machine % len(MARKER_SCALES)]}


def _marker(color: str, op: int, variant: int) -> dict[str, Any]:
    """Return the style of a marker without a line."""
    filling = pick(FILLINGS, variant)
    style = {"color": color, "linestyle": "none", "marker": pick(MARKERS, op), "markersize": MARKER_PT}
    style |= {"markeredgecolor": color, "markeredgewidth": 1.3, "markerfacecoloralt": "white"}
    if filling == "none":
        return style | {"markerfacecolor": "white"}
    return style | {"fillstyle": filling}
