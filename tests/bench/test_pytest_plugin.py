"""`gpu_benchmark` as a project that installed Ridgepoint uses it: pytest in a process of its own."""

import json
import os
import re
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from commands import BANDWIDTH_BYTES_PER_S, PEAKS_FLOPS_PER_S, QUICK, THREADS, keep_ceilings

from bench.harness.device.device import cpu_device
from bench.harness.fixture import function, ridgepoint_pytest
from bench.harness.fixture.plugin import NEEDED, GpuBenchmark, achievements, annotate
from roofline.ceilings import Ceiling, Ceilings

ROOT = Path(__file__).resolve().parents[2]

MEASURED = """
import time
import pytest
import torch

@pytest.fixture
def calls():
    return []

def test_warm(gpu_benchmark):
    x = torch.ones(4096)
    y = gpu_benchmark(torch.add, x, 1, alpha=2, flops=8192, bytes_read=16384, bytes_written=16384, dtype="fp32",
                      budget_s=0.1)
    assert y.tolist() == [3.0] * 4096
    gpu_benchmark.extra_info["mine"] = gpu_benchmark.stats["median"]

def test_cold(gpu_benchmark, calls):
    def fresh():
        calls.append(torch.randn(2**18))
        return calls[-1]
    y = gpu_benchmark(torch.neg, inputs=fresh, bytes_moved=2**21, budget_s=0.1)
    assert torch.equal(y, -calls[0])
    gpu_benchmark.extra_info["made"] = len(calls)

def test_plain(benchmark):
    assert benchmark(sum, (1, 2)) == 3

def test_without_a_benchmark():
    pass
"""

ASLEEP = """
import os
import time
import pytest

@pytest.mark.benchmark(group="sleepers")
def test_sleep(gpu_benchmark):
    gpu_benchmark(time.sleep, float(os.environ.get("SLEEP_S", "0.002")), device="cpu", budget_s=0.1)
"""

WRONG = """
import pytest

def test_of_the_function(gpu_benchmark):
    def broken():
        raise KeyError("the function's own")
    gpu_benchmark(broken, device="cpu")

def test_of_the_flops(gpu_benchmark):
    gpu_benchmark(int, flops=-5, device="cpu")

def test_of_the_inputs(gpu_benchmark):
    gpu_benchmark(int, cache="cold", device="cpu")

def test_of_two_calls(gpu_benchmark):
    gpu_benchmark(int, device="cpu", budget_s=0.01)
    gpu_benchmark(int, device="cpu", budget_s=0.01)

def test_of_two_fixtures(benchmark, gpu_benchmark):
    benchmark.pedantic(int)
    gpu_benchmark(int, device="cpu")

def test_that_is_right(gpu_benchmark):
    assert gpu_benchmark(int, "7", device="cpu", budget_s=0.01) == 7
"""

COUNTED = """
import sys

def test_counted(gpu_benchmark):
    calls, made = [], []
    def fresh():
        made.append(1)
        return 4, 5
    def add(a, b, times=1):
        calls.append(1)
        return times * (a + b)
    assert gpu_benchmark(add, times=2, inputs=fresh, flops=1) == 18
    assert (len(calls), len(made), gpu_benchmark.stats) == (1, 1, None)
    assert not gpu_benchmark.enabled
    assert "torch" not in sys.modules

def test_refused(gpu_benchmark):
    gpu_benchmark(int, flops="many")

def test_other():
    pass
"""

IDLE = """
import sys

def test_nothing_is_loaded():
    assert "ridgepoint_pytest" in sys.modules
    assert not {"bench", "kernels", "results", "roofline", "torch", "numpy"} & set(sys.modules)
"""

USED = "def test_used(gpu_benchmark):\n    gpu_benchmark(int, device='cpu', budget_s=0.01)\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """What `pip install -e` puts into site-packages, so that pytest finds the entry point by itself."""
    pytest.importorskip("hatchling", reason="the build backend is not installed here: pip install -e '.[test]'")
    folder = tmp_path_factory.mktemp("site")
    code = f"import hatchling.build; print(hatchling.build.build_editable({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def start(site, runs, tmp_path):
    """Return a function that runs pytest on the tests of a text, in a project of its own."""
    return lambda text, *options, **more: run_pytest(tmp_path, site, runs, text, *options, **more)


def run_pytest(folder, site, runs, text, *options, path=(), **variables):
    """Run pytest in `folder` on the tests of `text`; `path` is in front of everything that is installed."""
    (folder / "test_it.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, (*path, site, ROOT))),
        "RIDGEPOINT_RUNS": str(runs),
        "OMP_NUM_THREADS": str(THREADS),
        "COLUMNS": "250",
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", folder, *options, "test_it.py"]
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def outcomes(done):
    """Return how many tests had each outcome, by pytest's last line."""
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)\b", last_line(done))}


def last_line(done):
    return done.stdout.strip().splitlines()[-1]


# ---- table and JSON ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(site, tmp_path_factory):
    """One run with the table on stdout and the JSON beside it."""
    folder, runs = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("runs")
    keep_ceilings(runs)
    done = run_pytest(folder, site, runs, MEASURED, "--benchmark-json=out.json")
    assert outcomes(done) == {"passed": 4}, done.stdout + done.stderr
    document = json.loads((folder / "out.json").read_text())
    return done, {entry["name"]: entry for entry in document["benchmarks"]}


@pytest.mark.exhaustive
def test_the_samples_are_the_rounds_and_the_launches_their_iterations(measured):
    _, entries = measured
    assert set(entries) == {"test_warm", "test_cold", "test_plain"}
    for name in ("test_warm", "test_cold"):
        stats, info = entries[name]["stats"], entries[name]["extra_info"]
        assert stats["rounds"] == len(stats["data"]) >= 5
        assert stats["iterations"] == info["launches_per_sample"] >= 1
        assert stats["median"] == statistics.median(stats["data"]) == pytest.approx(info["median_s"])
        assert info["ci95_s"][0] <= info["median_s"] <= info["ci95_s"][1]
    assert entries["test_warm"]["extra_info"]["mine"] == entries["test_warm"]["stats"]["median"]
    assert entries["test_plain"]["extra_info"] == {}


def test_extra_info_holds_the_machine_the_work_and_what_it_means(measured):
    _, entries = measured
    warm, cold = (entries[name]["extra_info"] for name in ("test_warm", "test_cold"))
    device = cpu_device(THREADS)
    for info in (warm, cold):
        assert (info["device"], info["device_type"], info["device_slug"]) == (device.name, "cpu", device.slug)
        assert (info["method"], info["threads"]) == ("host", device.threads)
        assert set(info["flags"]) == set(info["flag_reasons"])
        assert {"sm_clock_hz", "power_w", "temperature_c", "throttle"} <= set(info["telemetry"])
        assert info["first_call_s"] > 0
    assert (warm["cache"], warm["copies"]) == ("warm", 1)
    assert (warm["flops"], warm["bytes_read"], warm["bytes_moved"], warm["dtype"]) == (8192, 16384, 32768, "fp32")
    assert warm["flops_per_s"] == pytest.approx(8192 / warm["median_s"])
    assert warm["mfu"] == pytest.approx(warm["flops_per_s"] / PEAKS_FLOPS_PER_S["fp32"])
    assert warm["mbu"] == pytest.approx(32768 / warm["median_s"] / BANDWIDTH_BYTES_PER_S)
    assert (cold["cache"], cold["copies"]) == ("cold", cold["made"])
    assert cold["copies"] * 2**20 >= 4 * device.cache_bytes
    assert (cold["bytes_moved"], cold["bytes_read"], cold["flops"], cold["mfu"]) == (2**21, None, None, None)


def test_the_json_says_how_it_was_measured(measured):
    _, entries = measured
    options = entries["test_warm"]["options"]
    assert options["timer"] == "ridgepoint, host"
    assert (options["min_rounds"], options["precision"], options["confidence"]) == (20, 0.02, 0.95)
    assert entries["test_plain"]["options"]["timer"] == "perf_counter"


def test_the_table_shows_what_was_reached(measured):
    done, entries = measured
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if re.match(r"test_\w+ .*\d", line)}
    assert set(rows) == {"test_warm", "test_cold", "test_plain"}
    assert "(cpu warm, " in rows["test_warm"]
    warm, cold = (entries[name]["extra_info"] for name in ("test_warm", "test_cold"))
    assert f"GFLOP/s, {warm['bytes_per_s'] / 1e9:.4g} GB/s, MFU {100 * warm['mfu']:.3g}%, MBU " in rows["test_warm"]
    assert f"(cpu cold, {cold['bytes_per_s'] / 1e9:.4g} GB/s, MBU {100 * cold['mbu']:.3g}%" in rows["test_cold"]
    assert "FLOP/s" not in rows["test_cold"]
    assert "(cpu" not in rows["test_plain"]
    assert all(flag in rows["test_warm"] for flag in warm["flags"])


def test_below_the_table_stand_the_machine_and_what_speaks_against_a_time(measured):
    done, entries = measured
    said = [line for line in done.stdout.splitlines() if line.startswith("gpu_benchmark: ")]
    device = cpu_device(THREADS)
    assert said[0].startswith(f"gpu_benchmark: {device.name} (cpu, {device.threads} threads), torch ")
    for name in ("test_warm", "test_cold"):
        for flag, reason in entries[name]["extra_info"]["flag_reasons"].items():
            assert f"gpu_benchmark: {name}: {flag}: {reason}" in said


# ---- saved runs ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_two_saves_are_compared_and_a_slower_one_fails(start, tmp_path):
    options = ("--benchmark-autosave", "--benchmark-storage", tmp_path / "kept", "--benchmark-time-unit=ms")
    first = start(ASLEEP, *options)
    assert outcomes(first) == {"passed": 1}, first.stdout + first.stderr
    limit = ("--benchmark-compare=0001", "--benchmark-compare-fail=min:50%")
    second = start(ASLEEP, *options, *limit, SLEEP_S="0.03")
    rows = re.findall(r"^(test_sleep .*\((?:0001_\w+|NOW)\)) +([\d.]+) ", second.stdout, re.MULTILINE)
    assert "benchmark 'sleepers': 2 tests" in second.stdout, second.stdout + second.stderr
    assert ["(NOW)" in name for name, _ in rows] == [False, True]
    assert "cpu" not in rows[0][0]  # whose saved machine is not known to the table
    least_ms = [float(shown) for _, shown in rows]
    assert 2 <= least_ms[0] < 30 <= least_ms[1]  # no sleep is shorter
    assert "Performance has regressed" in second.stdout + second.stderr
    assert second.returncode != 0
    saved = sorted((tmp_path / "kept").rglob("*.json"))
    assert [path.name[:4] for path in saved] == ["0001", "0002"]
    command = [sys.executable, "-m", "pytest_benchmark", "compare", "--columns", "min", *map(str, saved)]
    compared = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.count("test_sleep") == 2


def test_a_row_of_a_saved_run_has_its_own_rates_and_not_the_flags_of_now():
    info = dict.fromkeys(("flops_per_s", "bytes_per_s", "mfu", "mbu")) | {
        "device_type": "cuda",
        "cache": "cold",
        "launches_per_sample": 4,
        "median_s": 1e-3,
        "flops_per_s": 2e14,
        "mfu": 0.25,
        "flags": ["power-limited"],
    }
    no_work = info | {"flops_per_s": None, "mfu": None}
    rows = [
        {"name": "a", "fullname": "f::a", "extra_info": info, "median": 2e-3, "source": "0001_x"},
        {"name": "a", "fullname": "f::a", "extra_info": info, "median": 1e-3, "source": "NOW"},
        {"name": "b", "fullname": "f::b", "extra_info": {}, "median": 1e-3, "source": "NOW"},
        {"name": "c", "fullname": "f::c", "extra_info": no_work, "median": 1e-3, "source": "0001_x"},
    ]
    annotate(rows)
    now = "(cuda cold, 200 TFLOP/s, MFU 25%, power-limited)"
    assert [row["name"] for row in rows] == ["a (100 TFLOP/s, MFU 12.5%)", f"a {now}", "b", "c"]
    assert rows[1]["fullname"] == f"f::a {now}"
    assert achievements(info | {"flops_per_s": 5e9, "mfu": None}, 1e-3, is_current=True)[1] == "5 GFLOP/s"


# ---- what pytest-benchmark is told ---------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("how", ["--benchmark-disable", "xdist"])
def test_disabled_it_calls_the_function_once_and_still_checks_what_it_is_told(start, how):
    # By this variable a test knows that it runs in a worker of pytest-xdist.
    done = start(COUNTED, PYTEST_XDIST_WORKER="gw0") if how == "xdist" else start(COUNTED, how)
    assert outcomes(done) == {"passed": 2, "failed": 1}, done.stdout + done.stderr
    assert "gpu_benchmark: flops='many' must be a whole number from 0 to 10**30" in done.stdout
    assert "Name (time in" not in done.stdout


@pytest.mark.exhaustive
def test_skip_and_only_count_it_as_a_benchmark(start):
    skipped = start(COUNTED, "--benchmark-skip")
    assert outcomes(skipped) == {"passed": 1, "skipped": 2}, skipped.stdout
    only = start(USED + "def test_other():\n    pass\n", "--benchmark-only", "--benchmark-quiet")
    assert outcomes(only) == {"passed": 1, "skipped": 1}, only.stdout
    assert "gpu_benchmark: " not in only.stdout  # quiet leaves table and remarks out


# ---- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_what_goes_wrong_stays_with_its_test(start, tmp_path):
    done = start(WRONG, "--benchmark-json=out.json", "-rN")
    assert outcomes(done) == {"passed": 1, "failed": 5}, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert 'KeyError: "the function\'s own"' in done.stdout
    assert "function_meter.py" not in done.stdout  # the way through the fixture is not the user's
    for line in (
        "gpu_benchmark: flops=-5 must be a whole number from 0 to 10**30, counted for one call",
        "gpu_benchmark: cache='cold' needs inputs=, a function that makes a fresh set of arguments at each call",
        "gpu_benchmark: a test has one measurement, and this one has had its own by gpu_benchmark(...)",
        "gpu_benchmark: a test has one measurement, and this one has had its own by benchmark.pedantic(...)",
    ):
        assert lines.count(line) == 1
    assert "During handling" not in done.stdout
    assert "not used at all" not in done.stdout
    entries = json.loads((tmp_path / "out.json").read_text())["benchmarks"]
    assert [entry["name"] for entry in entries] == ["test_that_is_right"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [("-p", "no:benchmark"), ("-p", "no:ridgepoint")])
def test_a_run_without_one_of_the_two_plug_ins_is_as_it_was(start, options):
    done = start("def test_other():\n    pass\n", *options)
    assert (outcomes(done), done.stderr) == ({"passed": 1}, "")


def test_without_pytest_benchmark_only_the_tests_that_need_it_fail(start):
    done = start(USED + "def test_other():\n    pass\n", "-p", "no:benchmark", "-rN")
    assert outcomes(done) == {"passed": 1, "error": 1}, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "gpu_benchmark: " in line]
    assert len(said) == 1
    assert "pytest-benchmark is not loaded; pip install 'pytest-benchmark>=5'" in said[0]


# ---- projects that have nothing to do with it ----------------------------------------------------------------------


def test_pytest_starts_without_loading_any_of_it(start):
    done = start(IDLE)
    assert outcomes(done) == {"passed": 1}, done.stdout + done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["kernels", "bench", "results"])
def test_a_foreign_package_of_one_of_our_names_stops_only_what_needs_ours(start, tmp_path, name):
    foreign = tmp_path / "foreign"
    (foreign / name).mkdir(parents=True)
    (foreign / name / "__init__.py").write_text("")
    done = start(IDLE + USED, "-rN", path=(foreign,))
    assert outcomes(done) == {"passed": 1, "error": 1}, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if "gpu_benchmark: " in line]
    assert len(said) == 1
    assert f"'{name}' " in said[0]
    assert str(foreign / name) in said[0]
    assert "not Ridgepoint's" in said[0]


def test_without_the_repository_the_reason_is_the_way_to_install_it(monkeypatch):
    monkeypatch.setattr(ridgepoint_pytest.importlib.util, "find_spec", lambda name: None)
    missing = ModuleNotFoundError("No module named 'bench'", name="bench")
    assert ridgepoint_pytest._why_not(missing) == "Ridgepoint runs from its repository: pip install -e <the repository>"
    other = ModuleNotFoundError("No module named 'torch'", name="torch")
    assert ridgepoint_pytest._why_not(other) == "No module named 'torch'"


# ---- the inside of pytest-benchmark --------------------------------------------------------------------------------


def test_what_is_used_of_pytest_benchmark_is_still_there(benchmark, monkeypatch):
    """Where this fails, pytest-benchmark has changed inside: `hand_over` and `NEEDED` must follow."""
    assert [name for name in NEEDED if not hasattr(benchmark, name)] == []
    kept = []
    monkeypatch.setattr(benchmark, "_add_stats", kept.append)  # not into the table of this run
    benchmark._mode = "by hand"
    stats = benchmark._make_stats(4)
    stats.update(6.0)
    assert kept == [benchmark.stats] == [stats]
    assert (stats.iterations, stats.stats.data, stats["median"]) == (4, [1.5], 1.5)
    assert isinstance(stats.options, dict)


class StandIn:
    """What is used of pytest-benchmark's fixture, outside of any table."""

    name, group, enabled, stats, has_error, _mode = "test_x", None, True, None, False, None

    def __init__(self):
        self.extra_info = {}

    def _make_stats(self, iterations):
        raise AttributeError("'Metadata' has no 'update'")


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(function, "limits_of", lambda device: QUICK)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return StandIn()


def test_a_time_that_cannot_be_fails_the_test_and_is_not_handed_over(stand_in, monkeypatch):
    peak = Ceiling("flops", "bf16", 1e12, "datasheet", "made up")
    monkeypatch.setattr(function, "_known_ceilings", lambda device: Ceilings("x", "X", (peak,)))
    with pytest.raises(pytest.fail.Exception, match=r"^gpu_benchmark: invalid: faster than physics: "):
        GpuBenchmark(stand_in)(time.sleep, 0.001, device="cpu", flops=10**15, dtype="bf16")
    assert stand_in.has_error
    assert stand_in.extra_info == {}


def test_a_release_that_takes_no_times_is_named_in_one_line(stand_in):
    with pytest.raises(
        pytest.fail.Exception, match=r"^gpu_benchmark: pytest-benchmark [\d.]+ is not one .* 'update'\)"
    ):
        GpuBenchmark(stand_in)(int, device="cpu")
    assert stand_in.has_error


def test_no_tracer_runs_inside_the_launches(stand_in):
    def tracer(*_):
        return None

    seen, before = [], (sys.gettrace(), sys.getprofile())
    stand_in._make_stats = Metadata
    fixture = GpuBenchmark(stand_in)
    sys.settrace(tracer)
    sys.setprofile(tracer)
    try:
        fixture(lambda: seen.append((sys.gettrace(), sys.getprofile())), device="cpu")
        after = sys.gettrace(), sys.getprofile()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    assert after == (tracer, tracer)
    assert set(seen) == {(None, None)}


def test_the_group_of_the_table_is_pytest_benchmarks(stand_in):
    fixture = GpuBenchmark(stand_in)
    fixture.group = "ours"
    assert (stand_in.group, fixture.group, fixture.name, fixture.enabled) == ("ours", "ours", "test_x", True)


class Metadata:
    """Takes times and keeps none."""

    def __init__(self, iterations):
        self.iterations, self.options = iterations, {}

    def update(self, seconds):
        assert seconds > 0


def test_a_fixture_of_another_kind_is_refused_in_one_line():
    class Codspeed:
        enabled, extra_info = True, {}

    with pytest.raises(pytest.fail.Exception) as caught:
        GpuBenchmark(Codspeed())
    message = str(caught.value)
    assert "its fixture is a Codspeed without _make_stats, _mode, has_error" in message
    assert "it knows releases 5.0 to 5.3" in message
    assert "\n" not in message
