"""NVML, read only: one GPU found by its UUID, every call a value or the error's name, in SI base units.

The binding is nvidia-ml-py (`pynvml`), imported at the first call. Only functions that read are called: nothing here
changes a clock, a limit or a mode. Names and units are those of NVIDIA's nvml.h.

A GPU is never looked up by number: torch counts the GPUs that CUDA_VISIBLE_DEVICES leaves, fastest first, NVML counts
all of them in the order of the PCI bus.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness.device.reading import Reading, attempt, failed

MAX_CLOCK_MHZ = 20_000
"""No GPU clock is higher: SMs stay below 4 GHz, and GDDR7 of 32 Gbit/s a pin counts as 16 GHz."""

MAX_POWER_MW = 10_000_000
"""No GPU draws 10 kW; the largest module of 2026 is limited to 1.4 kW."""

MAX_COUNTER = 2**63 - 1
"""Largest counter believed. NVML_VALUE_NOT_AVAILABLE has all 64 bits set; two of them would differ by a false 0."""

SLICED = "SharedByMigSlices"
"""Why a MIG slice has no power or energy of its own: NVML meters the whole GPU, with what the other slices draw."""

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
"""Word for each bit of the clock event reasons; several can be set at once. `applications_clocks` also stands for
clocks locked by hand. `hw_slowdown` may show for a moment while the clock changes.

Source: nvml.h, `nvmlClocksEventReason*`; the last two bits from nvidia-ml-py 13.615, `nvmlClocksThrottleReason*`."""

POWER_FIELDS = {"sw_power_cap": 74, "sync_boost": 76}
"""Field ids of the counters that every driver numbers alike.

Source: nvml.h, `NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP` (= `NVML_FI_DEV_PERF_POLICY_POWER`), `..._SYNC_BOOST`."""

THERMAL_CAUSES = ("sw_thermal", "hw_thermal", "power_brake")
"""Causes whose counters have consecutive field ids, see `throttle_fields`."""

_MISSING = ("NotInBindings", "FunctionNotFound", "ArgumentVersionMismatch", "Deprecated")
"""Errors that say that a function is not there, rather than that the GPU has no answer: another name may work."""


def call(function: str, *arguments: Any) -> Reading:
    """Return what an NVML function returns, or the error's name.

    Errors of this binding, beside those of nvml.h: `PynvmlMissing` (nvidia-ml-py cannot be imported) and
    `NotInBindings` (it is older than the function).
    """
    try:
        import pynvml
    except Exception as error:  # a broken binding raises what it likes
        return failed("PynvmlMissing" if isinstance(error, ImportError) else f"PynvmlBroken: {type(error).__name__}")
    if not hasattr(pynvml, function):
        return failed("NotInBindings")
    return attempt(lambda: getattr(pynvml, function)(*arguments))


def call_first(functions: Sequence[str], *arguments: Any) -> Reading:
    """Return what the first function that is there returns: newer drivers rename functions, older ones lack them."""
    reading = failed("NotInBindings")
    for function in functions:
        reading = call(function, *arguments)
        if reading.error not in _MISSING:
            break
    return reading


def start() -> Reading:
    """Start NVML, or find it started; the error says why it cannot be.

    It is never shut down: torch may use it in the same process, and it ends with the process.
    """
    started = call("nvmlInit")
    return Reading(True) if started.error == "NoValue" else started  # it returns None when all is well


def driver_version() -> Reading:
    """Return the version of the driver as text, for example `580.95.05`."""
    started = start()
    return started if started.error else call("nvmlSystemGetDriverVersion").map(_text)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def field_values(handle: Any, ids: Sequence[int]) -> dict[int, Reading]:
    """Return field values by id, all from one call; each entry has an error of its own.

    Source: nvml.h, `nvmlDeviceGetFieldValues` and `nvmlFieldValue_t`: the call succeeds if any entry did, so the
    `nvmlReturn` of each is looked at before its value; `valueType` tells which member of the union holds it.
    """
    answer = call("nvmlDeviceGetFieldValues", handle, list(ids))
    if answer.error is not None:
        return dict.fromkeys(ids, answer)
    entries = attempt(lambda: {int(entry.fieldId): entry for entry in answer.value})
    if entries.error is not None:
        return dict.fromkeys(ids, entries)
    return {number: _field(entries.value.get(number)) for number in ids}


def _field(entry: Any) -> Reading:
    if entry is None:
        return failed("NotReturned")
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # nvmlValueType_t
    status = attempt(lambda: int(entry.nvmlReturn))
    if status.value == 0:
        return attempt(lambda: getattr(entry.value, members[int(entry.valueType)]))
    return status if status.error else failed(_status_name(status.value))


def _status_name(status: int) -> str:
    def name() -> str:
        import pynvml

        return type(pynvml.NVMLError(status)).__name__.removeprefix("NVMLError_")

    known = attempt(name)
    return known.value if known.value not in (None, "NVMLError") else f"NVMLError {status}"


def clock_event_words(mask: int) -> tuple[str, ...]:
    """Return the words of a bitmask of clock event reasons; a bit without a word stays a number."""
    bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
    return tuple(CLOCK_EVENTS.get(bit, f"{bit:#x}") for bit in bits)


def throttle_fields(driver: str | None) -> dict[str, int | None]:
    """Return the field id of each throttle counter in the numbering of a driver, None where none is known.

    The three thermal and power-brake counters were renumbered although nvml.h promises that ids never change: 251 to
    253 in releases 575 and 580.65, where 269 to 271 mean settings of power smoothing; 269 to 271 from 580.82 on. Older
    releases have none. Which numbering the releases between 580.65 and 580.82 have is not known, so they are not asked.

    Source: `NVML_FI_DEV_CLOCKS_EVENT_REASON_*` in nvidia-ml-py 12.570.172 (absent), 12.575.51 and 13.580.65 (251 to
    253), 13.580.82, 13.590.48 and 13.615.71 (269 to 271); a trace of nvidia-smi 580.65.06, which asks for 251 to 253.
    """
    first: int | None = None
    version = re.match(r"(\d+)\.(\d+)", driver or "")
    if version:
        release = (int(version[1]), int(version[2]))
        if (575, 0) <= release <= (580, 65):
            first = 251
        elif release >= (580, 82):
            first = 269
    thermal = {cause: None if first is None else first + place for place, cause in enumerate(THERMAL_CAUSES)}
    return POWER_FIELDS | thermal


@dataclass(frozen=True)
class NvmlGpu:
    """One GPU, or one MIG slice of one, as NVML shows it. No method raises or changes anything."""

    handle: Reading
    """NVML's handle of the device that torch computes on; its error says why there is none."""
    board: Reading
    """Handle of the whole GPU: the same, except for a MIG slice."""
    is_slice: bool
    driver: Reading
    """Version of the driver, text."""

    def ask(self, *functions: str, arguments: tuple[Any, ...] = ()) -> Reading:
        """Return the answer for the device itself, from the first of `functions` that is there."""
        return self.handle if self.handle.error else call_first(functions, self.handle.value, *arguments)

    def ask_board(self, *functions: str, arguments: tuple[Any, ...] = ()) -> Reading:
        """Return the answer for the whole GPU: clocks, heat and limits are not those of a slice."""
        return self.board if self.board.error else call_first(functions, self.board.value, *arguments)

    def sm_clock_hz(self) -> Reading:
        """Return the clock of the SMs now, Hz. Source: `nvmlDeviceGetClockInfo`, `NVML_CLOCK_SM` (1), in MHz."""
        return self._clock("nvmlDeviceGetClockInfo", 1)

    def memory_clock_hz(self) -> Reading:
        """Return the clock of the memory now, Hz. Source: `nvmlDeviceGetClockInfo`, `NVML_CLOCK_MEM` (2), in MHz."""
        return self._clock("nvmlDeviceGetClockInfo", 2)

    def max_sm_clock_hz(self) -> Reading:
        """Return the highest clock of the SMs, Hz. Source: `nvmlDeviceGetMaxClockInfo`, in MHz."""
        return self._clock("nvmlDeviceGetMaxClockInfo", 1)

    def max_memory_clock_hz(self) -> Reading:
        """Return the highest clock of the memory, Hz. Source: `nvmlDeviceGetMaxClockInfo`, in MHz."""
        return self._clock("nvmlDeviceGetMaxClockInfo", 2)

    def _clock(self, function: str, kind: int) -> Reading:
        return self.ask_board(function, arguments=(kind,)).number(1, MAX_CLOCK_MHZ, 1e6)

    def memory_bus_bits(self) -> Reading:
        """Return the width of the memory interface, bits. Source: `nvmlDeviceGetMemoryBusWidth`."""
        return self.ask_board("nvmlDeviceGetMemoryBusWidth").number(1, 2**20)

    def power_w(self) -> Reading:
        """Return the power of the GPU, W.

        Source: `nvmlDeviceGetPowerUsage`, in mW: the mean of the last second on Ampere and newer, except GA100 (A100)
        and on older GPUs, where it is the power at this moment.
        """
        return failed(SLICED) if self.is_slice else self.power("nvmlDeviceGetPowerUsage")

    def power(self, function: str) -> Reading:
        """Return a power or a power limit of the whole GPU, W, from an NVML function that answers in mW."""
        return self.ask_board(function).number(1, MAX_POWER_MW, 1e-3)

    def energy_j(self) -> Reading:
        """Return the energy used since the driver was loaded, J.

        Source: `nvmlDeviceGetTotalEnergyConsumption`, in mJ.
        """
        if self.is_slice:
            return failed(SLICED)
        return self.ask_board("nvmlDeviceGetTotalEnergyConsumption").number(0, MAX_COUNTER, 1e-3)

    def temperature_c(self) -> Reading:
        """Return the temperature of the GPU, degrees Celsius.

        Source: `nvmlDeviceGetTemperatureV` (older drivers `nvmlDeviceGetTemperature`), `NVML_TEMPERATURE_GPU` (0).
        """
        functions = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        return self.ask_board(*functions, arguments=(0,)).number(-50, 150)

    def clock_events(self) -> Reading:
        """Return what holds the clocks down at this moment, a tuple of words of `CLOCK_EVENTS`.

        Source: `nvmlDeviceGetCurrentClocksEventReasons` (before release 535 `...ClocksThrottleReasons`).
        """
        functions = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        return self.ask_board(*functions).number(0, MAX_COUNTER).map(clock_event_words)

    def clock_mode(self) -> Reading:
        """Return how the clock of the SMs is set: `default`, `applications 1410 MHz`, or `locked 1410 MHz`.

        NVML tells applications clocks, but no locked ones: these show by the event `applications_clocks` while the GPU
        works, at the clock of that moment. An idle GPU has no such event, and its mode is not known.

        Source: `nvmlDeviceGetApplicationsClock` and `nvmlDeviceGetDefaultApplicationsClock`, `NVML_CLOCK_SM` (1), in
        MHz, deprecated in CUDA 13: where they are gone, the event alone tells. With the default as the target, GPUs
        from Pascal on boost as far as power and heat allow (nvml.h, on putting applications clocks back to it).
        """
        target = self._clock("nvmlDeviceGetApplicationsClock", 1)
        usual = self._clock("nvmlDeviceGetDefaultApplicationsClock", 1)
        if target.error is None and usual.error is None and target != usual:
            return Reading(f"applications {target.value / 1e6:.0f} MHz")
        events, clock = self.clock_events(), self.sm_clock_hz()
        if events.error is not None:
            return events
        if "gpu_idle" in events.value:
            return failed("GpuIdle")
        if "applications_clocks" not in events.value:
            return Reading("default")
        return clock.map(lambda clock_hz: f"locked {clock_hz / 1e6:.0f} MHz")

    def power_limit_w(self) -> Reading:
        """Return the power limit that holds now, W, whoever set it. Source: `nvmlDeviceGetEnforcedPowerLimit`."""
        return self.power("nvmlDeviceGetEnforcedPowerLimit")

    def power_limit_default_w(self) -> Reading:
        """Return the power limit that the GPU starts with, W. Source: `nvmlDeviceGetPowerManagementDefaultLimit`."""
        return self.power("nvmlDeviceGetPowerManagementDefaultLimit")

    def throttle_s(self) -> dict[str, Reading]:
        """Return for each cause how long it has held the clocks down since the driver was loaded, s, from one call.

        Source: `nvmlDeviceGetFieldValues`, the ids of `throttle_fields`. All are in nanoseconds, as NVIDIA's DCGM
        documents for `DCGM_FI_DEV_POWER_VIOLATION` and its siblings, which read the same counters.
        """
        fields = throttle_fields(self.driver.value)
        if self.board.error is not None:
            return dict.fromkeys(fields, self.board)
        found = field_values(self.board.value, [number for number in fields.values() if number is not None])
        unknown = failed(f"UnknownFieldId: driver {self.driver.value or self.driver.error}")
        return {
            cause: unknown if number is None else found[number].number(0, MAX_COUNTER, 1e-9)
            for cause, number in fields.items()
        }


def no_gpu(error: str) -> NvmlGpu:
    """Return a GPU that answers every question with `error`."""
    return NvmlGpu(failed(error), failed(error), is_slice=False, driver=failed(error))


def open_gpu(uuid: str | None) -> NvmlGpu:
    """Return the GPU or the MIG slice with a UUID.

    Args:
        uuid: as torch tells it (without a prefix), or as nvidia-smi does (`GPU-...`, `MIG-...`).

    Source: `nvmlDeviceGetHandleByUUID` takes the UUID of a GPU or of a MIG slice; CUDA gives a slice's own UUID where
    the process runs on a slice (`cuDeviceGetUuid_v2`).
    """
    if not uuid:
        return no_gpu("NoUuid")
    started = start()
    if started.error:
        return no_gpu(started.error)
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    found = [call("nvmlDeviceGetHandleByUUID", name) for name in names]
    place = next((place for place, handle in enumerate(found) if handle.error is None), None)
    if place is None:
        return no_gpu(found[0].error or "NotFound")
    handle, is_slice = found[place], names[place].startswith("MIG-")
    board = call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle.value) if is_slice else handle
    return NvmlGpu(handle, board, is_slice, driver_version())
