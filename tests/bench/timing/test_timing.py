"""The timing protocol on simulated clocks and samplers."""

import gc
import itertools
import random
from statistics import median

import pytest

from bench.harness.timing.protocol import Limits, collect
from results.stats.samples import median_ci95
from tests.bench.commands import Clock

LIMITS = Limits(
    min_samples=20,
    target_half_width=0.02,
    min_time_s=0.0,
    cap_s=10.0,
    warm_up_s=0.5,
    min_sample_s=1e-3,
)


class Sampler:
    """Returns the given durations, each of which passes on a simulated clock."""

    method = "host"

    def __init__(self, durations_s, launches=1):
        self.launches_per_sample, self.durations_s, self.clock = (
            launches,
            iter(durations_s),
            Clock(),
        )

    def sample(self):
        duration_s = next(self.durations_s)
        self.clock.now += duration_s
        return duration_s


def steady(duration_s):
    return itertools.repeat(duration_s)


def noisy(seed, spread=1.0):
    generator = random.Random(seed)
    while True:
        yield 0.01 * (1 + spread * generator.random())


def measured(durations_s, limits=LIMITS, launches=1):
    sampler = Sampler(durations_s, launches)
    return collect(sampler, limits, "cold", now=sampler.clock)


def with_limits(**changes):
    return Limits(**{**LIMITS.__dict__, **changes})


def test_steady_times_converge_at_the_minimum_sample_count():
    samples = measured(steady(0.064), launches=64)
    assert samples.samples_s == (0.001,) * 20
    assert (samples.median_s, samples.ci95_s, samples.converged) == (0.001, (0.001, 0.001), True)
    assert (samples.launches_per_sample, samples.cache, samples.method) == (64, "cold", "host")


def test_noisy_times_need_more_samples_to_converge():
    samples = measured(noisy(1), with_limits(cap_s=1000.0))
    low, high = samples.ci95_s
    assert len(samples.samples_s) > 20
    assert samples.converged
    assert (high - low) / 2 <= 0.02 * samples.median_s
    assert low <= samples.median_s <= high
    fewer = samples.samples_s[:20]
    low, high = median_ci95(fewer)
    assert (high - low) / 2 > 0.02 * median(fewer)  # it did have a reason to go on


def test_sampling_stops_at_the_cap_unconverged():
    samples = measured(noisy(2), with_limits(cap_s=1.0, target_half_width=1e-6))
    assert not samples.converged
    assert sum(samples.samples_s) >= 1.0
    assert sum(samples.samples_s[:-1]) < 1.0  # not a sample more than the cap allows


@pytest.mark.parametrize("duration_s", [3.0, 100.0])
def test_a_slow_case_gets_the_fewest_samples(duration_s):
    samples = measured(steady(duration_s), with_limits(cap_s=2.0))
    assert samples.samples_s == (duration_s,) * LIMITS.fewest_samples
    assert not samples.converged  # steady as they are, five samples are fewer than asked for


def test_sampling_lasts_the_minimum_time():
    samples = measured(steady(0.001), with_limits(min_time_s=0.25))
    assert sum(samples.samples_s) == pytest.approx(0.25, abs=0.0015)
    assert samples.converged


def test_no_sample_is_dropped():
    durations_s = [0.01] * 15 + [5.0] + [0.01] * 100
    samples = measured(iter(durations_s))
    assert samples.samples_s == tuple(durations_s[: len(samples.samples_s)])
    assert 5.0 in samples.samples_s
    assert samples.median_s == 0.01


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_off_while_sampling(was_enabled):
    seen = []

    class Watching(Sampler):
        def sample(self):
            seen.append(gc.isenabled())
            return super().sample()

    watching = Watching(steady(0.01))
    (gc.enable if was_enabled else gc.disable)()
    try:
        collect(watching, LIMITS, "cold", now=watching.clock)
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable()
    assert seen == [False] * 20
