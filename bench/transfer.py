"""Copies between host and device, their overlap with compute, and the time that a step waits for
its data.

    h2d, d2h   copy of n bytes from host to device, or back
    overlap    copy to the device during matmuls that take equally long
    load       steps on random batches from a memory-mapped file of token ids

Memory     `pageable` is ordinary memory; `pinned` memory cannot be swapped out, so the GPU can read
           it directly.
Transfer   `blocking` waits for the copy; `non-blocking` returns immediately if the memory is
           pinned.
Bytes      Of the device's memory: h2d writes n, d2h reads n. GB/s is n per median time, one way, as
           links are rated. On a CPU the same memory is read and written, so both count: 2 n.
Overlap    (copy + compute - both) / min(copy, compute): 100 % if all of the shorter one overlaps, 0
           % if none does.
Waiting    Time until a step has its batch, as a fraction of the step. With `--prefetch 1` a thread
           prepares the next batch during the step.
CPU        Without a GPU, copies are within host memory, `overlap` copies in a thread, and pinned
           memory and non-blocking copies are not available.
Tokens     16-bit token ids suffice for vocabularies up to 65,536.

Source  NVIDIA, CUDA C++ Best Practices Guide, section 10.1 on pinned memory and overlap; PCI-SIG
        for the link.
"""

from __future__ import annotations

import argparse
import itertools
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from bench.api.family import run_of
from bench.harness.cli.arguments import UsageError, chosen, scenario_parser
from bench.harness.cli.main import check_places, device_of, guarded
from bench.harness.op import ShapeError, parse_batch_shape, parse_size
from bench.harness.settings import Argv, Settings
from results.record import Record
from results.show.options import WHAT, Names, given, number, path
from results.show.table import render_table
from results.show.terminal import ADVANCED

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.loop import Measure
    from bench.harness.run import Run

KINDS = ("h2d", "d2h", "overlap", "load")
MEMORY = ("pageable", "pinned")
TRANSFER = ("blocking", "non-blocking")
PREFETCH = ("0", "1")
COPY_OPTIONS = ("size", "memory", "transfer")
LOAD_OPTIONS = ("shape", "prefetch", "tokens")
SIZES = {"cpu": ("64KiB", "1MiB", "16MiB", "64MiB"), "cuda": ("64KiB", "1MiB", "16MiB", "256MiB")}
SHAPES = ("8x512",)
STEP_S = 20e-3

TOKEN_BYTES = {"uint16": 2, "uint32": 4}

MIN_OVERLAP_BYTES = 2**20
"""Default minimum size for `overlap`; for smaller copies, starting the thread takes longer than the
copy.
"""

EXAMPLES = (
    ("--op h2d,d2h", "both directions by size"),
    (
        "--op h2d --size 64MiB --memory pinned --transfer non-blocking",
        "the copy that a data loader should use, on a GPU",
    ),
    ("--op load --shape 16x1024 --prefetch 0,1", "gain of prefetching"),
    ("--op load --tokens corpus.bin", "your own corpus"),
)

LISTED = (
    "bench.transfer",
    "transfer",
    "bytes or BxS",
    "fp32",
    "torch",
    "copies between host and device, alone and during work; batches of a memory-mapped token file",
)
"""The row of `python -m bench list`."""

BLANK = Record(
    op="", provider="torch", dtype="fp32", shape={}, case="", status="skipped", fill="uniform"
)

MODULES = ("bench.harness.transfer",)
"""Modules besides this one that define what is measured."""


@dataclass(frozen=True)
class Options:
    """The copies and loads to measure."""

    op: Annotated[Names, f"operations: {', '.join(KINDS)} (default: all)"] = None
    size: Annotated[
        Names,
        f"bytes of a copy (default: {', '.join(SIZES['cpu'])}; on a GPU up to {SIZES['cuda'][-1]})",
    ] = None
    memory: Annotated[
        Names, f"host memory: {', '.join(MEMORY)} (default: both; on a CPU pageable)"
    ] = None
    transfer: Annotated[
        Names, f"kind of copy: {', '.join(TRANSFER)} (default: both; on a CPU blocking)"
    ] = None
    shape: Annotated[
        Names, f"batches of load, sequences x tokens (default: {', '.join(SHAPES)})"
    ] = None
    prefetch: Annotated[
        Names, "number of batches that a thread prepares in advance: 0, 1 (default: both)"
    ] = None
    tokens: Annotated[
        Path | None, "file of token ids (default: a random one)", path, WHAT, "PATH"
    ] = None
    token_dtype: Annotated[
        str, "data type of the token ids (default: uint16)", tuple(TOKEN_BYTES), ADVANCED
    ] = "uint16"
    step_time: Annotated[
        float,
        f"time of a step's own work (default: {STEP_S:g})",
        number(1e-4, 10, "a number of seconds from 0.0001 to 10"),
        ADVANCED,
        "SECONDS",
    ] = STEP_S


build_parser = partial(scenario_parser, "python -m bench.transfer", __doc__, EXAMPLES, Options)


def measure(args: argparse.Namespace, argv: Argv = None) -> Run:
    options = given(Options, args)
    settings = given(Settings, args)
    blank_records(options, None)  # rejects bad values before torch is loaded
    if options.tokens is not None:
        try:
            with options.tokens.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise UsageError(f"cannot read {options.tokens}: {error.strerror}") from None
        if not size_bytes or size_bytes % TOKEN_BYTES[options.token_dtype]:
            raise UsageError(
                f"{options.tokens}: {size_bytes} bytes do not hold {options.token_dtype} token ids"
            )
    check_places(settings)
    device = device_of(settings)
    from bench.harness.loop import measure_once
    from bench.harness.transfer import work_of_step

    try:
        return measure_once(settings, argv, "transfer", device, rows_of(options, device), MODULES)
    finally:
        work_of_step.cache_clear()


def rows_of(options: Options, device: Device) -> list[tuple[Record, Measure]]:
    from bench.harness.transfer import measure_copy, measure_load

    load = partial(measure_load, tokens=options.tokens, step_s=options.step_time)
    return [
        (blank, load if blank.op == "load" else measure_copy)
        for blank in blank_records(options, device)
    ]


def blank_records(options: Options, device: Device | None) -> list[Record]:
    """Return the rows to measure; without a device, only check the options."""
    is_gpu = device is not None and device.is_gpu
    records = []
    ops = chosen("op", options.op, KINDS, KINDS)
    unused: tuple[str, ...] = ()
    if "load" not in ops:
        unused = LOAD_OPTIONS
    elif ops == ["load"]:
        unused = COPY_OPTIONS
    given = [name for name in unused if getattr(options, name) is not None]
    if given:
        raise UsageError(f"--{given[0]} does not apply to --op {','.join(ops)}")
    default = slice(None if is_gpu else 1)
    memory = chosen("memory", options.memory, MEMORY, MEMORY[default])
    transfer = chosen("transfer", options.transfer, TRANSFER, TRANSFER[default])
    prefetch = chosen("prefetch", options.prefetch, PREFETCH, PREFETCH)
    try:
        batches = dict.fromkeys(map(parse_batch_shape, options.shape or SHAPES))
        sizes = dict.fromkeys(map(parse_size, options.size or SIZES["cuda" if is_gpu else "cpu"]))
    except ShapeError as error:
        raise UsageError(str(error)) from None
    wrong = [size for size in sizes if size % 4 or size > 2**50]
    if wrong:
        raise UsageError(f"expected a size of at most 1 PiB, a multiple of 4 bytes; got {wrong[0]}")
    for op in ops:
        if op == "load":
            for (b, s), ahead in itertools.product(batches, prefetch):
                how = {"prefetch": int(ahead), "token_dtype": options.token_dtype}
                records.append(
                    replace(BLANK, op=op, shape={"b": b, "s": s}, case=f"{b}x{s}", options=how)
                )
            continue
        min_bytes = 0 if options.size or op != "overlap" else MIN_OVERLAP_BYTES
        large = [size for size in sizes if size >= min_bytes]
        for size_bytes, memory_kind, transfer_kind in itertools.product(large, memory, transfer):
            records.append(copy_record(op, device, size_bytes, memory_kind, transfer_kind))
    return records


def copy_record(
    op: str, device: Device | None, size_bytes: int, memory: str, transfer: str
) -> Record:
    is_gpu = device is not None and device.is_gpu
    reason = None
    if not is_gpu and memory == "pinned":
        reason = "pinned memory needs a GPU that reads it"
    elif not is_gpu and transfer == "non-blocking":
        reason = "a copy within host memory always blocks"
    elif device is not None and 3 * size_bytes > device.free_bytes():
        reason = f"three buffers of {size_bytes / 1e9:.3g} GB do not fit in the device's memory"
    return replace(
        BLANK,
        op=op,
        shape={"bytes": size_bytes},
        case=str(size_bytes),
        options={"memory": memory, "transfer": transfer},
        reason=reason,
        flops=0,
        bytes_read=0 if is_gpu and op != "d2h" else size_bytes,
        bytes_written=0 if is_gpu and op == "d2h" else size_bytes,
    )


render = render_table


def main(argv: Argv = None) -> int:
    return guarded(build_parser(), lambda args: measure(args, argv).conclude(), argv)


run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main())
