"""Inputs and outputs for a user's function, arranged so that changed inputs and writes beyond an output are noticed.

Inputs are fingerprinted, as many copies as fit a limit, and each output lies between guard bytes. In a comparison
several functions share the buffers, each by tensors of its own: no function gains by the place of its copies, and none
can replace the memory of another function's tensor.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.harness.data.inputs import Filler, InputSet
from bench.harness.device.device import MIB, Device
from bench.harness.op import Case, Op

if TYPE_CHECKING:
    from torch import Tensor

GUARD_BYTES = 16 * 1024
"""Guard bytes on each side of an output: room for one whole block too many of a kernel, and a multiple of every
alignment that vector loads need."""

FINGERPRINT_BYTES = 256 * MIB
"""Most bytes of inputs that are fingerprinted, the first and the last copy always: a pass takes about 0.1 s."""

FINGERPRINT_WORDS = 2**20
"""Words of 8 bytes hashed at once."""

MUTATED = "changes its inputs: their bytes are others than before the call"


class GuardedBuffers:
    """All copies of the inputs and outputs of a case, with what they must hold when they are checked again."""

    def __init__(self, sets: list[InputSet], device: Device, has_guards: bool, users: int = 1) -> None:
        """Take the sets over; with guards, each gets another output, between random bytes; `users` will share them."""
        import torch

        self._guard = os.urandom(2 * GUARD_BYTES)
        self._buffers: list[Tensor] = []
        if has_guards:
            for index, data in enumerate(sets):  # one by one, so that the outputs replaced are freed at once
                sets[index] = InputSet(data.inputs, self._between_guards(data.out))
        self._sets = sets
        self._views = self._made_views(users)
        largest = max((x.untyped_storage().nbytes() for x in (*sets[0].inputs, sets[0].out)), default=0)
        weights = torch.empty(min(FINGERPRINT_WORDS, largest // 8 + 1), dtype=torch.int64)
        weights.random_(-(2**62), 2**62, generator=torch.Generator().manual_seed(0))
        self._weights = (weights * 2 + 1).to(device.torch_name)  # odd: no change of a single word keeps the sum
        self._prints = {index: self.fingerprints(sets[index]) for index in _within_limit(sets)}

    def views(self) -> list[InputSet]:
        """Return new tensors on the same memory: what a function does to a tensor itself is not seen by the others."""
        if not self._views:
            self._views = self._made_views(1)
        return self._views.pop()

    def _made_views(self, users: int) -> list[list[InputSet]]:
        """Return tensors for so many users, those of a copy one after the other in random order.

        The address of a tensor's own object changes the time of a short launch by some percent: a user whose objects
        were all made later would always be slower.
        """
        views: list[list[InputSet]] = [[] for _ in range(users)]
        for data in self._sets:
            for user in random.sample(range(users), users):
                views[user].append(InputSet(tuple(x.detach() for x in data.inputs), data.out.detach()))
        return views

    def harm(self) -> str | None:
        """Return which forbidden change the memory shows, or None."""
        if any(self.fingerprints(self._sets[index]) != kept for index, kept in self._prints.items()):
            return MUTATED
        return self.harm_beyond()

    def harm_beyond(self) -> str | None:
        """Return on which side of an output something was written, or None."""
        import torch

        for data, buffer in zip(self._sets, self._buffers, strict=bool(self._buffers)):
            before, behind = self._guards(buffer)
            end = GUARD_BYTES + data.out.numel() * data.out.element_size()
            if not torch.equal(buffer[:GUARD_BYTES], before):
                return "writes outside of its output: the bytes before it have changed"
            if not torch.equal(buffer[end : end + GUARD_BYTES], behind):
                return "writes outside of its output: the bytes behind it have changed"
        return None

    def restore(self, op: Op, case: Case, filler: Filler) -> None:
        """Give inputs and guards the bytes that they had first; `filler` must begin as the first one did."""
        for data in self._sets:
            for x, first in zip(data.inputs, op.make_inputs(case, filler), strict=True):
                x.copy_(first)
        filler.release_pool()
        for data, buffer in zip(self._sets, self._buffers, strict=bool(self._buffers)):
            self._set_guards(buffer, GUARD_BYTES + data.out.numel() * data.out.element_size())

    def fingerprints(self, data: InputSet) -> tuple[int, ...]:
        """Return a number for all bytes of each input: a checksum, or on a GPU a sum of words with odd weights."""
        return tuple(self.fingerprint(x) for x in data.inputs)

    def fingerprint(self, x: Tensor) -> int:
        """Return a number for all bytes of the memory behind a tensor."""
        import torch

        raw = torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())
        if x.device.type == "cpu":  # by one thread: those of torch wait for each other, on a busy machine for long
            return zlib.crc32(raw.numpy().data)
        words, weights = raw[: raw.numel() // 8 * 8].view(torch.int64), self._weights
        total = hash(bytes(raw[words.numel() * 8 :].tolist()))
        for start in range(0, words.numel(), len(weights)):
            part = words[start : start + len(weights)]
            total = (total * 0x9E3779B97F4A7C15 + int((part * weights[: part.numel()]).sum())) % 2**64
        return total

    def _between_guards(self, out: Tensor) -> Tensor:
        import torch

        size_bytes = out.numel() * out.element_size()
        padded = -(-size_bytes // GUARD_BYTES) * GUARD_BYTES
        buffer = torch.zeros(padded + 2 * GUARD_BYTES, dtype=torch.uint8, device=out.device)
        end = GUARD_BYTES + size_bytes
        self._set_guards(buffer, end)
        self._buffers.append(buffer)
        return buffer[GUARD_BYTES:end].view(out.dtype).view(out.shape)

    def _set_guards(self, buffer: Tensor, end: int) -> None:
        before, behind = self._guards(buffer)
        buffer[:GUARD_BYTES].copy_(before)
        buffer[end : end + GUARD_BYTES].copy_(behind)

    def _guards(self, buffer: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        both = torch.frombuffer(bytearray(self._guard), dtype=torch.uint8).to(buffer.device)
        return both[:GUARD_BYTES], both[GUARD_BYTES:]


def places_of(data: InputSet) -> tuple[int, ...]:
    """Return where the tensors of a set lie in memory."""
    return tuple(x.data_ptr() for x in (*data.inputs, data.out))


def _within_limit(sets: Sequence[InputSet]) -> list[int]:
    """Return the copies whose inputs are fingerprinted: the first, the last, and evenly among the rest what fits."""
    size_bytes = sum(x.numel() * x.element_size() for x in sets[0].inputs)
    count = min(len(sets), max(2, FINGERPRINT_BYTES // max(1, size_bytes)))
    step = (len(sets) - 1) / max(1, count - 1)
    return sorted({round(index * step) for index in range(count)} | {len(sets) - 1})
