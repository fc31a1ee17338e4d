"""The reader of NVML: UUIDs, errors by name, field values, ids by driver; and that nothing is ever written."""

import re
import sys
import types
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from test_telemetry import H100, measure

from bench.harness.device import nvml
from bench.harness.device.facts import gpu_facts
from bench.harness.device.reading import MAX_ERROR_LETTERS, Reading, attempt, difference, per_second
from bench.harness.device.telemetry import Monitor
from tests.bench import nvml_replay

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def replay(monkeypatch):
    machines = nvml_replay.Replay(monkeypatch)
    yield machines
    machines.check()


# ---- finding the GPU -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "GPU-"])
def test_a_gpu_is_found_by_its_uuid_with_or_without_prefix(replay, prefix):
    gpu = nvml.open_gpu(prefix + replay("bare-metal").torch_uuid)
    assert gpu.sm_clock_hz() == Reading(1980e6)
    assert (gpu.is_slice, gpu.driver) == (False, Reading("580.95.05"))


@pytest.mark.parametrize("prefix", ["", "MIG-"])
def test_a_slice_is_found_by_its_own_uuid_and_asked_through_its_gpu(replay, prefix):
    gpu = nvml.open_gpu(prefix + replay("mig-slice").torch_uuid)
    assert gpu.is_slice
    assert gpu.board.value != gpu.handle.value
    assert gpu.max_sm_clock_hz() == Reading(1410e6)
    assert gpu.power_w() == gpu.energy_j() == Reading(error="SharedByMigSlices")


def test_a_slice_whose_gpu_is_hidden_has_an_error_for_everything(replay):
    machine = replay("mig-slice")
    for calls in machine.record["devices"].values():
        calls.pop("parent", None)
    row = measure(machine)
    assert row["sm_clock_hz"] is None
    assert row["errors"]["nvml"] == "NotFound"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("uuid", ["00000000-1111", "GPU-00000000-1111", "MIG-0", "None", "\n"])
def test_a_uuid_that_nvml_does_not_know_is_an_error_not_another_gpu(replay, uuid):
    replay("two-gpus")
    assert nvml.open_gpu(uuid).sm_clock_hz() == Reading(error="NotFound")


@pytest.mark.parametrize("uuid", [None, ""])
def test_without_a_uuid_nothing_is_asked(replay, uuid):
    machine = replay("bare-metal")
    assert nvml.open_gpu(uuid).power_w() == Reading(error="NoUuid")
    assert machine.asked == []


@pytest.mark.parametrize(
    ("name", "driver"),
    [
        ("bare-metal", Reading("580.95.05")),
        ("no-driver", Reading(error="LibraryNotFound")),
        ("no-bindings", Reading(error="PynvmlMissing")),
    ],
)
def test_the_driver_is_told_without_a_gpu(replay, name, driver):
    replay(name)
    assert nvml.driver_version() == driver


def test_a_driver_version_in_bytes_is_text(replay, monkeypatch):
    monkeypatch.setattr(replay("bare-metal").pynvml, "nvmlSystemGetDriverVersion", lambda: b"580.95.05")
    assert nvml.driver_version() == Reading("580.95.05")


# ---- errors --------------------------------------------------------------------------------------------------------


def raising(error):
    def call(*arguments):
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED), "NotSupported"),
        (pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "GpuIsLost"),
        (pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND), "FunctionNotFound"),
        (pynvml.NVMLError(4711), "NVMLError 4711"),
        (AttributeError("libnvidia-ml.so.1: undefined symbol"), "AttributeError"),
        (OSError("x" * 1000), "OSError"),
        (RecursionError(), "RecursionError"),
        (type("E" * 200, (Exception,), {})(), "E" * MAX_ERROR_LETTERS),
    ],
)
def test_whatever_a_call_raises_is_an_error_by_name(monkeypatch, error, name):
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlDeviceGetPowerUsage=raising(error)))
    assert nvml.call("nvmlDeviceGetPowerUsage", "handle") == Reading(error=name)


def test_an_interruption_is_no_error_of_the_machine(monkeypatch):
    stop = types.SimpleNamespace(nvmlDeviceGetPowerUsage=raising(KeyboardInterrupt()))
    monkeypatch.setitem(sys.modules, "pynvml", stop)
    with pytest.raises(KeyboardInterrupt):
        nvml.call("nvmlDeviceGetPowerUsage", "handle")


def test_bindings_that_break_while_they_are_imported_are_an_error(monkeypatch, tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ZeroDivisionError\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml")
    assert nvml.call("nvmlInit") == Reading(error="PynvmlBroken: ZeroDivisionError")


def test_the_real_bindings_without_a_driver_raise_nothing():
    """Holds on a machine with a driver too: then there is a version, or the name of what is missing."""
    found = nvml.driver_version()
    assert (found.value is None) != (found.error is None)


@pytest.mark.parametrize("first", ["NotSupported", "NoPermission", "GpuIsLost"])
def test_another_name_is_tried_only_where_a_function_is_not_there(monkeypatch, first):
    fake = types.SimpleNamespace(one=raising(nvml_replay.error(first)), two=lambda: 7)
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert nvml.call_first(("one", "two")) == Reading(error=first)
    assert nvml.call_first(("none", "two")) == Reading(7)
    assert nvml.call_first(("none", "nor this")) == Reading(error="NotInBindings")


# ---- field values, words, ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "member", "value"),
    [
        (0, "dVal", 2.5),
        (1, "uiVal", 7),
        (2, "ulVal", 8),
        (3, "ullVal", 2**63),
        (4, "sllVal", -9),
        (5, "siVal", -1),
        (6, "usVal", 3),
    ],
)
def test_a_field_value_is_read_from_the_member_that_its_type_names(monkeypatch, kind, member, value):
    entry = pynvml.c_nvmlFieldValue_t(fieldId=74, valueType=kind)
    setattr(entry.value, member, value)
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(nvmlDeviceGetFieldValues=lambda h, ids: [entry]))
    assert nvml.field_values("handle", [74]) == {74: Reading(value)}


def test_a_field_value_without_entry_or_with_an_unknown_type_or_status_is_an_error(replay, monkeypatch):
    machine = replay("bare-metal")
    answers = [
        pynvml.c_nvmlFieldValue_t(fieldId=74, valueType=99),
        pynvml.c_nvmlFieldValue_t(fieldId=76, nvmlReturn=4711),
        pynvml.c_nvmlFieldValue_t(fieldId=269, nvmlReturn=pynvml.NVML_ERROR_NO_DATA),
    ]
    monkeypatch.setattr(machine.pynvml, "nvmlDeviceGetFieldValues", lambda handle, ids: answers)
    found = nvml.field_values("handle", [74, 76, 269, 270])
    assert [found[number].error for number in (74, 76, 269, 270)] == [
        "KeyError",
        "NVMLError 4711",
        "NoData",
        "NotReturned",
    ]


def test_all_counters_come_from_one_call(replay):
    machine = replay("bare-metal")
    gpu = nvml.open_gpu(machine.torch_uuid)
    machine.asked.clear()
    assert set(gpu.throttle_s()) == {"sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "power_brake"}
    assert machine.asked == ["nvmlDeviceGetFieldValues"]


@pytest.mark.parametrize(
    ("driver", "ids"),
    [
        ("570.172.08", (None, None, None)),
        ("575.51.03", (251, 252, 253)),
        ("580.65.06", (251, 252, 253)),
        ("580.76.05", (None, None, None)),  # between two numberings: not known which
        ("580.82.07", (269, 270, 271)),
        ("615.71.01", (269, 270, 271)),
        ("470.256", (None, None, None)),
        ("", (None, None, None)),
        ("unknown", (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_ids_of_the_counters_follow_the_driver(driver, ids):
    fields = nvml.throttle_fields(driver)
    assert (fields["sw_power_cap"], fields["sync_boost"]) == (74, 76)
    assert tuple(fields[cause] for cause in ("sw_thermal", "hw_thermal", "power_brake")) == ids


def test_ids_are_those_of_the_installed_bindings():
    """nvidia-ml-py 13.580.82 and newer; the ids of older drivers are in no newer bindings."""
    fields = nvml.throttle_fields("999.0")
    prefix = "NVML_FI_DEV_CLOCKS_EVENT_REASON_"
    names = {
        "sw_power_cap": "SW_POWER_CAP",
        "sync_boost": "SYNC_BOOST",
        "sw_thermal": "SW_THERM_SLOWDOWN",
        "hw_thermal": "HW_THERM_SLOWDOWN",
        "power_brake": "HW_POWER_BRAKE_SLOWDOWN",
    }
    assert {cause: getattr(pynvml, prefix + name, None) for cause, name in names.items()} == fields


def test_clock_events_are_those_of_the_installed_bindings():
    assert nvml.clock_event_words(0) == ()
    assert nvml.clock_event_words(pynvml.nvmlClocksThrottleReasonAll) == tuple(nvml.CLOCK_EVENTS.values())
    assert nvml.clock_event_words(0x04 | 0x40 | 0x8000) == ("sw_power_cap", "hw_thermal", "0x8000")
    assert nvml.CLOCK_EVENTS[pynvml.nvmlClocksEventReasonSwThermalSlowdown] == "sw_thermal"
    assert nvml.CLOCK_EVENTS[pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown] == "power_brake"
    assert nvml.CLOCK_EVENTS[pynvml.nvmlClocksEventReasonApplicationsClocksSetting] == "applications_clocks"


# ---- readings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 101, 2**64 - 1, float("nan"), float("inf"), True, "7", None, [7], object()])
def test_a_number_out_of_its_range_is_no_number(value):
    found = Reading(value).number(1, 100, 1e6)
    assert found.value is None
    assert found.error.startswith("Implausible")


def test_readings_keep_their_error():
    broken = Reading(error="Timeout")
    assert broken.number(0, 1) == broken.map(str) == per_second(broken, 1.0) == broken
    assert difference(broken, Reading(1)) == difference(Reading(1), broken) == broken
    assert Reading(7).map(lambda value: value / 0) == Reading(error="ZeroDivisionError")
    assert attempt(lambda: None) == Reading(error="NoValue")
    assert difference(Reading(7), Reading(7)) == Reading(0)  # a zero that was measured is one
    assert per_second(Reading(7), 0.0) == Reading(error="NoWindow")


# ---- nothing is written --------------------------------------------------------------------------------------------

WRITES = re.compile(r"nvml\w*(Set|Reset|Clear|Create|Destroy|Modify|Remove|Activate|Update|Control|Freeze)\w*")


@pytest.mark.parametrize("name", nvml_replay.NAMES)
def test_no_setter_of_nvml_is_called_on_any_machine(replay, name):
    """The replay answers a call that is no reading with an error, remembers it, and `check` fails."""
    machine = replay(name)
    device = replace(H100, uuid=machine.torch_uuid)
    measure(machine)
    for machine.step in (0, 1):
        gpu_facts(device)
        Monitor(device).clock_and_power()
        nvml.open_gpu(machine.torch_uuid).memory_bus_bits()
    assert machine.forbidden == []
    if machine.pynvml is not None:
        setters = [replaced for replaced in machine.replaced if replaced.startswith("nvmlDeviceSet")]
        assert len(setters) > 20
        with pytest.raises(RuntimeError, match="must not be called"):
            getattr(machine.pynvml, "nvmlDeviceSetPersistenceMode")("handle", 1)  # noqa: B009
        assert machine.forbidden.pop() == "nvmlDeviceSetPersistenceMode"


def test_no_source_names_a_function_that_writes_or_the_tool_that_does():
    sources = [path for folder in ("bench", "kernels", "roofline", "results") for path in (ROOT / folder).rglob("*.py")]
    assert len(sources) > 30
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sources
        for match in re.finditer(rf"{WRITES.pattern}|nvidia-smi['\", ]+-", path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_the_pattern_of_writing_functions_knows_them():
    names = [name for name in dir(pynvml) if callable(getattr(pynvml, name)) and name.startswith("nvmlDeviceSet")]
    assert "nvmlDeviceSetGpuLockedClocks" in names
    assert all(WRITES.fullmatch(name) and not nvml_replay.READS.fullmatch(name) for name in names)
