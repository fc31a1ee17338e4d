"""Imports go one way (contracts in pyproject.toml); slow imports are late."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import bench

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "torch",
    "triton",
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib",
    "rich",
    "pynvml",
    "plotly",
    "jinja2",
}
"""Slow imports, allowed only inside the functions that need them: --help must be fast."""


def test_the_contracts_of_imports_are_kept():
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


FAMILIES = sorted(path.stem for path in (ROOT / "bench").glob("[a-z]*.py"))


def run(code, *arguments, cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


HEAVY_NOW = f"import sys; print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"


def test_importing_every_family_has_no_effect(tmp_path):
    imports = "; ".join(f"import bench.{family}" for family in FAMILIES)
    done = run(
        f"{imports}; import bench.__main__, bench.harness.cli.main; {HEAVY_NOW}",
        "--bogus",
        cwd=tmp_path,
    )
    # Nothing said, nothing heavy.
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "\n")
    assert list(tmp_path.iterdir()) == []  # nothing written


def test_importing_kernels_imports_nothing_else():
    done = run(f"import kernels; {HEAVY_NOW}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "\n")


def test_importing_the_packages_and_an_estimate_load_nothing_heavy():
    done = run(f"""
import bench, roofline, results, roofline.estimate
bench.matmul.run, bench.train_step.run, roofline.attainable, roofline.draw, results.load
roofline.estimate.params(model="gpt2")
roofline.attainable("h100-sxm", 1, 1)
{HEAVY_NOW}""")
    assert (done.returncode, done.stderr) == (0, "\n")


def test_every_public_name_of_bench_can_be_imported():
    names = [*bench.LATE, *bench.FAMILIES]
    assert all(getattr(bench, name) for name in names)
    assert set(names) <= set(dir(bench))
    with pytest.raises(AttributeError, match="module 'bench' has no attribute 'nothing'"):
        _ = bench.nothing
