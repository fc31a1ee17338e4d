"""Exact results of calibration kernels, in Triton's interpreter and on a GPU. See
test_every_family.py.
"""

import re

import pytest
import torch
from exact import DEVICE

from bench.harness.calibrate import bandwidth, peaks
from bench.harness.device.device import MIB, Device
from kernels import bandwidth as tiles
from kernels import fma, launch_floor
from kernels.bandwidth import Config
from kernels.launch import INTERPRETED

pytestmark = [] if INTERPRETED else pytest.mark.gpu

UNWRITTEN = -77
SMALL_CONFIGS = [
    Config(1, 1),
    Config(1, 4),
    Config(2, 2, programs=3),
    Config(1, 2, programs=2, policy="streaming"),
]
CONFIGS = SMALL_CONFIGS if INTERPRETED else tiles.configs(132)
interpreted = pytest.mark.skipif(not INTERPRETED, reason="for tensors in host memory")
FMA_CONFIGS = [fma.Config(1, 4, 64), fma.Config(2, 8, 128)]


def words(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64)
        .to(torch.int32)
        .to(DEVICE)
    )


def wrapped(values):
    return (values.long() + 2**31).remainder(2**32).sub(2**31).to(torch.int32)


def covered(config):
    return tiles.covered(config, 7 * config.block + 5 if INTERPRETED else 2**24 + 12345)


def unwritten(count):
    return torch.full((count,), UNWRITTEN, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_bandwidth_read_sums_every_word_once(config):
    x = words(covered(config))
    out = unwritten(tiles.grid(config, x.numel())[0] + 16)
    tiles.read(x, out=out, config=config)
    programs, steps = tiles.grid(config, x.numel())
    sums = x.view(steps, programs, config.block).long().sum((0, 2))
    assert torch.equal(out[:programs], wrapped(sums))
    assert (out[programs:] == UNWRITTEN).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_bandwidth_write_covers_exactly_all_words(config):
    count = covered(config)
    out = unwritten(count + 16)
    tiles.write(out=out[:count], factor=12345, config=config)
    assert torch.equal(out[:count], wrapped(torch.arange(count, device=DEVICE) * 12345))
    assert (out[count:] == UNWRITTEN).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_bandwidth_copy_and_triad(config):
    count = covered(config)
    x, y, out = words(count, 1), words(count, 2), unwritten(count + 16)
    tiles.copy(x, out=out[:count], config=config)
    assert torch.equal(out[:count], x)
    tiles.triad(x, y, out=out[:count], factor=3, config=config)
    assert torch.equal(out[:count], wrapped(x.long() + 3 * y.long()))
    assert (out[count:] == UNWRITTEN).all()


@pytest.mark.parametrize("name", ["fp32", "fp16", "fp64"])
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_fma_counts_its_steps(name, iterations):
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}[name]
    for config in FMA_CONFIGS:
        x = torch.arange(3 * config.block, device=DEVICE).remainder(64).to(dtype)
        out = torch.full_like(x, UNWRITTEN)
        fma.launch(torch.ones(2, dtype=dtype, device=DEVICE), x, iterations, out=out, config=config)
        # With a = b = 1 a chain counts its steps, exactly.
        assert torch.equal(out, x + iterations * fma.UNROLL)
        per_chain = fma.flops(x.numel(), iterations) / x.numel()
        assert per_chain == 2 * float(out[0] - x[0])


def test_fma_coefficients_are_not_swapped():
    config = FMA_CONFIGS[0]
    x, out = (
        torch.arange(config.block, device=DEVICE) / 64 - 1,
        torch.empty(config.block, device=DEVICE),
    )
    fma.launch(torch.tensor([-1.0, 0.25], device=DEVICE), x, 1, out=out, config=config)
    assert torch.equal(out, x)  # x <- 0.25 - x twice is x again, and the count of steps is even
    fma.launch(torch.tensor([0.0, 0.25], device=DEVICE), x, 1, out=out, config=config)
    assert (out == 0.25).all()


def test_empty_kernel_writes_nothing():
    x = torch.ones(8, device=DEVICE)
    launch_floor.launch(x)
    assert (x == 1).all()


GPU = Device("cuda", "cpu", "gpu", "gpu", 50 * MIB, 2**40, sm_count=1)


@interpreted
@pytest.mark.parametrize("mix", bandwidth.MIXES)
def test_bandwidth_candidates_move_the_bytes_they_count(mix):
    arrays = bandwidth.filled(GPU, 160 * 1024)
    x, y, out = (array.view(torch.int32) for array in arrays)
    for candidate in bandwidth.candidates(mix, GPU, arrays)[1:]:
        out.fill_(UNWRITTEN)
        candidate.prepare()()
        count = candidate.work // {"read": 1, "write": 1, "copy": 2, "triad": 3}[mix] // 4
        expected = {
            "read": torch.full((count,), UNWRITTEN, dtype=torch.int32),
            "write": wrapped(torch.arange(count) * tiles.FACTOR),
            "copy": x[:count],
            "triad": wrapped(x[:count].long() + tiles.FACTOR * y[:count].long()),
        }[mix]
        assert torch.equal(out[:count], expected), candidate.name
        assert (out[count:] == UNWRITTEN).all(), candidate.name


@interpreted
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16"])
def test_fma_candidates_launch(dtype, monkeypatch):
    monkeypatch.setattr(peaks, "ISSUE_SLOTS", 2**14)
    candidates = peaks.fma_candidates(dtype, GPU)
    assert len({candidate.work for candidate in candidates}) == 1
    candidates[0].prepare()()


SMALL, CHAINS = Config(1, 1), FMA_CONFIGS[0]
X, OUT = torch.zeros(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)
AB, STARTS = torch.ones(2), torch.zeros(CHAINS.block)


@interpreted
@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            lambda: tiles.copy(X.float(), out=OUT, config=SMALL),
            "x has dtype torch.float32; allowed are torch.int32",
        ),
        (lambda: tiles.write(out=X[1:], config=SMALL), "4 bytes past"),
        (lambda: tiles.write(out=X[:252], config=SMALL), "252 words"),
        (lambda: tiles.write(out=X[:100], config=SMALL), "expected at least 128 words for"),
        (lambda: tiles.read(X, out=OUT[:1], config=SMALL), "expected at least 2, one per program"),
        (
            lambda: fma.launch(AB.double(), STARTS, 1, out=STARTS, config=CHAINS),
            "ab has dtype torch.float64",
        ),
        (
            lambda: fma.launch(torch.ones(3), STARTS, 1, out=STARTS, config=CHAINS),
            "ab has shape (3,)",
        ),
        (
            lambda: fma.launch(AB, STARTS[:120], 1, out=STARTS[:120], config=CHAINS),
            "a multiple of 128",
        ),
        (lambda: fma.coefficients(torch.int8, "cpu"), "torch.int8"),
    ],
)
def test_calibration_launchers_reject_invalid_operands(call, wanted):
    with pytest.raises(ValueError, match=rf"^[a-z -]+ v1: .*{re.escape(wanted)}"):
        call()
