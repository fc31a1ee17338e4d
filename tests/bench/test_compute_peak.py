"""Rates of arithmetic: FLOPs counted, fusion proved, long runs split, and the line from the datasheet down."""

import dataclasses
import random

import pytest
import torch

from bench.harness.calibrate import compute_peak
from bench.harness.calibrate.compute_peak import (
    FMA_DTYPES,
    PeakLine,
    cpu_fma_candidates,
    endurance,
    gpu_fma_candidates,
    is_fused,
    measure_fma,
    peak_line,
    small_of,
    zeros_against_random,
)
from bench.harness.calibrate.search import NotMeasuredError
from bench.harness.device.device import MIB, Device
from bench.harness.timing.protocol import Limits, Samples, collect
from bench.harness.timing.samplers import make_sampler
from results.stats.samples import median, median_ci95
from roofline.hardware.gpu import derive_unknown_gpu, find_gpu

CPU = Device("cpu", "cpu", "cpu", "cpu", 32 * MIB, 2**40, threads=1)
GPU = Device("cuda", "cpu", "gpu", "gpu", 50 * MIB, 2**40, sm_count=2)  # built on the CPU, never launched
LIMITS = Limits(5, 1.0, 0.0, 0.05, 0.0, 1e-5)


def samples_of(times_s, launches=1):
    times_s = tuple(times_s)
    return Samples(times_s, launches, "graph", "warm", median(times_s), median_ci95(times_s), True)


# ---- fused multiply-adds ------------------------------------------------------------------------------------------


def rounded_first(x, y, out):
    torch.add(x, y * y, out=out)


def widened(x, y, out):
    out.copy_(x.double() + y.double() * y.double())


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_rounded_product_is_told_from_a_fused_one(dtype):
    assert not is_fused(rounded_first, dtype)
    small = small_of(dtype)
    kind = {"fp32": torch.float32, "fp64": torch.float64}[dtype]
    one = torch.tensor(1.0, dtype=kind)
    assert (one + small) - one == small  # exact
    assert ((one + small) * (one + small)).item() == 1 + 2 * small  # and its square is not
    assert (small**2 + 2 * small) - 2 * small == pytest.approx(small**2, rel=0.5)


def test_a_product_kept_whole_counts_as_fused():
    assert is_fused(widened, "fp32")  # fp64 holds the product of two fp32 numbers
    assert not is_fused(lambda x, y, out: None, "fp32")  # what writes nothing proves nothing


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_cpu_launch_counts_two_flops_an_element(dtype, monkeypatch):
    monkeypatch.setattr(compute_peak, "is_fused", lambda function, dtype: True)
    candidates = cpu_fma_candidates(dtype)
    assert len({candidate.name for candidate in candidates}) == len(candidates) == 2 * len(compute_peak.CPU_BLOCKS)
    for candidate in candidates:
        launch = candidate.prepare()
        assert launch.work == 2 * launch.call().numel()
        assert f"{launch.work // 2} elements" in candidate.name


def test_what_is_not_fused_is_not_claimed(monkeypatch):
    monkeypatch.setattr(compute_peak, "is_fused", lambda function, dtype: False)
    with pytest.raises(NotMeasuredError, match=r"^torch rounds fp32 products before it adds them here: no fused"):
        cpu_fma_candidates("fp32")


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8"])
def test_dtypes_without_arithmetic_of_their_own_are_absent_with_the_reason(dtype):
    with pytest.raises(NotMeasuredError, match=rf"^torch has no fused multiply-add in {dtype} on a CPU; it has: fp64"):
        measure_fma(dtype, CPU, None, LIMITS, LIMITS)


def test_the_rate_of_this_very_cpu_can_be_measured_or_is_absent_with_a_reason():
    def measure(calls, limits):
        return collect(make_sampler(calls, CPU, limits), limits, "warm")

    def adds_fused(x, y, out):
        return torch.add(x, y, alpha=1 + small_of("fp32"), out=out)

    def multiplies_fused(x, y, out):
        return torch.addcmul(x, y, y, out=out)

    if not (is_fused(adds_fused, "fp32") or is_fused(multiplies_fused, "fp32")):
        with pytest.raises(NotMeasuredError, match="no fused multiply-add"):
            measure_fma("fp32", CPU, measure, LIMITS, LIMITS)
        return
    chosen = measure_fma("fp32", CPU, measure, LIMITS, LIMITS, summary=min)
    assert 0 < chosen.rate.value <= chosen.rate.fastest
    assert not chosen.refused


@pytest.mark.parametrize("dtype", FMA_DTYPES)
def test_every_gpu_launch_gives_each_scheduler_the_same_count_of_instructions(dtype):
    candidates = gpu_fma_candidates(dtype, GPU)
    assert len({candidate.name for candidate in candidates}) == len(candidates) >= 8
    for candidate in candidates:
        launch = candidate.prepare()
        # sm_count x 4 schedulers x 32 lanes x 2 FLOPs for each slot
        assert launch.work == 2 * 4 * 32 * 2 * compute_peak.ISSUE_SLOTS
        with pytest.raises(ValueError, match="Triton needs a GPU"):
            launch.call()


@pytest.mark.parametrize(("dtype", "kind"), [("int8", "cuda"), ("fp32", "rocm")])
def test_where_there_is_no_kernel_the_reason_is_told(dtype, kind):
    with pytest.raises(NotMeasuredError, match=rf"^no kernel of {dtype} multiply-adds for {kind}; for cuda there are:"):
        measure_fma(dtype, dataclasses.replace(GPU, type=kind), None, LIMITS, LIMITS)


# ---- a long run ---------------------------------------------------------------------------------------------------


def test_a_throttling_run_is_split_into_burst_and_sustained():
    # 1 ms samples of 4 launches: 100 ms at full speed, then slower and slower, the second half at 80 %
    times_s = [0.25e-3] * 100 + [0.28e-3] * 300 + [0.3125e-3] * 600
    split = endurance("8192x8192x8192", 10**9, samples_of(times_s, launches=4))
    assert split.burst.value == pytest.approx(4e12)
    assert split.sustained.value == pytest.approx(3.2e12)
    assert split.share == pytest.approx(0.8)
    assert split.burst.samples.samples_s == (0.25e-3,) * len(split.burst.samples.samples_s)
    assert 99 <= len(split.burst.samples.samples_s) <= 100
    assert split.sustained.samples.samples_s == (0.3125e-3,) * len(split.sustained.samples.samples_s)
    assert split.sustained.config == "8192x8192x8192"
    total_s = 4 * sum(times_s)
    assert sum(split.sustained.samples.samples_s) * 4 == pytest.approx(total_s / 2, abs=2e-3)


def test_a_steady_run_sustains_its_burst():
    generator = random.Random(0)
    split = endurance("any", 10**9, samples_of(1e-3 * generator.gauss(1, 0.01) for _ in range(2000)))
    assert split.share == pytest.approx(1.0, abs=0.005)
    for rate in (split.burst, split.sustained):
        assert rate.ci95[0] < 1e12 < rate.ci95[1]
    spread = [rate.ci95[1] - rate.ci95[0] for rate in (split.burst, split.sustained)]
    assert spread[0] > spread[1]  # each interval is that of its own samples


def test_a_run_too_short_to_have_a_later_part_is_refused():
    with pytest.raises(NotMeasuredError, match=r"^a run of 0\.15 s with a first sample of 0\.001 s cannot tell its "):
        endurance("any", 1, samples_of([1e-3] * 150))
    with pytest.raises(NotMeasuredError, match=r"a first sample of 0\.3 s"):
        endurance("any", 1, samples_of([0.3] * 10))
    endurance("any", 1, samples_of([1e-3] * 201))


def test_one_endless_sample_at_the_end_is_all_that_was_sustained():
    split = endurance("any", 1, samples_of([0.05, 0.05, 10.0], launches=2))
    assert split.sustained.value == pytest.approx(0.1)
    assert split.burst.value == pytest.approx(20.0)


def test_zeros_against_random_is_a_ratio_of_rates():
    zeros = Samples((0.8,), 1, "graph", "warm", 0.8, (0.76, 0.84), True)
    data = Samples((1.0,), 1, "graph", "warm", 1.0, (0.88, 1.12), True)
    found = zeros_against_random(zeros, data)
    assert found.value == pytest.approx(1.25)  # zeros are the faster ones
    half = 1.25 * (0.05**2 + 0.12**2) ** 0.5
    assert found.ci95 == pytest.approx((1.25 - half, 1.25 + half))


def test_the_interval_of_the_ratio_covers_the_truth():
    covered = 0
    for seed in range(200):
        generator = random.Random(seed)
        zeros, data = (samples_of(mean * generator.gauss(1, 0.03) for _ in range(60)) for mean in (0.9, 1.0))
        low, high = zeros_against_random(zeros, data).ci95
        covered += low < 1 / 0.9 < high
    assert 0.90 <= covered / 200 <= 0.99


# ---- the line -----------------------------------------------------------------------------------------------------


def test_the_line_of_an_h100_at_the_clock_of_its_datasheet_and_at_its_highest():
    h100 = find_gpu("h100-sxm")
    line = peak_line("bf16", 800e12, h100, 1.83e9)
    assert line.clock_factor == pytest.approx(1.0, rel=1e-3)  # 132 x 4096 x 1.83 GHz is the datasheet's 989.4
    assert line.clock_limited == pytest.approx(989.4e12, rel=1e-3)
    boosted = peak_line("bf16", 800e12, h100, 1.98e9)
    assert boosted.clock_limited == pytest.approx(1070.5e12, rel=1e-4)  # above the datasheet, as published
    assert boosted.clock_factor * boosted.software_factor == pytest.approx(800 / 989.4, rel=1e-6)


def test_the_line_reads_as_one_product():
    line = peak_line("bf16", 750e12, find_gpu("h100-sxm"), 1.59e9)
    assert line.sentence == (
        "bf16: datasheet 989.4 TFLOP/s -> x clock 0.87 (1590 MHz) = 859.7 -> x software 0.87 -> measured 750 TFLOP/s"
    )
    assert peak_line("int8", 1e15, find_gpu("h100-sxm"), 1.59e9).sentence.endswith("measured 1000 TOP/s")


@pytest.mark.parametrize(
    ("dtype", "tflops_per_s"),
    [("fp64", 33.45), ("fp32", 66.91), ("fp16", 133.8)],  # 132 SMs x 128, 256, 512 x 1.98 GHz, as published
)
def test_fused_multiply_adds_are_held_against_the_cores_without_tensor_cores(dtype, tflops_per_s):
    line = peak_line(dtype, 30e12, find_gpu("h100-sxm"), 1.98e9, is_vector=True)
    assert line.clock_limited == pytest.approx(tflops_per_s * 1e12, rel=1e-3)
    assert line.datasheet == pytest.approx(tflops_per_s * 1e12, rel=2e-3)
    assert line.sentence.startswith(f"{dtype} FMA: datasheet")


def test_bf16_has_no_published_rate_of_the_cores():
    assert peak_line("bf16", 30e12, find_gpu("h100-sxm"), 1.98e9, is_vector=True).clock_limited is None


def test_what_is_not_known_is_left_out_of_the_line():
    h100 = find_gpu("h100-sxm")
    assert peak_line("bf16", 494.7e12, h100, None).sentence == (
        "bf16: datasheet 989.4 TFLOP/s -> x 0.50 (clock unknown) -> measured 494.7 TFLOP/s"
    )
    unknown = derive_unknown_gpu("NVIDIA Future", sm_count=200)
    for gpu in (None, unknown):
        line = peak_line("fp32", 1.5e12, gpu, 1.5e9)
        assert line.sentence == "fp32: no datasheet peak -> measured 1.5 TFLOP/s"
        assert (line.clock_factor, line.software_factor, line.datasheet) == (None, None, None)
    only_rate = PeakLine("bf16", 1e12, None, 2e12, 1e9)
    assert only_rate.sentence == "bf16: no datasheet peak -> (1000 MHz) = 2 -> x software 0.50 -> measured 1 TFLOP/s"
