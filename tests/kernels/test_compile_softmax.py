"""Softmax compiled ahead of time: registers, spills, access widths, address arithmetic. No GPU is needed."""

import re

import pytest
from bugs_softmax import BUGS
from compiled import ARCHES, assert_lean, compile_ahead, read_back, widened_first, widths
from planted import plant

from kernels.launch import ALIGNMENT_BYTES, DTYPES, INTERPRETED
from kernels.softmax import v1_naive, v2_aligned, v3_split_rows

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}
MAX_ELEMENTS_A_THREAD = 64
WALK = v2_aligned.WALKS[DTYPE_OF["bf16"], True]


def label(variant):
    return f"{variant.dtype}-{variant.shape_class}"


def ir_of(variant):
    return compile_ahead(variant, 90).asm["ttir"]


def lean_and_wide():
    """Return the rows and walks that are read for which architecture; fp16 is much as bf16."""
    for variant in v2_aligned.variants(90):
        walks, alike = variant.kernel is v2_aligned.softmax_walk, variant.constants["ALIKE"]
        for arch in ARCHES if variant.dtype == "bf16" and (walks or (alike and variant.elements > 8192)) else (90,):
            if variant.dtype == "bf16" or (variant.dtype == "fp32" and (walks or alike)):
                yield pytest.param(variant, arch, id=f"{label(variant)}-sm_{arch}")


@pytest.mark.parametrize(("variant", "arch"), list(lean_and_wide()))
def test_newest_is_lean_and_wide_although_nothing_is_known_of_the_sizes(variant, arch):
    walks = variant.kernel is v2_aligned.softmax_walk
    binary = read_back(compile_ahead(variant, arch, known_sizes=False))
    assert_lean(binary)
    size = DTYPE_OF[variant.dtype].itemsize
    of_body = variant.elements * size // (variant.options["num_warps"] * 32 * ALIGNMENT_BYTES)
    loads, stores = widths(binary.instructions, "load"), widths(binary.instructions, "store")
    # A row in registers is read once; a walk has both passes and between them the rest, which stays in registers.
    assert loads.count(128) >= of_body * (3 if walks else 1)
    assert [width for width in loads if width != 128] == [8 * size]  # of what is beside the body
    if variant.constants["ALIKE"]:
        assert sorted(stores) == [8 * size] + [128] * (of_body * (2 if walks else 1))
    else:
        assert set(stores) == {8 * size}


@pytest.mark.parametrize("variant", v2_aligned.ROWS.values(), ids=label)
def test_threads_hold_few_elements(variant):
    assert variant.elements <= MAX_ELEMENTS_A_THREAD * 32 * variant.options["num_warps"]


def test_the_widest_row_of_version_1_is_spilled():
    for dtype in DTYPES:
        binary = read_back(compile_ahead(v1_naive.VARIANTS[dtype, 65536], 90))
        assert binary.stack_bytes > 0
        assert sum(item.spill_bytes for item in binary.instructions) > 0


@pytest.mark.parametrize("known", [True, False])
def test_odd_rows_cost_version_1_its_wide_accesses(known):
    for dtype in DTYPES:
        binary = read_back(compile_ahead(v1_naive.VARIANTS[dtype, 4096], 90, known_sizes=known))
        for kind in ("load", "store"):
            assert set(widths(binary.instructions, kind)) == {128 if known else 8 * dtype.itemsize}


SHARED = [variant for variant in v3_split_rows.SHARED.values() if variant.dtype == "bf16"]
WITH_64_BITS = [v2_aligned.ROWS[DTYPE_OF["bf16"], 32768, True], WALK, *SHARED]


@pytest.mark.parametrize("variant", WITH_64_BITS, ids=lambda variant: f"{label(variant)}-{variant.part}")
def test_sizes_beyond_32_bits(variant):
    binary = read_back(compile_ahead(variant, 90, integers="i64"))
    assert_lean(binary)
    assert 128 in widths(binary.instructions, "load")


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("variant", SHARED, ids=lambda variant: f"{variant.part}-{variant.shape_class}")
def test_pieces_of_shared_rows_are_lean_and_wide(variant, arch):
    binary = read_back(compile_ahead(variant, arch, known_sizes=False))
    assert_lean(binary)
    loads, stores = (widths(binary.instructions, kind) for kind in ("load", "store"))
    assert loads.count(128) >= 2 * variant.constants["DEPTH"]  # of a step, and of the rest
    if variant.part == "finish":
        assert (stores.count(128) == 2 * variant.constants["DEPTH"]) == variant.constants["ALIKE"]


@pytest.mark.parametrize(
    "variant", [v1_naive.VARIANTS[DTYPE_OF["bf16"], 1024], v2_aligned.variants(90)[0], WALK], ids=label
)
def test_program_number_is_widened_first_and_constants_stay_in_fp32(variant):
    ir = ir_of(variant)
    assert widened_first(ir)
    assert "f64" not in ir


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.kind == "int32 offset wrap"], ids=lambda bug: bug.label)
def test_a_program_number_of_32_bits_is_noticed(bug, tmp_path):
    module = plant(bug, tmp_path)
    own = [variant for variant in module.variants(90) if variant.kernel.fn.__module__ == module.__name__]
    assert not widened_first(ir_of(own[0]))


def test_both_loops_of_a_walk_are_pipelined():
    ir = compile_ahead(WALK, 90).asm["ttgir"]
    depth, lanes, stages = (WALK.constants[name] for name in ("DEPTH", "LANES", "STAGES"))
    assert len(re.findall(rf"ttg\.local_alloc.*memdesc<{stages - 1}x{depth}x{lanes}x", ir)) == 2


def test_first_pass_keeps_the_row_in_l2_and_second_lets_it_go():
    loads = re.findall(r"tt\.load .*", ir_of(WALK))
    assert sum("evict_last" in line for line in loads) == 1
    assert sum("evict_first" in line for line in loads) == 1
