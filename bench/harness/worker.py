"""Runs a function in a new process, because a user's code may crash, never return, or end its
process.

Python's fork server (`multiprocessing`) loads torch, but uses no GPU, and forks each process into a
new session. The process and its descendants are killed after its answer, at a timeout, and when the
command ends, with SIGKILL too. Descendants whose parents have ended are found by an environment
variable.

A process answers with lines of JSON, which are checked against the return type of its function, so
that an answer forged by a user's code costs only its own row.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import math
import multiprocessing
import os
import pickle
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, MutableSequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from multiprocessing import connection, resource_tracker, util
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import msgspec
import psutil

from bench.harness import clock
from bench.harness.device.device import NoDeviceError
from bench.harness.op import UsageError
from bench.harness.timing import protocol
from results.record import Environment, Record, RecordError
from results.show.terminal import say
from results.show.units import duration

T = TypeVar("T")

PRELOADED = [
    "bench.harness.preload",
    "torch",
    "scipy.special",
    "bench.harness.measure.isolated",
]
"""Modules that the fork server loads, so that a process starts within milliseconds."""

OWN_TIMEOUT_S = 600.0
"""Time limit of the measuring code between two calls: it may fill gigabytes and check them in
fp64.
"""

BUDGET_GRACE_S = 10.0
"""Time to import, compile and check after the end of the budget."""

POLL_S = 0.05
"""Interval of progress checks: long enough not to disturb the measurement."""

KILL_TIMEOUT_S = 10.0

MAX_OUTPUT = 4096
"""Last characters of a process's output that are saved."""

PR_SET_PDEATHSIG = 1
"""`prctl` option: the signal that a process gets when its parent ends. Source: prctl(2)."""

COMMAND = "ROOFMARK_COMMAND"
"""Environment variable of the fork server and of all its descendants: see `mark`."""

CLOCK_MARGIN = 0.2
CLOCK_MARGIN_S = 0.1
"""The sum of a row's samples may differ from the time that passed on the command's clock by this
fraction of it plus this time: the process also reads counters between samples, and a busy machine
delays both processes.
"""

SAMPLE_OVERHEAD_S = 2e-4
"""Time between two samples that is not in their sum. It counts if a sample is a single short
launch, because the first launches were slow.
"""

KILLED = re.compile(b"^ShdPnd:.*[13579bdf]..$", re.MULTILINE)
"""Line of `/proc/PID/status` if SIGKILL is pending: the ninth bit of a hexadecimal number. Source:
proc_pid_status(5).
"""

LOST_PARENT = 255
"""Exit code that `multiprocessing` returns if the fork server ended before its child."""


class WorkerError(RuntimeError):
    """A process gave no answer; `index` is that of the provider whose code ran last."""

    output = ""
    """End of what the process printed."""

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason)
        self.index = index


class ClockError(WorkerError):
    """The samples of a process do not add up to the time that passed."""


class _Reply(msgspec.Struct):
    """A line from a process: an answer, an error, or the sum of the samples since the last one."""

    answer: Any = None
    error: Literal["WorkerError", "UsageError", "NoDeviceError"] | None = None
    reason: str = ""
    sampled_s: float | None = None
    """0 before the first sample."""
    samples: int = 0


def start_server() -> None:
    """Start the fork server unless it runs; it loads torch in the background.

    Raises:
        UsageError: this process may not start others.
    """
    from multiprocessing import forkserver  # not on Windows

    if multiprocessing.current_process().daemon:
        raise UsageError(
            "a daemonic process, as of multiprocessing.Pool, cannot start the process that this "
            "needs; use concurrent.futures.ProcessPoolExecutor"
        )
    multiprocessing.set_forkserver_preload(PRELOADED)
    resource_tracker.ensure_running()  # before it would inherit the mark
    outer = os.environ.get(COMMAND)
    os.environ[COMMAND] = mark()
    try:
        forkserver.ensure_running()
    finally:
        del os.environ[COMMAND]
        if outer is not None:
            os.environ[COMMAND] = outer


def mark() -> str:
    """Return the process number of this command and its directory of temporary files, empty if that
    belongs to the process that started this one.
    """
    is_own = multiprocessing.parent_process() is None
    return f"{os.getpid()}:{util.get_temp_dir() if is_own else ''}"


def call(
    function: Callable[..., T],
    *arguments: Any,
    timeout_s: float,
    deadline: float = math.inf,
    step: str = "a call",
) -> tuple[T, str]:
    """Return `function(*arguments)`, computed in a new process, and the end of the process's
    output.

    Args:
        function: top-level function whose return type msgspec can check.
        arguments: its arguments, which can be pickled.
        timeout_s: time limit between two calls of `protocol.announce`.
        deadline: reading of `clock.now`; the process is killed `BUDGET_GRACE_S` later.
        step: name of the timed step in the error of a timeout.

    Raises:
        WorkerError: no answer, or one of another type.
        ClockError: its samples do not add up to the time that passed.
        UsageError, NoDeviceError: raised by the function.
    """
    worker = _Worker(function, arguments, get_type_hints(function).get("return", Any))
    left_s = max(0.0, deadline - clock.now()) + BUDGET_GRACE_S
    try:
        answer: T = worker.answer(timeout_s, left_s, step)
    except WorkerError as error:
        error.index = worker.progress[0]
        error.output = worker.end()
        raise
    except (UsageError, NoDeviceError):  # what it printed may say more
        for line in dict.fromkeys(worker.end().splitlines()):
            say(line)
        raise
    except BaseException:
        worker.end()
        raise
    return answer, worker.end()


def stream(
    function: Callable[..., Iterator[T]], *arguments: Any, limit_s: Callable[[], float]
) -> Iterator[T]:
    """Yield the items of a generator that runs in a new process, as they come.

    `limit_s()` is the time limit of the next item, seconds.

    Raises:
        WorkerError: no next item, and the generator has not ended.
    """
    kind = get_args(get_type_hints(function).get("return", Iterator[Any]))[0]
    worker = _Worker(function, arguments, kind | None)
    try:
        while (item := worker.answer(float("inf"), limit_s(), "the process")) is not None:
            yield item
    finally:
        worker.end()


class _Worker:
    """A process, its progress, and the pipes for its answers, of type `kind`, and its output."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], kind: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        self.progress = context.RawArray("q", 3)
        self._answers, answers = context.Pipe(duplex=False)
        self._output, output = context.Pipe(duplex=False)
        self._kind = kind
        self._line = b""
        """Start of a line whose end has not arrived."""
        self._replies = deque[_Reply]()
        self._sampling_since = 0.0
        self._printed = b""
        work = pickle.dumps((function, arguments))  # unpickled after the output is redirected
        environment = os.environ | {COMMAND: mark()}
        given = (work, self.progress, answers, output, environment)
        self._process = context.Process(target=_run, args=given)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            with suppress(OSError, EOFError):  # a function may have killed the fork server just now
                self._start()
            if self._process.pid is None:
                time.sleep(POLL_S)
                self._start()
        except (OSError, EOFError) as error:
            raise WorkerError(
                f"cannot start a worker process: {error or type(error).__name__}"
            ) from None
        finally:
            sys.modules["__main__"] = main
            answers.close()
            output.close()

    def _start(self) -> None:
        start_server()
        self._process.start()  # with a main module, which the new process would import

    def answer(self, timeout_s: float, left_s: float, step: str) -> Any:
        began = since = now = clock.now()
        last = list(self.progress)
        while now - began <= left_s:
            if self._replies:
                return self._checked(self._replies.popleft())
            pipes = [pipe for pipe in (self._answers, self._output) if not pipe.closed]
            ready = connection.wait([self._process.sentinel, *pipes], POLL_S)
            if self._output in ready:
                self._read_output()
            if self._answers in ready:
                self._read_replies()
            elif self._process.sentinel in ready:
                self._process.join(KILL_TIMEOUT_S)
                raise WorkerError(how_it_ended(self._process.exitcode))
            now = clock.now()
            progress = list(self.progress)
            if progress != last:
                last = progress
                since = now
            if now - since > (timeout_s if last[1] else max(timeout_s, OWN_TIMEOUT_S)):
                raise WorkerError(
                    f"{step} did not end within {timeout_s:.3g} s; increase --timeout"
                )
        raise WorkerError(f"no result after {left_s:.2g} s; increase --budget")

    def _read_replies(self) -> None:
        *lines, self._line = (self._line + part_of(self._answers)).split(b"\n")
        for line in lines:
            try:
                reply = msgspec.convert(json.loads(line), _Reply)
            except (ValueError, RecursionError, msgspec.MsgspecError) as error:
                raise WorkerError(f"sent an answer that cannot be read: {error}"[:200]) from None
            if reply.sampled_s is None:
                self._replies.append(reply)
            else:
                now = clock.now()
                if reply.sampled_s:
                    check_clock(reply.sampled_s, reply.samples, now - self._sampling_since)
                self._sampling_since = now

    def _checked(self, reply: _Reply) -> Any:
        if reply.error is not None:
            raise ERRORS[reply.error](reply.reason)
        try:
            answer = msgspec.convert(reply.answer, self._kind)
            for line in lines_in(answer):
                line.from_dict(line.to_dict())
        except (msgspec.MsgspecError, RecordError) as error:
            raise WorkerError(f"sent an answer of another type: {error}"[:200]) from None
        return answer

    def end(self) -> str:
        """Kill the process and its descendants; return the end of its output."""
        assert self._process.pid is not None
        kill_tree(self._process.pid)
        for pid in orphans(mark()):
            kill_tree(pid)
        self._process.join(KILL_TIMEOUT_S)
        while not self._output.closed and self._output.poll():
            self._read_output()
        self._output.close()
        self._answers.close()
        return self._printed.decode("utf-8", "replace")[-MAX_OUTPUT:].strip()

    def _read_output(self) -> None:
        self._printed = (self._printed + part_of(self._output))[-4 * MAX_OUTPUT :]


def part_of(pipe: Connection) -> bytes:
    """Return what a pipe holds, up to 64 KiB; close it if there is no more to come."""
    part = os.read(pipe.fileno(), 65536)
    if not part:
        pipe.close()
    return part


def plain(value: object) -> Any:
    """Return a dataclass or a Struct as JSON can hold it, without what a dataclass has cached."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    if not is_dataclass(value):
        raise TypeError(f"a {type(value).__name__} has no form in JSON")
    return {each.name: getattr(value, each.name) for each in fields(value)}


def lines_in(answer: Any) -> Iterator[Environment | Record]:
    """Yield the records and environments of an answer."""
    if isinstance(answer, Environment | Record):
        yield answer
    elif type(answer) in (list, tuple):  # a `CountedStep` has no lines of a run
        for part in answer:
            yield from lines_in(part)


def check_clock(sampled_s: float, samples: int, passed_s: float) -> None:
    """Raise `ClockError` unless samples of `sampled_s` together fill the time that passed."""
    allowed_s = CLOCK_MARGIN * passed_s + CLOCK_MARGIN_S + SAMPLE_OVERHEAD_S * samples
    if abs(passed_s - sampled_s) > allowed_s:
        raise ClockError(
            f"its samples add up to {duration(sampled_s)}, but took {duration(passed_s)}: it or a "
            "library changed how they are timed"
        )


def _run(
    work: bytes,
    progress: MutableSequence[int],
    answers: Connection,
    output: Connection,
    environment: Mapping[str, str],
) -> None:
    """In the new process: send the result of a function, then wait to be killed."""
    protocol.progress = progress
    signal_on_parent_exit(signal.SIGKILL)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Its locks have no names, which a killed process leaves.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.clear()  # the fork server may have started with another environment
    os.environ.update(environment)
    for number, name in enumerate(("stdout", "stderr"), start=1):
        os.dup2(output.fileno(), number)
        setattr(
            sys,
            name,
            open(number, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False),  # noqa: SIM115
        )
    output.close()
    for path in Path("/dev/fd").iterdir():  # programs would keep pipes of the command open
        with suppress(OSError):
            os.set_inheritable(int(path.name), int(path.name) <= 2)
    faulthandler.enable()
    lines = open(answers.fileno(), "w", closefd=False)  # noqa: SIM115

    def send(**reply: Any) -> None:
        try:
            line = json.dumps(reply, default=plain)
        except (TypeError, ValueError, RecursionError) as error:
            line = json.dumps(
                {"error": "WorkerError", "reason": f"its answer cannot be sent: {error}"}
            )
        print(line, file=lines, flush=True)

    protocol.report = lambda sampled_s, samples: send(sampled_s=sampled_s, samples=samples)
    function, arguments = pickle.loads(work)
    try:
        answer = function(*arguments)
        if isinstance(answer, Generator):
            for item in answer:
                send(answer=item)
            answer = None
        send(answer=answer)
    except tuple(ERRORS.values()) as error:
        name = next(name for name, kind in ERRORS.items() if isinstance(error, kind))
        send(error=name, reason=str(error))
    with suppress(Exception):
        sys.stdout.flush()
    signal.pause()  # its children can be found only while it runs
    os._exit(0)


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants, except those whose parents have ended."""
    processes = []
    with suppress(psutil.NoSuchProcess):
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def orphans(command: str) -> list[int]:
    """Return the descendants of the fork server of a command whose parents have ended: they forked
    twice, or survived their worker.
    """
    from multiprocessing import forkserver  # not on Windows

    entry = os.fsencode(f"{COMMAND}={command}\0")
    parents = {}
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if entry in Path(f"/proc/{pid}/environ").read_bytes():
                parents[pid] = psutil.Process(pid).ppid()
    # The command or the fork server; the first process of a container is the parent of orphans too.
    own = (os.getpid(), getattr(forkserver._forkserver, "_forkserver_pid", None))
    return [pid for pid, by in parents.items() if by not in parents and pid not in own]


def signal_on_parent_exit(number: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


ERRORS = {kind.__name__: kind for kind in (WorkerError, UsageError, NoDeviceError)}
"""Errors that a process reports by name."""


def end_with_parent() -> None:
    """Wait to be killed if a function has killed the fork server, which takes 10 ms to end: else
    another function would be blamed.
    """
    with suppress(OSError):
        status = Path(f"/proc/{os.getppid()}/status").read_bytes()
        if KILLED.search(status):
            time.sleep(KILL_TIMEOUT_S)


def how_it_ended(code: int | None) -> str:
    """Return as text how a process ended; a negative `code` is a signal."""
    if code is None or code == LOST_PARENT:
        return "killed its parent process"
    if code >= 0:
        return (
            f"ended its process with exit code {code} before there was a result, as with os._exit"
        )
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as when memory runs out"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"crashed: {name} ({(signal.strsignal(-code) or 'no name').lower()})"
