"""Softmax on a real GPU, in every dtype, against fp64; the widths are odd on purpose."""

import pytest
import torch
from softmax_cases import assert_softmax, check_padded, check_softmax, normal, special_rows

from kernels.launch import DTYPES
from kernels.softmax import v1_naive, v2_aligned, v3_split_rows

pytestmark = pytest.mark.gpu

VERSIONS = {"v1": v1_naive, "v2": v2_aligned, "v3": v3_split_rows}
WIDTHS = [1, 7, 192, 256, 760, 1000, 1024, 1128, 4096, 4099, 8192, 16385, 32768, 32769, 50257, 65536, 128256, 262144]


def softmax(version):
    return VERSIONS[version].KERNELS["softmax"]


@pytest.mark.parametrize("m", [1, 199])
@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_sizes(version, dtype, n, m):
    if version == "v1" and n > 65536:
        pytest.skip("version 1 refuses such rows")
    m = min(m, max(3, 2**22 // n))  # the reference takes its time on the host
    check_softmax(softmax(version), normal(m, n, dtype), f"{version} {m}x{n}", device="cuda")


@pytest.mark.parametrize("pads", [(5, 5), (3, 19), (16, 32)], ids=str)
@pytest.mark.parametrize("n", [5, 1000, 4099, 33001])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_apart(version, dtype, n, pads):
    check_padded(softmax(version), normal(37, n, dtype), pads, device="cuda")


@pytest.mark.parametrize("n", [19, 1029, 33005])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_special_values(version, dtype, n):
    check_softmax(softmax(version), special_rows(n, dtype), version, device="cuda")


@pytest.mark.parametrize(("scale", "offset"), [(1.0, 1e4), (60.0, 0.0), (0.0, 3.0)])
@pytest.mark.parametrize("n", [1000, 40001])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", VERSIONS)
def test_large_offsets_and_wide_ranges(version, dtype, n, scale, offset):
    check_softmax(softmax(version), normal(5, n, dtype, scale, offset), version, device="cuda")


@pytest.mark.parametrize("n", [1000, 33001])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_beyond_32_bit_offsets(version, n):
    stride = 2**30 + 16
    free_bytes, _ = torch.cuda.mem_get_info()
    if free_bytes < 12 * 10**9:
        pytest.skip(f"needs 12 GB of free GPU memory, {free_bytes / 1e9:.0f} GB are free")
    buffers = [torch.empty(2 * stride + n, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    x, out = (buffer.as_strided((3, n), (stride, 1)) for buffer in buffers)
    x.copy_(normal(3, n, torch.bfloat16))
    softmax(version)(x, out=out)
    assert_softmax(out, x, version)
