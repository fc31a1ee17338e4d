"""Files of token ids, mapped into memory. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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
