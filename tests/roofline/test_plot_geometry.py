"""The geometry of labels in pictures of ten runs: each belongs to its own point, and none is on anything else."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from plot_scenes import assert_apart, corners, labels_in, overlap, renderer, roofs
from run_scenes import RUNS, h100, of_gpu, vector

from results.record import Record
from roofline.plot.figure import draw_roofline, run_machine
from roofline.plot.labels import cross
from roofline.plot.scene import PlotPoint, build_scene, chosen_for_labels, point_label

TOUCH = 0.08
"""Inches between a leader line and the label that it ties to its point, at most."""
LEAST_GAP = 0.035
"""Inches between two labels of points, at least: a third of their letters' height."""


@cache
def drawn(name: str) -> Figure:
    return draw_roofline(*RUNS[name])


@pytest.fixture(params=RUNS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def inches(figure: Figure, point: PlotPoint) -> tuple[float, float]:
    x, y = figure.axes[0].transData.transform((point.intensity, point.flops_per_s)) / figure.dpi
    return float(x), float(y)


def point_labels(name: str) -> list[tuple[Text, list[PlotPoint]]]:
    """Return the labels of points in a picture, each with the points that it may be of by its words."""
    scene = build_scene(*RUNS[name])
    of_text: dict[str, list[PlotPoint]] = {}
    for point in scene.points:
        for is_first in (True, False):
            of_text.setdefault(point_label(point, scene, is_first), []).append(point)
    return [(text, of_text[text.get_text()]) for text in labels_in(drawn(name)) if text.get_text() in of_text]


def box_of(figure: Figure, text: Text) -> tuple[float, float, float, float]:
    box = text.get_window_extent(renderer(figure))
    return box.x0 / figure.dpi, box.y0 / figure.dpi, box.x1 / figure.dpi, box.y1 / figure.dpi


def distance(spot: tuple[float, float], box: tuple[float, float, float, float]) -> float:
    return math.hypot(max(box[0] - spot[0], 0, spot[0] - box[2]), max(box[1] - spot[1], 0, spot[1] - box[3]))


def leaders(figure: Figure) -> list[Line2D]:
    return [artist for artist in figure.artists if isinstance(artist, Line2D) and artist.get_zorder() == 6]


def leader_to(figure: Figure, text: Text) -> tuple[float, float] | None:
    """Return where the leader line of a label begins, inches; None where it has none."""
    box = box_of(figure, text)
    ends = [list(zip(*line.get_data(), strict=True)) for line in leaders(figure)]
    return next(((float(start[0]), float(start[1])) for start, end in ends if distance(end, box) < TOUCH), None)


def test_each_label_is_nearest_to_its_own_point_or_tied_to_it(name: str) -> None:
    figure, scene = drawn(name), build_scene(*RUNS[name])
    for text, own in point_labels(name):
        spots = [(inches(figure, point), point) for point in scene.points]
        start, box = leader_to(figure, text), box_of(figure, text)
        if start is None:
            nearest = min(spots, key=lambda spot: distance(spot[0], box))[1]
        else:
            nearest = min(spots, key=lambda spot: math.dist(spot[0], start))[1]
            assert math.dist(inches(figure, nearest), start) < 0.01, text.get_text()
        assert any(nearest is point for point in own) or inches(figure, nearest) in [inches(figure, p) for p in own]


def test_every_label_of_a_point_that_should_have_one_is_there(name: str) -> None:
    scene = build_scene(*RUNS[name])
    cramped = {"6 GPUs": 1, "90 points": 7}
    assert len(point_labels(name)) >= len(chosen_for_labels(scene)) - cramped.get(name, 0)


def test_labels_stand_in_the_order_of_their_points(name: str) -> None:
    """Of two labels in one column the upper one is of the higher point."""
    figure = drawn(name)
    tied = [(text, own, start) for text, own in point_labels(name) if (start := leader_to(figure, text))]
    for (one, _, first), (other, _, second) in itertools.combinations(tied, 2):
        same_column = abs(box_of(figure, one)[0] - box_of(figure, other)[0]) < 0.01 and abs(first[1] - second[1]) > 0.01
        if same_column and abs(first[0] - second[0]) < 0.5:
            assert (first[1] > second[1]) == (box_of(figure, one)[1] > box_of(figure, other)[1])


def test_no_two_labels_touch_and_none_is_outside(name: str) -> None:
    figure = drawn(name)
    frame = figure.axes[0].get_window_extent()
    shapes = [(text.get_text(), corners(figure, text)) for text in figure.texts if text.get_text()]
    assert_apart(shapes)
    for text in labels_in(figure):
        shape = corners(figure, text)
        assert (shape >= (frame.x0, frame.y0)).all(), text.get_text()
        assert (shape <= (frame.x1 + 1, frame.y1 + 1)).all(), text.get_text()


def test_labels_of_points_keep_a_gap_that_is_seen(name: str) -> None:
    """Two labels that nearly touch read as one."""
    boxes = [(text.get_text(), box_of(drawn(name), text)) for text, _ in point_labels(name)]
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        across = max(first[0] - second[2], second[0] - first[2])
        up = max(first[1] - second[3], second[1] - first[3])
        assert max(across, up) > LEAST_GAP, f"{one!r} and {other!r}"


def test_no_label_of_a_point_is_on_a_line_or_a_point(name: str) -> None:
    figure, scene = drawn(name), build_scene(*RUNS[name])
    to_pixels = figure.axes[0].transData.transform
    lines = [
        to_pixels(np.column_stack(line.get_data())) for line in figure.axes[0].lines if line.get_zorder() in (3, 4)
    ]
    segments = [pair for line in lines for pair in itertools.pairwise(line)]
    assert segments
    for text, _ in point_labels(name):
        shape = corners(figure, text)
        for start, end in segments:
            assert not overlap(shape, np.array([start, end, end, start])), f"{text.get_text()!r} is on a line"
        for point in scene.points:
            middle = np.array(inches(figure, point)) * figure.dpi
            square = middle + 3 * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
            assert not overlap(shape, square), f"{text.get_text()!r} is on a point"


def test_no_color_is_of_two_providers_or_machines(name: str) -> None:
    scene = build_scene(*RUNS[name])
    if scene.colored_by == "dtype":
        return
    colors: dict[str, set[object]] = {}
    for point in scene.points:
        who = point.machine if scene.colored_by == "machine" else point.record.provider
        colors.setdefault(to_hex(scene.point_color(point)), set()).add(who)
    assert all(len(owners) == 1 for owners in colors.values())
    assert len(roofs(drawn(name))) >= 2


def parts_of_a_step(count: int, seed: int) -> list[Record]:
    """Return the rows of a profile, a few of which take most of the step, strewn over the plane."""
    chance = random.Random(seed)
    rows, weights = [], [10 ** chance.uniform(0, 2.5) for _ in range(count)]
    for number, weight in enumerate(weights):
        elements = int(10 ** chance.uniform(3, 7))
        part = vector("aten.add", elements, 1, 3e12 / chance.uniform(5, 60))
        extra = {"share": weight / sum(weights), "module": f"part{number}"}
        rows.append(replace(part, flops=int(elements * 10 ** chance.uniform(0, 2.6)), extra=part.extra | extra))
    return rows


def slow_and_long() -> list[Record]:
    """Return the rows of a profile whose longest is the lowest by far."""
    parts = [vector("aten.add", 10**6, 10, rate) for rate in (1e4, 1e9, 1e11)]
    return [replace(part, extra={"share": share}) for part, share in zip(parts, (0.7, 0.2, 0.1), strict=True)]


STEPS = {"3 parts": slow_and_long(), "60 parts": parts_of_a_step(60, 5), "211 parts": parts_of_a_step(211, 10)}


@pytest.mark.parametrize("step", STEPS)
def test_circles_of_a_profile_are_whole_and_no_two_leader_lines_cross(step: str) -> None:
    run = [run_machine(of_gpu(h100()), STEPS[step])], ["bf16"]
    figure, scene = draw_roofline(*run), build_scene(*run)
    frame = figure.axes[0].get_window_extent()
    for point in scene.points:
        x, y = (value * figure.dpi for value in inches(figure, point))
        radius = point.diameter_pt / 2 / 72 * figure.dpi
        assert frame.x0 <= x - radius, point.record.extra
        assert x + radius <= frame.x1, point.record.extra
        assert frame.y0 <= y - radius, point.record.extra
        assert y + radius <= frame.y1, point.record.extra
    lines = [tuple(zip(*line.get_data(), strict=True)) for line in leaders(figure)]
    assert not [pair for pair in itertools.combinations(lines, 2) if cross(*pair)]
