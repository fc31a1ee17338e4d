"""The elementwise kernels as machine code, for GPUs that need not be here: lean, wide for any n, and ever shorter."""

import re

import pytest
import torch
from bugs_elementwise import BUGS
from elementwise_cases import MODULES, NEWEST, OPS
from planted import plant
from test_compile import ARCHES, WIDE_LOAD, WIDE_STORE, assert_lean, compile_ahead, disassemble

from kernels.launch import ALIGNMENT_BYTES, DTYPES, INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

BF16 = torch.bfloat16
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?[A-Z]", re.MULTILINE)
PADDING = re.compile(r"\bNOP\b")
KERNELS_OF = {"unary": "relu", "binary": "triad", "bias": "bias-gelu", "random": "dropout"}
"""An operation of each kernel of a file; what is said of addresses and masks does not hang on the formula."""


def listing_of(version, op, dtype, arch, folder, **options):
    compiled = compile_ahead(MODULES[version].VARIANTS[op, dtype], dtype, arch, **options)
    return disassemble(compiled, folder)


def operands(op):
    """Inputs as long as the output."""
    return 2 if op in ("add", "mul", "triad", "swiglu", "residual-add") else 1


def accesses(version, dtype):
    variant = MODULES[version].VARIANTS["copy", dtype]
    return variant.elements * dtype.itemsize // (32 * variant.options["num_warps"] * ALIGNMENT_BYTES)


def instructions(listing):
    """All that is in the binary; for the newest version, whose tail is short, nearly the path of a full block."""
    return len(INSTRUCTION.findall(listing)) - len(PADDING.findall(listing))


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("op", OPS)
def test_newest_is_lean_and_wide(op, dtype, arch, tmp_path):
    if arch != 90 and dtype is torch.float16 and op not in KERNELS_OF.values():
        pytest.skip("compiled as bf16 is; a compile costs time")
    listing = listing_of(NEWEST, op, dtype, arch, tmp_path)
    assert_lean(listing)
    loads = operands(op) + (op == "bias-gelu")
    assert len(re.findall(WIDE_LOAD, listing)) == loads * accesses(NEWEST, dtype)
    assert len(re.findall(WIDE_STORE, listing)) == accesses(NEWEST, dtype)
    assert "SHARED:0" in listing  # no layout is converted on the way
    assert int(re.search(r"REG:(\d+)", listing)[1]) <= 40  # twelve programs of 128 threads an SM, 75 % of its threads


@pytest.mark.parametrize("op", OPS)
def test_second_version_is_lean_and_wide(op, tmp_path):
    listing = listing_of("v2", op, BF16, 90, tmp_path)
    assert_lean(listing)
    assert len(re.findall(WIDE_LOAD, listing)) >= operands(op)
    assert len(re.findall(WIDE_STORE, listing)) == 1


@pytest.mark.parametrize("op", KERNELS_OF.values())
def test_first_version_keeps_its_fault(op, tmp_path):
    listing = listing_of("v1", op, BF16, 90, tmp_path)
    assert_lean(listing)
    assert not re.search(WIDE_LOAD, listing)
    assert not re.search(WIDE_STORE, listing)
    assert len(re.findall(r"\bSTG\.E\.U16\b", listing)) == 8  # one for each element of a thread


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("version", [version for version in MODULES if version != "v1"])
def test_odd_rows_keep_wide_accesses_of_x_and_out(version, arch, tmp_path):
    listing = listing_of(version, "bias-gelu", BF16, arch, tmp_path, aligned_sizes=False)
    assert_lean(listing)
    assert len(re.findall(WIDE_LOAD, listing)) == accesses(version, BF16)
    assert len(re.findall(WIDE_STORE, listing)) == accesses(version, BF16)


MOST_INSTRUCTIONS = {
    # Of an element in bf16 on sm_90, all of the binary counted. Issue slots for one at 3.0 TB/s on an H100: about 40
    # with one operand, 59 with two.
    "copy": 5,
    "relu": 6,
    "silu": 14,
    "gelu-tanh": 17,
    "swiglu": 17,
    "gelu": 26,
    "dropout": 28,
}


@pytest.mark.parametrize("op", MOST_INSTRUCTIONS)
def test_newest_needs_few_instructions(op, tmp_path):
    listing = listing_of(NEWEST, op, BF16, 90, tmp_path)
    elements = MODULES[NEWEST].VARIANTS[op, BF16].elements / 128
    assert instructions(listing) / elements <= MOST_INSTRUCTIONS[op]


def test_no_division_is_left_in_the_logistic_function(tmp_path):
    found = {version: listing_of(version, "silu", BF16, 90, tmp_path) for version in ("v2", NEWEST)}
    assert "MUFU.RCP" in found["v2"]
    assert "MUFU.RCP" not in found[NEWEST]
    assert (
        len(re.findall(r"MUFU\.RSQ", found[NEWEST])) == len(re.findall(r"MUFU\.EX2", found[NEWEST])) == 17
    )  # 16 + rest


def test_philox_is_drawn_once_for_four_elements(tmp_path):
    """Four 32-bit products to a round and a counter, less what is zero in the first rounds."""
    products = {
        version: len(re.findall(r"\bIMAD\.(?:WIDE|HI)\.U32\b", listing_of(version, "dropout", BF16, 90, tmp_path)))
        for version in ("v2", NEWEST)
    }
    per_element = {
        version: products[version] / MODULES[version].VARIANTS["dropout", BF16].elements for version in products
    }
    assert per_element[NEWEST] < per_element["v2"] / 4


@pytest.mark.parametrize("op", KERNELS_OF.values())
@pytest.mark.parametrize("version", MODULES)
def test_sizes_beyond_32_bits(version, op, tmp_path):
    listing = listing_of(version, op, BF16, 90, tmp_path, integers="i64")
    assert_lean(listing)
    assert bool(re.search(WIDE_LOAD, listing)) is (version != "v1")


def widened(module, op):
    """Whether the program number is made 64 bits wide before anything is computed from it."""
    ir = compile_ahead(module.VARIANTS[op, BF16], BF16, 90).asm["ttir"]
    [program] = re.findall(r"(%\w+) = tt\.get_program_id x", ir)
    uses = [line for line in ir.splitlines() if re.search(rf"= .*{program}\b(?!\s*=)", line)]
    assert uses
    return all(f"arith.extsi {program} : i32 to i64" in line for line in uses)


@pytest.mark.parametrize("op", KERNELS_OF.values())
@pytest.mark.parametrize("version", MODULES)
def test_program_number_is_widened_before_any_arithmetic(version, op):
    assert widened(MODULES[version], op)


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_bug_is_caught(bug, tmp_path):
    assert bug.kind == "int32 offset wrap"
    module = plant(bug, tmp_path)
    assert not any(widened(module, op) for op in KERNELS_OF.values())


@pytest.mark.parametrize("version", MODULES)
def test_constants_stay_in_fp32(version):
    for op in ("dropout", "gelu-tanh", "triad"):
        assert "f64" not in compile_ahead(MODULES[version].VARIANTS[op, BF16], BF16, 90).asm["ttir"]


@pytest.mark.parametrize("op", OPS)
def test_a_profiler_sees_the_formula(op):
    formula = "add" if op == "residual-add" else op.replace("-", "_")
    for version, ending in (("v1", "masked"), ("v2", "split"), ("v3", "lean")):
        assert MODULES[version].VARIANTS[op, torch.float16].kernel._fn_name  # a jitted function, not a plain one
        if version == NEWEST:
            compiled = compile_ahead(MODULES[version].VARIANTS[op, torch.float16], torch.float16, 90)
            assert compiled.metadata.name == f"{formula}_{ending}"


@pytest.mark.parametrize("version", MODULES)
def test_variants_say_what_they_are(version):
    module = MODULES[version]
    for arch in ARCHES:
        found = module.variants(arch)
        assert {(variant.op, variant.dtype) for variant in found} == {
            (op, name) for op in module.KERNELS for name in DTYPES.values()
        }
        for variant in found:
            size = {"fp32": 4, "fp16": 2, "bf16": 2}[variant.dtype]
            assert variant.elements == variant.constants["BLOCK"]
            assert variant.bytes == (operands(variant.op) + 1) * size * variant.elements
            assert set(variant.options) == {"num_warps", "enable_fp_fusion"}
