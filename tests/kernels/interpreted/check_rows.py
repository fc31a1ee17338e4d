"""Special rows of norms, softmax and cross-entropy, in Triton's interpreter. See
test_interpreted.py.
"""

import cross_entropy_cases
import pytest
import torch
from exact import DTYPES
from families import versions_of
from norm_cases import check, draw

NORMS = versions_of("norm")


@pytest.mark.parametrize("module", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("op", ["rmsnorm", "residual-rmsnorm"])
def test_rmsnorm_keeps_the_sign_of_zero(op, module):
    x = torch.tensor([0.0, -0.0] * 13).repeat(3, 1)
    x[2, 0] = 1.0
    residual = [torch.where(torch.signbit(x), -0.0, 0.0)] if op == "residual-rmsnorm" else []
    out = check(op, module, x, *residual, torch.ones(26)).view(-1, 3, 26)
    assert all(torch.equal(torch.signbit(plane), torch.signbit(x)) for plane in out)


@pytest.mark.parametrize("module", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("n", [40, 1024, 9001])
def test_layernorm_is_accurate_for_a_large_mean(n, module):
    check("layernorm", module, *draw("layernorm", torch.float32, 3, n, shift=1e4))


@pytest.mark.parametrize("module", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("n", [40, 9001])
def test_layernorm_of_constant_rows_is_the_bias(n, module):
    x = torch.tensor([[1e4], [-3e8], [0.1]]).expand(3, n).contiguous()
    _, weight, bias = draw("layernorm", torch.float32, 1, n)
    out = torch.empty_like(x)
    module.KERNELS["layernorm"](x, weight, bias, out=out)
    assert torch.allclose(out[[0, 2]], bias.expand(2, n), rtol=1e-6, atol=1e-5)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("n", [24, 9001])
def test_norm_of_overflowing_squares_is_zero_or_the_bias(n):
    x, weight, bias = draw("layernorm", torch.float32, 2, n)
    x *= torch.tensor([[1e20], [1e30]])
    out, both = torch.empty_like(x), torch.empty(2, 2, n)
    NORMS["v3"].KERNELS["layernorm"](x, weight, bias, out=out)
    assert torch.equal(out, bias.expand(2, n))
    NORMS["v3"].KERNELS["residual-rmsnorm"](x, torch.zeros_like(x), weight, out=both)
    assert torch.equal(both[0], x)
    assert not both[1].any()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_cross_entropy_reference_matches_torch(dtype):
    drawn = cross_entropy_cases.draw("cross-entropy", dtype, 7, 1000)
    drawn[1][3] = cross_entropy_cases.IGNORED
    for x, labels in (drawn, cross_entropy_cases.special_logits(1000, dtype)):
        by_torch = torch.nn.functional.cross_entropy(x.double(), labels, reduction="none")
        torch.testing.assert_close(
            cross_entropy_cases.expect(x, labels).exact,
            by_torch,
            rtol=1e-13,
            atol=1e-13,
            equal_nan=True,
        )
