"""Generation: the cache of keys and values, and what the roofline allows in prefill and decode."""

from __future__ import annotations

from roofline.accounting.attention_work import attention_core_flops
from roofline.accounting.config import ModelConfig
from roofline.accounting.flops import gemm_flops
from roofline.accounting.parameters import count_parameters
from roofline.model import ridge_intensity


def kv_bytes_per_token(config: ModelConfig, element_bytes: int = 2) -> int:
    """Return the bytes that each token adds to the cache: 2 L k d w, with latent attention L (kvr + dr) w.

    Windowed layers count too; they stop growing where their window ends, see `kv_cache_bytes`.

    Source: Pope et al., Efficiently Scaling Transformer Inference (2022); DeepSeek-AI, DeepSeek-V2 (2024), table 1.
    """
    return config.layers * _layer_bytes(config, element_bytes)


def _layer_bytes(config: ModelConfig, element_bytes: int) -> int:
    if config.latent:
        return (config.latent.kv_rank + config.latent.rope_dim) * element_bytes
    return 2 * config.kv_heads * config.head_dim * element_bytes


def kv_cache_bytes(config: ModelConfig, sequence: int, batch: int = 1, element_bytes: int = 2) -> int:
    """Return the bytes of the cache of sequences of a length; a windowed layer keeps min(W, s) positions.

    Source: as of `kv_bytes_per_token`; engines may reserve whole pages, and hybrid ones the whole length.
    """
    positions = (config.layers - config.windowed_layers) * sequence
    positions += config.windowed_layers * config.length_seen(sequence, is_windowed=True)
    return batch * positions * _layer_bytes(config, element_bytes)


def prefill_flops(config: ModelConfig, sequence: int, batch: int = 1, is_head_last: bool = True) -> int:
    """Return the FLOPs of reading prompts: 2 N_mm s and the causal pairs; the head on the last token alone.

    Source: `flops.gemm_flops` and `attention_work.attention_core_flops`, forward.
    """
    products = gemm_flops(config, sequence)
    if is_head_last:
        products["lm_head"] //= sequence
    return batch * (sum(products.values()) + _core_flops(config, sequence, sequence))


def decode_flops(config: ModelConfig, sequence: int, batch: int = 1) -> int:
    """Return the FLOPs of one step: one token for each sequence, which sees `sequence` positions, itself included.

    Source: as of `prefill_flops`.
    """
    return batch * (sum(gemm_flops(config, 1).values()) + _core_flops(config, 1, sequence))


def _core_flops(config: ModelConfig, queries: int, keys: int) -> int:
    shape = (queries, keys, config.heads, config.query_key_dim, config.value_dim, "causal-exact")
    full = (config.layers - config.windowed_layers) * attention_core_flops(*shape)
    return full + config.windowed_layers * attention_core_flops(*shape, window=config.window)


def weight_bytes_read(config: ModelConfig, tokens: int, weight_bytes: float) -> int:
    """Return the bytes of weights that a step on `tokens` tokens must read.

    Everything that is multiplied by or added, once; of the embedding one row for each token; of experts those that
    some token chose, E (1 - (1 - topk / E)^B) of an even and independent choice.

    Args:
        config: the model.
        tokens: of the step; sequences of a decode step.
        weight_bytes: of one parameter.

    Source: the expected number of distinct draws; Mixtral and DeepSeek-V3 balance the load of their experts.
    """
    count = count_parameters(config)
    read = count.total - count.components.get("positions", 0)
    if not config.is_tied:
        read -= count.components["embedding"]
    read += tokens * config.width * (2 if config.position_embeddings else 1)
    experts = config.experts
    if experts:
        idle = (1 - experts.per_token / experts.count) ** tokens
        read -= int(count.components["experts"] * idle)
    return round(read * weight_bytes)


def critical_batch(peak_flops_per_s: float, bandwidth_bytes_per_s: float, weight_bytes: float = 2) -> float:
    """Return the batch from which on decoding is bound by compute: peak x w / (2 bandwidth), without a cache.

    Source: Austin et al., How to Scale Your Model (2025), inference: 240 for TPU v5e in bf16, 120 with int8 weights.
    """
    return ridge_intensity(peak_flops_per_s, bandwidth_bytes_per_s) * weight_bytes / 2
