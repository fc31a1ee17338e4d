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


def run(op, version, dtype, m, n):
    shape = (2, m, n) if op == "residual-rmsnorm" else (m, n)
    VERSIONS[version].KERNELS[op](*draw(op, dtype, m, n), out=torch.zeros(shape, dtype=dtype))


def shape_of(compiled):
    """Return what of the configuration hangs on the shape."""
    constants = {compiled.src.fn.arg_names[path[0]]: value for path, value in compiled.src.constants.items()}
    size = constants.get("BLOCK") or constants["WIDTH"]
    return compiled.src.fn.__name__, size, compiled.metadata.num_warps


@pytest.mark.parametrize(
    ("op", "n", "shape"),
    [
        ("rmsnorm", 128, ("rms_rows", 256, 4)),
        ("rmsnorm", 257, ("rms_rows", 1024, 4)),
        ("rmsnorm", 4096, ("rms_rows", 4096, 4)),
        ("rmsnorm", 4097, ("rms_rows", 8192, 8)),
        ("layernorm", 16384, ("layer_tiles", 4096, 16)),
        ("rmsnorm", 16384, ("rms_rows", 16384, 16)),
        ("rmsnorm", 16385, ("rms_tiles", 4096, 16)),
        ("residual-rmsnorm", 131072, ("rms_tiles", 4096, 16)),
        ("residual-rmsnorm", 131073, ("rms_tiles", 8192, 32)),
    ],
)
def test_shape_picks_the_configuration(launches, op, n, shape):
    run(op, "v3", torch.bfloat16, 16, n)
    [(_, compiled)] = launches
    assert shape_of(compiled) == shape


@pytest.mark.parametrize(("m", "n", "programs"), [(1, 24, 1), (16, 24, 1), (17, 24, 2), (5, 1000, 2), (5, 1025, 5)])
def test_several_short_rows_a_program(launches, m, n, programs):
    run("rmsnorm", "v3", torch.bfloat16, m, n)
    [((count,), _)] = launches
    assert count == programs


@pytest.mark.parametrize("op", OPS)
def test_few_or_wide_rows_are_shared_by_programs_on_every_processor(launches, monkeypatch, op):
    monkeypatch.setattr(kernels.launch, "stand_in", kernels.launch.Gpu(90, 132, 50 * 2**20))
    run(op, "v4", torch.bfloat16, 4, 65536)
    assert [programs for (programs,), _ in launches] == [4 * 16] * 2
    assert [compiled.metadata.name.rpartition("_")[2] for _, compiled in launches] == ["partial", "finish"]
    assert not divisible(launches[0][1]) & {"steps", "splits", "first_row"}  # one binary for all of them
    del launches[:]
    run(op, "v4", torch.bfloat16, 132, 65536)
    assert len(launches) == 1
