"""Correctness without a GPU: runs the GPU tests of results, and `interpreted/`, in Triton's
interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so this takes separate processes: one for
planted bugs, one for all else. Files that need the interpreter are named `check_*.py`,
so that no other run collects them. They use only fp32 and fp16, because the interpreter truncates
bf16. To run one file:

    TRITON_INTERPRET=1 pytest tests/kernels/interpreted/check_rows.py -o python_files='check_*.py'

After a change of the cases, plant every bug, not only some as CI does:

    TRITON_INTERPRET=1 pytest tests/kernels/interpreted/check_planted.py -m '' -o \
        python_files='check_*.py'
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from families import FAMILIES, versions_of

from kernels.launch import INTERPRETED

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(INTERPRETED, reason="the interpreter runs in processes of its own"),
]

HERE = Path(__file__).parent
CHECKS = (
    "test_every_family",
    "test_matmul",
    "test_calibration",
    *sorted(path.stem for path in (HERE / "interpreted").glob("check_[!p]*.py")),
)
OPTIONS = (
    "-o",
    "python_files=check_*.py",
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::RuntimeWarning",
)
TIME_LIMIT_S = 900
PLANTED_BUGS = 40


def passed_of(checks, chosen):
    """Run files; return the names of the passed checks of each file."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        paths = [str(next(HERE.rglob(f"{check}.py"))) for check in checks]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *paths, *OPTIONS, *chosen, f"--junit-xml={report}"],
            cwd=HERE.parents[1],
            env=env | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        assert done.returncode == 0, f"\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
        cases = list(ElementTree.parse(report).iter("testcase"))
    found = {check: [] for check in checks}
    for case in cases:
        if len(case) == 0:  # no failure and no reason to skip
            found[case.get("classname").rpartition(".")[2]].append(case.get("name"))
    return found


def test_all_operations_are_checked(request):
    every = min(4, request.config.getoption("--every"))
    passed = passed_of(CHECKS, ("-m", "", "--every", str(every)))
    for family in FAMILIES:
        names = passed["test_matmul" if family == "matmul" else "test_every_family"]
        for version, module in versions_of(family).items():
            checked = [op for op in module.KERNELS if any(f"{op}-{version}-" in n for n in names)]
            needed = 1 if every > 1 else len(module.KERNELS)
            assert len(checked) >= needed, (family, version, checked)


def test_planted_bugs_are_caught():
    chosen = ("--sample", str(PLANTED_BUGS), "-m", "not exhaustive")
    names = passed_of(("check_planted",), chosen)["check_planted"]
    assert sum("planted_bug_is_caught" in name for name in names) == PLANTED_BUGS
    for family in FAMILIES:
        assert any(f"planted_bug_is_caught[{family}-" in name for name in names), family
