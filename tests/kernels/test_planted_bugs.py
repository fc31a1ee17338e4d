"""Bugs planted in the kernels: every kind, in every family where it applies.

The checks of a family plant its bugs one by one (`test_planted_*`): in the interpreter, which `test_interpreted.py`
runs, and those that only show in what the compiler makes of them in `test_compile.py` and `test_compile_matmul.py`.
"""

import importlib

import pytest
from planted import KINDS

from kernels.audit import catalog

CALIBRATION = ("bandwidth", "fma", "launch_floor")
FAMILIES = [version.family for version in catalog.newest() if version.family not in CALIBRATION]
EVERYWHERE = {
    "mask off by one",
    "lost tail",
    "int32 offset wrap",
    "wrong accumulate dtype",
    "swapped rounding",
    "wrong stride",
}
ONLY = {"eps misplaced": {"norm"}, "missing max-subtraction": {"softmax", "cross_entropy"}}
"""Kinds that need an eps or a maximum to go wrong."""
NOT_IN = {"swapped rounding": {"matmul"}}
"""A matmul rounds once, at its end: nothing to swap it with."""


def bugs(family):
    return importlib.import_module(f"bugs_{family}").BUGS


def test_every_kind_is_planted():
    assert {bug.kind for family in FAMILIES for bug in bugs(family)} == set(KINDS)
    assert EVERYWHERE | set(ONLY) == set(KINDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_that_applies_is_planted_in_the_family(family):
    wanted = EVERYWHERE - {kind for kind, families in NOT_IN.items() if family in families}
    wanted |= {kind for kind, families in ONLY.items() if family in families}
    assert {bug.kind for bug in bugs(family)} == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_the_newest_version_has_planted_bugs(family):
    [newest] = [version for version in catalog.newest() if version.family == family]
    assert any(bug.file == newest.module_name.replace(".", "/") + ".py" for bug in bugs(family))


def test_there_are_many():
    assert sum(len(bugs(family)) for family in FAMILIES) >= 100
