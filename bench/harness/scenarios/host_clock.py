"""Steps that the host takes part in, timed by its own clock: what no graph and no queue of launches can hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness.device.telemetry import row_telemetry, snapshot
from bench.harness.measure.finish import finished
from bench.harness.measure.meter import Measurement
from bench.harness.timing import samplers
from bench.harness.timing.protocol import collect, limits_of, settle

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.evidence import Flag
    from bench.harness.scenarios.scenario import ScenarioContext
    from results.record import Record


def measure_steps(step: samplers.Call, device: Device, cache: str, left_s: float | None = None) -> Measurement:
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
    return Measurement(
        samples=samples,
        warm_s=None,
        host_launch_s=step_s,
        host_latency_s=samples.median_s,
        settling=settling,
        telemetry=telemetry,
        tick_s=samplers.tick_s(device),
        target_half_width=limits.target_half_width,
    )


def record_of(blank: Record, measured: Measurement, bench: ScenarioContext, also: Sequence[Flag] = ()) -> Record:
    """Return the finished record of a row; `also` are flags of what happened beside the measurement.

    On a GPU neither a ceiling of its memory nor its cache judges it: the link does, or the work that a step does beside
    it. A copy over the link takes as long wherever in the device the data lies.
    """
    if not bench.device.is_gpu:
        return finished(blank, measured, bench.device, bench.ceilings if blank.bytes_read else None, also=tuple(also))
    by_link = finished(blank, replace(measured, warm_s=None, host_launch_s=None), bench.device, None, also=tuple(also))
    return replace(by_link, warm_median_s=measured.warm_s)
