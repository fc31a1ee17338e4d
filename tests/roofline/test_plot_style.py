"""Colors, dashes, markers and numbers of the picture: told apart in gray and by the color-blind."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from plot_scenes import CPU, draw, ends, environment, flats, machine, markers, matmul, words

from roofline.plot.figure import PlotMachine, draw_roofline
from roofline.plot.scene import short_case
from roofline.plot.style import (
    DTYPE_COLORS,
    MOST_MACHINES,
    contrast_to_white,
    dtype_color,
    line_pattern,
    machine_mark,
    machine_width,
    plain,
    si,
    significant,
    text_color,
    tick,
)
from roofline.work import DTYPES


def test_every_dtype_has_one_color_for_roof_and_points() -> None:
    drawn = draw("a crowd")
    of_roofs = {to_hex(line.get_color()).upper() for line in flats(drawn)}
    of_points = {to_hex(line.get_color()).upper() for line in markers(drawn)}
    assert of_roofs == of_points == {DTYPE_COLORS["bf16"], DTYPE_COLORS["fp8e4m3"]}
    for line in flats(drawn):
        dtype = "bf16" if ends(line)[0][1] < 1000e12 else "fp8e4m3"
        assert to_hex(line.get_color()).upper() == DTYPE_COLORS[dtype]


def test_ops_have_markers_and_providers_have_fillings() -> None:
    drawn = draw("a crowd")
    assert len({line.get_marker() for line in markers(drawn)}) == 5
    of_matmul = [line for line in markers(drawn) if line.get_marker() == "o"]
    assert len({(line.get_fillstyle(), str(line.get_markerfacecolor() == "white")) for line in of_matmul}) == 6
    assert {"op", "matmul", "gelu", "provider, dtype", "torch-compile bf16", "ceiling", "measured"} <= set(words(drawn))


def test_dtypes_of_one_op_have_their_own_fillings() -> None:
    drawn = draw("a CPU with points")
    fillings = {(line.get_fillstyle(), str(line.get_markerfacecolor())) for line in markers(drawn)}
    assert len(fillings) == 2
    assert "white" in {face for _, face in fillings}
    assert {"dtype", "bf16", "fp32"} <= set(words(drawn))


def test_two_runs_of_one_machine_have_their_own_fillings_and_are_named_by_their_start() -> None:
    points = (matmul(512, "bf16", 7e11), matmul(512, "bf16", 7.1e11))
    runs = (environment(), environment(started_at="2026-11-20T22:03:12+00:00"))
    drawn = draw_roofline([PlotMachine(CPU, points, runs, (1, 1))], ["bf16"])
    assert len({str(line.get_markerfacecolor()) for line in markers(drawn)}) == 2
    assert {"run", "2026-11-20 21:03:12", "2026-11-20 22:03:12"} <= set(words(drawn))


def test_as_many_machines_as_a_picture_takes_have_their_own_line() -> None:
    styles = {
        (machine_width(index), line_pattern("datasheet", index), str(machine_mark(index)))
        for index in range(MOST_MACHINES)
    }
    assert len(styles) == MOST_MACHINES == 8


def test_kinds_of_ceilings_have_their_own_dashes() -> None:
    drawn = draw("a crowd")
    solid = {ends(line)[0][1] for line in flats(drawn) if line.get_linestyle() == "-"}
    assert solid == {795e12, 1454e12}
    patterns = {str(line_pattern(kind, 0)) for kind in ("measured", "datasheet", "clock-limited", "derived")}
    assert len(patterns) == 4
    assert line_pattern("measured", 0)[1] is None


def test_roofs_on_one_another_take_turns_and_share_a_label() -> None:
    twins = machine("g", {"fp16": 989.4e12, "bf16": 989.4e12}, 3.352e12)
    drawn = draw_roofline([PlotMachine(twins)])
    assert "fp16, bf16 989 TFLOP/s" in words(drawn)
    first, second = (line_pattern("datasheet", 0, turn, 2) for turn in (0, 1))
    assert first[1] is not None
    assert second[0] == pytest.approx(sum(first[1]) / 2)
    assert {to_hex(line.get_color()).upper() for line in flats(drawn)} == {DTYPE_COLORS["fp16"], DTYPE_COLORS["bf16"]}


def lab(rgb: Sequence[float]) -> np.ndarray:
    """Return CIE L*a*b* of linear sRGB."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / (0.9505, 1, 1.089)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def linear(color: str) -> np.ndarray:
    parts = np.array(to_rgb(color))
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


# Machado, Oliveira and Fernandes, A physiologically-based model for simulation of color vision deficiency (2009),
# severity 1.0.
SIGHT = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


@pytest.mark.parametrize("sight", SIGHT)
def test_dtypes_differ_for_every_kind_of_sight(sight: str) -> None:
    seen = {dtype: lab(SIGHT[sight] @ linear(color)) for dtype, color in DTYPE_COLORS.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 15, (one, other)


def test_the_common_dtypes_differ_in_gray() -> None:
    lightness = sorted(lab(linear(DTYPE_COLORS[dtype]))[0] for dtype in ("fp32", "bf16", "fp8e4m3", "tf32"))
    assert min(b - a for a, b in itertools.pairwise(lightness)) >= 11.5


@pytest.mark.parametrize("dtype", [*DTYPES, "of a later version"])
def test_words_can_be_read_on_white(dtype: str) -> None:
    assert contrast_to_white(*to_rgb(text_color(dtype_color(dtype)))) >= 4.5


def test_every_dtype_has_a_color() -> None:
    assert set(DTYPE_COLORS) == set(DTYPES)
    assert len(set(DTYPE_COLORS.values())) == len(DTYPES)


# Numbers in words


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (1978.9e12, "FLOP/s", "1979 TFLOP/s"),
        (66.9e12, "FLOP/s", "66.9 TFLOP/s"),
        (3.352e12, "B/s", "3.35 TB/s"),
        (45e9, "B/s", "45 GB/s"),
        (999.9e9, "FLOP/s", "1000 GFLOP/s"),
        (7.0, "B/s", "7 B/s"),
    ],
)
def test_rates_have_a_prefix(value: float, unit: str, expected: str) -> None:
    assert si(value, unit) == expected


def test_numbers_have_three_digits_and_decades_no_more() -> None:
    assert [significant(value) for value in (295.17, 20.67, 4.977, 0.0123, 100, 1234.5)] == [
        "295",
        "20.7",
        "4.98",
        "0.0123",
        "100",
        "1234",
    ]
    assert [tick(value) for value in (0.01, 0.1, 1, 10, 1000, 1e6, 1e-5)] == [
        "0.01",
        "0.1",
        "1",
        "10",
        "1,000",
        "1e6",
        "1e-5",
    ]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("4096x4096x4096", "4096³"),
        ("4096x4096x4096:b4:nt", "4096³ b4 nt"),
        ("4096x1024x512", "4096x1024x512"),
        ("268435456", "2²⁸"),
        ("1024", "1024"),
        ("1000000", "1000000"),
        ("x", "x"),
        ("", ""),
        ("²x²x²", "²x²x²"),
        ("9" * 5000, "9" * 27 + "…"),
    ],
)
def test_cases_are_written_short(case: str, expected: str) -> None:
    assert short_case(case) == expected


def test_plain_text_is_one_line() -> None:
    assert plain("a\n\tb\x00\x1b[1mc") == "a b[1mc"
    assert plain("$x$") == r"\$x\$"
    assert plain("a" * 60, 10) == "a" * 9 + "…"
