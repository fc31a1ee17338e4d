"""`bench.do_bench`: Triton's signature and values, our samplers, and what is refused."""

import inspect
import warnings

import pytest
import torch

import bench
from bench.api import do_bench as ours
from bench.api.do_bench import summary
from bench.harness.device.device import cpu_device
from bench.harness.measure import measure_row
from tests.bench.fake_clock import set_clock


@pytest.fixture(autouse=True)
def small_flush(monkeypatch):
    monkeypatch.setattr(ours, "FLUSHED_CACHES", 1e-4)


def test_do_bench_has_the_signature_of_triton():
    testing = pytest.importorskip("triton.testing")
    mine, theirs = (
        inspect.signature(function).parameters for function in (bench.do_bench, testing.do_bench)
    )
    assert [(parameter.name, parameter.default) for parameter in mine.values()] == [
        (parameter.name, parameter.default) for parameter in theirs.values()
    ]


@pytest.mark.parametrize(
    "options",
    [{"return_mode": mode} for mode in ("mean", "median", "min", "max", "all")]
    + [{"quantiles": shares} for shares in ([0.5], [0.5, 0.2, 0.8], [0.0, 0.33, 1.0])],
)
def test_do_bench_returns_what_triton_returns(options):
    testing = pytest.importorskip("triton.testing")
    times = [3.0, 1.0, 2.5, 7.0, 1.5]
    whole = {"quantiles": None, "return_mode": "mean"} | options
    assert summary(times, **whole) == pytest.approx(
        testing._summarize_statistics(list(times), **whole)
    )


def test_values_are_milliseconds_of_single_calls():
    calls = []
    values = bench.do_bench(lambda: calls.append(1), warmup=0, rep=0, return_mode="all")
    assert len(values) == 5
    assert len(calls) == 5 + 2  # the first one, and one of the warm-up
    assert bench.do_bench(lambda: None, 0, 0, None, [0.5]) > 0


def test_gradients_are_dropped_before_each_call():
    x = torch.ones(3, requires_grad=True)
    seen = []

    def step():
        seen.append(x.grad)
        (x * 2).sum().backward()

    bench.do_bench(step, warmup=0, rep=0, grad_to_none=[x])
    assert len(seen) == 7
    assert seen[1:] == [None] * 6


def test_the_cache_flush_is_not_timed(monkeypatch):
    order = []
    monkeypatch.setattr(torch.Tensor, "zero_", lambda self: order.append("flush"))
    sampler = ours.flushing_sampler(lambda: order.append("call"), cpu_device())
    set_clock(monkeypatch, lambda: order.append("clock") or 0.0)
    sampler.sample()
    assert order == ["call", "clock", "flush", "clock", "clock", "call", "clock"]


def fails():
    raise ZeroDivisionError("by nothing")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bench.do_bench(3), "got 3"),
        (lambda: bench.do_bench(fails), "fails raised ZeroDivisionError: by nothing"),
        (lambda: bench.do_bench(fails, rep=-1), "rep=-1 must be a number of milliseconds"),
        (
            lambda: bench.do_bench(fails, return_mode="mode"),
            "return_mode='mode' must be one of min, max, mean",
        ),
        (lambda: bench.do_bench(fails, quantiles=[2]), "must be numbers from 0 to 1"),
    ],
)
def test_do_bench_rejects_invalid_arguments_in_one_line(call, said):
    pytest.importorskip("triton.testing")
    with pytest.raises(bench.UsageError, match=said) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("core_wait", "count"), [(0.8, 1), (0.0, 0)])
def test_a_warning_says_that_other_work_took_time(monkeypatch, core_wait, count):
    telemetry = {"core_wait": core_wait}
    monkeypatch.setattr(measure_row, "row_telemetry", lambda *_, **counted: dict(telemetry))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bench.do_bench(lambda: None, warmup=0, rep=0)
    assert len(said) == count
    for warning in said:
        text = "<lambda>: preempted: a thread waited for a core 80 % of the time"
        assert (str(warning.message), warning.filename) == (text, __file__)
