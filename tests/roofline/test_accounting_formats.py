"""Number formats against torch, value by value, and against published ranges."""

import math
import random
from fractions import Fraction

import pytest
import torch

from roofline import estimate
from roofline.__main__ import main
from roofline.accounting.number_formats import FORMATS, shown_in
from roofline.work import DTYPE_BITS

TORCH = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4m3": torch.float8_e4m3fn,
    "fp8e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", TORCH)
def test_ranges_are_those_of_torch(name):
    info, own = torch.finfo(TORCH[name]), FORMATS[name]
    assert float(own.largest) == info.max
    assert float(own.smallest_normal) == info.smallest_normal
    assert float(own.epsilon) == info.eps
    assert own.bits == info.bits == DTYPE_BITS[name]


@pytest.mark.parametrize("name", [name for name in TORCH if name != "fp64"])
def test_rounding_is_that_of_torch(name):
    draw = random.Random(0)
    values = [draw.choice((-1, 1)) * 2.0 ** draw.uniform(-60, 20) for _ in range(400)]
    values += [
        float(FORMATS[name].smallest_subnormal) * factor
        for factor in (0.5, 0.50001, 1, 1.5, 2.5, 3.5)
    ]
    values += [float(FORMATS[name].largest) * factor for factor in (0.99, 1.0, 1.01, 1.03, 1.2, -5)]
    # Both steps of a double rounding are torch's: a value is first made an fp32.
    given = torch.tensor(values, dtype=torch.float64).to(torch.float32)
    for value, expected in zip(
        given.tolist(), given.to(TORCH[name]).to(torch.float64).tolist(), strict=True
    ):
        own = shown_in(Fraction(value), name) if math.isfinite(value) else expected
        if own in ("448 or nan", "-448 or nan"):  # torch has changed from the one to the other
            assert math.isnan(expected) or abs(expected) == 448
        else:
            assert float(own) == expected, value


def test_published_ranges():
    """Micikevicius et al. 2022: 448 and 57,344; E2M1 has 6 and 0.5."""
    assert FORMATS["fp8e4m3"].largest == 448
    assert FORMATS["fp8e5m2"].largest == 57_344
    assert (FORMATS["nvfp4"].largest, FORMATS["nvfp4"].smallest_subnormal) == (6, Fraction(1, 2))
    assert [shown_in(Fraction(value), "nvfp4") for value in ("0.2", "2.4", "5", "7", "-100")] == [
        0,
        2,
        4,
        6,
        -6,
    ]
    assert FORMATS["fp8e5m2"].decimal_digits == pytest.approx(0.90, abs=0.005)
    assert shown_in(Fraction(70_000), "fp16") == "inf"
    assert shown_in(Fraction(-70_000), "fp16") == "-inf"
    assert shown_in(Fraction(463), "fp8e4m3") == 448
    assert shown_in(Fraction(500), "fp8e4m3") == "448 or nan"


@pytest.mark.parametrize("name", ["int8", "int32", "int64", "uint8"])
def test_integers_are_those_of_torch(name):
    info = torch.iinfo(getattr(torch, name))
    (row,) = estimate.dtype(dtype=name, value="-3.7").rows
    assert (row["bits"], row["lowest"], row["largest"]) == (info.bits, info.min, info.max)
    assert row["value"] == (-3 if info.min else None)  # towards 0, as torch; no negative ones
    (flag,) = estimate.dtype(dtype="bool").rows
    assert flag == {"dtype": "bool", "bits": 8 * torch.bool.itemsize, "lowest": 0, "largest": 1}


def test_a_picture_shows_the_range_of_each_format(tmp_path):
    """Exponents of the smallest normal and the largest value, at the digits of the format."""
    curve = estimate.dtype(dtype="fp16,bf16,fp8e4m3").curve
    ends = {name: [power for power, _ in points] for name, points in curve.lines.items()}
    assert ends == {"fp16": [-14, 15], "bf16": [-126, 127], "fp8e4m3": [-6, 8]}
    picture = tmp_path / "formats.svg"
    assert main(["estimate", "dtype", "-o", str(picture)]) == 0
    assert "Number formats -->" in picture.read_text(encoding="utf-8")
    assert main(["estimate", "dtype", "--dtype", "int8", "-o", str(picture)]) == 2
