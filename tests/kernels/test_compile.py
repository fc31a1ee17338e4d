"""Machine code of kernels: 64-bit offsets, and the claims of kernel docstrings. See also
`test_audit_shipped.py`.
"""

import re
from dataclasses import dataclass

import pytest
from bugs import BUGS
from compiled import (
    IS_RECORDED_TRITON,
    TENSOR_CORES,
    assert_lean,
    compile_ahead,
    read_back,
    widened_first,
)
from families import FAMILIES, ON_A_GPU, versions_of
from planted import plant

from kernels.audit import catalog, hot_path, sass
from kernels.launch import INTERPRETED
from kernels.matmul import v3_persistent, v4_tma, v5_split_k

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

ROW_FAMILIES = [family for family in FAMILIES if family != "matmul"]


def one_of_each(module):
    found = {}
    for variant in module.variants(90):
        is_own = variant.kernel.fn.__module__ == module.__name__
        if is_own and variant.dtype == "bf16" and "shifted" not in variant.shape_class:
            found.setdefault((variant.op, variant.part), variant)
    return list(found.values())


def label(variant):
    return "-".join(filter(None, (variant.op, variant.part, variant.shape_class)))


def wraps(variant):
    ir = compile_ahead(variant, 90).asm["ttir"]
    numbers = set(re.findall(r"(%\w+) = tt\.get_(?:program_id|num_programs) x", ir))
    for number in list(numbers):
        numbers.update(
            re.findall(rf"(%\w+) = arith\.(?:div|rem)si {re.escape(number)}, .* : i32", ir)
        )
    products = [line for line in ir.splitlines() if "arith.muli" in line and ": i32" in line]
    return any(
        re.search(rf"{re.escape(number)}\b", line) for number in numbers for line in products
    )


OF_ROWS = [version for version in catalog.shipped() if version.family in ROW_FAMILIES]


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", OF_ROWS, ids=lambda version: version.module_name)
def test_program_indices_are_multiplied_in_64_bits(version):
    for variant in one_of_each(version.module):
        assert not wraps(variant), label(variant)


WRAPS = [
    bug
    for family in ROW_FAMILIES
    for bug in BUGS[family]
    if bug.kind == "int32 offset wrap" and bug.only_compiled
]


@pytest.mark.exhaustive
@pytest.mark.sampled(2)
@pytest.mark.parametrize("bug", WRAPS, ids=lambda bug: bug.label)
def test_planted_32_bit_offset_is_caught(bug, tmp_path):
    assert any(map(wraps, one_of_each(plant(bug, tmp_path))))


@pytest.mark.exhaustive
def test_reduction_orders_partial_sums_around_the_counter():
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
    # The others wait for the one that counts.
    assert any(opcode.startswith("BAR") for opcode in after[:first_read])
    assert ".STRONG.GPU" in after[first_read]


@dataclass(frozen=True)
class Promise:
    """A pattern in a compiled kernel, found `times` times; None: at least once."""

    version: str
    op: str
    form: str
    """`ptx`, `ttgir`, `sass`, or `hot`, the hot path of the machine code."""
    pattern: str
    times: int | None = None
    dtype: str = "bf16"
    arch: int = 90
    shapes: str = ""
    known_sizes: bool = True

    def __str__(self):
        return f"{self.version}-{self.op}-{self.dtype}-sm_{self.arch}-{self.form}-{self.pattern}"


MMA = rf"\b{TENSOR_CORES[90]['bf16']}\b"
SPILL = r"\b(?:STL|LDL)\b"
LOAD_BY_THREADS = r"\bLDG"
WIDER_THAN_2_BYTES = r"\bLDG\.E(?!\.U16)"
PROMISES = [
    # One maximum that keeps NaN, and no comparison. Source: CUDA Math API, `__hmax2_nan`.
    *[Promise("elementwise/v3", "relu", "ptx", r"\bmax\.NaN\.", dtype=dtype) for dtype in ON_A_GPU],
    Promise("elementwise/v3", "relu", "ptx", r"\b(?:selp|setp\.\w+)\.b?f\d", 0),
    # A profiler shows the formula.
    Promise("elementwise/v3", "bias-gelu", "ptx", r"\.entry bias_gelu_lean\("),
    # Version 3 has no division in the logistic function.
    Promise("elementwise/v3", "silu", "hot", r"\bMUFU\.RCP\b", 0),
    Promise("elementwise/v3", "silu", "hot", r"\bMUFU\.RSQ\b", 16),
    # Its exponential flushes to zero, so that GELU of -infinity is -0.
    Promise("elementwise/v3", "gelu", "ptx", r"\bex2\.approx\.ftz\.f32\b"),
    Promise("elementwise/v3", "gelu", "ptx", r"\bex2\.(?!approx\.ftz\.f32\b)", 0),
    # The first versions read odd sizes element by element, and spill the widest rows.
    Promise("elementwise/v1", "copy", "sass", WIDER_THAN_2_BYTES, 0, known_sizes=False),
    Promise("softmax/v1", "softmax", "sass", WIDER_THAN_2_BYTES, 0, known_sizes=False),
    Promise("softmax/v1", "softmax", "sass", SPILL, shapes="n <= 65536"),
    Promise("norm/v1", "layernorm", "sass", SPILL, shapes="n <= 65536"),
    # Loops of loads are pipelined: of 2 or 3 steps in flight, 4 rows each.
    Promise(
        "softmax/v2", "softmax", "ttgir", r"ttg\.local_alloc.*memdesc<2x4x", 2, shapes="n > 32768"
    ),
    # Every version of the matrix product feeds tensor cores; fp32 does not spill, but for version 5
    # in Triton 3.6.
    *[Promise(f"matmul/v{n}", "matmul", "sass", MMA) for n in (1, 2, 3, 4)],
    *[Promise("matmul/v3", "matmul", "sass", SPILL, 0, "fp32", arch) for arch in (80, 90)],
    *([Promise("matmul/v5", "matmul", "sass", SPILL, 0, "fp32")] if IS_RECORDED_TRITON else []),
    # Descriptors cost nothing where sizes are odd; int8 with its terms side by side is loaded 16
    # bytes at a time.
    Promise("matmul/v5", "matmul", "sass", r"\bUTMALDG\b", known_sizes=False),
    Promise("matmul/v5", "matmul", "sass", r"\bUTMASTG\b", known_sizes=False),
    Promise("matmul/v5", "matmul", "sass", LOAD_BY_THREADS, 0, known_sizes=False),
    Promise(
        "matmul/v3",
        "matmul",
        "sass",
        r"\bLDGSTS\.\S*\b128\b",
        dtype="int8",
        arch=80,
        shapes="nt, any",
    ),
]


@pytest.mark.exhaustive
@pytest.mark.sampled(4)
@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_docstring_claims_hold_in_machine_code(promise):
    family, _, version = promise.version.partition("/")
    variant = next(
        variant
        for variant in versions_of(family)[version].variants(promise.arch)
        if (variant.op, variant.dtype) == (promise.op, promise.dtype)
        and variant.shape_class.startswith(promise.shapes)
    )
    compiled = compile_ahead(variant, promise.arch, known_sizes=promise.known_sizes)
    if promise.form in ("sass", "hot"):
        instructions = read_back(compiled).instructions
        selected = (
            instructions if promise.form == "sass" else hot_path.find(instructions).instructions
        )
        text = "\n".join(map(str, selected))
    else:
        text = compiled.asm[promise.form]
    found = re.findall(promise.pattern, text)
    assert len(found) == promise.times or (found and promise.times is None), found[:5]


MATMUL = versions_of("matmul")
# CUDA C++ Programming Guide, table of limits.
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
SMALL_SHARED_BYTES = 99 * 1024  # of sm_86, sm_89 and sm_120, from the same table
# A dtype's main shape class; the audit compiles all.
ONE_OF_EACH = (
    "nn, large",
    "nn, any",
    "nt, large",
)


def main_variants(module, arch):
    found = {}
    for variant in module.variants(arch):
        if variant.shape_class in ONE_OF_EACH and variant.dtype in ("fp32", *TENSOR_CORES[arch]):
            found.setdefault(variant.dtype, variant)
    return found


@pytest.mark.exhaustive
def test_fp8_sums_are_kept_in_fp32_on_sm_90():
    binary = read_back(compile_ahead(main_variants(v5_split_k, 90)["fp8e4m3"], 90))
    tile = v4_tma.TILES[90]["fp8e4m3"]["large"]
    sums_of_a_thread = tile.m * tile.n // (32 * tile.warps)
    assert sum(item.base == "FADD" for item in binary.instructions) >= sums_of_a_thread


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", [80, 90])
def test_matmul_v3_does_not_spill_for_unaligned_sizes(arch):
    for variant in v3_persistent.variants(arch):
        is_shifted = variant.shape_class.endswith("shifted")
        if not variant.shape_class.startswith("nt") or (
            variant.dtype != "bf16" and (arch != 90 or not is_shifted)
        ):
            continue
        binary = read_back(compile_ahead(variant, arch, known_sizes=False))
        assert_lean(binary)
        loads, bits = (
            sass.widths(binary.instructions, "load"),
            {"bf16": 16, "fp16": 16, "fp32": 32, "tf32": 32},
        )
        assert sass.main_width(loads) == (bits.get(variant.dtype, 8) if is_shifted else 128), (
            variant.shape_class
        )
        assert sass.mma_kind(binary.instructions) == TENSOR_CORES[arch].get(variant.dtype), (
            variant.shape_class
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dtype", "arch"), [("bf16", 90), ("fp8e4m3", 100)])
def test_autotuned_tiles_fit_shared_memory(dtype, arch):
    for tile in v5_split_k.TUNED[dtype]:
        variant = v4_tma._variant(dtype, "nt", "tuned", tile)
        assert compile_ahead(variant, arch).metadata.shared <= SHARED_LIMIT_BYTES[arch], tile


@pytest.mark.exhaustive
@pytest.mark.parametrize(("arch", "version"), [(86, "v2"), (120, "v5")])
def test_smallest_tiles_fit_gpus_with_less_shared_memory(arch, version):
    module = MATMUL[version]
    variants = [
        variant for variant in module.variants(arch) if variant.shape_class.startswith("nt")
    ]
    assert {variant.dtype for variant in variants} >= {"fp32", "tf32", "bf16"}
    for variant in variants:
        if variant.dtype in ("tf32", "bf16", "int8"):
            assert compile_ahead(variant, arch).metadata.shared <= SMALL_SHARED_BYTES, variant.dtype


def tile_numbers_are_wide(module):
    if hasattr(module, "add_splits"):
        return widened_first(compile_ahead(module._finish("bf16"), 90).asm["ttir"])
    ir = compile_ahead(main_variants(module, 90)["bf16"], 90).asm["ttir"]
    divided = re.findall(r"arith\.(?:divsi|remsi) .* : (i\d+)", ir)
    products = re.findall(r"%tiles\w* = arith\.muli .* : (i\d+)", ir)
    return divided.count("i64") >= 4 and bool(products) and set(products) == {"i64"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
def test_tile_indices_have_64_bits(version):
    assert tile_numbers_are_wide(MATMUL[version])


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS["matmul"] if bug.only_compiled], ids=lambda bug: bug.label
)
def test_planted_32_bit_tile_index_is_caught(bug, tmp_path):
    assert not tile_numbers_are_wide(plant(bug, tmp_path))
