"""The elementwise kernels on a real GPU, in every dtype, against fp64; the sizes are odd on purpose."""

import pytest
import torch
from elementwise_cases import MODULES, NEWEST, PAIRS, SEED, check, draw, kept, specials

from kernels.launch import DTYPES

pytestmark = pytest.mark.gpu

FAR_COUNT = 2**31 + 4099  # elements, 4.3 GB in a 16-bit dtype
FREE_BYTES_NEEDED = 12 * 10**9


@pytest.mark.parametrize("n", [1, 7, 127, 511, 512, 513, 1025, 2051, 4097, 1_000_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "version"), PAIRS)
def test_sizes(op, version, dtype, n):
    check(op, MODULES[version], *draw(op, dtype, n), device="cuda")


@pytest.mark.parametrize("cols", [1, 3, 48, 1000, 1024, 2064, 4099])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", MODULES)
def test_bias_of_every_column(version, dtype, cols):
    check("bias-gelu", MODULES[version], *draw("bias-gelu", dtype, 1001 * cols, cols), device="cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize(("op", "version"), PAIRS)
def test_special_values(op, version, dtype):
    check(op, MODULES[version], *specials(op, dtype, 4003), device="cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
def test_gelu_of_minus_infinity_is_minus_zero(dtype):
    x = torch.full((1003,), -torch.inf, dtype=dtype, device="cuda")
    MODULES[NEWEST].KERNELS["gelu"](x, out=x)
    assert not x.any()
    assert x.signbit().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", MODULES)
def test_mask_of_dropout_is_that_of_the_reference(version, dtype):
    for seed in (0, -1, SEED):
        x = torch.ones(100_003, dtype=dtype, device="cuda")
        MODULES[version].KERNELS["dropout"](x, torch.tensor([seed], device="cuda"), out=x)
        assert torch.equal((x != 0).cpu(), kept(version, seed, x.numel()))


@pytest.fixture
def roomy_gpu():
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < FREE_BYTES_NEEDED:
        pytest.skip(f"needs {FREE_BYTES_NEEDED / 1e9:.0f} GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")


@pytest.mark.usefixtures("roomy_gpu")
@pytest.mark.parametrize("op", ["copy", "dropout"])
def test_beyond_32_bit_offsets(op):
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = torch.arange(1, 4100, device="cuda")
    out = torch.full_like(x, -77.0)
    inputs = (x, torch.tensor([SEED], device="cuda")) if op == "dropout" else (x,)
    MODULES[NEWEST].KERNELS[op](*inputs, out=out)
    expected = x[-8192:].cpu()
    if op == "dropout":
        keep = kept(NEWEST, SEED, 8192, first=FAR_COUNT - 8192)
        expected = torch.where(keep, expected.float() / 0.9, 0.0).bfloat16()
    torch.testing.assert_close(out[-8192:].cpu(), expected, rtol=2**-7, atol=0)
    assert not out[:8192].any()
