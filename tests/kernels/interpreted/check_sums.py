"""Special sums of reductions and matrix-vector products, in Triton's interpreter. See
test_interpreted.py.
"""

import matvec_cases
import pytest
import torch
from families import pairs, versions_of
from reduction_cases import check, check_exact, draw, draw_integers

import kernels.launch

every_pair = pytest.mark.parametrize(("op", "module"), pairs("reduction"))


@pytest.mark.parametrize("programs", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("op", ["sum", "dot"])
def test_reduction_with_any_number_of_programs(op, programs, monkeypatch):
    module = versions_of("reduction")["v2"]
    monkeypatch.setattr(module, "MAX_PROGRAMS", programs)
    for n in (2047, 20001, 50000, 110013):
        check_exact(op, module, *draw_integers(op, torch.float16, n))


@every_pair
def test_reduction_overflows_to_infinity_in_fp16(op, module):
    check(op, module, *[torch.full((2049,), 200.0).half() for _ in draw(op, torch.float16, 1)])


@every_pair
def test_reduction_adds_neighbors_in_fp32(op, module):
    n = 16 * 16384  # more than a round of all programs of version 2
    x = torch.zeros(n // 16, 16).half()
    x[:, 0], x[:, 8], x[::16, 1] = 2048.0, -2048.0, 1.0  # 2048 + 1 is not an fp16 number
    check_exact(op, module, x.flatten(), *[torch.ones(n).half()] * (op == "dot"))


@pytest.mark.exhaustive
def test_matvec_split_with_several_finish_programs(monkeypatch):
    module = versions_of("matvec")["v3"]
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 64, 2**16))
    for n in (16384, 16389):
        a = matvec_cases.draw_integers("matvec-int8", torch.float32, 2 * module.TILE_ROWS + 3, n)
        assert module.plan(*a[0].shape, a[0].element_size(), n, 64).splits > 1
        matvec_cases.check_exact("matvec-int8", module, *a)
