"""Batches from a memory-mapped file of token ids, and a loop that records how long it waits for each batch."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from torch import Tensor

    from bench.harness.device.device import Device

TOKEN_DTYPES = {"uint16": 2, "uint32": 4}
"""Bytes of a token id. 16 bits hold vocabularies up to 65,536."""

WRITE_TOKENS = 2**22


class TokenFileError(ValueError):
    """A file of token ids that cannot be used; the message says why, in one line."""


def largest_vocabulary(dtype: str) -> int:
    """Return how many token ids a dtype can tell apart."""
    return 1 << 8 * TOKEN_DTYPES[dtype]


class TokenFile:
    """Token ids in a file, mapped into memory: what is not read is not loaded."""

    def __init__(self, path: Path, dtype: str) -> None:
        """Map the file.

        Raises:
            TokenFileError: it cannot be read, is empty, or no whole number of ids.
        """
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY)
            size_bytes = os.fstat(self._fd).st_size
            if not size_bytes or size_bytes % TOKEN_DTYPES[dtype]:
                raise TokenFileError(f"{path} has {size_bytes} bytes: no whole number of {dtype} token ids")
            self._map = mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            self.close()
            if isinstance(error, TokenFileError):
                raise
            reason = error.strerror if isinstance(error, OSError) else error
            raise TokenFileError(f"cannot read {path}: {reason}") from None
        import numpy as np

        self.ids = np.frombuffer(self._map, dtype=dtype)

    def close(self) -> None:
        """Close the file; the mapping ends with the last batch that uses it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def write_random_tokens(folder: Path, size_bytes: int, dtype: str, vocabulary: int, seed: int) -> Path:
    """Write a file of random token ids below `vocabulary`, on disk when this returns, and return its path.

    Raises:
        OSError: it cannot be written.
    """
    import numpy as np

    generator, left = np.random.default_rng(seed), size_bytes // TOKEN_DTYPES[dtype]
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".tokens", delete=False) as file:
        try:
            while left:
                count = min(left, WRITE_TOKENS)
                file.write(generator.integers(0, vocabulary, count, dtype=dtype).tobytes())
                left -= count
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise
    return Path(file.name)


class Batches:
    """Random batches of a token file: inputs (b, s) and labels (b, s), the labels one token further on."""

    def __init__(self, file: TokenFile, batch: int, sequence: int, device: Device, seed: int) -> None:
        """Prepare; nothing is read yet.

        Raises:
            TokenFileError: the file is shorter than one sequence and its next token.
        """
        if len(file.ids) < sequence + 1:
            raise TokenFileError(f"the file has {len(file.ids)} tokens, fewer than the {sequence + 1} of a sequence")
        import numpy as np

        self._file, self._shape, self._device = file, (batch, sequence), device
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
        """Return inputs and labels in int64 on the device; on a GPU by way of pinned memory, not waited for."""
        import numpy as np
        import torch

        batch, sequence = self._shape
        starts = self._generator.integers(0, len(self._file.ids) - sequence, batch)
        rows = torch.from_numpy(np.stack([self._file.ids[at : at + sequence + 1] for at in starts]).astype(np.int64))
        if self._device.is_gpu:
            rows = rows.pin_memory().to(self._device.torch_name, non_blocking=True)
        return rows[:, :-1], rows[:, 1:]


class Loop:
    """Runs steps on batches, and keeps how long each waited for its batch."""

    def __init__(self, batches: Batches, work: Callable[[], None], device: Device, is_prefetching: bool) -> None:
        """Take batches one by one, or let a thread make the next one while a step computes."""
        self.waits_s: list[float] = []
        self._batches, self._work, self._device = batches, work, device
        self._thread = ThreadPoolExecutor(1) if is_prefetching else None
        self._next: Future[tuple[Tensor, Tensor]] | None = None

    def __enter__(self) -> Self:
        """Begin with the first batch, where a thread makes them."""
        if self._thread is not None:
            self._next = self._thread.submit(self._batches.make)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    def step(self) -> None:
        """Take a batch, look at its ids, compute, and wait until all is done."""
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
