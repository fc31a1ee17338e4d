"""One command in a process group of its own, with a limit of time, and nothing of it left behind."""

import os
import secrets
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.harness.isolate.server import die_with

GRACE_S = 20.0
"""What a command gets after Ctrl-C, to end a launch, print its table and draw its picture; pytest, to report."""

MARK = "RIDGEPOINT_PUBLISHED_STEP"
"""Variable that a step's processes inherit, also those that leave its process group for a session of their own."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    wall_s: float
    by: str
    """`itself`, `limit`, or `interrupt` for a Ctrl-C of the user's."""


def run(command, folder, environment, limit_s, grace_s):
    """Run a command in `folder`, stdout and stderr into files there, and return how it ended.

    When `limit_s` is over it gets a Ctrl-C, `grace_s` later it is killed. A Ctrl-C of the user's does the same to it.
    Processes that it leaves behind are killed in any case, and all die with this one.
    """
    token = secrets.token_hex(8)
    began = time.perf_counter()
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as errors:
        process = _start(command, folder, environment | {MARK: token}, out, errors)
    by = "itself"
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        by = "limit"
    except KeyboardInterrupt:
        by = "interrupt"
    with undisturbed():
        if by != "itself":
            _interrupt(process, grace_s)
        _kill(process.pid, token)
        process.wait()
    return Ended(process.returncode, time.perf_counter() - began, by)


def _start(command, folder, environment, out, errors):
    parent = os.getpid()
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=errors,
        start_new_session=True,
        preexec_fn=lambda: _prepare(parent),
    )


def _prepare(parent):
    """In the new process: it dies with its parent, and Ctrl-C reaches it also where this process was to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(parent)


def _interrupt(process, grace_s):
    """Press Ctrl-C for the whole group, and wait for its end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)


def _kill(group, token):
    """Kill what is left of a group, and every process that carries the mark of its step."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    for _ in range(5):  # one that is just being born may be missed once
        found = marked(token)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.02)


def marked(token):
    """Return the ids of the processes that carry the mark of a step and still run."""
    wanted = f"{MARK}={token}".encode()
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and wanted in _environment(entry).split(b"\0")
    ]


def _environment(entry):
    try:
        return (entry / "environ").read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return b""


@contextmanager
def undisturbed():
    """Within it a further Ctrl-C changes nothing: who is impatient would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
