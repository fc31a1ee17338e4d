"""The loop over rows within a budget, on a simulated clock."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.__main__ import families
from bench.commands import suite
from bench.elementwise import OPS as SUMS
from bench.harness import loop
from bench.harness.data.verify import Checks
from bench.harness.device.device import Device, cpu_device
from bench.harness.measure.budget import Budget
from bench.harness.measure.flags import judged
from bench.harness.measure.measure_row import Kept
from bench.harness.measure.rows import Row, Settings, out_of_time
from bench.harness.op import Case
from bench.matmul import OPS, OPTIONS
from results.record import name_of
from roofline.machine import Ceiling, Machine
from tests.bench.commands import CPU, HALF_SECONDS, Clock, StubRun
from tests.bench.fake_clock import set_clock


@pytest.fixture
def clock():
    return Clock()


class SlowMachine:
    """Rows that take `slowdown` times the expected time, and then sample for their share."""

    def __init__(self, monkeypatch, clock, slowdown):
        self.clock, self.slowdown = clock, slowdown
        set_clock(monkeypatch, clock)
        monkeypatch.setattr(loop, "measure_row", self.measure)
        monkeypatch.setattr(Budget, "expected_s", lambda budget, row: self.expected_s(row))
        monkeypatch.setattr(Budget, "refusal", lambda budget, row: None)

    def expected_s(self, row):
        return 0.7 + row.op.work(row.case).bytes * 4e-8

    def measure(self, row, device, ceilings, limits, deadline, rows_left, kept):
        self.clock.now += self.slowdown * self.expected_s(row)
        share_s = max(0.0, (deadline - self.clock.now) / rows_left)
        self.clock.now += share_s
        blank = replace(HALF_SECONDS, op=row.op.name, case=row.case.name)
        return replace(blank, samples_s=(share_s / 2,) * 2, median_s=share_s / 2)


@pytest.mark.parametrize("budget_s", [15.0, 60.0])
@pytest.mark.parametrize("slowdown", [0.5, 1.0, 3.0])
def test_a_suite_keeps_its_budget_and_orders_ops_by_information(
    clock, monkeypatch, budget_s, slowdown
):
    SlowMachine(monkeypatch, clock, slowdown)
    settings = Settings(budget_s=budget_s)
    planned_rows = [
        Row(op, case, "torch", family=family, settings=settings)
        for family, op, case in suite.by_information(suite.planned(["bf16"], families(), "cpu"))
    ]
    deadline = clock.now + budget_s
    run = StubRun(CPU, deadline)
    loop.measure_rows(run, planned_rows, may_reorder=True)
    measured = [record.op for record in run.records if record.status == "ok"]
    assert clock.now <= deadline + 0.1 * budget_s
    assert len(run.records) == len(planned_rows)
    assert measured[:2] == ["matmul", "copy"]
    assert len(set(measured)) >= min(len(suite.PREFERRED), 0.2 * budget_s / slowdown)
    assert {record.reason for record in run.records if record.status != "ok"} <= {
        out_of_time(budget_s)
    }
    assert sum("no time was left" in line for line in run.lines) == (
        len(measured) < len(planned_rows)
    )


def test_a_users_file_is_imported_before_the_budget_begins(clock, monkeypatch):
    """So a file that builds CUDA source while it is imported takes nothing from the budget."""
    SlowMachine(monkeypatch, clock, 1.0)
    family, op, case = suite.planned(["bf16"], families(), "cpu")[0]
    settings = Settings(budget_s=10.0)
    rows = [Row(op, case, "mine.py:add", family=family, settings=settings)]
    left_s = []

    class BudgetedRun(StubRun):
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def start(self, dtypes, mixes):
            self.deadline = clock.now + settings.budget_s

        def note_time(self):
            pass

        judge_again = note_time

    def load_problem(row, device, timeout_s):
        clock.now += 60.0  # the build

    def measure_isolated(row, device, ceilings, limits, deadline, share, timeout_s):
        left_s.append(deadline - clock.now)
        return replace(HALF_SECONDS, status="ok")

    monkeypatch.setattr(loop, "load_problem", load_problem)
    monkeypatch.setattr(loop, "measure_isolated", measure_isolated)
    loop.measure_run(BudgetedRun(cpu_device()), rows)
    assert left_s[0] == 10.0


def test_a_user_function_gets_its_share_of_the_budget(clock, monkeypatch):
    SlowMachine(monkeypatch, clock, 1.0)
    family, op, case = suite.planned(["bf16"], families(), "cpu")[0]
    rows = [Row(op, case, "mine.py:add", family=family, settings=Settings(budget_s=100.0))] * 4
    run = StubRun(cpu_device(), clock.now + 100.0)
    shares = []
    is_again = []

    def measure_isolated(row, *how, timeout_s):
        shares.append(how[-1])
        is_again.append(row.is_again)
        return replace(HALF_SECONDS, status="ok")

    monkeypatch.setattr(loop, "measure_isolated", measure_isolated)
    loop.measure_rows(run, rows)
    assert shares == list(range(12, 0, -1))
    assert is_again == [False] * 4 + [True] * 8


def test_what_rows_keep_gives_way_to_a_row_that_needs_the_memory(monkeypatch):
    device = replace(CPU, cache_bytes=2**20)
    op = next(op for op in SUMS if op.name == "add")
    small, other, large = (
        Row(op, Case("add", "fp32", {"n": n}), "torch", family="elementwise")
        for n in (2**10, 2**12, 2**20)
    )
    monkeypatch.setattr(Device, "free_bytes", lambda device: 2**26)
    monkeypatch.setattr(Checks, "remember", lambda checks: None)
    kept = Kept(device.free_bytes())
    for row, copies in ((small, 40), (other, 200)):
        checks = Checks(op, row.case, device)
        kept.add(name_of(row.blank()), SimpleNamespace(row=row, sets=range(copies), checks=checks))
    assert [*kept.ready] == [name_of(small.blank())]  # the other would need more than a quarter
    kept.make_room(other, device)
    assert kept.ready
    kept.make_room(large, device)
    assert not kept.ready


def test_ceiling_flags_use_the_samples_of_all_visits(monkeypatch):
    peak = Ceiling("flops", "fp32", 1e12, "measured", "here")
    run = StubRun(cpu_device())
    run.ceilings = Machine("x", "X", (peak,))
    visits = {
        s: replace(HALF_SECONDS, flops=10**9, samples_s=(s,) * 5, median_s=s, ci95_s=(s, s))
        for s in (5e-4, 4e-3)
    }
    fast = judged(replace(visits[5e-4], passed_over={"v9": "odd"}), run.device, run.ceilings)
    assert "above-roof" in fast.flags
    monkeypatch.setattr(loop, "visit", lambda *_: visits[4e-3])
    case = Case.of(
        "matmul", "bf16", {"m": 512, "n": 512, "k": 512}, OPTIONS, {"layout": "nn", "batch": 1}
    )
    run.keep(fast)
    measured = {0: Row(OPS[0], case, "torch", family="matmul")}
    for number in (1, 2):
        loop.visit_again(run, measured, SimpleNamespace(has_time=lambda: True), number, Kept(0))
    assert run.records[0].median_s == 4e-3
    assert run.records[0].passed_over
    assert "above-roof" not in run.records[0].flags
