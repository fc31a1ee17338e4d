"""All that is measured of some calls: warm-up, samples, the same launches warm and from the host, telemetry."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from bench.harness import worker
from bench.harness.data.checks import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller, row_telemetry, snapshot
from bench.harness.measure.flags import disturbance
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Limits, Sampler, Samples, collect, limits_of, settle
from results.stats.samples import two_modes

WARM_LIMITS = Limits(10, 0.02, 0.0, 0.15, 0.0, 1e-3)
"""Limits for the warm time of a cold row, which only shows whether cold made a difference: a few samples are enough."""

WARM_CAP_S = 0.5
"""A launch so slow that even the fewest warm samples would take longer is not repeated warm."""

LONG_LAUNCH_S = 1e-3
ON_THE_CLOCK = 1.8
"""Launches longer than a millisecond are sampled for so many times the time that the row takes outside of its samples.
Then 1.8 / 2.8 = 64 % of the time of a run is spent on samples."""

MOST_REPEATS = 3
"""A disturbed measurement is repeated so often at most, then kept with its flag. Repeating ends with the cap too."""


def take_samples(
    calls: Sequence[samplers.Call],
    cache: str,
    device: Device,
    limits: Limits,
    flops: int | None = None,
    left_s: float | None = None,
    prepared_s: float = 0.0,
    replay: ReplayCheck | None = None,
    is_capturable: bool = True,
) -> Samples:
    """Warm up, sample, and measure the same launches warm and from the host.

    Args:
        calls: one call for each copy of the inputs.
        cache: `cold`, `warm` or `partly-cold`, what launches that rotate through the calls find.
        device: where they run.
        limits: when to stop sampling.
        flops: of one launch, for FLOP/J.
        left_s: time that sampling may take at most, beside its own cap.
        prepared_s: time to make and check the inputs and the result; launches of more than a millisecond are sampled
            for a multiple of it, so that most of a run is spent on samples.
        replay: verifies what a CUDA graph of the calls writes, before it is timed.
        is_capturable: whether a CUDA graph of the calls may be tried; an update of weights by torch's optimizers, and
            its backward pass, would leave a capture that fails halfway.
    """
    worker.announce()
    begin, poller = time.perf_counter(), Poller(device)
    sampler = make_sampler(calls, device, limits, poller, replay, is_capturable)
    settling = settle(sampler.sample, limits)
    host_launch_s = samplers.host_launch_s(calls, device.synchronize)  # before the samples, the last steps of training
    host_latency_s = samplers.host_latency_s(calls, device.synchronize)
    launch_s = settling.seconds / settling.launches / sampler.launches_per_sample
    beside_s = prepared_s + time.perf_counter() - begin + WARM_LIMITS.cap_s * (cache == "cold")
    if device.is_gpu:
        beside_s -= settling.seconds  # during which the launches run too
    until = sampling_limits(limits, device, launch_s, beside_s, left_s)
    samples = undisturbed(sampler, device, until, cache, flops, poller)
    return replace(
        samples,
        settled=settling.settled,
        warm_median_s=warm_median_s(calls, samples, device, is_capturable),
        host_launch_s=host_launch_s,
        host_latency_s=host_latency_s,
        tick_s=samplers.tick_s(device),
        target_half_width=limits.target_half_width,
        why_no_graph=sampler.why_no_graph,
    )


def sample_steps(step: samplers.Call, cache: str, device: Device, left_s: float | None = None) -> Samples:
    """Time a step that the host takes part in by the host's clock, one step a sample: no graph or queue can hold it.

    Args:
        step: returns when all that it launched is done.
        cache: `cold` or `warm`, what a step finds.
        device: where it runs.
        left_s: time that sampling may take at most, beside its own cap.
    """
    sampler, limits = samplers.HostSampler([step], 1), limits_of(device)
    settling = settle(sampler.sample, limits)
    until = sampling_limits(limits, device, 0.0, left_s=left_s)
    samples = undisturbed(sampler, device, until, cache, None, Poller(device))
    return replace(
        samples,
        settled=settling.settled,
        host_launch_s=samples.median_s,
        host_latency_s=samples.median_s,
        tick_s=samplers.tick_s(device),
        target_half_width=limits.target_half_width,
    )


def make_sampler(
    calls: Sequence[samplers.Call],
    device: Device,
    limits: Limits,
    poller: Poller,
    replay: ReplayCheck | None = None,
    is_capturable: bool = True,
) -> Sampler:
    """Return what reads the clock around these calls; a graph only if `replay` finds its results right."""
    refusal = replay.refusal if replay else lambda graph: None
    return samplers.make_sampler(calls, device, limits, is_capturable, refusal, poller)


def sampling_limits(
    limits: Limits, device: Device, launch_s: float, beside_s: float = 0.0, left_s: float | None = None
) -> Limits:
    """Return when to stop sampling launches of about `launch_s` seconds.

    Args:
        limits: of the row.
        device: where the launches run.
        launch_s: time of a launch, roughly.
        beside_s: time of the row outside of its samples.
        left_s: time that is left of the budget; None without one.
    """
    if launch_s >= LONG_LAUNCH_S:
        least_s = max(limits.min_time_s, ON_THE_CLOCK * beside_s / limits.visits)
        if device.is_gpu:
            least_s = min(least_s, limits.cap_s)
        limits = replace(limits, min_time_s=least_s, cap_s=max(limits.cap_s, least_s))
    if left_s is None:
        return limits
    cap_s = min(limits.cap_s, max(0.0, left_s))
    return replace(limits, cap_s=cap_s, min_time_s=min(limits.min_time_s, cap_s))


def undisturbed(
    sampler: Sampler, device: Device, limits: Limits, cache: str, flops: int | None, poller: Poller
) -> Samples:
    """Return samples and telemetry of a time in which nothing else held the device back, if there is one.

    If heat, a quota or other processes took time, all of it is measured again; on a CPU also if the samples have two
    speeds, which is how it looks when a neighbor begins or ends. The last one counts, whatever it shows. `repeats` in
    the telemetry says how often.
    """
    end = time.perf_counter() + limits.cap_s
    for repeats in range(MOST_REPEATS + 1):
        before = snapshot(device)
        poller.begin()
        samples = collect(sampler, limits, cache)
        launches = len(samples.samples_s) * samples.launches_per_sample + poller.launches
        telemetry = row_telemetry(before, snapshot(device), launches=launches, flops=flops, polled=poller.seen)
        telemetry["repeats"] = repeats
        has_two_speeds = not device.is_gpu and two_modes(samples.samples_s) is not None
        is_disturbed = has_two_speeds or disturbance(telemetry, device.is_gpu) is not None
        if not is_disturbed or time.perf_counter() >= end:
            break
    return replace(samples, telemetry=telemetry)


def warm_median_s(
    calls: Sequence[samplers.Call], cold: Samples, device: Device, is_capturable: bool = True
) -> float | None:
    """Return the median seconds of a warm launch beside a cold one, None where it is not worth its time."""
    if cold.cache != "cold" or cold.median_s * WARM_LIMITS.fewest_samples > WARM_CAP_S:
        return None
    sampler = samplers.make_sampler(calls[:1], device, WARM_LIMITS, is_capturable and cold.method == "graph")
    sampler.sample()
    return collect(sampler, WARM_LIMITS, "warm").median_s
