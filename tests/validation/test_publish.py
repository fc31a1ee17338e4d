"""The publishing run: its steps use existing commands, and it stops at its deadline."""

import json
import re
import subprocess
import sys
import time

import psutil
import pytest

from tests.validation import publish
from tests.validation.publish import CALIBRATE_QUICK, DONE, FAILED, ROOT, STOPPED, Record, Step

COMMANDS = {
    match[0]: [step for step in publish.steps() if step.arguments.startswith(f"{match[0]} ")]
    for step in publish.steps()
    if (match := re.match(r"bench [a-z]+|[a-z_.]+", step.arguments))
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMMANDS)
def test_steps_use_commands_and_options_that_exist(name):
    command = [sys.executable, "-m", *name.split(), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for step in COMMANDS[name]:
        for option in re.findall(r"--[a-z-]+", step.arguments):
            assert option in done.stdout, step.arguments


def test_doctor_calibration_and_suite_come_first():
    names = [step.name for step in publish.steps()]
    assert len(set(names)) == len(names)
    assert names[:3] == ["doctor", "calibrate-quick", "suite"]
    assert names[-1].startswith("tests-")


def test_steps_that_measure_rows_use_measured_ceilings():
    measuring = [
        planned
        for planned in publish.steps()
        if re.match("bench (?!doctor|calibrate)|bench[.]", planned.arguments)
    ]
    assert len(measuring) > 10
    assert all(planned.needs_ceilings for planned in measuring)


def test_full_calibration_and_suite_fit_into_one_call(tmp_path):
    clock = Clock(publish.CALIBRATE.limit_s)
    call(
        tmp_path,
        [planned for planned in publish.steps() if planned.name in ("calibrate", "suite-full")],
        clock,
        9 * 60.0,
    )
    assert clock.ran == ["calibrate", "suite-full"]


class Clock:
    """A clock that moves only while a step runs; `ran` has the steps that ran."""

    def __init__(self, step_s, codes=None):
        self.seconds, self.step_s, self.codes, self.ran = 0.0, step_s, codes or {}, []

    def now(self):
        return self.seconds

    def run(self, command, folder, name, limit_s):
        self.ran.append(name)
        self.seconds += min(self.step_s, limit_s)
        return self.codes.get(name, 0), ""


def call(folder, steps, clock, deadline_s=1000.0):
    return publish.publish(steps, Record(folder), clock.seconds + deadline_s, clock.now, clock.run)


def step(name, **options):
    return Step(name, f"bench {name}", 100, **options)


def test_a_step_starts_only_if_it_can_end_before_the_deadline(tmp_path):
    clock, steps = Clock(100), [step(f"s{index}") for index in range(9)]
    assert call(tmp_path, steps, clock, 400 + publish.GRACE_S)
    assert clock.ran == ["s0", "s1", "s2", "s3"]
    assert clock.seconds <= 400 + publish.GRACE_S


def test_the_next_call_skips_done_steps_and_retries_failed_ones(tmp_path):
    clock, steps = (
        Clock(10, {"s0": 2, "s1": None, "s2": 1}),
        [step(f"s{index}") for index in range(4)],
    )
    assert not call(tmp_path, steps[:3], clock)
    states = json.loads((tmp_path / "steps.json").read_text())
    assert {name: planned["state"] for name, planned in states.items()} == {
        "s0": FAILED,
        "s1": STOPPED,
        "s2": DONE,
    }
    clock = Clock(10)
    assert call(tmp_path, steps, clock)
    assert clock.ran == ["s3", "s0", "s1"]


def test_each_call_calibrates_before_the_first_measured_step(tmp_path):
    steps = [step("first"), CALIBRATE_QUICK, step("measured", needs_ceilings=True)]
    clock = Clock(10)
    call(tmp_path, steps, clock)
    assert clock.ran == ["first", "calibrate-quick", "measured"]
    clock = Clock(10)
    call(
        tmp_path,
        [*steps, step("more", needs_ceilings=True), step("last", needs_ceilings=True)],
        clock,
    )
    assert clock.ran == ["calibrate-quick", "more", "last"]


def test_exit_code_1_is_a_finding_unless_the_command_crashed():
    assert publish.state_of(1, "one row is wrong") == DONE
    assert publish.state_of(1, "Traceback (most recent call last):\n") == FAILED


def test_a_command_is_stopped_at_its_limit_with_its_children(tmp_path, monkeypatch):
    monkeypatch.setattr(publish, "GRACE_S", 0.2)
    code = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"]).pid, flush=True)
time.sleep(99)
"""
    exit_code, _ = publish.run([sys.executable, "-c", code], tmp_path, "long", 2.0)
    assert exit_code is None
    started = int((tmp_path / "long.out.txt").read_text())
    for _ in range(200):
        if (
            not psutil.pid_exists(started)
            or psutil.Process(started).status() == psutil.STATUS_ZOMBIE
        ):
            return
        time.sleep(0.05)
    pytest.fail("what the command started is still running")


def test_an_unknown_step_is_a_usage_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        publish.main(["--output", str(tmp_path), "--step", "nothing"])
    assert error.value.code == 2
    assert "unknown step 'nothing'" in capsys.readouterr().err
