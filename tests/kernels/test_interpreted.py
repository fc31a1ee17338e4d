"""Correctness without a GPU: runs the GPU tests of results, and `interpreted/`, in Triton's
interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so this takes separate processes: one for
few cases of all files, one for all cases. Files that need the interpreter are named `check_*.py`,
so that no other run collects them. They use only fp32 and fp16, because the interpreter truncates
bf16. To run one file:

    TRITON_INTERPRET=1 pytest tests/kernels/interpreted/check_rows.py -o python_files='check_*.py'
"""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pytest
from bugs import BUGS
from exact import DTYPES
from families import FAMILIES, versions_of

from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter runs in processes of its own")

HERE = Path(__file__).parent
CHECKS = [
    "test_every_family",
    "test_matmul",
    "test_calibration",
    *sorted(path.stem for path in (HERE / "interpreted").glob("check_*.py")),
]
OPTIONS = (
    "-o",
    "python_files=check_*.py",
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::RuntimeWarning",
)
SAMPLE, EVERYTHING = ("--sample", "1"), ("-m", "")
TIME_LIMIT_S = 900


@dataclass(frozen=True)
class Run:
    """The passed checks of a file, and exit code and output of its process."""

    returncode: int
    output: str
    passed: tuple[str, ...]


@functools.cache
def run_of_all(chosen):
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        paths = [str(next(HERE.rglob(f"{check}.py"))) for check in CHECKS]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *paths, *OPTIONS, *chosen, f"--junit-xml={report}"],
            cwd=HERE.parents[1],
            env=env | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    runs = {}
    for check in CHECKS:
        own = [
            case for case in cases if case.get("classname", "").endswith(check) and len(case) == 0
        ]
        passed = tuple(case.get("name", "") for case in own)
        runs[check] = Run(done.returncode, f"{done.stdout}\n{done.stderr[-2000:]}", passed)
    return runs


def run_of(check, chosen=EVERYTHING):
    """Return the run of one file; the first call runs all files."""
    return run_of_all(chosen)[check]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "chosen", [SAMPLE, pytest.param(EVERYTHING, marks=pytest.mark.exhaustive)], ids=["few", "all"]
)
def test_interpreted_checks_pass(check, chosen):
    run = run_of(check, chosen)
    assert run.returncode == 0, f"\n{run.output[-8000:]}"
    assert run.passed, "no check was run"


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
def test_all_operations_are_checked_and_all_bugs_caught(family):
    passed = run_of("test_matmul" if family == "matmul" else "test_every_family").passed
    for version, module in versions_of(family).items():
        for op in module.KERNELS:
            for dtype in DTYPES:
                assert any(f"{op}-{version}-{dtype}" in name for name in passed), (
                    op,
                    version,
                    dtype,
                )
    caught = sum(
        f"planted_bug_is_caught[{family}-" in name for name in run_of("check_planted").passed
    )
    assert caught == sum(not bug.only_compiled for bug in BUGS[family])
