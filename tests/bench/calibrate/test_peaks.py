"""The fastest matmul of a dtype, and fused multiply-adds (FMA)."""

import math
from dataclasses import replace

import pytest
from test_setup import CPU, H100, rate_of, setup_of

from bench.harness.calibrate import peaks
from bench.harness.calibrate.peaks import GPU_SHAPES, cases_of, fma_candidates
from bench.harness.calibrate.setup import NotMeasuredError, Setup
from bench.harness.device.device import Device


@pytest.fixture
def roomy(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**38)


def test_matmul_cases_fit_the_dtype_and_the_memory(roomy, monkeypatch):
    assert {case.options["layout"] for case in cases_of(H100, "fp8e4m3")} == {"nt"}
    assert {case.options["layout"] for case in cases_of(H100, "bf16")} == {"nn"}
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2**30)
    few = cases_of(H100, "bf16")
    assert 0 < len(few) < len(GPU_SHAPES)
    assert [math.prod(c.shape.values()) for c in few] == sorted(
        math.prod(c.shape.values()) for c in few
    )
    monkeypatch.setattr(Device, "free_bytes", lambda self: 8)
    with pytest.raises(NotMeasuredError, match="no bf16 matmul in the list fits"):
        cases_of(CPU, "bf16")


@pytest.fixture
def simulated(monkeypatch, roomy):
    """Return the rate of each simulated matmul in GFLOP/s, by dtype."""
    gflops = {}
    monkeypatch.setattr(peaks, "_launch", lambda device, case: case.dtype)

    def timed(self, candidate, seconds):
        telemetry = {"sm_clock_hz": 1.45e9, "power_w": 700.0, "throttle": {"sw_power_cap": 0.9}}
        work, seconds = 10**9, 1 / gflops[candidate.prepare()]
        return rate_of(
            candidate.name, work, seconds, telemetry=telemetry, is_gpu=self.device.is_gpu
        )

    monkeypatch.setattr(Setup, "timed", timed)
    return gflops


def test_gpu_peak_has_clock_power_and_power_limit(simulated):
    simulated["bf16"] = 30.0
    [(ceiling, record)] = peaks.matmul(setup_of(H100), "bf16")
    assert (ceiling.quantity, ceiling.value, record.op) == (
        "flops",
        pytest.approx(30e9),
        "calibrate-matmul",
    )
    assert (ceiling.sm_clock_hz, ceiling.power_w, ceiling.at_power_limit) == (1.45e9, 700.0, True)


@pytest.mark.parametrize(
    ("fp16", "fp32", "peak", "is_widened"), [(1.0, 200.0, 200e9, True), (400.0, 2.0, 4e11, False)]
)
def test_cpu_peak_of_fp16_is_widened_fp32_if_faster(simulated, fp16, fp32, peak, is_widened):
    simulated |= {"fp16": fp16, "fp32": fp32}
    [(ceiling, _)] = peaks.matmul(setup_of(CPU), "fp16")
    assert (ceiling.name, ceiling.value) == ("fp16", pytest.approx(peak))
    assert ("converted to fp32" in ceiling.source) == is_widened


GPU = replace(H100, torch_name="cpu", sm_count=2)  # built on the CPU, never launched


@pytest.mark.parametrize("dtype", peaks.FMA_DTYPES)
def test_every_fma_launch_fills_each_scheduler_equally(dtype):
    candidates = fma_candidates(dtype, GPU)
    assert len({candidate.name for candidate in candidates}) == len(candidates) >= 8
    # sm_count x 4 schedulers x 32 lanes x 2 FLOPs for each slot
    assert {candidate.work for candidate in candidates} == {2 * 4 * 32 * 2 * peaks.ISSUE_SLOTS}


def test_an_unavailable_fma_rate_has_a_reason():
    with pytest.raises(NotMeasuredError, match="needs an NVIDIA GPU and Triton"):
        fma_candidates("fp32", replace(GPU, type="rocm"))
