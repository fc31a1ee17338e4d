"""`--fill-sensitivity`: each row with zeros too, and a line that says what the bits of the data cost."""

import json
from dataclasses import replace

import pytest

from bench.harness.cli.session import fills_of
from bench.harness.cli.terminal import baseline_lines, fill_lines
from results.record import Record
from tests.bench import commands

ROW = Record(
    op="matmul",
    provider="torch",
    dtype="bf16",
    shape={"m": 8, "n": 8, "k": 8},
    case="8x8x8",
    status="ok",
    median_s=2e-3,
    fill="uniform",
    telemetry={"sm_clock_hz": 1755e6},
)
ZEROS = replace(ROW, fill="zeros", median_s=1.6e-3, telemetry={"sm_clock_hz": 1980e6})


@pytest.mark.parametrize(
    ("fill", "asked", "fills"),
    [
        ("uniform", False, ("uniform",)),
        ("uniform", True, ("uniform", "zeros")),
        ("normal", True, ("normal", "zeros")),
        ("zeros", True, ("zeros", "uniform")),
    ],
)
def test_fills(fill, asked, fills):
    assert fills_of(fill, asked) == fills


def test_the_line_has_the_change_and_both_clocks():
    (line,) = fill_lines([ROW, ZEROS])
    what, clocks = line.rsplit(", ", 1)
    assert what == "matmul 8x8x8 bf16 torch: uniform data changes the time by +25 % against zeros"
    assert clocks == "SM clock 1980 -> 1755 MHz"


def test_clocks_that_are_not_known_are_left_out():
    (line,) = fill_lines([replace(ROW, telemetry={}), ZEROS])
    assert line.endswith("by +25 % against zeros")


@pytest.mark.parametrize(
    "others",
    [
        [],
        [replace(ZEROS, provider="triton-v1")],
        [replace(ZEROS, case="9x9x9")],
        [replace(ZEROS, status="skipped", median_s=None)],
    ],
)
def test_only_the_same_row_is_set_against_zeros(others):
    assert fill_lines([ROW, *others]) == []


def test_a_baseline_is_of_the_same_fill():
    other = replace(ROW, provider="triton-v1", median_s=1e-3)
    lines = baseline_lines([ROW, ZEROS, other, replace(other, fill="zeros", median_s=0.4e-3)], "torch")
    assert lines == [
        "matmul 8x8x8 bf16 triton-v1: 0.5 x the time of torch",
        "matmul 8x8x8 bf16 triton-v1: 0.25 x the time of torch",
    ]


@pytest.mark.exhaustive
def test_a_run_measures_each_row_twice(capsys, runs):
    assert commands.here("matmul", "--shape", "64", "--fill-sensitivity", "--format", "json", "-q") == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["fill"] for record in records] == ["uniform", "zeros"]
    assert commands.here("matmul", "--shape", "64", "--fill-sensitivity", "-q") == 0
    out = capsys.readouterr().out
    assert "data changes the time by" in out
    assert " fill " in out
