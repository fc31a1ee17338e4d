"""Machine code of the newest version of each kernel family, for three architectures."""

import pytest
from compiled import IS_RECORDED_TRITON, NEWEST_VERSIONS, RECORDED, compile_ahead

from kernels.audit import catalog, rows
from kernels.audit.rows import key_of
from kernels.audit.sass import rank
from kernels.launch import INTERPRETED

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled"),
]

ARCHES = {f"sm_{arch}": arch for arch in catalog.ARCHES}
NEWEST = {
    (version.family, name): version.name
    for version in catalog.shipped()  # oldest first
    for name, arch in ARCHES.items()
    if version.variants(arch)
}
OLDER = [
    version for version in catalog.shipped() if version.name != NEWEST[version.family, "sm_90"]
]
FAMILIES = sorted({version.family for version in catalog.shipped()})
STACK_BYTES = 0 if IS_RECORDED_TRITON else 16
"""Maximum stack per thread of the newest versions. Triton 3.6 uses 8 bytes in four variants, and 16
in one.
"""
OF_ODD_SIZES = ("elementwise", "matvec", "reduction", "softmax", "cross_entropy")
WIDE = (128, 256, "tma")


@pytest.fixture(scope="module")
def shipped_rows(request):
    """Of the quick set: all on sm_90, on other architectures one kernel of each family. Of matmul
    one in each dtype, all only in bf16 on sm_90. `--every N` takes one in N, and of each family one
    on each architecture.

    A kernel for fp8e5m2 is that for fp8e4m3 with operands of another type; those of shifted
    operands are compiled in test_compile.py.
    """
    chosen = {}
    for choice in catalog.quick(catalog.choices()):
        variant = choice.variant
        if variant.dtype == "fp8e5m2" or "shifted" in variant.shape_class:
            continue
        place = (choice.version.family, choice.arch)
        if choice.version.family == "matmul" and (choice.arch != 90 or variant.dtype != "bf16"):
            place += (variant.dtype,)
        elif choice.arch == 90:
            place += (variant.op, variant.shape_class, variant.part, variant.dtype)
        chosen.setdefault(place, choice)
    kept = []
    seen = set()
    for index, choice in enumerate(chosen.values()):
        place = (choice.version.family, choice.arch)
        if index % request.config.getoption("--every") == 0 or place not in seen:
            kept.append(choice)
        seen.add(place)
    return rows.audit_all(kept)


@pytest.fixture(scope="module")
def odd_size_rows(request):
    """The last shape class of each operation in bf16 on sm_90, for sizes that divide by nothing."""
    last = {
        (choice.kernel, choice.variant.part): choice
        for choice in catalog.choices()
        if choice.arch == 90
        and choice.version in NEWEST_VERSIONS
        and choice.version.family in OF_ODD_SIZES
        and choice.variant.dtype == "bf16"
    }
    found = []
    for choice in list(last.values())[:: request.config.getoption("--every")]:
        compiled = compile_ahead(choice.variant, choice.arch, known_sizes=False)
        found.append(
            rows.row(choice.kernel, choice.version.name, choice.variant, compiled, choice.arch)
        )
    return found


def family(row):
    return row["kernel"].partition("/")[0]


def test_the_newest_version_of_every_family_compiles_for_every_architecture(shipped_rows):
    every = {(name, arch) for name in FAMILIES for arch in ARCHES}
    assert every - set(NEWEST) == {("quantize", "sm_80")}  # which converts to no fp8
    found = {(family(row), row["arch"]): row["version"] for row in shipped_rows}
    assert found == NEWEST


@pytest.mark.parametrize("version", OLDER, ids=lambda version: version.module_name)
def test_every_kernel_of_an_older_version_compiles_for_every_architecture(version):
    for arch in catalog.ARCHES:
        firsts = {}
        for variant in version.variants(arch):
            if variant.dtype == "bf16":
                firsts.setdefault(variant.kernel.fn.__name__, variant)
        for variant in firsts.values():
            compile_ahead(variant, arch)


def test_newest_versions_do_not_spill_and_access_wide_for_odd_sizes(odd_size_rows):
    for row in odd_size_rows:
        assert row["stack_bytes"] <= STACK_BYTES, key_of(row)
        assert row["spill_bytes"] <= 2 * STACK_BYTES, key_of(row)
        assert row["double_precision"] == 0, key_of(row)
        if row["part"] != "finish" and "shifted" not in row["shape_class"]:
            assert {row["load_bits"], row["store_bits"]} <= {*WIDE, None}, key_of(row)


COUNTS = ("registers", "instructions")
SIZES = ("stack_bytes", "spill_bytes", "double_precision")
WIDTHS = ("load_bits", "store_bits")
TOLERANCE = 0.05


def bits(text):
    return rank(text if text == "tma" else int(text or 0))


@pytest.mark.skipif(
    not IS_RECORDED_TRITON, reason="figures are recorded of another release of Triton"
)
def test_no_shipped_kernel_is_worse_than_recorded(shipped_rows):
    for row in shipped_rows:
        key, before = key_of(row), RECORDED.get(key_of(row))
        if before:
            assert (row["mma"] or "", str(row["fp_fusion"]).lower()) == (
                before["mma"],
                before["fp_fusion"],
            ), key
            for name in WIDTHS:
                assert rank(row[name]) >= bits(before[name]), (key, name)
            for name in (*SIZES, *COUNTS):
                assert row[name] <= (1 + TOLERANCE) * int(before[name]), (key, name)


def test_figures_are_recorded_of_all_newest_versions():
    wanted = set()
    for choice in catalog.quick(catalog.choices()):
        variant, arch = choice.variant, f"sm_{choice.arch}"
        words = (
            choice.kernel,
            choice.version.name,
            variant.dtype,
            variant.part,
            variant.shape_class,
            arch,
        )
        wanted.add(" | ".join(filter(None, words)))
    assert RECORDED.keys() == wanted, (
        "python -m kernels audit --format csv > tests/kernels/audited.csv"
    )
