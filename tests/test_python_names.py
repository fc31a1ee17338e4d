"""The public names of the packages: imported late, documented and typed."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {"torch", "triton", "numpy", "pandas", "matplotlib", "rich"}
NAMES = [
    *(("bench", name) for name in sorted(importlib.import_module("bench").LATE)),
    *(
        ("roofline", name)
        for name in ("attainable", "Attainable", "ConfigError", "PlotError", "UnknownGpuError", "draw", "estimate")
    ),
    *(("results", name) for name in ("load", "StoreError")),
]


def test_importing_the_packages_loads_nothing_heavy():
    code = f"""
import sys
import bench, roofline, results
import bench.matmul, bench.transfer
bench.matmul.run, bench.train_step.run, bench.LATE, roofline.attainable, roofline.draw, results.load
print(*sorted({HEAVY!r} & set(sys.modules)))
import roofline.estimate
roofline.estimate.params(model="gpt2")
roofline.attainable("h100-sxm", 1, 1)
print(*sorted({HEAVY!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_a_public_name_is_documented_and_typed(package, name):
    module = importlib.import_module(package)
    found = getattr(module, name)
    assert name in dir(module) or package != "bench"
    assert inspect.getdoc(found)
    if inspect.isfunction(found):
        signature = inspect.signature(found)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())
        assert "Args:" in found.__doc__
        assert "Raises:" in found.__doc__


@pytest.mark.parametrize("package", ["bench", "roofline", "results"])
def test_a_name_that_is_not_there_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = importlib.import_module(package).nothing
