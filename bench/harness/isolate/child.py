"""What a child process does: it imports a user's function, measures a row, and sends the record back."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.harness.data.checks import Turn
from bench.harness.data.replay import ReplayCheck
from bench.harness.device.device import Device
from bench.harness.isolate.ending import die_with
from bench.harness.isolate.heartbeat import AnnouncedSampler, Call, Heartbeat, announced
from bench.harness.isolate.job import Job
from bench.harness.measure.meter import Meter
from bench.harness.measure.plan import Row
from bench.harness.measure.runner import Runner, user_line
from bench.harness.op import Op
from bench.harness.op_file import module_of
from bench.harness.providers.registry import load, numerics
from bench.harness.providers.user_kernel import UserKernelError, find, is_user_kernel, left_by
from bench.harness.timing.launched import launched
from bench.harness.timing.protocol import Limits, Sampler
from results.record import Record
from results.store.runfile import encode_line

Work = Callable[..., bytes]
"""`work(heartbeat, *arguments)` returns its answer as JSON."""


def run_child(
    work: Work,
    arguments: Sequence[Any],
    memory: MutableSequence[int],
    answers: Connection,
    output: Connection,
    environment: Mapping[str, str],
) -> None:
    """Send the answer of `work`; the process ends here, with all that the user's code left behind.

    Args:
        work: what to do.
        arguments: of it.
        memory: of the heartbeat.
        answers: where the answer goes.
        output: where everything that is printed goes.
        environment: of the command: the fork server may have started under another one.
    """
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(os.getppid())
    os.environ.clear()
    os.environ.update(environment)
    for standard in (1, 2):
        os.dup2(output.fileno(), standard)
    output.close()
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable()
    answers.send_bytes(work(Heartbeat(memory), *arguments))
    with suppress(Exception):
        sys.stdout.flush()
    os._exit(0)


def measure_row(heartbeat: Heartbeat, job: Job) -> bytes:
    """Return the record line of a job, or what went wrong; every error of the user's code ends here."""
    assert job.case is not None
    assert job.settings is not None
    try:
        prepare(job.device)
        meter = AnnouncingMeter(job.device, job.limits, heartbeat.announce)
        runner = Runner(job.family, job.device, job.settings, None, None, job.deadline, job.ceilings, meter)
        op = replace(op_of(job), tolerance=job.settings.tolerance)
        row = Row(op, job.case, job.provider, stand_ins=job.stand_ins)
        if not is_user_kernel(row.provider):
            return encode_line(runner.measure(row, job.rows_left))
        return encode_line(_measured(runner, row, job, heartbeat))
    except SystemExit as error:
        return json.dumps({"failed": left_by(error)}).encode()
    except BaseException as error:
        _print_users_part(job.provider, error)
        line = next((part.strip() for part in str(error).splitlines() if part.strip()), "")
        failed = f"{type(error).__name__}: {line[:200]}{user_line(job.provider, error)}"
        return json.dumps({"failed": failed}).encode()


def record_kernels(heartbeat: Heartbeat, job: Job, launch_s: float) -> bytes:
    """Return the fields of a record that say what a launch of `launch_s` seconds starts; none if that is not known."""
    assert job.case is not None
    assert job.settings is not None
    fields: dict[str, Any] = {}
    with suppress(Exception), numerics(job.case.dtype):
        prepare(job.device)
        runner, turn = Runner(job.family, job.device, job.settings), Turn(heartbeat.announce, heartbeat.rest)
        prepared = runner.prepare(Row(op_of(job), job.case, job.provider), turn=turn)
        if not isinstance(prepared, Record):
            heartbeat.announce()
            if seen := launched(prepared.calls, launch_s, job.device.synchronize):
                fields = {"launched_kernels": seen.kernels, "kernel_s": seen.kernel_s, "eager_s": seen.eager_s}
    return json.dumps(fields).encode()


def load_problem(heartbeat: Heartbeat, job: Job) -> bytes:
    """Return why the provider cannot compute the op, or null."""
    problem = None
    prepare(job.device)
    heartbeat.announce()
    try:
        load(job.provider, op_of(job), job.family, job.device)
    except UserKernelError as error:
        problem = str(error)
    except SystemExit as error:
        problem = f"provider '{job.provider}': importing it {left_by(error)}"
    return json.dumps({"problem": problem}).encode()


def prepare(device: Device) -> None:
    """Let torch use a device, with its threads."""
    import torch

    if device.is_gpu:
        torch.cuda.set_device(device.torch_name)
    if device.threads is not None:
        torch.set_num_threads(device.threads)


def op_of(job: Job) -> Op:
    """Return the op of a job, from the family's file."""
    ops: dict[str, Op] = {op.name: op for op in module_of(job.family).OPS}
    return ops[job.op]


def _print_users_part(provider: str, error: BaseException) -> None:
    """Print the traceback of an error, from the user's file on if it came through it."""
    file, trace = find(provider).file if is_user_kernel(provider) else None, error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) != file:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


class AnnouncingMeter(Meter):
    """The meter in a child: announces each sample."""

    def __init__(self, device: Device, limits: Limits | None, announce: Callable[[], None]) -> None:
        """Open the telemetry of the device."""
        super().__init__(device, limits)
        self._announce = announce

    def sampler(self, calls: Sequence[Call], limits: Limits, replay: ReplayCheck | None = None) -> Sampler:
        """Return what reads the clock around these calls, and announces each sample before."""
        return AnnouncedSampler(super().sampler(calls, limits, replay), self._announce)


def _measured(runner: Runner, row: Row, job: Job, heartbeat: Heartbeat) -> Record:
    """Return the record of a row; the heartbeat says when the user's code runs, and what that raises is printed."""
    try:
        prepared = runner.prepare(row, turn=Turn(heartbeat.announce, heartbeat.rest))
        if isinstance(prepared, Record):
            return prepared
        with numerics(row.case.dtype):
            calls = announced(prepared.calls, heartbeat.announce, job.device.synchronize)
        heartbeat.announce()
        measured = runner.time(replace(prepared, calls=calls), job.rows_left)
        heartbeat.rest()
        return runner.finish(prepared, measured)
    except Exception as error:
        record = runner.ended(row, error)
        if record.status == "failed":
            _print_users_part(row.provider, error)
        return record
