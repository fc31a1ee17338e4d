"""macOS and Windows: what they tell, read from their own answers, and the commands without what they lack.

None of it ran on a real macOS or Windows. The answers have the form that their documentation gives, and the processes
are Linux ones with modules and calls taken away, see `other_systems.py`.
"""

import inspect
import json
import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.calibrate import bandwidth, compute_peak
from bench.harness.calibrate.search import NotMeasuredError
from bench.harness.commands import calibrate
from bench.harness.compare import processes
from bench.harness.compare.processes import CallLimit
from bench.harness.device import darwin, host_load, linux, other, system, windows
from bench.harness.device.device import DEFAULT_CPU_CACHE_BYTES, DEFAULT_CPU_FREE_BYTES, Device, cpu_device
from bench.harness.device.facts import host_facts
from bench.harness.providers import registry as providers

ROOT = Path(__file__).resolve().parents[3]
GIB, MIB = 2**30, 2**20
GPU = Device("cuda", "cuda:0", "gpu", "a GPU", MIB, GIB, compute_capability="9.0")
CPU = Device("cpu", "cpu", "cpu", "a CPU", MIB, GIB)
SYSTEMS = (linux, darwin, windows, other)


# ---- which one is asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "module"), [("linux", linux), ("darwin", darwin), ("win32", windows), ("freebsd14", other)]
)
def test_the_system_that_this_is_is_asked(monkeypatch, name, module):
    monkeypatch.setattr(sys, "platform", name)
    assert system.here() is module


@pytest.mark.parametrize("module", SYSTEMS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_each_system_answers_each_question(module):
    questions = [name for name, member in vars(system.System).items() if inspect.isfunction(member) and name[0] != "_"]
    assert len(questions) > 10
    assert [name for name in questions if not callable(getattr(module, name, None))] == []


def take_away(monkeypatch, *names):
    for name in names:
        monkeypatch.delattr(os, name, raising=False)


def test_what_python_alone_cannot_tell_is_absent_with_its_reason(monkeypatch):
    monkeypatch.setattr(other, "resource", None)
    take_away(monkeypatch, "sched_getaffinity", "getloadavg", "sysconf", "fork", "pidfd_open")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert other.allowed_cores() == frozenset(range(6))
    for told in (other.load_average, other.governor, other.turbo, other.context_switches, other.major_faults):
        assert (told().value, told().error) == (None, other.NOT_TOLD)
    assert (other.clock_ticks(frozenset({0})).value, other.throttling().value) == (None, None)
    assert [other.total_memory_bytes(), other.available_memory_bytes(), other.tick_s(), other.cpu_quota()] == [None] * 4
    assert other.why_no_isolation() == "this Python has no os.fork and no os.pidfd_open"


def test_a_machine_that_tells_nothing_is_measured_with_marked_assumptions(monkeypatch):
    monkeypatch.setattr(sys, "platform", "plan9")
    monkeypatch.setattr(other, "total_memory_bytes", lambda: None)
    monkeypatch.setattr(other, "available_memory_bytes", lambda: None)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    take_away(monkeypatch, "sched_getaffinity", "getloadavg")
    found = cpu_device()
    assert (found.threads, found.memory_bytes, found.free_bytes()) == (1, None, DEFAULT_CPU_FREE_BYTES)
    assert (found.cache_bytes, found.cache_is_assumed) == (DEFAULT_CPU_CACHE_BYTES, True)
    facts = host_facts()
    assert (facts["load_average"], facts["governor"], facts["cores_allowed"]) == (None, None, 1)
    assert facts["errors"] == dict.fromkeys(("load_average", "governor", "turbo"), other.NOT_TOLD)
    state = host_load.snapshot(frozenset({0}))
    lost = host_load.lost_shares(state, state, 1.0, 1)
    assert {name: share.error for name, share in lost.items()} == dict.fromkeys(lost, other.NOT_TOLD)


# ---- macOS ---------------------------------------------------------------------------------------------------------

VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            200000.
Pages inactive:                           30000.
Pages speculative:                         2000.
Pages throttled:                              0.
"Translation faults":                 123456789.
Pages purgeable:                           7000.
"""
M1_MAX = {
    "machdep.cpu.brand_string": "Apple M1 Max",
    "hw.memsize": str(64 * GIB),
    "hw.perflevel0.l2cachesize": str(12 * MIB),
    "hw.perflevel0.physicalcpu": "8",
    "hw.perflevel0.cpusperl2": "4",
    "hw.l2cachesize": str(4 * MIB),
}


@pytest.fixture
def mac(monkeypatch):
    """Answers of `sysctl` by name and of `vm_stat`, to be changed by tests."""
    answers = dict(M1_MAX, vm_stat=VM_STAT)
    monkeypatch.setattr(darwin, "_output", lambda *command: answers.get(command[-1], ""))
    return answers


def test_a_mac_tells_its_name_its_memory_and_what_is_free_of_it(mac):
    assert darwin.cpu_name() == "Apple M1 Max"
    assert darwin.total_memory_bytes() == 64 * GIB
    assert darwin.available_memory_bytes() == 42_000 * 16384
    mac["vm_stat"] = "something else"
    assert darwin.available_memory_bytes() is None


@pytest.mark.parametrize(
    ("changes", "threads", "size_bytes"),
    [
        ({}, 8, 24 * MIB),  # two clusters of four performance cores
        ({}, 1, 12 * MIB),
        ({"hw.perflevel0.cpusperl2": ""}, 8, 12 * MIB),
        ({"hw.l3cachesize": str(16 * MIB)}, 8, 16 * MIB),  # one of Intel's
        ({"hw.perflevel0.l2cachesize": ""}, 8, 4 * MIB),
        ({"hw.perflevel0.l2cachesize": "", "hw.l2cachesize": "0"}, 8, None),
    ],
)
def test_the_last_level_cache_of_a_mac(mac, changes, threads, size_bytes):
    mac.update(changes)
    assert darwin.last_level_cache_bytes(range(10), threads) == size_bytes


def test_without_sysctl_a_mac_is_what_python_tells(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert darwin.cpu_name() == other.cpu_name()
    assert darwin.total_memory_bytes() == other.total_memory_bytes()
    assert darwin.available_memory_bytes() is None
    assert darwin.last_level_cache_bytes((0,), 1) is None


# ---- Windows -------------------------------------------------------------------------------------------------------


def cache_entry(level, size_bytes, kind, relation=windows.RELATION_CACHE):
    """An entry of 80 bytes, as a 64-bit Windows writes it: group masks lie behind the fields that are read."""
    return windows.CACHE.pack(relation, 80, level, 16, 64, size_bytes, kind).ljust(80, b"\0")


UNIFIED, CODE, DATA = 0, 1, 2
ZEN = b"".join(
    [
        cache_entry(0, 0, 0, relation=0),
        *(cache_entry(1, 32 * 2**10, kind) for kind in (CODE, DATA)),
        cache_entry(2, MIB, UNIFIED),
        *(cache_entry(3, size, UNIFIED) for size in (32 * MIB, 96 * MIB)),
    ]
)


@pytest.mark.parametrize(
    ("entries", "threads", "size_bytes"),
    [
        (ZEN, 16, 128 * MIB),
        (ZEN, 1, 96 * MIB),
        (ZEN + cache_entry(4, GIB, CODE), 1, 96 * MIB),
        (ZEN[:-1], 1, 96 * MIB),  # the last entry is cut where nothing is read
        (b"", 4, None),
        (b"\xff" * 9, 4, None),
        (bytes(80), 4, None),
    ],
)
def test_the_last_level_cache_of_windows(entries, threads, size_bytes):
    assert windows.cache_bytes(entries, threads) == size_bytes


class Kernel32:
    """The two functions, as the documentation describes them."""

    def GlobalMemoryStatusEx(self, pointer):
        status = pointer._obj
        assert status.length == 64
        status.total_physical, status.available_physical = 16 * GIB, 5 * GIB
        return 1

    def GetLogicalProcessorInformationEx(self, relation, buffer, length):
        assert relation == windows.RELATION_CACHE
        is_enough = buffer is not None and length._obj.value >= len(ZEN)
        length._obj.value = len(ZEN)
        if is_enough:
            buffer[: len(ZEN)] = ZEN
        return int(is_enough)


def test_windows_tells_memory_caches_and_the_name_of_the_processor(monkeypatch):
    monkeypatch.setattr(windows, "_kernel32", Kernel32)
    assert (windows.total_memory_bytes(), windows.available_memory_bytes()) == (16 * GIB, 5 * GIB)
    assert windows.last_level_cache_bytes(range(16), 16) == 128 * MIB

    class Key:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    registry = types.SimpleNamespace(
        HKEY_LOCAL_MACHINE=1, OpenKey=lambda *_: Key(), QueryValueEx=lambda key, name: (f" a {name} ", 1)
    )
    monkeypatch.setitem(sys.modules, "winreg", registry)
    assert windows.cpu_name() == "a ProcessorNameString"


def test_where_windows_cannot_be_asked_its_facts_are_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "winreg", None)
    assert windows.cpu_name() == other.cpu_name()
    assert [windows.total_memory_bytes(), windows.available_memory_bytes()] == [None, None]
    assert windows.last_level_cache_bytes((0,), 1) is None


# ---- without Triton, and without a fork ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"), [("darwin", "macOS has no memfd_create and no pidfd_open"), ("win32", "Windows has no fork")]
)
def test_a_users_function_is_refused_where_it_cannot_be_isolated(monkeypatch, name, reason):
    assert providers.unavailable("mine.py:f", CPU) is None
    monkeypatch.setattr(sys, "platform", name)
    assert reason in providers.unavailable("mine.py:f", CPU)
    assert providers.unavailable("torch", CPU) is None


def test_on_a_gpu_without_triton_torch_is_measured_and_the_others_say_why_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert providers.default_providers("softmax", GPU) == ["torch"]
    for name in ("triton-v1", "torch-compile"):
        assert "needs Triton on a GPU, which is not installed" in providers.unavailable(name, GPU)
    assert providers.unavailable("torch", GPU) is None
    assert providers.unavailable("torch-compile", CPU) is None
    with pytest.raises(NotMeasuredError, match="needs Triton, which is not installed"):
        compute_peak.gpu_fma_candidates("fp32", GPU)
    streams = bandwidth.cache_streams(replace(GPU, torch_name="cpu"), None)  # torch has no CUDA here
    assert streams
    assert all(stream.name.startswith("torch") for stream in streams)


def test_without_a_fork_server_a_process_is_started_all_the_same(monkeypatch):
    monkeypatch.setattr(linux, "why_no_isolation", lambda: "no fork")
    ended = processes.run_process(["list"], CallLimit(60.0))
    assert (ended.code, ended.records) == (2, ())
    assert "unrecognized arguments: --output" in ended.reason


def test_an_unknown_load_warns_nobody(monkeypatch):
    said = []
    progress = types.SimpleNamespace(note=said.append)
    monkeypatch.setattr(linux, "load_average", other.governor)
    calibrate.warn_if_busy(replace(CPU, threads=1), progress)
    assert said == []
    monkeypatch.setattr(linux, "load_average", lambda root=None: other.Reading(50.0))
    calibrate.warn_if_busy(replace(CPU, threads=1), progress)
    assert len(said) == 1


# ---- the commands --------------------------------------------------------------------------------------------------

START = """
import sys
sys.path[:0] = {path!r}
from tests.bench import other_systems
other_systems.become({system!r})
{preparation}
other_systems.run({commands!r})
"""

PREPARED = """
import os
from pathlib import Path
from dataclasses import replace
from bench.harness.timing import protocol, settle
protocol.CPU_LIMITS = protocol.Limits(5, 0.5, 0.0, 0.05, 0.001, 1e-4)
settle.CPU_SETTLE = settle.SettleLimits(min_s=0.0, cap_s=0.05)
from tests.bench import commands
from bench.harness.calibrate import setup
from bench.harness.measure import meter
meter.ON_THE_CLOCK = 0.0
commands.keep_ceilings(Path(os.environ["RIDGEPOINT_RUNS"]))
plan = setup.PLANS["cpu", True]
setup.PLANS["cpu", True] = replace(plan, total_s=0.1)
"""
"""Rows that are looked at, not believed; ceilings that are known; a calibration with time for its first part only."""

IMPORTED = """
import importlib, pkgutil
for package in ("bench", "roofline", "results"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        if not found.name.endswith("ridgepoint_pytest") and ".validation." not in found.name:
            importlib.import_module(found.name)
"""
"""Every module, also those that only a GPU or a worker uses, but for the tools of a GPU day, which need Linux."""

TEST = """
import torch

def test_neg(gpu_benchmark):
    gpu_benchmark(torch.neg, torch.ones(64), budget_s=0.05)
"""

SYSCTL = """#!/bin/sh
case "$2" in
machdep.cpu.brand_string) echo 'Apple M3';;
hw.memsize) echo 17179869184;;
hw.perflevel0.l2cachesize) echo 16777216;;
*) exit 1;;
esac
"""

MATMUL = ("--op", "matmul", "--dtype", "fp32", "--shape", "32")
ROW = ("bench.matmul", "--dtype", "fp32", "--shape", "32", "--budget", "5")
MINE = "mine.py:mm"
SMALL = '{"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 200}'
SHORT = ("--shape", "2x16", "--step-time", "0.0001")


@pytest.fixture
def on(tmp_path, runs):
    """Run commands as on another system; return what came of each."""
    (tmp_path / "sysctl").write_text(SYSCTL)
    (tmp_path / "sysctl").chmod(0o755)
    (tmp_path / "mine.py").write_text("def mm(a, b):\n    return a @ b\n")
    (tmp_path / "small.json").write_text(SMALL)
    (tmp_path / "test_it.py").write_text(TEST)

    def run(system_name, commands, preparation=PREPARED):
        path = [str(ROOT)]
        code = START.format(path=path, system=system_name, preparation=preparation, commands=commands)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found = [types.SimpleNamespace(**one) for one in json.loads(done.stdout.splitlines()[-1])]
        for one in found:
            assert "Traceback" not in one.out + one.err
        return found

    return run


def test_every_module_and_every_help_loads_with_nothing_but_python_and_torch(on):
    modules = [f"bench.{path.stem}" for path in sorted((ROOT / "bench").glob("[a-z]*.py"))]
    asked = [[module, "--help"] for module in (*modules, "bench", "kernels", "results", "roofline")]
    plain = [["bench", "list"], ["roofline", "gpus"], ["roofline", "notes"], ["results", "list"]]
    estimate = ["roofline", "estimate", "memory", "--model", "llama-3-8b", "--gpu", "h100-sxm"]
    plot = ["roofline", "plot", "--gpu", "h100-sxm", "-o", "roof.png"]
    refused = [["kernels", "list"], ["kernels", "audit", "gelu"]]
    answers = on("none", [*asked, *plain, estimate, plot, *refused], IMPORTED)
    assert [one.code for one in answers] == [0] * (len(answers) - 2) + [2, 2]
    for one in answers[: len(asked)]:
        assert "usage:" in one.out
    for one in answers[-2:]:
        assert one.err.count("\n") == 1
        assert "the kernels need Triton, which is not installed" in one.err


@pytest.mark.exhaustive
def test_macos_measures_and_compares_the_cpu_and_says_what_it_lacks(on, runs):
    answers = on(
        "darwin",
        [
            [*ROW, "--provider", f"torch,triton-v1,{MINE}", "--format", "json", "--plot", "run.png"],
            [*ROW, "--provider", MINE],
            ["bench", "compare", *MATMUL, "--provider", "torch,torch", "--rounds", "20", "--format", "json"],
            ["bench", "compare", *MATMUL, "--provider", f"torch,{MINE}", "--rounds", "20"],
            ["bench", "doctor", "--budget", "0.2", "--format", "json"],
            [
                "bench.transfer",
                "--op",
                "load",
                "--prefetch",
                "0",
                "--page-cache",
                "warm,cold",
                *SHORT,
                "--format",
                "json",
            ],
            ["results", "show", "latest"],
            ["pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        ],
    )
    row, mine, compared, compared_mine, doctor, load, shown, fixture = answers
    assert [row.code, mine.code, compared_mine.code, load.code, shown.code, fixture.code] == [0, 2, 2, 0, 0, 0]
    assert compared.code in (0, 1)
    assert doctor.code in (0, 1)

    document = json.loads(row.out)
    found = document["environment"]["device"]
    assert (found["name"], found["memory_bytes"], found["cache_bytes"]) == ("Apple M3", 16 * GIB, 16 * MIB)
    torch, triton, own = document["records"]
    assert [torch["status"], triton["status"], own["status"]] == ["ok", "skipped", "skipped"]
    assert "macOS has no memfd_create" in own["reason"]
    told = torch["telemetry"]
    assert told["load_average"] >= 0
    assert (told["governor"], told["throttle"]) == (None, {"cgroup_quota": None, "steal": None})
    assert told["errors"]["throttle.steal"] == other.NOT_TOLD
    for refused in (mine, compared_mine):
        assert [line for line in refused.err.splitlines() if "macOS has no memfd_create" in line][-1:]
        assert "error: " in refused.err.splitlines()[-1]
    assert len(json.loads(compared.out)["rows"]) == 1
    assert json.loads(doctor.out)["device"]["name"] == "Apple M3"
    warm, cold = json.loads(load.out)["records"]
    assert (warm["status"], cold["status"]) == ("ok", "skipped")
    assert "page cache" in cold["reason"]
    assert "1 passed" in fixture.out


@pytest.mark.exhaustive
def test_windows_measures_and_compares_the_cpu_and_says_what_it_lacks(on, runs):
    step = ["--config", "small.json", "--shape", "2x32", "--recipe", "fp32", "--checkpoint", "none", "--format", "json"]
    answers = on(
        "win32",
        [
            [*ROW, "--provider", f"torch,{MINE}", "--format", "json"],
            ["bench", "compare", *MATMUL, "--provider", "torch,torch", "--rounds", "20"],
            ["bench", "calibrate", "--quick", "--dtype", "fp32", "--format", "json"],
            ["bench", "suite", "--budget", "1"],
            ["bench.train_step", *step],
            ["bench.decode", "--op", "decode-attention", "--shape", "1x128", "--budget", "30", "--format", "json"],
            ["results", "compare", "latest", "latest"],
        ],
    )
    row, compared, calibrated, suite, train, decode, _ = answers
    assert [one.code for one in (row, calibrated, train, decode)] == [0] * 4
    assert compared.code in (0, 1)
    assert suite.code in (0, 2)  # 2: not even one row was finished within a second

    document = json.loads(row.out)
    assert document["environment"]["device"]["memory_bytes"] is None
    torch, own = document["records"]
    assert (torch["status"], own["status"]) == ("ok", "skipped")
    assert own["reason"].endswith("Windows has no fork")
    told = torch["telemetry"]
    for key in ("load_average", "involuntary_switches_per_s", "governor", "throttle_resolution"):
        assert told[key] is None
    assert told["errors"]["load_average"] == told["errors"]["involuntary_switches_per_s"] == other.NOT_TOLD
    assert "launch" in [entry["quantity"] for entry in json.loads(calibrated.out)["ceilings"]]
    assert json.loads(train.out)["records"][0]["status"] == "ok"
    assert json.loads(decode.out)["records"][0]["status"] == "ok"
    for path in runs.rglob("*.jsonl"):
        assert b"\r" not in path.read_bytes()
