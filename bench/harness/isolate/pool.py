"""Processes for users' functions and for compared cases: a function that harms its process loses its own row only.

A fork server (`server`) is started once. For each job it forks a child, which either imports a user's file and measures
one row with the same runner as this process, or runs a command of `bench` (`child`), which can be a new interpreter
too. A record comes back through a socket of the child's own as a length and JSON; what the child prints goes to a pipe,
apart from the record.

Nothing outlives this process: a child is killed with all that it has started when its job is done, when a call takes
too long, and, by the kernel and by the server, when its parent is gone. A child may kill its parent: that is the
server, which is started anew for the next job.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bench.harness.isolate.heartbeat import POLL_S, Heartbeat, Watchdog
from bench.harness.isolate.job import DEFAULT_TIMEOUT_S, FORK, LENGTH, PROCESS, WAIT, Job
from results.record import Record, RecordError

START_TIMEOUT_S = 300.0
"""Loading torch takes two seconds, on a busy machine with a cold disk a hundred times as long."""

KILL_TIMEOUT_S = 10.0
BUDGET_GRACE_S = 10.0
"""Time for importing, compiling and checking, on top of what is left of the budget."""

LONGEST_ANSWER = 2**30
KEPT_OUTPUT = 4096
"""Characters of what a child printed that are kept, the last ones."""

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from bench.harness.isolate.server import main; main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)
CHILD = "bench.harness.isolate.child"
"""Module that the server loads, with torch, where its children measure."""


class WorkerError(RuntimeError):
    """A process gave no answer; the message says in one line what became of it."""

    def __init__(self, message: str, status: str = "failed") -> None:
        super().__init__(message)
        self.status = status
        """What becomes of the record."""
        self.output = ""
        """What the process had printed."""


class Workers:
    """Forks a child for each job; the fork server is started when the first is asked for."""

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S, preload: str = CHILD) -> None:
        """Start nothing yet.

        Args:
            timeout_s: time that one call of a user's function may take, or its import, seconds.
            preload: module that the server loads; nothing where it is empty.
        """
        self.timeout_s, self._preload = timeout_s, preload
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._is_loaded = False

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes."""
        self.close()

    def close(self, wait_s: float = KILL_TIMEOUT_S) -> None:
        """End the server, and with it what it has forked; it is given `wait_s` seconds to do so by itself."""
        if self._control is not None:
            self._control.close()
        if self._server is not None:
            try:
                self._server.wait(wait_s)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
        self._server = self._control = None

    def measure(self, job: Job, blank: Record) -> Record:
        """Return the record of a row, `failed` where the child brings none.

        Args:
            job: the row.
            blank: its record with nothing measured.
        """
        from bench.harness.providers.user_kernel import find

        try:
            answer, output = self.ask(job)
            record = _record(answer, blank)
        except WorkerError as error:
            record, output = replace(blank, status=error.status, reason=str(error)), error.output
        if record.source_sha256 is None:
            record = replace(record, source_sha256=find(job.provider).sha256())
        return replace(record, output=output) if output else record

    def problem(self, job: Job) -> str | None:
        """Return why a provider cannot compute the ops of a job, or None: it is imported, and asked what it takes."""
        try:
            answer, _ = self.ask(job)
        except WorkerError as error:
            last = next((line.strip() for line in reversed(error.output.splitlines()) if line.strip()), "")
            said = f"; the last that it printed: {last[:100]}" if last else ""
            return f"provider '{job.provider}': importing it: {error}{said}"
        problem = answer.get("problem")
        return None if problem is None else str(problem)

    def ask(self, job: Job) -> tuple[dict[str, Any], str]:
        """Return the answer of a new child, and what it printed.

        Raises:
            WorkerError: there is none.
        """
        left_s = None
        if job.deadline is not None:
            left_s = max(0.0, job.deadline - time.perf_counter()) + BUDGET_GRACE_S
        end = time.monotonic() + (left_s or 0.0)
        with self.fork(job) as child:
            watchdog = Watchdog(child.heartbeat, self.timeout_s, "the import" if job.case is None else "a call")

            def check() -> None:
                if watchdog.is_over:
                    raise WorkerError(watchdog.reason)
                if left_s is not None and time.monotonic() > end:
                    raise WorkerError(f"no result after {left_s:.3g} s; --budget allows more")

            try:
                answer = child.answer(check)
            except WorkerError as error:
                child.kill()
                error.output = child.output
                raise
            return answer, child.output

    def fork(self, job: Job | list[str]) -> Worker:
        """Return a new child that has begun with a job, or with `python -m bench` and these arguments.

        Raises:
            WorkerError: no process can be started.
        """
        try:
            return self._fork(job)
        except (OSError, EOFError):  # an earlier child may have killed or stopped the server
            self.close(wait_s=0)
        try:
            return self._fork(job)
        except (OSError, EOFError) as error:
            self.close(wait_s=0)
            raise WorkerError(f"no worker process can be started: {error or type(error).__name__}") from None

    def _fork(self, job: Job | list[str]) -> Worker:
        """Return a new child; raises `OSError` or `EOFError` where the server does not answer."""
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        heartbeat, heartbeat_fd = Heartbeat.create_unnamed()
        try:
            control = self._ready()
            socket.send_fds(control, [FORK], [theirs.fileno(), write_end, heartbeat_fd])
            pid = PROCESS.unpack(_exactly(control, PROCESS.size))[0]
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            pidfd = os.pidfd_open(pid)
        except (OSError, EOFError):
            ours.close()
            os.close(read_end)
            raise
        finally:
            theirs.close()
            os.close(write_end)
            os.close(heartbeat_fd)
        return Worker(pid, pidfd, ours, read_end, heartbeat, self, pickle.dumps(job))

    def exit_status(self, pid: int) -> int:
        """Return the wait status of a child that has ended.

        Raises:
            OSError: the server that forked it does not answer, or it is gone.
            EOFError: likewise.
        """
        if self._control is None:
            raise EOFError("the fork server is gone")
        self._control.sendall(WAIT + PROCESS.pack(pid))
        return int(PROCESS.unpack(_exactly(self._control, PROCESS.size))[0])

    def start(self) -> socket.socket:
        """Start the server, which loads meanwhile, and return its socket."""
        ours, theirs = socket.socketpair()
        words = [json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()), self._preload]
        with theirs:
            # A session of its own: Ctrl-C on the terminal reaches this process only, which then ends the children.
            self._server = subprocess.Popen(
                [sys.executable, "-c", BOOT, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self._control, self._is_loaded = ours, False
        return ours

    def _ready(self) -> socket.socket:
        """Return the socket of the server, started and loaded."""
        control = self._control or self.start()
        if not self._is_loaded:
            control.settimeout(START_TIMEOUT_S)
            _exactly(control, 1)
            control.settimeout(KILL_TIMEOUT_S)
            self._is_loaded = True
        return control


class Running(Protocol):
    """A process that is watched, whatever the system has to start and watch one."""

    heartbeat: Heartbeat

    def wait(self, check: Callable[[], None]) -> object:
        """Wait until the process has ended; `check` raises `WorkerError` where it must be ended."""

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended, below 0 by a signal; None where its parent ended first."""

    @property
    def output(self) -> str:
        """The last lines that the process printed."""


class Worker:
    """One child of the fork server: its socket, its heartbeat, and what it prints."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        channel: socket.socket,
        output_fd: int,
        heartbeat: Heartbeat,
        workers: Workers,
        job: bytes,
    ) -> None:
        """Send the job."""
        self.heartbeat = heartbeat
        self._pid, self._pidfd, self._channel, self._output_fd = pid, pidfd, channel, output_fd
        self._workers = workers
        self._printed, self._received = bytearray(), bytearray()
        self._is_cut = False
        """Whether the first line that is kept is only the end of one."""
        with suppress(OSError):  # where nobody takes it any more, waiting for the answer will tell why
            channel.sendall(LENGTH.pack(len(job)) + job)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process and its children, and let go of it."""
        self.kill()
        for fd in (self._pidfd, self._output_fd):
            os.close(fd)
        self._channel.close()
        self.exit_code()

    @property
    def output(self) -> str:
        """The last lines that the process printed; a line that comes again and again is there once, with its count."""
        lines = bytes(self._printed).decode("utf-8", "replace").splitlines()
        counted = [(line, len(list(same))) for line, same in itertools.groupby(lines[self._is_cut :])]
        text = "\n".join(line if times == 1 else f"{line}  ({times} times)" for line, times in counted)
        return text[-KEPT_OUTPUT:].strip()

    def answer(self, check: Callable[[], None]) -> dict[str, Any]:
        """Wait for the next message and return it; `check` as of `wait`.

        Raises:
            WorkerError: the process has ended or been too late, or what it sent is no answer.
        """
        message = self.wait(check)
        if message is None:
            code = self.exit_code()
            if code is None or code < 0:
                raise WorkerError(how_it_ended(code))
            raise WorkerError(f"ended its process with exit code {code} before there was a result, as os._exit does")
        with suppress(ValueError):
            if isinstance(answer := json.loads(message), dict):
                return answer
        raise WorkerError("its worker sent no answer that can be read")

    def wait(self, check: Callable[[], None]) -> bytes | None:
        """Return the next message, or None where the process has ended without one.

        Args:
            check: called every `POLL_S`; raises `WorkerError` where the process must be ended.
        """
        poll = select.poll()
        for fd in (self._channel.fileno(), self._output_fd, self._pidfd):
            poll.register(fd, select.POLLIN)
        while (message := self._next_message()) is None:
            events = dict(poll.poll(POLL_S * 1e3))
            check()
            if self._output_fd in events and not self._read_output():
                poll.unregister(self._output_fd)
            if self._channel.fileno() in events and not self._read_channel():
                poll.unregister(self._channel.fileno())
            if self._pidfd in events:
                self._drain()
                return self._next_message()
        return message

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended, below 0 by a signal; None where its parent ended first."""
        try:
            return os.waitstatus_to_exitcode(self._workers.exit_status(self._pid))
        except (OSError, EOFError):
            return None

    def kill(self) -> None:
        """Kill the process group and wait for its end; its number is still its own, because it is not reaped."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(self._pid, signal.SIGKILL)
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll(KILL_TIMEOUT_S * 1e3)
        self._drain()

    def _drain(self) -> None:
        """Read what is still in the pipe and the socket."""
        for fd, read in ((self._output_fd, self._read_output), (self._channel.fileno(), self._read_channel)):
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while poll.poll(0) and read():
                pass

    def _read_output(self) -> bool:
        """Take what the process has printed; return False where the pipe is closed."""
        part = os.read(self._output_fd, 65536)
        self._printed += part
        if len(self._printed) > 4 * KEPT_OUTPUT:
            del self._printed[: -4 * KEPT_OUTPUT]
            self._is_cut = True
        return bool(part)

    def _read_channel(self) -> bool:
        """Take what the process has sent; return False where the socket is closed."""
        try:
            part = self._channel.recv(1 << 20)
        except OSError:
            return False
        self._received += part
        return bool(part)

    def _next_message(self) -> bytes | None:
        """Return the first message that is complete, None where there is none yet."""
        if len(self._received) < LENGTH.size:
            return None
        end = LENGTH.size + LENGTH.unpack_from(self._received)[0]
        if end > LONGEST_ANSWER:
            return b"null"
        if len(self._received) < end:
            return None
        message = bytes(self._received[LENGTH.size : end])
        del self._received[:end]
        return message


class PlainProcess:
    """A process on a system that has no fork server; no user's function runs there."""

    def __init__(self, words: Sequence[str], folder: Path) -> None:
        """Start `python -m bench` with these arguments; the files to watch it by go to `folder`."""
        path = folder / "heartbeat"
        self.heartbeat = Heartbeat.create(path)
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench", *words, "--heartbeat", str(path)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self) -> str:
        """What the process printed to stderr."""
        return self._errors.read_text("utf-8", "replace")

    def wait(self, check: Callable[[], None]) -> None:
        """Wait until the process has ended; `check` raises `WorkerError` where it must be ended."""
        while self._process.poll() is None:
            time.sleep(POLL_S)
            check()

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended."""
        return self._process.returncode

    def kill(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


_preloaded: Workers | None = None
"""The processes that `started` forks from inside `preloading`."""


@contextmanager
def preloading() -> Iterator[None]:
    """Inside this block `started` forks from a process that loads torch beforehand; it begins to load at once.

    Torch is then loaded there while this process loads it too; a new interpreter would begin only when it is needed.
    """
    global _preloaded
    from bench.harness.device.host import why_no_isolation

    if why_no_isolation() is not None:
        yield
        return
    with Workers() as _preloaded:
        _preloaded.start()
        try:
            yield
        finally:
            _preloaded = None


@contextmanager
def started(words: Sequence[str]) -> Iterator[Running]:
    """Run `python -m bench` with these arguments in a process that ends with the block at the latest.

    It is a new interpreter, or within `preloading` a fork of one that has loaded torch and run nothing of it.

    It is told its heartbeat by `--heartbeat PATH`.

    Raises:
        WorkerError: no process can be started.
    """
    from bench.harness.device.host import why_no_isolation

    if _preloaded is not None:
        with _preloaded.fork(list(words)) as child:
            yield child
        return
    if why_no_isolation() is None:
        with Workers(preload="") as workers, workers.fork(list(words)) as child:
            yield child
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows keeps a file that is mapped
        process = PlainProcess(words, Path(folder))
        try:
            yield process
        finally:
            process.kill()


def how_it_ended(code: int | None) -> str:
    """Return in words how a process ended that gave no answer; the code as of `Running.exit_code`."""
    if code is None:
        return "killed its parent process"
    if code >= 0:
        return f"ended the process with exit code {code}"
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if name == "SIGKILL":
        return f"killed by {name}, which the system does when memory runs out"
    return f"crashed: {name} ({(signal.strsignal(number) or 'no name').lower()})"


def _record(answer: dict[str, Any], blank: Record) -> Record:
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


def _exactly(channel: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes.

    Raises:
        EOFError: the other end is gone.
    """
    data = b""
    while len(data) < size:
        part = channel.recv(size - len(data))
        if not part:
            raise EOFError("the fork server is gone")
        data += part
    return data
