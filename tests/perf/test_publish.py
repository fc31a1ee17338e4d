"""The published record without a GPU and without measurements: steps that hang, fail, are killed, and what stays."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench.validation import publish
from bench.validation.publish import ROOT
from tests.child_signals import usual_signals
from tests.perf import publish_plans
from tests.perf.publish_plans import DEVICE, KEEPING, RUN, states, step

planned = publish_plans.planned

HANGING = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code])
pathlib.Path("pids.partial").write_text(f"{os.getpid()} {child.pid}")
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
    assert [lives(pid) for pid in pids] == [False] * 2
    assert states(planned.folder) == {"hangs": "stopped", "runs": "done"}


def test_what_a_step_leaves_behind_is_killed_when_it_ends_by_itself(planned):
    leaving = HANGING.removesuffix("time.sleep(600)\n")
    assert planned([step("leaves", leaving)]) == 0
    pids = [int(pid) for pid in (planned.folder / "steps/leaves/pids").read_text().split()]
    assert [lives(pid) for pid in pids] == [False] * 2


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_a_step_at_its_limit_gets_the_time_to_keep_what_it_has(planned, over, monkeypatch, handler):
    """Also where Ctrl-C is ignored, as in the background of a script: its children would inherit that."""
    monkeypatch.setattr(publish, "GRACE_S", 30.0)
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
    attempt = publish.attempts(planned.folder)[0]
    assert (attempt["state"], attempt["exit_code"]) == ("stopped", 130)


def test_a_step_that_fails_stops_no_other_and_says_why(planned, capsys):
    failing = step("fails", "import sys; sys.exit('no room\\nfor this')")
    crashing = step("crashes", "raise RuntimeError('torn apart')")
    assert planned([failing, crashing, step("usage", "raise SystemExit(2)"), step("runs")]) == 1
    # A text for `sys.exit` gives 1, which is a finding of most steps; a traceback is none.
    assert states(planned.folder) == {"fails": "done", "crashes": "failed", "usage": "failed", "runs": "done"}
    assert "RuntimeError: torn apart" in capsys.readouterr().out


def test_a_module_that_is_not_installed_is_no_finding(planned, monkeypatch):
    monkeypatch.setattr(publish, "python", lambda step: [sys.executable, "-m", "not_installed_at_all"])
    assert planned([step("missing")]) == 1
    assert states(planned.folder) == {"missing": "failed"}


def test_exit_code_1_is_an_error_of_what_reports_nothing_by_it(planned):
    assert planned([step("script", "raise SystemExit(1)", reports_by_1=False)]) == 1
    assert states(planned.folder) == {"script": "failed"}


def test_the_environment_and_the_place_of_a_step(planned):
    code = "import os, bench; print(os.getcwd(), os.environ['RIDGEPOINT_RUNS'], bench.__file__)"
    planned([step("looks", code)])
    place = planned.folder / "steps/looks"
    assert (place / "stdout.txt").read_text().split() == [
        str(place),
        str(planned.folder / "runs"),
        f"{ROOT}/bench/__init__.py",
    ]


# ---- several calls -------------------------------------------------------------------------------------------------


def test_what_is_done_is_skipped_and_the_rest_goes_on(planned):
    tried = [step("first"), step("fails", "raise SystemExit(2)"), step("second")]
    planned(tried[:2])
    assert planned(tried) == 1
    assert states(planned.folder) == {"fails": "failed", "fails.2": "failed", "first": "done", "second": "done"}


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
    counted = publish.counting(publish.attempts(planned.folder))
    assert counted["one"]["folder"].name == "one"  # a worse attempt does not take the place of a good one


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
from bench.validation import publish
from tests.perf.test_publish import HANGING
from tests.perf.publish_plans import DEVICE, step
publish.probe = lambda: dict(DEVICE)
publish.python = lambda step: [sys.executable, "-c", *step.words]
publish.GRACE_S = 0.3
publish.plan = lambda is_gpu: ([step("first"), step("hangs", HANGING), step("last")], {{}})
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
    assert [lives(pid) for pid in pids] == [False] * 2
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
    for name in ("summary.md", "device.json", "steps/one/step.json"):
        (planned.folder / name).write_text(text, encoding="latin-1")
    assert planned(steps) == 0
    assert states(planned.folder) == {"one": "killed", "one.2": "done", "two": "done"}
    summary = (planned.folder / "summary.md").read_text()
    assert "| one | done |" in summary
    assert "| two | done |" in summary


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
    assert planned([step("one")], "--archive", str(planned.folder / "all.tar.gz")) == 2
    assert all(
        line.startswith("python -m bench.validation.publish: error: ") for line in capsys.readouterr().err.splitlines()
    )


def test_the_device_of_this_machine_is_told():
    found = publish.probe()
    assert found["slug"]
    assert found["import_s"] > 0
    assert found["is_gpu"] in (True, False)


# ---- what is kept of it --------------------------------------------------------------------------------------------


def test_the_summary_says_what_was_wanted_and_found(planned):
    steps = [
        step("slow", "import time; time.sleep(0.2)", wanted_s=0.1),
        step("quick", KEEPING, wanted_s=50.0),
        step("imports", "import time; time.sleep(0.2)", wanted_s=0.1, is_after_import=True),
        step("talks", "print('noise'); print('=== 3 passed ===')"),
    ]
    planned(steps, left_out={"gpu": "needs a CUDA device"})
    text = (planned.folder / "summary.md").read_text()
    rows = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    assert "below 0.1 s: missed" in rows["slow"]
    assert "below 50 s: met" in rows["quick"]
    assert "below 0.1 s: met" in rows["imports"]  # the device of these tests takes 2 s to import
    assert "8 ok" in rows["quick"]
    assert "| 3 passed |" in rows["talks"]
    assert "left out: gpu: needs a CUDA device" in text


def test_the_doctor_and_the_first_look_are_quoted_with_what_is_wrong(planned):
    statuses = {"load": "note", "other work": "bad"}
    findings = [{"name": name, "status": status, "value": "busy"} for name, status in statuses.items()]
    pages = {"unfit": {"findings": findings}, "fit": {"findings": []}, "smoke": {"lines": findings[1:]}}
    code = "import json; print(json.dumps({}, indent=2)); raise SystemExit(1)"
    planned([step(name, code.format(page)) for name, page in pages.items()])
    text = (planned.folder / "summary.md").read_text()
    assert text.count("| bad: other work: busy |") == 2
    assert "| nothing is bad |" in text


def test_a_wrong_row_is_named(planned):
    wrong = KEEPING + (
        "file = place / '20261120T233629Z-matmul-a349e4f85f.jsonl'\n"
        "head, first, *rest = file.read_text().splitlines()\n"
        "import json\n"
        "record = json.loads(first)\n"
        "record |= {'status': 'invalid', 'reason': 'wrong at 3', 'provider': 'triton-v9'}\n"
        "file.write_text('\\n'.join([head, json.dumps(record), *rest]) + '\\n')\n"
        "raise SystemExit(1)\n"
    )
    assert planned([step("wrong", wrong)]) == 0
    attempt = publish.attempts(planned.folder)[0]
    assert attempt["rows"] == {"invalid": 1, "ok": 7}
    assert attempt["wrong"] == ["matmul 256x256x256 bf16 triton-v9: invalid: wrong at 3"]
    assert "triton-v9: invalid: wrong at 3" in (planned.folder / "summary.md").read_text()


ROOFS = """
import json, os, pathlib
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
place.mkdir(parents=True, exist_ok=True)
kept = place / "ceilings-0123456789ab.json"
print(kept.read_text() if kept.exists() else "none")
kept.write_text(json.dumps({"slug": "h100-sxm", "entries": [], "identity": {"host": "secret"}, "by": BY}))
"""


def test_roofs_go_from_step_to_step_but_for_those_of_a_step_of_its_own(planned):
    codes = {name: f"BY = {name!r}\n{ROOFS}" for name in ("full", "quick", "after")}
    planned(
        [step("full", codes["full"]), step("quick", codes["quick"], has_own_roofs=True), step("after", codes["after"])]
    )
    seen = {name: (planned.folder / f"steps/{name}/stdout.txt").read_text() for name in codes}
    assert seen["full"] == seen["quick"] == "none\n"
    assert json.loads(seen["after"])["by"] == "full"
    published = json.loads((planned.folder / "published/h100-sxm/ceilings.json").read_text())
    assert published == {"slug": "h100-sxm", "entries": [], "by": "after"}  # without what identifies the machine


BROKEN = """
import os, pathlib
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
head, first, *rest = (place / "20261120T233629Z-matmul-a349e4f85f.jsonl").read_text().splitlines()
broken = {"torn": ['{"kind": "envi'], "empty": [head], "holed": [head, "{}", first], "cut": [head, first, "{"]}
for name, lines in broken.items():
    (place / f"20261120T233630Z-{name}-00.jsonl").write_text("\\n".join(lines))
"""


def test_published_are_whole_runs_of_the_attempts_that_count(planned):
    broken = step("broken", KEEPING + BROKEN)
    writing = "import pathlib; pathlib.Path('found').mkdir(); pathlib.Path('found/spread.json').write_text('{}')"
    planned([step("good", KEEPING), broken, step("quick", KEEPING, has_own_roofs=True), step("script", writing)])
    place = planned.folder / "published/h100-sxm"
    assert {path.name for path in place.iterdir()} == {
        *("20261120T233629Z-matmul-a349e4f85f.jsonl", "README.md"),
        "20261120T233630Z-cut-00.jsonl",  # a last line that was cut off is normal
        *("good.png", "broken.png", "quick.png", "spread.json"),
    }
    assert (place / "20261120T233629Z-matmul-a349e4f85f.jsonl").read_bytes() == RUN.read_bytes()
    assert "| good | done |" in (place / "README.md").read_text()


def test_the_archive_holds_all_and_is_whole_at_any_moment(planned, tmp_path, monkeypatch):
    file = tmp_path / "new/record.tar.gz"
    planned([step("one", KEEPING)], "--archive", str(file))
    with tarfile.open(file) as packed:
        names = packed.getnames()
    assert "record/steps/one/step.json" in names
    assert "record/published/h100-sxm/one.png" in names
    before = file.read_bytes()
    monkeypatch.setattr(tarfile.TarFile, "add", Mock(side_effect=OSError("no space left")))
    assert planned([step("two")], "--archive", str(file)) == 0  # the measurement counts, the archive waits
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["record.tar.gz"]


def test_an_unpacked_archive_goes_on_elsewhere(planned, tmp_path):
    planned([step("one")], "--archive", str(tmp_path / "all.tar.gz"))
    with tarfile.open(tmp_path / "all.tar.gz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has none before 3.11.4
        packed.extractall(tmp_path / "elsewhere")
    assert publish.main(["--output", str(tmp_path / "elsewhere/record")]) == 0
    assert states(tmp_path / "elsewhere/record") == {"one": "done"}


def test_a_text_that_a_terminal_would_obey_is_shown_as_its_escape(planned):
    planned([step("rogue", r"import sys; print('\x1b[2Jgone', file=sys.stderr); print('\x1b[31m'); sys.exit(2)")])
    assert "\x1b" not in (planned.folder / "summary.md").read_text()
    assert "\\x1b[2Jgone" in (planned.folder / "summary.md").read_text()


KEPT = """
import json, os, pathlib
place = pathlib.Path(os.environ["RIDGEPOINT_RUNS"]) / "h100-sxm"
place.mkdir(parents=True, exist_ok=True)
kept = place / "ceilings-{of}.json"
kept.write_text(json.dumps(dict(identity="a machine", of="{of}", entries=[1] * {count})))
print("false verdicts: 0 of 40")
"""


def test_the_fullest_ceilings_are_published_and_what_a_step_prints_where_it_keeps_no_run(planned):
    """A later call on another machine of the same name measures a few ceilings anew: they are newer, and fewer."""
    full, few = (step(name, KEPT.format(of=name, count=n), kept_as=f"{name}.txt") for name, n in (("a", 9), ("b", 2)))
    assert planned([full, few]) == 0
    place = planned.folder / "published/h100-sxm"
    assert json.loads((place / "ceilings.json").read_text()) == {"of": "a", "entries": [1] * 9}
    assert (place / "b.txt").read_text() == "false verdicts: 0 of 40\n"
