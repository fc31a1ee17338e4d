"""Occupancy and issue budget against published figures."""

import dataclasses

import pytest

from kernels.audit import limits, rows
from kernels.audit.errors import AuditError


@pytest.mark.parametrize(
    ("arch", "registers", "shared_bytes", "threads", "resident"),
    [
        (80, 32, 0, 256, 64),  # 64 warps of 32 registers are exactly the 65,536 there are
        (80, 33, 0, 256, 48),  # 40 registers in the next unit: 51 warps, 48 in fours, 6 programs of 8
        (90, 255, 0, 128, 8),
        (90, 64, 0, 1024, 32),  # NVIDIA H100 Tuning Guide: 64 K registers, 255 a thread, 64 warps
        (90, 128, 227 * 1024, 256, 8),  # 227 KB is the most one program may have
        (90, 128, 228 * 1024, 256, 0),
        (80, 16, 163 * 1024, 128, 4),  # 163 KB on sm_80
        (80, 16, 164 * 1024, 128, 0),
        (90, 4, 0, 32, 32),  # 32 programs at most
        (86, 32, 0, 256, 48),
        (90, 65, 0, 1024, 0),  # 72 registers of 1024 threads are more than there are
        (90, 48, 32 * 1024, 128, 24),  # 33 KB with what is reserved: 6 programs
    ],
)
def test_occupancy(arch, registers, shared_bytes, threads, resident):
    fitting = limits.programs_by(arch, registers, shared_bytes, threads)
    assert limits.occupancy(fitting, arch, threads) == resident / limits.MULTIPROCESSORS[arch].warps


@pytest.mark.parametrize(
    ("arch", "needs", "obstacle"),
    [
        (90, (64, 227 * 1024, 1024, 512), None),
        (90, (65, 0, 1024), "65 registers x 1,024 threads"),
        (80, (32, 163 * 1024 + 1, 128), "166,913 bytes of shared memory"),
        (100, (32, 0, 1056), "1,056 threads"),
        (100, (32, 0, 128, 1024), "1024 columns of tensor memory"),
        (86, (255, 100 * 1024, 512), "255 registers x 512 threads and 102,400 bytes of shared memory"),
    ],
)
def test_what_keeps_a_program_from_launching(arch, needs, obstacle):
    fitting = limits.programs_by(arch, *needs)
    assert limits.obstacle(fitting, arch) == (obstacle and f"a program needs {obstacle}, more than sm_{arch} has")
    assert (limits.occupancy(fitting, arch, needs[2]) == 0) is (obstacle is not None)


def test_tensor_memory_limits_programs():
    assert min(limits.programs_by(100, 32, 0, 128, tensor_memory_columns=256).values()) == 2


@pytest.mark.parametrize(
    ("slug", "clock_hz", "bandwidth", "budget"),
    [
        ("h100-sxm", 1_755_000_000, 3.0e12, 39.5),
        ("h100-sxm", 1_980_000_000, 3.0e12, 44.6),
        ("h200-sxm", 1_980_000_000, 4.0e12, 33.5),
        ("a100-sxm-80gb", 1_410_000_000, 1.74e12, 44.8),
    ],
)
def test_issue_budget_of_a_bf16_copy(slug, clock_hz, bandwidth, budget):
    measured = dataclasses.replace(limits.gpu(slug), clock_hz=clock_hz, bandwidth_bytes_per_s=bandwidth)
    assert measured.issue_budget(4) == pytest.approx(budget, abs=0.05)


def test_facts_come_from_the_table():
    h100 = limits.gpu("h100-sxm")
    assert (h100.arch, h100.sm_count, h100.clock_hz) == (90, 132, 1_980_000_000)
    assert h100.bandwidth_bytes_per_s == 3_352_000_000_000
    for arch, slug in limits.DEFAULT_GPUS.items():
        assert limits.gpu(slug).arch == arch
    assert set(limits.DEFAULT_GPUS) == set(limits.MULTIPROCESSORS)


def test_unknown_gpus_are_named():
    with pytest.raises(AuditError, match=r"^unknown GPU 'h100'; did you mean "):
        limits.gpu("h100")
    with pytest.raises(AuditError, match=r"^GPU 'mi300x' is of another architecture"):
        limits.gpu("mi300x")
    with pytest.raises(AuditError, match=r"^GPU 't4' is of another architecture"):
        limits.gpu("t4")


@pytest.mark.parametrize(
    ("issued", "budget", "mma", "bound"),
    [
        (2.5, 39.9, None, "memory"),
        (35.8, 39.9, None, "memory"),
        (36.9, 39.9, None, "mixed"),
        (44.0, 39.9, None, "mixed"),
        (44.5, 39.9, None, "issue"),
        (0.5, 0.0, None, "issue"),
        (2.5, 39.9, "HMMA", "compute"),
        (None, 39.9, None, None),
        (2.5, None, None, None),
    ],
)
def test_bound(issued, budget, mma, bound):
    assert rows.bound(issued, budget, mma) == bound
