"""`python -m bench doctor`: each finding from made-up facts, the page, the exit code, and one real short run."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench import __main__ as command
from bench.harness.commands import doctor
from bench.harness.commands.doctor import (
    BAD,
    NOTE,
    OK,
    SelfComparison,
    gpu_findings,
    host_findings,
    noise_findings,
    tick_finding,
)
from bench.harness.device.device import cpu_device
from bench.harness.timing.settle import Settling
from results.stats.comparison import SLOWER
from results.stats.verdict import compare_pairs, smallest_detectable_change

HOST = {"cores_allowed": 8, "cgroup_quota_cores": None, "load_average": 0.1, "governor": "performance", "turbo": True}
GPU = {
    "errors": {},
    "sm_clock_hz": 345e6,
    "max_sm_clock_hz": 1980e6,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "clock_events": ["idle"],
    "other_processes": [],
    "is_mig_slice": False,
    "virtualization": "none",
    "confidential_compute": False,
    "remapped_rows": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
}


def statuses(findings):
    return {finding.name: finding.status for finding in findings}


def series(change=0.0, noise=0.001, pairs=100):
    """Two series with noise of their own; the second is slower by `change`."""
    source = random.Random(1)
    baseline, candidate = ([1e-3 * (1 + noise * source.uniform(-1, 1)) for _ in range(pairs)] for _ in range(2))
    return baseline, [value * (1 + change) for value in candidate]


def compared(change=0.0, noise=0.001, settled=True):
    settling = Settling(settled, 0.5, "time", 10, ())
    pair = series(change, noise)
    return SelfComparison(compare_pairs(*pair), smallest_detectable_change(*pair), settling, "512x512x512")


def test_a_quiet_host_is_all_right():
    assert set(statuses(host_findings(HOST, cpu_device())).values()) == {OK}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"load_average": 3.0}, "load"),
        ({"cgroup_quota_cores": 1.5}, "cpu quota"),
        ({"governor": "powersave"}, "governor"),
    ],
)
def test_what_disturbs_a_host_is_noted_with_advice(change, name):
    findings = host_findings(HOST | change, cpu_device())
    assert statuses(findings)[name] == NOTE
    assert next(finding for finding in findings if finding.name == name).advice


def test_what_a_host_does_not_tell_is_left_out():
    facts = dict.fromkeys(HOST) | {"cores_allowed": 2}
    assert [finding.name for finding in host_findings(facts, cpu_device())] == ["cores"]


def test_a_free_gpu_is_all_right():
    assert set(statuses(gpu_findings(GPU)).values()) == {OK}


@pytest.mark.parametrize(
    ("change", "name", "status"),
    [
        ({"other_processes": [{"pid": 7, "memory_bytes": 1}]}, "other processes", BAD),
        ({"remapped_rows": {"failed": True}}, "memory", BAD),
        ({"remapped_rows": {"pending": True}}, "memory", BAD),
        ({"power_limit_w": 350.0}, "power limit", NOTE),
        ({"clock_events": ["hw_thermal"]}, "clock events", NOTE),
        ({"is_mig_slice": True}, "MIG", NOTE),
        ({"virtualization": "vgpu"}, "virtualization", NOTE),
        ({"confidential_compute": True}, "confidential compute", NOTE),
        ({"errors": {"nvml": "LibraryNotFound"}}, "nvml", NOTE),
    ],
)
def test_what_speaks_against_a_gpu_is_found_with_advice(change, name, status):
    findings = gpu_findings(GPU | change)
    assert statuses(findings)[name] == status
    assert next(finding for finding in findings if finding.name == name).advice


@pytest.mark.parametrize(
    ("pids", "own_is_seen", "status"), [([7], True, BAD), ([7], False, NOTE), ([7, 8], False, BAD), ([], False, OK)]
)
def test_a_process_that_may_be_this_one_under_another_id_makes_no_gpu_unfit(pids, own_is_seen, status):
    others = [{"pid": pid, "memory_bytes": None} for pid in pids]
    found = gpu_findings(GPU | {"other_processes": others, "own_process_seen": own_is_seen})
    assert statuses(found)["other processes"] == status


def test_what_nvml_does_not_tell_is_left_out():
    assert gpu_findings(dict.fromkeys(GPU) | {"errors": {}}) == []


def test_a_coarse_tick_is_noted():
    assert tick_finding(5e-8, "cpu").status == OK
    assert tick_finding(1e-3, "cpu").status == NOTE
    assert tick_finding(1.024e-6, "cuda").status == OK


def test_one_kernel_against_itself_must_come_out_the_same():
    found = statuses(noise_findings(compared()))
    assert found["one kernel against itself"] == OK
    assert found["smallest change that would be seen"] == OK
    biased = compared(change=0.05)
    assert biased.comparison.verdict == SLOWER
    assert statuses(noise_findings(biased))["one kernel against itself"] == BAD


def test_a_machine_that_other_work_disturbs_is_not_fit():
    assert "other work" not in statuses(noise_findings(compared()))
    busy = replace(compared(), disturbed="300 times a second a thread lost its core")
    assert statuses(noise_findings(busy))["other work"] == BAD


def test_noise_and_an_unsettled_device_are_noted():
    found = statuses(noise_findings(compared(noise=0.2, settled=False)))
    assert found["settled"] == NOTE
    assert found["one kernel against itself"] == BAD
    assert found["smallest change that would be seen"] == NOTE


@pytest.mark.parametrize(("change", "code"), [(0.0, 0), (0.05, 1)])
def test_the_exit_code_says_whether_the_machine_is_fit(monkeypatch, capsys, change, code):
    monkeypatch.setattr(doctor, "compare_with_itself", lambda *arguments: compared(change))
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


def test_hostile_names_reach_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "compare_with_itself", lambda *arguments: compared())
    monkeypatch.setattr("bench.harness.device.linux.cpu_name", lambda: "CPU \x1b[31m[bold]")
    command.main(["doctor", "--device", "cpu", "-q"])
    out = capsys.readouterr().out
    assert "\x1b" not in out.replace("\x1b[0m", "")


def test_pairs_are_interleaved_in_an_order_that_the_seed_decides(monkeypatch):
    orders = []
    for _ in range(2):
        made = []

        def sampler_of(calls, device, limits, made=made):
            name = len([entry for entry in made if entry[0] == "new"])
            made.append(("new", name))
            return SimpleNamespace(launches_per_sample=1, sample=lambda: made.append(("ran", name)) or 1e-3)

        monkeypatch.setattr("bench.harness.timing.samplers.make_sampler", sampler_of)
        found = doctor.compare_with_itself(cpu_device(), command.families()["matmul"][0], 0.0, seed=3)
        ran = [name for kind, name in made if kind == "ran"][found.settling.launches :]
        assert len(ran) == 2 * doctor.LEAST_PAIRS
        assert all({first, second} == {0, 1} for first, second in zip(ran[::2], ran[1::2], strict=True))
        assert {tuple(ran[i : i + 2]) for i in range(0, len(ran), 2)} == {(0, 1), (1, 0)}
        orders.append(ran)
    assert orders[0] == orders[1]


def test_a_real_page_is_printed_whatever_the_verdict(capsys):
    assert command.main(["doctor", "--device", "cpu", "--budget", "0.3"]) in (0, 1)
    streams = capsys.readouterr()
    assert "one kernel against itself" in streams.out
    assert "timing one kernel" in streams.err


def test_no_gpu_is_exit_code_3(capsys):
    assert command.main(["doctor", "--device", "cuda"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
