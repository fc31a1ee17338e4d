"""Scenes of runs and GPUs: which records are drawn, their styles, outliers and groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from results.record import Record
from results.show.picture import INK, SERIES_COLORS
from results.show.profile import op_of
from results.show.terminal import one_line
from roofline.limits import ROOFS
from roofline.machine import KINDS, Ceiling, Machine, judging, machines_of
from roofline.model import judge, limits_s, ridge_intensity
from roofline.picture.scene import (
    MAX_NAME_LETTERS,
    Measured,
    NoCeilingError,
    Point,
    Roof,
    Scene,
)
from roofline.picture.style import DTYPE_COLORS, FOREIGN_COLOR
from roofline.picture.texts import chosen_for_labels, point_label, roof_label

MIN_DRAWN_SHARE = 0.001
"""Fraction of the step's time; smaller rows of a profile are not drawn."""
AXES_PT = 700.0
"""Approximate width of the axes, points, by which overlapping points of a profile are grouped."""
OUTLIER_DECADES = 1.5
"""Gap between an outlier and the other points, relative to the roofs."""
MIN_INTENSITY = 0.01
"""Points of smaller intensity are outliers."""
MAX_FLOPS_PER_S = 1e300
EDGE = 0.02
"""Distance of outliers from the edge of the plot, as a fraction of its width."""


def build_scene(
    runs: Sequence[Measured], gpus: Sequence[Machine] = (), dtypes: Sequence[str] | None = None
) -> Scene:
    """Return the scene of runs and GPUs.

    Args:
        runs: any number; the newest run of a machine provides its ceilings.
        gpus: GPUs without points, or datasheet ceilings of the machines of runs.
        dtypes: dtypes to draw; None for all.
    """
    machines = machines_of([environment for environment, _ in runs], gpus)
    slugs = list(machines)
    points: list[Point] = []
    left_out: Counter[str] = Counter()
    for run, (environment, records) in enumerate(runs):
        own = judging(environment, gpus)
        for record in records:
            point = _point(slugs.index(own.slug), run, record, own, dtypes)
            if isinstance(point, str):
                left_out[point] += 1
            else:
                points.append(point)
    environments = [environment for environment, _ in runs]
    scene = Scene(tuple(machines.values()), environments, [], points, left_out)
    _add_details(points)
    _add_styles(scene)
    roofs: list[Roof] = []
    for index in range(len(slugs)):
        roofs += _roofs(index, scene, dtypes)
    scene.roofs = roofs
    if not roofs:
        names = ", ".join(map(one_line, slugs)) or "no machine"
        raise NoCeilingError(
            f"no ceiling is known for {names}; calibrate the machine, or add a known GPU with --gpu"
        )
    _place(scene)
    if scene.is_profile:
        scene.points = _grouped(scene)
    for roof in roofs:
        roof.label = roof_label([roof], scene)
    named: set[object] = set()
    for point in chosen_for_labels(scene):
        point.label = point_label(point, scene, is_first=point.series not in named)
        named.add(point.series)
    return scene


def _point(
    machine: int, run: int, record: Record, ceilings: Machine, dtypes: Sequence[str] | None
) -> Point | str:
    """Return the point of a record, or why it is not drawn."""
    if record.status != "ok":
        return record.status
    if dtypes is not None and record.dtype not in dtypes:
        return "of other dtypes"
    share = op_of(record).share
    if share is not None and share < MIN_DRAWN_SHARE:
        return f"below {100 * MIN_DRAWN_SHARE:g} % of the time"
    try:
        judged = judge(record, ceilings)
        if not record.flops or judged.intensity is None or judged.flops_per_s is None:
            return "without FLOPs or bytes"
        ends_s = [record.median_s, record.median_s]
        if share is None and record.ci95_s:
            ends_s = list(record.ci95_s)
        high, low = (record.flops / (end_s or math.nan) for end_s in ends_s)
        limits = limits_s(record, ceilings)
    except ArithmeticError:
        return "with impossible values"
    values = (judged.intensity, judged.flops_per_s, low, high)
    if not all(math.isfinite(value) and value > 0 for value in values):
        return "with impossible values"
    point = Point(machine, run, record, judged.intensity, judged.flops_per_s, low, high)
    point.spot = (point.x, point.y)
    point.roofline_pct = judged.roofline_pct
    point.excess = judged.excess
    if limits:
        longest_s = max(limits.values())
        if longest_s > max(limits[roof.name] for roof in ROOFS):
            point.cap = record.flops / longest_s
    return point


def _add_details(points: Sequence[Point]) -> None:
    alike: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        alike.setdefault((*point.series, point.record.case), []).append(point)
    varying: set[str] = set()
    for group in alike.values():
        first = group[0].record.options
        for point in group:
            options = point.record.options
            varying |= {name for name in {*first, *options} if first.get(name) != options.get(name)}
    for point in points:
        words = []
        for name, value in point.record.options.items():
            if name in varying:
                words.append(one_line(f"{name} {value}", MAX_NAME_LETTERS))
        point.detail = " ".join(words)


def _add_styles(scene: Scene) -> None:
    if len(scene.machines) > 1:
        scene.colored_by = "machine"
    elif len(scene.names["dtype"]) == 1 and len(scene.names["provider"]) > 1:
        scene.colored_by = "provider"
    looks: list[tuple[object, ...]] = []
    for point in scene.points:
        run = point.run if scene.has_run_names else None
        record = point.record
        looks.append((record.op, record.provider, run, record.dtype))
        if scene.is_profile:
            looks[-1] = ()
    shapes = list(dict.fromkeys(looks))
    for point, look in zip(scene.points, looks, strict=True):
        point.color = _color(scene, point.machine, point.record.dtype, point.record.provider)
        point.shape = shapes.index(look)
        point.is_hollow = bool(scene.fillings) and point.is_from_cache


def _color(scene: Scene, machine: int, dtype: str = "", provider: str = "") -> str:
    if scene.colored_by == "machine":
        return SERIES_COLORS[machine % len(SERIES_COLORS)]
    if scene.colored_by == "provider" and provider:
        return SERIES_COLORS[scene.names["provider"].index(provider) % len(SERIES_COLORS)]
    if scene.colored_by == "dtype" and dtype:
        return DTYPE_COLORS.get(dtype, FOREIGN_COLOR)
    return INK


def _roofs(machine: int, scene: Scene, dtypes: Sequence[str] | None) -> list[Roof]:
    known = scene.machines[machine]
    peaks: list[Ceiling] = []
    for dtype in known.dtypes:
        if not dtypes or dtype in dtypes:
            peaks += _fastest(known, "flops", [dtype])
    drawn = {(peak.name, peak.kind, peak.value) for peak in peaks}
    used = _judging(known, [point.record for point in scene.points if point.machine == machine])
    for dtype in dict.fromkeys(peak.name for peak in used if peak.quantity == "fma"):
        vector = _fastest(known, "fma", [dtype])
        peaks += [peak for peak in vector if (peak.name, peak.kind, peak.value) not in drawn]
    slopes = {
        slope.kind: Roof(machine, slope, None, _color(scene, machine))
        for slope in _fastest(known, "bandwidth")
    }
    roofs = list(slopes.values())
    for peak in peaks:
        met = slopes[peak.kind].ceiling if peak.kind in slopes else known.bandwidth()
        ridge = ridge_intensity(peak.value, met.value) if met else None
        roofs.append(Roof(machine, peak, ridge, _color(scene, machine, peak.name)))
        if met and ridge:
            slopes[met.kind].ridge = max(slopes[met.kind].ridge or 0, ridge)
    end = max((peak.value for peak in peaks if peak.kind == "measured"), default=0)
    for ceiling in used:
        if ceiling.unit == "B/s" and ceiling.quantity != "bandwidth":
            corner = end / ceiling.value or None
            roofs.append(Roof(machine, ceiling, corner, _color(scene, machine)))
    if len(scene.machines) == 1:
        for mix in known.mixes:
            if all(mix != slope.ceiling for slope in slopes.values()):
                roofs.append(Roof(machine, mix, end / mix.value or None, INK, is_mix=True))
    return roofs


def _judging(known: Machine, records: Sequence[Record]) -> list[Ceiling]:
    """Return the ceilings of the roofs that limit some of these records."""
    judging: dict[Ceiling, None] = {}
    for record in records:
        for roof in ROOFS:
            work, ceilings = roof.of(record, known)
            if work:
                judging |= dict.fromkeys(ceilings[:1])
    return list(judging)


def _fastest(known: Machine, quantity: str, names: list[str] | None = None) -> list[Ceiling]:
    ceilings = (known.fastest(quantity, names, [kind]) for kind in KINDS)
    return list(filter(None, ceilings))


def _place(scene: Scene) -> None:
    """Place up to a third of the points, far below the others or of negligible intensity, at the
    edge of the view.
    """
    most = len(scene.points) // 3
    heights = []
    for point in scene.points:
        own = [roof.ceiling for roof in scene.roofs if roof.machine == point.machine]
        peaks = [ceiling.value for ceiling in own if ceiling.unit == "FLOP/s"]
        slopes = [point.x * ceiling.value for ceiling in own if ceiling.unit == "B/s"]
        attainable = min(max(values) for values in (peaks, slopes, [MAX_FLOPS_PER_S]) if values)
        heights.append(math.log10(point.y / attainable))
    lowest = -math.inf
    ordered = sorted(heights)
    for below, above in pairwise(ordered[: most + 1]):
        if above - below > OUTLIER_DECADES:
            lowest = above
    slight = [point for point in scene.points if point.x < MIN_INTENSITY]
    for point, height in zip(scene.points, heights, strict=True):
        point.is_outlier = height < lowest or (point in slight and len(slight) <= most)
    view = scene.view
    margin = EDGE * (view.right - view.left)
    for point in scene.points:
        if point.is_outlier:
            x = min(max(point.x, 10 ** (view.left + margin)), 10 ** (view.right - margin))
            y = min(max(point.y, 10 ** (view.bottom + margin)), 10 ** (view.top - margin))
            point.spot = (x, y)


def _grouped(scene: Scene) -> list[Point]:
    """Group the rows of a profile whose center is inside the point of a row with more time."""
    pt_per_decade = AXES_PT / (scene.view.right - scene.view.left)
    groups: list[Point] = []
    for point in sorted(scene.points, key=lambda point: -(point.share)):
        for group in groups:
            wide = math.log10(point.spot[0] / group.spot[0])
            tall = math.log10(point.spot[1] / group.spot[1])
            is_inside = math.hypot(wide, tall) * pt_per_decade < group.diameter_pt / 2
            if is_inside and group.color == point.color:
                group.others += (point.record,)
                break
        else:
            groups.append(point)
    return groups
