"""The other side of `worker`: the template that forks, and what a fork does with its job."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import pickle
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.harness.cli.session import use_threads
from bench.harness.data.checks import ForeignWatch, Watch
from bench.harness.device.device import Device
from bench.harness.isolate.expendable import die_with, when_gone
from bench.harness.isolate.forked_worker import LENGTH
from bench.harness.isolate.heartbeat import AnnouncedSampler, Call, TurnFile, announced
from bench.harness.isolate.worker import FORK, PROCESS, WAIT, Job
from bench.harness.measure.cost import CostEstimator
from bench.harness.measure.meter import Measurement, Meter
from bench.harness.measure.plan import Row
from bench.harness.measure.runner import Runner, user_line
from bench.harness.op import Case, Op
from bench.harness.providers.registry import Provider
from bench.harness.providers.user_kernel import find, left_by
from bench.harness.timing.protocol import Limits, Sampler
from results.record import Record
from results.store.runfile import encode_line

FIRST_TO_DIE = "1000"
"""The highest score by which the kernel chooses whom to kill for want of memory. Source: proc_pid_oom_score_adj(5)."""


def main(control_fd: int, parent: int) -> None:
    """Fork workers as they are asked for, until the other end of the socket is closed."""
    living = set[int]()
    when_gone(parent, lambda: end_all(living))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    control = socket.socket(fileno=control_fd)
    try:
        control.sendall(b".")
        while True:
            message, fds, _, _ = socket.recv_fds(control, 1, 3)
            if message == FORK:
                pid = forked(control, *fds)
                if pid > 0:
                    living.add(pid)
                control.sendall(PROCESS.pack(pid))
            elif message == WAIT:
                pid = PROCESS.unpack(control.recv(PROCESS.size, socket.MSG_WAITALL))[0]
                control.sendall(PROCESS.pack(os.waitpid(pid, 0)[1] if pid in living else 0))
                living.discard(pid)
            else:
                break
    finally:
        end_all(living)
        os._exit(0)


def end_all(workers: set[int]) -> None:
    """Kill workers with all that they have started."""
    for pid in workers:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


PRELOADED = (
    *("bench.harness.measure.cost", "bench.harness.cli.session", "bench.harness.timing.samplers"),
    *("bench.harness.timing.settle", "bench.harness.device.telemetry", "bench.harness.device.nvml"),
    *("bench.harness.data.verify", "bench.harness.data.inputs", "results.stats.samples"),
)
"""What every worker needs before a function of the user runs."""


def preload() -> None:
    """Load what every worker needs, without running any of it: a process that has used a GPU must not fork."""
    import torch  # noqa: F401

    for name in PRELOADED:
        importlib.import_module(name)


def forked(control: socket.socket, channel_fd: int, output_fd: int, turns_fd: int) -> int:
    """Return the process of a new worker, or the negative error number where there can be none."""
    template = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's idle threads are no harm: it starts its own anew after a fork
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
    if pid == 0:
        try:
            control.close()
            work(template, channel_fd, output_fd, turns_fd)
        finally:
            os._exit(70)
    for fd in (channel_fd, output_fd, turns_fd):
        os.close(fd)
    return pid


def work(template: int, channel_fd: int, output_fd: int, turns_fd: int) -> None:
    """Do one job in this process, which ends here."""
    os.setsid()
    signal.signal(signal.SIGCONT, signal.SIG_DFL)
    die_with(template)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_DIE)
    for standard in (1, 2):
        os.dup2(output_fd, standard)
    os.close(output_fd)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.enable()
    send, leave, dumps = os.write, os._exit, json.dumps
    with socket.socket(fileno=channel_fd) as channel:
        size = LENGTH.unpack(channel.recv(LENGTH.size, socket.MSG_WAITALL))[0]
        job: Job = pickle.loads(channel.recv(size, socket.MSG_WAITALL))
        turns = TurnFile(turns_fd)
        os.close(turns_fd)
        answer = perform(job, turns)
        message = answer if isinstance(answer, bytes) else dumps(answer).encode()
        message = LENGTH.pack(len(message)) + message
        with suppress(Exception):
            sys.stdout.flush()
        while message:
            message = message[send(channel_fd, message) :]
        leave(0)  # nothing that the user's code left behind, a thread or a handler, may hold the process


def perform(job: Job, turns: TurnFile) -> bytes | dict[str, Any]:
    """Return the record line of a job, or what went wrong; nothing that the user's code raises gets further."""
    try:
        os.chdir(job.folder)
        ops = find_ops(job)
        if job.device.has_cuda:
            import torch

            torch.cuda.set_device(job.device.torch_name)
        use_threads(job.device)
        if job.case is None or job.settings is None:
            turns.announce()
            return {"problem": load_problem(job, ops)}
        arguments = job.family, job.device, job.settings, NoEstimate(), job.limits, job.deadline, job.ceilings
        return encode_line(WorkerRunner(turns, *arguments).measure(Row(ops[0], job.case, job.provider)))
    except SystemExit as error:
        return {"failed": left_by(error)}
    except BaseException as error:
        print_users_part(job.provider, error)
        line = next((part.strip() for part in str(error).splitlines() if part.strip()), "")
        return {"failed": f"{type(error).__name__}: {line[:200]}{user_line(job.provider, error)}"}


def find_ops(job: Job) -> list[Op]:
    """Return the ops of a job, from the family's file."""
    ops: dict[str, Op] = {op.name: op for op in importlib.import_module(f"bench.{job.family}").OPS}
    return [ops[name] for name in job.ops]


def load_problem(job: Job, ops: list[Op]) -> str | None:
    """Return why the provider cannot compute the ops, or None."""
    from bench.harness.providers.registry import load
    from bench.harness.providers.user_kernel import UserKernelError

    try:
        for op in ops:
            load(job.provider, op, job.family, job.device)
    except UserKernelError as error:
        return str(error)
    except SystemExit as error:
        return f"provider '{job.provider}': importing it {left_by(error)}"
    return None


def print_users_part(provider: str, error: BaseException) -> None:
    """Print the traceback of an error, from the user's file on where it came through it."""
    file, trace = find(provider).file, error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) != file:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


class NoEstimate(CostEstimator):
    """Finds every case short: whether it fits the time was decided before the worker was asked."""

    def __init__(self) -> None:
        """Estimate nothing."""

    def call_s(self, op: Op, case: Case) -> float:
        """Return no time."""
        return 0.0

    def learn(self, op: Op, case: Case, seconds: float) -> None:
        """Learn nothing."""


class AnnouncingMeter(Meter):
    """The meter in a worker: says when a call begins, or where calls are short a sample."""

    def __init__(self, device: Device, limits: Limits, turns: TurnFile) -> None:
        """Open the telemetry of the device."""
        super().__init__(device, limits)
        self._turns = turns

    def measure(
        self,
        calls: Sequence[Call],
        cache: str,
        flops: int | None = None,
        left_s: float | None = None,
        prepared_s: float = 0.0,
    ) -> Measurement:
        """Measure as any other meter does; arguments as of `Meter.measure`."""
        calls = announced(calls, self._turns.announce, self._device.synchronize)
        self._turns.announce()
        measured = super().measure(calls, cache, flops, left_s, prepared_s)
        self._turns.rest()
        return measured

    def sampler(self, calls: Sequence[Call], limits: Limits) -> Sampler:
        """Return what reads the clock around these calls, and says so before each sample."""
        return AnnouncedSampler(super().sampler(calls, limits), self._turns.announce)


class WorkerRunner(Runner):
    """The runner in a worker: says when the user's code runs, and prints what that raises."""

    def __init__(self, turns: TurnFile, *arguments: Any) -> None:
        """Prepare; `turns` is read by the process that waits, the other arguments are those of `Runner`."""
        super().__init__(*arguments)
        self._turns = turns
        self._meter: AnnouncingMeter = AnnouncingMeter(self._device, self._limits, turns)

    def measure(self, row: Row, rows_left: int = 1) -> Record:
        """Return the record of a row, which begins with the import of the user's file."""
        self._turns.announce()
        return super().measure(row, rows_left)

    def _watch(self, op: Op, case: Case, provider: Provider) -> Watch:
        """Return how the calls are checked; from here on the turn is the user's in calls only."""
        watch = super()._watch(op, case, provider)
        if isinstance(watch, ForeignWatch):
            watch.enter, watch.leave = self._turns.announce, self._turns.rest
        self._turns.rest()
        return watch

    def _failed(self, row: Row, blank: Record, error: BaseException) -> Record:
        """Print the traceback, and return the record of a row that raised."""
        print_users_part(row.provider, error)
        return super()._failed(row, blank, error)
