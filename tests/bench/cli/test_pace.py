"""How a budget is shared among rows, by a clock that only moves when it is told to."""

from collections import deque
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from bench.__main__ import families
from bench.harness import loop
from bench.harness.cli.pace import Pace
from bench.harness.commands import suite
from bench.harness.loop import put_off
from bench.harness.measure.plan import Row, Settings, out_of_time
from bench.harness.op import Case
from bench.matmul import OPS, OPTIONS
from results.record import Record
from tests.bench.commands import StubRun

RECORD = Record(op="a", provider="torch", dtype="fp32", shape={}, case="", status="ok")
RECORD = replace(RECORD, samples_s=(0.5, 0.5), launches_per_sample=1)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_without_a_budget_all_rows_have_time(clock):
    pace = Pace(None, 5, clock)
    assert (pace.left_s(), pace.together(2), pace.has_time(), pace.is_too_long(1e9, 0)) == (None, 3, True, False)


def test_time_is_shared_by_all_rows_while_each_gets_a_second_and_by_fewer_where_not(clock):
    assert [Pace(100 + left, 10, clock).together(4) for left in (60, 6, 3.5, 0.2, -1)] == [6, 6, 3, 1, 1]


def test_no_row_begins_where_what_it_takes_beside_its_samples_does_not_fit(clock):
    pace = Pace(110.0, 5, clock)
    assert pace.has_time()
    for seconds in (4.0, 3.0):  # of which one is timed
        began = clock.now
        clock.now += seconds
        pace.took(RECORD, began)
    assert (pace.left_s(), pace.has_time()) == (3.0, True)
    clock.now += 1.5
    assert (pace.left_s(), pace.has_time()) == (1.5, False)


def test_rows_that_were_not_measured_say_nothing_of_the_time_that_others_take(clock):
    pace = Pace(110.0, 5, clock)
    clock.now += 9
    pace.took(replace(RECORD, status="skipped", samples_s=()), 100.0)
    assert pace.has_time()


def test_where_rows_take_longer_than_expected_the_next_one_is_expected_to(clock):
    pace = Pace(120.0, 5, clock)
    assert (pace.slowdown, pace.has_time(1e9)) == (1.0, True)  # the first row is tried
    clock.now += 7.0
    pace.took(RECORD, 100.0, 2.0)  # 6 s beside its samples
    assert pace.slowdown == 3.0
    assert (pace.has_time(4.3), pace.has_time(4.4), pace.left_s()) == (True, False, 13.0)
    assert (pace.is_too_long(0.9, 1), pace.is_too_long(3.3, 1)) == (False, True)  # three shares of 13 s for four rows


def test_a_budget_that_would_do_goes_by_the_rows_that_are_done(clock):
    pace = Pace(105.0, 10, clock)
    clock.now += 5
    assert pace.enough_s(2) == 26
    assert out_of_time(5.0) == "the budget of 5 s is spent"


def queue(*sizes):
    def row(n):
        values = {"layout": "nn", "batch": 1}
        return Row(
            OPS[0], Case.of("matmul", "bf16", {"m": n, "n": n, "k": n}, OPTIONS, values), "torch", family="matmul"
        )

    return deque(map(row, sizes))


def order(waiting):
    return [row.case.shape["n"] for row in waiting]


def test_a_case_that_takes_several_shares_waits_behind_the_next_smaller_one(clock):
    waiting = queue(2048, 1024, 512)
    row = waiting.popleft()
    assert put_off(row, waiting, Pace(106.0, 3, clock), 0, 20.48)
    assert order(waiting) == [1024, 2048, 512]


@pytest.mark.parametrize("left", [1000.0, 0.0, -1.0])
def test_a_case_that_fits_or_for_which_there_is_no_time_at_all_stays_where_it_is(clock, left):
    waiting = queue(2048, 1024, 512)
    row = waiting.popleft()
    assert not put_off(row, waiting, Pace(100 + left, 3, clock), 0, 20.48)
    assert order(waiting) == [1024, 512]


def test_the_smallest_case_and_another_provider_are_not_put_off_for_larger_ones(clock):
    waiting = queue(512, 1024, 2048)
    row = waiting.popleft()
    assert not put_off(row, waiting, Pace(100.5, 3, clock), 0, 5.12)
    other = deque([replace(waiting[0], provider="torch-compile")])
    (big,) = queue(4096)
    assert not put_off(big, other, Pace(100.5, 3, clock), 0, 40.96)


# ---- a whole suite --------------------------------------------------------------------------------------------------


class SlowMachine:
    """In place of the runner: a row takes so many times as long as expected, and then samples for its share."""

    def __init__(self, clock, slowdown):
        self.clock, self.slowdown = clock, slowdown

    def blank(self, row):
        return replace(RECORD, op=row.op.name, case=row.case.name, status="skipped", samples_s=())

    def expected_s(self, row):
        return 0.7 + row.op.work(row.case).bytes * 4e-8

    def measure(self, row, rows_left):
        self.clock.now += self.slowdown * self.expected_s(row)
        share_s = max(0.0, (self.clock.deadline - self.clock.now) / rows_left)
        self.clock.now += share_s
        return replace(self.blank(row), status="ok", samples_s=(share_s / 2,) * 2)


@pytest.mark.parametrize("budget_s", [15.0, 60.0])
@pytest.mark.parametrize("slowdown", [0.5, 1.0, 3.0])
def test_a_suite_keeps_its_budget_and_measures_the_most_telling_ops_first(clock, monkeypatch, budget_s, slowdown):
    monkeypatch.setattr(loop, "Pace", partial(Pace, clock=clock))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(loop, "Runner", lambda *arguments: SlowMachine(clock, slowdown))
    settings = Settings(budget_s=budget_s)
    planned_rows = [
        Row(op, case, "torch", family=family, settings=settings)
        for family, op, case in suite.by_information(suite.planned(["bf16"], families(), "cpu"))
    ]
    clock.deadline = clock.now + budget_s
    run = StubRun(SimpleNamespace(is_gpu=False, type="cpu"), clock.deadline)
    loop.measure_rows(run, planned_rows, may_reorder=True)
    measured = [record.op for record in run.records if record.status == "ok"]
    assert clock.now <= clock.deadline + 0.1 * budget_s
    assert len(run.records) == len(planned_rows)
    assert measured[:2] == ["matmul", "copy"]
    assert len(set(measured)) >= min(len(suite.TELLING), 0.2 * budget_s / slowdown)
    assert {record.reason for record in run.records if record.status != "ok"} <= {out_of_time(budget_s)}
    assert sum("no time was left" in line for line in run.lines) == (len(measured) < len(planned_rows))


def test_a_users_function_has_its_share_of_the_budget(clock, monkeypatch):
    monkeypatch.setattr(loop, "Pace", partial(Pace, clock=clock))
    monkeypatch.setattr(loop, "Runner", lambda *arguments: SlowMachine(clock, 1.0))
    monkeypatch.setattr(SlowMachine, "refused", lambda self, row: None, raising=False)
    family, op, case = suite.planned(["bf16"], families(), "cpu")[0]
    rows = [Row(op, case, "mine.py:add", family=family, settings=Settings(budget_s=100.0))] * 4
    run = StubRun(SimpleNamespace(is_gpu=False, type="cpu"), clock.now + 100.0)
    shares = []

    def measure_isolated(row, *how):
        shares.append(how[-1])
        return replace(RECORD, status="ok")

    monkeypatch.setattr(loop, "measure_isolated", measure_isolated)
    loop.measure_rows(run, rows)
    assert shares == list(range(12, 0, -1))
