"""Decoding: one new token for each of b sequences, which attends to s positions including itself.

    decode-attention   out = softmax(q K^T / sqrt(d)) V of one layer, with K and V of all s
                       positions in the cache
    decode-block       one layer: norm, QKV, rotation, attention, projection, norm, (gated) MLP, two
                       residuals
    decode-step        the first layers of a model (--layers, default: all), its last norm, and the
                       head

Shape   bxs: b sequences of s positions each.
FLOPs   2 N_mm + 4 L s a d per sequence, where N_mm is the number of weights in matmuls. Only
        matmuls are counted.
Bytes   The weights once per batch; keys and values of the s - 1 earlier tokens of each sequence
        read, those of the new token written; hidden states of a block, embedding rows and logits of
        a step. decode-attention: q, s keys and values, and the result.
Ridge   A batch shares the weights, so a block is memory-bound below the critical batch, peak x w /
        (2 bandwidth): 295 on an H100 in bf16, see `python -m roofline estimate infer`. Caches are
        not shared: attention has a / k FLOP/byte in 16 bits at any batch size, so long contexts
        stay memory-bound.
Model   A preset (`python -m roofline estimate params --help`) or the path of a config.json.
        Families: llama, mistral, phi3, qwen2, qwen3 (RMSNorm, rotary positions, SwiGLU), gpt2
        (LayerNorm with biases, learned positions, GELU). Weights are random.
Output  The result, followed by the new keys and values of each layer; the cache is not written.
        Gathering the embedding rows (an input) and sampling a token are not measured. Inputs that a
        model lacks, such as a bias, are empty tensors.
Torch   decode-attention calls scaled_dot_product_attention with the query heads of a group as
        queries, so each key is read once. In a block, that call would need a copy of the cache with
        the new token, so the cache and the new token have separate matmuls.

Source  Formula 2 N + B s kv: Pope et al., Efficiently Scaling Transformer Inference (2022).
        Critical batch and intensity of attention: Austin et al., How to Scale Your Model (2025),
        inference. Rotation: Su et al., RoFormer (2021), with base 10000 and the halves of a head
        paired as in Hugging Face transformers.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.api.family import run_of
from bench.harness.cli.main import main
from bench.harness.data.stress import SCORES
from bench.harness.op import (
    Case,
    Op,
    Option,
    TensorMaker,
    UnsupportedCaseError,
    parse_count,
    rows_of,
    sequences_by_length,
)
from bench.model.layers import (
    LAYER,
    attention_magnitude,
    decode_block,
    decode_step,
    load_model,
    plain_attention,
    rotation_table,
    unsupported,
)
from roofline.accounting import inference
from roofline.accounting.config import ModelConfig
from roofline.work import Work

if TYPE_CHECKING:
    from torch import Tensor

EXAMPLES = (
    ("--plot decode.png", "the default model by batch size and context length, as a roofline plot"),
    (
        "--op decode-block --model llama-3-8b --shape 1x1024,32x1024,512x1024",
        "one layer of a larger model",
    ),
    (
        "--op decode-step --model llama-3.2-1b --layers 2 --shape 1x1024",
        "the first layers of a model, with its head",
    ),
)

DEFAULT_MODEL = "qwen2.5-0.5b"
QUERY_GAIN = 2.0
"""Queries are this much larger than keys. It spreads the scores, so a wrong scale, rotation or head
changes the result."""
LAYER_ROUNDINGS = 8
"""A layer rounds about 15 times in a row; errors of random sign add up to about 4 roundings,
doubled for safety.
"""
MAX_LAYERS = 9999


def parse_model(name: str) -> str:
    load_model(name)  # raises `ConfigError` for a name that is neither a preset nor a file
    return name


def parse_layers(text: str) -> str:
    try:
        return text if text == "all" else str(parse_count(text, MAX_LAYERS))
    except ValueError:
        raise ValueError(
            f"layers '{text}' must be 'all' or a whole number from 1 to {MAX_LAYERS}"
        ) from None


OPTIONS = (
    Option(
        "model",
        "preset or path/to/config.json",
        parse_model,
        lambda dtype: DEFAULT_MODEL,
        label=str,
    ),
    Option("layers", "number of layers of decode-step, or all", parse_layers, lambda dtype: "all"),
)


def config_of(case: Case) -> ModelConfig:
    config = load_model(case.options["model"])
    layers = case.options["layers"]
    return config if layers == "all" else config.with_layers(int(layers))


def check(case: Case, device_type: str) -> None:
    config = load_model(case.options["model"])
    layers = case.options["layers"]
    problem = unsupported(config, case.shape["s"])
    if problem is None and config.norm == "layer" and not config.has_norm_bias:
        problem = f"{config.name}: LayerNorm without biases is not supported"
    if (
        problem is None
        and case.op == "decode-step"
        and layers != "all"
        and int(layers) > config.layers
    ):
        problem = (
            f"{config.name}: the model has {config.layers} layers; use --layers "
            f"{config.layers} or fewer"
        )
    if problem:
        raise UnsupportedCaseError(problem)


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    h = config.width
    f = config.mlp_width
    d = config.head_dim
    queries = config.heads * d
    projected = (config.heads + 2 * config.kv_heads) * d
    inner = (2 if config.is_gated else 1) * f
    return {
        "attention_norm": (h,),
        "attention_norm_bias": (h * config.has_norm_bias,),
        "qkv": (projected, h),
        "qkv_bias": (projected * config.has_qkv_bias,),
        "query_norm": (d * config.has_qk_norm,),
        "key_norm": (d * config.has_qk_norm,),
        "output": (h, queries),
        "output_bias": (h * config.has_output_bias,),
        "mlp_norm": (h,),
        "mlp_norm_bias": (h * config.has_norm_bias,),
        "up": (inner, h),
        "up_bias": (inner * config.has_mlp_bias,),
        "down": (h, f),
        "down_bias": (h * config.has_mlp_bias,),
    }


def scaled(x: Tensor, rms: float) -> Tensor:
    """Scale x in place to a root mean square of about `rms`, estimated from its first 4096
    elements.
    """
    current = x.flatten()[:4096].double().square().mean().sqrt()
    return x.mul_(rms / current.clamp(min=1e-3).to(x.dtype))


def weight(tensor: TensorMaker, like: Tensor, *shape: int) -> Tensor:
    """Return elements of size 1, or a random matrix that preserves the size of the vectors it
    multiplies.
    """
    if 0 in shape:
        return like.new_empty(shape)
    return scaled(tensor(*shape), shape[1] ** -0.5 if len(shape) == 2 else 1.0)


def layer_inputs(
    config: ModelConfig, case: Case, tensor: TensorMaker, like: Tensor
) -> list[Tensor]:
    """Return the weights of a layer and the keys and values of the earlier tokens, in the order of
    `LAYER`.
    """
    made = {name: weight(tensor, like, *shape) for name, shape in layer_shapes(config).items()}
    made["query_norm" if config.has_qk_norm else "qkv"][: config.heads * config.head_dim].mul_(
        QUERY_GAIN
    )
    cache = (case.shape["b"], config.kv_heads, case.shape["s"] - 1, config.head_dim)
    made |= {name: weight(tensor, like, *cache) for name in ("keys", "values")}
    return [made[name] for name in LAYER]


def rotation(config: ModelConfig, case: Case, tensor: TensorMaker, like: Tensor) -> Tensor:
    """Return cosines and sines (2, d) of the new token's position, s - 1; empty for learned
    positions.
    """
    import torch

    if config.position_embeddings:
        return like.new_empty(0)
    position = torch.tensor(case.shape["s"] - 1, device="cpu")
    return tensor(2, config.head_dim).copy_(rotation_table(position, config.head_dim))


def attention_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return q (b, a, d), and K and V (b, k, s, d)."""
    config = load_model(case.options["model"])
    b = case.shape["b"]
    s = case.shape["s"]
    cache = (b, config.kv_heads, s, config.head_dim)
    q = scaled(tensor(b, config.heads, config.head_dim), QUERY_GAIN)
    return q, scaled(tensor(*cache), 1.0), scaled(tensor(*cache), 1.0)


def block_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return hidden states (b, h), the rotation, and the layer's inputs."""
    config = load_model(case.options["model"])
    x = tensor(case.shape["b"], config.width)
    return x, rotation(config, case, tensor, x), *layer_inputs(config, case, tensor, x)


def step_inputs(case: Case, tensor: TensorMaker) -> tuple[Tensor, ...]:
    """Return embedding rows (b, h), learned positions, rotation, last norm, head, and the inputs of
    the layers.
    """
    config = config_of(case)
    b = case.shape["b"]
    x = tensor(b, config.width)
    positions = tensor(b, config.width) if config.position_embeddings else x.new_empty(0)
    norm = weight(tensor, x, config.width)
    bias = weight(tensor, x, config.width * config.has_norm_bias)
    head = weight(tensor, x, config.vocabulary, config.width)
    inputs = [x, positions, rotation(config, case, tensor, x), norm, bias, head]
    for _ in range(config.layers):
        inputs += layer_inputs(config, case, tensor, x)
    return tuple(inputs)


decode_block.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # inputs of a user's function
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        for name in ("x", "rotation", *LAYER)
    ]
)


def attention_reference(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return plain_attention(q[:, :, None], keys, values)[:, :, 0]


def attention_errors(truth: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return attention_magnitude(truth, q[:, :, None], keys, values)[:, :, 0]


def library_attention(q: Tensor, keys: Tensor, values: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the attention by torch's function, with the query heads of a group as queries of one
    key head.
    """
    import torch

    grouped = q.unflatten(1, (keys.shape[1], -1))
    return torch.nn.functional.scaled_dot_product_attention(grouped, keys, values).flatten(1, 2)


def enlarge_ends(*inputs: Tensor) -> None:
    """Multiply the first and the last cached value by the number of values: the attention to one of
    many tokens is too little to be seen otherwise. By more than 2^13, a layer in fp16 may overflow.
    """
    values = inputs[-1]
    tokens = values.shape[2]
    values[:, :, :: max(1, tokens - 1)] *= min(tokens, 2**13)


def longest_sum(case: Case) -> int:
    config = config_of(case)
    return max(config.width, config.mlp_width, config.heads * config.head_dim)


def layers_magnitude(truth: Tensor, *inputs: Tensor) -> Tensor:
    """Return the error scale: the root mean square of each row, whose elements depend on the same
    numbers.

    Errors have random signs, so sums of K products multiply it by sqrt(K), and L layers by sqrt(L).
    """
    longest = max(x.shape[-1] for x in inputs if x.dim() == 2)
    return truth.square().mean(-1, keepdim=True).sqrt() * math.sqrt(
        longest * (len(inputs) // len(LAYER))
    )


WORK = {
    "decode-attention": inference.decode_attention_work,
    "decode-block": inference.decode_layer_work,
    "decode-step": inference.decode_step_work,
}


def work(case: Case) -> Work:
    return WORK[case.op](config_of(case), case.shape["s"], case.shape["b"], case.dtype)


def output_shape(case: Case) -> tuple[int, ...]:
    config = config_of(case)
    b = case.shape["b"]
    if case.op == "decode-attention":
        return b, config.heads, config.head_dim
    if case.op == "decode-block":
        return b, config.width + inference.kv_bytes_per_token(config.with_layers(1), 1)
    return b, config.vocabulary + inference.kv_bytes_per_token(config, 1)


BLOCK = Op(
    name="decode-block",
    formula="out (b, h + 2 k d) = one layer of x (b, h) over a cache of s - 1 tokens; its key and "
    "value",
    axes=("b", "s"),
    extents=sequences_by_length,
    default_shapes={
        "cpu": ("1x128", *(f"{2**n}x128" for n in range(2, 9)), "1x8192"),
        "cuda": (*(f"{2**n}x128" for n in range(11)), "1x8192", "1x131072"),
    },
    make_inputs=block_inputs,
    output_shape=output_shape,
    reference=decode_block,
    eager=decode_block,
    expression=decode_block,
    writes_out_when_compiled=False,
    work=work,
    magnitude=layers_magnitude,
    terms=longest_sum,
    intermediate_roundings=LAYER_ROUNDINGS,
    stress={"large values at the ends": enlarge_ends},
    defined_in=("bench.model.layers",),
    check=check,
)

ATTENTION = replace(
    BLOCK,
    name="decode-attention",
    formula="out (b, a, d) = softmax(q (b, a, d) K^T / sqrt(d)) V, K and V (b, k, s, d)",
    default_shapes={
        "cpu": ("1x8192", "32x1024"),
        "cuda": ("1x8192", "1x131072", "64x1024", "64x8192"),
    },
    make_inputs=attention_inputs,
    reference=attention_reference,
    eager=library_attention,
    expression=library_attention,
    magnitude=attention_errors,
    take_rows=rows_of(0, 1, 2),
    stress=SCORES,
    terms=lambda case: 1,
    intermediate_roundings=1,
)

STEP = replace(
    BLOCK,
    name="decode-step",
    formula="out (b, V + 2 L k d) = logits of x (b, h) over caches of s - 1 tokens; keys and "
    "values of L layers",
    default_shapes={"cpu": ("1x128",), "cuda": ("1x1024", "64x1024", "512x1024")},
    is_in_suite=False,
    make_inputs=step_inputs,
    reference=decode_step,
    stress={},
    eager=decode_step,
    expression=decode_step,
)

OPS = (ATTENTION, BLOCK, STEP)

run = run_of(__file__)

if __name__ == "__main__":
    raise SystemExit(main(__file__, __doc__, EXAMPLES, OPS, OPTIONS))
