"""The audit on kernels whose faults and counts are known, and its model of a multiprocessor by
published figures.
"""

import pytest
import samples_audit
from compiled import IS_RECORDED_TRITON

from kernels.audit import OwnKernel, limits, rows, user_kernel
from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")


def audited(kernel, signature, constexpr, arch=90, warps=4, elements=0):
    own = OwnKernel(signature, constexpr, warps, None, elements, elements and 4 * elements)
    variant, source = user_kernel.variant(kernel, samples_audit, own)
    compiled = rows.compile_ahead(source, arch, variant.options)
    return rows.row("sample", None, variant, compiled, arch)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_unknown_divisibility_loses_the_wide_accesses(arch):
    known = audited(samples_audit.masked_copy, "*bf16:16,*bf16:16,i32:16", "BLOCK=1024", arch)
    unknown = audited(samples_audit.masked_copy, "*bf16:16,*bf16:16,i32", "BLOCK=1024", arch)
    unaligned = audited(samples_audit.masked_copy, "*bf16,*bf16:16,i32:16", "BLOCK=1024", arch)
    assert (known["load_bits"], known["store_bits"]) == (128, 128)
    assert (unknown["load_bits"], unknown["store_bits"]) == (16, 16)
    assert (unaligned["load_bits"], unaligned["store_bits"]) == (16, 128)
    assert unknown["instructions"] > 2 * known["instructions"]
    if arch == 90:
        assert (known["registers"], unknown["registers"]) == (14, 26)


@pytest.mark.exhaustive
def test_row_of_65536_in_32_warps_spills():
    signature = "*bf16:16,*bf16:16,*bf16:16,*bf16:16,i32:16,fp32"
    fits = audited(samples_audit.residual_rmsnorm, signature, "BLOCK=32768", warps=16)
    spills = audited(samples_audit.residual_rmsnorm, signature, "BLOCK=65536", warps=32)
    assert (fits["stack_bytes"], fits["spill_bytes"]) == (0, 0)
    assert spills["stack_bytes"] > 0
    assert spills["spill_bytes"] > 0
    assert spills["registers"] <= 64  # all that 1024 threads can have


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("formula", "published"), [("same", 2.5), ("silu", 17), ("gelu_erf", 36.9)]
)
def test_instructions_per_element(formula, published):
    row = audited(
        samples_audit.flat,
        "*bf16:16,*bf16:16,i32:16",
        f"FORMULA={formula},BLOCK=1024",
        elements=1024,
    )
    if IS_RECORDED_TRITON:  # other releases compile the formulas to more or fewer instructions
        # The published counts include the branch to itself behind the exit: one instruction for the
        # eight elements.
        assert row["instructions_per_element"] + 1 / 8 == pytest.approx(
            published, abs=0.5 if published > 10 else 0.01
        )
    assert row["bound"] == ("mixed" if formula == "gelu_erf" else "memory")
    assert row["issue_budget_instructions_per_element"] == pytest.approx(39.92, abs=0.01)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_unrolled_loop_counts_as_one_pass(arch):
    row = audited(samples_audit.summed, "*fp32:16,*fp32,i32", "BLOCK=1024", arch, elements=1024)
    assert row["hot_path"] == "loop"
    assert (row["load_bits"], row["store_bits"]) == (128, None)
    # 1024 elements, 128 threads: two loads of four, eight sums or four packed ones, and the loop,
    # unrolled or not.
    assert 6 <= row["instructions_per_element"] * 1024 / 128 <= 20


@pytest.mark.parametrize(
    ("arch", "registers", "shared_bytes", "threads", "resident"),
    [
        (80, 32, 0, 256, 64),  # 64 warps of 32 registers are exactly the 65,536 there are
        # 40 registers in the next unit: 51 warps, 48 in fours, 6 programs of 8.
        (80, 33, 0, 256, 48),
        (90, 64, 0, 1024, 32),  # NVIDIA H100 Tuning Guide: 64 K registers, 255 a thread, 64 warps
        (90, 128, 227 * 1024, 256, 8),  # 227 KB is the most one program may have
        (90, 128, 228 * 1024, 256, 0),
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
        (100, (32, 0, 1056), {"threads"}),
        (100, (32, 0, 128, 1024), {"tensor memory"}),
        (86, (255, 100 * 1024, 512), {"registers", "shared memory"}),
    ],
)
def test_resources_that_prevent_a_launch(arch, needs, obstacles):
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
        (44.5, 39.9, None, "issue"),
        (2.5, 39.9, "HMMA", "compute"),
        (2.5, None, None, None),
    ],
)
def test_bound(issued, budget, mma, bound):
    assert rows.bound(issued, budget, mma) == bound
