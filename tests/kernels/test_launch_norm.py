"""Launchers of the row norms without a GPU: which variant they take, and what they tell the compiler.

The launcher runs up to the point where the finished binary would go to the device.
"""

import pytest
import torch
from compiled import divisible
from norm_cases import OPS, VERSIONS, draw

import kernels.launch

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]


def run(op, version, dtype, m, n, stride=None):
    """Launch on rows `stride` apart, n if None."""
    stride = stride or n
    inputs = [t if t.dim() == 1 else torch.zeros(m, stride, dtype=dtype)[:, :n] for t in draw(op, dtype, m, n)]
    shape = (2, m, stride) if op == "residual-rmsnorm" else (m, stride)
    VERSIONS[version].KERNELS[op](*inputs, out=torch.zeros(shape, dtype=dtype)[..., :n])


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=str)
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("op", OPS)
def test_launch(launches, op, version, dtype):
    run(op, version, dtype, 16, 1024)
    [((programs,), compiled)] = launches
    assert programs == (16 if version < "v3" else 4)
    assert compiled.metadata.num_warps == (8 if version == "v1" else 4)
    assert compiled.metadata.enable_fp_fusion is True
    pointers = {name for name in compiled.src.fn.arg_names if name.endswith("_ptr")}
    strides = {name for name in compiled.src.fn.arg_names if name.endswith("_stride")}
    assert divisible(compiled) >= (pointers if version >= "v3" else pointers | strides)  # version 3 rounds down itself


def shape_of(compiled):
    """Return what of the configuration hangs on the shape."""
    constants = {compiled.src.fn.arg_names[path[0]]: value for path, value in compiled.src.constants.items()}
    size = constants.get("BLOCK") or constants["WIDTH"]
    layout = ("aligned", "shifted", "mixed")[constants["SHIFTED"] + constants["MIXED"]]
    return compiled.src.fn.__name__, size, compiled.metadata.num_warps, layout


@pytest.mark.parametrize(
    ("op", "n", "stride", "shape"),
    [
        ("rmsnorm", 128, 128, ("rms_rows", 256, 4, "aligned")),
        ("rmsnorm", 259, 264, ("rms_rows", 256, 4, "aligned")),
        ("rmsnorm", 1000, 1000, ("rms_rows", 1024, 4, "aligned")),
        ("rmsnorm", 4099, 4099, ("rms_rows", 4096, 4, "shifted")),
        ("rmsnorm", 4100, 4104, ("rms_rows", 8192, 8, "aligned")),
        ("layernorm", 16384, 16384, ("layer_tiles", 4096, 16, "aligned")),
        ("rmsnorm", 16384, 16384, ("rms_rows", 16384, 16, "aligned")),
        ("rmsnorm", 16385, 16385, ("rms_tiles", 2048, 8, "shifted")),
        ("residual-rmsnorm", 131075, 131080, ("rms_tiles", 4096, 16, "aligned")),
        ("residual-rmsnorm", 131076, 131080, ("rms_tiles", 8192, 32, "aligned")),
        ("layernorm", 262147, 262147, ("layer_tiles", 2048, 8, "shifted")),
    ],
)
def test_shape_picks_the_configuration(launches, op, n, stride, shape):
    run(op, "v3", torch.bfloat16, 16, n, stride)
    [(_, compiled)] = launches
    assert shape_of(compiled) == shape


def test_rows_off_by_different_counts_are_mixed(launches):
    x, w = torch.zeros(4, 1003)[:, :1000], torch.ones(1000)
    VERSIONS["v3"].KERNELS["rmsnorm"](x, w, out=torch.zeros(4, 1001)[:, :1000])
    [(_, compiled)] = launches
    assert shape_of(compiled)[-1] == "mixed"


@pytest.mark.parametrize(("m", "layout"), [(3, "mixed"), (8, "shifted")])
def test_results_off_by_different_counts_are_mixed(launches, m, layout):
    run("residual-rmsnorm", "v3", torch.bfloat16, m, 1001)
    [(_, compiled)] = launches
    assert shape_of(compiled)[-1] == layout


@pytest.mark.parametrize(
    ("m", "n", "programs"),
    [(1, 24, 1), (16, 24, 1), (17, 24, 2), (1, 25, 1), (5, 25, 5), (128, 25, 8), (131, 25, 11), (1000, 25, 64)],
)
def test_several_short_rows_a_program(launches, m, n, programs):
    run("rmsnorm", "v3", torch.bfloat16, m, n)
    [((count,), _)] = launches
    assert count == programs  # of 16 rows each, 8 apart if they are shifted


def test_odd_and_even_widths_share_one_binary(launches):
    for n in (900, 1000, 1007):
        run("rmsnorm", "v3", torch.float32, 16, n, 1008)
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize("op", OPS)
def test_few_or_wide_rows_are_shared_by_programs_on_every_processor(launches, monkeypatch, op):
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 132, 50 * 2**20))
    run(op, "v4", torch.bfloat16, 4, 65536)
    assert [programs for (programs,), _ in launches] == [4 * 64] * 2
    assert [compiled.metadata.name.rpartition("_")[2] for _, compiled in launches] == ["partial", "finish"]
    assert not divisible(launches[0][1]) & {"n", "chunk", "splits", "first_row"}  # one binary for all of them
    del launches[:]
    run(op, "v4", torch.bfloat16, 132, 65536)
    assert len(launches) == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("op", OPS)
def test_tensors_in_host_memory_are_refused(op, version):
    with pytest.raises(ValueError, match=rf"^{op} {version}: x is on cpu; Triton needs a GPU, device 'cuda'$"):
        run(op, version, torch.float32, 2, 8)
