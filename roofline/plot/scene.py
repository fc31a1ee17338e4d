"""What a roofline plot shows, before it is drawn: ceilings, points, the part of the plane, and the words around it.

Nothing is clamped or hidden: what cannot be drawn is counted, and the caption says it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from results.compare.flags import DISTURBED
from results.record import Environment, Record
from results.show.terminal import one_line
from roofline.ceilings import KINDS, Ceiling, Ceilings
from roofline.model import judge, rate, ridge_intensity
from roofline.plot.style import FILLINGS, INK, VARIANT_COLORS, dtype_color, pick, plain, short_case, si, significant
from roofline.work import DTYPES

MANY_POINTS = 12
"""With more points than this only the fastest of each op, dtype and provider gets a label."""
SHAKY = DISTURBED | {"not-converged"}
"""Flags of times that may be off by more than their bars show."""
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
    """The ceiling of one dtype: FLOP/s = peak."""

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

    @property
    def is_above_ceiling(self) -> bool:
        """Whether more than all of a ceiling was reached."""
        return self.excess is not None

    @property
    def is_disturbed(self) -> bool:
        """Whether its measurement was disturbed, as its flags say."""
        return not SHAKY.isdisjoint(self.record.flags)

    @property
    def series(self) -> tuple[int, str, str, str, int]:
        """What this point shares with the others of a sweep over sizes."""
        return (self.machine, self.record.op, self.record.dtype, self.record.provider, self.run)


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
    def told_apart(self) -> tuple[str, ...]:
        """What the filling of a marker tells, of provider, dtype and run: as much as there are fillings for."""
        varying: tuple[str, ...] = ()
        for parts in (("provider", "dtype", "run"), ("provider", "run"), ("provider",)):
            varying = tuple(part for part in parts if len({_part(p, part, self) for p in self.points}) > 1)
            if len({tuple(_part(p, part, self) for part in varying) for p in self.points}) <= len(FILLINGS):
                break
        return varying

    @cached_property
    def variants(self) -> dict[tuple[str, ...], PlotPoint]:
        """What fillings tell apart, each with its first point, in order of appearance."""
        found: dict[tuple[str, ...], PlotPoint] = {}
        for point in self.points:
            found.setdefault(tuple(_part(point, part, self) for part in self.told_apart), point)
        return found

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

    @cached_property
    def colored_by(self) -> str:
        """What a color stands for: `machine`, `provider` or `dtype`."""
        if self.is_overlay:
            return "machine"
        has_one_dtype = len({point.record.dtype for point in self.points}) == 1
        return "provider" if has_one_dtype and 1 < len(self.providers) <= len(VARIANT_COLORS) else "dtype"

    def color_of(self, point: PlotPoint) -> str:
        """Return the color of a point."""
        if self.colored_by == "provider":
            return pick(VARIANT_COLORS, self.providers.index(point.record.provider))
        return self.ceiling_color(point.machine, point.record.dtype)

    def ceiling_color(self, machine: int, dtype: str) -> str:
        """Return the color of the flat ceiling of a machine and a dtype."""
        if self.colored_by == "machine":
            return pick(VARIANT_COLORS, machine)
        return INK if self.colored_by == "provider" else dtype_color(dtype)

    @cached_property
    def varying_options(self) -> tuple[str, ...]:
        """Options in which points of one name differ, as recipe and checkpoint of training steps do."""
        found: dict[tuple[object, ...], list[dict[str, object]]] = {}
        for point in self.points:
            found.setdefault((*point.series, point.record.case), []).append(dict(point.record.options))
        names = dict.fromkeys(name for same in found.values() for options in same for name in options)
        differ = {name for name in names for same in found.values() if len({str(one.get(name)) for one in same}) > 1}
        return tuple(name for name in names if name in differ)


def _part(point: PlotPoint, part: str, scene: Scene) -> str:
    """Return the word for the provider, dtype or run of a point; one run of a machine needs no word."""
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
    """Return the flat ceilings of one machine, each with the slope of its own kind where there is one."""
    slopes = {entry.kind: entry for entry in _fastest(ceilings, "bandwidth")}
    known = ordered_dtypes(entry.name for entry in ceilings.entries if entry.quantity == "flops")
    return [
        Flat(index, peak, slopes.get(peak.kind, ceilings.bandwidth()))
        for dtype in known
        if dtypes is None or dtype in dtypes
        for peak in _fastest(ceilings, "flops", dtype)
    ]


def _point(index: int, record: Record, machine: PlotMachine, run: int, dtypes: Sequence[str] | None) -> PlotPoint | str:
    """Return the point of a record, or the reason why it has none."""
    if record.status != "ok":
        return record.status
    if dtypes is not None and record.dtype not in dtypes:
        return "of other dtypes"
    judged = judge(record, machine.ceilings)
    if record.flops == 0 or judged.intensity is None or judged.flops_per_s is None or record.flops is None:
        return "without FLOPs or bytes"
    fast, slow = record.ci95_s or (record.median_s, record.median_s)
    values = (
        judged.intensity,
        judged.flops_per_s,
        rate(record.flops, slow or math.nan),
        rate(record.flops, fast or math.nan),
    )
    if not all(math.isfinite(value) and value > 0 for value in values):
        return "with impossible values"
    return PlotPoint(index, record, *values, judged.roofline_pct, judged.excess, run)


def chosen_for_labels(points: Sequence[PlotPoint]) -> list[PlotPoint]:
    """Return the points that get a label, the most important first.

    Those above their ceiling come first, then the fastest of each series, then the rest unless there are many.
    """
    by_speed = sorted(points, key=lambda point: -point.flops_per_s)
    best: dict[tuple[int, str, str, str, int], PlotPoint] = {}
    for point in by_speed:
        best.setdefault(point.series, point)
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
    if is_first and len({other.machine for other in scene.points}) > 1:
        words.append(plain(scene.machines[point.machine].ceilings.slug, 24))
    if is_first and len(scene.ops) > 1:
        words.append(plain(point.record.op, 16))
    if is_first and len({other.record.dtype for other in scene.points}) > 1:
        words.append(plain(point.record.dtype, 12))
    if is_first and len(scene.providers) > 1:
        words.append(plain(point.record.provider, 24))
    words.append(short_case(point.record.case.removesuffix(f":{scene.shared}")))
    words += [plain(f"{name} {point.record.options.get(name)}", 24) for name in scene.varying_options]
    if point.roofline_pct is not None:
        words.append(f"{significant(point.roofline_pct, 2 if point.roofline_pct < 100 else 3)} %")
    return " ".join(words)


def slope_label(slope: Slope, scene: Scene) -> str:
    """Return what is written along a ceiling of memory."""
    mix = "" if slope.bandwidth.name == "memory" else f"{plain(slope.bandwidth.name, 12)} "
    kind = f" {slope.bandwidth.kind}" if len(scene.kinds) > 1 else ""
    return f"{_owner(slope.machine, scene)}{mix}{si(slope.bandwidth.value, 'B/s')}{kind}"


def flat_label(flats: Sequence[Flat], scene: Scene) -> str:
    """Return what is written along flat ceilings that lie on one another."""
    owners = list(dict.fromkeys(_owner(flat.machine, scene) for flat in flats))
    names = ", ".join(owner.strip() for owner in owners)
    dtypes = ", ".join(ordered_dtypes(plain(flat.dtype, 12) for flat in flats))
    kinds = ", ".join(dict.fromkeys(flat.peak.kind for flat in flats)) if len(scene.kinds) > 1 else ""
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
        share = ", share of the roofline" if any(point.roofline_pct is not None for point in scene.points) else ""
        share += " at its own mix of reads and writes" if share and _judged_by_mix(scene) else ""
        parts += [*_provenance(scene), f"Labels: shape{share}", "Bars: 95 % CI of the median"]
    elif "datasheet" in scene.kinds:
        parts.append("Dense peaks, without structured sparsity")
    above = [point.excess for point in scene.points if point.excess]
    if above:
        causes = "; ".join(dict.fromkeys(above))
        parts.append(f"Ringed: {len(above)} {plain(causes, 240)}")
    disturbed = [point for point in scene.points if point.is_disturbed]
    if disturbed:
        flags = dict.fromkeys(flag for point in disturbed for flag in point.record.flags if flag in SHAKY)
        parts.append(f"Crossed: {len(disturbed)} flagged {plain(', '.join(flags), 120)}")
    missing = [f"{unlabeled} of {len(scene.points)} points"] if unlabeled else []
    missing += [f"{unlabeled_ceilings} ceilings"] if unlabeled_ceilings else []
    if missing:
        parts.append(f"Without a label: {', '.join(missing)}")
    if scene.left_out:
        parts.append("Not drawn: " + ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items()))
    parts += [plain(m.ceilings.note, 160) for m in scene.machines if m.ceilings.note]
    return " ".join(f"{part.rstrip('.')}." for part in parts)


def _judged_by_mix(scene: Scene) -> bool:
    """Return whether the share of the roofline is by the mix nearest to a record's own, and not by the envelope."""
    ceilings = [(m.ceilings.bandwidth(), m.ceilings.mixes()) for m in scene.machines if m.records]
    return any(ceiling is not None and ceiling.kind == "measured" and len(mixes) > 1 for ceiling, mixes in ceilings)


def _provenance(scene: Scene) -> list[str]:
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
