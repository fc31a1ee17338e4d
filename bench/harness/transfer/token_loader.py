"""Batches from a memory-mapped file of token ids, and a loop that records how long it waits for each batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device

TOKEN_BYTES = {"uint16": 2, "uint32": 4}
"""Bytes of a token id. 16 bits hold vocabularies up to 65,536."""


class TokenFileError(ValueError):
    """A file of token ids cannot be used; the message is the line that the user sees."""


def open_tokens(path: Path, dtype: str) -> Any:
    """Return the token ids of a file as a memory-mapped numpy array.

    Raises:
        TokenFileError: the file cannot be read, is empty, or does not hold an integral number of ids.
    """
    import numpy as np

    try:
        size_bytes = path.stat().st_size
        if not size_bytes or size_bytes % TOKEN_BYTES[dtype]:
            raise TokenFileError(f"{path} has {size_bytes} bytes: no whole number of {dtype} token ids")
        return np.memmap(path, dtype, "r")
    except OSError as error:
        raise TokenFileError(f"cannot read {path}: {error.strerror}") from None


def write_random_tokens(path: Path, size_bytes: int, dtype: str, vocabulary: int, seed: int) -> None:
    """Write a file of random token ids below `vocabulary`; it is on disk when this returns."""
    import numpy as np

    ids = np.random.default_rng(seed).integers(0, vocabulary, size_bytes // TOKEN_BYTES[dtype], dtype=dtype)
    with path.open("wb") as file:
        ids.tofile(file)
        file.flush()
        os.fsync(file.fileno())


class Batches:
    """Random batches of token ids: inputs (b, s), and labels (b, s), which are one token further on."""

    def __init__(self, ids: Any, batch: int, sequence: int, device: Device, seed: int) -> None:
        """Read nothing yet.

        Raises:
            TokenFileError: there are too few tokens for one sequence and its next token.
        """
        if len(ids) < sequence + 1:
            raise TokenFileError(f"the file has {len(ids)} tokens, fewer than the {sequence + 1} of a sequence")
        import numpy as np

        self._ids, self._shape, self._device = ids, (batch, sequence), device
        self._generator = np.random.default_rng(seed)

    def problem(self, vocabulary: int) -> str | None:
        """Return what is wrong with a batch, or None: labels that are not the next tokens, ids past the vocabulary."""
        import torch

        inputs, labels = (part.cpu() for part in self.make())
        if not torch.equal(inputs[:, 1:], labels[:, :-1]):
            return "the labels are not the next tokens of the inputs"
        if int(inputs.max()) >= vocabulary:
            return f"the file holds token {int(inputs.max()):,}, past a vocabulary of {vocabulary:,}; see --vocabulary"
        return None

    def make(self) -> tuple[Tensor, Tensor]:
        """Return inputs and labels in int64 on the device; on a GPU through pinned memory, without waiting."""
        import numpy as np
        import torch

        batch, sequence = self._shape
        starts = self._generator.integers(0, len(self._ids) - sequence, batch)
        rows = torch.from_numpy(np.stack([self._ids[at : at + sequence + 1] for at in starts]).astype(np.int64))
        if self._device.is_gpu:
            rows = rows.pin_memory().to(self._device.torch_name, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]


class Loop:
    """Runs steps on batches and records how long each waits for its batch; a context, because of its thread."""

    def __init__(self, batches: Batches, work: Callable[[], None], device: Device, is_prefetching: bool) -> None:
        """Make each batch when it is needed, or prefetch the next one in a thread while a step computes."""
        self.waits_s: list[float] = []
        self._batches, self._work, self._device = batches, work, device
        self._thread = ThreadPoolExecutor(1) if is_prefetching else None
        self._next: Future[tuple[Tensor, Tensor]] | None = None

    def __enter__(self) -> Loop:
        if self._thread is not None:
            self._next = self._thread.submit(self._batches.make)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def step(self) -> None:
        """Take a batch, read its ids, compute, and wait until all is done."""
        start = time.perf_counter()
        inputs, labels = self._take()
        self.waits_s.append(time.perf_counter() - start)
        inputs.sum().add_(labels.sum())
        self._work()
        self._device.synchronize()

    def _take(self) -> tuple[Tensor, Tensor]:
        if self._thread is None or self._next is None:
            return self._batches.make()
        batch = self._next.result()
        self._next = self._thread.submit(self._batches.make)
        return batch
