"""Runs a function in a new process, because a user's code may crash, never return, or end its
process.

Python's fork server (`multiprocessing`) loads torch, but uses no GPU, and forks each process into a
new session. The process and its children are killed after its answer, at a timeout, and when the
command ends, with SIGKILL too.
"""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, MutableSequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, TypeVar

import psutil

from bench.harness import clock
from bench.harness.device.device import NoDeviceError
from bench.harness.op import UsageError
from bench.harness.timing import protocol
from results.show.terminal import say

T = TypeVar("T")

PRELOADED = ["bench.harness.preload", "torch", "bench.harness.measure.isolated"]
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

LOST_PARENT = 255
"""Exit code that `multiprocessing` returns if the fork server ended before its child."""


class WorkerError(RuntimeError):
    """A process gave no answer; `index` is that of the provider whose code was running, None for
    the measuring code.
    """

    output = ""
    """End of what the process printed."""

    def __init__(self, reason: str, index: int | None = None) -> None:
        super().__init__(reason)
        self.index = index


def start_server() -> None:
    """Start the fork server unless it runs; it loads torch in the background."""
    from multiprocessing import forkserver  # not on Windows

    multiprocessing.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


def call(
    function: Callable[..., T],
    *arguments: Any,
    timeout_s: float,
    deadline: float | None = None,
    step: str = "a call",
) -> tuple[T, str]:
    """Return `function(*arguments)`, computed in a new process, and the end of the process's
    output.

    Args:
        function: top-level function whose result can be pickled.
        arguments: its arguments, which can be pickled.
        timeout_s: time limit between two calls of `protocol.announce`.
        deadline: reading of `clock.now`; the process is killed `BUDGET_GRACE_S` later.
        step: name of the timed step in the error of a timeout.

    Raises:
        WorkerError: no answer.
        UsageError, NoDeviceError: raised by the function.
    """
    worker = _Worker(function, arguments)
    left_s = float("inf")
    if deadline is not None:
        left_s = max(0.0, deadline - clock.now()) + BUDGET_GRACE_S
    try:
        answer: T = worker.answer(timeout_s, left_s, step)
    except WorkerError as error:
        error.index = worker.progress[0] if worker.progress[1] else None
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
    worker = _Worker(function, arguments)
    try:
        while (item := worker.answer(float("inf"), limit_s(), "the process")) is not None:
            yield item
    finally:
        worker.end()


class _Worker:
    """A process, its progress, and the pipes for its answer and its output."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("forkserver")
        self.progress = context.RawArray("q", 3)
        self._answers, answers = context.Pipe(duplex=False)
        self._output, output = context.Pipe(duplex=False)
        self._printed = bytearray()
        work = pickle.dumps((function, arguments))  # unpickled after the output is redirected
        given = (work, self.progress, answers, output, dict(os.environ))
        self._process = context.Process(target=_run, args=given)
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            start_server()
            self._process.start()  # with a main module, which the new process would import
        except (OSError, EOFError) as error:
            raise WorkerError(
                f"cannot start a worker process: {error or type(error).__name__}"
            ) from None
        finally:
            sys.modules["__main__"] = main
            answers.close()
            output.close()

    def answer(self, timeout_s: float, left_s: float, step: str) -> Any:
        began = since = now = clock.now()
        last = list(self.progress)
        while now - began <= left_s:
            outputs = [] if self._output.closed else [self._output]
            ready = connection.wait([self._answers, self._process.sentinel, *outputs], POLL_S)
            if self._output in ready:
                self._read_output()
            if self._answers in ready or self._process.sentinel in ready:
                return self._received()
            now = clock.now()
            if (progress := list(self.progress)) != last:
                last = progress
                since = now
            if now - since > (timeout_s if last[1] else max(timeout_s, OWN_TIMEOUT_S)):
                raise WorkerError(
                    f"{step} did not end within {timeout_s:.3g} s; increase --timeout"
                )
        raise WorkerError(f"no result after {left_s:.2g} s; increase --budget")

    def _received(self) -> Any:
        with suppress(EOFError, OSError):  # it was killed while it sent
            if self._answers.poll():
                answer = self._answers.recv()
                if isinstance(answer, Exception):
                    raise answer
                return answer
        self._process.join(KILL_TIMEOUT_S)
        raise WorkerError(how_it_ended(self._process.exitcode))

    def end(self) -> str:
        """Kill the process and its children; return the end of its output."""
        assert self._process.pid is not None
        kill_tree(self._process.pid)
        self._process.join(KILL_TIMEOUT_S)
        while not self._output.closed and self._output.poll():
            self._read_output()
        self._output.close()
        self._answers.close()
        return self._printed.decode("utf-8", "replace")[-MAX_OUTPUT:].strip()

    def _read_output(self) -> None:
        part = os.read(self._output.fileno(), 65536)
        if not part:
            self._output.close()
        self._printed += part
        del self._printed[: -4 * MAX_OUTPUT]


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
    faulthandler.enable()
    function, arguments = pickle.loads(work)
    try:
        answer = function(*arguments)
        if isinstance(answer, Generator):
            for item in answer:
                answers.send(item)
            answer = None
        answers.send(answer)
    except (WorkerError, UsageError, NoDeviceError) as error:
        answers.send(error)
    with suppress(Exception):
        sys.stdout.flush()
    signal.pause()  # its children can be found only while it runs
    os._exit(0)


def kill_tree(pid: int) -> None:
    """Kill a process, its group, and its descendants, which may be in other groups."""
    processes = []
    with suppress(psutil.NoSuchProcess):
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for process in processes:
        with suppress(psutil.Error):
            process.kill()


def signal_on_parent_exit(number: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


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
