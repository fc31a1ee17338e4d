"""Processes for users' functions: a function that harms its process loses its own row only.

Each job runs in a process that Python's fork server (`multiprocessing`) forks, in a session of its own. What it prints
goes to a pipe, apart from its answer. The process and all that it has started are killed when its job is done and when
a call takes too long; when this process ends, the kernel and the fork server kill them.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import connection, forkserver
from types import ModuleType
from typing import Any

from bench.harness.isolate.heartbeat import NOBODY, POLL_S, Heartbeat, Watchdog
from bench.harness.isolate.job import DEFAULT_TIMEOUT_S, Job
from results.record import Record, RecordError

SERVER = "bench.harness.isolate.server"
"""Module that the fork server loads, after torch."""

KILL_TIMEOUT_S = 10.0
BUDGET_GRACE_S = 10.0
"""Time for importing, compiling and checking, on top of what is left of the budget."""

LONGEST_ANSWER = 2**30
KEPT_OUTPUT = 4096
"""Characters of what a child printed that are kept, the last ones."""

UNKNOWN_EXIT = 255
"""What `multiprocessing` returns if the fork server has ended before its child."""


class WorkerError(RuntimeError):
    """A process gave no answer; the message says in one line why."""

    output = ""
    """What the process had printed."""
    place: int | None = None
    """The provider whose code was running."""


def start_server() -> None:
    """Start the process that children are forked from, unless it runs already; it begins to load torch at once."""
    with _without_main():
        multiprocessing.set_forkserver_preload(["torch", SERVER])
        forkserver.ensure_running()


@contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module, which `multiprocessing` would import again in each child."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


class Workers:
    """Runs each job in a new process."""

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Start nothing yet; one call of a user's function may take `timeout_s` seconds, or its import."""
        self.timeout_s = timeout_s

    def measure(self, job: Job, blank: Record) -> Record:
        """Return the record of a row, `failed` if the child brings none.

        Args:
            job: the row.
            blank: its record with nothing measured.
        """
        from bench.harness.isolate.child import measure_row
        from bench.harness.providers.user_kernel import find, is_user_kernel

        try:
            answer, output = self.ask(measure_row, job, deadline=job.deadline)
            if answer.get("provider") in job.stand_ins:
                blank = replace(blank, provider=answer["provider"])
            record = record_of(answer, blank)
        except WorkerError as error:
            record, output = replace(blank, status="failed", reason=str(error)), error.output
        if record.source_sha256 is None and is_user_kernel(job.provider):
            record = replace(record, source_sha256=find(job.provider).sha256())
        return replace(record, output=output) if output else record

    def problem(self, job: Job) -> str | None:
        """Return why a provider cannot compute the op of a job, or None: it is imported, and asked what it takes."""
        from bench.harness.isolate.child import load_problem

        try:
            answer, _ = self.ask(load_problem, job, what="the import")
        except WorkerError as error:
            last = next((line.strip() for line in reversed(error.output.splitlines()) if line.strip()), "")
            said = f"; the last that it printed: {last[:100]}" if last else ""
            return f"provider '{job.provider}': importing it: {error}{said}"
        problem = answer.get("problem")
        return None if problem is None else str(problem)

    def ask(
        self, work: Any, *arguments: Any, deadline: float | None = None, what: str = "a call"
    ) -> tuple[dict[str, Any], str]:
        """Return the answer of `work(heartbeat, *arguments)` in a new process, and what that printed.

        Args:
            work: a function at the top level of its module that returns JSON as bytes.
            arguments: of it, which can be pickled.
            deadline: reading of `time.perf_counter`; some seconds later the process is killed.
            what: what may take as long as the timeout.

        Raises:
            WorkerError: there is none.
        """
        began = time.perf_counter()
        left_s = math.inf if deadline is None else max(0.0, deadline - began) + BUDGET_GRACE_S
        child = _Child(work, arguments)
        watchdog = Watchdog(child.heartbeat, self.timeout_s, what)
        try:
            while (message := child.wait(POLL_S)) is None:
                if watchdog.is_over:
                    raise WorkerError(watchdog.reason)
                if time.perf_counter() - began > left_s:
                    raise WorkerError(f"no result after {left_s:.2g} s; --budget allows more")
            with suppress(ValueError):
                if isinstance(answer := json.loads(message), dict):
                    child.end()
                    return answer, child.output
            raise WorkerError("its worker sent no answer that can be read")
        except WorkerError as error:
            error.place = child.heartbeat.place
            child.end()
            error.output = child.output
            raise
        finally:
            child.end()


class _Child:
    """A process with its heartbeat, the pipe of its answer, and the pipe of what it prints."""

    def __init__(self, work: Any, arguments: Sequence[Any]) -> None:
        """Start it.

        Raises:
            WorkerError: no process can be started.
        """
        from bench.harness.isolate.child import run_child

        context = multiprocessing.get_context("forkserver")
        memory = context.RawArray("B", [NOBODY, 0])
        self.heartbeat, self._printed = Heartbeat(memory), bytearray()
        self._answers, answers = context.Pipe(duplex=False)
        self._output, output = context.Pipe(duplex=False)
        given = (work, arguments, memory, answers, output, dict(os.environ))
        self._process = context.Process(target=run_child, args=given)
        try:
            start_server()
            with _without_main():
                self._process.start()
        except (OSError, EOFError) as error:
            raise WorkerError(f"no worker process can be started: {error or type(error).__name__}") from None
        finally:
            answers.close()
            output.close()

    def wait(self, timeout_s: float) -> bytes | None:
        """Return the answer, or None if there is none yet.

        Raises:
            WorkerError: the process has ended without one, or the answer is damaged.
        """
        open_pipes = [pipe for pipe in (self._answers, self._output) if not pipe.closed]
        ready = connection.wait([*open_pipes, self._process.sentinel], timeout_s)
        if self._output in ready and not self._read_output():
            self._output.close()
        if self._answers in ready:
            with suppress(EOFError):
                return self._answers.recv_bytes(LONGEST_ANSWER)
        if self._answers in ready or self._process.sentinel in ready:
            self._process.join(KILL_TIMEOUT_S)
            raise WorkerError(how_it_ended(self._process.exitcode))
        return None

    def end(self) -> None:
        """Kill the process and all that it has started, and read the rest of what was printed."""
        if self._process.pid is None or self._answers.closed:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join(KILL_TIMEOUT_S)
        while not self._output.closed and self._output.poll() and self._read_output():
            pass
        self._output.close()
        self._answers.close()

    def _read_output(self) -> bool:
        """Take what was printed; return False at its end."""
        part = os.read(self._output.fileno(), 65536)
        self._printed += part
        del self._printed[: -4 * KEPT_OUTPUT]
        return bool(part)

    @property
    def output(self) -> str:
        """The end of what the process printed."""
        return self._printed.decode("utf-8", "replace")[-KEPT_OUTPUT:].strip()


def how_it_ended(code: int | None) -> str:
    """Return as text how a process ended that gave no answer; `code` is below 0 for a signal."""
    if code is None or code == UNKNOWN_EXIT:
        return "killed its parent process"
    if code >= 0:
        return f"ended its process with exit code {code} before there was a result, as os._exit does"
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if name == "SIGKILL":
        return f"killed by {name}, which the system does when memory runs out"
    return f"crashed: {name} ({(signal.strsignal(number) or 'no name').lower()})"


def record_of(answer: dict[str, Any], blank: Record) -> Record:
    """Return the record that a worker has sent, which must be of the row asked for.

    Raises:
        WorkerError: it is none, or the worker says that it has none.
    """
    if "failed" in answer:
        raise WorkerError(str(answer["failed"])[:300])
    try:
        record = Record.from_dict(answer)
    except RecordError as error:
        raise WorkerError(f"its worker sent no record: {error}") from None
    keys = ("op", "provider", "dtype", "case", "flops", "bytes_read", "bytes_written", "fill")
    if any(getattr(record, key) != getattr(blank, key) for key in keys):
        raise WorkerError("its worker sent the record of another row")
    if record.op_sha256 != blank.op_sha256:
        raise WorkerError(f"the definition of {blank.op} in its file was changed during the run; start it again")
    return record
