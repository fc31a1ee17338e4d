"""Models by the names and shapes of the tensors in safetensors files, of which only headers are
read.

Source: the format of safetensors: 8 bytes with the length of the header, little-endian, then JSON.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from roofline.accounting.built import component_of
from roofline.accounting.config import ConfigError, ModelConfig, dense_model
from roofline.accounting.parameters import Weight

NO_PARAMETERS = re.compile(r"inv_freq|scale|qzeros|g_idx|\.attn\.(masked_)?bias$")
"""Buffers, and what belongs to packed weights."""
NO_PRODUCTS = re.compile(r"embed_tokens|wte|wpe|position|norm|bias$")


class Tensor(msgspec.Struct):
    """The header of a tensor."""

    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def stored_model(folder: Path, reason: str) -> ModelConfig:
    """Return a model of which only the tensors in a folder are known, for a reason.

    Raises:
        ConfigError: there are no safetensors files, or one cannot be read.
    """
    headers: dict[str, Any] = {}
    try:
        for part in list(folder.glob("model*.safetensors")) or folder.glob("*.safetensors"):
            with part.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = file.read(min(length, 100_000_000))  # as in safetensors
            headers |= msgspec.json.decode(header, type=dict)
        headers.pop("__metadata__", None)
        tensors = msgspec.convert(headers, dict[str, Tensor])
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: no header of safetensors: {error}") from None
    copies: Counter[tuple[str, tuple[int, ...]]] = Counter()
    file_bytes = 0
    for name, tensor in tensors.items():
        file_bytes += tensor.data_offsets[1] - tensor.data_offsets[0]
        if not NO_PARAMETERS.search(name):
            copies[re.sub(r"\.\d+(?=\.)", ".*", name), tensor.shape] += 1
    weights = []
    for (path, shape), count in copies.items():
        is_product = len(shape) > 1 and not NO_PRODUCTS.search(path)
        weights.append(Weight(path, component_of(path), shape, count, is_product))
    if not weights:
        raise ConfigError(reason)
    return replace(
        dense_model(sum(weight.elements for weight in weights)),
        name=str(folder),
        built=tuple(weights),
        is_tied=not any(weight.component == "lm_head" for weight in weights),
        file_bytes=file_bytes,
        source="names and shapes in the headers of the files; packed integers as they are",
        assumptions=(reason, "unknown without it: attention, the cache, experts of a token"),
    )
