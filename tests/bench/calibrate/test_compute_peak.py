"""Rates of arithmetic: FLOPs counted, fusion proved, long runs split, and the line from the datasheet down."""

import dataclasses
import random
import shutil

import pytest

from bench.harness.calibrate import compute_peak, cpu_fma
from bench.harness.calibrate.compute_peak import (
    FMA_DTYPES,
    endurance,
    fma_candidates,
    gpu_fma_candidates,
    peak_sentence,
)
from bench.harness.calibrate.search import NotMeasuredError
from bench.harness.device.device import MIB, Device
from bench.harness.timing.protocol import Limits, Samples
from results.stats.samples import median, median_ci95
from roofline.hardware.gpu import derive_unknown_gpu, find_gpu

CPU = Device("cpu", "cpu", "cpu", "cpu", 32 * MIB, 2**40, threads=1)
GPU = Device("cuda", "cpu", "gpu", "gpu", 50 * MIB, 2**40, sm_count=2)  # built on the CPU, never launched
LIMITS = Limits(5, 1.0, 0.0, 0.05, 0.0, 1e-5)
needs_a_compiler = pytest.mark.skipif(not any(map(shutil.which, cpu_fma.COMPILERS)), reason="needs a C compiler")


def samples_of(times_s, launches=1):
    times_s = tuple(times_s)
    return Samples(times_s, launches, "graph", "warm", median(times_s), median_ci95(times_s), True)


# ---- fused multiply-adds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "int8"])
def test_dtypes_without_vectors_of_their_own_are_absent_with_the_reason(dtype):
    with pytest.raises(
        NotMeasuredError, match=rf"^no vector multiply-add in {dtype} on every CPU; there are: fp64, fp32"
    ):
        fma_candidates(dtype, CPU)


def test_without_a_compiler_the_rate_of_a_cpu_is_absent_with_the_reason(monkeypatch):
    monkeypatch.setattr(cpu_fma.shutil, "which", lambda name: None)
    with pytest.raises(NotMeasuredError, match="need a C compiler, and there is none of cc, gcc, clang"):
        fma_candidates("fp32", CPU)


@needs_a_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_chains_of_this_very_cpu_are_counted_and_checked(threads, monkeypatch):
    monkeypatch.setattr(cpu_fma, "STEPS", 1200)
    launch = fma_candidates("fp32", dataclasses.replace(CPU, threads=threads))[0].prepare()
    assert launch.work == 2 * (16 // 4) * 1200 * threads
    launch.call()


@needs_a_compiler
def test_chains_that_compute_something_else_are_no_rate(monkeypatch):
    monkeypatch.setattr(cpu_fma, "SOURCE", cpu_fma.SOURCE.replace("return sum;", "return 2 * sum;"))
    with pytest.raises(NotMeasuredError, match="do not compute what they should"):
        fma_candidates("fp64", CPU)[0].prepare()
    monkeypatch.setattr(cpu_fma, "SOURCE", "no C")
    with pytest.raises(NotMeasuredError, match="cannot compile the chains"):
        fma_candidates("fp64", CPU)[0].prepare()


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
        fma_candidates(dtype, dataclasses.replace(GPU, type=kind))


# ---- a long run ---------------------------------------------------------------------------------------------------


def test_a_throttling_run_is_split_into_burst_and_sustained():
    # 1 ms samples of 4 launches: 100 ms at full speed, then slower and slower, the second half at 80 %
    times_s = [0.25e-3] * 100 + [0.28e-3] * 300 + [0.3125e-3] * 600
    split = endurance("8192x8192x8192", 10**9, samples_of(times_s, launches=4))
    assert split.burst.value == pytest.approx(4e12)
    assert split.sustained.value == pytest.approx(3.2e12)
    assert split.sustained.value / split.burst.value == pytest.approx(0.8)
    assert split.burst.samples.samples_s == (0.25e-3,) * len(split.burst.samples.samples_s)
    assert 99 <= len(split.burst.samples.samples_s) <= 100
    assert split.sustained.samples.samples_s == (0.3125e-3,) * len(split.sustained.samples.samples_s)
    assert split.sustained.config == "8192x8192x8192"
    total_s = 4 * sum(times_s)
    assert sum(split.sustained.samples.samples_s) * 4 == pytest.approx(total_s / 2, abs=2e-3)


def test_a_steady_run_sustains_its_burst():
    generator = random.Random(0)
    split = endurance("any", 10**9, samples_of(1e-3 * generator.gauss(1, 0.01) for _ in range(2000)))
    assert split.sustained.value / split.burst.value == pytest.approx(1.0, abs=0.005)
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


# ---- the line -----------------------------------------------------------------------------------------------------


def test_the_sentence_reads_as_one_product_of_the_datasheet_the_clock_and_the_software():
    h100 = find_gpu("h100-sxm")
    assert peak_sentence("bf16", 750e12, h100, 1.59e9, is_vector=False) == (
        "bf16: datasheet 989.4 TFLOP/s -> x clock 0.87 (1590 MHz) = 859.7 -> x software 0.87 -> measured 750 TFLOP/s"
    )
    assert peak_sentence("int8", 1e15, h100, 1.59e9, is_vector=False).endswith("measured 1000 TOP/s")
    # 132 x 4096 x 1.83 GHz is the datasheet's 989.4; at the highest clock the peak is above it, as published.
    assert "x clock 1.00 (1830 MHz) = 989." in peak_sentence("bf16", 800e12, h100, 1.83e9, is_vector=False)
    assert "x clock 1.08 (1980 MHz) = 1071 " in peak_sentence("bf16", 800e12, h100, 1.98e9, is_vector=False)


@pytest.mark.parametrize(("dtype", "limit"), [("fp64", "33.45"), ("fp32", "66.91"), ("fp16", "133.8")])
def test_fused_multiply_adds_are_held_against_the_cores_without_tensor_cores(dtype, limit):
    sentence = peak_sentence(dtype, 30e12, find_gpu("h100-sxm"), 1.98e9, is_vector=True)  # 132 SMs x 128, 256, 512
    assert sentence.startswith(f"{dtype} FMA: datasheet")
    assert f"x clock 1.00 (1980 MHz) = {limit} " in sentence


def test_without_every_part_there_is_no_sentence():
    h100 = find_gpu("h100-sxm")
    assert peak_sentence("bf16", 494.7e12, h100, None, is_vector=False) is None  # no clock
    assert peak_sentence("bf16", 30e12, h100, 1.98e9, is_vector=True) is None  # no published rate of the cores
    assert peak_sentence("fp32", 1.5e12, derive_unknown_gpu("NVIDIA Future", sm_count=200), 1.5e9, False) is None
