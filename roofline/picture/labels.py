"""Labels of roofs and points: which ones, and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from results.show.picture import INK, end_of
from results.show.terminal import one_line
from results.show.units import si, significant
from roofline.picture.scene import MAX_NAME_LETTERS, Point, Roof, Scene, close_groups
from roofline.picture.style import short_case
from roofline.work import ordered_dtypes

MAX_LABELED_POINTS = 12
"""With more points only the fastest of each series has a label."""
MAX_LABELED_SERIES = 20
"""With more points there are no arrows, and only the fastest of each op and dtype has a label."""
MAX_MODULE_LETTERS = 40
"""Of the path of a module in a label."""
MIN_LABELED_SHARE, MAX_PROFILE_LABELS = 0.02, 12
"""Profiles: fraction of the step for a label, and number of labels."""
OUTSIDE = "outside of any module"


class RoofLabel(NamedTuple):
    """The label of one or several roofs."""

    lines: list[str]
    color: str
    roof: Roof
    row: int = 0
    """-1 below the roof, else the row above it."""


def flat_labels(scene: Scene, min_decades: float) -> list[RoofLabel]:
    """Return the labels of flat roofs from the bottom up; those nearer than `min_decades` form a stack."""
    labels = []
    for stack in close_groups(scene.flats[::-1], lambda group: group[0].ceiling.value, min_decades):
        for index, group in enumerate(stack):
            row = index - 1 if len(stack) > 1 else 0
            nearest = stack[0] if row < 0 else stack[-1]
            labels.append(RoofLabel([roof_label(group, scene)], shared_color(group), nearest[0], row))
    return labels


def slope_labels(scene: Scene, min_decades: float) -> list[RoofLabel]:
    """Return the labels of bandwidths from the bottom up; those nearer than `min_decades` share one."""
    slopes = [roof for roof in scene.roofs if not roof.is_flat and not roof.is_mix]
    slopes.sort(key=lambda roof: roof.ceiling.value)
    groups = close_groups(slopes, lambda roof: roof.ceiling.value, min_decades)
    return [RoofLabel([roof.label for roof in group[::-1]], shared_color(group), group[-1]) for group in groups]


def shared_color(roofs: Sequence[Roof]) -> str:
    return roofs[0].color if len({roof.color for roof in roofs}) == 1 else INK


def roof_label(roofs: Sequence[Roof], scene: Scene) -> str:
    owners = [scene.machines[roof.machine].slug for roof in roofs] if len(scene.machines) > 1 else []
    names = ordered_dtypes(roof.ceiling.name for roof in roofs) if roofs[0].is_flat else [roofs[0].ceiling.name]
    vector = "vector " if all(roof.ceiling.quantity == "fma" for roof in roofs) else ""
    unit = ("OP/s" if names == ["int8"] else "FLOP/s") if roofs[0].is_flat else "B/s"
    kinds = ", ".join(dict.fromkeys(roof.ceiling.kind for roof in roofs)) if len(scene.kinds) > 1 else ""
    title = vector + ", ".join(one_line(name, 12) for name in names if name != "memory")
    machines = ", ".join(one_line(owner, MAX_NAME_LETTERS) for owner in dict.fromkeys(owners))
    return " ".join(filter(None, (machines, title, si(max(roof.ceiling.value for roof in roofs), unit), kinds)))


def chosen_for_labels(scene: Scene) -> list[Point]:
    """Return the points with labels: those above a ceiling, the fastest of each series (or op), and others if few."""
    points = scene.points
    if scene.is_profile:
        by_share = sorted(points, key=lambda point: -(point.share or 0))
        large = [point for point in by_share if (point.share or 0) >= MIN_LABELED_SHARE][:MAX_PROFILE_LABELS]
        return large + [point for point in by_share if point.is_outlier and point not in large]
    by_speed = sorted(points, key=lambda point: -point.y)
    best: dict[tuple[object, ...], Point] = {}
    for point in by_speed:
        best.setdefault(point.series[:3] if len(points) > MAX_LABELED_SERIES else point.series, point)
    chosen = [point for point in by_speed if point.excess or point.is_outlier] + list(best.values())
    chosen += by_speed if len(points) <= MAX_LABELED_POINTS else []
    return list({id(point): point for point in chosen}.values())


def point_label(point: Point, scene: Scene, is_first: bool) -> str:
    record = point.record
    if scene.is_profile:
        module = end_of(str(record.extra.get("module") or OUTSIDE), MAX_MODULE_LETTERS)
        more = f" and {len(point.others)} more" if point.others else ""
        op = one_line(record.op.rpartition(".")[2], MAX_NAME_LETTERS)
        where = f"{module}: " if scene.has_modules else ""
        return f"{where}{op}{more}, {100 * (point.share or 0):.2g} % of time {_beyond(point)}".rstrip()
    words = scene.series_words(point) if is_first else []
    if len(scene.points) == 1 or len(scene.names["case"]) > 1:
        words.append(short_case(record.case.removesuffix(f":{scene.shared}")))
    words.append(point.detail)
    if point.roofline_pct is not None:
        words.append(f"{significant(point.roofline_pct, 2 if point.roofline_pct < 100 else 3)} %")
    if point.doubts and len(scene.points) <= MAX_LABELED_POINTS:
        words.append(f"({one_line(point.doubts[0], 16)})")
    words.append(_beyond(point))
    return " ".join(filter(None, words))


def _beyond(point: Point) -> str:
    """Return the arrow and the value of an outlier."""
    (x, y), parts = point.spot, []
    if point.x < x:
        parts.append(f"← {significant(point.x)} FLOP/byte")
    if point.y < y:
        parts.append(f"↓ {si(point.y, 'FLOP/s')}")
    return " ".join(parts)
