"""The weights of a model, and exact parameter counts: total, active, in matmuls, and by
component.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from roofline.accounting.config import (
    ConfigError,
    Experts,
    LatentAttention,
    ModelConfig,
    StateSpace,
)

FORMULA = (
    "per layer: attention h d (2a + 2k), MLP 2hf or gated 3hf, norms h each, biases; "
    "embedding and untied head V h"
)
SOURCE = "the modules of Hugging Face transformers; Narayanan et al. (2021) eq. 2 in closed form"


def source_of(config: ModelConfig) -> str:
    parts = [
        (config.experts, "experts: Jiang et al., Mixtral of Experts (2024)"),
        (config.latent, "latent attention: DeepSeek-AI, DeepSeek-V2 (2024)"),
        (config.state, "state: Gu and Dao, Mamba (2023); Dao and Gu, Transformers are SSMs (2024)"),
    ]
    return "; ".join([SOURCE, *(source for part, source in parts if part)])


@dataclass(frozen=True)
class Weight:
    """Tensors of one shape and use, summed over all layers."""

    name: str
    component: str
    shape: tuple[int, ...]
    """(inputs, outputs) of a matmul, else the extents."""
    copies: int = 1
    is_gemm: bool = False
    active_copies: int | None = None
    """Copies used by one token, in all layers; None: all copies."""
    split: str = ""
    """What tensor parallelism splits: `heads`, `kv_heads`, `width`, or "" for nothing."""
    file_bits: float = 0
    """Bits of an element in the model's files, with its part of the scales, if these are known."""

    @property
    def elements(self) -> int:
        return self.copies * prod(self.shape)

    @property
    def is_layer_product(self) -> bool:
        """Whether it is a matmul of a layer other than a router: what is quantized and adapted."""
        return self.is_gemm and self.component not in ("lm_head", "router")

    def scaled(self, layers: int, before: int = 1) -> Weight:
        """Return it for another number of layers than `before`."""
        active = self.active_copies
        if active is not None:
            active = -(-active * layers // before)
        return replace(self, copies=-(-self.copies * layers // before), active_copies=active)

    @property
    def active_elements(self) -> int:
        copies = self.copies if self.active_copies is None else self.active_copies
        return copies * prod(self.shape)


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model, exact."""

    total: int
    active: int
    """Used by one token: with experts, only the routed top-k of each layer."""
    matmul: int
    """In matmuls of one token: with a tied head, without lookups, norms and biases."""
    components: dict[str, int]


def weights(config: ModelConfig) -> list[Weight]:
    """Return the weights of a model; a tied head is not listed separately.

    Source: the modules that Hugging Face transformers builds for each supported family.
    """
    if config.built:
        return list(config.built)
    if config.parameters:
        active = config.active_parameters
        return [Weight("parameters", "parameters", (1,), config.parameters, True, active)]
    tensors = [
        Weight("embedding", "embedding", (config.vocabulary, config.width), split="width"),
        Weight("positions", "positions", (config.position_embeddings, config.width)),
    ]
    mixer = _attention_weights(config)
    if config.state:
        mixer = _state_weights(config, config.state)
    elif config.latent:
        mixer = _latent_weights(config, config.latent)
    tensors += [weight.scaled(config.layers) for weight in mixer]
    mlp = _mlp_weights(config, "mlp", config.mlp_width)
    tensors += [weight.scaled(config.dense_layers) for weight in mlp]
    if config.experts:
        experts = _expert_weights(config, config.experts)
        tensors += [weight.scaled(config.experts.layers) for weight in experts]
    tensors += _norm_weights(config)
    head = (config.width, config.vocabulary)
    tensors.append(
        Weight("lm_head", "lm_head", head, int(not config.is_tied), is_gemm=True, split="width")
    )
    return [weight for weight in tensors if weight.elements]


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Return the parameters of a model; a tied head counts in `matmul`, but is not a component.

    Source: see `weights`; GPT-2 small has 124,439,808 parameters, Llama 3 8B 8,030,261,248.
    """
    tensors = weights(config)
    head = config.vocabulary * config.width * config.is_tied
    components: dict[str, int] = {}
    for weight in tensors:
        components[weight.component] = components.get(weight.component, 0) + weight.elements
    return ParameterCount(
        total=sum(weight.elements for weight in tensors),
        active=sum(weight.active_elements for weight in tensors),
        matmul=head + sum(weight.active_elements for weight in tensors if weight.is_gemm),
        components=components,
    )


def selective_products(config: ModelConfig) -> tuple[list[Weight], list[Weight]]:
    """Return the matmuls of one layer whose outputs selective checkpointing keeps with flash
    attention, and those that it computes again: every second one.

    Source: torchtitan, `activation_checkpoint.py`, with `create_selective_checkpoint_contexts` of
    PyTorch.

    Raises:
        ConfigError: the layer has experts, a state or latent attention, or is not known.
    """
    if config.experts or config.latent or config.state or config.parameters:
        raise ConfigError(
            f"--checkpoint selective with flash attention is known for dense transformers, which "
            f"{config.name} is not; --checkpoint full"
        )
    order: list[Weight] = []
    for weight in weights(config.with_layers(1)):
        if weight.is_layer_product:
            order += [weight] * weight.copies
    return order[::2], order[1::2]


def _attention_weights(config: ModelConfig) -> list[Weight]:
    """Return query, key, value and output of a layer: h d (2a + 2k), biases d (a + 2k) and h."""
    width = config.width
    dim = config.head_dim
    queries = config.heads * dim
    keys = config.kv_heads * dim
    return [
        Weight("query", "attention", (width, queries), is_gemm=True, split="heads"),
        Weight("key", "attention", (width, keys), is_gemm=True, split="kv_heads"),
        Weight("value", "attention", (width, keys), is_gemm=True, split="kv_heads"),
        Weight("output", "attention", (queries, width), is_gemm=True, split="heads"),
        Weight("query bias", "attention", (queries,), config.has_qkv_bias, split="heads"),
        Weight(
            "key and value bias",
            "attention",
            (keys,),
            2 * config.has_qkv_bias,
            split="kv_heads",
        ),
        Weight("output bias", "attention", (width,), config.has_output_bias),
        Weight("sinks", "attention", (config.heads,), config.has_sinks, split="heads"),
    ]


def _state_weights(config: ModelConfig, state: StateSpace) -> list[Weight]:
    """Return projections, convolution and scan of Mamba: h 2i, i (r + 2n), r i, i n and i h; of
    Mamba 2 by heads.
    """
    width = config.width
    inner = state.inner_width
    gated = 2 * inner if not state.heads else inner + state.convolved_width + state.heads
    tensors = [
        Weight("in", "state_space", (width, gated), is_gemm=True),
        Weight("out", "state_space", (inner, width), is_gemm=True),
        Weight("convolution", "state_space", (state.convolved_width, state.kernel)),
        Weight(
            "convolution bias",
            "state_space",
            (state.convolved_width,),
            state.has_convolution_bias,
        ),
        Weight("in bias", "state_space", (gated,), state.has_bias),
        Weight("out bias", "state_space", (width,), state.has_bias),
    ]
    if state.heads:
        tensors.append(Weight("step, decay and skip", "state_space", (state.heads,), 3))
        return [*tensors, Weight("gated norm", "norms", (inner,))]
    rank = state.step_rank
    return [
        *tensors,
        Weight(
            "to step and state",
            "state_space",
            (inner, rank + 2 * state.state_size),
            is_gemm=True,
        ),
        Weight("step", "state_space", (rank, inner), is_gemm=True),
        Weight("decay", "state_space", (inner, state.state_size)),
        Weight("step bias and skip", "state_space", (inner,), 2),
    ]


def _latent_weights(config: ModelConfig, latent: LatentAttention) -> list[Weight]:
    """Return the low-rank projections: h qr + qr a (dn + dr) + h (kvr + dr) + kvr a (dn + dv) + a
    dv h.
    """
    width = config.width
    heads = config.heads
    queries = heads * config.head_dim
    keys_values = heads * (latent.nope_dim + latent.value_dim)
    rank = latent.query_rank or width
    compressed = latent.query_rank > 0
    return [
        Weight("query up", "attention", (rank, queries), is_gemm=True, split="heads"),
        Weight(
            "key and value down",
            "attention",
            (width, latent.kv_rank + latent.rope_dim),
            is_gemm=True,
        ),
        Weight(
            "key and value up",
            "attention",
            (latent.kv_rank, keys_values),
            is_gemm=True,
            split="heads",
        ),
        Weight(
            "output",
            "attention",
            (heads * latent.value_dim, width),
            is_gemm=True,
            split="heads",
        ),
        Weight("key and value norm", "norms", (latent.kv_rank,)),
        Weight("query down", "attention", (width, rank), compressed, is_gemm=True),
        Weight("query norm", "norms", (rank,), compressed),
    ]


def _mlp_weights(
    config: ModelConfig, component: str, width: int, copies: int = 1, active: int | None = None
) -> list[Weight]:
    """Return the matrices of MLPs of one width: 2hf, gated 3hf, with biases f (2f) and h."""
    into = 2 if config.is_gated else 1
    ups = None if active is None else into * active
    biased = copies * config.has_mlp_bias
    return [
        Weight("up", component, (config.width, width), into * copies, True, ups, "width"),
        Weight("down", component, (width, config.width), copies, True, active, "width"),
        Weight("up bias", component, (width,), into * biased, False, ups, "width"),
        Weight("down bias", component, (config.width,), biased, False, active),
    ]


def _expert_weights(config: ModelConfig, experts: Experts) -> list[Weight]:
    has_shared = experts.shared_mlp_width > 0
    return [
        Weight("router", "router", (config.width, experts.count), is_gemm=True),
        Weight("router bias", "router", (experts.count,), experts.has_router_bias),
        *_mlp_weights(config, "shared_experts", experts.shared_mlp_width, has_shared),
        Weight(
            "shared gate",
            "shared_experts",
            (config.width, 1),
            experts.has_shared_gate,
            is_gemm=True,
        ),
        *_mlp_weights(config, "experts", experts.mlp_width, experts.count, experts.per_token),
    ]


def _norm_weights(config: ModelConfig) -> list[Weight]:
    copies = config.norms_per_layer * config.layers + config.has_final_norm
    heads = config.heads + config.kv_heads if config.is_qk_norm_per_head else 2
    return [
        Weight("norm", "norms", (config.width,), copies),
        Weight("norm bias", "norms", (config.width,), copies * config.has_norm_bias),
        Weight(
            "query and key norm",
            "norms",
            (config.head_dim,),
            heads * config.layers * config.has_qk_norm,
        ),
    ]
