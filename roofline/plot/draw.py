"""The drawing of a scene on a sheet: ceilings and points first, then their labels where nothing else stands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from results.show.picture import INK, LABEL_PT, MUTED, POINT_PT, end_of, plain
from results.show.theme import tone
from roofline.ceilings import Ceiling
from roofline.plot.labels import Candidate, Placer, Spot, along_line, around_point, box_around, boxes_along
from roofline.plot.marks import MARKER_PT, cap, cross, marker
from roofline.plot.mixes import MIX_WIDTH, mix_ends, mixes_label, places_below, thin_mixes
from roofline.plot.point_labels import PointLabel, place_labels
from roofline.plot.scene import (
    LONGEST_PROVIDER,
    Flat,
    PlotPoint,
    Scene,
    Slope,
    chosen_for_labels,
    flat_label,
    point_label,
    slope_label,
    version_steps,
)
from roofline.plot.sheet import PT, Key, Sheet
from roofline.plot.style import line_pattern, machine_width, significant, text_color

SAME_CEILING = 1.004
"""Ceilings closer than this factor lie on one another in print, and share a label."""
RING_PT = 16
"""Diameter of the ring around a point above its ceiling."""
OVERHANG = 0.3
"""Share of the label of a flat ceiling that may stand left of its ridge point."""
OFF_LINE_COST = 1.5
"""Dislike of a place off the line, so that it is taken only where a label on it would cover other lines."""
TOO_FAR_COST = 4.0
"""Dislike from which on a label would rather cover a line than stand there, or send its leader line across points."""
SAME_SPOT = 0.05
"""Ridge points closer than this on both axes, in inches, share a label."""
SAME_SPOT_SMALL = 0.3
"""The same on small axes."""
RIDGE_SIDES = (135, 90, 160, 45, 180, 112, 0, -45, -90, -135)
"""Where the label of a ridge point stands best, degrees: above the ceilings, where there are no points."""
BAR_WIDTH = 0.07
"""Width of an error bar with its caps, in inches."""
SHORTEST_ARROW = 0.2
"""From point to point, inches."""
SHORTEST_LEADER = 0.06
"""A shorter one is a speck, inches; the label all but touches what it names."""
STEM: dict[str, Any] = {"linewidth": 0.8, "linestyle": (0, (1, 2))}
"""From a point to its cap."""
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
    groups: dict[str, list[Key]] = {"ceiling": [], "machine": [], "dtype": [], "op": [], "provider": [], "variant": []}
    if len(scene.kinds) > 1:
        groups["ceiling"] = [Key(kind, _line(tone(INK), kind, 0), is_line=True) for kind in scene.kinds]
    if scene.is_overlay:
        for index, machine in enumerate(scene.machines):
            kinds = [entry.kind for entry in machine.ceilings.entries if entry.kind in scene.kinds]
            style = _line(scene.slope_color(index), kinds[0] if kinds else "measured", index)
            groups["machine"].append(Key(plain(machine.ceilings.slug), style, is_line=True))
    labeled = {flat.dtype for flat in scene.flats}
    for dtype in scene.dtypes:
        if dtype not in labeled and "dtype" not in scene.told_apart and scene.colored_by == "dtype":
            style = {"color": scene.ceiling_color(0, dtype), "linewidth": 5}
            groups["dtype"].append(Key(plain(dtype), style, is_line=True))
    if scene.shaped_by == "op":
        groups["op"] = [Key(plain(op), marker(tone(MUTED), index, 0)) for index, op in enumerate(scene.ops)]
    if len(scene.providers) > 1 and "provider" not in scene.told_apart:
        first = {point.record.provider: point for point in reversed(scene.points)}
        for name in scene.providers:
            is_colored = scene.colored_by == "provider"
            color = scene.point_color(first[name]) if is_colored else tone(MUTED)
            shape = 0 if scene.shaped_by == "op" else scene.shape(first[name])
            groups["provider"].append(Key(end_of(name, LONGEST_PROVIDER), marker(color, shape, 0)))
    for index, (values, point) in enumerate(scene.variants.items()):
        color = scene.point_color(point) if "dtype" in scene.told_apart else tone(MUTED)
        if values:
            groups["variant"].append(Key(plain(" ".join(values)), marker(color, 0, index)))
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
    if scene.is_profile:
        _draw_shares(scene, sheet, placer)
    else:
        for _, series in groupby(sorted(scene.points, key=_size_order), key=lambda point: point.series):
            _draw_series(list(series), scene, sheet, placer)
        _draw_steps(scene, sheet, placer)
    _draw_ridges(scene, sheet, placer)
    _tell_regimes(scene.flats, sheet, placer)
    standing: list[Candidate | None] = []
    for group in groups:
        colors = {scene.ceiling_color(flat.machine, flat.dtype) for flat in group}
        color = text_color(colors.pop()) if len(colors) == 1 else tone(INK)
        ends = _on_sheet(sheet, _flat_ends(group, sheet))
        standing.append(_label_line(sheet, placer, flat_label(group, scene, sheet.is_small), ends, 1.0, color))
    for slope in scene.slopes:
        ends = _on_sheet(sheet, _slope_ends(scene, slope, sheet))
        color = text_color(scene.slope_color(slope.machine))
        standing.append(_label_line(sheet, placer, slope_label(slope, scene, sheet.is_small), ends, 0.42, color))
    cramped = _label_ridges(scene, sheet, placer)
    if mixes:
        standing.append(_label_mixes(mixes, scene.flats, sheet, placer))
    cramped += sum(place is None or place.leader is not None for place in standing)
    unlabeled, missed = _label_points(scene, sheet, placer)
    return Labeling(cramped + missed, unlabeled, standing.count(None))


def _groups(flats: Sequence[Flat]) -> list[list[Flat]]:
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
    sheet.plot(ends, **_line(scene.slope_color(slope.machine), slope.bandwidth.kind, slope.machine), zorder=3)
    placer.block("line", boxes_along(*_on_sheet(sheet, ends)))
    _draw_band(slope.bandwidth, ends, sheet, scene.slope_color(slope.machine))


def _draw_band(ceiling: Ceiling, ends: tuple[Spot, Spot], sheet: Sheet, color: str) -> None:
    """Shade what the samples of a measured ceiling reached, along its line."""
    if ceiling.band:
        (x0, y0), (x1, y1) = ends
        low, high = (bound / ceiling.value for bound in ceiling.band)
        band = sheet.axes.fill_between((x0, x1), (y0 * low, y1 * low), (y0 * high, y1 * high), zorder=2)
        band.set(facecolor=color, edgecolor="none", alpha=0.2)


def _draw_mix(mix: Slope, flats: Sequence[Flat], sheet: Sheet, placer: Placer) -> None:
    ends = mix_ends(mix, flats, sheet.view)
    sheet.plot(ends, color=tone(MUTED), linewidth=MIX_WIDTH, zorder=2.5)
    placer.block("line", boxes_along(*_on_sheet(sheet, ends)))


def _label_mixes(mixes: Sequence[Slope], flats: Sequence[Flat], sheet: Sheet, placer: Placer) -> Candidate | None:
    """Write the names and values of the thin lines below the lowest of them, and return their place."""
    text = mixes_label(mixes)
    ends = _on_sheet(sheet, mix_ends(mixes[-1], flats, sheet.view))
    found = placer.place(places_below(*ends, sheet.measure(text, POINT_PT), liked=0.42))
    if found:
        _write_label(sheet, found, text, POINT_PT, tone(MUTED))
    return found


def _draw_group(group: list[Flat], scene: Scene, sheet: Sheet, placer: Placer) -> None:
    """Draw flat ceilings that lie on one another: a line for each color, in turns."""
    of_color: dict[str, list[Flat]] = {}
    for flat in group:
        of_color.setdefault(scene.ceiling_color(flat.machine, flat.dtype), []).append(flat)
    for turn, (color, members) in enumerate(of_color.items()):
        ends = _flat_ends(members, sheet)
        style = _line(color, members[0].peak.kind, members[0].machine, turn, len(of_color))
        sheet.plot(ends, **style, zorder=3)
        placer.block("line", boxes_along(*_on_sheet(sheet, ends)))
        _draw_band(members[0].peak, ends, sheet, color)


def _draw_ridges(scene: Scene, sheet: Sheet, placer: Placer) -> None:
    for flat in scene.flats:
        if flat.ridge:
            spot = (flat.ridge, flat.peak.value)
            color = scene.ceiling_color(flat.machine, flat.dtype)
            sheet.plot([spot], marker="o", markersize=6, color=tone("white"), mec=color, mew=1.6, zorder=5)
            placer.block("mark", [box_around(*sheet.inches(*spot), 0.1, 0.1)])


def _tell_regimes(flats: Sequence[Flat], sheet: Sheet, placer: Placer) -> None:
    """Name the two sides of the ridge point at the foot of the axes, where there is only one ridge point."""
    ridges = {flat.ridge for flat in flats if flat.ridge}
    if len(ridges) != 1 or any(flat.ridge is None for flat in flats):
        return
    ridge, peak = ridges.pop(), max(flat.peak.value for flat in flats)
    sheet.plot(
        [(ridge, 10**sheet.view.bottom), (ridge, peak)], color=tone(MUTED), linewidth=0.9, linestyle=(0, (1, 2.5))
    )
    top, foot = sheet.inches(ridge, peak), sheet.bounds[1]
    placer.block("line", boxes_along(top, (top[0], foot)))
    for text, side in (("memory-bound", -1), ("compute-bound", 1)):
        width, height = sheet.measure(text, POINT_PT)
        place = Candidate(top[0] + side * (width / 2 + 0.12), foot + height / 2 + 0.03, width, height, cost=0)
        if placer.place([place]):
            sheet.write(place.x, place.y, text, POINT_PT, color=tone(MUTED), ha="center")


def _size_order(point: PlotPoint) -> tuple[object, ...]:
    return (*map(str, point.series), point.intensity, point.record.flops)


def _draw_shares(scene: Scene, sheet: Sheet, placer: Placer) -> None:
    for point in sorted(scene.points, key=lambda point: -(point.share or 0)):
        spot, side_pt = (point.intensity, point.flops_per_s), point.diameter_pt
        style = {"marker": "o", "markersize": side_pt, "markeredgecolor": tone("white"), "markeredgewidth": 0.6}
        sheet.plot([spot], color=scene.point_color(point), linestyle="none", alpha=0.75, zorder=7, **style)
        placer.block("mark", [box_around(*sheet.inches(*spot), side_pt * PT, side_pt * PT)])


def _draw_series(points: list[PlotPoint], scene: Scene, sheet: Sheet, placer: Placer) -> None:
    """Draw the points of one op, dtype and provider, tied by a thin line: what belongs together is seen in gray too."""
    color = scene.point_color(points[0])
    spots = [(point.intensity, point.flops_per_s) for point in points]
    if len(spots) > 1:
        sheet.plot(spots, color=color, linewidth=1.0, alpha=0.45, zorder=4)
        for start, end in pairwise(spots):
            placer.block("line", boxes_along(*_on_sheet(sheet, (start, end))))
    lifted = (math.nan, math.nan)  # between two bars the pen is lifted
    bars = [s for p in points for s in ((p.intensity, p.low), (p.intensity, p.high), lifted)]
    sheet.plot(bars, color=color, linewidth=1.2, zorder=6, marker="_", markersize=5, markeredgewidth=1.2)
    shape = scene.shape(points[0])
    for variant, alike in groupby(sorted(points, key=scene.variant), key=scene.variant):
        sheet.plot([(p.intensity, p.flops_per_s) for p in alike], **marker(color, shape, variant), zorder=7)
    capped = [(spot, (point.intensity, point.cap)) for spot, point in zip(spots, points, strict=True) if point.cap]
    if capped:
        tops = [top for _, top in capped]
        sheet.plot([s for spot, top in capped for s in (spot, top, lifted)], **STEM, color=color, zorder=4.4)
        sheet.plot(tops, **cap(color), zorder=4.6)
        placer.block("mark", [box_around(*sheet.inches(*top), 0.16, 0.05) for top in tops])
        for ends in capped:
            placer.block("line", boxes_along(*_on_sheet(sheet, ends)))
    doubtful = [spot for spot, point in zip(spots, points, strict=True) if point.doubts]
    if doubtful:
        sheet.plot(doubtful, **cross(), zorder=7.5)
    rings = [(point.intensity, point.flops_per_s) for point in points if point.is_above_ceiling]
    if rings:
        ring = {"marker": "o", "markersize": RING_PT, "markerfacecolor": "none", "linestyle": "none"}
        sheet.plot(rings, **ring, markeredgecolor=tone(INK), markeredgewidth=1.2, zorder=8)
    ringed = set(rings)
    for spot in spots:
        side = (RING_PT if spot in ringed else MARKER_PT + 2) * PT
        placer.block("mark", [box_around(*sheet.inches(*spot), side, side)])
    for point in points:
        x, low = sheet.inches(point.intensity, point.low)
        high = sheet.inches(point.intensity, point.high)[1]
        placer.block("mark", [(x - BAR_WIDTH / 2, low, x + BAR_WIDTH / 2, high)])


def _draw_steps(scene: Scene, sheet: Sheet, placer: Placer) -> None:
    """Draw an arrow from each point to that of the next version, where there is room for one."""
    from matplotlib.patches import FancyArrowPatch

    for one, two in version_steps(scene):
        ends = _on_sheet(sheet, ((one.intensity, one.flops_per_s), (two.intensity, two.flops_per_s)))
        if math.dist(*ends) > SHORTEST_ARROW:
            spots = ((one.intensity, one.flops_per_s), (two.intensity, two.flops_per_s))
            style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 10, "shrinkA": 5, "shrinkB": 5}
            sheet.axes.add_patch(FancyArrowPatch(*spots, color=tone(MUTED), linewidth=1.0, zorder=5.5, **style))
            placer.block("line", boxes_along(*ends))


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
        placer.place(far, ("text", "mark", "line"), limit=TOO_FAR_COST)
        or placer.place(places + far)
        or placer.place(places + far, avoid=("text",))
    )
    if found:
        _write_label(sheet, found, text, LABEL_PT, color)
    return found


def _between(start: Spot, end: Spot, share: float) -> Spot:
    return (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1]))


def _label_ridges(scene: Scene, sheet: Sheet, placer: Placer) -> int:
    """Write the value of each ridge point, of those close together as one label; return how many stand badly."""
    labels: list[tuple[Spot, list[Flat]]] = []
    reach = SAME_SPOT_SMALL if sheet.is_small else SAME_SPOT
    for flat in sorted(scene.flats, key=lambda flat: flat.ridge or 0):
        if flat.ridge:
            x, y = sheet.inches(flat.ridge, flat.peak.value)
            near = (flats for spot, flats in labels if abs(spot[0] - x) < reach and abs(spot[1] - y) < reach)
            if (own := next(near, None)) is not None:
                own.append(flat)
            else:
                labels.append(((x, y), [flat]))
    cramped = 0
    for spot, flats in labels:
        text = "ridge " + ", ".join(dict.fromkeys(significant(flat.ridge or 0) for flat in flats))
        places = around_point(spot, sheet.measure(text, POINT_PT), RIDGE_SIDES, near=0.12)
        free = placer.place(places)
        found = free or placer.place(places, avoid=("text",))
        cramped += free is None
        if found:
            colors = {scene.ceiling_color(flat.machine, flat.dtype) for flat in flats}
            _write_label(sheet, found, text, POINT_PT, text_color(colors.pop()) if len(colors) == 1 else tone(INK))
    return cramped


def _label_points(scene: Scene, sheet: Sheet, placer: Placer) -> tuple[int, int]:
    """Write the labels of the points that get one, the most important first.

    Returns:
        How many points have no label, and how many of them should have one.
    """
    chosen = chosen_for_labels(scene)
    named: set[object] = set()
    labels, written = [], []
    for point in chosen:
        text = point_label(point, scene, is_first=point.series not in named)
        named.add(point.series)
        weight = "bold" if point.is_above_ceiling else "normal"
        near = RING_PT * PT / 2 + 0.06 if point.is_above_ceiling else 0.14
        if scene.is_profile:
            weight, near = "normal", point.diameter_pt * PT / 2 + 0.05
        spot = sheet.inches(point.intensity, point.flops_per_s)
        labels.append(PointLabel(spot, sheet.measure(text, POINT_PT, weight), near))
        written.append((text, text_color(scene.point_color(point)), weight))
    spots = [sheet.inches(point.intensity, point.flops_per_s) for point in scene.points]
    places = place_labels(placer, labels, spots)
    for place, (text, color, weight) in zip(places, written, strict=True):
        if place:
            _write_label(sheet, place, text, POINT_PT, color, weight)
    missed = places.count(None)
    return len(scene.points) - len(chosen) + missed, missed


def _write_label(sheet: Sheet, place: Candidate, text: str, size: float, color: str, weight: str = "normal") -> None:
    from matplotlib.patheffects import withStroke

    if place.leader and math.dist(*place.leader) > SHORTEST_LEADER:
        sheet.draw_line(place.leader, color=tone(MUTED), linewidth=0.7, zorder=6)
    style: dict[str, Any] = {"ha": "center", "rotation": place.angle, "rotation_mode": "anchor", "zorder": 9}
    if place.is_on_line:
        style["bbox"] = {"facecolor": tone("white"), "edgecolor": "none", "pad": 1.5}
    else:
        style["path_effects"] = [withStroke(linewidth=2.5, foreground=tone("white"))]
    sheet.write(place.x, place.y, text, size, color=color, fontweight=weight, **style)


def _line(color: str, kind: str, machine: int, turn: int = 0, turns: int = 1) -> dict[str, Any]:
    pattern = line_pattern(kind, turn, turns)
    style = {"color": color, "linewidth": machine_width(machine), "dash_capstyle": "butt"}
    return style | {"linestyle": (pattern if pattern[1] else "solid")}
