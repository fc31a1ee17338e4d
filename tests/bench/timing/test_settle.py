"""Warm-up by state: it ends when the device has settled, on simulated clocks, and says so when it never does."""

import itertools
import random
from dataclasses import dataclass

import pytest

from bench.harness.device.telemetry import ClockAndPower
from bench.harness.measure.evidence import Context, flags_of
from bench.harness.timing.protocol import GPU_LIMITS, collect
from bench.harness.timing.settle import (
    AT_THE_LIMIT,
    CPU_SETTLE,
    GPU_SETTLE,
    POLL_EVERY_S,
    POWER_LIMITED_CAP_S,
    WINDOW_S,
    SettleLimits,
    blocks_agree,
    keeps_still,
    settle,
)
from tests.simulated_device import SimulatedDevice

ENDLESS_S = 70.0
"""A warm-up that lasts so long on a simulated clock never ends."""


def settled(device, limits=GPU_SETTLE):
    def now():
        assert device.now() < ENDLESS_S, "the warm-up does not end"
        return device.now()

    return settle(device.sample, device.clock_and_power, limits, now=now)


@dataclass
class Bench:
    """Work that takes one time, beside clocks and powers that come one after the other."""

    polled: list
    work_s: float = 0.01
    seconds: float = 0.0

    def __post_init__(self):
        self.coming = itertools.chain(self.polled, itertools.repeat(self.polled[-1]))

    def run(self, limits=GPU_SETTLE):
        return settle(self.work, lambda: ClockAndPower(*next(self.coming)), limits, now=lambda: self.seconds)

    def work(self):
        self.seconds += self.work_s
        assert self.seconds < ENDLESS_S, "the warm-up does not end"
        return self.work_s


def test_a_device_that_keeps_still_is_watched_for_a_window():
    result = settled(SimulatedDevice(noise=0.03))
    assert result.settled
    assert result.judged_by == "clock and power"
    assert WINDOW_S <= result.seconds < WINDOW_S + 3 * POLL_EVERY_S
    assert result.launches == pytest.approx(result.seconds / 1e-3, rel=0.02)


def test_it_is_polled_every_50_ms_and_told_what_was_read():
    device = SimulatedDevice(noise=0.0)
    result = settled(device)
    gaps = [later - earlier for earlier, later in itertools.pairwise(device.polls)]
    assert all(POLL_EVERY_S <= gap < POLL_EVERY_S + 0.0021 for gap in gaps)
    assert [reading.at_s for reading in result.readings] == device.polls
    assert {(reading.sm_clock_hz, reading.power_w) for reading in result.readings} == {(1.98e9, 700.0)}


@pytest.mark.parametrize("start_clock", [0.3, 0.8, 1.1])
@pytest.mark.parametrize("seed", range(5))
def test_a_device_that_speeds_up_or_slows_down_is_waited_for(start_clock, seed):
    device = SimulatedDevice(seed=seed, start_clock=start_clock)
    result = settled(device)
    assert result.settled
    assert result.seconds > 2 * WINDOW_S
    assert device.clock_hz() == pytest.approx(device.max_clock_hz, rel=0.01)


@pytest.mark.exhaustive
def test_without_settling_the_samples_drift_and_after_it_they_do_not():
    def flags(device):
        samples = collect(device, GPU_LIMITS, "cold", now=device.now)
        return {flag.name for flag in flags_of(samples, Context(is_gpu=True))}

    for seed in range(20):
        hasty, patient = (SimulatedDevice(seed=seed, noise=0.01, start_clock=0.8) for _ in range(2))
        assert settled(patient).settled
        assert "drifting" in flags(hasty)
        assert not flags(patient)


def test_a_clock_that_never_stops_to_swing_ends_at_the_cap_unsettled():
    result = settled(SimulatedDevice(swing=0.03))
    assert not result.settled
    assert GPU_SETTLE.cap_s <= result.seconds < GPU_SETTLE.cap_s + 0.01


def test_the_least_time_is_kept_although_all_is_still():
    result = settled(SimulatedDevice(), SettleLimits(min_s=2.0, cap_s=5.0))
    assert result.settled
    assert 2.0 <= result.seconds < 2.01


@pytest.mark.parametrize(
    ("polled", "judged_by", "is_settled"),
    [
        ([(1.5e9, 100.0)], "clock and power", True),
        ([(1.5e9, 100.0 + i) for i in range(200)], "clock and power", False),  # only the power rises
        ([(1.0e9 + 1e7 * i, 100.0) for i in range(200)], "clock and power", False),  # only the clock does
        ([(1.5e9, None)], "clock", True),
        ([(1.0e9 + 1e7 * i, None) for i in range(200)], "clock", False),
        ([(None, 100.0)], "power", True),
        ([(None, 100.0 + i) for i in range(200)], "power", False),
        ([(1.5e9, 100.0), (None, 100.0)] * 50, "clock and power", True),  # a reading that fails now and then
        ([(None, None)], "time", True),
    ],
)
def test_it_is_judged_by_what_can_be_read(polled, judged_by, is_settled):
    result = Bench(polled).run()
    assert (result.judged_by, result.settled) == (judged_by, is_settled)
    assert bool(result.readings) == (judged_by != "time")


RISING = [(1.98e9, 100.0 + 10 * i, 700.0) for i in range(60)]
"""Power that rises by 10 W at each poll, up to its limit, while the clock keeps still."""


def test_power_that_rises_far_below_its_limit_holds_nothing_up():
    result = Bench(RISING).run()
    assert (result.judged_by, result.settled) == ("clock", True)
    assert result.readings[-1].power_w < 0.9 * 700


def jittering(seed, limit_w=700.0):
    """Return what is polled of a GPU at its power limit: its clock moves by several steps of 15 MHz all the time."""
    generator = random.Random(seed)
    return [(1.5e9 + 15e6 * generator.randint(-3, 3), limit_w - generator.uniform(0, 20), limit_w) for _ in range(200)]


@pytest.mark.parametrize("seed", range(5))
def test_a_gpu_at_its_power_limit_settles_although_its_clock_jitters(seed):
    result = Bench(jittering(seed)).run()
    assert (result.judged_by, result.settled) == (AT_THE_LIMIT, True)
    assert result.seconds < 1.0


def test_a_gpu_at_its_power_limit_that_becomes_ever_slower_is_waited_for_two_seconds():
    bench, times = Bench(jittering(0)), itertools.count(1)
    bench.work = lambda: setattr(bench, "seconds", bench.seconds + 0.01) or 0.01 * 1.02 ** next(times)
    result = bench.run()
    assert (result.judged_by, result.settled) == (AT_THE_LIMIT, False)
    assert POWER_LIMITED_CAP_S <= result.seconds < POWER_LIMITED_CAP_S + 0.02


def test_a_clock_that_jitters_below_the_power_limit_has_not_settled():
    far = [(clock_hz, 300.0, limit_w) for clock_hz, _, limit_w in jittering(0)]
    assert not Bench(far).run().settled


def test_launches_longer_than_the_window_are_judged_by_three_readings():
    result = Bench([(1.5e9, 100.0)], work_s=1.0).run()
    assert (result.settled, result.launches) == (True, 3)
    result = Bench([(1.2e9, 100.0), (1.5e9, 100.0)], work_s=1.0).run()
    assert (result.settled, result.launches) == (True, 4)


def test_a_launch_longer_than_the_cap_runs_once():
    result = Bench([(1.5e9, 100.0)], work_s=60.0).run()
    assert (result.settled, result.launches, result.seconds) == (False, 1, 60.0)


@pytest.mark.parametrize(
    ("values", "still"),
    [
        ([100.0] * 11, True),
        ([100.0] * 10, False),  # 0.45 s
        ([90.0] + [100.0] * 11, True),  # before the window
        ([100.0, 90.0] + [100.0] * 9, False),
        ([100.0] * 10 + [100.9], True),
        ([100.0] * 10 + [101.1], False),
    ],
)
def test_the_window_is_half_a_second(values, still):
    series = [(0.05 * i, value) for i, value in enumerate(values)]
    assert keeps_still(series, 0.01) is still


# ---- where nothing can be read, the time tells ---------------------------------------------------------------------


def cpu(**parameters):
    return SimulatedDevice(reads_clock=False, method="host", settle_s=0.05, **parameters)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.2])
def test_a_cpu_settles_soon_however_noisy(noise):
    results = [settled(cpu(seed=seed, noise=noise), CPU_SETTLE) for seed in range(100)]
    assert all(result.settled and result.judged_by == "time" and not result.readings for result in results)
    assert all(result.seconds >= CPU_SETTLE.min_s for result in results)
    assert sorted(result.seconds for result in results)[95] < 1.2 * CPU_SETTLE.min_s


def test_a_cpu_that_speeds_up_is_waited_for():
    for seed in range(50):
        device = cpu(seed=seed, noise=0.01, start_clock=0.5)
        assert settled(device, CPU_SETTLE).settled
        assert device.seconds > CPU_SETTLE.min_s
        assert device.clock_hz() > 0.97 * device.max_clock_hz


def test_a_cpu_that_never_settles_ends_at_the_cap():
    result = Bench([(None, None)]).run(CPU_SETTLE)
    assert result.settled
    times = itertools.count(1)
    slower = Bench([(None, None)])
    slower.work = lambda: setattr(slower, "seconds", slower.seconds + 0.01) or 0.01 * 1.02 ** next(times)
    result = slower.run(CPU_SETTLE)
    assert not result.settled
    assert CPU_SETTLE.cap_s <= result.seconds < CPU_SETTLE.cap_s + 0.011


@pytest.mark.parametrize(
    ("times_s", "agree"),
    [
        ([], False),
        ([0.01] * 8, False),  # three blocks of three at least
        ([0.01] * 9, True),
        ([0.02] * 50 + [0.01] * 9, True),  # only the last blocks count
        ([0.01] * 6 + [0.0103] * 3, False),
        ([0.01] * 6 + [0.0101] * 3, True),
        ([0.001] * 59, False),  # a block is 20 ms
        ([0.001] * 60, True),
        ([0.01, 0.01, 0.5] * 3, True),  # one preempted launch does not move a block
    ],
)
def test_blocks_agree_when_their_medians_do(times_s, agree):
    assert blocks_agree(times_s) is agree
