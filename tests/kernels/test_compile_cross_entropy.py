"""Cross-entropy compiled ahead of time: registers, spills, access widths, address arithmetic. No GPU is needed."""

import re

import pytest
from bugs_cross_entropy import BUGS
from compiled import ARCHES, assert_lean, compile_ahead, read_back, widened_first, widths
from planted import plant

from kernels.cross_entropy import v1_naive, v2_online, v3_split_rows
from kernels.launch import ALIGNMENT_BYTES, DTYPES, INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

MODULES = (v1_naive, v2_online, v3_split_rows)
DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}


def label(variant):
    return f"{variant.kernel.fn.__name__}-{variant.dtype}"


@pytest.mark.parametrize(
    ("variant", "arch"),
    [
        pytest.param(variant, arch, id=f"{label(variant)}-sm_{arch}")
        for variant in [*v2_online.variants(90), *v3_split_rows.variants(90)]
        for arch in (ARCHES if variant.dtype == "bf16" else (90,))
    ],
)
def test_lean_and_wide_although_nothing_is_known_of_the_sizes(variant, arch):
    binary = read_back(compile_ahead(variant, arch, known_sizes=False))
    assert_lean(binary)
    found, bits = widths(binary.instructions, "load"), 8 * DTYPE_OF[variant.dtype].itemsize
    if variant.part == "finish":
        assert sorted(found) == sorted([64, bits, 32, 32])  # label, its logit, maxima, sums
        return
    a_step = variant.bytes // (32 * variant.options["num_warps"] * ALIGNMENT_BYTES)
    assert found.count(128) >= 2 * a_step  # in the loop, and in the rest after it
    # What is beside the body; and where the loss is written, the label and its logit.
    assert sorted(width for width in found if width != 128) == (
        [bits] if variant.part == "partial" else [bits, bits, 64]
    )


@pytest.mark.parametrize("known", [True, False])
def test_odd_rows_cost_version_1_its_wide_loads(known):
    for variant in v1_naive.variants(90):
        binary = read_back(compile_ahead(variant, 90, known_sizes=known))
        assert_lean(binary)
        assert (128 in widths(binary.instructions, "load")) is known


@pytest.mark.parametrize("variant", [v for v in v3_split_rows.variants(90) if v.dtype == "bf16"], ids=label)
def test_sizes_beyond_32_bits(variant):
    binary = read_back(compile_ahead(variant, 90, integers="i64"))
    assert_lean(binary)
    assert variant.part == "finish" or 128 in widths(binary.instructions, "load")


@pytest.mark.parametrize(
    "variant", [v for module in MODULES for v in module.variants(90) if v.dtype == "bf16"], ids=label
)
def test_program_number_is_widened_first_and_constants_stay_in_fp32(variant):
    ir = compile_ahead(variant, 90).asm["ttir"]
    assert widened_first(ir)
    assert "f64" not in ir


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.kind == "int32 offset wrap"], ids=lambda bug: bug.label)
def test_a_program_number_of_32_bits_is_noticed(bug, tmp_path):
    variants = plant(bug, tmp_path).variants(90)[:3]
    assert not all(widened_first(compile_ahead(variant, 90).asm["ttir"]) for variant in variants)


@pytest.mark.parametrize("variant", [v for v in v3_split_rows.variants(90) if v.part != "finish"], ids=label)
def test_the_logits_are_read_in_one_loop_and_that_is_pipelined(variant):
    compiled = compile_ahead(variant, 90)
    depth, lanes, stages = (variant.constants[name] for name in ("DEPTH", "LANES", "STAGES"))
    assert compiled.asm["ttir"].count("scf.for") == 1
    assert re.search(rf"ttg\.local_alloc.*memdesc<{stages - 1}x{depth}x{lanes}x", compiled.asm["ttgir"])
