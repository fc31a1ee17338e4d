"""Worker processes end with their parent, however it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import commands
from tests.bench.process_checks import descendants, is_running, soon, usual_signals

ROOT = Path(__file__).resolve().parents[1]
START_S, END_S = 240, 60
"""Time limits for workers to start and to end, generous for a busy machine."""

ENDINGS = [signal.SIGKILL, signal.SIGINT]


@pytest.fixture
def started(tmp_path):
    """Return a function that starts `python WORDS`; remaining processes are killed after the
    test.
    """
    running = []

    def start(*words, **variables):
        with usual_signals():
            process = subprocess.Popen(
                [sys.executable, *map(str, words)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
                stdout=subprocess.DEVNULL,
                stderr=(tmp_path / "errors").open("w"),
                start_new_session=True,
            )
        running.append(process)
        return process

    yield start
    for process in running:
        for pid in [process.pid, *descendants(process.pid)] if process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        process.wait()


def ends_with_all(process, how, at_work):
    """End a process once its workers are at work; return the workers that outlive it."""
    assert soon(lambda: process.poll() is not None or at_work(), START_S)
    assert process.poll() is None
    workers = descendants(process.pid)
    assert workers
    process.send_signal(how)
    process.wait(END_S)
    soon(lambda: not any(map(is_running, workers)), END_S)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


def errors(tmp_path):
    return (tmp_path / "errors").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", ENDINGS)
def test_an_interrupted_audit_leaves_no_process(started, tmp_path, how):
    process = started("-m", "kernels", "audit", "--all", TRITON_CACHE_DIR=str(tmp_path))
    assert ends_with_all(process, how, lambda: "compiled " in errors(tmp_path)) == []
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert errors(tmp_path).splitlines()[-1] == "python -m kernels audit: interrupted"
        assert "Traceback" not in errors(tmp_path)


USERS = """
import os, pathlib, subprocess, sys, time

def gelu(x):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    pathlib.Path(os.environ["AT_WORK"]).touch()
    time.sleep(1000)
"""  # noqa: E501


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("command", "how"), [("bench.elementwise", signal.SIGKILL), ("bench compare", signal.SIGTERM)]
)
def test_processes_of_a_user_function_end_with_the_command(started, runs, tmp_path, command, how):
    commands.keep_ceilings(runs)
    file, at_work = tmp_path / "mine.py", tmp_path / "at work"
    file.write_text(USERS)
    words = [
        "--op",
        "gelu",
        "--dtype",
        "fp32",
        "--shape",
        "4096",
        "--cache",
        "warm",
        "--device",
        "cpu",
    ]
    words += ["--provider", f"torch,{file}:gelu", "--timeout", "600", "--no-save"]
    process = started("-m", *command.split(), *words, AT_WORK=str(at_work))
    assert ends_with_all(process, how, at_work.exists) == []
