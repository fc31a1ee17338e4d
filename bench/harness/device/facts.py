"""Facts about the machine and its other users, which a preflight page needs. Nothing is changed.

Two JSON objects, `gpu_facts` and `host_facts`: SI base units, None for what could not be read, and `errors` with the
reason by the same key (`nvml` where no GPU could be asked at all). `modes` are the few of them that every run keeps.
The keys of `gpu_facts`:

- `driver`, text; `is_mig_slice`.
- `power_limit_w` (enforced now, whoever set it), `power_limit_default_w`, `power_limit_min_w`, `power_limit_max_w`,
  `power_w`, `temperature_c`.
- `sm_clock_hz`, `memory_clock_hz` now; `max_sm_clock_hz`, `max_memory_clock_hz`; `clock_events`; `clock_mode`, see
  `nvml.Gpu.clock_mode`.
- `persistence`, `mig`, `ecc`, `confidential_compute`: on or off; `virtualization`: a word of `VIRTUALIZATION`.
- `remapped_rows`: `correctable` and `uncorrectable` counts, `pending` (a reset is needed), `failed` (the memory is
  beyond repair); `recovery_action`: a word of `RECOVERY_ACTIONS`.
- `memory_total_bytes`, `memory_used_bytes`; `other_processes`: `pid` and `memory_bytes` of each other compute process;
  `own_process_seen`: whether NVML lists this one. Where it does not although this process uses the device, the process
  ids of others are hidden as well, and `unexplained_memory_bytes` is what remains: memory in use that neither this
  process nor a listed one accounts for, the driver's own bookkeeping (some hundred megabytes) among it.

The keys of `host_facts`: `cores_allowed`, `cgroup_quota_cores` (None for no quota), `load_average` of the last minute,
`governor`, `turbo`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.device import nvml, reading
from bench.harness.device.device import Device
from bench.harness.device.reading import Reading
from bench.harness.device.system import ROOT, here

MAX_MEMORY_BYTES = 2**50
"""Largest believable memory of a GPU; a larger number is not an answer."""

VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
"""Word for each virtualization mode. Source: nvml.h, `nvmlGpuVirtualizationMode_t`."""

RECOVERY_ACTION_FIELD = 230
"""Field id of the driver's own advice. Source: nvml.h, `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`."""

RECOVERY_ACTIONS = {
    0: "none",
    1: "reset-gpu",
    2: "reboot-node",
    3: "drain-peer-to-peer",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "reset-bus",
    7: "reboot-system",
}
"""Word for each advice. Source: nvidia-ml-py 13.615, `NVML_GPU_RECOVERY_ACTION_*`."""


def gpu_facts(device: Device, own_pid: int | None = None) -> dict[str, Any]:
    """Return what NVML tells of a GPU, its settings, its health and its other users.

    Args:
        device: the device under test; anything but an NVIDIA GPU has only the error that says so.
        own_pid: process that is not "another"; by default this one.

    Returns:
        The keys that this file's opening lists.
    """
    gpu = _opened(device)
    readings = _settings(gpu) | _health(gpu) | _users(gpu, own_pid or os.getpid())
    readings["is_mig_slice"] = gpu.handle.map(lambda _: gpu.is_slice)
    unreachable = gpu.handle.error or gpu.board.error
    problems = {"nvml": unreachable} if unreachable else reading.errors(readings)
    return reading.values(readings) | {"errors": problems}


def _settings(gpu: nvml.NvmlGpu) -> dict[str, Reading]:
    """Return driver, limits, clocks and modes.

    Source: nvml.h, `nvmlDeviceGetPowerManagementLimitConstraints` (mW), `nvmlDeviceGetPersistenceMode`,
    `nvmlDeviceGetMigMode`,
    `nvmlDeviceGetEccMode` (current, pending), `nvmlDeviceGetVirtualizationMode`, `nvmlSystemGetConfComputeState`.
    """
    limits = gpu.ask_board("nvmlDeviceGetPowerManagementLimitConstraints")
    return {
        "driver": gpu.driver,
        "power_limit_w": gpu.power_limit_w(),
        "power_limit_default_w": gpu.power_limit_default_w(),
        "power_limit_min_w": limits.map(lambda pair: pair[0]).number(1, nvml.MAX_POWER_MW, 1e-3),
        "power_limit_max_w": limits.map(lambda pair: pair[1]).number(1, nvml.MAX_POWER_MW, 1e-3),
        "power_w": gpu.power_w(),
        "temperature_c": gpu.temperature_c(),
        "sm_clock_hz": gpu.sm_clock_hz(),
        "memory_clock_hz": gpu.memory_clock_hz(),
        "max_sm_clock_hz": gpu.max_sm_clock_hz(),
        "max_memory_clock_hz": gpu.max_memory_clock_hz(),
        "clock_mode": gpu.clock_mode(),
        "clock_events": gpu.clock_events().map(list),
        "persistence": _switch(gpu.ask_board("nvmlDeviceGetPersistenceMode")),
        "mig": _switch(gpu.ask_board("nvmlDeviceGetMigMode").map(lambda pair: pair[0])),
        "ecc": _switch(gpu.ask_board("nvmlDeviceGetEccMode").map(lambda pair: pair[0])),
        "virtualization": _word(gpu.ask_board("nvmlDeviceGetVirtualizationMode"), VIRTUALIZATION),
        "confidential_compute": _switch(_confidential_compute(gpu)),
    }


def _confidential_compute(gpu: nvml.NvmlGpu) -> Reading:
    """Return `ccFeature` of the whole system: NVML keeps it for no single GPU."""
    return (
        gpu.board if gpu.board.error else nvml.call("nvmlSystemGetConfComputeState").map(lambda state: state.ccFeature)
    )


def _health(gpu: nvml.NvmlGpu) -> dict[str, Reading]:
    """Return the state of the memory and the driver's advice.

    Source: nvml.h, `nvmlDeviceGetRemappedRows` (not there while MIG is on), field 230.
    """
    names = ("correctable", "uncorrectable", "pending", "failed")
    rows = gpu.ask_board("nvmlDeviceGetRemappedRows").map(lambda four: _rows(dict(zip(names, four, strict=True))))
    advice = gpu.board
    if gpu.board.error is None:
        advice = nvml.field_values(gpu.board.value, [RECOVERY_ACTION_FIELD])[RECOVERY_ACTION_FIELD]
    return {"remapped_rows": rows, "recovery_action": _word(advice, RECOVERY_ACTIONS)}


def _rows(counts: dict[str, int]) -> dict[str, int | bool]:
    return {
        "correctable": int(counts["correctable"]),
        "uncorrectable": int(counts["uncorrectable"]),
        "pending": bool(counts["pending"]),
        "failed": bool(counts["failed"]),
    }


def _users(gpu: nvml.NvmlGpu, own_pid: int) -> dict[str, Reading]:
    """Return the memory in use and who uses it.

    Source: nvml.h, `nvmlDeviceGetMemoryInfo`, `nvmlDeviceGetComputeRunningProcesses` (of a MIG slice: its own).
    """
    memory = gpu.ask("nvmlDeviceGetMemoryInfo")
    used = memory.map(lambda found: found.used).number(0, MAX_MEMORY_BYTES)
    listed = gpu.ask("nvmlDeviceGetComputeRunningProcesses").map(_processes)
    others = listed.map(lambda found: [process for process in found if process["pid"] != own_pid])
    own = listed.map(lambda found: [process for process in found if process["pid"] == own_pid])
    return {
        "memory_total_bytes": memory.map(lambda found: found.total).number(1, MAX_MEMORY_BYTES),
        "memory_used_bytes": used,
        "other_processes": others,
        "own_process_seen": own.map(bool),
        "unexplained_memory_bytes": used.map(lambda total: _unexplained(total, own, others)),
    }


def _processes(found: Sequence[Any]) -> list[dict[str, int | None]]:
    """Return id and memory of each process; the memory is None where the operating system keeps it to itself."""
    return [
        {
            "pid": int(process.pid),
            "memory_bytes": Reading(process.usedGpuMemory).number(0, MAX_MEMORY_BYTES).value,
        }
        for process in found
    ]


def _unexplained(used_bytes: int, own: Reading, others: Reading) -> int:
    listed = [*(own.value or []), *(others.value or [])]
    return max(0, used_bytes - sum(process["memory_bytes"] or 0 for process in listed))


def _switch(state: Reading) -> Reading:
    """Return whether a mode is on. Source: nvml.h, `nvmlEnableState_t`, 0 off and 1 on."""
    return state.number(0, 1).map(bool)


def _word(number: Reading, words: dict[int, str]) -> Reading:
    """Return the word for a number; one that is too new to have a word stays a number in text."""
    return number.number(0, 2**31).map(lambda found: words.get(int(found), f"unknown-{found}"))


def modes(device: Device, root: Path = ROOT) -> dict[str, Any]:
    """Return the settings that make two runs on one machine incomparable where they differ; None where not known.

    Args:
        device: the device under test; a GPU is best asked when it has just worked, see `nvml.Gpu.clock_mode`.
        root: folder below which Linux shows its state.

    Returns:
        `clock_mode`, `power_limit_w` and `power_limit_default_w` of a GPU; `governor` and `turbo` of a CPU.
    """
    if not device.is_gpu:
        return reading.values({"governor": here().governor(root), "turbo": here().turbo(root)})
    gpu = _opened(device)
    return reading.values(
        {
            "clock_mode": gpu.clock_mode(),
            "power_limit_w": gpu.power_limit_w(),
            "power_limit_default_w": gpu.power_limit_default_w(),
        }
    )


def _opened(device: Device) -> nvml.NvmlGpu:
    return nvml.open_gpu(device.uuid) if device.type == "cuda" else nvml.no_gpu("NotNvidia")


def host_facts(root: Path = ROOT) -> dict[str, Any]:
    """Return what tells whether the host's cores are free and steady.

    Args:
        root: folder below which Linux shows its state.

    Returns:
        The keys that this file's opening lists.
    """
    readings = {
        "cores_allowed": reading.attempt(lambda: len(here().allowed_cores())),
        "load_average": here().load_average(root),
        "governor": here().governor(root),
        "turbo": here().turbo(root),
    }
    return reading.values(readings) | {
        "cgroup_quota_cores": here().cpu_quota(root),
        "errors": reading.errors(readings),
    }
