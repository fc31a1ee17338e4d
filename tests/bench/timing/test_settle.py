"""Warm-up on simulated clocks: it ends when the times have converged, and reports if they never
do.
"""

import itertools
import math
from dataclasses import replace

import pytest

from bench.harness.timing.protocol import CPU_LIMITS, GPU_LIMITS, collect, settle
from results.stats.samples import drift
from tests.simulated_device import SimulatedDevice

ENDLESS_S = 70.0
"""A longer warm-up on a simulated clock is taken as endless."""


def settled(device, limits=GPU_LIMITS):
    def now():
        assert device.now() < ENDLESS_S, "the warm-up does not end"
        return device.now()

    return settle(device.sample, limits, now)


def settled_with(times_s, limits=GPU_LIMITS, left_s=math.inf):
    """Settle work with these times; the last one repeats."""
    seconds, coming = [0.0], itertools.chain(times_s, itertools.repeat(times_s[-1]))

    def work():
        took_s = next(coming)
        seconds[0] += took_s
        return took_s

    return settle(work, limits, lambda: seconds[0], left_s)


def test_a_steady_device_has_the_minimum_warm_up():
    result = settled(SimulatedDevice(noise=0.03))
    assert result.settled
    assert 0.5 <= result.seconds < 0.51
    assert result.launches == pytest.approx(result.seconds / 1e-3, rel=0.02)
    result = settled(SimulatedDevice(), replace(GPU_LIMITS, warm_up_s=2.0))
    assert result.settled
    assert 2.0 <= result.seconds < 2.1


@pytest.mark.parametrize(
    ("left_s", "taken_s"), [(math.inf, 5.0), (60.0, 5.0), (6.0, 2.0), (1.0, 0.5), (-3.0, 0.5)]
)
def test_warm_up_takes_a_third_of_the_time_left_at_most(left_s, taken_s):
    """But never less than the minimum, without which times would not be those of a busy device."""
    result = settled_with([1e-2 * 1.05**index for index in range(500)], left_s=left_s)
    assert not result.settled
    assert taken_s <= result.seconds <= 1.1 * taken_s


@pytest.mark.parametrize("start_clock", [0.3, 0.8, 1.1])
@pytest.mark.parametrize("seed", range(5))
def test_warm_up_lasts_until_the_clock_is_steady(start_clock, seed):
    device = SimulatedDevice(seed=seed, start_clock=start_clock, noise=0.01)
    assert settled(device).settled
    assert device.clock_hz() == pytest.approx(device.max_clock_hz, rel=0.03)


@pytest.mark.exhaustive
def test_samples_drift_only_without_settling():
    def flags(device):
        samples = collect(device, GPU_LIMITS, "cold", now=device.now)
        return {"drifting"} if drift(samples.samples_s) is not None else set()

    pairs = [
        [SimulatedDevice(seed=seed, noise=0.01, start_clock=0.8) for _ in range(2)]
        for seed in range(20)
    ]
    assert all(settled(patient).settled for _, patient in pairs)
    assert all("drifting" in flags(hasty) for hasty, _ in pairs)
    assert sum(bool(flags(patient)) for _, patient in pairs) <= 3


def fixed(warm_up_s):
    return replace(GPU_LIMITS, warm_up_s=warm_up_s, warm_up_cap_s=warm_up_s)


@pytest.mark.parametrize(
    ("times_s", "limits", "ends"),
    [
        ([1.0], GPU_LIMITS, (True, 3, 3.0)),  # longer than a block: compared one by one
        ([60.0], GPU_LIMITS, (False, 1, 60.0)),  # longer than the cap
        # One preempted launch moves no block of four.
        ([0.05] * 2 + [0.5] + [0.05] * 30, GPU_LIMITS, (True, 12, 1.05)),
        ([0.01 * 1.02**i for i in range(200)], CPU_LIMITS, (False, 56, 1.0156)),  # ever slower
        ([0.1001], fixed(0.5), (False, 5, 0.5005)),
        ([0.1001], fixed(0.1), (False, 1, 0.1001)),
        ([0.1001], fixed(0.0), (True, 1, 0.1001)),
    ],
)
def test_warm_up_ends_for_launches_of_any_length(times_s, limits, ends):
    result = settled_with(times_s, limits)
    assert (result.settled, result.launches, result.seconds) == (
        *ends[:2],
        pytest.approx(ends[2], rel=1e-3),
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.2])
def test_a_noisy_cpu_settles_soon(noise):
    results = [
        settled(SimulatedDevice(seed=seed, noise=noise, settle_s=0.05), CPU_LIMITS)
        for seed in range(100)
    ]
    assert all(result.settled for result in results)
    assert sorted(result.seconds for result in results)[95] < 0.13
