"""How the fastest configuration is found and measured, and the ceiling and record of its samples."""

import pytest

from bench.harness.calibrate import setup
from bench.harness.calibrate.setup import QUICK, Candidate, NotMeasuredError, Rate, Setup
from bench.harness.device.device import MIB, Device
from bench.harness.device.telemetry import ClockAndPower, Poller
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import GraphSampler

CPU = Device("cpu", "cpu", "cpu-a-2t", "a CPU", MIB, 2**34, threads=2)
H100 = Device(
    *("cuda", "cuda:0", "h100-sxm", "NVIDIA H100 80GB HBM3", 50 * MIB, 85_029_158_912),
    sm_count=132,
    compute_capability="9.0",
)


def samples(*samples_s, launches=1, telemetry=None):
    middle, ends = sorted(samples_s)[len(samples_s) // 2], (min(samples_s), max(samples_s))
    return Samples(samples_s, launches, "host", "warm", middle, ends, True, telemetry=telemetry or {})


def setup_of(device, **effort):
    return Setup(device, QUICK._replace(**effort))


def rate_of(config, work, *samples_s, launches=1, telemetry=None, is_gpu=False):
    found = samples(*samples_s, launches=launches, telemetry=telemetry)
    return Rate(Candidate(config, work, lambda: None), found, Poller(CPU), is_gpu)


@pytest.fixture
def simulated(monkeypatch):
    """Make launches last as long as their calls return; returns the measured configurations with their seconds."""
    measured = []

    def timed(self, candidate, seconds):
        measured.append((candidate.name, seconds))
        return rate_of(candidate.name, candidate.work, *candidate.prepare()(), is_gpu=self.device.is_gpu)

    monkeypatch.setattr(Setup, "timed", timed)
    return measured


def candidate(name, *samples_s, work=12):
    return Candidate(name, work, lambda: lambda: samples_s)


@pytest.mark.parametrize(("device", "fastest"), [(CPU, "spiky"), (H100, "steady")])
def test_the_fastest_by_shortest_time_or_median_is_measured_again(simulated, device, fastest):
    among = [candidate("slow", 3.0, 3.0, 3.0), candidate("steady", 1.0, 1.0, 1.0), candidate("spiky", 0.5, 2.0, 2.0)]
    measuring = setup_of(device, screening_s=0.1, confirming_s=1.0)
    assert measuring.fastest_of(among).candidate.name == fastest
    assert simulated == [("slow", 0.1), ("steady", 0.1), ("spiky", 0.1), (fastest, 1.0)]
    assert measuring.missing == []


def test_configurations_that_cannot_run_are_reported_and_the_others_count(simulated):
    def broken():
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling")

    among = [Candidate("wide", 12, broken), candidate("plain", 1.0), Candidate("odd", 12, broken)]
    measuring = setup_of(CPU)
    assert measuring.fastest_of(among).candidate.name == "plain"
    assert measuring.missing == [
        "wide; odd: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED; plain is the fastest of the others"
    ]
    with pytest.raises(NotMeasuredError, match="none of 1 configurations runs here; wide: RuntimeError: CUBLAS"):
        setup_of(CPU).fastest_of(among[:1])


def test_a_launch_that_would_take_too_long_is_skipped(simulated):
    known = [candidate(str(work), work / 100, work=work) for work in (1, 14, 16)]
    setup_of(CPU).fastest_of(known, slowest_call_s=0.15)
    assert [config for config, _ in simulated] == ["1", "14", "1"]  # of 100 a second, 16 take longer than 0.15 s


@pytest.mark.parametrize("idle_s", [0.0, 3.0])
def test_a_kernel_is_compiled_then_warmed_up_or_idle_then_sampled(monkeypatch, idle_s):
    happened = []

    class Replays(GraphSampler):
        launches_per_sample = 1

        def __init__(self):
            happened.append("made")

        def sample(self):
            return 1e-3

    sampler = Replays.__new__(Replays)
    monkeypatch.setattr(setup, "make_sampler", lambda *_, **__: sampler.__init__() or sampler)
    monkeypatch.setattr(setup, "settle", lambda *_: happened.append("warmed up"))
    monkeypatch.setattr(setup.time, "sleep", happened.append)
    launch = Candidate("a way", 8, lambda: lambda: happened.append("called"))
    rate = setup_of(CPU).timed(launch, 0.01, idle_s)
    assert happened == ["called", "made", idle_s or "warmed up"]
    assert len(rate.samples.samples_s) >= 5
    assert sampler.runs_ahead == bool(idle_s)  # only a long run queues the next replay before it waits


def test_a_ceiling_has_its_interval_and_quantiles_low_to_high():
    def ceiling(rate):
        return setup_of(CPU).measured("bandwidth", "copy", rate, "copy", "fp32", {"n": 1}).ceiling

    found = ceiling(rate_of("a way", 12, 1.0, 2.0, 4.0))
    assert (found.value, found.ci95, found.work_per_launch) == (12.0, (3.0, 12.0), 12)
    assert found.p5_p95[0] < 6.0 < found.p5_p95[1]
    assert ceiling(rate_of("a way", 12, 1.0, 2.0, 4.0, is_gpu=True)).value == 6.0
    launch = ceiling(rate_of("an empty kernel", 0, 1.0, 2.0, 4.0))
    assert (launch.value, launch.ci95, launch.work_per_launch) == (1.0, (1.0, 4.0), None)


def test_part_of_a_run_has_the_clock_and_power_of_its_own_samples():
    whole = rate_of("a way", 12, 1.0, 1.0, 2.0, 2.0, telemetry={"sm_clock_hz": 1e9, "throttle": {}})
    whole.poller.places = [0, 2]
    whole.poller.seen = [ClockAndPower(1.98e9, 700.0), ClockAndPower(1.45e9, 690.0)]
    first, last = whole.part(0, 2), whole.part(2, 4)
    assert (first.value, last.value) == (12.0, 6.0)
    assert first.samples.telemetry.items() >= {"sm_clock_hz": 1.98e9, "power_w": 700.0}.items()
    assert last.samples.telemetry.items() >= {"sm_clock_hz": 1.45e9, "power_w": 690.0}.items()
    assert last.samples.telemetry["throttle"] == {}


def test_a_preempted_measurement_carries_the_flag():
    def measured(switches_per_s):
        rate = rate_of("a way", 8, 1e-3, telemetry={"thread_switches_per_s": switches_per_s})
        return setup_of(CPU).measured("bandwidth", "copy", rate, "copy", "fp32", {"n": 1})

    busy, quiet = measured(1e4), measured(0.0)
    assert (busy.record.flags, quiet.record.flags) == (("preempted",), ())
    assert "lost its core" in busy.record.flag_reasons["preempted"]
    assert "lost its core" in busy.ceiling.disturbed
