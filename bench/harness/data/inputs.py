"""Inputs: how they are filled, how many copies of them keep the caches cold, how much memory that takes."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.harness.op import Case, Op
from roofline.work import bytes_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bench.harness.device.device import Device

FILLS = ("uniform", "normal", "zeros")

TORCH_DTYPES = {
    **{"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"},
    **{"fp8e4m3": "float8_e4m3fn", "fp8e5m2": "float8_e5m2"},
}
"""Torch's names of the dtypes that it calls otherwise."""

COLD_CACHES = {"cpu": 4, "cuda": 6, "rocm": 6}
"""How many times all copies together must fill the last-level cache, so that a copy has left it when its turn comes.

A cache that replaces lines at random keeps a share h of hits, h = exp(-r (1 - h)) after r times its size: 6 % at 3 and
0.25 % at 6. Source: the model of independent references, Coffman and Denning, Operating Systems Theory (1973), 6.6;
NVIDIA's CUTLASS guide to measuring GEMM performance requires 2 and assumes that the oldest line goes first."""

MAX_COPIES = 2000
"""Most copies: more of a tiny case take longer to make than they improve the measurement."""

CPU_COPIES_BYTES = 2**30
"""Most memory that copies take on a CPU, beside the limit of a quarter of what is free."""

POOL_ELEMENTS, POOL_OFFSETS = 2**24, 4096
"""Longest stretch, because drawing more takes longer than what is measured, and the number of indices at which one can
start; a larger tensor is made of several stretches."""

MAX_INTEGER = 2**63 - 1
"""Labels and seeds are drawn below it; it is the largest bound that torch takes."""


@dataclass(frozen=True)
class Rotation:
    """How many copies of its inputs the launches of a case use in turn, and whether that keeps them cold."""

    copies: int
    cache: str
    """`cold`: the copies flush each other out of the last-level cache; `partly-cold`: in part; `warm`: one copy."""


def plan_rotation(set_bytes: int, cache_bytes: int, free_bytes: int, device_type: str, cache: str) -> Rotation:
    """Return how many copies of the inputs and the output to rotate through; fewer if memory does not allow cold ones.

    `set_bytes` is the compulsory bytes of one launch, inputs and output; `cache` is `cold` or `warm`, as requested.
    """
    if cache == "warm":
        return Rotation(1, "warm")
    needed_bytes = COLD_CACHES[device_type] * cache_bytes
    limit_bytes = min(free_bytes // 4, CPU_COPIES_BYTES) if device_type == "cpu" else free_bytes // 4
    wanted = max(2, math.ceil(needed_bytes / set_bytes) + 1)
    copies = min(wanted, max(1, min(MAX_COPIES, limit_bytes // set_bytes)))
    if copies * set_bytes >= needed_bytes:
        return Rotation(copies, "cold")
    return Rotation(copies, "partly-cold" if copies > 1 else "warm")


def torch_dtype(dtype: str) -> torch.dtype:
    import torch

    stored: torch.dtype = getattr(torch, TORCH_DTYPES.get(dtype, dtype))
    return stored


class Filler:
    """Makes filled tensors on one device; each is a different stretch of one seeded random pool.

    Drawing every copy anew would take longer than measuring it; shifted stretches have the same distribution and no
    two launches in a row see the same bits at the same index. Besides the pool of the case's dtype there may be another
    of int8, and each grows with the largest tensor requested; int64 numbers are few and drawn one by one.
    """

    def __init__(self, fill: str, dtype: str, device: Device | None, seed: int = 0) -> None:
        """Make tensors on a device; None: without memory, and `fill` must be `zeros`."""
        import torch

        self._fill, self._dtype, self._device = fill, dtype, device.torch_name if device else "meta"
        self._generator = torch.Generator(device=device.torch_name).manual_seed(seed) if device else None
        self._pools: dict[str, Tensor] = {}
        self._next_offset = 0

    def __call__(self, *shape: int, dtype: str | None = None) -> Tensor:
        import torch

        result = torch.empty(shape, dtype=torch_dtype(dtype or self._dtype), device=self._device)
        if self._fill == "zeros":
            return result.zero_()
        if dtype == "int64":
            return result.random_(0, MAX_INTEGER, generator=self._generator)
        kind = "int8" if dtype == "int8" else self._dtype
        flat, stretch = result.view(-1), min(result.numel(), POOL_ELEMENTS)
        if kind not in self._pools or self._pools[kind].numel() < stretch + POOL_OFFSETS:
            self._pools[kind] = self._drawn(kind, stretch + POOL_OFFSETS)
        for start in range(0, result.numel(), stretch):
            # An odd stride through the offsets visits all of them before any comes again.
            self._next_offset = (self._next_offset + 1237) % POOL_OFFSETS
            part = flat[start : start + stretch]
            part.copy_(self._pools[kind][self._next_offset : self._next_offset + part.numel()])
        return result

    def _drawn(self, dtype: str, elements: int) -> Tensor:
        """Return random numbers: `uniform` in [-1, 1] or `normal`; for int8 the same, stretched to its range."""
        import torch

        scratch = torch.float64 if dtype == "fp64" else torch.float32
        numbers = torch.empty(elements, dtype=scratch, device=self._device)
        if self._fill == "uniform":
            numbers.uniform_(-1.0, 1.0, generator=self._generator)
        else:
            numbers.normal_(generator=self._generator)
        if dtype == "int8":
            numbers.mul_(127 if self._fill == "uniform" else 32).round_().clamp_(-127, 127)
        return numbers.to(torch_dtype(dtype))


@dataclass(frozen=True)
class InputSet:
    """One copy of the inputs with an output of its own."""

    inputs: tuple[Tensor, ...]
    out: Tensor


def make_sets(op: Op, case: Case, filler: Filler, device: Device, copies: int) -> list[InputSet]:
    import torch

    out_dtype = torch_dtype(op.output_dtype(case.dtype))
    sets = []
    for _ in range(copies):
        # zeros, not empty: pages that were never written all read from one shared page of zeros
        out = torch.zeros(op.output_shape(case), dtype=out_dtype, device=device.torch_name)
        sets.append(InputSet(op.make_inputs(case, filler), out))
    return sets


def required_bytes(op: Op, case: Case, copies: int) -> int:
    """Return the memory that measuring a case takes, before anything is allocated.

    The copies, one more set for what a provider may hold (two if it returns several results, which are stacked to be
    checked), and the larger of two: the random pool while it is drawn and converted, or the fp64 copies that the
    verification makes. These are copies of all inputs, with as much again for what it computes of them, or if it goes
    row by row, of the inputs that belong to every row, as B does in a matmul, squared in place.
    """
    work, absent = op.work(case), Filler("zeros", case.dtype, None)
    elements = work.bytes_read * 8 // bytes_of(8, case.dtype)
    largest_bytes = min(elements, POOL_ELEMENTS + POOL_OFFSETS) * 16
    if op.take_rows is None:
        largest_bytes = max(largest_bytes, 16 * elements)
    else:
        with suppress(RuntimeError, OverflowError, TypeError):  # more elements than torch can count: refused anyway
            inputs, _ = op.take_rows(op.make_inputs(case, absent), absent(*op.output_shape(case)), slice(0, 1))
            largest_bytes = max(largest_bytes, 8 * sum(x.numel() for x in inputs))
    return (copies + min(2, op.outputs)) * work.bytes + largest_bytes
