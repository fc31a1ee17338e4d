"""A sticky GPU error fails only its row; the profiler runs after all timing, in another process."""

import math
from dataclasses import dataclass, replace

import pytest

from bench.comparing import interleave
from bench.comparing.turns import ComparePolicy
from bench.elementwise import OPS
from bench.harness import loop
from bench.harness.loop import VISITS
from bench.harness.measure.budget import Budget
from bench.harness.measure.isolated import measure_isolated
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from tests.bench.commands import QUICK, StubRun

GELU = next(op for op in OPS if op.name == "gelu")
ROWS = [
    Row(GELU, Case("gelu", "fp32", {"n": n}, {}), "torch", family="elementwise")
    for n in (64, 128, 256)
]


@dataclass
class Machine:
    """A simulated GPU and its workers; the row `breaks_at` leaves a sticky error."""

    breaks_at: int | None = None
    is_gpu = True
    type = "rocm"
    cache_bytes = 2**20
    is_dead = False

    def __post_init__(self):
        self.log = []

    def synchronize(self):
        if self.is_dead:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def expected_s(self, row):
        self.synchronize()  # it asks for the free memory
        return 0.0

    def blank(self, row):
        return row.blank()

    def timed(self, blank):
        return replace(
            blank,
            status="ok",
            median_s=1e-5,
            samples_s=(1e-5,) * 5,
            launches_per_sample=1,
            method="graph",
        )

    def refusal(self, row):
        self.synchronize()

    def free_bytes(self):
        self.synchronize()
        return 2**40

    def measure_row(self, row, *how):
        self.synchronize()
        self.log.append(("here", row.case.shape["n"]))
        self.is_dead = row.case.shape["n"] == self.breaks_at
        failed = replace(
            self.blank(row), status="failed", reason="CUDA error: an illegal memory access"
        )
        return failed if self.is_dead else self.timed(self.blank(row))

    def measure_isolated(self, row, *how, timeout_s):
        self.log.append(("worker", row.case.shape["n"]))
        return self.timed(self.blank(row))


@pytest.fixture
def measured(monkeypatch):
    """Return a function that measures the rows on a machine and returns the records."""
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)

    def run(machine, deadline=math.inf):
        for name in ("measure_row", "measure_isolated"):
            monkeypatch.setattr(loop, name, getattr(machine, name))
        for name in ("expected_s", "refusal"):
            monkeypatch.setattr(
                loop.Budget, name, lambda budget, row, name=name: getattr(machine, name)(row)
            )
        stub = StubRun(machine, deadline)
        loop.measure_rows(stub, ROWS)
        return stub.records

    return run


@pytest.mark.parametrize("deadline", [math.inf, 1e9])
def test_after_a_sticky_gpu_error_rows_run_in_new_processes(measured, deadline):
    machine = Machine(breaks_at=128)
    records = measured(machine, deadline)
    assert [record.status for record in records] == ["ok", "failed", "ok"]
    assert machine.log[:3] == [("here", 64), ("here", 128), ("worker", 256)]
    assert machine.log[3:] == [("worker", 64), ("worker", 256)] * (VISITS - 1)


def test_a_worker_measures_a_row_of_any_provider():
    from bench.harness.device.device import cpu_device

    row = replace(ROWS[0], provider="triton-v1", stand_ins=("torch",))
    record = measure_isolated(row, cpu_device(), None, QUICK, timeout_s=60)
    assert (record.status, record.provider) == ("ok", "torch"), record.reason


@pytest.fixture
def compared(monkeypatch):
    """Return a function that compares three providers of each case and returns the records."""
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)

    def run(machine):
        def interleaved(where):
            def measure(rows, *how):
                machine.log.append((where, rows[0].case.shape["n"], [row.provider for row in rows]))
                for index, row in enumerate(rows):
                    if row.provider == "breaks" and where == "here":
                        machine.is_dead = True
                        contender = interleave.ProviderContender(
                            row.blank(),
                            index,
                            machine,
                            row=row,
                            ceilings=None,
                            budget=None,
                            copies=None,
                            together=1,
                        )
                        contender.attempt(machine.synchronize)
                return [machine.timed(row.blank()) for row in rows]

            return measure

        here, in_worker = interleaved("here"), interleaved("worker")
        monkeypatch.setattr(interleave, "interleave", here)
        monkeypatch.setattr(
            interleave.worker,
            "call",
            lambda function, *arguments, **limits: (in_worker(*arguments), ""),
        )
        stub = StubRun(machine)
        names = ("torch", "breaks", "triton-v1")
        cases = [[replace(row, provider=name) for name in names] for row in ROWS[:2]]
        records = []
        for rows in cases:
            budget = Budget(machine, rows[0].settings)
            records += interleave.interleave_safely(rows, budget, stub, ComparePolicy(0.01))
        return records

    return run


def test_a_provider_that_loses_the_gpu_fails_only_its_own_row(compared):
    machine = Machine()
    records = compared(machine)
    assert machine.log == [
        ("here", 64, ["torch", "breaks", "triton-v1"]),
        ("worker", 64, ["torch", "triton-v1"]),
        ("worker", 128, ["torch", "breaks", "triton-v1"]),
    ]
    assert [record.status for record in records] == ["ok", "failed", "ok", "ok", "ok", "ok"]
    assert "illegal memory access" in records[1].reason
