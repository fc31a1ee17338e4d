"""Launchers of the matmul kernels without a GPU: what they ask the compiler for."""

import pytest
import torch
import triton
from compiled import divisible
from families import versions_of
from matmul_cases import LAYOUTS, output_dtype

import kernels.launch
from kernels.matmul import DTYPES

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = versions_of("matmul")
POINTERS = {"a_ptr", "b_ptr", "out_ptr"}


def constants_of(compiled):
    return {compiled.src.fn.arg_names[path[0]]: value for path, value in compiled.src.constants.items()}


def product(dtype, m=48, n=64, k=80, layout="nt", batch=()):
    """Return operands of a product as keyword arguments, never filled."""
    a = torch.empty(*batch, m, k, dtype=dtype) if layout[0] == "n" else torch.empty(*batch, k, m, dtype=dtype).mT
    b = torch.empty(*batch, k, n, dtype=dtype) if layout[1] == "n" else torch.empty(*batch, n, k, dtype=dtype).mT
    scales = (torch.ones(1), torch.ones(1)) if DTYPES[dtype].startswith("fp8") else ()
    return (a, b, *scales), torch.empty(*batch, m, n, dtype=output_dtype(dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_pointer_launches(launches, version, layout):
    inputs, out = product(torch.bfloat16, layout=layout)
    VERSIONS[version].KERNELS["matmul"](*inputs, out=out)
    [((programs,), compiled)] = launches
    assert programs == 1
    assert compiled.metadata.enable_fp_fusion is True
    if version == "v3":
        assert divisible(compiled) == POINTERS | {"n", "out_stride", "out_batch"}
        assert constants_of(compiled)["UNIT"] == 8  # which says the same of A and B, and of multiples of 8 too
    else:
        assert divisible(compiled) >= POINTERS | {"m", "n", "k", "a_stride", "b_stride", "out_stride"}


@pytest.mark.parametrize(
    ("layout", "shape", "unit"),
    [
        ("nn", (5, 72, 56), 8),  # m lies along no stored row of A or B, nor of C
        ("nn", (5, 71, 56), 1),
        ("nn", (5, 72, 57), 1),
        ("nt", (5, 71, 56), 8),  # neither does n here
        ("nt", (5, 72, 57), 1),
        ("tn", (8, 72, 57), 8),
        ("tn", (5, 72, 57), 1),
        ("tn", (8, 71, 56), 1),
        ("nt", (5, 71, 60), 1),  # 8 bytes
    ],
)
def test_version_3_knows_of_a_and_b_what_is_so(launches, layout, shape, unit):
    inputs, out = product(torch.bfloat16, *shape, layout=layout)
    VERSIONS["v3"].KERNELS["matmul"](*inputs, out=out)
    [(_, compiled)] = launches
    assert constants_of(compiled)["UNIT"] == unit


def test_version_3_looks_at_strides_between_rows_and_matrices_too(launches):
    buffer = torch.empty(2 * 4 * 72 + 4, dtype=torch.bfloat16)
    b, out = torch.empty(2, 64, 16, dtype=torch.bfloat16), torch.empty(2, 4, 16, dtype=torch.bfloat16)
    for strides, unit in (((288, 72, 1), 8), ((292, 72, 1), 1), ((288, 68, 1), 1)):
        VERSIONS["v3"].KERNELS["matmul"](buffer.as_strided((2, 4, 64), strides), b, out=out)
        assert constants_of(launches[-1][1])["UNIT"] == unit, strides


@pytest.mark.parametrize("dtype", [*DTYPES], ids=DTYPES.get)
@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
def test_every_dtype_is_what_variants_compile(launches, version, dtype):
    inputs, out = product(dtype)
    module = VERSIONS[version]
    module.KERNELS["matmul"](*inputs, out=out)
    [(_, compiled)] = launches
    [same] = [
        variant
        for variant in module.variants(90)
        if variant.dtype == DTYPES[dtype] and variant.shape_class in ("nt, small", "nt, any")
    ]
    for name, wanted in same.types.items():
        assert compiled.src.signature[name] == wanted, name
    constants = constants_of(compiled)
    assert {name: constants[name] for name in same.constants} == dict(same.constants)
    for name, wanted in same.options.items():
        assert getattr(compiled.metadata, name) == wanted, name


@pytest.mark.parametrize("shape", [(1, 64, 80), (48, 1, 80), (48, 64, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("version", ["v1", "v2", "v3"])
def test_extents_of_one_compile(launches, version, layout, shape):
    inputs, out = product(torch.float16, *shape, layout=layout)
    VERSIONS[version].KERNELS["matmul"](*inputs, out=out)
    assert len(launches) == 1


@pytest.fixture
def precision():
    """torch's setting for fp32 products, put back afterwards."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    yield setting
    setting.fp32_precision = before


@pytest.mark.parametrize("version", ["v2", "v3", "v4", "v5"])
def test_tf32_is_what_torch_is_set_to(launches, version, precision):
    inputs, out = product(torch.float32)
    found = []
    for word in ("ieee", "tf32"):
        precision.fp32_precision = word
        VERSIONS[version].KERNELS["matmul"](*inputs, out=out)
        ir = launches[-1][1].asm["ttir"]
        found.append("inputPrecision = tf32" in ir)
    assert found == [False, True]


@pytest.mark.parametrize(("arch", "dtype", "line"), [
    (80, torch.bfloat16, r"matmul v4: no kernel for bf16 on sm_80; tensor descriptors need sm_90 or newer"),
    (75, torch.bfloat16, r"matmul v3: no kernel for bf16 on sm_75; "),
    (89, torch.float8_e4m3fn, r"matmul v3: no kernel for fp8e4m3 on sm_89; fp8 needs sm_90 or sm_100"),
])  # fmt: skip
def test_gpus_that_lack_something_are_refused(launches, monkeypatch, arch, dtype, line):
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(arch, 4, 2**16))
    inputs, out = product(dtype)
    with pytest.raises(ValueError, match=f"^{line}"):
        VERSIONS[line.split()[1].rstrip(":")].KERNELS["matmul"](*inputs, out=out)
    assert not launches


def test_autotune_tries_a_list_once_a_shape_and_launches_what_it_finds(launches, monkeypatch):
    tried = []

    def instead_of_timing(self, *args, config, **meta):
        tried.append(config)
        return float(config.num_stages != 4) + float(config.num_warps != 8)

    monkeypatch.setattr(triton.runtime.Autotuner, "_bench", instead_of_timing)
    v5 = VERSIONS["v5"]
    for shape in ((480, 640, 80), (480, 640, 80), (480, 640, 96)):
        inputs, out = product(torch.float16, *shape)
        v5.AUTOTUNED["matmul"](*inputs, out=out)
    assert len(tried) == 4 * len(v5.TUNED["fp16"]), "one search for each shape, none for a shape seen before"
    assert len(launches) == 3
    for _, compiled in launches:
        assert (compiled.metadata.num_warps, compiled.metadata.num_stages) == (8, 4)
        assert constants_of(compiled)["BLOCK_M"] == 128
        assert compiled.metadata.enable_fp_fusion is True
