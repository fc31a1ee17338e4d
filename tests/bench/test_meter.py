"""What is measured beside the samples: the warm time, latency, telemetry, and how long it may take."""

import time
from types import SimpleNamespace

import pytest

from bench.harness import meter
from bench.harness.device import cpu_device
from bench.harness.meter import Meter
from bench.harness.timing import Limits

LIMITS = Limits(5, 0.5, 0.0, 0.05, 0.0, 1e-5)


def count_calls(count=2):
    """Calls that count how often each of them ran."""
    ran = [0] * count

    def call(index):
        ran[index] += 1

    return ran, [lambda index=index: call(index) for index in range(count)]


def test_a_cold_row_is_also_measured_warm_on_its_first_copy(monkeypatch):
    _, calls = count_calls()
    gone_round = []
    make_sampler = meter.samplers.make_sampler

    def watched(calls, device, limits):
        gone_round.append(list(calls))
        return make_sampler(calls, device, limits)

    monkeypatch.setattr(meter.samplers, "make_sampler", watched)
    found = Meter(cpu_device(), LIMITS).measure(calls, "cold")
    assert gone_round == [calls, calls[:1]]
    assert found.samples.cache == "cold"
    assert found.warm_s > 0


@pytest.mark.parametrize(
    ("launch_s", "prepared_s", "least_s"),
    [(2e-3, 0.01, 0.02), (2e-3, 10.0, 0.05), (0.0, 0.01, 0.0)],  # twice the preparation; the cap; a short launch
)
def test_long_launches_are_sampled_for_twice_their_preparation(monkeypatch, launch_s, prepared_s, least_s):
    least = []
    collect = meter.collect

    def watched(sampler, limits, cache):
        least.append(limits.min_time_s)
        return collect(sampler, limits, cache)

    monkeypatch.setattr(meter, "collect", watched)
    call = (lambda: time.sleep(launch_s)) if launch_s else (lambda: None)
    Meter(cpu_device(), LIMITS).measure([call], "warm", prepared_s=prepared_s)
    assert least == [pytest.approx(least_s)]


def test_a_warm_row_has_no_second_time():
    _, calls = count_calls(1)
    assert Meter(cpu_device(), LIMITS).measure(calls, "warm").warm_s is None


def test_a_slow_launch_is_not_repeated_warm():
    found = Meter(cpu_device(), LIMITS).measure([lambda: time.sleep(0.11)] * 2, "cold")
    assert found.warm_s is None
    assert len(found.samples.samples_s) == 5  # the cap is long over: no more than the fewest


def test_on_a_cpu_there_is_no_tail_and_the_rest_is_there():
    _, calls = count_calls()
    found = Meter(cpu_device(), LIMITS).measure(calls, "cold", flops=2)
    assert found.tail_s is None
    assert found.host_launch_s >= 0
    assert found.host_latency_s > 0
    assert found.telemetry["window_s"] > 0
    assert found.settling.launches >= 1


@pytest.mark.parametrize(("left_s", "cap_s"), [(None, 0.05), (10.0, 0.05), (0.01, 0.01), (-3.0, 0.0)])
def test_the_time_that_is_left_bounds_the_sampling(monkeypatch, left_s, cap_s):
    caps = []
    collect = meter.collect

    def watched(sampler, limits, cache):
        caps.append(limits.cap_s)
        return collect(sampler, limits, cache)

    monkeypatch.setattr(meter, "collect", watched)
    Meter(cpu_device(), LIMITS).measure(count_calls()[1], "warm", left_s=left_s)
    assert caps == [pytest.approx(cap_s)]


def test_the_clock_of_a_cpu_has_a_tick():
    assert 0 < Meter(cpu_device(), LIMITS).tick_s < 1e-3


@pytest.mark.parametrize(
    ("waits_s", "tail_s"),
    [
        ([9e-6, 8e-6] * 3, 1e-6),  # an idle device: what waiting itself costs is taken off
        ([9e-3, 8e-6, 9e-6, 8e-6, 9e-6, 8e-6], 1e-6),  # the host woke up late once
        ([2e-3, 8e-6] * 3, 2e-3 - 8e-6),  # work on another stream is there every time
        ([7e-6, 8e-6] * 3, 0.0),
    ],
)
def test_the_tail_is_work_that_goes_on_after_every_sample(monkeypatch, waits_s, tail_s):
    made, waits = Meter(cpu_device(), LIMITS), iter(waits_s)
    monkeypatch.setattr(made, "_waiting_s", lambda: next(waits))
    assert made._tail_s(SimpleNamespace(sample=lambda: 1.0)) == pytest.approx(tail_s)
