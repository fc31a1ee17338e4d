"""The roofline picture: geometry of roofs and points, labels, and the files it is written to."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from plot_scenes import (
    CPU,
    CPU_MIXES,
    H100,
    SCENES,
    assert_apart,
    corners,
    draw,
    drawn,
    ends,
    environment,
    flats,
    labels_in,
    last_line,
    machine,
    markers,
    matmul,
    on,
    overlap,
    renderer,
    roofs,
    scene,
    spots,
    texts,
    thin,
    words,
)
from run_scenes import RUNS

from results.show.picture import check_picture, save_picture
from results.store.runfile import StoreError
from roofline.machine import Ceiling
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline, plot_run


@pytest.fixture(scope="module", params=[*SCENES, *RUNS])
def figure(request):
    return (
        draw(request.param)
        if request.param in SCENES
        else draw_roofline(build_scene(*RUNS[request.param]))
    )


def slope_angle(figure):
    """Return the angle of a bandwidth in a figure, degrees."""
    one, ten = figure.axes[0].transData.transform([(1, 1), (10, 10)])
    return math.degrees(math.atan2(*(ten - one)[::-1]))


def test_a_picture_is_in_landscape(figure):
    width, height = figure.get_size_inches()
    assert height < 0.9 * width
    box = figure.axes[0].get_window_extent()
    assert box.width == pytest.approx(9.75 * figure.dpi)
    assert box.height == pytest.approx(4.6 * figure.dpi)


def test_roofs_extend_past_the_last_point_and_over_the_whole_axes(figure):
    right = figure.axes[0].get_xlim()[1]
    last = max((x for x, _ in spots(figure)), default=0)
    for line in flats(figure):
        assert ends(line)[1][0] == pytest.approx(right)
        assert ends(line)[1][0] > 2 * last


def test_the_ridge_and_the_bounds_beside_it_are_named():
    drawn = draw_roofline(build_scene([], [H100], ["bf16"]))
    assert {"ridge 295", "memory-bound", "compute-bound"} <= set(words(drawn))


def test_every_point_is_in_the_axes(figure):
    axes = figure.axes[0]
    for x, y in spots(figure):
        assert axes.get_xlim()[0] < x < axes.get_xlim()[1]
        assert axes.get_ylim()[0] < y < axes.get_ylim()[1]


def bandwidths(lines):
    return [y / x for line in lines for x, y in ends(line)[:1]]


def test_mixes_are_thin_lines_of_their_bandwidth_below_the_envelope():
    drawn = draw("mixes of a CPU")
    lines, slopes = thin(drawn), [line for line in roofs(drawn) if line not in flats(drawn)]
    assert bandwidths(lines) == pytest.approx(sorted(CPU_MIXES.values(), reverse=True)[1:])
    assert max(CPU_MIXES.values()) in [pytest.approx(value) for value in bandwidths(slopes)]
    for line in lines:
        start, end = ends(line)
        assert end[1] / end[0] == pytest.approx(start[1] / start[0])
        assert end[1] == pytest.approx(930e9)  # ends at the highest measured peak
        assert line.get_linewidth() < min(slope.get_linewidth() for slope in slopes) / 2


def test_the_share_at_a_point_is_that_of_its_own_mix():
    said = words(draw("mixes of a CPU"))
    # 0.008 x 4.8 TB/s are 38.4 of a copy's 40 GB/s, and 64 % of the envelope.
    assert "relu 268435456 96 %" in said
    assert "fraction of the roof for the row's mix of reads and writes." in last_line(
        draw("mixes of a CPU")
    )
    assert "row's mix" not in last_line(draw("a CPU with points"))


def test_points_stand_at_their_counts_over_their_times():
    record = matmul(1024, "bf16", 860e9)
    assert list(spots(drawn(CPU, record))) == [pytest.approx((1024 / 3, 860e9))]


def test_points_are_judged_by_the_ceilings_of_their_own_run():
    slower = machine("cpu", {"bf16": 465e9, "fp32": 112e9}, 22e9, "measured")
    old, new = (
        on(CPU, matmul(1024, "bf16", 860e9)),
        on(slower, matmul(1024, "bf16", 430e9), started_at="2026-11-22"),
    )
    together = build_scene([old, new])
    assert [point.roofline_pct for point in together.points] == [pytest.approx(100 * 860 / 930)] * 2
    assert not any(point.excess for point in together.points)
    # The roofs that are drawn are those of the newer run.
    assert together.machines[0].peak("bf16").value == 465e9


def test_error_bars_span_the_interval_of_the_median():
    bars = [
        line
        for line in drawn(CPU, matmul(1024, "bf16", 860e9)).axes[0].lines
        if line.get_marker() == "_"
    ]
    assert len(bars) == 1
    assert list(bars[0].get_xdata()[:2]) == pytest.approx([1024 / 3, 1024 / 3])
    assert list(bars[0].get_ydata()[:2]) == pytest.approx([860e9 / 1.04, 860e9 / 0.98])


def test_a_point_above_its_roof_stays_there_and_is_ringed():
    drawn = draw("a crowd")
    above = [(x, y) for x, y in spots(drawn) if y == pytest.approx(1010e12)]
    assert above == [pytest.approx((2048, 1010e12))]
    rings = [line for line in drawn.axes[0].lines if line.get_zorder() == 8]
    assert [tuple(np.ravel(ring.get_data())) for ring in rings] == [pytest.approx((2048, 1010e12))]


def test_what_cannot_be_drawn_is_counted_and_not_drawn():
    crowd = scene("a crowd")
    assert len(crowd.points) == 42
    assert crowd.left_out == {"skipped": 1, "invalid": 1, "failed": 1, "without FLOPs or bytes": 1}
    assert len(list(spots(draw("a crowd")))) == 42
    only_fp8 = build_scene(SCENES["a crowd"][0], [], ["fp8e4m3"])
    assert {point.record.dtype for point in only_fp8.points} == {"fp8e4m3"}
    assert only_fp8.left_out["of other dtypes"] == 42 - 15 + 1


def test_a_foreign_dtype_is_drawn_in_gray():
    figure = drawn(CPU, replace(matmul(256, "bf16", 1e11), dtype="int4"))
    assert [to_hex(line.get_color()) for line in markers(figure)] == ["#7a7a7a"]
    assert "int4" in " ".join(words(figure))


def test_no_text_overlaps_another(figure):
    shapes = [(text.get_text(), corners(figure, text)) for text in texts(figure)]
    assert len(shapes) >= 4
    assert_apart(shapes)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SCENES)
def test_no_label_covers_a_point(name):
    figure, spot_size = draw(name), 3
    for x, y in spots(figure):
        px, py = figure.axes[0].transData.transform((x, y))
        square = np.array([[px, py]] * 4) + spot_size * np.array(
            [[-1, -1], [1, -1], [1, 1], [-1, 1]]
        )
        for text in labels_in(figure):
            assert not overlap(corners(figure, text), square), f"{text.get_text()!r} covers a point"


@pytest.mark.sampled(3)
def test_labels_stay_in_the_axes_and_all_text_in_the_figure(figure):
    figure.canvas.draw()
    page, axes = figure.bbox, figure.axes[0].get_window_extent()
    for text in labels_in(figure):
        shape = corners(figure, text)
        assert (shape >= (axes.x0, axes.y0)).all(), text.get_text()
        assert (shape <= (axes.x1 + 1, axes.y1 + 1)).all(), text.get_text()
    for text in (*texts(figure), *axis_texts(figure)):
        box = text.get_window_extent(renderer(figure))
        assert box.x0 >= 0, text.get_text()
        assert box.y0 >= 0, text.get_text()
        assert box.x1 <= page.x1, text.get_text()
        assert box.y1 <= page.y1, text.get_text()


def axis_texts(figure):
    axes = figure.axes[0]
    shown = [axes.xaxis.label, axes.yaxis.label]
    for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        shown += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert all(text.get_text() for text in shown)
    return shown


def test_every_roof_has_a_label_with_value_and_kind():
    said = words(draw("a crowd"))
    for label in (
        "fp8e4m3 1979 TFLOP/s datasheet",
        "bf16 989 TFLOP/s datasheet",
        "fp8e4m3 1454 TFLOP/s measured",
        "bf16 795 TFLOP/s measured",
        "4.80 TB/s datasheet, read 4.50 TB/s measured",
    ):
        assert said.count(label) == 1
    for value in (412, 323, 206, 177):
        assert f"ridge {value}" in said


def test_the_thin_lines_share_a_label_below_the_lowest_of_them():
    figure = draw("mixes of a CPU")
    label = "other mixes: triad 45 GB/s, copy 40 GB/s, write 25 GB/s"
    (text,) = (text for text in labels_in(figure) if text.get_text() == label)
    assert text.get_rotation() == pytest.approx(slope_angle(figure), abs=0.01)
    places = figure.axes[0].transData.inverted().transform(corners(figure, text))
    assert all(y / x < 25e9 for x, y in places)


def test_an_overlay_names_the_machine_of_each_roof():
    drawn = draw("three GPUs")
    said = words(drawn)
    assert "h100-sxm, h200-sxm bf16 989 TFLOP/s" in said  # one line, one label
    assert "a100-sxm-80gb bf16 312 TFLOP/s" in said
    for slug, bandwidth in (("h100-sxm", "3.35"), ("h200-sxm", "4.80"), ("a100-sxm-80gb", "2.04")):
        assert f"{slug} {bandwidth} TB/s" in " ".join(said)  # close bandwidths share a label
    slopes = [line for line in roofs(drawn) if line not in flats(drawn)]
    assert len({(line.get_linewidth(), str(line.get_linestyle())) for line in slopes}) >= 2
    assert len({line.get_linewidth() for line in slopes}) == 3


def test_the_caption_says_what_was_measured_and_what_is_not_drawn():
    caption = last_line(draw("a crowd"))
    for part in (
        "torch 2.13.0, 2 threads, cold cache, 2026-11-20.",
        "Ringed: 1 above the datasheet bf16 peak: the clock ran above the datasheet's",
        "Not drawn: 1 skipped, 1 invalid, 1 failed, 1 without FLOPs or bytes.",
    ):
        assert part in caption


def test_many_points_label_only_excesses_and_the_fastest_of_each_op():
    said = words(draw("a crowd"))
    assert {"matmul bf16 torch 6144³ 102 %", "add bf16 torch 134217728 90 %"} <= set(said)
    assert sum(word.startswith("relu") and word.endswith("%") for word in said) == 1
    few = [word for word in words(draw("a CPU with points")) if word.endswith("%")]
    assert len(few) == 8
    assert {"bf16 2048³ 98 %", "512³ 75 %", "fp32 2048³ 97 %"} <= set(few)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "missing"), [(name, 8 if name == "90 points" else 1) for name in RUNS]
)
def test_nearly_every_point_that_should_have_a_label_has_one(name, missing):
    shown = build_scene(*RUNS[name])
    labels = [point.label for point in shown.points if point.label]
    said = [text.replace(":\n", ": ") for text in words(draw_roofline(shown))]
    assert sum(label.replace("$", r"\$") not in said for label in labels) <= missing


@pytest.mark.exhaustive
def test_suffix_selects_the_format_and_output_is_reproducible(tmp_path):
    for name, signature in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.PDF", b"%PDF")):
        save_picture(draw("one GPU"), tmp_path / name)
        first = (tmp_path / name).read_bytes()
        assert first.startswith(signature)
        save_picture(draw("one GPU"), tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.PDF", "a.png", "a.svg"]


def test_a_style_of_the_user_changes_nothing(tmp_path):
    import matplotlib

    save_picture(draw("one GPU"), tmp_path / "a.png")
    with matplotlib.rc_context(
        {"font.size": 30, "axes.grid": False, "lines.linewidth": 9, "savefig.bbox": "tight"}
    ):
        save_picture(draw("one GPU"), tmp_path / "b.png")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file" / "deep" / "a.png", tmp_path / "folder.png"):
        with pytest.raises(
            StoreError, match=r"cannot write .*: (it is a directory|a parent is a file)"
        ):
            check_picture(path)
        with pytest.raises(StoreError, match="cannot write"):
            save_picture(draw("one GPU"), path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


def test_plot_run_draws_records_under_the_ceilings_of_their_environment(tmp_path):
    plot_run(environment(), [matmul(1024, "bf16", 860e9)], tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text(encoding="utf-8").count("<svg") == 1
    plot_run(environment(), [], tmp_path / "roofs.png")
    assert (tmp_path / "roofs.png").exists()


@pytest.mark.parametrize("name", ["a.gif", ".png"])
def test_an_unknown_suffix_is_refused_before_any_work(name, tmp_path):
    with pytest.raises(StoreError, match=r"allowed: \.png, \.svg, \.pdf"):
        check_picture(tmp_path / name)


CACHED = CPU.with_entries(
    [
        Ceiling(
            "cache-bandwidth",
            "last-level cache",
            180e9,
            "measured",
            "a test",
            work_per_launch=2**20,
        )
    ]
)


@pytest.mark.parametrize(
    ("row", "is_drawn"),
    [
        (matmul(256, "fp32", 150e9, cache="warm"), True),
        (matmul(256, "fp32", 150e9, cache="cold"), False),
        (matmul(1024, "fp32", 150e9, cache="warm"), False),
    ],
)
def test_the_roof_of_the_cache_is_drawn_with_warm_rows_that_fit_it(row, is_drawn):
    scene = build_scene([on(CACHED, row)])
    slopes = [roof for roof in scene.roofs if not roof.is_flat]
    assert [roof.ceiling.name for roof in slopes] == ["copy", *["last-level cache"] * is_drawn]
    if is_drawn:
        # It ends at the highest measured peak, of bf16.
        assert slopes[1].ends(scene.view)[1] == pytest.approx((930e9 / 180e9, 930e9))
        assert "last-level cache 180 GB/s" in slopes[1].label
        assert draw_roofline(scene).axes[0].lines
