"""What stands for NVML: one of the recordings of `tests/bench/nvml_machines`, whose GPU is the simulated one.

The variable `RIDGEPOINT_SIMULATED_NVML` names the recording; without it, or by its name, `bare-metal` answers, but at a
clock and a power that nothing limits, and with this process alone on the GPU. `none`: there is no NVML.

A recording tells two moments that lie `RECORDED_S` apart. Here counters go on at that pace, and a clock, a power or an
event is that of the second moment while the device works and that of the first while it idles. Power is the mean of
the last second, as `nvmlDeviceGetPowerUsage` of a Hopper GPU is.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tests.bench.nvml_replay import Machine
from tests.simulated_gpu.clock import TIMELINE
from tests.simulated_gpu.cuda import PROPERTIES

MACHINE = "RIDGEPOINT_SIMULATED_NVML"
RECORDED_S = 2.0
MEAN_OF_S = 1.0
IDLE_W, WORKING_W = 110.0, 480.0
"""Power of the GPU that nothing limits; made up."""
COUNTERS = 10**9
"""A recorded number above it is a counter."""


class LiveMachine(Machine):
    """A recording that goes on."""

    def __init__(self, name: str, is_quiet: bool) -> None:
        """Read it.

        Args:
            name: of the recording.
            is_quiet: whether nothing limits clock and power, and no other process is there.
        """
        super().__init__(name)
        self._began_s, self._is_quiet = time.perf_counter(), is_quiet
        own = self.record["torch_uuid"]
        devices = self.record.get("devices", {})
        self.record["devices"] = {key.replace(own, PROPERTIES.uuid): value for key, value in devices.items()}

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer a call; what a quiet machine says otherwise comes first."""
        answer = super()._answer(name, arguments)
        if not self._is_quiet:
            return answer
        seconds = time.perf_counter() - self._began_s
        if name == "nvmlDeviceGetComputeRunningProcesses":
            answer[0].pid = os.getpid()
        quiet = {
            "nvmlDeviceGetPowerUsage": int(1e3 * power_w()),
            "nvmlDeviceGetTotalEnergyConsumption": 10**9 + int(1e3 * WORKING_W * seconds),
            "nvmlDeviceGetCurrentClocksEventReasons": 0 if is_working() else 1,
        }
        return quiet.get(name, answer)

    def _value(self, recorded: Any, arguments: tuple[Any, ...]) -> Any:
        """Return a recorded value as it is by now."""
        if not isinstance(recorded, dict) or "steps" not in recorded:
            return super()._value(recorded, arguments)
        first, *_, last = recorded["steps"]
        if self._is_quiet:
            return first
        if isinstance(first, int) and isinstance(last, int) and first > COUNTERS:
            return first + int((last - first) * (time.perf_counter() - self._began_s) / RECORDED_S)
        return super()._value(last if is_working() else first, arguments)


def is_working() -> bool:
    """Return whether the device has worked within the last tenth of a second."""
    return time.perf_counter() - TIMELINE.now_s < 0.1


def power_w() -> float:
    """Return the mean power of the last second, W."""
    now_s = time.perf_counter()
    share = min(1.0, TIMELINE.busy_s(now_s - MEAN_OF_S, now_s) / MEAN_OF_S)
    return IDLE_W + (WORKING_W - IDLE_W) * share


def install() -> None:
    """Put the machine in the place of pynvml."""
    name = os.environ.get(MACHINE, "")
    if name != "none":
        sys.modules["pynvml"] = LiveMachine(name or "bare-metal", is_quiet=not name).pynvml
