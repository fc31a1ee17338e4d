"""Comparisons in worker processes: the provider that ends a worker is found, and the others go
on.
"""

import json

import pytest

from bench.__main__ import main
from bench.comparing import interleave as interleaving
from bench.comparing.turns import ComparePolicy
from bench.harness import worker
from bench.harness.device.device import cpu_device
from bench.harness.measure.budget import Budget
from bench.harness.measure.rows import Row
from bench.harness.op import Case
from bench.harness.run import Run
from bench.harness.settings import Settings
from bench.matmul import OPS, OPTIONS
from tests.bench import commands
from tests.records import record

CASE = Case.of("matmul", "bf16", {"m": 16, "n": 32, "k": 48}, OPTIONS, {"layout": "nt", "batch": 2})


class DyingWorkers:
    """Workers that die of the providers of `broken` in turn; None: of an unknown one."""

    def __init__(self, broken):
        self.broken, self.asked = list(broken), []

    def call(self, work, rows, device, ceilings, policy, *_, timeout_s, deadline):
        assert (policy.rows, deadline) == (12, 100.0)  # the rows of the whole table
        names = [row.provider for row in rows]
        self.asked.append(names)
        if self.broken:
            name = self.broken.pop(0)
            raise worker.WorkerError(f"{name} died", names.index(name) if name else None)
        return [record(provider=row.label) for row in rows], ""


@pytest.mark.parametrize(
    ("names", "broken", "calls", "expected"),
    [
        (
            ["torch", "a", "b", "c"],
            ("a", "c"),
            [["torch", "a", "b", "c"], ["torch", "b", "c"], ["torch", "b"]],
            [
                ("torch#", "ok", None),
                ("a#", "failed", "a died"),
                ("b#", "ok", None),
                ("c#", "failed", "c died"),
            ],
        ),
        (
            ["torch", "a"],
            ("a",),
            [["torch", "a"]],
            [
                ("torch#", "skipped", "nothing to compare with: a# failed: a died"),
                ("a#", "failed", "a died"),
            ],
        ),
        (
            ["torch", "a"],
            (None,),
            [["torch", "a"]],
            [
                ("torch#", "failed", "None died"),
                ("a#", "skipped", "nothing to compare with: torch# failed: None died"),
            ],
        ),
    ],
    ids=[
        "two break",
        "only the baseline is left",
        "no provider is to blame",
    ],
)
def test_providers_that_end_the_worker_are_left_out_one_by_one(
    monkeypatch, names, broken, calls, expected
):
    rows = [Row(OPS[0], CASE, name, label=f"{name}#") for name in names]
    workers = DyingWorkers(broken)
    monkeypatch.setattr(worker, "call", workers.call)
    policy = ComparePolicy(0.02, rows=12, deadline=100.0)
    monkeypatch.setattr(interleaving, "release", lambda device: False)
    run = Run(Settings(quiet=True), "bench", "compare", cpu_device())
    records = interleaving.interleave_safely(rows, Budget(run.device, run.settings), run, policy)
    assert workers.asked == calls
    assert [(made.provider, made.status, made.reason) for made in records] == expected


MINE = """
import os, sys, time
import torch

calls = {}


def count(name):
    calls[name] = calls.get(name, 0) + 1
    return calls[name]


def v1(x, out):
    torch.clamp_min(x, 0, out=out)


def crash_in_its_turn(x, out):
    if count("crash") > 100:
        os.kill(os.getpid(), 11)
    v1(x, out)


def kill_the_parent(x, out):
    os.kill(os.getppid(), 9)
    v1(x, out)


def loop(x, out):
    while True:
        time.sleep(0.01)


def slow(x, out):
    time.sleep(0.15)
    v1(x, out)


def loud(x, out):
    print("loud", file=sys.stderr)
    v1(x, out)


def return_nothing(x):
    torch.relu(x)
"""


@pytest.fixture
def mine(tmp_path, runs):
    commands.keep_ceilings(runs)
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def compare(*words):
    words = (
        "--op",
        "relu",
        "--dtype",
        "fp32",
        "--shape",
        "4096",
        "--device",
        "cpu",
        "--rounds",
        "12",
        *words,
    )
    return commands.finish(commands.start("bench", "compare", "--format", "json", *map(str, words)))


def outcomes(mine, *names, timeout="20"):
    """Compare functions with `torch`; return the compared functions, and the reasons of the others
    by name.
    """
    providers = ",".join(["torch", *(f"{mine}:{name}" for name in names)])
    code, out, err = compare("--provider", providers, "--timeout", timeout, "--margin", "90%")
    assert code == 1, err
    found = json.loads(out)
    assert found["summary"]["broken"] == len(found["unmatched"])
    compared = [row["candidate"].split(":")[1] for row in found["rows"]]
    return compared, {one["provider"].split(":")[1]: one["reason"] for one in found["unmatched"]}


@pytest.mark.exhaustive
def test_a_broken_function_fails_only_its_own_row(mine):
    broken = ("crash_in_its_turn", "kill_the_parent", "loop", "return_nothing")
    compared, reasons = outcomes(mine, "loud", *broken, "nosuch", "v1", timeout="4")
    assert compared == ["loud", "v1"]
    assert reasons.pop("nosuch").startswith(f"failed: {mine} has no 'nosuch'; it has: count, v1, ")
    expected = {
        "crash_in_its_turn": "failed: crashed: SIGSEGV (segmentation fault)",
        "kill_the_parent": "failed: killed its parent process",
        "loop": "failed: a call did not end within 4 s",
        "return_nothing": "invalid: wrong result: expected a torch.Tensor",
    }
    assert reasons.keys() == expected.keys()
    for name, reason in reasons.items():
        assert reason.startswith(expected[name])


@pytest.mark.exhaustive
def test_the_timeout_limits_a_call_rather_than_the_comparison(mine):
    code, out, err = compare("--provider", f"{mine}:slow,torch", "--timeout", "2")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["verdict"] in ("FASTER", "UNSURE")  # UNSURE on a busy machine


def test_missing_providers_are_a_one_line_error(mine, error_of):
    words = ["--op", "relu", "--device", "cpu", "--provider", f"{mine}:nosuch,/nosuch.py:f"]
    assert f"{mine} has no 'nosuch'" in error_of(main(["compare", *words]))
