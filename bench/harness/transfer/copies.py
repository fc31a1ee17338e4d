"""Measures copies between host and device, alone and while the device computes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bench.harness.cli.once import share_s
from bench.harness.data.inputs import Filler, plan_rotation
from bench.harness.device.device import Device
from bench.harness.measure.flags import recorded
from bench.harness.measure.samples import take_samples
from bench.harness.run import Run
from bench.harness.timing.protocol import Samples, limits_of, no_garbage_collection
from bench.harness.timing.samplers import Call
from results.record import Record
from results.stats.samples import median, median_ci95
from roofline.hardware.gpu import match_driver_name
from roofline.hardware.links import pcie_bytes_per_s

Pair = tuple[Tensor, Tensor]
"""A source on one side and its destination on the other."""

POISON = -77.0
"""In every destination before the first copy; no fill has it."""

UNLIKE = "the destination does not hold what the source does"

MATMUL_WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
"""n of the fp32 matmuls that run besides a copy: the largest of which several fit."""

FIT = 4
"""Fewest matmuls in the given time, unless even the smallest takes longer."""

MIN_ROUNDS, MAX_ROUNDS, ROUNDS_S = 9, 60, 2.0


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
        samples = take_samples(calls, cache, device, limits_of(device), left_s=share_s(run, rows))
        record = replace(finished_row(blank, samples, run), host_launch_s=samples.host_launch_s)
        record = replace(record, link_bytes_per_s=link_of(device))
    for call in calls:
        call()
    device.synchronize()
    if not (is_copied(pairs[0]) and is_copied(pairs[-1])):
        return replace(blank, status="invalid", reason=f"after timing: {UNLIKE}")
    checked = {"reference": "rule", "elements": size_bytes // 4, "checked_elements": size_bytes // 4}
    return replace(record, copies=len(pairs), verified={"before": checked, "after": checked})


def make_pairs(direction: str, memory: str, size_bytes: int, device: Device, seed: int) -> tuple[list[Pair], str]:
    """Return pairs of fp32 buffers with random numbers, as many as keep the caches cold, and the cache state.

    `direction` is `h2d` or `d2h`, `memory` the host's side, `pageable` or `pinned`. A CPU copies from host to host.
    """
    host = replace(device, type="cpu", torch_name="cpu")
    rotation = plan_rotation(2 * size_bytes, device.cache_bytes, host.free_bytes(), device.type, "cold")
    fill, pairs = Filler("uniform", "fp32", host, seed), []
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
    return [partial(destination.copy_, source, non_blocking=not is_blocking) for source, destination in pairs]


def is_copied(pair: Pair) -> bool:
    source, destination = pair
    return torch.equal(source.cpu(), destination.cpu())


def finished_row(blank: Record, samples: Samples, run: Run) -> Record:
    """Return the finished record of a row.

    On a GPU neither a ceiling of its memory nor its cache judges it: the link does, or the work that a step does. A
    copy over the link takes as long wherever in the device the data is.
    """
    if not run.device.is_gpu:
        return recorded(blank, samples, run.device, run.ceilings if blank.bytes_read else None)
    record = recorded(blank, replace(samples, warm_median_s=None, host_launch_s=None), run.device, None)
    return replace(record, warm_median_s=samples.warm_median_s)


def link_of(device: Device) -> float | None:
    """Return the bytes per second that the PCI Express link of a GPU carries one way; None if it is not known."""
    gpu = match_driver_name(device.name, device.memory_bytes).gpu if device.is_gpu else None
    if gpu is None or gpu.pcie_gen is None or gpu.pcie_lanes is None:
        return None
    return pcie_bytes_per_s(gpu.pcie_gen, gpu.pcie_lanes)


class Matmuls:
    """As many fp32 matmuls of square matrices as take about a given time; a call launches them."""

    def __init__(self, device: Device, seconds: float, seed: int) -> None:
        fill, self.count = Filler("uniform", "fp32", device, seed), 1
        for n in MATMUL_WIDTHS:
            self._a, self._b, self._out = (fill(n, n) for _ in range(3))
            self.width, launch_s = n, min(finished_s(self, device) for _ in range(5))
            if FIT * 8 * launch_s > seconds:  # the next width has eight times the FLOPs
                break
        self.count = max(1, round(seconds / launch_s))
        # Time all of them together: a single matmul may have been delayed, or may have found its data in a cache.
        self.count = max(1, round(self.count * seconds / min(finished_s(self, device) for _ in range(3))))
        self.flops = 2 * self.width**3 * self.count

    def __call__(self) -> None:
        for _ in range(self.count):
            torch.mm(self._a, self._b, out=self._out)


def measure_overlap(
    calls: Sequence[Call], device: Device, seed: int, left_s: float | None = None
) -> tuple[dict[str, list[float]], int]:
    """Time a copy, matmuls that take as long, and both together, interleaved, within `left_s` seconds.

    On a GPU the copy has its own stream and is launched first; on a CPU, which has no copy engine, its own thread.

    Returns:
        Seconds of `copy`, `compute` and `both` by round, and the FLOPs of the matmuls of a round.
    """
    turns = itertools.cycle(calls)

    def copy() -> None:
        next(turns)()

    matmuls = Matmuls(device, min(finished_s(copy, device) for _ in range(5)), seed)
    with ThreadPoolExecutor(1) as thread, no_garbage_collection():
        jobs: dict[str, Call] = {"copy": copy, "compute": matmuls, "both": _both(copy, matmuls, device, thread)}
        times: dict[str, list[float]] = {name: [] for name in jobs}
        end = time.perf_counter() + min(ROUNDS_S, ROUNDS_S if left_s is None else left_s)
        for number in range(MAX_ROUNDS):
            if number >= MIN_ROUNDS and time.perf_counter() >= end:
                break
            for name, job in jobs.items():
                times[name].append(finished_s(job, device))
    return times, matmuls.flops


def _both(copy: Call, matmuls: Matmuls, device: Device, thread: ThreadPoolExecutor) -> Call:
    def in_a_thread() -> None:
        copied = thread.submit(copy)
        matmuls()
        copied.result()

    if not device.is_gpu:
        return in_a_thread
    stream = torch.cuda.Stream(device.torch_name)

    def in_a_stream() -> None:
        with torch.cuda.stream(stream):
            copy()
        matmuls()

    return in_a_stream


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


def finished_s(job: Callable[[], object], device: Device) -> float:
    """Return the seconds until a job and all that it launched has finished, by the host's clock."""
    device.synchronize()
    start = time.perf_counter()
    job()
    device.synchronize()
    return time.perf_counter() - start
