"""One GPU through a replayed NVML: what is reported, what is missing, and that nothing is written."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from test_telemetry import CPU, H100

from bench.harness.cli import session
from bench.harness.device.nvml import CLOCK_EVENTS, CLOCK_SM, POWER_INSTANT_FIELD, THROTTLE_FIELDS, NvmlGpu
from bench.harness.measure.plan import Settings
from results.compare.sides import CompareError, differences
from roofline.ceilings import Ceilings
from tests.bench import nvml_replay

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def machine(monkeypatch):
    found = nvml_replay.install(monkeypatch)
    yield found
    assert found.forbidden == []


def test_facts_of_a_gpu(machine):
    assert NvmlGpu(machine.uuid).facts() == {
        "clock_mode": "default",
        "power_limit_w": pytest.approx(700),
        "power_limit_default_w": pytest.approx(700),
        "sm_clock_hz": 1980e6,
        "max_sm_clock_hz": 1980e6,
        "clock_events": (),
        "remapped_rows": {"pending": False, "failed": False},
        "other_processes": [{"pid": 4242}],
        "own_process_seen": False,
        "errors": {},
    }


def test_own_process_and_sick_memory_show(machine):
    machine.gpu["nvmlDeviceGetComputeRunningProcesses"] = [{"object": {"pid": pid}} for pid in (7, os.getpid())]
    machine.gpu["nvmlDeviceGetRemappedRows"] = [12, 1, 1, 1]
    facts = NvmlGpu(machine.uuid).facts()
    assert (facts["other_processes"], facts["own_process_seen"]) == ([{"pid": 7}], True)
    assert facts["remapped_rows"] == {"pending": True, "failed": True}


@pytest.mark.parametrize("answer", [{"error": "NotSupported"}, {"error": "GpuIsLost"}])
def test_what_the_driver_refuses_is_missing_without_an_error(machine, answer):
    gpu = NvmlGpu(machine.uuid)
    machine.gpu.update(dict.fromkeys(machine.gpu, answer))
    facts = gpu.facts()
    assert facts.pop("errors") == {}
    assert set(facts.values()) == {None}
    assert (gpu.power_w(), gpu.energy_j(), gpu.temperature_c(), gpu.memory_bus_bits()) == (None,) * 4
    assert gpu.throttle_s() == dict.fromkeys(THROTTLE_FIELDS)


def test_a_function_that_the_binding_lacks_is_a_missing_fact(machine):
    del machine.pynvml.nvmlDeviceGetEnforcedPowerLimit
    assert NvmlGpu(machine.uuid).modes()["power_limit_w"] is None


def test_without_binding_driver_or_gpu_there_is_one_error(machine, monkeypatch):
    assert NvmlGpu(None).error == "NoUuid"
    assert NvmlGpu("another").error == "NotFound"
    assert machine.asked.pop() == "nvmlDeviceGetHandleByUUID"
    machine.record["system"]["nvmlInit"] = {"error": "LibraryNotFound"}
    assert NvmlGpu(machine.uuid).facts()["errors"] == {"nvml": "LibraryNotFound"}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    facts = NvmlGpu(machine.uuid).facts()
    assert facts.pop("errors") == {"nvml": "ModuleNotFoundError"}
    assert set(facts.values()) == {None}


def test_power_is_that_of_the_moment_or_else_nvmls_mean(machine):
    gpu = NvmlGpu(machine.uuid)
    assert gpu.power_w() == pytest.approx(655)
    del machine.gpu["nvmlDeviceGetFieldValues"]["fields"][str(POWER_INSTANT_FIELD)]
    assert gpu.power_w() == pytest.approx(640.25)


def test_a_counter_that_the_driver_marks_as_not_available_is_missing(machine):
    machine.gpu["nvmlDeviceGetFieldValues"]["fields"]["74"] = 2**64 - 1
    assert NvmlGpu(machine.uuid).throttle_s()["sw_power_cap"] is None


def test_numbers_are_those_of_the_installed_binding(machine):
    fields = {"sw_power_cap": "POWER", "thermal": "THERMAL", "sync_boost": "SYNC_BOOST"}
    assert {cause: getattr(pynvml, f"NVML_FI_DEV_PERF_POLICY_{name}") for cause, name in fields.items()} == (
        THROTTLE_FIELDS
    )
    assert pynvml.NVML_FI_DEV_POWER_INSTANT == POWER_INSTANT_FIELD
    assert pynvml.NVML_CLOCK_SM == CLOCK_SM
    machine.gpu["nvmlDeviceGetCurrentClocksEventReasons"] = pynvml.nvmlClocksThrottleReasonAll | 0x8000
    assert NvmlGpu(machine.uuid).clock_events() == (*CLOCK_EVENTS.values(), "0x8000")
    assert CLOCK_EVENTS[pynvml.nvmlClocksEventReasonSwThermalSlowdown] == "sw_thermal"


# ---- the modes that a run saves --------------------------------------------------------------------------------------


LOCKED = {"nvmlDeviceGetCurrentClocksEventReasons": 2, "nvmlDeviceGetClockInfo": 1410}
APPLICATIONS = {"nvmlDeviceGetApplicationsClock": 1200}
DEFAULT = "nvmlDeviceGetDefaultApplicationsClock"
GONE = {name: {"error": "Deprecated"} for name in ("nvmlDeviceGetApplicationsClock", DEFAULT)}


@pytest.mark.parametrize(
    ("changes", "clock_mode"),
    [
        ({}, "default"),
        ({"nvmlDeviceGetCurrentClocksEventReasons": 4}, "default"),  # the power limit is no setting of the clocks
        (LOCKED, "locked 1410 MHz"),
        (APPLICATIONS, "applications 1200 MHz"),
        (GONE | LOCKED, "locked 1410 MHz"),
        (GONE | {"nvmlDeviceGetCurrentClocksEventReasons": 1}, None),  # idle: a lock would not show
        ({"nvmlDeviceGetCurrentClocksEventReasons": {"error": "NotSupported"}}, None),
    ],
)
def test_the_clock_mode_of_a_gpu(machine, changes, clock_mode):
    machine.gpu.update(changes)
    found = replace(H100, uuid=machine.uuid).modes()
    assert found == {"clock_mode": clock_mode, "power_limit_w": 700.0, "power_limit_default_w": 700.0}


@pytest.fixture
def stamped(machine, monkeypatch):
    """Return a function that makes the environment line of a run whose NVML differs by `changes`."""
    monkeypatch.setattr(session, "preflight", lambda device, ceilings: {})
    usual = dict(machine.gpu)

    def stamp(changes):
        machine.gpu = usual | changes
        device = replace(H100, uuid=machine.uuid)
        return session.stamp("bench.matmul", device, Ceilings(H100.slug, H100.name, []), Settings(), [])

    return stamp


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            LOCKED | {"nvmlDeviceGetEnforcedPowerLimit": 500_000},
            "clock_mode default against locked 1410 MHz; power_limit_w 700.0 against 500.0",
        ),
        (APPLICATIONS, "clock_mode default against applications 1200 MHz"),
    ],
)
def test_runs_in_different_modes_are_not_compared(stamped, changes, message):
    usual, other = stamped({}), stamped(changes)
    with pytest.raises(CompareError) as refused:
        differences(usual, other, force=False)
    assert str(refused.value) == f"not the same machine: {message}; --force compares them all the same"
    assert differences(usual, other, force=True)[0].startswith("compared by force: clock_mode")


def test_a_mode_that_one_run_does_not_know_prevents_no_comparison(stamped, machine):
    known, silent = stamped(LOCKED), stamped({name: {"error": "NotSupported"} for name in machine.gpu})
    assert not [note for note in differences(known, silent, force=False) if "mode" in note or "limit" in note]


def test_a_run_on_a_cpu_saves_governor_and_turbo(machine):
    found = session.stamp("bench.matmul", CPU, Ceilings(CPU.slug, CPU.name, []), Settings(), []).device
    assert {key: found[key] for key in ("governor", "turbo")} == CPU.modes()
    assert json.loads(json.dumps(found)) == found
    fast, slow = ({"governor": "performance", "turbo": turbo} for turbo in (True, False))
    environment = session.stamp("bench.matmul", CPU, Ceilings(CPU.slug, CPU.name, []), Settings(), [])
    with pytest.raises(CompareError, match="turbo True against False"):
        differences(*(replace(environment, device=CPU.to_dict() | modes) for modes in (fast, slow)), force=False)


# ---- nothing is written --------------------------------------------------------------------------------------------

WRITES = re.compile(r"nvml\w*(Set|Reset|Clear|Create|Destroy|Modify|Remove|Activate|Update|Control|Freeze)\w*")


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
