"""Occupancy and issue budget against published figures."""

import pytest

from kernels.audit import limits, rows


@pytest.mark.parametrize(
    ("arch", "registers", "shared_bytes", "threads", "resident"),
    [
        (80, 32, 0, 256, 64),  # 64 warps of 32 registers are exactly the 65,536 there are
        (80, 33, 0, 256, 48),  # 40 registers in the next unit: 51 warps, 48 in fours, 6 programs of 8
        (90, 64, 0, 1024, 32),  # NVIDIA H100 Tuning Guide: 64 K registers, 255 a thread, 64 warps
        (90, 128, 227 * 1024, 256, 8),  # 227 KB is the most one program may have
        (90, 128, 228 * 1024, 256, 0),
        (90, 4, 0, 32, 32),  # 32 programs at most
        (90, 65, 0, 1024, 0),  # 72 registers of 1024 threads are more than there are
        (90, 48, 32 * 1024, 128, 24),  # 33 KB with what is reserved: 6 programs
    ],
)
def test_occupancy(arch, registers, shared_bytes, threads, resident):
    fitting = limits.programs_by(arch, registers, shared_bytes, threads)
    assert limits.occupancy(fitting, arch, threads) == resident / limits.MULTIPROCESSORS[arch].warps


@pytest.mark.parametrize(
    ("arch", "needs", "obstacles"),
    [
        (90, (64, 227 * 1024, 1024, 512), set()),
        (90, (65, 0, 1024), {"registers"}),
        (80, (32, 163 * 1024 + 1, 128), {"shared memory"}),
        (100, (32, 0, 1056), {"threads"}),
        (100, (32, 0, 128, 1024), {"tensor memory"}),
        (86, (255, 100 * 1024, 512), {"registers", "shared memory"}),
    ],
)
def test_what_keeps_a_program_from_launching(arch, needs, obstacles):
    fitting = limits.programs_by(arch, *needs)
    assert {name for name, programs in fitting.items() if not programs} == obstacles
    assert (limits.occupancy(fitting, arch, needs[2]) == 0) is bool(obstacles)
    assert min(limits.programs_by(100, 32, 0, 128, columns=256).values()) == 2


@pytest.mark.parametrize(("arch", "budget"), [(80, 39.0), (90, 39.92)])
def test_issue_budget_of_a_bf16_copy(arch, budget):
    """132 x 128 x 1.98 GHz x 4 / 3.352 TB/s, and 108 x 128 x 1.41 GHz x 4 / 2.039 TB/s."""
    assert limits.issue_budget(arch, 4) == pytest.approx(budget, rel=0.03)


@pytest.mark.parametrize(
    ("issued", "budget", "mma", "bound"),
    [
        (2.5, 39.9, None, "memory"),
        (36.9, 39.9, None, "mixed"),
        (44.0, 39.9, None, "mixed"),
        (44.5, 39.9, None, "issue"),
        (2.5, 39.9, "HMMA", "compute"),
        (None, 39.9, None, None),
        (2.5, None, None, None),
    ],
)
def test_bound(issued, budget, mma, bound):
    assert rows.bound(issued, budget, mma) == bound
