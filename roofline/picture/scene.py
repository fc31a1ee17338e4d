"""The content of a roofline plot: roofs and points with their styles, and the drawn part of the
plane.

Both renderers draw a `Scene` unchanged. Colors are those of the light theme.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from os.path import commonprefix
from pathlib import Path

from results.compare.flags import DISTURBED, ONE_SIDED
from results.record import Environment, Record
from results.show.picture import end_of
from results.show.profile import op_of
from results.show.terminal import PlotError as PlotError
from results.show.terminal import one_line
from results.show.units import number
from roofline.machine import KINDS, Ceiling, Machine

MAX_NAME_LETTERS = 24
"""Of a provider or machine in a label or legend."""
DOUBTFUL = DISTURBED | {"not-converged"}
"""Flags of a time that may be wrong."""
MAX_POINT_PT = 70.0
"""Profiles: diameter of a point with all the time of the step."""
MIN_POINT_PT = 3.0
"""Profiles: diameter of the smallest points."""
AROUND = 0.4
"""Room left of the points and below them, decades."""
ROOM = 0.36
"""Room for labels right of the points, as a fraction of the width left of it."""
HEADROOM = 0.07
"""Room above roofs and points as a fraction of the height, and more for each label that may be
stacked there."""

Spot = tuple[float, float]
"""A place in the plane: FLOP/byte and FLOP/s."""

Measured = tuple[Environment, Sequence[Record]]


class NoCeilingError(PlotError):
    """No ceiling is known."""


@dataclass(frozen=True)
class View:
    """The drawn part of the plane, in decimal logarithms."""

    left: float
    right: float
    bottom: float
    top: float


@dataclass
class Roof:
    """A ceiling: a memory bandwidth (sloped), or the peak of a dtype (flat)."""

    machine: int
    ceiling: Ceiling
    ridge: float | None
    """FLOP/byte at which a peak meets its bandwidth, for a bandwidth the last such point; else
    None.
    """
    color: str
    label: str = ""
    is_mix: bool = False
    """Whether it is a slower mix of reads and writes, drawn as a thin line."""

    @property
    def is_flat(self) -> bool:
        return self.ceiling.unit == "FLOP/s"

    @property
    def corner(self) -> Spot | None:
        """Ridge point of a peak (FLOP/byte, FLOP/s)."""
        return (self.ridge, self.ceiling.value) if self.is_flat and self.ridge else None

    def ends(self, view: View) -> tuple[Spot, Spot]:
        """Return both ends within the view (FLOP/byte, FLOP/s)."""
        value = self.ceiling.value
        if self.is_flat:
            return (self.ridge or 10**view.left, value), (10**view.right, value)
        first = max(10**view.left, 10**view.bottom / value)
        last = self.ridge or min(10**view.right, 10**view.top / value)
        return (first, first * value), (last, last * value)


@dataclass
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
    roofline_pct: float | None = None
    excess: str | None = None
    """The likely cause, if the point is above a ceiling."""
    cap: float | None = None
    """FLOPs over the launch floor (FLOP/s), if below the roofs."""
    detail: str = ""
    """Options that distinguish it from other points of its case, such as the recipe of a training
    step.
    """
    color: str = ""
    shape: int = 0
    is_hollow: bool = False
    label: str | None = None
    others: tuple[Record, ...] = ()
    """Further rows of a profile at the same position."""
    is_outlier: bool = False
    """Whether the point is drawn at the edge of the view."""
    spot: Spot = (0.0, 0.0)
    """Drawn position (FLOP/byte, FLOP/s)."""

    @property
    def is_from_cache(self) -> bool:
        return self.record.cache == "warm" or not ONE_SIDED.isdisjoint(self.record.flags)

    @property
    def share(self) -> float:
        """Fraction of the step's time of the rows of a profile; 0 for other records."""
        return sum(op_of(record).share or 0 for record in (self.record, *self.others))

    @property
    def diameter_pt(self) -> float:
        """Diameter of a row of a profile, points; its area is proportional to its share."""
        return max(MIN_POINT_PT, MAX_POINT_PT * math.sqrt(self.share))

    @property
    def doubts(self) -> list[str]:
        """Flags of a time that may be wrong."""
        flags = [flag for flag in self.record.flags if flag in DOUBTFUL]
        if self.record.converged is False and "not-converged" not in flags:
            flags.append("not-converged")
        return flags

    @property
    def series(self) -> tuple[object, ...]:
        """Key of the points of one sweep over sizes."""
        record = self.record
        of_record = (self.machine, record.op, record.dtype, record.provider)
        return (*of_record, self.run, self.detail, record.cache)


@dataclass
class Scene:
    """The content of one plot."""

    machines: Sequence[Machine]
    runs: Sequence[Environment]
    roofs: Sequence[Roof]
    points: Sequence[Point]
    left_out: Counter[str]
    """Reason -> number of records that are not drawn."""
    colored_by: str = "dtype"
    """`machine`, `provider` or `dtype`."""

    @cached_property
    def kinds(self) -> list[str]:
        return sorted({roof.ceiling.kind for roof in self.roofs}, key=KINDS.index)

    @property
    def is_profile(self) -> bool:
        return bool(self.points) and all(
            op_of(point.record).share is not None for point in self.points
        )

    @cached_property
    def has_modules(self) -> bool:
        """Whether a row of a profile has a module: rows of a trace have none."""
        return any(op_of(record).module for record in self.records)

    @cached_property
    def records(self) -> list[Record]:
        """The records of all points, including those grouped into one point."""
        records: list[Record] = []
        for point in self.points:
            records += [point.record, *point.others]
        return records

    @cached_property
    def flats(self) -> list[list[Roof]]:
        """Flat roofs from the top down, in groups of the same height in three digits."""
        groups: dict[str, list[Roof]] = {}
        for roof in sorted(self.roofs, key=lambda roof: -roof.ceiling.value):
            if roof.is_flat:
                groups.setdefault(number(roof.ceiling.value, 3), []).append(roof)
        return list(groups.values())

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """The ops, cases, dtypes and providers of the points, in order of appearance."""
        parts = ("op", "case", "dtype", "provider")
        return {
            part: list(dict.fromkeys(str(getattr(record, part)) for record in self.records))
            for part in parts
        }

    @cached_property
    def shared_end(self) -> str:
        """What all providers that are too long for a label have at their end, if that is all a
        label would show.
        """
        long = [name for name in self.names["provider"] if len(name) > MAX_NAME_LETTERS]
        shown = {name[-MAX_NAME_LETTERS:] for name in long}
        if len(shown) == len(long):
            return ""
        return commonprefix([name[::-1] for name in long])[::-1]  # noqa: RUF071  # of letters

    def series_words(self, point: Point, *always: str) -> list[str]:
        """Return the machine, op, dtype and provider of a point, without those of all points except
        for `always`.
        """
        words = []
        if len(self.machines) > 1:
            words.append(one_line(self.machines[point.machine].slug, MAX_NAME_LETTERS))
        for part in ("op", "dtype", "provider"):
            if part in always or len(self.names[part]) > 1:
                name = str(getattr(point.record, part))
                name = name.removesuffix(self.shared_end) or name
                words.append(end_of(name, MAX_NAME_LETTERS))
        return words

    def series_name(self, point: Point) -> str:
        """Return the legend entry of a point: dtype and provider, and machine, op and run if they
        vary.
        """
        words = " ".join(self.series_words(point, "dtype", "provider"))
        return f"{words}, {self.run_name(point.run)}" if self.has_run_names else words

    @cached_property
    def has_run_names(self) -> bool:
        """Whether a machine has several runs."""
        return len({point.run for point in self.points}) > len(
            {point.machine for point in self.points}
        )

    @cached_property
    def fillings(self) -> dict[bool, str]:
        """The legend entry of filled (False) and hollow markers (True), if both occur."""
        is_from_cache = {point.is_from_cache for point in self.points}
        return {False: "from memory", True: "from cache"} if len(is_from_cache) > 1 else {}

    def run_name(self, index: int) -> str:
        """Return the command and start time of a run, with its id if another run started in the
        same second.
        """
        own = self.runs[index]
        command = own.argv[own.argv.index("-m") + 1 :] if "-m" in own.argv else own.argv[:1]
        words = takewhile(lambda word: not word.startswith("-"), command)
        names = [end_of(Path(word).name, MAX_NAME_LETTERS) for word in words]
        names.append(own.started_at[:19].replace("T", " "))
        if [run.started_at[:19] for run in self.runs].count(own.started_at[:19]) > 1:
            names.append(own.run_id)
        return " ".join(names)

    @cached_property
    def view(self) -> View:
        """The view with ridge points and all points except outliers, and room for labels."""
        flats = [math.log10(roof.ceiling.value) for roof in self.roofs if roof.is_flat]
        slopes = [
            math.log10(roof.ceiling.value)
            for roof in self.roofs
            if not roof.is_flat and not roof.is_mix
        ]
        inside = [point for point in self.points if not point.is_outlier]
        xs = [math.log10(point.x) for point in inside]
        ridges = [math.log10(roof.corner[0]) for roof in self.roofs if roof.corner] or xs or [0.0]
        left = min([min(ridges) - 1, *(x - AROUND for x in xs)])
        right = max([max(ridges) + 1.2, *(x + ROOM * (x - left) for x in xs)])
        heights = flats or [slope + (left + right) / 2 for slope in slopes]
        lows = [math.log10(min(point.low, point.y)) - AROUND for point in inside]
        bottom = min([min(heights) - AROUND, *lows])
        if slopes:
            bottom = min(bottom, max(slopes) + left)
        top = max([*heights, *(math.log10(max(point.high, point.y)) for point in inside)])
        top += HEADROOM * (top - bottom) * (1 + len(self.kinds))
        return View(left, right, bottom, top)
