"""A decoder-only transformer in plain torch, as `roofline.accounting` counts it: GPT and Llama
blocks.

    x = embedding[ids] (+ positions)              ids (b, s), x (b, s, h)
    x = x + output(attention(norm(x)))            L blocks; q (b, a, s, d), k and v (b, k, s, d)
    x = x + mlp(norm(x))                          gelu(x up) down, or (silu(x gate) * x up) down
    loss = cross entropy(norm(x) head, targets)   logits (b, s, V), taken in fp32

Query, key and value have separate matrices, so that the tensors are those of
`roofline.accounting.parameters.weights`, one for one.

Sources: Radford et al., GPT-2 (2019); Touvron et al., LLaMA (2023).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.model.layers import RMSNORM_EPSILON, causal_attention, rotated, rotation_table
from roofline.accounting.config import ModelConfig

DEVIATION = 0.02
"""Standard deviation of the initial weights. Source: Radford et al., GPT-2 (2019)."""


class HeadNorm(nn.RMSNorm):
    """RMSNorm over the width of a head, in the dtype of its weight, as Qwen3 computes it.

    Under autocast its input is narrower than its weight, for which torch has no fused kernel.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Attention(nn.Module):
    """Causal attention of `a` query heads over `k` key and value heads of width d."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        queries = config.heads * config.head_dim
        keys = config.kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.query = nn.Linear(config.width, queries, bias=config.has_qkv_bias)
        self.key = nn.Linear(config.width, keys, bias=config.has_qkv_bias)
        self.value = nn.Linear(config.width, keys, bias=config.has_qkv_bias)
        self.output = nn.Linear(queries, config.width, bias=config.has_output_bias)
        self.query_norm, self.key_norm = (
            HeadNorm(config.head_dim, eps=RMSNORM_EPSILON) if config.has_qk_norm else nn.Identity()
            for _ in range(2)
        )

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return (b, s, h); `rotation` (2, s, d) holds cosines and sines, None for learned
        positions.
        """
        shape = (*x.shape[:2], -1, self.head_dim)
        query = self.query_norm(self.query(x).view(shape)).transpose(1, 2)
        key = self.key_norm(self.key(x).view(shape)).transpose(1, 2)
        value = self.value(x).view(shape).transpose(1, 2)
        if rotation is not None:
            query = rotated(query, rotation)
            key = rotated(key, rotation)
        attended = causal_attention(query, key, value)
        result: Tensor = self.output(attended.transpose(1, 2).reshape(*x.shape[:2], -1))
        return result


class Mlp(nn.Module):
    """gelu(x up) down, or gated: (silu(x gate) * x up) down; up and gate (h, f), down (f, h)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        h = config.width
        f = config.mlp_width
        bias = config.has_mlp_bias
        self.gate = nn.Linear(h, f, bias=bias) if config.is_gated else None
        self.up = nn.Linear(h, f, bias=bias)
        self.down = nn.Linear(f, h, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        wide = (
            nn.functional.gelu(self.up(x))
            if self.gate is None
            else nn.functional.silu(self.gate(x)) * self.up(x)
        )
        result: Tensor = self.down(wide)
        return result


def _norm(config: ModelConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.width, eps=RMSNORM_EPSILON)
    return nn.LayerNorm(config.width, bias=config.has_norm_bias)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = _norm(config)
        self.attention = Attention(config)
        self.mlp_norm = _norm(config)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Head(nn.Module):
    """The final norm, the logits (b, s, V), and their mean cross entropy in fp32 or, if x is fp64,
    in fp64.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm = _norm(config)
        self.product = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        return nn.functional.cross_entropy(
            self.product(self.norm(x)).flatten(0, 1).to(exact), targets.flatten()
        )


class Transformer(nn.Module):
    """The whole model, from token ids to the loss, with initial weights, on the default device.

    With checkpointing, only the inputs of groups of `group` layers are kept; 0: no checkpointing.
    `bench.model.layers.unsupported` says which models cannot be built.
    """

    def __init__(self, config: ModelConfig, group: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = (
            nn.Embedding(config.position_embeddings, config.width)
            if config.position_embeddings
            else None
        )
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)
        if config.is_tied:
            self.head.product.weight = self.embedding.weight
        self.group = group
        self.head_dim = config.head_dim
        self.width = config.width
        self.rotation: Tensor | None = None
        """Cosines and sines (2, s, d), made by `rotate_for`; the same for all layers and not a
        parameter.
        """
        self.start()

    @torch.no_grad()
    def start(self) -> None:
        """Fill matrices from N(0, 0.02^2), biases with 0, norms with 1, and scale the final norm.

        Logits should be at most about 1 in size. The norm returns vectors of length sqrt(h), and
        the rows of the head have length 0.02 sqrt(h): logits of 0.02 h would hide whether the loss
        starts at ln V. Divided by it, they are within about 1.
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, DEVIATION)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        self.head.norm.get_parameter("weight").fill_(1 / (DEVIATION * self.width))

    def rotate_for(self, sequence: int, dtype: torch.dtype, device: torch.device | str) -> None:
        if self.positions is None:
            positions = torch.arange(sequence, device="cpu")
            self.rotation = rotation_table(positions, self.head_dim).to(device, dtype)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        blocks = list(self.blocks)
        size = self.group or len(self.blocks)
        # A smaller group is the first: memory is largest in the last group, while the inputs of all
        # are still kept.
        for end in range(len(blocks) % size or size, len(blocks) + 1, size):
            group = blocks[max(0, end - size) : end]
            if self.group:
                x = checkpoint(self._run, group, x, use_reentrant=True, preserve_rng_state=False)
            else:
                x = self._run(group, x)
        loss: Tensor = self.head(x, targets)
        return loss

    def _run(self, blocks: list[nn.Module], x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x, self.rotation)
        return x
