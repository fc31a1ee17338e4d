"""Inputs: their values, the number of copies that keeps the caches cold, and the memory they
need.
"""

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
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8e4m3": "float8_e4m3fn",
    "fp8e5m2": "float8_e5m2",
}
"""Dtypes whose names in torch differ."""

COLD_CACHES = {"cpu": 4, "cuda": 6, "rocm": 6}
"""Number of times that all copies together must fill the last-level cache, so that none is still in
it when reused.

With random replacement the hit rate is h = exp(-r (1 - h)) after r times the size of the cache: 6 %
at 3 and 0.25 % at 6. Source: the model of independent references, Coffman and Denning, Operating
Systems Theory (1973), 6.6; NVIDIA's CUTLASS guide to measuring GEMM performance requires 2 and
assumes that the oldest line goes first."""

MAX_COPIES = 2000
"""Maximum number of copies: more copies of a tiny case take longer to make than they improve the
measurement.
"""

CPU_COPIES_BYTES = 2**30
"""Maximum memory of copies on a CPU; at most a quarter of the free memory."""

POOL_ELEMENTS = 2**24
"""Maximum length of a stretch, because drawing more takes longer than the measurement. A larger
tensor consists of several stretches."""

POOL_OFFSETS = 4096
"""Number of offsets where a stretch can start."""

MAX_INTEGER = 2**63 - 1
"""Bound of random labels and seeds, the largest that torch accepts."""


@dataclass(frozen=True)
class Rotation:
    """Number of copies that the launches of a case rotate through, and the cache state."""

    copies: int
    cache: str
    """`cold`: the copies evict each other from the last-level cache; `partly-cold`: in part;
    `warm`: one copy.
    """


def plan_rotation(
    set_bytes: int, cache_bytes: int, free_bytes: int, device_type: str, cache: str
) -> Rotation:
    """Return the copies of inputs and output for a requested cache state; fewer than cold needs if
    memory is short.

    `set_bytes` are the compulsory bytes of one launch, inputs and output.
    """
    if cache == "warm":
        return Rotation(1, "warm")
    needed_bytes = COLD_CACHES[device_type] * cache_bytes
    limit_bytes = (
        min(free_bytes // 4, CPU_COPIES_BYTES) if device_type == "cpu" else free_bytes // 4
    )
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

    Drawing each copy would take longer than measuring it. Shifted stretches have the same
    distribution, and no two launches in a row see the same bits at the same index. A pool grows
    with the largest tensor requested; int8 has a separate one. int64 numbers are few and drawn
    directly.
    """

    def __init__(self, fill: str, dtype: str, device: Device | None, seed: int = 0) -> None:
        """`device` None: make tensors without memory; `fill` must be `zeros`."""
        import torch

        self._fill = fill
        self._dtype = dtype
        self._device = device.torch_name if device else "meta"
        self._generator = (
            torch.Generator(device=device.torch_name).manual_seed(seed) if device else None
        )
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
        flat = result.view(-1)
        stretch = min(result.numel(), POOL_ELEMENTS)
        if kind not in self._pools or self._pools[kind].numel() < stretch + POOL_OFFSETS:
            self._pools[kind] = self._drawn(kind, stretch + POOL_OFFSETS)
        for start in range(0, result.numel(), stretch):
            # An odd stride visits all offsets before repeating one.
            self._next_offset = (self._next_offset + 1237) % POOL_OFFSETS
            part = flat[start : start + stretch]
            part.copy_(self._pools[kind][self._next_offset : self._next_offset + part.numel()])
        return result

    def _drawn(self, dtype: str, elements: int) -> Tensor:
        """Return random numbers: `uniform` in [-1, 1] or `normal`; for int8 scaled to its range."""
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
    """One copy of the inputs with its output."""

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


def required_bytes(op: Op, case: Case) -> int:
    """Return the memory that measuring a case needs at least, without allocating anything.

    It is that of one copy, of one more set for the provider (two if it returns several results,
    which are stacked for the check), and of either the random pool while it is converted or the
    fp64 copies of the verification, whichever is larger. These are all inputs and as much again for
    intermediate results; if rows are verified separately, they are the inputs that belong to every
    row, such as B of a matmul, squared in place.
    """
    work = op.work(case)
    absent = Filler("zeros", case.dtype, None)
    elements = work.bytes_read * 8 // bytes_of(8, case.dtype)
    largest_bytes = min(elements, POOL_ELEMENTS + POOL_OFFSETS) * 16
    if op.take_rows is None:
        largest_bytes = max(largest_bytes, 16 * elements)
    else:
        # More elements than torch can count: refused anyway.
        with suppress(RuntimeError, OverflowError, TypeError):
            inputs, _ = op.take_rows(
                op.make_inputs(case, absent), absent(*op.output_shape(case)), slice(0, 1)
            )
            largest_bytes = max(largest_bytes, 8 * sum(x.numel() for x in inputs))
    return (1 + min(2, op.outputs)) * work.bytes + largest_bytes
