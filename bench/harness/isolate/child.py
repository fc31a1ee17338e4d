"""What a child of the fork server does: it imports a user's function, measures one row, and sends the record back."""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bench.harness.data.checks import Turn
from bench.harness.data.replay import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.isolate.heartbeat import AnnouncedSampler, Call, Heartbeat, announced
from bench.harness.isolate.job import LENGTH, Job
from bench.harness.measure.meter import Meter
from bench.harness.measure.plan import Row
from bench.harness.measure.runner import Runner, user_line
from bench.harness.op import Op
from bench.harness.op_file import module_of
from bench.harness.providers.registry import numerics
from bench.harness.providers.user_kernel import find, left_by
from bench.harness.timing.protocol import Limits, Sampler
from results.record import Record
from results.store.runfile import encode_line


def preload() -> None:
    """Load torch, without running any of it: a process that has used a GPU must not fork."""
    import torch  # noqa: F401


def work(job: Job, channel: socket.socket, heartbeat_fd: int) -> NoReturn:
    """Do a job and send the answer through the channel as a length and JSON; the process ends here."""
    _take_streams()
    heartbeat = Heartbeat(heartbeat_fd)
    os.close(heartbeat_fd)
    answer = perform(job, heartbeat)
    message = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    with suppress(Exception):
        sys.stdout.flush()
    channel.sendall(LENGTH.pack(len(message)) + message)
    os._exit(0)  # nothing that the user's code left behind, a thread or a handler, may hold the process


def run_command(words: list[str]) -> NoReturn:
    """Run `python -m bench` with these arguments; the process ends here."""
    from bench.__main__ import main

    _take_streams()
    sys.argv, code = ["bench", *words], 1
    try:
        code = main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)  # nothing that the user's code left behind, a thread or a handler, may hold the process


def _take_streams() -> None:
    """Make Python print to the descriptors of this process, causes of crashes too."""
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable()


def perform(job: Job, heartbeat: Heartbeat) -> bytes | dict[str, Any]:
    """Return the record line of a job, or what went wrong; every error of the user's code ends here."""
    import torch

    try:
        os.chdir(job.folder)
        ops = find_ops(job)
        if job.device.is_gpu:
            torch.cuda.set_device(job.device.torch_name)
        if job.device.threads is not None:
            torch.set_num_threads(job.device.threads)
        if job.case is None or job.settings is None:
            heartbeat.announce()
            return {"problem": load_problem(job, ops)}
        meter = AnnouncingMeter(job.device, job.limits, heartbeat.announce, job.settings.kernels)
        runner = Runner(job.family, job.device, job.settings, None, None, job.deadline, job.ceilings, meter)
        op = replace(ops[0], tolerance=job.settings.tolerance)
        return encode_line(measure(runner, Row(op, job.case, job.provider), job.device, heartbeat))
    except SystemExit as error:
        return {"failed": left_by(error)}
    except BaseException as error:
        print_users_part(job.provider, error)
        line = next((part.strip() for part in str(error).splitlines() if part.strip()), "")
        return {"failed": f"{type(error).__name__}: {line[:200]}{user_line(job.provider, error)}"}


def find_ops(job: Job) -> list[Op]:
    """Return the ops of a job, from the family's file."""
    ops: dict[str, Op] = {op.name: op for op in module_of(job.family).OPS}
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


class AnnouncingMeter(Meter):
    """The meter in a child: announces each sample."""

    def __init__(
        self, device: Device, limits: Limits | None, announce: Callable[[], None], records_kernels: bool
    ) -> None:
        """Open the telemetry of the device."""
        super().__init__(device, limits, records_kernels=records_kernels)
        self._announce = announce

    def sampler(self, calls: Sequence[Call], limits: Limits, replay: ReplayCheck | None = None) -> Sampler:
        """Return what reads the clock around these calls, and announces each sample before."""
        return AnnouncedSampler(super().sampler(calls, limits, replay), self._announce)


def measure(runner: Runner, row: Row, device: Device, heartbeat: Heartbeat) -> Record:
    """Return the record of a row; the heartbeat says when the user's code runs, and what that raises is printed."""
    try:
        prepared = runner.prepare(row, turn=Turn(heartbeat.announce, heartbeat.rest))
        if isinstance(prepared, Record):
            return prepared
        with numerics(row.case.dtype):
            calls = announced(prepared.calls, heartbeat.announce, device.synchronize)
        heartbeat.announce()
        measured = runner.time(replace(prepared, calls=calls))
        heartbeat.rest()
        return runner.finish(prepared, measured)
    except Exception as error:
        record = runner.ended(row, error)
        if record.status == "failed":
            print_users_part(row.provider, error)
        return record
