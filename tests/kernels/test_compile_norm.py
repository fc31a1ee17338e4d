"""The row norms compiled ahead of time for GPUs that need not be here, and read back as machine code.

Asserted of the newest version, for rows of any length that start anywhere: no spill, no stack, no fp64, 16 bytes an
access to every operand. Nothing but the pointers is known to be aligned.
"""

import re
import subprocess
from pathlib import Path

import pytest
import triton
from bugs_norm import BUGS
from compiled import STACK_BYTES, widened_first
from planted import plant
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import ALIGNMENT_BYTES, INTERPRETED
from kernels.norm import v1_naive, v2_warps, v3_vectors, v4_split_rows

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
WIDE_LOAD = r"\bLDG\.E\S*\.128\b"
WIDE_STORE = r"\bSTG\.E\S*\.128\b"
SPARE_REGISTERS = 65536 // 2  # half of a multiprocessor, so that two programs fit


def label(variant):
    return f"{variant.op}-{variant.dtype}-{variant.shape_class}"


def compile_ahead(variant, arch, kernel=None):
    """Compile as a launch would: aligned pointers, strides that are multiples of 16 unless rows start anywhere."""
    kernel = kernel or variant.kernel
    signature, attrs = {}, {}
    for index, parameter in enumerate(kernel.params):
        if parameter.name in variant.constants:
            signature[parameter.name] = "constexpr"
            continue
        pointer = parameter.name.endswith("_ptr")
        signature[parameter.name] = f"*{variant.dtype}" if pointer else variant.types.get(parameter.name, "i32")
        if pointer or not parameter.do_not_specialize:
            attrs[(index,)] = [["tt.divisibility", ALIGNMENT_BYTES]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(variant.constants), attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=dict(variant.options))


def disassemble(compiled, folder):
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    done = subprocess.run([CUOBJDUMP, "-res-usage", "-sass", cubin], capture_output=True, text=True, check=True)
    return done.stdout


def usage(listing):
    """Return registers a thread, bytes of stack, and whether anything is kept in local memory."""
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", listing)
    return int(registers), int(stack), bool(re.search(r"\b(?:LDL|STL)\b", listing))


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
def test_lean_and_wide(variant, arch, tmp_path):
    listing = disassemble(compile_ahead(variant, arch), tmp_path)
    registers, stack, local = usage(listing)
    assert stack <= STACK_BYTES
    assert local == (stack > 0)
    assert not re.search(r"\b(?:DADD|DMUL|DFMA|DSETP)\b", listing)
    loads, stores = wide_accesses(variant)
    assert len(re.findall(WIDE_LOAD, listing)) >= loads
    assert len(re.findall(WIDE_STORE, listing)) == stores
    if arch == 90 and not variant.constants["SHIFTED"] and variant.options["num_warps"] <= 16:
        assert registers * 32 * variant.options["num_warps"] <= SPARE_REGISTERS


SHARED = [
    pytest.param(variant, arch, id=f"{label(variant)}-{variant.part}-sm_{arch}")
    for variant in v4_split_rows.SHARED.values()
    if variant.dtype == "bf16"
    for arch in ((80, 90, 100) if "shifted" in variant.shape_class else (90,))
]


@pytest.mark.parametrize(("variant", "arch"), SHARED)
def test_pieces_of_shared_rows_are_lean_and_wide(variant, arch, tmp_path):
    listing = disassemble(compile_ahead(variant, arch), tmp_path)
    _, stack, local = usage(listing)
    assert stack <= STACK_BYTES
    assert local == (stack > 0)
    accesses = variant.constants["ACCESSES"]
    assert len(re.findall(WIDE_LOAD, listing)) >= accesses
    writes = variant.part == "finish" or variant.op == "residual-rmsnorm"
    assert len(re.findall(WIDE_STORE, listing)) == accesses * writes


def find(module, op, dtype, width):
    [variant] = [v for v in module.variants(90) if (v.op, v.dtype, v.shape_class) == (op, dtype, f"n <= {width}")]
    return variant


def test_version_1_spills_where_it_says(tmp_path):
    _, stack, local = usage(disassemble(compile_ahead(find(v1_naive, "layernorm", "bf16", 65536), 90), tmp_path))
    assert stack > 1000
    assert local


def test_warps_by_width_halve_the_registers(tmp_path):
    first, second = (
        usage(disassemble(compile_ahead(find(module, "layernorm", "bf16", 16384), 90), tmp_path))[0]
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
