"""The state of one NVIDIA GPU, read by pynvml, in SI base units; a missing fact is None. Nothing
here changes a setting.

Names are those of NVIDIA's nvml.h. A GPU is identified by its UUID from torch, because indices
differ: torch numbers the GPUs in CUDA_VISIBLE_DEVICES, fastest first, NVML all of them in the order
of the PCI bus.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path("/")
"""Start of the paths of sysfs."""

NOT_AVAILABLE = 2**64 - 1
"""Value of a counter that the driver lacks. Source: nvml.h, `NVML_VALUE_NOT_AVAILABLE`, all 64 bits
set.
"""

CLOCK_SM = 1
CLOCK_MEMORY = 2
"""Source: nvml.h, `nvmlClockType_t`."""

CLOCK_EVENTS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Name of each bit of the clock event reasons; several can be set together. `applications_clocks`
also stands for clocks locked by hand. `hw_slowdown` may show for a moment while the clock changes.

Source: nvml.h, `nvmlClocksEventReason*`; the last two bits from nvidia-ml-py 13.615,
`nvmlClocksThrottleReason*`."""

THROTTLE_FIELDS = {"sw_power_cap": 74, "thermal": 75, "sync_boost": 76}
"""Field ids of the counters of throttled time, nanoseconds.

Source: nvml.h, `NVML_FI_DEV_PERF_POLICY_POWER`, `_THERMAL` and `_SYNC_BOOST`; NVIDIA's DCGM
documents the unit for `DCGM_FI_DEV_POWER_VIOLATION` and its siblings, which read the same
counters."""

POWER_INSTANT_FIELD = 186
"""Source: nvml.h, `NVML_FI_DEV_POWER_INSTANT`, in mW: instantaneous power, not the mean of a
second.
"""


class ClockAndPower(NamedTuple):
    """Current SM clock and power; None if unknown."""

    sm_clock_hz: float | None
    power_w: float | None


def gpu_state(uuid: str | None) -> dict[str, Any]:
    """Return the state of a GPU; clocks are read first, because they fall within milliseconds when
    a GPU idles.

    Besides keys of a record's telemetry it has `throttle_s`, the total seconds of throttling by
    each cause of `THROTTLE_FIELDS`, and `total_energy_j` since the driver was loaded.
    """
    sm_clock_hz, power_w = clock_and_power(uuid)
    return {
        "sm_clock_hz": sm_clock_hz,
        "memory_clock_hz": _scaled(ask(uuid, "nvmlDeviceGetClockInfo", CLOCK_MEMORY), 1e6),
        "power_w": power_w,
        "clock_events": clock_events(uuid),
        "temperature_c": ask(uuid, "nvmlDeviceGetTemperature", 0),  # NVML_TEMPERATURE_GPU
        "throttle_s": dict(
            zip(THROTTLE_FIELDS, _fields(uuid, 1e-9, *THROTTLE_FIELDS.values()), strict=True)
        ),
        "total_energy_j": _scaled(ask(uuid, "nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
        "errors": errors(uuid),
    }


def clock_and_power(uuid: str | None) -> ClockAndPower:
    """Return the SM clock and the power now, or the power of the last second if the GPU lacks field
    186.
    """
    clock_hz = _scaled(ask(uuid, "nvmlDeviceGetClockInfo", CLOCK_SM), 1e6)
    [power_w] = _fields(uuid, 1e-3, POWER_INSTANT_FIELD)
    return ClockAndPower(clock_hz, power_w or _scaled(ask(uuid, "nvmlDeviceGetPowerUsage"), 1e-3))


def clock_events(uuid: str | None) -> tuple[str, ...] | None:
    """Return what holds the clocks down now, names of `CLOCK_EVENTS`; a newer bit stays a
    number.
    """
    mask = ask(uuid, "nvmlDeviceGetCurrentClocksEventReasons")
    if mask is None:
        return None
    bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
    return tuple(CLOCK_EVENTS.get(bit, f"{bit:#x}") for bit in bits)


def modes(uuid: str | None) -> dict[str, Any]:
    """Return the settings that make two runs incomparable if they differ; ask a GPU that has just
    worked.

    `clock_mode` is `default`, `applications 1410 MHz`, or `locked 1410 MHz`. NVML reports no locked
    clocks: these show by the event `applications_clocks` at the clock of that moment. An idle GPU
    has no such event: its mode is None.
    """
    target = ask(uuid, "nvmlDeviceGetApplicationsClock", CLOCK_SM)
    usual = ask(uuid, "nvmlDeviceGetDefaultApplicationsClock", CLOCK_SM)
    events = clock_events(uuid)
    clock = ask(uuid, "nvmlDeviceGetClockInfo", CLOCK_SM)
    if target and usual and target != usual:
        clock_mode = f"applications {target} MHz"
    elif events is None or "gpu_idle" in events:
        clock_mode = None
    elif "applications_clocks" not in events:
        clock_mode = "default"
    else:
        clock_mode = f"locked {clock} MHz" if clock else None
    return {
        "clock_mode": clock_mode,
        "power_limit_w": _scaled(ask(uuid, "nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        "power_limit_default_w": _scaled(
            ask(uuid, "nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3
        ),
    }


RECOMMENDED_ACTION_FIELD = 230
"""Source: nvml.h, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`: 0 none, 1 reset, 2 reboot, 3 drain peers,
4 drain, reset.
"""


def health(uuid: str | None) -> dict[str, Any]:
    """Return what may explain a slow GPU; ask before this process uses it.

    `other_processes` and `memory_used_bytes` then belong to others. `utilization` is from 0 to 1.
    `ecc_errors` counts since the driver was loaded. `link_generation_max` is that of the GPU, which
    its slot may not have. `errors` has the name of the NVML error of each call that failed.
    """
    failures = errors(uuid)

    def value(function: str, *arguments: Any) -> Any:
        return None if "nvml" in failures else ask(uuid, function, *arguments, failures=failures)

    migs = value("nvmlDeviceGetMigMode")
    rows = value("nvmlDeviceGetRemappedRows")
    memory = value("nvmlDeviceGetMemoryInfo")
    busy = value("nvmlDeviceGetUtilizationRates")
    processes = value("nvmlDeviceGetComputeRunningProcesses")
    # NVML_VOLATILE_ECC
    ecc_errors = [value("nvmlDeviceGetTotalEccErrors", kind, 0) for kind in (0, 1)]
    [action] = _fields(uuid, 1, RECOMMENDED_ACTION_FIELD)
    return {
        "vbios": value("nvmlDeviceGetVbiosVersion"),
        "driver": driver_version(),
        "mig_mode": None if migs is None else bool(migs[0]),
        "remapped_rows": rows
        and dict(zip(("corrected", "uncorrected", "pending", "failed"), rows, strict=True)),
        "ecc_errors": dict(zip(("corrected", "uncorrected"), ecc_errors, strict=True)),
        "memory_used_bytes": memory and memory.used,
        "utilization": busy and busy.gpu / 100,
        "other_processes": None if processes is None else len(processes),
        "power_limit_w": _scaled(value("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        "power_limit_default_w": _scaled(value("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3),
        "link_generation_max": value("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
        "link_width_max": value("nvmlDeviceGetMaxPcieLinkWidth"),
        "recommended_action": action,
        "errors": failures,
    }


def pci_bus_id(uuid: str | None) -> str | None:
    """Return the bus id of a GPU as nvidia-smi prints it, such as `00000000:1B:00.0`."""
    info = ask(uuid, "nvmlDeviceGetPciInfo")
    return info and str(info.busId)


def local_cpus(uuid: str | None) -> frozenset[int]:
    """Return the cores of the GPU's NUMA node, none if unknown.

    Source: Linux, Documentation/ABI/testing/sysfs-bus-pci, `local_cpulist`, such as `0-3,8`.
    """
    # NVML writes the domain with eight digits, sysfs with four, in lower case.
    name = (pci_bus_id(uuid) or "").lower()[-12:]
    path = ROOT / f"sys/bus/pci/devices/{name}/local_cpulist"
    cpus: set[int] = set()
    if name and path.is_file():
        for part in path.read_text(encoding="utf-8").strip().split(","):
            first, _, last = part.partition("-")
            cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def link_state(uuid: str | None) -> dict[str, Any]:
    """Return generation and width of the PCI Express link now, and its replays so far; an idle link
    is slower.
    """
    return {
        "link_generation": ask(uuid, "nvmlDeviceGetCurrPcieLinkGeneration"),
        "link_width": ask(uuid, "nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_replays": ask(uuid, "nvmlDeviceGetPcieReplayCounter"),
    }


def driver_version() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return None


def errors(uuid: str | None) -> dict[str, str]:
    """Return the error of NVML under `nvml`, such as `NotSupported` for `NVML_ERROR_NOT_SUPPORTED`;
    empty if none.
    """
    try:
        handle_of(uuid)
    except Exception as error:  # no binding, no driver, no such GPU
        return {"nvml": type(error).__name__.removeprefix("NVMLError_")}
    return {}


def ask(
    uuid: str | None, function: str, *arguments: Any, failures: dict[str, str] | None = None
) -> Any:
    """Return the result of an NVML function for a GPU; None if pynvml, driver or GPU do not support
    it.

    The name of the error is added to `failures` under the function.
    """
    try:
        import pynvml

        return getattr(pynvml, function)(handle_of(uuid), *arguments)
    except Exception as error:
        if failures is not None:
            failures[function] = type(error).__name__.removeprefix("NVMLError_")
        return None


@functools.cache
def handle_of(uuid: str | None) -> Any:
    """Return NVML's handle of a GPU. NVML is not shut down, because torch may use it in the same
    process.
    """
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{(uuid or 'unknown').removeprefix('GPU-')}")


def _fields(uuid: str | None, unit: float, *ids: int) -> list[float | None]:
    """Return field values from one call, times `unit`; None for each field that the GPU lacks.

    Source: nvml.h, `nvmlDeviceGetFieldValues` and `nvmlFieldValue_t`: the call succeeds if any
    entry does; `valueType` selects the member of the union.
    """
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t
    entries = ask(uuid, "nvmlDeviceGetFieldValues", list(ids))
    if entries is None:
        return [None] * len(ids)
    values = [
        getattr(x.value, members[x.valueType]) if x.nvmlReturn == 0 else NOT_AVAILABLE
        for x in entries
    ]
    return [None if value == NOT_AVAILABLE else value * unit for value in values]


def _scaled(value: float | None, unit: float) -> float | None:
    """Return a reading in SI units; NVML reports 0 for an unknown clock or power."""
    return value * unit if value else None
