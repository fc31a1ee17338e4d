"""The models that can be built here, parts of their layers in plain torch, and a layer that decodes
one token.

Imports torch only inside functions, as `--help` needs the presets.

Sources: Touvron et al., LLaMA (2023), and Radford et al., GPT-2 (2019), as Hugging Face
transformers builds them; Su et al., RoFormer (2021), for the rotation, with the halves of a head
paired as in transformers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from roofline.accounting.config import ConfigError, ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

FAMILIES = ("gpt2", "nanogpt", "llama", "mistral", "qwen2", "qwen3", "phi3")
"""Families whose layers are computed as published."""

RMSNORM_EPSILON = 1e-6
"""The same in every precision. Source: configurations of Llama and Qwen have 1e-5 or 1e-6; the cost
is the same.
"""

LAYERNORM_EPSILON = 1e-5
"""Source: the default of torch.nn.LayerNorm."""

ROTARY_BASE = 10_000.0
"""Source: Su et al., RoFormer (2021), section 3.2.2."""

LAYER = (
    "attention_norm",
    "attention_norm_bias",
    "qkv",
    "qkv_bias",
    "query_norm",
    "key_norm",
    "output",
    "output_bias",
    "mlp_norm",
    "mlp_norm_bias",
    "up",
    "up_bias",
    "down",
    "down_bias",
    "keys",
    "values",
)
"""Names of the inputs of a decoded layer, in order. A matrix is stored (outputs, inputs), as in
torch.nn.Linear; an empty tensor leaves out a bias or the norms of queries and keys."""


@functools.lru_cache(maxsize=64)
def load_model(name: str) -> ModelConfig:
    from roofline.accounting.presets import load_config, load_preset

    if name.endswith(".json") or "/" in name:
        return load_config(Path(name))
    try:
        return load_preset(name)
    except ConfigError as error:
        ways, _, _ = str(error).partition(", its dimensions")  # options of `roofline estimate`
        raise ConfigError(ways.replace("--config", "--model")) from None


def unsupported(config: ModelConfig, sequence: int) -> str | None:
    problem = None
    if config.latent:
        problem = "latent attention (MLA) is not supported"
    elif config.experts:
        problem = "mixtures of experts are not supported"
    elif config.family not in FAMILIES:
        problem = f"family {config.family} is not supported (choose from {', '.join(FAMILIES)})"
    elif not config.position_embeddings and config.head_dim % 2:
        problem = f"heads of {config.head_dim} cannot be rotated in pairs"
    elif config.windowed_layers and config.window and sequence > config.window:
        problem = (
            f"sliding windows are not supported; use at most {config.window} tokens, got {sequence}"
        )
    elif config.position_embeddings and sequence > config.position_embeddings:
        problem = f"the model has {config.position_embeddings} positions, got {sequence} tokens"
    return f"{config.name}: {problem}" if problem else None


def rotation_table(positions: Tensor, head_dim: int) -> Tensor:
    """Return cosines and sines (2, *positions, d) of position x 10000^(-2i/d), each angle for both
    halves, in fp64.

    Source: Su et al., RoFormer (2021), equation 34.
    """
    import torch

    rates = ROTARY_BASE ** (
        -torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    )
    angles = positions.double()[..., None] * rates.repeat(2)
    return torch.stack((angles.cos(), angles.sin()))


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Rotate the pairs (i, i + d/2) of x (..., d) by cosines and sines (2, ..., d); an empty table
    changes nothing.
    """
    import torch

    if not table.numel():
        return x
    first, second = x.chunk(2, -1)
    return x * table[0] + torch.cat((-second, first), -1) * table[1]


def normalized(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return RMSNorm over the last axis, or LayerNorm if `bias` is not empty."""
    from torch.nn import functional

    if not bias.numel():
        return functional.rms_norm(x, weight.shape, weight, RMSNORM_EPSILON)
    return functional.layer_norm(x, weight.shape, weight, bias, LAYERNORM_EPSILON)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from torch.nn import functional

    return functional.linear(x, weight, bias if bias.numel() else None)


def plain_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return softmax(mask(q K^T / sqrt(d))) V as (b, a, s, d), q being the last s tokens of K and V
    (b, k, t, d).
    """
    return _by_parts(q, keys, lambda scores: scores.softmax(-1), values)


def attention_magnitude(truth: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the error scale: the sum of |terms|, each times the error of its score, which is that
    of the terms of the score.

    A score may be small by chance, so the largest norms of a query and a key are added.
    """
    typical: Tensor = q.norm(dim=-1).max() * keys.norm(dim=-1).max() / q.shape[-1]

    def weigh(scores: Tensor) -> Tensor:
        sizes = scores.abs().masked_fill(scores == -math.inf, 0)
        return scores.softmax(-1) * (1 + typical + sizes)

    return _by_parts(q, keys, weigh, values.abs())


def _by_parts(q: Tensor, keys: Tensor, weigh: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Return the sums of `values` with `weigh(scores)`, in parts of the queries: all scores
    together need not fit.
    """
    import torch

    length = q.shape[2]
    earlier = keys.shape[2] - q.shape[2]
    grouped = q.unflatten(1, (keys.shape[1], -1))
    size = max(128, -(-length // 64))
    parts = []
    for start in range(0, length, size):
        end = min(start + size, length)
        seen = earlier + end
        scores = grouped[:, :, :, start:end] @ keys[:, :, None, :seen].mT / math.sqrt(q.shape[-1])
        is_later = torch.ones(end - start, seen, dtype=torch.bool, device=q.device).triu(
            earlier + start + 1
        )
        parts.append(weigh(scores.masked_fill(is_later, -math.inf)) @ values[:, :, None, :seen])
    return torch.cat(parts, 3).flatten(1, 2)


def causal_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return `plain_attention` of as many queries as keys, by torch's function."""
    import torch

    group = q.shape[1] // keys.shape[1]
    # Only flash attention takes groups, in 16 bits; separate matmuls would keep all scores.
    if (
        group > 1
        and q.is_cuda
        and q.dtype == torch.float32
        and not torch.is_autocast_enabled("cuda")
    ):
        keys = keys.repeat_interleave(group, 1)
        values = values.repeat_interleave(group, 1)
        group = 1
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, keys, values, is_causal=True, enable_gqa=group > 1)


def cached_attention(q: Tensor, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of q (b, a, d) to the cache, which is not copied, and the new key and
    value (b, k, d).
    """
    import torch

    grouped = q.unflatten(1, (keys.shape[1], -1))
    scores = torch.cat((grouped @ keys.mT, grouped @ key.unsqueeze(-1)), -1)
    weights = (scores / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.addcmul(
        weights[..., :-1] @ values, weights[..., -1:], value.unsqueeze(-2)
    ).flatten(1, 2)


def decode_layer(x: Tensor, table: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the hidden states (b, h) behind one layer, and its new key and value (b, k d); tensors
    as in `LAYER`.
    """
    from torch.nn import functional

    w = dict(zip(LAYER, tensors, strict=True))
    _, kv_heads, _, d = w["keys"].shape
    heads = w["output"].shape[1] // d
    projected = linear(
        normalized(x, w["attention_norm"], w["attention_norm_bias"]), w["qkv"], w["qkv_bias"]
    )
    q, key, value = projected.unflatten(-1, (-1, d)).split((heads, kv_heads, kv_heads), 1)
    if w["query_norm"].numel():
        q = normalized(q, w["query_norm"], x.new_empty(0))
        key = normalized(key, w["key_norm"], x.new_empty(0))
    q = rotated(q, table)
    key = rotated(key, table)
    attended = cached_attention(q, w["keys"], w["values"], key, value).flatten(1)
    x = x + linear(attended, w["output"], w["output_bias"])
    up = linear(normalized(x, w["mlp_norm"], w["mlp_norm_bias"]), w["up"], w["up_bias"])
    if up.shape[-1] == 2 * w["down"].shape[-1]:
        gate, up = up.chunk(2, -1)
        up = functional.silu(gate) * up
    else:
        up = functional.gelu(up, approximate="tanh")
    return [x + linear(up, w["down"], w["down_bias"]), key.flatten(1), value.flatten(1)]


def decode_block(*inputs: Tensor, out: Tensor | None = None) -> Tensor:
    """Return hidden states, and the new key and value (b, h + 2 k d)."""
    import torch

    x, rotation, *tensors = inputs
    return torch.cat(decode_layer(x, rotation, tensors), -1, out=out)


def decode_step(
    x: Tensor,
    positions: Tensor,
    rotation: Tensor,
    norm: Tensor,
    norm_bias: Tensor,
    head: Tensor,
    *layers: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Return logits, and the new key and value of each layer (b, V + 2 L k d)."""
    import torch

    x = x + positions if positions.numel() else x
    new = []
    for start in range(0, len(layers), len(LAYER)):
        x, *added = decode_layer(x, rotation, layers[start : start + len(LAYER)])
        new += added
    return torch.cat(
        (linear(normalized(x, norm, norm_bias), head, x.new_empty(0)), *new), -1, out=out
    )
