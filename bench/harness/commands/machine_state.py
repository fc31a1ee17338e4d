"""Findings of `bench doctor` about the state of a machine: cores, load, clocks, limits, other users of the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from bench.harness.device import gpu_state

if TYPE_CHECKING:
    from bench.harness.device.device import Device

OK, NOTE, BAD = "ok", "note", "bad"
"""Status of a finding: as expected; worth knowing; measurements are wrong or too noisy until it is fixed."""

BUSY_LOAD = 0.25  # load average per core above which other processes are running


@dataclass(frozen=True)
class Finding:
    """One check and its result; `measured` and `expected` in SI base units."""

    name: str
    status: str
    value: str
    advice: str = ""
    measured: float | None = None
    unit: str | None = None
    expected: float | None = None
    source: str | None = None
    """Source of the expected value."""


def finding(name: str, value: str, advice: str = "", is_bad: bool = False) -> Finding:
    """Return a finding: `bad` if `is_bad`, else `note` if there is advice, else `ok`."""
    return Finding(name, BAD if is_bad else NOTE if advice else OK, value, advice)


def host_findings(device: Device) -> Iterator[Finding]:
    from bench.harness.device.device import host_state, usable_cores

    (allowed, quota), state = usable_cores(), host_state()
    cores = len(allowed)
    yield finding("cores", f"{cores} allowed" + (f", {device.threads} threads are used" if device.threads else ""))
    if quota is not None:
        is_within = (device.threads or 0) <= max(1.0, quota)
        advice = "fewer threads are used" if is_within else "threads will be throttled; use fewer"
        text = f"the cgroup is limited to the time of {quota:g} cores"
        yield finding("cpu quota", text, advice if quota < cores else "")
    if (load := state["load_average"]) is not None:
        advice = "wait for other processes; noisy rows are flagged `preempted`"
        yield finding("load", f"{load:g} over the last minute", advice if load > BUSY_LOAD * cores else "")
    if (governor := state["governor"]) is not None:
        is_slow = governor in ("powersave", "conservative") and not device.is_gpu
        yield finding("governor", governor, "the clock follows the load slowly; measure longer" if is_slow else "")


def gpu_findings(uuid: str | None) -> Iterator[Finding]:
    if problem := gpu_state.errors(uuid).get("nvml"):
        advice = "clocks, power and throttling will be missing; times are not affected"
        yield finding("nvml", f"not readable: {problem}", advice)
        return
    ask, modes = partial(gpu_state.ask, uuid), gpu_state.modes(uuid)
    if max_mhz := ask("nvmlDeviceGetMaxClockInfo", gpu_state.CLOCK_SM):
        mhz = ask("nvmlDeviceGetClockInfo", gpu_state.CLOCK_SM)
        yield finding("SM clock", (f"{mhz} MHz now, " if mhz else "") + f"{max_mhz} MHz at most")
    if limit_w := modes["power_limit_w"]:
        default_w = modes["power_limit_default_w"] or limit_w
        advice = "compare only with runs under the same limit" if limit_w < default_w else ""
        yield finding("power limit", f"{limit_w:g} W, {default_w:g} W by default", advice)
    if limiting := [event for event in gpu_state.clock_events(uuid) or () if event != "gpu_idle"]:
        yield finding("clock events", ", ".join(limiting), "the clock is limited now; see `throttle` in the rows")
    if (processes := ask("nvmlDeviceGetComputeRunningProcesses")) is not None:
        yield _sharing_finding([int(process.pid) for process in processes])
    if rows := ask("nvmlDeviceGetRemappedRows"):
        text, advice = "no row remapping pending", ""
        if rows[2]:
            text, advice = "a row remapping is pending", "the GPU must be reset by its administrator"
        if rows[3]:
            text, advice = "row remapping failed", "the card must be replaced"
        yield finding("memory", text, advice, is_bad=bool(advice))


def _sharing_finding(pids: list[int]) -> Finding:
    # This process uses the GPU too; in a container the driver lists it by its process ID on the host.
    name, others = "other processes", [pid for pid in pids if pid != os.getpid()]
    if not others:
        return finding(name, "none seen")
    may_be_own = len(others) == len(pids)
    text = f"{len(others)} compute processes: {', '.join(map(str, others[:5]))}"
    advice = "wait for them or stop them" + ("; in a container one of them is this process" if may_be_own else "")
    return finding(name, text, advice, is_bad=len(others) > 1 or not may_be_own)
