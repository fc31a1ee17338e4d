"""What an error means for a row: its record, and the error in one line."""

from __future__ import annotations

import traceback
from dataclasses import replace
from pathlib import Path

from bench.harness.measure.rows import Row
from bench.harness.op_file import line_in
from bench.harness.providers.registry import ProviderUnavailableError
from bench.harness.providers.user_kernel import UserKernelError, find, is_user_kernel, left_by
from results.record import Record

DEVICE_LOST = "not measured: after the error before, only a new process can use the GPU; run the command again"


def failed(row: Row, error: BaseException) -> Record:
    """Return the record of a row that an error ended; the traceback of a user's function is printed."""
    if isinstance(error, ProviderUnavailableError):
        return replace(row.blank(), reason=str(error))
    if is_out_of_memory(error):
        return replace(row.blank(), reason="out of memory")
    if is_user_kernel(row.provider):
        print_user_traceback(row.provider, error)
    if isinstance(error, UserKernelError):  # its text is a sentence
        return replace(row.blank(), status="failed", reason=str(error))
    what = left_by(error) if isinstance(error, SystemExit) else one_line(error)
    return replace(row.blank(), status="failed", reason=what + user_line(row.provider, error))


def user_line(provider: str, error: BaseException) -> str:
    """Return the line of a user's file that an error came through, ` (line N)`, or nothing."""
    return line_in(error, find(provider).file) if is_user_kernel(provider) else ""


def print_user_traceback(provider: str, error: BaseException) -> None:
    """Print the traceback of an error, from the user's file on if it came through it."""
    file, trace = find(provider).file, error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) != file:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out: Python's own, torch's allocators', CUDA's or cuBLAS's."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    texts = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)


def one_line(error: BaseException) -> str:
    """Return the class and the first line of an error, with the next where it ends in a colon, cut for a table."""
    if "0 active drivers" in str(error):
        return "a Triton kernel needs a GPU and there is none; with TRITON_INTERPRET=1 Triton's interpreter checks it"
    text, *more = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    said = f"{text} {more[0]}" if text.endswith(":") and more else text
    return f"{type(error).__name__}: {said}"[:200]
