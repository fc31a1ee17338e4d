"""The stopwatch of the shape search, on real small matmuls of the CPU."""

import pytest
import torch

from bench.harness.calibrate import matmul_timer
from bench.harness.calibrate.matmul_shapes import Shape
from bench.harness.calibrate.matmul_timer import MatmulTimer
from bench.harness.calibrate.search import NotMeasuredError, SearchPlan, ShapeSearch
from bench.harness.device.device import MIB, Device
from bench.harness.timing.protocol import Limits, collect
from bench.matmul import OPS

CPU = Device("cpu", "cpu", "cpu", "cpu", 32 * MIB, 2**40, threads=1)
LIMITS = Limits(5, 1.0, 0.0, 0.05, 0.0, 1e-5)
SHAPES = [Shape(64, 32, 48, layout) for layout in ("nn", "nt", "tn")] + [Shape(32, 64, 16)]


@pytest.fixture
def calls(monkeypatch):
    """The calls that were put on the clock."""
    seen = []
    make_sampler = matmul_timer.make_sampler

    def remember(calls, device, limits, **_):
        seen.extend(calls)
        return make_sampler(calls, device, limits)

    monkeypatch.setattr(matmul_timer, "make_sampler", remember)
    return seen


def timer(dtype="fp32", shapes=SHAPES, **options):
    return MatmulTimer(OPS[0], dtype, CPU, shapes, LIMITS, **options)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_it_computes_the_product_it_times(shape, calls):
    times_s = timer()(shape, 7)
    assert len(times_s) == 7
    assert all(seconds > 0 for seconds in times_s)
    [call] = calls
    a, b = call.args
    out = call.keywords["out"]
    assert (a.shape, b.shape, out.shape) == ((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n))
    assert [matrix.is_contiguous() for matrix in (a, b)] == [letter == "n" for letter in shape.layout]
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()  # two stretches of one pool
    assert not torch.equal(a.flatten()[:16], b.flatten()[:16])
    torch.testing.assert_close(out, a @ b)


def test_a_shape_is_prepared_once(calls):
    stopwatch = timer()
    for _ in range(3):
        stopwatch(SHAPES[0], 2)
    assert len(calls) == 1


def test_times_are_those_of_one_launch(monkeypatch):
    class FourLaunches:
        method, launches_per_sample = "graph", 4

        def sample(self):
            return 1.0

    monkeypatch.setattr(matmul_timer, "make_sampler", lambda calls, device, limits, **_: FourLaunches())
    assert timer()(SHAPES[0], 3) == (0.25, 0.25, 0.25)


def test_zeros_are_zeros(calls):
    timer(fill="zeros")(SHAPES[0], 1)
    assert not calls[0].args[0].any()
    assert calls[0].keywords["out"].abs().sum() == 0


def test_shapes_that_do_not_fit_are_refused_with_the_reason():
    stopwatch = timer()
    larger = Shape(128, 128, 128)
    assert stopwatch(larger, 5) == ()
    assert stopwatch.refused == {"128x128x128": "larger than what memory was taken for"}
    with pytest.raises(NotMeasuredError, match=r"^fp32 matmul 128x128x128: larger than what memory was taken for$"):
        stopwatch.run(larger, 0.01)


def test_layouts_that_a_dtype_does_not_take_are_refused_with_the_reason():
    stopwatch = timer("fp8e4m3")
    assert stopwatch(SHAPES[0], 5) == ()
    assert "layout nt only" in stopwatch.refused["64x32x48"]


def test_an_error_of_the_library_is_a_refusal_in_one_line(monkeypatch):
    def broken(calls, device, limits, **_):
        raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nwhen calling")

    monkeypatch.setattr(matmul_timer, "make_sampler", broken)
    stopwatch = timer()
    assert stopwatch(SHAPES[0], 5) == ()
    assert stopwatch.refused[SHAPES[0].name] == "RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED"


def test_a_shape_that_would_take_too_long_is_never_called(monkeypatch, calls):
    monkeypatch.setattr(matmul_timer.CostEstimator, "call_s", lambda self, op, case: 3.0)
    stopwatch = timer()
    assert stopwatch(SHAPES[0], 5) == ()
    assert stopwatch.refused[SHAPES[0].name] == "estimated 3 s a launch, 0.15 s are allowed"
    assert calls == []


def test_a_run_keeps_every_sample_of_its_time(monkeypatch):
    """The clock passes with the samples alone: 8 of 2 ms and then 16 of 1 ms fill 32 ms, and the first ones count."""
    passed_s = []

    class Slowing:
        method, launches_per_sample = "host", 2

        def sample(self):
            passed_s.append((2 if len(passed_s) < 8 else 1) * 2.0**-10)
            return passed_s[-1]

    def collected(sampler, limits, cache):
        return collect(sampler, limits, cache, now=lambda: sum(passed_s))

    monkeypatch.setattr(matmul_timer, "make_sampler", lambda calls, device, limits, **_: Slowing())
    monkeypatch.setattr(matmul_timer, "collect", collected)
    samples = timer().run(SHAPES[0], 32 * 2.0**-10)
    assert samples.samples_s == (2.0**-10,) * 8 + (2.0**-11,) * 16  # of one launch
    assert (samples.launches_per_sample, samples.cache) == (2, "warm")


def test_a_run_on_this_very_machine_has_samples():
    samples = timer().run(SHAPES[0], 0.01)
    assert all(seconds > 0 for seconds in samples.samples_s)
    assert (samples.method, samples.cache) == ("host", "warm")


def test_a_search_on_this_very_machine_ends_with_fresh_samples():
    stopwatch = timer()
    search = ShapeSearch(SHAPES, stopwatch, SearchPlan(6, summary=min))
    found = search.run()
    assert found.is_confirmed
    assert found.shape in SHAPES
    assert min(found.samples_s) > 0
    assert stopwatch.refused == {}
