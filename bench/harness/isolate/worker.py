"""Worker processes for code that is not ours: what it does to its process, it does to its own row only.

A template process is started once: a fresh interpreter with torch and the measuring modules loaded, and nothing run.
For each row it forks a worker, which is so as clean as a new interpreter and there in milliseconds. The worker imports
the user's file, measures with the very runner of this process, and sends the record back through a socket of its own as
a length and JSON; what it prints goes to a pipe and is never mixed up with it.

Nothing outlives this process: a worker is killed with all that it has started when its row is done, when a call takes
too long, and, by the kernel and by the template, when its parent is gone. A worker may kill its parent: that is the
template, which is started anew for the next row.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bench.harness.isolate.forked_worker import KILL_TIMEOUT_S, Worker, WorkerError
from bench.harness.isolate.heartbeat import TurnFile
from results.record import Record, RecordError

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.plan import Settings
    from bench.harness.op import Case
    from bench.harness.timing.protocol import Limits
    from roofline.ceilings import Ceilings

DEFAULT_TIMEOUT_S = 120.0
"""The first call compiles and tunes a kernel, which may take a minute; an endless loop takes more."""

START_TIMEOUT_S = 300.0
"""Loading torch takes two seconds, on a busy machine with a cold disk a hundred times as long."""

BUDGET_GRACE_S = 10.0
"""Beside what is left of the budget, for importing, compiling and checking."""

GONE_AFTER_S = 0.2
"""A worker is ended with its template, a moment before the template can be waited for."""

PROCESS = struct.Struct("!q")

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from bench.harness.isolate.worker_main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
FORK, WAIT = b"f", b"w"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a worker is asked to do: measure a row, or without a case only load the provider for each op."""

    family: str
    ops: tuple[str, ...]
    provider: str
    device: Device
    case: Case | None = None
    settings: Settings | None = None
    limits: Limits | None = None
    deadline: float | None = None
    """Reading of `time.perf_counter`, which all processes of a machine share."""
    ceilings: Ceilings | None = None
    folder: str = field(default_factory=os.getcwd)
    """Where the provider's path starts."""


class Workers:
    """Forks a worker for each job; the template is started when the first is asked for."""

    def __init__(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Start nothing yet.

        Args:
            timeout_s: time that one call of a user's function may take, or its import, seconds.
        """
        self.timeout_s = timeout_s
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes."""
        self.close()

    @property
    def is_template_gone(self) -> bool:
        """Whether the template was started and has ended."""
        if self._template is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._template.wait(GONE_AFTER_S)
        return self._template.poll() is not None

    def close(self, wait_s: float = KILL_TIMEOUT_S) -> None:
        """End the template, and with it what it has forked; it is given `wait_s` seconds to do so by itself."""
        if self._control is not None:
            self._control.close()
        if self._template is not None:
            try:
                self._template.wait(wait_s)
            except subprocess.TimeoutExpired:
                self._template.kill()
                self._template.wait()
        self._template = self._control = None

    def measure(self, job: Job, blank: Record) -> Record:
        """Return the record of a row, `failed` where the worker brings none.

        Args:
            job: the row.
            blank: its record with nothing measured.
        """
        from bench.harness.providers.user_kernel import find

        try:
            answer, output = self.ask(job)
            record = _record(answer, blank)
        except WorkerError as error:
            record, output = replace(blank, status="failed", reason=str(error)), error.output
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
        """Return the answer of a new worker, and what it printed.

        Raises:
            WorkerError: there is none.
        """
        left_s = None
        if job.deadline is not None:
            left_s = max(0.0, job.deadline - time.perf_counter()) + BUDGET_GRACE_S
        with self.fork(job) as worker:
            return worker.answer(self.timeout_s, left_s), worker.output

    def fork(self, job: Job) -> Worker:
        """Return a new worker that has begun with a job.

        Raises:
            WorkerError: no process can be started.
        """
        try:
            return self._fork(job)
        except (OSError, EOFError):  # an earlier worker may have killed or stopped the template
            self.close(wait_s=0)
        try:
            return self._fork(job)
        except (OSError, EOFError) as error:
            self.close(wait_s=0)
            raise WorkerError(f"no worker process can be started: {error or type(error).__name__}") from None

    def _fork(self, job: Job) -> Worker:
        """Return a new worker; raises `OSError` or `EOFError` where the template does not answer."""
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        turns, turns_fd = TurnFile.create_unnamed()
        try:
            control = self._ready()
            socket.send_fds(control, [FORK], [theirs.fileno(), write_end, turns_fd])
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
            os.close(turns_fd)
        return Worker(pid, pidfd, ours, read_end, turns, self, job)

    def exit_status(self, pid: int) -> int:
        """Return the wait status of a worker that has ended.

        Raises:
            OSError: the template that forked it does not answer, or it is gone.
            EOFError: likewise.
        """
        control = self._control
        if control is None:
            raise EOFError("the template process is gone")
        control.sendall(WAIT + PROCESS.pack(pid))
        return int(PROCESS.unpack(_exactly(control, PROCESS.size))[0])

    def _ready(self) -> socket.socket:
        """Return the socket of the template, started and loaded."""
        if self._control is not None:
            return self._control
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", BOOT, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())]
        with theirs:
            # A session of its own: Ctrl-C on the terminal reaches this process only, which then ends the workers.
            self._template = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        self._control = ours
        ours.settimeout(START_TIMEOUT_S)
        _exactly(ours, 1)
        ours.settimeout(KILL_TIMEOUT_S)
        return ours


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
            raise EOFError("the template process is gone")
        data += part
    return data
