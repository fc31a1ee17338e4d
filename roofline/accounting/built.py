"""Models without a formula. transformers builds them on torch's meta device, without memory, and
their weights are read from the modules; or they are read from the headers of safetensors files.

Parameters and matmuls are exact by construction. Code of a model's own repository (`auto_map`) is
never run.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec

from results.show.terminal import one_line
from roofline.accounting.config import (
    ConfigError,
    Experts,
    Keys,
    LatentAttention,
    ModelConfig,
    model_of_size,
)
from roofline.accounting.families import EXPERT_COUNTS
from roofline.accounting.parameters import Weight
from roofline.accounting.storage import IN_FILES

COMPONENTS = {
    r"lm_head|embed_out": "lm_head",
    r"wpe|position": "positions",
    r"embed|wte|\bshared\.weight": "embedding",
    r"norm|ln_|layernorm": "norms",
    r"shared_expert|shared_mlp": "shared_experts",
    r"router|\bgate\.(weight|bias)": "router",
    r"\bexperts\b": "experts",
    r"per_layer|laurel|altup": "per_layer",
    r"mamba|linear_attn|delta|\bconv": "state_space",
    r"mlp|ffn|feed_forward|\bfc|dense_\w+h": "mlp",
}
"""Component of a weight by its name, the first that matches; attention if none does."""

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "moe_k", "top_k_experts", "num_experts_per_token")
EXPERT_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
WITHOUT_CACHE = re.compile("linear|mamba|conv|recurrent|delta|kda|mlp|moe")
"""Kinds of layers with a state, or with an MLP only."""
WITH_STATE = re.compile("linear|mamba|conv|recurrent|delta|kda|hybrid")
STATES = {
    "linear_num_value_heads": (
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
    ),
    "linear_num_heads": ("linear_num_heads", "linear_head_dim", "linear_head_dim"),
    "mamba_n_heads": ("mamba_n_heads", "mamba_d_head", "mamba_d_state"),
    "mamba_num_heads": ("mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
    "mamba_expand": ("mamba_expand", "hidden_size", "mamba_d_state"),
    "linear_attn_alpha_factor": ("num_attention_heads", "head_dim", "head_dim"),
}
"""Extents of the recurrent state of a layer, by a key that the configuration has: gated delta rule,
Kimi's, Mamba 2, Mamba and lightning attention.

Source: the caches that transformers allocates; Yang et al., Gated Delta Networks (2024); Qin et
al., Lightning Attention-2 (2024).
"""
WITH_ALL_KEYS = ("full_attention", "attention", "hybrid")
WINDOWED = ("sliding_attention", "chunked_attention")
PROJECTIONS = re.compile(r"\.(\d+)\.\w+\.(q|k|v|kv_a)_proj(?:_with_mqa)?$")
ENCODERS = re.compile("vision|audio|image|encoder")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
MLP_WIDTHS = ("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff")
HALF = re.compile(r"(?:model\.)?(encoder|decoder)\.\w+\.")
HEADS = ("ForCausalLM", "LMHeadModel")
"""Suffixes of the class names of language models."""
MAX_LAYERS = 1000
"""Above any known model; the time to build one grows with its layers."""
NO_PARAMETERS = re.compile(r"inv_freq|scale|qzeros|g_idx|\.attn\.(masked_)?bias$")
"""Buffers, and what belongs to packed weights."""
NO_PRODUCTS = re.compile(r"embed_tokens|wte|wpe|position|norm|bias$")
DIMENSIONS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def built_config(values: Keys, where: str) -> ModelConfig:
    """Return the model of a `config.json`.

    Raises:
        ConfigError: torch or transformers is missing, or builds no language model of these keys.
    """
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"{where}: '{values['model_type']}' is built by transformers: pip install "
            "'roofmark[bench,models]'"
        ) from None
    given = {key: values[key] for key in values if key != "auto_map"}
    layers = values.get("num_hidden_layers")
    if isinstance(layers, int) and layers > MAX_LAYERS:
        raise ConfigError(f"{where}: more than {MAX_LAYERS:,} layers")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config, text = _build(given, where)
    except Exception as error:  # whatever a class of transformers raises
        reason = one_line(str(error).strip().rpartition("\n")[2], 200)
        raise ConfigError(f"{where}: transformers builds no language model: {reason}") from None
    for key in DIMENSIONS:
        if values.get(key, getattr(text, key, None)) != getattr(text, key, None):
            raise ConfigError(f"{where}: a {config.family} does not read '{key}' where it stands")
    return config


def _build(given: Keys, where: str) -> tuple[ModelConfig, Any]:
    """Return a model, and the configuration that transformers has of its last layer, without its
    messages.
    """
    import torch
    import transformers

    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        whole = transformers.AutoConfig.for_model(**given)
        if getattr(whole, "is_encoder_decoder", False):
            raise ConfigError("an encoder and a decoder, which `params` counts")
        text = whole.get_text_config()
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(text)  # type: ignore[no-untyped-call]
        last = [text, *getattr(text, "per_layer_config", ())][-1]
        return _read(model, last, given["model_type"], where), last
    finally:
        transformers.logging.set_verbosity(verbosity)


def whole_model(values: Keys, where: str) -> ModelConfig | None:
    """Return a model with encoders, of which only the parameters are known; None for a causal
    decoder, or if transformers is missing or builds no model of the configuration.
    """
    given = {key: values[key] for key in values if key != "auto_map"}
    with suppress(Exception):  # whatever a class of transformers raises
        import torch
        import transformers

        whole = transformers.AutoConfig.for_model(**given)
        name = (values.get("architectures") or [""])[0]
        if not name and (whole.is_encoder_decoder or hasattr(whole, "text_config")):
            name = f"{type(whole).__name__.removesuffix('Config')}ForConditionalGeneration"
        kind = getattr(transformers, name)
        if not name.endswith(HEADS) and issubclass(kind, transformers.PreTrainedModel):
            with torch.device("meta"):
                built = _weights(kind(whole), 0, 0)
            parts = [(weight, HALF.match(weight.name)) for weight in built]
            return replace(
                model_of_size(sum(weight.elements for weight in built)),
                name=where,
                built=tuple(replace(w, component=half[1]) if half else w for w, half in parts),
                is_tied=whole.tie_word_embeddings,
                source=f"{where}, the modules that transformers builds",
            )
    return None


def _read(model: Any, text: Any, family: str, where: str) -> ModelConfig:
    """Return the model by the configuration of its last layer."""
    layers = int(text.num_hidden_layers)
    heads = int(text.num_attention_heads)
    window = _first(text, ("sliding_window", "attention_chunk_size"))
    usual = "full_attention"
    if window and getattr(text, "use_sliding_window", True):
        usual = "sliding_attention"
    kinds: Sequence[str] = getattr(text, "layer_types", None) or [usual] * layers
    windowed = sum(kind in WINDOWED for kind in kinds)
    count = _first(text, EXPERT_COUNTS)
    routed = _first(text, EXPERTS_PER_TOKEN)
    head_dim = _first(text, ("head_dim", "dim_head")) or int(text.hidden_size) // heads
    kv_heads = _first(text, KV_HEADS) or heads
    stored = 2 * kv_heads * head_dim
    latent = None
    if _first(text, ("kv_lora_rank",)):
        latent = LatentAttention(
            query_rank=_first(text, ("q_lora_rank",)),
            kv_rank=text.kv_lora_rank,
            nope_dim=text.qk_nope_head_dim,
            rope_dim=text.qk_rope_head_dim,
            value_dim=text.v_head_dim,
        )
        head_dim = latent.nope_dim + latent.rope_dim
        stored = latent.kv_rank + latent.rope_dim
    caches = _caches(model, kinds, window, stored)
    sizes = (layers, heads, int(text.hidden_size), int(text.vocab_size))
    if min(sizes) < 1 or window < 0 or routed > count:
        raise ConfigError("a size is below 1, or tokens go to more experts than there are")
    uses = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    is_looped = getattr(text, "loop_num_passes", 1) > 1
    if max(uses.values()) > 2 or is_looped:  # a tied head is the second use of the embedding
        raise ConfigError("its layers share weights, or run several times")
    experts = None
    if count:
        names = [name for name, _ in model.named_parameters() if ".experts." in name]
        numbers = {re.findall(r"\.(\d+)\.", name)[0] for name in names}
        experts = Experts(
            count=count,
            per_token=routed,
            mlp_width=_first(text, EXPERT_WIDTHS),
            layers=len(numbers),
        )
    extents = next((STATES[key] for key in STATES if getattr(text, key, None)), None)
    recurrent = prod(getattr(text, key, None) or head_dim for key in extents) if extents else 0
    return ModelConfig(
        name=where,
        family=family,
        layers=layers,
        width=int(text.hidden_size),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_width=_first(text, MLP_WIDTHS) or 4 * int(text.hidden_size),
        vocabulary=int(text.vocab_size),
        context=getattr(text, "max_position_embeddings", None),
        is_tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        window=window if window and windowed else None,
        windowed_layers=windowed if window else 0,
        layers_without_cache=len(list(filter(WITHOUT_CACHE.search, kinds))),
        caches=caches,
        convolution_state=sum(
            parameter.numel()
            for parameter in model.parameters()
            if parameter.dim() == 3 and parameter.shape[1] == 1  # of each channel
        ),
        recurrent_state=len(list(filter(WITH_STATE.search, kinds))) * recurrent,
        latent=latent,
        experts=experts,
        built=_weights(model, count, routed),
        source=f"{where}, the modules that transformers builds of a {family}",
        assumptions=(
            *_notes(kinds, caches),
            "missing keys have the defaults of transformers",
            "activations as in a Llama of these dimensions; matmuls split evenly over devices",
            "FLOPs of scans, and recurrent states of an unknown kind, are not counted",
        ),
    )


def _caches(
    model: Any, kinds: Sequence[str], window: int, usual: int
) -> tuple[tuple[int, int], ...]:
    """Return what layers store for a token, by their projections, and their windows; nothing if all
    layers store `usual` elements, or if these projections are not separate.

    Layers without them use the keys and values of others, and keys without values are both (Gemma
    3n, Gemma 4); latent attention has one projection for both (dots3_note).
    """
    widths: dict[str, dict[str, int]] = {}
    for name, module in model.named_modules():
        found = PROJECTIONS.search(name)
        if found and hasattr(module, "out_features") and not ENCODERS.search(name):
            kind = kinds[int(found[1])]
            if not WITHOUT_CACHE.search(kind):
                own = {"window": window if kind in WINDOWED else 0}
                parts = widths.setdefault(name.rpartition(".")[0], own)
                parts[found[2]] = module.out_features
    caches = [
        (parts.get("kv_a") or parts["k"] + parts.get("v", parts["k"]), parts["window"])
        for parts in widths.values()
        if parts.keys() & {"k", "kv_a"}
    ]
    is_usual = len(caches) == len(widths) and all(size == usual for size, _ in caches)
    return () if is_usual else tuple(caches)


def _notes(kinds: Sequence[str], caches: Sequence[object]) -> list[str]:
    """Return notes on layers that are counted as others are."""
    others = {
        kind
        for kind in kinds
        if kind not in (*WITH_ALL_KEYS, *WINDOWED) and not WITHOUT_CACHE.search(kind)
    }
    notes = [f"layers of {kind} are counted as attention to all keys" for kind in sorted(others)]
    if caches:
        notes.append(
            f"{len(caches)} of {len(kinds)} layers store keys and values; FLOPs of attention are "
            f"those of heads as in the last layer"
        )
    return notes


def _first(text: Any, names: Sequence[str]) -> int:
    known = [getattr(text, name, None) for name in names]
    value = next(filter(None, known), 0)
    return int(max(value) if isinstance(value, list) else value)


def component_of(path: str) -> str:
    found = (kind for pattern, kind in COMPONENTS.items() if re.search(pattern, path))
    return next(found, "attention")


def _weights(model: Any, experts: int, routed: int) -> tuple[Weight, ...]:
    """Return the parameters, those of the same name in all layers together."""
    from torch import nn

    found: dict[tuple[str, tuple[int, ...]], Weight] = {}
    for name, parameter in model.named_parameters():  # a tied head once
        module = model.get_submodule(name.rpartition(".")[0])
        path = re.sub(r"\.\d+(?=\.)", ".*", name)
        component = component_of(path)
        shape = tuple(parameter.shape)
        if len(shape) == 3 and shape[0] == experts:
            component = "experts"
        is_product = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        is_stacked = component == "experts" and not is_product  # all experts in one tensor
        copies = shape[0] if is_stacked else 1
        shape = shape[1:] if is_stacked else shape
        is_gemm = len(shape) == 2 and (is_product or component in ("experts", "router"))
        if isinstance(module, nn.Linear) or component == "router":
            shape = shape[::-1]
        active = None
        if path.endswith("embed_tokens_per_layer.weight"):  # a lookup, as large as all layers
            active = 0
        before = found.get((path, shape))
        copies += before.copies if before else 0
        is_split = is_gemm or component == "embedding"
        split = "width" if is_split and component != "router" else ""
        found[path, shape] = Weight(path, component, shape, copies, is_gemm, active, split)
    return tuple(
        replace(weight, active_copies=weight.copies * routed // experts)
        if weight.component == "experts" and experts
        else weight
        for weight in found.values()
    )


MAX_HEADER = 100_000_000
"""Bytes, as in safetensors."""


class Tensor(msgspec.Struct):
    """The header of a tensor."""

    shape: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    data_offsets: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        start, stop = self.data_offsets
        if not 0 <= start <= stop:
            raise ValueError(f"data_offsets {start}, {stop}")
        return stop - start


def stored_model(folder: Path, reason: str) -> ModelConfig:
    """Return a model of which only the tensors in a folder are known, for a reason.

    Source: the format of safetensors: 8 bytes with the length of the header, little-endian, then
    JSON.

    Raises:
        ConfigError: there are no safetensors files, or one cannot be read.
    """
    copies: Counter[tuple[str, tuple[int, ...]]] = Counter()
    elements: Counter[str] = Counter()
    size_bytes: Counter[str] = Counter()
    for name, tensor in _tensors(folder).items():
        path = re.sub(r"\.\d+(?=\.)", ".*", name)
        module = path.rpartition(".")[0]
        size_bytes[module] += tensor.size_bytes  # with scales and zeros
        if not NO_PARAMETERS.search(name):
            copies[path, tensor.shape] += 1
            elements[module] += prod(tensor.shape)
    weights = []
    for (path, shape), count in copies.items():
        is_product = len(shape) > 1 and not NO_PRODUCTS.search(path)
        module = path.rpartition(".")[0]
        weight = Weight(path, component_of(path), shape, count, is_product)
        if weight.elements:
            weights.append(replace(weight, file_bits=8 * size_bytes[module] / elements[module]))
    if not weights:
        raise ConfigError(reason)
    return replace(
        model_of_size(sum(weight.elements for weight in weights)),
        name=str(folder),
        built=tuple(weights),
        is_tied=not any(weight.component == "lm_head" for weight in weights),
        quantization=IN_FILES,
        source="names and shapes in the headers of the files; packed integers as they are",
        assumptions=(reason, "unknown without it: attention, the cache, experts of a token"),
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of the safetensors files in a folder, by name."""
    tensors: dict[str, Tensor] = {}
    for part in list(folder.glob("model*.safetensors")) or folder.glob("*.safetensors"):
        try:
            with part.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = msgspec.json.decode(file.read(min(length, MAX_HEADER)), type=dict)
            header.pop("__metadata__", None)
            found = msgspec.convert(header, dict[str, Tensor])
            if not sum(tensor.size_bytes for tensor in found.values()):
                raise ValueError("no tensors")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{part}: no header of safetensors: {error}") from None
        tensors |= found
    return tensors
