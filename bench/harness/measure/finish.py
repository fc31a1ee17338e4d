"""The last step of a measurement: what was measured, and what speaks against it, goes into the row's record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.harness.device.device import Device
from bench.harness.measure.evidence import ROOF_FLAGS, Context, Flag, flags_of, too_low
from bench.harness.measure.meter import Measurement
from bench.harness.timing.protocol import Samples
from results.record import Record
from results.stats.samples import outlier_count
from roofline.ceilings import Ceiling, Ceilings
from roofline.hardware.gpu import PEAKS_OF_DTYPE, clock_limited_peak_flops_per_s, load_gpus
from roofline.work import Work

INVALID_FLAG = "faster-than-physics"
"""Of a time that cannot be true."""


def finished(
    blank: Record,
    measured: Measurement,
    device: Device,
    ceilings: Ceilings | None,
    asked_cache: str | None = None,
    also: tuple[Flag, ...] = (),
    has_advice: bool = True,
) -> Record:
    """Return the record of a measurement with its flags; one whose time cannot be true is `invalid`.

    Args:
        blank: what the row is, with its work; a count of None is not known.
        measured: what was measured of it.
        device: where.
        ceilings: what the row is held against; None: nothing.
        asked_cache: `cold` or `warm`, what was asked for; None: what was measured.
        also: flags of what happened beside the measurement.
        has_advice: whether the reason of a flag ends in its advice, which speaks of the commands' options.
    """
    samples = measured.samples
    context = Context(
        is_gpu=device.is_gpu,
        asked_cache=asked_cache or samples.cache,
        tick_s=measured.tick_s,
        host_launch_s=measured.host_launch_s,
        target_half_width=measured.target_half_width,
        warm_s=measured.warm_s,
        **work_of(blank, device, ceilings),
        telemetry=measured.telemetry,
        why_no_graph=measured.why_no_graph,
    )
    flags = flags_of(samples, context) + also
    impossible = next((flag for flag in flags if flag.name == INVALID_FLAG), None)
    return replace(
        blank,
        status="ok" if impossible is None else "invalid",
        reason=None if impossible is None else impossible.reason,
        samples_s=samples.samples_s,
        launches_per_sample=samples.launches_per_sample,
        method=samples.method,
        cache=samples.cache,
        median_s=samples.median_s,
        ci95_s=samples.ci95_s,
        converged=samples.converged,
        warm_median_s=measured.warm_s,
        outliers=outlier_count(samples.samples_s),
        settled=measured.settling.settled,
        host_latency_s=measured.host_latency_s,
        flags=tuple(flag.name for flag in flags),
        flag_reasons={flag.name: f"{flag.reason}; {flag.advice}" if has_advice else flag.reason for flag in flags},
        telemetry=measured.telemetry,
    )


def judged_again(record: Record, device: Device, ceilings: Ceilings) -> tuple[Record, list[Ceiling]]:
    """Return a finished record with the flags that these ceilings give it, and those of them that it is above."""
    if record.status != "ok" or not record.samples_s or not record.median_s or not record.ci95_s:
        return record, []
    timed = record.samples_s, record.launches_per_sample or 1, record.method or "", record.cache or ""
    samples = Samples(*timed, record.median_s, record.ci95_s, bool(record.converged))
    context = Context(is_gpu=device.is_gpu, warm_s=record.warm_median_s, **work_of(record, device, ceilings))
    reasons = {f.name: f"{f.reason}; {f.advice}" for f in flags_of(samples, context) if f.name in ROOF_FLAGS}
    reasons |= {name: reason for name, reason in record.flag_reasons.items() if name not in ROOF_FLAGS}
    return replace(record, flags=tuple(reasons), flag_reasons=reasons), too_low(samples, context)


def work_of(record: Record, device: Device, ceilings: Ceilings | None) -> dict[str, Any]:
    """Return the fields of a `Context` for what a row does, and the ceilings of that."""
    work = Work(record.flops or 0, record.bytes_read or 0, record.bytes_written or 0)
    known = {"flops": work.flops or None, "bytes_moved": work.bytes or None, "cache_bytes": device.cache_bytes}
    return known | roofs_of(ceilings, record.dtype, work)


def roofs_of(ceilings: Ceilings | None, dtype: str, work: Work) -> dict[str, Any]:
    """Return the fields of a `Context` that hold the ceilings of a row: those by which the model judges its record."""
    if ceilings is None:
        return {}
    ceiling, floor = ceilings.bandwidth(), ceilings.launch_floor()
    return {
        "launch_floor_s": floor.value if floor else None,
        "memory_roof_bytes_per_s": ceiling.value if ceiling else None,
        "peak": ceilings.peak(dtype),
        "highest_peak": highest_peak(ceilings, dtype),
        "bandwidth": ceilings.bandwidth_for(work.bytes_read, work.bytes_written),
        "measured_peak": ceilings.measured_peak(dtype),
        "mix": ceilings.mix(work.bytes_read, work.bytes_written),
    }


def highest_peak(ceilings: Ceilings, dtype: str) -> Ceiling | None:
    """Return the peak at the highest clock that the driver allows.

    None for a device that is not in the table, and for a function of which no dtype was told.
    """
    gpu = load_gpus().get(ceilings.slug) if dtype in PEAKS_OF_DTYPE else None
    value = clock_limited_peak_flops_per_s(gpu, dtype, gpu.max_clock_hz) if gpu and gpu.max_clock_hz else None
    if gpu is None or value is None:
        return None
    # Some products are sold with a peak above their own clock times their rate: then that one is the limit.
    value = max(value, gpu.peaks_flops_per_s.get(dtype, 0.0))
    source = f"roofline/gpus/{gpu.slug}.toml at its highest clock"
    return Ceiling("flops", dtype, value, "clock-limited", source, sm_clock_hz=gpu.max_clock_hz)
