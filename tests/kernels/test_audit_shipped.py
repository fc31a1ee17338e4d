"""What is promised of the newest version of each kernel family, read from the machine code for three architectures."""

import pytest
from compiled import FAMILIES_OF_ODD_SIZES, IS_RECORDED_TRITON, RECORDED, odd_size_rows, shipped_rows

from kernels.audit import catalog
from kernels.audit.rows import key_of
from kernels.audit.sass import rank
from kernels.launch import INTERPRETED

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")]

ARCHES = {f"sm_{arch}": arch for arch in catalog.ARCHES}
NEWEST = {
    (version.family, name): version.name
    for version in catalog.shipped()  # oldest first
    for name, arch in ARCHES.items()
    if version.variants(arch)
}
"""By family and architecture: a version may be for newer ones alone."""
FAMILIES = sorted({version.family for version in catalog.shipped()})
CALIBRATION = ("bandwidth", "fma", "launch_floor")
STACK_BYTES = 0 if IS_RECORDED_TRITON else 16
"""What a thread of the newest versions may put on the stack; Triton 3.6 does so in four variants, 8 bytes each, and 16
in one. The kernels are arranged for the Triton of the recorded figures."""
LOADS_ALONE = ("reduction", "matvec", "cross_entropy", "fma")
"""Families whose hot path stores nothing: a result for a row, or for all."""
WIDE = (128, 256, "tma")


def family(row):
    return row["kernel"].partition("/")[0]


def newest(name, rows=None):
    return [
        row for row in rows or shipped_rows() if family(row) == name and row["version"] == NEWEST[name, row["arch"]]
    ]


def is_wide_path(row):
    """Whether all operands are aligned alike; where they are not one side must be narrow. The last step is small.

    An int8 operand that lies across the way tensor cores take it is turned in registers, in pieces of 8 bytes.
    """
    return "shifted" not in row["shape_class"] and row["part"] != "finish" and row["dtype"] != "int8"


def test_every_family_is_there_for_every_architecture():
    assert set(NEWEST) == {(name, arch) for name in FAMILIES for arch in ARCHES}
    assert {(family(row), row["version"]) for row in shipped_rows()} == {
        (version.family, version.name) for version in catalog.shipped()
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_no_spill_no_stack_and_room_to_run(name):
    for row in newest(name):
        assert row["stack_bytes"] <= STACK_BYTES, key_of(row)
        assert row["spill_bytes"] <= 2 * STACK_BYTES, key_of(row)
        assert row["occupancy"] > 0, key_of(row)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_double_precision(name):
    for row in newest(name):
        if row["dtype"] != "fp64":
            assert row["double_precision"] == 0, key_of(row)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "launch_floor"])
def test_wide_accesses(name):
    rows = [row for row in newest(name) if is_wide_path(row)]
    assert rows
    for row in rows:
        assert row["load_bits"] in WIDE or row["load_bits"] is None, key_of(row)
        assert row["store_bits"] in WIDE or (row["store_bits"] is None), key_of(row)
        assert row["load_bits"] or row["store_bits"] or name == "fma", key_of(row)
        if name not in (*LOADS_ALONE, *CALIBRATION, "matmul") and row["part"] != "partial":  # which writes sums alone
            assert row["store_bits"], key_of(row)


@pytest.mark.parametrize("name", FAMILIES_OF_ODD_SIZES)
def test_accesses_stay_wide_for_odd_sizes(name):
    rows = [row for row in newest(name, odd_size_rows()) if is_wide_path(row)]
    assert rows
    for row in rows:
        assert row["load_bits"] in WIDE, key_of(row)
        assert row["store_bits"] in (*WIDE, None), key_of(row)
        assert row["stack_bytes"] <= STACK_BYTES, key_of(row)
        assert row["spill_bytes"] <= 2 * STACK_BYTES, key_of(row)
        assert row["double_precision"] == 0, key_of(row)


@pytest.mark.parametrize(
    ("arch", "dtypes", "instruction"),
    [
        ("sm_80", ("bf16", "fp16"), "HMMA"),
        ("sm_90", ("bf16", "fp16", "tf32"), "HGMMA"),
        ("sm_100", ("bf16", "fp16", "tf32"), "UTCHMMA"),
        ("sm_90", ("fp8e4m3", "fp8e5m2"), "QGMMA"),
        ("sm_100", ("fp8e4m3", "fp8e5m2"), "UTCQMMA"),
    ],
)
def test_matmul_feeds_the_tensor_cores(arch, dtypes, instruction):
    rows = [
        row for row in newest("matmul") if row["arch"] == arch and row["dtype"] in dtypes and row["part"] != "finish"
    ]
    assert {row["dtype"] for row in rows} >= set(dtypes) & ({"bf16", "tf32"} | set(dtypes) - {"fp16"})
    for row in rows:
        assert row["mma"] == instruction, key_of(row)
        assert row["bound"] == "compute"


def test_erf_gelu_is_at_the_issue_roof_of_an_h100_until_it_is_made_lean():
    [row] = [
        row
        for row in shipped_rows()
        if (row["kernel"], row["version"], row["arch"], row["dtype"]) == ("elementwise/gelu", "v2", "sm_90", "bf16")
    ]
    assert row["bound"] in ("mixed", "issue")
    assert row["instructions_per_element"] == pytest.approx(36.9, rel=0.03)


def test_fusion_is_set_for_every_kernel():
    assert {type(row["fp_fusion"]) for row in shipped_rows()} == {bool}


def test_what_memory_moves_is_known_of_every_kernel():
    for row in shipped_rows():
        if family(row) not in ("fma", "launch_floor", "matmul"):
            assert row["instructions_per_element"], key_of(row)
            assert row["issue_budget_instructions_per_element"], key_of(row)
            assert row["bound"], key_of(row)


# ---- beside the recorded figures -----------------------------------------------------------------------------------


def key_of_choice(choice):
    of, names = choice.variant, {"kernel": choice.kernel, "version": choice.version.name, "arch": f"sm_{choice.arch}"}
    return key_of(names | {"dtype": of.dtype, "part": of.part, "shape_class": of.shape_class})


COUNTS = ("registers", "instructions")
SIZES = ("stack_bytes", "spill_bytes", "double_precision")
WIDTHS = ("load_bits", "store_bits")
TOLERANCE = 0.05


def bits(text):
    return rank(text if text == "tma" else int(text or 0))


@pytest.mark.skipif(not IS_RECORDED_TRITON, reason="figures are recorded of another release of Triton")
def test_no_shipped_kernel_is_worse_than_recorded():
    for row in shipped_rows():
        key, before = key_of(row), RECORDED.get(key_of(row))
        if before:
            assert (row["mma"] or "", str(row["fp_fusion"]).lower()) == (before["mma"], before["fp_fusion"]), key
            for name in WIDTHS:
                assert rank(row[name]) >= bits(before[name]), (key, name)
            for name in (*SIZES, *COUNTS):
                assert row[name] <= (1 + TOLERANCE) * int(before[name]), (key, name)


def test_figures_are_recorded_of_all_newest_versions():
    wanted = set(map(key_of_choice, catalog.quick(catalog.choices())))
    assert RECORDED.keys() == wanted, "python -m kernels audit --format csv > tests/kernels/audited.csv"
