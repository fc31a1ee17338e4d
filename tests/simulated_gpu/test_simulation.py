"""The simulated GPU follows the rules of a GPU, and commands run their CUDA path on it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulated_gpu.start import environment, missing

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 300

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(bool(missing()), reason=missing() or "")]


KEEP_CEILINGS = """
from bench.harness.device.device import gpu_device
from results.store.runfile import runs_directory
from tests.bench.commands import keep_ceilings
keep_ceilings(runs_directory(), gpu_device(0))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs Python with the simulated GPU.

    Its ceilings are saved: calibrating interpreted kernels would take an hour.
    """
    variables = environment() | {"ROOFMARK_RUNS": str(tmp_path_factory.mktemp("runs"))}

    def run(*words, option="-m"):
        return subprocess.run(
            [sys.executable, option, *words],
            cwd=ROOT,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            check=False,
        )

    done = run(KEEP_CEILINGS, option="-c")
    assert done.returncode == 0, done.stderr
    return run


def test_simulated_gpu_follows_the_rules_of_a_gpu(run):
    path = "tests/simulated_gpu/inside"
    done = run("pytest", "-q", "-p", "no:cacheprovider", path, "-o", "python_files=check_*.py")
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout


def records(done):
    assert done.stdout, done.stderr[-4000:]
    printed = json.loads(done.stdout)
    # Marks records as simulated.
    assert printed["environment"]["versions"]["torch"].endswith("+simulated.gpu")
    return printed["records"]


def test_a_kernel_is_measured_by_graphs_on_cold_copies(run):
    # Wide, so that few copies, each of them interpreted, fill the cache.
    command = "bench.softmax --dtype fp16 --shape 1x8192 --provider triton-v2"
    (row,) = records(run(*command.split(), "--format", "json"))
    found = [row[key] for key in ("provider", "status", "method", "cache", "dtype")]
    assert found == ["triton-v2", "ok", "graph", "cold", "fp16"]


def test_a_comparison_gives_a_verdict(run):
    command = "bench compare --op gelu --dtype fp32 --size 64KiB --provider torch,torch"
    done = run(*command.split(), "--rounds", "20", "--format", "json")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "SAME" in done.stdout


USERS = """
import torch
RESULTS = []
def gelu(x):
    return torch.nn.functional.gelu(x)
def cached(x):
    RESULTS.append(gelu(x))
    return RESULTS[0]
"""


def test_a_cached_result_is_detected_on_the_simulated_gpu(run, tmp_path):
    (tmp_path / "mine.py").write_text(USERS)
    names = ",".join(f"{tmp_path}/mine.py:{name}" for name in ("gelu", "cached"))
    command = "bench.elementwise --op gelu --dtype fp32 --size 64KiB --cache warm --budget 60"
    good, cached = records(run(*command.split(), "--format", "json", "--provider", names))
    assert (good["status"], good["method"]) == ("ok", "graph")
    assert cached["status"] == "invalid"
    assert "earlier call" in cached["reason"]


SOFTMAX = """
import torch
def naive(x):
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)
def fused(x):
    return torch.softmax(x, -1)
"""


def test_peak_memory_is_what_one_call_allocates_besides_its_inputs(run, tmp_path):
    (tmp_path / "mine.py").write_text(SOFTMAX)
    names = ",".join(f"{tmp_path}/mine.py:{name}" for name in ("naive", "fused"))
    command = "bench.softmax --op softmax --dtype fp32 --shape 4x4096 --peak-memory"
    size = 4 * 4096 * 4
    saved = tmp_path / "run.jsonl"
    naive, fused, torchs = records(
        run(*command.split(), "--format", "json", "--provider", f"{names},torch", "-o", str(saved))
    )
    assert fused["peak_memory_bytes"] == size  # its result
    assert torchs["peak_memory_bytes"] == 0  # it writes to the output that it is given
    # x - max and its exponential, then the exponential and the result, with a sum a row.
    assert naive["peak_memory_bytes"] == 2 * size + 4 * 4
    table = run("results", "show", str(saved)).stdout
    assert "peak memory" in table
    assert "131.1 kB" in table
    csv = run("results", "export", str(saved), "--format", "csv").stdout
    assert "peak_memory_bytes" in csv.splitlines()[0]


def test_a_rank_of_a_fleet_measures_its_gpu(run, tmp_path):
    done = run("tests.bench.ranks.faults", "--quick", "--quiet", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    [path] = tmp_path.iterdir()
    _, *rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    measured = [(row["options"]["phase"], row["op"]) for row in rows if row["status"] == "ok"]
    ops = ("launch", "copy", "matmul", "h2d", "d2h")  # the simulation has no FMA kernel
    assert measured == [(phase, op) for phase in ("solo", "together") for op in ops]
