"""Fused multiply-adds outside matmul: FLOPs counted, results checked, and the reason where there is no such rate."""

import dataclasses
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_setup import setup_of

from bench.harness.calibrate import fma
from bench.harness.calibrate.setup import NotMeasuredError
from bench.harness.device.device import MIB, Device

CPU = Device("cpu", "cpu", "cpu", "cpu", 32 * MIB, 2**40, threads=1)
GPU = Device("cuda", "cpu", "gpu", "gpu", 50 * MIB, 2**40, sm_count=2)  # built on the CPU, never launched
needs_a_compiler = pytest.mark.skipif(not any(map(shutil.which, fma.COMPILERS)), reason="needs a C compiler")


def test_without_a_compiler_the_rate_of_a_cpu_is_absent_with_the_reason(monkeypatch):
    monkeypatch.setattr(fma.shutil, "which", lambda name: None)
    with pytest.raises(NotMeasuredError, match="need a C compiler, and there is none of cc, gcc, clang"):
        fma.candidates("fp32", CPU, None)


@needs_a_compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_chains_of_this_very_cpu_are_counted_and_checked(threads, monkeypatch):
    monkeypatch.setattr(fma, "STEPS", 1200)
    with ThreadPoolExecutor(threads) as pool:
        launch = fma.candidates("fp32", dataclasses.replace(CPU, threads=threads), pool)[0].prepare()
        assert launch.work == 2 * (16 // 4) * 1200 * threads
        launch.call()


@needs_a_compiler
def test_chains_that_compute_something_else_are_no_rate(monkeypatch):
    monkeypatch.setattr(fma, "SOURCE", fma.SOURCE.replace("return sum;", "return 2 * sum;"))
    with pytest.raises(NotMeasuredError, match="do not compute what they should"):
        fma.candidates("fp64", CPU, None)[0].prepare()
    monkeypatch.setattr(fma, "SOURCE", "no C")
    with pytest.raises(NotMeasuredError, match="cannot compile the chains"):
        fma.candidates("fp64", CPU, None)[0].prepare()


@needs_a_compiler
def test_the_rate_of_this_very_cpu_is_a_ceiling(monkeypatch):
    monkeypatch.setattr(fma, "STEPS", 1200)
    monkeypatch.setattr(fma, "WIDTHS", fma.WIDTHS[:1])
    threads = threading.active_count()
    [(ceiling, record)] = fma.measure(setup_of(CPU, screening_s=0.01, confirming_s=0.02), "fp32")
    assert (ceiling.quantity, ceiling.name, ceiling.config) == ("fma", "fp32", "C, 12 chains of 128 bits a thread")
    assert (record.op, record.provider, record.flops) == ("calibrate-fma", "c", ceiling.work_per_launch)
    assert threading.active_count() == threads


@pytest.mark.parametrize("dtype", fma.GPU_DTYPES)
def test_every_gpu_launch_gives_each_scheduler_the_same_count_of_instructions(dtype):
    candidates = fma.candidates(dtype, GPU, None)
    assert len({candidate.name for candidate in candidates}) == len(candidates) >= 8
    for candidate in candidates:
        launch = candidate.prepare()
        # sm_count x 4 schedulers x 32 lanes x 2 FLOPs for each slot
        assert launch.work == 2 * 4 * 32 * 2 * fma.ISSUE_SLOTS
        with pytest.raises(ValueError, match="Triton needs a GPU"):
            launch.call()


def test_where_there_is_no_kernel_the_reason_is_told():
    with pytest.raises(NotMeasuredError, match="needs an NVIDIA GPU and Triton"):
        fma.candidates("fp32", dataclasses.replace(GPU, type="rocm"), None)
