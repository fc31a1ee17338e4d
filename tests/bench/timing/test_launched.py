"""What a launch starts on a GPU, read from recordings of the form that torch's profiler writes."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.harness.timing import launched as ran
from results.record import Record
from results.show.table import describe


def kernel(name, begin_us, took_us, **facts):
    known = {"grid": [132, 1, 1], "block": [384, 1, 1], "registers per thread": 168, "shared memory": 213_000}
    event = {"ph": "X", "cat": "kernel", "name": name, "ts": begin_us, "dur": took_us}
    return event | {"args": known | facts}


COPY = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "ts": 1.0, "dur": 2.0, "args": {"bytes": 8}}
HOST = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "ts": 0.0, "dur": 9.0}


def launches(count=ran.RECORDED_LAUNCHES, times_us=(10, 30, 20)):
    """A recording of launches of two equal kernels and another one, the last launch first."""
    events = [HOST]
    for number, took_us in reversed(list(enumerate(times_us[:count]))):
        begin = 100 * number
        events += [kernel("gemm", begin, took_us), kernel("gemm", begin + 40, took_us)]
        events += [kernel("tail", begin + 80, 4, grid=[1, 1, 1])]
    return {"traceEvents": events}


@pytest.fixture
def sessions(monkeypatch):
    """Let each session of the profiler return the next of these recordings; eager launches take 50 us."""

    def let(*documents):
        left = iter(documents)
        monkeypatch.setattr(ran, "recorded", lambda calls, synchronize: ran.equal_launches(ran.kernels_of(next(left))))
        monkeypatch.setattr(ran, "_eager_s", lambda calls, launch_s: 5e-5)

    return let


def test_facts_of_a_kernel_are_read_and_a_copy_has_none():
    first, second = ran.kernels_of({"traceEvents": [HOST, kernel("gemm", 5.5, 2, correlation=7), COPY]})
    assert first == ran.Kernel("Memcpy DtoD", 1000, 3000, None)
    assert second == ran.Kernel("gemm", 5500, 7500, 7, (132, 1, 1), (384, 1, 1), 168, 213_000)


def test_equal_kernels_of_a_launch_are_listed_once_with_their_count(sessions):
    sessions(launches())
    found = ran.launched([print], 1e-4, print)
    facts = {"grid": [132, 1, 1], "block": [384, 1, 1], "registers": 168, "shared_bytes": 213_000}
    assert found.kernels == (
        {"name": "gemm", "count": 2, "time_s": pytest.approx(4e-5)} | facts,
        {"name": "tail", "count": 1, "time_s": pytest.approx(4e-6)} | facts | {"grid": [1, 1, 1]},
    )
    assert found.kernel_s == pytest.approx(44e-6)  # the launches took 24, 64 and 44 us
    assert found.eager_s == 5e-5


def test_a_recording_that_lost_a_part_is_made_again_and_then_left(sessions):
    part = {"traceEvents": launches()["traceEvents"][:-1]}
    sessions(part, launches())
    assert ran.launched([print], 1e-4, print).kernel_s is not None
    sessions(part, {"traceEvents": []}, launches())
    found = ran.launched([print], 1e-4, print)
    assert (found.kernels, found.kernel_s, found.eager_s) == ((), None, 5e-5)
    assert ran.launched([print], 1.0, print) is None  # it takes too long to be repeated


def test_eager_launches_are_timed_once_the_results_of_a_round_have_memory(monkeypatch):
    class Allocating:
        def __init__(self, calls, launches, enqueue_s):
            self.left, self.launches = len(calls), launches

        def sample(self):
            new, self.left = min(self.left, self.launches), max(0, self.left - self.launches)
            return self.launches * 1e-5 + new * 1e-3

    monkeypatch.setattr(ran, "EventSampler", Allocating)
    assert ran._eager_s([print] * 200, launch_s=1e-5) == pytest.approx(1e-5)


def test_launches_are_told_apart_by_their_kernels():
    def names(*kernels):
        given = [ran.Kernel(name, place, place + 1, None) for place, name in enumerate(kernels)]
        return [[one.name for one in launch] for launch in ran.equal_launches(given)]

    assert names("spin_kernel", *["a", "b"] * 3) == [["a", "b"]] * 3
    assert names(*["a"] * 3) == [["a"]] * 3
    for lost in ([], ["b", *["a", "b"] * 2], ["a", "b", "b", "a", "b", "a"], ["a"] * 4):
        assert names(*lost) == []


def test_each_recording_begins_with_the_empty_kernels_that_it_may_lose(monkeypatch):
    empty = []
    for name, value in ran.PROFILER_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "_sleep", empty.append)
    monkeypatch.setattr("torch.profiler.profile", lambda **options: contextlib.nullcontext())
    ran.recorded([print], lambda: None)
    assert empty == [0] * ran.SESSIONS


def test_a_profiler_that_fails_or_records_no_gpu_costs_nothing_but_the_kernels(monkeypatch):
    for name in ran.PROFILER_ENVIRONMENT:
        monkeypatch.setenv(name, "1")  # given back at the end
        monkeypatch.delenv(name)
    assert ran.recorded([lambda: torch.ones(1)], lambda: None) == []
    assert all(ran.os.environ[name] == value for name, value in ran.PROFILER_ENVIRONMENT.items())
    assert ran.os.environ["KINETO_LOG_LEVEL"]  # else each recording writes lines to stderr, between those of the rows

    def refused(**options):
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setattr("torch.profiler.profile", refused)
    assert ran.recorded([print], print) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"traceEvents": [{"ph": "X", "cat": "kernel"}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "x"}]}',
    ],
)
def test_a_torn_trace_costs_the_kernels_alone(monkeypatch, text):
    class Profile(contextlib.AbstractContextManager):
        def __init__(self, **options):
            pass

        def __exit__(self, *error):
            return None

        def export_chrome_trace(self, path):
            Path(path).write_text(text)

    for name, value in ran.PROFILER_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.profiler.profile", Profile)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    called = []
    assert ran.recorded([lambda: called.append(1)], lambda: None) == []
    assert len(called) == ran.RECORDED_LAUNCHES


def test_a_row_says_what_ran_beside_the_three_times_of_a_launch(sessions):
    sessions(launches())
    found = ran.launched([print], 1e-4, print)
    row = Record(
        **{"op": "matmul", "provider": "torch", "dtype": "bf16", "shape": {"m": 8}, "case": "8", "status": "ok"},
        **{"median_s": 4.6e-5, "samples_s": (4.6e-5,), "method": "graph", "launches_per_sample": 1, "cache": "warm"},
        **{"launched_kernels": found.kernels, "kernel_s": found.kernel_s, "eager_s": found.eager_s},
    )
    assert Record.from_dict({key: value for key, value in row.to_dict().items() if key != "kind"}) == row
    assert describe(row)[1:] == [
        "  a launch takes 46.00 us, 50.00 us where the host launches each; its 3 kernels take 44.00 us:",
        "    2 x gemm, grid 132x1x1, block 384x1x1, 168 registers, 213000 bytes of shared memory",
        "    1 x tail, grid 1x1x1, block 384x1x1, 168 registers, 213000 bytes of shared memory",
    ]
    hostile = {"name": "\x1b[31m" + "x" * 5000, "count": "many", "grid": {"a": 1}}
    lines = describe(replace(row, launched_kernels=(hostile,)))
    assert all(line.isprintable() and len(line) < 250 for line in lines)
