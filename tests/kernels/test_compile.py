"""Kernels compiled ahead of time: 64-bit offsets, and what single versions promise. No GPU is needed."""

import re

import pytest
from bugs import BUGS
from compiled import ARCHES, assert_lean, compile_ahead, read_back
from families import FAMILIES, versions_of
from planted import plant

from kernels.audit import catalog, hot_path, sass
from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

ROW_FAMILIES = [family for family in FAMILIES if family != "matmul"]


def one_of_each(module):
    """One variant in bf16 of each operation and part that the module itself has a kernel for."""
    found = {}
    for variant in module.variants(90):
        is_own = variant.kernel.fn.__module__ == module.__name__
        if is_own and variant.dtype == "bf16" and "shifted" not in variant.shape_class:
            found.setdefault((variant.op, variant.part), variant)
    return list(found.values())


def label(variant):
    return "-".join(filter(None, (variant.op, variant.part, variant.shape_class)))


@pytest.mark.parametrize("version", catalog.shipped(), ids=lambda version: version.module_name)
def test_a_variant_names_arguments_of_its_kernel_and_leaves_no_constant_out(version):
    for arch in ARCHES:
        for variant in version.variants(arch):
            arguments = {argument.name: argument.is_constexpr for argument in variant.kernel.params}
            constants = {name for name, is_constant in arguments.items() if is_constant}
            assert constants <= set(variant.constants) <= set(arguments)
            assert set(variant.types) <= set(arguments) - set(variant.constants)
            assert {"num_warps", "enable_fp_fusion"} <= set(variant.options)


# ---- offsets beyond 32 bits ----------------------------------------------------------------------------------------


def wraps(variant):
    """Whether a program number, or a part of one, is multiplied as a 32-bit number."""
    ir = compile_ahead(variant, 90).asm["ttir"]
    numbers = set(re.findall(r"(%\w+) = tt\.get_(?:program_id|num_programs) x", ir))
    for number in list(numbers):
        numbers.update(re.findall(rf"(%\w+) = arith\.(?:div|rem)si {re.escape(number)}, .* : i32", ir))
    products = [line for line in ir.splitlines() if "arith.muli" in line and ": i32" in line]
    return any(re.search(rf"{re.escape(number)}\b", line) for number in numbers for line in products)


OF_ROWS = [version for version in catalog.shipped() if version.family in ROW_FAMILIES]


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", OF_ROWS, ids=lambda version: version.module_name)
def test_program_numbers_are_multiplied_in_64_bits(version):
    for variant in one_of_each(version.module):
        assert not wraps(variant), label(variant)


WRAPS = [
    bug for family in ROW_FAMILIES for bug in BUGS[family] if bug.kind == "int32 offset wrap" and bug.only_compiled
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", WRAPS, ids=lambda bug: bug.label)
def test_planted_wrap_shows_when_compiled(bug, tmp_path):
    assert any(map(wraps, one_of_each(plant(bug, tmp_path))))


NEWEST = [
    pytest.param(variant, id=f"{version.family}-{label(variant)}")
    for version in catalog.newest()
    if version.family in ROW_FAMILIES
    for variant in one_of_each(version.module)
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", NEWEST)
def test_sizes_beyond_32_bits(variant):
    """A size of 64 bits changes types all through a kernel, and must change neither registers nor wide accesses."""
    binary = read_back(compile_ahead(variant, 90, integers="i64"))
    assert_lean(binary)
    if variant.part != "finish":
        loads = sass.widths(hot_path.find(binary.instructions).instructions, "load")
        assert sass.main_width(loads) in (128, 256, sass.TMA)


# ---- what single versions promise ----------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_partial_sums_are_written_before_and_read_after_the_program_is_counted():
    binary = read_back(compile_ahead(versions_of("reduction")["v2"].variants(90)[0], 90))
    code = [item.opcode for item in binary.instructions]
    [counted] = [place for place, opcode in enumerate(code) if opcode.startswith("ATOMG")]
    assert ".STRONG.GPU" in code[counted]
    fence = max(place for place, opcode in enumerate(code[:counted]) if opcode.startswith("MEMBAR"))
    assert ".GPU" in code[fence]
    assert any(opcode.startswith("STG") for opcode in code[:fence])
    after = code[counted:]
    assert "CCTL.IVALL" in after  # what the L1 holds is forgotten
    first_read = next(place for place, opcode in enumerate(after) if opcode.startswith("LDG"))
    assert any(opcode.startswith("BAR") for opcode in after[:first_read])  # the others wait for the one that counts
    assert ".STRONG.GPU" in after[first_read]
