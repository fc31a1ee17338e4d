"""Marks around roofs and points: bands, caps, arrows between versions, and fillings."""

import math
from dataclasses import replace

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.text import Annotation
from plot_scenes import BOTH, CPU, drawn, last_line, machine, markers, matmul, on, words

from roofline.machine import Ceiling
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline
from roofline.picture.texts import version_steps

GPU = machine("g", {"bf16": 800e12}, 4e12, "measured")


def at_layer(figure, layer):
    return [line for line in figure.axes[0].lines if line.get_zorder() == layer]


def xy(line):
    xs, ys = line.get_data()
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


def test_a_measured_roof_has_the_band_of_its_interval():
    entries = [
        replace(entry, ci95=(0.9 * entry.value, 1.05 * entry.value)) for entry in GPU.entries
    ]
    figure = drawn(GPU.with_entries(entries), matmul(1024, "bf16", 3e14))
    bands = [band for band in figure.axes[0].collections if isinstance(band, PolyCollection)]
    assert len(bands) == 2
    slope, flat = (
        [tuple(map(float, spot)) for spot in band.get_paths()[0].vertices] for band in bands
    )
    assert {y for _, y in flat} == {0.9 * 800e12, 1.05 * 800e12}
    assert {round(y / x / 4e12, 6) for x, y in slope} == {0.9, 1.05}
    assert max(x for x, _ in slope) == pytest.approx(200)
    assert "Bands: p5 to p95 of the samples of a measured roof" in last_line(figure)
    assert not drawn(GPU, matmul(1024, "bf16", 3e14)).axes[0].collections


def test_a_ridge_of_a_disturbed_calibration_is_doubtful():
    point = matmul(1024, "bf16", 3e14)
    assert "ridge 200" in words(drawn(GPU, point))
    entries = [replace(entry, disturbed="a thread waited for a core") for entry in GPU.entries]
    assert "ridge 200 (doubtful)" in words(drawn(GPU.with_entries(entries), point))


def test_long_names_with_the_same_end_have_labels_that_differ():
    names = [f"/a/long/way/to/kernel_{n}.py:launch_the_kernel_with_a_name" for n in (7, 8)]
    points = [matmul(1024, "bf16", 3e14 / n, name) for n, name in enumerate(names, 1)]
    shown = " ".join(words(drawn(GPU, *points, matmul(1024, "bf16", 2e14))))
    assert "/kernel_7 " in shown
    assert "/kernel_8 " in shown
    one = " ".join(words(drawn(GPU, points[0], matmul(1024, "bf16", 2e14))))
    assert "kernel_with_a_name" in one


def test_a_plot_whose_points_are_all_disturbed_says_first_that_the_machine_was_busy():
    busy = matmul(512, "bf16", 3e14, flags=("not-converged", "preempted"))
    line = "The machine was busy: all points are doubtful, measure again"
    assert any(text.endswith(line) for text in words(drawn(GPU, busy)))
    calm = matmul(2048, "bf16", 3e14, flags=("not-converged",))
    assert not any(text.endswith(line) for text in words(drawn(GPU, busy, calm)))


def test_a_note_on_the_machine_is_a_sentence_of_the_caption():
    noted = replace(GPU, note="may be too low: fp32 peak")
    assert last_line(drawn(noted)) == "Note: may be too low: fp32 peak."


def test_a_point_whose_launch_is_longer_than_its_roof_has_a_cap():
    floor = GPU.with_entries([Ceiling("launch", "launch", 2e-6, "measured", "a test")])
    small, large = matmul(256, "bf16", 5e12), matmul(8192, "bf16", 7e14)
    figure = drawn(floor, small, large)
    assert [xy(line) for line in at_layer(figure, 4.6)] == [
        [(pytest.approx(256 / 3), pytest.approx(2 * 256**3 / 2e-6))]
    ]
    assert "Caps: FLOPs over the launch floor" in last_line(figure)
    assert not at_layer(drawn(GPU, small, large), 4.6)


def arrows(figure):
    found = [
        text
        for text in figure.axes[0].texts
        if isinstance(text, Annotation) and not text.get_text()
    ]
    return [(text.xyann, text.xy) for text in found]


def test_an_arrow_goes_from_each_version_to_the_next():
    rates = {
        "triton-v10": 6e14,
        "triton-v1": 1e14,
        "triton-v2": 3e14,
        "torch": 5e14,
        "mine_v1": 2e14,
    }
    records = tuple(matmul(4096, "bf16", rate, provider) for provider, rate in rates.items())
    figure = drawn(GPU, *records, matmul(2048, "bf16", 1e14, "triton-v1"))
    steps = version_steps(build_scene([on(GPU, *records)]))
    assert [(one.record.provider, two.record.provider) for one, two in steps] == [
        ("triton-v1", "triton-v2"),
        ("triton-v2", "triton-v10"),
    ]
    assert arrows(figure) == [((one.x, one.y), (two.x, two.y)) for one, two in steps]
    assert "Arrows: from version to version" in last_line(figure)


def test_an_arrow_goes_from_run_to_run():
    later = on(GPU, matmul(4096, "bf16", 6e14), run_id="b", started_at="2026-11-21T00:00:00+00:00")
    figure = draw_roofline(build_scene([later, on(GPU, matmul(4096, "bf16", 3e14))]))
    assert [[round(y / 1e12) for _, y in arrow] for arrow in arrows(figure)] == [[300, 600]]


def test_points_from_cache_are_hollow():
    warm = {"cache": "warm"}
    records = [
        matmul(1024, "bf16", 6e14, **warm),
        matmul(1024, "bf16", 3e14),
        matmul(2048, "bf16", 4e14),
    ]
    figure = drawn(GPU, *records)
    hollow = {line.get_markerfacecolor() == "white" for line in markers(figure)}
    assert hollow == {True, False}
    for line in markers(figure):
        for _, y in xy(line):
            assert (line.get_markerfacecolor() == "white") == math.isclose(y, 6e14)
    assert {"from cache", "from memory"} <= set(words(figure))
    assert "from cache" not in words(drawn(BOTH, *records[1:]))
    assert "from cache" not in words(drawn(CPU, records[0]))
