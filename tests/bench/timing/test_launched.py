"""Kernels that a launch starts on a GPU, read from recordings in the format of torch's profiler."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.harness.timing import launched as ran
from results.record import Record
from results.show.table import describe


def kernel(name, begin_us, took_us, **facts):
    known = {
        "grid": [132, 1, 1],
        "block": [384, 1, 1],
        "registers per thread": 168,
        "shared memory": 213_000,
    }
    event = {"ph": "X", "cat": "kernel", "name": name, "ts": begin_us, "dur": took_us}
    return event | {"args": known | facts}


HOST = {"ph": "X", "cat": "cuda_runtime", "name": "cudaEventRecord", "ts": 0.0, "dur": 9.0}


def recording(*lost):
    """Return a recording of three launches, last launch first, without the events at the indices
    `lost`.
    """
    events = [HOST, kernel("spin_kernel", 0, 1)]
    for number, took_us in reversed(list(enumerate((10, 30, 20)))):
        begin = 100 * number + 2
        events += [kernel("gemm", begin, took_us), kernel("gemm", begin + 40, took_us)]
        events += [kernel("tail", begin + 80, 4, grid=[1, 1, 1])]
    return {"traceEvents": [event for index, event in enumerate(events) if index not in lost]}


@pytest.fixture
def sessions(monkeypatch):
    """Return a function that sets the recording of each profiler session; eager launches take 50
    us.
    """
    for name in ran.PROFILER_ENVIRONMENT:
        monkeypatch.setenv(name, "1")  # given back at the end
        monkeypatch.delenv(name)
    monkeypatch.setattr(ran, "_eager_s", lambda calls, launch_s: 5e-5)
    slept = []
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)

    def let(*texts):
        left = iter(texts)

        class Profile(contextlib.AbstractContextManager):
            def __init__(self, **options):
                pass

            def __exit__(self, *error):
                return None

            def export_chrome_trace(self, path):
                text = next(left)
                Path(path).write_text(text if isinstance(text, str) else json.dumps(text))

        monkeypatch.setattr("torch.profiler.profile", Profile)
        return slept

    return let


def launched(launch_s=1e-4):
    called = []
    fields = ran.launched([lambda: called.append(1)], launch_s, lambda: None)
    return fields, len(called)


def test_equal_kernels_of_a_launch_are_listed_with_a_count(sessions):
    slept = sessions(recording())
    fields, called = launched()
    facts = {"grid": [132, 1, 1], "block": [384, 1, 1], "registers": 168, "shared_bytes": 213_000}
    assert fields["launched_kernels"] == (
        {"name": "gemm", "count": 2, "time_s": pytest.approx(4e-5)} | facts,
        {"name": "tail", "count": 1, "time_s": pytest.approx(4e-6)} | facts | {"grid": [1, 1, 1]},
    )
    assert fields["kernel_s"] == pytest.approx(44e-6)  # the launches took 24, 64 and 44 us
    assert fields["eager_s"] == 5e-5
    # Empty kernels, which CUPTI may lose.
    assert (called, slept) == (ran.RECORDED_LAUNCHES, [0] * ran.SESSIONS)
    assert launched(launch_s=1.0) == ({}, 0)  # it takes too long to be repeated
    assert ran.os.environ["KINETO_LOG_LEVEL"]  # otherwise each recording writes to stderr


@pytest.mark.parametrize(
    "bad",
    [
        recording(2),
        recording(-1, 5, 9),
        "",
        "[]",
        "{}",
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "x"}]}',
    ],
)
def test_an_incomplete_recording_is_repeated_once(sessions, bad):
    sessions(bad, recording())
    assert launched()[0]["kernel_s"] is not None
    sessions(bad, bad, recording())
    assert launched()[0] == {"launched_kernels": (), "kernel_s": None, "eager_s": 5e-5}


def test_a_failing_profiler_loses_only_the_kernels(sessions, monkeypatch):
    def refused(**options):
        raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")

    monkeypatch.setattr("torch.profiler.profile", refused)
    assert launched()[0]["kernel_s"] is None


def test_a_row_shows_kernels_and_launch_times(sessions):
    sessions(recording())
    row = Record(
        **{
            "op": "matmul",
            "provider": "torch",
            "dtype": "bf16",
            "shape": {"m": 8},
            "case": "8",
            "status": "ok",
        },
        **{
            "median_s": 4.6e-5,
            "samples_s": (4.6e-5,),
            "method": "graph",
            "launches_per_sample": 1,
            "cache": "warm",
        },
        **launched()[0],
    )
    assert (
        Record.from_dict({key: value for key, value in row.to_dict().items() if key != "kind"})
        == row
    )
    assert describe(row)[1:] == [
        ("  a launch takes 46 us, or 50 us if launched separately; its 3 kernels take 44 us:"),
        "    2 x gemm, grid 132x1x1, block 384x1x1, registers 168, shared bytes 213000",
        "    1 x tail, grid 1x1x1, block 384x1x1, registers 168, shared bytes 213000",
    ]
    hostile = {"name": "\x1b[31m" + "x" * 5000, "count": "many", "grid": {"a": 1}}
    lines = describe(replace(row, launched_kernels=(hostile,)))
    assert all(line.isprintable() and len(line) < 250 for line in lines)
