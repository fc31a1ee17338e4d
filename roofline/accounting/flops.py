"""FLOPs of a training step under named conventions: what the model needs, and what the hardware executes.

A fused multiply-add counts as 2. Norms, activations, softmax and the optimizer are left out but where a convention
names them: they are no matrix products, and MFU never counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from roofline.accounting.activations import checkpoint_group
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.parameters import count_parameters, weights
from roofline.work import causal_pairs


@dataclass(frozen=True)
class Convention:
    """One way to count the FLOPs of training."""

    name: str
    formula: str
    source: str
    mask: str = ""
    """Pairs of attention's own products, as in `doubled_pairs`; "" if they are not counted."""
    left_out: tuple[str, ...] | None = None
    """Components that N, which is multiplied by 6, leaves out; None if it counts the matrix products with weights."""

    @property
    def sees_masks(self) -> bool:
        """Whether it counts what windows and the borders of documents leave of attention."""
        return self.name.startswith("gemm-causal")


LOOKED_UP = ("embedding", "positions")
KAPLAN = "Kaplan et al., Scaling Laws for Neural Language Models (2020)"
EXECUTED = "matrix products as executed"

CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention(
            "6nd",
            "6 N, with all parameters that a token meets",
            "Kaplan et al. (2020); CS336 lecture 2",
            left_out=(),
        ),
        Convention(
            "6nd-no-embedding",
            "6 N, without embedding, positions and head",
            f"{KAPLAN}, section 2.1",
            left_out=(*LOOKED_UP, "lm_head"),
        ),
        Convention(
            "kaplan",
            "6 N + 6 L a d s, N without embedding, positions and head",
            f"{KAPLAN}, equation 2.2, times 3",
            "causal-half",
            (*LOOKED_UP, "lm_head"),
        ),
        Convention(
            "palm",
            "6 N + 12 L a d s, N without what is only looked up",
            "Chowdhery et al., PaLM (2022), appendix B; torchtitan and nanoGPT count alike",
            "full",
            LOOKED_UP,
        ),
        Convention("gemm-full", "6 N_mm + 12 L a d s", f"{EXECUTED}, every pair of attention", "full"),
        Convention(
            "gemm-causal-half",
            "6 N_mm + 6 L a d s, less where a window is shorter",
            f"{EXECUTED}, half of attention as Megatron-LM, windows exactly",
            "causal-half",
        ),
        Convention(
            "gemm-causal-exact",
            "6 N_mm + 6 L a d (s + 1), less where a window is shorter",
            f"{EXECUTED}, with exactly the pairs that a causal or windowed mask lets through",
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

DEFAULT_CONVENTION = "gemm-causal-half"


@dataclass(frozen=True)
class FlopCount:
    """FLOPs of one step, by component."""

    convention: Convention
    tokens: int
    forward: dict[str, int]
    input_gradients: dict[str, int] = field(default_factory=dict)
    """Backward, towards the inputs (dgrad); both products of attention have two inputs and count here."""
    weight_gradients: dict[str, int] = field(default_factory=dict)
    """Backward, towards the weights (wgrad)."""
    recomputed: dict[str, int] = field(default_factory=dict)

    @property
    def components(self) -> dict[str, int]:
        parts = (self.forward, self.input_gradients, self.weight_gradients)
        return {name: sum(part.get(name, 0) for part in parts) for name in self.forward}

    @property
    def model_flops(self) -> int:
        """FLOPs that the model needs: the numerator of MFU."""
        return sum(self.components.values())

    @property
    def hardware_flops(self) -> int:
        """FLOPs that are executed, recomputation included: the numerator of HFU."""
        return self.model_flops + sum(self.recomputed.values())

    @property
    def per_token(self) -> int | float:
        """Model FLOPs of one token; a whole number where the step shares evenly."""
        whole, rest = divmod(self.model_flops, self.tokens)
        return self.model_flops / self.tokens if rest else whole


def convention_of(config: ModelConfig, asked: str, default: str) -> str:
    """Return the convention that an estimate counts by: of a number of parameters alone it is `6nd`."""
    if not config.parameters:
        return asked
    if asked not in ("6nd", default):
        raise ConfigError("--params goes with 6 N D alone: give a model for --convention or --checkpoint selective")
    return "6nd"


def train_flops(
    config: ModelConfig,
    sequence: int,
    batch: int = 1,
    convention: str = DEFAULT_CONVENTION,
    checkpoint: str = "none",
    is_flash: bool = True,
    is_frozen: bool = False,
    document: int | None = None,
) -> FlopCount:
    """Return the FLOPs of one training step on `batch` sequences by a convention.

    What `checkpoint` recomputes counts for the hardware alone: the attention core (`selective`), or every layer; so do
    the scores that flash attention recomputes in the backward pass. `is_frozen` weights have no gradients. Each
    `document` of so many tokens within a sequence attends to itself alone.

    Source: the convention's own.
    """
    counted_by = CONVENTIONS[convention]
    if document is not None and not counted_by.sees_masks:
        raise ConfigError(f"convention '{convention}' knows no documents: use gemm-causal-half or gemm-causal-exact")
    forward = {name: batch * flops for name, flops in _forward(config, sequence, counted_by, document).items()}
    if checkpoint == "selective" and not forward.get("attention_core"):
        raise ConfigError(
            f"convention '{convention}' counts no attention of its own here, so none of it can be recomputed"
        )
    recomputed: dict[str, int] = {}
    if checkpoint_group(checkpoint, config.layers):
        recomputed = {name: flops for name, flops in forward.items() if name not in ("lm_head", "embedding")}
    elif checkpoint == "selective":
        recomputed = {"attention_core": forward["attention_core"]}
    if is_flash and forward.get("attention_core"):
        scores = forward["attention_core"] * config.head_dim // (config.head_dim + config.value_dim)
        recomputed["attention_scores"] = scores
    return FlopCount(
        convention=counted_by,
        tokens=sequence * batch,
        forward=forward,
        input_gradients={name: flops * (2 if name in CORES else 1) for name, flops in forward.items()},
        weight_gradients={} if is_frozen else {n: f for n, f in forward.items() if n not in CORES},
        recomputed={name: flops for name, flops in recomputed.items() if flops},
    )


CORES = ("attention_core", "attention_softmax", "state_scan")


def _forward(config: ModelConfig, sequence: int, convention: Convention, document: int | None) -> dict[str, int]:
    if convention.left_out is not None:
        count = count_parameters(config)
        parts = dict(count.components)
        if config.is_tied:  # the embedding is multiplied by, too
            parts["lm_head"] = parts.pop("embedding", 0)
        flops = {"parameters": 2 * sequence * (count.active - sum(parts.get(name, 0) for name in convention.left_out))}
        if convention.mask:
            flops["attention_core"] = all_layers_core(config, sequence, sequence, convention.mask, sees_windows=False)
        return flops
    products = gemm_flops(config, sequence)
    if convention.name == "chinchilla":
        products["embedding"] = 2 * sequence * config.vocabulary * config.width
        products["attention_softmax"] = 3 * config.layers * config.heads * sequence**2
    lengths = [document or sequence, sequence % (document or sequence)]
    core, rest = (all_layers_core(config, n, n, convention.mask, convention.sees_masks) for n in lengths)
    products["attention_core"] = sequence // lengths[0] * core + rest
    return products


def gemm_flops(config: ModelConfig, tokens: int) -> dict[str, int]:
    """Return the forward FLOPs of all products with weights, by component: 2 x tokens x N_mm.

    A state-space model has a convolution and the product of its state with what is read of it, too: 2 i n a token and
    layer. Its updates are no products of matrices, and left out as norms are.

    Source: 2 m n k of each product; N_mm of `count_parameters`; the convolution and scan of Gu and Dao, Mamba (2023).
    """
    flops: dict[str, int] = {}
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
    config: ModelConfig, queries: int, keys: int, mask: str, sees_windows: bool = True, is_absorbed: bool = False
) -> int:
    """Return `attention_core_flops` of all layers; `is_absorbed` as in `inference.decode_flops`."""
    dims = (config.head_dim, config.value_dim)
    if is_absorbed and config.latent:
        dims = (config.latent.kv_rank + config.latent.rope_dim, config.latent.kv_rank)
    shape = (queries, keys, config.heads, *dims, mask)
    windowed = config.windowed_layers if sees_windows else 0
    full = (config.layers - windowed) * attention_core_flops(*shape)
    return full + windowed * attention_core_flops(*shape, window=config.window)


def doubled_pairs(queries: int, keys: int, mask: str, window: int | None = None) -> int:
    """Return twice the pairs of query and key that are counted, so that half a square stays an integer.

    `full` counts every pair, q c. `causal-exact` counts what a query sees when the last query sees all keys (bottom
    right): q c - q (q - 1) / 2. `causal-half` takes half of the square q x q in place of its triangle: q c - q^2 / 2.
    A window that is shorter than the keys is counted exactly under every mask.

    Source: vllm-project/vllm pull request 34150 (bottom-right pairs); facebookresearch/xformers issue 1402, which has
        1536 and 1632 FLOPs for the half square and for exact pairs.
    """
    if window is not None and window < keys:
        return 2 * causal_pairs(queries, keys, window)
    if mask == "full":
        return 2 * queries * keys
    if mask == "causal-half":
        return 2 * queries * keys - queries**2
    return 2 * causal_pairs(queries, keys, keys)


def attention_core_flops(
    queries: int,
    keys: int,
    heads: int,
    query_key_dim: int,
    value_dim: int,
    mask: str = "full",
    window: int | None = None,
) -> int:
    """Return the FLOPs of Q K^T and P V of one sequence in one layer, forward: 2 x pairs x a x (d_qk + d_v).

    Grouped key/value heads do not make it cheaper: every query head has its own products.

    Source: Chowdhery et al., PaLM (2022), appendix B, for all pairs; `doubled_pairs` for the masks.
    """
    return doubled_pairs(queries, keys, mask, window) * heads * (query_key_dim + value_dim)
