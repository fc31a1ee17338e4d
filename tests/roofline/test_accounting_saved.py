"""Activation estimates against the bytes that autograd really saves, for blocks of GPT and Llama
kind, to the byte.
"""

import random
from itertools import pairwise
from math import ceil

import pytest
import torch
from test_accounting_memory import total
from torch import nn
from torch.utils.checkpoint import checkpoint

from roofline.accounting.activations import (
    Kernels,
    checkpoint_group,
    layer_activations,
    model_activations,
)
from roofline.accounting.presets import read_config

DTYPES = {2: torch.bfloat16, 4: torch.float32}
"""By bytes of an element."""


def drawn_shapes(count, seed=20):
    """Return shapes of which hardly two share a number: kv heads, query heads a kv head, head and
    MLP width, s, b.
    """
    draw = random.Random(seed)
    return [
        (
            draw.randint(1, 4),
            draw.randint(1, 3),
            8 * draw.randint(1, 5),
            8 * draw.randint(5, 60),
            draw.randint(3, 70),
            draw.randint(1, 4),
            draw.choice((2, 4)),
        )
        for _ in range(count)
    ]


SHAPES = drawn_shapes(10)


class Attention(nn.Module):
    """Causal attention; unfused it keeps its probabilities."""

    def __init__(self, kv_heads, group, dim, is_flash, is_core_recomputed):
        super().__init__()
        self.shape = kv_heads, group, dim
        self.is_flash, self.is_core_recomputed = is_flash, is_core_recomputed

    def forward(self, q, k, v):
        (batch, sequence, _), (kv_heads, group, dim) = q.shape, self.shape
        q, k, v = (part.view(batch, sequence, -1, dim).transpose(1, 2) for part in (q, k, v))
        if self.is_flash:
            heads = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True
            )
        else:
            # Copies, so that no view keeps the storage of all three; the queries of a group lie
            # beside each other.
            q, k, v = (part.clone(memory_format=torch.contiguous_format) for part in (q, k, v))
            q = q.view(batch, kv_heads, group * sequence, dim)
            core = self.core if not self.is_core_recomputed else self.recomputed_core
            heads = core(q, k, v).view(batch, kv_heads * group, sequence, dim)
        return heads.transpose(1, 2).reshape(batch, sequence, -1)

    def core(self, q, k, v):
        _, group, dim = self.shape
        sequence = k.shape[2]
        mask = torch.full((sequence, sequence), -torch.inf, dtype=q.dtype).triu(1).repeat(group, 1)
        return torch.softmax(q @ k.transpose(2, 3) * dim**-0.5 + mask, -1) @ v

    def recomputed_core(self, q, k, v):
        return checkpoint(self.core, q, k, v, use_reentrant=False)


class GptBlock(nn.Module):
    def __init__(self, heads, _, dim, mlp_width, is_flash, is_core_recomputed=False):
        super().__init__()
        width = heads * dim
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, mlp_width), nn.Linear(mlp_width, width)
        self.attention = Attention(heads, 1, dim, is_flash, is_core_recomputed)

    def forward(self, x):
        x = x + self.out(self.attention(*self.qkv(self.first(x)).chunk(3, -1)))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class LlamaBlock(nn.Module):
    def __init__(self, kv_heads, group, dim, mlp_width, is_flash, is_core_recomputed=False):
        super().__init__()
        width = kv_heads * group * dim
        linear = lambda m, n: nn.Linear(m, n, bias=False)  # noqa: E731
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.out = linear(width, width), linear(width, width)
        self.k, self.v = linear(width, kv_heads * dim), linear(width, kv_heads * dim)
        self.gate, self.up, self.down = (
            linear(width, mlp_width),
            linear(width, mlp_width),
            linear(mlp_width, width),
        )
        self.attention = Attention(kv_heads, group, dim, is_flash, is_core_recomputed)

    def forward(self, x):
        y = self.first(x)
        x = x + self.out(self.attention(self.q(y), self.k(y), self.v(y)))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def config_of(block, kv_heads, group, dim, mlp_width, layers=1):
    if block is GptBlock:
        sizes = {
            "n_embd": kv_heads * dim,
            "n_head": kv_heads,
            "n_inner": mlp_width,
            "n_layer": layers,
        }
        return read_config(
            {"model_type": "nanogpt", "bias": True, "n_positions": 99, "vocab_size": 9, **sizes},
            "a test",
        )
    sizes = {"hidden_size": kv_heads * group * dim, "num_attention_heads": kv_heads * group}
    sizes |= {
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp_width,
        "num_hidden_layers": layers,
    }
    return read_config({"model_type": "llama", "vocab_size": 9, **sizes}, "a test")


def kernels_of(block, element_bytes, is_flash):
    is_gpt, is_half = block is GptBlock, element_bytes == 2
    return Kernels(
        element_bytes=element_bytes,
        is_flash=is_flash,
        is_norm_fused=is_gpt,  # RMSNorm is taken apart there
        statistic_bytes=2 if is_gpt and is_half else 4,
    )


def saved_bytes(run, *inputs, parameters=()):
    """Return the bytes that autograd saves in `run`, each storage once, without parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            # Held, so that no address comes twice.
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run(*inputs)
    assert output.requires_grad
    return sum(size for size, _ in kept.values())


def stack_of(block, shape, is_flash, layers, is_core_recomputed=False):
    kv_heads, group, dim, mlp_width, sequence, batch, element_bytes = shape
    group = 1 if block is GptBlock else group
    sizes = (kv_heads, group, dim, mlp_width, is_flash, is_core_recomputed)
    stack = nn.Sequential(*(block(*sizes) for _ in range(layers))).to(DTYPES[element_bytes])
    x = torch.randn(
        batch, sequence, kv_heads * group * dim, dtype=DTYPES[element_bytes], requires_grad=True
    )
    return stack, x, list(stack.parameters())


def estimate_of(block, shape, is_flash, layers=1):
    kv_heads, group, dim, mlp_width, sequence, batch, element_bytes = shape
    config = config_of(block, kv_heads, group, dim, mlp_width, layers)
    return config, sequence, batch, kernels_of(block, element_bytes, is_flash)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("is_flash", [True, False], ids=["flash", "unfused"])
@pytest.mark.parametrize("block", [GptBlock, LlamaBlock])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_block_keeps_exactly_what_is_predicted(shape, block, is_flash):
    stack, x, parameters = stack_of(block, shape, is_flash, 1)
    assert saved_bytes(stack, x, parameters=parameters) == total(
        layer_activations(*estimate_of(block, shape, is_flash))
    )


@pytest.mark.sampled(6)
@pytest.mark.parametrize("word", ["full", "every-2", "every-3", "sqrt"])
@pytest.mark.parametrize("is_flash", [True, False], ids=["flash", "unfused"])
@pytest.mark.parametrize("block", [GptBlock, LlamaBlock])
@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_checkpointing_keeps_the_inputs_of_groups_and_one_group(shape, block, is_flash, word):
    """What lives in the backward pass: what the forward pass kept, and a group as if it alone had
    been run.
    """
    layers = 6
    stack, x, parameters = stack_of(block, shape, is_flash, layers)
    size = checkpoint_group(word, layers)
    groups = [stack[first:last] for first, last in pairwise([*range(0, layers, size), layers])]

    def checkpointed(x):
        for group in groups:
            x = checkpoint(group, x, use_reentrant=False)
        return x

    predicted = model_activations(*estimate_of(block, shape, is_flash, layers), word)
    inputs = saved_bytes(checkpointed, x, parameters=parameters)
    assert inputs == predicted["checkpoints"] == ceil(layers / size) * x.nbytes
    assert inputs + saved_bytes(groups[0], x, parameters=parameters) == total(predicted)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("block", [GptBlock, LlamaBlock])
@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_selective_checkpointing_keeps_the_scores_of_one_layer(shape, block):
    """Korthikanti et al. (2022), section 5: attention is computed again from query, key and
    value.
    """
    layers = 3
    stack, x, parameters = stack_of(
        block, shape, is_flash=False, layers=layers, is_core_recomputed=True
    )
    predicted = model_activations(*estimate_of(block, shape, False, layers), "selective")
    one = layer_activations(*estimate_of(block, shape, False))["attention_scores"]
    assert saved_bytes(stack, x, parameters=parameters) + one == total(predicted)
