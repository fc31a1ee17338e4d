"""The row norms on a real GPU, in every dtype, against fp64; the widths are odd on purpose."""

import pytest
import torch
from norm_cases import OPS, VERSIONS, check, compare, draw, padded

from kernels.launch import DTYPES

pytestmark = pytest.mark.gpu

WIDTHS = (1, 7, 192, 256, 760, 1000, 1024, 1128, 4096, 4099, 8192, 16384, 16401, 32768)
WIDER = (65536, 65537, 131072, 131089, 262144, 262147)
SCALES = (1.0, 1e-4, 300.0)
FREE_BYTES_NEEDED = 20 * 10**9


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("op", OPS)
def test_sizes(op, version, dtype, n):
    for m in (1, 3, 199):
        inputs = draw(op, dtype, m, n, SCALES)
        check(op, VERSIONS[version].KERNELS[op], *inputs, corrected=version in ("v3", "v4"), device="cuda")


@pytest.mark.parametrize("n", WIDER)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_wide_rows(op, dtype, n):
    check(op, VERSIONS["v4"].KERNELS[op], *draw(op, dtype, 17, n, SCALES), corrected=True, device="cuda")


@pytest.mark.parametrize("n", [200, 1000, 4099, 20001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_rows_apart(op, dtype, n):
    inputs = draw(op, dtype, 33, n, SCALES)
    even = -n % 16
    for extra in ((even, even + 16, even + 32), (3, 11, 19)):
        strides = [n + more for more in (extra if op == "residual-rmsnorm" else extra[::2])]
        views = [tensor.cuda() for tensor in inputs]
        for index, stride in enumerate(strides[:-1]):
            views[index] = padded(views[index], stride, float("nan"))[0]
        unwritten = torch.full((2, 33, n) if op == "residual-rmsnorm" else (33, n), -77.0, dtype=dtype, device="cuda")
        out, storage = padded(unwritten, strides[-1], -77.0)
        VERSIONS["v4"].KERNELS[op](*views, out=out)
        compare(op, out.cpu(), *inputs, corrected=True)
        assert (storage[..., n:] == -77.0).all()


@pytest.mark.parametrize("n", [1000, 20001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_special_values_stay_in_their_row(op, dtype, n):
    x, *others = draw(op, dtype, 9, n)
    for row, (column, value) in enumerate([(0, float("nan")), (n - 1, float("inf")), (n // 2, -float("inf"))]):
        x[2 * row, column] = value
    x[1], x[3] = 0.0, -0.0
    check(op, VERSIONS["v4"].KERNELS[op], x, *others, corrected=True, device="cuda")


@pytest.mark.parametrize("n", [40, 4099, 20001])
def test_a_large_mean_costs_the_newest_layernorm_nothing(n):
    inputs = draw("layernorm", torch.float32, 33, n, shift=1e4)
    check("layernorm", VERSIONS["v3"].KERNELS["layernorm"], *inputs, corrected=True, device="cuda")


@pytest.mark.parametrize("n", [1024, 32768])
def test_rows_beyond_32_bit_offsets(n):
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < FREE_BYTES_NEEDED:
        pytest.skip(f"needs {FREE_BYTES_NEEDED / 1e9:.0f} GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")
    m = 2**31 // n + 3
    x = torch.zeros((m, n), dtype=torch.bfloat16, device="cuda")
    weight = torch.ones(n, dtype=torch.bfloat16, device="cuda")
    last = draw("rmsnorm", torch.bfloat16, 3, n)[0]
    x[-3:] = last
    out = torch.full_like(x, -77.0)
    VERSIONS["v3"].KERNELS["rmsnorm"](x, weight, out=out)
    compare("rmsnorm", out[-3:].cpu(), last, weight.cpu())
    assert not out[:3].any()
