"""The matmul kernels on a real GPU, in every dtype, against fp64; most sizes are odd on purpose."""

import pytest
import torch
from matmul_cases import FP8, LAYOUTS, VERSIONS, check_case

pytestmark = pytest.mark.gpu

SHAPES = [(1, 1, 1), (3, 5, 7), (64, 64, 64), (129, 257, 127), (1000, 1023, 513), (2049, 640, 1025)]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HAS_V4 = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9
RUNNABLE = [version for version in VERSIONS if version != "v4" or HAS_V4]


@pytest.fixture(autouse=True)
def precision():
    """torch's setting for fp32 products, put back afterwards."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "ieee"
    yield setting
    setting.fp32_precision = before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("version", RUNNABLE)
def test_matmul(version, name, layout, shape):
    check_case(VERSIONS[version], DTYPES[name], layout, shape, device="cuda")
    check_case(VERSIONS[version], DTYPES[name], layout, shape, kind="integers", batch=(2,), padded=True, device="cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", [version for version in RUNNABLE if version != "v1"])
def test_tf32_products_of_small_whole_numbers_are_exact(version, layout, precision):
    precision.fp32_precision = "tf32"
    check_case(VERSIONS[version], torch.float32, layout, (300, 520, 131), kind="integers", device="cuda")


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("version", RUNNABLE[2:])
def test_fp8(version, name):
    if not HAS_V4:
        pytest.skip("fp8 needs sm_90")
    for shape in ((33, 17, 144), (1000, 1023, 200)):  # every sum is a whole number that bf16 has
        check_case(VERSIONS[version], FP8[name], "nt", shape, kind="ones", scales=(4.0, 0.125), device="cuda")


@pytest.mark.skipif(not HAS_V4, reason="fp8 needs sm_90")
@pytest.mark.parametrize("version", RUNNABLE[2:])
def test_long_fp8_sums_keep_what_14_bits_would_lose(version):
    check_case(VERSIONS[version], FP8["fp8e4m3"], "nt", (256, 256, 8192), scales=(1.0, 1.0), device="cuda")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", RUNNABLE[2:])
def test_int8(version, layout):
    check_case(VERSIONS[version], torch.int8, layout, (300, 65, 200), kind="bytes", device="cuda")


@pytest.mark.skipif(not HAS_V4, reason="version 5 needs sm_90")
def test_autotuned():
    check_case(VERSIONS["v5"], torch.bfloat16, "nt", (300, 200, 130), launchers="AUTOTUNED", device="cuda")
    check_case(VERSIONS["v5"], torch.bfloat16, "nt", (2048, 2048, 130), launchers="AUTOTUNED", device="cuda")
