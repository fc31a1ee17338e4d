"""Steps that the host takes part in, timed by its own clock: what no graph and no queue of launches can hold."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.harness.device.telemetry import Monitor, row_telemetry
from bench.harness.measure.evidence import Context, flags_of
from bench.harness.measure.meter import Measurement
from bench.harness.measure.roofs import roofs_of
from bench.harness.measure.runner import filled
from bench.harness.timing import samplers
from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, Limits, collect
from bench.harness.timing.settle import CPU_SETTLE, GPU_SETTLE, settle
from roofline.work import Work

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.scenarios.scenario import Bench
    from results.record import Record


def limits_of(device: Device) -> Limits:
    """Return when a measurement is good enough on a device."""
    return GPU_LIMITS if device.has_cuda else CPU_LIMITS


def measure_steps(step: samplers.Call, device: Device, cache: str, left_s: float | None = None) -> Measurement:
    """Return what was measured of a step, one step a sample.

    Args:
        step: one step; it returns when all that it launched is done.
        device: the device.
        cache: `cold` or `warm`, what a step finds; only passed on.
        left_s: time that sampling may take at most, beside its own cap.
    """
    sampler, monitor, limits = samplers.HostSampler([step], 1), Monitor(device), limits_of(device)
    if left_s is not None:
        cap_s = min(limits.cap_s, max(0.0, left_s))
        limits = replace(limits, cap_s=cap_s, min_time_s=min(limits.min_time_s, cap_s))
    settling = settle(sampler.sample, monitor.clock_and_power, GPU_SETTLE if device.has_cuda else CPU_SETTLE)
    before, began = monitor.snapshot(), time.perf_counter()
    samples = collect(sampler, limits, cache)
    elapsed_s = time.perf_counter() - began
    telemetry = row_telemetry(before, monitor.snapshot(), launches=len(samples.samples_s), flops=None)
    step_s = elapsed_s / len(samples.samples_s)
    return Measurement(samples, None, step_s, samples.median_s, None, settling, telemetry)


def record_of(blank: Record, measured: Measurement, bench: Bench) -> Record:
    """Return the finished record of a row, with what speaks against it.

    On a GPU neither a roof of its memory nor its cache judges it: the link does, or the work that a step does beside
    it. A copy over the link takes as long wherever in the device the data lies.
    """
    device = bench.device
    work = Work(blank.flops or 0, blank.bytes_read or 0, blank.bytes_written or 0)
    roofs = roofs_of(bench.ceilings, blank.dtype, work) if not device.has_cuda and work.bytes else {}
    context = Context(
        is_gpu=device.has_cuda,
        asked_cache=measured.samples.cache,
        tick_s=samplers.tick_s(device),
        target_half_width=limits_of(device).target_half_width,
        flops=blank.flops,
        bytes_moved=work.bytes or None,
        cache_bytes=device.cache_bytes,
        warm_s=None if device.has_cuda else measured.warm_s,
        **roofs,
        telemetry=measured.telemetry,
        tail_s=measured.tail_s,
    )
    return replace(filled(blank, measured, flags_of(measured.samples, context)), status="ok", reason=None)
