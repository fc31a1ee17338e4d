"""Texts of a roofline plot: title, labels of roofs and points, caption; and which points arrows
connect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from results.show.picture import INK, end_of
from results.show.terminal import one_line
from results.show.units import PREFIXES, number, quantity
from roofline.picture.scene import (
    MAX_NAME_LETTERS,
    Point,
    Roof,
    Scene,
    close_groups,
    module_of,
)
from roofline.picture.style import short_case
from roofline.work import ordered_dtypes

VERSION = re.compile(r"(.*?)[-_ ]?v(\d+)")
"""Name and version of a provider such as `triton-v2`."""
MAX_LABELED_POINTS = 12
"""With more points only the fastest of each series has a label."""
MAX_LABELED_SERIES = 20
"""With more points there are no arrows, and only the fastest of each op and dtype has a label."""
MAX_MODULE_LETTERS = 40
"""Of the path of a module in a label."""
MIN_LABELED_SHARE = 0.02
"""Profiles: minimum fraction of the step for a label."""
MAX_PROFILE_LABELS = 12
OUTSIDE = "outside of any module"
UP_TO_TERA = PREFIXES[1:]
"""Prefixes of FLOP/s: peaks are compared in TFLOP/s."""


class RoofLabel(NamedTuple):
    """The label of one or several roofs."""

    lines: list[str]
    color: str
    roof: Roof
    row: int = 0
    """-1 below the roof, else the row above it."""


def flat_labels(scene: Scene, min_decades: float) -> list[RoofLabel]:
    """Return the labels of flat roofs from the bottom up; those nearer than `min_decades` form a
    stack.
    """
    labels = []
    for stack in close_groups(scene.flats[::-1], lambda group: group[0].ceiling.value, min_decades):
        for index, group in enumerate(stack):
            row = index - 1 if len(stack) > 1 else 0
            nearest = stack[0] if row < 0 else stack[-1]
            labels.append(
                RoofLabel([roof_label(group, scene)], shared_color(group), nearest[0], row)
            )
    return labels


def slope_labels(scene: Scene, min_decades: float) -> list[RoofLabel]:
    """Return the labels of bandwidths from the bottom up; those nearer than `min_decades` share
    one.
    """
    slopes = [roof for roof in scene.roofs if not roof.is_flat and not roof.is_mix]
    slopes.sort(key=lambda roof: roof.ceiling.value)
    groups = close_groups(slopes, lambda roof: roof.ceiling.value, min_decades)
    return [
        RoofLabel([roof.label for roof in group[::-1]], shared_color(group), group[-1])
        for group in groups
    ]


def shared_color(roofs: Sequence[Roof]) -> str:
    return roofs[0].color if len({roof.color for roof in roofs}) == 1 else INK


def roof_label(roofs: Sequence[Roof], scene: Scene) -> str:
    ceilings = [roof.ceiling for roof in roofs]
    words = []
    if len(scene.machines) > 1:
        owners = dict.fromkeys(scene.machines[roof.machine].slug for roof in roofs)
        words.append(", ".join(one_line(owner, MAX_NAME_LETTERS) for owner in owners))
    if all(ceiling.quantity == "fma" for ceiling in ceilings):
        words.append("vector")
    names = [ceilings[0].name]
    unit = "B/s"
    if roofs[0].is_flat:
        names = ordered_dtypes(ceiling.name for ceiling in ceilings)
        unit = "OP/s" if names == ["int8"] else "FLOP/s"
    words.append(", ".join(one_line(name, 12) for name in names if name != "memory"))
    words.append(quantity(max(ceiling.value for ceiling in ceilings), unit, UP_TO_TERA, 3))
    if len(scene.kinds) > 1:
        words.append(", ".join(dict.fromkeys(ceiling.kind for ceiling in ceilings)))
    return " ".join(filter(None, words))


def chosen_for_labels(scene: Scene) -> list[Point]:
    """Return the points with labels: those above a ceiling, the fastest of each series (or op), and
    others if few.
    """
    points = scene.points
    if scene.is_profile:
        by_share = sorted(points, key=lambda point: -(point.share or 0))
        large = [point for point in by_share if (point.share or 0) >= MIN_LABELED_SHARE][
            :MAX_PROFILE_LABELS
        ]
        return large + [point for point in by_share if point.is_outlier and point not in large]
    by_speed = sorted(points, key=lambda point: -point.y)
    best: dict[tuple[object, ...], Point] = {}
    for point in by_speed:
        best.setdefault(
            point.series[:3] if len(points) > MAX_LABELED_SERIES else point.series, point
        )
    chosen = [point for point in by_speed if point.excess or point.is_outlier] + list(best.values())
    if len(points) <= MAX_LABELED_POINTS:
        chosen += by_speed
    return list({id(point): point for point in chosen}.values())


def point_label(point: Point, scene: Scene, is_first: bool) -> str:
    record = point.record
    if scene.is_profile:
        module = end_of(module_of(record) or OUTSIDE, MAX_MODULE_LETTERS)
        more = f" and {len(point.others)} more" if point.others else ""
        op = one_line(record.op.rpartition(".")[2], MAX_NAME_LETTERS)
        where = f"{module}: " if scene.has_modules else ""
        return (
            f"{where}{op}{more}, {100 * (point.share or 0):.2g} % of time {_beyond(point)}".rstrip()
        )
    words = scene.series_words(point) if is_first else []
    if len(scene.points) == 1 or len(scene.names["case"]) > 1:
        words.append(short_case(record.case.removesuffix(f":{scene.shared}")))
    words.append(point.detail)
    if point.roofline_pct is not None:
        words.append(f"{number(point.roofline_pct, 2 if point.roofline_pct < 100 else 3)} %")
    if point.doubts and len(scene.points) <= MAX_LABELED_POINTS:
        words.append(f"({one_line(point.doubts[0], 16)})")
    words.append(_beyond(point))
    return " ".join(filter(None, words))


def _beyond(point: Point) -> str:
    """Return the arrow and the value of an outlier."""
    x, y = point.spot
    parts = []
    if point.x < x:
        parts.append(f"← {number(point.x, 3)} FLOP/byte")
    if point.y < y:
        parts.append(f"↓ {quantity(point.y, 'FLOP/s', UP_TO_TERA, 3)}")
    return " ".join(parts)


def version_steps(scene: Scene) -> list[tuple[Point, Point]]:
    """Return the pairs of points to connect by arrows: consecutive versions or runs."""
    if len(scene.points) > MAX_LABELED_SERIES or scene.is_profile:
        return []
    groups: dict[tuple[object, ...], list[tuple[str | int, Point]]] = {}
    for point in scene.points:
        record = point.record
        case = (point.machine, record.op, record.dtype, record.case, point.detail, record.cache)
        if match := VERSION.fullmatch(record.provider):
            groups.setdefault((*case, point.run, match[1], "version"), []).append(
                (int(match[2]), point)
            )
        start = scene.runs[point.run].started_at
        groups.setdefault((*case, record.provider, "run"), []).append((start, point))
    steps = []
    for group in groups.values():
        ordered = sorted(group, key=lambda entry: entry[0])
        steps += [
            (old, new) for (before, old), (after, new) in pairwise(ordered) if before != after
        ]
    return steps


def title_lines(scene: Scene) -> tuple[str, str]:
    """Return the title (machines) and the subtitle (operations and kinds of ceilings)."""
    is_overlay = len(scene.machines) > 1
    names = ", ".join(
        one_line(known.slug if is_overlay else known.name, 60) for known in scene.machines
    )
    kinds = " and ".join(filter(None, (", ".join(scene.kinds[:-1]), scene.kinds[-1])))
    if not scene.points:
        return names, f"Roofline: {kinds} ceilings"
    ops, cases, dtypes, providers = scene.names.values()
    words = [one_line(ops[0]) if len(ops) == 1 else f"{len(ops)} operations"]
    if len(cases) == 1 and len(scene.points) > 1:
        words.append(short_case(cases[0]))
    elif scene.shared:
        words.append(one_line(scene.shared.replace(":", " "), 40))
    if len(dtypes) == 1:
        words.append(one_line(dtypes[0], 12))
    if len(providers) == 1:
        words.append(f"by {one_line(providers[0], 48)}")
    return names, f"Roofline: {' '.join(words)}, under {kinds} ceilings"


def caption(scene: Scene, unlabeled: int = 0, without: tuple[str, ...] = ()) -> str:
    """Return the caption: provenance, meaning of the marks, and the number of records that are not
    drawn.

    `without` are first words of the explanations of marks that the renderer does not draw, such as
    `Bars`.
    """
    parts = []
    if scene.points:
        parts += [_provenance(scene), *_how_points_are_drawn(scene)]
        doubts = Counter(chain.from_iterable(point.doubts for point in scene.points))
        if doubts:
            counts = [f"{count} {one_line(flag, 24)}" for flag, count in doubts.items()]
            parts.append(f"Crossed out: {', '.join(counts)}")
    elif "datasheet" in scene.kinds:
        parts.append("Dense peaks, without structured sparsity")
    if above := [point.excess for point in scene.points if point.excess]:
        causes = one_line("; ".join(dict.fromkeys(above)), 240)
        mark = "Above a ceiling" if scene.is_profile or "Ringed" in without else "Ringed"
        parts.append(f"{mark}: {len(above)} {causes}")
    parts = [part for part in parts if not part.startswith(without)]
    if unlabeled:
        parts.append(f"Without a label: {unlabeled} of {len(scene.points)} points")
    if scene.left_out:
        counts = [f"{count} {reason}" for reason, count in scene.left_out.items()]
        parts.append(f"Not drawn: {', '.join(counts)}")
    notes = [one_line(known.note, 240) for known in scene.machines if known.note]
    parts += [note[:1].upper() + note[1:] for note in notes]
    return " ".join(part if part.endswith("…") else f"{part.rstrip('.')}." for part in parts)


def _how_points_are_drawn(scene: Scene) -> list[str]:
    if scene.is_profile:
        drawn_pct = 100 * sum(point.share or 0 for point in scene.points)
        named = "module, operation" if scene.has_modules else "operation"
        return [
            f"Labels: {named}, share of time",
            f"Area: that share, {drawn_pct:.0f} % in all points",
        ]
    labels = "Labels: shape"
    if any(point.roofline_pct is not None for point in scene.points):
        labels += ", share of the roofline"
        if any(len(known.mixes) > 1 for known in scene.machines):
            labels += " at its own mix of reads and writes"
    parts = [labels, "Bars: 95 % CI of the median"]
    if version_steps(scene):
        parts.append("Arrows: from version to version, or from run to run")
    if any(point.cap for point in scene.points):
        parts.append("Caps: FLOPs over the launch floor, if below the roof")
    if any(roof.ceiling.band for roof in scene.roofs if not roof.is_mix):
        parts.append(
            "Bands: p5 to p95 of the samples behind a measured roof, or the 95 % CI of their median"
        )
    return parts


def _provenance(scene: Scene) -> str:
    versions = []
    threads = []
    for run in scene.runs:
        for name in ("torch", "triton", "cuda", "driver"):
            if version := run.versions.get(name):
                versions.append(f"{name} {one_line(str(version), 24)}")
        if run.device.get("threads"):
            threads.append(f"{run.device['threads']} threads")
    caches = sorted({f"{point.record.cache} cache" for point in scene.points if point.record.cache})
    fills = sorted(
        {f"{one_line(point.record.fill, 12)} data" for point in scene.points if point.record.fill}
    )
    days = sorted({one_line(run.started_at[:10], 10) for run in scene.runs})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return ", ".join([*dict.fromkeys(versions), *dict.fromkeys(threads), *caches, *fills, when])
