"""A whole table of `python -m bench compare`: its verdicts, its refusals, its time.

Providers are simulated ones whose truth is known, on a clock that only moves when they work.
"""

import json
from dataclasses import replace
from statistics import median

import pytest

from bench import __main__ as command
from bench.comparing import interleave
from bench.comparing.turns import run_rounds
from bench.harness.device.device import cpu_device
from bench.harness.measure import measure_row
from bench.harness.measure.budget import Budget
from results.stats.samples import median_ci95
from tests.bench import commands
from tests.bench.fake_clock import set_clock
from tests.simulated_device import SimulatedDevice

SHAPES = [str(1024 * factor) for factor in range(1, 13)]


class World:
    """A simulated clock and simulated providers."""

    def __init__(self, **device):
        self.kind, self.seconds = device, 0.0
        self.prepare_s = self.after_s = 0.0
        self.shares = []

    def now(self):
        return self.seconds

    def interleave(self, rows, device, ceilings, policy, budget):
        """Prepare, run the rounds with the second provider 3 % slower, and verify again."""
        begun = self.seconds
        self.seconds += self.prepare_s
        device = SimulatedDevice(seed=policy.seed, launch_s=1e-4, seconds=self.seconds, **self.kind)
        times = [1.03 if index else 1.0 for index in range(len(rows))]
        rounds = run_rounds([device.load(factor).slot for factor in times], policy, device.now)
        self.seconds = device.seconds + self.after_s
        self.shares.append(self.seconds - begun)
        names, records = [row.blank().provider for row in rows], []
        for at, row in enumerate(rows):
            samples_s = tuple(slot[0] for slot in rounds.slots[at])
            taken = {
                "samples_s": samples_s,
                "median_s": median(samples_s),
                "ci95_s": median_ci95(samples_s),
            }
            taken |= {
                "launches_per_sample": 10,
                "method": "host",
                "cache": "cold",
                "converged": True,
            }
            paired = rounds.details_of(at, policy, names)
            records.append(replace(row.blank(), status="ok", details=paired, **taken))
        return records


@pytest.fixture
def world(runs, monkeypatch):
    commands.keep_ceilings(runs)
    made = World(noise=0.02)
    set_clock(monkeypatch, made.now)
    monkeypatch.setattr(interleave, "interleave", made.interleave)
    return made


def compare_all(capsys, *words, op="relu"):
    """Compare torch with itself on the CPU and return the JSON document."""
    fixed = ["--device", "cpu", "--format", "json", "-q", "--provider", "torch,torch", "--op"]
    code = command.main(["compare", *fixed, op, *words])
    assert code in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_verdicts_are_corrected_for_all_rows_of_the_table(capsys, world):
    """At p = 0.05 per row, half of 12 rows of +3 % under 2 % noise would not reach the corrected
    level.
    """
    words = ("--dtype", "fp32", "--shape", ",".join(SHAPES), "--seed", "1000", "--margin", "1%")
    found = compare_all(capsys, *words)
    assert [row["verdict"] for row in found["rows"]] == ["SLOWER"] * 12


def test_the_budget_includes_preparing(capsys, world):
    """Four cases that stay unclear, each prepared for 3 s, take 20 s in all."""
    world.prepare_s, world.after_s, world.seconds = 3.0, 0.1, 500.0
    words = ["--dtype", "fp32", "--shape", ",".join(SHAPES[:4]), "--margin", "3%", "--budget", "20"]
    found = compare_all(capsys, *words)
    assert len(found["rows"]) == 4
    assert 19.5 <= world.seconds - 500 <= 20.5
    assert world.shares == pytest.approx([5.0] * 4, abs=0.2)


def test_unused_time_goes_to_the_other_cases(capsys, world, monkeypatch):
    """The first of three cases is clear immediately; the other two share the remaining time."""
    words = ("--dtype", "fp32", "--shape", ",".join(SHAPES[:3]), "--budget", "6", "--margin", "3%")

    def first_at_once(rows, device, ceilings, policy, budget):
        policy = replace(policy, rounds=None if world.shares else 6)
        return world.interleave(rows, device, ceilings, policy, budget)

    monkeypatch.setattr(interleave, "interleave", first_at_once)
    compare_all(capsys, *words)
    assert world.shares[0] < 0.1
    assert world.shares[1:] == pytest.approx([3.0, 3.0], abs=0.1)


def test_without_a_budget_only_the_rounds_are_limited(capsys, world):
    world.prepare_s = 30.0
    compare_all(capsys, "--dtype", "fp32", "--shape", "1024", "--margin", "3%")
    assert world.shares == pytest.approx([30 + 10], abs=0.2)


def outcome(capsys, *words, op="relu"):
    """Return the compared cases, and side, dtype, case, status and reason of the others."""
    found = compare_all(capsys, "--rounds", "6", *words, op=op)
    assert found["summary"]["broken"] == 0
    left = [
        (one["side"], one["dtype"], one["case"], one["status"], one["reason"])
        for one in found["unmatched"]
    ]
    return [(row["dtype"], row["case"]) for row in found["rows"]], left


NOTHING = "skipped: nothing to compare with: torch skipped: "


def expected(dtype, case, reason):
    return [
        ("baseline", dtype, case, "skipped", f"skipped: {reason}"),
        ("candidate", dtype, case, "skipped", f"{NOTHING}{reason}"),
    ]


def test_a_dtype_the_device_lacks_is_a_skipped_row(capsys, quick):
    compared, left = outcome(capsys, "--shape", "16", "--dtype", "tf32,fp32", op="matmul")
    assert compared == [("fp32", "16x16x16")]
    assert left == expected("tf32", "16x16x16", f"{cpu_device().name} has no tf32 arithmetic")


def test_a_case_that_takes_too_long_is_a_skipped_row(capsys, quick, monkeypatch):
    def call_s(self, op, case):
        return 1e6 if case.shape["n"] == 2**21 else None

    monkeypatch.setattr(Budget, "call_s", call_s)
    compared, left = outcome(capsys, "--dtype", "fp32", "--shape", f"{2**21},1024")
    assert compared == [("fp32", "1024")]
    text = "estimated 173.6 days for this case (11.57 days per launch) exceeds the 10 s limit"
    assert [row[4].split("; use --budget")[0] for row in left] == [
        f"skipped: {text}",
        f"{NOTHING}{text}",
    ]


def test_running_out_of_memory_for_inputs_is_a_skipped_row(capsys, quick, monkeypatch):
    make_sets = measure_row.make_sets

    def limited(op, case, *others):
        if case.shape["n"] == 2048:
            raise RuntimeError(
                "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
            )
        return make_sets(op, case, *others)

    monkeypatch.setattr(measure_row, "make_sets", limited)
    compared, left = outcome(capsys, "--dtype", "fp32", "--shape", "2048,1024")
    assert compared == [("fp32", "1024")]
    assert left == expected("fp32", "2048", "out of memory")
