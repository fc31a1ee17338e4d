"""One new token through a decoder layer and its cache, written twice: as the formulas say, and with torch's functions.

A layer's sizes are those of its tensors, and what is empty is left out: a bias, the norms of queries and keys, the
table of rotary positions. So a function of a user's own needs to be told nothing else.

Source: Touvron et al., LLaMA (2023), and Radford et al., GPT-2 (2019), as Hugging Face transformers builds them; the
    halves of a head are paired for the rotation as it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
    Norm = Callable[[Tensor, Tensor, Tensor], Tensor]

RMSNORM_EPSILON = 1e-6
LAYERNORM_EPSILON = 1e-5
"""The epsilons of Llama 2 and of torch.nn.LayerNorm; neither changes the cost of a layer."""

LAYER = (
    *("attention_norm", "attention_norm_bias", "qkv", "qkv_bias", "query_norm", "key_norm", "output", "output_bias"),
    *("mlp_norm", "mlp_norm_bias", "up", "up_bias", "down", "down_bias", "keys", "values"),
)
"""Names of a layer's inputs, in order; a matrix is stored (outputs, inputs), as torch.nn.Linear does."""


def plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return RMSNorm, or LayerNorm where there is a bias, as the formula says."""
    if not bias.numel():
        return x * (x.square().mean(-1, keepdim=True) + RMSNORM_EPSILON).rsqrt() * weight
    centered = x - x.mean(-1, keepdim=True)
    return centered * (centered.square().mean(-1, keepdim=True) + LAYERNORM_EPSILON).rsqrt() * weight + bias


def library_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the same by torch's functions."""
    from torch.nn import functional

    if not bias.numel():
        return functional.rms_norm(x, weight.shape, weight, RMSNORM_EPSILON)
    return functional.layer_norm(x, weight.shape, weight, bias, LAYERNORM_EPSILON)


def plain_scores(q: Tensor, keys: Tensor) -> Tensor:
    """Return q K^T / sqrt(d) with q (b, a, d) and K (b, k, s, d), as (b, k, a / k, s): a / k heads to a key head."""
    scores: Tensor = q.unflatten(1, (keys.shape[1], -1)) @ keys.mT
    return scores / math.sqrt(q.shape[-1])


def weighted(shares: Tensor, values: Tensor) -> Tensor:
    """Return the sums (b, a, d) of V (b, k, s, d) with the shares (b, k, a / k, s)."""
    return (shares @ values).flatten(1, 2)


def plain_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return softmax(q K^T / sqrt(d)) V."""
    return weighted(plain_scores(q, keys).softmax(-1), values)


def plain_attend(q: Tensor, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of q (b, a, d) to the cache and the new key and value (b, k, d), all in one."""
    import torch

    return plain_attention(q, torch.cat((keys, key[:, :, None]), 2), torch.cat((values, value[:, :, None]), 2))


def split_attend(q: Tensor, keys: Tensor, values: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the same with the cache left where it is: one softmax over two products."""
    import torch

    grouped = q.unflatten(1, (keys.shape[1], -1))
    scores = torch.cat((grouped @ keys.mT, grouped @ key.unsqueeze(-1)), -1)
    shares = (scores / math.sqrt(q.shape[-1])).softmax(-1)
    return torch.addcmul(shares[..., :-1] @ values, shares[..., -1:], value.unsqueeze(-2)).flatten(1, 2)


def rotated(x: Tensor, table: Tensor) -> Tensor:
    """Return heads (b, a, d) turned to their position by cosines and sines; as they are where there are none."""
    import torch

    if not table.numel():
        return x
    first, second = x.chunk(2, -1)
    return x * table[0] + torch.cat((-second, first), -1) * table[1]


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W^T + bias, without a bias that is empty."""
    from torch.nn import functional

    return functional.linear(x, weight, bias if bias.numel() else None)


def layer(x: Tensor, table: Tensor, w: dict[str, Tensor], norm: Norm, attend: Attend) -> list[Tensor]:
    """Return the hidden states (b, h) behind one layer, and the new key and value, each (b, k d)."""
    from torch.nn import functional

    _, kv_heads, _, d = w["keys"].shape
    heads = w["output"].shape[1] // d
    projected = linear(norm(x, w["attention_norm"], w["attention_norm_bias"]), w["qkv"], w["qkv_bias"])
    q, key, value = projected.unflatten(-1, (-1, d)).split((heads, kv_heads, kv_heads), 1)
    if w["query_norm"].numel():
        q, key = norm(q, w["query_norm"], x.new_empty(0)), norm(key, w["key_norm"], x.new_empty(0))
    q, key = rotated(q, table), rotated(key, table)
    attended = attend(q, w["keys"], w["values"], key, value).flatten(1)
    x = x + linear(attended, w["output"], w["output_bias"])
    up = linear(norm(x, w["mlp_norm"], w["mlp_norm_bias"]), w["up"], w["up_bias"])
    if up.shape[-1] == 2 * w["down"].shape[-1]:
        gate, up = up.chunk(2, -1)
        up = functional.silu(gate) * up
    else:
        up = functional.gelu(up, approximate="tanh")
    return [x + linear(up, w["down"], w["down_bias"]), key.flatten(1), value.flatten(1)]


def through_block(norm: Norm, attend: Attend, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of the output of decode-block."""
    x, table, *tensors = inputs
    return layer(x, table, dict(zip(LAYER, tensors, strict=True)), norm, attend)


def through_step(norm: Norm, attend: Attend, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of the output of decode-step: logits, then key and value of each layer."""
    x, positions, table, last, last_bias, head, *tensors = inputs
    x, new = x + positions if positions.numel() else x, []
    for start in range(0, len(tensors), len(LAYER)):
        w = dict(zip(LAYER, tensors[start : start + len(LAYER)], strict=True))
        x, *added = layer(x, table, w, norm, attend)
        new += added
    return [linear(norm(x, last, last_bias), head, x.new_empty(0)), *new]


def library_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return `plain_attention` by torch's function; the query heads of a group are queries of one key head."""
    from torch.nn import functional

    grouped = q.unflatten(1, (keys.shape[1], -1))
    return functional.scaled_dot_product_attention(grouped, keys, values).flatten(1, 2)
