"""Data-quality flags of a measurement, each with its reason: from samples and ceilings to a record.

Nothing here measures and nothing is dropped: every function takes numbers and says what they mean. `recorded` calls all
of them for one row, `judged` those that depend on the ceilings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.device.device import Device
from bench.harness.device.telemetry import slowdowns
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import LONGEST_SPIN_S, wanted_spin_s
from results.record import Record
from results.stats.samples import drift, half_width, outlier_count, two_modes
from roofline.gpu_table import clock_limited_flops_per_s, load_gpus
from roofline.machine import Ceiling, Machine

LEAST_TICKS = 50
"""Ticks of the clock that one sample must last: half a tick is then 1 % of it."""

FLOORS = 10
"""A launch shorter than so many launch floors is told together with the floor."""

COLD_RATIO = 1.02
"""A cold launch whose data would fit in the cache must take so many times as long as a warm one to count as cold."""

MEMORY_SHARE = 0.5
"""Share of a launch's time that its bytes must take at the memory ceiling before a cold launch has to be slower than a
warm one: arithmetic can hide a smaller share."""

ROOF_MARGIN = 1.02
"""A rate above the ceiling by more than this is impossible: clocks and counters are off by 2 % at most."""

PREEMPTIONS_PER_S = 70.0
"""Involuntary context switches per second of one thread above which other processes took its core away. Measured on a
guest with two cores, both threads together: 25 to 60 when nothing else ran, so no thread had more; 170 to 700 beside
one busy process, so one thread had 85 at least. All samples may then be equally slow, so that the interval of the
median tells nothing."""

LEAST_PREEMPTIONS = 5
"""Fewer switches in a window say nothing about their rate."""

ABOVE_ROOF = 1.03
"""Share of a ceiling above which the ceiling itself is doubtful: it was measured with an interval of its own."""

GATE_MARGINS = {("bandwidth", "datasheet"): 1.02, ("flops", "clock-limited"): 1.02, ("flops", "datasheet"): 1.25}
"""By how much a rate must exceed a ceiling before the row is invalid, by the ceiling's quantity and kind.

A clock-limited peak is taken at the highest clock that the driver allows. A datasheet's peak holds at a lower one:
by 8 % on an H100 SXM (1,830 of 1,980 MHz), by 18 % on an RTX PRO 6000 (2,617 of 3,090 MHz).

Source: NVIDIA's H100 and RTX PRO 6000 datasheets, and the highest clocks that the driver reports."""

DERIVED_GATE_MARGIN = 1.5
"""The same for a ceiling that is derived from what the device tells of itself.

A measured ceiling never makes a row invalid: other processes during a short calibration have made a CPU's ceiling a
hundred times too low. A row above a measured ceiling is flagged `above-roof` instead."""

CACHED_RESULT = 20.0
"""A time that is shorter than the least possible one by this factor looks like no work at all, not like a wrong
count."""

ROOF_FLAGS = ("faster-than-physics", "above-roof", "l2-suspect", "doubtful-roof")
"""Decided by the ceilings."""


@dataclass(frozen=True)
class Flag:
    """One thing that speaks against a row."""

    name: str
    """The word in the record and in tables, for example `l2-suspect`."""
    reason: str
    """What was seen, in a sentence, with the numbers."""
    advice: str
    """What to do about it."""


def reasons_of(flags: Iterable[Flag | None], has_advice: bool = True) -> dict[str, Any]:
    return {flag.name: f"{flag.reason}; {flag.advice}" if has_advice else flag.reason for flag in flags if flag}


# ---- one record ---------------------------------------------------------------------------------------------------


def recorded(
    blank: Record,
    samples: Samples,
    device: Device,
    ceilings: Machine | None,
    asked_cache: str | None = None,
    also: Sequence[Flag] = (),
    has_advice: bool = True,
) -> Record:
    """Return the record of what was measured, with its flags; a time that cannot be true is `invalid`.

    Args:
        blank: what the row is, with its work; a count of None is not known.
        samples: what was measured of it.
        device: where.
        ceilings: what the row is evaluated against; None: nothing.
        asked_cache: `cold` or `warm`, as requested; None: as measured.
        also: flags of what happened beside the measurement.
        has_advice: whether the reason of a flag ends in its advice, which is about the options of the commands.
    """
    telemetry, is_gpu = samples.telemetry, device.is_gpu
    flags = (
        not_cold(samples.cache, asked_cache or samples.cache),
        tick_limited(samples),
        throttled(telemetry, is_gpu),
        power_limited(telemetry) if is_gpu else preempted(telemetry),
        bimodal(samples),
        not_captured(samples) if is_gpu else None,
        drifting(samples),
        not_converged(samples, samples.target_half_width),
        launch_limited(samples) if is_gpu else None,
        near_floor(samples, ceilings) if is_gpu and ceilings else None,
        *also,
    )
    record = replace(sampled(blank, samples), flag_reasons=reasons_of(flags, has_advice))
    return judged(record, device, ceilings, has_advice)


def sampled(blank: Record, samples: Samples) -> Record:
    """Return the record of what was measured, without flags."""
    return replace(
        blank,
        status="ok",
        reason=None,
        samples_s=samples.samples_s,
        launches_per_sample=samples.launches_per_sample,
        method=samples.method,
        cache=samples.cache,
        median_s=samples.median_s,
        ci95_s=samples.ci95_s,
        converged=samples.converged,
        warm_median_s=samples.warm_median_s,
        outliers=outlier_count(samples.samples_s),
        settled=samples.settled,
        host_latency_s=samples.host_latency_s,
        telemetry=dict(samples.telemetry),
    )


def judged(record: Record, device: Device, ceilings: Machine | None, has_advice: bool = True) -> Record:
    """Return a measured record with the flags that these ceilings give it, in place of those of other ceilings."""
    if record.status != "ok" or not record.samples_s or not record.median_s or not record.ci95_s:
        return record
    roofs = Roofs.of(record, device, ceilings)
    impossible, suspect = physics_gate(record, roofs), l2_suspect(record, roofs)
    above = None if impossible else above_roof(record, roofs, suspect is not None)
    reasons = reasons_of((impossible, above, suspect, doubtful_roof(roofs)), has_advice)
    reasons |= {name: reason for name, reason in record.flag_reasons.items() if name not in ROOF_FLAGS}
    if impossible:
        record = replace(record, status="invalid", reason=impossible.reason)
    return replace(record, flags=tuple(reasons), flag_reasons=reasons)


@dataclass(frozen=True)
class Roofs:
    """The ceilings of one row, by which the model judges its record, and the counts of a launch; None if unknown."""

    flops: int | None
    bytes_moved: int | None
    """Compulsory bytes."""
    exceeds_cache: bool
    """Whether these bytes are more than the last-level cache holds."""
    peak: Ceiling | None
    """Maximum FLOP/s of the row's dtype, as MFU is taken over."""
    highest_peak: Ceiling | None
    """Maximum FLOP/s at the highest clock of the device; `peak` if that is not known."""
    measured_peak: Ceiling | None
    """The fastest matmul measured of the row's dtype, also if `peak` is a published one."""
    memory: Ceiling | None
    """The bandwidth with any mix of reads and writes: published, or of the fastest mix measured."""
    bandwidth: Ceiling | None
    """The bandwidth that judges the row: published, or measured with the mix nearest to its own."""
    mix: Ceiling | None
    """The bandwidth measured with the mix nearest to the row's own, also if `bandwidth` is a published one."""

    @classmethod
    def of(cls, record: Record, device: Device, ceilings: Machine | None) -> Roofs:
        known, read, written = ceilings or Machine("", ""), record.bytes_read or 0, record.bytes_written or 0
        peak = known.peak(record.dtype)
        return cls(
            flops=record.flops or None,
            bytes_moved=read + written or None,
            exceeds_cache=read + written > device.cache_bytes,
            peak=peak,
            highest_peak=(highest_peak(known, record.dtype) if device.is_gpu else None) or peak,
            measured_peak=known.peak(record.dtype, ["measured"]),
            memory=known.bandwidth(),
            bandwidth=known.bandwidth_for(read, written),
            mix=known.mix(read, written),
        )


def highest_peak(ceilings: Machine, dtype: str) -> Ceiling | None:
    """Return the peak at the highest clock that the driver allows.

    None for a device that is not in the table, and for a function of which no dtype was told.
    """
    gpu = load_gpus().get(ceilings.slug)
    value = clock_limited_flops_per_s(gpu, dtype, gpu.max_clock_hz) if gpu and gpu.max_clock_hz else None
    if gpu is None or value is None:
        return None
    published = gpu.peak(dtype)
    # Some products are sold with a peak above their own clock times their rate: then that one is the limit.
    value = max(value, published.value if published else 0.0)
    source = f"roofline/gpus/{gpu.slug}.toml at its highest clock"
    return Ceiling("flops", dtype, value, "clock-limited", source, sm_clock_hz=gpu.max_clock_hz)


# ---- faster than possible -----------------------------------------------------------------------------------------


def physics_gate(record: Record, roofs: Roofs) -> Flag | None:
    """Flag a row that is faster than its machine can be; such a row is `invalid`.

    The memory counts only where the data must come from it: in a cold row whose bytes exceed the cache.
    """
    assert record.median_s is not None
    limits = [("FLOPs", roofs.flops, roofs.highest_peak)]
    if record.cache == "cold" and roofs.exceeds_cache:
        limits.append(("bytes", roofs.bytes_moved, roofs.bandwidth))
    least_s, counted, name = 0.0, "", ""
    for what, count, ceiling in limits:
        if count and ceiling and ceiling.kind != "measured":
            margin = GATE_MARGINS.get((ceiling.quantity, ceiling.kind), DERIVED_GATE_MARGIN)
            floor_s = count / (margin * ceiling.value)
            if floor_s > least_s:
                least_s, counted, name = floor_s, what, f"{ceiling.kind} {ceiling.quantity}"
    if record.median_s >= least_s:
        return None
    if least_s >= CACHED_RESULT * record.median_s:
        cause = "the result of an earlier launch is returned, or the work runs where the clock does not see it"
    elif counted == "bytes":
        cause = "the data came from the cache, or not all of it is touched"
    else:
        cause = "part of the work is left out, or the FLOPs or the peak are those of another dtype"
    return Flag(
        "faster-than-physics",
        f"faster than physics: {record.median_s:.3g} s, but its {counted} take {least_s:.3g} s or more by the "
        f"{name} ceiling; likely {cause}",
        "check what the provider really does, and the work that the op counts",
    )


def too_low(record: Record, device: Device, ceilings: Machine) -> list[Ceiling]:
    """Return the measured ceilings that a record is above; data that may come from a cache tells nothing of the
    memory.
    """
    if record.status != "ok" or not record.samples_s or not record.median_s:
        return []
    roofs = Roofs.of(record, device, ceilings)
    limits = [(roofs.flops, roofs.peak)]
    if record.cache == "cold" and roofs.exceeds_cache:
        limits.append((roofs.bytes_moved, roofs.bandwidth))
    return [
        ceiling
        for count, ceiling in limits
        if count and ceiling and ceiling.kind == "measured" and count / record.median_s > ABOVE_ROOF * ceiling.value
    ]


def above_roof(record: Record, roofs: Roofs, is_from_cache: bool) -> Flag | None:
    """Flag more than a ceiling that the row is judged by, where it is not impossible.

    The memory's ceiling counts unless the data came from the cache, which `l2_suspect` says: that exceeds it too.
    """
    assert record.median_s is not None
    limits = [(roofs.flops, roofs.peak), (roofs.flops, roofs.measured_peak)]
    if not is_from_cache:
        limits += [(roofs.bytes_moved, roofs.bandwidth), (roofs.bytes_moved, roofs.mix)]
    for count, ceiling in limits:
        if count and ceiling and (reached := count / record.median_s / ceiling.value) > ABOVE_ROOF:
            return _above(reached, ceiling, record.cache or "")
    return None


def _above(reached: float, ceiling: Ceiling, cache: str) -> Flag:
    was_measured, again = ceiling.kind == "measured", "calibrate again: the machine was slower then"
    if ceiling.quantity == "flops":
        advice = again if was_measured else "judge it at the measured clock"
        return Flag("above-roof", f"{100 * reached:.0f} % of the {ceiling.kind} peak", advice)
    reason = f"{100 * reached:.0f} % of the {ceiling.kind} {ceiling.name} bandwidth"
    if cache != "cold":
        reason, advice = f"{reason}: {cache} data comes from the cache", "for the memory's speed, --cache cold"
    elif was_measured:
        reason = f"{reason}, the mix nearest to its own"
        advice = f"{again}, unless the row's own mix of reads and writes is a faster one"
    else:
        reason, advice = f"{reason}, so not all bytes came from there", "check the bytes that the op counts"
    return Flag("above-roof", reason, advice)


def doubtful_roof(roofs: Roofs) -> Flag | None:
    """Flag a row that is judged by a ceiling that was measured while something else held the device back."""
    limits = ((roofs.flops, roofs.peak), (roofs.bytes_moved, roofs.bandwidth))
    doubtful = [ceiling for count, ceiling in limits if count and ceiling and ceiling.disturbed]
    if not doubtful:
        return None
    names = " and ".join(f"the {ceiling.title}" for ceiling in doubtful)
    reason = f"{names} may be too low, and a share of it too high: when it was measured, {doubtful[0].disturbed}"
    return Flag("doubtful-roof", reason, "`python -m bench calibrate` when nothing else runs")


# ---- was it cold --------------------------------------------------------------------------------------------------


def l2_suspect(record: Record, roofs: Roofs) -> Flag | None:
    """Flag a cold time that may have found its data in the cache.

    Either it moves bytes faster than the memory does, or its data fits in the cache and being cold made no
    difference, although the bytes take a good part of the time. Where no ceiling is known, every row is suspect.
    """
    assert record.median_s is not None
    bytes_moved, ceiling = roofs.bytes_moved, roofs.memory.value if roofs.memory else None
    if record.cache != "cold" or not bytes_moved:
        return None
    rate = bytes_moved / record.median_s
    if ceiling and rate > ROOF_MARGIN * ceiling:
        of_memory = f"{100 * rate / ceiling:.0f} % of what the memory does ({ceiling / 1e9:.4g} GB/s)"
        reason = f"{rate / 1e9:.4g} GB/s cold, {of_memory}"
    else:
        is_by_memory = ceiling is None or rate >= MEMORY_SHARE * ceiling
        if record.warm_median_s is None or roofs.exceeds_cache or not is_by_memory:
            return None
        ratio = record.median_s / record.warm_median_s
        if ratio >= COLD_RATIO:
            return None
        reason = f"{ratio:.3f} x the warm time, and the data fits in the cache: it may have been there"
    advice = "more or larger copies; a kernel that keeps its data, or hides its tensors from the rotation, stays warm"
    return Flag("l2-suspect", reason, advice)


def not_cold(cache: str, asked_cache: str) -> Flag | None:
    if asked_cache != "cold" or cache == "cold":
        return None
    if cache == "warm":
        reason, advice = "every launch uses the same inputs again", "free memory for a second copy of the inputs"
    else:
        reason = "the copies of the inputs do not fill the cache several times over: the time is neither cold nor warm"
        advice = "a larger shape or more free memory, or --cache warm for the time with one copy"
    return Flag("not-cold", reason, advice)


# ---- the clock ----------------------------------------------------------------------------------------------------


def tick_limited(samples: Samples) -> Flag | None:
    sample_s, tick_s = samples.median_s * samples.launches_per_sample, samples.tick_s
    if not tick_s or sample_s >= LEAST_TICKS * tick_s:
        return None
    ticks = sample_s / tick_s
    reason = f"a sample is {ticks:.1f} ticks of {tick_s:.3g} s long, so that a tick is {100 / ticks:.1f} % of it"
    return Flag("tick-limited", reason, "more launches a sample")


def near_floor(samples: Samples, ceilings: Machine) -> Flag | None:
    time_s, floor = samples.median_s, ceilings.launch_floor()
    if floor is None or time_s >= FLOORS * floor.value:
        return None
    left_s = max(0.0, time_s - floor.value)
    reason = f"an empty kernel takes {floor.value:.3g} s of these {time_s:.3g} s, which leaves {left_s:.3g} s"
    return Flag("near-floor", reason, "a larger case, or several launches in one kernel")


def not_captured(samples: Samples) -> Flag | None:
    if samples.why_no_graph is None:
        return None
    reason = f"timed by queued events, not by replaying a graph: {samples.why_no_graph}"
    return Flag("not-captured", reason, "work on torch's current stream, with no wait for the host, can be captured")


def launch_limited(samples: Samples) -> Flag | None:
    """Flag a launch that costs the host more than the device: outside of a graph, users wait for the host.

    Also one that takes the host longer to queue than the spin before a sample may last.
    """
    host_launch_s, launches = samples.host_launch_s, samples.launches_per_sample
    if host_launch_s is None:
        return None
    is_cut = samples.method == "events" and wanted_spin_s(host_launch_s, launches) > LONGEST_SPIN_S
    if host_launch_s <= samples.median_s and not is_cut:
        return None
    reason = f"the host takes {host_launch_s:.3g} s to launch {samples.median_s:.3g} s of device time"
    if is_cut:
        limit = f"held back for {LONGEST_SPIN_S:g} s at most, and may hold host time"
        reason += f"; a sample is {launches} of them, {limit}"
    advice = "a CUDA graph or a larger case; launched one by one, it is as slow as the host"
    return Flag("launch-limited", reason, advice)


# ---- what slowed it down ------------------------------------------------------------------------------------------


def throttled(telemetry: Mapping[str, Any], is_gpu: bool) -> Flag | None:
    """Flag time lost to heat, the power supply or a CPU quota; a GPU at its power limit is `power_limited`."""
    causes = [cause for cause in slowdowns(telemetry) if cause not in ("sw_power_cap", "steal")]
    if not causes:
        return None
    advice = "better cooling, or a pause first" if is_gpu else "fewer threads than the quota allows, or a larger quota"
    return Flag("throttled", f"time lost: {_shares(telemetry, causes)}", advice)


def power_limited(telemetry: Mapping[str, Any]) -> Flag | None:
    """Flag a GPU that ran at its power limit: normal for a large matmul, and why its clock was lower."""
    if "sw_power_cap" not in slowdowns(telemetry):
        return None
    reason = f"the clock was held down at the power limit: {_shares(telemetry, ['sw_power_cap'])}"
    return Flag("power-limited", reason, "nothing is wrong; judge it at the measured clock")


def preempted(telemetry: Mapping[str, Any]) -> Flag | None:
    """Flag a CPU measurement whose cores other processes or other guests of the host used meanwhile."""
    switches_per_s = telemetry.get("thread_switches_per_s") or 0.0
    switches = switches_per_s * (telemetry.get("window_s") or 1.0)
    seen = []
    if switches_per_s > PREEMPTIONS_PER_S and switches >= LEAST_PREEMPTIONS:
        seen.append(f"{switches_per_s:.0f} times a second a thread lost its core")
    if "steal" in slowdowns(telemetry):
        seen.append(f"the hypervisor gave time away: {_shares(telemetry, ['steal'])}")
    if not seen:
        return None
    advice = "run it again when nothing else runs; what took the cores is part of this time"
    return Flag("preempted", " and ".join(seen), advice)


def _shares(telemetry: Mapping[str, Any], causes: list[str]) -> str:
    """Return each cause with its share of the time; without a share it was only seen at one end."""
    shares = telemetry["throttle"]
    return ", ".join(
        f"{cause} seen, for how long is not known" if shares[cause] is None else f"{cause} {100 * shares[cause]:.2g} %"
        for cause in causes
    )


def disturbance(telemetry: Mapping[str, Any], is_gpu: bool) -> Flag | None:
    """Flag what took time from a measurement that was not the code's: heat, a quota, other processes."""
    return throttled(telemetry, is_gpu) or (None if is_gpu else preempted(telemetry))


# ---- the samples themselves ---------------------------------------------------------------------------------------


def bimodal(samples: Samples) -> Flag | None:
    modes = two_modes(samples.samples_s, (samples.tick_s or 0.0) / samples.launches_per_sample)
    if modes is None:
        return None
    gap = _percent(modes.high_s / modes.low_s - 1)
    reason = f"two speeds: {100 * modes.high_share:.0f} % of the samples are {gap} % slower than the others"
    advice = "the median is that of the larger cluster; look for a clock that jumps, or for copies that differ"
    return Flag("bimodal", reason, advice)


def drifting(samples: Samples) -> Flag | None:
    change = drift(samples.samples_s)
    if change is None:
        return None
    word = "slower" if change > 0 else "faster"
    reason = f"the last third of the samples is {100 * abs(change):.2g} % {word} than the first"
    return Flag("drifting", reason, "a longer warm-up; compare only with what was measured interleaved")


def not_converged(samples: Samples, target_half_width: float | None) -> Flag | None:
    """Flag an interval that stayed wider than asked for, or that too few samples tell."""
    if samples.converged:
        return None
    reached_share = half_width(samples.ci95_s, samples.median_s)
    reached = f"±{_percent(reached_share)} % after {len(samples.samples_s)} samples"
    if target_half_width is not None and reached_share <= target_half_width:
        return Flag("not-converged", f"{reached}: too few to believe it", "a larger --budget")
    asked = "" if target_half_width is None else f", ±{100 * target_half_width:g} % was asked for"
    return Flag("not-converged", reached + asked, "a larger --budget, or a quieter machine")


def _percent(share: float) -> str:
    """Return a share in percent with two digits that count, never as a power of ten."""
    return f"{float(f'{100 * share:.2g}'):,g}"
