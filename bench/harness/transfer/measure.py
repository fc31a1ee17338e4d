"""Measures a copy, alone or with matmuls, and a loop on batches of a token file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.harness.cli.once import share_s
from bench.harness.device.device import Device
from bench.harness.measure.finish import finished
from bench.harness.measure.meter import Measurement, Meter
from bench.harness.measure.steps import measure_steps
from bench.harness.run import Run
from bench.harness.transfer.copies import Matmuls, copy_calls, finished_s, is_copied, make_pairs, measure_overlap
from bench.harness.transfer.token_loader import Batches, Loop, open_tokens, write_random_tokens
from results.record import Record
from results.stats.samples import median, median_ci95
from roofline.hardware.gpu import match_driver_name
from roofline.hardware.links import pcie_bytes_per_s

FILE_BYTES = 64 * 2**20
"""Of the file of random tokens."""

ROUNDS_ALONE = 5
"""Rounds of a step's work that are timed alone."""

UNLIKE = "the destination does not hold what the source does"


def measure_copy(blank: Record, run: Run, rows: int) -> Record:
    """Return the record of a copy: verified, timed, verified again; `rows` share the budget that is left."""
    device, seed, size_bytes = run.device, run.args.seed, blank.shape["bytes"]
    direction = "h2d" if blank.op == "overlap" else blank.op
    pairs, cache = make_pairs(direction, blank.options["memory"], size_bytes, device, seed)
    calls = copy_calls(pairs, blank.options["transfer"] == "blocking")
    calls[0]()
    device.synchronize()
    if not is_copied(pairs[0]):
        return replace(blank, status="invalid", reason=UNLIKE)
    if blank.op == "overlap":
        record = _overlapped(blank, *measure_overlap(calls, device, seed, share_s(run, rows)), cache)
    else:
        measured = Meter(device).measure(calls, cache, left_s=share_s(run, rows))
        record = replace(_finished(blank, measured, run), host_launch_s=measured.host_launch_s)
        record = replace(record, link_bytes_per_s=link_of(device))
    for call in calls:
        call()
    device.synchronize()
    if not (is_copied(pairs[0]) and is_copied(pairs[-1])):
        return replace(blank, status="invalid", reason=f"after timing: {UNLIKE}")
    checked = {"reference": "rule", "elements": size_bytes // 4, "checked_elements": size_bytes // 4}
    return replace(record, copies=len(pairs), verified={"before": checked, "after": checked})


def _overlapped(blank: Record, times: dict[str, list[float]], flops: int, cache: str) -> Record:
    """Return the record of a copy with matmuls; its samples are those of both together."""
    return replace(
        blank,
        status="ok",
        flops=flops,
        samples_s=tuple(times["both"]),
        launches_per_sample=1,
        method="host",
        cache=cache,
        median_s=median(times["both"]),
        ci95_s=median_ci95(times["both"]),
        copy_s=tuple(times["copy"]),
        compute_s=tuple(times["compute"]),
    )


def _finished(blank: Record, measured: Measurement, run: Run) -> Record:
    """Return the finished record of a row.

    On a GPU neither a ceiling of its memory nor its cache judges it: the link does, or the work that a step does. A
    copy over the link takes as long wherever in the device the data is.
    """
    if not run.device.is_gpu:
        return finished(blank, measured, run.device, run.ceilings if blank.bytes_read else None)
    record = finished(blank, replace(measured, warm_s=None, host_launch_s=None), run.device, None)
    return replace(record, warm_median_s=measured.warm_s)


def link_of(device: Device) -> float | None:
    """Return the bytes per second that the PCI Express link of a GPU carries one way; None if it is not known."""
    gpu = match_driver_name(device.name, device.memory_bytes).gpu if device.is_gpu else None
    if gpu is None or gpu.pcie_gen is None or gpu.pcie_lanes is None:
        return None
    return pcie_bytes_per_s(gpu.pcie_gen, gpu.pcie_lanes)


def measure_load(work: Callable[[Device, int], Matmuls], blank: Record, run: Run, rows: int) -> Record:
    """Return the record of a loop on batches of the token file, by default one of random tokens.

    A batch is compared with the file first. `work` makes the work of a step, from the device and a seed.
    """
    device, args, dtype = run.device, run.args, run.args.token_dtype
    with tempfile.TemporaryDirectory() as directory:
        file = Path(args.tokens or f"{directory}/random")
        if args.tokens is None:
            write_random_tokens(file, FILE_BYTES, dtype, args.vocabulary, args.seed)
        ids = open_tokens(file, dtype)
        batches = Batches(ids, blank.shape["b"], blank.shape["s"], device, args.seed)
        if problem := batches.problem(args.vocabulary):
            return replace(blank, status="invalid", reason=problem)
        matmuls = work(device, args.seed)
        alone_s = tuple(finished_s(matmuls, device) for _ in range(ROUNDS_ALONE))
        with Loop(batches, matmuls, device, blank.options["prefetch"] > 0) as loop:
            measured = measure_steps(loop.step, device, "warm", share_s(run, rows))
    return replace(
        _finished(replace(blank, flops=matmuls.flops), measured, run),
        compute_s=alone_s,
        waits_s=tuple(loop.waits_s[-len(measured.samples.samples_s) :]),
        file_bytes=ids.nbytes,
    )
