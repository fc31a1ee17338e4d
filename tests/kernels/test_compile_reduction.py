"""Reductions as machine code, for GPUs that need not be here: lean, wide for any n, ordered where programs meet."""

import re

import pytest
import reduction_cases as cases
from bugs_reduction import BUGS
from compiled import ARCHES, assert_lean, compile_ahead, read_back, widths
from planted import plant

from kernels.audit import hot_path
from kernels.launch import INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

VERSIONS = cases.versions()
NEWEST = list(VERSIONS.values())[-1]


def label(variant):
    return f"{variant.op}-{variant.dtype}"


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("variant", NEWEST.variants(90), ids=label)
def test_newest_is_lean_and_wide(variant, arch):
    binary = read_back(compile_ahead(variant, arch))
    assert_lean(binary)
    path = hot_path.find(binary.instructions)
    assert path.is_loop
    vectors = 1 if variant.op == "sum" else 2
    assert len(widths(path.instructions, "load")) % (vectors * variant.constants["LOADS"]) == 0
    assert set(widths(path.instructions, "load")) == {128}
    # Elsewhere: what is left is wide too; but for one element a thread at the end, and the partial sums.
    narrow = [width for width in widths(binary.instructions, "load") if width != 128]
    assert len(narrow) == vectors + variant.constants["SLOTS"] // (32 * variant.options["num_warps"])


@pytest.mark.parametrize("variant", NEWEST.variants(90)[2::3], ids=label)
def test_sizes_beyond_32_bits_stay_wide(variant):
    binary = read_back(compile_ahead(variant, 90, integers="i64"))
    assert_lean(binary)
    assert set(widths(hot_path.find(binary.instructions).instructions, "load")) == {128}


def test_partial_sums_are_written_before_and_read_after_the_program_is_counted():
    binary = read_back(compile_ahead(NEWEST.variants(90)[0], 90))
    code = [item.opcode for item in binary.instructions]
    [counted] = [place for place, opcode in enumerate(code) if opcode.startswith("ATOMG")]
    assert ".STRONG.GPU" in code[counted]
    fence = max(place for place, opcode in enumerate(code[:counted]) if opcode.startswith("MEMBAR"))
    assert ".GPU" in code[fence]
    assert any(opcode.startswith("STG") for opcode in code[:fence])
    after = code[counted:]
    assert "CCTL.IVALL" in after  # what the L1 holds is forgotten
    first_read = next(place for place, opcode in enumerate(after) if opcode.startswith("LDG"))
    assert any(
        opcode.startswith("BAR") for opcode in after[:first_read]
    )  # the other threads wait for the one that counts
    assert ".STRONG.GPU" in after[first_read]


def assert_offsets_in_64_bits(module):
    """Fail if a program number, or the number of programs, is multiplied as a 32-bit number."""
    for variant in module.variants(90):
        if variant.part != "finish" and variant.dtype == "bf16":
            ir = compile_ahead(variant, 90).asm["ttir"]
            for number in re.findall(r"(%\w+) = tt\.get_(?:program_id|num_programs) x", ir):
                uses = [line for line in ir.splitlines() if re.search(rf"= .*{re.escape(number)}\b(?! =)", line)]
                assert uses
                assert not [line for line in uses if "arith.muli" in line], uses


@pytest.mark.parametrize("version", VERSIONS)
def test_offsets_are_in_64_bits(version):
    assert_offsets_in_64_bits(VERSIONS[version])


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_wrap_is_caught(bug, tmp_path):
    module = plant(bug, tmp_path)
    with pytest.raises(AssertionError):
        assert_offsets_in_64_bits(module)


def test_older_version_keeps_its_faults():
    for variant in VERSIONS["v1"].variants(90):
        if variant.dtype == "bf16" and variant.part == "partial":
            assert set(widths(read_back(compile_ahead(variant, 90)).instructions, "load")) == {16}
