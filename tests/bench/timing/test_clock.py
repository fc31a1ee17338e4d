"""A function that replaces the clock does not change its time, and a stopped clock is reported."""

import sys
import time
from contextlib import contextmanager
from types import BuiltinFunctionType

import pytest
import torch

import bench
from bench.harness.op import UsageError
from bench.harness.timing import samplers
from bench.harness.timing.protocol import CPU_LIMITS, settle
from tests.bench.commands import CPU

CLOCKS = ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time", "time_ns")


@contextmanager
def replaced(make):
    """Replace the clocks of `time`, also where modules refer to them, as freezegun does."""
    originals = {getattr(time, name): make(getattr(time, name)) for name in CLOCKS}
    undo = []
    for module in list(sys.modules.values()):
        for name, value in list(vars(module).items()):
            if type(value) is BuiltinFunctionType and value in originals:
                undo.append((module, name, value))
                setattr(module, name, originals[value])
    try:
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)


def stopped(clock):
    reading = clock()
    return lambda: reading


def half(clock):
    return lambda: clock() / 2


def test_a_function_that_slows_the_clock_keeps_its_time(monkeypatch):
    def cheat():
        for module in (samplers, samplers.clock):
            for name in ("time", "now", "clock"):
                monkeypatch.setattr(module, name, FakeTime, raising=False)
        time.sleep(0.02)

    with replaced(half):
        sampler = samplers.HostSampler([cheat], 1)
        assert sampler.sample() >= 0.02
        assert min(samplers.timed_calls([cheat], 2, lambda: None)) >= 0.02


class FakeTime:
    """A module whose clock says that no time has passed."""

    def now():
        return 0.0

    perf_counter = now


def slow():
    time.sleep(0.003)
    return X


def other():
    return slow()


X = torch.zeros(1)


@pytest.mark.parametrize(
    "seconds",
    [
        lambda: bench.measure(slow, budget_s=0.1, device="cpu").median_s,
        lambda: (
            bench.compare({"a": slow, "b": other}, budget_s=0.1, device="cpu").records[0].median_s
        ),
        lambda: bench.do_bench(slow, warmup=1, rep=1) / 1e3,
    ],
    ids=["measure", "compare", "do_bench"],
)
def test_times_are_right_while_the_clocks_of_the_process_are_stopped(seconds):
    with replaced(stopped):
        assert seconds() >= 0.003


def test_a_clock_that_does_not_advance_is_reported():
    with pytest.raises(UsageError, match="the clock does not advance"):
        settle(lambda: 0.0, CPU_LIMITS, now=lambda: 1.0)
    with pytest.raises(UsageError, match="the clock does not advance"):
        samplers.tick_s(CPU, now=lambda: 1.0)
