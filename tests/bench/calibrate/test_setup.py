"""How the fastest of several ways is found and measured, and what becomes of its samples."""

from dataclasses import replace

import pytest

from bench.harness.calibrate import setup
from bench.harness.calibrate.setup import (
    QUICK,
    CalibrationSetup,
    Candidate,
    Launch,
    NotMeasuredError,
    Rate,
)
from bench.harness.commands.calibrate import doubts
from bench.harness.device.device import MIB, Device
from bench.harness.device.telemetry import ClockAndPower, Poller
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import GraphSampler, HostSampler
from bench.matmul import OPS as MATMUL

CPU = Device("cpu", "cpu", "cpu-a-2t", "a CPU", MIB, 2**34, threads=2)
H100 = Device(
    *("cuda", "cuda:0", "h100-sxm", "NVIDIA H100 80GB HBM3", 50 * MIB, 85_029_158_912),
    sm_count=132,
    compute_capability="9.0",
)


def samples(*samples_s, launches=1):
    middle = sorted(samples_s)[len(samples_s) // 2]
    return Samples(samples_s, launches, "host", "warm", middle, (min(samples_s), max(samples_s)), True)


def setup_of(device, **effort):
    return CalibrationSetup(device, replace(QUICK, **effort), MATMUL[0])


def rate_of(config, work, *samples_s, telemetry=None):
    return Rate(config, work, samples(*samples_s), telemetry or {}, Poller(CPU))


@pytest.fixture
def simulated(monkeypatch):
    """Let launches take what their calls say; returns the configurations measured, each with its seconds."""
    measured = []

    def timed(self, config, launch, seconds):
        measured.append((config, seconds))
        return rate_of(config, launch.work, *launch.call())

    monkeypatch.setattr(CalibrationSetup, "timed", timed)
    return measured


def candidate(name, *samples_s, work=12):
    return Candidate(name, lambda: Launch(lambda: samples_s, work))


@pytest.mark.parametrize(("device", "fastest"), [(CPU, "spiky"), (H100, "steady")])
def test_the_fastest_is_measured_again_by_the_shortest_time_on_a_cpu_and_the_median_on_a_gpu(
    simulated, device, fastest
):
    said = []
    among = [candidate("slow", 3.0, 3.0, 3.0), candidate("steady", 1.0, 1.0, 1.0), candidate("spiky", 0.5, 2.0, 2.0)]
    chosen = setup_of(device, screening_s=0.1, confirming_s=1.0).fastest_of("copy", among, said.append)
    assert chosen.rate.config == fastest
    assert simulated == [("slow", 0.1), ("steady", 0.1), ("spiky", 0.1), (fastest, 1.0)]
    assert said == ["copy: slow", "copy: steady", "copy: spiky", f"copy: {fastest}, again"]
    assert chosen.notes == ()


def test_what_cannot_run_is_told_and_the_others_count(simulated):
    def broken():
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling")

    among = [Candidate("wide", broken), candidate("plain", 1.0), Candidate("odd", broken)]
    chosen = setup_of(CPU).fastest_of("copy", among, print)
    assert chosen.rate.config == "plain"
    assert chosen.notes == ("wide; odd: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED; plain is the fastest of the others",)
    with pytest.raises(NotMeasuredError, match="none of 1 configurations runs here; wide: RuntimeError: CUBLAS"):
        setup_of(CPU).fastest_of("copy", among[:1], print)


def test_a_launch_that_would_take_too_long_is_left_out(simulated):
    known = [replace(candidate(str(work), work / 100, work=work), work=work) for work in (1, 14, 16)]
    setup_of(CPU).fastest_of("copy", known, print)
    assert [config for config, _ in simulated] == ["1", "14", "1"]  # of 100 a second, 16 take longer than 0.15 s


def test_a_kernel_is_compiled_before_its_launches_are_timed(monkeypatch):
    calls_before_the_clock, called = [], []

    def make_sampler(calls, device, limits, **_):
        calls_before_the_clock.append(len(called))
        return HostSampler(calls, 1)

    monkeypatch.setattr(setup, "make_sampler", make_sampler)
    rate = setup_of(H100).timed("a way", Launch(lambda: called.append(1), 8), 0.01)
    assert calls_before_the_clock == [1]
    assert rate.work_per_launch == 8
    assert len(rate.samples.samples_s) >= 5


@pytest.mark.parametrize("idle_s", [0.0, 3.0])
def test_before_the_samples_the_device_is_either_warmed_up_or_idle(monkeypatch, idle_s):
    happened = []
    monkeypatch.setattr(setup, "make_sampler", lambda calls, *_, **__: happened.append("made") or HostSampler(calls, 1))
    monkeypatch.setattr(setup, "warm_up", lambda *_: happened.append("warmed up"))
    monkeypatch.setattr(setup.time, "sleep", lambda seconds: happened.append(seconds))
    setup_of(CPU).timed("a way", Launch(lambda: None, 8), 0.01, idle_s)
    assert happened == ["made", idle_s or "warmed up"]


@pytest.mark.parametrize("idle_s", [0.0, 3.0])
def test_only_a_long_run_queues_the_next_replay_before_it_waits(monkeypatch, idle_s):
    class Replays(GraphSampler):
        launches_per_sample = 1

        def __init__(self):
            pass

        def sample(self):
            return 1e-3

    sampler = Replays()
    monkeypatch.setattr(setup, "make_sampler", lambda *_, **__: sampler)
    monkeypatch.setattr(setup.time, "sleep", lambda seconds: None)
    setup_of(CPU).timed("a way", Launch(lambda: None, 8), 0.01, idle_s)
    assert sampler.runs_ahead == bool(idle_s)


def test_a_rate_has_its_interval_and_quantiles_the_right_way_round():
    rate = rate_of("a way", 12, 1.0, 2.0, 4.0)
    assert (rate.value, rate.fastest, rate.ci95) == (6.0, 12.0, (3.0, 12.0))
    assert rate.p5_p95[0] < rate.value < rate.p5_p95[1]


def test_a_part_of_a_run_has_the_clock_and_the_power_of_its_own_samples():
    whole = rate_of("a way", 12, 1.0, 1.0, 2.0, 2.0, telemetry={"sm_clock_hz": 1e9, "throttle": {}})
    whole.poller.places = [0, 2]
    whole.poller.seen = [ClockAndPower(1.98e9, 700.0), ClockAndPower(1.45e9, 690.0)]
    first, last = whole.part(0, 2), whole.part(2, 4)
    assert (first.value, last.value) == (12.0, 6.0)
    assert (first.telemetry["sm_clock_hz"], first.telemetry["power_w"]) == (1.98e9, 700.0)
    assert (last.telemetry["sm_clock_hz"], last.telemetry["power_w"]) == (1.45e9, 690.0)
    assert last.telemetry["throttle"] == {}


def test_a_measurement_whose_core_was_taken_away_carries_the_flag_and_is_named():
    def record(switches_per_s):
        rate = rate_of("a way", 8, 1e-3, telemetry={"thread_switches_per_s": switches_per_s})
        return setup_of(CPU).record_of("copy", "fp32", {"n": 1}, rate)

    busy, quiet = record(1e4), record(0.0)
    assert (busy.flags, quiet.flags) == (("preempted",), ())
    assert "lost its core" in busy.flag_reasons["preempted"]
    assert doubts([busy, quiet, busy]) == ["preempted, so these may read low: copy fp32"]
    assert doubts([quiet]) == []
