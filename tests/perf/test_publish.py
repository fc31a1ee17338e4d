"""The published record without a GPU and without measurements: steps that hang, fail, are killed, and what stays."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.validation import publish, publish_process, publish_steps, publish_summary
from bench.validation.publish_steps import ROOT
from tests.child_signals import usual_signals
from tests.perf import publish_plans
from tests.perf.publish_plans import DEVICE, states, step

planned = publish_plans.planned

HANGING = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
same, apart = (subprocess.Popen([sys.executable, "-c", code], start_new_session=own) for own in (False, True))
pathlib.Path("pids.partial").write_text(f"{os.getpid()} {same.pid} {apart.pid}")
pathlib.Path("pids.partial").rename("pids")
time.sleep(600)
"""


LIMIT_S = 47.0
"""A limit that is over as soon as a step has got where a test wants it: nothing depends on how fast this machine is."""


@pytest.fixture
def over(monkeypatch):
    """Return what makes `LIMIT_S` be over when a file is there."""
    wait = subprocess.Popen.wait

    def limit_at(file):
        def waiting(process, timeout=None):
            if timeout == LIMIT_S:
                assert eventually(file.exists)
                raise subprocess.TimeoutExpired(process.args, timeout)
            return wait(process, timeout)

        monkeypatch.setattr(subprocess.Popen, "wait", waiting)

    return limit_at


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


# ---- one step ------------------------------------------------------------------------------------------------------


def test_a_step_that_hangs_is_killed_with_its_children_and_the_next_one_runs(planned, over):
    over(planned.folder / "steps/hangs/pids")
    assert planned([step("hangs", HANGING, limit_s=LIMIT_S), step("runs")]) == 1
    pids = [int(pid) for pid in (planned.folder / "steps/hangs/pids").read_text().split()]
    assert [lives(pid) for pid in pids] == [False] * 3
    assert states(planned.folder) == {"hangs": "stopped", "runs": "done"}


def test_what_a_step_leaves_behind_is_killed_when_it_ends_by_itself(planned):
    leaving = HANGING.removesuffix("time.sleep(600)\n")
    assert planned([step("leaves", leaving)]) == 0
    pids = [int(pid) for pid in (planned.folder / "steps/leaves/pids").read_text().split()]
    assert [lives(pid) for pid in pids] == [False] * 3


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_a_step_at_its_limit_gets_the_time_to_keep_what_it_has(planned, over, monkeypatch, handler):
    """Also where Ctrl-C is ignored, as in the background of a script: its children would inherit that."""
    monkeypatch.setattr(publish_process, "GRACE_S", 30.0)
    code = """
import pathlib, time
try:
    pathlib.Path("begun").touch()
    time.sleep(600)
except KeyboardInterrupt:
    pathlib.Path("kept").write_text("all")
    raise SystemExit(130)
"""
    over(planned.folder / "steps/long/begun")
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert planned([step("long", code, limit_s=LIMIT_S)]) == 1
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (planned.folder / "steps/long/kept").read_text() == "all"
    attempt = publish_summary.attempts(planned.folder)[0]
    assert (attempt["state"], attempt["exit_code"]) == ("stopped", 130)


def test_a_step_that_fails_stops_no_other_and_says_why(planned, capsys):
    failing = step("fails", "import sys; sys.exit('no room\\nfor this')")
    crashing = step("crashes", "raise RuntimeError('torn apart')")
    assert planned([failing, crashing, step("usage", "raise SystemExit(2)"), step("runs")]) == 1
    # A text for `sys.exit` gives 1, which is a finding of most steps; a traceback is none.
    assert states(planned.folder) == {"fails": "done", "crashes": "failed", "usage": "failed", "runs": "done"}
    assert "RuntimeError: torn apart" in capsys.readouterr().out


def test_a_module_that_is_not_installed_is_no_finding(planned, monkeypatch):
    monkeypatch.setattr(publish_steps, "python", lambda step: [sys.executable, "-m", "not_installed_at_all"])
    assert planned([step("missing")]) == 1
    assert states(planned.folder) == {"missing": "failed"}


def test_the_device_is_looked_at_once_more_the_first_time(planned, monkeypatch):
    took_s = [9.0, 2.0, 7.0]
    monkeypatch.setattr(publish, "probe", lambda: DEVICE | {"import_s": took_s.pop(0)})
    for _ in range(2):
        planned([step("one")])
        assert json.loads((planned.folder / "device.json").read_text())["import_s"] == 2.0
    assert took_s == []


def test_exit_code_1_is_an_error_of_what_reports_nothing_by_it(planned):
    assert planned([step("script", "raise SystemExit(1)", reports_by_1=False)]) == 1
    assert states(planned.folder) == {"script": "failed"}


def test_the_environment_and_the_place_of_a_step(planned):
    code = "import os, bench; print(os.getcwd(), os.environ['RIDGEPOINT_RUNS'], bench.__file__)"
    planned([step("looks", code)])
    place = planned.folder / "steps/looks"
    assert (place / "stdout.txt").read_text().split() == [str(place), str(place / "runs"), f"{ROOT}/bench/__init__.py"]


# ---- several calls -------------------------------------------------------------------------------------------------


def test_what_is_done_is_skipped_and_the_rest_goes_on(planned):
    tried = [step("first"), step("fails", "raise SystemExit(2)"), step("second")]
    planned(tried[:2])
    assert planned(tried) == 1
    assert states(planned.folder) == {"fails": "failed", "fails.2": "failed", "first": "done", "second": "done"}
    order = sorted((a["started_at"], a["folder"]) for a in publish_summary.attempts(planned.folder))
    assert len(order) == 4


def test_steps_that_were_never_tried_come_before_those_that_failed(planned, capsys):
    planned([step("fails", "raise SystemExit(2)")])
    capsys.readouterr()
    planned([step("fails", "raise SystemExit(2)"), step("new")])
    started = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines() if "at most" in line]
    assert started == ["new", "fails"]


def test_again_repeats_and_loses_nothing(planned):
    planned([step("one", "print('first time')")])
    assert planned([step("one", "raise SystemExit(2)")], "--again") == 1
    assert states(planned.folder) == {"one": "done", "one.2": "failed"}
    assert (planned.folder / "steps/one/stdout.txt").read_text() == "first time\n"
    counted = publish_summary.counting(publish_summary.attempts(planned.folder))
    assert counted["one"]["folder"] == "one"  # a worse attempt does not take the place of a good one


def test_steps_by_name_and_names_that_there_are_not(planned, capsys):
    steps = [step("one"), step("two"), step("three")]
    assert planned(steps, "--step", "three,one") == 0
    assert set(states(planned.folder)) == {"one", "three"}
    assert planned(steps, "--step", "four") == 2
    assert "--step four: there are: one, two, three" in capsys.readouterr().err
    assert planned(steps, "--step", "gpu", left_out={"gpu": "needs a CUDA device"}) == 2
    assert "left out: needs a CUDA device" in capsys.readouterr().err


def test_a_step_for_which_no_time_is_left_waits_for_the_next_call(planned, capsys):
    steps = [step("first", needs_s=9000), step("long", needs_s=9000), step("short", needs_s=1)]
    assert planned(steps, "--minutes", "1") == 0
    assert set(states(planned.folder)) == {"first", "short"}  # the first one of a call starts in any case
    assert "long: left for the next call: it needs 9000 s" in capsys.readouterr().err
    assert "Not started yet: long." in (planned.folder / "summary.md").read_text()


def test_a_step_that_the_whole_call_was_too_short_for_was_cut_and_lets_others_go_first(planned, capsys):
    sleeping = step("long", "import time; time.sleep(600)", needs_s=500.0)
    assert planned([sleeping], "--minutes", "0.05") == 0
    assert states(planned.folder) == {"long": "cut"}
    capsys.readouterr()
    planned([sleeping, step("short")], "--minutes", "0.1")
    assert capsys.readouterr().err.startswith("short: at most")


# ---- ends of all kinds ---------------------------------------------------------------------------------------------


DRIVER = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from bench.validation import publish, publish_process, publish_steps
from tests.perf.test_publish import HANGING
from tests.perf.publish_plans import DEVICE, step
publish.probe = lambda: dict(DEVICE)
publish_steps.python = lambda step: [sys.executable, "-c", *step.words]
publish_process.GRACE_S = 0.3
publish_steps.plan = lambda is_gpu: ([step("first"), step("hangs", HANGING), step("last")], {{}})
raise SystemExit(publish.main(["--output", sys.argv[1]]))
"""


@pytest.fixture
def hanging(tmp_path):
    """Start a call in a process of its own, and return it when its second step hangs."""
    with usual_signals():
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(tmp_path / "record")],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
    pids = tmp_path / "record/steps/hangs/pids"
    try:
        assert eventually(pids.exists)
        yield process, [int(pid) for pid in pids.read_text().split()]
    finally:
        process.kill()
        process.communicate()
        for pid in map(int, pids.read_text().split() if pids.exists() else ()):
            if lives(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_call_keeps_all_and_leaves_nothing_running(hanging, tmp_path, number):
    process, pids = hanging
    process.send_signal(number)
    assert process.wait(120) == 130
    assert [lives(pid) for pid in pids] == [False] * 3
    assert states(tmp_path / "record") == {"first": "done", "hangs": "cut"}
    assert "| hangs | cut |" in (tmp_path / "record/summary.md").read_text()


def test_a_killed_call_takes_its_step_along_and_the_next_call_goes_on(hanging, planned):
    process, pids = hanging
    process.kill()
    process.wait(120)
    assert eventually(lambda: not lives(pids[0]))
    assert states(planned.folder) == {"first": "done", "hangs": "killed"}
    assert planned([step("first"), step("hangs"), step("last")]) == 0
    assert states(planned.folder) == {"first": "done", "hangs": "killed", "hangs.2": "done", "last": "done"}


TORN = ['{"name": "one", "state": "do', "", "[]", "null", '{"state": "enchanted"}', "[" * 100_000, "\xff\xfe"]


@pytest.mark.parametrize("text", TORN, ids=range(len(TORN)))
def test_torn_files_are_survived(planned, text):
    steps = [step("one"), step("two")]
    planned(steps)
    for name in ("summary.json", "summary.md", "device.json", "steps/one/step.json"):
        (planned.folder / name).write_text(text, encoding="latin-1")
    assert planned(steps) == 0
    assert states(planned.folder) == {"one": "killed", "one.2": "done", "two": "done"}
    summary = json.loads((planned.folder / "summary.json").read_text())
    assert [(a["name"], a["state"]) for a in summary["steps"]] == [("one", "done"), ("two", "done")]


def test_the_record_of_another_device_is_not_mixed_in(planned, monkeypatch, capsys):
    planned([step("one")])
    monkeypatch.setattr(publish, "probe", lambda: DEVICE | {"slug": "h200-sxm"})
    assert planned([step("two")]) == 2
    assert "is the record of h100-sxm, and this is h200-sxm; name another --output" in capsys.readouterr().err


def test_two_calls_at_once_are_refused(planned, capsys):
    planned.folder.mkdir()
    with publish.locked(planned.folder):
        assert planned([step("one")]) == 2
    assert "another call is at work there" in capsys.readouterr().err


def test_usage(planned, capsys, tmp_path):
    assert publish.main([]) == 2
    (tmp_path / "file").write_text("")
    assert publish.main(["--output", str(tmp_path / "file")]) == 2
    with pytest.raises(SystemExit, match="2"):
        planned([], "--minutes", "soon")
    assert planned([step("one")], "--step", ",") == 2
    assert all(
        line.startswith("python -m bench.validation.publish: error: ") for line in capsys.readouterr().err.splitlines()
    )


def test_the_device_of_this_machine_is_told():
    found = publish.probe()
    assert found["slug"]
    assert found["import_s"] > 0
    assert found["is_gpu"] in (True, False)
