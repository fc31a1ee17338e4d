"""Bugs planted in the kernels: every kind, in every family where it applies, and all of them noticed.

The checks of a family plant its bugs one by one (`test_planted_*`): in the interpreter, and those that only show in
what the compiler makes of them in this kind of process.
"""

import importlib

import pytest
from interpreted_runs import run_of
from planted import KINDS, ROOT

from kernels.audit import catalog
from kernels.launch import INTERPRETED

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(INTERPRETED, reason="the interpreter runs in processes of its own"),
]

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
    assert any(bug.file == newest.path.relative_to(ROOT).as_posix() for bug in bugs(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_planted_bug_is_caught(family):
    """Those that only the compiled form shows are caught in `test_compile_<family>.py`."""
    run = run_of(f"check_{family}")
    assert not [name for name in run.failed if name.startswith("test_planted_")]
    tried = sum(name.startswith("test_planted_") for name in run.passed)
    assert tried == sum(not bug.only_compiled for bug in bugs(family))


def test_there_are_many():
    assert sum(len(bugs(family)) for family in FAMILIES) >= 100
