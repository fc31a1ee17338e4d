"""The configuration keys of each supported family of models.

The keys are those of the `config.json` of Hugging Face transformers. A missing key has the default
of the family's configuration class, which is listed among the assumptions; keys that no file of a
family lacks are required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from roofline.accounting.config import (
    MAX_LAYERS,
    ConfigError,
    ConfigKeys,
    Experts,
    LatentAttention,
    ModelConfig,
    StateSpace,
)

Values = dict[str, Any]
"""Fields of a `ModelConfig`."""

NO_FLAGS: Mapping[str, Sequence[str]] = MappingProxyType({})

NAMES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "context": "max_position_embeddings",
}

GPT2_NAMES = {
    "layers": "n_layer",
    "width": "n_embd",
    "heads": "n_head",
    "head_dim": "",
    "ffn": "n_inner",
    "context": "n_positions",
}

EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts, the first that a file has."""

FOURFOLD = ("n_inner", "ffn_hidden_size")


def build_config(family: str, keys: ConfigKeys, name: str, source: str) -> ModelConfig:
    values = FAMILIES[family](keys)
    config = ModelConfig(
        name=name, family=family, source=source, assumptions=tuple(keys.assumptions), **values
    )
    if config.heads % config.kv_heads:
        raise ConfigError(
            f"{name}: {config.heads} heads are not a multiple of {config.kv_heads} key/value heads"
        )
    experts = config.experts
    if experts and experts.per_token > experts.count:
        raise ConfigError(f"{name}: {experts.per_token} experts per token of only {experts.count}")
    return config


def _decoder(
    keys: ConfigKeys,
    is_tied: bool = False,
    kv_heads: int | None = None,
    names: Mapping[str, str] = NAMES,
) -> Values:
    width = keys.whole(names["width"])
    heads = keys.whole(names["heads"])
    has_head_dim = keys.has(names["head_dim"])
    if not has_head_dim and width % heads:
        raise ConfigError(f"'{names['width']}' {width} is not a multiple of {heads} heads")
    is_fourfold = names["ffn"] in FOURFOLD and not keys.has(names["ffn"])
    return {
        "layers": keys.whole(names["layers"], most=MAX_LAYERS),
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": keys.whole(names["head_dim"]) if has_head_dim else width // heads,
        "mlp_width": 4 * width if is_fourfold else keys.whole(names["ffn"]),
        "vocabulary": keys.whole("vocab_size"),
        "context": keys.whole(names["context"]) if keys.has(names["context"]) else None,
        "is_tied": keys.flag("tie_word_embeddings", is_tied),
    }


QKV = ("has_qkv_bias",)
ATTENTION = (*QKV, "has_output_bias")
ALL = (*ATTENTION, "has_mlp_bias")
"""Weights that a flag gives a bias."""
QK_NORM = ("has_qk_norm",)
LAYER_NORM: Values = {"is_gated": False, "norm": "layer", "has_norm_bias": True}


def _grouped(
    keys: ConfigKeys,
    is_tied: bool = False,
    has_all_heads: bool = False,
    needs_head_dim: bool = False,
    off: Mapping[str, Sequence[str]] = NO_FLAGS,
    on: Mapping[str, Sequence[str]] = NO_FLAGS,
    full_every: int | None = None,
    has_experts: bool = False,
    has_router_bias: bool = False,
    **fixed: Any,
) -> Values:
    """Return the fields of a decoder with grouped queries, RMSNorm and a gated MLP.

    Args:
        keys: those of the file.
        is_tied: default of `tie_word_embeddings`.
        has_all_heads: whether the file may leave out the number of key and value heads.
        needs_head_dim: whether it may not leave out `head_dim`.
        off: fields that a flag of the file sets, which is off by default.
        on: the same for flags that are on by default.
        full_every: every n-th layer sees all keys, the others a window; 0: none does.
        has_experts: whether all layers have experts.
        has_router_bias: whether their router has a bias.
        fixed: fields that are the same in all files of the family.
    """
    default = keys.whole("num_attention_heads") if has_all_heads else None
    values = _decoder(keys, is_tied, keys.whole("num_key_value_heads", default=default))
    for is_on, flags in ((False, off), (True, on)):
        for key, names in flags.items():
            values |= dict.fromkeys(names, keys.flag(key, is_on))
    layers = values["layers"]
    if needs_head_dim:
        values["head_dim"] = keys.whole("head_dim")
    if has_experts:
        sizes = {"mlp_width": values["mlp_width"], "layers": layers}
        values["experts"] = _experts(keys, **sizes, has_router_bias=has_router_bias)
    if full_every is not None:
        values |= _window(keys, layers, layers // full_every if full_every else 0)
    return values | fixed


def _refuse_if_on(keys: ConfigKeys, name: str) -> None:
    if keys.is_on(name):
        keys.refuse(name, "false")


def _window(
    keys: ConfigKeys,
    layers: int,
    full: int,
    size: str = "sliding_window",
    kind: str = "sliding_attention",
) -> Values:
    """Return the window of all layers but `full`, unless the file lists the kinds of layers."""
    if not keys.has(size):
        return {}
    windowed = layers - full
    kinds = keys.words("layer_types", ("full_attention", kind), layers)
    if kinds is not None:
        windowed = kinds.count(kind)
    return {"window": keys.whole(size), "windowed_layers": windowed} if windowed else {}


def _experts(keys: ConfigKeys, **others: Any) -> Experts:
    return Experts(
        count=keys.whole(*EXPERT_COUNTS), per_token=keys.whole("num_experts_per_tok"), **others
    )


def _gpt2(keys: ConfigKeys) -> Values:
    _refuse_if_on(keys, "add_cross_attention")
    positions = keys.whole("n_positions")
    values = _decoder(keys, is_tied=True, names=GPT2_NAMES) | LAYER_NORM
    return values | {"position_embeddings": positions, **dict.fromkeys(ALL, True)}


def _nanogpt(keys: ConfigKeys) -> Values:
    """GPT-2 as nanoGPT writes it: `bias` switches all biases, `has_positions` the learned
    positions.
    """
    values = _gpt2(keys) | dict.fromkeys((*ALL, "has_norm_bias"), keys.flag("bias", False))
    return values if keys.flag("has_positions", True) else values | {"position_embeddings": 0}


def _gpt_neox(keys: ConfigKeys) -> Values:
    biases = dict.fromkeys(ATTENTION, keys.flag("attention_bias", True))
    return _decoder(keys) | LAYER_NORM | {"has_mlp_bias": True} | biases


def _qwen(keys: ConfigKeys, **differences: Any) -> Values:
    values = _grouped(keys, **differences)
    if not keys.is_on("use_sliding_window"):
        return values
    layers = values["layers"]
    return values | _window(keys, layers, min(layers, keys.whole("max_window_layers", least=0)))


def _qwen_moe(keys: ConfigKeys, has_shared: bool = False, **differences: Any) -> Values:
    values = _qwen(keys, **differences)
    layers = values["layers"]
    step = keys.whole("decoder_sparse_step", default=1)
    dense = keys.layer_indices("mlp_only_layers", layers)
    values["experts"] = _experts(
        keys,
        mlp_width=keys.whole("moe_intermediate_size"),
        layers=sum((index + 1) % step == 0 and index not in dense for index in range(layers)),
        shared_mlp_width=keys.whole("shared_expert_intermediate_size") if has_shared else 0,
        has_shared_gate=has_shared,
    )
    return values


def _gemma3(keys: ConfigKeys) -> Values:
    """Gemma 3: query and key normalized; every sixth layer sees all keys, the others a window.

    Published files leave out keys that have the default value.
    """
    keys.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262_208)
    every = keys.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _grouped(keys, **GEMMA, full_every=every, norms_per_layer=4, has_qk_norm=True)


def _deepseek(keys: ConfigKeys) -> Values:
    _refuse_if_on(keys, "attention_bias")
    _refuse_if_on(keys, "mlp_bias")
    latent = LatentAttention(
        query_rank=keys.rank("q_lora_rank", default=1536),
        kv_rank=keys.whole("kv_lora_rank"),
        nope_dim=keys.whole("qk_nope_head_dim"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        value_dim=keys.whole("v_head_dim"),
    )
    # `head_dim` in the file is not the width of queries and keys.
    values = _decoder(keys, names=NAMES | {"head_dim": "qk_nope_head_dim"})
    return values | {
        "head_dim": latent.nope_dim + latent.rope_dim,
        "latent": latent,
        "experts": _routed_experts(keys, values["layers"]),
    }


def _routed_experts(keys: ConfigKeys, layers: int) -> Experts | None:
    """Return the experts of DeepSeek's kind: all tokens go to the shared ones too, and the first
    layers are dense.
    """
    mlp_width = keys.whole("moe_intermediate_size")
    experts = _experts(
        keys,
        mlp_width=mlp_width,
        layers=layers - min(layers, keys.whole("first_k_dense_replace", least=0)),
        shared_mlp_width=mlp_width * keys.whole("n_shared_experts", least=0),
    )
    keys.assumptions.append("multi-token prediction (MTP) layers and router offsets are left out")
    return experts if experts.layers else None


def _glm4_moe(keys: ConfigKeys) -> Values:
    values = _grouped(keys, off={"attention_bias": QKV, "use_qk_norm": QK_NORM})
    return values | {"experts": _routed_experts(keys, values["layers"])}


def _llama4(keys: ConfigKeys) -> Values:
    values = _grouped(keys, **LLAMA)
    layers = values["layers"]
    width = values["mlp_width"]
    step = keys.whole("interleave_moe_layer_step", default=1)
    sparse = (
        len(keys.layer_indices("moe_layers", layers)) if keys.has("moe_layers") else layers // step
    )
    experts = _experts(keys, mlp_width=width, layers=sparse, shared_mlp_width=width)
    keys.fill(attention_chunk_size=8192)
    keys.assumptions.append("attention in chunks is counted as a window: an upper bound beyond one")
    values |= _window(keys, layers, layers // 4, "attention_chunk_size", "chunked_attention")
    return values | {
        "has_mlp_bias": False,
        "head_dim": keys.whole("head_dim"),
        "mlp_width": keys.whole("intermediate_size_mlp"),
        "experts": experts if sparse else None,
    }


def _falcon(keys: ConfigKeys) -> Values:
    """Falcon: one or two norms for parallel attention and MLP; one key/value head, or groups in
    newer models.
    """
    is_new = keys.flag("new_decoder_architecture", False)
    is_parallel = keys.flag("parallel_attn", True)
    heads = keys.whole("num_attention_heads")
    is_shared = keys.flag("multi_query", True)
    norms = keys.whole("num_ln_in_parallel_attn", default=1 + is_new)
    kv_heads = 1 if is_shared else heads
    if is_new:
        kv_heads = keys.whole("num_kv_heads", default=heads)
    values = _decoder(keys, True, kv_heads, NAMES | {"head_dim": "", "ffn": "ffn_hidden_size"})
    return values | {
        "context": keys.whole("max_position_embeddings", default=2048),
        **LAYER_NORM,
        **dict.fromkeys(ALL, keys.flag("bias", False)),
        "norms_per_layer": 2 if not is_parallel or norms == 2 else 1,
    }


def _opt(keys: ConfigKeys) -> Values:
    """OPT: GPT-3 with two unused positions; 350M, with a narrower embedding, is not supported."""
    values = _decoder(keys, is_tied=True, names=NAMES | {"head_dim": "", "ffn": "ffn_dim"})
    if keys.has("word_embed_proj_dim") and keys.whole("word_embed_proj_dim") != values["width"]:
        keys.refuse("word_embed_proj_dim", f"{values['width']}, as 'hidden_size'")
    if not keys.flag("layer_norm_elementwise_affine", True):
        keys.refuse("layer_norm_elementwise_affine", "true")
    return values | {
        "position_embeddings": keys.whole("max_position_embeddings") + 2,
        **LAYER_NORM,
        **dict.fromkeys(ALL, keys.flag("enable_bias", True)),
        "has_final_norm": keys.flag("do_layer_norm_before", True)
        and not keys.is_on("_remove_final_layer_norm"),
    }


def _mamba(keys: ConfigKeys) -> Values:
    rank = keys.whole("time_step_rank", default=-(-keys.whole("hidden_size") // 16))
    return _state_space(keys, True, state_size=keys.whole("state_size", default=16), step_rank=rank)


def _mamba2(keys: ConfigKeys) -> Values:
    heads = keys.whole("num_heads")
    groups = keys.whole("n_groups")
    values = _state_space(
        keys, False, state_size=keys.whole("state_size"), heads=heads, groups=groups
    )
    inner = values["state"].inner_width
    if heads * keys.whole("head_dim") != inner:
        keys.refuse("head_dim", f"{inner} / 'num_heads' {heads}")
    return values


def _state_space(keys: ConfigKeys, is_tied: bool, **sizes: int) -> Values:
    keys.assumptions.append("FLOPs of state updates, like those of norms, are not counted")
    width = keys.whole("hidden_size")
    state = StateSpace(
        inner_width=keys.whole("expand", default=2) * width,
        kernel=keys.whole("conv_kernel", default=4),
        has_bias=keys.flag("use_bias", False),
        has_convolution_bias=keys.flag("use_conv_bias", True),
        **sizes,
    )
    layers = keys.whole("num_hidden_layers", most=MAX_LAYERS)
    return {
        "layers": layers,
        "width": width,
        **dict.fromkeys(("heads", "kv_heads"), 1),
        **dict.fromkeys(("head_dim", "mlp_width"), 0),
        "vocabulary": keys.whole("vocab_size"),
        "is_tied": keys.flag("tie_word_embeddings", is_tied),
        "norms_per_layer": 1,
        "state": state,
        "convolution_state": layers * state.convolved_width * state.kernel,
        "recurrent_state": layers * state.inner_width * state.state_size,
    }


LLAMA_FLAGS = {"attention_bias": ATTENTION, "mlp_bias": ("has_mlp_bias",)}
LLAMA: Values = {"has_all_heads": True, "off": LLAMA_FLAGS}
"""Llama 1 has no `num_key_value_heads`."""
GEMMA: Values = {"is_tied": True, "needs_head_dim": True, "off": {"attention_bias": ATTENTION}}
OLMO2: Values = {**LLAMA, "has_mlp_bias": False, "has_qk_norm": True, "is_qk_norm_per_head": True}
"""Norms after each part instead of before; query and key normalized over all heads together."""
OLMOE = partial(
    _grouped,
    off={"attention_bias": ATTENTION},
    has_experts=True,
    has_qk_norm=True,
    is_qk_norm_per_head=True,
)
QWEN2 = partial(_qwen, has_qkv_bias=True)
QWEN3_KEYS: Values = {
    "needs_head_dim": True,
    "off": {"attention_bias": ATTENTION},
    "has_qk_norm": True,
}
QWEN3 = partial(_qwen, **QWEN3_KEYS)
QWEN3_MOE = partial(_qwen_moe, **QWEN3_KEYS)

FAMILIES: dict[str, Callable[[ConfigKeys], Values]] = {
    "gpt2": _gpt2,
    "nanogpt": _nanogpt,
    "gpt_neox": _gpt_neox,
    "llama": partial(_grouped, **LLAMA),
    "mistral": partial(_grouped, full_every=0),
    "mixtral": partial(_grouped, full_every=0, has_experts=True),
    # Query, key and value, and gate and up, are in one matrix each; the counts are the same.
    "phi3": partial(_grouped, has_all_heads=True, full_every=0),
    "qwen2": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": partial(_qwen_moe, has_shared=True, on={"qkv_bias": QKV}),
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "gemma": partial(_grouped, **GEMMA),
    # Norms before and after each part; every second layer, from the first, sees a window.
    "gemma2": partial(_grouped, **GEMMA, norms_per_layer=4, full_every=2),
    "gemma3_text": _gemma3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    # Norms before and after each part.
    "glm4": partial(_grouped, on={"attention_bias": QKV}, norms_per_layer=4),
    "glm4_moe": _glm4_moe,
    "minimax_m2": OLMOE,
    "olmo2": partial(_grouped, **OLMO2),
    "olmo3": partial(_grouped, **OLMO2, full_every=4),
    "olmoe": OLMOE,
    "smollm3": partial(_grouped, is_tied=True, off=LLAMA_FLAGS),
    "seed_oss": partial(
        _grouped,
        off={"mlp_bias": ("has_mlp_bias",), "attention_out_bias": ("has_output_bias",)},
        on={"attention_bias": QKV},
    ),
    "ernie4_5": partial(_grouped, is_tied=True, off={"use_bias": ALL}),
    "starcoder2": partial(_grouped, is_tied=True, on={"use_bias": ALL}, full_every=0, **LAYER_NORM),
    "granitemoe": partial(
        _grouped,
        has_all_heads=True,
        off={"attention_bias": ATTENTION},
        has_experts=True,
    ),
    "granite": partial(_grouped, **LLAMA),
    # Command-R: attention and MLP in parallel after one LayerNorm without biases.
    "cohere": partial(
        _grouped,
        is_tied=True,
        has_all_heads=True,
        off={"attention_bias": ATTENTION, "use_qk_norm": QK_NORM},
        is_qk_norm_per_head=True,
        norm="layer",
        norms_per_layer=1,
    ),
    "gpt_oss": partial(
        _grouped,
        needs_head_dim=True,
        on={"attention_bias": ATTENTION},
        full_every=2,
        has_experts=True,
        has_router_bias=True,
        has_mlp_bias=True,
        has_sinks=True,
    ),
    "llama4_text": _llama4,
    "falcon": _falcon,
    "opt": _opt,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
}
