"""What moves the bytes: bytes counted against what is really read and written, sizes against the cache and memory.

The Triton streams are run word by word in tests/kernels/interpreted/check_calibration.py.
"""

import dataclasses
import random

import pytest
import torch

from bench.harness.calibrate import bandwidth
from bench.harness.calibrate.bandwidth import MIXES, Arrays, Stream, candidates_of, operand_bytes
from bench.harness.calibrate.search import Launch, NotMeasuredError, Trial, best_of
from bench.harness.device.device import MIB, Device
from bench.harness.timing.protocol import Limits, Samples, collect
from bench.harness.timing.samplers import make_sampler
from results.stats.samples import median, median_ci95

FEW = Limits(5, 0.05, 0.0, 1.0, 0.0, 0.0)
MANY = Limits(20, 0.01, 0.0, 1.0, 0.0, 0.0)
SIZE = MIB


@dataclasses.dataclass(frozen=True)
class Roomy(Device):
    """A device with as much free memory as the test says."""

    free: int = 2**50

    def free_bytes(self):
        return self.free


def cpu(cache_bytes=32 * MIB, free=2**50):
    return Roomy("cpu", "cpu", "cpu", "cpu", cache_bytes, 2**50, threads=1, free=free)


def gpu(cache_bytes=50 * MIB, free=2**50, sm_count=4):
    # torch_name stays "cpu": what is made for a GPU is built here and not launched
    return Roomy("cuda", "cpu", "gpu", "gpu", cache_bytes, 2**50, sm_count=sm_count, free=free)


@pytest.fixture(scope="module")
def arrays():
    return Arrays(cpu(), SIZE)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (cpu(cache_bytes=32 * MIB), 128 * MIB),
        (cpu(cache_bytes=8 * MIB), 64 * MIB),  # never less, so that a launch lasts
        (cpu(cache_bytes=384 * MIB), 1536 * MIB),
        (cpu(cache_bytes=32 * MIB, free=8 * 129 * MIB + 5), 128 * MIB),
        (gpu(cache_bytes=50 * MIB), 4096 * MIB),
        (gpu(cache_bytes=256 * MIB), 5120 * MIB),  # twenty times the L2
        (gpu(cache_bytes=50 * MIB, free=16 * 2**30), 2048 * MIB),  # a T4
    ],
)
def test_arrays_are_far_larger_than_the_cache_and_fit_memory(device, expected):
    assert operand_bytes(device) == expected
    assert expected >= 4 * device.cache_bytes
    assert 3 * expected < device.free / 2


def test_too_little_memory_is_one_line():
    with pytest.raises(NotMeasuredError) as error:
        operand_bytes(cpu(cache_bytes=32 * MIB, free=500 * MIB))
    assert str(error.value) == (
        "memory bandwidth needs arrays of 134 MB, 4 times the cache; 524 MB are free, and one array takes at most 1/8 "
        "of that"
    )


def test_every_array_is_written_with_bits_of_its_own():
    arrays = Arrays(cpu(), SIZE)
    x, y, out = arrays.views(torch.float32, SIZE, 0)
    for one in (x, y, out):
        assert len(one.unique()) > 0.9 * one.numel() / (1 + one.numel() / 2**24)
        normal = one[one != 0].abs()
        assert normal.min() >= torch.finfo(torch.float32).smallest_normal  # denormal numbers are slow on a CPU
    assert not torch.equal(x, y)
    assert not torch.equal(y, out)
    again = Arrays(cpu(), SIZE).views(torch.float32, SIZE, 0)
    assert torch.equal(again[0], x)
    assert not torch.equal(Arrays(cpu(), SIZE, seed=1).views(torch.float32, SIZE, 0)[0], x)


def test_on_a_gpu_every_bit_is_random():
    words = Arrays(gpu(), SIZE).views(torch.int32, SIZE, 0)[0]
    for bit in range(32):
        share = ((words >> bit) & 1).float().mean()
        assert 0.49 < share < 0.51, bit


def test_views_are_stretches_of_the_same_arrays(arrays):
    x, _, _ = arrays.views(torch.int32, 4096, 8192)
    whole, _, _ = arrays.views(torch.int32, SIZE, 0)
    assert x.data_ptr() == whole.data_ptr() + 8192
    assert x.numel() == 1024


@pytest.mark.parametrize("index", range(9))
def test_torch_streams_read_and_write_what_they_count(index, arrays, monkeypatch):
    stream = bandwidth.torch_streams(cpu(), arrays)[index]
    size, start = 64 * 1024, 128 * 1024
    x, y, out = arrays.views(torch.float32, size, start)
    outside = arrays.views(torch.float32, start, 0)[2].clone()
    out.copy_(torch.full_like(out, 7.0))
    kept = x.clone(), y.clone()
    launch = stream.launch(size, start)
    launch.call()
    expected = {
        "torch fill_": torch.full_like(x, 0.5),
        "torch zero_": torch.zeros_like(x),
        "torch copy_": x,
        "torch mul by a number": 0.5 * x,
        "torch add with alpha": x + 0.5 * y,
        "torch add": x + y,
    }.get(stream.name, torch.full_like(x, 7.0))  # a read leaves `out` alone
    assert torch.equal(out, expected)
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])
    assert torch.equal(arrays.views(torch.float32, start, 0)[2], outside)
    operands = {"read": 2 if "two arrays" in stream.name else 1, "write": 1, "copy": 2, "triad": 3}[stream.mix]
    assert launch.work == operands * size


def test_every_mix_has_a_stream_on_either_device(arrays):
    assert {stream.mix for stream in bandwidth.streams(cpu(), arrays)} == set(MIXES)
    for mix in MIXES:
        names = [stream.name for stream in bandwidth.streams(gpu(), arrays) if stream.mix == mix]
        assert len(names) == len(set(names)) >= 6  # several Triton configurations, and torch's own
        assert sum(name.startswith("torch") for name in names) == 1
    rocm = dataclasses.replace(gpu(), type="rocm")
    assert all(stream.name.startswith("torch") for stream in bandwidth.streams(rocm, arrays))


def test_bytes_of_triton_streams_are_whole_tiles(arrays):
    operands = {"read": 1, "write": 1, "copy": 2, "triad": 3}
    size = SIZE - 4096 - 16
    for stream in bandwidth.triton_streams(gpu(), arrays):
        moved = stream.launch(size, 4096).work / operands[stream.mix]
        assert size / 2 < moved <= size
        assert moved % 2048 == 0
        if "a program a tile" in stream.name:
            assert moved > size - 65536
        with pytest.raises(ValueError, match="words; a tile of"):
            stream.launch(1024, 0)


# ---- the choice, on a simulated machine ---------------------------------------------------------------------------


def samples_of(times_s):
    times_s = tuple(times_s)
    return Samples(times_s, 1, "host", "warm", median(times_s), median_ci95(times_s), True)


def simulated_streams(speeds):
    """Streams whose call is their bandwidth and their bytes."""
    return [
        Stream(mix, name, lambda size, start, speed=speed: Launch((speed, 2 * size), 2 * size))
        for (mix, name), speed in speeds.items()
    ]


def simulated_measure(calls, limits):
    [(speed, size)] = calls
    generator = random.Random(limits.min_samples)
    return samples_of(size / speed * generator.gauss(1, 0.02) for _ in range(limits.min_samples))


def test_the_fastest_of_the_mix_counts_and_is_measured_at_full_size():
    speeds = {("read", "a"): 3e12, ("read", "b"): 4e12, ("copy", "c"): 5e12}
    lines = []
    chosen = best_of(
        candidates_of("read", simulated_streams(speeds), 10**9), Trial(simulated_measure, FEW, MANY, lines.append)
    )
    assert chosen.rate.config == "b"
    assert chosen.rate.work_per_launch == 2 * 10**9
    assert chosen.rate.value == pytest.approx(4e12, rel=0.02)
    assert chosen.rate.ci95[0] < chosen.rate.value < chosen.rate.ci95[1]
    assert len(chosen.rate.samples.samples_s) == MANY.min_samples
    assert lines == ["a", "b", "b, again"]


def test_a_mix_that_nothing_moves_is_refused():
    with pytest.raises(NotMeasuredError):
        best_of(
            candidates_of("write", simulated_streams({("read", "a"): 1e12}), 10**9), Trial(simulated_measure, FEW, MANY)
        )


def test_every_mix_of_this_very_machine_can_be_measured(arrays):
    device = cpu()

    def measure(calls, limits):
        return collect(make_sampler(calls, device, limits), limits, "warm")

    quick = Limits(5, 1.0, 0.0, 0.05, 0.0, 1e-5)
    for mix in MIXES:
        chosen = best_of(candidates_of(mix, bandwidth.streams(device, arrays), SIZE), Trial(measure, quick, quick))
        assert 0 < chosen.rate.value <= chosen.rate.fastest
        assert not chosen.refused
