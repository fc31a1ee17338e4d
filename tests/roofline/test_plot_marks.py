"""What stands around roofs and points: bands, the roof of the cache, caps, arrows between versions, hollow points."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from plot_scenes import BOTH, CPU, environment, last_line, machine, markers, matmul, words

from results.record import Record
from roofline.ceilings import Ceiling, Ceilings
from roofline.plot.figure import PlotMachine, draw_roofline
from roofline.plot.scene import build_scene, version_steps

GPU = machine("g", {"bf16": 800e12}, 4e12, "measured")


def drawn(ceilings: Ceilings, *records: Record) -> Figure:
    return draw_roofline([PlotMachine(ceilings, records, (environment(),))])


def at_layer(figure: Figure, layer: float) -> list[Line2D]:
    return [line for line in figure.axes[0].lines if line.get_zorder() == layer]


def xy(line: Line2D) -> list[tuple[float, float]]:
    xs, ys = line.get_data()
    return [(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]


def test_a_measured_roof_has_the_band_of_its_interval() -> None:
    entries = [replace(entry, ci95=(0.9 * entry.value, 1.05 * entry.value)) for entry in GPU.entries]
    figure = drawn(GPU.with_entries(entries), matmul(1024, "bf16", 3e14))
    bands = [band for band in figure.axes[0].collections if isinstance(band, PolyCollection)]
    assert len(bands) == 2
    slope, flat = ([tuple(map(float, spot)) for spot in band.get_paths()[0].vertices] for band in bands)
    assert {y for _, y in flat} == {0.9 * 800e12, 1.05 * 800e12}
    assert {round(y / x / 4e12, 6) for x, y in slope} == {0.9, 1.05}
    assert max(x for x, _ in slope) == pytest.approx(200)
    assert "Bands: 95 % CI of the median behind a measured roof" in last_line(figure)
    assert not drawn(GPU, matmul(1024, "bf16", 3e14)).axes[0].collections


def test_quantiles_are_the_band_before_the_interval_and_a_roof_above_them_is_explained() -> None:
    entries = [
        replace(entry, ci95=(0.9 * entry.value, 0.95 * entry.value), p5_p95=(0.7 * entry.value, 0.98 * entry.value))
        for entry in GPU.entries
    ]
    figure = drawn(GPU.with_entries(entries), matmul(1024, "bf16", 3e14))
    flat = figure.axes[0].collections[1].get_paths()[0].vertices
    assert {float(y) for _, y in flat} == {0.7 * 800e12, 0.98 * 800e12}
    told = last_line(figure)
    assert "Bands: p5 to p95 of the samples behind a measured roof" in told
    assert "95 % CI of the median behind" not in told
    assert "A roof above its band is the fastest sample" in told
    within = [replace(entry, p5_p95=(0.9 * entry.value, 1.1 * entry.value)) for entry in GPU.entries]
    assert "A roof above" not in last_line(drawn(GPU.with_entries(within), matmul(1024, "bf16", 3e14)))


def test_a_datasheet_has_no_band_and_a_bound_of_nothing_neither() -> None:
    for kind, ci95 in (("datasheet", (7e14, 9e14)), ("measured", (0.0, 9e14))):
        entries = [replace(entry, kind=kind, ci95=ci95) for entry in GPU.entries]
        assert not drawn(Ceilings("g", "G", tuple(entries))).axes[0].collections


def test_a_point_whose_launch_is_longer_than_its_roof_has_a_cap() -> None:
    floor = GPU.with_entries([Ceiling("launch", "launch", 2e-6, "measured", "a test")])
    small, large = matmul(256, "bf16", 5e12), matmul(8192, "bf16", 7e14)
    figure = drawn(floor, small, large)
    assert [xy(line) for line in at_layer(figure, 4.6)] == [
        [(pytest.approx(256 / 3), pytest.approx(2 * 256**3 / 2e-6))]
    ]
    assert "Caps: FLOPs over the launch floor" in last_line(figure)
    assert not at_layer(drawn(GPU, small, large), 4.6)


def arrows(figure: Figure) -> list[FancyArrowPatch]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def test_an_arrow_goes_from_each_version_to_the_next() -> None:
    rates = {"triton-v10": 6e14, "triton-v1": 1e14, "triton-v2": 3e14, "torch": 5e14, "mine_v1": 2e14}
    records = tuple(matmul(4096, "bf16", rate, provider) for provider, rate in rates.items())
    figure = drawn(GPU, *records, matmul(2048, "bf16", 1e14, "triton-v1"))
    steps = version_steps(build_scene([PlotMachine(GPU, records, (environment(),))]))
    assert [(one.record.provider, two.record.provider) for one, two in steps] == [
        ("triton-v1", "triton-v2"),
        ("triton-v2", "triton-v10"),
    ]
    assert len(arrows(figure)) == 2
    assert "Arrows: from version to version" in last_line(figure)
    for arrow, (one, two) in zip(arrows(figure), steps, strict=True):
        (start, end) = arrow._posA_posB  # type: ignore[attr-defined]
        assert (start, end) == ((one.intensity, one.flops_per_s), (two.intensity, two.flops_per_s))


def test_an_arrow_goes_from_run_to_run() -> None:
    later = environment(run_id="b", started_at="2026-11-21T00:00:00+00:00")
    records = (matmul(4096, "bf16", 6e14), matmul(4096, "bf16", 3e14))
    both = PlotMachine(GPU, records, (later, environment()), (1, 1))
    figure = draw_roofline([both])
    assert [[round(y / 1e12) for _, y in arrow._posA_posB] for arrow in arrows(figure)] == [[300, 600]]  # type: ignore[attr-defined]


def test_points_from_cache_are_hollow() -> None:
    warm: dict[str, Any] = {"cache": "warm"}
    records = [matmul(1024, "bf16", 6e14, **warm), matmul(1024, "bf16", 3e14), matmul(2048, "bf16", 4e14)]
    figure = drawn(GPU, *records)
    hollow = {line.get_markerfacecolor() == "white" for line in markers(figure)}
    assert hollow == {True, False}
    for line in markers(figure):
        for _, y in xy(line):
            assert (line.get_markerfacecolor() == "white") == math.isclose(y, 6e14)
    assert {"from cache", "from memory"} <= set(words(figure))
    assert "from cache" not in words(drawn(BOTH, *records[1:]))
    assert "from cache" not in words(drawn(CPU, records[0]))


def test_the_heading_of_a_legend_stands_in_the_row_of_its_first_entry() -> None:
    for most in range(1, 9):
        figure = drawn(
            GPU,
            *(
                matmul(1024 * (n + 1), "bf16", 3e14, f"provider-{n}", cache="warm" if n else "cold")
                for n in range(most)
            ),
        )
        rows = {text.get_text(): text.get_position()[1] for text in figure.texts}
        if "from memory" in rows:
            assert rows["cache"] == rows["from memory"]
