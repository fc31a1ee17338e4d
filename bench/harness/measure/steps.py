"""Times steps that the host takes part in by its own clock: no graph and no queue of launches can hold them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness.device.telemetry import row_telemetry, snapshot
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Samples, collect, limits_of, settle

if TYPE_CHECKING:
    from bench.harness.device.device import Device


def measure_steps(step: samplers.Call, device: Device, cache: str, left_s: float | None = None) -> Samples:
    """Return what was measured of a step, one step a sample.

    Args:
        step: one step; it returns when all that it launched is done.
        device: the device.
        cache: `cold` or `warm`, what a step finds; only passed on.
        left_s: time that sampling may take at most, beside its own cap.
    """
    sampler, limits = samplers.HostSampler([step], 1), limits_of(device)
    if left_s is not None:
        cap_s = min(limits.cap_s, max(0.0, left_s))
        limits = replace(limits, cap_s=cap_s, min_time_s=min(limits.min_time_s, cap_s))
    settling = settle(sampler.sample, limits)
    before, began = snapshot(device), time.perf_counter()
    samples = collect(sampler, limits, cache)
    elapsed_s = time.perf_counter() - began
    telemetry = row_telemetry(before, snapshot(device), launches=len(samples.samples_s), flops=None)
    step_s = elapsed_s / len(samples.samples_s)
    return replace(
        samples,
        settled=settling.settled,
        host_launch_s=step_s,
        host_latency_s=samples.median_s,
        telemetry=telemetry,
        tick_s=samplers.tick_s(device),
        target_half_width=limits.target_half_width,
    )
