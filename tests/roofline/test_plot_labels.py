"""The words in the picture: all there, none on another, none cut off, none on a point."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from plot_scenes import (
    CPU,
    H100,
    SCENES,
    assert_apart,
    calibrated,
    corners,
    draw,
    environment,
    flats,
    labels_in,
    last_line,
    matmul,
    overlap,
    renderer,
    roofs,
    spots,
    words,
)

from roofline.plot.figure import PlotMachine, draw_roofline
from roofline.plot.labels import Candidate, Placer, along_line, around_point
from roofline.plot.mixes import mixes_label, thin_mixes
from roofline.plot.scene import build_scene


@pytest.fixture(scope="module", params=SCENES)
def figure(request: pytest.FixtureRequest) -> Figure:
    return draw(request.param)


def test_no_text_overlaps_another(figure: Figure) -> None:
    shapes = [(text.get_text(), corners(figure, text)) for text in figure.texts if text.get_text()]
    assert len(shapes) >= 4
    assert_apart(shapes)


@pytest.mark.sampled(3)
def test_no_label_covers_a_point(figure: Figure) -> None:
    spot_size = 3
    for x, y in spots(figure):
        px, py = figure.axes[0].transData.transform((x, y))
        square = np.array([[px, py]] * 4) + spot_size * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
        for text in labels_in(figure):
            assert not overlap(corners(figure, text), square), f"{text.get_text()!r} covers a point"


@pytest.mark.sampled(3)
def test_labels_stay_in_the_axes_and_all_text_in_the_figure(figure: Figure) -> None:
    figure.canvas.draw()
    page, axes = figure.bbox, figure.axes[0].get_window_extent()
    for text in labels_in(figure):
        shape = corners(figure, text)
        assert (shape >= (axes.x0, axes.y0)).all(), text.get_text()
        assert (shape <= (axes.x1 + 1, axes.y1 + 1)).all(), text.get_text()
    for text in (*figure.texts, *axis_texts(figure)):
        box = text.get_window_extent(renderer(figure))
        assert box.x0 >= 0, text.get_text()
        assert box.y0 >= 0, text.get_text()
        assert box.x1 <= page.x1, text.get_text()
        assert box.y1 <= page.y1, text.get_text()


def axis_texts(figure: Figure) -> list[Text]:
    """Return the words beside the axes: labels of both axes and of the ticks in view."""
    axes = figure.axes[0]
    shown: list[Text] = [axes.xaxis.label, axes.yaxis.label]
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        shown += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert all(text.get_text() for text in shown)
    return shown


def test_every_roof_has_a_label_with_value_and_kind() -> None:
    said = words(draw("a crowd"))
    for label in (
        "fp8e4m3 1979 TFLOP/s datasheet",
        "bf16 989 TFLOP/s datasheet",
        "fp8e4m3 1454 TFLOP/s measured",
        "bf16 795 TFLOP/s measured",
        "4.8 TB/s datasheet",
        "read 4.5 TB/s measured",
    ):
        assert said.count(label) == 1
    for value in (412, 323, 206, 177):
        assert f"ridge {value}" in said


def test_the_thin_lines_share_a_label_below_the_lowest_of_them() -> None:
    for name, label, lowest in (
        ("mixes under a datasheet", "write 2.9, triad 2.78, copy 2.66 TB/s", 2.66e12),
        ("mixes of a CPU", "triad 45, copy 40, write 25 GB/s", 25e9),
    ):
        drawn = draw(name)
        (text,) = (text for text in labels_in(drawn) if text.get_text() == label)
        assert text.get_rotation() == pytest.approx(45, abs=0.01)
        places = drawn.axes[0].transData.inverted().transform(corners(drawn, text))
        assert all(y / x < lowest for x, y in places)
        assert not any("Without a label" in word and "ceiling" in word for word in words(drawn))


def test_mixes_of_different_units_are_told_each_with_its_own() -> None:
    known = calibrated(CPU, {"read": 1.2e12, "write": 900e9})
    assert mixes_label(thin_mixes(build_scene([PlotMachine(known)]))) == "write 900, copy 45 GB/s"
    apart = calibrated(CPU, {"read": 2e12, "write": 1.2e12})
    assert mixes_label(thin_mixes(build_scene([PlotMachine(apart)]))) == "write 1.2 TB/s, copy 45 GB/s"


def test_labels_along_a_slope_are_turned_with_it() -> None:
    drawn = draw("one GPU")
    angles = {text.get_text(): text.get_rotation() for text in labels_in(drawn)}
    assert angles["3.35 TB/s"] == pytest.approx(45, abs=0.01)
    assert angles["bf16 989 TFLOP/s"] == 0


def test_an_overlay_names_the_machine_of_each_roof() -> None:
    drawn = draw("three GPUs")
    said = words(drawn)
    assert "h100-sxm, h200-sxm bf16 989 TFLOP/s" in said  # one line, one label
    assert "a100-sxm-80gb bf16 312 TFLOP/s" in said
    for slug, bandwidth in (("h100-sxm", "3.35"), ("h200-sxm", "4.8"), ("a100-sxm-80gb", "2.04")):
        assert f"{slug} {bandwidth} TB/s" in said
    slopes = [line for line in roofs(drawn) if line not in flats(drawn)]
    assert len({(line.get_linewidth(), str(line.get_linestyle())) for line in slopes}) >= 2
    assert len({line.get_linewidth() for line in slopes}) == 3


def test_the_caption_says_what_was_measured_and_what_is_not_drawn() -> None:
    caption = last_line(draw("a crowd"))
    for part in (
        "torch 2.13.0, 2 threads, cold cache, 2026-11-20.",
        "Ringed: 1 above the datasheet peak: the clock ran above the datasheet's",
        "Not drawn: 1 skipped, 1 invalid, 1 failed, 1 without FLOPs or bytes.",
    ):
        assert part in caption
    machines, dtypes = SCENES["a crowd"]
    some = replace(machines[0], records=machines[0].records[:15])
    drawn = draw_roofline([some], dtypes)
    labeled = sum(word.endswith("%") for word in words(drawn))
    assert 2 <= labeled < 15
    assert f"Without a label: {15 - labeled} of 15 points" in last_line(drawn)


def test_what_is_said_of_the_ceilings_begins_with_a_capital_letter() -> None:
    row = matmul(64, "bf16", 1e9)
    for note, end in (("measured while disturbed", "Measured while disturbed."), ("disturbed " * 40, " disturbed…")):
        assert last_line(draw_roofline([PlotMachine(replace(CPU, note=note), (row,))])).endswith(end)


def test_of_many_points_the_one_above_its_ceiling_and_the_fastest_of_an_op_have_a_label() -> None:
    said = words(draw("a crowd"))
    assert {"matmul bf16 torch 6144³ 102 %", "add bf16 torch 134217728 90 %"} <= set(said)
    assert sum(word.startswith("relu") and word.endswith("%") for word in said) == 1
    few = [word for word in words(draw("a CPU with points")) if word.endswith("%")]
    assert len(few) == 8
    assert {"bf16 2048³ 98 %", "512³ 75 %", "fp32 2048³ 97 %"} <= set(few)


def test_a_title_may_be_given() -> None:
    drawn = draw_roofline([PlotMachine(H100)], title="Mine")
    assert words(drawn)[0] == "Mine"
    assert words(draw("one GPU"))[0] == "Device h100-sxm"


def test_no_label_covers_an_error_bar() -> None:
    wide = [matmul(n, "bf16", f, ci95_s=(n**3 / f, 5 * n**3 / f)) for n, f in ((256, 4e11), (512, 7e11), (2048, 9e11))]
    drawn = draw_roofline([PlotMachine(CPU, tuple(wide), (environment(),))], ["bf16"])
    bars = [line for line in drawn.axes[0].lines if line.get_zorder() == 6]
    xs, ys = bars[0].get_data()
    to_pixels = drawn.axes[0].transData.transform
    for x, low, high in zip(xs[::3], ys[::3], ys[1::3], strict=True):
        (left, bottom), (_, top) = to_pixels((x, min(low, high))), to_pixels((x, max(low, high)))
        bar = np.array([(left - 1, bottom), (left + 1, bottom), (left + 1, top), (left - 1, top)])
        for text in labels_in(drawn):
            if text.get_text().endswith("%"):
                assert not overlap(corners(drawn, text), bar), f"{text.get_text()!r} covers a bar"


def test_numbers_of_a_wide_axis_do_not_meet_and_every_point_is_in_the_axes() -> None:
    far = (matmul(4, "bf16", 1e3), matmul(10**6, "bf16", 9e17, ci95_s=(1.0, 2.0)), matmul(10**8, "bf16", 9e11))
    drawn = draw_roofline([PlotMachine(CPU, far, (environment(),))])
    axes = drawn.axes[0]
    drawn.canvas.draw()
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        shown = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = [text.get_window_extent(renderer(drawn)) for text in shown if text.get_text()]
        assert len(boxes) > 5
        assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))
    for x, y in spots(drawn):
        assert axes.get_xlim()[0] < x < axes.get_xlim()[1]
        assert axes.get_ylim()[0] < y < axes.get_ylim()[1]


# Placing labels


def test_a_taken_place_is_not_taken_again() -> None:
    placer = Placer((0, 0, 10, 10))
    same = [Candidate(5, 5, 2, 1, cost=0), Candidate(5, 8, 2, 1, cost=1)]
    assert [placer.place(same), placer.place(same), placer.place(same)] == [*same, None]


def test_a_label_stays_in_bounds_and_off_marks_and_rather_off_lines() -> None:
    placer = Placer((0, 0, 10, 10))
    placer.block("mark", [(4, 4, 6, 6)])
    assert placer.place([Candidate(5, 5, 1, 1, cost=0), Candidate(9.8, 5, 1, 1, cost=0)]) is None
    assert placer.place([Candidate(5, 5, 1, 1, cost=0)], avoid=("text",)) is not None
    placer.block("line", [(0, 8, 10, 8.1)])
    chosen = placer.place([Candidate(5, 8, 1, 0.5, cost=0), Candidate(5, 9, 1, 0.5, cost=0.1)])
    assert chosen is not None
    assert chosen.y == 9


def test_a_leader_line_rather_leads_around_a_mark() -> None:
    placer = Placer((0, 0, 10, 10))
    placer.block("mark", [(3, 4.9, 3.2, 5.1)])
    through = Candidate(8, 5, 1, 0.5, cost=0, leader=((1, 5), (7.5, 5)))
    around = Candidate(8, 8, 1, 0.5, cost=0.5, leader=((1, 5), (7.5, 8)))
    assert placer.place([through, around]) == around


def test_the_boxes_of_a_slanted_label_cover_it() -> None:
    label = Candidate(0, 0, 3, 0.4, cost=0, angle=45)
    boxes = label.boxes()
    for along, across in itertools.product(np.linspace(-1.49, 1.49, 40), np.linspace(-0.19, 0.19, 9)):
        x = (along - across) / math.sqrt(2)
        y = (along + across) / math.sqrt(2)
        assert any(b[0] <= x <= b[2] and b[1] <= y <= b[3] for b in boxes)
    reach = max(abs(b[0] - b[1]) for b in boxes) / math.sqrt(2)
    assert reach < 0.5  # and not much more than that


def test_places_along_a_line_are_parallel_to_it_and_beside_it() -> None:
    places = along_line((0, 0), (4, 4), (1, 0.2), liked=0.5, gap=0.1)
    assert {round(place.angle) for place in places} == {45}
    distances = {round(abs(place.y - place.x) / math.sqrt(2), 6) for place in places}
    assert distances == {0.2, 0}
    assert all(place.is_on_line == (abs(place.x - place.y) < 1e-9) for place in places)
    assert along_line((0, 0), (1, 0), (2, 0.2), liked=1) == []
    assert along_line((0, 0), (1, 0), (2, 0.2), liked=1, overhang=1.2) != []


def test_a_far_place_has_a_leader_and_a_near_one_has_none() -> None:
    places = around_point((0, 0), (1, 0.2), (90, 0), near=0.1)
    assert places[0].leader is None
    assert all(place.leader is not None for place in places if place.y - 0.1 > 0.3)
