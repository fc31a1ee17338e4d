"""The elementwise kernels as machine code, for GPUs that need not be here: lean, wide for any n, and ever shorter."""

import functools
import re

import pytest
import torch
from bugs_elementwise import BUGS
from compiled import ARCHES, IS_RECORDED_TRITON, assert_lean, compile_ahead, read_back, widened_first
from elementwise_cases import MODULES, NEWEST, OPS
from planted import plant

from kernels.audit import hot_path
from kernels.launch import ALIGNMENT_BYTES, DTYPES, INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

BF16 = torch.bfloat16
KERNELS_OF = {"unary": "relu", "binary": "triad", "bias": "bias-gelu", "random": "dropout"}
"""An operation of each kernel of a file; what is said of addresses and masks does not hang on the formula."""
NEWEST_CASES = [
    (op, dtype, arch)
    for op in OPS
    for dtype in DTYPES
    for arch in ARCHES
    if (arch == 90 and op in KERNELS_OF.values()) or dtype is BF16  # a compile costs time
]


@functools.cache
def compiled(version, op, dtype=BF16, arch=90, **options):
    return compile_ahead(MODULES[version].VARIANTS[op, dtype], arch, **options)


@functools.cache
def binary_of(version, op, dtype=BF16, arch=90, **options):
    return read_back(compiled(version, op, dtype, arch, **options))


def bits(instructions, kind):
    """The width of each access of a kind, `load` or `store`."""
    return [item.access[1] for item in instructions if item.access and item.access[0] == kind]


def full_path(binary):
    """The instructions of a full block."""
    return hot_path.find(binary.instructions).instructions


def count(instructions, opcode):
    return sum(item.opcode.startswith(opcode) for item in instructions)


def operands(op):
    """Inputs as long as the output."""
    return 2 if op in ("add", "mul", "triad", "swiglu", "residual-add") else 1


def accesses(version, dtype):
    variant = MODULES[version].VARIANTS["copy", dtype]
    return variant.elements * dtype.itemsize // (32 * variant.options["num_warps"] * ALIGNMENT_BYTES)


@pytest.mark.parametrize(("op", "dtype", "arch"), NEWEST_CASES, ids=str)
def test_newest_is_lean_and_wide(op, dtype, arch):
    binary = binary_of(NEWEST, op, dtype, arch)
    assert_lean(binary)
    loads = operands(op) + (op == "bias-gelu")
    path = full_path(binary)
    assert bits(path, "load") == [64] * (op == "dropout") + [128] * (loads * accesses(NEWEST, dtype))  # 64: the seed
    assert bits(path, "store") == [128] * accesses(NEWEST, dtype)
    assert binary.shared_bytes == 0  # no layout is converted on the way
    assert binary.registers <= 40  # twelve programs of 128 threads an SM, 75 % of its threads


@pytest.mark.parametrize("op", OPS)
def test_second_version_is_lean_and_wide(op):
    binary = binary_of("v2", op)
    assert_lean(binary)
    path = full_path(binary)
    wanted = operands(op) + (op == "bias-gelu")
    found = bits(path, "load").count(128)
    assert found == wanted or (found > wanted and not IS_RECORDED_TRITON)  # Triton 3.6 reads the bias twice
    assert bits(path, "store") == [128]


@pytest.mark.parametrize("op", KERNELS_OF.values())
def test_first_version_keeps_its_fault(op):
    binary = binary_of("v1", op)
    assert_lean(binary)
    assert bits(binary.instructions, "store") == [16] * 8  # one for each element of a thread
    assert 128 not in bits(binary.instructions, "load")


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("version", [version for version in MODULES if version != "v1"])
def test_odd_rows_keep_wide_accesses_of_x_and_out(version, arch):
    binary = binary_of(version, "bias-gelu", BF16, arch, known_sizes=False)
    assert_lean(binary)
    path = full_path(binary)
    assert bits(path, "load").count(128) == accesses(version, BF16)
    assert bits(path, "store") == [128] * accesses(version, BF16)


MOST_INSTRUCTIONS = {"copy": 3, "relu": 5, "silu": 11, "gelu-tanh": 13, "swiglu": 15, "gelu": 22, "dropout": 21}
"""Of an element in bf16 on sm_90. An H100 has issue slots for about 40 at 3.0 TB/s, for 59 where two are read."""


@pytest.mark.parametrize("op", MOST_INSTRUCTIONS)
def test_each_version_needs_fewer_instructions(op):
    needed = []
    for version in MODULES:
        threads = 32 * MODULES[version].VARIANTS[op, BF16].options["num_warps"]
        elements = MODULES[version].VARIANTS[op, BF16].elements / threads
        needed.append(hot_path.find(binary_of(version, op).instructions).count / elements)
    assert needed == sorted(needed, reverse=True)
    assert round(needed[-1]) <= MOST_INSTRUCTIONS[op]


def test_no_division_is_left_in_the_logistic_function():
    older, newest = (full_path(binary_of(version, "silu")) for version in ("v2", NEWEST))
    assert count(older, "MUFU.RCP") == 8
    assert count(newest, "MUFU.RCP") == 0
    assert count(newest, "MUFU.RSQ") == count(newest, "MUFU.EX2") == 16


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.get)
@pytest.mark.parametrize("version", MODULES)
def test_relu_is_one_maximum_that_keeps_nan(version, dtype):
    """Of -0 and +0 a maximum takes +0. Source: CUDA Math API, `__hmax2_nan`."""
    ptx = compiled(version, "relu", dtype).asm["ptx"]
    assert "max.NaN." in ptx
    assert not re.search(r"\b(selp|setp\.\w+)\.b?f\d", ptx)


@pytest.mark.parametrize("arch", ARCHES, ids="sm_{}".format)
@pytest.mark.parametrize("op", ["gelu", "bias-gelu"])
def test_exponential_of_gelu_flushes_to_zero(op, arch):
    """So that GELU of -infinity is -0."""
    found = re.findall(r"\bex2\.[\w.]+", compiled(NEWEST, op, BF16, arch).asm["ptx"])
    assert set(found) == {"ex2.approx.ftz.f32"}


def test_philox_is_drawn_once_for_four_elements():
    """Of 4 words by 7 rounds instead of 1 word by 10 rounds, with two products a round."""
    older, newest = (full_path(binary_of(version, "dropout")) for version in ("v2", NEWEST))
    products = [sum(count(path, name) for name in ("IMAD.WIDE.U32", "IMAD.HI.U32")) for path in (older, newest)]
    assert products[1] / 16 < products[0] / 8 / 4


@pytest.mark.parametrize("op", KERNELS_OF.values())
@pytest.mark.parametrize("version", MODULES)
def test_sizes_beyond_32_bits(version, op):
    binary = binary_of(version, op, integers="i64")
    assert_lean(binary)
    assert (128 in bits(binary.instructions, "load")) is (version != "v1")


def widened(module, op):
    """Whether the program number is made 64 bits wide before anything is computed from it."""
    # not from the cache: a module may be a broken copy
    return widened_first(compile_ahead(module.VARIANTS[op, BF16], 90).asm["ttir"])


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
        assert "f64" not in compiled(version, op).asm["ttir"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("version", "ending"), [("v1", "masked"), ("v2", "split"), ("v3", "lean")])
def test_a_profiler_sees_the_formula(version, ending, op):
    formula = "add" if op == "residual-add" else op.replace("-", "_")
    assert compiled(version, op).metadata.name == f"{formula}_{ending}"


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
