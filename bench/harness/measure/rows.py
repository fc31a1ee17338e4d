"""The rows of a run, one per case and provider: which of them cannot run, and what an error of one
means.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.harness.data import inputs
from bench.harness.device.device import Device
from bench.harness.op import Case, Op, UnsupportedCaseError, UsageError
from bench.harness.op_file import is_own, line_in, lines_of, module_of, op_sha256
from bench.harness.providers.registry import (
    ProviderUnavailableError,
    default_providers,
    is_user_kernel,
    named_providers,
    unavailable,
)
from bench.harness.providers.user_kernel import UserKernelError, find, left_by
from bench.harness.settings import Settings
from kernels import versions
from results.record import MAX_COUNT, Record
from results.show.units import quantity

MIN_CAPABILITY = {
    "fp16": (5, 3),
    "bf16": (8, 0),
    "tf32": (8, 0),
    "int8": (7, 2),
    "fp8e4m3": (8, 9),
    "fp8e5m2": (8, 9),
}
"""Minimum compute capability of NVIDIA hardware with arithmetic in a dtype.

Source: NVIDIA, CUDA C++ Programming Guide, Compute Capabilities, table of arithmetic instruction
throughput."""

CPU_DTYPES = ("fp64", "fp32", "fp16", "bf16", "int8")
"""Dtypes that torch computes in on a CPU. fp8 matmul is left out: it converts every element
first.
"""


USUAL = Settings()


@dataclass(frozen=True)
class Row:
    """One case with one provider; `refused` is its record if it cannot run."""

    op: Op
    case: Case
    provider: str
    refused: Record | None = None
    stand_ins: tuple[str, ...] = ()
    """Providers to try in this order if `provider` rejects the case."""
    family: str = ""
    """Name of the op file, which is also that of its Triton kernels, or the path of a user's
    file.
    """
    settings: Settings = USUAL
    label: str = ""
    """Provider name in the record if a provider is listed twice: `torch#2`."""
    is_again: bool = False
    """Whether an earlier visit has verified a call on the same inputs, and on hard ones."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the op by name, because its functions cannot be pickled."""
        return self.__dict__ | {"op": (self.op.name, self.op.tolerance)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        name, tolerance = state["op"]
        op = next(op for op in module_of(state["family"]).OPS if op.name == name)
        self.__dict__.update(state, op=replace(op, tolerance=tolerance))

    def blank(self) -> Record:
        """Return the record of the row before measuring.

        Work beyond the range of a record is left out; such a case is refused for its memory anyway.
        """
        op = self.op
        case = self.case
        work = self.op.work(self.case)
        is_countable = max(work.flops, work.bytes) <= MAX_COUNT
        sums = op.magnitude is not None or op.terms(case) > 1
        return Record(
            op=op.name,
            provider=self.label or self.provider,
            dtype=case.dtype,
            shape=dict(case.shape),
            case=case.name,
            options=dict(case.options),
            status="skipped",
            flops=work.flops if is_countable else None,
            bytes_read=work.bytes_read if is_countable else None,
            bytes_written=work.bytes_written if is_countable else None,
            fill=self.settings.fill,
            units=op.units or ("matrix" if sums else "vector"),
            op_sha256=op_sha256(self.family, op.name, op.defined_in),
        )


def labels(names: Sequence[str]) -> list[str]:
    """Return the names, each different: the second of two equal ones ends in `#2`."""
    different = []
    for index, name in enumerate(names):
        count = names[:index].count(name) + 1
        different.append(f"{name}#{count}" if count > 1 else name)
    return different


def plan(
    op: Op,
    case: Case,
    providers: Sequence[str],
    device: Device,
    settings: Settings,
    older: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    family: str = "",
) -> list[Row]:
    """Return the rows of a case, with `refused` set if they cannot run; nothing is allocated.

    `older` holds the stand-ins of each provider.
    """
    if settings.in_place and not (any(map(is_user_kernel, providers)) or is_own(family)):
        raise UsageError("--in-place is for your own functions; name one in --provider")
    op = op if settings.tolerance == 1 else replace(op, tolerance=settings.tolerance)
    reason = refusal(op, case, device)
    rows = []
    for provider, label in zip(providers, labels(providers), strict=True):
        row = Row(op, case, provider, None, older.get(provider, ()), family, settings)
        if label != provider:
            row = replace(row, label=label)
        why = reason or unavailable(provider, device, case.dtype)
        rows.append(replace(row, refused=replace(row.blank(), reason=why)) if why else row)
    return rows


def rows_of_case(
    op: Op, case: Case, family: str, device: Device, settings: Settings, names: Sequence[str] = ()
) -> list[Row]:
    """Return the rows of a case with named providers, or with the default ones if there is no
    name.
    """
    if names:
        providers = named_providers(names, family, device)
    else:
        providers = default_providers(family, device, case.dtype)
    return plan(op, case, list(providers), device, settings, providers, family)


def rotation_of(row: Row, device: Device) -> inputs.Rotation:
    size_bytes = row.op.work(row.case).bytes
    return inputs.plan_rotation(
        size_bytes, device.cache_bytes, device.free_bytes(), device.type, row.settings.cache
    )


def refusal(op: Op, case: Case, device: Device) -> str | None:
    """Return why a case cannot run on a device (dtype, shape, memory), or None."""
    if not has_dtype(device, case.dtype):
        return f"{device.name} has no {case.dtype} arithmetic"
    try:
        op.check(case, device.type)
    except UnsupportedCaseError as error:
        return str(error)
    needed = inputs.required_bytes(op, case)
    free = device.free_bytes()
    if needed > free:
        return f"needs {quantity(needed, 'B')}, the device has {quantity(free, 'B')} free"
    return None


def has_dtype(device: Device, dtype: str) -> bool:
    if device.type == "cpu":
        return dtype in CPU_DTYPES
    if device.type == "rocm" or device.compute_capability is None:
        return True  # no table for AMD: torch raises, and the row has the reason
    capability = tuple(map(int, device.compute_capability.split(".")))
    return capability >= MIN_CAPABILITY.get(dtype, (0, 0))


def out_of_time(budget_s: float | None, late_s: float = 0.0) -> str:
    """Return why there is no time for a row; `late_s` is how much its preparation exceeded the
    deadline.
    """
    enough = f"; use --budget {math.ceil(1.5 * ((budget_s or 0.0) + late_s))}" if late_s else ""
    return f"the budget of {budget_s:g} s is spent{enough}"


def failed(row: Row, error: BaseException) -> Record:
    """Return the record of a row that raised an error; print the traceback of a user's function,
    from that function's file on.
    """
    if isinstance(error, ProviderUnavailableError):
        return replace(row.blank(), reason=str(error))
    if is_out_of_memory(error):
        return replace(row.blank(), reason="out of memory")
    where = ""
    if is_user_kernel(row.provider):
        file = find(row.provider).file
        trace = error.__traceback__
        while trace is not None and Path(trace.tb_frame.f_code.co_filename) != file:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace or error.__traceback__)
        where = line_in(error, file)
    if isinstance(error, UserKernelError):  # its text is a sentence
        return replace(row.blank(), status="failed", reason=str(error))
    text = left_by(error) if isinstance(error, SystemExit) else one_line(error)
    return replace(row.blank(), status="failed", reason=text + where)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, as reported by Python, torch's allocators, CUDA or cuBLAS."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    texts = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    lines = " ".join(lines_of(error))
    return isinstance(error, RuntimeError) and any(text in lines for text in texts)


def one_line(error: BaseException) -> str:
    """Return class and first line of an error, with the next line if it ends with a colon, at most
    200 characters.
    """
    lines = lines_of(error)
    if any("0 active drivers" in line for line in lines):
        if versions.is_interpreted():  # the interpreter itself asks no driver
            return (
                "Triton's autotuner needs a GPU; with TRITON_INTERPRET=1, launch the kernel with "
                "one of its configurations: kernel.fn[grid](...)"
            )
        return (
            "a Triton kernel needs a GPU; without one, use TRITON_INTERPRET=1 to check its result"
        )
    message = lines[0]
    if message.endswith(":") and len(lines) > 1:
        message += f" {lines[1]}"
    return f"{type(error).__name__}: {message}"[:200]
