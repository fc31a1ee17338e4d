"""Row norms under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math
from unittest.mock import patch

import pytest
import torch
from bugs import BUGS
from families import pairs, versions_of, ways
from norm_cases import SCALES, check, check_apart, check_far_rows, draw, is_corrected
from planted import planted_tests

import kernels.launch

VERSIONS = versions_of("norm")
WIDTHS = (1, 7, 16, 256, 1000, 1024, 1128)
SIZES = {  # widths and rows: up to 16 rows a program, about the limits of version 3, in several steps, and shared
    "v1": [(n, m) for n in WIDTHS[::2] for m in (1, 3)] + [(4099, 1)],
    "v2": [(n, m) for n in WIDTHS[::2] for m in (1, 3)] + [(4099, 1)],
    "v3": [(n, m) for n in WIDTHS for m in (1, 3)]
    + [(24, 17), (27, 17), (257, 1), (1025, 1), (4099, 1), (16408, 1), (20001, 1)],
    "v4": [(n, m) for n in WIDTHS[::4] for m in (1, 3)] + [(27, 17), (17001, 3), (20008, 1), (131075, 1)],
}
every_way = pytest.mark.parametrize(("op", "module", "dtype"), ways("norm"))
every_pair = pytest.mark.parametrize(("op", "module"), pairs("norm"))


@pytest.mark.parametrize(
    ("op", "module", "dtype", "n", "m"),
    [
        pytest.param(*way.values, n, m, id=f"{way.id}-{n}-{m}")
        for way in ways("norm")
        for n, m in SIZES[way.id.split("-")[-2]]
    ],
)
def test_sizes(op, module, dtype, n, m):
    check(op, module, *draw(op, dtype, m, n))


@pytest.mark.parametrize("n", [13, 1111])
@every_way
def test_rows_apart(op, module, dtype, n):
    aligned = -n % 16
    for extra in ((aligned, aligned + 16, aligned + 48), (5, 13, 37), (0, 1, 2)):
        check_apart(op, module, dtype, 2, n, extra)


@pytest.mark.parametrize("n", [24, 1001])
@every_way
def test_special_values_stay_in_their_row(op, module, dtype, n):
    x, *others = draw(op, dtype, 8, n)
    for row, (column, value) in enumerate([(0, math.nan), (n - 1, math.inf), (n // 2, -math.inf), (n - 1, math.nan)]):
        x[2 * row, column] = value
    x[1], x[3] = 0.0, -0.0
    x[5, ::2] = 2.0**-24  # below the normal range of fp16
    x[7] = 1e-40
    check(op, module, x, *others)


@every_way
def test_rows_where_eps_decides_and_where_squares_pass_fp16(op, module, dtype):
    for n in (48, 1000):
        check(op, module, *draw(op, dtype, 2, n, (1e-4, 3e3)))


@pytest.mark.parametrize("module", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("op", ["rmsnorm", "residual-rmsnorm"])
def test_zeros_keep_their_sign(op, module):
    x = torch.tensor([0.0, -0.0] * 13).repeat(3, 1)
    x[2, 0] = 1.0
    residual = [torch.where(torch.signbit(x), -0.0, 0.0)] if op == "residual-rmsnorm" else []
    out = check(op, module, x, *residual, torch.ones(26)).view(-1, 3, 26)
    assert all(torch.equal(torch.signbit(plane), torch.signbit(x)) for plane in out)


@pytest.mark.parametrize("n", [40, 1024, 9001])
def test_a_large_mean_costs_the_newest_layernorm_nothing(n):
    inputs = draw("layernorm", torch.float32, 3, n, shift=1e4)
    for version in ("v1", "v2", "v3"):
        check("layernorm", VERSIONS[version], *inputs)
    with pytest.raises(pytest.fail.Exception, match="wrong in"):
        check("layernorm", VERSIONS["v2"], *inputs, corrected=True)


@pytest.mark.parametrize("n", [40, 9001])
def test_constant_rows_give_the_bias(n):
    x = torch.tensor([[1e4], [-3e8], [0.1]]).expand(3, n).contiguous()
    _, weight, bias = draw("layernorm", torch.float32, 1, n)
    out = torch.empty_like(x)
    VERSIONS["v3"].KERNELS["layernorm"](x, weight, bias, out=out)
    assert torch.allclose(out[[0, 2]], bias.expand(2, n), rtol=1e-6, atol=1e-5)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("n", [24, 9001])
def test_squares_that_overflow_leave_nothing_but_the_bias(n):
    x, weight, bias = draw("layernorm", torch.float32, 2, n)
    x *= torch.tensor([[1e20], [1e30]])
    out, both = torch.empty_like(x), torch.empty(2, 2, n)
    VERSIONS["v3"].KERNELS["layernorm"](x, weight, bias, out=out)
    assert torch.equal(out, bias.expand(2, n))
    VERSIONS["v3"].KERNELS["residual-rmsnorm"](x, torch.zeros_like(x), weight, out=both)
    assert torch.equal(both[0], x)
    assert not both[1].any()


@pytest.mark.parametrize("n", [1001, 9008])
@every_pair
def test_result_may_replace_x(op, module, n):
    if op == "residual-rmsnorm":  # its output is twice as large
        return
    inputs = draw(op, torch.float32, 3, n)
    separate, x = torch.empty_like(inputs[0]), inputs[0].clone()
    module.KERNELS[op](*inputs, out=separate)
    module.KERNELS[op](x, *inputs[1:], out=x)
    assert torch.equal(x, separate)


def battery(module):
    """Raise unless every kernel of a version is right.

    It goes through rows where eps decides, whose squares pass the range of fp16, that lie 2^30 elements apart, and, if
    the version has kernels for them, through wide rows, rows with a large mean, and rows that programs share.
    """
    if hasattr(module, "SHARED"):
        battery_of_shared_rows(module)
        return
    for op in ("residual-rmsnorm", "layernorm", "rmsnorm"):
        for dtype, m, n in ((torch.float16, 17, 40), (torch.float16, 3, 1001), (torch.float32, 1, 1025)):
            check(op, module, *draw(op, dtype, m, n, SCALES))
        for extra in ((3, 5, 9), (3, 11, 19)):
            check_apart(op, module, torch.float16, 3, 200, extra)
        check_far_rows(op, module, torch.float16, 40)
        if is_corrected(module):
            check(op, module, *draw(op, torch.float16, 2, 9001, (300.0, 1e-4)))
            check_far_rows(op, module, torch.float32, 8301)
    if is_corrected(module):
        check("layernorm", module, *draw("layernorm", torch.float32, 3, 1000, shift=1e4))
        check_apart("residual-rmsnorm", module, torch.float16, 2, 9001, (7, 15, 31))


def battery_of_shared_rows(module):
    """Check rows of several pieces, in groups and together, with a large mean, and far apart."""
    with patch.object(kernels.launch, "FEWEST_STEPS", 1):  # shorter rows, so that it takes less
        for op in ("residual-rmsnorm", "layernorm", "rmsnorm"):
            check(op, module, *draw(op, torch.float16, 3, 6008, SCALES))
            check(op, module, *draw(op, torch.float32, 2, 5001, (300.0, 1e-4)))
            check_apart(op, module, torch.float16, 3, 5003, (7, 15, 31))
            check_far_rows(op, module, torch.float16, 4104)
        check("layernorm", module, *draw("layernorm", torch.float32, 3, 5001, shift=1e4))
        check("rmsnorm", module, *draw("rmsnorm", torch.float32, 3, 10001))
        with patch.object(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 30_000)):  # a row at a time
            check("rmsnorm", module, *draw("rmsnorm", torch.float16, 3, 5001, SCALES))


test_battery_passes, test_planted_bug_is_caught = planted_tests(battery, VERSIONS, BUGS["norm"])
