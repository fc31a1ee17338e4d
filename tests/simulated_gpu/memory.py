"""What the simulated device holds: the storages of its tensors, rounded up as torch's allocator rounds them."""

from __future__ import annotations

import weakref
from typing import Any

BLOCK_BYTES = 512
"""Source: torch, `c10/cuda/CUDACachingAllocator.h`, kMinBlockSize."""


class Memory:
    """Counts bytes from the operation that returns a storage until nothing refers to it."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._sizes: dict[Any, int] = {}
        self.now = self.peak = 0

    def hold(self, storage: Any) -> None:
        """Count a storage once."""
        reference = weakref.ref(storage, self._release)
        if reference in self._sizes:
            return
        self._sizes[reference] = -(-storage.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        self.now += self._sizes[reference]
        self.peak = max(self.peak, self.now)

    def _release(self, reference: Any) -> None:
        self.now -= self._sizes.pop(reference, 0)

    def forget_peak(self) -> None:
        """Let the peak be what is held now."""
        self.peak = self.now


MEMORY = Memory()
