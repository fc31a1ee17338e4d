"""The row norms compiled ahead of time for GPUs that need not be here, and read back as machine code.

Asserted of the newest version, for rows whose length and distance are multiples of 16 elements: no spill, no stack, no
fp64, 16 bytes an access to every operand.
"""

import pytest
from bugs_norm import BUGS
from compiled import assert_lean, compile_ahead, read_back, widened_first, widths
from planted import plant

from kernels.launch import ALIGNMENT_BYTES, INTERPRETED
from kernels.norm import v1_naive, v2_warps, v3_tiles, v4_split_rows

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
SPARE_REGISTERS = 65536 // 2  # half of a multiprocessor, so that two programs fit


def label(variant):
    return f"{variant.op}-{variant.dtype}-{variant.shape_class}"


def wide_accesses(variant):
    """Return the fewest loads of 16 bytes a thread makes in one pass, and how many such stores."""
    threads = 32 * variant.options["num_warps"]
    each = variant.elements * BYTES[variant.dtype] // (threads * ALIGNMENT_BYTES)
    has_residual = variant.op == "residual-rmsnorm"
    walks = 2 if "WIDTH" in variant.constants else 1  # a second walk reads again
    return each * (walks + has_residual), each * (2 if has_residual else 1)


NEWEST = [
    pytest.param(variant, arch, id=f"{label(variant)}-sm_{arch}")
    for variant in v3_tiles.variants(90)
    if variant.dtype == "bf16"
    for arch in ((80, 90, 100) if variant.shape_class in ("n <= 1024", f"n <= {2**30}") else (90,))
]


@pytest.mark.parametrize(("variant", "arch"), NEWEST)
def test_lean_and_wide(variant, arch):
    binary = read_back(compile_ahead(variant, arch))
    assert_lean(binary)
    loads, stores = wide_accesses(variant)
    assert widths(binary.instructions, "load").count(128) >= loads
    assert widths(binary.instructions, "store").count(128) == stores
    if arch == 90 and variant.options["num_warps"] <= 16:
        assert binary.registers * 32 * variant.options["num_warps"] <= SPARE_REGISTERS


SHARED = [
    pytest.param(variant, arch, id=f"{label(variant)}-{variant.part}-sm_{arch}")
    for variant in v4_split_rows.SHARED.values()
    if variant.dtype == "bf16"
    for arch in (80, 90, 100)
]


@pytest.mark.parametrize(("variant", "arch"), SHARED)
def test_pieces_of_shared_rows_are_lean_and_wide(variant, arch):
    binary = read_back(compile_ahead(variant, arch))
    assert_lean(binary)
    accesses = variant.constants["ACCESSES"]
    assert widths(binary.instructions, "load").count(128) >= accesses
    writes = variant.part == "finish" or variant.op == "residual-rmsnorm"
    assert widths(binary.instructions, "store").count(128) == accesses * writes


def find(module, op, dtype, width):
    [variant] = [v for v in module.variants(90) if (v.op, v.dtype, v.shape_class) == (op, dtype, f"n <= {width}")]
    return variant


def test_version_1_spills_where_it_says():
    binary = read_back(compile_ahead(find(v1_naive, "layernorm", "bf16", 65536), 90))
    assert binary.stack_bytes > 1000
    assert any(item.spill_bytes for item in binary.instructions)


def test_warps_by_width_halve_the_registers():
    first, second = (
        read_back(compile_ahead(find(module, "layernorm", "bf16", 16384), 90)).registers
        for module in (v1_naive, v2_warps)
    )
    assert second * 2 <= first


@pytest.mark.parametrize("variant", [v for v in v3_tiles.variants(90) if v.shape_class == "n <= 4096"], ids=label)
def test_scalars_stay_in_fp32(variant):
    ir = compile_ahead(variant, 90).asm["ttir"]
    assert "f32" in ir
    assert "f64" not in ir


WIDEST = [v for module in (v1_naive, v2_warps) for v in module.variants(90) if v.shape_class == "n <= 1024"]
WIDEST += [v for v in v3_tiles.variants(90) if v.shape_class in ("n <= 4096", f"n <= {2**30}")]


@pytest.mark.parametrize("variant", [v for v in WIDEST if v.dtype == "bf16"], ids=label)
def test_program_number_is_widened_before_any_arithmetic(variant):
    assert widened_first(compile_ahead(variant, 90).asm["ttir"])


@pytest.mark.parametrize("bug", [bug for bug in BUGS if "program_id" in bug.old], ids=lambda bug: bug.label)
def test_planted_wrap_shows_in_the_compiled_form(bug, tmp_path):
    module = plant(bug, tmp_path)
    variants = [v for v in module.variants(90) if v.dtype == "bf16"]
    firsts = {v.kernel: v for v in reversed(variants) if v.kernel.fn.__module__ == module.__name__}.values()
    assert not all(widened_first(compile_ahead(variant, 90).asm["ttir"]) for variant in firsts)


def test_every_variant_says_what_it_is():
    for module in (v1_naive, v2_warps, v3_tiles):
        found = module.variants(90)
        assert {(v.op, v.dtype) for v in found} == {(op, d) for op in module.KERNELS for d in BYTES}
        assert len({label(v) for v in found}) == len(found)
        for v in found:
            assert {"num_warps", "enable_fp_fusion"} <= set(v.options)
            assert v.bytes == v.elements * BYTES[v.dtype] * (4 if v.op == "residual-rmsnorm" else 2)
            if module is v3_tiles:
                assert v.elements <= 32 * 32 * v.options["num_warps"]


def test_limits_rise():
    for (op, _), limits in v3_tiles.VARIANTS.items():
        widths = [limit for limit, _ in limits]
        assert widths == sorted(set(widths)), op
        assert widths[-1] == v3_tiles.MAX_COLUMNS
