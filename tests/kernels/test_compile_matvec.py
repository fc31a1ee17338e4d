"""Matrix-vector kernels as machine code, for GPUs that need not be here: lean, wide, no barrier where they wait."""

import re

import matvec_cases as cases
import pytest
from compiled import ARCHES, assert_lean, compile_ahead, read_back, widths

from kernels.audit import hot_path
from kernels.launch import ALIGNMENT_BYTES, INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

VERSIONS = cases.versions()
NEWEST = list(VERSIONS.values())[-1]
ONE_OF_EACH = [variant for variant in NEWEST.variants(90) if variant.dtype == "bf16"]


def label(variant):
    return "-".join(filter(None, (variant.op, variant.dtype, variant.part, variant.shape_class))).replace(" ", "-")


def loop(binary):
    found = hot_path.find(binary.instructions)
    assert found.is_loop
    return found.instructions


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("variant", ONE_OF_EACH, ids=label)
def test_newest_is_lean_and_wide(variant, arch):
    binary = read_back(compile_ahead(variant, arch))
    assert_lean(binary)
    if variant.part == "finish":
        return
    loop_loads, constants = widths(loop(binary), "load"), variant.constants
    a_loads = variant.bytes // (32 * variant.options["num_warps"] * ALIGNMENT_BYTES)
    assert loop_loads.count(128) >= a_loads
    if constants["ALIGNED"]:
        assert set(loop_loads) == {128}  # x too
    assert not [item for item in loop(binary) if item.base in ("BAR", "LDS")]  # no exchange between threads


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("op", NEWEST.KERNELS)
def test_other_dtypes_are_as_lean(op, dtype):
    for variant in NEWEST.variants(90):
        if (variant.op, variant.dtype) == (op, dtype) and variant.shape_class in ("wide", "split"):
            binary = read_back(compile_ahead(variant, 90))
            assert_lean(binary)
            assert variant.part == "finish" or set(widths(loop(binary), "load")) == {128}


@pytest.mark.parametrize("variant", [item for item in ONE_OF_EACH if item.shape_class == "wide"], ids=label)
def test_sizes_beyond_32_bits_stay_wide(variant):
    binary = read_back(compile_ahead(variant, 90, integers="i64"))
    assert_lean(binary)
    assert set(widths(loop(binary), "load")) == {128}


def test_an_int8_weight_is_never_stored_wider():
    [variant] = [item for item in ONE_OF_EACH if label(item) == "matvec-int8-bf16-wide"]
    binary = read_back(compile_ahead(variant, 90))
    stores = [item for item in binary.instructions if item.access and item.access[0] == "store"]
    assert len(stores) == 1  # y
    assert variant.constants["ACCESS"] == 16


@pytest.mark.parametrize("variant", ONE_OF_EACH, ids=label)
def test_program_number_is_multiplied_in_64_bits(variant):
    ir = compile_ahead(variant, 90).asm["ttir"]
    [program] = re.findall(r"(%\w+) = tt\.get_program_id x", ir)
    divided = re.findall(rf"(%\w+) = arith\.(?:div|rem)si {program}, ", ir)
    for number in {program, *divided}:
        uses = [line for line in ir.splitlines() if re.search(rf"= .*{re.escape(number)}\b(?! =)", line)]
        assert uses
        allowed = rf"arith\.(?:extsi {re.escape(number)} : i32 to i64|divsi|remsi)"
        assert all(re.search(allowed, line) for line in uses), uses


def test_older_versions_keep_their_faults():
    [naive] = [item for item in VERSIONS["v1"].variants(90) if item.dtype == "bf16"]
    binary = read_back(compile_ahead(naive, 90))
    assert set(widths(binary.instructions, "load")) == {16}  # known sizes do not help the mask
    [pipelined] = [item for item in VERSIONS["v2"].variants(90) if item.dtype == "bf16"]
    binary = read_back(compile_ahead(pipelined, 90, known_sizes=False))
    assert 16 in widths(loop(binary), "load")  # rows that start anywhere are read by elements


def test_version_2_is_pipelined_and_wide():
    [variant] = [item for item in VERSIONS["v2"].variants(90) if item.dtype == "bf16"]
    compiled = compile_ahead(variant, 90)
    stages, rows = variant.constants["STAGES"], variant.constants["ROWS"]
    assert f"memdesc<{stages - 1}x{rows}x" in compiled.asm["ttgir"]  # one buffer for each step loaded ahead of its use
    binary = read_back(compiled)
    assert_lean(binary)
    assert 128 in widths(loop(binary), "load")
