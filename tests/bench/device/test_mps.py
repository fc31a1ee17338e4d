"""An Apple GPU, as far as it can be tried without one: torch.mps is a fake, and a CPU does the arithmetic."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.__main__ import main as bench_main
from bench.harness.calibrate.calibration import ceilings_of
from bench.harness.calibrate.setup import FIRST_PLANS
from bench.harness.cli.arguments import UsageError
from bench.harness.commands import calibrate as calibrate_command
from bench.harness.commands import doctor
from bench.harness.compare import meter as compare_meter
from bench.harness.data import inputs, verify
from bench.harness.data.inputs import Filler, InputSet, make_sets
from bench.harness.device import darwin, device, linux, mps
from bench.harness.device.device import NoDeviceError, detect
from bench.harness.device.reading import Reading
from bench.harness.fixture.function import Question, device_of, only_device
from bench.harness.measure import meter, plan, runner
from bench.harness.op import Case
from bench.harness.providers.registry import default_providers, stand_ins, unavailable
from bench.harness.scenarios.scenario import main as scenario_main
from bench.harness.timing import protocol, samplers
from bench.harness.timing.protocol import CPU_LIMITS
from bench.harness.timing.settle import SettleLimits
from bench.matmul import OPS
from bench.train_step import SCENARIO as TRAIN_STEP
from bench.transfer import SCENARIO as TRANSFER
from results.record import DEVICE_TYPES
from results.store.runs import load_run
from tests.bench import commands

MATMUL = OPS[0]
GIB = 2**30


@pytest.fixture
def apple(monkeypatch):
    """A Mac: the device is an Apple GPU to all but torch's operators, which compute on the CPU. Counts the waits."""
    calls = SimpleNamespace(waits=0, emptied=0, macos=(14, 0))
    torch_mps = {
        "synchronize": lambda: vars(calls).update(waits=calls.waits + 1),
        "empty_cache": lambda: vars(calls).update(emptied=calls.emptied + 1),
        "recommended_max_memory": lambda: 3 * GIB,
        "driver_allocated_memory": lambda: GIB,
    }
    for name, function in torch_mps.items():
        monkeypatch.setattr(torch.mps, name, function)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: calls.macos >= version)
    told = {"machdep.cpu.brand_string": "Apple M3 Max", "hw.memsize": str(64 * GIB)}
    monkeypatch.setattr(darwin, "_sysctl", lambda key: told.get(key, ""))
    monkeypatch.setattr(mps, "ASSUMED_CACHE_BYTES", 4 * 2**20)
    real = device.mps_device
    monkeypatch.setattr(device, "mps_device", lambda: replace(real(), torch_name="cpu"))
    return calls


# ---- the device ----------------------------------------------------------------------------------------------------


def test_an_apple_gpu_is_the_device_where_there_is_no_other_gpu(apple):
    found = detect(None)
    assert found == detect("mps")
    assert (found.type, found.slug, found.name) == ("mps", "mps-apple-m3-max", "Apple M3 Max")
    assert (found.is_gpu, found.has_cuda, found.threads) == (True, False, None)
    assert (found.cache_bytes, found.cache_is_assumed) == (mps.ASSUMED_CACHE_BYTES, True)
    assert (found.memory_bytes, found.free_bytes()) == (64 * GIB, 2 * GIB)
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict()
    assert detect("cpu").type == "cpu"


def test_a_cuda_gpu_comes_before_it(apple, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(device, "gpu_device", lambda index: f"cuda:{index}")
    assert detect(None) == "cuda:0"
    assert detect("mps").type == "mps"


def test_what_the_system_does_not_tell_is_asked_of_metal(apple, monkeypatch):
    monkeypatch.setattr(darwin, "total_memory_bytes", lambda: None)
    assert detect("mps").memory_bytes == 3 * GIB


def test_a_key_that_sysctl_does_not_know_is_nothing():
    assert darwin._sysctl("no.such.key") == ""


def test_torchs_name_of_it_is_that_of_its_device(monkeypatch):
    monkeypatch.setattr(darwin, "_sysctl", lambda key: "1")
    assert torch.device(device.mps_device().torch_name).type == device.mps_device().type == "mps"


def test_without_one_it_is_not_there_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    message = "no device 'mps': torch sees no Apple GPU here; --device cpu measures the CPU"
    with pytest.raises(NoDeviceError, match=message):
        detect("mps")
    assert commands.here("matmul", "--device", "mps") == 3
    assert capsys.readouterr().err == f"python -m bench.matmul: error: {message}\n"


@pytest.mark.parametrize(
    "table",
    [runner.PREPARE_S_PER_BYTE, inputs.COLD_CACHES, compare_meter.SLOT_S, doctor.SIZES, doctor.TICK_S],
    ids=["prepare", "cold", "slot", "sizes", "tick"],
)
def test_every_table_knows_every_type_of_device(table):
    assert set(table) == set(DEVICE_TYPES)


def test_memory_is_given_back_to_metal(apple):
    runner.release(detect("mps"))
    runner.release(detect("cpu"))
    assert apple.emptied == 1


# ---- what it cannot ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp64", "tf32", "fp8e4m3", "fp8e5m2", "int8"])
def test_what_torch_does_not_compute_on_it_is_refused(apple, dtype):
    case = Case("matmul", dtype, {"m": 64, "n": 64, "k": 64}, {"layout": "nt", "batch": 1})
    assert plan.refusal(MATMUL, case, detect("mps")) == f"torch on an Apple GPU has no {dtype} arithmetic"


@pytest.mark.parametrize(("macos", "has_bf16"), [((13, 3), False), ((14, 0), True), ((15, 1), True)])
def test_bf16_came_with_macos_14(apple, macos, has_bf16):
    apple.macos = macos
    assert plan.has_dtype(detect("mps"), "bf16") is has_bf16
    assert plan.has_dtype(detect("mps"), "fp16")


def test_only_torch_is_measured_and_triton_says_why_not(apple):
    found = detect("mps")
    assert default_providers("matmul", found) == ["torch"]
    assert stand_ins("matmul", found) == {}
    assert unavailable("torch-compile", found) is None
    reason = "triton-v1 needs a GPU that Triton compiles for; this is an Apple GPU"
    assert unavailable("triton-v1", found) == reason


@pytest.mark.parametrize("scenario", [TRAIN_STEP, TRANSFER], ids=lambda scenario: scenario.name)
def test_scenarios_are_refused_in_one_line(apple, capsys, scenario):
    assert scenario_main(scenario, ["--no-save"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(
        f"error: {scenario.name} needs CUDA or a CPU and has not been written for an Apple GPU: --device cpu"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "h100-sxm"], "the device measured is an Apple GPU, of which the table has none; leave --gpu out"),
        (
            ["--threads", "1"],
            "the device measured is a GPU; add --device cpu or leave it out",
        ),
    ],
)
def test_options_of_other_devices_are_refused(apple, capsys, words, message):
    assert commands.here("matmul", "--device", "mps", "--shape", "64", "--dtype", "fp32", "--no-save", *words) == 2
    assert capsys.readouterr().err.endswith(f"{message}\n")


def test_no_roof_of_it_is_known_before_it_is_measured(apple):
    assert ceilings_of(detect("mps"), None).entries == ()


# ---- a measurement -------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Measure what is looked at, not believed: small roofs, few samples."""
    tiny = replace(FIRST_PLANS["gpu"], launch_s=0.02, mix_s=0.05, matmul_s=0.1, repetitions=1, largest=128)
    monkeypatch.setitem(FIRST_PLANS, "gpu", tiny)
    monkeypatch.setattr(protocol, "CPU_LIMITS", commands.QUICK)
    monkeypatch.setattr(meter, "CPU_SETTLE", SettleLimits(0.0, 0.05))


def test_a_matmul_is_verified_timed_and_judged_by_measured_roofs(apple, quick, runs, capsys):
    words = ("--device", "mps", "--dtype", "fp32,fp64", "--shape", "64", "--format", "json", "-q")
    assert commands.here("matmul", *words) == 0
    found = json.loads(capsys.readouterr().out)
    environment, [record, refused] = found["environment"], found["records"]
    assert (environment["device"]["type"], environment["device"]["cache_is_assumed"]) == ("mps", True)
    assert (refused["status"], refused["reason"]) == ("skipped", "torch on an Apple GPU has no fp64 arithmetic")
    assert (record["status"], record["provider"], record["method"]) == ("ok", "torch", "host")
    assert record["verified"]["before"]["reference"] == record["verified"]["after"]["reference"] == "fp64"
    assert record["peak_kind"] == "measured"
    assert record["mfu"] > 0
    assert {entry["kind"] for entry in environment["hardware"]["entries"]} == {"measured"}
    assert apple.waits > len(record["samples_s"])  # each sample ends with a wait
    [path] = (runs / "mps-apple-m3-max").glob("*.jsonl")
    assert [kept.status for kept in load_run(path).records] == ["ok", "skipped"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "words"),
    [("elementwise", ("--op", "dropout", "--shape", "1000")), ("cross_entropy", ("--shape", "16x64"))],
    ids=["random results", "labels"],
)
def test_ops_whose_inputs_are_whole_numbers_run_too(apple, quick, capsys, family, words):
    words = ("--device", "mps", "--dtype", "fp32", *words, "--format", "json", "--no-save", "-q")
    assert commands.here(family, *words) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert {(record["status"], record["method"]) for record in records} == {("ok", "host")}


@pytest.mark.exhaustive
def test_two_providers_are_compared(apple, quick, tmp_path):
    words = ["--op", "relu", "--shape", "1000", "--dtype", "fp32", "--provider", "torch,torch", "--rounds", "20"]
    assert bench_main(["compare", "--device", "mps", *words, "--output", str(tmp_path / "run.jsonl"), "-q"]) in (0, 1)
    records = load_run(tmp_path / "run.jsonl").records
    assert [(record.status, record.method) for record in records] == [("ok", "host")] * 2


@pytest.mark.exhaustive
def test_the_doctor_looks_at_it(apple, capsys):
    assert bench_main(["doctor", "--device", "mps", "--budget", "0.1", "--format", "json", "-q"]) in (0, 1)
    page = json.loads(capsys.readouterr().out)
    assert page["device"]["type"] == "mps"
    assert "launch floor" in [finding["name"] for finding in page["findings"]]


class Queue:
    """A device that works behind the host's back: a launch costs the host 1 us and the device 25, a wait 200 us."""

    launch_s, device_s, wait_s = 1e-6, 25e-6, 2e-4

    def __init__(self):
        self.now_s = self.busy_until_s = 0.0

    def launch(self):
        self.now_s += self.launch_s
        self.busy_until_s = max(self.busy_until_s, self.now_s) + self.device_s

    def synchronize(self):
        self.now_s = max(self.now_s, self.busy_until_s) + self.wait_s

    def perf_counter(self):
        self.now_s += 1e-9
        return self.now_s


def test_a_sample_is_the_time_of_the_device_and_hardly_of_the_wait(apple, monkeypatch):
    queue = Queue()
    monkeypatch.setattr(samplers, "time", queue)
    monkeypatch.setattr(samplers, "clock_tick_s", lambda: 1e-9)
    monkeypatch.setattr(torch.mps, "synchronize", queue.synchronize)
    sampler = samplers.make_sampler([queue.launch], detect("mps"), CPU_LIMITS)
    sampler.sample()
    assert sampler.method == "host"
    assert sampler.sample() / sampler.launches_per_sample == pytest.approx(queue.device_s, rel=0.02)


# ---- tensors on it -------------------------------------------------------------------------------------------------


class OnMps(torch.Tensor):
    """A tensor that says it lies on an Apple GPU, and like one cannot be widened to fp64 there."""

    device = torch.device("mps", 0)

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def double(self):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64")


def on_mps(dtype="fp32", op=MATMUL):
    case = Case(op.name, dtype, {"m": 32, "n": 32, "k": 32}, {"layout": "nn", "batch": 1})
    cpu = device.cpu_device(1)
    [data] = make_sets(op, case, Filler("uniform", dtype, cpu, 0), cpu, 1)
    right = torch.matmul(*data.inputs)
    moved = InputSet(tuple(x.as_subclass(OnMps) for x in data.inputs), data.out.as_subclass(OnMps))
    return case, moved, right.as_subclass(OnMps)


def test_a_result_on_it_is_held_against_fp64_on_the_cpu():
    case, data, right = on_mps()
    assert verify.check(MATMUL, case, data, right).is_right
    wrong = (right.cpu() * 1.01).as_subclass(OnMps)
    assert not verify.check(MATMUL, case, data, wrong).is_right


def test_a_random_result_on_it_is_checked_on_the_cpu():
    seen = []

    def check_result(case, launch, earlier):
        seen.extend(type(x) for inputs, result in (launch, earlier) for x in (*inputs, result))

    case, data, result = on_mps()
    op = replace(MATMUL, check_result=check_result)
    assert verify.check(op, case, data, result, (data.inputs, result)).is_right
    assert set(seen) == {torch.Tensor}


def test_a_function_on_its_tensors_is_measured_on_it(apple):
    assert device_of(None, [torch.ones(1).as_subclass(OnMps)]).type == "mps"
    assert device_of("mps", []).type == "mps"
    with pytest.raises(UsageError, match="device='cpu' or device='mps' must be given"):
        only_device()
    with pytest.raises(UsageError, match="must be 'cpu', 'cuda', 'cuda:N' or 'mps'"):
        Question(device="mps:0")


def test_the_calibration_warns_of_a_busy_processor_only_where_it_is_measured(apple, monkeypatch):
    monkeypatch.setattr(linux, "load_average", lambda: Reading(1000.0))
    notes = []
    calibrate_command.warn_if_busy(detect("mps"), SimpleNamespace(note=notes.append))
    assert notes == []
    calibrate_command.warn_if_busy(detect("cpu"), SimpleNamespace(note=notes.append))
    assert len(notes) == 1
