"""Where the labels of points go: beside their own point and nearer to it than to any other, or tied to it by a line.

Points that lie so close together that not each of them can have its label beside it get a column of labels, in the
order of the points from the top down, each tied to its point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

from roofline.plot.labels import Box, Candidate, Placer, Spot, around_point, cross, distance_to_box

SIDES = (-90, -45, 0, 90, 180, 45, -135, 135, 20, -20, 160, -160, 70, -70, 110, -110)
"""Where the label of a point stands best, degrees: below it, for above it are the ceilings."""
CLOSE = (0.5, 0.24)
"""Points that are not further apart than this, across and up, in inches, may need a column of labels."""
MARGIN = 0.02
"""By how much a label is nearer to its own point than to any other, at least, inches."""
SAME_PLACE = 0.01
"""Points closer than this cannot be told apart by their place, inches."""
PASSED = 0.07
"""Distance at which a leader line passes by a point that is not its own, at least, inches."""
PITCH = 0.05
"""Space between two labels of a column, inches."""
OFFSETS = (0.25, 0.4, 0.6, 0.9, 1.3, 1.8)
"""From the outermost point of a group to the column of its labels, inches."""
SHIFTS = tuple(step * sign for step in (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.4, 1.9) for sign in (1, -1))
"""Of a column up or down from the middle of its points, inches."""


AVOIDED = ("text", "mark", "line")
"""What no label of a point covers."""


@dataclass(frozen=True)
class PointLabel:
    """A label that waits for its place."""

    spot: Spot
    """Its point, inches."""
    size: tuple[float, float]
    near: float
    """Distance from the point to the closest label, inches."""


def place_labels(placer: Placer, labels: Sequence[PointLabel], spots: Sequence[Spot]) -> list[Candidate | None]:
    """Return the place of each label, None where there is none that a reader would take for its own.

    Args:
        placer: what is taken, and takes what is found.
        labels: the most important first.
        spots: all points, labeled or not, inches.
    """
    found: list[Candidate | None] = [None] * len(labels)
    for group in _groups(labels):
        before = placer.mark()
        for index in group:
            found[index] = _place_beside(placer, labels[index], spots)
        if all(found[index] for index in group):
            continue
        placer.forget(before)
        places = _column(placer, [labels[index] for index in group], spots) if len(group) > 1 else None
        for number, index in enumerate(group):
            found[index] = places[number] if places else _alone(placer, labels[index], spots)
    return found


def _groups(labels: Sequence[PointLabel]) -> list[list[int]]:
    rest, groups = list(range(len(labels))), []
    while rest:
        group, queue = [], [rest.pop(0)]
        while queue:
            index = queue.pop()
            group.append(index)
            close = [other for other in rest if _is_close(labels[index].spot, labels[other].spot)]
            queue += close
            rest = [other for other in rest if other not in close]
        groups.append(sorted(group))
    return groups


def _is_close(one: Spot, other: Spot) -> bool:
    return abs(one[0] - other[0]) <= CLOSE[0] and abs(one[1] - other[1]) <= CLOSE[1]


def _beside(label: PointLabel, spots: Sequence[Spot]) -> list[Candidate]:
    """Return the places that touch a point and are nearer to it than to any other."""
    places = around_point(label.spot, label.size, SIDES, label.near, far=2 * label.near)
    reach = max(label.size) + 5 * label.near + MARGIN  # a point further away is nearer to none of these places
    x, y = label.spot
    close = [spot for spot in spots if abs(spot[0] - x) < reach and abs(spot[1] - y) < reach]
    return [place for place in places if not place.leader and is_nearest(place.box, label.spot, close)]


def is_nearest(box: Box, own: Spot, spots: Sequence[Spot]) -> bool:
    """Return whether a label is nearer to its own point than to any other."""
    distance = distance_to_box(own, box) + MARGIN
    return all(
        distance_to_box(spot, box) > distance for spot in spots if math.dist(spot, own) > SAME_PLACE
    ) and not any(SAME_PLACE >= math.dist(spot, own) > 0 for spot in spots)


def _place_beside(placer: Placer, label: PointLabel, spots: Sequence[Spot]) -> Candidate | None:
    """Take a place that touches the point and is nearer to it than to any other; None where none is free."""
    return placer.place(_beside(label, spots), AVOIDED)


def _alone(placer: Placer, label: PointLabel, spots: Sequence[Spot]) -> Candidate | None:
    """Take the place of a label that no other has to stand in line with, at the end of a leader line if need be."""
    if beside := _place_beside(placer, label, spots):
        return beside
    tied = [
        replace(place, leader=(label.spot, place.leader[1]))
        for place in around_point(label.spot, label.size, SIDES, label.near, far=2.4, tied=0)
        if place.leader
    ]
    free = [place for place in tied if placer.has_room([place], AVOIDED)]  # few of them are where there are many points
    return placer.place([p for p in free if p.leader and _is_own(p.leader, label.spot, spots)], AVOIDED)


def _is_own(leader: tuple[Spot, Spot], own: Spot, spots: Sequence[Spot]) -> bool:
    """Return whether a leader line passes by all points but its own."""
    (left, right), (low, high) = (sorted(ends) for ends in zip(*leader, strict=True))
    return all(
        _distance_to_line(spot, *leader) > PASSED
        for spot in spots
        if left - PASSED <= spot[0] <= right + PASSED and low - PASSED <= spot[1] <= high + PASSED
        if math.dist(spot, own) > 0.1
    )


def _distance_to_line(spot: Spot, start: Spot, end: Spot) -> float:
    length = math.dist(start, end) ** 2 or 1.0
    along = ((spot[0] - start[0]) * (end[0] - start[0]) + (spot[1] - start[1]) * (end[1] - start[1])) / length
    share = min(1.0, max(0.0, along))
    return math.dist(spot, (start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])))


def _column(placer: Placer, labels: Sequence[PointLabel], spots: Sequence[Spot]) -> list[Candidate] | None:
    order = sorted(range(len(labels)), key=lambda index: (-labels[index].spot[1], labels[index].spot[0]))
    best: tuple[float, list[Candidate]] | None = None
    for offset, shift, side in product(OFFSETS, SHIFTS, (1, -1)):
        cost = offset + 0.8 * abs(shift) + 0.1 * (side < 0)
        if best and best[0] <= cost:
            continue
        places = _stacked([labels[index] for index in order], offset, shift, side)
        cost += placer.crossings(places)
        if (best is None or cost < best[0]) and placer.has_room(places, AVOIDED) and _is_readable(places, spots):
            best = (cost, places)
    if best is None:
        return None
    for place in best[1]:
        placer.take(place)
    return [best[1][order.index(index)] for index in range(len(labels))]


def _stacked(labels: Sequence[PointLabel], offset: float, shift: float, side: int) -> list[Candidate]:
    """Return labels, sorted from the top down, below each other at the right (1) or left (-1) of their points."""
    edge = side * max(side * label.spot[0] for label in labels) + side * offset
    pitch = max(label.size[1] for label in labels) + PITCH
    middle = (labels[0].spot[1] + labels[-1].spot[1]) / 2 + shift
    top = middle + pitch * (len(labels) - 1) / 2
    return [
        Candidate(
            edge + side * label.size[0] / 2,
            top - number * pitch,
            *label.size,
            cost=0.0,
            leader=(label.spot, (edge - side * 0.03, top - number * pitch)),
        )
        for number, label in enumerate(labels)
    ]


def _is_readable(places: Sequence[Candidate], spots: Sequence[Spot]) -> bool:
    """Return whether no leader line meets another one, or a point that is not its own."""
    leaders = [place.leader for place in places if place.leader]
    crossed = any(cross(one, other) for one, other in pairwise(leaders))
    return not crossed and all(_is_own(leader, leader[0], spots) for leader in leaders)
