"""What a roofline plot shows, before it is drawn: ceilings, points, the part of the plane, and the words around it.

Nothing is clamped or hidden: what cannot be drawn is counted, and the caption says it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter

from results.compare.flags import DISTURBED, ONE_SIDED
from results.record import Environment, Record
from results.show.picture import INK, end_of, plain, series_color
from results.show.terminal import one_line
from results.show.theme import tone
from roofline.ceilings import KINDS, Ceiling, Ceilings
from roofline.model import judge, limits_s, peak_of, rate, ridge_intensity
from roofline.plot.style import FILLINGS, dtype_color, short_case, si, significant
from roofline.work import DTYPES

LONGEST_PROVIDER = 24
"""Letters of a provider in a label."""
MANY_POINTS = 12
"""With more points than this only the fastest of each op, dtype and provider gets a label."""
DOUBTFUL = DISTURBED | {"not-converged"}
"""Flags of a time that may be another one than the point shows."""
VERSION = re.compile(r"(.*?)[-_ ]?v(\d+)")
"""Of a provider, such as `triton-v2`: whose version it is, and which."""
CROWD = 20
"""With more points than this there are no arrows, and only the fastest of each op and dtype gets a label."""
NAMED_SHARE, MOST_NAMED, DRAWN_SHARE = 0.02, 12, 0.001
"""Of a profile: the share of the step from which a point is named, how many are, and the share from which one is drawn.
"""
WHOLE_STEP_PT, SMALLEST_PT = 70.0, 3.0
"""Of a profile: diameter of a point that takes all the time of a step, and of the smallest points."""
NO_INTENSITY = "without FLOPs or bytes"
WIDEST_DECADES = 30
"""Ceilings and points further apart than this are a mistake in the file and not a machine."""


class PlotError(ValueError):
    """What was asked for cannot be drawn or written; the message is one line for the user."""


class NoCeilingError(PlotError):
    """No ceiling is known, so that there is nothing to draw."""


@dataclass(frozen=True)
class PlotMachine:
    """One machine with what was measured on it."""

    ceilings: Ceilings
    records: tuple[Record, ...] = ()
    environments: tuple[Environment, ...] = ()
    """Of the runs that the records are from."""
    counts: tuple[int, ...] = ()
    """How many of the records are from each run; nothing where all are from one."""

    def run_of(self, index: int) -> int:
        """Return the index of the environment of the `index`-th record."""
        return sum(end <= index for end in accumulate(self.counts[:-1]))


@dataclass(frozen=True)
class Slope:
    """The ceiling of memory: FLOP/s = intensity x bandwidth."""

    machine: int
    bandwidth: Ceiling


@dataclass(frozen=True)
class Flat:
    """The ceiling of one dtype, of matrix or of vector units: FLOP/s = peak."""

    machine: int
    peak: Ceiling
    bandwidth: Ceiling | None
    """The slope that it meets at the ridge point; None where none is known."""

    @property
    def dtype(self) -> str:
        """The dtype whose peak this is."""
        return self.peak.name

    @property
    def ridge(self) -> float | None:
        """Intensity of the ridge point, FLOP/byte."""
        return ridge_intensity(self.peak.value, self.bandwidth.value) if self.bandwidth else None


@dataclass(frozen=True)
class PlotPoint:
    """One record in the plane."""

    machine: int
    record: Record
    intensity: float
    """FLOP per compulsory byte."""
    flops_per_s: float
    low: float
    """Lower end of the 95 % confidence interval of the median, FLOP/s."""
    high: float
    """Upper end, FLOP/s."""
    roofline_pct: float | None
    excess: str | None
    """Where the point is above a ceiling: the likely cause."""
    run: int = 0
    """Index of its run among those of the machine."""
    detail: str = ""
    """What tells it from others of its case, such as the recipe of a training step; nothing where there are none."""
    cap: float | None = None
    """FLOPs over the launch floor, FLOP/s, where that is below the ceilings: no launch of this size is faster."""

    @property
    def is_from_cache(self) -> bool:
        """Whether its inputs were in a cache, or seem to have been."""
        return self.record.cache == "warm" or not ONE_SIDED.isdisjoint(self.record.flags)

    @property
    def share(self) -> float | None:
        """Of a row of a profile: its share of the time of the step."""
        value = share_of(self.record)
        return float(value) if isinstance(value, int | float) and 0 <= value <= 1 else None

    @property
    def diameter_pt(self) -> float:
        """Of a row of a profile: the diameter of its circle, whose area is its share, in points of print."""
        return max(SMALLEST_PT, WHOLE_STEP_PT * math.sqrt(self.share or 0))

    @property
    def doubts(self) -> list[str]:
        """The flags that speak against its place."""
        unfinished = ["not-converged"] if self.record.converged is False else []
        return list(dict.fromkeys([flag for flag in self.record.flags if flag in DOUBTFUL] + unfinished))

    @property
    def is_above_ceiling(self) -> bool:
        """Whether more than all of a ceiling was reached."""
        return self.excess is not None

    @property
    def series(self) -> tuple[int, str, str, str, int, str]:
        """What this point shares with the others of a sweep over sizes."""
        return (self.machine, self.record.op, self.record.dtype, self.record.provider, self.run, self.detail)


@dataclass(frozen=True)
class Scene:
    """All that one picture shows."""

    machines: tuple[PlotMachine, ...]
    slopes: tuple[Slope, ...]
    flats: tuple[Flat, ...]
    points: tuple[PlotPoint, ...]
    left_out: Counter[str]
    """Reason -> how many records are not drawn for it."""

    @cached_property
    def ops(self) -> list[str]:
        """Ops of the points, in order of appearance."""
        return list(dict.fromkeys(point.record.op for point in self.points))

    @cached_property
    def providers(self) -> list[str]:
        """Providers of the points, in order of appearance."""
        return list(dict.fromkeys(point.record.provider for point in self.points))

    @cached_property
    def colored_by(self) -> str:
        """What color tells: the machine where there are several, else the provider where there is one dtype."""
        if self.is_overlay:
            return "machine"
        is_one_dtype = len({point.record.dtype for point in self.points}) == 1
        return "provider" if is_one_dtype and len(self.providers) > 1 else "dtype"

    def ceiling_color(self, machine: int, dtype: str) -> str:
        """Return the color of a flat ceiling."""
        if self.colored_by == "machine":
            return series_color(machine)
        return tone(INK) if self.colored_by == "provider" else dtype_color(dtype)

    def slope_color(self, machine: int) -> str:
        """Return the color of a ceiling of memory."""
        return series_color(machine) if self.colored_by == "machine" else tone(INK)

    def point_color(self, point: PlotPoint) -> str:
        """Return the color of a point."""
        if self.colored_by == "provider":
            return series_color(self.providers.index(point.record.provider))
        return self.ceiling_color(point.machine, point.record.dtype)

    @property
    def shaped_by(self) -> str:
        """What the shape of a marker tells: the op, or the provider where there is one op."""
        return "op" if len(self.ops) > 1 and not self.is_profile else "provider"

    @cached_property
    def is_profile(self) -> bool:
        """Whether each point is a part of one step: its area is its share of the time."""
        return bool(self.points) and all(point.share is not None for point in self.points)

    @property
    def shapes(self) -> list[str]:
        """The ops or the providers that shapes tell apart."""
        return self.ops if self.shaped_by == "op" else self.providers

    def shape(self, point: PlotPoint) -> int:
        """Return the index of the shape of a point."""
        return self.shapes.index(str(getattr(point.record, self.shaped_by)))

    @cached_property
    def told_apart(self) -> tuple[str, ...]:
        """What the filling of a marker tells, of provider, dtype and run: as much as there are fillings for."""
        told = {self.shaped_by, "provider" if self.colored_by == "provider" else ""}
        varying: tuple[str, ...] = ()
        is_mixed = len({point.is_from_cache for point in self.points}) > 1
        first = (("cache", "provider", "run"), ("cache", "provider"), ("cache",)) if is_mixed else ()
        for parts in (*first, ("provider", "dtype", "run"), ("provider", "run"), ("provider",)):
            values = {part: {_part(p, part, self) for p in self.points} for part in parts if part not in told}
            varying = tuple(part for part in values if len(values[part]) > 1)
            if len({tuple(_part(p, part, self) for part in varying) for p in self.points}) <= len(FILLINGS):
                break
        return varying

    @cached_property
    def variants(self) -> dict[tuple[str, ...], PlotPoint]:
        """What fillings tell apart, each with its first point, in order of appearance."""
        found: dict[tuple[str, ...], PlotPoint] = {}
        for point in self.points:
            found.setdefault(tuple(_part(point, part, self) for part in self.told_apart), point)
        return dict(sorted(found.items(), key=lambda entry: entry[1].is_from_cache and "cache" in self.told_apart))

    def variant(self, point: PlotPoint) -> int:
        """Return the index of the filling of a point."""
        return list(self.variants).index(tuple(_part(point, part, self) for part in self.told_apart))

    @cached_property
    def dtypes(self) -> list[str]:
        """Dtypes of ceilings and points, in the order of `DTYPES`; foreign ones last."""
        return ordered_dtypes([flat.dtype for flat in self.flats] + [point.record.dtype for point in self.points])

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of the ceilings drawn, in the order of `KINDS`."""
        drawn = {slope.bandwidth.kind for slope in self.slopes} | {flat.peak.kind for flat in self.flats}
        return [kind for kind in KINDS if kind in drawn]

    @cached_property
    def shared(self) -> str:
        """Options behind the colon of the case of every point, which need be said once only; of one point none."""
        options = {point.record.case.partition(":")[2] for point in self.points}
        return options.pop() if len(options) == 1 and len(self.points) > 1 else ""

    @property
    def is_overlay(self) -> bool:
        """Whether more than one machine is drawn."""
        return len(self.machines) > 1


def _part(point: PlotPoint, part: str, scene: Scene) -> str:
    """Return the word for the provider, dtype or run of a point; one run of a machine needs no word."""
    if part == "cache":
        return "from cache" if point.is_from_cache else "from memory"
    if part != "run":
        return str(getattr(point.record, part))
    environments = scene.machines[point.machine].environments
    if len(environments) < 2:
        return ""
    own = environments[point.run]
    start = own.started_at[:19].replace("T", " ")
    return start if sum(other.started_at[:19] == own.started_at[:19] for other in environments) == 1 else own.run_id


def ordered_dtypes(dtypes: Iterable[str]) -> list[str]:
    """Return each dtype once, in the order of `DTYPES`; foreign ones last, by name."""
    rank = {dtype: index for index, dtype in enumerate(DTYPES)}
    return sorted(set(dtypes), key=lambda dtype: (rank.get(dtype, len(rank)), dtype))


def build_scene(machines: Sequence[PlotMachine], dtypes: Sequence[str] | None = None) -> Scene:
    """Return what a picture of `machines` shows.

    Args:
        machines: at least one.
        dtypes: those to draw; None for all.

    Raises:
        NoCeilingError: not one ceiling is known.
        PlotError: the values are not those of a machine.
    """
    slopes: list[Slope] = []
    flats: list[Flat] = []
    points: list[PlotPoint] = []
    left_out: Counter[str] = Counter()
    for index, machine in enumerate(machines):
        slopes += [Slope(index, best) for best in _fastest(machine.ceilings, "bandwidth")]
        flats += _flats(index, machine.ceilings, dtypes)
        for number, record in enumerate(machine.records):
            try:
                point = _point(index, record, machine, machine.run_of(number), dtypes)
            except ArithmeticError:
                point = "with impossible values"
            if isinstance(point, str):
                left_out[point] += 1
            else:
                points.append(point)
    flats += _vector_flats(machines, points, flats)
    points = [replace(point, detail=detail) for point, detail in zip(points, _details(points), strict=True)]
    if not slopes and not flats:
        names = ", ".join(one_line(machine.ceilings.slug) for machine in machines)
        raise NoCeilingError(
            f"no ceiling is known for {names or 'no machine'}, so there is nothing to draw; "
            "calibrate the machine, or give a known one with --gpu"
        )
    return Scene(tuple(machines), tuple(slopes), tuple(flats), tuple(points), left_out)


def _fastest(ceilings: Ceilings, quantity: str, name: str | None = None) -> list[Ceiling]:
    """Return the highest ceiling of a quantity of each kind: of several mixes the ceiling is the envelope."""
    best: dict[str, Ceiling] = {}
    for entry in ceilings.entries:
        if entry.quantity == quantity and name in (None, entry.name):
            best[entry.kind] = max(best.get(entry.kind, entry), entry, key=lambda e: e.value)
    return list(best.values())


def _flats(index: int, ceilings: Ceilings, dtypes: Sequence[str] | None) -> list[Flat]:
    known = ordered_dtypes(entry.name for entry in ceilings.entries if entry.quantity == "flops")
    return [
        Flat(index, peak, _slope_of(peak, ceilings))
        for dtype in known
        if dtypes is None or dtype in dtypes
        for peak in _fastest(ceilings, "flops", dtype)
    ]


def _vector_flats(machines: Sequence[PlotMachine], points: Sequence[PlotPoint], known: Sequence[Flat]) -> list[Flat]:
    """Return the peaks of vector units that points are judged by, but for those that lie on a peak drawn already."""
    drawn = {(flat.machine, flat.dtype, flat.peak.kind, flat.peak.value) for flat in known}
    found: dict[tuple[int, str], list[Ceiling]] = {}
    for point in points:
        ceilings = machines[point.machine].ceilings
        peak, units = peak_of(point.record, ceilings)
        if peak and units == "vector":
            found[point.machine, peak.name] = ceilings.vector_peaks(peak.name)
    return [
        Flat(index, peak, _slope_of(peak, machines[index].ceilings))
        for (index, _), peaks in found.items()
        for peak in peaks
        if (index, peak.name, peak.kind, peak.value) not in drawn
    ]


def _slope_of(peak: Ceiling, ceilings: Ceilings) -> Ceiling | None:
    """Return the memory ceiling of the same kind as a peak, else the one that there is."""
    return {entry.kind: entry for entry in _fastest(ceilings, "bandwidth")}.get(peak.kind, ceilings.bandwidth())


def _details(points: Sequence[PlotPoint]) -> list[str]:
    """Return for each point the options that tell it from others of the same case, in words."""
    alike: dict[tuple[object, ...], list[PlotPoint]] = {}
    for point in points:
        alike.setdefault((*point.series, point.record.case), []).append(point)
    varying = {
        key: [
            name
            for name in dict.fromkeys(name for point in group for name in point.record.options)
            if len({str(point.record.options.get(name)) for point in group}) > 1
        ]
        for key, group in alike.items()
    }
    names = {name for group in varying.values() for name in group}
    return [
        " ".join(_option(name, value) for name, value in point.record.options.items() if name in names)
        for point in points
    ]


def _option(name: str, value: object) -> str:
    """Return an option in words: a text stands for itself unless it only says yes, no or how many."""
    says_itself = isinstance(value, str) and value not in ("none", "full", "on", "off", "all") and not value.isdigit()
    return plain(str(value) if says_itself else f"{name} {value}", 24)


def share_of(record: Record) -> object:
    """Return the share of the step's time that a row of a profile takes; None for any other record."""
    return record.extra.get("share")


def _point(index: int, record: Record, machine: PlotMachine, run: int, dtypes: Sequence[str] | None) -> PlotPoint | str:
    if record.status != "ok":
        return record.status
    if dtypes is not None and record.dtype not in dtypes:
        return "of other dtypes"
    share = share_of(record)
    if isinstance(share, int | float) and share < DRAWN_SHARE:
        return f"below {100 * DRAWN_SHARE:g} % of the time"
    judged = judge(record, machine.ceilings)
    if record.flops == 0 or judged.intensity is None or judged.flops_per_s is None or record.flops is None:
        return NO_INTENSITY
    fast, slow = (None if share is not None else record.ci95_s) or (record.median_s, record.median_s)
    values = (
        judged.intensity,
        judged.flops_per_s,
        rate(record.flops, slow or math.nan),
        rate(record.flops, fast or math.nan),
    )
    if not all(math.isfinite(value) and value > 0 for value in values):
        return "with impossible values"
    least = limits_s(record, machine.ceilings)
    cap = record.flops / least[2] if least and least[2] > max(least[:2]) else None
    return PlotPoint(index, record, *values, judged.roofline_pct, judged.excess, run, cap=cap)


def version_steps(scene: Scene) -> list[tuple[PlotPoint, PlotPoint]]:
    """Return the pairs of points that an arrow ties: of one case, from a version of a provider, or a run, to the next.

    A profile has none, and a picture with more than `CROWD` points.
    """
    if len(scene.points) > CROWD or scene.is_profile:
        return []
    groups: dict[tuple[object, ...], list[tuple[str | int, PlotPoint]]] = {}
    for point in scene.points:
        runs, record = scene.machines[point.machine].environments, point.record
        case = (point.machine, record.op, record.dtype, record.case, point.detail, record.cache)
        if found := VERSION.fullmatch(record.provider):
            groups.setdefault((*case, point.run, found[1], "version"), []).append((int(found[2]), point))
        if len(runs) > 1:
            groups.setdefault((*case, record.provider, "run"), []).append((runs[point.run].started_at, point))
    return [step for group in groups.values() for step in _steps_of(group)]


def _steps_of(group: Sequence[tuple[str | int, PlotPoint]]) -> list[tuple[PlotPoint, PlotPoint]]:
    """Return each point with the next, where each has another place in the order."""
    ordered = sorted(group, key=itemgetter(0))
    return [(one, two) for (before, one), (after, two) in pairwise(ordered) if before != after]


def chosen_for_labels(scene: Scene) -> list[PlotPoint]:
    """Return the points that get a label, the most important first.

    Those above their ceiling come first, then the fastest of each series (of each op and dtype where there are more
    than `CROWD`), then the rest unless there are many.
    """
    points = scene.points
    if scene.is_profile:
        by_share = sorted(points, key=lambda point: -(point.share or 0))
        return [point for point in by_share if (point.share or 0) >= NAMED_SHARE][:MOST_NAMED]
    by_speed = sorted(points, key=lambda point: -point.flops_per_s)
    best: dict[tuple[object, ...], PlotPoint] = {}
    for point in by_speed:
        best.setdefault(point.series[:3] if len(points) > CROWD else point.series, point)
    first = [point for point in by_speed if point.is_above_ceiling]
    fastest = [point for point in best.values() if point not in first]
    rest = [point for point in by_speed if point not in first and point not in fastest]
    return first + fastest + (rest if len(points) <= MANY_POINTS else [])


def point_label(point: PlotPoint, scene: Scene, is_first: bool) -> str:
    """Return what is written at a point: what tells it from the others, and its share of the roofline.

    Args:
        point: one of the scene.
        scene: tells what there is to tell apart.
        is_first: whether this is the first label of its series, which also names machine, op and dtype.
    """
    words = []
    if scene.is_profile:
        place = [part for part in str(point.record.extra.get("module")).split(".")[-2:] if part != "*"]
        op, module = point.record.op.rpartition(".")[2], ".".join(place)
        return " ".join(filter(None, (plain(op, 24), plain(module, 24), f"{100 * (point.share or 0):.2g} %")))
    if is_first and len({other.machine for other in scene.points}) > 1:
        words.append(plain(scene.machines[point.machine].ceilings.slug, 24))
    if is_first and len(scene.ops) > 1:
        words.append(plain(point.record.op, 16))
    if is_first and len({other.record.dtype for other in scene.points}) > 1:
        words.append(plain(point.record.dtype, 12))
    if is_first and len(scene.providers) > 1:
        words.append(end_of(point.record.provider, LONGEST_PROVIDER))
    if len(scene.points) == 1 or len({other.record.case for other in scene.points}) > 1:
        words.append(short_case(point.record.case.removesuffix(f":{scene.shared}")))
    words.append(point.detail)
    if point.roofline_pct is not None:
        words.append(f"{significant(point.roofline_pct, 2 if point.roofline_pct < 100 else 3)} %")
    if point.doubts and len(scene.points) <= MANY_POINTS:
        words.append(f"({plain(point.doubts[0], 16)})")
    return " ".join(filter(None, words))


def slope_label(slope: Slope, scene: Scene, is_short: bool = False) -> str:
    """Return what is written along a ceiling of memory; in short without its kind, which its dashes tell."""
    mix = "" if slope.bandwidth.name == "memory" else f"{plain(slope.bandwidth.name, 12)} "
    kind = f" {slope.bandwidth.kind}" if len(scene.kinds) > 1 and not is_short else ""
    return f"{_owner(slope.machine, scene)}{mix}{si(slope.bandwidth.value, 'B/s')}{kind}"


def flat_label(flats: Sequence[Flat], scene: Scene, is_short: bool = False) -> str:
    """Return what is written along flat ceilings that lie on one another; in short without their kinds."""
    owners = list(dict.fromkeys(_owner(flat.machine, scene) for flat in flats))
    names = ", ".join(owner.strip() for owner in owners)
    dtypes = ", ".join(ordered_dtypes(plain(flat.dtype, 12) for flat in flats))
    if all(flat.peak.quantity == "fma" for flat in flats):
        dtypes = f"vector {dtypes}"
    kinds = ", ".join(dict.fromkeys(flat.peak.kind for flat in flats))
    kinds = "" if is_short or len(scene.kinds) == 1 else kinds
    unit = "OP/s" if dtypes == "int8" else "FLOP/s"
    value = si(max(flat.peak.value for flat in flats), unit)
    return f"{names} {dtypes} {value} {kinds}".strip()


def _owner(machine: int, scene: Scene) -> str:
    return f"{plain(scene.machines[machine].ceilings.slug, 24)} " if scene.is_overlay else ""


def title_lines(scene: Scene) -> tuple[str, str]:
    """Return the title, which names the machines, and the line under it: what was measured, and kinds of ceilings."""
    ceilings = [machine.ceilings for machine in scene.machines]
    names = ", ".join(plain(known.slug if scene.is_overlay else known.name, 60) for known in ceilings)
    kinds = " and ".join(filter(None, (", ".join(scene.kinds[:-1]), scene.kinds[-1])))
    if not scene.points:
        return names, f"Roofline: {kinds} ceilings"
    op = plain(scene.ops[0]) if len(scene.ops) == 1 else f"{len(scene.ops)} operations"
    options = f" {plain(scene.shared.replace(':', ' '), 40)}" if scene.shared else ""
    cases = {point.record.case for point in scene.points}
    if len(cases) == 1 and len(scene.points) > 1:
        op, options = f"{op} {short_case(next(iter(cases)))}", ""
    if len({point.record.dtype for point in scene.points}) == 1:
        options += f" {plain(scene.points[0].record.dtype, 12)}"
    provider = f" by {plain(scene.providers[0])}" if len(scene.providers) == 1 else ""
    return names, f"Roofline: {op}{options}{provider}, under {kinds} ceilings"


def caption(scene: Scene, unlabeled: int, unlabeled_ceilings: int) -> str:
    """Return the sentences under the picture: what was measured, with what, and what is not drawn.

    Args:
        scene: what is drawn.
        unlabeled: points without a label.
        unlabeled_ceilings: ceilings without a label.
    """
    parts = []
    if scene.points:
        parts += [*provenance(scene), *_how_points_are_drawn(scene)]
        doubts = Counter(flag for point in scene.points for flag in point.doubts)
        if doubts:
            parts.append("Crossed out: " + ", ".join(f"{count} {plain(flag, 24)}" for flag, count in doubts.items()))
    elif "datasheet" in scene.kinds:
        parts.append("Dense peaks, without structured sparsity")
    above = [point.excess for point in scene.points if point.excess]
    if above:
        causes = "; ".join(dict.fromkeys(above))
        parts.append(f"{'Above a ceiling' if scene.is_profile else 'Ringed'}: {len(above)} {plain(causes, 240)}")
    missing = [f"{unlabeled} of {len(scene.points)} points"] if unlabeled else []
    missing += [f"{unlabeled_ceilings} ceilings"] if unlabeled_ceilings else []
    if missing:
        parts.append(f"Without a label: {', '.join(missing)}")
    if scene.left_out:
        parts.append("Not drawn: " + ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items()))
    notes = [plain(m.ceilings.note, 240) for m in scene.machines if m.ceilings.note]
    parts += [note[:1].upper() + note[1:] for note in notes]
    return " ".join(part if part.endswith("…") else f"{part.rstrip('.')}." for part in parts)


def _how_points_are_drawn(scene: Scene) -> list[str]:
    if scene.is_profile:
        drawn_pct = 100 * sum(point.share or 0 for point in scene.points)
        return ["Labels: operation, module, share of the step", f"Area: that share, {drawn_pct:.0f} % in all points"]
    share = ", share of the roofline" if any(point.roofline_pct is not None for point in scene.points) else ""
    share += " at its own mix of reads and writes" if share and _judged_by_mix(scene) else ""
    parts = [f"Labels: shape{share}", "Bars: 95 % CI of the median"]
    if version_steps(scene):
        parts.append("Arrows: from version to version, or from run to run")
    if any(point.cap for point in scene.points):
        parts.append("Caps: FLOPs over the launch floor, where that is below the roof")
    return parts + bands_in_words(scene)


def bands_in_words(scene: Scene) -> list[str]:
    """Return what the bands of measured roofs are, and where a roof stands in its own; nothing where there is none."""
    banded = [ceiling for ceiling in _measured(scene) if ceiling.band]
    parts = []
    if any(ceiling.p5_p95 for ceiling in banded):
        parts.append("Bands: p5 to p95 of the samples behind a measured roof")
    if any(ceiling.p5_p95 is None for ceiling in banded):
        parts.append("Bands: 95 % CI of the median behind a measured roof")
    if any(ceiling.band and ceiling.value > ceiling.band[1] for ceiling in banded):
        parts.append("A roof above its band is the fastest sample, for other work on a CPU can only slow one down")
    return parts


def _measured(scene: Scene) -> list[Ceiling]:
    drawn = [slope.bandwidth for slope in scene.slopes] + [flat.peak for flat in scene.flats]
    return [ceiling for ceiling in drawn if ceiling.kind == "measured"]


def _judged_by_mix(scene: Scene) -> bool:
    """Return whether the share of the roofline is by the mix nearest to a record's own, and not by the envelope."""
    ceilings = [(m.ceilings.bandwidth(), m.ceilings.mixes()) for m in scene.machines if m.records]
    return any(ceiling is not None and ceiling.kind == "measured" and len(mixes) > 1 for ceiling, mixes in ceilings)


def provenance(scene: Scene) -> list[str]:
    """Return versions, days, fillings and cache states of the points."""
    environments = [environment for machine in scene.machines for environment in machine.environments]
    days = sorted({plain(environment.started_at[:10], 10) for environment in environments})
    versions = {
        f"{name} {plain(str(environment.versions[name]), 24)}": None
        for environment in environments
        for name in ("torch", "triton", "cuda", "driver")
        if environment.versions.get(name)
    }
    caches = sorted({f"{point.record.cache} cache" for point in scene.points if point.record.cache})
    fills = sorted({f"{plain(point.record.fill, 12)} data" for point in scene.points if point.record.fill})
    threads = sorted(
        {f"{environment.device['threads']} threads" for environment in environments if _threads(environment)}
    )
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    facts = ", ".join(filter(None, [*versions, *threads, *caches, *fills, when]))
    return [facts] if facts else []


def _threads(environment: Environment) -> bool:
    """Return whether the device is known to have computed with a number of threads."""
    threads = environment.device.get("threads")
    return isinstance(threads, int) and threads > 0
