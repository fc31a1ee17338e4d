"""The newest version of each family for sizes beyond 32 bits; test_audit_shipped.py has what else must hold.

An offset that wraps at 2^31 elements shows in no test that fits into memory; a size of 64 bits changes types all
through a kernel, and must change neither registers to spills nor wide accesses to narrow ones.
"""

import pytest
from compiled import assert_lean, compile_ahead, read_back

from kernels.audit import catalog, hot_path, sass
from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")

NEWEST = [
    version
    for version in catalog.newest()
    if version.family in ("elementwise", "norm", "softmax", "reduction", "matvec")
]


def one_of_each_operation(version):
    """One variant in bf16 of each operation and part."""
    found = {}
    for variant in version.variants(90):
        if variant.dtype == "bf16" and "shifted" not in variant.shape_class:
            found.setdefault((variant.op, variant.part), variant)
    return found


@pytest.mark.parametrize("version", catalog.shipped(), ids=lambda version: version.module_name)
def test_a_variant_names_arguments_of_its_kernel_and_leaves_no_constant_out(version):
    for variant in version.variants(90):
        arguments = {argument.name: argument.is_constexpr for argument in variant.kernel.params}
        constants = {name for name, is_constant in arguments.items() if is_constant}
        assert constants <= set(variant.constants) <= set(arguments)
        assert set(variant.types) <= set(arguments) - set(variant.constants)


CASES = [(version, key) for version in NEWEST for key in one_of_each_operation(version)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("version", "key"), CASES, ids=[f"{v.family}-{'-'.join(filter(None, key))}" for v, key in CASES]
)
def test_sizes_beyond_32_bits(version, key):
    variant = one_of_each_operation(version)[key]
    binary = read_back(compile_ahead(variant, 90, integers="i64"))
    assert_lean(binary)
    if variant.part != "finish":
        loads = sass.widths(hot_path.find(binary.instructions).instructions, "load")
        assert sass.main_width(loads) in (128, 256, sass.TMA)
