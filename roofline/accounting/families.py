"""How each supported family of models writes its configuration; any other is refused by name.

The keys are those of the `config.json` of Hugging Face transformers. Where a file leaves a key out, the value that the
family's configuration class takes is used, and named among the assumptions; what no file of a family leaves out is
needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.accounting.config import ConfigError, ConfigKeys, Experts, LatentAttention, ModelConfig, StateSpace

PARTLY_ROTATED = ("gpt_neox", "nanogpt", "falcon")
"""Families that rotate a share of a head, or no head at all."""

ATTENTION_KINDS = ("full_attention", "sliding_attention")


def build_config(family: str, keys: ConfigKeys, name: str, source: str) -> ModelConfig:
    """Return the shape of a model of a family from its keys."""
    if family not in FAMILIES:
        raise ConfigError(f"unsupported architecture {family!r}; supported: {', '.join(FAMILIES)}")
    values = FAMILIES[family](keys)
    config = ModelConfig(name=name, family=family, source=source, assumptions=tuple(keys.assumptions), **values)
    _check(config, name)
    return config


def _check(config: ModelConfig, name: str) -> None:
    if config.heads % config.kv_heads:
        raise ConfigError(f"{name}: {config.heads} heads cannot share {config.kv_heads} key/value heads evenly")
    rotated = config.latent.rope_dim if config.latent else config.head_dim
    if not config.position_embeddings and config.family not in PARTLY_ROTATED and rotated % 2:
        raise ConfigError(f"{name}: heads of an odd width, {rotated}, cannot be rotated in pairs")
    experts = config.experts
    if experts and experts.per_token > experts.count:
        raise ConfigError(f"{name}: {experts.per_token} experts per token of only {experts.count}")


def _head_dim(keys: ConfigKeys, width: int, heads: int) -> int:
    """Return the width of a head: the key where it is there, else the width shared evenly."""
    if keys.has("head_dim"):
        return keys.whole("head_dim")
    if width % heads:
        raise ConfigError(f"'hidden_size' {width} cannot be shared by {heads} heads, and there is no 'head_dim'")
    return width // heads


def _attention_biases(keys: ConfigKeys, default: bool) -> dict[str, bool]:
    return dict.fromkeys(("has_qkv_bias", "has_output_bias"), keys.flag("attention_bias", default))


def _layer_norm(is_biased: bool) -> dict[str, Any]:
    """Return the parts of GPT-2 and its like: LayerNorm, two MLP matrices, biases everywhere or nowhere."""
    biases = dict.fromkeys(("has_qkv_bias", "has_output_bias", "has_mlp_bias"), is_biased)
    return {"is_gated": False, "norm": "layer", "has_norm_bias": True, **biases}


def _gpt2(keys: ConfigKeys) -> dict[str, Any]:
    """GPT-2: LayerNorm with biases, learned positions, two MLP matrices of 4 h, tied."""
    width, heads = keys.whole("n_embd"), keys.whole("n_head")
    if width % heads:
        raise ConfigError(f"'n_embd' {width} cannot be shared by {heads} heads")
    positions = keys.whole("n_positions")
    if keys.has("add_cross_attention") and keys.flag("add_cross_attention", False):
        keys.refuse("add_cross_attention", "false")
    return {
        "layers": keys.whole("n_layer", largest="layers"),
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "mlp_width": keys.whole("n_inner") if keys.has("n_inner") else 4 * width,
        "vocabulary": keys.whole("vocab_size"),
        "context": positions,
        "position_embeddings": positions,
        "is_tied": keys.flag("tie_word_embeddings", True),
        **_layer_norm(True),
    }


def _nanogpt(keys: ConfigKeys) -> dict[str, Any]:
    """GPT-2 as nanoGPT writes it: `bias` switches all biases, `has_positions` the learned positions."""
    values = _gpt2(keys)
    is_biased = keys.flag("bias", False)
    values |= dict.fromkeys(("has_qkv_bias", "has_output_bias", "has_mlp_bias", "has_norm_bias"), is_biased)
    if not keys.flag("has_positions", True):
        values["position_embeddings"] = 0
    return values


def _gpt_neox(keys: ConfigKeys) -> dict[str, Any]:
    """GPT-NeoX and Pythia: LayerNorm and biases everywhere, rotary positions, two MLP matrices."""
    values = _shape(keys, kv_heads=keys.whole("num_attention_heads"))
    biases = _attention_biases(keys, True)
    return values | _layer_norm(True) | biases | {"is_tied": keys.flag("tie_word_embeddings", False)}


def _shape(keys: ConfigKeys, kv_heads: int | None = None) -> dict[str, Any]:
    """Return what all families since Llama call alike."""
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    return {
        "layers": keys.whole("num_hidden_layers", largest="layers"),
        "width": width,
        "heads": heads,
        "kv_heads": keys.whole("num_key_value_heads") if kv_heads is None else kv_heads,
        "head_dim": _head_dim(keys, width, heads),
        "mlp_width": keys.whole("intermediate_size"),
        "vocabulary": keys.whole("vocab_size"),
        "context": keys.whole("max_position_embeddings") if keys.has("max_position_embeddings") else None,
    }


def _llama(keys: ConfigKeys) -> dict[str, Any]:
    """Llama: RMSNorm, gated MLP; files of Llama 1 have no `num_key_value_heads`, because every head has its own."""
    heads = keys.whole("num_attention_heads")
    return _shape(keys, kv_heads=keys.whole("num_key_value_heads", default=heads)) | {
        "is_tied": keys.flag("tie_word_embeddings", False),
        **_attention_biases(keys, False),
        "has_mlp_bias": keys.flag("mlp_bias", False),
    }


def _mistral(keys: ConfigKeys) -> dict[str, Any]:
    values = _shape(keys) | {"is_tied": keys.flag("tie_word_embeddings", False)}
    return values | _window(keys, values["layers"])


def _phi3(keys: ConfigKeys) -> dict[str, Any]:
    """Phi-3: Llama with query, key and value, and gate and up, in one matrix each; the counts are the same."""
    heads = keys.whole("num_attention_heads")
    values = _shape(keys, kv_heads=keys.whole("num_key_value_heads", default=heads))
    return values | {"is_tied": keys.flag("tie_word_embeddings", False)} | _window(keys, values["layers"])


def _window(keys: ConfigKeys, layers: int, windowed_layers: int | None = None) -> dict[str, Any]:
    """Return the sliding window; all layers have it, or those that `layer_types` names."""
    if not keys.has("sliding_window"):
        return {}
    kinds = keys.words("layer_types", ATTENTION_KINDS)
    if kinds is not None:
        if len(kinds) != layers:
            keys.refuse("layer_types", f"a list with one entry for each of the {layers} layers")
        windowed_layers = kinds.count("sliding_attention")
    count = layers if windowed_layers is None else windowed_layers
    return {"window": keys.whole("sliding_window"), "windowed_layers": count} if count else {}


def _mixtral(keys: ConfigKeys) -> dict[str, Any]:
    values = _mistral(keys)
    return values | {
        "experts": Experts(
            count=keys.whole("num_local_experts"),
            per_token=keys.whole("num_experts_per_tok"),
            mlp_width=values["mlp_width"],
            layers=values["layers"],
        )
    }


def _qwen2(keys: ConfigKeys) -> dict[str, Any]:
    """Qwen2 and 2.5: Llama with biases on query, key and value alone."""
    values = _shape(keys) | {"has_qkv_bias": True, "is_tied": keys.flag("tie_word_embeddings", False)}
    return values | _qwen_window(keys, values["layers"])


def _qwen_window(keys: ConfigKeys, layers: int) -> dict[str, Any]:
    """Return the window of Qwen, which its files name even where `use_sliding_window` says it is not used."""
    if not keys.has("use_sliding_window") or not keys.flag("use_sliding_window", False):
        return {}
    full = min(layers, keys.whole("max_window_layers", least=0))
    return _window(keys, layers, windowed_layers=layers - full)


def _qwen3(keys: ConfigKeys) -> dict[str, Any]:
    """Qwen3: query and key are normalized per head, no biases, the width of a head stands in the file."""
    values = _shape(keys) | {
        "head_dim": keys.whole("head_dim"),
        "has_qk_norm": True,
        **_attention_biases(keys, False),
        "is_tied": keys.flag("tie_word_embeddings", False),
    }
    return values | _qwen_window(keys, values["layers"])


def _sparse_layers(keys: ConfigKeys, layers: int) -> int:
    """Return how many layers of a Qwen mixture have experts."""
    step = keys.whole("decoder_sparse_step", default=1)
    dense = keys.places("mlp_only_layers", layers)
    return sum((index + 1) % step == 0 and index not in dense for index in range(layers))


def _qwen_experts(keys: ConfigKeys, layers: int, shared_mlp_width: int = 0) -> Experts:
    return Experts(
        count=keys.whole("num_experts", "num_local_experts"),
        per_token=keys.whole("num_experts_per_tok"),
        mlp_width=keys.whole("moe_intermediate_size"),
        layers=_sparse_layers(keys, layers),
        shared_mlp_width=shared_mlp_width,
        has_shared_gate=shared_mlp_width > 0,
    )


def _qwen2_moe(keys: ConfigKeys) -> dict[str, Any]:
    values = _qwen2(keys)
    shared = keys.whole("shared_expert_intermediate_size")
    return values | {
        "has_qkv_bias": keys.flag("qkv_bias", True),
        "experts": _qwen_experts(keys, values["layers"], shared),
    }


def _qwen3_moe(keys: ConfigKeys) -> dict[str, Any]:
    values = _qwen3(keys)
    return values | {"experts": _qwen_experts(keys, values["layers"])}


def _gemma(keys: ConfigKeys) -> dict[str, Any]:
    """Gemma: tied, and heads whose width is not h / a, so that it must stand in the file."""
    return _shape(keys) | {
        "head_dim": keys.whole("head_dim"),
        "is_tied": keys.flag("tie_word_embeddings", True),
        **_attention_biases(keys, False),
    }


def _gemma2(keys: ConfigKeys) -> dict[str, Any]:
    """Gemma 2: norms before and after each part; every second layer, from the first, sees a window."""
    values = _gemma(keys) | {"norms_per_layer": 4}
    layers = values["layers"]
    return values | _window(keys, layers, windowed_layers=(layers + 1) // 2)


def _gemma3(keys: ConfigKeys) -> dict[str, Any]:
    """Gemma 3: query and key normalized; every sixth layer sees all keys, the others a window."""
    values = _gemma(keys) | {"norms_per_layer": 4, "has_qk_norm": True}
    layers = values["layers"]
    pattern = keys.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return values | _window(keys, layers, windowed_layers=layers - layers // pattern)


def _deepseek_v3(keys: ConfigKeys) -> dict[str, Any]:
    """DeepSeek-V3: latent attention, a few dense layers, then many small experts and a shared one."""
    if keys.has("attention_bias") and keys.flag("attention_bias", False):
        keys.refuse("attention_bias", "false")
    layers, heads = keys.whole("num_hidden_layers", largest="layers"), keys.whole("num_attention_heads")
    latent = LatentAttention(
        query_rank=keys.rank("q_lora_rank", default=1536),
        kv_rank=keys.whole("kv_lora_rank"),
        nope_dim=keys.whole("qk_nope_head_dim"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        value_dim=keys.whole("v_head_dim"),
    )
    mlp_width = keys.whole("moe_intermediate_size")
    experts = Experts(
        count=keys.whole("n_routed_experts"),
        per_token=keys.whole("num_experts_per_tok"),
        mlp_width=mlp_width,
        layers=layers - min(layers, keys.whole("first_k_dense_replace", least=0)),
        shared_mlp_width=mlp_width * keys.whole("n_shared_experts", least=0),
    )
    keys.assumptions.append("the layers for predicting more than one token ahead (MTP) and router offsets are left out")
    return {
        "layers": layers,
        "width": keys.whole("hidden_size"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": latent.nope_dim + latent.rope_dim,
        "mlp_width": keys.whole("intermediate_size"),
        "vocabulary": keys.whole("vocab_size"),
        "context": keys.whole("max_position_embeddings") if keys.has("max_position_embeddings") else None,
        "is_tied": keys.flag("tie_word_embeddings", False),
        "latent": latent,
        "experts": experts if experts.layers else None,
    }


def _deepseek_v2(keys: ConfigKeys) -> dict[str, Any]:
    """DeepSeek-V2: as V3; its projections have no biases here."""
    if keys.has("mlp_bias") and keys.flag("mlp_bias", False):
        keys.refuse("mlp_bias", "false")
    return _deepseek_v3(keys)


def _olmo2(keys: ConfigKeys) -> dict[str, Any]:
    """OLMo 2: norms behind each part in place of before it; query and key normalized over all heads together."""
    values = _llama(keys)
    return values | {"has_mlp_bias": False, "has_qk_norm": True, "is_qk_norm_per_head": True}


def _cohere(keys: ConfigKeys) -> dict[str, Any]:
    """Command-R: attention and MLP side by side behind one LayerNorm without biases, tied."""
    heads = keys.whole("num_attention_heads")
    return _shape(keys, kv_heads=keys.whole("num_key_value_heads", default=heads)) | {
        "is_tied": keys.flag("tie_word_embeddings", True),
        **_attention_biases(keys, False),
        "has_qk_norm": keys.flag("use_qk_norm", False),
        "is_qk_norm_per_head": True,
        "norm": "layer",
        "norms_per_layer": 1,
    }


def _gpt_oss(keys: ConfigKeys) -> dict[str, Any]:
    """GPT-OSS: experts with biases in every layer, sinks of attention, a window in every second layer."""
    values = _shape(keys) | {
        "head_dim": keys.whole("head_dim"),
        "is_tied": keys.flag("tie_word_embeddings", False),
        **_attention_biases(keys, True),
        "has_mlp_bias": True,
        "has_sinks": True,
    }
    layers = values["layers"]
    experts = Experts(
        count=keys.whole("num_local_experts"),
        per_token=keys.whole("num_experts_per_tok"),
        mlp_width=values["mlp_width"],
        layers=layers,
        has_router_bias=True,
    )
    return values | {"experts": experts} | _window(keys, layers, windowed_layers=(layers + 1) // 2)


def _llama4(keys: ConfigKeys) -> dict[str, Any]:
    """Llama 4: layers with experts and a shared one among dense layers of another width."""
    values = _llama(keys)
    layers, width = values["layers"], values["mlp_width"]
    step = keys.whole("interleave_moe_layer_step", default=1)
    sparse = len(keys.places("moe_layers", layers)) if keys.has("moe_layers") else layers // step
    experts = Experts(
        count=keys.whole("num_local_experts"),
        per_token=keys.whole("num_experts_per_tok"),
        mlp_width=width,
        layers=sparse,
        shared_mlp_width=width,
    )
    chunk = keys.whole("attention_chunk_size", default=8192)
    kinds = keys.words("layer_types", ("full_attention", "chunked_attention"))
    chunked = layers - layers // 4 if kinds is None else kinds.count("chunked_attention")
    keys.assumptions.append(
        f"attention in chunks of {chunk} is counted as a window: an upper bound beyond {chunk} tokens"
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
    """Falcon: one norm for attention and MLP side by side, or two; one key/value head, or groups in newer ones."""
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    if width % heads:
        raise ConfigError(f"'hidden_size' {width} cannot be shared by {heads} heads")
    is_new, is_biased = keys.flag("new_decoder_architecture", False), keys.flag("bias", False)
    is_shared, is_parallel = keys.flag("multi_query", True), keys.flag("parallel_attn", True)
    norms = keys.whole("num_ln_in_parallel_attn") if keys.has("num_ln_in_parallel_attn") else 1 + is_new
    grouped = keys.whole("num_kv_heads", default=heads) if is_new else 1 if is_shared else heads
    return {
        "layers": keys.whole("num_hidden_layers", largest="layers"),
        "width": width,
        "heads": heads,
        "kv_heads": grouped,
        "head_dim": width // heads,
        "mlp_width": keys.whole("ffn_hidden_size") if keys.has("ffn_hidden_size") else 4 * width,
        "vocabulary": keys.whole("vocab_size"),
        "context": keys.whole("max_position_embeddings", default=2048),
        "is_tied": keys.flag("tie_word_embeddings", True),
        **_layer_norm(is_biased),
        "norms_per_layer": 2 if not is_parallel or norms == 2 else 1,
    }


def _opt(keys: ConfigKeys) -> dict[str, Any]:
    """OPT: GPT-3 with two unused positions in front; the 350M with a narrower embedding is refused."""
    width, heads = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    if width % heads:
        raise ConfigError(f"'hidden_size' {width} cannot be shared by {heads} heads")
    if keys.has("word_embed_proj_dim") and keys.whole("word_embed_proj_dim") != width:
        keys.refuse("word_embed_proj_dim", f"{width}, as 'hidden_size'")
    if not keys.flag("layer_norm_elementwise_affine", True):
        keys.refuse("layer_norm_elementwise_affine", "true")
    is_biased, context = keys.flag("enable_bias", True), keys.whole("max_position_embeddings")
    is_before = keys.flag("do_layer_norm_before", True)
    is_removed = keys.has("_remove_final_layer_norm") and keys.flag("_remove_final_layer_norm", False)
    return {
        "layers": keys.whole("num_hidden_layers", largest="layers"),
        "width": width,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": width // heads,
        "mlp_width": keys.whole("ffn_dim"),
        "vocabulary": keys.whole("vocab_size"),
        "context": context,
        "position_embeddings": context + 2,
        "is_tied": keys.flag("tie_word_embeddings", True),
        **_layer_norm(is_biased),
        "has_final_norm": is_before and not is_removed,
    }


def _mamba(keys: ConfigKeys) -> dict[str, Any]:
    """Mamba: layers of one mixer each, a state for every channel, no attention and no MLP."""
    width = keys.whole("hidden_size")
    has_rank = keys.has("time_step_rank") and not keys.is_word("time_step_rank", "auto")
    state = StateSpace(
        inner_width=keys.whole("expand", default=2) * width,
        state_size=keys.whole("state_size", default=16),
        kernel=keys.whole("conv_kernel", default=4),
        step_rank=keys.whole("time_step_rank") if has_rank else -(-width // 16),
        has_bias=keys.flag("use_bias", False),
        has_convolution_bias=keys.flag("use_conv_bias", True),
    )
    return _state_space(keys, width, state, is_tied=True)


def _mamba2(keys: ConfigKeys) -> dict[str, Any]:
    """Mamba 2: heads that share the state's inputs and outputs in groups, and a gated norm."""
    width, heads = keys.whole("hidden_size"), keys.whole("num_heads")
    inner = keys.whole("expand", default=2) * width
    if heads * keys.whole("head_dim") != inner:
        keys.refuse("head_dim", f"{inner} / 'num_heads' {heads}")
    groups = keys.whole("n_groups")
    if inner % groups or heads % groups:
        keys.refuse("n_groups", f"a divisor of {heads} heads and of {inner}")
    state = StateSpace(
        inner_width=inner,
        state_size=keys.whole("state_size"),
        kernel=keys.whole("conv_kernel", default=4),
        heads=heads,
        groups=groups,
        has_bias=keys.flag("use_bias", False),
        has_convolution_bias=keys.flag("use_conv_bias", True),
    )
    return _state_space(keys, width, state, is_tied=False)


def _state_space(keys: ConfigKeys, width: int, state: StateSpace, is_tied: bool) -> dict[str, Any]:
    keys.assumptions.append("updates of the state are no products of matrices, and left out of FLOPs as norms are")
    return {
        "layers": keys.whole("num_hidden_layers", largest="layers"),
        "width": width,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 0,
        "mlp_width": 0,
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
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "olmo2": _olmo2,
    "granite": _llama,
    "cohere": _cohere,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "falcon": _falcon,
    "opt": _opt,
    "mamba": _mamba,
    "mamba2": _mamba2,
}
"""By `model_type`."""
