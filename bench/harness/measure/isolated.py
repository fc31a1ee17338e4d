"""What is done in other processes: a row that may crash or cannot use the GPU of this one, and
compiling in advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from bench.harness import worker
from bench.harness.data.inputs import Filler
from bench.harness.device.device import Device, NoDeviceError
from bench.harness.measure.measure_row import measure_row
from bench.harness.measure.rows import Row
from bench.harness.op import UsageError
from bench.harness.providers.registry import (
    AUTOTUNE,
    has_triton,
    is_user_kernel,
    kernel_versions,
    load,
    numerics,
)
from bench.harness.providers.user_kernel import UserKernelError, find, left_by
from bench.harness.timing import protocol
from bench.harness.timing.protocol import Limits
from results.record import Record, name_of
from roofline.machine import Machine

MIN_KERNELS = 8
"""Minimum number of kernels to compile in other processes: each process takes some seconds to load
torch and Triton.
"""

CLOCK_CHECKS = 2
"""A row is invalid if its samples do not fit the command's clock this many times: one that was only
delayed is measured again.
"""


def measure_isolated(
    row: Row,
    device: Device,
    ceilings: Machine | None,
    limits: Limits | None,
    deadline: float = math.inf,
    rows_left: int = 1,
    *,
    timeout_s: float,
) -> Record:
    """Return the record of a row measured in a new process; it is `failed` if the process sends
    none, and `invalid` if its samples do not add up to the time that passed.

    `timeout_s` is the time limit of importing or calling a user's function. Processes share the
    timer of `deadline`.
    """
    blank = row.blank()
    record = blank
    output = ""
    for _ in range(CLOCK_CHECKS):
        try:
            record, output = worker.call(
                measure_row,
                row,
                device,
                ceilings,
                limits,
                deadline,
                rows_left,
                timeout_s=timeout_s,
                deadline=deadline,
            )
            break
        except (worker.WorkerError, UsageError, NoDeviceError) as error:
            record = replace(blank, status="failed", reason=str(error))
            output = getattr(error, "output", "")
            if not isinstance(error, worker.ClockError):
                break
            record = replace(record, status="invalid")
    providers = [replace(row, provider=name).blank().provider for name in row.stand_ins]
    if record.provider not in (blank.provider, *providers) or record.case != blank.case:
        record = replace(blank, status="failed", reason=f"sent the record of {name_of(record)}")
    if record.op_sha256 != blank.op_sha256:
        reason = f"the definition of {blank.op} changed during the run; start it again"
        record = replace(blank, status="failed", reason=reason)
    if record.source_sha256 is None and is_user_kernel(row.provider):
        record = replace(record, source_sha256=find(row.provider).sha256())
    return replace(record, output=output or None)


def load_problem(row: Row, device: Device, timeout_s: float) -> str | None:
    """Return why a user's function cannot compute the op of a row, or None. Import it in a new
    process.
    """
    try:
        problem, _ = worker.call(_load, row, device, timeout_s=timeout_s, step="the import")
    except worker.WorkerError as error:
        printed = [line.strip() for line in error.output.splitlines() if line.strip()]
        problem = f"importing it: {error}"
        if printed:
            problem += f"; it printed: {printed[-1][:100]}"
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


def compile_rows(rows: Iterable[Row], device: Device) -> dict[str, str]:
    """Compile the kernels of the rows if there are many; return the errors by row."""
    if device.type != "cuda" or not has_triton():
        return {}
    from kernels.launch import INTERPRETED
    from kernels.precompile import precompile

    launches = launches_of(rows)
    return {} if INTERPRETED or len(launches) < MIN_KERNELS else precompile(launches)


def launches_of(rows: Iterable[Row]) -> dict[str, Callable[[], object]]:
    """Return the launches of rows with a Triton version, on tensors without memory, by name."""
    launches: dict[str, Callable[[], object]] = {}
    for row in rows:
        op = row.op
        case = row.case
        version = kernel_versions(row.family).get(row.provider)
        if version is None or row.refused or row.provider.endswith(AUTOTUNE):
            continue
        absent = Filler("zeros", case.dtype, None)
        inputs = op.make_inputs(case, absent)
        out = absent(*op.output_shape(case), dtype=op.output_dtype(case.dtype))
        launch = partial(launch_in, case.dtype, version, op.name, *inputs, out=out)
        launches[f"{op.name} {case.dtype} {case.name}, {row.provider}"] = launch
    return launches


def launch_in(dtype: str, module: str, op: str, *inputs: Any, out: Any) -> None:
    """Launch a kernel version with the settings of a dtype: tf32 and fp32 differ only in a setting
    of torch.
    """
    from kernels.precompile import launch_version

    with numerics(dtype):
        launch_version(module, op, *inputs, out=out)
