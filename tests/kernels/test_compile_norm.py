"""The row norms compiled ahead of time for GPUs that need not be here, and read back as machine code.

Asserted of the newest version, for rows of any length that start anywhere: no spill, no stack, no fp64, 16 bytes an
access to every operand. Nothing but the pointers is known to be aligned.
"""

import pytest
from bugs_norm import BUGS
from compiled import assert_lean, compile_ahead, read_back, widened_first, widths
from planted import plant

from kernels.launch import ALIGNMENT_BYTES, INTERPRETED
from kernels.norm import v1_naive, v2_warps, v3_vectors, v4_split_rows

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
SPARE_REGISTERS = 65536 // 2  # half of a multiprocessor, so that two programs fit


def label(variant):
    return f"{variant.op}-{variant.dtype}-{variant.shape_class}"


def wide_accesses(variant):
    """Return the fewest loads of 16 bytes a thread makes in one pass, and how many such stores."""
    threads = 32 * variant.options["num_warps"]
    rows, constants = variant.constants.get("ROWS", 1), variant.constants
    each = variant.elements * BYTES[variant.dtype] // (threads * ALIGNMENT_BYTES)
    # Two vectors are read for one; what of the second is never needed the compiler leaves out, one in eight at most.
    across = 15 / 8
    loads = (1 + (variant.op == "residual-rmsnorm")) * (across if constants["MIXED"] else 1)
    if "WIDTH" in constants or (variant.op == "residual-rmsnorm" and constants["MIXED"]):  # a second walk reads again
        loads += across if constants["MIXED"] else 1
    vectors = (2 if variant.op == "layernorm" else 1) * (across if constants["SHIFTED"] else 1)
    return each * loads + each // rows * vectors, each * (2 if variant.op == "residual-rmsnorm" else 1)


def newest():
    """Return what is read for which architecture: two widths in bf16 for all, of the other widths one for sm_90."""
    found, others = [], set()
    for variant in v3_vectors.variants(90):
        if variant.dtype != "bf16":
            continue
        some = variant.shape_class.partition(",")[0] in ("n <= 1027", f"n <= {2**30}")
        alone = (variant.op, variant.shape_class.partition(",")[2]) not in others
        others.add((variant.op, variant.shape_class.partition(",")[2]))
        for arch in (80, 90, 100):
            if some or (alone and arch == 90):
                found.append(pytest.param(variant, arch, id=f"{label(variant)}-sm_{arch}"))
    return found


@pytest.mark.parametrize(("variant", "arch"), newest())
def test_lean_and_wide(variant, arch):
    binary = read_back(compile_ahead(variant, arch))
    assert_lean(binary)
    loads, stores = wide_accesses(variant)
    assert widths(binary.instructions, "load").count(128) >= loads
    assert widths(binary.instructions, "store").count(128) == stores
    if arch == 90 and not variant.constants["SHIFTED"] and variant.options["num_warps"] <= 16:
        assert binary.registers * 32 * variant.options["num_warps"] <= SPARE_REGISTERS


SHARED = [
    pytest.param(variant, arch, id=f"{label(variant)}-{variant.part}-sm_{arch}")
    for variant in v4_split_rows.SHARED.values()
    if variant.dtype == "bf16"
    for arch in ((80, 90, 100) if "shifted" in variant.shape_class else (90,))
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


@pytest.mark.parametrize("variant", [v for v in v3_vectors.variants(90) if v.shape_class == "n <= 4099"], ids=label)
def test_scalars_stay_in_fp32(variant):
    ir = compile_ahead(variant, 90).asm["ttir"]
    assert "f32" in ir
    assert "f64" not in ir


WIDEST = [v for module in (v1_naive, v2_warps) for v in module.variants(90) if v.shape_class == "n <= 1024"]
WIDEST += [v for v in v3_vectors.variants(90) if v.shape_class in ("n <= 4099", f"n <= {2**30}")]


@pytest.mark.parametrize("variant", [v for v in WIDEST if v.dtype == "bf16"], ids=label)
def test_program_number_is_widened_before_any_arithmetic(variant):
    assert widened_first(compile_ahead(variant, 90).asm["ttir"])


@pytest.mark.parametrize("bug", [bug for bug in BUGS if "program_id" in bug.old], ids=lambda bug: bug.label)
def test_planted_wrap_shows_in_the_compiled_form(bug, tmp_path):
    module = plant(bug, tmp_path)
    variants = [v for v in module.variants(90) if v.dtype == "bf16" and not v.constants.get("SHIFTED", False)]
    firsts = {v.kernel: v for v in reversed(variants) if v.kernel.fn.__module__ == module.__name__}.values()
    assert not all(widened_first(compile_ahead(variant, 90).asm["ttir"]) for variant in firsts)


def test_every_variant_says_what_it_is():
    for module in (v1_naive, v2_warps, v3_vectors):
        found = module.variants(90)
        assert {(v.op, v.dtype) for v in found} == {(op, d) for op in module.KERNELS for d in BYTES}
        assert len({label(v) for v in found}) == len(found)
        for v in found:
            assert {"num_warps", "enable_fp_fusion"} <= set(v.options)
            assert v.bytes == v.elements * BYTES[v.dtype] * (4 if v.op == "residual-rmsnorm" else 2)
            if module is v3_vectors:
                assert v.elements <= 32 * 32 * v.options["num_warps"]


def test_limits_rise():
    for (op, _, _), limits in v3_vectors.VARIANTS.items():
        widths = [limit for limit, _ in limits]
        assert widths == sorted(set(widths)), op
        assert widths[-1] == v3_vectors.MAX_COLUMNS
