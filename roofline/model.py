"""The roofline formulas. Records store counts and times; `judge` computes the rest when they are
read.

Source: Williams, Waterman and Patterson, Roofline: an insightful visual performance model for
multicore architectures, CACM 52(4), 2009. Formulas name what they add to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

from results.record import Copy, Environment, Loop, Record, Step
from roofline.machine import Ceiling, Machine
from roofline.work import VECTOR_OPS

MIXED_WITHIN = 0.10
"""Limits whose times differ by less than this fraction of the longer give the bound `mixed`."""

FAR_BELOW = 0.3
"""Below this fraction of every ceiling, including launch, a row is held back by something else."""

OTHER_CAUSES = "latency, instructions or the library"

SLOWER_THEN = (
    "the machine was slower when the ceiling was measured (remeasure it with python -m "
    "bench calibrate)"
)


def intensity(flops: int, bytes_moved: int) -> float | None:
    """Return the arithmetic intensity in FLOP/byte, or None if no byte is moved.

    Williams et al. count actual memory traffic; compulsory bytes give an upper bound.
    """
    return flops / bytes_moved if bytes_moved else None


def ridge_intensity(peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return the intensity in FLOP/byte above which the peak binds."""
    return peak_flops_per_s / bandwidth_bytes_per_s


def min_time_s(
    flops: int, bytes_moved: int, peak_flops_per_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the minimum time, max(FLOPs / peak, bytes / bandwidth), seconds."""
    return max(flops / peak_flops_per_s, bytes_moved / bandwidth_bytes_per_s)


def mfu(flops_per_s: float, peak_flops_per_s: float) -> float:
    """Return the model FLOPs utilization as a fraction of the dense peak of the dtype; it may be
    above 1.

    Source: Chowdhery et al., PaLM (2022), appendix B, for a training step.
    """
    return flops_per_s / peak_flops_per_s


def mbu(bytes_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return compulsory bytes per second over the bandwidth, as a fraction.

    Source: defined here by analogy to `mfu`; inference reports count weights and cache instead.
    """
    return bytes_per_s / bandwidth_bytes_per_s


def roofline_pct(
    time_s: float, flops: int, bytes_moved: int, peak: float, bandwidth: float
) -> float:
    """Return the percentage of the roofline, which may exceed 100: minimum over measured time, also
    without FLOPs.
    """
    return 100 * min_time_s(flops, bytes_moved, peak, bandwidth) / time_s


def measured_pct(
    time_s: float, flops: int, bytes_moved: int, peak: Ceiling | None, bandwidth: Ceiling | None
) -> float | None:
    """Return `roofline_pct` by measured ceilings: the fastest matmul, the bandwidth of the nearest
    mix.

    If only one of them was measured, the published other one is used unless it binds; else None.
    """
    if bandwidth is None or (peak is None and flops):
        return None
    peak_flops_per_s = peak.value if peak else math.inf
    binding = peak if peak and flops / peak.value > bytes_moved / bandwidth.value else bandwidth
    if binding.kind != "measured":
        return None
    return roofline_pct(time_s, flops, bytes_moved, peak_flops_per_s, bandwidth.value)


def hidden_share(copy_s: float, compute_s: float, both_s: float) -> float:
    """Return the fraction of the shorter of two jobs that overlaps the longer one; negative if they
    slow each other.

    Times in seconds, of each alone and of both together.

    Source: NVIDIA, How to Overlap Data Transfers in CUDA C/C++ (2012): at best max(copy, compute),
    else their sum.
    """
    return (copy_s + compute_s - both_s) / min(copy_s, compute_s)


def bound(compute_s: float, memory_s: float, launch_s: float | None) -> str:
    """Return what binds: `compute`, `memory`, `launch`, or `mixed` if the two longest times are
    within 10 %.

    Source: the max() form of the roofline of Williams et al. (2009); the launch as a third limit is
    ours.
    """
    if not compute_s and not memory_s:
        return "launch"  # an empty kernel
    times = {"compute": compute_s, "memory": memory_s, "launch": launch_s or 0.0}
    first, second = sorted(times, key=lambda name: times[name], reverse=True)[:2]
    return "mixed" if times[second] > times[first] * (1 - MIXED_WITHIN) else first


@dataclass(frozen=True)
class Judgment:
    """Derived values of a record; None if a count, a time or a ceiling is missing."""

    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    intensity: float | None = None
    bound: str | None = None
    mfu: float | None = None
    mbu: float | None = None
    """Fraction of the memory bandwidth: the published one, else the measured one of `mix`."""
    roofline_pct: float | None = None
    """Percent of min(peak, intensity x bandwidth), with the peak of `peak_units` and the bandwidth
    of `mbu`.
    """
    peak_units: str | None = None
    """`matrix` for the peak of matmuls (tensor cores), `vector` for operations without one, see
    `peak_of`.
    """
    held_back_by: str | None = None
    """`OTHER_CAUSES` if less than `FAR_BELOW` of every ceiling is reached; else None."""
    peak_kind: str | None = None
    bandwidth_kind: str | None = None
    mix: str | None = None
    """The measured mix of reads and writes that is nearest to the record's: `read`, `write`,
    `copy`, `triad`.
    """
    mix_pct: float | None = None
    measured_pct: float | None = None
    hfu: float | None = None
    """Training steps: MFU including recomputation."""
    tokens_per_s: float | None = None
    """Training steps, and loops that load their batches."""
    link_share: float | None = None
    """Copies: fraction of the one-way bandwidth of the GPU link."""
    hidden_share: float | None = None
    """Copies during matmuls: overlapping fraction of the shorter one."""
    wait_share: float | None = None
    """Loops that load their batches: fraction of time spent waiting."""
    excess: str | None = None


JUDGED_KEYS = tuple(key.name for key in fields(Judgment))

JUDGED_TEXTS = tuple(key.name for key in fields(Judgment) if key.type == "str | None")
"""Keys with text values; all others are numbers."""


def peak_of(record: Record, machine: Machine) -> tuple[Ceiling | None, str]:
    """Return the peak for a record, and its units: `matrix`, or `vector` for operations without a
    matmul.

    If the vector rate is unknown, the higher matmul peak is used.
    """
    is_vector = record.units == "vector" if record.units else record.op in VECTOR_OPS
    vector = machine.vector_peak(record.dtype) if is_vector else None
    return (vector, "vector") if vector else (machine.peak(record.dtype), "matrix")


def limits_s(record: Record, machine: Machine) -> tuple[float, float, float] | None:
    """Return the minimum seconds of a record by compute, memory and launch (0: not measured); or
    None.
    """
    if record.flops is None or record.bytes_read is None:
        return None
    peak, _ = peak_of(record, machine)
    launch = machine.fastest("launch")
    written = record.bytes_written or 0
    bandwidth = machine.bandwidth_for(record.bytes_read, written)
    if peak is None or bandwidth is None:
        return None
    launches = 1 if record.count is None else record.count
    moved_s = (record.bytes_read + written) / bandwidth.value
    return record.flops / peak.value, moved_s, launches * launch.value if launch else 0.0


def judge(record: Record, machine: Machine) -> Judgment:
    flops = record.flops
    read = record.bytes_read
    written = record.bytes_written or 0
    time_s = record.median_s
    values = _transfer(record)
    if flops is not None and read is not None:
        values["intensity"] = intensity(flops, read + written)
    if record.status != "ok" or time_s is None or "interpreted" in record.flags:
        return Judgment(**values)
    step = record.details_as(Step) or Step()
    if step.tokens_per_step:
        values["tokens_per_s"] = step.tokens_per_step / time_s
    if flops is not None:
        values["flops_per_s"] = flops / time_s
        if dense := machine.peak(record.dtype):
            values |= {"mfu": mfu(flops / time_s, dense.value), "peak_kind": dense.kind}
            if flops and step.hardware_flops:
                values["hfu"] = mfu(step.hardware_flops / time_s, dense.value)
    if read is not None:
        bytes_per_s = (read + written) / time_s
        mix = machine.mix(read, written)
        values["bytes_per_s"] = bytes_per_s
        if bandwidth := machine.bandwidth_for(read, written):
            values |= {"mbu": mbu(bytes_per_s, bandwidth.value), "bandwidth_kind": bandwidth.kind}
        if mix:
            values |= {"mix": mix.name, "mix_pct": 100 * mbu(bytes_per_s, mix.value)}
    if flops is not None and read is not None:
        peak, units = peak_of(record, machine)
        limits = limits_s(record, machine)
        if peak and bandwidth and limits:
            values |= {"peak_units": units, "bound": bound(*limits)}
            values["roofline_pct"] = roofline_pct(
                time_s, flops, read + written, peak.value, bandwidth.value
            )
            values["held_back_by"] = OTHER_CAUSES if max(limits) < FAR_BELOW * time_s else None
        peak_in = machine.vector_peak if units == "vector" else machine.peak
        measured = peak_in(record.dtype, ["measured"])
        values["measured_pct"] = measured_pct(
            time_s, flops, read + written, measured or peak, mix or bandwidth
        )
    return Judgment(**values, excess=_excess(record, values))


def _transfer(record: Record) -> dict[str, Any]:
    values: dict[str, Any] = {}
    time_s = record.median_s
    shape = record.shape
    if record.status != "ok" or not time_s:
        return {}
    copy = record.details_as(Copy)
    if copy and copy.link_bytes_per_s and "bytes" in shape:
        values["link_share"] = shape["bytes"] / time_s / copy.link_bytes_per_s
    if copy and copy.copy_s and copy.compute_s:
        values["hidden_share"] = hidden_share(median(copy.copy_s), median(copy.compute_s), time_s)
    loop = record.details_as(Loop)
    if loop and loop.waits_s and record.samples_s:
        values["wait_share"] = sum(loop.waits_s) / sum(record.samples_s)
    if loop and "b" in shape and "s" in shape:
        values["tokens_per_s"] = shape["b"] * shape["s"] / time_s
    return values


def _excess(record: Record, judged: Mapping[str, Any]) -> str | None:
    """Values above a ceiling are not clamped: they indicate a wrong ceiling or byte count, or cache
    hits.
    """
    over_bandwidth = (judged.get("mbu") or 0) > 1
    over_peak = (judged.get("mfu") or 0) > 1 or (
        not over_bandwidth and (judged.get("roofline_pct") or 0) > 100
    )
    over_memory = over_bandwidth or (judged.get("mix_pct") or 0) > 100
    if over_memory and record.cache != "cold":
        return "above the memory ceiling: inputs that are not cold are served by the cache"
    if over_peak and judged.get("peak_kind") != "measured":
        return (
            "above the datasheet peak: the clock ran above the datasheet's, or the peak is of "
            "another dtype"
        )
    if over_bandwidth and judged.get("bandwidth_kind") != "measured":
        return (
            "above the datasheet bandwidth: part of the data came from the cache, or the "
            "bandwidth is another SKU's"
        )
    if over_memory:
        ceiling = (
            f"{judged['mix']} bandwidth, the nearest mix" if judged.get("mix") else "memory ceiling"
        )
        return f"above the measured {ceiling}: {SLOWER_THEN}"
    if over_peak or (judged.get("measured_pct") or 0) > 100:
        return f"above the measured compute ceiling: {SLOWER_THEN}"
    return None


def judged(environment: Environment, records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the keys of `Judgment` for each record, in order."""
    return [vars(judge(record, environment.machine)) for record in records]
