"""Telemetry of a record on a dozen replayed machines: what is told, what is missing and why; nothing raises."""

import json
import math
from dataclasses import replace

import pytest

from bench.harness.device import telemetry
from bench.harness.device.device import Device
from bench.harness.device.reading import Reading
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

CAUSES = ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake")

NO_SHARES = dict.fromkeys(CAUSES)


@pytest.fixture
def replay(monkeypatch):
    machines = nvml_replay.Replay(monkeypatch)
    yield machines
    machines.check()


def measure(machine, window_s=2.0, launches=1000, flops=10**12, polled=()):
    """Return the telemetry of a measurement during which a machine goes from its first step to its second."""
    monitor = Monitor(replace(H100, uuid=machine.torch_uuid))
    before = monitor.snapshot()
    machine.step = 1
    return row_telemetry(before, monitor.snapshot(), window_s, launches, flops, polled)


def gpu_errors(row):
    """Return the errors without those of the host that the tests run on."""
    host = ("governor", "turbo", "load_average", "cgroup_throttled_periods", "host_throttle.", "involuntary", "volun")
    return {key: text for key, text in row["errors"].items() if not key.startswith(host)}


# ---- one machine after the other -----------------------------------------------------------------------------------


def test_bare_metal_tells_everything(replay):
    row = measure(replay("bare-metal"))
    assert gpu_errors(row) == {}
    assert (row["sm_clock_start_hz"], row["sm_clock_hz"], row["memory_clock_hz"]) == (1980e6, 1755e6, 2619e6)
    assert row["temperature_c"] == 61
    # 1,400,000 mJ in 2 s are 700 W; over 1000 launches 1.4 J each; 1e12 FLOPs for 1.4 J
    assert (row["power_w"], row["power_source"]) == (pytest.approx(700), "energy-counter")
    assert row["energy_j"] == pytest.approx(1.4)
    assert row["flops_per_j"] == pytest.approx(1e12 / 1.4)
    # 0.9 s of 2 s below the power cap; no other counter moved
    assert row["throttle"] == {**dict.fromkeys(CAUSES, 0), "sw_power_cap": pytest.approx(0.45)}
    assert row["throttle_resolution"] == pytest.approx(0.05)
    assert row["clock_events"] == ["sw_power_cap"]
    assert slowdowns(row) == ("sw_power_cap",)


def test_a_mig_slice_has_the_clocks_of_its_gpu_and_no_energy_of_its_own(replay):
    row = measure(replay("mig-slice"))
    assert (row["sm_clock_hz"], row["memory_clock_hz"], row["temperature_c"]) == (1410e6, 1593e6, 48)
    assert (row["power_w"], row["power_source"], row["energy_j"], row["flops_per_j"]) == (None, None, None, None)
    assert gpu_errors(row) == dict.fromkeys(("power_w", "energy_j", "flops_per_j"), "SharedByMigSlices")
    assert row["throttle"]["sw_thermal"] == pytest.approx(0.25)
    assert slowdowns(row) == ("sw_thermal",)


def test_a_vgpu_tells_nothing_and_says_so(replay):
    row = measure(replay("vgpu"))
    assert row["throttle"] == NO_SHARES
    keys = (*telemetry.GPU_KEYS, "power_source")
    assert [row[key] for key in keys] == [None] * len(keys)
    thermal = "UnknownFieldId: driver 550.54.15"
    assert gpu_errors(row) == {
        **dict.fromkeys(telemetry.GPU_KEYS, "NotSupported"),
        **{"throttle.sw_power_cap": "NotSupported", "throttle.sync_boost": "NotSupported"},
        **{f"throttle.{cause}": thermal for cause in CAUSES[2:]},
    }


@pytest.mark.parametrize(("name", "error"), [("no-driver", "LibraryNotFound"), ("no-bindings", "PynvmlMissing")])
def test_without_driver_or_bindings_there_is_one_error_and_no_value(replay, name, error):
    row = measure(replay(name))
    assert gpu_errors(row) == {"nvml": error}
    assert row["throttle"] == NO_SHARES
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)


@pytest.mark.parametrize("name", ["old-driver", "old-bindings"])
def test_older_names_of_functions_are_found(replay, name):
    row = measure(replay(name))
    assert (row["clock_events"], row["temperature_c"]) == (["sw_power_cap"], 61)
    assert row["throttle"]["sw_power_cap"] == pytest.approx(0.45)


def test_an_old_driver_has_no_thermal_counters(replay):
    row = measure(replay("old-driver"))
    unknown = "UnknownFieldId: driver 525.147.05"
    assert gpu_errors(row) == {f"throttle.{cause}": unknown for cause in ("sw_thermal", "hw_thermal", "power_brake")}


def test_old_bindings_without_the_energy_counter_leave_power_as_nvml_tells_it(replay):
    row = measure(replay("old-bindings"))
    assert (row["power_w"], row["power_source"]) == (pytest.approx(698.5), "power-usage")
    assert gpu_errors(row) == {"energy_j": "NotInBindings", "flops_per_j": "NotInBindings"}


def test_driver_580_65_counts_under_other_ids(replay):
    """The ids of newer drivers hold settings there; taken for nanoseconds they would be 45 % of the time."""
    row = measure(replay("release-580-65"))
    assert row["throttle"] == {
        **dict.fromkeys(CAUSES, 0),
        **{"sw_power_cap": pytest.approx(0.45), "sw_thermal": pytest.approx(0.25)},
        "power_brake": pytest.approx(0.125),
    }


def test_what_is_forbidden_is_missing_and_the_rest_is_told(replay):
    row = measure(replay("no-permission"))
    keys = ("power_w", "energy_j", "flops_per_j", *(f"throttle.{cause}" for cause in CAUSES))
    assert gpu_errors(row) == dict.fromkeys(keys, "NoPermission")
    assert (row["sm_clock_hz"], row["temperature_c"], row["power_source"]) == (1755e6, 61, None)
    assert slowdowns(row) == ("sw_power_cap",)  # no counter: the event that was seen counts


def test_of_two_gpus_ours_is_read_whatever_nvml_counts_first(replay):
    row = measure(replay("two-gpus"))
    assert (row["sm_clock_hz"], row["temperature_c"]) == (1755e6, 61)


def test_wsl_tells_clocks_and_heat(replay):
    row = measure(replay("wsl"))
    assert (row["sm_clock_hz"], row["memory_clock_hz"], row["temperature_c"]) == (2505e6, 10501e6, 58)
    keys = ("power_w", "energy_j", "flops_per_j", "clock_events", *(f"throttle.{cause}" for cause in CAUSES))
    assert gpu_errors(row) == dict.fromkeys(keys, "NotSupported")
    assert slowdowns(row) == ()


def test_counters_that_cannot_be_believed_are_missing(replay):
    row = measure(replay("broken-counters"))
    assert gpu_errors(row) == {
        "energy_j": "CounterWentBackwards",
        "flops_per_j": "CounterWentBackwards",
        "throttle.sw_power_cap": "CounterWentBackwards",
        "throttle.sync_boost": "CounterTooFast: 3.6e+03 s in 2 s",
        "throttle.sw_thermal": "Implausible: 18446744073709551615",
        "throttle.hw_thermal": "NotSupported",
    }
    assert row["throttle"] == {**NO_SHARES, "power_brake": pytest.approx(0.05)}
    assert (row["power_w"], row["power_source"]) == (pytest.approx(698.5), "power-usage")


def test_a_gpu_that_is_lost_on_the_way_has_its_last_known_clock_only(replay):
    row = measure(replay("lost-gpu"))
    assert row["sm_clock_start_hz"] == 1980e6
    assert (row["sm_clock_hz"], row["power_w"], row["energy_j"], row["throttle"]) == (None, None, None, NO_SHARES)
    assert set(gpu_errors(row).values()) == {"GpuIsLost"}


def test_answers_that_are_none_are_missing(replay):
    row = measure(replay("garbage"))
    assert row["throttle"] == NO_SHARES
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    found = gpu_errors(row)
    assert found["sm_clock_hz"] == "Implausible: 4294967295"
    assert found["memory_clock_hz"] == found["power_w"] == "Implausible: 0"
    assert found["temperature_c"] == "Implausible: str"
    assert found["energy_j"] == "Implausible: 18446744073709551615"
    assert found["throttle.sw_power_cap"] == "AttributeError"


# ---- all machines --------------------------------------------------------------------------------------------------


@pytest.fixture(params=nvml_replay.NAMES)
def machine(request, replay):
    return replay(request.param)


def test_every_machine_gives_the_same_keys_in_json_and_no_zero_for_what_is_missing(machine):
    row = measure(machine)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert list(row) == list(row_telemetry(*two_cpu_snapshots(), 2.0))
    for key in ("sm_clock_hz", "memory_clock_hz", "power_w", "temperature_c", "energy_j", "flops_per_j"):
        assert row[key] is None or row[key] > 0
    for key in telemetry.GPU_KEYS:
        assert row[key] is not None or key in row["errors"] or "nvml" in row["errors"], key


def test_every_recording_says_that_it_is_none(machine):
    assert machine.about.startswith("Made up from the documented behavior of NVML")


def test_there_are_at_least_eight_machines():
    required = ("bare-metal", "mig-slice", "vgpu", "no-driver", "old-driver", "no-permission", "two-gpus", "wsl")
    assert set(required) <= set(nvml_replay.NAMES)


def test_the_settling_warm_up_polls_clock_and_power_with_two_calls(replay):
    machine = replay("bare-metal")
    monitor = Monitor(replace(H100, uuid=machine.torch_uuid))
    machine.asked.clear()
    assert monitor.clock_and_power() == telemetry.ClockAndPower(1980e6, pytest.approx(640.25), 700.0)
    assert machine.asked == ["nvmlDeviceGetClockInfo", "nvmlDeviceGetPowerUsage"]


@pytest.mark.sampled(6)
def test_polling_a_machine_never_raises(machine):
    monitor = Monitor(replace(H100, uuid=machine.torch_uuid))
    for machine.step in (0, 1):
        polled = monitor.clock_and_power()
        assert polled.sm_clock_hz is None or polled.sm_clock_hz > 0
        assert polled.power_w is None or polled.power_w > 0


@pytest.mark.parametrize(("changes", "error"), [({"type": "rocm"}, "NotNvidia"), ({"uuid": None}, "NoUuid")])
def test_a_gpu_that_nvml_cannot_know_is_not_asked_for(replay, changes, error):
    machine = replay("bare-metal")
    monitor = Monitor(replace(H100, **{"uuid": machine.torch_uuid} | changes))
    assert gpu_errors(row_telemetry(monitor.snapshot(), monitor.snapshot(), 2.0)) == {"nvml": error}
    assert machine.asked == []


# ---- windows and counters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window_s", [0.0, -1.0, math.nan, math.inf])
def test_a_window_that_is_none_gives_no_rate(replay, window_s):
    row = measure(replay("bare-metal"), window_s=window_s)
    assert (row["window_s"], row["throttle"], row["throttle_resolution"]) == (None, NO_SHARES, None)
    assert (row["energy_j"], row["involuntary_switches_per_s"], row["power_source"]) == (None, None, "power-usage")
    json.dumps(row, allow_nan=False)


def test_a_short_window_has_no_energy_and_a_very_short_one_no_shares(replay):
    row = measure(replay("bare-metal"), window_s=0.95)
    assert (row["energy_j"], row["power_source"]) == (None, "power-usage")
    assert row["errors"]["energy_j"] == "WindowTooShort: 0.95 s, needs 1 s"
    assert row["throttle"]["sw_power_cap"] == pytest.approx(0.9 / 0.95)
    row = measure(replay("bare-metal"), window_s=0.19)
    assert row["throttle"] == NO_SHARES
    assert row["errors"]["throttle.sync_boost"] == "WindowTooShort: 0.19 s, needs 0.2 s"


def test_the_window_is_the_time_between_the_snapshots_unless_told():
    before, after = two_cpu_snapshots()
    assert row_telemetry(before, after)["window_s"] == after.taken_s - before.taken_s


@pytest.mark.parametrize(("launches", "flops"), [(None, 10**12), (0, 10**12), (1000, None), (1000, 0)])
def test_without_launches_or_flops_the_mean_power_is_still_told(replay, launches, flops):
    row = measure(replay("bare-metal"), launches=launches, flops=flops)
    assert row["power_w"] == pytest.approx(700)
    assert row["flops_per_j"] is None
    assert (row["energy_j"] is None) == (not launches)
    assert gpu_errors(row)["flops_per_j"] == ("NoFlops" if not flops else "NoLaunches")


@pytest.mark.parametrize(
    ("before", "after", "window_s", "share"),
    [
        (5.0, 5.9, 2.0, 0.45),
        (5.0, 5.0, 2.0, 0.0),
        (0.0, 2.05, 2.0, 1.025),  # a counter that advances in steps may run ahead by one; it is not cut off
        (0.0, 2.11, 2.0, None),
        (5.0, 4.9, 2.0, None),
    ],
)
def test_shares_of_time(before, after, window_s, share):
    found = share_of_time(Reading(before), Reading(after), window_s)
    assert found.value == (None if share is None else pytest.approx(share))
    assert (found.error is None) == (share is not None)


@pytest.mark.parametrize(
    ("before", "after"), [(Reading(error="Timeout"), Reading(1.0)), (Reading(1.0), Reading(error="Timeout"))]
)
def test_one_unread_counter_is_enough_for_no_share_and_no_energy(before, after):
    assert share_of_time(before, after, 2.0) == window_energy_j(before, after, 2.0) == Reading(error="Timeout")


def test_an_energy_counter_that_stands_still_or_runs_away_is_not_believed():
    assert window_energy_j(Reading(7.0), Reading(7.0), 2.0).error == "CounterStoodStill"
    assert window_energy_j(Reading(0.0), Reading(20_001.0), 2.0).error == "CounterTooFast: 2e+04 J in 2 s"
    assert window_energy_j(Reading(0.0), Reading(1400.0), 2.0) == Reading(1400.0)


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
        ({"throttle": {"thermal": False, "x": "much"}, "clock_events": 7, "throttle_resolution": "fine"}, ()),
    ],
)
def test_slowdowns_of_new_old_and_strange_records(row, causes):
    assert slowdowns(row) == causes


# ---- a CPU ---------------------------------------------------------------------------------------------------------


def two_cpu_snapshots():
    monitor = Monitor(CPU)
    return monitor.snapshot(), monitor.snapshot()


def test_a_cpu_has_the_keys_of_a_gpu_without_values_and_asks_no_driver(replay):
    machine = replay("bare-metal")
    before, after = two_cpu_snapshots()
    row = row_telemetry(before, after, 2.0, launches=10, flops=10**9)
    assert machine.asked == []
    assert [row[key] for key in telemetry.GPU_KEYS] == [None] * len(telemetry.GPU_KEYS)
    assert (row["power_source"], row["host_throttle"]) == (None, None)
    assert set(row["throttle"]) == {"cgroup_quota", "steal"}
    assert not {*telemetry.GPU_KEYS, "nvml"} & set(row["errors"])
    assert row["involuntary_switches_per_s"] >= 0
    assert Monitor(CPU).clock_and_power() == telemetry.ClockAndPower(None, None)


def test_switches_are_differences_per_second():
    before, after = two_cpu_snapshots()
    before = replace(
        before, host=replace(before.host, involuntary_switches=Reading(100), voluntary_switches=Reading(7))
    )
    after = replace(after, host=replace(after.host, involuntary_switches=Reading(150), voluntary_switches=Reading(7)))
    row = row_telemetry(before, after, 2.0)
    assert (row["involuntary_switches_per_s"], row["voluntary_switches_per_s"]) == (25.0, 0.0)


# ---- polled while samples run ---------------------------------------------------------------------------------------


class Polled:
    """Answers with one reading after the other."""

    def __init__(self, readings):
        self.readings = iter(readings)

    def clock_and_power(self):
        return telemetry.ClockAndPower(*next(self.readings))


def test_clock_and_power_are_those_of_the_samples_and_not_of_the_end(replay):
    machine = replay("bare-metal")
    at_the_end = measure(machine)
    polled = [telemetry.ClockAndPower(*one) for one in ((1.4e9, 690.0), (1.5e9, 700.0), (1.7e9, 650.0))]
    row = measure(machine, polled=polled)
    assert (row["sm_clock_hz"], row["sm_clock_min_hz"], row["sm_clock_max_hz"]) == (1.5e9, 1.4e9, 1.7e9)
    assert (row["power_min_w"], row["power_max_w"], row["polls"]) == (650.0, 700.0, 3)
    if at_the_end["power_source"] == "energy-counter":  # the true mean is better than a few readings
        assert row["power_w"] == pytest.approx(at_the_end["power_w"], rel=0.1)
    found = telemetry.polled_row({"power_source": "power-usage"}, polled)
    assert (found["power_w"], found["power_source"]) == (690.0, "polled")


def test_it_is_read_every_50_ms_and_told_for_which_samples():
    clock = iter([0.0, 0.0, 0.02, 0.04, 0.06, 0.06, 0.08, 0.12, 0.12])
    poller = telemetry.Poller(Polled([(1.9e9, 500.0), (1.5e9, 700.0), (1.4e9, 700.0)]), lambda: next(clock))
    for _ in range(6):
        poller()
    assert poller.places == [0, 3, 5]
    assert [one.sm_clock_hz for one in poller.between(0, 2)] == [1.9e9]  # a burst
    assert [one.sm_clock_hz for one in poller.between(3, 99)] == [1.5e9, 1.4e9]  # what it could sustain
    assert [one.sm_clock_hz for one in poller.between(4, 5)] == [1.5e9]  # the one before, where none is within
    poller.begin()
    assert poller.between(0, 9) == []
