"""The elementwise kernels on a real GPU, in every dtype, against fp64; the sizes are odd on purpose."""

import pytest
import torch
from elementwise_cases import SEED, check, draw, kept, specials
from families import ON_A_GPU, skip_without, versions_of, ways

pytestmark = pytest.mark.gpu

VERSIONS = versions_of("elementwise")
FAR_COUNT = 2**31 + 4099  # elements, 4.3 GB in a 16-bit dtype
each_way = pytest.mark.parametrize(("op", "module", "dtype"), ways("elementwise", ON_A_GPU))
each_dtype = pytest.mark.parametrize("dtype", ON_A_GPU.values(), ids=ON_A_GPU)


@pytest.mark.parametrize("n", [1, 7, 127, 511, 512, 513, 1025, 2051, 4097, 1_000_003])
@each_way
def test_sizes(op, module, dtype, n):
    check(op, module, *draw(op, dtype, n), device="cuda")


@pytest.mark.parametrize("cols", [1, 3, 48, 1000, 1024, 2064, 4099])
@each_dtype
@pytest.mark.parametrize("module", VERSIONS.values(), ids=VERSIONS)
def test_bias_of_every_column(module, dtype, cols):
    inputs = draw("bias-gelu", dtype, 1001 * cols, cols)
    check("bias-gelu", module, *inputs, device="cuda")


@each_way
def test_special_values_of_elementwise(op, module, dtype):
    check(op, module, *specials(op, dtype, 4003), device="cuda")


@each_dtype
def test_gelu_of_minus_infinity_is_minus_zero(dtype):
    x = torch.full((1003,), -torch.inf, dtype=dtype, device="cuda")
    VERSIONS["v3"].KERNELS["gelu"](x, out=x)
    assert not x.any()
    assert x.signbit().all()


@each_dtype
@pytest.mark.parametrize(("version", "module"), VERSIONS.items())
def test_mask_of_dropout_is_that_of_the_reference(version, module, dtype):
    for seed in (0, -1, SEED):
        x = torch.ones(100_003, dtype=dtype, device="cuda")
        module.KERNELS["dropout"](x, torch.tensor([seed], device="cuda"), out=x)
        assert torch.equal((x != 0).cpu(), kept(version, seed, x.numel()))


@pytest.mark.parametrize("op", ["copy", "dropout"])
def test_elements_beyond_32_bit_offsets(op):
    skip_without(12)
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = torch.arange(1, 4100, device="cuda")
    out = torch.full_like(x, -77.0)
    seed = [torch.tensor([SEED], device="cuda")] if op == "dropout" else []
    VERSIONS["v3"].KERNELS[op](x, *seed, out=out)
    expected = x[-8192:].cpu()
    if op == "dropout":
        keep = kept("v3", SEED, 8192, first=FAR_COUNT - 8192)
        expected = torch.where(keep, expected.float() / 0.9, 0.0).bfloat16()
    torch.testing.assert_close(out[-8192:].cpu(), expected, rtol=2**-7, atol=0)
    assert not out[:8192].any()
