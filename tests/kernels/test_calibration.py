"""Exact results of calibration kernels, in Triton's interpreter and on a GPU. See
test_every_family.py.
"""

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


def unwritten(count):
    return torch.full((count,), UNWRITTEN, dtype=torch.int32, device=DEVICE)


@pytest.fixture(params=CONFIGS, ids=lambda config: config.label)
def launched(request):
    """Launch a mix with one of the configurations; return operands and the words that it covers."""
    config = request.param

    def launched(mix):
        count = 7 * config.block + 5 if INTERPRETED else 2**24 + 12345
        x, y, out = words(count, 1), words(count, 2), unwritten(count)
        launch, moved = tiles.launch_of(mix, config, x, y, out)
        launch()
        covered = moved // {"read": 4, "write": 4, "copy": 8, "triad": 12}[mix]
        assert covered > count - (config.programs or 1) * config.block
        return config, x, y, out, covered

    return launched


def test_bandwidth_read_sums_every_word_once(launched):
    config, x, _, out, covered = launched("read")
    programs = config.programs or covered // config.block
    sums = x[:covered].view(-1, programs, config.block).long().sum((0, 2))
    assert torch.equal(out[:programs], wrapped(sums))
    assert (out[programs:] == UNWRITTEN).all()


@pytest.mark.parametrize("mix", ["write", "copy", "triad"])
def test_bandwidth_kernels_write_exactly_all_words(launched, mix):
    _, x, y, out, covered = launched(mix)
    expected = {
        "write": wrapped(torch.arange(len(x), device=DEVICE) * tiles.FACTOR),
        "copy": x,
        "triad": wrapped(x.long() + tiles.FACTOR * y.long()),
    }[mix]
    assert torch.equal(out[:covered], expected[:covered])
    assert (out[covered:] == UNWRITTEN).all()


@pytest.mark.parametrize("name", ["fp32", "fp16", "fp64"])
@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_fma_counts_its_steps(name, iterations):
    dtype = {"fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}[name]
    for config in FMA_CONFIGS:
        x = torch.arange(3 * config.block, device=DEVICE).remainder(64).to(dtype)
        out = torch.full_like(x, UNWRITTEN)
        fma.variant(config).launch(3, torch.ones(2, dtype=dtype, device=DEVICE), x, out, iterations)
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
    launch = fma.variant(config).launch
    launch(1, torch.tensor([-1.0, 0.25], device=DEVICE), x, out, 1)
    assert torch.equal(out, x)  # x <- 0.25 - x twice is x again, and the count of steps is even
    launch(1, torch.tensor([0.0, 0.25], device=DEVICE), x, out, 1)
    assert (out == 0.25).all()


def test_empty_kernel_writes_nothing():
    x = torch.ones(8, device=DEVICE)
    launch_floor.VARIANT.launch(1, x)
    assert (x == 1).all()


GPU = Device("cuda", "cpu", "gpu", "gpu", 50 * MIB, 2**40, sm_count=1)


@interpreted
def test_bandwidth_candidates_move_the_bytes_they_count():
    arrays = bandwidth.filled(GPU, 160 * 1024)
    x, _, out = (array.view(torch.int32) for array in arrays)
    for candidate in bandwidth.candidates("copy", GPU, arrays)[1:]:
        out.fill_(UNWRITTEN)
        candidate.prepare()()
        assert torch.equal(out[: candidate.work // 8], x[: candidate.work // 8]), candidate.name


@interpreted
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16"])
def test_fma_candidates_launch(dtype, monkeypatch):
    monkeypatch.setattr(peaks, "ISSUE_SLOTS", 2**14)
    candidates = peaks.fma_candidates(dtype, GPU)
    assert len({candidate.work for candidate in candidates}) == 1
    candidates[0].prepare()()
