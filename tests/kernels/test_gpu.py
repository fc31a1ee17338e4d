"""The kernels on a real GPU, in every dtype, against fp64; the sizes are odd on purpose."""

import pytest
import torch

from kernels.launch import DTYPES
from kernels.matvec import v1_rows

pytestmark = pytest.mark.gpu

FREE_BYTES_NEEDED = 12 * 10**9


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
def test_matvec_beyond_32_bit_offsets():
    a = torch.zeros((5, 2**29 + 8), dtype=torch.bfloat16, device="cuda")
    a[:, -3:] = torch.arange(1.0, 6.0, device="cuda")[:, None]
    out = torch.empty(5, dtype=torch.bfloat16, device="cuda")
    v1_rows.KERNELS["matvec"](a, torch.ones_like(a[0]), out=out)
    assert out.tolist() == [3.0, 6.0, 9.0, 12.0, 15.0]
