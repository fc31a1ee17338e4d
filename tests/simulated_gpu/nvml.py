"""What stands for NVML: the recording of `tests/bench/nvml_machine.json`, whose GPU is the simulated one.

Nothing limits its clock and power, and this process is alone on it. Power is the mean of the last second, as
`nvmlDeviceGetPowerUsage` of a Hopper GPU is.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from tests.bench.nvml_replay import Machine
from tests.simulated_gpu.clock import TIMELINE
from tests.simulated_gpu.cuda import PROPERTIES

MEAN_OF_S = 1.0
IDLE_W, WORKING_W = 110.0, 480.0
"""Power of the GPU that nothing limits; made up."""


class LiveMachine(Machine):
    """The recording at its first moment, with power, energy and events of now."""

    def __init__(self) -> None:
        super().__init__()
        self._began_s, self.uuid = time.perf_counter(), PROPERTIES.uuid
        del self.gpu["nvmlDeviceGetFieldValues"]["fields"]["186"]

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> Any:
        seconds = time.perf_counter() - self._began_s
        live = {
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=os.getpid())],
            "nvmlDeviceGetPowerUsage": int(1e3 * power_w()),
            "nvmlDeviceGetTotalEnergyConsumption": 10**9 + int(1e3 * WORKING_W * seconds),
            "nvmlDeviceGetCurrentClocksEventReasons": 0 if is_working() else 1,
        }
        return live[name] if name in live else super()._answer(name, arguments)


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
    sys.modules["pynvml"] = LiveMachine().pynvml
