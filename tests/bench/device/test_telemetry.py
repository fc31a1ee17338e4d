"""Telemetry of a record, of a GPU whose NVML is replayed and of a CPU."""

import json
from dataclasses import replace

import pytest

from bench.harness.device import host, telemetry
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Monitor, row_telemetry, share_of_time, slowdowns, window_energy_j
from tests.bench import nvml_replay

H100 = Device(
    type="cuda",
    torch_name="cuda:0",
    slug="h100-sxm",
    name="NVIDIA H100 80GB HBM3",
    cache_bytes=50 * 2**20,
    memory_bytes=80 * 2**30,
)
CPU = replace(H100, type="cpu", torch_name="cpu", slug="cpu-2t", name="a CPU")

CAUSES = ("sw_power_cap", "thermal", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")


@pytest.fixture
def machine(monkeypatch):
    found = nvml_replay.install(monkeypatch)
    yield found
    assert found.forbidden == []


def measure(machine, window_s=2.0, launches=1000, flops=10**12, polled=()):
    """Return the telemetry of a measurement during which a machine goes from its first step to its second."""
    monitor = Monitor(replace(H100, uuid=machine.uuid))
    machine.step = 0
    before = monitor.snapshot()
    machine.step = 1
    after = replace(monitor.snapshot(), taken_s=before.taken_s + window_s)
    return row_telemetry(before, after, launches, flops, polled)


def two_cpu_snapshots():
    monitor = Monitor(CPU)
    return monitor.snapshot(), monitor.snapshot()


# ---- a GPU ---------------------------------------------------------------------------------------------------------


def test_the_recorded_machine_reports_everything(machine):
    row = measure(machine)
    assert row["errors"] == {}
    assert (row["sm_clock_hz"], row["memory_clock_hz"], row["temperature_c"]) == (1755e6, 2619e6, 61)
    # 1,400,000 mJ in 2 s are 700 W; over 1000 launches 1.4 J each; 1e12 FLOPs for 1.4 J
    assert (row["power_w"], row["power_source"]) == (pytest.approx(700), "energy-counter")
    assert row["energy_j"] == pytest.approx(1.4)
    assert row["flops_per_j"] == pytest.approx(1e12 / 1.4)
    # 0.9 s of 2 s below the power cap; no other counter moved, and the last three causes have none
    zero = {"thermal": 0, "sync_boost": 0, **dict.fromkeys(telemetry.EVENT_CAUSES)}
    assert row["throttle"] == {"sw_power_cap": pytest.approx(0.45), **zero}
    assert row["throttle_resolution"] == pytest.approx(0.05)
    assert row["clock_events"] == ["sw_power_cap"]
    assert slowdowns(row) == ("sw_power_cap",)
    assert set(row["host_throttle"]) == {"cgroup_quota", "steal"}


def test_a_thermal_event_counts_without_a_counter(machine):
    machine.gpu["nvmlDeviceGetCurrentClocksEventReasons"] = {"steps": [0x40, 0x44]}
    row = measure(machine)
    assert row["clock_events"] == ["hw_thermal", "sw_power_cap"]
    assert slowdowns(row) == ("sw_power_cap", "hw_thermal")


def test_a_gpu_and_a_cpu_have_the_same_keys_in_json(machine):
    row, of_cpu = measure(machine), row_telemetry(*two_cpu_snapshots())
    assert set(row) == set(of_cpu)
    for found in (row, of_cpu):
        assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("answer", [{"error": "NotSupported"}, {"error": "GpuIsLost"}])
def test_what_the_driver_refuses_is_none_and_never_zero(machine, answer):
    machine.gpu.update(dict.fromkeys(machine.gpu, answer))
    row = measure(machine)
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    assert row["throttle"] == dict.fromkeys(CAUSES)
    assert (row["errors"], slowdowns(row)) == ({}, ())


def test_a_machine_without_a_driver_has_one_error(machine):
    machine.record["system"]["nvmlInit"] = {"error": "LibraryNotFound"}
    row = measure(machine)
    assert row["errors"] == {"nvml": "LibraryNotFound"}
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    assert row["throttle"] == dict.fromkeys(CAUSES)


def test_without_the_energy_counter_the_power_is_that_of_the_end(machine):
    machine.gpu["nvmlDeviceGetTotalEnergyConsumption"] = {"steps": [912347078901, 912345678901]}  # backwards
    row = measure(machine)
    assert (row["power_w"], row["power_source"]) == (pytest.approx(701), "power-usage")
    assert (row["energy_j"], row["flops_per_j"]) == (None, None)


def test_clock_and_power_take_two_calls(machine):
    monitor = Monitor(replace(H100, uuid=machine.uuid))
    machine.asked.clear()
    assert monitor.clock_and_power() == telemetry.ClockAndPower(1980e6, pytest.approx(655))
    assert machine.asked == ["nvmlDeviceGetClockInfo", "nvmlDeviceGetFieldValues"]


# ---- windows and counters ------------------------------------------------------------------------------------------


def test_a_window_of_no_length_gives_no_rate(machine):
    row = measure(machine, window_s=0.0)
    assert (row["window_s"], row["throttle"], row["throttle_resolution"]) == (None, dict.fromkeys(CAUSES), None)
    assert (row["energy_j"], row["involuntary_switches_per_s"], row["power_source"]) == (None, None, "power-usage")


def test_a_short_window_has_no_energy_and_a_very_short_one_no_shares(machine):
    row = measure(machine, window_s=0.95)
    assert (row["energy_j"], row["power_source"]) == (None, "power-usage")
    assert row["throttle"]["sw_power_cap"] == pytest.approx(0.9 / 0.95)
    assert measure(machine, window_s=0.19)["throttle"] == dict.fromkeys(CAUSES)


@pytest.mark.parametrize(("launches", "flops"), [(None, 10**12), (0, 10**12), (1000, None), (1000, 0)])
def test_without_launches_or_flops_the_mean_power_is_still_known(machine, launches, flops):
    row = measure(machine, launches=launches, flops=flops)
    assert row["power_w"] == pytest.approx(700)
    assert row["flops_per_j"] is None
    assert (row["energy_j"] is None) == (not launches)


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        (5.0, 5.9, 0.45),
        (5.0, 5.0, 0.0),
        (0.0, 2.05, 1.025),  # a counter that advances in steps may run ahead by one; it is not cut off
        (0.0, 2.11, None),
        (5.0, 4.9, None),
        (None, 1.0, None),
        (1.0, None, None),
    ],
)
def test_shares_of_time(before, after, share):
    assert share_of_time(before, after, 2.0) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("before", "after", "energy_j"),
    [(0.0, 1400.0, 1400.0), (7.0, 7.0, None), (0.0, 20_001.0, None), (7.0, 6.0, None), (None, 1.0, None)],
    ids=["believed", "stands still", "too fast", "backwards", "not read"],
)
def test_an_energy_counter_is_believed_only_if_it_can_be_true(before, after, energy_j):
    assert window_energy_j(before, after, 2.0) == energy_j


# ---- what slowed it down -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "causes"),
    [
        ({"throttle": {"sw_thermal": 0.06}, "throttle_resolution": 0.05}, ("sw_thermal",)),
        ({"throttle": {"sw_thermal": 0.04}, "throttle_resolution": 0.05}, ()),
        (
            {"throttle": {"sw_power_cap": 0.011, "power_brake": 0.5}, "throttle_resolution": 0.001},
            ("sw_power_cap", "power_brake"),
        ),
        ({"throttle": {"sw_power_cap": 0.009}, "throttle_resolution": 0.001}, ()),
        ({"throttle": {"hw_thermal": None}, "clock_events": ["hw_thermal", "gpu_idle"]}, ("hw_thermal",)),
        ({"throttle": {"hw_thermal": 0.0}, "clock_events": ["hw_thermal"]}, ()),
        ({"throttle": {"cgroup_quota": 0.2, "steal": 0.0}, "throttle_resolution": 0.005}, ("cgroup_quota",)),
        ({}, ()),
        ({"throttle": None, "clock_events": None}, ()),
    ],
)
def test_slowdowns_of_new_and_old_records(row, causes):
    assert slowdowns(row) == causes


# ---- a CPU ---------------------------------------------------------------------------------------------------------


def test_a_cpu_has_the_keys_of_a_gpu_without_values_and_asks_no_driver(machine):
    before, after = two_cpu_snapshots()
    row = row_telemetry(before, after, launches=10, flops=10**9)
    assert machine.asked == []
    assert row["window_s"] == after.taken_s - before.taken_s
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    assert (row["host_throttle"], row["errors"]) == (None, {})
    assert set(row["throttle"]) == {"cgroup_quota", "steal"}
    assert row["throttle_resolution"] == pytest.approx(0.01 / row["window_s"])
    assert row["involuntary_switches_per_s"] >= 0
    assert {key: row[key] for key in ("governor", "turbo")} == {"governor": host.governor(), "turbo": host.turbo()}
    assert Monitor(CPU).clock_and_power() == telemetry.ClockAndPower(None, None)


# ---- polled while samples run ---------------------------------------------------------------------------------------


class Polled:
    """Answers with one reading after the other."""

    def __init__(self, readings):
        self.readings = iter(readings)

    def clock_and_power(self):
        return telemetry.ClockAndPower(*next(self.readings))


def test_clock_and_power_are_those_of_the_samples_and_not_of_the_end(machine):
    polled = [telemetry.ClockAndPower(*one) for one in ((1.4e9, 690.0), (1.5e9, 700.0), (1.7e9, 650.0))]
    row = measure(machine, polled=polled)
    assert (row["sm_clock_hz"], row["polls"]) == (1.5e9, 3)
    assert [row[f"sm_clock_{which}_hz"] for which in ("start", "min", "max")] == [1980e6, 1.4e9, 1.7e9]
    assert (row["power_min_w"], row["power_max_w"]) == (650.0, 700.0)
    assert (row["power_w"], row["power_source"]) == (pytest.approx(700), "energy-counter")  # better than a few readings
    row = measure(machine, polled=polled, window_s=0.5)
    assert (row["power_w"], row["power_source"]) == (690.0, "polled")


def test_the_poller_reads_behind_queued_work_and_remembers_for_which_samples():
    clock = iter([0.0, 0.0, 0.2, 0.4, 0.6, 0.6, 0.8, 1.2, 1.2])
    poller = telemetry.Poller(Polled([(1.9e9, 500.0), (1.5e9, 700.0), (1.4e9, 700.0)]), lambda: next(clock))
    for _ in range(6):
        poller(lambda: 100)
    assert poller.launches == 300
    assert poller.places == [0, 3, 5]
    assert [one.sm_clock_hz for one in poller.between(0, 2)] == [1.9e9]  # a burst
    assert [one.sm_clock_hz for one in poller.between(3, 99)] == [1.5e9, 1.4e9]  # what it could sustain
    assert [one.sm_clock_hz for one in poller.between(4, 5)] == [1.5e9]  # the one before, where none is within
    poller.begin()
    assert poller.between(0, 9) == []
