"""The matmul kernels on a real GPU, in every dtype, against fp64; most sizes are odd on purpose."""

import pytest
import torch
from exact import version_of
from families import ON_A_GPU, versions_of
from matmul_cases import FP8, LAYOUTS, check_case

pytestmark = pytest.mark.gpu

VERSIONS = versions_of("matmul")
SHAPES = [(1, 1, 1), (3, 5, 7), (64, 64, 64), (129, 257, 127), (1000, 1023, 513), (2049, 640, 1025)]
HAS_TMA = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9
RUNNABLE = [module for module in VERSIONS.values() if HAS_TMA or not hasattr(module, "MINIMUM_ARCH")]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_version = pytest.mark.parametrize("module", RUNNABLE, ids=version_of)
from_version_3 = pytest.mark.parametrize("module", RUNNABLE[2:], ids=version_of)
on_sm_90 = pytest.mark.skipif(not HAS_TMA, reason="needs sm_90")


@pytest.fixture(autouse=True)
def precision():
    """torch's setting for fp32 products, put back afterwards."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "ieee"
    yield setting
    setting.fp32_precision = before


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@every_layout
@pytest.mark.parametrize("dtype", ON_A_GPU.values(), ids=ON_A_GPU)
@every_version
def test_matmul(module, dtype, layout, shape):
    check_case(module, dtype, layout, shape, device="cuda")
    whole = {"kind": "integers", "batch": (2,), "padded": True}
    check_case(module, dtype, layout, shape, **whole, device="cuda")


@every_layout
@pytest.mark.parametrize("module", RUNNABLE[1:], ids=version_of)
def test_tf32_products_of_small_whole_numbers_are_exact(module, layout, precision):
    precision.fp32_precision = "tf32"
    check_case(module, torch.float32, layout, (300, 520, 131), kind="integers", device="cuda")


@on_sm_90
@from_version_3
def test_fp8(module):
    for dtype in FP8.values():
        for shape in ((33, 17, 144), (1000, 1023, 200)):  # every sum is a whole number that bf16 has
            check_case(module, dtype, "nt", shape, kind="ones", scales=(4.0, 0.125), device="cuda")
    # Long sums keep what 14 bits would lose.
    check_case(module, torch.float8_e4m3fn, "nt", (256, 256, 8192), scales=(1.0, 1.0), device="cuda")


@every_layout
@from_version_3
def test_int8(module, layout):
    check_case(module, torch.int8, layout, (300, 65, 200), kind="bytes", device="cuda")


@on_sm_90
def test_autotuned():
    for shape in ((300, 200, 130), (2048, 2048, 130)):
        how = {"launchers": "AUTOTUNED", "device": "cuda"}
        check_case(VERSIONS["v5"], torch.bfloat16, "nt", shape, **how)
