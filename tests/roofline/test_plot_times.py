"""Measured times against the least by the model: where points, diagonal, launch floor and labels stand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from plot_scenes import (
    A100,
    CPU,
    H100,
    SCENES,
    assert_apart,
    corners,
    crowd,
    elementwise,
    environment,
    labels_in,
    last_line,
    matmul,
    words,
)

from results.record import Record
from results.show.theme import THEMES
from roofline.__main__ import main
from roofline.ceilings import Ceiling
from roofline.plot.figure import PlotError, PlotMachine
from roofline.plot.times import draw_times, time_points

FLOOR = CPU.with_entries([Ceiling("launch", "launch", 2e-6, "measured", "a test")])
COPY = replace(elementwise("copy", 2**24, 0, 0.005), cache="cold")
ROWS = (matmul(8, "bf16", 1e8), matmul(1024, "bf16", 8e11), matmul(2048, "fp32", 2e11), COPY)


def drawn(*rows: Record, theme: str = "light") -> Figure:
    return draw_times([PlotMachine(FLOOR, rows, (environment(),))], theme=theme)


def at_layer(figure: Figure, layer: float) -> list[Line2D]:
    return [line for line in figure.axes[0].lines if line.get_zorder() == layer]


def test_points_stand_at_their_least_and_their_measured_time() -> None:
    spots = [spot for line in at_layer(drawn(*ROWS), 7) for spot in line.get_xydata().tolist()]
    least = [2e-6, 2 * 1024**3 / 930e9, 2 * 2048**3 / 224e9, 4 * 2**24 / 45e9]
    assert [x for x, _ in spots] == pytest.approx(least)
    assert [y for _, y in spots] == pytest.approx([row.median_s for row in ROWS])


def test_a_pale_bar_reaches_from_the_longest_of_the_limits_to_their_sum() -> None:
    (bar,) = at_layer(drawn(matmul(1024, "bf16", 8e11)), 3.5)
    compute_s, memory_s = 2 * 1024**3 / 930e9, 6 * 1024**2 / 45e9
    assert bar.get_ydata()[:2] == pytest.approx([compute_s, compute_s + memory_s + 2e-6])


def test_the_number_of_lines_does_not_grow_with_the_points() -> None:
    counts = [
        len(drawn(*(matmul(64 + n, "bf16", 1e8 * (1 + n)) for n in range(points))).axes[0].lines) for points in (5, 50)
    ]
    assert counts[0] == counts[1]


def test_the_diagonal_and_the_launch_floor_stand_where_times_are_equal() -> None:
    figure = drawn(*ROWS)
    (diagonal,) = at_layer(figure, 3)
    assert diagonal.get_xdata() == pytest.approx(diagonal.get_ydata())
    (floor,) = at_layer(figure, 2)
    assert set(floor.get_xdata()) == {2e-6}
    assert {"launch floor 2 us", "measured = least time"} <= set(words(figure))
    assert figure.axes[0].get_xlabel() == "Least time by the model (ms)"
    assert figure.axes[0].get_ylabel() == "Measured time, median (ms)"


@pytest.mark.parametrize("theme", THEMES)
def test_no_two_words_touch_and_none_is_outside(theme: str) -> None:
    figure = draw_times(*SCENES["a crowd"], theme=theme)
    shapes = [(text.get_text(), corners(figure, text)) for text in figure.texts if text.get_text()]
    assert_apart(shapes)
    assert len(labels_in(figure)) > 5
    width, height = figure.get_size_inches() * figure.dpi
    for text, shape in shapes:
        assert (shape >= 0).all(), text
        assert (shape <= (width, height)).all(), text


def test_several_machines_are_told_apart_by_color() -> None:
    rows = (matmul(4096, "bf16", 2e14),)
    figure = draw_times([PlotMachine(H100, rows), PlotMachine(A100, rows)])
    assert len({line.get_color() for line in at_layer(figure, 7)}) == 2
    assert {"h100-sxm", "a100-sxm-80gb"} <= set(words(figure))


def looks(figure: Figure) -> list[tuple[object, ...]]:
    """Return how markers look without color."""
    return [
        (line.get_marker(), line.get_fillstyle(), line.get_markerfacecolor() == "white") for line in at_layer(figure, 7)
    ]


@pytest.mark.parametrize(
    "rows",
    [
        (matmul(64, "bf16", 1e8), matmul(64, "fp32", 1e8), matmul(64, "fp32", 2e8, cache="warm")),
        (*ROWS, replace(COPY, cache="warm"), replace(COPY, dtype="fp32"), replace(COPY, dtype="fp32", cache="warm")),
    ],
    ids=["one op", "two ops"],
)
def test_dtypes_ops_and_caches_are_told_apart_without_color(rows: tuple[Record, ...]) -> None:
    figure = drawn(*rows)
    kinds = {(row.op, row.dtype, row.cache) for row in rows}
    assert len(looks(figure)) == len(set(looks(figure))) == len(kinds)
    assert {"bf16", "fp32"} <= set(words(figure))


def test_machines_are_told_apart_without_color() -> None:
    rows = (matmul(4096, "bf16", 2e14),)
    assert len(set(looks(draw_times([PlotMachine(H100, rows), PlotMachine(A100, rows)])))) == 2


def test_what_is_not_drawn_is_counted() -> None:
    points, left_out = time_points([PlotMachine(FLOOR, crowd())], ["bf16"])
    assert all(point.record.dtype == "bf16" for point in points)
    assert left_out == {"of other dtypes": 15, "skipped": 1, "invalid": 1, "failed": 1}
    assert "Not drawn: 15 of other dtypes" in last_line(draw_times([PlotMachine(FLOOR, crowd())], ["bf16"]))


def test_nothing_to_draw_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skipped = matmul(64, "bf16", 1.0, status="skipped", median_s=None, ci95_s=None)
    with pytest.raises(PlotError, match=r"^no time can be drawn against its least: 1 skipped$"):
        drawn(skipped)
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line.to_dict()) + "\n" for line in (environment(), *ROWS)), encoding="utf-8")
    target = tmp_path / "times.svg"
    assert main(["plot", str(path), "--time", "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n"
    assert main(["plot", "--gpu", "h100-sxm", "--time", "-o", str(target)]) == 2
    assert capsys.readouterr().err.endswith("no time can be drawn against its least: no record\n")
