"""Launchers of the elementwise kernels without a GPU: what they ask the compiler for."""

import pytest
import torch
from compiled import divisible
from elementwise_cases import MODULES, NEWEST, OPS, PAIRS, draw

import kernels.launch

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

OTHER_POINTERS = {"bias-gelu": {"bias_ptr", "cols"}, "dropout": {"seed_ptr"}}


@pytest.mark.parametrize("dtype", kernels.launch.DTYPES, ids=kernels.launch.DTYPES.get)
@pytest.mark.parametrize("op", OPS)
def test_newest_launch(launches, op, dtype):
    module = MODULES[NEWEST]
    inputs = draw(op, dtype, 3 * 1040, 1040)
    module.KERNELS[op](*inputs, out=torch.empty_like(inputs[0]))
    [((programs,), compiled)] = launches
    assert programs == -(-3 * 1040 // (4096 // dtype.itemsize))  # 128 threads of twice 16 bytes
    assert compiled.metadata.num_warps == 4
    assert compiled.metadata.enable_fp_fusion is True
    others = OTHER_POINTERS.get(op, {"y_ptr"} if len(inputs) == 2 else set())
    assert divisible(compiled) == {"x_ptr", "out_ptr"} | others
    assert compiled.src.signature["n"] == "i32"
    assert compiled.src.signature.get("seed_ptr", "*i64") == "*i64"


@pytest.mark.parametrize("version", [version for version in MODULES if version != NEWEST])
@pytest.mark.parametrize("op", ["relu", "swiglu", "bias-gelu", "dropout"])
def test_older_launches(launches, op, version):
    inputs = draw(op, torch.bfloat16, 3 * 1041, 1041)
    MODULES[version].KERNELS[op](*inputs, out=torch.empty_like(inputs[0]))
    [((programs,), compiled)] = launches
    assert programs == -(-3 * 1041 // 1024)
    assert compiled.metadata.enable_fp_fusion is True
    assert divisible(compiled) >= {"x_ptr", "out_ptr"}
    assert not divisible(compiled) & {"n", "cols"}


@pytest.mark.parametrize("version", MODULES)
def test_odd_and_even_sizes_share_one_binary(launches, version):
    for n in (1, 16, 33):
        MODULES[version].KERNELS["relu"](torch.ones(n), out=torch.empty(n))
    assert len({compiled.hash for _, compiled in launches}) == 1


@pytest.mark.parametrize(("op", "version"), PAIRS)
def test_tensors_in_host_memory_are_refused(op, version):
    inputs = draw(op, torch.float32, 8)
    first = "gate" if op == "swiglu" else "x"
    with pytest.raises(ValueError, match=rf"^{op} {version}: {first} is on cpu; Triton needs a GPU, device 'cuda'$"):
        MODULES[version].KERNELS[op](*inputs, out=torch.empty_like(inputs[0]))
