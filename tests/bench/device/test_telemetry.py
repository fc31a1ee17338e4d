"""Telemetry of a record, on a GPU with a replayed NVML and on a CPU."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.harness.device import gpu_state, telemetry
from bench.harness.device.telemetry import ClockAndPower, row_telemetry, snapshot
from bench.harness.measure.flags import slowed
from tests.bench import nvml_replay
from tests.bench.commands import CPU, H100
from tests.bench.fake_clock import set_clock

CAUSES = ("sw_power_cap", "thermal", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")


@pytest.fixture
def machine(monkeypatch):
    machine = nvml_replay.install(monkeypatch)
    yield machine
    assert machine.forbidden == []


def measure(machine, window_s=2.0, launches=1000, flops=10**12, polled=()):
    """Return the telemetry between the first and the second step of a machine."""
    device = replace(H100, uuid=machine.uuid)
    machine.step = 0
    before = snapshot(device)
    machine.step = 1
    after = snapshot(device)._replace(taken_s=before.taken_s + window_s)
    return row_telemetry(before, after, launches, flops, polled)


def slowed_by(row):
    return {flag.name: flag.reason for flag in slowed(row, is_gpu=True)}


def test_gpu_telemetry_is_complete(machine):
    row = measure(machine)
    assert row["errors"] == {}
    assert (row["sm_clock_hz"], row["memory_clock_hz"], row["temperature_c"]) == (
        1755e6,
        2619e6,
        61,
    )
    # 1,400,000 mJ in 2 s are 700 W; over 1000 launches 1.4 J each; 1e12 FLOPs for 1.4 J
    assert (row["power_w"], row["power_source"]) == (pytest.approx(700), "energy-counter")
    assert row["energy_j"] == pytest.approx(1.4)
    assert row["flops_per_j"] == pytest.approx(1e12 / 1.4)
    # 0.9 s of 2 s below the power cap; no other counter moved, and the last three causes have none
    zero = {"thermal": 0, "sync_boost": 0, **dict.fromkeys(telemetry.EVENT_CAUSES)}
    assert row["throttle"] == {"sw_power_cap": pytest.approx(0.45), **zero}
    assert row["throttle_resolution"] == pytest.approx(0.05)
    assert row["clock_events"] == ["sw_power_cap"]
    assert slowed_by(row) == {
        "power-limited": "the power limit lowered the clock: sw_power_cap 45 %"
    }
    assert set(row["host_throttle"]) == {"cgroup_quota", "steal"}
    machine.gpu["nvmlDeviceGetCurrentClocksEventReasons"] = {"steps": [0x40, 0x44]}
    thermal = "time lost: hw_thermal seen, duration unknown"  # an event without a counter
    assert slowed_by(measure(machine))["throttled"] == thermal


def test_cpu_telemetry_has_the_keys_of_a_gpu_without_nvml(machine):
    before = snapshot(CPU)
    row = row_telemetry(before, snapshot(CPU), launches=10, flops=10**9)
    assert machine.asked == []
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    assert (row["host_throttle"], row["errors"]) == (None, {})
    assert set(row["throttle"]) == {"cgroup_quota", "steal"}
    assert row["throttle_resolution"] == pytest.approx(0.01 / row["window_s"])
    assert row["involuntary_switches_per_s"] >= 0
    of_gpu = measure(machine)
    assert set(row) == set(of_gpu)
    for keys in (row, of_gpu):
        assert json.loads(json.dumps(keys, allow_nan=False)) == keys


@pytest.mark.parametrize("problem", ["NotSupported", "LibraryNotFound"])
def test_unsupported_telemetry_is_none_rather_than_zero(machine, problem):
    if problem == "NotSupported":
        machine.gpu.update({key: {"error": problem} for key in machine.gpu})
    else:
        machine.record["system"]["nvmlInit"] = {"error": problem}
    row = measure(machine)
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    assert row["throttle"] == dict.fromkeys(CAUSES)
    assert row["errors"] == ({} if problem == "NotSupported" else {"nvml": problem})
    assert slowed_by(row) == {}


@pytest.mark.parametrize("after_mj", [912345678901, 912345678000, 912345678901 + 20_001_000])
def test_implausible_energy_is_ignored(machine, after_mj):
    machine.gpu["nvmlDeviceGetTotalEnergyConsumption"] = {"steps": [912345678901, after_mj]}
    row = measure(machine)
    assert (row["power_w"], row["power_source"]) == (pytest.approx(701), "power-usage")
    assert (row["energy_j"], row["flops_per_j"]) == (None, None)


def test_implausible_throttled_time_is_ignored(machine):
    # One step ahead.
    assert measure(machine, window_s=0.85)["throttle"]["sw_power_cap"] == pytest.approx(0.9 / 0.85)
    assert measure(machine, window_s=0.79)["throttle"]["sw_power_cap"] is None
    machine.gpu["nvmlDeviceGetFieldValues"]["fields"]["74"] = {
        "steps": [5_000_000_000, 4_900_000_000]
    }
    assert measure(machine)["throttle"]["sw_power_cap"] is None


def test_short_windows_have_no_energy_or_throttled_time(machine):
    row = measure(machine, window_s=0.95)
    assert (row["energy_j"], row["power_source"]) == (None, "power-usage")
    assert row["throttle"]["sw_power_cap"] == pytest.approx(0.9 / 0.95)
    assert measure(machine, window_s=0.19)["throttle"] == dict.fromkeys(CAUSES)


def test_clock_and_power_come_from_polls_during_the_samples(machine):
    polled = [ClockAndPower(*pair) for pair in ((1.4e9, 690.0), (1.5e9, 700.0), (1.7e9, 650.0))]
    row = measure(machine, polled=polled)
    assert (row["sm_clock_hz"], row["polls"]) == (1.5e9, 3)
    assert row["sm_clock_start_hz"] == 1980e6
    # Better than a few readings.
    assert (row["power_w"], row["power_source"]) == (pytest.approx(700), "energy-counter")
    row = measure(machine, polled=polled, window_s=0.5)
    assert (row["power_w"], row["power_source"]) == (690.0, "polled")


def test_the_poller_reads_while_queued_work_runs(monkeypatch):
    clock, log = iter([0.0, 0.0, 0.0, 0.2, 0.4, 0.6, 0.6, 0.8, 1.2, 1.2]), []
    readings = iter(
        [ClockAndPower(1.9e9, 500.0), ClockAndPower(1.5e9, 700.0), ClockAndPower(1.4e9, 700.0)]
    )
    monkeypatch.setattr(
        gpu_state, "clock_and_power", lambda uuid: log.append("read") or next(readings)
    )
    device = SimpleNamespace(uuid="GPU-0", synchronize=lambda: log.append("wait"))
    set_clock(monkeypatch, lambda: next(clock))
    poller = telemetry.Poller(device)
    poller(None)  # of the warm-up
    poller.begin()
    for _ in range(6):
        poller(lambda: log.append("queue") or 100)
    assert poller.launches == 300
    assert [reading.sm_clock_hz for reading in poller.readings] == [1.9e9, 1.5e9, 1.4e9]
    assert log == ["queue", "read", "wait"] * 3
