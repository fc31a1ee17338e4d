"""Copies between host and device, how much of them overlaps with work, and how long a step waits for its data.

    h2d, d2h   a copy of n bytes from host to device, or back
    overlap    such a copy to the device while the device multiplies matrices that take as long
    load       steps on random batches of a memory-mapped file of token ids

memory     `pageable` is what tensors live in; `pinned` cannot be swapped out, so the GPU's copy engine reads it itself.
transfer   `blocking` keeps the host until the copy is done; `non-blocking` returns at once, where memory is pinned.
Bytes      those of the device's memory: n written by h2d, n read by d2h. GB/s is n over the median: one way, as links
           are rated. On a CPU host and device are one: memory is read and written, which is 2 n, and GB/s says so too.
Overlap    (copy + compute - both) / min(copy, compute): 100 % where all of the shorter one hides, 0 % where nothing.
Waiting    seconds until a step has its batch, over the seconds of the step. With `--prefetch 1` a thread makes the
           next batch during the step.

On a machine with no GPU there is no link: copies are within the host's memory, as the last line says; pinned memory and
non-blocking copies do not exist, and `overlap` copies in a thread. Token ids of 16 bits hold vocabularies up to
65,536.

Source  NVIDIA, CUDA C++ Best Practices Guide, section 10.1 on pinned memory and overlap; PCI-SIG for the link.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.api.family import run_of
from bench.harness.cli.arguments import UsageError, add_list, chosen, number, path, shape_words
from bench.harness.scenarios.scenario import Scenario, ScenarioContext, ScenarioRow
from bench.harness.shapes import ShapeError, parse_batch_shape, parse_size, size_text
from bench.harness.transfer.copies import StepWork
from bench.harness.transfer.table import COLUMNS, NOTES, footer
from results.record import Record
from roofline.work import Work

if TYPE_CHECKING:
    from bench.harness.device.device import Device
    from bench.harness.measure.plan import Settings
    from bench.harness.transfer.token_loader import TokenFile

KINDS = ("h2d", "d2h", "overlap", "load")
MEMORY = ("pageable", "pinned")
TRANSFER = ("blocking", "non-blocking")
PREFETCH = ("0", "1")
SIZES = {"cpu": ("64KiB", "1MiB", "16MiB", "64MiB"), "cuda": ("64KiB", "1MiB", "16MiB", "256MiB")}
OVERLAP_BYTES = 2**20
"""Smaller copies are not overlapped by default: to hand one over costs more than it."""

SHAPES = ("8x512",)
FILE_BYTES = 64 * 2**20
STEP_S = 20e-3
UNLIKE = "the destination does not hold what the source does"

EXAMPLES = (
    ("--op h2d,d2h", "both directions by size"),
    ("--op h2d --size 64MiB --memory pinned --transfer non-blocking", "what a loader should do, on a GPU"),
    ("--op load --shape 16x1024 --prefetch 0,1", "what reading ahead wins"),
    ("--op load --tokens corpus.bin", "your own corpus"),
)


def add_options(group: Any) -> None:
    """Add what only this command has."""
    add_list(group, "--op", f"operations: {', '.join(KINDS)} (default: all)")
    add_list(group, "--size", f"bytes of a copy (default: {', '.join(SIZES['cpu'])})")
    add_list(group, "--memory", f"of the host's side: {', '.join(MEMORY)} (default: both, on a CPU pageable)")
    add_list(group, "--transfer", f"{', '.join(TRANSFER)} (default: both, on a CPU blocking)")
    add_list(group, "--shape", f"batches of load, sequences x tokens (default: {', '.join(SHAPES)})", shape_words)
    add_list(group, "--prefetch", "batches made ahead by a thread: 0, 1 (default: both)")
    group.add_argument("--tokens", metavar="PATH", type=path, help="file of token ids (default: a random one)")
    group.add_argument("--token-dtype", choices=("uint16", "uint32"), default="uint16", help="of an id in the file")
    whole = number(2, 2**32, "a whole number from 2 to 2^32", int)
    group.add_argument("--vocabulary", type=whole, default=50257, help="token ids lie below it (default: 50257)")
    seconds = number(1e-4, 10, "a number of seconds from 0.0001 to 10")
    group.add_argument(
        "--step-time", metavar="SECONDS", type=seconds, default=STEP_S, help="of a step's own work (default: 0.02)"
    )


def sizes_of(args: argparse.Namespace, device_type: str) -> list[int]:
    """Return the bytes of the copies.

    Raises:
        UsageError: one is no size, or no whole number of 4-byte elements.
    """
    default = SIZES["cpu" if device_type == "cpu" else "cuda"]
    try:
        sizes = [parse_size(text) for text in args.size or default]
    except ShapeError as error:
        raise UsageError(str(error)) from None
    for text, size in zip(args.size or default, sizes, strict=True):
        if size % 4 or size > 2**50:
            raise UsageError(f"size '{text}' must be a multiple of 4 bytes, and 1 PiB at most")
    return list(dict.fromkeys(sizes))


def batches_of(args: argparse.Namespace) -> list[tuple[int, int]]:
    """Return sequences and tokens of each batch.

    Raises:
        UsageError: one is no batch.
    """
    try:
        return list(dict.fromkeys(map(parse_batch_shape, args.shape or SHAPES)))
    except ShapeError as error:
        raise UsageError(str(error)) from None


def check(args: argparse.Namespace) -> None:
    """Find what is wrong before torch is loaded.

    Raises:
        UsageError: with the value and what is allowed.
    """
    chosen("op", args.op, KINDS, KINDS)
    chosen("memory", args.memory, MEMORY, MEMORY)
    chosen("transfer", args.transfer, TRANSFER, TRANSFER)
    chosen("prefetch", args.prefetch, PREFETCH, PREFETCH)
    sizes_of(args, "cpu")
    batches_of(args)
    if "load" in (args.op or KINDS):
        from bench.harness.transfer.token_loader import TokenFile, TokenFileError, largest_vocabulary

        most = largest_vocabulary(args.token_dtype)
        if args.vocabulary > most:
            wider = "; use --token-dtype uint32" if args.token_dtype == "uint16" else ""
            raise UsageError(f"{args.token_dtype} holds ids below {most:,}, not {args.vocabulary:,}{wider}")
        if args.tokens is not None:
            try:
                TokenFile(Path(args.tokens), args.token_dtype).close()
            except TokenFileError as error:
                raise UsageError(str(error)) from None


def plan(args: argparse.Namespace, device: Device, settings: Settings) -> list[ScenarioRow]:
    """Return the rows: copies by size, overlap by size, then the loops."""
    on_gpu = device.is_gpu
    memories = chosen("memory", args.memory, MEMORY, MEMORY if on_gpu else MEMORY[:1])
    transfers = chosen("transfer", args.transfer, TRANSFER, TRANSFER if on_gpu else TRANSFER[:1])
    rows: list[ScenarioRow] = []
    work = StepWork(args.step_time)
    for op in chosen("op", args.op, KINDS, KINDS):
        if op == "load":
            prefetches = chosen("prefetch", args.prefetch, PREFETCH, PREFETCH)
            rows += [load_row(args, work, *way) for way in itertools.product(batches_of(args), prefetches)]
        else:
            sizes = [
                size for size in sizes_of(args, device.type) if args.size or op != "overlap" or size >= OVERLAP_BYTES
            ]
            rows += [copy_row(op, device, *how) for how in itertools.product(sizes, memories, transfers)]
    return rows


def copy_work(op: str, size_bytes: int, device: Device) -> Work:
    """Return the bytes that a copy moves in the device's memory; on a CPU both sides are its memory."""
    into, out_of = (op != "d2h", op == "d2h") if device.is_gpu else (True, True)
    return Work(flops=0, bytes_read=size_bytes * out_of, bytes_written=size_bytes * into)


def copy_row(op: str, device: Device, size_bytes: int, memory: str, transfer: str) -> ScenarioRow:
    """Return the row of a copy, alone or beside products."""
    work, reason = copy_work(op, size_bytes, device), None
    if not device.is_gpu and memory == "pinned":
        reason = "pinned memory needs a GPU that reads it"
    elif not device.is_gpu and transfer == "non-blocking":
        reason = "a copy within the host's memory always blocks"
    elif 3 * size_bytes > device.free_bytes():
        reason = f"three buffers of {size_bytes / 1e9:.3g} GB do not fit the device"
    blank = Record(
        op=op,
        provider="torch",
        dtype="fp32",
        shape={"bytes": size_bytes},
        case=str(size_bytes),
        options={"memory": memory, "transfer": transfer},
        status="skipped",
        reason=reason,
        flops=work.flops,
        bytes_read=work.bytes_read,
        bytes_written=work.bytes_written,
        fill="uniform",
    )
    measure = measure_overlapped if op == "overlap" else measure_copy
    return ScenarioRow(blank, partial(measure, blank), f"{op} {size_text(size_bytes)} {memory} {transfer}")


@dataclass(frozen=True)
class Tokens:
    """What a loop reads, and what it computes on each batch."""

    path: Path | None
    """The token file; None for one of random tokens."""
    dtype: str
    vocabulary: int
    work: StepWork


def load_row(args: argparse.Namespace, work: StepWork, batch: tuple[int, int], prefetch: str) -> ScenarioRow:
    """Return the row of a loop that loads batches."""
    blank = Record(
        op="load",
        provider="torch",
        dtype="fp32",
        shape={"b": batch[0], "s": batch[1]},
        case="x".join(map(str, batch)),
        options={"prefetch": int(prefetch), "token_dtype": args.token_dtype},
        status="skipped",
        fill="uniform",
    )
    tokens = Tokens(Path(args.tokens) if args.tokens else None, args.token_dtype, args.vocabulary, work)
    return ScenarioRow(blank, partial(measure_load, blank, tokens), f"load {blank.case} prefetch {prefetch}")


def measure_copy(blank: Record, bench: ScenarioContext) -> Record:
    """Return the record of a copy: checked, timed, checked again."""
    from bench.harness.measure.meter import Meter
    from bench.harness.scenarios.host_clock import record_of
    from bench.harness.transfer.copies import copy_calls, make_pairs

    device = bench.device
    pairs, cache = make_pairs(blank.op, blank.options["memory"], blank.shape["bytes"], device, bench.settings.seed)
    calls = copy_calls(pairs, blank.options["transfer"] == "blocking")
    calls[0]()
    device.synchronize()
    if not pairs[0].is_right():
        return replace(blank, status="invalid", reason=UNLIKE)
    measured = Meter(device).measure(calls, cache, left_s=bench.left_s())
    for call in calls:
        call()
    device.synchronize()
    if not all(pair.is_right() for pair in (pairs[0], pairs[-1])):
        return replace(blank, status="invalid", reason=f"after timing: {UNLIKE}")
    return replace(
        record_of(blank, measured, bench),
        copies=len(pairs),
        verified=checked(blank),
        host_launch_s=measured.host_launch_s,
        link_bytes_per_s=link_of(device),
    )


def checked(blank: Record) -> dict[str, Any]:
    """Return what was looked at: every element of a copy, held against its source."""
    elements = blank.shape["bytes"] // 4
    seen = {"reference": "rule", "elements": elements, "checked_elements": elements}
    return {"before": seen, "after": seen}


def link_of(device: Device) -> float | None:
    """Return what the PCI Express link of a GPU of the table carries one way, bytes per second; None if not known."""
    from roofline.hardware.gpu import match_driver_name
    from roofline.hardware.links import pcie_bytes_per_s

    gpu = match_driver_name(device.name, device.memory_bytes).gpu if device.is_gpu else None
    if gpu is None or gpu.pcie_gen is None or gpu.pcie_lanes is None:
        return None
    return pcie_bytes_per_s(gpu.pcie_gen, gpu.pcie_lanes)


def measure_overlapped(blank: Record, bench: ScenarioContext) -> Record:
    """Return the record of a copy beside products; its samples are those of both at once."""
    from bench.harness.transfer.copies import copy_calls, make_pairs, measure_overlap
    from results.stats.samples import median, median_ci95

    device = bench.device
    pairs, cache = make_pairs("h2d", blank.options["memory"], blank.shape["bytes"], device, bench.settings.seed)
    calls = copy_calls(pairs, blank.options["transfer"] == "blocking")
    found = measure_overlap(calls, device, bench.settings.seed, bench.left_s())
    for call in calls:
        call()
    device.synchronize()
    if not all(pair.is_right() for pair in (pairs[0], pairs[-1])):
        return replace(blank, status="invalid", reason=UNLIKE)
    return replace(
        blank,
        status="ok",
        reason=None,
        flops=found.flops,
        samples_s=found.both_s,
        launches_per_sample=1,
        method="host",
        cache=cache,
        copies=len(pairs),
        median_s=median(found.both_s),
        ci95_s=median_ci95(found.both_s),
        verified={"after": checked(blank)["after"]},
        copy_s=found.copy_s,
        compute_s=found.compute_s,
    )


def measure_load(blank: Record, tokens: Tokens, bench: ScenarioContext) -> Record:
    """Return the record of a loop on batches of the token file."""
    from bench.harness.transfer.token_loader import TokenFile, write_random_tokens

    if tokens.path is not None:
        return measure_loop(blank, tokens, bench, TokenFile(tokens.path, tokens.dtype))
    with tempfile.TemporaryDirectory() as folder:
        written = write_random_tokens(Path(folder), FILE_BYTES, tokens.dtype, tokens.vocabulary, bench.settings.seed)
        return measure_loop(blank, tokens, bench, TokenFile(written, tokens.dtype))


def measure_loop(blank: Record, tokens: Tokens, bench: ScenarioContext, file: TokenFile) -> Record:
    """Return the record of a loop: a batch checked against the file, then steps on the clock."""
    from bench.harness.scenarios.host_clock import measure_steps, record_of
    from bench.harness.transfer.token_loader import Batches, Loop

    device, seed = bench.device, bench.settings.seed
    batches = Batches(file, blank.shape["b"], blank.shape["s"], device, seed)
    problem = batches.problem(tokens.vocabulary)
    if problem:
        return replace(blank, status="invalid", reason=problem)
    products, alone_s = tokens.work.products(device, seed), tokens.work.alone_s(device, seed)
    with Loop(batches, products, device, blank.options["prefetch"] > 0) as loop:
        measured = measure_steps(loop.step, device, "warm", bench.left_s())
    file.close()
    count = len(measured.samples.samples_s)
    return replace(
        record_of(replace(blank, flops=products.flops), measured, bench),
        compute_s=alone_s,
        waits_s=tuple(loop.waits_s[-count:]),
        file_bytes=file.ids.nbytes,
    )


SCENARIO = Scenario(
    name="transfer",
    command="bench.transfer",
    formula="copies between host and device, alone and beside work; batches of a memory-mapped token file",
    axes="bytes or BxS",
    dtypes=("fp32",),
    providers=("torch",),
    doc=__doc__ or "",
    notes=NOTES,
    examples=EXAMPLES,
    add_options=add_options,
    check=check,
    plan=plan,
    defined_in=("bench.harness.transfer.copies", "bench.harness.transfer.token_loader"),
    columns=COLUMNS,
    footer=footer,
)

run = run_of(__file__)

if __name__ == "__main__":
    from bench.harness.scenarios.scenario import main

    raise SystemExit(main(SCENARIO))
