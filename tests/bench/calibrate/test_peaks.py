"""The fastest matmul of a dtype, the burst and the sustained rate of its long run, and fused multiply-adds (FMA)."""

import math
from dataclasses import replace

import pytest
from test_setup import CPU, H100, rate_of, setup_of

from bench.harness.calibrate import peaks
from bench.harness.calibrate.peaks import GPU_EXTENTS, burst_and_sustained, cases_of, fma_candidates
from bench.harness.calibrate.setup import NotMeasuredError, Setup
from bench.harness.device.device import Device
from bench.harness.device.telemetry import ClockAndPower

LONG = (*[0.05] * 2, *[0.10] * 8)
"""Seconds of launches: the first 0.1 s at twice the rate of the rest."""


@pytest.fixture
def roomy(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**38)


def test_fp8_has_the_one_layout_it_takes_and_memory_bounds_the_shapes(roomy, monkeypatch):
    assert {case.options["layout"] for case in cases_of(H100, "fp8e4m3")} == {"nt"}
    assert {case.options["layout"] for case in cases_of(H100, "bf16")} == {"nn"}
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**30)
    few = cases_of(H100, "bf16")
    assert 0 < len(few) < len(GPU_EXTENTS)
    assert [math.prod(c.shape.values()) for c in few] == sorted(math.prod(c.shape.values()) for c in few)
    monkeypatch.setattr(Device, "free_bytes", lambda self: 8)
    with pytest.raises(NotMeasuredError, match="no bf16 matmul of the list fits"):
        cases_of(CPU, "bf16")


@pytest.fixture
def simulated(monkeypatch, roomy):
    """Let every matmul be measured as the test says, by dtype; a long run as `LONG`."""
    gflops = {}
    monkeypatch.setattr(peaks, "_launch", lambda device, case: case.dtype)

    def timed(self, candidate, seconds, idle_s=0.0):
        if not idle_s:
            return rate_of(candidate.name, 10**9, 1 / gflops[candidate.prepare()], is_gpu=self.device.is_gpu)
        telemetry = {"sm_clock_hz": 1e9, "throttle": {"sw_power_cap": 0.9}}
        long = rate_of(candidate.name, 10**9, *LONG, telemetry=telemetry, is_gpu=True)
        long.poller.places = [0, 5, 8]  # samples before each reading; two of `LONG` are the burst
        long.poller.seen = [ClockAndPower(hz, 700.0) for hz in (1.98e9, 1.5e9, 1.45e9)]
        return long

    monkeypatch.setattr(Setup, "timed", timed)
    return gflops


def test_a_long_run_on_a_gpu_has_a_burst_and_a_sustained_rate_each_with_its_own_clock(simulated):
    simulated["bf16"] = 30.0
    measured = peaks.matmul(setup_of(H100), "bf16")
    assert {c.quantity: (c.value, c.sm_clock_hz, c.power_w, c.at_power_limit) for c, _ in measured} == {
        "flops": (pytest.approx(30e9), None, None, None),
        "burst": (pytest.approx(20e9), 1.98e9, 700.0, None),
        "sustained": (pytest.approx(10e9), 1.45e9, 700.0, True),
    }
    assert [record.op for _, record in measured] == [f"calibrate-{n}" for n in ("matmul", "burst", "sustained")]
    [short] = peaks.matmul(setup_of(H100, long_run_s=0.0), "bf16")
    assert short.ceiling.quantity == "flops"


@pytest.mark.parametrize(("fp16", "fp32", "peak", "is_widened"), [(1.0, 200.0, 200e9, True), (400.0, 2.0, 4e11, False)])
def test_the_peak_of_fp16_on_a_cpu_is_that_of_fp32_where_widening_is_faster(simulated, fp16, fp32, peak, is_widened):
    simulated |= {"fp16": fp16, "fp32": fp32}
    [(ceiling, _)] = peaks.matmul(setup_of(CPU), "fp16")
    assert (ceiling.name, ceiling.value) == ("fp16", pytest.approx(peak))
    assert ("widened to fp32" in ceiling.source) == is_widened


def long_run(times_s, launches=1):
    return rate_of("any", 10**9, *times_s, launches=launches)


def test_a_throttling_run_is_split_into_burst_and_sustained():
    # 1 ms samples of 4 launches: 100 ms at full speed, then slower and slower, the second half at 80 %
    times_s = [0.25e-3] * 100 + [0.28e-3] * 300 + [0.3125e-3] * 600
    split = burst_and_sustained(long_run(times_s, launches=4))
    assert {name: rate.value for name, rate in split.items()} == {
        "burst": pytest.approx(4e12),
        "sustained": pytest.approx(3.2e12),
    }
    assert 99 <= len(split["burst"].samples.samples_s) <= 100
    assert set(split["sustained"].samples.samples_s) == {0.3125e-3}
    assert sum(split["sustained"].samples.samples_s) * 4 == pytest.approx(2 * sum(times_s), abs=2e-3)
    split = burst_and_sustained(long_run([0.05, 0.05, 10.0]))  # the last sample is all that was sustained
    assert [rate.samples.samples_s for rate in split.values()] == [(0.05, 0.05), (10.0,)]


def test_a_run_too_short_to_have_a_later_part_is_refused():
    with pytest.raises(NotMeasuredError, match=r"^a run of 0\.15 s with a first sample of 0\.001 s is too short "):
        burst_and_sustained(long_run([1e-3] * 150))
    with pytest.raises(NotMeasuredError, match=r"a first sample of 0\.3 s"):
        burst_and_sustained(long_run([0.3] * 10))
    burst_and_sustained(long_run([1e-3] * 201))


# ---- fused multiply-adds ------------------------------------------------------------------------------------------

GPU = replace(H100, torch_name="cpu", sm_count=2)  # built on the CPU, never launched


@pytest.mark.parametrize("dtype", peaks.FMA_DTYPES)
def test_every_gpu_launch_gives_each_scheduler_the_same_count_of_instructions(dtype):
    candidates = fma_candidates(dtype, GPU)
    assert len({candidate.name for candidate in candidates}) == len(candidates) >= 8
    # sm_count x 4 schedulers x 32 lanes x 2 FLOPs for each slot
    assert {candidate.work for candidate in candidates} == {2 * 4 * 32 * 2 * peaks.ISSUE_SLOTS}
    with pytest.raises(ValueError, match="Triton needs a GPU"):
        candidates[0].prepare()()


def test_where_there_is_no_fma_rate_the_reason_is_told():
    with pytest.raises(NotMeasuredError, match="needs an NVIDIA GPU and Triton"):
        fma_candidates("fp32", replace(GPU, type="rocm"))
