"""Matmul kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import dataclasses
import math
from unittest.mock import patch

import pytest
import torch
from bugs_matmul import BUGS
from exact import assert_close
from matmul_cases import DTYPES, FP8, LAYOUTS, VERSIONS, check, check_case, check_far, draw, expect, row_multiple
from planted import plant
from triton.runtime.errors import InterpreterError

from kernels.matmul import Operands
from kernels.matmul.tiles import GROUP_M, Tile

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


@every_version
def test_last_group_of_tiles(version):
    check_groups(VERSIONS[version])


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


def test_terms_shared_by_programs():
    check_splits(VERSIONS["v5"])


def test_the_fixed_choice_splits_the_terms_of_few_tiles():
    module = VERSIONS["v5"]
    asked = Operands("bf16", "nt", 1, 64, 64, 8192, (8192, 8192, 64), (0, 0, 0), 90, 132, 8)
    assert module.chosen(asked)[1] == 4
    assert module.chosen(dataclasses.replace(asked, k=512))[1] == 2
    assert module.chosen(dataclasses.replace(asked, k=448))[1] == 1  # too few steps
    assert module.chosen(dataclasses.replace(asked, m=4096, n=64))[1] == 2  # 64 tiles of 132
    assert module.chosen(dataclasses.replace(asked, m=8192, n=64))[1] == 1


@every_layout
@every_dtype
def test_whole_rows_of_a_and_b_whatever_those_of_c(name, layout):
    n = 40 if layout[1] == "n" else 37
    check_case(VERSIONS["v3"], DTYPES[name], layout, (72, n, 56))
    check_case(VERSIONS["v3"], DTYPES[name], layout, (72, n, 56), batch=(2,))


@pytest.mark.parametrize(("term", "layout"), [(0, "nn"), (31, "nt"), (64, "tn"), (64, "nt")])
@every_version
def test_special_values_stay_in_their_row_and_column(version, term, layout):
    a, b = draw((66, 65), torch.float32), draw((65, 34), torch.float32, seed=1)
    for row, column, special in ((0, 0, math.inf), (31, 16, -math.inf), (65, 33, math.nan)):
        a[row, term] = special
        b[term, column] = special
    check(VERSIONS[version], a, b, layout)


@every_version
def test_opposite_infinities_and_overflow(version):
    a, b = torch.ones(3, 40), torch.ones(40, 8)
    a[0, 0], a[0, 39], a[1, 39] = math.inf, -math.inf, 3e38
    b[39, 2] = 2.0
    check(VERSIONS[version], a, b, "nn")


@every_version
def test_denormals_and_signed_zeros(version):
    a = torch.tensor([2.0**-24, -(2.0**-24), -0.0, 1.0]).half().repeat(8, 4)
    b = torch.tensor([3.0, 0.0, -0.0, 0.0]).half().repeat(8, 4).T.contiguous()
    check(VERSIONS[version], a, b, "nn", is_exact=True)


def check_range_of_sums(module):
    """fp16 operands whose partial sums leave the range of fp16, and then its precision."""
    a = torch.full((2, 256), 200.0).half()
    a[:, 128:] = -200.0
    check(module, a, torch.full((256, 8), 200.0).half(), "nt")
    a = torch.ones(2, 513).half()
    a[:, 0] = 2048.0
    b = torch.full((513, 8), 2.0**-8).half()
    check(module, a, b, "nt", is_exact=True)


@every_version
def test_sums_are_not_kept_in_fp16(version):
    check_range_of_sums(VERSIONS[version])


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


@every_version
def test_offsets_beyond_32_bits(version):
    check_far(VERSIONS[version])


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_no_terms_give_zeros(version):
    out = torch.ones(3, 5)
    VERSIONS[version].KERNELS["matmul"](torch.empty(3, 0), torch.empty(0, 5), out=out)
    assert not out.any()


@every_version
def test_no_rows_or_columns_give_nothing(version):
    for m, n in ((0, 5), (5, 0)):
        VERSIONS[version].KERNELS["matmul"](torch.empty(m, 4), torch.empty(4, n), out=torch.empty(m, n))


# ---- the comparison itself -----------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["one element", "scale", "tail of k", "swapped rows"])
@every_dtype
def test_the_comparison_notices(name, damage):
    a, b = draw((33, 129), DTYPES[name]), draw((129, 40), DTYPES[name], seed=1)
    out = (a.double() @ b.double()).to(DTYPES[name])
    expected = expect(a, b)
    assert_close(out, expected, "untouched")
    if damage == "one element":
        out[32, 39] *= 1.005
    elif damage == "scale":
        out *= 1.005
    elif damage == "tail of k":
        out = (a[:, :128].double() @ b[:128].double()).to(DTYPES[name])
    else:
        out[[0, 1]] = out[[1, 0]]
    with pytest.raises(pytest.fail.Exception):
        assert_close(out, expected, damage)


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


@pytest.mark.sampled(9)
@pytest.mark.parametrize("version", VERSIONS)
def test_battery_passes_without_a_bug(version):
    battery(VERSIONS[version])


@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_bug_is_caught(bug, tmp_path):
    module = plant(bug, tmp_path)
    with pytest.raises((AssertionError, pytest.fail.Exception, InterpreterError)):  # Triton 3.6 refuses one of them
        battery(module)


# ---- what is refused -----------------------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def refused(request):
    """Return the one line with which a version refuses its operands."""

    def refuse(a, b, *scales, out):
        with pytest.raises(ValueError, match=rf"^matmul {request.param}: ") as error:
            VERSIONS[request.param].KERNELS["matmul"](a, b, *scales, out=out)
        assert "\n" not in str(error.value)
        return str(error.value)

    return refuse


def test_unfit_operands_are_refused(refused):
    a, b, out = torch.ones(4, 8), torch.ones(8, 12), torch.zeros(4, 12)
    assert "layouts nn, nt, tn can be taken" in refused(torch.ones(8, 4).t(), torch.ones(12, 8).t(), out=out)
    assert "a of shape (4, 8) has strides (16, 2)" in refused(torch.ones(4, 16)[:, ::2], b, out=out)
    assert "a of shape (4, 8) has strides (0, 1)" in refused(a[:1].expand(4, 8), b, out=out)
    assert "out of shape (4, 12) has strides (1, 4); pass one stored row-major" in refused(
        a, b, out=torch.ones(12, 4).t()
    )
    assert "a starts 4 bytes past a multiple of 16" in refused(torch.ones(4, 9)[:, 1:], b, out=out)
    assert "b has shape (12, 12); the other operands need (8, 12)" in refused(a, torch.ones(12, 12), out=out)
    assert "out has shape (4, 11)" in refused(a, b, out=out[:, :11])
    assert "a has shape (8,); 2 dimensions are needed, 3 with a batch" in refused(a[0], b, out=out)
    assert "b has shape (2, 8, 12)" in refused(a, b.expand(2, 8, 12), out=out)
    assert "a tensor of shape (2, 8, 12) has strides (0, 12, 1)" in refused(
        torch.ones(2, 4, 8), b.expand(2, 8, 12), out=torch.ones(2, 4, 12)
    )
    assert "a has dtype torch.float64; allowed are" in refused(a.double(), b.double(), out=out.double())
    assert "b has dtype torch.float16, a torch.float32" in refused(a, b.half(), out=out)
    assert "out has dtype torch.float16; torch.float32 is needed" in refused(a, b, out=out.half())
    assert "2 scales with operands of torch.float32; 0 are needed" in refused(a, b, a, a, out=out)
    assert "b is on meta, a on cpu" in refused(a, b.to("meta"), out=out)
    assert "a is of type list" in refused([1.0], b, out=out)
    assert not out.any()


@every_version
def test_columns_of_one_buffer_may_be_a_and_c(version):
    buffer = torch.full((17, 64), 7.0)
    a, b, out = buffer[:, :32], draw((32, 16), torch.float32, "integers"), buffer[:, 32:48]
    a.copy_(draw((17, 32), torch.float32, "integers"))
    wanted = a @ b
    VERSIONS[version].KERNELS["matmul"](a, b, out=out)
    assert torch.equal(out, wanted)
    assert bool((buffer[:, 48:] == 7.0).all())


def test_matrices_beyond_what_offsets_reach_are_refused(refused):
    long = 2**30 + 1
    a = torch.empty(long, dtype=torch.float16)[None]  # never touched, so never there
    assert f"1x1x{long} is too large; at most 1073741824" in refused(a, a.t(), out=torch.empty(1, 1).half())


def test_unfit_scales_are_refused(refused):
    a = torch.ones(16, 16).to(torch.float8_e4m3fn)
    out, one = torch.zeros(16, 16).bfloat16(), torch.ones(1)
    assert "0 scales with operands of torch.float8_e4m3fn; 2 are needed" in refused(a, a.t(), out=out)
    assert "layout nt alone in fp8" in refused(a, a, one, one, out=out)
    assert "scale_b has 16 elements of torch.float32" in refused(a, a.t(), one, torch.ones(16), out=out)
    assert "out has dtype torch.float32; torch.bfloat16 is needed" in refused(
        a, a.t(), one, one, out=torch.zeros(16, 16)
    )


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_older_versions_refuse_int8(version):
    a = torch.ones(16, 16, dtype=torch.int8)
    with pytest.raises(ValueError, match=rf"^matmul {version}: no kernel for int8 on sm_90; it has fp32, "):
        VERSIONS[version].KERNELS["matmul"](a, a, out=torch.zeros(16, 16, dtype=torch.int32))


def test_descriptors_refuse_what_they_cannot_say():
    v4 = VERSIONS["v4"].KERNELS["matmul"]
    with pytest.raises(ValueError, match=r"^matmul v4: stored rows of b are 20 bytes apart; a tensor descriptor needs"):
        v4(torch.ones(4, 8), torch.ones(8, 5), out=torch.ones(4, 5))
    with pytest.raises(ValueError, match=r"^matmul v4: stored rows of out are 20 bytes apart"):
        v4(torch.ones(4, 8), torch.ones(5, 8).t(), out=torch.ones(4, 5))
    with pytest.raises(ValueError, match=r"^matmul v4: stored matrices of a are 136 bytes apart"):
        v4(torch.ones(2 * 34).as_strided((2, 4, 8), (34, 8, 1)), torch.ones(2, 8, 8), out=torch.ones(2, 4, 8))
    with pytest.raises(ValueError, match=r"^matmul v4: k is 0; a tensor descriptor needs at least one term"):
        v4(torch.empty(4, 0), torch.empty(0, 4), out=torch.ones(4, 4))


def test_rows_of_the_other_versions_need_no_alignment():
    assert [row_multiple(module, torch.float16) for module in VERSIONS.values()] == [1, 1, 1, 8, 8]
