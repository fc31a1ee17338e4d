"""Texts of a roofline plot: title, labels of roofs and points, caption; and which points arrows
connect.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from results.show.picture import INK, MUTED, end_of
from results.show.profile import op_of
from results.show.terminal import one_line
from results.show.units import PREFIXES, count, number, quantity
from roofline.picture.scene import (
    MAX_NAME_LETTERS,
    Point,
    Roof,
    Scene,
    Spot,
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
    x: float
    y: float
    """Place, decimal logarithms: the right end for flat roofs, the middle for bandwidths."""
    is_below: bool = False
    """Whether the text is below its place."""


def flat_labels(scene: Scene, line: float) -> list[RoofLabel]:
    """Return the labels of flat roofs from the bottom up; a line of text is `line` decades high.

    A label is above its roof, or below it if the next roof is close; those without room are moved
    up.
    """
    labels = []
    taken = -math.inf
    heights = [math.log10(group[0].ceiling.value) for group in scene.flats]
    for index, group in reversed(list(enumerate(scene.flats))):
        y = max(heights[index], taken)
        is_below = index > 0 and heights[index - 1] - y < line and y - taken > line
        taken = y if is_below else y + line
        lines = [roof_label(group, scene)]
        labels.append(
            RoofLabel(lines, shared_color(group), group[0], scene.view.right, y, is_below)
        )
    return labels


def slope_labels(scene: Scene, line: float) -> list[RoofLabel]:
    """Return the labels of bandwidths from the bottom up, and that of mixes; bandwidths nearer than
    a line of text, decades, share one.
    """
    groups: list[list[Roof]] = []
    mixes: list[Roof] = []
    last = -math.inf
    for roof in sorted(scene.roofs, key=lambda roof: roof.ceiling.value):
        height = math.log10(roof.ceiling.value)
        if roof.is_mix:
            mixes.append(roof)
        elif not roof.is_flat and height - last > line:
            groups.append([roof])
            last = height
        elif not roof.is_flat:
            groups[-1].append(roof)
            last = height
    labels = []
    for group in groups:
        lines = [roof.label for roof in group[::-1]]
        labels.append(RoofLabel(lines, shared_color(group), group[-1], *_place(group[-1], scene)))
    if mixes:
        names = [roof.label.removesuffix(" measured") for roof in mixes[::-1]]
        text = f"other mixes: {', '.join(names)}"
        place = _place(mixes[0], scene)
        labels.append(RoofLabel([text], MUTED, mixes[0], *place, is_below=True))
    return labels


def _place(roof: Roof, scene: Scene) -> Spot:
    (x0, _), (x1, _) = roof.ends(scene.view)
    x = 0.55 * math.log10(x0) + 0.45 * math.log10(x1)
    return x, x + math.log10(roof.ceiling.value)


def shared_color(roofs: Sequence[Roof]) -> str:
    return roofs[0].color if len({roof.color for roof in roofs}) == 1 else INK


def ridge_labels(scene: Scene) -> dict[Spot, tuple[str, str]]:
    """Return text and color of each ridge point, by its place."""
    ridges: dict[Spot, list[Roof]] = {}
    for roof in scene.roofs:
        if roof.corner:
            ridges.setdefault(roof.corner, []).append(roof)
    doubt = " (doubtful)" if any(roof.ceiling.disturbed for roof in scene.roofs) else ""
    labels = {}
    for corner, roofs in ridges.items():
        labels[corner] = (f"ridge {number(corner[0], 3)}{doubt}", shared_color(roofs))
    return labels


def roof_label(roofs: Sequence[Roof], scene: Scene) -> str:
    words = []
    if len(scene.machines) > 1:
        words.append(_listed(scene.machines[roof.machine].slug for roof in roofs))
    if all(roof.ceiling.quantity == "fma" for roof in roofs):
        words.append("vector")
    names = list(dict.fromkeys(roof.ceiling.name for roof in roofs))
    if roofs[0].is_flat:
        names = ordered_dtypes(names)
    if names != ["memory"]:
        words.append(_listed(names))
    unit = "FLOP/s" if roofs[0].is_flat else "B/s"
    if names == ["int8"]:
        unit = "OP/s"
    words.append(quantity(max(roof.ceiling.value for roof in roofs), unit, UP_TO_TERA, 3))
    if len(scene.kinds) > 1:
        words.append(_listed(roof.ceiling.kind for roof in roofs))
    return " ".join(words)


def _listed(names: Iterable[str], longest: int = MAX_NAME_LETTERS) -> str:
    """Return distinct names of a file in their order, separated by commas."""
    return ", ".join(one_line(name, longest) for name in dict.fromkeys(names))


def chosen_for_labels(scene: Scene) -> list[Point]:
    """Return the points with labels: those above a ceiling, the fastest of each series (or op), and
    others if few.
    """
    points = scene.points
    chosen = [point for point in points if point.excess or point.is_outlier]
    if scene.is_profile:
        large = [point for point in points if (point.share) >= MIN_LABELED_SHARE]
        large.sort(key=lambda point: -(point.share))
        chosen = large[:MAX_PROFILE_LABELS] + [point for point in points if point.is_outlier]
    else:
        parts = 3 if len(points) > MAX_LABELED_SERIES else None
        by_speed = sorted(points, key=lambda point: -point.y)
        fastest = {point.series[:parts]: point for point in reversed(by_speed)}
        chosen += list(fastest.values())[::-1]
        if len(points) <= MAX_LABELED_POINTS:
            chosen += by_speed
    return list({id(point): point for point in chosen}.values())


def point_label(point: Point, scene: Scene, is_first: bool) -> str:
    """Return the label of a point; the first label of a series names it."""
    record = point.record
    words = []
    if scene.is_profile:
        if scene.has_modules:
            module = op_of(record).module or OUTSIDE
            words.append(f"{end_of(module, MAX_MODULE_LETTERS)}:")
        op = one_line(record.op.rpartition(".")[2], MAX_NAME_LETTERS)
        more = f" and {len(point.others)} more" if point.others else ""
        words.append(f"{op}{more}, {100 * (point.share):.2g} % of time")
    else:
        if is_first:
            words += scene.series_words(point)
        if len(scene.points) == 1 or len(scene.names["case"]) > 1:
            words.append(short_case(record.case))
        words.append(point.detail)
        if point.roofline_pct is not None:
            digits = 2 if point.roofline_pct < 100 else 3
            words.append(f"{number(point.roofline_pct, digits)} %")
    # The place of an outlier is at the edge.
    if point.x < point.spot[0]:
        words.append(f"← {number(point.x, 3)} FLOP/byte")
    if point.y < point.spot[1]:
        words.append(f"↓ {quantity(point.y, 'FLOP/s', UP_TO_TERA, 3)}")
    return " ".join(filter(None, words))


def version_steps(scene: Scene) -> list[tuple[Point, Point]]:
    """Return the pairs of points to connect by arrows: consecutive versions or runs."""
    if len(scene.points) > MAX_LABELED_SERIES or scene.is_profile:
        return []
    groups: dict[tuple[object, ...], list[tuple[int, str, Point]]] = {}
    for point in scene.points:
        record = point.record
        match = VERSION.fullmatch(record.provider)
        provider, version = match.groups() if match else (record.provider, 0)
        case = (point.machine, record.op, record.dtype, record.case, point.detail, record.cache)
        start = scene.runs[point.run].started_at
        groups.setdefault((*case, provider), []).append((int(version), start, point))
    steps = []
    for group in groups.values():
        group.sort(key=lambda entry: entry[:2])
        for old, new in pairwise(group):
            if old[:2] != new[:2]:
                steps.append((old[2], new[2]))
    return steps


def title_lines(scene: Scene) -> tuple[str, str]:
    """Return the title (machines) and the subtitle (operations and kinds of ceilings)."""
    title = _listed((known.slug for known in scene.machines), 60)
    if len(scene.machines) == 1:
        title = one_line(scene.machines[0].name, 60)
    kinds = ", ".join(scene.kinds)
    if not scene.points:
        return title, f"Roofline: {kinds} ceilings"
    ops, cases, dtypes, providers = scene.names.values()
    words = [one_line(ops[0]) if len(ops) == 1 else f"{len(ops)} operations"]
    if len(cases) == 1 and len(scene.points) > 1:
        words.append(short_case(cases[0]))
    words += [one_line(dtype, 12) for dtype in dtypes if len(dtypes) == 1]
    words += [f"by {one_line(provider, 48)}" for provider in providers if len(providers) == 1]
    text = f"Roofline: {' '.join(filter(None, words))}, under {kinds} ceilings"
    if all("preempted" in point.doubts for point in scene.points):
        text += ". The machine was busy: all points are doubtful, measure again"
    return title, text


def caption(scene: Scene, marks: Sequence[str]) -> str:
    """Return the caption: provenance, what the renderer says about its marks, and what is not
    drawn.
    """
    parts = list(marks)
    if scene.points:
        parts.insert(0, _provenance(scene))
    elif "datasheet" in scene.kinds:
        parts.append("Dense peaks, without structured sparsity")
    doubts: Counter[str] = Counter()
    for point in scene.points:
        doubts.update(point.doubts)
    if doubts:
        counts = [f"{count} {one_line(flag, 24)}" for flag, count in doubts.items()]
        parts.append(f"Crossed out: {', '.join(counts)}")
    above = [point.excess for point in scene.points if point.excess]
    if above:
        causes = one_line("; ".join(dict.fromkeys(above)), 240)
        mark = "Above a ceiling" if scene.is_profile else "Ringed"
        parts.append(f"{mark}: {len(above)} {causes}")
    if scene.left_out:
        counts = [f"{count} {reason}" for reason, count in scene.left_out.items()]
        parts.append(f"Not drawn: {', '.join(counts)}")
    parts += [f"Note: {one_line(known.note, 240)}" for known in scene.machines if known.note]
    return " ".join(part if part.endswith("…") else f"{part.rstrip('.')}." for part in parts)


def _provenance(scene: Scene) -> str:
    words = []
    for run in scene.runs:
        for name in ("torch", "triton", "cuda", "driver"):
            if run.versions.get(name):
                words.append(f"{name} {one_line(str(run.versions[name]), 24)}")
        if run.device.get("threads"):
            words.append(count(run.device["threads"], "thread"))
    records = [point.record for point in scene.points]
    words += sorted({f"{record.cache} cache" for record in records if record.cache})
    words += sorted({f"{one_line(record.fill, 12)} data" for record in records if record.fill})
    days = sorted({one_line(run.started_at[:10], 10) for run in scene.runs})
    words.append(" to ".join(dict.fromkeys((days[0], days[-1]))))
    return ", ".join(dict.fromkeys(words))
