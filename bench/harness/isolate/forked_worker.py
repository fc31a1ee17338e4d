"""One worker as its parent sees it: its socket, what it prints, how long it takes, and how it ended."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import select
import signal
import socket
import struct
import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bench.harness.isolate.heartbeat import POLL_S, Patience, TurnFile

if TYPE_CHECKING:
    from bench.harness.isolate.worker import Job, Workers

KILL_TIMEOUT_S = 10.0
LENGTH = struct.Struct("!Q")
LONGEST_ANSWER = 2**30
KEPT_OUTPUT = 4096
"""Characters of what a worker printed that are kept, the last ones."""


class WorkerError(RuntimeError):
    """A worker gave no answer; the message says in one line what became of it."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


class Worker:
    """One forked process, its socket and what it prints."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        channel: socket.socket,
        output_fd: int,
        turns: TurnFile,
        workers: Workers,
        job: Job,
    ) -> None:
        """Send the job."""
        self.pid, self._pidfd, self._channel, self._output_fd = pid, pidfd, channel, output_fd
        self._turns, self._workers = turns, workers
        self._work = "the import" if job.case is None else "a call"
        self._printed = bytearray()
        self._received = bytearray()
        self._is_cut = False
        """Whether the first line that is kept is only the end of one."""
        self.tell(pickle.dumps(job))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process and all that it has started."""
        self.close()

    @property
    def output(self) -> str:
        """The last lines that the process printed; a line that comes again and again is there once, with its count."""
        lines = bytes(self._printed).decode("utf-8", "replace").splitlines()
        counted = [(line, len(list(same))) for line, same in itertools.groupby(lines[self._is_cut :])]
        text = "\n".join(line if times == 1 else f"{line}  ({times} times)" for line, times in counted)
        return text[-KEPT_OUTPUT:].strip()

    def tell(self, message: bytes) -> None:
        """Send a message; where nobody takes it any more, the next answer will tell why."""
        with suppress(OSError):
            self._channel.sendall(LENGTH.pack(len(message)) + message)

    def answer(self, timeout_s: float, left_s: float | None = None) -> dict[str, Any]:
        """Wait for the next message and return it.

        Args:
            timeout_s: seconds that one call of the user's function, or its import, may take.
            left_s: seconds that all of it may take; None without a limit.

        Raises:
            WorkerError: the process has ended or been too late, or what it sent is no answer.
        """
        patience, end = Patience(self._turns, timeout_s, self._work), time.monotonic() + (left_s or 0.0)
        poll = select.poll()
        for fd in (self._channel.fileno(), self._output_fd, self._pidfd):
            poll.register(fd, select.POLLIN)
        while (message := self._next_message()) is None:
            events = dict(poll.poll(POLL_S * 1e3))
            if patience.is_over:
                raise WorkerError(patience.reason, self._stopped())
            if left_s is not None and time.monotonic() > end:
                raise WorkerError(f"no result after {left_s:.3g} s; --budget allows more", self._stopped())
            if self._output_fd in events and not self._read_output():
                poll.unregister(self._output_fd)
            if self._channel.fileno() in events and not self._read_channel():
                poll.unregister(self._channel.fileno())
            if self._pidfd in events:
                self._drain()
                if (message := self._next_message()) is None:
                    raise WorkerError(self._how_it_ended(), self._stopped())
                break
        try:
            answer = json.loads(message)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise WorkerError("its worker sent no answer that can be read", self._stopped())
        return answer

    def close(self) -> None:
        """Kill the process and its children, and let go of it."""
        if self._pidfd < 0:
            return
        self._kill()
        self._drain()
        for fd in (self._pidfd, self._output_fd):
            os.close(fd)
        self._pidfd = -1
        self._channel.close()
        with suppress(OSError, EOFError):
            self._workers.exit_status(self.pid)

    def _stopped(self) -> str:
        """Kill the process and return what it has printed."""
        self._kill()
        self._drain()
        return self.output

    def _kill(self) -> None:
        """Kill the process group and wait for its end; its number is still its own, because it is not reaped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll(KILL_TIMEOUT_S * 1e3)

    def _how_it_ended(self) -> str:
        """Return in words how a process ended that gave no answer."""
        try:
            status = self._workers.exit_status(self.pid)
            if os.WIFSIGNALED(status):
                return signal_in_words(os.WTERMSIG(status))
            code = os.WEXITSTATUS(status)
            return f"ended its process with exit code {code} before there was a result, as os._exit does"
        except (OSError, EOFError):
            is_gone = self._workers.is_template_gone
            return "killed its parent process" if is_gone else "its process ended before there was a result"

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
        size = LENGTH.unpack_from(self._received)[0]
        if size > LONGEST_ANSWER:
            return b"null"
        if len(self._received) < LENGTH.size + size:
            return None
        message = bytes(self._received[LENGTH.size : LENGTH.size + size])
        del self._received[: LENGTH.size + size]
        return message


def signal_in_words(number: int) -> str:
    """Return how a process ended that a signal killed."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if name == "SIGKILL":
        return f"killed by {name}, which the system does when memory runs out"
    return f"crashed: {name} ({(signal.strsignal(number) or 'no name').lower()})"
