"""One GPU through a replayed NVML, which rejects writes: reported and missing values."""

import sys

import pynvml
import pytest

from bench.harness.device import gpu_state
from tests.bench import nvml_replay


@pytest.fixture
def machine(monkeypatch):
    machine = nvml_replay.install(monkeypatch)
    yield machine
    assert machine.forbidden == []


@pytest.mark.parametrize("answer", [{"error": "NotSupported"}, {"error": "GpuIsLost"}])
def test_values_the_driver_does_not_support_are_none(machine, answer):
    assert gpu_state.driver_version() == "580.95.05"
    machine.gpu.update(dict.fromkeys(machine.gpu, answer))
    modes, state = gpu_state.modes(machine.uuid), gpu_state.gpu_state(machine.uuid)
    assert state.pop("errors") == {}
    assert (
        set(state.pop("throttle_s").values())
        == set(modes.values())
        == set(state.values())
        == {None}
    )


@pytest.mark.parametrize("problem", ["NotFound", "LibraryNotFound", "ModuleNotFoundError"])
def test_missing_binding_driver_or_gpu_is_one_error(machine, monkeypatch, problem):
    uuid = None if problem == "NotFound" else machine.uuid
    if problem == "LibraryNotFound":
        machine.record["system"]["nvmlInit"] = {"error": problem}
    if problem == "ModuleNotFoundError":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_state.errors(uuid) == {"nvml": problem}
    assert set(gpu_state.modes(uuid).values()) == {None}


def test_a_missing_field_is_replaced_or_none(machine):
    fields = machine.gpu["nvmlDeviceGetFieldValues"]["fields"]
    fields["74"] = 2**64 - 1  # a value the driver does not support
    assert gpu_state.gpu_state(machine.uuid)["throttle_s"]["sw_power_cap"] is None
    assert gpu_state.clock_and_power(machine.uuid) == (1980e6, pytest.approx(655))
    del fields[str(gpu_state.POWER_INSTANT_FIELD)]
    # The mean of a second.
    assert gpu_state.clock_and_power(machine.uuid) == (1980e6, pytest.approx(640.25))


def test_field_numbers_match_the_installed_binding(machine):
    fields = {"sw_power_cap": "POWER", "thermal": "THERMAL", "sync_boost": "SYNC_BOOST"}
    numbers = {
        cause: getattr(pynvml, f"NVML_FI_DEV_PERF_POLICY_{name}") for cause, name in fields.items()
    }
    assert numbers == gpu_state.THROTTLE_FIELDS
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == gpu_state.POWER_INSTANT_FIELD
    assert pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION == gpu_state.RECOMMENDED_ACTION_FIELD
    assert (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED) == (
        0,
        1,
    )
    assert pynvml.NVML_VOLATILE_ECC == 0
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (
        gpu_state.CLOCK_SM,
        gpu_state.CLOCK_MEMORY,
    )
    machine.gpu["nvmlDeviceGetCurrentClocksEventReasons"] = (
        pynvml.nvmlClocksThrottleReasonAll | 0x8000
    )
    assert gpu_state.clock_events(machine.uuid) == (*gpu_state.CLOCK_EVENTS.values(), "0x8000")
    assert gpu_state.CLOCK_EVENTS[pynvml.nvmlClocksEventReasonSwThermalSlowdown] == "sw_thermal"


LOCKED = {"nvmlDeviceGetCurrentClocksEventReasons": 2, "nvmlDeviceGetClockInfo": 1410}
NO_APPLICATIONS = {
    f"nvmlDeviceGet{name}ApplicationsClock": {"error": "Deprecated"} for name in ("", "Default")
}


@pytest.mark.parametrize(
    ("changes", "clock_mode"),
    [
        ({}, "default"),
        # The power limit is not a clock setting.
        ({"nvmlDeviceGetCurrentClocksEventReasons": 4}, "default"),
        (LOCKED, "locked 1410 MHz"),
        ({"nvmlDeviceGetApplicationsClock": 1200}, "applications 1200 MHz"),
        (NO_APPLICATIONS | LOCKED, "locked 1410 MHz"),
        # Idle: a lock would not show.
        (NO_APPLICATIONS | {"nvmlDeviceGetCurrentClocksEventReasons": 1}, None),
        ({"nvmlDeviceGetCurrentClocksEventReasons": {"error": "NotSupported"}}, None),
    ],
)
def test_clock_mode_is_default_locked_or_applications(machine, changes, clock_mode):
    machine.gpu.update(changes)
    modes = {"clock_mode": clock_mode, "power_limit_w": 700.0, "power_limit_default_w": 700.0}
    assert gpu_state.modes(machine.uuid) == modes


def test_health_is_what_explains_a_slow_gpu(machine):
    del machine.gpu["nvmlDeviceGetMaxPcieLinkWidth"]
    machine.gpu["nvmlDeviceGetRemappedRows"] = [1, 0, True, False]
    machine.gpu["nvmlDeviceGetUtilizationRates"] = {"error": "NotSupported"}
    assert gpu_state.health(machine.uuid) == {
        "vbios": "96.00.74.00.01",
        "driver": "580.95.05",
        "mig_mode": False,
        "remapped_rows": {"corrected": 1, "uncorrected": 0, "pending": True, "failed": False},
        "ecc_errors": {"corrected": 2, "uncorrected": 2},
        "memory_used_bytes": 590809984,
        "utilization": None,
        "other_processes": 1,
        "power_limit_w": 700.0,
        "power_limit_default_w": 700.0,
        "link_generation_max": 5,
        "link_width_max": None,
        "recommended_action": 1,
        "errors": {
            "nvmlDeviceGetUtilizationRates": "NotSupported",
            "nvmlDeviceGetMaxPcieLinkWidth": "FunctionNotFound",
        },
    }
    assert gpu_state.pci_bus_id(machine.uuid) == "00000000:1B:00.0"
    assert gpu_state.link_state(machine.uuid) == {
        "link_generation": 5,
        "link_width": 8,
        "pcie_replays": 3,
    }


def test_health_without_nvml_has_one_error(machine):
    machine.record["system"]["nvmlInit"] = {"error": "LibraryNotFound"}
    health = gpu_state.health(machine.uuid)
    assert health.pop("errors") == {"nvml": "LibraryNotFound"}
    assert health.pop("ecc_errors") == {"corrected": None, "uncorrected": None}
    assert set(health.values()) == {None}
    assert gpu_state.pci_bus_id(machine.uuid) is None
