"""The parts of `python -m bench calibrate`: their clock, and what becomes of samples that the test makes up."""

import pickle
from dataclasses import replace
from functools import partial

import pytest

from bench.harness.calibrate import bandwidth, compute_peak, parts, setup
from bench.harness.calibrate.matmul_shapes import Shape
from bench.harness.calibrate.search import Chosen, NotMeasuredError, not_tried, rate_of
from bench.harness.calibrate.setup import PLANS, CalibrationPlan, CalibrationSetup, PartTimer, bytes_of_mix
from bench.harness.commands.calibrate import doubts
from bench.harness.device.device import MIB, Device
from bench.harness.device.telemetry import ClockAndPower, Monitor, Poller
from bench.harness.timing.protocol import Samples
from bench.harness.timing.samplers import HostSampler
from bench.matmul import OPS as MATMUL
from kernels import precompile
from kernels.bandwidth import v1_tiles
from kernels.fma import v1_chains
from kernels.launch import Gpu

CPU = Device("cpu", "cpu", "cpu-a-2t", "a CPU", MIB, 2**34, threads=2)
H100 = Device(
    *("cuda", "cuda:0", "h100-sxm", "NVIDIA H100 80GB HBM3", 50 * MIB, 85_029_158_912),
    sm_count=132,
    compute_capability="9.0",
)
NO_TIME = CalibrationPlan(1e-9, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 1, True)


def samples(*samples_s, launches=1):
    middle = sorted(samples_s)[len(samples_s) // 2]
    return Samples(samples_s, launches, "host", "warm", middle, (min(samples_s), max(samples_s)), True)


@pytest.mark.parametrize(
    ("kind", "quick", "promised_s"), [("cpu", 1, 30), ("cpu", 0, 120), ("gpu", 1, 60), ("gpu", 0, 300)]
)
def test_the_parts_fit_into_what_is_promised(kind, quick, promised_s):
    plan, dtypes = PLANS[kind, bool(quick)], setup.DTYPES[kind, bool(quick)]
    fma = [dtype for dtype in dtypes if dtype in ("fp64", "fp32", "fp16", "bf16")] if kind == "gpu" else ["fp32"]
    parts_s = plan.launch_s + 4 * plan.mix_s + plan.matmul_s + len(fma) * plan.fma_s
    assert parts_s <= plan.total_s < promised_s
    assert 2 * plan.long_run_s * len(dtypes) < (1 - parts.SEARCH_SHARE) * plan.matmul_s


# ---- the clock of a part -------------------------------------------------------------------------------------------


class Clock:
    """A clock that moves when something is measured."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def timer(monkeypatch):
    clock, caps = Clock(), []

    def sample(self, calls, limits):
        caps.append(limits.cap_s)
        clock.seconds += 4.0
        return samples(1.0)

    monkeypatch.setattr(PartTimer, "_sample", sample)
    made = PartTimer(CPU, 10.0, 5, Monitor(CPU), clock)
    made.caps = caps
    return made


def test_choosing_ends_with_its_time_and_the_choice_is_still_measured(timer):
    timer([int], timer.screening)
    timer([int], timer.screening)  # at 4 s of 5.5
    with pytest.raises(NotMeasuredError, match="the time of this part was over"):
        timer([int], timer.screening)  # at 8 s
    timer([int], timer.confirming)
    assert timer.caps[-1] == pytest.approx(2.0)  # what is left of 10 s, not the 2.8 s of a part in time
    assert timer.caps[:2] == [pytest.approx(0.8 * 5.5 / 5)] * 2


def test_the_first_candidate_is_measured_however_late(timer):
    timer._now.seconds = 99.0
    assert timer([int], timer.screening).median_s == 1.0
    assert timer.caps == [0.0]


def test_a_kernel_is_compiled_before_its_launches_are_timed(monkeypatch):
    calls_before_the_clock, called = [], []

    def make_sampler(calls, device, limits, **_):
        calls_before_the_clock.append(len(called))
        return HostSampler(calls, 1)

    monkeypatch.setattr(setup.samplers, "make_sampler", make_sampler)
    timer = PartTimer(H100, 0.01, 1, Monitor(CPU))
    timer([lambda: called.append(1)], timer.screening)
    assert calls_before_the_clock == [1]


# ---- what becomes of samples ---------------------------------------------------------------------------------------


def bench_of(device, plan=NO_TIME):
    return CalibrationSetup(device, plan, MATMUL[0], Monitor(CPU))


LONG = samples(*[0.05] * 2, *[0.10] * 8)
"""The first 0.1 s at twice the rate of the rest."""


@pytest.mark.parametrize(("device", "seconds"), [(CPU, 0.05), (H100, 0.25)])
def test_a_cpu_is_as_fast_as_its_shortest_time_and_a_gpu_as_its_median(device, seconds):
    shape = Shape(64, 64, 64)
    outcome = parts.matmul_outcome(bench_of(device), "fp32", shape, [0.25, 0.25, 0.20], LONG, {})
    found = {c.quantity: c.value for c in outcome.ceilings}
    flops = 2 * 64**3
    assert found == {
        "flops": pytest.approx(flops / seconds),
        "burst": pytest.approx(flops / 0.05),
        "sustained": pytest.approx(flops / 0.10),
    }
    assert {c.work_per_launch for c in outcome.ceilings} == {flops}
    low, high = next(c.p5_p95 for c in outcome.ceilings if c.quantity == "flops")
    slowest_s, fastest_s = (0.25, 0.205) if device is H100 else (0.25, 0.05)
    assert (low, high) == (pytest.approx(flops / slowest_s), pytest.approx(flops / fastest_s))
    assert [r.op for r in outcome.records] == [f"calibrate-{name}" for name in ("matmul", "burst", "sustained")]
    assert all(r.flops == flops and r.bytes_read == 2 * 4 * 64**2 for r in outcome.records)


def test_every_rate_carries_the_clock_of_its_very_samples():
    polled = Poller(Monitor(CPU))
    clocks = {0: 1.98e9, 5: 1.5e9, 8: 1.45e9}  # by the samples of `LONG` before them, of which two are the burst
    polled.places, polled.seen = list(clocks), [ClockAndPower(hz, 700.0) for hz in clocks.values()]
    capped = {"sm_clock_hz": 1.0e9, "throttle": {"sw_power_cap": 0.9}}
    lasting = parts.LongRun(capped, polled)
    confirmed = {"sm_clock_hz": 1.75e9}
    one = (Shape(64, 64, 64), [0.25], LONG)
    outcome = parts.matmul_outcome(bench_of(H100, PLANS["gpu", False]), "fp32", *one, confirmed, lasting)
    found = {c.quantity: c.sm_clock_hz for c in outcome.ceilings}
    assert found == {"flops": 1.75e9, "burst": 1.98e9, "sustained": 1.45e9}
    powers = {c.quantity: (c.power_w, c.at_power_limit) for c in outcome.ceilings}
    assert powers == {
        "flops": (None, None),
        "burst": (700.0, None),
        "sustained": (700.0, True),
    }
    assert {r.op: r.telemetry["sm_clock_hz"] for r in outcome.records}["calibrate-burst"] == 1.98e9


def test_a_run_too_short_to_split_says_so():
    outcome = parts.matmul_outcome(bench_of(CPU), "fp32", Shape(8, 8, 8), [1e-3], samples(1e-3), {})
    assert {c.quantity for c in outcome.ceilings} == {"flops"}
    assert "fp32: burst and sustained are not told apart" in outcome.notes[0]


@pytest.mark.parametrize(
    ("mix", "read", "written"), [("read", 12, 0), ("write", 0, 12), ("copy", 6, 6), ("triad", 8, 4)]
)
def test_the_bytes_of_a_mix_are_split_as_it_moves_them(mix, read, written):
    assert bytes_of_mix(mix, 12) == {"flops": 0, "bytes_read": read, "bytes_written": written}


def test_quick_looks_among_squares_and_fp8_at_the_one_layout_it_takes(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**36)
    full = replace(NO_TIME, is_quick=False)
    assert all(s.m == s.n == s.k and s.layout == "nn" for s in parts.shapes_of(bench_of(CPU), "bf16"))
    assert {s.layout for s in parts.shapes_of(bench_of(CPU, full), "bf16")} == {"nn", "nt"}
    assert {s.layout for s in parts.shapes_of(bench_of(H100, full), "fp8e4m3")} == {"nt"}
    assert len(parts.shapes_of(bench_of(H100), "bf16")) == 3
    monkeypatch.setattr(Device, "free_bytes", lambda self: 8)
    with pytest.raises(NotMeasuredError, match="no bf16 matmul of the search fits"):
        parts.shapes_of(bench_of(CPU), "bf16")


class FakeTimer:
    """Times no matmul."""

    def __init__(self, op, dtype, device, shapes, limits, poller):
        pass

    def __call__(self, shape, repetitions):
        return [1e-3] * repetitions

    def run(self, shape, seconds):
        return LONG


def test_a_search_whose_time_is_over_at_once_still_measures_a_shape(monkeypatch):
    monkeypatch.setattr(parts, "MatmulTimer", FakeTimer)
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**36)
    outcome = parts.matmul_part(bench_of(CPU), "fp32", 0.0, lambda line: None)
    found = {c.quantity for c in outcome.ceilings}
    assert found == {"flops", "burst", "sustained"}


def test_a_measurement_whose_core_was_taken_away_carries_the_flag_and_is_named():
    one = partial(setup.record_of, "copy", "fp32", {"n": 1}, samples(1e-3), "a way")
    busy, quiet = (one(telemetry={"involuntary_switches_per_s": rate}) for rate in (1e4, 0.0))
    assert (busy.flags, quiet.flags) == (("preempted",), ())
    assert "lost its core" in busy.flag_reasons["preempted"]
    assert doubts([busy, quiet, busy]) == ["preempted, so these may read low: copy fp32"]
    assert doubts([quiet]) == []


# ---- compiled beforehand -------------------------------------------------------------------------------------------


def launches():
    return bandwidth.launches_to_compile(H100, 2**26) | compute_peak.launches_to_compile(["fp32", "bf16", "int8"], H100)


def test_every_configuration_that_is_tried_is_compiled_before_the_clock_starts():
    tried = {f"{mix}, {config.words}" for mix in bandwidth.MIXES for config in v1_tiles.configs(H100.sm_count)}
    for dtype in ("fp32", "bf16"):
        tried |= {f"{dtype} FMA, {config.words}" for config in v1_chains.CONFIGS}
    assert set(launches()) == tried
    pickle.dumps(launches())  # each goes to a process of its own


def test_a_gpu_with_triton_compiles_first_and_a_cpu_has_nothing_to_compile(monkeypatch):
    compiled = []
    monkeypatch.setattr(precompile, "precompile", lambda wanted: compiled.append(set(wanted)) or {"copy, 4": "broken"})
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**36)
    first = parts.plan_parts(bench_of(H100), ["fp32"])[0]
    assert first.name == "compiling"
    assert first.measure(print).notes == ("copy, 4: does not compile: broken",)
    assert len(compiled[0]) == 50
    assert parts.plan_parts(bench_of(CPU), ["fp32"])[0].name == "launch"


@pytest.mark.exhaustive
def test_what_is_compiled_beforehand_compiles():
    few = dict(list(launches().items())[:5] + list(launches().items())[-1:])
    with precompile.compile_only(Gpu(90, 132, 50 * MIB)) as compiled:
        for call in few.values():
            call()
    assert len(compiled) == len(few)


def test_what_was_not_tried_is_said():
    rate = rate_of("fast", 12, samples(1.0))
    assert not_tried(Chosen(rate, (("fast", 12.0),), ())) == ()
    refused = (
        ("wide", "not tried: the time of this part was over"),
        ("odd", "not tried: the time of this part was over"),
    )
    [line] = not_tried(Chosen(rate, (("fast", 12.0),), refused))
    assert line == "wide; odd: not tried: the time of this part was over; fast is the fastest of the others"
