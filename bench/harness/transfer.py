"""Measures copies between host and device, alone and during work, and steps on random batches of a
token file.
"""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.harness import clock
from bench.harness.data.inputs import Filler, plan_rotation
from bench.harness.device.device import Device
from bench.harness.measure.flags import Flag, not_cold, recorded
from bench.harness.measure.measure_row import sample_steps, take_samples
from bench.harness.run import Run
from bench.harness.timing.protocol import LIMITS, Samples
from bench.harness.timing.samplers import Call
from results.record import Copy, Loop, Record
from results.stats.samples import median_ci95
from roofline.gpu_table import gpus_named, pcie_bytes_per_s

Pair = tuple[Tensor, Tensor]
"""Source and destination of a copy."""

Batches = Generator[tuple[Tensor, Tensor]]
"""Inputs (b, s) and labels (b, s), which are shifted by one token."""

POISON = -77.0
"""Initial value of destinations; no fill produces it."""

UNLIKE = "source and destination differ"

MATMUL_WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
"""Candidates for n of the fp32 matmuls during a copy and in a step."""

MIN_MATMULS = 4
"""Use the largest n for which this many matmuls fit into the given time."""

TIMINGS = 20
"""Timings of a matmul; the shortest counts, because others may be interrupted."""

ROUNDS_ALONE = 5
"""Timings of a step's work without loading."""

FILE_BYTES = 64 * 2**20
"""Size of the file of random tokens."""

VOCABULARY = 50_257
"""That of GPT-2."""


def finished_s(job: Call, device: Device) -> float:
    """Return the seconds until a job and its launches have finished, by the host's timer."""
    device.synchronize()
    start = clock.now()
    job()
    device.synchronize()
    return clock.now() - start


class Matmuls:
    """Square fp32 matmuls that together take about `seconds`; a call launches them."""

    def __init__(self, device: Device, seconds: float, seed: int) -> None:
        fill = Filler("uniform", "fp32", device, seed)
        self.count = 1
        for n in MATMUL_WIDTHS:
            self._a, self._b, self._out = (fill(n, n) for _ in range(3))
            self.width = n
            launch_s = min(finished_s(self, device) for _ in range(TIMINGS))
            if MIN_MATMULS * 8 * launch_s > seconds:  # the next width has eight times the FLOPs
                break
        self.count = max(1, round(seconds / launch_s))
        # Without a synchronization after each, they may take less time. They take more only if
        # interrupted.
        together_s = min(finished_s(self, device) for _ in range(3))
        self.count = max(self.count, round(self.count * seconds / together_s))
        self.flops = 2 * self.width**3 * self.count

    def __call__(self) -> None:
        for _ in range(self.count):
            torch.mm(self._a, self._b, out=self._out)


def not_cold_flags(cache: str) -> list[Flag]:
    advice = "use a larger --size, or free memory for more copies"
    return [] if cache == "cold" else [replace(not_cold(cache), advice=advice)]


def finished_row(blank: Record, samples: Samples, run: Run, also: Sequence[Flag] = ()) -> Record:
    """Return the finished record of a row, with flags from outside the samples.

    On a GPU, memory ceilings and cache checks do not apply: the link or the work of a step limits
    the row, and a copy over the link takes equally long from cache and from memory.
    """
    if not run.device.is_gpu:
        ceilings = run.ceilings if blank.bytes_read else None
        return recorded(blank, samples, run.device, ceilings, also=also)
    alone = replace(samples, warm_median_s=None, host_launch_s=None)
    record = recorded(blank, alone, run.device, None, also=also)
    return replace(record, warm_median_s=samples.warm_median_s)


def measure_copy(blank: Record, run: Run, rows: int) -> Record:
    """Return the record of a copy, verified before and after timing; `rows` rows share the rest of
    the budget.
    """
    device = run.device
    size_bytes = blank.shape["bytes"]
    left_s = run.share_s(rows)
    seed = run.settings.seed
    direction = "h2d" if blank.op == "overlap" else blank.op
    pairs, cache = make_pairs(direction, blank.options["memory"], size_bytes, device, seed)
    is_blocking = blank.options["transfer"] == "blocking"
    calls = copy_calls(pairs, is_blocking)
    calls[0]()
    device.synchronize()
    if not is_copied(pairs[0]):
        return replace(blank, status="invalid", reason=UNLIKE)
    if blank.op == "overlap":
        record = measure_overlap(replace(blank, cache=cache), calls, device, seed, left_s)
    else:
        if device.is_gpu and not is_queued(blank):
            samples = sample_copies(calls, is_blocking, cache, device, left_s)
        else:
            samples = take_samples(calls, cache, device, LIMITS[device.type], left_s=left_s)
        copied = Copy(host_launch_s=samples.host_launch_s, link_bytes_per_s=link_of(device))
        record = replace(finished_row(blank, samples, run, not_cold_flags(cache)), details=copied)
    for call in calls:
        call()
    device.synchronize()
    if not (is_copied(pairs[0]) and is_copied(pairs[-1])):
        return replace(blank, status="invalid", reason=f"after timing: {UNLIKE}")
    checked = {
        "reference": "rule",
        "elements": size_bytes // 4,
        "checked_elements": size_bytes // 4,
    }
    return replace(record, copies=len(pairs), verified={"before": checked, "after": checked})


def is_queued(blank: Record) -> bool:
    """Return whether the host only queues the copy of a row; else it takes part in the copy."""
    return blank.options == {"memory": "pinned", "transfer": "non-blocking"}


def sample_copies(
    calls: Sequence[Call], is_blocking: bool, cache: str, device: Device, left_s: float
) -> Samples:
    """Time copies that the host takes part in by its timer, as many per sample as take 5 ms.

    A graph cannot capture them, and they cannot wait behind a spinning kernel.
    """
    turns = itertools.cycle(calls)

    def copy() -> None:
        next(turns)()
        if not is_blocking:  # from pageable memory it may return too early
            device.synchronize()

    copy_s = min(finished_s(copy, device) for _ in range(5))
    launches = math.ceil(LIMITS[device.type].min_sample_s / copy_s)
    return sample_steps(copy, cache, device, left_s, launches)


def make_pairs(
    direction: str, memory: str, size_bytes: int, device: Device, seed: int
) -> tuple[list[Pair], str]:
    """Return fp32 sources and destinations, enough to keep the caches cold, and the cache state."""
    host = replace(device, type="cpu", torch_name="cpu")
    rotation = plan_rotation(
        2 * size_bytes, device.cache_bytes, host.free_bytes(), device.type, "cold"
    )
    fill = Filler("uniform", "fp32", host, seed)
    pairs = []
    for _ in range(rotation.copies):
        numbers = fill(size_bytes // 4)
        on_host = numbers.pin_memory() if memory == "pinned" else numbers
        on_device = torch.empty_like(numbers, device=device.torch_name)
        if direction == "h2d":
            pairs.append((on_host, on_device.fill_(POISON)))
        else:
            pairs.append((on_device.copy_(on_host), on_host.fill_(POISON)))
    return pairs, rotation.cache


def copy_calls(pairs: Sequence[Pair], is_blocking: bool) -> list[Call]:
    return [
        partial(destination.copy_, source, non_blocking=not is_blocking)
        for source, destination in pairs
    ]


def is_copied(pair: Pair) -> bool:
    source, destination = pair
    return torch.equal(source.cpu(), destination.cpu())


def link_of(device: Device) -> float | None:
    """Return the one-way bandwidth of a GPU's PCI Express link, B/s; None if unknown."""
    named = gpus_named(device.name, device.memory_bytes) if device.is_gpu else []
    return pcie_bytes_per_s(named[0]) if len(named) == 1 else None


def measure_overlap(
    blank: Record, calls: Sequence[Call], device: Device, seed: int, left_s: float = math.inf
) -> Record:
    """Time a copy, matmuls that take equally long, and both together, interleaved; the samples are
    of both together.
    """
    turns = itertools.cycle(calls)

    def copy() -> None:
        next(turns)()

    def both() -> None:
        if stream is None:
            copied = thread.submit(copy)
            matmuls()
            copied.result()
        else:
            with torch.cuda.stream(stream):
                copy()
            matmuls()

    matmuls = Matmuls(device, min(finished_s(copy, device) for _ in range(5)), seed)
    stream = torch.cuda.Stream(device.torch_name) if device.is_gpu else None
    times: dict[Call, list[float]] = {copy: [], matmuls: [], both: []}

    def turn() -> None:
        for job, taken_s in times.items():
            taken_s.append(finished_s(job, device))

    cache = blank.cache or "cold"
    with ThreadPoolExecutor(1) as thread:
        samples = sample_steps(turn, cache, device, left_s)
    sampled = slice(-len(samples.samples_s), None)  # without the warm-up
    both_s = tuple(times[both][sampled])
    samples = replace(
        samples,
        samples_s=both_s,
        median_s=median(both_s),
        ci95_s=median_ci95(both_s),
        host_launch_s=None,
    )
    blank = replace(blank, flops=matmuls.flops)
    record = recorded(blank, samples, device, None, also=not_cold_flags(cache))
    details = Copy(copy_s=tuple(times[copy][sampled]), compute_s=tuple(times[matmuls][sampled]))
    return replace(record, details=details)


work_of_step = lru_cache(maxsize=1)(Matmuls)
"""The work of a step, the same in all rows, so that their times can be compared."""


def measure_load(blank: Record, run: Run, rows: int, tokens: Path | None, step_s: float) -> Record:
    """Return the record of a loop on random batches of a memory-mapped file of token ids.

    Args:
        blank: the row.
        run: the run that it belongs to.
        rows: number of rows that share the time left.
        tokens: file of token ids; None: a random one.
        step_s: seconds of a step's own work.
    """
    device = run.device
    seed = run.settings.seed
    token_dtype = blank.options["token_dtype"]
    waits_s: list[float] = []
    matmuls = work_of_step(device, step_s, seed)
    with tempfile.TemporaryDirectory() as directory:
        if tokens is None:
            ids = random_tokens(Path(directory, "tokens"), token_dtype, seed)
        else:
            ids = np.memmap(tokens, token_dtype, "r")
        batches = random_batches(ids, blank.shape["b"], blank.shape["s"], device, seed)
        alone_s = tuple(finished_s(matmuls, device) for _ in range(ROUNDS_ALONE))
        with closing(prefetched(batches) if blank.options["prefetch"] else batches) as loaded:
            step = loop_step(loaded, matmuls, device, waits_s)
            samples = sample_steps(step, "warm", device, run.share_s(rows))
    details = Loop(
        compute_s=alone_s,
        waits_s=tuple(waits_s[-len(samples.samples_s) :]),
        file_bytes=ids.nbytes,
    )
    return replace(finished_row(replace(blank, flops=matmuls.flops), samples, run), details=details)


def random_tokens(path: Path, dtype: str, seed: int) -> Any:
    count = FILE_BYTES // np.dtype(dtype).itemsize
    np.random.default_rng(seed).integers(0, VOCABULARY, count, dtype=dtype).tofile(path)
    os.sync()  # later write-back would slow down the steps
    return np.memmap(path, dtype, "r")


def random_batches(ids: Any, batch: int, sequence: int, device: Device, seed: int) -> Batches:
    """Yield random batches of int64 token ids on the device; on a GPU through pinned memory,
    non-blocking.
    """
    if len(ids) < sequence + 1:
        raise ValueError(f"the file has {len(ids)} tokens; a sequence needs {sequence + 1}")
    generator = np.random.default_rng(seed)
    while True:
        starts = generator.integers(0, len(ids) - sequence, batch)
        rows = torch.from_numpy(
            np.stack([ids[at : at + sequence + 1] for at in starts]).astype(np.int64)
        )
        if device.is_gpu:
            rows = rows.pin_memory().to(device.torch_name, non_blocking=True)
        yield rows[:, :-1], rows[:, 1:]


def prefetched(batches: Batches) -> Batches:
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, batches)
        while True:
            batch = upcoming.result()
            upcoming = thread.submit(next, batches)
            yield batch


def loop_step(batches: Batches, work: Call, device: Device, waits_s: list[float]) -> Call:
    """Return a step that gets a batch, reads its ids, computes, and synchronizes."""

    def step() -> None:
        start = clock.now()
        inputs, labels = next(batches)
        waits_s.append(clock.now() - start)
        inputs.sum().add_(labels.sum())
        work()
        device.synchronize()

    return step
