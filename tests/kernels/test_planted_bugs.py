"""Bugs planted in the kernels: every kind, in every family where it applies, and at least 95 % of them noticed.

The checks of a family plant its bugs one by one (`test_planted_*`): in the interpreter, and those that only show in
what the compiler makes of them in this kind of process. Here their reports are added up.
"""

import functools
import importlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from interpreted_runs import HERE, run_of
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
SHARE = 0.95


def bugs(family):
    return importlib.import_module(f"bugs_{family}").BUGS


@functools.cache
def reported(family):
    """How many planted bugs were noticed, and how many were planted, in both kinds of process."""
    run = run_of(f"check_{family}")
    names = Counter(), Counter()
    for found, cases in zip(names, (run.passed, run.failed), strict=True):
        found.update(name for name in cases if name.startswith("test_planted_"))
    if any(bug.only_compiled for bug in bugs(family)):
        for case in compiled_cases(family):
            names[len(case) > 0].update([case.get("name", "")])
    return names[0].total(), names[0].total() + names[1].total()


def compiled_cases(family):
    report = Path(os.environ["TRITON_CACHE_DIR"]) / f"planted_{family}.xml"
    command = [sys.executable, "-m", "pytest", str(HERE / f"test_compile_{family}.py"), "-k", "test_planted_", "-q"]
    command += ["-m", ""]  # these tests are exhaustive, which pytest leaves out by default
    subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--junit-xml={report}"], cwd=ROOT, capture_output=True, timeout=300
    )
    return list(ElementTree.parse(report).iter("testcase"))


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
def test_every_planted_bug_was_tried(family):
    _, tried = reported(family)
    assert tried == len(bugs(family))


def test_planted_bugs_are_caught():
    caught, planted = map(sum, zip(*map(reported, FAMILIES), strict=True))
    assert planted >= 100
    assert caught >= SHARE * planted, f"{caught} of {planted}"
