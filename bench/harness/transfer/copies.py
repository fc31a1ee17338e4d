"""Times copies between host and device, alone and while the device computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.harness.data.inputs import Filler, plan_rotation
from bench.harness.timing.protocol import no_garbage_collection
from bench.harness.timing.samplers import Call

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device

FLOAT_BYTES = 4
"""Buffers hold fp32: a copy does not look at its bits."""

POISON = -77.0
"""In every destination before the first copy; no fill has it."""

PRODUCT_WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096)
"""n of the fp32 products that compute meanwhile: the largest of which several fit."""

FIT = 4
"""Fewest products in the given time, unless even the smallest product takes longer."""

ROUNDS_ALONE = 5
"""Rounds of a step's work that are timed alone."""

LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_S = 9, 60, 2.0


@dataclass(frozen=True)
class Pair:
    """A source on one side and its destination on the other."""

    source: Tensor
    destination: Tensor

    def is_right(self) -> bool:
        """Return whether the destination holds what the source does."""
        import torch

        return torch.equal(self.source.cpu(), self.destination.cpu())


def make_pairs(direction: str, memory: str, size_bytes: int, device: Device, seed: int) -> tuple[list[Pair], str]:
    """Return as many pairs as keep the caches cold, filled with random numbers, and the cache state of that.

    Args:
        direction: `h2d` or `d2h`.
        memory: of the host's side, `pageable` or `pinned`.
        size_bytes: of each buffer, a multiple of 4.
        device: the device; a CPU copies from host to host.
        seed: of the numbers.

    Raises:
        RuntimeError: no memory can be pinned, or there is not enough of it.
    """
    import torch

    host = replace(device, type="cpu", torch_name="cpu")
    rotation = plan_rotation(2 * size_bytes, device.cache_bytes, host.free_bytes(), device.type, "cold")
    filler = Filler("uniform", "fp32", host, seed)
    pairs = []
    for _ in range(rotation.copies):
        numbers = filler(size_bytes // FLOAT_BYTES)
        on_host = numbers.pin_memory() if memory == "pinned" else numbers
        there = torch.empty_like(numbers, device=device.torch_name)
        if direction == "h2d":
            pairs.append(Pair(on_host, there.fill_(POISON)))
        else:
            pairs.append(Pair(there.copy_(on_host), on_host.fill_(POISON)))
    return pairs, rotation.cache


def copy_calls(pairs: Sequence[Pair], is_blocking: bool) -> list[Call]:
    """Return one call for each pair."""
    return [partial(pair.destination.copy_, pair.source, non_blocking=not is_blocking) for pair in pairs]


@dataclass(frozen=True)
class Overlap:
    """Seconds of a copy, of products, and of both at once, round by round."""

    copy_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    both_s: tuple[float, ...]
    flops: int
    """Of the products of one round."""


class Products:
    """As many fp32 products of square matrices as take about a given time."""

    def __init__(self, device: Device, seconds: float, seed: int) -> None:
        """Choose the largest width of which `FIT` products fit into `seconds`, and as many products as fit."""
        self._device, self._filler, self.count = device, Filler("uniform", "fp32", device, seed), 1
        for n in PRODUCT_WIDTHS:
            self._a, self._b, self._out = (self._filler(n, n) for _ in range(3))
            self.width, one_s = n, min(self._timed() for _ in range(5))
            if FIT * 8 * one_s > seconds:  # the next one has eight times the FLOPs
                break
        self.count = max(1, round(seconds / one_s))
        # Time all of them together: a single product may have been delayed, or may have found its data in a cache.
        self.count = max(1, round(self.count * seconds / min(self._timed() for _ in range(3))))
        self.flops = 2 * self.width**3 * self.count

    def _timed(self) -> float:
        self._device.synchronize()
        start = time.perf_counter()
        self()
        self._device.synchronize()
        return time.perf_counter() - start

    def __call__(self) -> None:
        """Launch them."""
        import torch

        for _ in range(self.count):
            torch.mm(self._a, self._b, out=self._out)


class StepWork:
    """The work of a step, sized once: all rows of a run do the same, so that their times can be compared."""

    def __init__(self, seconds: float) -> None:
        """Size nothing yet: `seconds` are what a step's own work is to take."""
        self._seconds, self._products = seconds, None  # type: float, Products | None

    def products(self, device: Device, seed: int) -> Products:
        """Return the products of a step, sized by the first call."""
        if self._products is None:
            self._products = Products(device, self._seconds, seed)
        return self._products

    def alone_s(self, device: Device, seed: int) -> tuple[float, ...]:
        """Return the seconds of a few rounds of it with nothing beside it, now."""
        products = self.products(device, seed)
        return tuple(_finished_s(products, device) for _ in range(ROUNDS_ALONE))


def measure_overlap(calls: Sequence[Call], device: Device, seed: int, left_s: float | None = None) -> Overlap:
    """Return the times of a copy, of products that take as long, and of both at once, in turns.

    On a GPU the copy has a stream of its own and is launched first; on a CPU, which has no copy engine, a thread.

    Args:
        calls: one copy for each pair.
        device: the device.
        seed: of the matrices.
        left_s: time that may be taken at most; None for `ROUNDS_S`.
    """
    turn = [0]

    def copy() -> None:
        turn[0] += 1
        calls[turn[0] % len(calls)]()

    copy_s = min(_finished_s(copy, device) for _ in range(5))
    products = Products(device, copy_s, seed)
    jobs: dict[str, Callable[[], Any]] = {"copy": copy, "compute": products, "both": lambda: None}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with ThreadPoolExecutor(1) as thread, no_garbage_collection():
        jobs["both"] = partial(_both, copy, products, _side_stream(device), None if device.is_gpu else thread)
        end = time.perf_counter() + min(ROUNDS_S, ROUNDS_S if left_s is None else left_s)
        while len(times["both"]) < LEAST_ROUNDS or (time.perf_counter() < end and len(times["both"]) < MOST_ROUNDS):
            for name, job in jobs.items():
                times[name].append(_finished_s(job, device))
    return Overlap(tuple(times["copy"]), tuple(times["compute"]), tuple(times["both"]), products.flops)


def _side_stream(device: Device) -> AbstractContextManager[Any]:
    if not device.is_gpu:
        return nullcontext()
    import torch

    return torch.cuda.stream(torch.cuda.Stream(device.torch_name))


def _both(
    copy: Callable[[], None], products: Products, side: AbstractContextManager[Any], thread: ThreadPoolExecutor | None
) -> None:
    if thread is not None:
        copied = thread.submit(copy)
        products()
        copied.result()
        return
    with side:
        copy()
    products()


def _finished_s(job: Callable[[], object], device: Device) -> float:
    """Return the seconds until a job and all that it launched has finished, by the host's clock."""
    device.synchronize()
    start = time.perf_counter()
    job()
    device.synchronize()
    return time.perf_counter() - start
