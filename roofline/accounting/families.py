"""The configuration keys of each supported family of models.

The keys are those of the `config.json` of Hugging Face transformers. A missing key has the default
of the family's configuration class, which is listed among the assumptions; keys that no file of a
family lacks are required.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roofline.accounting.config import (
    ConfigError,
    ConfigKeys,
    Experts,
    LatentAttention,
    ModelConfig,
    StateSpace,
)

PARTLY_ROTATED = ("gpt_neox", "nanogpt", "falcon")
"""Families with partial or no rotary positions."""

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

FOURFOLD = ("n_inner", "ffn_hidden_size")

ATTENTION_KINDS = ("full_attention", "sliding_attention")


def build_config(family: str, keys: ConfigKeys, name: str, source: str) -> ModelConfig:
    values = FAMILIES[family](keys)
    config = ModelConfig(
        name=name, family=family, source=source, assumptions=tuple(keys.assumptions), **values
    )
    _check(config, name)
    return config


def _check(config: ModelConfig, name: str) -> None:
    if config.heads % config.kv_heads:
        raise ConfigError(
            f"{name}: {config.heads} heads are not a multiple of {config.kv_heads} key/value heads"
        )
    rotated = config.latent.rope_dim if config.latent else config.head_dim
    if not config.position_embeddings and config.family not in PARTLY_ROTATED and rotated % 2:
        raise ConfigError(f"{name}: heads of odd width, {rotated}, do not support rotary positions")
    experts = config.experts
    if experts and experts.per_token > experts.count:
        raise ConfigError(f"{name}: {experts.per_token} experts per token of only {experts.count}")


def _decoder(
    keys: ConfigKeys,
    is_tied: bool = False,
    kv_heads: int | None = None,
    names: Mapping[str, str] = NAMES,
) -> dict[str, Any]:
    width = keys.whole(names["width"])
    heads = keys.whole(names["heads"])
    has_head_dim = keys.has(names["head_dim"])
    if not has_head_dim and width % heads:
        raise ConfigError(f"'{names['width']}' {width} is not a multiple of {heads} heads")
    is_fourfold = names["ffn"] in FOURFOLD and not keys.has(names["ffn"])
    return {
        "layers": keys.whole(names["layers"], largest="layers"),
        "width": width,
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": keys.whole(names["head_dim"]) if has_head_dim else width // heads,
        "mlp_width": 4 * width if is_fourfold else keys.whole(names["ffn"]),
        "vocabulary": keys.whole("vocab_size"),
        "context": keys.whole(names["context"]) if keys.has(names["context"]) else None,
        "is_tied": keys.flag("tie_word_embeddings", is_tied),
    }


def _grouped(keys: ConfigKeys, is_tied: bool = False, is_optional: bool = False) -> dict[str, Any]:
    default = keys.whole("num_attention_heads") if is_optional else None
    return _decoder(keys, is_tied, keys.whole("num_key_value_heads", default=default))


def _attention_biases(keys: ConfigKeys, default: bool) -> dict[str, bool]:
    return dict.fromkeys(("has_qkv_bias", "has_output_bias"), keys.flag("attention_bias", default))


def _layer_norm(is_biased: bool) -> dict[str, Any]:
    biases = dict.fromkeys(("has_qkv_bias", "has_output_bias", "has_mlp_bias"), is_biased)
    return {"is_gated": False, "norm": "layer", "has_norm_bias": True, **biases}


def _refuse_if_on(keys: ConfigKeys, name: str) -> None:
    if keys.has(name) and keys.flag(name, False):
        keys.refuse(name, "false")


def _window(keys: ConfigKeys, layers: int, windowed_layers: int | None = None) -> dict[str, Any]:
    if not keys.has("sliding_window"):
        return {}
    kinds = keys.words("layer_types", ATTENTION_KINDS)
    if kinds is not None:
        if len(kinds) != layers:
            keys.refuse("layer_types", f"a list with one entry for each of the {layers} layers")
        windowed_layers = kinds.count("sliding_attention")
    count = layers if windowed_layers is None else windowed_layers
    return {"window": keys.whole("sliding_window"), "windowed_layers": count} if count else {}


def _experts(keys: ConfigKeys, *count_keys: str, **others: Any) -> Experts:
    return Experts(
        count=keys.whole(*count_keys), per_token=keys.whole("num_experts_per_tok"), **others
    )


def _gpt2(keys: ConfigKeys) -> dict[str, Any]:
    _refuse_if_on(keys, "add_cross_attention")
    positions = keys.whole("n_positions")
    values = _decoder(keys, is_tied=True, names=GPT2_NAMES)
    return values | {"position_embeddings": positions} | _layer_norm(True)


def _nanogpt(keys: ConfigKeys) -> dict[str, Any]:
    """GPT-2 as nanoGPT writes it: `bias` switches all biases, `has_positions` the learned
    positions.
    """
    values = _gpt2(keys)
    is_biased = keys.flag("bias", False)
    values |= _layer_norm(is_biased) | {"has_norm_bias": is_biased}
    return values if keys.flag("has_positions", True) else values | {"position_embeddings": 0}


def _gpt_neox(keys: ConfigKeys) -> dict[str, Any]:
    return _decoder(keys) | _layer_norm(True) | _attention_biases(keys, True)


def _llama(keys: ConfigKeys) -> dict[str, Any]:
    """Llama: RMSNorm, gated MLP; Llama 1 has no `num_key_value_heads`."""
    values = _grouped(keys, is_optional=True) | _attention_biases(keys, False)
    return values | {"has_mlp_bias": keys.flag("mlp_bias", False)}


def _smollm3(keys: ConfigKeys) -> dict[str, Any]:
    """SmolLM3: Llama, tied, with layers without rotary positions."""
    return _llama(keys) | _grouped(keys, is_tied=True)


def _seed_oss(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys) | {"has_mlp_bias": keys.flag("mlp_bias", False)}
    values["has_qkv_bias"] = keys.flag("attention_bias", True)
    return values | {"has_output_bias": keys.flag("attention_out_bias", False)}


def _ernie(keys: ConfigKeys) -> dict[str, Any]:
    biases = ("has_qkv_bias", "has_output_bias", "has_mlp_bias")
    return _grouped(keys, is_tied=True) | dict.fromkeys(biases, keys.flag("use_bias", False))


def _starcoder2(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys, is_tied=True) | _layer_norm(keys.flag("use_bias", True))
    return values | _window(keys, values["layers"])


def _glm4(keys: ConfigKeys) -> dict[str, Any]:
    """GLM-4: norms before and after each part; query, key and value have biases."""
    values = _grouped(keys) | {"norms_per_layer": 4}
    return values | {"has_qkv_bias": keys.flag("attention_bias", True)}


def _mistral(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys)
    return values | _window(keys, values["layers"])


def _phi3(keys: ConfigKeys) -> dict[str, Any]:
    """Phi-3: Llama with query, key and value, and gate and up, in one matrix each; the counts are
    the same.
    """
    values = _grouped(keys, is_optional=True)
    return values | _window(keys, values["layers"])


def _mixtral(keys: ConfigKeys) -> dict[str, Any]:
    values = _mistral(keys)
    sizes = {"mlp_width": values["mlp_width"], "layers": values["layers"]}
    return values | {"experts": _experts(keys, "num_local_experts", **sizes)}


def _granite_moe(keys: ConfigKeys) -> dict[str, Any]:
    """Llama whose layers all have experts."""
    values = _grouped(keys, is_optional=True) | _attention_biases(keys, False)
    sizes = {"mlp_width": values["mlp_width"], "layers": values["layers"]}
    return values | {"experts": _experts(keys, "num_local_experts", "num_experts", **sizes)}


def _olmoe(keys: ConfigKeys) -> dict[str, Any]:
    values = _granite_moe(keys) | _grouped(keys)
    return values | {"has_qk_norm": True, "is_qk_norm_per_head": True}


def _qwen2(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys) | {"has_qkv_bias": True}
    return values | _qwen_window(keys, values["layers"])


def _qwen_window(keys: ConfigKeys, layers: int) -> dict[str, Any]:
    if not keys.has("use_sliding_window") or not keys.flag("use_sliding_window", False):
        return {}
    full = min(layers, keys.whole("max_window_layers", least=0))
    return _window(keys, layers, windowed_layers=layers - full)


def _qwen3(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys) | {"head_dim": keys.whole("head_dim"), "has_qk_norm": True}
    return values | _attention_biases(keys, False) | _qwen_window(keys, values["layers"])


def _qwen_experts(keys: ConfigKeys, layers: int, shared_mlp_width: int = 0) -> dict[str, Experts]:
    step = keys.whole("decoder_sparse_step", default=1)
    dense = keys.layer_indices("mlp_only_layers", layers)
    experts = _experts(
        keys,
        "num_experts",
        "num_local_experts",
        mlp_width=keys.whole("moe_intermediate_size"),
        layers=sum((index + 1) % step == 0 and index not in dense for index in range(layers)),
        shared_mlp_width=shared_mlp_width,
        has_shared_gate=shared_mlp_width > 0,
    )
    return {"experts": experts}


def _qwen2_moe(keys: ConfigKeys) -> dict[str, Any]:
    values = _qwen2(keys) | {"has_qkv_bias": keys.flag("qkv_bias", True)}
    return values | _qwen_experts(
        keys, values["layers"], keys.whole("shared_expert_intermediate_size")
    )


def _qwen3_moe(keys: ConfigKeys) -> dict[str, Any]:
    values = _qwen3(keys)
    return values | _qwen_experts(keys, values["layers"])


def _gemma(keys: ConfigKeys) -> dict[str, Any]:
    return (
        _grouped(keys, is_tied=True)
        | {"head_dim": keys.whole("head_dim")}
        | _attention_biases(keys, False)
    )


def _gemma2(keys: ConfigKeys) -> dict[str, Any]:
    """Gemma 2: norms before and after each part; every second layer, from the first, sees a
    window.
    """
    values = _gemma(keys) | {"norms_per_layer": 4}
    layers = values["layers"]
    return values | _window(keys, layers, windowed_layers=(layers + 1) // 2)


def _gemma3(keys: ConfigKeys) -> dict[str, Any]:
    """Gemma 3: query and key normalized; every sixth layer sees all keys, the others a window.

    Published files leave out keys that have the default value.
    """
    keys.fill(num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262_208)
    values = _gemma(keys) | {"norms_per_layer": 4, "has_qk_norm": True}
    layers = values["layers"]
    pattern = keys.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return values | _window(keys, layers, windowed_layers=layers - layers // pattern)


def _deepseek_v3(keys: ConfigKeys) -> dict[str, Any]:
    _refuse_if_on(keys, "attention_bias")
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
        "n_routed_experts",
        mlp_width=mlp_width,
        layers=layers - min(layers, keys.whole("first_k_dense_replace", least=0)),
        shared_mlp_width=mlp_width * keys.whole("n_shared_experts", least=0),
    )
    keys.assumptions.append("multi-token prediction (MTP) layers and router offsets are left out")
    return experts if experts.layers else None


def _glm4_moe(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys) | {"has_qkv_bias": keys.flag("attention_bias", False)}
    values["has_qk_norm"] = keys.flag("use_qk_norm", False)
    return values | {"experts": _routed_experts(keys, values["layers"])}


def _deepseek_v2(keys: ConfigKeys) -> dict[str, Any]:
    _refuse_if_on(keys, "mlp_bias")
    return _deepseek_v3(keys)


def _olmo2(keys: ConfigKeys) -> dict[str, Any]:
    """OLMo 2: norms after each part instead of before; query and key normalized over all heads
    together.
    """
    return _llama(keys) | {"has_mlp_bias": False, "has_qk_norm": True, "is_qk_norm_per_head": True}


def _olmo3(keys: ConfigKeys) -> dict[str, Any]:
    """OLMo 3: every fourth layer sees all keys, the others a window."""
    values = _olmo2(keys)
    layers = values["layers"]
    return values | _window(keys, layers, windowed_layers=layers - layers // 4)


def _cohere(keys: ConfigKeys) -> dict[str, Any]:
    """Command-R: parallel attention and MLP after one LayerNorm without biases, tied."""
    norms = {"is_qk_norm_per_head": True, "norm": "layer", "norms_per_layer": 1}
    values = _grouped(keys, is_tied=True, is_optional=True) | _attention_biases(keys, False)
    return values | norms | {"has_qk_norm": keys.flag("use_qk_norm", False)}


def _gpt_oss(keys: ConfigKeys) -> dict[str, Any]:
    values = _grouped(keys) | _attention_biases(keys, True)
    layers = values["layers"]
    experts = _experts(
        keys,
        "num_local_experts",
        mlp_width=values["mlp_width"],
        layers=layers,
        has_router_bias=True,
    )
    values |= {
        "head_dim": keys.whole("head_dim"),
        "has_mlp_bias": True,
        "has_sinks": True,
        "experts": experts,
    }
    return values | _window(keys, layers, windowed_layers=(layers + 1) // 2)


def _llama4(keys: ConfigKeys) -> dict[str, Any]:
    values = _llama(keys)
    layers = values["layers"]
    width = values["mlp_width"]
    step = keys.whole("interleave_moe_layer_step", default=1)
    sparse = (
        len(keys.layer_indices("moe_layers", layers)) if keys.has("moe_layers") else layers // step
    )
    experts = _experts(
        keys, "num_local_experts", mlp_width=width, layers=sparse, shared_mlp_width=width
    )
    chunk = keys.whole("attention_chunk_size", default=8192)
    kinds = keys.words("layer_types", ("full_attention", "chunked_attention"))
    chunked = layers - layers // 4 if kinds is None else kinds.count("chunked_attention")
    keys.assumptions.append(
        f"attention in chunks of {chunk} is counted as a window: an upper bound beyond {chunk} "
        f"tokens"
    )
    return values | {
        "has_mlp_bias": False,
        "head_dim": keys.whole("head_dim"),
        "mlp_width": keys.whole("intermediate_size_mlp"),
        "experts": experts if sparse else None,
        "window": chunk if chunked else None,
        "windowed_layers": chunked,
    }


def _falcon(keys: ConfigKeys) -> dict[str, Any]:
    """Falcon: one or two norms for parallel attention and MLP; one key/value head, or groups in
    newer models.
    """
    is_new = keys.flag("new_decoder_architecture", False)
    is_parallel = keys.flag("parallel_attn", True)
    heads = keys.whole("num_attention_heads")
    is_shared = keys.flag("multi_query", True)
    norms = (
        keys.whole("num_ln_in_parallel_attn") if keys.has("num_ln_in_parallel_attn") else 1 + is_new
    )
    kv_heads = 1 if is_shared else heads
    if is_new:
        kv_heads = keys.whole("num_kv_heads", default=heads)
    values = _decoder(keys, True, kv_heads, NAMES | {"head_dim": "", "ffn": "ffn_hidden_size"})
    return values | {
        "context": keys.whole("max_position_embeddings", default=2048),
        **_layer_norm(keys.flag("bias", False)),
        "norms_per_layer": 2 if not is_parallel or norms == 2 else 1,
    }


def _opt(keys: ConfigKeys) -> dict[str, Any]:
    """OPT: GPT-3 with two unused positions; 350M, with a narrower embedding, is not supported."""
    values = _decoder(keys, is_tied=True, names=NAMES | {"head_dim": "", "ffn": "ffn_dim"})
    if keys.has("word_embed_proj_dim") and keys.whole("word_embed_proj_dim") != values["width"]:
        keys.refuse("word_embed_proj_dim", f"{values['width']}, as 'hidden_size'")
    if not keys.flag("layer_norm_elementwise_affine", True):
        keys.refuse("layer_norm_elementwise_affine", "true")
    is_removed = keys.has("_remove_final_layer_norm") and keys.flag(
        "_remove_final_layer_norm", False
    )
    return values | {
        "position_embeddings": keys.whole("max_position_embeddings") + 2,
        **_layer_norm(keys.flag("enable_bias", True)),
        "has_final_norm": keys.flag("do_layer_norm_before", True) and not is_removed,
    }


def _mamba(keys: ConfigKeys) -> dict[str, Any]:
    if keys.has("time_step_rank"):
        rank = keys.whole("time_step_rank")
    else:
        rank = -(-keys.whole("hidden_size") // 16)
    return _state_space(keys, True, state_size=keys.whole("state_size", default=16), step_rank=rank)


def _mamba2(keys: ConfigKeys) -> dict[str, Any]:
    heads = keys.whole("num_heads")
    groups = keys.whole("n_groups")
    values = _state_space(
        keys, False, state_size=keys.whole("state_size"), heads=heads, groups=groups
    )
    inner = values["state"].inner_width
    if heads * keys.whole("head_dim") != inner:
        keys.refuse("head_dim", f"{inner} / 'num_heads' {heads}")
    if inner % groups or heads % groups:
        keys.refuse("n_groups", f"a divisor of {heads} heads and of {inner}")
    return values


def _state_space(keys: ConfigKeys, is_tied: bool, **sizes: int) -> dict[str, Any]:
    keys.assumptions.append("FLOPs of state updates, like those of norms, are not counted")
    width = keys.whole("hidden_size")
    state = StateSpace(
        inner_width=keys.whole("expand", default=2) * width,
        kernel=keys.whole("conv_kernel", default=4),
        has_bias=keys.flag("use_bias", False),
        has_convolution_bias=keys.flag("use_conv_bias", True),
        **sizes,
    )
    return {
        "layers": keys.whole("num_hidden_layers", largest="layers"),
        "width": width,
        **dict.fromkeys(("heads", "kv_heads"), 1),
        **dict.fromkeys(("head_dim", "mlp_width"), 0),
        "vocabulary": keys.whole("vocab_size"),
        "is_tied": keys.flag("tie_word_embeddings", is_tied),
        "norms_per_layer": 1,
        "state": state,
    }


FAMILIES: dict[str, Callable[[ConfigKeys], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "nanogpt": _nanogpt,
    "gpt_neox": _gpt_neox,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_vl_text": _qwen2,
    "qwen2_5_vl_text": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_vl_text": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "minimax_m2": _olmoe,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "smollm3": _smollm3,
    "seed_oss": _seed_oss,
    "ernie4_5": _ernie,
    "starcoder2": _starcoder2,
    "granitemoe": _granite_moe,
    "granite": _llama,
    "cohere": _cohere,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "falcon": _falcon,
    "opt": _opt,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2,
}
