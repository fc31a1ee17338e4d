"""Cases in processes of their own: who is to blame when one dies, and that the others go on."""

import contextlib
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.__main__ import main
from bench.harness.compare import phases, processes
from bench.harness.compare.phases import NAMES
from bench.harness.compare.plan import Conditions
from bench.harness.compare.processes import CallLimit, Ended, child_arguments, last_line, records_of_case
from bench.harness.compare.rounds import Share
from bench.harness.isolate import heartbeat
from bench.harness.isolate.heartbeat import Heartbeat
from bench.harness.isolate.pool import WorkerError
from bench.harness.op import Case
from bench.matmul import OPTIONS
from results.record import Record
from results.store.runs import load_run
from tests.bench import commands
from tests.bench.process_checks import is_running, soon

CASE = Case.of("matmul", "bf16", {"m": 16, "n": 32, "k": 48}, OPTIONS, {"layout": "nt", "batch": 2})
CONDITIONS = Conditions("cpu", None, None, "uniform", "cold", margin=0.02, rounds=None, budget=None, timeout=9.0)
SHARE = Share(rows=12)


def record(provider, status="ok"):
    return Record(op="matmul", provider=provider, dtype="bf16", shape={"m": 16}, case="16", status=status, median_s=1.0)


def ask(monkeypatch, names, broken):
    """Return the records of a case whose processes die of the first provider in `broken` that they have."""
    asked = []

    def run_process(words, limit):
        assert words[words.index("--table-rows") + 1] == "12"  # those of the whole table, however many are left of it
        given = words[words.index("--provider") + 1].split(",")
        asked.append(given)
        for place, name in enumerate(given):
            if name in broken:
                return Ended((), -11, place, f"{name} died")
        return Ended([record(name) for name in given], 0, None, "")

    monkeypatch.setattr(processes, "run_process", run_process)
    blanks = [replace(record(f"{name}#"), status="skipped", median_s=None) for name in names]
    found = records_of_case(CONDITIONS, CASE.op, CASE, names, blanks, 0, SHARE)
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
        ("skipped", "nothing to compare with: a# failed: a died")
    ] * 2


def test_a_baseline_that_is_left_alone_is_not_measured(monkeypatch):
    asked, found = ask(monkeypatch, ["torch", "a"], ("a",))
    assert len(asked) == 1
    assert [status for _, status, _ in found] == ["skipped", "failed"]


def blanks_of(*names):
    return [replace(record(name, "skipped"), median_s=None) for name in names]


def test_where_nobody_is_to_blame_the_case_has_the_message_of_the_process(monkeypatch):
    ended = Ended((), 2, None, "no such file", "skipped")
    monkeypatch.setattr(processes, "run_process", lambda words, limit: ended)
    found = records_of_case(CONDITIONS, CASE.op, CASE, ["torch", "a"], blanks_of("torch", "a"), 0, SHARE)
    assert [(one.provider, one.status, one.reason) for one in found] == [
        ("torch", "skipped", "no such file"),
        ("a", "skipped", "nothing to compare with: torch skipped: no such file"),
    ]


def test_a_process_that_is_run_again_has_only_the_time_that_is_left(monkeypatch):
    """The budget is 60 s for three cases; the first process of the first one dies after 30 s, the second after 25 s."""
    now, given, limits, dies_after = [1000.0], [], [], {0: 30.0, 1: 25.0, 2: 10.0}
    monkeypatch.setattr(processes, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def run_process(words, limit):
        assert float(words[words.index("--deadline") + 1]) == 1060
        given.append(float(words[words.index("--case-deadline") + 1]) - now[0])
        limits.append(limit.seconds)
        now[0] += dies_after[len(given) - 1]
        return Ended((), -11, 1, "it died")

    monkeypatch.setattr(processes, "run_process", run_process)
    names = ["torch", "a", "b", "c", "d"]
    conditions, share = replace(CONDITIONS, budget=60.0), Share(12, deadline=1060.0, cases_left=3)
    found = records_of_case(conditions, CASE.op, CASE, names, blanks_of(*names), 0, share)
    assert given == pytest.approx([20, 10, 5 / 3])
    assert limits == [9.0, 5.0, processes.OVERTIME_S]  # half of it, or what --timeout allows where that is less
    assert [one.status for one in found] == ["skipped", "failed", "failed", "failed", "skipped"]
    assert found[0].reason == "the budget of 60 s is spent"
    assert found[4].reason == "nothing to compare with: torch skipped: the budget of 60 s is spent"


@pytest.mark.parametrize(
    ("code", "place", "status", "reason"),
    [
        (2, None, "skipped", "no such file"),
        (3, None, "skipped", "no such file"),
        (-9, None, "skipped", "killed by SIGKILL, which the system does when memory runs out"),
        (-9, 1, "failed", "killed by SIGKILL, which the system does when memory runs out"),
        (2, 1, "failed", "ended the process with exit code 2"),
        (1, None, "failed", "ended the process with exit code 1: no such file"),
    ],
)
def test_how_a_process_ends_tells_whether_something_is_broken(monkeypatch, code, place, status, reason):
    process = SimpleNamespace(
        heartbeat=SimpleNamespace(place=place, read=lambda: b""),
        output="python -m bench: error: no such file\n",
        wait=lambda check: None,
        exit_code=lambda: code,
    )
    monkeypatch.setattr(processes, "started", lambda words: contextlib.nullcontext(process))
    ended = processes.run_process([], CallLimit(9.0))
    assert (ended.records, ended.place, ended.status, ended.reason) == ((), place, status, reason)


def test_a_call_that_goes_on_when_the_budget_is_spent_is_ended(monkeypatch, tmp_path):
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0])
    beat = Heartbeat.create(tmp_path / "heartbeat")
    beat.announce(1)
    monkeypatch.setattr(processes, "time", clock)
    monkeypatch.setattr(heartbeat, "time", clock)

    def ended_at(limit, begun):
        now[0] = begun
        check = limit.check(beat)
        while True:
            now[0] += 1.0
            try:
                check()
            except WorkerError as error:
                return now[0], error.status

    limit = CallLimit.of(600.0, Share(1, deadline=20.0), now=-980.0)
    assert ended_at(limit, 5.0) == (21.0, "skipped")
    assert ended_at(limit, 19.0) == (pytest.approx(19 + processes.OVERTIME_S, abs=1), "skipped")
    assert ended_at(CallLimit.of(10.0, Share(1), now=0.0), 0.0) == (pytest.approx(10, abs=1.5), "failed")


def test_each_phase_of_a_process_is_told_once_while_it_is_watched(tmp_path):
    beat, told = Heartbeat.create(tmp_path / "heartbeat"), []
    check = replace(CallLimit(9.0), tell=told.append).check(beat)
    for name in (*NAMES[:3], NAMES[2]):
        beat.tell(NAMES.index(name))
        beat.announce(1)
        check()
    assert told == list(NAMES[:3])
    assert beat.place == 1


def test_the_time_of_a_case_is_told_to_the_last_second(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(phases, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    counted = phases.Phases(told.append)
    for name, seconds in (("preparing and checking", 1.0), ("preparing and checking", 0.5), ("rounds", 3.0)):
        counted.enter(name)
        now[0] += seconds
    counted.enter("checking again")
    assert told == ["preparing and checking", "rounds", "checking again"]
    assert phases.where_time_went(counted.seconds, 6.0, has_own_process=True) == (
        "6.0 s: preparing and checking 1.5 s, rounds 3.0 s, starting its process and the rest 1.5 s"
    )
    assert phases.where_time_went(counted.seconds, 6.0, has_own_process=False).endswith("rounds 3.0 s, the rest 1.5 s")


def test_the_arguments_ask_for_this_case_alone(monkeypatch):
    """They are read back by the very parser that the other process uses."""
    from bench.harness.compare import command as compare

    seen = []

    def run(args, families, argv):
        ops = compare.chosen_ops(args.op, families)
        seen.append((args, compare.make_all_cases(args, ops, "cpu")))
        return 0

    monkeypatch.setattr(compare, "run", run)
    conditions, share = replace(CONDITIONS, budget=60.0), Share(12, deadline=160.25, cases_left=4)
    assert main(child_arguments(conditions, CASE.op, CASE, ["a.py:f", "torch"], 5, share, now=100.25)) == 0
    args, (planned,) = seen[0]
    assert planned.case == CASE
    assert (args.provider, args.baseline, args.seed, args.budget) == (["a.py:f", "torch"], None, 5, 60.0)
    assert (args.table_rows, args.deadline, args.case_deadline) == (12, 160.25, 115.25)
    assert (args.margin, args.fill, args.processes, args.rounds) == (0.02, "uniform", 1, None)


def test_a_heartbeat_is_seen_by_another_process(tmp_path):
    path = tmp_path / "heartbeat"
    beat = Heartbeat.create(path)
    assert beat.place is None
    before = beat.read()
    text = "from pathlib import Path\n"
    text += f"from bench.harness.isolate.heartbeat import Heartbeat\nHeartbeat.open(Path({str(path)!r})).announce(3)"
    commands.subprocess.run([sys.executable, "-c", text], cwd=commands.ROOT, check=True)
    assert beat.place == 3
    assert beat.read() != before
    again = beat.read()
    beat.announce(3)
    assert beat.read() != again  # the same one again is a new call


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


def count(name):
    calls[name] = calls.get(name, 0) + 1
    return calls[name]


def v1(x, out):
    torch.clamp_min(x, 0, out=out)


def v2(x, out):
    for _ in range(100):
        v1(x, out)


def crash_in_its_turn(x, out):
    if count("crash") > 100:
        os.kill(os.getpid(), 11)
    v1(x, out)


def kill_its_parent(x, out):
    if count("parent") > 100:
        os.kill(os.getppid(), 9)
        time.sleep(1000)
    v1(x, out)


def leave(x, out):
    sys.exit(3)


def leave_in_its_turn(x, out):
    if count("leave") > 100:
        sys.exit("enough")
    v1(x, out)


def interrupt(x, out):
    raise KeyboardInterrupt


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
    words = ("--op", "relu", "--dtype", "fp32", "--shape", "4096", "--device", "cpu", "--rounds", "25", *words)
    return commands.finish(commands.start("bench", "compare", "--format", "json", *map(str, words)))


@pytest.mark.exhaustive
def test_two_functions_of_one_file_are_versions_to_compare(mine, runs):
    code, out, err = compare("--provider", f"{mine}:v1,{mine}:v2")
    (row,) = json.loads(out)["rows"]
    assert (row["baseline"], row["candidate"]) == (f"{mine}:v1", f"{mine}:v2")
    assert (code, row["verdict"]) in ((1, "SLOWER"), (0, "UNSURE")), err  # UNSURE: the machine was too busy
    records = load_run(commands.run_files(runs)[0]).records
    assert len({one.source_sha256 for one in records} - {None}) == 1


def outcomes(mine, *names, timeout="20"):
    """Compare functions with `torch`, which must stay as it is; return which were compared, and why the others not."""
    providers = ",".join(["torch", *(f"{mine}:{name}" for name in names)])
    code, out, err = compare("--provider", providers, "--timeout", timeout, "--margin", "90%")
    assert code == 1, err
    found = json.loads(out)
    assert found["summary"]["broken"] == len(found["unmatched"])
    compared = [row["candidate"].split(":")[1] for row in found["rows"]]
    return compared, {one["provider"].split(":")[1]: one["reason"] for one in found["unmatched"]}


@pytest.mark.exhaustive
def test_what_a_function_breaks_is_its_own_row(mine):
    broken = ("crash_in_its_turn", "kill_its_parent", "loop", "interrupt")
    compared, reasons = outcomes(mine, *broken, "loud", timeout="4")
    assert compared == ["loud"]
    assert reasons == {
        "crash_in_its_turn": "failed: crashed: SIGSEGV (segmentation fault)",
        "kill_its_parent": "failed: killed its parent process",
        "loop": "failed: a call did not end within 4 s; --timeout allows more",
        "interrupt": "failed: ended the process with exit code 130",
    }


@pytest.mark.exhaustive
def test_what_does_not_end_the_process_is_found_in_one_go(mine):
    (mine.parent / "stops.py").write_text("import sys\nsys.exit(3)\ndef f(x): pass\n")
    (mine.parent / "broken.py").write_text("def f(x:\n")
    compared, reasons = outcomes(
        mine, "loud", "leave", "leave_in_its_turn", "return_nothing", f"v1,{mine.parent}/stops.py:f", "nosuch", "v2"
    )
    assert compared == ["loud", "v1", "v2"]
    lines = {name: MINE[: MINE.index(text)].count("\n") + 1 for name, text in LEAVING.items()}
    assert reasons == {
        "leave": f"failed: called sys.exit(3) (line {lines['leave']})",
        "leave_in_its_turn": f"failed: called sys.exit('enough') (line {lines['leave_in_its_turn']})",
        "return_nothing": "invalid: wrong result: it returned None; a torch.Tensor of 4096 torch.float32 is expected, "
        "or a parameter named out to write it into",
        "f": "failed: called sys.exit(3) (line 2)",
        "nosuch": f"failed: {mine} has no 'nosuch'; it has: count, v1, v2, crash_in_its_turn, kill_its_parent, leave, "
        "leave_in_its_turn, interrupt, loop, slow, loud, return_nothing",
    }


LEAVING = {"leave": "sys.exit(3)", "leave_in_its_turn": 'sys.exit("enough")'}


@pytest.mark.exhaustive
def test_a_slow_function_is_compared_though_all_its_calls_take_longer_than_one_may(mine):
    providers = f"{mine}:slow,torch"
    code, out, err = compare("--provider", providers, "--timeout", "2")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["verdict"] in ("FASTER", "UNSURE")  # unsure where the machine is busy


def test_where_no_provider_is_there_at_all_it_takes_one_line(mine, capsys):
    words = ["compare", "--op", "relu", "--device", "cpu", "--provider", f"{mine}:nosuch,/nosuch.py:f"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert f"{mine} has no 'nosuch'" in err
    assert err.count("\n") == 1


@pytest.mark.exhaustive
def test_a_killed_command_leaves_no_process_behind(mine, tmp_path):
    says_where = f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
    mine.write_text(f"{MINE}\ndef here(x, out):\n{says_where}    loop(x, out)\n")
    process = commands.start(
        "bench", "compare", "--op", "relu", "--dtype", "fp32", "--shape", "4096", "--device", "cpu", "--provider",
        f"torch,{mine}:here",
    )  # fmt: skip
    pid = tmp_path / "pid"
    assert soon(lambda: pid.exists() and pid.read_text(), 120)
    process.kill()
    commands.finish(process)
    assert soon(lambda: not is_running(int(pid.read_text())))
