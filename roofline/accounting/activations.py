"""Bytes that a forward pass stores for the backward pass, by component.

These are the tensors that autograd saves in a decoder block: inputs of norms and matmuls, query,
key, value and output of attention, unfused attention scores, inputs and outputs of activation
functions. Weights, workspaces, rounding by the allocator and temporaries of the backward pass are
not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt

from roofline.accounting.config import ByName, ConfigError, ModelConfig
from roofline.accounting.parameters import selective_products
from roofline.accounting.state import FP32_BYTES, Recipe, shard

ID_BYTES = 8

CHECKPOINTS = "none, selective, full, every-K, sqrt"
"""Recompute nothing, the attention scores (with flash attention, what `selective_products` says),
every layer, groups of K layers, groups of sqrt(L) layers.
"""

FORMULA = (
    "per layer and token: w (4h + d (2a + 2k) + 2f, gated 4f), flash 4a of log-sum-exp, "
    "else w a s of scores"
)
SOURCE = (
    "Korthikanti et al., Reducing Activation Recomputation (2022), table 2, tensor by tensor: "
    "s b h (34 + 5as/h) with dropout and without flash attention"
)


@dataclass(frozen=True)
class Kernels:
    """Properties of the implementation of a block that determine what it saves. Default: fused
    kernels, no dropout.
    """

    element_bytes: int = 2
    """w, bytes of one activation."""
    residual_bytes: int | None = None
    """Bytes per element of the residual stream; 4 under autocast; None: `element_bytes`."""
    is_flash: bool = True
    """Whether attention saves a log-sum-exp per query instead of its scores."""
    is_key_expanded: bool = False
    """Whether keys and values are repeated for each query head."""
    has_dropout: bool = False
    """Whether masks of one byte per entry are saved."""
    is_norm_fused: bool = True
    """Whether RMSNorm saves only its input; unfused, it saves the input in fp32 and the normalized
    values.
    """
    statistic_bytes: int = 4
    """Bytes of a mean or a reciprocal deviation; 2 for LayerNorm on a CPU in bf16."""
    is_input_cast_apart: bool = False
    """Whether each matmul saves a copy of a common input, as torch.autocast does for unfused
    matrices.
    """
    tensor_parallel: int = 1
    """Devices that split heads and the width of the MLP."""
    is_sequence_parallel: bool = False
    """Whether these devices split the tokens of everything else."""

    @property
    def stream_bytes(self) -> int:
        return self.residual_bytes or self.element_bytes

    @property
    def token_ways(self) -> int:
        return self.tensor_parallel if self.is_sequence_parallel else 1


FUSED = Kernels()

EFFICIENT_ATTENTION_QUERIES = 32
"""Source: torch 2.11, `torch/_meta_registrations.py`,
`meta__scaled_dot_product_efficient_attention`.
"""


def torch_kernels(config: ModelConfig, recipe: Recipe, device_type: str = "cuda") -> Kernels:
    """Return the properties of torch's kernels on `cpu` or `cuda`.

    On a CPU, RMSNorm is unfused, and LayerNorm saves bf16 statistics in bf16. On a GPU, attention
    in fp32 is the memory-efficient one: keys and values are repeated, and a log-sum-exp is saved
    for a multiple of 32 queries. Under autocast the stream stays in fp32, and each matmul casts its
    input.

    Source: torch 2.13, `torch.nn.functional.rms_norm`, `layer_norm` and
    `scaled_dot_product_attention`; torch 2.11 and 2.13, `torch/_meta_registrations.py`.
    """
    is_cpu = device_type == "cpu"
    is_mixed = recipe.name == "amp"
    size = recipe.activation_bytes
    is_narrow = is_cpu and config.norm == "layer" and recipe.weight_bytes == 2
    return Kernels(
        size,
        residual_bytes=4 if is_mixed else None,
        is_input_cast_apart=is_mixed,
        is_norm_fused=not is_cpu,
        statistic_bytes=2 if is_narrow else 4,
        is_key_expanded=not is_cpu and recipe.compute_dtype == "fp32",
    )


def layer_activations(
    config: ModelConfig,
    sequence: int,
    batch: int = 1,
    kernels: Kernels = FUSED,
    has_experts: bool = False,
) -> ByName:
    """Return the bytes that one layer saves for `batch` sequences on one device, by component.

    Exact for blocks of GPT-2 and Llama. Experts have an even load, with permuted inputs and
    outputs; latent attention saves its expanded keys and values.

    Source: Korthikanti et al. (2022), table 2: s b h (10 + 24/t + 5as/(ht)), with sequence
    parallelism all over t.
    """
    if config.state:
        raise ConfigError(f"{config.name}: activations of state-space models are not supported")
    tokens = sequence * batch
    saved = {
        name: ceil(tokens * size / kernels.token_ways)
        for name, size in _norm_bytes(config, kernels).items()
    }
    saved["attention"] = ceil(tokens * _attention_bytes(config, kernels))
    divided = _score_bytes(config, kernels, sequence)
    experts = config.experts
    if has_experts and experts:
        routed = _mlp_bytes(config, experts.mlp_width, kernels)
        routed += 2 * kernels.element_bytes * config.width  # gathered inputs and outputs
        shared = _mlp_bytes(config, experts.shared_mlp_width, kernels)
        router = FP32_BYTES * experts.count
        divided["experts"] = experts.per_token * routed + shared + router
    else:
        divided["mlp"] = _mlp_bytes(config, config.mlp_width, kernels)
    saved |= {name: ceil(tokens * size / kernels.tensor_parallel) for name, size in divided.items()}
    return {name: size for name, size in saved.items() if size}


def _norm_bytes(config: ModelConfig, kernels: Kernels) -> ByName:
    count = config.norms_per_layer
    width = config.width
    statistics = 2 if config.norm == "layer" else 1
    inputs = 2  # of attention and of the MLP
    if kernels.is_input_cast_apart:
        inputs = 5 if config.is_gated else 4
    norm_inputs = kernels.stream_bytes * count * width
    if config.norm == "rms" and not kernels.is_norm_fused:
        norm_inputs = 2 * FP32_BYTES * count * width
    return {
        "norm_inputs": norm_inputs,
        "product_inputs": kernels.element_bytes * inputs * width,
        "norm_statistics": kernels.statistic_bytes * statistics * count,
        "dropout_masks": 2 * width * kernels.has_dropout,
    }


def _attention_bytes(config: ModelConfig, kernels: Kernels) -> Fraction:
    """Key and value heads are replicated if there are fewer than devices, as in `state.shard`."""
    ways = kernels.tensor_parallel
    heads = Fraction(config.heads, ways)
    stored_heads = Fraction(config.kv_heads, min(ways, config.kv_heads))
    if config.latent:
        stored_heads = heads
    key_heads = heads if kernels.is_key_expanded else stored_heads
    elements = (heads + key_heads) * (config.head_dim + config.value_dim)
    if config.latent:
        elements += Fraction(2 * (config.latent.query_rank + config.latent.kv_rank), ways)
    normalized = Fraction(0)
    if config.has_qk_norm:
        # Norms compute in the dtype of their weights, which under autocast is not the dtype of the
        # matmuls.
        saved = kernels.stream_bytes if kernels.is_norm_fused else 2 * FP32_BYTES
        normalized = (saved * config.head_dim + kernels.statistic_bytes) * (heads + stored_heads)
    return kernels.element_bytes * elements + normalized


def _score_bytes(config: ModelConfig, kernels: Kernels, sequence: int) -> dict[str, int | Fraction]:
    if kernels.is_flash:
        multiple = EFFICIENT_ATTENTION_QUERIES if kernels.is_key_expanded else 1
        queries = ceil(sequence / multiple) * multiple
        return {"log_sum_exp": FP32_BYTES * config.heads * Fraction(queries, sequence)}
    width = config.heads * sequence
    dropped = width * (kernels.element_bytes + 1) * kernels.has_dropout
    return {"attention_scores": kernels.element_bytes * width + dropped}


def _mlp_bytes(config: ModelConfig, width: int, kernels: Kernels) -> int:
    return kernels.element_bytes * (4 if config.is_gated else 2) * width


def model_activations(
    config: ModelConfig,
    sequence: int,
    batch: int = 1,
    kernels: Kernels = FUSED,
    checkpoint: str = "none",
    micro_batches: int = 1,
) -> ByName:
    """Return the peak bytes of the activations of all layers on one device, by component.

    `full` stores the input of each layer, plus one recomputed layer; groups of K layers one input
    each, plus one recomputed group; `selective` everything except attention scores, plus those of
    one layer, and with flash attention the input of each layer and the outputs of attention and
    of every second matmul, plus one recomputed layer. A pipeline stage stores activations of
    `micro_batches`, and recomputes one at a time.

    Source: Korthikanti et al. (2022): full 2 s b h L; Chen et al., Training Deep Nets with
    Sublinear Memory Cost (2016): groups of sqrt(L).
    """
    kinds = {False: config.dense_layers, True: config.layers - config.dense_layers}
    layers = {
        kind: layer_activations(config, sequence, batch, kernels, has_experts=kind)
        for kind in kinds
    }
    largest = max(
        (layers[kind] for kind in kinds if kinds[kind]), key=lambda parts: sum(parts.values())
    )
    group = recomputed_layers(checkpoint, config.layers, kernels)
    if group:
        boundary = ceil(kernels.stream_bytes * sequence * batch * config.width / kernels.token_ways)
        if checkpoint == "selective":
            # Outputs of attention and of every second matmul are kept.
            ways = kernels.tensor_parallel
            kept, _ = selective_products(config)
            width = sum(shard(weight, config, ways).shape[1] for weight in kept)
            width += config.heads * config.value_dim // ways
            boundary += largest["log_sum_exp"] + kernels.element_bytes * sequence * batch * width
        alive = {name: group * size for name, size in largest.items()}
        return {"checkpoints": micro_batches * boundary * ceil(config.layers / group), **alive}
    total: ByName = {}
    for kind, count in kinds.items():
        for name, size in layers[kind].items():
            if count:
                total[name] = total.get(name, 0) + micro_batches * count * size
    if checkpoint == "selective" and "attention_scores" in total:
        total["attention_scores"] = largest["attention_scores"]
    return total


def recomputed_layers(checkpoint: str, layers: int, kernels: Kernels) -> int:
    """Return the layers that are recomputed together, as a whole or in part; 0 if none are."""
    is_by_operation = checkpoint == "selective" and kernels.is_flash
    return 1 if is_by_operation else checkpoint_group(checkpoint, layers)


def checkpoint_group(checkpoint: str, layers: int) -> int:
    """Return the layers that are recomputed together: `full` 1, `every-K` or K: K, `sqrt`
    ceil(sqrt(L)), else 0.
    """
    if checkpoint in ("none", "selective"):
        return 0
    if checkpoint == "full":
        return 1
    if checkpoint == "sqrt":
        return isqrt(layers - 1) + 1
    digits = checkpoint.removeprefix("every-")
    if digits.isdecimal() and len(digits) < 10 and 1 <= int(digits) <= layers:
        return int(digits)
    raise ConfigError(
        f"unknown checkpointing {checkpoint!r} (choose from {CHECKPOINTS}, with an integer K from "
        f"1 to {layers})"
    )
