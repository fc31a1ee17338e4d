"""Where labels go: the cheapest of a list of candidate places at which a label covers nothing else.

Lengths are in inches from the lower left corner of the figure, so that a placement holds at any resolution. The search
is greedy and free of chance: the same picture gives the same labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Box = tuple[float, float, float, float]
"""Left, bottom, right, top."""
Spot = tuple[float, float]

CLEARANCE = 0.025
"""Least distance between a label and a mark or a line, inches."""
TEXT_GAP = 0.04
"""Least distance between two labels, inches: closer ones read as one."""
LINE_COST = 0.12
"""Cost of covering one box of a line; a candidate's own cost is about its distance in inches."""
CROSSING_COST = 0.3
"""Cost of a leader line over one box of a line."""
MARK_COST = 1.0
"""Cost of a leader line over a mark."""
LINE_STEP = 0.06
"""Length of a line that one box stands for."""
STRIPS = 3
"""Rows of small upright boxes that cover a slanted label; more of them fit it closer."""
SLIDE_STEP = 0.11
"""Distance between two candidates along the same line."""


@dataclass(frozen=True)
class Candidate:
    """One place where a label could stand."""

    x: float
    """Center of the label."""
    y: float
    width: float
    height: float
    cost: float
    """The lower, the more liked."""
    angle: float = 0.0
    """Degrees, counterclockwise."""
    is_on_line: bool = False
    """Whether the label interrupts the line that it names."""
    leader: tuple[Spot, Spot] | None = None
    """The line that ties the label to what it names, where the two do not touch."""

    @property
    def box(self) -> Box:
        """The upright box of a label that is not slanted."""
        return box_around(self.x, self.y, self.width, self.height)

    def boxes(self) -> NDArray[Any]:
        """Return upright boxes that cover the label, shape (boxes, 4); a slanted one takes rows of small ones."""
        import numpy as np

        if not self.angle:
            return np.array([self.box])
        turn = math.radians(self.angle)
        square = self.height / STRIPS
        side = square * (abs(math.cos(turn)) + abs(math.sin(turn)))
        count = math.ceil(self.width / square)
        along = ((np.arange(count) + 0.5) * self.width / count - self.width / 2)[:, None]
        across = (np.arange(STRIPS) + 0.5) * square - self.height / 2
        x = (self.x + along * math.cos(turn) - across * math.sin(turn)).ravel()
        y = (self.y + along * math.sin(turn) + across * math.cos(turn)).ravel()
        return np.stack([x - side / 2, y - side / 2, x + side / 2, y + side / 2], axis=1)


class Placer:
    """What is taken on a sheet, and the search for free places."""

    KINDS = ("text", "mark", "line")
    """`text` and `mark` may not be covered; covering a `line` has its cost."""

    def __init__(self, bounds: Box) -> None:
        """Start with a free sheet.

        Args:
            bounds: where labels may be.
        """
        self.bounds = bounds
        self._taken: dict[str, list[Box]] = {kind: [] for kind in self.KINDS}
        self._arrays: dict[str, NDArray[Any]] = {}
        self._leaders: list[tuple[Spot, Spot]] = []

    def block(self, kind: str, boxes: Iterable[Box]) -> None:
        """Take the places of `boxes`."""
        self._taken[kind].extend(boxes)
        self._arrays.pop(kind, None)

    def place(
        self, candidates: Sequence[Candidate], avoid: Sequence[str] = ("text", "mark"), limit: float = math.inf
    ) -> Candidate | None:
        """Take the cheapest free candidate and return it, or None where none is free.

        Args:
            candidates: in any order; of equal ones the first is taken.
            avoid: what the label may not cover.
            limit: a place that costs as much or more is none.
        """
        best, least = None, limit
        for candidate in sorted(candidates, key=lambda c: c.cost):
            if candidate.cost >= least:
                break
            boxes = candidate.boxes()
            if self._is_free(candidate, boxes, avoid):
                cost = candidate.cost + LINE_COST * self._count("line", boxes)
                if candidate.leader:
                    cost += self.crossings([candidate])
                if cost < least:
                    best, least = candidate, cost
        if best:
            self.take(best)
        return best

    def take(self, place: Candidate) -> None:
        """Take a place and its leader: a later label on that would seem to be what it ties to the point."""
        self.block("text", map(tuple, place.boxes().tolist()))
        if place.leader:
            self.block("mark", boxes_along(*place.leader))
            self._leaders.append(place.leader)

    def mark(self) -> dict[str, int]:
        """Return what `forget` takes to free all that is taken from now on."""
        return {kind: len(boxes) for kind, boxes in self._taken.items()} | {"leader": len(self._leaders)}

    def forget(self, mark: dict[str, int]) -> None:
        """Free what was taken since `mark`."""
        for kind in self.KINDS:
            del self._taken[kind][mark[kind] :]
        del self._leaders[mark["leader"] :]
        self._arrays.clear()

    def has_room(self, places: Sequence[Candidate], avoid: Sequence[str]) -> bool:
        """Return whether all of these places are free, those of their leaders of text."""
        return all(self._is_free(place, place.boxes(), avoid) for place in places)

    def crossings(self, places: Sequence[Candidate]) -> float:
        """Return the cost of what the leaders of these places cross.

        Across a ceiling, a label would seem to be about its other side; across a mark, about that.
        """
        leaders = [_array(boxes_along(*place.leader)) for place in places if place.leader]
        costs = {"line": CROSSING_COST, "mark": MARK_COST}
        return sum(cost * self._count(kind, leader) for leader in leaders for kind, cost in costs.items())

    def _is_free(self, candidate: Candidate, boxes: NDArray[Any], avoid: Sequence[str]) -> bool:
        left, bottom, right, top = self.bounds
        low, high = boxes[:, :2].min(axis=0), boxes[:, 2:].max(axis=0)
        inside = low[0] >= left and low[1] >= bottom and high[0] <= right and high[1] <= top
        if not inside or any(self._count(kind, boxes) for kind in avoid):
            return False
        if candidate.leader is None:
            return True
        if any(cross(candidate.leader, other) for other in self._leaders):
            return False
        return not self._count("text", _array(boxes_along(*candidate.leader)))

    def _count(self, kind: str, boxes: NDArray[Any]) -> int:
        if not self._taken[kind]:
            return 0
        if kind not in self._arrays:
            self._arrays[kind] = _array(self._taken[kind])
        taken = self._arrays[kind]
        gap = TEXT_GAP if kind == "text" else CLEARANCE
        left, bottom = boxes[:, :2].min(axis=0) - gap
        right, top = boxes[:, 2:].max(axis=0) + gap
        near = taken[(taken[:, 0] < right) & (taken[:, 2] > left) & (taken[:, 1] < top) & (taken[:, 3] > bottom)]
        if len(boxes) == 1 or not len(near):
            return len(near)
        new = boxes[:, None]
        covers = (
            (new[..., 0] < near[:, 2] + gap)
            & (near[:, 0] < new[..., 2] + gap)
            & (new[..., 1] < near[:, 3] + gap)
            & (near[:, 1] < new[..., 3] + gap)
        )
        return int(covers.any(axis=0).sum())


def _array(boxes: Sequence[Box]) -> NDArray[Any]:
    import numpy as np

    return np.array(boxes)


def boxes_along(start: Spot, end: Spot) -> list[Box]:
    """Return small boxes that cover the line from `start` to `end`."""
    steps = max(1, math.ceil(math.dist(start, end) / LINE_STEP))
    fractions = [(index + 0.5) / steps for index in range(steps)]
    size = LINE_STEP / 2
    return [
        box_around(start[0] + f * (end[0] - start[0]), start[1] + f * (end[1] - start[1]), size, size)
        for f in fractions
    ]


def along_line(
    start: Spot, end: Spot, size: tuple[float, float], liked: float, gap: float = 0.08, overhang: float = 0.0
) -> list[Candidate]:
    """Return places above, below and on a line, in its direction, the most liked first.

    Args:
        start: left end of the line.
        end: right end of the line.
        size: width and height of the label.
        liked: where the middle of the label would best be, 0 at `start` to 1 at `end`.
        gap: distance between line and label.
        overhang: how far a label above the line may begin before `start`.
    """
    length = math.dist(start, end)
    turn = math.atan2(end[1] - start[1], end[0] - start[0])
    first, last = -overhang, length - size[0]
    if last < first:
        return []
    best = min(max(liked * length - size[0] / 2, first), last)
    steps = int((last - first) / SLIDE_STEP) + 1
    own = LINE_COST * (size[0] / LINE_STEP + 1)  # a label on its line covers that, which is no fault
    candidates = []
    for slide in {best, *(first + index * (last - first) / steps for index in range(steps + 1))}:
        for side, dislike in {1: 0.0, -1: 0.35, 0: 0.6 - own}.items():
            if slide < 0 and side != 1:
                continue
            middle, offset = slide + size[0] / 2, side * (size[1] / 2 + gap)
            x = start[0] + middle * math.cos(turn) - offset * math.sin(turn)
            y = start[1] + middle * math.sin(turn) + offset * math.cos(turn)
            cost = 0.4 * abs(slide - best) + dislike
            candidates.append(Candidate(x, y, *size, cost, math.degrees(turn), is_on_line=not side))
    return sorted(candidates, key=lambda c: (c.cost, c.x, c.y))


def around_point(
    spot: Spot,
    size: tuple[float, float],
    directions: Sequence[float],
    near: float = 0.09,
    far: float = 1.6,
    tied: float = 2.0,
) -> list[Candidate]:
    """Return places around a point, close ones first; one that does not seem to touch the point gets a leader line.

    Args:
        spot: the point.
        size: width and height of the label.
        directions: degrees, the most liked first.
        near: distance between the point and the closest labels.
        far: distance up to which labels are tried.
        tied: places further than so many times `near` get a leader line.
    """
    candidates = []
    distance = near
    while distance <= far:
        for rank, degrees in enumerate(directions):
            turn = math.radians(degrees)
            dx, dy = math.cos(turn), math.sin(turn)
            x = spot[0] + dx * distance + _sign(dx) * size[0] / 2
            y = spot[1] + dy * distance + _sign(dy) * size[1] / 2
            leader = None
            if distance > tied * near:
                touch = _nearest(spot, box_around(x, y, *size))
                start = (spot[0] + dx * near * 0.7, spot[1] + dy * near * 0.7)
                leader = (start, (touch[0] - dx * 0.03, touch[1] - dy * 0.03))
            candidates.append(Candidate(x, y, *size, cost=(distance - near) * 1.2 + rank * 0.03, leader=leader))
        distance += 0.09 if distance < 3 * near else 0.14
    return candidates


def _sign(value: float) -> int:
    """Return -1, 0 or 1; 0 for what is close to it, so that a label straight above a point is centered on it."""
    return 0 if abs(value) < 0.2 else int(math.copysign(1, value))


def cross(one: tuple[Spot, Spot], other: tuple[Spot, Spot]) -> bool:
    """Return whether two lines from point to point cross."""

    def side(start: Spot, end: Spot, spot: Spot) -> float:
        return (end[0] - start[0]) * (spot[1] - start[1]) - (end[1] - start[1]) * (spot[0] - start[0])

    return side(*one, other[0]) * side(*one, other[1]) < 0 and side(*other, one[0]) * side(*other, one[1]) < 0


def box_around(x: float, y: float, width: float, height: float) -> Box:
    """Return the box of a size around a center."""
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def distance_to_box(spot: Spot, box: Box) -> float:
    """Return the distance from a point to a box, 0 inside of it."""
    return math.dist(spot, _nearest(spot, box))


def _nearest(spot: Spot, box: Box) -> Spot:
    return (min(max(spot[0], box[0]), box[2]), min(max(spot[1], box[1]), box[3]))
