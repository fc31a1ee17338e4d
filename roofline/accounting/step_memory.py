"""Peak memory of one training step on one device, by component.

It consists of persistent state, activations saved for the backward pass, and temporaries. Their sum
peaks at one of a few moments: in the backward pass of the loss, within the layers, or in the
optimizer. The model may be sharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import NamedTuple

from roofline.accounting import state
from roofline.accounting.activations import (
    FUSED,
    ID_BYTES,
    Kernels,
    layer_activations,
    model_activations,
    recomputed_layers,
)
from roofline.accounting.config import ByName, ConfigError, ModelConfig
from roofline.accounting.state import FP32_BYTES, Lora, Recipe, Sharding

STEP_COUNTERS = ("adagrad", "rmsprop", "adam", "adamw")
"""Optimizers of torch with an fp32 step counter per tensor."""

UNFUSED = {"adagrad": 1, "rmsprop": 1}
"""Temporary copies of the largest weight in optimizers without a fused kernel."""

SCALARS = 2 * 4

HEAD = ("head_final_norm", "head_logits", "head_logits_fp32", "head_logits_gradients")
CHECKPOINTS = "activations_checkpoints"
NORM_INPUTS = "activations_norm_inputs"
"""Parts of a step's memory."""


@dataclass(frozen=True)
class StepPlan:
    """One training step on one device."""

    config: ModelConfig
    recipe: Recipe
    optimizer: str
    sequence: int
    batch: int
    micro_batches: int = 1
    """Sequential parts of a step whose gradients are accumulated."""
    checkpoint: str = "none"
    kernels: Kernels = FUSED
    sharding: Sharding = field(default_factory=Sharding)
    loss_chunks: int = 1
    lora: Lora | None = None

    @property
    def tokens(self) -> int:
        return self.sequence * self.batch // self.micro_batches

    @property
    def shared_kernels(self) -> Kernels:
        """The kernels on one of the tensor-parallel devices."""
        return replace(self.kernels, tensor_parallel=self.sharding.tensor_parallel)


MOMENTS = {
    "forward": "end of the forward pass",
    "loss": "backward pass of the loss",
    "head": "backward pass of the head",
    "layers": "start of the backward pass of the layers",
    "embedding": "backward pass of the embedding",
    "optimizer": "optimizer update",
}


class Moment(NamedTuple):
    """Memory above the state at one moment."""

    name: str
    parts: ByName
    """Bytes by part, as in `COMPONENTS`."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step on one device at its peak."""

    parts: ByName
    """Bytes by part: the state as in `state.state_bytes`, and what is above it at the peak; parts
    of the layers and the head may be 0 then.
    """
    state_bytes: int
    moment: str = "optimizer"
    """When the peak is, as in `MOMENTS`."""
    kept_by_layers: int = 0
    """Peak of the activations of the layers, at any moment; checkpointing reduces it."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def components(self) -> ByName:
        sizes = {
            component: sum(self.parts.get(part, 0) for part in parts)
            for component, parts in COMPONENTS.items()
        }
        return sizes | {"activations": self.total - sum(sizes.values())}

    def sizes(self) -> ByName:
        return self.components() | {"total": self.total, "kept_by_layers": self.kept_by_layers}


COMPONENTS: dict[str, Sequence[str]] = {
    "parameters": ("weights", "gathered_layer"),
    "gradients": ("gradients",),
    "optimizer_state": ("master_weights", "optimizer_states", "step_counters"),
    "inputs": ("token_ids", "rotary_table"),
    "activations": (),
    "cast_copies": ("cast_copies",),
    "logits_loss": ("head_final_norm", "head_logits_fp32"),
    "temporary": ("temporary", "head_logits", "head_logits_gradients"),
}
"""Parts of each component; all others are activations of the layers.

`token_ids` are ids and targets of the whole step, `cast_copies` weights in the compute dtype under
autocast, `temporary` gradients of activations and temporaries of the optimizer.
"""


def step_memory(plan: StepPlan) -> StepMemory:
    """Return the peak memory of a step that retains gradients between steps.

    Exact for GPT and Llama blocks on one device, except for temporaries within the layers, which
    are estimated. For a pipeline it is the larger of the first and the last stage. Only the state
    of a model by its number of parameters is known.

    Source: `state.state_bytes` and `activations.model_activations`; moments as torch.autograd runs
    a step.
    """
    if plan.config.parameters:
        held = state.state_bytes(plan.config, plan.recipe, plan.optimizer, plan.sharding)
        return StepMemory(held, sum(held.values()))
    stages = [_Stage(plan, is_last=False).memory()]
    if plan.sharding.pipeline_parallel > 1:
        stages.append(_Stage(plan, is_last=True).memory())
    return max(stages, key=lambda memory: memory.total)


class _Stage:
    """The part of a step on a device of the first or last pipeline stage.

    Source: Narayanan et al. (2021), section 2.2: the first stage has as many micro-batches in
    flight as stages.
    """

    def __init__(self, plan: StepPlan, is_last: bool) -> None:
        sharding = plan.sharding
        if sharding.context_parallel > 1 and not plan.kernels.is_flash:
            raise ConfigError("--context-parallel needs flash attention")
        own_tokens, rest = divmod(plan.sequence, sharding.context_parallel)
        if rest:
            raise ConfigError(
                f"--sequence {plan.sequence} is not a multiple of --context-parallel "
                f"{sharding.context_parallel}"
            )
        plan = replace(plan, sequence=own_tokens)
        is_whole = sharding.pipeline_parallel == 1
        self.plan = plan
        self.recipe = plan.recipe
        self.ways = sharding.tensor_parallel
        self.config = sharding.stage(plan.config)
        self.kernels = plan.shared_kernels
        self.held = state.held_weights(plan.config, sharding, is_last)
        self.trained = self.held if plan.lora is None else state.adapters(self.held, plan.lora)
        self.state = state.state_bytes(
            plan.config, plan.recipe, plan.optimizer, sharding, is_last, plan.lora
        )
        self.cast_copies = state.cast_bytes(plan.config, plan.recipe, self.held)
        self.has_head = is_whole or is_last
        self.has_embedding = is_whole or not is_last
        self.in_flight = 1 if is_last else min(sharding.pipeline_parallel, plan.micro_batches)
        self.group = recomputed_layers(plan.checkpoint, self.config.layers, self.kernels)
        self.table = ceil(self.config.vocabulary / self.ways) * self.config.width
        """Elements of the embedding or head on this device."""
        self.head = self.table * self.has_head
        self.logits = ceil(plan.tokens / plan.loss_chunks) * self.head // self.config.width
        self.rows = ceil(plan.tokens * self.config.width / self.kernels.token_ways)
        """Elements of the residual stream on this device."""
        self.stream = self.kernels.stream_bytes * self.rows
        self.head_input = self.kernels.element_bytes * self.rows

    def memory(self) -> StepMemory:
        plan = self.plan
        config = self.config
        counters = 0
        if plan.optimizer in STEP_COUNTERS:
            counters = FP32_BYTES * sum(w.copies for w in self.trained)
        ids = ID_BYTES * plan.sequence * plan.batch * (self.has_head + self.has_embedding)
        rotations = 2 * plan.recipe.activation_bytes * plan.sequence * config.head_dim
        moments = (
            self._at_loss(),
            self._in_forward(),
            self._at_head(),
            self._in_layers(),
            self._at_embedding(),
            self._in_optimizer(),
        )
        peak = max(moments, key=lambda moment: moment.total)
        parts = {
            **self.state,
            "step_counters": counters,
            "cast_copies": 0,
            "token_ids": ids,
            "rotary_table": 0 if config.position_embeddings else rotations,
            "temporary": 0,
        }
        layers = dict.fromkeys(self._kept(1), 0)
        parts |= {**layers, **dict.fromkeys(HEAD if self.has_head else (), 0), **peak.parts}
        return StepMemory(
            {name: size for name, size in parts.items() if size or name in HEAD or name in layers},
            sum(self.state.values()),
            peak.name,
            sum(self._most_kept().values()),
        )

    def _kept(self, micro_batches: int) -> ByName:
        plan = self.plan
        batch = plan.batch // plan.micro_batches
        saved = model_activations(
            self.config, plan.sequence, batch, self.kernels, plan.checkpoint, micro_batches
        )
        return {f"activations_{name}": size for name, size in saved.items()}

    def _stored(self, micro_batches: int) -> ByName:
        saved = self._kept(micro_batches)
        if self.group:
            return {CHECKPOINTS: saved[CHECKPOINTS]}
        if self.plan.checkpoint == "selective":
            saved.pop("activations_attention_scores", None)
        return saved

    def _most_kept(self) -> ByName:
        """Return the peak activations of the layers: with checkpointing, after the last group is
        recomputed.

        The input of that group is a checkpoint; if its first norm saves its input, that is the same
        tensor.
        """
        saved = self._kept(self.in_flight)
        is_cast = self.kernels.stream_bytes != FP32_BYTES and not self.kernels.is_norm_fused
        if not self.group or (is_cast and self.config.norm != "layer"):
            return saved
        return saved | {NORM_INPUTS: saved[NORM_INPUTS] - self.stream}

    def _gradient(self, elements: int) -> int:
        return self.recipe.gradient_bytes * elements if self.plan.lora is None else 0

    def _kept_by_head(self) -> ByName:
        """Return the activations of final norm, head and loss: 4 V of log-probabilities per token.

        Source: torch.nn.functional.cross_entropy saves the fp32 output of log_softmax, not the
        logits.
        """
        if not self.has_head:
            return {}
        layer = layer_activations(self.config, self.plan.tokens, 1, self.kernels)
        norm = layer["norm_inputs"] + layer["norm_statistics"]
        return {
            "head_final_norm": norm // self.config.norms_per_layer + self.head_input,
            "head_logits_fp32": FP32_BYTES * self.logits,
        }

    def _at_loss(self) -> Moment:
        """The gradient of log_softmax is computed, and no activation is released yet."""
        parts = {
            "temporary": SCALARS * self.has_head,
            "head_logits_gradients": 2 * FP32_BYTES * self.logits,
            "cast_copies": self.recipe.cast_bytes * self.head if self.group else self.cast_copies,
        }
        return Moment("loss", {**parts, **self._stored(self.in_flight), **self._kept_by_head()})

    def _in_forward(self) -> Moment:
        """The loss is computed: the peak with autocast and checkpointing.

        Autocast caches its copies of all weights until the forward pass ends; logits and
        log-probabilities are in fp32.
        """
        at_loss = self._at_loss().parts
        scalars = SCALARS * self.has_head + (0 if self.plan.micro_batches == 1 else SCALARS // 2)
        # Biases are also cast, but only for the forward pass.
        biases = sum(
            w.elements for w in self.held if w.name.endswith(" bias") and w.component != "norms"
        )
        cached = self.cast_copies - at_loss["cast_copies"] + self.recipe.cast_bytes * biases
        later = {
            "temporary": cached + scalars,
            "head_logits": FP32_BYTES * self.logits,
            "head_logits_gradients": 0,
        }
        return Moment("forward", at_loss | later)

    def _at_head(self) -> Moment:
        """The gradients of the head are computed: the peak for few tokens and a large vocabulary.

        Log-probabilities are released; gradients of the logits, of the input and of the weights are
        alive. Under autocast the gradient of the weights is cast to fp32 next.
        """
        at_loss = self._at_loss()
        width = self.recipe.activation_bytes
        if not self.has_head:
            return at_loss
        table = width * self.head if self.plan.lora is None else 0
        others = table + width * self.rows + SCALARS
        gradients = {"temporary": others, "head_logits_gradients": width * self.logits}
        product = Moment("head", at_loss.parts | gradients | {"head_logits_fp32": 0})
        if not self.recipe.cast_bytes:
            return product
        cast = {
            "temporary": self._gradient(self.head) + others,
            "head_logits_gradients": 0,
            "cast_copies": at_loss.parts["cast_copies"] - self.recipe.cast_bytes * self.head,
            "head_final_norm": at_loss.parts["head_final_norm"] - self.head_input,
        }
        return max(product, Moment("head", product.parts | cast), key=lambda moment: moment.total)

    def _at_embedding(self) -> Moment:
        """The backward pass ends with the gradient of the embedding.

        With a tied head there are both gradients and their sum; under autocast the sum is in place.
        """
        is_shared = self.config.is_tied and self.has_head and self.has_embedding
        tables = 1
        if is_shared:
            tables = 2 if self.recipe.cast_bytes else 3
        table = self._gradient(self.table) * self.has_embedding
        temporary = tables * table + (self.stream if tables < 3 else 0) + SCALARS
        return Moment("embedding", {"temporary": temporary, **self._stored(self.in_flight - 1)})

    def _in_layers(self) -> Moment:
        """The backward pass enters the last layers; tensors of the head are released.

        Alive are gradients of the stream (with checkpointing also that of the group's output), of
        the width of the MLP (gated: two), of the weights of the largest matmul, and of a tied head.
        """
        config = self.config
        recipe = self.recipe
        saved = self._most_kept()
        mlp = "activations_experts" if "activations_experts" in saved else "activations_mlp"
        experts = config.experts if mlp == "activations_experts" else None
        inside = [w for w in self.held if w.is_gemm and w.component != "lm_head"]
        product = max(prod(w.shape) for w in self.trained if w.is_gemm and w.component != "lm_head")
        largest = recipe.gradient_bytes * (product + config.width * config.has_mlp_bias)
        tied = self._gradient(self.head) if config.is_tied and self.has_embedding else 0
        mlp_width = ceil((experts.mlp_width if experts else config.mlp_width) / self.ways)
        per_token = experts.per_token if experts else 1
        wide = recipe.activation_bytes * self.plan.tokens * mlp_width * per_token
        cast = recipe.cast_bytes * (sum(w.elements for w in inside) // config.layers)
        stream = self.stream * (2 if self.group else 1)
        entering = {
            "temporary": stream + wide + largest + tied + SCALARS,
            "cast_copies": cast * (self.group or config.layers),
        }
        at_start = Moment("layers", saved | entering)
        if not config.is_gated:
            return at_start
        # Input and weight copy of the last matmul are released; gradients of gate and up follow.
        gated = {
            "temporary": entering["temporary"] - largest + 2 * wide,
            "cast_copies": entering["cast_copies"] - recipe.cast_bytes * config.width * mlp_width,
            mlp: saved[mlp] - wide,
        }
        return max(at_start, Moment("layers", saved | gated), key=lambda moment: moment.total)

    def _in_optimizer(self) -> Moment:
        largest = max(
            state.optimizer_bytes(w, "momentum", self.recipe.moment_bytes) // w.copies
            for w in self.trained
        )
        return Moment("optimizer", {"temporary": UNFUSED.get(self.plan.optimizer, 0) * largest})
