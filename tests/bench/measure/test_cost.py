"""The estimate before a case runs: from smaller cases, in proportion to the work, without running what is slow."""

from types import SimpleNamespace

import pytest

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.device.device import Device
from bench.harness.measure import cost
from bench.harness.measure.cost import LONG_ENOUGH_S, SMALL_WORK, CostEstimator, smaller_cases, total
from bench.harness.op import Case
from bench.matmul import OPS as MATMUL
from bench.matvec import OPS as MATVEC
from bench.reduction import OPS as REDUCTION
from roofline.work import Work

CPU = Device(type="cpu", torch_name="cpu", slug="cpu", name="a CPU", cache_bytes=2**20, memory_bytes=2**30)
GPU = Device(type="cuda", torch_name="cuda:0", slug="gpu", name="a GPU", cache_bytes=2**20, memory_bytes=2**30)
OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL, *MATVEC, *REDUCTION)}


def case_of(name, *extents, dtype="bf16", **options):
    options = {"layout": "nn", "batch": 1} | options if name == "matmul" else {}
    return Case(name, dtype, dict(zip(OPS[name].axes, extents, strict=True)), options)


CASES = [
    case_of("matmul", 16384, 16384, 16384, layout="nt"),
    case_of("matmul", 20, 8192, 8192, dtype="int8"),
    case_of("matmul", 1, 1, 10**9),
    case_of("matmul", 16, 16, 16, batch=10**6),
    case_of("matmul", 17, 1, 3, batch=7),
    case_of("matmul", 10**17, 10**17, 10**17),
    case_of("matvec", 1, 10**8),
    case_of("matvec", 14336, 4096),
    case_of("relu", 10**18 - 1),
    case_of("bias-gelu", 3, 10**8),
    case_of("dot", 2**28, dtype="fp64"),
    case_of("sum", 1),
    case_of("sum", 16),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_smaller_cases_grow_towards_the_case_and_end_below_it(case):
    op = OPS[case.op]
    sizes = [total(op.work(smaller)) for smaller in smaller_cases(op, case)]
    assert sizes == sorted(set(sizes))
    assert len(sizes) < 100
    assert all(size < total(op.work(case)) for size in sizes)
    if total(op.work(case)) > SMALL_WORK:
        assert sizes[0] < SMALL_WORK  # there is one that certainly runs at once
        assert sizes[-1] <= 0.6 * total(op.work(case))  # and the largest costs less than the case


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.name}")
def test_smaller_cases_keep_dtype_and_layout(case):
    for smaller in smaller_cases(OPS[case.op], case):
        assert (smaller.op, smaller.dtype) == (case.op, case.dtype)
        assert smaller.options.get("layout") == case.options.get("layout")
        assert smaller.options.keys() == case.options.keys()
        assert smaller.shape.keys() == case.shape.keys()
        for axis, extent in smaller.shape.items():
            assert 1 <= extent <= case.shape[axis]
            assert extent % 16 == 0 or extent == case.shape[axis] < 16


def test_halving_by_hand():
    found = [case.name for case in smaller_cases(OPS["matmul"], case_of("matmul", 1024, 1000, 100))]
    assert found == ["64x48x16", "128x112x16", "256x240x16", "512x496x48"]
    assert smaller_cases(OPS["sum"], case_of("sum", 16)) == []


class Machine:
    """A machine that does `rate` FLOPs and bytes per second, and what it was asked to run."""

    def __init__(self, monkeypatch, rate):
        self.rate, self.ran = rate, []
        monkeypatch.setattr(CostEstimator, "_time", self.time)

    def time(self, op, case):
        self.ran.append(case)
        return total(op.work(case)) / self.rate


@pytest.mark.parametrize("rate", [1e9, 1e12])
@pytest.mark.parametrize("n", [1024, 4096, 16384])
def test_the_estimate_is_the_time_of_a_machine_with_a_constant_rate(monkeypatch, rate, n):
    Machine(monkeypatch, rate)
    case = case_of("matmul", n, n, n)
    seconds = CostEstimator(CPU, "uniform", 0).call_s(OPS["matmul"], case)
    assert seconds == pytest.approx(total(OPS["matmul"].work(case)) / rate)


def test_twice_the_work_takes_twice_the_time(monkeypatch):
    Machine(monkeypatch, 1e10)
    estimator = CostEstimator(CPU, "uniform", 0)
    one, two = (estimator.call_s(OPS["relu"], case_of("relu", elements)) for elements in (10**9, 2 * 10**9))
    assert two == pytest.approx(2 * one)


def test_a_slow_dtype_is_found_out_with_little_work(monkeypatch):
    machine = Machine(monkeypatch, 1e9)  # fp16 on a CPU without fp16 arithmetic
    seconds = CostEstimator(CPU, "uniform", 0).call_s(OPS["matmul"], case_of("matmul", 8192, 8192, 8192, dtype="fp16"))
    assert seconds > 1000
    spent = sum(total(OPS["matmul"].work(case)) / machine.rate for case in machine.ran)
    assert spent < 10 * LONG_ENOUGH_S


def test_a_fast_machine_is_asked_only_once(monkeypatch):
    machine = Machine(monkeypatch, 1e12)
    estimator = CostEstimator(CPU, "uniform", 0)
    for _ in range(3):
        estimator.call_s(OPS["matmul"], case_of("matmul", 4096, 4096, 4096))
    names = [case.name for case in machine.ran]
    assert names
    assert len(names) == len(set(names))


def test_a_small_case_needs_no_estimate(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    assert CostEstimator(CPU, "uniform", 0).call_s(OPS["matmul"], case_of("matmul", 64, 64, 64)) is None
    assert machine.ran == []


def test_what_was_measured_replaces_the_pilots(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    estimator = CostEstimator(CPU, "uniform", 0)
    small, large = case_of("matmul", 1024, 1024, 1024), case_of("matmul", 2048, 2048, 2048)
    estimator.learn(OPS["matmul"], small, 0.5)
    work = [total(OPS["matmul"].work(case)) for case in (small, large)]
    assert estimator.call_s(OPS["matmul"], large) == pytest.approx(0.5 * work[1] / work[0])
    assert machine.ran == []

    estimator.learn(OPS["matmul"], case_of("matmul", 512, 512, 512), 99.0)  # a smaller one teaches nothing new
    assert estimator.call_s(OPS["matmul"], large) == pytest.approx(0.5 * work[1] / work[0])
    estimator.learn(OPS["matmul"], large, 3.0)
    assert estimator.call_s(OPS["matmul"], large) == pytest.approx(3.0)


def test_ops_and_dtypes_are_told_apart(monkeypatch):
    Machine(monkeypatch, 1e12)
    estimator = CostEstimator(CPU, "uniform", 0)
    estimator.learn(OPS["matmul"], case_of("matmul", 1024, 1024, 1024, dtype="fp16"), 5.0)
    fast = estimator.call_s(OPS["matmul"], case_of("matmul", 2048, 2048, 2048))
    slow = estimator.call_s(OPS["matmul"], case_of("matmul", 2048, 2048, 2048, dtype="fp16"))
    assert slow > 100 * fast


def test_a_short_measurement_is_no_reason_to_skip_pilots_that_take_longer(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    estimator = CostEstimator(CPU, "uniform", 0)
    estimator.learn(OPS["relu"], case_of("relu", 100), 1e-2)  # nothing but launch: 100 times its share
    case = case_of("relu", 10**9)
    assert estimator.call_s(OPS["relu"], case) == pytest.approx(total(OPS["relu"].work(case)) / 1e9)
    assert machine.ran


def test_pilots_that_the_op_refuses_are_left_out(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    case = case_of("matmul", 40, 8192, 8192, dtype="int8")
    assert CostEstimator(GPU, "uniform", 0).call_s(OPS["matmul"], case) is None  # 16 rows are too few on a GPU
    assert machine.ran == []
    assert CostEstimator(CPU, "uniform", 0).call_s(OPS["matmul"], case) > 0


def test_a_batch_of_many_small_products_is_estimated(monkeypatch):
    Machine(monkeypatch, 1e9)
    case = case_of("matmul", 16, 16, 16, batch=10**6)
    seconds = CostEstimator(CPU, "uniform", 0).call_s(OPS["matmul"], case)
    assert seconds == pytest.approx(total(OPS["matmul"].work(case)) / 1e9)


@pytest.mark.parametrize("case", [case_of("relu", 4096), case_of("matmul", 32, 32, 32, dtype="int8")])
def test_a_pilot_really_runs(case):
    seconds = CostEstimator(CPU, "normal", 0)._time(OPS[case.op], case)
    assert seconds > 0


def timed(monkeypatch, durations_s):
    """Return what the estimator makes of calls that last so long, the first of them not among its pilots."""
    durations, seconds = iter(durations_s), 0.0

    def call():
        nonlocal seconds
        seconds += next(durations)

    monkeypatch.setattr(cost, "load", lambda *_: SimpleNamespace(call=lambda data: call))
    monkeypatch.setattr(cost.time, "perf_counter", lambda: seconds)
    return CostEstimator(CPU, "uniform", 0)._time(OPS["relu"], case_of("relu", 64))


def test_a_pilot_is_the_fastest_of_a_few_calls_after_the_first(monkeypatch):
    # A library loads, then the machine is busy now and then.
    assert timed(monkeypatch, [9.0, 0.03, 0.01, 0.02, 0.5]) == pytest.approx(0.01)


def test_one_call_that_is_held_up_is_not_the_pilot(monkeypatch):
    assert timed(monkeypatch, [1.0, 0.06, 0.001, 0.001, 0.001]) == pytest.approx(0.001)


def test_total_is_flops_and_bytes():
    assert total(Work(flops=3, bytes_read=5, bytes_written=7)) == 15
