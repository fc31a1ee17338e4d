"""Measures a row in a new process, for a user's function or after an error that this process's GPU keeps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from bench.harness import worker
from bench.harness.device.device import Device
from bench.harness.measure.measure_row import Ready, measure_row, prepare
from bench.harness.measure.rows import Row
from bench.harness.providers.registry import is_user_kernel, load, numerics
from bench.harness.providers.user_kernel import UserKernelError, find, left_by
from bench.harness.timing import protocol
from bench.harness.timing.launched import launched
from bench.harness.timing.protocol import Limits
from results.record import Record
from roofline.machine import Machine


def measure_isolated(
    row: Row,
    device: Device,
    ceilings: Machine | None,
    limits: Limits | None,
    deadline: float | None = None,
    rows_left: int = 1,
    *,
    timeout_s: float,
) -> Record:
    """Return the record of a row measured in a new process; it is `failed` if the process sends none.

    `timeout_s` is the time limit of importing or calling a user's function. Processes share the timer of `deadline`.
    """
    blank = row.blank()
    arguments = row, device, ceilings, limits, deadline, rows_left
    try:
        record, output = worker.call(_measure, *arguments, timeout_s=timeout_s, deadline=deadline)
        if record.op_sha256 != blank.op_sha256:
            reason = f"the definition of {blank.op} changed during the run; start it again"
            record = replace(blank, status="failed", reason=reason)
    except worker.WorkerError as error:
        record, output = replace(blank, status="failed", reason=str(error)), error.output
    if record.source_sha256 is None and is_user_kernel(row.provider):
        record = replace(record, source_sha256=find(row.provider).sha256())
    return replace(record, output=output or None)


def _measure(
    row: Row,
    device: Device,
    ceilings: Machine | None,
    limits: Limits | None,
    deadline: float | None,
    rows_left: int,
) -> Record:
    device.use()
    return measure_row(row, device, ceilings, limits, deadline, rows_left)


def load_problem(row: Row, device: Device, timeout_s: float) -> str | None:
    """Return why a user's function cannot compute the op of a row, or None. Import it in a new process."""
    try:
        problem, _ = worker.call(_load, row, device, timeout_s=timeout_s, step="the import")
    except worker.WorkerError as error:
        *_, last = ["", *filter(None, map(str.strip, error.output.splitlines()))]
        problem = f"importing it: {error}" + (f"; it printed: {last[:100]}" if last else "")
    return problem


def _load(row: Row, device: Device) -> str | None:
    device.use()
    protocol.announce()
    try:
        load(row.provider, row.op, row.family, device)
    except UserKernelError as error:
        return str(error)
    except SystemExit as error:
        return f"importing it {left_by(error)}"
    return None


def launched_fields(
    row: Row, launch_s: float, device: Device, timeout_s: float, deadline: float | None
) -> dict[str, Any]:
    """Return the record fields of the kernels that a launch starts, profiled in a new process; empty if unknown."""
    with suppress(worker.WorkerError):
        return worker.call(_launched, row, device, launch_s, timeout_s=timeout_s, deadline=deadline)[0]
    return {}


def _launched(row: Row, device: Device, launch_s: float) -> dict[str, Any]:
    with suppress(Exception), numerics(row.case.dtype):
        device.use()
        ready = prepare(row, device)
        if isinstance(ready, Ready):
            protocol.announce()
            return launched(ready.calls, launch_s, device.synchronize)
    return {}
