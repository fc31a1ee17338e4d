"""The roofline formulas. Records store counts and times; `judge` computes the rest when they are
read.

Source: Williams, Waterman and Patterson, Roofline: an insightful visual performance model for
multicore architectures, CACM 52(4), 2009. Formulas name what they add to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from statistics import median

from results.record import Copy, Environment, Loop, Object, Record, Step
from roofline.limits import LIMITS, ROOFS, Compute, Launch, Limit
from roofline.machine import Machine

MIXED_WITHIN = 0.10
"""Limits whose times differ by less than this fraction of the longer give the bound `mixed`."""

FAR_BELOW = 0.3
"""Below this fraction of every ceiling, including launch, a row is held back by something else."""

OTHER_CAUSES = "latency, instructions or the library"


def intensity(flops: int, bytes_moved: int) -> float | None:
    """Return the arithmetic intensity in FLOP/byte, or None if no byte is moved.

    Williams et al. count actual memory traffic; compulsory bytes give an upper bound.
    """
    return flops / bytes_moved if bytes_moved else None


def ridge_intensity(peak_flops_per_s: float, bandwidth_bytes_per_s: float) -> float:
    """Return the intensity in FLOP/byte above which the peak binds."""
    return peak_flops_per_s / bandwidth_bytes_per_s


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


def hidden_share(copy_s: float, compute_s: float, both_s: float) -> float:
    """Return the fraction of the shorter of two jobs that overlaps the longer one; negative if they
    slow each other.

    Times in seconds, of each alone and of both together.

    Source: NVIDIA, How to Overlap Data Transfers in CUDA C/C++ (2012): at best max(copy, compute),
    else their sum.
    """
    return (copy_s + compute_s - both_s) / min(copy_s, compute_s)


def bound(**times_s: float) -> str:
    """Return the limit of the longest time, or `mixed` if the two longest are within 10 %; times by
    the name of the limit.

    Source: the max() form of the roofline of Williams et al. (2009).
    """
    first, second = sorted(times_s, key=times_s.__getitem__, reverse=True)[:2]
    if not times_s[first]:
        return Launch.name  # an empty kernel
    return "mixed" if times_s[second] > times_s[first] * (1 - MIXED_WITHIN) else first


def limits_s(
    record: Record, machine: Machine, limits: Iterable[Limit] = LIMITS
) -> dict[str, float] | None:
    """Return the least seconds of a record on a machine by the name of each limit; None if one that
    it needs is unknown.
    """
    times_s = {}
    for limit in limits:
        time_s = limit.time_s(record, machine)
        if time_s is None:
            return None
        times_s[limit.name] = time_s
    return times_s


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
    `Compute.of`.
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


def reached(record: Record, machine: Machine) -> Object | None:
    """Return the rates of a record and their shares of the roofs by the keys of `Judgment`, as far
    as they are known, with the name of the `roof` that binds; None if nothing was timed, or an
    interpreter.
    """
    time_s = record.median_s
    if record.status != "ok" or time_s is None or "interpreted" in record.flags:
        return None
    values: Object = {}
    step = record.details if isinstance(record.details, Step) else None
    if step and step.tokens_per_step:
        values["tokens_per_s"] = step.tokens_per_step / time_s
    if record.flops is not None:
        values["flops_per_s"] = record.flops / time_s
        dense = machine.peak(record.dtype)
        if dense:
            values |= {"mfu": mfu(record.flops / time_s, dense.value), "peak_kind": dense.kind}
            if record.flops and step and step.hardware_flops:
                values["hfu"] = mfu(step.hardware_flops / time_s, dense.value)
    if record.moved_bytes is not None:
        values["bytes_per_s"] = record.moved_bytes / time_s
    limits = limits_s(record, machine, ROOFS)
    if limits:
        values["roof"] = max(limits, key=limits.__getitem__)
        values["roofline_pct"] = 100 * limits[values["roof"]] / time_s
    return values


def judge(record: Record, machine: Machine) -> Judgment:
    flops = record.flops
    time_s = record.median_s
    values = _transfer(record) if record.details else {}
    moved = record.moved_bytes
    if flops is not None and moved is not None:
        values["intensity"] = intensity(flops, moved)
    rates = reached(record, machine)
    if rates is None or time_s is None:
        return Judgment(**values)
    rates.pop("roof", None)
    values |= rates
    if moved is not None:
        bytes_per_s = moved / time_s
        of_bytes = (record.bytes_read or 0, record.bytes_written or 0)
        bandwidth = machine.bandwidth_for(*of_bytes)
        mix = machine.mix(*of_bytes)
        if bandwidth:
            values |= {"mbu": mbu(bytes_per_s, bandwidth.value), "bandwidth_kind": bandwidth.kind}
        if mix:
            values |= {"mix": mix.name, "mix_pct": 100 * mbu(bytes_per_s, mix.value)}
    if flops is not None and moved is not None:
        limits = limits_s(record, machine)
        if limits:
            _, peaks = Compute().of(record, machine)
            values["peak_units"] = "vector" if peaks[0].quantity == "fma" else "matrix"
            values["bound"] = bound(**limits)
            is_far = max(limits.values()) < FAR_BELOW * time_s
            values["held_back_by"] = OTHER_CAUSES if is_far else None
        values["measured_pct"] = _measured_pct(record, machine, time_s)
    excesses = (roof.excess(record, machine) for roof in ROOFS)
    return Judgment(**values, excess=next(filter(None, excesses), None))


def _measured_pct(record: Record, machine: Machine, time_s: float) -> float | None:
    """Return the percentage of the roofline by measured ceilings: the fastest matmul, the bandwidth
    of the nearest mix.

    If one of them was not measured, the published one is used unless it binds; else None.
    """
    longest_s = 0.0
    kind = None
    for roof in ROOFS:
        work, ceilings = roof.of(record, machine)
        if not ceilings and work:
            return None
        if ceilings and work is not None and work / ceilings[-1].value >= longest_s:
            longest_s = work / ceilings[-1].value
            kind = ceilings[-1].kind
    return 100 * longest_s / time_s if kind == "measured" else None


def _transfer(record: Record) -> Object:
    values: Object = {}
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


def judged(environment: Environment, records: Iterable[Record]) -> list[tuple[Record, Object]]:
    """Return each record with its values of `Judgment` by key."""
    return [(record, vars(judge(record, environment.machine))) for record in records]
