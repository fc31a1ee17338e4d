"""The kernels on a real GPU, in every dtype, against fp64; the sizes are odd on purpose."""

import pytest
import torch

from kernels.elementwise import v1_flat
from kernels.launch import DTYPES
from kernels.matvec import v1_rows

pytestmark = pytest.mark.gpu

FAR_COUNT = 2**31 + 4099  # elements, 4.3 GB in a 16-bit dtype
FREE_BYTES_NEEDED = 12 * 10**9


@pytest.mark.parametrize("n", [1, 7, 127, 511, 512, 513, 1025, 2051, 1_000_003])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", v1_flat.KERNELS)
def test_elementwise(op, dtype, n, draw_inputs, check_elementwise):
    check_elementwise(op, v1_flat.KERNELS[op], *draw_inputs(op, dtype, n), device="cuda")


@pytest.mark.parametrize("cols", [1, 3, 48, 1000, 1024, 4099])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_bias_of_every_column(dtype, cols, draw_inputs, check_elementwise):
    inputs = draw_inputs("bias-gelu", dtype, 1001 * cols, cols)
    check_elementwise("bias-gelu", v1_flat.KERNELS["bias-gelu"], *inputs, device="cuda")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["copy", "relu", "gelu", "gelu-tanh", "silu"])
def test_special_values(op, dtype, check_elementwise):
    nan, inf = float("nan"), float("inf")
    values = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1e-7, -3.0, -10.0, -40.0, -1e4, 6e4]).repeat(300).to(dtype)
    check_elementwise(op, v1_flat.KERNELS[op], values, device="cuda")


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (129, 1000), (4, 16), (1, 4099), (1001, 513), (4096, 4096)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matvec(dtype, shape, check_matvec):
    generator = torch.Generator().manual_seed(0)
    a, x = (torch.randn(size, generator=generator).to(dtype) for size in (shape, shape[1:]))
    block = v1_rows.VARIANTS["matvec", dtype].constants["BLOCK"]
    check_matvec(v1_rows.KERNELS["matvec"], a, x, block, device="cuda")


@pytest.fixture
def roomy_gpu():
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < FREE_BYTES_NEEDED:
        pytest.skip(f"needs {FREE_BYTES_NEEDED / 1e9:.0f} GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")


@pytest.mark.usefixtures("roomy_gpu")
def test_copy_beyond_32_bit_offsets():
    x = torch.zeros(FAR_COUNT, dtype=torch.bfloat16, device="cuda")
    x[-4099:] = torch.arange(1, 4100, device="cuda")
    out = torch.full_like(x, -77.0)
    v1_flat.KERNELS["copy"](x, out=out)
    assert torch.equal(out[-8192:], x[-8192:])
    assert not out[:8192].any()


@pytest.mark.usefixtures("roomy_gpu")
def test_matvec_beyond_32_bit_offsets():
    a = torch.zeros((5, 2**29 + 8), dtype=torch.bfloat16, device="cuda")
    a[:, -3:] = torch.arange(1.0, 6.0, device="cuda")[:, None]
    out = torch.empty(5, dtype=torch.bfloat16, device="cuda")
    v1_rows.KERNELS["matvec"](a, torch.ones_like(a[0]), out=out)
    assert out.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
