"""What speaks against a measurement: from its samples and what was seen meanwhile to flags, each with its reason.

Nothing here measures and nothing is dropped: every function takes numbers and says what they mean. `flags_of` asks all
of them about one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.harness.device.telemetry import slowdowns
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import LONGEST_SPIN_S, wanted_spin_s
from results.stats.samples import Modes, drift, half_width, two_modes
from roofline.ceilings import Ceiling
from roofline.model import rate

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


ROOF_FLAGS = ("above-roof", "l2-suspect", "doubtful-roof")
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


@dataclass(frozen=True, kw_only=True)
class Context:
    """What is known of a row beside its samples; None where it is not known."""

    is_gpu: bool
    """Whether CUDA events or graphs timed the row; otherwise the host's clock did, and disturbances of the host are in
    the time."""
    asked_cache: str = "cold"
    tick_s: float | None = None
    """Smallest step of the clock that timed the samples."""
    host_launch_s: float | None = None
    """Seconds that the host takes to launch once."""
    target_half_width: float | None = None
    flops: int | None = None
    bytes_moved: int | None = None
    """Compulsory bytes of one launch."""
    cache_bytes: int | None = None
    warm_s: float | None = None
    """Median of the same launches with their data in the cache."""
    memory_roof_bytes_per_s: float | None = None
    """The most that the memory does with any mix of reads and writes: by datasheet, or the fastest mix measured."""
    peak: Ceiling | None = None
    """The most FLOP/s of the row's dtype, as MFU is taken over."""
    highest_peak: Ceiling | None = None
    """The most FLOP/s that the device could do at its highest clock; where it is not known, `peak` has to do."""
    bandwidth: Ceiling | None = None
    """The memory bandwidth that the row is judged by: published, or measured with the mix nearest to its own."""
    measured_peak: Ceiling | None = None
    """The fastest matmul measured of the row's dtype, also where `peak` is a published one."""
    mix: Ceiling | None = None
    """The bandwidth measured with the mix nearest to the row's own, also where `bandwidth` is a published one."""
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    """What `telemetry.row_telemetry` returned."""
    launch_floor_s: float | None = None
    """The shortest time of a launch: that of an empty kernel in a graph."""
    why_no_graph: str | None = None
    """Why a graph of the launches was not timed, where one was tried."""


def flags_of(samples: Samples, context: Context) -> tuple[Flag, ...]:
    """Return everything that speaks against a row, the most serious first; empty for a clean one."""
    time_s, launches = samples.median_s, samples.launches_per_sample
    found = (
        physics_gate(samples, context),
        above_roof(samples, context),
        l2_suspect(samples, context),
        doubtful_roof(context),
        not_cold(samples.cache, context.asked_cache),
        tick_limited(time_s, launches, context.tick_s),
        throttled(context.telemetry, context.is_gpu),
        power_limited(context.telemetry),
        preempted(context.telemetry) if not context.is_gpu else None,
        bimodal(two_modes(samples.samples_s, (context.tick_s or 0.0) / launches)),
        not_captured(context.why_no_graph),
        drifting(drift(samples.samples_s)),
        not_converged(samples, context.target_half_width),
        launch_limited(samples, context.host_launch_s) if context.is_gpu else None,
        near_floor(time_s, context.launch_floor_s) if context.is_gpu else None,
    )
    return tuple(flag for flag in found if flag is not None)


# ---- faster than possible -----------------------------------------------------------------------------------------


def physics_gate(samples: Samples, context: Context) -> Flag | None:
    """Flag a row that is faster than its machine can be; such a row is `invalid`.

    The memory counts only where the data must come from it: in a cold row whose bytes exceed the cache.
    """
    bytes_moved = context.bytes_moved if samples.cache == "cold" and _exceeds_cache(context) else None
    highest = context.highest_peak or context.peak
    floors = (
        (_floor_s(context.flops, highest), "FLOPs", highest),
        (_floor_s(bytes_moved, context.bandwidth), "bytes", context.bandwidth),
    )
    least_s, counted, ceiling = max(floors, key=lambda floor: floor[0])
    if ceiling is None or samples.median_s >= least_s:
        return None
    times = least_s / samples.median_s
    return Flag(
        "faster-than-physics",
        f"faster than physics: {samples.median_s:.3g} s, but its {counted} take {least_s:.3g} s or more by the "
        f"{ceiling.kind} {ceiling.quantity} ceiling; {_likely_cause(times, counted)}",
        "check what the provider really does, and the work that the op counts",
    )


def _floor_s(count: int | None, ceiling: Ceiling | None) -> float:
    """Return the seconds below which `count` FLOPs or bytes cannot be done, 0 where one of the two is not known."""
    if count is None or ceiling is None:
        return 0.0
    if ceiling.kind == "measured":
        return 0.0
    margin = GATE_MARGINS.get((ceiling.quantity, ceiling.kind), DERIVED_GATE_MARGIN)
    return count / (margin * ceiling.value)


def _likely_cause(times: float, counted: str) -> str:
    if times >= CACHED_RESULT:
        return "likely the result of an earlier launch is returned, or the work runs where the clock does not see it"
    if counted == "bytes":
        return "likely the data came from the cache, or not all of it is touched"
    return "likely part of the work is left out, or the FLOPs or the peak are those of another dtype"


def too_low(samples: Samples, context: Context) -> list[Ceiling]:
    """Return the measured ceilings that a row is above; data that may come from a cache tells nothing of the memory."""
    judges = [(context.flops, context.peak)]
    if samples.cache == "cold" and _exceeds_cache(context):
        judges.append((context.bytes_moved, context.bandwidth))
    return [
        ceiling
        for count, ceiling in judges
        if count and ceiling and ceiling.kind == "measured"
        if rate(count, samples.median_s) > ABOVE_ROOF * ceiling.value
    ]


def above_roof(samples: Samples, context: Context) -> Flag | None:
    """Flag more than a ceiling that the row is judged by, where it is not impossible.

    The memory's ceiling counts unless `l2_suspect` explains the excess: data from the cache exceeds it too.
    """
    if physics_gate(samples, context) is not None:
        return None
    ceilings = [(context.flops, context.peak), (context.flops, context.measured_peak)]
    if l2_suspect(samples, context) is None:
        ceilings += [(context.bytes_moved, context.bandwidth), (context.bytes_moved, context.mix)]
    for count, ceiling in ceilings:
        if count and ceiling and (reached := rate(count, samples.median_s) / ceiling.value) > ABOVE_ROOF:
            return _above(reached, ceiling, samples.cache)
    return None


def _above(reached: float, ceiling: Ceiling, cache: str) -> Flag:
    was_measured = ceiling.kind == "measured"
    if ceiling.quantity == "flops":
        advice = "calibrate again: the machine was slower then" if was_measured else "judge it at the measured clock"
        return Flag("above-roof", f"{100 * reached:.0f} % of the {ceiling.kind} peak", advice)
    reason = f"{100 * reached:.0f} % of the {ceiling.kind} {ceiling.name} bandwidth"
    if cache != "cold":
        return Flag(
            "above-roof", f"{reason}: {cache} data comes from the cache", "for the memory's speed, --cache cold"
        )
    if not was_measured:
        return Flag("above-roof", f"{reason}, so not all bytes came from there", "check the bytes that the op counts")
    advice = (
        "calibrate again: the machine was slower then, unless the row's own mix of reads and writes is a faster one"
    )
    return Flag("above-roof", f"{reason}, the mix nearest to its own", advice)


def doubtful_roof(context: Context) -> Flag | None:
    """Flag a row that is judged by a ceiling that was measured while something else held the device back."""
    judges = ((context.flops, context.peak), (context.bytes_moved, context.bandwidth))
    found = [ceiling for count, ceiling in judges if count and ceiling and ceiling.disturbed]
    if not found:
        return None
    names = " and ".join(f"the {ceiling.title}" for ceiling in found)
    return Flag(
        "doubtful-roof",
        f"{names} may be too low, and a share of it too high: when it was measured, {found[0].disturbed}",
        "`python -m bench calibrate` when nothing else runs",
    )


# ---- was it cold --------------------------------------------------------------------------------------------------


def _exceeds_cache(context: Context) -> bool:
    return None not in (context.bytes_moved, context.cache_bytes) and context.bytes_moved > context.cache_bytes  # type: ignore[operator]


def l2_suspect(samples: Samples, context: Context) -> Flag | None:
    """Flag a cold time that may have found its data in the cache.

    Either it moves bytes faster than the memory does, or its data fits in the cache and being cold made no
    difference, although the bytes take a good part of the time. Where no ceiling is known, every row is suspect.
    """
    bytes_moved, ceiling = context.bytes_moved, context.memory_roof_bytes_per_s
    if samples.cache != "cold" or not bytes_moved:
        return None
    advice = "more or larger copies; a kernel that keeps its data, or hides its tensors from the rotation, stays warm"
    rate = bytes_moved / samples.median_s
    if ceiling and rate > ROOF_MARGIN * ceiling:
        of_memory = f"{100 * rate / ceiling:.0f} % of what the memory does ({ceiling / 1e9:.4g} GB/s)"
        reason = f"{rate / 1e9:.4g} GB/s cold, {of_memory}"
        return Flag("l2-suspect", reason, advice)
    is_by_memory = ceiling is None or rate >= MEMORY_SHARE * ceiling
    if context.warm_s is None or context.cache_bytes is None or _exceeds_cache(context) or not is_by_memory:
        return None
    ratio = samples.median_s / context.warm_s
    if ratio >= COLD_RATIO:
        return None
    return Flag(
        "l2-suspect",
        f"{ratio:.3f} x the warm time, and the data fits in the cache: it may have been there",
        advice,
    )


def not_cold(cache: str, asked_cache: str) -> Flag | None:
    """Flag a row that could not be made cold as requested."""
    if asked_cache != "cold" or cache == "cold":
        return None
    if cache == "warm":
        reason, advice = "every launch uses the same inputs again", "free memory for a second copy of the inputs"
    else:
        reason = "the copies of the inputs do not fill the cache several times over: the time is neither cold nor warm"
        advice = "a larger shape or more free memory, or --cache warm for the time with one copy"
    return Flag("not-cold", reason, advice)


# ---- the clock ----------------------------------------------------------------------------------------------------


def tick_limited(time_s: float, launches_per_sample: int, tick_s: float | None) -> Flag | None:
    """Flag samples of so few ticks of the clock that the tick shows in them.

    Args:
        time_s: median time of one launch.
        launches_per_sample: launches between two readings of the clock.
        tick_s: smallest step of the clock, None where it is not known.
    """
    if not tick_s or time_s * launches_per_sample >= LEAST_TICKS * tick_s:
        return None
    ticks = time_s * launches_per_sample / tick_s
    return Flag(
        "tick-limited",
        f"a sample is {ticks:.1f} ticks of {tick_s:.3g} s long, so that a tick is {100 / ticks:.1f} % of it",
        "more launches a sample",
    )


def near_floor(time_s: float, launch_floor_s: float | None) -> Flag | None:
    """Flag a launch that takes little longer than an empty kernel does in the same kind of graph."""
    if launch_floor_s is None or time_s >= FLOORS * launch_floor_s:
        return None
    return Flag(
        "near-floor",
        f"an empty kernel takes {launch_floor_s:.3g} s of these {time_s:.3g} s, "
        f"which leaves {max(0.0, time_s - launch_floor_s):.3g} s",
        "a larger case, or several launches in one kernel",
    )


def not_captured(why_no_graph: str | None) -> Flag | None:
    """Flag launches that were to be timed by replaying a graph and could not be."""
    if why_no_graph is None:
        return None
    return Flag(
        "not-captured",
        f"timed by queued events, not by replaying a graph: {why_no_graph}",
        "work on torch's current stream, with no wait for the host, can be captured",
    )


def launch_limited(samples: Samples, host_launch_s: float | None) -> Flag | None:
    """Flag a launch that costs the host more than the device: outside of a graph, users wait for the host.

    Also one that takes the host longer to queue than the spin before a sample may last.
    """
    if host_launch_s is None:
        return None
    launches = samples.launches_per_sample
    is_cut = samples.method == "events" and wanted_spin_s(host_launch_s, launches) > LONGEST_SPIN_S
    if host_launch_s <= samples.median_s and not is_cut:
        return None
    reason = f"the host takes {host_launch_s:.3g} s to launch {samples.median_s:.3g} s of device time"
    if is_cut:
        reason += (
            f"; a sample is {launches} of them, held back for {LONGEST_SPIN_S:g} s at most, and may hold host time"
        )
    return Flag(
        "launch-limited", reason, "a CUDA graph or a larger case; launched one by one, it is as slow as the host"
    )


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


def _shares(telemetry: Mapping[str, Any], causes: list[str]) -> str:
    """Return each cause with its share of the time; without a share it was only seen at one end."""
    shares = telemetry["throttle"]
    return ", ".join(
        f"{cause} seen, for how long is not known" if shares[cause] is None else f"{cause} {100 * shares[cause]:.2g} %"
        for cause in causes
    )


def disturbance(telemetry: Mapping[str, Any], is_gpu: bool) -> str | None:
    """Return what took time from a measurement that was not the code's, or None: heat, a quota, other processes."""
    flag = throttled(telemetry, is_gpu) or (None if is_gpu else preempted(telemetry))
    return flag.reason if flag else None


def preempted(telemetry: Mapping[str, Any]) -> Flag | None:
    """Flag a CPU measurement whose cores other processes or other guests of the host used meanwhile."""
    switches_per_s = telemetry.get("thread_switches_per_s") or 0.0
    seen = []
    window_s = telemetry.get("window_s") or 1.0
    if switches_per_s > PREEMPTIONS_PER_S and switches_per_s * window_s >= LEAST_PREEMPTIONS:
        seen.append(f"{switches_per_s:.0f} times a second a thread lost its core")
    if "steal" in slowdowns(telemetry):
        seen.append(f"the hypervisor gave time away: {_shares(telemetry, ['steal'])}")
    if not seen:
        return None
    return Flag(
        "preempted", " and ".join(seen), "run it again when nothing else runs; what took the cores is part of this time"
    )


# ---- the samples themselves ---------------------------------------------------------------------------------------


def _percent(share: float) -> str:
    """Return a share in percent with two digits that count, never as a power of ten."""
    return f"{float(f'{100 * share:.2g}'):,g}"


def bimodal(modes: Modes | None) -> Flag | None:
    """Flag samples that fall into two clusters."""
    if modes is None:
        return None
    gap = _percent(modes.high_s / modes.low_s - 1)
    return Flag(
        "bimodal",
        f"two speeds: {100 * modes.high_share:.0f} % of the samples are {gap} % slower than the others",
        "the median is that of the larger cluster; look for a clock that jumps, or for copies that differ",
    )


def drifting(change: float | None) -> Flag | None:
    """Flag samples that became slower or faster; `change` is that of `results.stats.samples.drift`."""
    if change is None:
        return None
    word = "slower" if change > 0 else "faster"
    return Flag(
        "drifting",
        f"the last third of the samples is {100 * abs(change):.2g} % {word} than the first",
        "a longer warm-up; compare only with what was measured interleaved",
    )


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
