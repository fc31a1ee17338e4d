"""The content of a roofline plot: roofs, points, labels, colors, title and caption.

Both renderers draw a `Scene` unchanged. Colors are those of the light theme. The caption counts what cannot be drawn.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path
from typing import NamedTuple, TypeVar

from results.compare.flags import DISTURBED, ONE_SIDED
from results.record import Environment, Record
from results.show.picture import INK, SERIES_COLORS, end_of
from results.show.terminal import one_line
from results.show.units import si, significant
from roofline.machine import KINDS, Ceiling, Machine
from roofline.model import judge, limits_s, peak_of, ridge_intensity
from roofline.picture.style import MARKERS, dtype_color, short_case
from roofline.work import ordered_dtypes

MAX_NAME_LETTERS, MAX_MODULE_LETTERS = 24, 40
"""Letters of a provider or machine, and of the path of a module, in a label."""
MAX_LABELED_POINTS = 12
"""With more points only the fastest of each series has a label."""
MAX_LABELED_SERIES = 20
"""With more points there are no arrows, and only the fastest of each op and dtype has a label."""
DOUBTFUL = DISTURBED | {"not-converged"}
"""Flags of a time that may be wrong."""
VERSION = re.compile(r"(.*?)[-_ ]?v(\d+)")
"""Name and version of a provider such as `triton-v2`."""
OUTSIDE = "outside of any module"
MIN_LABELED_SHARE, MAX_PROFILE_LABELS, MIN_DRAWN_SHARE = 0.02, 12, 0.001
"""Profiles: fraction of the step for a label, number of labels, and fraction of the step for a point."""
MAX_POINT_PT, MIN_POINT_PT = 70.0, 3.0
"""Profiles: diameters of a point with all the time of the step, and of the smallest points."""
AXES_PT = 700.0
"""Profiles: approximate width of the axes, points, by which overlapping points are grouped."""
OUTLIER_DECADES, MIN_INTENSITY, EDGE = 1.5, 0.01, 0.02
"""Outliers: gap below the other points relative to the roofs, smallest intensity that is not one, and distance from the
edge of the plot as a fraction of its width."""
SAME_DECADES = 0.0017
"""Flat roofs closer than this (0.4 %) share a label."""
MAX_DECADES = 30
"""A larger span of ceilings and points is an error."""
AROUND = 0.35
"""Room left of the points and below them, decades."""
MIN_RATIO, MAX_RATIO = 0.45, 1.0
"""Height over width of the axes."""

T = TypeVar("T")
Measured = tuple[Environment, Sequence[Record]]


class PlotError(ValueError):
    """The plot cannot be drawn; the message is one line."""


class NoCeilingError(PlotError):
    """No ceiling is known."""


@dataclass(frozen=True)
class View:
    """The drawn part of the plane, in decimal logarithms."""

    left: float
    right: float
    bottom: float
    top: float

    def clamped(self, spot: tuple[float, float], margin: float) -> tuple[float, float]:
        """Return a position (FLOP/byte, FLOP/s), moved to the edge if it is outside."""
        x, y = spot
        return (
            min(max(x, 10 ** (self.left + margin)), 10 ** (self.right - margin)),
            min(max(y, 10 ** (self.bottom + margin)), 10 ** (self.top - margin)),
        )

    @property
    def ratio(self) -> float:
        """Height over width; both axes have the same scale."""
        return (self.top - self.bottom) / (self.right - self.left)


@dataclass(frozen=True)
class Roof:
    """A ceiling: a memory bandwidth (sloped), or the peak of a dtype (flat)."""

    machine: int
    ceiling: Ceiling
    ridge: float | None
    """FLOP/byte at which a peak meets its bandwidth, for a bandwidth the last such point; else None."""
    color: str
    label: str = ""
    is_mix: bool = False
    """Whether it is a slower mix of reads and writes, drawn as a thin line."""

    @property
    def is_flat(self) -> bool:
        return self.ceiling.quantity != "bandwidth"

    @property
    def corner(self) -> tuple[float, float] | None:
        """Ridge point of a peak (FLOP/byte, FLOP/s)."""
        return (self.ridge, self.ceiling.value) if self.is_flat and self.ridge else None

    def ends(self, view: View) -> tuple[tuple[float, float], tuple[float, float]]:
        """Return both ends within the view (FLOP/byte, FLOP/s)."""
        value = self.ceiling.value
        if self.is_flat:
            return (self.ridge or 10**view.left, value), (10**view.right, value)
        first = max(10**view.left, 10**view.bottom / value)
        last = self.ridge or min(10**view.right, 10**view.top / value)
        return (first, first * value), (last, last * value)


@dataclass(frozen=True)
class Point:
    """A record in the plane, with its style."""

    machine: int
    run: int
    record: Record
    x: float
    """FLOP per compulsory byte."""
    y: float
    """FLOP/s."""
    low: float
    high: float
    """Ends of the 95 % confidence interval of the median, FLOP/s."""
    roofline_pct: float | None
    excess: str | None
    """The likely cause, if the point is above a ceiling."""
    cap: float | None
    """FLOPs over the launch floor (FLOP/s), if below the roofs."""
    detail: str = ""
    """Options that distinguish it from other points of its case, such as the recipe of a training step."""
    color: str = ""
    shape: int = 0
    is_hollow: bool = False
    label: str | None = None
    others: tuple[Record, ...] = ()
    """Further rows of a profile at the same position."""
    is_outlier: bool = False
    """Whether the point is drawn at the edge of the view."""
    spot: tuple[float, float] = (0.0, 0.0)
    """Drawn position (FLOP/byte, FLOP/s)."""

    @property
    def is_from_cache(self) -> bool:
        return self.record.cache == "warm" or not ONE_SIDED.isdisjoint(self.record.flags)

    @property
    def share(self) -> float | None:
        """Fraction of the step's time of the rows of a profile; None for other records."""
        values = [record.extra.get("share") for record in (self.record, *self.others)]
        shares = [float(value) for value in values if isinstance(value, int | float) and 0 <= value <= 1]
        return sum(shares) if len(shares) == len(values) else None

    @property
    def diameter_pt(self) -> float:
        """Diameter of a row of a profile, points; its area is proportional to its share."""
        return max(MIN_POINT_PT, MAX_POINT_PT * math.sqrt(self.share or 0))

    @property
    def doubts(self) -> list[str]:
        """Flags of a time that may be wrong."""
        unfinished = ["not-converged"] if self.record.converged is False else []
        return list(dict.fromkeys([flag for flag in self.record.flags if flag in DOUBTFUL] + unfinished))

    @property
    def series(self) -> tuple[object, ...]:
        """Key of the points of one sweep over sizes."""
        record = self.record
        return (self.machine, record.op, record.dtype, record.provider, self.run, self.detail, record.cache)


class RoofLabel(NamedTuple):
    """The label of one or several roofs."""

    lines: list[str]
    color: str
    roof: Roof
    row: int = 0
    """-1 below the roof, else the row above it."""


@dataclass(frozen=True)
class Scene:
    """The content of one plot."""

    machines: tuple[Machine, ...]
    runs: tuple[Environment, ...]
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    left_out: Counter[str]
    """Reason -> number of records that are not drawn."""
    colored_by: str = "dtype"
    """`machine`, `provider` or `dtype`."""

    @cached_property
    def kinds(self) -> list[str]:
        drawn = {roof.ceiling.kind for roof in self.roofs}
        return [kind for kind in KINDS if kind in drawn]

    @property
    def is_profile(self) -> bool:
        return bool(self.points) and all(point.share is not None for point in self.points)

    @cached_property
    def flats(self) -> list[list[Roof]]:
        """Flat roofs from the top down, in groups of equal height."""
        flats = sorted((roof for roof in self.roofs if roof.is_flat), key=lambda roof: -roof.ceiling.value)
        return _close(flats, lambda roof: roof.ceiling.value, SAME_DECADES)

    def flat_labels(self, min_decades: float) -> list[RoofLabel]:
        """Return the labels of flat roofs from the bottom up; those nearer than `min_decades` form a stack."""
        labels = []
        for stack in _close(self.flats[::-1], lambda group: group[0].ceiling.value, min_decades):
            for index, group in enumerate(stack):
                row = index - 1 if len(stack) > 1 else 0
                nearest = stack[0] if row < 0 else stack[-1]
                labels.append(RoofLabel([_roof_label(group, self)], shared_color(group), nearest[0], row))
        return labels

    def slope_labels(self, min_decades: float) -> list[RoofLabel]:
        """Return the labels of bandwidths from the bottom up; those nearer than `min_decades` share one."""
        slopes = [roof for roof in self.roofs if not roof.is_flat and not roof.is_mix]
        slopes.sort(key=lambda roof: roof.ceiling.value)
        groups = _close(slopes, lambda roof: roof.ceiling.value, min_decades)
        return [RoofLabel([roof.label for roof in group[::-1]], shared_color(group), group[-1]) for group in groups]

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The ops, cases, dtypes and providers of the points, in order of appearance."""
        parts = ("op", "case", "dtype", "provider")
        records = [record for point in self.points for record in (point.record, *point.others)]
        return {part: list(dict.fromkeys(str(getattr(record, part)) for record in records)) for part in parts}

    def series_words(self, point: Point) -> list[str]:
        """Return the varying ones of machine, op, dtype and provider of a point."""
        words = [one_line(self.machines[point.machine].slug, MAX_NAME_LETTERS)] if len(self.machines) > 1 else []
        return words + [end_of(str(getattr(point.record, part)), MAX_NAME_LETTERS) for part in self._varying]

    @cached_property
    def _varying(self) -> list[str]:
        return [part for part in ("op", "dtype", "provider") if len(self.names[part]) > 1]

    @cached_property
    def shared(self) -> str:
        """Options that all cases share."""
        options = {point.record.case.partition(":")[2] for point in self.points}
        return options.pop() if len(options) == 1 and len(self.points) > 1 else ""

    def series_name(self, point: Point) -> str:
        """Return the legend entry of a point: dtype and provider, and machine, op and run if they vary."""
        record = point.record
        words = [one_line(self.machines[point.machine].slug, MAX_NAME_LETTERS)] if len(self.machines) > 1 else []
        words += [one_line(record.op, MAX_NAME_LETTERS)] if len(self.names["op"]) > 1 else []
        words += [record.dtype, end_of(record.provider, MAX_NAME_LETTERS)]
        return " ".join(words) + (f", {self.run_name(point.run)}" if self.has_run_names else "")

    @cached_property
    def has_run_names(self) -> bool:
        """Whether a machine has several runs."""
        return len({point.run for point in self.points}) > len({point.machine for point in self.points})

    @cached_property
    def fillings(self) -> dict[bool, str]:
        """The legend entry of filled (False) and hollow markers (True), if both occur."""
        is_from_cache = {point.is_from_cache for point in self.points}
        return {False: "from memory", True: "from cache"} if len(is_from_cache) > 1 else {}

    def run_name(self, index: int) -> str:
        """Return the command and start time of a run, with its id if another run started in the same second."""
        own = self.runs[index]
        is_alone = sum(run.started_at[:19] == own.started_at[:19] for run in self.runs) == 1
        command = own.argv[own.argv.index("-m") + 1 :] if "-m" in own.argv else own.argv[:1]
        words = takewhile(lambda word: not word.startswith("-"), command)
        names = [end_of(Path(word).name, MAX_NAME_LETTERS) for word in words]
        return " ".join([*names, own.started_at[:19].replace("T", " "), *([] if is_alone else [own.run_id])])

    @cached_property
    def view(self) -> View:
        """The view with ridge points and all points except outliers, and room for labels."""
        flats = [math.log10(roof.ceiling.value) for roof in self.roofs if roof.is_flat]
        slopes = [math.log10(roof.ceiling.value) for roof in self.roofs if not roof.is_flat and not roof.is_mix]
        inside = [point for point in self.points if not point.is_outlier]
        xs = [math.log10(point.x) for point in inside]
        corners = [math.log10(roof.corner[0]) for roof in self.roofs if roof.corner] or xs or [0.0]
        before, after = (0.75, 1.1) if xs else (1.2, 1.5)
        past = 0.5 if len(flats) <= 2 else 0.9  # room for the labels of several ceilings
        left = min([min(corners) - before, *(x - AROUND for x in xs)])
        right = max([max(corners) + after, *(x + past for x in xs)])
        reached = flats or [slope + (left + right) / 2 for slope in slopes]
        lows = [math.log10(min(point.low, point.y)) - AROUND for point in inside]
        highs = [math.log10(max(point.high, point.y)) for point in inside]
        top = max([*reached, *highs]) + (right - left) * (0.06 + 0.02 * len(self.kinds))
        bottom = min([min(reached) - 0.6, *(max(slopes) + left for _ in slopes[:1]), *lows])
        if max(right - left, top - bottom) > MAX_DECADES:
            raise PlotError(f"ceilings and points span more than {MAX_DECADES} decades")
        if (more := (top - bottom) / MAX_RATIO - (right - left)) > 0:
            left, right = left - 0.4 * more, right + 0.6 * more
        return View(left, right, min(bottom, top - MIN_RATIO * (right - left)), top)


def _close(items: Sequence[T], value: Callable[[T], float], min_decades: float) -> list[list[T]]:
    groups: list[list[T]] = []
    for item in items:
        if groups and abs(math.log10(value(item)) - math.log10(value(groups[-1][-1]))) < min_decades:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def build_scene(runs: Sequence[Measured], gpus: Sequence[Machine] = (), dtypes: Sequence[str] | None = None) -> Scene:
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
    scene = _styled(Scene(tuple(machines.values()), environments, (), _with_details(points), left_out))
    roofs = [roof for index in range(len(slugs)) for roof in _roofs(index, scene, dtypes)]
    if not roofs:
        names = ", ".join(map(one_line, slugs)) or "no machine"
        raise NoCeilingError(f"no ceiling is known for {names}; calibrate the machine, or add a known GPU with --gpu")
    return _labeled(_grouped(_with_outliers(replace(scene, roofs=tuple(roofs)))))


def machines_of(environments: Iterable[Environment], gpus: Iterable[Machine] = ()) -> dict[str, Machine]:
    """Return the machines by slug, with the ceilings of the newest run, completed by those of older runs."""
    dated = [(environment.started_at, machine_of(environment)) for environment in environments]
    newest_last = [*gpus, *(known for _, known in sorted(dated, key=lambda entry: entry[0]))]
    machines = {}
    for slug in dict.fromkeys(known.slug for known in (*(known for _, known in dated), *gpus)):
        own = [known for known in newest_last if known.slug == slug]
        machines[slug] = replace(own[0].with_entries(e for known in own for e in known.entries), note=own[-1].note)
    return machines


def judging(environment: Environment, gpus: Iterable[Machine] = ()) -> Machine:
    """Return the machine of a run with its ceilings, and those of its GPU in `gpus`."""
    return next(iter(machines_of([environment], gpus).values()))


def machine_of(environment: Environment) -> Machine:
    ceilings = Machine.from_dict(environment.hardware)
    if ceilings.name == "unknown":
        return replace(ceilings, slug=environment.device["slug"], name=environment.device["name"])
    return ceilings


def _point(machine: int, run: int, record: Record, ceilings: Machine, dtypes: Sequence[str] | None) -> Point | str:
    if record.status != "ok":
        return record.status
    if dtypes is not None and record.dtype not in dtypes:
        return "of other dtypes"
    share = record.extra.get("share")
    if isinstance(share, int | float) and share < MIN_DRAWN_SHARE:
        return f"below {100 * MIN_DRAWN_SHARE:g} % of the time"
    judged = judge(record, ceilings)
    if not record.flops or judged.intensity is None or judged.flops_per_s is None:
        return "without FLOPs or bytes"
    fast, slow = (None if share is not None else record.ci95_s) or (record.median_s, record.median_s)
    low, high = record.flops / (slow or math.nan), record.flops / (fast or math.nan)
    if not all(math.isfinite(value) and value > 0 for value in (judged.intensity, judged.flops_per_s, low, high)):
        return "with impossible values"
    limits = limits_s(record, ceilings)
    cap = record.flops / limits[2] if limits and limits[2] > max(limits[:2]) else None
    position = (judged.intensity, judged.flops_per_s, low, high)
    return Point(machine, run, record, *position, judged.roofline_pct, judged.excess, cap)


def _with_details(points: Sequence[Point]) -> tuple[Point, ...]:
    alike: dict[tuple[object, ...], list[set[tuple[str, str]]]] = {}
    for point in points:
        options = {(name, str(value)) for name, value in point.record.options.items()}
        alike.setdefault((*point.series, point.record.case), []).append(options)
    varying = {name for group in alike.values() for name, _ in group[0].union(*group) - group[0].intersection(*group)}
    details = [[_option(*item) for item in point.record.options.items() if item[0] in varying] for point in points]
    return tuple(replace(point, detail=" ".join(words)) for point, words in zip(points, details, strict=True))


def _option(name: str, value: object) -> str:
    is_clear = isinstance(value, str) and value not in ("none", "full", "on", "off", "all") and not value.isdigit()
    return one_line(str(value) if is_clear else f"{name} {value}", MAX_NAME_LETTERS)


def _styled(scene: Scene) -> Scene:
    providers, dtypes = scene.names["provider"], scene.names["dtype"]
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
    """Return what the shape of a marker shows; with more series than shapes, only the first parts are used."""
    if scene.is_profile:
        return ()
    run = point.run if scene.has_run_names else None
    return point.record.op, point.record.provider, run, point.record.dtype  # dtypes also differ in color


def _color(scene: Scene, machine: int, dtype: str, provider: str | None = None) -> str:
    if scene.colored_by == "machine":
        return SERIES_COLORS[machine % len(SERIES_COLORS)]
    if scene.colored_by == "provider":
        return SERIES_COLORS[scene.names["provider"].index(provider) % len(SERIES_COLORS)] if provider else INK
    return dtype_color(dtype) if dtype else INK


def _roofs(machine: int, scene: Scene, dtypes: Sequence[str] | None) -> list[Roof]:
    known = scene.machines[machine]
    slopes = _fastest(known, "bandwidth")
    shown = [dtype for dtype in known.dtypes if not dtypes or dtype in dtypes]
    peaks = [peak for dtype in shown for peak in _fastest(known, "flops", dtype)]
    used = [peak_of(point.record, known) for point in scene.points if point.machine == machine]
    for dtype in dict.fromkeys(peak.name for peak, units in used if peak and units == "vector"):
        drawn = {(peak.name, peak.kind, peak.value) for peak in peaks}
        vector = _fastest(known, "fma", dtype)
        peaks += [peak for peak in vector if (peak.name, peak.kind, peak.value) not in drawn]
    by_kind = {slope.kind: slope for slope in slopes}
    flats, ridges = [], {slope.kind: [0.0] for slope in slopes}
    for peak in peaks:
        met = by_kind.get(peak.kind, known.bandwidth())
        ridge = ridge_intensity(peak.value, met.value) if met else None
        flats.append(Roof(machine, peak, ridge, _color(scene, machine, peak.name)))
        if met and ridge:
            ridges[met.kind].append(ridge)
    roofs = [Roof(machine, slope, max(ridges[slope.kind]) or None, _color(scene, machine, "")) for slope in slopes]
    if len(scene.machines) == 1:
        end = max((peak.value for peak in peaks if peak.kind == "measured"), default=0)
        mixes = [mix for mix in known.mixes if mix not in slopes]
        flats += [Roof(machine, mix, end / mix.value or None, INK, is_mix=True) for mix in mixes]
    return roofs + flats


def _fastest(known: Machine, quantity: str, name: str | None = None) -> list[Ceiling]:
    ceilings = (known.fastest(quantity, [name] if name else None, [kind]) for kind in KINDS)
    return [ceiling for ceiling in ceilings if ceiling]


def _with_outliers(scene: Scene) -> Scene:
    """Place the points, and up to a third of them, far below the others or of negligible intensity, at the edge."""
    most = len(scene.points) // 3
    heights = [math.log10(point.y / _attainable(point, scene)) for point in scene.points]
    ordered = sorted(heights)
    gaps = (i for i in range(most, 0, -1) if ordered[i] - ordered[i - 1] > OUTLIER_DECADES)
    lowest = ordered[next(gaps, 0)] if ordered else 0.0
    leftmost = MIN_INTENSITY if sum(point.x < MIN_INTENSITY for point in scene.points) <= most else 0.0
    points = [
        replace(point, is_outlier=height < lowest or point.x < leftmost, spot=(point.x, point.y))
        for point, height in zip(scene.points, heights, strict=True)
    ]
    view = replace(scene, points=tuple(points)).view
    margin = EDGE * (view.right - view.left)
    placed = [replace(point, spot=view.clamped(point.spot, margin)) if point.is_outlier else point for point in points]
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
        for index, group in enumerate(groups):
            distance = math.dist(*([math.log10(value) for value in one.spot] for one in (point, group)))
            if group.color == point.color and distance * pt_per_decade < group.diameter_pt / 2:
                groups[index] = replace(group, others=(*group.others, point.record))
                break
        else:
            groups.append(point)
    return replace(scene, points=tuple(groups))


def _labeled(scene: Scene) -> Scene:
    roofs = tuple(replace(roof, label=_roof_label([roof], scene)) for roof in scene.roofs)
    named: set[object] = set()
    labels = {}
    for point in chosen_for_labels(scene):
        labels[id(point)] = _point_label(point, scene, is_first=point.series not in named)
        named.add(point.series)
    points = tuple(replace(point, label=labels.get(id(point))) for point in scene.points)
    return replace(scene, roofs=roofs, points=points)


def shared_color(roofs: Sequence[Roof]) -> str:
    return roofs[0].color if len({roof.color for roof in roofs}) == 1 else INK


def _roof_label(roofs: Sequence[Roof], scene: Scene) -> str:
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


def _point_label(point: Point, scene: Scene, is_first: bool) -> str:
    record = point.record
    if scene.is_profile:
        module = end_of(str(record.extra.get("module") or OUTSIDE), MAX_MODULE_LETTERS)
        more = f" and {len(point.others)} more" if point.others else ""
        op = one_line(record.op.rpartition(".")[2], MAX_NAME_LETTERS)
        return f"{module}: {op}{more}, {100 * (point.share or 0):.2g} % of time {_beyond(point)}".rstrip()
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


def version_steps(scene: Scene) -> list[tuple[Point, Point]]:
    """Return the pairs of points to connect by arrows: consecutive versions or runs."""
    if len(scene.points) > MAX_LABELED_SERIES or scene.is_profile:
        return []
    groups: dict[tuple[object, ...], list[tuple[str | int, Point]]] = {}
    for point in scene.points:
        record = point.record
        case = (point.machine, record.op, record.dtype, record.case, point.detail, record.cache)
        if match := VERSION.fullmatch(record.provider):
            groups.setdefault((*case, point.run, match[1], "version"), []).append((int(match[2]), point))
        start = scene.runs[point.run].started_at
        groups.setdefault((*case, record.provider, "run"), []).append((start, point))
    steps = []
    for group in groups.values():
        ordered = sorted(group, key=lambda entry: entry[0])
        steps += [(old, new) for (before, old), (after, new) in pairwise(ordered) if before != after]
    return steps


def title_lines(scene: Scene) -> tuple[str, str]:
    """Return the title (machines) and the subtitle (operations and kinds of ceilings)."""
    is_overlay = len(scene.machines) > 1
    names = ", ".join(one_line(known.slug if is_overlay else known.name, 60) for known in scene.machines)
    kinds = " and ".join(filter(None, (", ".join(scene.kinds[:-1]), scene.kinds[-1])))
    if not scene.points:
        return names, f"Roofline: {kinds} ceilings"
    ops, cases, dtypes, providers = scene.names.values()
    words = [one_line(ops[0]) if len(ops) == 1 else f"{len(ops)} operations"]
    if len(cases) == 1 and len(scene.points) > 1:
        words.append(short_case(cases[0]))
    elif scene.shared:
        words.append(one_line(scene.shared.replace(":", " "), 40))
    words += [one_line(dtypes[0], 12)] if len(dtypes) == 1 else []
    words += [f"by {one_line(providers[0], 48)}"] if len(providers) == 1 else []
    return names, f"Roofline: {' '.join(words)}, under {kinds} ceilings"


def caption(scene: Scene, unlabeled: int = 0, without: tuple[str, ...] = ()) -> str:
    """Return the caption: provenance, meaning of the marks, and what is not drawn.

    `without` are first words of the explanations of marks that the renderer does not draw, such as `Bars`.
    """
    parts = []
    if scene.points:
        parts += [_provenance(scene), *_how_points_are_drawn(scene)]
        doubts = Counter(flag for point in scene.points for flag in point.doubts)
        if doubts:
            parts.append("Crossed out: " + ", ".join(f"{count} {one_line(flag, 24)}" for flag, count in doubts.items()))
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
        parts.append("Not drawn: " + ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items()))
    notes = [one_line(known.note, 240) for known in scene.machines if known.note]
    parts += [note[:1].upper() + note[1:] for note in notes]
    return " ".join(part if part.endswith("…") else f"{part.rstrip('.')}." for part in parts)


def _how_points_are_drawn(scene: Scene) -> list[str]:
    if scene.is_profile:
        drawn_pct = 100 * sum(point.share or 0 for point in scene.points)
        return ["Labels: module, operation, share of time", f"Area: that share, {drawn_pct:.0f} % in all points"]
    share = ", share of the roofline" if any(point.roofline_pct is not None for point in scene.points) else ""
    if share and any(len(known.mixes) > 1 for known in scene.machines):
        share += " at its own mix of reads and writes"
    parts = [f"Labels: shape{share}", "Bars: 95 % CI of the median"]
    if version_steps(scene):
        parts.append("Arrows: from version to version, or from run to run")
    if any(point.cap for point in scene.points):
        parts.append("Caps: FLOPs over the launch floor, if below the roof")
    if any(roof.ceiling.band for roof in scene.roofs if not roof.is_mix):
        parts.append("Bands: p5 to p95 of the samples behind a measured roof, or the 95 % CI of their median")
    return parts


def _provenance(scene: Scene) -> str:
    versions = [
        f"{name} {one_line(str(run.versions[name]), 24)}"
        for run in scene.runs
        for name in ("torch", "triton", "cuda", "driver")
        if run.versions.get(name)
    ]
    threads = [f"{run.device['threads']} threads" for run in scene.runs if run.device.get("threads")]
    caches = sorted({f"{point.record.cache} cache" for point in scene.points if point.record.cache})
    fills = sorted({f"{one_line(point.record.fill, 12)} data" for point in scene.points if point.record.fill})
    days = sorted({one_line(run.started_at[:10], 10) for run in scene.runs})
    when = " to ".join(dict.fromkeys((days[0], days[-1])))
    return ", ".join([*dict.fromkeys(versions), *dict.fromkeys(threads), *caches, *fills, when])
