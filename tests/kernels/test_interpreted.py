"""Correctness without a GPU: runs the checks of `interpreted/` under Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is decorated, so the checks need processes of their own, one a file, and
the files are named `check_*.py` so that no other run collects them. They use fp32 and fp16 alone: the interpreter
rounds bf16 wrongly (it truncates). To see one fail by itself:

    TRITON_INTERPRET=1 pytest tests/kernels/interpreted/check_norm.py -o python_files='check_*.py'
"""

import pytest
from interpreted_runs import CHECKS, SAMPLE, run_of
from test_planted_bugs import FAMILIES, bugs

from kernels.audit import catalog
from kernels.launch import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter runs in processes of its own")

CALIBRATION = ("bandwidth", "fma", "launch_floor")  # checked in check_calibration.py, by what they measure


def wanted():
    """`op-vN-dtype` of everything a version compiles in a dtype that the interpreter computes rightly."""
    found = []
    for version in catalog.shipped():
        if version.family not in CALIBRATION:
            pairs = {(variant.op, variant.dtype) for arch in catalog.ARCHES for variant in version.variants(arch)}
            labels = [
                f"{op}-{version.name}-{dtype}"
                for op in version.module.KERNELS
                for dtype in ("fp32", "fp16")
                if (op, dtype) in pairs
            ]
            found += [pytest.param(version.family, label, id=label) for label in labels]
    return found


def test_every_family_has_its_checks():
    assert {f"check_{version.family}" for version in catalog.shipped() if version.family not in CALIBRATION} <= set(
        CHECKS
    )


@pytest.mark.parametrize("check", CHECKS)
def test_a_sample_of_the_checks_passes(check):
    run = run_of(check, SAMPLE)
    assert run.returncode == 0, f"\n{run.output[-8000:]}"
    assert run.passed, "no check was run"


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", CHECKS)
def test_every_check_passes(check):
    run = run_of(check)
    assert run.returncode == 0, f"\n{run.output[-8000:]}"
    assert run.passed, "no check was run"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("family", "label"), wanted())
def test_every_operation_was_checked(family, label):
    passed = run_of(f"check_{family}").passed
    assert any(label in name for name in passed), f"no passed check of {label}"


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES)
def test_every_planted_bug_is_caught(family):
    """Those that only the compiled form shows are caught in `test_compile_<family>.py`."""
    run = run_of(f"check_{family}")
    assert not [name for name in run.failed if name.startswith("test_planted_")]
    tried = sum(name.startswith("test_planted_") for name in run.passed)
    assert tried == sum(not bug.only_compiled for bug in bugs(family))
