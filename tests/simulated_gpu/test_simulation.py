"""The simulated GPU keeps the rules of one, and commands run their CUDA path on it from end to end."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated_gpu.start import build, environment, missing

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 300

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(bool(missing()), reason=missing() or "")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs a module on the simulated GPU."""
    folder = tmp_path_factory.mktemp("simulated_gpu")
    variables = environment(build(folder)) | {"RIDGEPOINT_RUNS": str(folder / "runs")}

    def run(*words):
        command = [sys.executable, "-m", *words]
        return subprocess.run(
            command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )

    return run


def test_the_command_says_what_it_is_and_what_it_needs():
    run = [sys.executable, "-m", "tests.simulated_gpu"]
    said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr.startswith("usage: ")) == (2, True)
    said = subprocess.run([*run, "results", "--help"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stderr.startswith("a simulated GPU: every time is made up")


def test_it_keeps_the_rules_of_a_gpu(run):
    path = "tests/simulated_gpu/inside/check_rules.py"
    done = run("pytest", "-q", "-p", "no:cacheprovider", path, "-o", "python_files=check_*.py")
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def test_a_training_step_keeps_what_is_predicted_for_a_gpu(run):
    path = "tests/simulated_gpu/inside/check_training.py"
    done = run("pytest", "-q", "-p", "no:cacheprovider", path, "-o", "python_files=check_*.py")
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def records(done):
    """Return the rows that a command printed as JSON."""
    assert done.returncode == 0, done.stderr[-4000:]
    printed = json.loads(done.stdout)
    assert printed["environment"]["versions"]["torch"].endswith("+simulated.gpu")  # none is taken for that of a GPU
    return printed["records"]


def test_a_kernel_is_measured_by_graphs_on_cold_copies(run):
    shape = "4x32768"  # wide, so that few copies, each of them interpreted, fill the cache
    command = ["bench.softmax", "--dtype", "fp16", "--shape", shape, "--provider", "torch,triton-v2"]
    rows = records(run(*command, "--format", "json"))
    assert [(row["provider"], row["status"]) for row in rows] == [("torch", "ok"), ("triton-v2", "ok")]
    assert {(row["method"], row["cache"]) for row in rows} == {("graph", "cold")}
    assert {row["dtype"] for row in rows} == {"fp16"}


def test_a_training_step_is_counted_and_takes_what_the_host_takes(run):
    command = ["bench.train_step", "--model", "tiny-llama", "--layers", "1", "--shape", "1x16", "--recipe", "bf16"]
    [row] = records(run(*command, "--budget", "30", "--format", "json"))
    assert (row["status"], row["method"]) == ("ok", "host")
    assert row["device_s"] > 0  # no more can be said: the host's part is real time, on a machine that may be busy
    assert min(row["phases_s"].values()) > 0
    report = row["memory_bytes"] if "memory_bytes" in row else row["extra"]["memory_bytes"]
    assert set(report["error_pct"].values()) <= {0.0, None}
    assert report["error_pct"]["total"] == 0
    assert report["measured"]["allocator_peak"] >= report["measured"]["total"]


USERS = """
import torch
RESULTS = []
def gelu(x):
    return torch.nn.functional.gelu(x)
def cached(x):
    RESULTS.append(gelu(x))
    return RESULTS[0]
"""


def test_users_functions_run_there_too_and_a_cached_result_is_found(run, tmp_path):
    (tmp_path / "mine.py").write_text(USERS)
    names = [f"{tmp_path}/mine.py:{name}" for name in ("gelu", "cached")]
    command = ["bench.elementwise", "--op", "gelu", "--dtype", "fp32", "--size", "64KiB", "--provider", ",".join(names)]
    done = run(*command, "--cache", "warm", "--format", "json")
    assert done.stdout, done.stderr[-4000:]
    good, cached = json.loads(done.stdout)["records"]
    assert (good["status"], good["method"], good["telemetry"]["sm_clock_hz"]) == ("ok", "graph", 1980e6)
    assert cached["status"] == "invalid"
    assert "earlier call" in cached["reason"]


def test_the_doctor_runs_all_of_its_checks(run):
    path = "tests/simulated_gpu/inside/check_doctor.py"
    done = run("pytest", "-q", "-p", "no:cacheprovider", path, "-o", "python_files=check_*.py")
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
