"""Input values, copies and their memory."""

import itertools
import math

import pytest
import torch

from bench.cross_entropy import OPS as CROSS_ENTROPY
from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.data.inputs import (
    FILLS,
    Filler,
    Rotation,
    make_sets,
    plan_rotation,
    torch_dtype,
)
from bench.harness.op import Case
from bench.matmul import OPS as MATMUL
from bench.matvec import OPS as MATVEC
from bench.reduction import OPS as REDUCTION
from tests.bench.commands import CPU

OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL, *REDUCTION, *MATVEC, *CROSS_ENTROPY)}
KIB, MIB, GIB = 2**10, 2**20, 2**30


def matmul_case(m, n, k, dtype="fp32", layout="nn", batch=1):
    return Case("matmul", dtype, {"m": m, "n": n, "k": k}, {"layout": layout, "batch": batch})


@pytest.mark.parametrize(
    ("set_bytes", "cache_bytes", "free_bytes", "device_type", "rotation"),
    [
        (MIB, 50 * MIB, 100 * GIB, "cuda", Rotation(301, "cold")),
        (MIB, 32 * MIB, 100 * GIB, "cpu", Rotation(129, "cold")),
        # Two copies even if one exceeds the cache.
        (10 * GIB, 50 * MIB, 100 * GIB, "cuda", Rotation(2, "cold")),
        # One copy if memory is short: it flushes itself.
        (10 * GIB, 32 * MIB, 11 * GIB, "cpu", Rotation(1, "cold")),
        # Too small even with the maximum of copies.
        (KIB, 50 * MIB, 100 * GIB, "cuda", Rotation(2000, "partly-cold")),
        (MIB, 50 * MIB, 100 * MIB, "cuda", Rotation(25, "partly-cold")),  # too little memory
        # Beyond the limit of a CPU.
        (MIB, 400 * MIB, 100 * GIB, "cpu", Rotation(1024, "partly-cold")),
        (40 * MIB, 50 * MIB, 100 * MIB, "cuda", Rotation(1, "warm")),  # room for one copy
    ],
)
def test_copies_that_exceed_the_cache_several_times_are_cold(
    set_bytes, cache_bytes, free_bytes, device_type, rotation
):
    assert plan_rotation(set_bytes, cache_bytes, free_bytes, device_type, "cold") == rotation


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16", "fp8e4m3", "fp8e5m2"])
def test_uniform_is_uniform_in_minus_one_to_one(dtype):
    x = Filler("uniform", dtype, CPU, 0)(100_000).double()
    assert x.min() >= -1
    assert x.max() <= 1
    assert x.mean().abs() < 0.01  # five standard errors of the mean are 0.009
    assert x.var() == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("fill", [fill for fill in FILLS if fill != "zeros"])
def test_equal_seeds_repeat_values_and_copies_differ(fill):
    filler, same, other = (Filler(fill, "bf16", CPU, seed) for seed in (7, 7, 8))
    copies = [filler(64, 64) for _ in range(50)]
    assert torch.equal(copies[0], same(64, 64))
    for first, second in itertools.combinations([*copies, other(64, 64)], 2):
        assert (first == second).double().mean() < 0.1


@pytest.mark.parametrize("dtype", ["fp64", "bf16"])
@pytest.mark.parametrize(("fill", "deviation"), [("uniform", 127 / math.sqrt(3)), ("normal", 32)])
def test_int8_weights_use_their_range_with_other_activations(dtype, fill, deviation):
    filler = Filler(fill, dtype, CPU, 0)
    weights, x, more = filler(300, 300, dtype="int8"), filler(1000), filler(300, 300, dtype="int8")
    assert (weights.dtype, x.dtype) == (torch.int8, torch_dtype(dtype))
    assert weights.double().std() == pytest.approx(deviation, rel=0.02)
    assert x.double().std() < 1.2
    assert (weights == more).double().mean() < 0.1


def test_int64_values_are_nonnegative_and_seeded():
    first, second = (Filler("uniform", "bf16", CPU, 7) for _ in range(2))
    drawn = first(1000, dtype="int64")
    assert drawn.dtype == torch.int64
    assert drawn.min() >= 0
    assert drawn.double().mean() == pytest.approx(2**62, rel=0.1)
    assert torch.equal(drawn, second(1000, dtype="int64"))
    assert not (drawn == first(1000, dtype="int64")).any()
    assert not Filler("zeros", "bf16", CPU, 0)(5, dtype="int64").any()


@pytest.mark.parametrize("vocabulary", [1, 2, 1000])
def test_labels_cover_every_class(vocabulary):
    case = Case("cross-entropy", "bf16", {"m": 20_000, "v": vocabulary})
    first, second = make_sets(OPS["cross-entropy"], case, Filler("uniform", "bf16", CPU, 0), CPU, 2)
    for data in (first, second):
        assert data.inputs[1].unique().tolist() == list(range(vocabulary))
    assert vocabulary <= 2 or (first.inputs[1] == second.inputs[1]).double().mean() < 0.05


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("batch", [1, 3])
def test_sets_have_the_shapes_of_the_op_in_every_layout(layout, batch):
    case = matmul_case(2, 3, 4, layout=layout, batch=batch)
    lead = () if batch == 1 else (batch,)
    for data in make_sets(OPS["matmul"], case, Filler("uniform", "fp32", CPU, 0), CPU, 3):
        a, b = data.inputs
        assert (a.shape, b.shape, data.out.shape) == ((*lead, 2, 4), (*lead, 4, 3), (*lead, 2, 3))
        assert a.is_contiguous() is (layout[0] == "n")
        assert b.is_contiguous() is (layout[1] == "n")
        assert data.out.dtype == torch.float32
