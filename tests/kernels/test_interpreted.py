"""Correctness without a GPU: runs the checks of `interpreted/` under Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so the checks need a process of their own, and
their files are named `check_*.py` so that no other run collects them. They use fp32 and fp16 alone: the
interpreter rounds bf16 wrongly (it truncates). To see one fail by itself:

    TRITON_INTERPRET=1 pytest tests/kernels/interpreted -o python_files='check_*.py'
"""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kernels.elementwise import v1_flat
from kernels.matvec import v1_rows

HERE = Path(__file__).parent
OPTIONS = ["-o", "python_files=check_*.py", "-q", "-p", "no:cacheprovider", "-W", "ignore::RuntimeWarning"]
TIME_LIMIT_S = 600


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """The finished process and the names of the checks that passed in it."""
    report = tmp_path_factory.mktemp("interpreted") / "report.xml"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", str(HERE / "interpreted"), *OPTIONS, f"--junit-xml={report}"],
        cwd=HERE.parents[1],
        env=env | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else []
    return done, [case.get("name", "") for case in cases if len(case) == 0]


def test_every_check_passes(interpreted):
    done, passed = interpreted
    assert done.returncode == 0, f"\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    assert passed, "no check was run"


@pytest.mark.parametrize("op", [*v1_flat.KERNELS, *v1_rows.KERNELS])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_every_operation_was_checked(interpreted, op, dtype):
    _, passed = interpreted
    wanted = f"test_matvec[{dtype}-" if op == "matvec" else f"test_sizes[{op}-{dtype}-"
    assert any(name.startswith(wanted) for name in passed), f"no passed check of {op} in {dtype}"
