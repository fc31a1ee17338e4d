"""The matmul kernels as machine code: tensor-core instructions, no spills, wide accesses. See compiled.py."""

import re

import pytest
from bugs import BUGS
from compiled import TENSOR_CORES, assert_lean, compile_ahead, read_back, widened_first
from families import versions_of
from planted import plant

import kernels.launch
from kernels.audit import sass
from kernels.matmul import v3_persistent, v4_tma, v5_split_k

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

VERSIONS = versions_of("matmul")
SHARED_LIMIT_BYTES = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # CUDA C++ Programming Guide, table of limits
SMALL_SHARED_BYTES = 99 * 1024  # of sm_86, sm_89 and sm_120, from the same table
ONE_OF_EACH = ("nn, large", "nn, any", "nt, large")  # a dtype's main shape class; the audit compiles all


def main_variants(module, arch):
    """Return one variant of each dtype: the largest tile, in layout nn where there is it."""
    found = {}
    for variant in module.variants(arch):
        if variant.shape_class in ONE_OF_EACH and variant.dtype in ("fp32", *TENSOR_CORES[arch]):
            found.setdefault(variant.dtype, variant)
    return found


def test_fp8_sums_are_kept_in_fp32_on_sm_90():
    binary = read_back(compile_ahead(main_variants(v5_split_k, 90)["fp8e4m3"], 90))
    tile = v4_tma.TILES[90]["fp8e4m3"]["large"]
    sums_of_a_thread = tile.m * tile.n // (32 * tile.warps)
    assert sum(item.base == "FADD" for item in binary.instructions) >= sums_of_a_thread


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_version_3_is_lean_for_what_no_descriptor_says(arch):
    for variant in v3_persistent.variants(arch):
        is_shifted = variant.shape_class.endswith("shifted")
        if not variant.shape_class.startswith("nt") or (variant.dtype != "bf16" and (arch != 90 or not is_shifted)):
            continue
        binary = read_back(compile_ahead(variant, arch, known_sizes=False))
        assert_lean(binary)
        loads, bits = sass.widths(binary.instructions, "load"), {"bf16": 16, "fp16": 16, "fp32": 32, "tf32": 32}
        assert sass.main_width(loads) == (bits.get(variant.dtype, 8) if is_shifted else 128), variant.shape_class
        assert sass.mma_kind(binary.instructions) == TENSOR_CORES[arch].get(variant.dtype), variant.shape_class


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("dtype", ["bf16", "tf32", "int8", "fp8e4m3"])
def test_what_autotune_tries_fits(dtype, arch):
    for tile in v5_split_k.TUNED[dtype]:
        variant = v4_tma._variant(dtype, "nt", "tuned", tile)
        assert compile_ahead(variant, arch).metadata.shared <= SHARED_LIMIT_BYTES[arch], tile


@pytest.mark.parametrize(("arch", "version"), [(86, "v2"), (89, "v3"), (120, "v5")])
def test_smallest_tiles_fit_gpus_with_less_shared_memory(arch, version):
    module = VERSIONS[version]
    variants = [variant for variant in module.variants(arch) if variant.shape_class.startswith("nt")]
    assert {variant.dtype for variant in variants} >= {"fp32", "tf32", "bf16"}
    for variant in variants:
        if variant.dtype in ("tf32", "bf16", "int8"):
            assert compile_ahead(variant, arch).metadata.shared <= SMALL_SHARED_BYTES, variant.dtype


def tile_numbers_are_wide(module):
    """Whether tiles are numbered in 64 bits, as the sizes of a launch allow more than 2^31 of them."""
    if hasattr(module, "add_splits"):
        return widened_first(compile_ahead(module._finish("bf16"), 90).asm["ttir"])
    ir = compile_ahead(main_variants(module, 90)["bf16"], 90).asm["ttir"]
    divided = re.findall(r"arith\.(?:divsi|remsi) .* : (i\d+)", ir)
    products = re.findall(r"%tiles\w* = arith\.muli .* : (i\d+)", ir)
    return divided.count("i64") >= 4 and bool(products) and set(products) == {"i64"}


@pytest.mark.parametrize("version", ["v3", "v4", "v5"])
def test_tiles_are_numbered_in_64_bits(version):
    assert tile_numbers_are_wide(VERSIONS[version])


@pytest.mark.parametrize("bug", [bug for bug in BUGS["matmul"] if bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_wrap_shows_when_compiled(bug, tmp_path):
    assert not tile_numbers_are_wide(plant(bug, tmp_path))
