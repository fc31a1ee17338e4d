"""Matmul kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math
from unittest.mock import patch

import pytest
import torch
from bugs import BUGS
from exact import DTYPES
from families import versions_of
from matmul_cases import FP8, LAYOUTS, check, check_case, check_far, draw, values
from planted import planted_tests
from triton.runtime.errors import InterpreterError

from kernels.matmul.tiles import GROUP_M, Tile

VERSIONS = versions_of("matmul")
NARROW = ("v3", "v4", "v5")  # versions with int8 and fp8
ROWS = (1, 70)
WIDTHS = ((1, 1), (16, 16), (17, 31), (64, 33), (65, 63), (7, 129))  # n, k
SIZES = [
    pytest.param((m, n, k), LAYOUTS[(i + j) % 3], id=f"{m}x{n}x{k}-{LAYOUTS[(i + j) % 3]}")
    for i, m in enumerate(ROWS)
    for j, (n, k) in enumerate(WIDTHS)
]
every_version = pytest.mark.parametrize("version", [pytest.param(name, id=f"matmul-{name}") for name in VERSIONS])
every_dtype = pytest.mark.parametrize("name", DTYPES)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.mark.parametrize(("shape", "layout"), SIZES)
@every_dtype
@every_version
def test_sizes(version, name, shape, layout):
    check_case(VERSIONS[version], DTYPES[name], layout, shape)


@every_layout
@every_dtype
@every_version
def test_batches_of_padded_rows(version, name, layout):
    check_case(VERSIONS[version], DTYPES[name], layout, (33, 66, 50), batch=(3,), padded=True)


@every_layout
@every_dtype
@every_version
def test_whole_numbers_are_exact(version, name, layout):
    check_case(VERSIONS[version], DTYPES[name], layout, (66, 72, 65), kind="integers")


def check_groups(module, k=8):
    """Two columns of a group of tiles and two rows more, as fp32 is computed."""
    tile = next(iter(module.TILES[90]["fp32"].values())) if hasattr(module, "TILES") else module.TILE
    check_case(module, DTYPES["fp32"], "nt", ((GROUP_M + 1) * tile.m + 1, tile.n + 1, k), kind="integers")


@pytest.mark.parametrize("version", NARROW)
def test_every_size_of_tile(version):
    for shape in ((200, 264, 24), (200, 200, 24), (40, 40, 24)):  # with the 4 processors of the interpreter
        check_case(VERSIONS[version], DTYPES["fp16"], "nn", shape, kind="integers")


def check_splits(module):
    """Terms shared by programs: evenly and not, of batches, with scales."""
    half, fp8, tile = DTYPES["fp16"], FP8["fp8e4m3"], Tile(64, 128, 64, 4, 3)
    check_case(module, half, "nt", (60, 56, 700), kind="integers", padded=True)  # split by the rule for few tiles
    check_case(module, half, "nt", (330, 264, 72), kind="integers")
    with patch.object(module, "chosen", lambda asked: (tile, 2)):
        check_case(module, half, "nn", (33, 40, 600), (2,), "integers", padded=True)
        check_case(module, fp8, "nt", (33, 24, 400), kind="ones", scales=(4.0, 0.125))
    with patch.object(module, "chosen", lambda asked: (tile, 4)):
        check_case(module, half, "tn", (72, 129, 600), kind="integers")
        check_case(module, torch.int8, "nt", (70, 80, 700), kind="bytes")
    with patch.object(module, "chosen", lambda asked: (Tile(64, 64, 32, 4, 3), 4)):
        check_case(module, DTYPES["fp32"], "nt", (5, 36, 333))


@every_layout
@every_dtype
def test_whole_rows_of_a_and_b_whatever_those_of_c(name, layout):
    n = 40 if layout[1] == "n" else 37
    check_case(VERSIONS["v3"], DTYPES[name], layout, (72, n, 56))
    check_case(VERSIONS["v3"], DTYPES[name], layout, (72, n, 56), batch=(2,))


@pytest.mark.parametrize(("term", "layout"), [(0, "nn"), (31, "nt"), (64, "tn"), (64, "nt")])
@every_version
def test_special_values_stay_in_their_row_and_column(version, term, layout):
    a, b = draw("matmul", torch.float32, 66, 34, 65)
    for row, column, special in ((0, 0, math.inf), (31, 16, -math.inf), (65, 33, math.nan)):
        a[row, term] = special
        b[term, column] = special
    check("matmul", VERSIONS[version], a, b, layout)


@every_version
def test_opposite_infinities_and_overflow(version):
    a, b = torch.ones(3, 40), torch.ones(40, 8)
    a[0, 0], a[0, 39], a[1, 39] = math.inf, -math.inf, 3e38
    b[39, 2] = 2.0
    check("matmul", VERSIONS[version], a, b, "nn")


@every_version
def test_denormals_and_signed_zeros(version):
    a = torch.tensor([2.0**-24, -(2.0**-24), -0.0, 1.0]).half().repeat(8, 4)
    b = torch.tensor([3.0, 0.0, -0.0, 0.0]).half().repeat(8, 4).T.contiguous()
    check("matmul", VERSIONS[version], a, b, "nn", is_exact=True)


def check_range_of_sums(module):
    """fp16 operands whose partial sums leave the range of fp16, and then its precision."""
    a = torch.full((2, 256), 200.0).half()
    a[:, 128:] = -200.0
    check("matmul", module, a, torch.full((256, 8), 200.0).half(), "nt")
    a = torch.ones(2, 513).half()
    a[:, 0] = 2048.0
    b = torch.full((513, 8), 2.0**-8).half()
    check("matmul", module, a, b, "nt", is_exact=True)


@pytest.mark.parametrize("version", NARROW)
@pytest.mark.parametrize("name", FP8)
def test_fp8(version, name):
    for shape in ((33, 17, 144), (130, 65, 19), (7, 128, 256)):  # every sum is a whole number that bf16 has
        check_case(VERSIONS[version], FP8[name], "nt", shape, kind="ones", scales=(4.0, 0.125))


@pytest.mark.parametrize("version", NARROW)
@every_layout
def test_int8(version, layout):
    check_case(VERSIONS[version], torch.int8, layout, (70, 66, 200), kind="bytes")
    check_case(VERSIONS[version], torch.int8, layout, (129, 17, 33), kind="bytes", batch=(2,), padded=True)


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_no_terms_give_zeros(version):
    out = torch.ones(3, 5)
    VERSIONS[version].KERNELS["matmul"](torch.empty(3, 0), torch.empty(0, 5), out=out)
    assert not out.any()


# ---- planted bugs --------------------------------------------------------------------------------


def battery(module):
    """Run what any wrong change of a version must fail."""
    for layout in LAYOUTS:
        check_case(module, DTYPES["fp16"], layout, (33, 17, 31))
        check_case(module, DTYPES["fp32"], layout, (66, 65, 33), batch=(2,), padded=True)
    check_groups(module)
    check_range_of_sums(module)
    check_far(module)
    if hasattr(module, "TILES") and "int8" in module.TILES[90]:
        check_case(module, torch.int8, "nt", (70, 66, 200), kind="bytes")
        check_case(module, FP8["fp8e4m3"], "nt", (33, 17, 144), kind="ones", scales=(4.0, 0.125))
        check_case(module, DTYPES["fp16"], "nn", (200, 264, 40), kind="integers")
        check_case(module, DTYPES["fp16"], "tn", (40, 48, 24))
    if hasattr(module, "chosen"):
        check_splits(module)


test_battery_passes, test_planted_bug_is_caught = planted_tests(
    battery,
    VERSIONS,
    BUGS["matmul"],
    InterpreterError,  # Triton 3.6 refuses one of them
)


@every_version
def test_columns_of_one_buffer_may_be_a_and_c(version):
    buffer = torch.full((17, 64), 7.0)
    a, b, out = buffer[:, :32], values((32, 16), torch.float32, "integers"), buffer[:, 32:48]
    a.copy_(values((17, 32), torch.float32, "integers"))
    wanted = a @ b
    VERSIONS[version].KERNELS["matmul"](a, b, out=out)
    assert torch.equal(out, wanted)
    assert bool((buffer[:, 48:] == 7.0).all())
