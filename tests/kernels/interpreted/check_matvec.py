"""Matrix-vector kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math

import pytest
import torch
from bugs import BUGS
from exact import FAR
from families import pairs, versions_of, ways
from matvec_cases import check, check_apart, check_exact, check_far_rows, draw, draw_cancelling, draw_integers
from planted import planted_tests

import kernels.launch

VERSIONS = versions_of("matvec")
ROWS = (1, 3, 18)  # of which 3 and 18 end within a program's rows
WIDTHS = (1, 7, 127, 256, 511, 513, 1000, 2049, 4099)
WIDTHS_TO_SPLIT = (8192, 8209, 16400)  # two steps and more of a split, aligned or not; the last for int8 too
every_way = pytest.mark.parametrize(("op", "module", "dtype"), ways("matvec"))
every_pair = pytest.mark.parametrize(("op", "module"), pairs("matvec"))


@pytest.mark.parametrize("n", WIDTHS)
@every_way
def test_sizes(op, module, dtype, n):
    for m in ROWS:
        check(op, module, *draw(op, dtype, m, n))


@every_way
def test_wide_rows_of_few_rows(op, module, dtype):
    for n in WIDTHS_TO_SPLIT:
        check(op, module, *draw(op, dtype, 2, n))


@pytest.mark.exhaustive
@pytest.mark.parametrize("op", ["matvec", "matvec-int8"])
def test_split_rows_are_more_than_one_program_adds_up(op, monkeypatch):
    module = VERSIONS["v3"]
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 64, 2**16))
    for n in (16384, 16389):
        a = draw_integers(op, torch.float32, 2 * module.TILE_ROWS + 3, n)
        assert module.plan(*a[0].shape, a[0].element_size(), n, 64).splits > 1
        check_exact(op, module, *a)


@every_way
def test_integers_are_exact(op, module, dtype):
    for m, n in ((19, 1041), (5, 1040), (37, 45), (2, 8209)):
        check_exact(op, module, *draw_integers(op, dtype, m, n))


@pytest.mark.parametrize("stride", [1200, 1201, 1203], ids="stride-{}".format)
@every_way
def test_padded_rows_are_walked_by_their_stride(op, module, dtype, stride):
    for n in (1, 1111):
        check_apart(op, module, dtype, 9, n, stride)
    check_apart(op, module, dtype, 2, 16387, 16384 + stride)  # split


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@every_way
def test_special_values_stay_in_their_row(op, module, dtype, special):
    for column in (0, 5, 300, 600):
        inputs = draw(op, dtype, 6, 601)
        if op == "matvec":
            inputs[0][4, column] = special
        else:
            inputs[2][4] = special
        check(op, module, *inputs)


@every_way
def test_special_values_of_x_reach_every_row(op, module, dtype):
    for special in (math.nan, math.inf):
        a, x, *rest = draw(op, dtype, 5, 1031)
        x[1030] = special
        a[2, 1030] = 0  # 0 * inf is NaN
        check(op, module, a, x, *rest)


@every_way
def test_zeros_and_denormals(op, module, dtype):
    a, x, *rest = draw(op, dtype, 4, 300)
    x.fill_(torch.finfo(dtype).smallest_normal / 4)
    for row, value in enumerate((0, 1, -1)):
        a[row] = value
    check(op, module, a, x, *rest)
    check(op, module, a, torch.full_like(x, -0.0), *rest)


@every_pair
def test_fp16_sums_beyond_fp16_range_on_the_way(op, module):
    for n in (2048, 16384):
        check(op, module, *draw_cancelling(op, n))


@every_pair
def test_no_columns_give_zeros(op, module):
    out = torch.ones(3)
    module.KERNELS[op](*draw(op, torch.float32, 3, 0), out=out)
    assert not out.any()


def battery(module):
    """Run a few of each of the checks above.

    Far rows come last: beyond their last one there is no memory, and reading it would end the process.
    """
    for op in module.KERNELS:
        for stride in (1201, 1216):
            check_apart(op, module, torch.float16, 9, 1111, stride)
        check(op, module, *draw_cancelling(op, 16384))
        for m, n in ((3, 127), (18, 1041), (5, 2048), (3, 16401)):
            check(op, module, *draw(op, torch.float16, m, n))
            check_exact(op, module, *draw_integers(op, torch.float32, m, n))
        check_far_rows(op, module)
        check_far_rows(op, module, FAR + 1)


test_battery_passes, test_planted_bug_is_caught = planted_tests(battery, VERSIONS, BUGS["matvec"])
