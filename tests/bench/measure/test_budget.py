"""How rows share a budget, and estimates of a case from smaller ones."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.commands.suite import planned
from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.device.device import Device
from bench.harness.measure import budget
from bench.harness.measure.budget import (
    CALLS_PER_CASE,
    CASE_ALLOWANCE_S,
    MIN_PILOT_S,
    MIN_ROW_S,
    Budget,
    is_scalable,
    scaled_s,
    smaller_cases,
    total,
)
from bench.harness.measure.rows import Row, Settings
from bench.harness.op import Case
from bench.matmul import OPS as MATMUL
from bench.matvec import OPS as MATVEC
from bench.norm import OPS as NORM
from bench.reduction import OPS as REDUCTION
from tests.bench.commands import CPU, GPU, HALF_SECONDS, Clock
from tests.bench.fake_clock import set_clock

OPS = {op.name: op for op in (*ELEMENTWISE, *MATMUL, *MATVEC, *REDUCTION)}


def case_of(name, *extents, dtype="bf16", **options):
    options = {"layout": "nn", "batch": 1} | options if name == "matmul" else {}
    return Case(name, dtype, dict(zip(OPS[name].axes, extents, strict=True)), options)


def learn(estimator, op, case, seconds):
    estimator.took(replace(HALF_SECONDS, median_s=seconds), 0.0, row=Row(op, case, "torch"))


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    set_clock(monkeypatch, clock)
    return clock


class Machine:
    """A machine that does `rate` FLOPs and bytes per second; `ran` has the cases it ran."""

    def __init__(self, monkeypatch, rate):
        self.rate, self.ran = rate, []
        monkeypatch.setattr(Budget, "_time", self.time)

    def time(self, op, case):
        self.ran.append(case)
        return total(op, case) / self.rate


@pytest.mark.parametrize(
    "calls_s",
    [
        (0.03, 0.01, 0.02),
        (0.02, 0.02, 0.005, 0.02),  # the first three take less than 50 ms
        (0.001, 0.002, 0.001, 0.003, 0.001),
        (0.0, 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_a_pilot_is_the_fastest_of_a_few_calls_after_the_first(monkeypatch, clock, calls_s):
    log = []
    waiting = iter([9.0, *calls_s])

    def call():
        log.append("called")
        clock.now += next(waiting)

    def load(*_):
        log.clear()
        return SimpleNamespace(call=lambda data: call)

    monkeypatch.setattr(budget, "load", load)
    monkeypatch.setattr(Device, "synchronize", lambda self: log.append("waited"))
    case = case_of("add", 64, dtype="fp32")
    assert Budget(CPU, Settings())._time(OPS["add"], case) == pytest.approx(max(min(calls_s), 1e-9))
    assert log == ["called", *["waited", "called", "waited"] * len(calls_s)]


def test_pilots_halve_all_axes_and_the_batch_in_multiples_of_16():
    def halved(*extents, batch=1):
        cases = smaller_cases(OPS["matmul"], case_of("matmul", *extents, batch=batch))
        return [(*case.shape.values(), case.options["batch"]) for case in cases]

    assert halved(1024, 512, 100, batch=5) == [
        (64, 32, 16, 1),
        (128, 64, 16, 1),
        (256, 128, 16, 1),
        (512, 256, 48, 2),
    ]
    assert halved(128, 5, 4096) == [(16, 5, 512, 1), (32, 5, 1024, 1), (64, 5, 2048, 1)]
    assert halved(32, 32, 32) == []


@pytest.mark.parametrize(
    ("times_s", "is_enough"),
    [
        ({}, False),
        ({100: 1.0}, False),
        ({0: 0.0, 100: 0.04}, False),  # a busy scheduler may add as much
        ({0: 0.0, 100: 0.06}, True),
        ({100: 1.0, 200: 1.06}, True),
        ({100: 0.01, 200: 0.08}, False),  # seven times as much for a unit of work
        ({100: 0.03, 200: 0.08}, True),
        ({100: 0.01, 200: 0.31}, True),  # more than a delay
        ({100: 0.1, 200: 0.1, 300: 0.1}, False),
    ],
)
def test_pilots_are_enough_once_their_times_differ_clearly(times_s, is_enough):
    assert is_scalable(times_s) is is_enough


@pytest.mark.parametrize(
    ("times_s", "seconds"),
    [
        ({100: 1.0}, 10.0),
        ({100: 1.0, 200: 1.5}, 5.0),  # 5 ms for a unit of work
        ({50: 9.0, 100: 1.0, 200: 1.5}, 5.0),
        ({100: 1.0, 200: 9.0}, 20.0),  # at most twice the 10 ms of the smaller
        ({100: 1.0, 200: 1.0}, 1.0),
    ],
)
def test_a_unit_of_work_costs_what_it_costs_between_the_two_largest(times_s, seconds):
    assert scaled_s(times_s, 1000) == pytest.approx(seconds)


def test_only_work_that_takes_milliseconds_is_estimated(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    small, larger = (case_of("add", n, dtype="fp32") for n in (645_277, 645_278))
    sizes = [total(OPS["add"], case) for case in (small, larger)]
    assert sizes == [2**23 - 7, 2**23 + 6]  # 12 bytes and one FLOP for each element
    made = Budget(CPU, Settings())
    assert made.call_s(OPS["add"], small) is None
    assert machine.ran == []
    assert made.call_s(OPS["add"], larger) == pytest.approx(sizes[1] / 1e9)


@pytest.mark.parametrize("rate", [1e9, 1e12])
@pytest.mark.parametrize(
    "case",
    [
        *(case_of("matmul", n, n, n) for n in (1024, 4096, 16384)),
        case_of("matmul", 16, 16, 16, batch=10**6),
        case_of("relu", 2 * 10**9),
    ],
    ids=lambda case: f"{case.op}-{case.name}",
)
def test_estimates_are_exact_at_a_constant_rate(monkeypatch, rate, case):
    Machine(monkeypatch, rate)
    seconds = Budget(CPU, Settings()).call_s(OPS[case.op], case)
    assert seconds == pytest.approx(total(OPS[case.op], case) / rate)


def test_a_slow_dtype_is_estimated_with_little_work(monkeypatch):
    machine = Machine(monkeypatch, 1e9)  # fp16 on a CPU without fp16 arithmetic
    seconds = Budget(CPU, Settings()).call_s(
        OPS["matmul"], case_of("matmul", 8192, 8192, 8192, dtype="fp16")
    )
    assert seconds > 1000
    spent = sum(total(OPS["matmul"], case) / machine.rate for case in machine.ran)
    assert spent < 10 * MIN_PILOT_S


def test_a_delay_of_every_call_is_not_scaled_up(monkeypatch):
    """On a machine at load 9 a 640x640x640 matmul was refused as "408.1 s per launch"."""
    case = case_of("matmul", 640, 640, 640, dtype="fp32")
    own_s = total(OPS["matmul"], case) / 1e10
    monkeypatch.setattr(Budget, "_time", lambda _, op, case: 0.09 + total(op, case) / 1e10)
    assert Budget(CPU, Settings()).call_s(OPS["matmul"], case) == pytest.approx(
        max(own_s, 0.09), rel=0.5
    )


@pytest.mark.parametrize("slow", range(6))
def test_one_slow_pilot_refuses_no_case(monkeypatch, slow):
    machine = Machine(monkeypatch, 1e10)

    def one_is_slow(self, op, case):
        return machine.time(op, case) + (0.15 if len(machine.ran) == slow + 1 else 0.0)

    monkeypatch.setattr(Budget, "_time", one_is_slow)
    row = replace(ADD, op=OPS["matmul"], case=case_of("matmul", 640, 640, 640, dtype="fp32"))
    assert Budget(CPU, Settings()).refusal(row) is None
    assert len(machine.ran) > 2


def test_measured_cases_replace_the_pilots(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    estimator = Budget(CPU, Settings())
    small, large = case_of("matmul", 1024, 1024, 1024), case_of("matmul", 2048, 2048, 2048)
    learn(estimator, OPS["matmul"], small, 0.5)
    work = [total(OPS["matmul"], case) for case in (small, large)]
    assert estimator.call_s(OPS["matmul"], large) == pytest.approx(0.5 * work[1] / work[0])
    assert machine.ran == []

    # A smaller one teaches nothing new.
    learn(estimator, OPS["matmul"], case_of("matmul", 512, 512, 512), 99.0)
    assert estimator.call_s(OPS["matmul"], large) == pytest.approx(0.5 * work[1] / work[0])
    learn(estimator, OPS["matmul"], large, 3.0)
    assert estimator.call_s(OPS["matmul"], large) == pytest.approx(3.0)


def test_pilots_the_op_does_not_support_are_left_out(monkeypatch):
    machine = Machine(monkeypatch, 1e9)
    case = case_of("matmul", 40, 8192, 8192, dtype="int8")
    # 16 rows are too few on a GPU.
    assert Budget(GPU, Settings()).call_s(OPS["matmul"], case) is None
    assert machine.ran == []
    assert Budget(CPU, Settings()).call_s(OPS["matmul"], case) > 0


def test_a_row_takes_its_calls_its_inputs_and_its_check(monkeypatch):
    monkeypatch.setattr(Budget, "call_s", lambda *_: 0.5)
    made = Budget(CPU, Settings())
    check_s = 3e-8 * ADD.op.work(ADD.case).bytes
    prepare_s = made.prepare_s(ADD)
    assert made.expected_s(ADD) == pytest.approx(
        MIN_ROW_S + 0.5 * CALLS_PER_CASE + prepare_s + check_s
    )
    monkeypatch.setattr(Budget, "call_s", lambda *_: 1 / 0)
    assert made.expected_s(ADD) == pytest.approx(MIN_ROW_S + prepare_s + check_s)
    monkeypatch.setattr(Device, "free_bytes", lambda self: 80 * 10**9)
    on_gpu = Budget(GPU, Settings())
    assert on_gpu.expected_s(ADD) == pytest.approx(MIN_ROW_S + on_gpu.prepare_s(ADD))


def budget_of(deadline, rows):
    return Budget(CPU, Settings(), deadline, rows)


def test_without_a_budget_all_rows_have_time(clock):
    made = budget_of(math.inf, 5)
    assert (made.left_s(), made.sharing(2), made.has_time(), made.is_too_long(1e9, 0)) == (
        math.inf,
        3,
        True,
        False,
    )


def test_a_budget_is_shared_by_as_many_rows_as_get_a_second(clock):
    assert [budget_of(100 + left, 10).sharing(4) for left in (60, 6, 3.5, 0.2, -1)] == [
        6,
        6,
        3,
        1,
        1,
    ]


def test_no_row_starts_if_its_preparation_does_not_fit(clock):
    made = budget_of(110.0, 5)
    assert made.has_time()
    for seconds in (4.0, 3.0):  # of which one is timed
        began = clock.now
        clock.now += seconds
        made.took(HALF_SECONDS, began)
    assert (made.left_s(), made.has_time(), made.has_time(2.9)) == (3.0, True, True)
    clock.now += 1.5
    assert (made.left_s(), made.has_time()) == (1.5, False)


def test_skipped_rows_do_not_change_the_expected_time(clock):
    made = budget_of(110.0, 5)
    clock.now += 9
    made.took(replace(HALF_SECONDS, status="skipped", samples_s=()), 100.0)
    assert made.has_time()


def test_slow_rows_raise_the_expected_time_of_the_next(clock):
    made = budget_of(120.0, 5)
    assert made.has_time(1e9)  # the first row is tried
    clock.now += 7.0
    made.took(HALF_SECONDS, 100.0, 2.0)  # 6 s besides its samples
    assert (made.has_time(4.3), made.has_time(4.4), made.left_s()) == (True, False, 13.0)
    # Three shares of 13 s for four rows.
    assert (made.is_too_long(0.9, 1), made.is_too_long(3.3, 1)) == (False, True)


ADD = Row(OPS["add"], Case("add", "fp32", {"n": 2**22}), "torch")


def test_a_budget_for_all_rows_exceeds_the_given_one():
    made = Budget(CPU, Settings(budget_s=32.0), rows=9)
    assert made.enough_s(0, 0.0) == 65
    # The other 20 s were spent before the first row.
    assert made.enough_s(6, 12.0) == 39


def refusal_of(
    monkeypatch, call_s=None, budget_s=None, left_s=math.inf, row=ADD, device=CPU, together=1
):
    monkeypatch.setattr(Budget, "call_s", lambda self, op, case: call_s)
    deadline = 1000.0 + left_s
    set_clock(monkeypatch, lambda: 1000.0)
    return Budget(device, Settings(budget_s=budget_s), deadline).refusal(row, together)


def test_a_case_that_takes_too_long_is_rejected_with_its_estimate(monkeypatch):
    reason = refusal_of(monkeypatch, call_s=CASE_ALLOWANCE_S / CALLS_PER_CASE * 25)
    assert reason.startswith("estimated 250.")
    assert "(16.67 s per launch) exceeds the 10 s limit" in reason
    assert reason.endswith("use --budget 376")
    assert refusal_of(monkeypatch, call_s=0.97 * CASE_ALLOWANCE_S / CALLS_PER_CASE) is None


def test_no_default_case_is_too_slow_to_prepare_on_a_large_gpu(monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 80 * 10**9)
    cases = planned(
        ["fp32", "fp64"], {"elementwise": ELEMENTWISE, "matmul": MATMUL, "norm": NORM}, "cuda"
    )
    assert max(op.work(case).bytes for _, op, case in cases) > 4e9
    rows = [Row(op, case, "torch") for _, op, case in cases]
    assert {refusal_of(monkeypatch, row=row, device=GPU) for row in rows} == {None}


def test_the_suggested_budget_is_larger_than_the_given_one(monkeypatch):
    reason = refusal_of(monkeypatch, 0.2 / CALLS_PER_CASE, budget_s=6.0, left_s=0.1)
    assert reason.endswith("use --budget 7")


def test_the_estimate_includes_all_interleaved_providers(monkeypatch):
    """With a budget, 15 calls of 1 s by each of three fit 50 s but not 40 s; without one, each
    counts alone.
    """
    assert refusal_of(monkeypatch, 1.0, 50.0, 50.0, together=3) is None
    assert "(1 s per launch) exceeds the 40 s left" in refusal_of(
        monkeypatch, 1.0, 40.0, 40.0, together=3
    )
    assert refusal_of(monkeypatch, 1.0, 40.0, 40.0) is None
    assert refusal_of(monkeypatch, 0.5, together=3) is None
