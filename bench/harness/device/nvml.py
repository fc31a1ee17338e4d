"""NVML, read only: one NVIDIA GPU found by its UUID, in SI base units; a missing fact is None.

The binding is nvidia-ml-py (`pynvml`), imported at the first use. Only functions that read are called: nothing here
changes a clock, a limit or a mode. Names and units are those of NVIDIA's nvml.h.

A GPU is never looked up by number: torch counts the GPUs that CUDA_VISIBLE_DEVICES leaves, fastest first, NVML counts
all of them in the order of the PCI bus.
"""

from __future__ import annotations

import os
from typing import Any

MAX_POWER_W = 10_000
"""No GPU draws 10 kW; the largest module of 2026 is limited to 1.4 kW."""

NOT_AVAILABLE = 2**64 - 1
"""A counter that the driver does not have. Source: nvml.h, `NVML_VALUE_NOT_AVAILABLE`, all 64 bits set."""

CLOCK_SM, CLOCK_MEMORY = 1, 2
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
"""Name of each bit of the clock event reasons; several can be set together. `applications_clocks` also stands for
clocks locked by hand. `hw_slowdown` may show for a moment while the clock changes.

Source: nvml.h, `nvmlClocksEventReason*`; the last two bits from nvidia-ml-py 13.615, `nvmlClocksThrottleReason*`."""

THROTTLE_FIELDS = {"sw_power_cap": 74, "thermal": 75, "sync_boost": 76}
"""Field ids of the counters of throttled time, nanoseconds.

Source: nvml.h, `NVML_FI_DEV_PERF_POLICY_POWER`, `_THERMAL` and `_SYNC_BOOST`; NVIDIA's DCGM documents the unit for
`DCGM_FI_DEV_POWER_VIOLATION` and its siblings, which read the same counters."""

POWER_INSTANT_FIELD = 186
"""Source: nvml.h, `NVML_FI_DEV_POWER_INSTANT`, in mW: the power now, without the mean of a second."""


def driver_version() -> str | None:
    """Return the version of the driver, for example `580.95.05`."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return None


class NvmlGpu:
    """One GPU as NVML shows it. No method raises or changes anything."""

    def __init__(self, uuid: str | None) -> None:
        """Find the GPU with a UUID as torch gives it, without a prefix.

        NVML is never shut down: torch may use it in the same process, and it ends with the process.
        """
        self.error: str | None = None
        """Why NVML does not know the GPU: the name of the error, `NotSupported` for `NVML_ERROR_NOT_SUPPORTED`."""
        self._handle: Any = None
        if not uuid:
            self.error = "NoUuid"
            return
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid.removeprefix('GPU-')}")
        except Exception as error:  # no binding, no driver, no such GPU
            self.error = type(error).__name__.removeprefix("NVMLError_")

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return what an NVML function reports of this GPU, or None if binding, driver or GPU lack it."""
        if self.error:
            return None
        import pynvml

        try:
            return getattr(pynvml, function)(self._handle, *arguments)
        except Exception:  # NVMLError; AttributeError if the binding lacks the function
            return None

    def fields(self, *ids: int) -> list[int | None]:
        """Return field values from one call, None for each field that the GPU lacks.

        Source: nvml.h, `nvmlDeviceGetFieldValues` and `nvmlFieldValue_t`: the call succeeds if any entry did;
        `valueType` selects the member of the union.
        """
        members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # nvmlValueType_t
        entries = self.ask("nvmlDeviceGetFieldValues", list(ids))
        if entries is None:
            return [None] * len(ids)
        values = [getattr(x.value, members[x.valueType]) if x.nvmlReturn == 0 else NOT_AVAILABLE for x in entries]
        return [None if value == NOT_AVAILABLE else int(value) for value in values]

    def clock_hz(self, kind: int, function: str = "nvmlDeviceGetClockInfo") -> float | None:
        """Return the clock of the SMs or of the memory, Hz; NVML counts in MHz."""
        return _scaled(self.ask(function, kind), 1e6)

    def memory_bus_bits(self) -> int | None:
        """Return the width of the memory interface, bits."""
        bits: int | None = self.ask("nvmlDeviceGetMemoryBusWidth")
        return bits or None

    def power_w(self) -> float | None:
        """Return the power now, W, or of the last second if the GPU lacks field 186."""
        [power_mw] = self.fields(POWER_INSTANT_FIELD)
        return _scaled(power_mw or self.ask("nvmlDeviceGetPowerUsage"), 1e-3)

    def energy_j(self) -> float | None:
        """Return the energy used since the driver was loaded, J; NVML counts in mJ."""
        return _scaled(self.ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)

    def temperature_c(self) -> int | None:
        """Return the temperature of the GPU, degrees Celsius. Source: nvml.h, `NVML_TEMPERATURE_GPU` (0)."""
        found: int | None = self.ask("nvmlDeviceGetTemperature", 0)
        return found

    def clock_events(self) -> tuple[str, ...] | None:
        """Return what holds the clocks down now, names of `CLOCK_EVENTS`; a newer bit stays a number."""
        mask = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            return None
        bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
        return tuple(CLOCK_EVENTS.get(bit, f"{bit:#x}") for bit in bits)

    def power_limit_w(self) -> float | None:
        """Return the power limit in force, W."""
        return _scaled(self.ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3)

    def throttle_s(self) -> dict[str, float | None]:
        """Return for each cause of `THROTTLE_FIELDS` how long it has held the clocks down so far, seconds."""
        found = self.fields(*THROTTLE_FIELDS.values())
        return {
            cause: None if value is None else value * 1e-9 for cause, value in zip(THROTTLE_FIELDS, found, strict=True)
        }

    def clock_mode(self) -> str | None:
        """Return how the clock of the SMs is set: `default`, `applications 1410 MHz`, or `locked 1410 MHz`.

        NVML reports applications clocks, but no locked ones: these show by the event `applications_clocks` while the
        GPU works, at the clock of that moment. An idle GPU has no such event, and its mode is not known.

        Source: `nvmlDeviceGetApplicationsClock` and `nvmlDeviceGetDefaultApplicationsClock`, deprecated in CUDA 13.
        """
        target = self.clock_hz(CLOCK_SM, "nvmlDeviceGetApplicationsClock")
        usual = self.clock_hz(CLOCK_SM, "nvmlDeviceGetDefaultApplicationsClock")
        if target and usual and target != usual:
            return f"applications {target / 1e6:.0f} MHz"
        events, clock = self.clock_events(), self.clock_hz(CLOCK_SM)
        if events is None or "gpu_idle" in events:
            return None
        if "applications_clocks" not in events:
            return "default"
        return None if clock is None else f"locked {clock / 1e6:.0f} MHz"

    def modes(self) -> dict[str, Any]:
        """Return the settings that make two runs incomparable if they differ; ask a GPU that has just worked."""
        default_w = _scaled(self.ask("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3)
        return {
            "clock_mode": self.clock_mode(),
            "power_limit_w": self.power_limit_w(),
            "power_limit_default_w": default_w,
        }

    def facts(self) -> dict[str, Any]:
        """Return what a report on the state of the GPU needs.

        Returns:
            The keys of `modes`; `sm_clock_hz`, `max_sm_clock_hz`, `clock_events`; `remapped_rows`: `pending` (a reset
            is needed) and `failed` (the memory is beyond repair); `other_processes`: `pid` of each other compute
            process; `own_process_seen`: whether NVML lists this process, which it does not by its own id in a
            container; `errors`: `nvml`, the name of the error if NVML could not be asked at all.
        """
        rows = self.ask("nvmlDeviceGetRemappedRows")
        listed = self.ask("nvmlDeviceGetComputeRunningProcesses")
        pids = None if listed is None else [int(process.pid) for process in listed]
        return self.modes() | {
            "sm_clock_hz": self.clock_hz(CLOCK_SM),
            "max_sm_clock_hz": self.clock_hz(CLOCK_SM, "nvmlDeviceGetMaxClockInfo"),
            "clock_events": self.clock_events(),
            "remapped_rows": None if rows is None else {"pending": bool(rows[2]), "failed": bool(rows[3])},
            "other_processes": None if pids is None else [{"pid": pid} for pid in pids if pid != os.getpid()],
            "own_process_seen": None if pids is None else os.getpid() in pids,
            "errors": {"nvml": self.error} if self.error else {},
        }


def _scaled(value: float | None, unit: float) -> float | None:
    """Return a reading in SI units; 0 is how NVML reports a clock or a power that it does not know."""
    return value * unit if value else None
