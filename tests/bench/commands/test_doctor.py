"""`python -m bench doctor`: each finding from made-up facts, the report, the exit code, one short
real run.
"""

import json
import os
import random
import tomllib
from dataclasses import replace

import pytest

from bench import __main__ as command
from bench.commands import doctor
from bench.commands.doctor import (
    BAD,
    NOTE,
    OK,
    Checkup,
    Finding,
    against_ceiling,
    gpu_findings,
    host_findings,
    noise_check,
    row_finding,
)
from bench.harness.device import device as facts
from bench.harness.device.device import cpu_device
from bench.harness.run import Progress
from bench.harness.settings import Settings
from results.record import Rounds
from roofline.gpu_table import load_gpus
from roofline.machine import QUANTITIES, Ceiling, Machine
from tests import records
from tests.bench import nvml_replay
from tests.bench.commands import CPU

HOST = {"load_average": 0.1, "governor": "performance", "turbo": True}


def statuses(findings):
    return {finding.name: finding.status for finding in findings}


def compared(change=0.0, noise=0.001, settled=True, switches=0.0):
    """Return two records of one kernel compared with itself; the second is slower by `change`."""
    source = random.Random(1)
    rounds = Rounds(
        names=("torch", "torch#2"),
        rounds=100,
        samples_per_round=1,
        is_fixed=True,
        is_clear=True,
        seed=0,
        seconds=1.0,
    )
    found = []
    for slower in (1, 1 + change):
        samples_s = tuple(slower * 1e-3 * (1 + noise * source.uniform(-1, 1)) for _ in range(100))
        telemetry = {"thread_switches_per_s": switches}
        found.append(
            record(samples_s=samples_s, settled=settled, details=rounds, telemetry=telemetry)
        )
    return tuple(found)


def checkup(ceilings=None, **options):
    settings = Settings(**{"format": "json", "budget_s": 1.0} | options)
    return Checkup(settings, cpu_device(), ceilings, {}, Progress(quiet=True))


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets the facts of the host."""

    def of(cores=8, quota=None, **changes):
        monkeypatch.setattr(
            facts, "usable_cores", lambda: facts.Cores(frozenset(range(cores)), quota)
        )
        monkeypatch.setattr(facts, "host_state", lambda: HOST | changes)

    of()
    return of


@pytest.fixture
def gpu(monkeypatch):
    """Return a free GPU whose NVML is replayed."""
    replayed = nvml_replay.install(monkeypatch)
    replayed.gpu["nvmlDeviceGetComputeRunningProcesses"] = processes(os.getpid())
    return replayed


def processes(*pids):
    return [{"object": {"pid": pid}} for pid in pids]


def test_an_idle_host_and_gpu_have_no_findings(machine, gpu):
    assert set(statuses([*host_findings(CPU), *gpu_findings(gpu.uuid)]).values()) == {OK}


def test_unknown_facts_are_left_out(machine, gpu):
    machine(**dict.fromkeys(HOST))
    assert [finding.name for finding in host_findings(CPU)] == ["cores"]
    gpu.gpu.update({key: {"error": "NotSupported"} for key in gpu.gpu})
    assert list(gpu_findings(gpu.uuid)) == []


@pytest.mark.parametrize(
    ("function", "answer", "name", "status"),
    [
        ("ComputeRunningProcesses", processes(7, os.getpid()), "other processes", BAD),
        # It may be this one under another id.
        ("ComputeRunningProcesses", processes(7), "other processes", NOTE),
        ("ComputeRunningProcesses", processes(7, 8), "other processes", BAD),
        ("RemappedRows", [0, 0, 0, 1], "memory", BAD),
        ("RemappedRows", [12, 1, 1, 0], "memory", BAD),
        ("EnforcedPowerLimit", 350_000, "power limit", NOTE),
        ("CurrentClocksEventReasons", 0x40, "clock events", NOTE),
    ],
)
def test_gpu_problems_are_reported_with_advice(gpu, function, answer, name, status):
    gpu.gpu[f"nvmlDeviceGet{function}"] = answer
    [found] = [finding for finding in gpu_findings(gpu.uuid) if finding.name == name]
    assert found.status == status
    assert found.advice


def test_missing_nvml_is_one_note(gpu):
    gpu.record["system"]["nvmlInit"] = {"error": "LibraryNotFound"}
    [found] = gpu_findings(gpu.uuid)
    assert (found.name, found.status, found.value) == (
        "nvml",
        NOTE,
        "not readable: LibraryNotFound",
    )


@pytest.mark.parametrize(
    ("change", "name", "advice"),
    [
        ({"load_average": 3.0}, "load", "wait for other processes"),
        ({"quota": 1.5}, "cpu quota", "fewer threads are used"),
        ({"quota": 0.5, "threads": 4}, "cpu quota", "threads will be throttled"),
        ({"governor": "powersave"}, "governor", "measure longer"),
    ],
)
def test_host_problems_are_noted_with_advice(machine, change, name, advice):
    device = replace(CPU, threads=change.pop("threads", 1))
    machine(**change)
    [found] = [finding for finding in host_findings(device) if finding.name == name]
    assert found.status == NOTE
    assert advice in found.advice


@pytest.mark.parametrize(("tick_s", "status"), [(5e-8, OK), (1e-3, NOTE)])
def test_a_coarse_timer_is_noted(monkeypatch, tick_s, status):
    monkeypatch.setattr("bench.harness.timing.samplers.tick_s", lambda device: tick_s)
    found = statuses(doctor.device_check(checkup(Machine("cpu-x", "CPU"))))
    assert found["timer resolution"] == status


@pytest.mark.parametrize(
    ("change", "statuses_of_all"),
    [
        ({}, {"settled": OK, "one kernel against itself": OK, "smallest detectable change": OK}),
        ({"change": 0.05}, {"one kernel against itself": BAD}),
        ({"switches": 300.0}, {"other work": BAD}),
        (
            {"noise": 0.2, "settled": False},
            {"settled": NOTE, "one kernel against itself": BAD, "smallest detectable change": NOTE},
        ),
    ],
)
def test_a_kernel_compared_with_itself_must_be_the_same(monkeypatch, change, statuses_of_all):
    monkeypatch.setattr(doctor, "compare_with_itself", lambda checkup: compared(**change))
    found = statuses(noise_check(checkup()))
    assert found.items() >= statuses_of_all.items()
    assert ("other work" in found) == ("switches" in change)


H100 = Machine("h100-sxm", "H100", (Ceiling("flops", "fp16", 989.4e12, "datasheet", "datasheet"),))


def record(**fields):
    return records.record(**{"median_s": 1e-3, "flops": int(794.5e9)} | fields)


@pytest.mark.parametrize(
    ("share", "kind", "status"),
    [
        (0.7, "published", NOTE),
        (0.7, "datasheet", OK),
        (0.55, "datasheet", NOTE),
        (0.49, "published", BAD),
        (1.2, "published", OK),
        (1.01, "datasheet", BAD),
    ],
)
def test_fractions_of_the_expected_value_get_a_status(share, kind, status):
    dtype, expected = {"published": ("bf16", 794.5e12), "datasheet": ("fp16", 989.4e12)}[kind]
    assert against_ceiling("matmul", H100, "flops", dtype, share * expected).status == status


def test_a_published_figure_takes_precedence_over_the_datasheet():
    found = against_ceiling("matmul", H100, "flops", "bf16", 795e12)
    assert (found.status, found.measured, found.expected, found.unit) == (
        OK,
        795e12,
        794.5e12,
        "FLOP/s",
    )
    assert "(published)" in found.value
    assert found.source
    assert "(datasheet)" in against_ceiling("matmul", H100, "flops", "fp16", 700e12).value
    # A time should be short.
    assert against_ceiling("", Machine("h200-sxm", "H200"), "launch", "launch", 4e-6).status == BAD
    assert (
        against_ceiling("matmul", Machine("cpu-x", "CPU"), "flops", "bf16", 1e12).expected is None
    )


def test_published_figures_have_a_source_and_are_possible():
    records = tomllib.loads(doctor.PUBLISHED.read_text(encoding="utf-8"))["record"]
    names = [
        (gpu, figure["quantity"], figure["name"]) for figure in records for gpu in figure["gpus"]
    ]
    assert len(names) == len(set(names))
    for figure in records:
        assert figure["unit"] == QUANTITIES[figure["quantity"]]
        assert figure["source"].startswith(("github.com/", "AMD"))
        for gpu in (load_gpus()[slug] for slug in figure["gpus"]):
            if figure["quantity"] == "flops":  # boost clocks exceed those of the datasheet
                assert figure["value"] < 1.1 * gpu.peak(figure["name"]).value
            if figure["quantity"] == "bandwidth":
                assert figure["value"] < gpu.memory_bandwidth_bytes_per_s


def test_wrong_results_are_bad_and_skipped_rows_are_noted():
    for status, expected in (("invalid", BAD), ("failed", BAD), ("skipped", NOTE)):
        assert (
            row_finding(record(status=status, reason="why"), H100, is_large=True).status == expected
        )
    flagged = record(
        flags=("not-captured", "launch-limited"), flag_reasons={"not-captured": "no graph"}
    )
    for is_large in (True, False):
        found = row_finding(flagged, H100, is_large)
        assert (found.status, "no graph" in found.advice) == (NOTE, True)
        assert "launch-limited" not in found.advice


@pytest.fixture
def no_rows(monkeypatch):
    monkeypatch.setattr(doctor, "large_check", lambda checkup: [])
    monkeypatch.setattr(doctor, "family_check", lambda checkup: [])


@pytest.mark.usefixtures("no_rows")
@pytest.mark.parametrize(("change", "code"), [(0.0, 0), (0.05, 1)])
def test_the_exit_code_reports_whether_the_machine_is_fit(monkeypatch, capsys, change, code):
    monkeypatch.setattr(doctor, "compare_with_itself", lambda checkup: compared(change))
    assert command.main(["doctor", "--device", "cpu", "-q", "--format", "json"]) == code
    page = json.loads(capsys.readouterr().out)
    assert page["fit"] is (code == 0)
    assert page["self_comparison"]["pairs"] == 100
    assert page["smallest_detectable_change_pct"] > 1
    assert {finding["name"] for finding in page["findings"]} >= {
        "cores",
        "settled",
        "launch floor",
        "one kernel against itself",
    }
    assert command.main(["doctor", "--device", "cpu", "-q", "--format", "csv"]) == code
    assert capsys.readouterr().out.startswith("name,status,")


def test_an_error_fails_only_its_check_and_findings_are_printed_at_once(monkeypatch, capsys):
    printed = []

    def two(checkup):
        yield Finding("first", OK, "1")
        printed.append(capsys.readouterr().out)
        raise RuntimeError("no such kernel")

    for name in ("device", "launch", "large", "family"):
        monkeypatch.setattr(
            doctor, f"{name}_check", lambda checkup, name=name: [Finding(name, OK, "")]
        )
    monkeypatch.setattr(doctor, "noise_check", two)
    checked = checkup(H100, format="table")
    doctor.check_all(checked)
    assert [finding.name for finding in checked.findings][:3] == ["device", "launch", "first"]
    assert [finding.name for finding in checked.findings][4:] == ["large", "family"]
    failed = checked.findings[3]
    assert (failed.status, failed.value) == (BAD, "RuntimeError: no such kernel")
    assert "first: 1" in printed[0]


def test_ctrl_c_keeps_the_findings_so_far(monkeypatch, capsys):
    def interrupted(checkup):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "launch_check", interrupted)
    assert command.main(["doctor", "--device", "cpu", "-q", "--format", "json"]) == 130
    assert json.loads(capsys.readouterr().out)["findings"][0]["name"] == "cores"


@pytest.mark.exhaustive
def test_a_real_report_has_a_row_of_each_family(monkeypatch, capsys):
    known = command.families()
    copies = tuple(op for op in known["elementwise"] if op.name == "copy")
    few = {"matmul": known["matmul"], "elementwise": copies}
    monkeypatch.setattr(command, "read_catalog", lambda *_, **__: command.Catalog(few, {}, ()))
    monkeypatch.setitem(doctor.LARGE, "cpu", (("matmul", "bf16", "128"),))
    assert command.main(["doctor", "--device", "cpu", "--budget", "0.3"]) in (0, 1)
    streams = capsys.readouterr()
    for said in (
        "one kernel against itself",
        "matmul bf16 128x128x128, torch",
        "copy bf16 1048576, torch",
    ):
        assert said in streams.out
    assert "checking: families" in streams.err
