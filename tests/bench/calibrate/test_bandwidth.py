"""Bandwidth candidates: bytes counted and really moved, array sizes and the cache."""

import dataclasses

import pytest
import torch
from test_setup import rate_of

from bench.harness.calibrate import bandwidth
from bench.harness.calibrate.bandwidth import filled, operand_bytes
from bench.harness.calibrate.calibration import MIXES, mixes_for
from bench.harness.calibrate.setup import QUICK, NotMeasuredError, Setup
from bench.harness.device.device import MIB, Device
from roofline.work import Work

SIZE = MIB
OPERANDS = {"read": 1, "write": 1, "copy": 2, "triad": 3}


@dataclasses.dataclass(frozen=True)
class Roomy(Device):
    free: int = 2**50

    def free_bytes(self):
        return self.free


def cpu(cache_bytes=32 * MIB, free=2**50):
    return Roomy("cpu", "cpu", "cpu", "cpu", cache_bytes, 2**50, threads=1, free=free)


def gpu(cache_bytes=50 * MIB, free=2**50, sm_count=4):
    # torch_name stays "cpu": GPU candidates are built but not launched
    return Roomy("cuda", "cpu", "gpu", "gpu", cache_bytes, 2**50, sm_count=sm_count, free=free)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (cpu(cache_bytes=32 * MIB), 128 * MIB),
        (cpu(cache_bytes=8 * MIB), 64 * MIB),  # never less, so that a launch lasts
        (cpu(cache_bytes=32 * MIB, free=8 * 129 * MIB + 5), 128 * MIB),
        (gpu(cache_bytes=50 * MIB), 4096 * MIB),
        (gpu(cache_bytes=256 * MIB), 5120 * MIB),  # twenty times the L2
        (gpu(cache_bytes=50 * MIB, free=16 * 2**30), 2048 * MIB),  # a T4
    ],
)
def test_arrays_are_much_larger_than_the_cache_and_fit_memory(device, expected):
    assert operand_bytes(device) == expected
    assert expected >= 4 * device.cache_bytes
    assert 3 * expected < device.free / 2


def test_too_little_memory_is_a_one_line_error():
    with pytest.raises(NotMeasuredError, match=r"needs arrays of 134 MB.* 524 MB are free"):
        operand_bytes(cpu(cache_bytes=32 * MIB, free=500 * MIB))


def test_every_array_has_its_own_normal_random_values():
    x, y, out = filled(cpu(), SIZE)
    for array in (x, y, out):
        assert array.numel() * array.itemsize == SIZE
        assert len(array.unique()) > 0.9 * array.numel() / (1 + array.numel() / 2**24)
        normal = array[array != 0].abs()
        # Denormal numbers are slow on a CPU.
        assert normal.min() >= torch.finfo(torch.float32).smallest_normal
    assert not torch.equal(x, y)
    assert not torch.equal(y, out)


def test_on_a_gpu_every_bit_is_random():
    words = filled(gpu(), SIZE)[0].view(torch.int32)
    for bit in range(32):
        share = ((words >> bit) & 1).float().mean()
        assert 0.49 < share < 0.51, bit


@pytest.mark.parametrize(
    ("fastest", "written"),
    [("torch sum, read", 0), ("torch copy_, copy", MIB // 2), ("torch amax, read", 0)],
)
def test_the_cache_is_measured_warm_on_half_of_the_level(monkeypatch, fastest, written):
    """A cache of 2 MiB: half of it in 2 us is 2^20 bytes over 2 us; others take twice as long."""
    timed = []

    def launched(self, candidate, seconds):
        candidate.prepare()()
        timed.append((candidate.name, candidate.work, candidate.cache, seconds))
        return rate_of(candidate.name, candidate.work, *[4e-6 - 2e-6 * (candidate.name == fastest)])

    monkeypatch.setattr(Setup, "timed", launched)
    (found,) = bandwidth.cache(Setup(cpu(cache_bytes=2 * MIB), QUICK))
    reads = ["torch sum, read", "torch amax, read"]
    copies = ["torch copy_, copy", "torch mul by a number, copy"]
    assert [name for name, *_ in timed] == [*reads, *copies, fastest]
    assert {(work, cache) for _, work, cache, _ in timed} == {(MIB, "warm")}
    assert sum(seconds for *_, seconds in timed) < 0.7
    ceiling = found.ceiling
    assert (ceiling.quantity, ceiling.title) == ("cache-bandwidth", "last-level cache bandwidth")
    assert (ceiling.value, ceiling.work_per_launch) == (MIB / 2e-6, MIB)
    assert (found.record.bytes_read, found.record.bytes_written) == (MIB - written, written)


@pytest.mark.parametrize("mix", MIXES)
def test_torch_candidates_read_and_write_the_counted_bytes(mix):
    x, y, out = arrays = filled(cpu(), 64 * 1024)
    candidates = bandwidth.candidates(mix, cpu(), arrays)
    before = x.clone(), y.clone()
    for candidate in candidates:
        out.fill_(7.0)
        candidate.prepare()()
        expected = {
            "torch fill_": torch.full_like(x, 0.5),
            "torch zero_": torch.zeros_like(x),
            "torch copy_": x,
            "torch mul by a number": 0.5 * x,
            "torch add with alpha": x + 0.5 * y,
            "torch add": x + y,
        }.get(candidate.name, torch.full_like(x, 7.0))  # a read leaves `out` alone
        assert torch.equal(out, expected)
        assert torch.equal(x, before[0])
        assert torch.equal(y, before[1])
        assert (
            candidate.work == (2 if "two arrays" in candidate.name else OPERANDS[mix]) * 64 * 1024
        )
    assert len(candidates) >= 2


@pytest.mark.parametrize(
    ("read", "written", "names"),
    [
        (2, 1, ["triad"]),  # a square matmul
        (1, 0, ["read"]),
        (0, 1, ["write"]),
        (3, 1, ["triad", "read"]),
        (1, 2, ["copy", "write"]),
        (0, 0, []),
    ],
)
def test_a_row_is_judged_by_the_mixes_on_both_sides_of_its_own(read, written, names):
    assert mixes_for([Work(1, read, written)]) == names


def test_rows_are_judged_by_all_their_mixes():
    assert mixes_for([Work(1, 1, 0), Work(1, 5, 5)]) == ["copy", "read"]
