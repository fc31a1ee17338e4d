"""Colors, dashes, markers and numbers of the picture: told apart in gray and by the color-blind."""

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from msgspec import structs
from plot_scenes import (
    CPU,
    draw,
    ends,
    flats,
    last_line,
    machine,
    markers,
    matmul,
    on,
    roofs,
    spots,
    words,
)
from run_scenes import RUNS, profile_op

from results.show.picture import INK, SERIES_COLORS, contrast_to_white
from roofline.__main__ import main
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline
from roofline.picture.style import (
    DTYPE_COLORS,
    FOREIGN_COLOR,
    KIND_DASHES,
    MAX_MACHINES,
    text_color,
)


def test_every_dtype_has_one_color_for_roof_and_points():
    drawn = draw("a crowd")
    of_roofs = {to_hex(line.get_color()).upper() for line in flats(drawn)}
    of_points = {to_hex(line.get_color()).upper() for line in markers(drawn)}
    assert of_roofs == of_points == {DTYPE_COLORS["bf16"], DTYPE_COLORS["fp8e4m3"]}
    for line in flats(drawn):
        dtype = "bf16" if ends(line)[0][1] < 1000e12 else "fp8e4m3"
        assert to_hex(line.get_color()).upper() == DTYPE_COLORS[dtype]


def test_every_series_has_a_shape_and_its_dtype_and_provider_in_the_legend():
    drawn = draw("a crowd")
    providers = ("torch", "torch-compile", "triton-v1")
    names = {
        f"matmul {dtype} {provider}" for dtype in ("bf16", "fp8e4m3") for provider in providers
    }
    names |= {f"{op} bf16 torch" for op in ("relu", "gelu", "silu", "add")}
    assert names | {"measured"} <= set(words(drawn))
    assert len({line.get_marker() for line in markers(drawn)}) == len(names)
    assert {line.get_markerfacecolor() for line in markers(drawn)} == {
        DTYPE_COLORS["bf16"],
        DTYPE_COLORS["fp8e4m3"],
    }


def test_runs_of_one_machine_differ_in_shape_and_are_named():
    runs = [
        on(CPU, matmul(512, "bf16", 7e11)),
        on(CPU, matmul(512, "bf16", 7.1e11), started_at="2026-11-20T22:03:12+00:00"),
    ]
    drawn = draw_roofline(build_scene(runs, [], ["bf16"]))
    assert len({line.get_marker() for line in markers(drawn)}) == 2
    assert {f"bf16 torch, bench.matmul 2026-11-20 {hour}:03:12" for hour in (21, 22)} <= set(
        words(drawn)
    )


def test_an_outlier_is_drawn_at_the_edge_with_its_value():
    records = [matmul(n, "bf16", 5e11) for n in (256, 512, 1024)]
    near, far = (build_scene([on(CPU, *records, matmul(8, "bf16", rate))]) for rate in (5e10, 3e5))
    assert not any(point.is_outlier for point in near.points)
    (slow,) = (point for point in far.points if point.is_outlier)
    assert far.view.top - far.view.bottom < 2
    assert (slow.x, slow.y) == pytest.approx((8 / 3, 3e5))
    assert slow.label == "8³ 0.00025 % ↓ 300 kFLOP/s"
    assert far.view.bottom < np.log10(slow.spot[1]) < far.view.bottom + 0.1
    assert slow.label in words(draw_roofline(far))
    sparse = replace(records[0], flops=100, median_s=1e-4, ci95_s=None, case="sparse")
    left = build_scene([on(CPU, *records, sparse)])
    (found,) = (point for point in left.points if point.is_outlier)
    assert "← 0.000254 FLOP/byte" in (found.label or "")
    assert left.view.left > -1


def test_as_many_machines_as_a_picture_takes_have_their_own_color():
    assert len(set(SERIES_COLORS)) == MAX_MACHINES == 8
    drawn = draw("three GPUs")
    slopes = [line for line in roofs(drawn) if line not in flats(drawn)]
    assert [to_hex(line.get_color()).upper() for line in slopes] == list(SERIES_COLORS[:3])


def test_one_dtype_colors_providers_and_leaves_ceilings_neutral():
    drawn = draw_roofline(build_scene(*RUNS["versions"]))
    assert {to_hex(line.get_color()).upper() for line in markers(drawn)} == set(SERIES_COLORS[:5])
    assert {line.get_fillstyle() for line in markers(drawn)} == {"full"}
    assert {to_hex(line.get_color()).upper() for line in flats(drawn)} == {"#1A1A1A"}
    assert {"bf16 torch", "bf16 triton-v4", "torch 71 %", "triton-v3 60 %"} <= set(words(drawn))


def test_vector_peaks_are_drawn_if_ops_need_them():
    said = words(draw_roofline(build_scene(*RUNS["vector and matrix"])))
    assert {"vector fp32 66.9 TFLOP/s datasheet", "vector fp32 58 TFLOP/s measured"} <= set(said)
    assert "bf16 989 TFLOP/s datasheet" in said
    assert not any(
        word.startswith("vector") for word in words(draw_roofline(build_scene(*RUNS["sweep"])))
    )


def test_flagged_points_are_crossed_out_and_counted_in_the_caption():
    drawn = draw_roofline(build_scene(*RUNS["flagged"]))
    crosses = [
        spot
        for line in drawn.axes[0].lines
        if line.get_marker() == "x"
        for spot in zip(*line.get_data(), strict=True)
    ]
    assert len(crosses) == 4
    assert set(crosses) <= set(spots(drawn))
    assert "Crossed out: 4 preempted, 2 not-converged." in last_line(drawn)
    assert "bf16 4096³ 93 %" in words(drawn)


def test_recipes_and_checkpoints_tell_training_steps_of_one_shape_apart():
    said = set(words(draw_roofline(build_scene(*RUNS["train_step"]))))
    assert {
        "recipe bf16 checkpoint none 33 %",
        "recipe bf16 checkpoint full 26 %",
        "recipe amp checkpoint full 23 %",
    } <= said


def test_kinds_of_ceilings_have_their_own_dashes():
    drawn = draw("a crowd")
    solid = {ends(line)[0][1] for line in flats(drawn) if line.get_linestyle() == "-"}
    assert solid == {795e12, 1454e12}
    assert len(set(KIND_DASHES.values())) == len(KIND_DASHES)


def test_roofs_on_one_another_are_one_line_in_the_color_of_their_label():
    twins = machine("g", {"fp16": 989.4e12, "bf16": 989.4e12}, 3.352e12)
    drawn = draw_roofline(build_scene([], [twins]))
    assert "fp16, bf16 989 TFLOP/s" in words(drawn)
    (line,) = flats(drawn)
    assert to_hex(line.get_color()).upper() == INK


@pytest.mark.parametrize("color", [*DTYPE_COLORS.values(), FOREIGN_COLOR])
def test_words_can_be_read_on_white(color):
    assert contrast_to_white(*to_rgb(text_color(color))) >= 4.5


def test_profile_points_have_area_by_time_and_large_ones_a_label():
    drawn = draw_roofline(build_scene(*RUNS["a profile"]))
    scene = build_scene(*RUNS["a profile"])
    sizes = [line.get_markersize() for line in markers(drawn)]
    assert sum(1 + len(point.others) for point in scene.points) == 200
    assert len(sizes) == len(scene.points)
    assert sizes[0] ** 2 / sizes[1] ** 2 == pytest.approx(0.3 / 0.2)
    said = words(drawn)
    labels = {
        f"layers.*.mlp.part{i}:\nmatmul, {pct} % of time" for i, pct in enumerate((30, 20, 10, 5))
    }
    assert labels | {"layers.*.mlp.part4:\nadd and 3 more, 3.5 % of time"} <= set(said)
    assert not [word for word in said if "part5 " in word]
    assert "Area: that share, 100 % in all points" in " ".join(" ".join(said).split())


def test_points_of_a_trace_are_labeled_without_modules():
    ((stamp, records),), gpus, dtypes = RUNS["a profile"]
    traced = [
        replace(record, details=structs.replace(record.details, module="")) for record in records
    ]
    said = words(draw_roofline(build_scene([(stamp, traced)], gpus, dtypes)))
    assert {f"matmul, {pct} % of time" for pct in (30, 20, 10, 5)} <= set(said)
    assert "Labels: operation, share of time." in " ".join(" ".join(said).split())


def test_profile_points_of_negligible_time_are_counted_but_not_drawn():
    ((stamp, records),), gpus, dtypes = RUNS["a profile"]
    short = profile_op(module="", share=0.0009)
    small = [replace(record, details=short) for record in records[:3]]
    scene = build_scene([(stamp, [*small, *records[3:]])], gpus, dtypes)
    assert sum(1 + len(point.others) for point in scene.points) == 197
    assert dict(scene.left_out) == {"below 0.1 % of the time": 3}


def test_pictures_of_estimates_have_themes_too(tmp_path):
    words = "sweep infer --model llama-3-8b --gpu h100-sxm --over batch=1,8"
    picture = tmp_path / "a.svg"
    assert main(["estimate", *words.split(), "--plot", str(picture), "--theme", "dark"]) == 0
    assert "fill: #171717" in picture.read_text(encoding="utf-8")
