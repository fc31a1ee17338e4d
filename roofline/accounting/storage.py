"""Bytes of stored weights: which tensors a format quantizes, and bits per weight."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from roofline.accounting.number_formats import SCALE_BLOCK
from roofline.accounting.parameters import Weight
from roofline.work import DTYPE_BITS

LAYERS = "products of the layers without routers, 16 for the others"
EXPERTS = "routed experts (else products of the layers), 16 for the others"
MATRICES = "all matrices, also embedding and head, 16 for the others"
ALL = "all tensors"
FILES = "as the model's files have them"

OTHER_BITS = 16
"""Bits of a weight that the format does not quantize."""


class Storage(NamedTuple):
    """A format of stored weights."""

    bits: float
    """Per quantized weight, with its part of the scales."""
    tensors: str = ALL
    """What is quantized; everything else has `OTHER_BITS`."""
    name: str = ""
    """Set for the weights in a model's files."""

    def bits_of(self, weight: Weight, has_experts: bool) -> float:
        if self.tensors == FILES:
            return weight.file_bits
        chosen = {
            ALL: True,
            MATRICES: len(weight.shape) == 2 or weight.component == "parameters",
            LAYERS: weight.is_layer_product,
            EXPERTS: weight.is_layer_product and (weight.component == "experts" or not has_experts),
        }
        return self.bits if chosen[self.tensors] else OTHER_BITS


STORED_DTYPES = {
    **{name: Storage(DTYPE_BITS[name]) for name in ("fp64", "fp32", "tf32", "fp16", "bf16")},
    "fp8e4m3": Storage(8, LAYERS),
    "fp8e5m2": Storage(8, LAYERS),
    "int8": Storage(8, LAYERS),
    "int4": Storage(4.15625, LAYERS),
    "mxfp4": Storage(4 + 8 / SCALE_BLOCK["mxfp4"], EXPERTS),
    "nvfp4": Storage(4 + 8 / SCALE_BLOCK["nvfp4"], LAYERS),
}
"""Dtypes of weights and caches.

Sources: int4 has a 16-bit scale and a 4-bit zero for 128 weights (Frantar et al., GPTQ; Lin et al.,
AWQ), mxfp4 an 8-bit scale for 32 (OCP), and of GPT-OSS only the experts (`modules_to_not_convert`
of its config.json), nvfp4 see `SCALE_BLOCK`. DeepSeek-V3 (2024), section 3.3, and llm-compressor
keep embedding, head, routers and norms.
"""

STORAGES = {
    **STORED_DTYPES,
    "nf4": Storage(4.127, LAYERS),
    "q8_0": Storage(8.5, MATRICES),
    "q4_k_m": Storage(4.89, MATRICES),
}
"""Formats of weights.

Sources: nf4 with double quantization: 0.127 bits of constants (Dettmers et al., QLoRA, 2023,
section 3). q8_0: a 16-bit scale for 32 weights (ggml `block_q8_0`). q4_k_m mixes 4.5 and 6.56 bits:
4.89 on average in Llama 3.1 8B (README of llama.cpp's `quantize`).
"""


IN_FILES = Storage(OTHER_BITS, FILES)


def storage_of(name: str | Storage) -> Storage:
    """Return a format of `STORAGES` by its name, or the one of a model's files."""
    return STORAGES[name]._replace(name=name) if isinstance(name, str) else name


def stored_bytes(tensors: Iterable[Weight], name: str | Storage) -> int:
    """Return the bytes of weights in a format, 1 or more."""
    held = list(tensors)
    storage = storage_of(name)
    has_experts = any(weight.component == "experts" for weight in held)
    bits = (weight.elements * storage.bits_of(weight, has_experts) for weight in held)
    return max(1, round(sum(bits) / 8))


def storage_note(name: str | Storage) -> str:
    """Return what a format quantizes, and its bits per weight."""
    storage = storage_of(name)
    if storage.tensors == FILES:
        return f"weights {FILES}"
    return f"weights in {storage.name}: {storage.bits:g} bits for {storage.tensors}"


QUANTIZERS = (
    ("int8", ["load_in_8bit': true"]),
    ("mxfp4", ["mxfp4"]),
    ("nvfp4", ["nvfp4"]),
    ("nf4", ["nf4"]),
    ("nvfp4", ["bits': 4", "float"]),
    ("fp8e4m3", ["bits': 8", "float"]),
    ("fp8e4m3", ["fp8"]),
    ("int4", ["bits': 4"]),
    ("int8", ["bits': 8"]),
)
"""Formats, and what the text of their `quantization_config` has."""


def quantization_of(given: Mapping[str, Any]) -> Storage | None:
    """Return the format that a `quantization_config` names, None if it is not known.

    A group of int4 has a 16-bit scale and a 4-bit zero; -1 is one for each column.

    Source: transformers, `quantizers/auto.py`; compressed-tensors, `config_groups`, of which the
    first counts; ModelOpt, `quant_algo`.
    """
    text = str({key: given[key] for key in given if not key.startswith("kv_cache")}).lower()
    group = re.search(r"'weights': \{[^}]*\}", text)
    scope = group[0] if group else text
    for name, words in QUANTIZERS:
        if all(word in scope for word in words):
            storage = storage_of(name)
            group = re.search(r"group_size': (-?\d+)", scope)
            if group and name == "int4":
                shared = 20 / int(group[1]) if int(group[1]) > 0 else 0
                storage = storage._replace(bits=4 + shared)
            return storage
    return None
