"""Scenes of runs and GPUs: which records are drawn, their styles, outliers and groups."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from results.record import Record
from results.show.picture import INK, SERIES_COLORS
from results.show.terminal import one_line
from roofline.machine import KINDS, Ceiling, Machine, judging, machines_of
from roofline.model import judge, limits_s, peak_of, ridge_intensity
from roofline.picture.scene import (
    MAX_NAME_LETTERS,
    Measured,
    NoCeilingError,
    Point,
    Roof,
    Scene,
    share_of,
)
from roofline.picture.style import MARKERS, dtype_color
from roofline.picture.texts import chosen_for_labels, point_label, roof_label

MIN_DRAWN_SHARE = 0.001
"""Fraction of the step's time; smaller rows of a profile are not drawn."""
AXES_PT = 700.0
"""Approximate width of the axes, points, by which overlapping points of a profile are grouped."""
OUTLIER_DECADES = 1.5
"""Gap between an outlier and the other points, relative to the roofs."""
MIN_INTENSITY = 0.01
"""Points of smaller intensity are outliers."""
EDGE = 0.02
"""Distance of outliers from the edge of the plot, as a fraction of its width."""


def build_scene(
    runs: Sequence[Measured], gpus: Sequence[Machine] = (), dtypes: Sequence[str] | None = None
) -> Scene:
    """Return the scene of runs and GPUs; CeilingError if ceilings of a run are invalid.

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
        machine = slugs.index(own.slug)
        for record in records:
            try:
                point = _point(machine, run, record, own, dtypes)
            except ArithmeticError:
                point = "with impossible values"
            if isinstance(point, str):
                left_out[point] += 1
            else:
                points.append(point)
    environments = tuple(environment for environment, _ in runs)
    scene = _styled(
        Scene(tuple(machines.values()), environments, (), _with_details(points), left_out)
    )
    roofs: list[Roof] = []
    for index in range(len(slugs)):
        roofs += _roofs(index, scene, dtypes)
    if not roofs:
        names = ", ".join(map(one_line, slugs)) or "no machine"
        raise NoCeilingError(
            f"no ceiling is known for {names}; calibrate the machine, or add a known GPU with --gpu"
        )
    return _labeled(_grouped(_with_outliers(replace(scene, roofs=tuple(roofs)))))


def _point(
    machine: int, run: int, record: Record, ceilings: Machine, dtypes: Sequence[str] | None
) -> Point | str:
    if record.status != "ok":
        return record.status
    if dtypes is not None and record.dtype not in dtypes:
        return "of other dtypes"
    share = share_of(record)
    if share is not None and share < MIN_DRAWN_SHARE:
        return f"below {100 * MIN_DRAWN_SHARE:g} % of the time"
    judged = judge(record, ceilings)
    if not record.flops or judged.intensity is None or judged.flops_per_s is None:
        return "without FLOPs or bytes"
    fast = slow = record.median_s
    if share is None and record.ci95_s:
        fast, slow = record.ci95_s
    low = record.flops / (slow or math.nan)
    high = record.flops / (fast or math.nan)
    if not all(
        math.isfinite(value) and value > 0
        for value in (judged.intensity, judged.flops_per_s, low, high)
    ):
        return "with impossible values"
    cap = None
    if limits := limits_s(record, ceilings):
        compute_s, memory_s, launch_s = limits
        if launch_s > max(compute_s, memory_s):
            cap = record.flops / launch_s
    return Point(
        machine,
        run,
        record,
        x=judged.intensity,
        y=judged.flops_per_s,
        low=low,
        high=high,
        roofline_pct=judged.roofline_pct,
        excess=judged.excess,
        cap=cap,
    )


def _with_details(points: Sequence[Point]) -> tuple[Point, ...]:
    alike: dict[tuple[object, ...], list[set[tuple[str, str]]]] = {}
    for point in points:
        options = {(name, str(value)) for name, value in point.record.options.items()}
        alike.setdefault((*point.series, point.record.case), []).append(options)
    varying: set[str] = set()
    for group in alike.values():
        differing = group[0].union(*group) - group[0].intersection(*group)
        varying.update(name for name, _ in differing)
    detailed = []
    for point in points:
        facts = point.record.options.items()
        words = [_option(name, value) for name, value in facts if name in varying]
        detailed.append(replace(point, detail=" ".join(words)))
    return tuple(detailed)


def _option(name: str, value: object) -> str:
    is_clear = (
        isinstance(value, str)
        and value not in ("none", "full", "on", "off", "all")
        and not value.isdigit()
    )
    return one_line(str(value) if is_clear else f"{name} {value}", MAX_NAME_LETTERS)


def _styled(scene: Scene) -> Scene:
    providers = scene.names["provider"]
    dtypes = scene.names["dtype"]
    colored_by = "provider" if len(dtypes) == 1 and len(providers) > 1 else "dtype"
    colored_by = "machine" if len(scene.machines) > 1 else colored_by
    scene = replace(scene, colored_by=colored_by)
    looks = [_look(scene, point) for point in scene.points]
    few = (length for length in (4, 3, 2) if len({look[:length] for look in looks}) <= len(MARKERS))
    shown = next(few, 1)
    shapes = list(dict.fromkeys(look[:shown] for look in looks))
    points = [
        replace(
            point,
            color=_color(scene, point.machine, point.record.dtype, point.record.provider),
            shape=shapes.index(look[:shown]),
            is_hollow=bool(scene.fillings) and point.is_from_cache,
        )
        for point, look in zip(scene.points, looks, strict=True)
    ]
    return replace(scene, points=tuple(points))


def _look(scene: Scene, point: Point) -> tuple[object, ...]:
    """Return what the shape of a marker shows; with more series than shapes, only the first parts
    are used.
    """
    if scene.is_profile:
        return ()
    run = point.run if scene.has_run_names else None
    record = point.record
    return (record.op, record.provider, run, record.dtype)  # dtypes also differ in color


def _color(scene: Scene, machine: int, dtype: str, provider: str | None = None) -> str:
    if scene.colored_by == "machine":
        return SERIES_COLORS[machine % len(SERIES_COLORS)]
    if scene.colored_by == "provider":
        if not provider:
            return INK
        return SERIES_COLORS[scene.names["provider"].index(provider) % len(SERIES_COLORS)]
    return dtype_color(dtype) if dtype else INK


def _roofs(machine: int, scene: Scene, dtypes: Sequence[str] | None) -> list[Roof]:
    known = scene.machines[machine]
    slopes = _fastest(known, "bandwidth")
    shown = [dtype for dtype in known.dtypes if not dtypes or dtype in dtypes]
    peaks: list[Ceiling] = []
    for dtype in shown:
        peaks += _fastest(known, "flops", dtype)
    used = [peak_of(point.record, known) for point in scene.points if point.machine == machine]
    for dtype in dict.fromkeys(peak.name for peak, units in used if peak and units == "vector"):
        drawn = {(peak.name, peak.kind, peak.value) for peak in peaks}
        vector = _fastest(known, "fma", dtype)
        peaks += [peak for peak in vector if (peak.name, peak.kind, peak.value) not in drawn]
    by_kind = {slope.kind: slope for slope in slopes}
    flats = []
    ridges = {slope.kind: [0.0] for slope in slopes}
    for peak in peaks:
        met = by_kind.get(peak.kind, known.bandwidth())
        ridge = ridge_intensity(peak.value, met.value) if met else None
        flats.append(Roof(machine, peak, ridge, _color(scene, machine, peak.name)))
        if met and ridge:
            ridges[met.kind].append(ridge)
    roofs = [
        Roof(machine, slope, max(ridges[slope.kind]) or None, _color(scene, machine, ""))
        for slope in slopes
    ]
    if len(scene.machines) == 1:
        end = max((peak.value for peak in peaks if peak.kind == "measured"), default=0)
        mixes = [mix for mix in known.mixes if mix not in slopes]
        flats += [Roof(machine, mix, end / mix.value or None, INK, is_mix=True) for mix in mixes]
    return roofs + flats


def _fastest(known: Machine, quantity: str, name: str | None = None) -> list[Ceiling]:
    ceilings = (known.fastest(quantity, [name] if name else None, [kind]) for kind in KINDS)
    return [ceiling for ceiling in ceilings if ceiling]


def _with_outliers(scene: Scene) -> Scene:
    """Place the points, and up to a third of them, far below the others or of negligible intensity,
    at the edge.
    """
    most = len(scene.points) // 3
    heights = [math.log10(point.y / _attainable(point, scene)) for point in scene.points]
    ordered = sorted(heights)
    gaps = (i for i in range(most, 0, -1) if ordered[i] - ordered[i - 1] > OUTLIER_DECADES)
    lowest = ordered[next(gaps, 0)] if ordered else 0.0
    leftmost = (
        MIN_INTENSITY if sum(point.x < MIN_INTENSITY for point in scene.points) <= most else 0.0
    )
    points = [
        replace(point, is_outlier=height < lowest or point.x < leftmost, spot=(point.x, point.y))
        for point, height in zip(scene.points, heights, strict=True)
    ]
    view = replace(scene, points=tuple(points)).view
    margin = EDGE * (view.right - view.left)
    placed = [
        replace(point, spot=view.clamped(point.spot, margin)) if point.is_outlier else point
        for point in points
    ]
    return replace(scene, points=tuple(placed))


def _attainable(point: Point, scene: Scene) -> float:
    own = [roof for roof in scene.roofs if roof.machine == point.machine]
    return min(
        max((roof.ceiling.value for roof in own if roof.is_flat), default=math.inf),
        max((roof.ceiling.value * point.x for roof in own if not roof.is_flat), default=math.inf),
        sys.float_info.max,
    )


def _grouped(scene: Scene) -> Scene:
    """Group the rows of a profile whose center is inside the point of a row with more time."""
    if not scene.is_profile:
        return scene
    pt_per_decade = AXES_PT / (scene.view.right - scene.view.left)
    groups: list[Point] = []
    for point in sorted(scene.points, key=lambda point: -(point.share or 0)):
        center = [math.log10(value) for value in point.spot]
        for index, group in enumerate(groups):
            distance = math.dist(center, [math.log10(value) for value in group.spot])
            if group.color == point.color and distance * pt_per_decade < group.diameter_pt / 2:
                groups[index] = replace(group, others=(*group.others, point.record))
                break
        else:
            groups.append(point)
    return replace(scene, points=tuple(groups))


def _labeled(scene: Scene) -> Scene:
    roofs = tuple(replace(roof, label=roof_label([roof], scene)) for roof in scene.roofs)
    named: set[object] = set()
    labels = {}
    for point in chosen_for_labels(scene):
        labels[id(point)] = point_label(point, scene, is_first=point.series not in named)
        named.add(point.series)
    points = tuple(replace(point, label=labels.get(id(point))) for point in scene.points)
    return replace(scene, roofs=roofs, points=points)
