"""Matmul kernels in every layout, against fp64: under Triton's interpreter, and on a GPU. See
test_every_family.py.
"""

import math

import pytest
import torch
from exact import DEVICE, DTYPES, version_of
from families import ON_A_GPU, pairs
from matmul_cases import FP8, LAYOUTS, check, check_case, draw, values

from kernels.launch import INTERPRETED

pytestmark = [] if INTERPRETED else pytest.mark.gpu

VERSIONS = {version_of(module): module for _, module in (pair.values for pair in pairs("matmul"))}
NARROW = [version for version in ("v3", "v4", "v5") if version in VERSIONS]  # with int8 and fp8
HAS_FP8 = "v5" in VERSIONS
SHAPES = [
    (m, n, k)
    for m in (1, 70)
    for n, k in ((1, 1), (16, 16), (17, 31), (64, 33), (65, 63), (7, 129))
]
LARGE = [(129, 257, 127), (1000, 1023, 513), (2049, 640, 1025)]  # too much for the interpreter
SIZES = [
    pytest.param(
        shape, LAYOUTS[number % 3], id=f"{'x'.join(map(str, shape))}-{LAYOUTS[number % 3]}"
    )
    for number, shape in enumerate(SHAPES + ([] if INTERPRETED else LARGE))
]
every_version = pytest.mark.parametrize(
    "version", [pytest.param(name, id=f"matmul-{name}") for name in VERSIONS]
)
every_dtype = pytest.mark.parametrize("name", DTYPES if INTERPRETED else ON_A_GPU)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("shape", "layout"), SIZES)
@every_dtype
@every_version
def test_sizes(version, name, shape, layout):
    check_case(VERSIONS[version], ON_A_GPU[name], layout, shape)


@every_layout
@every_dtype
@every_version
def test_batches_with_padded_rows_and_integers(version, name, layout):
    # More tiles than the 8 programs of the 4 processors of the interpreter.
    check_case(VERSIONS[version], ON_A_GPU[name], layout, (33, 66, 50), batch=(5,), padded=True)
    check_case(VERSIONS[version], ON_A_GPU[name], layout, (66, 72, 65), kind="integers")


@pytest.mark.parametrize("version", NARROW)
def test_every_tile_size(version):
    # With the 4 processors of the interpreter.
    for shape in ((200, 264, 24), (200, 200, 24), (40, 40, 24)):
        check_case(VERSIONS[version], torch.float16, "nn", shape, kind="integers")


@every_layout
@every_dtype
def test_matmul_v3_with_aligned_inputs_and_odd_output(name, layout):
    n = 40 if layout[1] == "n" else 37
    check_case(VERSIONS["v3"], ON_A_GPU[name], layout, (72, n, 56))
    check_case(VERSIONS["v3"], ON_A_GPU[name], layout, (72, n, 56), batch=(2,))


@pytest.mark.parametrize(("term", "layout"), [(0, "nn"), (31, "nt"), (64, "tn"), (64, "nt")])
@every_version
def test_special_values_stay_in_their_row_and_column(version, term, layout):
    a, b = draw("matmul", torch.float32, 66, 34, 65)
    for row, column, special in ((0, 0, math.inf), (31, 16, -math.inf), (65, 33, math.nan)):
        a[row, term] = special
        b[term, column] = special
    check("matmul", VERSIONS[version], a, b, layout)


@every_version
def test_opposite_infinities_and_overflow(version):
    a, b = torch.ones(3, 40), torch.ones(40, 8)
    a[0, 0], a[0, 39], a[1, 39] = math.inf, -math.inf, 3e38
    b[39, 2] = 2.0
    check("matmul", VERSIONS[version], a, b, "nn")


@every_version
def test_denormals_and_signed_zeros(version):
    a = torch.tensor([2.0**-24, -(2.0**-24), -0.0, 1.0]).half().repeat(8, 4)
    b = torch.tensor([3.0, 0.0, -0.0, 0.0]).half().repeat(8, 4).T.contiguous()
    check("matmul", VERSIONS[version], a, b, "nn", is_exact=True)


@pytest.mark.skipif(not HAS_FP8, reason="needs sm_90")
@pytest.mark.parametrize("version", NARROW)
@pytest.mark.parametrize("name", FP8)
def test_fp8(version, name):
    for shape in ((33, 17, 144), (130, 65, 19), (7, 128, 256)):  # every sum is exact in bf16
        check_case(VERSIONS[version], FP8[name], "nt", shape, kind="ones", scales=(4.0, 0.125))


@pytest.mark.parametrize("version", NARROW)
@every_layout
def test_int8(version, layout):
    check_case(VERSIONS[version], torch.int8, layout, (70, 66, 200), kind="bytes")
    check_case(
        VERSIONS[version], torch.int8, layout, (129, 17, 33), kind="bytes", batch=(2,), padded=True
    )


@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_no_terms_give_zeros(version):
    a, b, out = (
        torch.empty(3, 0, device=DEVICE),
        torch.empty(0, 5, device=DEVICE),
        torch.ones(3, 5, device=DEVICE),
    )
    VERSIONS[version].KERNELS["matmul"](a, b, out=out)
    assert not out.any()


@every_version
def test_a_and_c_may_share_a_buffer(version):
    buffer = torch.full((17, 64), 7.0, device=DEVICE)
    a, b = values((17, 32), torch.float32, "integers"), values((32, 16), torch.float32, "integers")
    buffer[:, :32] = a
    VERSIONS[version].KERNELS["matmul"](buffer[:, :32], b.to(DEVICE), out=buffer[:, 32:48])
    assert torch.equal(buffer[:, 32:48].cpu(), a @ b)
    assert bool((buffer[:, 48:] == 7.0).all())
