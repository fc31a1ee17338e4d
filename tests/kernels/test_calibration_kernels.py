"""The fused multiply-adds of the peak kernels as machine code, and the values of their chains."""

from dataclasses import replace

import pytest
import torch
from compiled import ARCHES, assert_lean, compile_ahead, read_back

from kernels import fma
from kernels.audit import hot_path, sass
from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

FMA_LANES = {"FFMA": 1, "DFMA": 1, "HFMA2": 2, "FFMA2": 2}
"""Fused multiply-adds of one instruction in one thread. Source: PTX ISA, fma.f32x2 and
fma.f16x2.
"""
MIN_CHAINS, MAX_CHAINS = (pick(config.chains for config in fma.CONFIGS) for pick in (min, max))


def fma_count(instructions):
    return sum(FMA_LANES.get(item.base, 0) for item in instructions)


def compiled(variant, dtype, arch):
    return read_back(compile_ahead(replace(variant, dtype=dtype), arch))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "arch", "chains"),
    [
        *((dtype, arch, MIN_CHAINS) for dtype in fma.NAMES for arch in ARCHES),
        (torch.float64, 90, MAX_CHAINS),  # needs most registers
    ],
    ids=str,
)
def test_fma_flops_match_the_machine_code(chains, dtype, arch):
    config = fma.Config(8, chains, 1024)
    binary = compiled(fma.variant(config), fma.NAMES[dtype], arch)
    assert_lean(binary, allow_double=dtype is torch.float64)  # fp64 arithmetic is the point here
    loop = hot_path.find(binary.instructions)
    assert loop.is_loop
    flops_per_thread = fma.flops(config.block, iterations=1) / (32 * config.warps)
    assert 2 * fma_count(loop.instructions) == flops_per_thread
    assert fma_count(binary.instructions) == fma_count(loop.instructions)
    others = [item.opcode for item in loop.instructions if item.base not in FMA_LANES]
    assert len(others) <= 0.06 * loop.count, others
    # Eight chains are left where one instruction takes two.
    assert loop.count - len(others) >= 8 * fma.UNROLL
    wide = chains * dtype.itemsize // 16
    assert [sass.widths(binary.instructions, kind)[128] for kind in ("load", "store")] == [
        wide,
        wide,
    ]


@pytest.mark.parametrize("dtype", fma.NAMES, ids=str)
def test_fma_chains_stay_small_and_never_settle(dtype):
    a, b = (value.double() for value in fma.coefficients(dtype, "cpu"))
    assert (a.item(), b.item()) == fma.COEFFICIENTS[dtype]  # exact in the dtype
    assert abs(a) < 1
    x = (
        torch.rand(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        .to(dtype)
        .double()
    )
    for _ in range(5000):
        before, x = x, (a * x + b).to(dtype).double()
    assert x.abs().max() < 2
    assert ((x - before).abs() > 0.05).float().mean() > 0.8
