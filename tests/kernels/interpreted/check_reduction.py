"""Reductions under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math

import pytest
import torch
from bugs import BUGS
from exact import DTYPES
from families import pairs, versions_of, ways
from planted import planted_tests
from reduction_cases import check, check_exact, draw, draw_cancelling, draw_integers

VERSIONS = versions_of("reduction")
# Around the accesses of all lanes and the blocks of version 2, and from one to several rounds of its 16 programs.
SIZES = (1, 7, 1023, 1025, 2049, 16384, 49152, 98305, 250003)
every_way = pytest.mark.parametrize(("op", "module", "dtype"), ways("reduction"))
every_pair = pytest.mark.parametrize(("op", "module"), pairs("reduction"))


@pytest.mark.parametrize("n", SIZES)
@every_way
def test_sizes(op, module, dtype, n):
    check(op, module, *draw(op, dtype, n))
    check_exact(op, module, *draw_integers(op, dtype, n))


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("op", ["sum", "dot"])
def test_every_count_of_programs(op, programs, monkeypatch):
    monkeypatch.setattr(VERSIONS["v2"], "_max_programs", lambda device: programs)
    for n in (2047, 20001, 50000, 110013):
        check_exact(op, VERSIONS["v2"], *draw_integers(op, torch.float16, n))


@pytest.mark.parametrize("n", [127, 20001])
@every_way
def test_special_values(op, module, dtype, n):
    for special in ([math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]):
        for place in (0, n // 2, n - len(special)):
            inputs = draw(op, dtype, n)
            inputs[0][place : place + len(special)] = torch.tensor(special)
            check(op, module, *inputs)


@every_way
def test_zeros_and_denormals(op, module, dtype):
    for value in (0.0, -0.0, torch.finfo(dtype).smallest_normal / 8):
        check(op, module, torch.full((2051,), value, dtype=dtype), *draw(op, dtype, 2051)[1:])


@every_pair
def test_fp16_sums_and_results_beyond_the_range_of_fp16(op, module):
    for n in (2048, 40002):
        check(op, module, *draw_cancelling(op, n))
    check(op, module, *[torch.full((2049,), 200.0).half() for _ in draw(op, torch.float16, 1)])


@every_pair
def test_neighbors_are_added_with_more_digits_than_fp16_has(op, module):
    n = 16 * 16384  # more than a round of all programs of version 2
    x = torch.zeros(n // 16, 16).half()
    x[:, 0], x[:, 8], x[::16, 1] = 2048.0, -2048.0, 1.0  # 2048 + 1 is no number of fp16
    check_exact(op, module, x.flatten(), *[torch.ones(n).half()] * (op == "dot"))


@every_way
def test_no_elements_have_the_sum_zero(op, module, dtype):
    out = torch.ones((), dtype=dtype)
    module.KERNELS[op](*draw(op, dtype, 0), out=out)
    assert out.item() == 0


def battery(module):
    """Run a few of each of the checks above."""
    for op in module.KERNELS:
        for dtype in DTYPES.values():
            for n in (7, 2049, 16385, 150001):
                check_exact(op, module, *draw_integers(op, dtype, n))
        for n in (127, 16385):
            check(op, module, *draw(op, torch.float16, n))
        check(op, module, *draw_cancelling(op, 40002))


test_battery_passes, test_planted_bug_is_caught = planted_tests(battery, VERSIONS, BUGS["reduction"])
