"""Measurements besides the samples: warm time, latency, telemetry, and their time limits."""

import math
import time
from types import SimpleNamespace

import pytest

from bench.harness.device.device import cpu_device
from bench.harness.measure import measure_row as meter
from bench.harness.measure.measure_row import LONG_LAUNCH_S, sampling_limits, take_samples
from bench.harness.timing.protocol import Limits, Samples, Settling
from tests.bench.commands import CPU, GPU, Clock
from tests.bench.fake_clock import set_clock

LIMITS = Limits(5, 0.5, 0.0, 0.05, 0.0, 1e-5)


def count_calls(count=2):
    """Return counts of calls, and the calls."""
    ran = [0] * count

    def call(index):
        ran[index] += 1

    return ran, [lambda index=index: call(index) for index in range(count)]


def test_cold_rows_are_also_measured_warm_on_one_copy(monkeypatch):
    _, calls = count_calls()
    gone_round = []
    make_sampler = meter.samplers.make_sampler

    def watched(calls, device, limits, *_):
        gone_round.append(list(calls))
        return make_sampler(calls, device, limits)

    monkeypatch.setattr(meter.samplers, "make_sampler", watched)
    found = take_samples(calls, "cold", cpu_device(), LIMITS)
    assert gone_round == [calls, calls[:1]]
    assert found.cache == "cold"
    assert found.warm_median_s > 0


@pytest.mark.parametrize(
    ("disturbed", "repeats"),
    [([], 0), ([0], 1), ([0, 1], 2), ([0, 1, 2], 3), ([0, 1, 2, 3], 3), ([1], 0)],
)
@pytest.mark.parametrize("how", ["thread_switches_per_s", "cgroup_quota"])
def test_noisy_samples_are_repeated_up_to_three_times(monkeypatch, disturbed, repeats, how):
    turn = iter(range(100))

    def telemetry(before, after, **counted):
        is_disturbed = next(turn) in disturbed
        if how == "cgroup_quota":
            return {"window_s": 1.0, "throttle": {"cgroup_quota": 0.5 if is_disturbed else 0.0}}
        return {"window_s": 1.0, how: 1e4 if is_disturbed else 0.0}

    monkeypatch.setattr(meter, "row_telemetry", telemetry)
    quick = Limits(5, 0.5, 0.0, 60.0, 0.0, 1e-5)
    found = take_samples([lambda: None], "warm", cpu_device(), quick)
    assert found.telemetry["repeats"] == repeats
    assert next(turn) == repeats + 1  # the telemetry is of the last repeat


def test_each_measurement_is_reported_to_the_parent_process(monkeypatch):
    reports = []
    monkeypatch.setattr(meter.protocol, "report", lambda *report: reports.append(report))
    found = take_samples([lambda: None], "warm", cpu_device(), LIMITS)
    count = len(found.samples_s)
    total_s = sum(found.samples_s) * found.launches_per_sample
    assert reports[-2:] == [(0.0, 0), (pytest.approx(total_s), count)]


def test_bimodal_samples_are_repeated_on_a_cpu(monkeypatch):
    monkeypatch.setattr(meter, "row_telemetry", lambda before, after, **counted: {"window_s": 1.0})
    modes = iter([object(), object(), None])
    monkeypatch.setattr(meter, "two_modes", lambda samples_s: next(modes))
    found = take_samples([lambda: None], "warm", cpu_device(), Limits(5, 0.5, 0.0, 60.0, 0.0, 1e-5))
    assert found.telemetry["repeats"] == 2


@pytest.mark.exhaustive
def test_a_slow_launch_is_not_repeated_warm():
    found = take_samples([lambda: time.sleep(0.11)] * 2, "cold", cpu_device(), LIMITS, left_s=0.05)
    assert found.warm_median_s is None
    assert len(found.samples_s) == 5  # the time limit has passed: only the minimum


def test_samples_on_a_cpu_have_all_fields():
    _, calls = count_calls()
    found = take_samples(calls, "cold", cpu_device(), LIMITS, flops=2)
    assert found.host_launch_s == found.host_latency_s == found.median_s  # the launch itself
    assert found.telemetry["window_s"] > 0
    assert found.settled in (True, False)


@pytest.mark.parametrize("sample", [take_samples, meter.sample_steps])
def test_the_warm_up_knows_the_time_left(monkeypatch, sample):
    seen = []

    def settle(work, limits, **options):
        seen.append(options)
        return Settling(True, 1e-3, 1)

    monkeypatch.setattr(meter, "settle", settle)
    calls = count_calls()[1]
    if sample is take_samples:
        sample(calls, "warm", cpu_device(), LIMITS, left_s=2.0)
    else:
        sample(calls[0], "warm", cpu_device(), left_s=2.0)
    assert seen == [{"left_s": 2.0}]


@pytest.mark.parametrize(
    ("left_s", "cap_s"), [(math.inf, 2.0), (10.0, 2.0), (0.01, 0.01), (-3.0, 0.0)]
)
def test_sampling_is_limited_by_the_time_left(left_s, cap_s):
    limits = sampling_limits(Limits(5, 0.5, 0.5, 2.0, 0.0, 1e-5), CPU, 1e-6, left_s=left_s)
    assert limits.cap_s == pytest.approx(cap_s)
    assert limits.min_time_s == pytest.approx(min(0.5, cap_s))


@pytest.mark.parametrize(
    ("device", "launch_s", "visits", "min_time_s", "cap_s"),
    [
        (CPU, LONG_LAUNCH_S, 1, 5.4, 5.4),
        (GPU, LONG_LAUNCH_S, 1, 2.0, 2.0),  # sampled no longer than the time limit
        (CPU, LONG_LAUNCH_S, 3, 1.8, 2.0),
        (CPU, LONG_LAUNCH_S, 27, 0.5, 2.0),
        (CPU, 0.9 * LONG_LAUNCH_S, 1, 0.5, 2.0),
    ],
)
def test_long_launches_are_sampled_longer_than_the_rest_of_the_row_takes(
    device, launch_s, visits, min_time_s, cap_s
):
    limits = sampling_limits(
        Limits(5, 0.5, 0.5, 2.0, 0.0, 1e-5, visits=visits), device, launch_s, overhead_s=3.0
    )
    assert (limits.min_time_s, limits.cap_s) == pytest.approx((min_time_s, cap_s))


TIMED = Samples((0.1,), 10, "graph", "warm", 0.1, (0.1, 0.1), converged=True)


class Simulated:
    """A device whose warm-up, clock readings and samples take known time, and no work is done.

    `limited` has what `sampling_limits` was asked.
    """

    def __init__(self, monkeypatch, device):
        self.device, self.limited = device, []
        self.clock = Clock()
        set_clock(monkeypatch, self.clock)
        self.sampler = SimpleNamespace(
            sample=None, launches_per_sample=10, why_no_graph=None, method="graph"
        )
        monkeypatch.setattr(meter.samplers, "make_sampler", lambda *_: self.sampler)
        monkeypatch.setattr(meter.samplers, "tick_s", lambda device: 1e-6)
        monkeypatch.setattr(meter.samplers, "host_launch_s", self.seconds(0.25, 7e-6))
        monkeypatch.setattr(meter.samplers, "host_latency_s", self.seconds(0.25, 9e-6))
        monkeypatch.setattr(meter, "settle", self.seconds(2.5, Settling(False, 2.0, 4)))
        monkeypatch.setattr(meter, "warm_median_s", self.seconds(0.25, 0.05))
        monkeypatch.setattr(meter, "undisturbed", self.seconds(1.0, TIMED))
        monkeypatch.setattr(meter, "sampling_limits", self.limit)

    def seconds(self, seconds, result):
        def taken(*_, **__):
            self.clock.now += seconds
            return result

        return taken

    def limit(self, limits, device, launch_s, overhead_s, left_s):
        self.limited.append((launch_s, overhead_s, left_s))
        return limits

    def take(self, cache="warm", **options):
        return take_samples([None] * 2, cache, self.device, LIMITS, **options)


@pytest.mark.parametrize(
    ("device", "cache", "overhead_s"),
    [
        (CPU, "warm", 7.5),  # preparation and warm-up
        (GPU, "warm", 6.0),  # without launches of the warm-up, and with latencies
        (CPU, "cold", 7.65),  # with the limit of the warm time, which follows
        (CPU, "partly-cold", 7.5),
    ],
)
def test_samples_know_what_the_row_takes_besides(monkeypatch, device, cache, overhead_s):
    simulated = Simulated(monkeypatch, device)
    first = simulated.take(cache, prepared_s=5.0, left_s=60.0)
    assert first.overhead_s == pytest.approx(overhead_s)
    assert simulated.limited == [pytest.approx((0.05, overhead_s, 60.0))]
    again = simulated.take(cache, earlier=first)
    added_s = 0.5 if device.is_gpu else 2.5
    assert again.overhead_s == pytest.approx(overhead_s + added_s)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_later_visit_measures_neither_latency_nor_warm_time_again(monkeypatch, device):
    simulated = Simulated(monkeypatch, device)
    first = simulated.take("cold")
    assert (first.settled, first.warm_median_s, first.tick_s) == (False, 0.05, 1e-6)
    seen = (first.host_launch_s, first.host_latency_s, first.sampler)
    assert seen == ((7e-6, 9e-6, simulated.sampler) if device.is_gpu else (0.1, 0.1, None))
    for name in ("make_sampler", "host_launch_s", "host_latency_s"):
        monkeypatch.setattr(meter.samplers, name, None)
    monkeypatch.setattr(meter, "warm_median_s", None)
    again = simulated.take("cold", earlier=first)
    assert (again.host_launch_s, again.host_latency_s, again.sampler) == seen
    assert (again.settled, again.warm_median_s, again.is_single) == (False, 0.05, False)


def test_with_restored_inputs_there_is_no_latency_and_no_warm_time(monkeypatch):
    found = Simulated(monkeypatch, GPU).take("cold", before=lambda: None)
    assert (found.host_launch_s, found.host_latency_s, found.warm_median_s) == (None, None, None)
    one = take_samples([None], "cold", GPU, LIMITS, before=lambda: None)
    assert (found.is_single, one.is_single) == (False, True)


@pytest.mark.parametrize(
    ("cache", "median_s", "is_measured"),
    [("cold", 0.09, True), ("cold", 0.11, False), ("warm", 0.09, False)],
)
def test_a_warm_time_is_measured_if_five_samples_take_half_a_second_at_most(
    monkeypatch, cache, median_s, is_measured
):
    clock = Clock()
    set_clock(monkeypatch, clock)

    def call():
        clock.now += 2e-3

    cold = Samples((median_s,), 1, "host", cache, median_s, (median_s, median_s), converged=True)
    began = clock.now
    warm_s = meter.warm_median_s([call, None], cold, CPU)
    assert warm_s == (pytest.approx(2e-3) if is_measured else None)
    assert clock.now - began < 0.1  # a few samples are enough
