"""A laptop that has neither Triton nor what only Linux or POSIX offers: simulated by taking these
away.

macOS and Windows themselves were never tested.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.harness.providers import registry
from tests.bench.commands import CPU, H100

ROOT = Path(__file__).resolve().parents[3]

START = """
import os, runpy, socket, sys
import psutil, torch  # on Linux they need the removed modules
for name in ("triton", "pynvml", "fcntl", "resource"):
    sys.modules[name] = None  # Python's sign for "cannot be imported"
for name in ("sched_getaffinity", "fork", "getloadavg"):
    delattr(os, name)
del psutil.Process.cpu_affinity
from pathlib import Path
from tests.bench import commands
commands.keep_ceilings(Path(os.environ["ROOFMARK_RUNS"]))
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def call(runs, tmp_path):
    """Return a function that runs a command without these modules and calls, and returns its
    stdout.
    """

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-c", START, *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "ROOFMARK_RUNS": str(runs)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        return done.stdout

    return run


@pytest.mark.exhaustive
def test_a_bare_laptop_measures_shows_and_plots(call, tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("def mm(a, b):\n    return a @ b\n")
    row = (
        "--shape",
        "32",
        "--dtype",
        "fp32",
        "--budget",
        "5",
        "--threads",
        "1",
        "--format",
        "json",
    )
    answer = json.loads(call("bench.matmul", "--provider", f"torch,{mine}:mm", *row))
    torch, own = answer["records"]
    assert (torch["status"], own["status"]) == ("ok", "skipped")
    assert own["reason"].endswith("this Python has no os.fork")
    telemetry = torch["telemetry"]
    assert (telemetry["involuntary_switches_per_s"], telemetry["window_s"] > 0) == (None, True)
    assert "matmul" in call("results", "show", "latest")
    call("roofline", "plot", "--gpu", "h100-sxm", "-o", "roof.png")
    assert (tmp_path / "roof.png").stat().st_size > 1000


def test_a_users_function_is_rejected_if_it_cannot_be_isolated(monkeypatch):
    assert registry.unavailable("mine.py:f", CPU) is None
    monkeypatch.delattr(os, "fork")
    assert registry.unavailable("mine.py:f", CPU).endswith("this Python has no os.fork")
    assert registry.unavailable("torch", CPU) is None


def test_without_triton_only_torch_runs_on_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert list(registry.default_providers("softmax", H100)) == ["torch"]
    for name in ("triton-v1", "torch-compile"):
        assert "needs Triton on a GPU, which is not installed" in registry.unavailable(name, H100)
    assert registry.unavailable("torch-compile", CPU) is None
