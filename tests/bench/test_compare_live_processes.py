"""Cases in processes of their own: who is to blame when one dies, and that the others go on."""

import argparse
import json
import signal
import sys
from dataclasses import replace

import commands
import pytest

from bench.__main__ import main
from bench.harness import compare_processes
from bench.harness.arguments import UsageError
from bench.harness.compare_processes import Ended, TurnFile, child_arguments, last_line, records_of_case
from bench.harness.op import Case
from results.record import Record
from results.store import load_run

CASE = Case("matmul", "bf16", {"m": 16, "n": 32, "k": 48}, {"layout": "nt", "batch": 2})
ARGS = argparse.Namespace(timeout=9.0, device="cpu", gpu=None, fill="uniform", cache="cold", margin=0.02, rounds=None)


def record(provider, status="ok"):
    return Record(op="matmul", provider=provider, dtype="bf16", shape={"m": 16}, case="16", status=status, median_s=1.0)


def ask(monkeypatch, names, broken):
    """Return the records of a case whose processes die of the first provider in `broken` that they have."""
    asked = []

    def run_process(words, timeout_s):
        given = words[words.index("--provider") + 1].split(",")
        asked.append(given)
        for place, name in enumerate(given):
            if name in broken:
                return Ended((), -11, place, f"{name} died")
        return Ended([record(name) for name in given], 0, None, "")

    monkeypatch.setattr(compare_processes, "run_process", run_process)
    blanks = [replace(record(f"{name}#"), status="skipped", median_s=None) for name in names]
    found = records_of_case(ARGS, CASE, names, blanks, 0, None)
    return asked, [(one.provider, one.status, one.reason) for one in found]


def test_all_go_well_in_one_process(monkeypatch):
    asked, found = ask(monkeypatch, ["torch", "a", "b"], ())
    assert asked == [["torch", "a", "b"]]
    assert found == [("torch#", "ok", None), ("a#", "ok", None), ("b#", "ok", None)]


def test_those_that_break_it_are_left_out_one_by_one(monkeypatch):
    asked, found = ask(monkeypatch, ["torch", "a", "b", "c"], ("a", "c"))
    assert asked == [["torch", "a", "b", "c"], ["torch", "b", "c"], ["torch", "b"]]
    assert found == [
        ("torch#", "ok", None),
        ("a#", "failed", "a died"),
        ("b#", "ok", None),
        ("c#", "failed", "c died"),
    ]


def test_without_the_baseline_the_others_are_not_measured(monkeypatch):
    asked, found = ask(monkeypatch, ["a", "torch", "b"], ("a",))
    assert len(asked) == 1
    assert found[0] == ("a#", "failed", "a died")
    assert [(status, reason) for _, status, reason in found[1:]] == [
        ("skipped", "nothing to compare with: a# failed")
    ] * 2


def test_a_baseline_that_is_left_alone_is_not_measured(monkeypatch):
    asked, found = ask(monkeypatch, ["torch", "a"], ("a",))
    assert len(asked) == 1
    assert [status for _, status, _ in found] == ["skipped", "failed"]


def test_where_nobody_is_to_blame_the_message_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr(compare_processes, "run_process", lambda words, timeout_s: Ended((), 2, None, "no such file"))
    with pytest.raises(UsageError, match="no such file"):
        records_of_case(ARGS, CASE, ["torch", "a"], [record("torch"), record("a")], 0, None)


def test_the_arguments_ask_for_this_case_alone(monkeypatch):
    """They are read back by the very parser that the other process uses."""
    from bench.harness import compare

    seen = []

    def run(args, families, argv):
        ops = compare.chosen_ops(args.op, families)
        seen.append((args, compare.make_all_cases(args, ops, "cpu")))
        return 0

    monkeypatch.setattr(compare, "run", run)
    assert main(child_arguments(ARGS, CASE, ["a.py:f", "torch"], 5, 2.5)) == 0
    args, (planned,) = seen[0]
    assert planned.case == CASE
    assert (args.provider, args.baseline, args.seed, args.budget) == (["a.py:f", "torch"], None, 5, 2.5)
    assert (args.margin, args.fill, args.processes, args.rounds) == (0.02, "uniform", 1, None)


def test_a_turn_is_seen_by_another_process(tmp_path):
    path = tmp_path / "turn"
    turns = TurnFile.create(path)
    assert turns.place is None
    before = turns.read()
    text = "from pathlib import Path\n"
    text += f"from bench.harness.compare_processes import TurnFile\nTurnFile(Path({str(path)!r})).announce(3)"
    commands.subprocess.run([sys.executable, "-c", text], cwd=commands.ROOT, check=True)
    assert turns.place == 3
    assert turns.read() != before
    again = turns.read()
    turns.announce(3)
    assert turns.read() != again  # the same one again is a new turn


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", ""), ("one\n\n", "one"), ("Traceback\npython -m bench: error: no such file\n", "no such file")],
)
def test_the_last_line_of_a_message(text, wanted):
    assert last_line(text) == wanted


# ---- for real -----------------------------------------------------------------------------------------------------

MINE = """
import os, sys, time
import torch

calls = {}


def v1(x, out):
    torch.clamp_min(x, 0, out=out)


def v2(x, out):
    for _ in range(20):
        v1(x, out)


def crash_in_its_turn(x, out):
    calls[0] = calls.get(0, 0) + 1
    if calls[0] > 100:
        os.kill(os.getpid(), 11)
    v1(x, out)


def leave(x, out):
    sys.exit(3)


def loop(x, out):
    while True:
        time.sleep(0.01)


def loud(x, out):
    print("loud")
    v1(x, out)
"""


@pytest.fixture
def mine(tmp_path, runs):
    commands.keep_ceilings(runs)
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def compare(*words):
    words = ("--op", "relu", "--dtype", "fp32", "--shape", "4096", "--device", "cpu", "--rounds", "25", *words)
    return commands.finish(commands.start("bench", "compare", "--format", "json", *map(str, words)))


def test_two_functions_of_one_file_are_versions_to_compare(mine, runs):
    code, out, err = compare("--provider", f"{mine}:v1,{mine}:v2")
    assert code == 1, err
    (row,) = json.loads(out)["rows"]
    assert (row["baseline"], row["candidate"], row["verdict"]) == (f"{mine}:v1", f"{mine}:v2", "SLOWER")
    records = load_run(commands.run_files(runs)[0]).records
    assert len({one.source_sha256 for one in records} - {None}) == 1


@pytest.mark.slow
def test_what_a_function_breaks_is_its_own_row(mine):
    names = ["crash_in_its_turn", "leave", "loop", "loud"]
    providers = ",".join(["torch", *(f"{mine}:{name}" for name in names)])
    code, out, err = compare("--provider", providers, "--timeout", "20", "--margin", "90%")
    assert code == 1, err
    found = json.loads(out)
    assert [row["candidate"] for row in found["rows"]] == [f"{mine}:loud"]
    reasons = {one["provider"].split(":")[1]: one["reason"] for one in found["unmatched"]}
    assert reasons == {
        "crash_in_its_turn": f"failed: the process was ended by {signal.SIGSEGV.name}",
        "leave": "failed: the process ended with exit code 3",
        "loop": "failed: no turn ended for 20 s; --timeout allows more",
    }
