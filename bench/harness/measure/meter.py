"""Everything that is measured of one provider on one case: samples, warm time, latency, telemetry, settling."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.harness.data.replay import ReplayCheck
from bench.harness.data.verify import CheckResult
from bench.harness.device.device import Device
from bench.harness.device.telemetry import Poller, row_telemetry, snapshot
from bench.harness.measure.evidence import disturbance
from bench.harness.timing import samplers
from bench.harness.timing.protocol import Limits, Sampler, Samples, Settling, collect, limits_of, settle
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


@dataclass(frozen=True)
class Measurement:
    """What was measured of one provider on one case."""

    samples: Samples
    warm_s: float | None
    """Median seconds of a launch that finds its inputs where the last one left them; None where not measured."""
    host_launch_s: float | None
    """Seconds that one call keeps the host; on a CPU the launch itself. None where nobody waits for the host."""
    host_latency_s: float
    """Seconds from a call to its finished result."""
    settling: Settling
    telemetry: dict[str, Any]
    tick_s: float | None = None
    """Smallest step of the clock that the samples were read from."""
    target_half_width: float | None = None
    """Half width of the interval, as a fraction of the median, that was asked for."""
    why_no_graph: str | None = None
    """Why the launches were not timed by replaying a graph, where that was tried."""
    replayed: CheckResult | None = None
    """The check of what a replay wrote after the samples; None where no graph was timed, or nothing checks it."""


class Meter:
    """Measures calls on one device, by the same protocol every time."""

    def __init__(self, device: Device, limits: Limits | None = None, is_capturable: bool = True) -> None:
        """Prepare.

        Args:
            device: the device under test.
            limits: when to stop sampling; by default what suits the device.
            is_capturable: whether a CUDA graph of the calls may be tried; an update of weights by torch's optimizers,
                and its backward pass, would leave a capture that fails halfway.
        """
        self._device, self._limits = device, limits or limits_of(device)
        self._is_capturable, self._poller = is_capturable, Poller(device)

    @functools.cached_property
    def tick_s(self) -> float:
        """Smallest step of the clock that samples are read from, seconds."""
        return samplers.tick_s(self._device)

    def measure(
        self,
        calls: Sequence[samplers.Call],
        cache: str,
        flops: int | None = None,
        left_s: float | None = None,
        prepared_s: float = 0.0,
        replay: ReplayCheck | None = None,
    ) -> Measurement:
        """Let the device settle, sample, and measure the same launches warm and from the host.

        Args:
            calls: one call for each copy of the inputs.
            cache: `cold`, `warm` or `partly-cold`, what launches going round the calls find.
            flops: of one launch, for FLOP/J.
            left_s: time that sampling may take at most, beside its own cap.
            prepared_s: time that making and checking the inputs and the result takes; launches of more than a
                millisecond are sampled for a multiple of it, so that most of a run is spent on the clock.
            replay: verifies what a graph of the calls writes, before it is timed and afterwards.
        """
        begin = time.perf_counter()
        sampler = self.sampler(calls, self._limits, replay)
        settling = settle(sampler.sample, self._limits)
        host_s = self.host_s(calls)  # before the samples, which are the last steps of training
        launch_s = settling.seconds / settling.launches / sampler.launches_per_sample
        beside_s = prepared_s + time.perf_counter() - begin + WARM_LIMITS.cap_s * (cache == "cold")
        if self._device.is_gpu:
            beside_s -= settling.seconds  # during which the launches run too
        samples, telemetry = self._undisturbed(sampler, self._sampling(launch_s, beside_s, left_s), cache, flops)
        return self.measured(calls, host_s, sampler, samples, settling, telemetry, replay)

    def host_s(self, calls: Sequence[samplers.Call]) -> tuple[float, float]:
        """Return the seconds that a launch keeps the host, and from a launch to its finished result."""
        synchronize = self._device.synchronize
        return samplers.host_launch_s(calls, synchronize), samplers.host_latency_s(calls, synchronize)

    def measured(
        self,
        calls: Sequence[samplers.Call],
        host_s: tuple[float, float],
        sampler: Sampler,
        samples: Samples,
        settling: Settling,
        telemetry: dict[str, Any],
        replay: ReplayCheck | None,
    ) -> Measurement:
        """Return samples with what is measured after them: the launches warm, and the check of a replay."""
        return Measurement(
            samples=samples,
            warm_s=self._warm_s(calls, samples),
            host_launch_s=host_s[0],
            host_latency_s=host_s[1],
            settling=settling,
            telemetry=telemetry,
            tick_s=self.tick_s,
            target_half_width=self._limits.target_half_width,
            why_no_graph=sampler.why_no_graph,
            replayed=replay.after() if replay else None,
        )

    def sampler(self, calls: Sequence[samplers.Call], limits: Limits, replay: ReplayCheck | None = None) -> Sampler:
        """Return what reads the clock around these calls; a graph only where `replay` finds its results right."""
        refusal = replay.refusal if replay else lambda graph: None
        return samplers.make_sampler(calls, self._device, limits, self._is_capturable, refusal, self._poller)

    def _sampling(self, launch_s: float, beside_s: float, left_s: float | None) -> Limits:
        """Return when to stop sampling launches of about `launch_s` seconds.

        Args:
            launch_s: of one launch, roughly.
            beside_s: what the row takes beside its samples.
            left_s: time that is left of the budget; None without one.
        """
        limits = self._limits
        if launch_s >= LONG_LAUNCH_S:
            least_s = max(limits.min_time_s, ON_THE_CLOCK * beside_s / limits.visits)
            if self._device.is_gpu:
                least_s = min(least_s, limits.cap_s)
            limits = replace(limits, min_time_s=least_s, cap_s=max(limits.cap_s, least_s))
        if left_s is None:
            return limits
        cap_s = min(limits.cap_s, max(0.0, left_s))
        return replace(limits, cap_s=cap_s, min_time_s=min(limits.min_time_s, cap_s))

    def _undisturbed(
        self, sampler: Sampler, limits: Limits, cache: str, flops: int | None
    ) -> tuple[Samples, dict[str, Any]]:
        """Return samples and telemetry of a time in which nothing else held the device back, if there is one.

        Where heat, a quota or other processes took time, all of it is measured again; on a CPU also where the samples
        have two speeds, which is how it looks when a neighbor begins or ends. The last one counts, whatever it shows.
        `repeats` in the telemetry says how often.
        """
        is_gpu, end = self._device.is_gpu, time.perf_counter() + limits.cap_s
        for repeats in range(MOST_REPEATS + 1):
            before = snapshot(self._device)
            self._poller.begin()
            samples = collect(sampler, limits, cache)
            launches = len(samples.samples_s) * samples.launches_per_sample + self._poller.launches
            after, polled = snapshot(self._device), self._poller.seen
            telemetry = row_telemetry(before, after, launches=launches, flops=flops, polled=polled)
            telemetry["repeats"] = repeats
            has_two_speeds = not is_gpu and two_modes(samples.samples_s) is not None
            is_disturbed = has_two_speeds or disturbance(telemetry, is_gpu) is not None
            if not is_disturbed or time.perf_counter() >= end:
                break
        return samples, telemetry

    def _warm_s(self, calls: Sequence[samplers.Call], samples: Samples) -> float | None:
        """Return the median seconds of a warm launch beside a cold one, None where it is not worth its time."""
        if samples.cache != "cold" or samples.median_s * WARM_LIMITS.fewest_samples > WARM_CAP_S:
            return None
        capturable = self._is_capturable and samples.method == "graph"
        sampler = samplers.make_sampler(calls[:1], self._device, WARM_LIMITS, capturable)
        sampler.sample()
        return collect(sampler, WARM_LIMITS, "warm").median_s
