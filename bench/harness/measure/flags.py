"""Data-quality flags of a measurement, each with its reason: from samples and ceilings to a
record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import MAX_SPIN_S, wanted_spin_s
from results.record import Record
from results.show.units import number
from results.stats.samples import drift, half_width, outlier_count, two_modes
from roofline.limits import ABOVE_ROOF, CACHED_RESULT, ROOFS
from roofline.machine import Ceiling, Machine

MIN_TICKS_PER_SAMPLE = 50
"""At 50 timer ticks, half a tick is 1 % of the sample."""

LAUNCH_BOUND_FLOORS = 10
"""Flag launches shorter than this many launch floors as `near-floor`."""

MIN_COLD_WARM_RATIO = 1.02
"""If the data fits in the cache, a cold launch must be this many times slower than a warm one."""

MIN_MEMORY_FRACTION = 0.5
"""Fraction of a launch's time that its bytes must take at the memory ceiling before a cold launch
has to be slower than a warm one: arithmetic can hide a smaller fraction."""

MIN_LOST_SHARE = 0.01
"""Smallest fraction of lost time that is reported; boosting GPUs touch their power limit for
moments at any load.
"""

ROOF_MARGIN = 1.02
"""A rate above the ceiling by more than this is impossible: clocks and counters are off by 2 % at
most.
"""

MAX_CORE_WAIT = 0.05
"""Fraction of a measurement that a thread may wait in the run queue, because other processes have
its core. Their number shows in it, unlike in the switches: they become fewer. Measured on a guest
with two cores, 20 measurements of each row, median of the fractions: 0.001 (one thread) without
competitors; with 1, 2 and 6 spinning processes 0.65, 0.84 and 0.90 (matmul 256, one thread), 0.78,
0.87 and 0.94 (two threads), 0.67, 0.88 and 0.91 (relu of 4 MiB, two threads)."""

PREEMPTIONS_PER_S = 70.0
"""The same for a kernel that does not count the time in the run queue: involuntary context switches
per second of one thread above which other processes took its core away. With more processes there
are fewer switches, so this rule misses a machine that is busy throughout. Measured on a guest with
two cores, both threads together: 25 to 60 when nothing else ran, so no thread had more; 170 to 700
with one busy process, so one thread had 85 at least. All samples may then be equally slow, so that
the interval of the median shows nothing."""

MIN_PREEMPTIONS = 5
"""Fewer switches in a window say nothing about their rate."""

GATE_MARGINS = {
    ("bandwidth", "datasheet"): 1.02,
    ("flops", "clock-limited"): 1.02,
    ("flops", "datasheet"): 1.25,
}
"""Factor by which a rate must exceed a ceiling before the row is invalid, by the ceiling's quantity
and kind.

A clock-limited peak is taken at the highest clock that the driver allows. A datasheet's peak holds
at a lower one: by 8 % on an H100 SXM (1,830 of 1,980 MHz), by 18 % on an RTX PRO 6000 (2,617 of
3,090 MHz).

Source: NVIDIA's H100 and RTX PRO 6000 datasheets, and the highest clocks that the driver
reports."""

DERIVED_GATE_MARGIN = 1.5
"""The same for a ceiling derived from what the device reports about itself.

A measured ceiling makes no row invalid: other processes during a short calibration have made a
CPU's ceiling a hundred times too low. A row above it is flagged `above-roof` instead, unless the
ceiling was measured again in the same run and nothing disturbed that."""

AGAIN_GATE_MARGIN = 2.0
"""The same for a ceiling that was measured again: the fastest of several matmuls or the nearest mix
may not be the fastest that the machine can do, but it is not half of it."""

ROOF_FLAGS = ("faster-than-physics", "above-roof", "l2-suspect", "doubtful-roof")
"""Flags that depend on the ceilings."""


@dataclass(frozen=True)
class Flag:
    """A data-quality flag."""

    name: str
    """As in records and tables, for example `l2-suspect`."""
    reason: str
    advice: str


def reasons_of(flags: Iterable[Flag | None], has_advice: bool = True) -> dict[str, Any]:
    return {
        flag.name: f"{flag.reason}; {flag.advice}" if has_advice else flag.reason
        for flag in flags
        if flag
    }


def of_settings(changed: Sequence[str], cause: str) -> tuple[Flag, ...]:
    """Return a flag if there are settings that `cause` changed and that were restored."""
    if not changed:
        return ()
    reason = f"{cause} changed {', '.join(changed)}; the change was undone"
    advice = (
        "all rows are measured with the same settings; change a setting inside the "
        "function if it needs to"
    )
    return (Flag("settings-restored", reason, advice),)


def of_check(found: CheckResult, option: str) -> Iterator[Flag]:
    """Yield flags of a result that is right as far as it is known; `option` is what allows larger
    errors.
    """
    if found.unverified:
        yield Flag("not-fresh", f"not verified on fresh contents: {found.unverified}", "")
    error = found.max_error_of_bound
    if error > 1:
        reason = f"the error is {error:.3g} times what rounding explains; {option} allowed it"
        yield Flag("beyond-rounding", reason, "report the lower accuracy together with the time")


def recorded(
    blank: Record,
    samples: Samples,
    device: Device,
    ceilings: Machine | None,
    requested_cache: str | None = None,
    also: Sequence[Flag] = (),
    has_advice: bool = True,
) -> Record:
    """Return the record of a measurement with its flags; an impossible time makes it `invalid`.

    Args:
        blank: the row with its work; unknown counts are None.
        samples: its measurement.
        device: the device under test.
        ceilings: what the row is evaluated against; None: nothing.
        requested_cache: `cold` or `warm`, as requested; None: as measured.
        also: flags from outside the samples.
        has_advice: whether reasons end with advice, which names options of the commands.
    """
    flags = (
        not_cold(samples.cache) if requested_cache == "cold" != samples.cache else None,
        *slowed(samples.telemetry, device.is_gpu, device.threads or 1),
        *of_samples(samples),
        *(of_launches(samples, ceilings) if device.is_gpu else ()),
        *also,
    )
    record = replace(sampled(blank, samples), flag_reasons=reasons_of(flags, has_advice))
    return judged(record, device, ceilings, has_advice)


SAMPLED = (
    "samples_s",
    "launches_per_sample",
    "method",
    "cache",
    "median_s",
    "ci95_s",
    "converged",
    "settled",
    "warm_median_s",
    "host_latency_s",
)
"""Fields that a record shares with its samples."""


def sampled(blank: Record, samples: Samples) -> Record:
    values = {name: getattr(samples, name) for name in SAMPLED}
    outliers = outlier_count(samples.samples_s)
    telemetry = dict(samples.telemetry)
    return replace(
        blank, status="ok", reason=None, outliers=outliers, telemetry=telemetry, **values
    )


def judged(
    record: Record,
    device: Device,
    ceilings: Machine | None,
    has_advice: bool = True,
    again: Collection[tuple[str, str]] = (),
) -> Record:
    """Return a measured record with `ROOF_FLAGS` decided again by these ceilings; `again` has the
    quantities and names of those that were measured again in this run.
    """
    if record.status != "ok" or not record.samples_s or not record.median_s:
        return record
    known = ceilings or Machine()
    impossible = None
    suspect = l2_suspect(record, device, known)
    if device.is_gpu or again or any(entry.kind != "measured" for entry in known.entries):
        impossible = physics_gate(record, device, known, again)
    above = None if impossible else above_roof(record, known, suspect is not None)
    doubtful = None
    disturbed = [ceiling for _, ceiling in roofs(record, known) if ceiling.disturbed]
    if disturbed:
        names = " and ".join(f"the {ceiling.title}" for ceiling in disturbed)
        reason = (
            f"{names} may be too low, and percentages of it too high: when it was measured, "
            f"{disturbed[0].disturbed}"
        )
        doubtful = Flag(
            "doubtful-roof", reason, "run `python -m bench calibrate` when nothing else runs"
        )
    reasons = reasons_of((impossible, above, suspect, doubtful), has_advice)
    reasons |= {
        name: reason for name, reason in record.flag_reasons.items() if name not in ROOF_FLAGS
    }
    if impossible:
        record = replace(record, status="invalid", reason=impossible.reason)
    return replace(record, flags=tuple(reasons), flag_reasons=reasons)


def roofs(record: Record, ceilings: Machine) -> list[tuple[int, Ceiling]]:
    """Return the FLOPs and the compulsory bytes of a record, each with its ceiling, if both are
    known.
    """
    pairs: list[tuple[int, Ceiling]] = []
    for roof in ROOFS:
        count, known = roof.of(record, ceilings)
        if count:
            pairs += [(count, ceiling) for ceiling in known[:1]]
    return pairs


def too_low(record: Record, ceilings: Machine) -> list[Ceiling]:
    """Return the measured ceilings that a record exceeds; bandwidths only of a cold record."""
    if record.status != "ok" or not record.samples_s or not record.median_s:
        return []
    return [
        ceiling
        for count, ceiling in roofs(record, ceilings)
        if ceiling.kind == "measured"
        and (ceiling.unit == "FLOP/s" or record.cache == "cold")
        and count / record.median_s > ABOVE_ROOF * ceiling.value
    ]


def highest_peak(ceilings: Machine, dtype: str) -> Ceiling | None:
    """Return the peak at the highest clock that the driver allows; None if the GPU table lacks
    it.
    """
    from roofline.gpu_table import clock_limited_flops_per_s, load_gpus

    gpu = load_gpus().get(ceilings.slug)
    if gpu is None or not gpu.max_clock_hz:
        return None
    value = clock_limited_flops_per_s(gpu, dtype, gpu.max_clock_hz)
    if value is None:
        return None
    published = gpu.peak(dtype)
    # Some products are sold with a peak above their own clock times their rate: then that one is
    # the limit.
    value = max(value, published.value if published else 0.0)
    source = f"roofline/gpus/{gpu.slug}.toml at its highest clock"
    return Ceiling("flops", dtype, value, "clock-limited", source, sm_clock_hz=gpu.max_clock_hz)


def physics_gate(
    record: Record,
    device: Device,
    ceilings: Machine,
    again: Collection[tuple[str, str]] = (),
) -> Flag | None:
    """Flag a row that is faster than the hardware allows; the row becomes `invalid`.

    Bytes count only if they must come from memory: the row is cold and exceeds the cache.
    """
    assert record.median_s is not None
    is_from_memory = record.cache == "cold" and (record.moved_bytes or 0) > device.cache_bytes
    highest = highest_peak(ceilings, record.dtype) if device.is_gpu else None
    min_s = 0.0
    binding = None
    for count, known in roofs(record, ceilings):
        is_compute = known.unit == "FLOP/s"
        ceiling = highest if highest and is_compute else known
        if not (is_compute or is_from_memory):
            continue
        margin = GATE_MARGINS.get((ceiling.quantity, ceiling.kind), DERIVED_GATE_MARGIN)
        is_certain = ceiling.kind != "measured"
        if (ceiling.quantity, ceiling.name) in again and not ceiling.disturbed:
            margin = AGAIN_GATE_MARGIN
            is_certain = True
        floor_s = count / (margin * ceiling.value)
        if is_certain and floor_s > min_s:
            min_s = floor_s
            binding = ceiling
    if binding is None or record.median_s >= min_s:
        return None
    if min_s >= CACHED_RESULT * record.median_s:
        cause = "an earlier result is returned, or the work runs outside the timed region"
    elif binding.unit == "B/s":
        cause = "the data came from the cache, or not all of it is read"
    else:
        cause = "part of the work is left out, or the FLOPs or the peak belong to another dtype"
    return Flag(
        "faster-than-physics",
        f"faster than physics: {record.median_s:.3g} s, but its "
        f"{'FLOPs' if binding.unit == 'FLOP/s' else 'bytes'} take {min_s:.3g} s or more by "
        f"the {binding.kind} {binding.quantity} ceiling; likely {cause}",
        "check what the provider computes, and the work that the op counts",
    )


def above_roof(record: Record, ceilings: Machine, is_from_cache: bool) -> Flag | None:
    """Flag a rate that is possible but above a ceiling: the ceiling may be wrong.

    If the data comes from the cache, see `l2_suspect`, exceeding the memory bandwidth proves
    nothing about the ceiling.
    """
    assert record.median_s is not None
    for roof in ROOFS:
        count, known = roof.of(record, ceilings)
        for ceiling in known:
            reached = (count or 0) / record.median_s / ceiling.value
            is_explained = is_from_cache and roof.unit == "B/s"
            if reached > ABOVE_ROOF and not is_explained:
                reason = f"{100 * reached:.0f} % of the {ceiling.kind} {ceiling.title}"
                return Flag("above-roof", reason, f"likely {roof.cause(record, ceiling)}")
    return None


def l2_suspect(record: Record, device: Device, ceilings: Machine) -> Flag | None:
    """Flag a cold time that may include cache hits.

    Either the rate exceeds the memory bandwidth, or the data fits in the cache and cold is no
    slower than warm although memory traffic takes a good part of the time. If no ceiling is known,
    it is assumed to.
    """
    assert record.median_s is not None
    moved = record.moved_bytes
    memory = ceilings.bandwidth()
    if record.cache != "cold" or not moved:
        return None
    rate = moved / record.median_s
    ceiling = memory.value if memory else 0.0
    if ceiling and rate > ROOF_MARGIN * ceiling:
        of_memory = (
            f"{100 * rate / ceiling:.0f} % of the memory bandwidth ({ceiling / 1e9:.4g} GB/s)"
        )
        reason = f"{rate / 1e9:.4g} GB/s cold, {of_memory}"
    elif (
        record.warm_median_s is None
        or moved > device.cache_bytes
        or rate < MIN_MEMORY_FRACTION * ceiling
    ):
        return None
    elif (ratio := record.median_s / record.warm_median_s) < MIN_COLD_WARM_RATIO:
        reason = (
            f"{ratio:.3f} x the warm time, and the data fits in the cache: it may have been cached"
        )
    else:
        return None
    advice = (
        "use a larger shape; a kernel that keeps its data, or hides tensors from the "
        "rotation, stays warm"
    )
    return Flag("l2-suspect", reason, advice)


def not_cold(cache: str) -> Flag:
    if cache == "warm":
        reason = "every launch reuses the same inputs"
        advice = "free memory for a second copy of the inputs"
    else:
        reason = (
            "the copies of the inputs do not fill the cache several times over: the time is "
            "neither cold nor warm"
        )
        advice = "use a larger shape, free memory, or use --cache warm for the time with one copy"
    return Flag("not-cold", reason, advice)


def of_samples(samples: Samples) -> Iterator[Flag]:
    launches = samples.launches_per_sample
    tick_s = samples.tick_s or 0.0
    sample_s = samples.median_s * launches
    if sample_s < MIN_TICKS_PER_SAMPLE * tick_s:
        ticks = sample_s / tick_s
        reason = (
            f"a sample lasts {ticks:.1f} timer ticks of {tick_s:.3g} s: a tick is "
            f"{100 / ticks:.1f} % of it"
        )
        yield Flag("tick-limited", reason, "use more launches per sample")
    if samples.is_single:
        reason = "a sample is one launch: the inputs are restored before it, and have one copy"
        yield Flag("one-launch", reason, "free memory for more copies, or use --cache cold")
    modes = two_modes(samples.samples_s, tick_s / launches)
    if modes:
        gap = number(100 * (modes.high_s / modes.low_s - 1), 2)
        reason = (
            f"two speeds: {100 * modes.high_share:.0f} % of the samples are {gap} % slower "
            f"than the others"
        )
        advice = (
            "the median belongs to the larger group; look for a changing clock, or for "
            "copies that differ"
        )
        yield Flag("bimodal", reason, advice)
    change = drift(samples.samples_s)
    if change is not None:
        word = "slower" if change > 0 else "faster"
        reason = f"the last third of the samples is {100 * abs(change):.2g} % {word} than the first"
        yield Flag("drifting", reason, "warm up longer; compare only with interleaved measurements")
    if not samples.converged:
        yield not_converged(samples)


def not_converged(samples: Samples) -> Flag:
    reached_share = half_width(samples.ci95_s, samples.median_s)
    target = samples.target_half_width
    reached = f"±{number(100 * reached_share, 2)} % after {len(samples.samples_s)} samples"
    if target is not None and reached_share <= target:
        return Flag("not-converged", f"{reached}: too few to rely on", "increase --budget")
    requested = "" if target is None else f", the target is ±{100 * target:g} %"
    return Flag("not-converged", reached + requested, "increase --budget, or use a quieter machine")


def of_launches(samples: Samples, ceilings: Machine | None) -> Iterator[Flag | None]:
    if samples.why_no_graph is not None:
        reason = f"timed by CUDA events instead of a graph: {samples.why_no_graph}"
        yield Flag(
            "not-captured",
            reason,
            "a graph needs work on torch's current stream that does not wait for the host",
        )
    yield launch_limited(samples)
    time_s = samples.median_s
    floor = ceilings.fastest("launch") if ceilings else None
    if floor is not None and time_s < LAUNCH_BOUND_FLOORS * floor.value:
        # Not what is left: a kernel may begin before the one before it has ended.
        reason = f"the launch takes {time_s:.3g} s, that of an empty kernel {floor.value:.3g} s"
        yield Flag(
            "near-floor", reason, "use a larger shape, or fuse several launches into one kernel"
        )


def launch_limited(samples: Samples) -> Flag | None:
    """Flag a launch that takes the host longer than the device, or longer to queue than the spin
    may last.
    """
    host_launch_s = samples.host_launch_s
    launches = samples.launches_per_sample
    if host_launch_s is None:
        return None
    is_cut = samples.method == "events" and wanted_spin_s(host_launch_s, launches) > MAX_SPIN_S
    if host_launch_s <= samples.median_s and not is_cut:
        return None
    reason = (
        f"the host takes {host_launch_s:.3g} s to launch {samples.median_s:.3g} s of device time"
    )
    if is_cut:
        reason += (
            f"; a sample of {launches} launches may include host time, as the GPU waits "
            f"{MAX_SPIN_S:g} s at most"
        )
    advice = "use a CUDA graph or a larger shape; launched one by one, it is as slow as the host"
    return Flag("launch-limited", reason, advice)


def slowed(telemetry: Mapping[str, Any], is_gpu: bool, threads: int = 1) -> Iterator[Flag]:
    """Yield flags for what slowed the device down: heat, power or a quota; on a CPU also other
    processes and guests.

    A cause counts if its fraction exceeds `MIN_LOST_SHARE` and the counter's resolution. If there
    is no fraction, a clock event at the start or the end counts instead. Older records may lack any
    key. `power-limited` is normal for a large matmul on a GPU, and explains its lower clock.
    """
    shares = telemetry.get("throttle") or {}
    events = telemetry.get("clock_events") or ()
    min_fraction = max(MIN_LOST_SHARE, telemetry.get("throttle_resolution") or 0.0)
    causes = [
        cause
        for cause, share in shares.items()
        if (cause in events if share is None else share > min_fraction)
    ]
    lost = [cause for cause in causes if cause not in ("sw_power_cap", "steal")]
    if lost:
        cooling = "improve cooling, or pause first"
        quota = "use fewer threads than the quota allows, or raise it"
        yield Flag(
            "throttled", f"time lost: {_shares(telemetry, lost)}", cooling if is_gpu else quota
        )
    if is_gpu:
        if "sw_power_cap" in causes:
            reason = f"the power limit lowered the clock: {_shares(telemetry, ['sw_power_cap'])}"
            advice = (
                "evaluate it at the measured clock; in minutes of such work it may fall further"
            )
            yield Flag("power-limited", reason, f"this is normal; {advice}")
        return
    causes_seen = []
    core_wait = telemetry.get("core_wait")
    switches_per_s = telemetry.get("thread_switches_per_s") or 0.0
    if core_wait is not None:
        if core_wait > MAX_CORE_WAIT:
            causes_seen.append(f"a thread waited for a core {100 * core_wait:.0f} % of the time")
    elif (
        switches_per_s > PREEMPTIONS_PER_S
        and switches_per_s * (telemetry.get("window_s") or 1.0) >= MIN_PREEMPTIONS
    ):
        causes_seen.append(f"a thread lost its core {switches_per_s:.0f} times per second")
    if "steal" in causes:
        causes_seen.append(f"the hypervisor ran other guests: {_shares(telemetry, ['steal'])}")
    if causes_seen:
        fewer = ", or with --threads 1" if threads > 1 else ""
        advice = f"run it again when nothing else runs{fewer}; this time includes other processes"
        yield Flag("preempted", " and ".join(causes_seen), advice)


def _shares(telemetry: Mapping[str, Any], causes: list[str]) -> str:
    shares = telemetry["throttle"]
    return ", ".join(
        f"{cause} seen, duration unknown"
        if shares[cause] is None
        else f"{cause} {100 * shares[cause]:.2g} %"
        for cause in causes
    )


def disturbance(telemetry: Mapping[str, Any], is_gpu: bool) -> Flag | None:
    """Return the flag of what took time besides the code: heat, a quota, other processes; None if
    nothing did.
    """
    return next((flag for flag in slowed(telemetry, is_gpu) if flag.name != "power-limited"), None)
