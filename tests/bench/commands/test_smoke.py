"""`python -m bench smoke`: verdicts against what is expected, the lines of rows, the page, bad places."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench import __main__ as command
from bench.harness.commands import smoke
from bench.harness.commands.doctor import BAD, NOTE, OK
from bench.harness.device.device import cpu_device
from bench.harness.timing import launched, samplers
from results.record import Record
from roofline.ceilings import Ceiling, Ceilings

H100 = Ceilings("h100-sxm", "H100", (Ceiling("flops", "fp16", 989.4e12, "datasheet", "datasheet"),))


def look(ceilings=H100, **fields):
    return smoke.Look(cpu_device(), {}, ceilings, smoke.published(ceilings.slug), time.perf_counter() + 60, **fields)


def record(**fields):
    ok = Record(
        op="matmul",
        provider="torch",
        dtype="bf16",
        shape={"m": 4096},
        case="4096x4096x4096",
        status="ok",
        samples_s=(1e-3,),
        median_s=1e-3,
        flops=int(794.5e9),
        method="graph",
    )
    return replace(ok, **fields)


@pytest.mark.parametrize(
    ("share", "kind", "status"),
    [
        (0.81, "published", OK),
        (0.7, "published", NOTE),
        (0.7, "datasheet", OK),
        (0.55, "datasheet", NOTE),
        (0.49, "published", BAD),
        (1.2, "published", OK),
        (1.01, "datasheet", BAD),
    ],
)
def test_a_share_of_what_is_expected_has_a_verdict(share, kind, status):
    assert smoke.verdict(share, kind)[0] == status


def test_a_published_figure_goes_before_the_datasheet_and_a_cpu_has_neither():
    value, kind, source = look().expected("flops", "bf16")
    assert (value, kind) == (794.5e12, "published")
    assert source
    assert look().expected("flops", "fp16")[1] == "datasheet"
    assert look(Ceilings("cpu-x", "CPU")).expected("flops", "bf16") is None


def test_a_time_is_to_be_short_and_a_rate_high():
    gpu = look(Ceilings("h200-sxm", "H200"))
    assert smoke.judged(gpu, "", "launch", "launch", 1.3e-6).status == OK
    assert smoke.judged(gpu, "", "launch", "launch", 4e-6).status == BAD
    assert smoke.judged(gpu, "", "bandwidth", "copy", 1e12).status == BAD
    line = smoke.judged(gpu, "copy", "bandwidth", "copy", 4e12)
    assert (line.status, line.measured, line.expected, line.unit) == (OK, 4e12, 4.028e12, "B/s")


def test_only_large_rows_are_held_against_what_is_expected():
    assert smoke.line_of_row(look(), record(), is_judged=True).expected == 794.5e12
    line = smoke.line_of_row(look(), record(), is_judged=False)
    assert (line.status, line.expected) == (OK, None)
    assert "a replay" in line.value
    assert "a replay" not in smoke.line_of_row(look(), record(method="events"), is_judged=False).value
    assert smoke.line_of_row(look(), record(median_s=5e-3), is_judged=True).status == BAD


def test_wrong_results_are_bad_and_what_was_not_run_is_a_note():
    for status, verdict in (("invalid", BAD), ("failed", BAD), ("skipped", NOTE)):
        assert smoke.line_of_row(look(), record(status=status, reason="why"), is_judged=True).status == verdict
    flagged = record(flags=("not-captured", "launch-limited"), flag_reasons={"not-captured": "no graph"})
    line = smoke.line_of_row(look(), flagged, is_judged=False)
    assert line.status == NOTE
    assert "no graph" in line.advice
    assert "launch-limited" not in line.advice


def test_a_step_that_raises_costs_itself_alone_and_none_begins_late(monkeypatch):
    taken, progress = [], SimpleNamespace(say=lambda text: None)
    names = ("device", "compiling", "launches", "families", "results", "peaks", "large")
    for name in names:
        monkeypatch.setattr(smoke, f"look_at_{name}", lambda look, progress, name=name: taken.append(name))

    def fails(look, progress):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(smoke, "look_at_families", fails)
    found = look()
    smoke.look_at_all(found, progress)
    assert taken == [name for name in names if name != "families"]
    assert [(line.status, line.value) for line in found.lines] == [(BAD, "RuntimeError: no such kernel")]
    late = replace(look(), ends_at=time.perf_counter())
    smoke.look_at_all(late, progress)
    assert {line.status for line in late.lines} == {NOTE}
    assert len(late.lines) == len(names)


@pytest.mark.parametrize(("slower", "status"), [(1.0, OK), (1.2, NOTE)])
def test_what_a_recording_changes_of_later_times_is_told(monkeypatch, slower, status):
    factor, recordings = [1.0], []

    class Graph:
        def __init__(self, calls, launches):
            self.launches_per_sample = launches

        def sample(self):
            return factor[0] * 1.25e-6 * self.launches_per_sample

        def unheld_sample(self):
            return self.sample() + 1e-5

    def recorded(calls, synchronize):
        recordings.append(calls)
        factor[0] = slower
        return ["kernels"]

    monkeypatch.setattr(samplers, "GraphSampler", Graph)
    monkeypatch.setattr(samplers, "empty_launch_s", lambda device: factor[0] * 4e-6)
    monkeypatch.setattr(launched, "recorded", recorded)
    monkeypatch.setattr(smoke, "empty_kernel", lambda device: lambda: None)
    found = replace(look(), device=replace(cpu_device(), type="cuda"))
    smoke.look_at_launches(found, None)
    again = [line for line in found.lines if line.name.endswith("after a recording")]
    assert (len(recordings), [line.status for line in again]) == (1, [status] * 3)
    [bias] = [line.value for line in found.lines if line.name == "graph of 800 empty kernels, each, no spin"]
    assert bias == "1.262 us, +1.0 % for the launch by the host"
    monkeypatch.setattr(launched, "recorded", lambda calls, synchronize: [])
    smoke.look_at_launches(found, None)
    assert (found.lines[-1].status, found.lines[-1].advice) == (NOTE, "torch's profiler records no kernel here")


def test_the_page_is_kept_as_json_and_a_bad_line_is_exit_code_1(monkeypatch, tmp_path, capsys):
    def one_line(found, progress):
        found.lines.append(smoke.Line("matmul", BAD, "wrong", "look"))

    monkeypatch.setattr(smoke, "look_at_all", one_line)
    kept = tmp_path / "smoke.json"
    assert command.main(["smoke", "--device", "cpu", "--output", str(kept)]) == 1
    assert "1 bad" in capsys.readouterr().out
    page = json.loads(kept.read_text(encoding="utf-8"))
    assert page["lines"][0]["name"] == "matmul"
    assert page["device"]["type"] == "cpu"
    assert command.main(["smoke", "--device", "cpu", "--output", str(kept)]) == 2
    assert command.main(["smoke", "--device", "cpu", "--output", str(tmp_path)]) == 2
    assert "folder" in capsys.readouterr().err


def test_the_smallest_default_case_of_each_family_is_found_for_both_kinds_of_device():
    from bench.matmul import OPS

    for device_type, is_gpu in (("cpu", False), ("cuda", True)):
        found = SimpleNamespace(device=SimpleNamespace(type=device_type, is_gpu=is_gpu))
        case = smoke.smallest(found, "matmul", OPS[0], "bf16")
        assert OPS[0].work(case).flops <= 2 * 4096**3
