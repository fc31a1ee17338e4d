"""Launchers without a GPU: they launch the audited variants, with the configuration for the
shape.
"""

import pytest
import torch
import triton
from compiled import divisible
from exact import version_of
from families import every_way, small, versions_of
from matmul_cases import output_dtype
from triton.runtime.jit import JITFunction

import kernels.launch
from kernels.matmul import DTYPES

pytestmark = [
    pytest.mark.sampled(1),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

H100 = kernels.launch.Gpu(90, 132, 50 * 2**20)


def run(family, op, version, dtype, *shape):
    inputs, out = small(family, op, dtype, *shape)
    versions_of(family)[version].KERNELS[op](*inputs, out=out)


def constants_of(compiled):
    return {
        compiled.src.fn.arg_names[path[0]]: value for path, value in compiled.src.constants.items()
    }


def properties_of(compiled):
    types = {name: kind for name, kind in compiled.src.signature.items() if kind != "constexpr"}
    return compiled.src.fn.fn, constants_of(compiled), types, compiled.metadata.num_warps


@pytest.mark.parametrize(
    ("family", "op", "module"), [way for way in every_way() if "matmul" not in way.id]
)
def test_launch_compiles_the_audited_variant(launches, family, op, module):
    inputs, out = small(family, op, torch.bfloat16)
    module.KERNELS[op](*inputs, out=out)
    assert launches
    variants = [
        variant for variant in module.variants(90) if (variant.op, variant.dtype) == (op, "bf16")
    ]
    for _, compiled in launches:
        kernel, constants, types, warps = properties_of(compiled)
        assert compiled.metadata.enable_fp_fusion is True
        assert divisible(compiled) >= {name for name in types if name.endswith("_ptr")}
        [variant] = [
            variant
            for variant in variants
            if variant.kernel.fn is kernel
            and variant.options["num_warps"] == warps
            and all(constants.get(name) == value for name, value in variant.constants.items())
        ]
        own = {name: f"*{variant.dtype}" if name.endswith("_ptr") else "i32" for name in types}
        assert types == own | {name: kind for name, kind in variant.types.items() if name in types}


@pytest.mark.parametrize(("family", "op", "module"), every_way())
def test_launchers_reject_cpu_tensors(family, op, module):
    inputs, out = small(family, op, torch.float32)
    label = f"{op} {version_of(module)}"
    with pytest.raises(
        ValueError, match=rf"^{label}: \w+ is on cpu; Triton needs a GPU, device 'cuda'$"
    ):
        module.KERNELS[op](*inputs, out=out)


@pytest.mark.parametrize(
    ("family", "op", "shapes"),
    [
        ("elementwise", "relu", [(17,), (32,), (33,), (256,)]),
        ("softmax", "softmax", [(2, 17), (2, 32), (2, 33), (2, 256)]),
        ("cross_entropy", "cross-entropy", [(2, 17), (2, 32), (2, 33), (2, 256)]),
        ("reduction", "sum", [(17,), (32,), (33,), (256,)]),
        ("matvec", "matvec", [(100, 1040), (101, 2064), (116, 1044)]),
    ],
)
def test_odd_and_even_sizes_share_one_binary(launches, family, op, shapes):
    for shape in shapes:
        run(family, op, list(versions_of(family))[-1], torch.float32, *shape)
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize(
    ("family", "op", "version", "n", "wanted"),
    [
        ("softmax", "softmax", "v2", 7, ("softmax_row", 8 * 32, 1)),
        ("softmax", "softmax", "v2", 32768, ("softmax_row", 32768, 16)),
        ("softmax", "softmax", "v2", 32769, ("softmax_walk", 4096, 16)),
        ("norm", "rmsnorm", "v3", 4097, ("norm_rows", 8192, 8)),
        ("norm", "rmsnorm", "v3", 16384, ("norm_rows", 16384, 16)),
        ("norm", "rmsnorm", "v3", 16385, ("norm_tiles", 4096, 16)),
        ("norm", "residual-rmsnorm", "v3", 131073, ("norm_tiles", 8192, 32)),
    ],
)
def test_row_width_selects_the_configuration(launches, family, op, version, n, wanted):
    run(family, op, version, torch.bfloat16, 16, n)
    [(_, compiled)] = launches
    kernel, constants, _, warps = properties_of(compiled)
    size = constants.get("BLOCK") or constants.get("WIDTH") or constants["LANES"]
    assert (kernel.__name__, size, warps) == wanted


@pytest.mark.parametrize(
    ("family", "op", "version", "shape", "wanted"),
    [
        ("softmax", "softmax", "v3", (4, 65536), {"row_partial": 64, "softmax_finish": 64}),
        ("softmax", "softmax", "v3", (132, 65536), {"softmax_walk": 132}),
        (
            "cross_entropy",
            "cross-entropy",
            "v3",
            (5, 50257),
            {"row_partial": 65, "cross_entropy_finish": 5},
        ),
        ("norm", "layernorm", "v4", (4, 65536), {"layer_partial": 64, "layer_finish": 64}),
        ("norm", "residual-rmsnorm", "v4", (4, 65536), {"rms_partial": 64, "rms_finish": 64}),
        ("norm", "rmsnorm", "v4", (132, 65536), {"norm_tiles": 132}),
    ],
)
def test_few_rows_are_shared_by_all_processors(
    launches, monkeypatch, family, op, version, shape, wanted
):
    monkeypatch.setattr(kernels.launch, "stand_in", H100)
    run(family, op, version, torch.float32 if family == "cross_entropy" else torch.bfloat16, *shape)
    assert {compiled.metadata.name: programs for (programs,), compiled in launches} == wanted
    # One binary for all of them.
    assert not divisible(launches[0][1]) & {"steps", "splits", "first_row", "chunk"}


@pytest.mark.parametrize(
    ("version", "dtype", "layout", "extent", "wanted"),
    [
        ("v3", "bfloat16", "nt", 4096, 2 * 132),
        ("v3", "bfloat16", "nn", 4096, 132),
        ("v3", "bfloat16", "nn", 1024, 16 * 16),  # tiles of 64 x 64
        ("v4", "bfloat16", "nn", 1536, 12 * 12),  # medium tiles, 128 x 128
    ],
)
def test_matmul_starts_as_many_programs_as_fit(monkeypatch, version, dtype, layout, extent, wanted):
    started = []
    monkeypatch.setattr(JITFunction, "run", lambda *_, grid, **others: started.append(grid))
    monkeypatch.setattr(kernels.launch, "stand_in", H100)
    monkeypatch.setattr(kernels.launch, "INTERPRETED", True)
    kind = getattr(torch, dtype)
    a, b = (torch.empty(extent, extent, dtype=kind, device="meta") for _ in range(2))
    out = torch.empty(extent, extent, dtype=output_dtype(kind), device="meta")
    operands = [x if order == "n" else x.mT for x, order in zip((a, b), layout, strict=True)]
    versions_of("matmul")[version].KERNELS["matmul"](*operands, out=out)
    assert started == [(wanted,)]


V3 = versions_of("matvec")["v3"]
V2 = versions_of("reduction")["v2"]


@pytest.mark.parametrize("sm_count", [108, 132, 148])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_matvec_plans_cover_every_row_and_column(sm_count, width):
    for m in (1, 2, 7, 100, 527, 4096, 70000):
        for n in (1, 33, 513, 4096, 8209, 65536, 3_000_001):
            plan = V3.plan(m, n, width, n, sm_count)
            config, access = V3.CONFIGS[plan.shape_class], 16 // width
            assert plan.splits * plan.steps * config.lanes * config.loads * access >= n
            assert (
                plan.splits - 1
            ) * plan.steps * config.lanes * config.loads * access < n  # none has nothing
            assert plan.programs * config.rows >= m * plan.splits
            assert plan.programs % plan.splits == 0
            if plan.splits > 1:
                assert m < 2 * V3.PROGRAMS_PER_SM * sm_count * config.rows * access


class Gpu:
    type = "cuda"


@pytest.fixture
def streams(monkeypatch):
    class Current:
        cuda_stream = 1
        is_recorded = False

    zeros = torch.zeros
    monkeypatch.setattr(
        V2.torch, "zeros", lambda *shape, device=None, **options: zeros(*shape, **options)
    )
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Current)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: Current.is_recorded)
    return Current


def addresses(counters, launches_count=3):
    return [counters.take().data_ptr() for _ in range(launches_count)]


def test_each_recorded_launch_has_a_separate_counter(streams):
    counters = V2.Counters(Gpu())
    eager = addresses(counters)
    streams.is_recorded = True
    recorded = addresses(counters, 2 * V2.COUNTERS // 3)  # on the stream of the eager launches
    streams.is_recorded = False
    more = addresses(counters)  # fills up
    streams.is_recorded = True
    recorded += addresses(counters, V2.COUNTERS)
    assert more == eager
    assert len({*recorded, *eager}) == len(recorded) + 1
    # A graph knows addresses only: all of them stay allocated. Each is aligned, so that one binary
    # serves all.
    retained = {row.data_ptr() for block in counters._blocks for row in block}
    assert not [address for address in recorded if address % 16]
    assert set(recorded) <= retained


MATMUL = versions_of("matmul")


def product(dtype, m=48, n=64, k=80, layout="nt", batch=()):
    a = (
        torch.empty(*batch, m, k, dtype=dtype)
        if layout[0] == "n"
        else torch.empty(*batch, k, m, dtype=dtype).mT
    )
    b = (
        torch.empty(*batch, k, n, dtype=dtype)
        if layout[1] == "n"
        else torch.empty(*batch, n, k, dtype=dtype).mT
    )
    scales = (torch.ones(1), torch.ones(1)) if DTYPES[dtype].startswith("fp8") else ()
    return (a, b, *scales), torch.empty(*batch, m, n, dtype=output_dtype(dtype))


@pytest.mark.parametrize(
    ("layout", "shape", "unit"),
    [
        ("nn", (5, 72, 56), 8),  # m lies along no stored row of A or B, nor of C
        ("nn", (5, 72, 57), 1),
        ("nt", (5, 71, 56), 8),  # neither does n here
        ("tn", (8, 72, 57), 8),
        ("nt", (5, 71, 60), 1),  # 8 bytes
    ],
)
def test_matmul_v3_detects_aligned_operands(launches, layout, shape, unit):
    inputs, out = product(torch.bfloat16, *shape, layout=layout)
    MATMUL["v3"].KERNELS["matmul"](*inputs, out=out)
    [(_, compiled)] = launches
    assert constants_of(compiled)["UNIT"] == unit


@pytest.mark.parametrize("dtype", [*DTYPES], ids=DTYPES.get)
@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
def test_matmul_launch_compiles_the_audited_variant(launches, version, dtype):
    inputs, out = product(dtype)
    module = MATMUL[version]
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
def test_matmul_with_an_extent_of_one_compiles(launches, shape):
    inputs, out = product(torch.float16, *shape)
    MATMUL["v3"].KERNELS["matmul"](*inputs, out=out)
    assert len(launches) == 1


@pytest.fixture
def precision():
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    yield setting
    setting.fp32_precision = before


@pytest.mark.parametrize("version", ["v3", "v5"])
def test_tf32_follows_the_torch_setting(launches, version, precision):
    inputs, out = product(torch.float32)
    found = []
    for word in ("ieee", "tf32"):
        precision.fp32_precision = word
        MATMUL[version].KERNELS["matmul"](*inputs, out=out)
        found.append("inputPrecision = tf32" in launches[-1][1].asm["ttir"])
    assert found == [False, True]


@pytest.mark.parametrize(
    ("arch", "dtype", "line"),
    [
        (
            80,
            torch.bfloat16,
            r"matmul v4: no kernel for bf16 on sm_80; tensor descriptors need sm_90 or newer",
        ),
        (75, torch.bfloat16, r"matmul v3: no kernel for bf16 on sm_75; "),
        (
            89,
            torch.float8_e4m3fn,
            r"matmul v3: no kernel for fp8e4m3 on sm_89; fp8 needs sm_90 or sm_100",
        ),
    ],
)
def test_matmul_rejects_unsupported_gpus(launches, monkeypatch, arch, dtype, line):
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(arch, 4, 2**16))
    inputs, out = product(dtype)
    with pytest.raises(ValueError, match=f"^{line}"):
        MATMUL[line.split()[1].rstrip(":")].KERNELS["matmul"](*inputs, out=out)
    assert not launches


def test_autotune_runs_once_per_shape(launches, monkeypatch):
    tried = []

    def instead_of_timing(self, *args, config, **meta):
        tried.append(config)
        return float(config.num_stages != 4) + float(config.num_warps != 8)

    monkeypatch.setattr(triton.runtime.Autotuner, "_bench", instead_of_timing)
    v5 = MATMUL["v5"]
    for shape in ((480, 640, 80), (480, 640, 80), (480, 640, 96)):
        inputs, out = product(torch.float16, *shape)
        v5.AUTOTUNED["matmul"](*inputs, out=out)
    assert len(tried) == 4 * len(v5.TUNED["fp16"]), (
        "one search for each shape, none for a shape seen before"
    )
    assert len(launches) == 3
    for _, compiled in launches:
        assert (compiled.metadata.num_warps, compiled.metadata.num_stages) == (8, 4)
        assert constants_of(compiled)["BLOCK_M"] == 128
        assert compiled.metadata.enable_fp_fusion is True
