"""Measurements besides the samples: warm time, latency, telemetry, and their time limits."""

import math
import time

import pytest

from bench.harness.device.device import cpu_device
from bench.harness.measure import measure_row as meter
from bench.harness.measure.measure_row import take_samples
from bench.harness.timing.protocol import Limits, Settling

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


@pytest.fixture
def limits_seen(monkeypatch):
    """Return the limits that each measurement was given."""
    seen = []
    collect = meter.collect

    def watched(sampler, limits, cache):
        seen.append(limits)
        return collect(sampler, limits, cache)

    monkeypatch.setattr(meter, "collect", watched)
    return seen


def test_sampling_takes_longer_than_preparation(limits_seen):
    take_samples([lambda: time.sleep(2e-3)], "warm", cpu_device(), LIMITS, prepared_s=0.2)
    assert limits_seen[0].min_time_s >= LIMITS.sampling_ratio * 0.2
    assert limits_seen[0].cap_s >= limits_seen[0].min_time_s


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("left_s", "cap_s"), [(math.inf, 0.05), (10.0, 0.05), (0.01, 0.01), (-3.0, 0.0)]
)
def test_sampling_is_limited_by_the_time_left(limits_seen, left_s, cap_s):
    take_samples(count_calls()[1], "warm", cpu_device(), LIMITS, left_s=left_s)
    assert limits_seen[0].cap_s == pytest.approx(cap_s)
