"""FLOPs of a training step by named conventions: those of the model, and those executed.

A fused multiply-add counts as 2. Norms, activations, softmax and the optimizer are not counted,
unless a convention includes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roofline.accounting.activations import checkpoint_group
from roofline.accounting.config import ByName, ConfigError, ModelConfig
from roofline.accounting.parameters import selective_products, weights
from roofline.work import causal_pairs


@dataclass(frozen=True)
class Convention:
    """One way to count the FLOPs of training."""

    name: str
    formula: str
    source: str
    mask: str = ""
    """Counted pairs of query and key, as in `doubled_pairs`; "" if attention scores are not
    counted.
    """
    left_out: tuple[str, ...] | None = None
    """Components that N of 6 N excludes; None if matrix products with weights are counted."""


LOOKED_UP = ("embedding", "positions")
KAPLAN = "Kaplan et al., Scaling Laws for Neural Language Models (2020)"
BODY = "N without embedding, positions and head"
EXECUTED = "matrix products as executed"

CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention(
            "6nd",
            "6 N, all parameters used by a token",
            "Kaplan et al. (2020); CS336 lecture 2",
            left_out=(),
        ),
        Convention(
            "6nd-no-embedding",
            f"6 {BODY}",
            f"{KAPLAN}, section 2.1",
            left_out=(*LOOKED_UP, "lm_head"),
        ),
        Convention(
            "kaplan",
            f"6 N + 6 L a d s, {BODY}",
            f"{KAPLAN}, equation 2.2, times 3",
            "causal-half",
            (*LOOKED_UP, "lm_head"),
        ),
        Convention(
            "palm",
            "6 N + 12 L a d s, N without embedding lookups",
            "Chowdhery et al., PaLM (2022), appendix B; torchtitan and nanoGPT count alike",
            "full",
            LOOKED_UP,
        ),
        Convention(
            "gemm-full", "6 N_mm + 12 L a d s", f"{EXECUTED}, all pairs of attention", "full"
        ),
        Convention(
            "gemm-causal-half",
            "6 N_mm + 6 L a d s, less if a window is shorter",
            f"{EXECUTED}, half of attention as Megatron-LM, windows exactly",
            "causal-half",
        ),
        Convention(
            "gemm-causal-exact",
            "6 N_mm + 6 L a d (s + 1), less if a window is shorter",
            f"{EXECUTED}, exactly the pairs of a causal or windowed mask",
            "causal-exact",
        ),
        Convention(
            "chinchilla",
            "6 (N_mm + V h) + L (12 a d s + 9 a s)",
            "Hoffmann et al., Training Compute-Optimal Large Language Models (2022), appendix F",
            "full",
        ),
    )
}

DEFAULT_CONVENTION = "palm"
"""Of all commands, so that their MFUs can be compared."""


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one step, by component."""

    convention: Convention
    tokens: int
    forward: ByName
    is_frozen: bool = False
    """Whether weights have no gradients."""
    recomputed: ByName = field(default_factory=dict)

    def passes(self, component: str) -> dict[str, int]:
        """Return how often a component has the FLOPs of its forward pass: forward, and backward for
        the gradients of inputs (dgrad), both of an attention matmul, and of weights (wgrad).
        """
        is_core = component in CORES
        has_gradient = not (is_core or self.is_frozen)
        return {"forward": 1, "dgrad": 1 + is_core, "wgrad": int(has_gradient)}

    @property
    def components(self) -> ByName:
        return {
            name: flops * sum(self.passes(name).values()) for name, flops in self.forward.items()
        }

    @property
    def forward_flops(self) -> int:
        return sum(self.forward.values())

    @property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass without recomputation."""
        return self.model_flops - self.forward_flops

    @property
    def model_flops(self) -> int:
        """FLOPs without recomputation: the numerator of MFU."""
        return sum(self.components.values())

    @property
    def hardware_flops(self) -> int:
        """FLOPs with recomputation: the numerator of HFU."""
        return self.model_flops + sum(self.recomputed.values())

    @property
    def arithmetic(self) -> str:
        """The FLOPs per token, 6 N and those that do not depend on N."""
        components = self.components
        rest = sum(components.get(name, 0) for name in CORES) // self.tokens
        products = f"6 x {(self.per_token - rest) / 6:,.0f}"
        return f"{products} + {rest:,} of attention" if rest else products

    @property
    def per_token(self) -> int | float:
        """Model FLOPs per token; an integer if divisible."""
        whole, rest = divmod(self.model_flops, self.tokens)
        return self.model_flops / self.tokens if rest else whole


def convention_of(config: ModelConfig, convention: str) -> str:
    """Return the convention of an estimate: `6nd` if only the number of parameters is known."""
    if not config.parameters:
        return convention
    if convention not in ("6nd", DEFAULT_CONVENTION):
        raise ConfigError(
            "--params only supports 6 N D: give a model for --convention or --checkpoint selective"
        )
    return "6nd"


def train_flops(
    config: ModelConfig,
    sequence: int,
    batch: int = 1,
    convention: str = DEFAULT_CONVENTION,
    checkpoint: str = "none",
    is_flash: bool = True,
    is_frozen: bool = False,
) -> FlopCount:
    """Return the FLOPs of one training step on `batch` sequences by a convention.

    Recomputation counts only as hardware FLOPs: the attention core (`checkpoint` selective; with
    flash attention every second matmul), every layer, and the scores that flash attention
    recomputes. `is_frozen` weights have no gradients.
    """
    counted_by = CONVENTIONS[convention]
    forward = {
        name: batch * flops for name, flops in _forward(config, sequence, counted_by).items()
    }
    if checkpoint == "selective" and not is_flash and not forward.get("attention_core"):
        raise ConfigError(
            f"convention '{convention}' does not count attention scores, which --checkpoint "
            f"selective recomputes"
        )
    recomputed: ByName = {}
    if checkpoint_group(checkpoint, config.layers):
        recomputed = {
            name: flops for name, flops in forward.items() if name not in ("lm_head", "embedding")
        }
    elif checkpoint == "selective" and is_flash:
        again = sum(weight.elements // weight.copies for weight in selective_products(config)[1])
        recomputed = {"every_second_product": 2 * sequence * batch * config.layers * again}
    elif checkpoint == "selective":
        recomputed = {"attention_core": forward["attention_core"]}
    if is_flash and forward.get("attention_core"):
        scores = forward["attention_core"] * config.head_dim // (config.head_dim + config.value_dim)
        recomputed["attention_scores"] = scores
    return FlopCount(
        convention=counted_by,
        tokens=sequence * batch,
        forward=forward,
        is_frozen=is_frozen,
        recomputed={name: flops for name, flops in recomputed.items() if flops},
    )


CORES = ("attention_core", "attention_softmax", "state_scan")


def _forward(config: ModelConfig, sequence: int, convention: Convention) -> ByName:
    if convention.left_out is not None:
        flops: ByName = {}
        for weight in weights(config):
            name = weight.component
            if config.is_tied and name == "embedding":  # it is also the head
                name = "lm_head"
            if name not in convention.left_out:
                flops[name] = flops.get(name, 0) + 2 * sequence * weight.active_elements
        if convention.mask:
            flops["attention_core"] = all_layers_core(
                config, sequence, sequence, convention.mask, sees_windows=False
            )
        return flops
    products = gemm_flops(config, sequence)
    if convention.name == "chinchilla":
        products["embedding"] = 2 * sequence * config.vocabulary * config.width
        products["attention_softmax"] = 3 * config.layers * config.heads * sequence**2
    products["attention_core"] = all_layers_core(
        config,
        sequence,
        sequence,
        convention.mask,
        sees_windows=convention.name.startswith("gemm-causal"),
    )
    return products


def gemm_flops(config: ModelConfig, tokens: int) -> ByName:
    """Return the forward FLOPs of all matmuls with weights, by component: 2 x tokens x N_mm.

    State-space models also have a convolution and the product of the state with its output matrix,
    2 i n per token and layer. State updates are elementwise, and not counted.

    Source: 2 m n k per matmul; N_mm of `count_parameters`; the convolution and scan of Gu and Dao,
    Mamba (2023).
    """
    flops: ByName = {}
    for weight in weights(config):
        if weight.is_gemm:
            name = "attention_projections" if weight.component == "attention" else weight.component
            flops[name] = flops.get(name, 0) + 2 * tokens * weight.active_elements
    state = config.state
    if state:
        flops["convolution"] = 2 * tokens * config.layers * state.convolved_width * state.kernel
        flops["state_scan"] = 2 * tokens * config.layers * state.inner_width * state.state_size
    if config.is_tied:
        flops["lm_head"] = 2 * tokens * config.vocabulary * config.width
    return flops


def all_layers_core(
    config: ModelConfig,
    queries: int,
    keys: int,
    mask: str,
    sees_windows: bool = True,
    is_absorbed: bool = False,
) -> int:
    """Return the FLOPs of Q K^T and P V of one sequence in all layers, forward: 2 x pairs x a x
    (d_qk + d_v) in each; `is_absorbed` as in `inference.decode_flops`.

    Source: Chowdhery et al., PaLM (2022), appendix B, for all pairs; `doubled_pairs` for the masks.
    """
    query_key_dim = config.head_dim
    value_dim = config.value_dim
    if is_absorbed and config.latent:
        query_key_dim = config.latent.kv_rank + config.latent.rope_dim
        value_dim = config.latent.kv_rank
    windowed = config.windowed_layers if sees_windows else 0
    pairs = (config.cached_layers - windowed) * doubled_pairs(queries, keys, mask)
    pairs += windowed * doubled_pairs(queries, keys, mask, config.window)
    return pairs * config.heads * (query_key_dim + value_dim)


def doubled_pairs(queries: int, keys: int, mask: str, window: int | None = None) -> int:
    """Return twice the pairs of query and key that are counted, so that half a square stays an
    integer.

    `full`: q c. `causal-exact`: q c - q (q - 1) / 2, the last query sees all keys (bottom right).
    `causal-half`:
    q c - q^2 / 2, half of the square q x q instead of its triangle. Windows shorter than the keys
    are always exact.

    Source: vllm-project/vllm pull request 34150 (bottom-right pairs); facebookresearch/xformers
    issue 1402, which has 1536 and 1632 FLOPs for the half square and for exact pairs.
    """
    if window is not None and window < keys:
        return 2 * causal_pairs(queries, keys, window)
    if mask == "full":
        return 2 * queries * keys
    if mask == "causal-half":
        return 2 * queries * keys - queries**2
    return 2 * causal_pairs(queries, keys, keys)
