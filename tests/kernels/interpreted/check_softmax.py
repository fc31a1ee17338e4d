"""Softmax kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

from unittest.mock import patch

import pytest
import torch
from bugs import BUGS
from exact import DTYPES, far_rows, run_guarded
from families import pairs, versions_of, ways
from planted import planted_tests
from softmax_cases import FEW_SPECIAL_ROWS, check, check_apart, check_far_rows, compare, normal, special_rows

import kernels.launch

torch.set_num_threads(1)  # the interpreter has one, and waits for the others of a busy machine

VERSIONS = versions_of("softmax")
WIDTHS = [1, 7, 16, 257, 1000, 4096, 4099]
SHAPES = [(m, n) for n in WIDTHS for m in (1, 5)]
SHAPES += [(1, 8193), (1, 16400), (1, 32768), (2, 32769), (1, 65536)]
every_way = pytest.mark.parametrize(("op", "module", "dtype"), ways("softmax"))


@pytest.mark.parametrize("shape", SHAPES, ids="{0[0]}x{0[1]}".format)
@every_way
def test_sizes(op, module, dtype, shape):
    check(op, module, normal(*shape, dtype))


@pytest.mark.parametrize("shape", [(1, 65537), (2, 131075)], ids="{0[0]}x{0[1]}".format)
@pytest.mark.parametrize("version", ["v2", "v3"])
def test_rows_wider_than_version_1_takes(version, shape):
    for dtype in DTYPES.values():
        check("softmax", VERSIONS[version], normal(*shape, dtype))


@pytest.mark.parametrize("pads", [(16, 0), (16, 32), (5, 5), (1, 17)], ids=str)
@pytest.mark.parametrize("n", [5, 1000, 33001])
@every_way
def test_rows_apart(op, module, dtype, n, pads):
    check_apart(module, normal(2, n, dtype), pads)


@pytest.mark.parametrize("n", [19, 1029])
@every_way
def test_special_values(op, module, dtype, n):
    x = special_rows(n, dtype)
    out = run_guarded(module.KERNELS[op], (x,), tuple(x.shape), "cpu")
    compare(out, x)
    assert torch.equal(out.isnan(), torch.softmax(x, 1).isnan())
    assert out[:6].isnan().all()
    assert out[9:12].isnan().all()
    assert out[12, -1] == 1


@every_way
def test_special_values_of_wide_rows(op, module, dtype):
    check(op, module, special_rows(33005, dtype)[FEW_SPECIAL_ROWS])


@pytest.mark.parametrize(("n", "lead"), [(1100, 1000), (40000, 33000)])
@every_way
def test_rows_that_begin_with_minus_infinity(op, module, dtype, n, lead):
    x = normal(2, n, dtype)
    x[:, :lead] = float("-inf")
    check(op, module, x)


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (1.0, -1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("n", [1000, 34000])
@every_way
def test_large_offsets_and_wide_ranges(op, module, dtype, n, scale, offset):
    check(op, module, normal(2, n, dtype, scale, offset))


@pytest.mark.parametrize("order", [1, -1], ids=["rising", "falling"])
@every_way
def test_maximum_of_every_step(op, module, dtype, order):
    check(op, module, torch.linspace(-50 * order, 50 * order, 60000)[None].to(dtype))


@pytest.mark.parametrize("n", [100, 40000])
@every_way
def test_result_may_replace_the_input(op, module, dtype, n):
    x = normal(3, n, dtype)
    out = x.clone()
    module.KERNELS[op](out, out=out)
    compare(out, x)


@pytest.mark.parametrize(("op", "module"), pairs("softmax"))
def test_rows_beyond_32_bit_offsets(op, module):
    check_far_rows(module)
    x = normal(4, 48, torch.float16)  # dense, so that the rows are 2^31 elements apart in the end
    out = far_rows(torch.zeros_like(x))
    module.KERNELS[op](x, out=out)
    compare(out, x)


def battery(module):
    """Raise unless the module's softmax passes a short form of the checks above."""
    check_far_rows(module)
    check_far_rows(module, 16400)  # which programs share
    with patch.object(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 70_000)):  # a row at a time
        check("softmax", module, normal(3, 17000, torch.float16))
    for dtype in DTYPES.values():
        for m, n in ((3, 1), (3, 7), (2, 256), (2, 1030), (1, 33007)):
            check("softmax", module, normal(m, n, dtype))
        for n, pads in ((24, (16, 0)), (24, (3, 19)), (33003, (16, 32))):
            check_apart(module, normal(2, n, dtype), pads)
        for n in (1029, 33005):
            check("softmax", module, torch.zeros((1, n), dtype=dtype))
            check("softmax", module, normal(1, n, dtype, 60.0, 3e4))
            check("softmax", module, special_rows(n, dtype)[FEW_SPECIAL_ROWS])


test_battery_passes, test_planted_bug_is_caught = planted_tests(battery, VERSIONS, BUGS["softmax"])
