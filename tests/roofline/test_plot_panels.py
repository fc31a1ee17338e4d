"""Small multiples: each point stands in one panel, all panels have the same axes, and a color means the same in all."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from plot_scenes import BOTH, SCENES, elementwise, environment, matmul

from roofline.__main__ import main
from roofline.commands.plot import draw
from roofline.plot.figure import PlotError, PlotMachine, draw_panels
from roofline.plot.scene import build_scene

RECORDS = (
    matmul(1024, "bf16", 3e14, "torch"),
    matmul(2048, "bf16", 4e14, "triton-v1"),
    matmul(2048, "fp8e4m3", 5e14, "triton-v1"),
    matmul(4096, "fp8e4m3", 6e14, "mine"),
    elementwise("gelu", 2**24, 20, 0.5),
)


@pytest.mark.parametrize(("by", "names"), [("", ["bf16", "fp8e4m3"]), ("op", ["matmul", "gelu"])])
def test_each_point_stands_in_the_panel_of_its_name_and_all_axes_are_alike(by: str, names: list[str]) -> None:
    machines = [PlotMachine(BOTH, RECORDS, (environment(),))]
    figure, key = draw_panels(machines, ["bf16", "fp8e4m3"], by), by or "dtype"
    assert [axes.get_title(loc="left") for axes in figure.axes] == names
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in figure.axes}) == 1
    for axes, name in zip(figure.axes, names, strict=True):
        drawn = {spot for line in axes.lines if line.get_zorder() == 7 for spot in zip(*line.get_data(), strict=True)}
        points = build_scene(machines).points
        own = [point for point in points if getattr(point.record, key) == name]
        assert drawn == {(point.intensity, point.flops_per_s) for point in own}
        words = [text.get_text() for text in axes.texts]
        assert any(word.startswith("fp8e4m3") for word in words) == any(p.record.dtype == "fp8e4m3" for p in own)
    assert f"A panel for each {key}" in " ".join(text.get_text() for text in figure.texts)


def test_a_provider_has_one_color_in_all_panels() -> None:
    figure = draw_panels([PlotMachine(BOTH, RECORDS[:4])], ["bf16", "fp8e4m3"])
    labels = [
        {key.get_label(): to_hex(key.get_color()) for key in axes.get_legend().legend_handles} for axes in figure.axes
    ]  # type: ignore[union-attr, attr-defined]
    assert labels[0]["triton-v1"] == labels[1]["triton-v1"]
    assert len({labels[0]["torch"], labels[0]["triton-v1"], labels[1]["mine"]}) == 3


def test_no_panel_lies_on_another_or_is_cut_off() -> None:
    figure = draw_panels(*SCENES["a crowd"], "op")
    figure.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    for one, other in itertools.combinations(boxes, 2):
        assert not (one.x0 < other.x1 and other.x0 < one.x1 and one.y0 < other.y1 and other.y0 < one.y1)  # type: ignore[union-attr]
    assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 + 1 and box.y0 >= 0 for box in boxes)  # type: ignore[union-attr]


def test_labels_of_panels_are_short_and_no_leader_line_runs_through_a_point() -> None:
    figure = draw_panels(*SCENES["a crowd"], "dtype")
    words = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert {"ridge 177, 206", "bf16 795 TFLOP/s", "ridge 323, 412", "fp8e4m3 1454 TFLOP/s"} <= set(words)
    for axes in figure.axes:
        spots = [
            axes.transData.transform(spot)
            for line in axes.lines
            if line.get_zorder() == 7
            for spot in line.get_xydata()
        ]
        leaders = [
            one
            for one in axes.get_children()
            if isinstance(one, Line2D) and one.get_zorder() == 6 and one.get_transform() == axes.transAxes
        ]
        assert leaders
        for leader in leaders:
            start, end = axes.transAxes.transform(leader.get_xydata())
            for spot in spots:
                far = min(math.dist(spot, start), math.dist(spot, end)) > 15
                assert not far or distance(spot, start, end) > 4


def distance(spot: np.ndarray, start: np.ndarray, end: np.ndarray) -> float:
    """Return how far a spot is from a line from start to end, pixels."""
    along = np.clip(np.dot(spot - start, end - start) / np.dot(end - start, end - start), 0, 1)
    return float(np.linalg.norm(spot - start - along * (end - start)))


def test_what_cannot_be_parted_ends_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PlotError, match="no point can be drawn"):
        draw_panels([PlotMachine(BOTH)])
    assert main(["plot", "--gpu", "h100-sxm", "--panels", "op", "--time", "-o", str(tmp_path / "a.png")]) == 2
    assert main(["plot", "--gpu", "h100-sxm", "--panels", "auto", "-o", str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    for wrong in ({"panels": "host"}, {"panels": "op", "time": True}):
        with pytest.raises(ValueError, match="panels"):
            draw(gpu="h100-sxm", **wrong)  # type: ignore[arg-type]
