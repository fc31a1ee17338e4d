"""The most memory that one training step on one device takes, at which moment, and what it is made of.

State stays from step to step. Above it come what the forward pass keeps for the backward pass, and temporaries. Their
sum has its largest value at one of a few moments: while the loss is differentiated, within the layers, or in the
optimizer. `activations` counts what is kept; this says when, and what is there beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from roofline.accounting.activations import (
    FP32_BYTES,
    ID_BYTES,
    Kernels,
    checkpoint_group,
    layer_activations,
    model_activations,
)
from roofline.accounting.config.config import ModelConfig
from roofline.accounting.parameters import weights
from roofline.accounting.state import Recipe, optimizer_bytes, state_bytes

STEP_COUNTERS = ("adagrad", "rmsprop", "adam", "adamw")
"""Optimizers of torch that keep an fp32 count of steps for each tensor."""

UNFUSED = {"adagrad": 1, "rmsprop": 1}
"""Copies of the largest weight that an optimizer makes meanwhile, where no fused kernel does all of it."""

SCALAR_BYTES = 4
"""Of the loss and of its gradient, each."""


@dataclass(frozen=True)
class StepPlan:
    """One training step on one device."""

    config: ModelConfig
    recipe: Recipe
    optimizer: str
    sequence: int
    batch: int
    """Sequences of a step."""
    micro_batches: int = 1
    """Parts of a step whose gradients are summed up, one after the other."""
    checkpoint: str = "none"
    kernels: Kernels | None = None

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.sequence * self.batch // self.micro_batches


@dataclass(frozen=True)
class Moment:
    """What a step holds above its state at one moment, bytes."""

    name: str
    """`forward`, `loss` (its gradient), `head`, `layers` (the backward pass enters the last
    ones), `embedding` or `optimizer`."""
    temporary: int
    """Gradients of activations, and what the optimizer needs meanwhile."""
    activations: int = 0
    """Kept by the layers."""
    cast_copies: int = 0
    """Weights in the compute dtype under autocast, as far as they are kept."""
    logits_loss: int = 0
    """Kept by the final norm, the head and the loss."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.temporary + self.activations + self.cast_copies + self.logits_loss


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step on one device at the moment when it holds most."""

    parameters: int
    gradients: int
    optimizer_state: int
    inputs: int
    """Token ids and targets of the whole step, and the table of rotations where positions are rotary."""
    moment: Moment
    kept_by_layers: int
    """The most that the layers keep at any moment, whether it is this one or not: what checkpointing makes less."""

    def components(self) -> dict[str, int]:
        """Return the bytes by component, in the order in which they are shown."""
        return {name: getattr(self if hasattr(self, name) else self.moment, name) for name in COMPONENTS}

    @property
    def total(self) -> int:
        """All components together."""
        return sum(self.components().values())

    def sizes(self) -> dict[str, int]:
        """Return the components, their total, and what the layers keep at most."""
        return self.components() | {"total": self.total, "kept_by_layers": self.kept_by_layers}


COMPONENTS = (
    *("parameters", "gradients", "optimizer_state", "inputs"),
    *("activations", "cast_copies", "logits_loss", "temporary"),
)


def step_memory(plan: StepPlan) -> StepMemory:
    """Return the memory of a step when it is largest, gradients being kept from step to step.

    Exact for GPT and Llama blocks but for the temporaries within the layers, which are estimated.

    Raises:
        ConfigError: an unknown optimizer or way of checkpointing.

    Source: parts as of `state.state_bytes` and `activations.model_activations`; moments as torch.autograd runs a step.
    """
    config, recipe = plan.config, plan.recipe
    state = state_bytes(config, recipe, plan.optimizer)
    counters = FP32_BYTES * sum(weight.copies for weight in weights(config)) if plan.optimizer in STEP_COUNTERS else 0
    cast = state.get("cast_copies", 0)
    moments = (
        *(_at_loss(plan, cast), _in_forward(plan, cast), _at_head(plan, cast)),
        *(_in_layers(plan), _at_embedding(plan), _in_optimizer(plan)),
    )
    return StepMemory(
        parameters=state["weights"],
        gradients=state["gradients"],
        optimizer_state=state.get("optimizer_states", 0) + counters,
        inputs=2 * ID_BYTES * plan.sequence * plan.batch + _rotations(plan),
        moment=max(moments, key=lambda moment: moment.total),
        kept_by_layers=_most_kept_by_layers(plan),
    )


def _rotations(plan: StepPlan) -> int:
    """Return the bytes of a cosine and a sine for each position and element of a head; 0 with learned positions."""
    table = 2 * plan.recipe.activation_bytes * plan.sequence * plan.config.head_dim
    return 0 if plan.config.position_embeddings else table


def _kernels(plan: StepPlan) -> Kernels:
    return plan.kernels or Kernels(plan.recipe.activation_bytes)


def _kept_by_layers(plan: StepPlan) -> dict[str, int]:
    batch = plan.batch // plan.micro_batches
    return model_activations(plan.config, plan.sequence, batch, _kernels(plan), plan.checkpoint)


def kept_by_head(plan: StepPlan) -> int:
    """Return what the final norm, the head and the loss keep of a micro-batch: 4 V of log-probabilities a token.

    Source: torch.nn.functional.cross_entropy keeps the fp32 output of log_softmax, not the logits.
    """
    config, kernels, tokens = plan.config, _kernels(plan), plan.tokens
    layer = layer_activations(config, tokens, kernels=kernels)
    norm = (layer["norm_inputs"] + layer["norm_statistics"]) // config.norms_per_layer
    product_input = kernels.element_bytes * tokens * config.width
    return norm + product_input + FP32_BYTES * tokens * config.vocabulary


def _at_loss(plan: StepPlan, cast_copies: int) -> Moment:
    """Return what is there while the gradient of log_softmax is computed: all that was kept, and 8 V a token.

    Nothing is released yet. With checkpointing the layers keep only what their groups begin with.
    """
    group = checkpoint_group(plan.checkpoint, plan.config.layers)
    kept = _kept_by_layers(plan)
    gradients = 2 * FP32_BYTES * plan.tokens * plan.config.vocabulary
    head_cast = plan.recipe.cast_bytes * plan.config.vocabulary * plan.config.width
    return Moment(
        "loss",
        temporary=gradients + 2 * SCALAR_BYTES,
        activations=kept["checkpoints"] if group else sum(kept.values()),
        cast_copies=head_cast if group else cast_copies,
        logits_loss=kept_by_head(plan),
    )


def _in_forward(plan: StepPlan, cast_copies: int) -> Moment:
    """Return what is there while the loss is computed, where that may be most: with autocast and checkpointing.

    Autocast caches its copies of all weights until the forward pass ends, also of those that no layer keeps; the
    logits and their log-probabilities are there in fp32.
    """
    at_loss = _at_loss(plan, cast_copies)
    scalars = SCALAR_BYTES * (2 if plan.micro_batches == 1 else 3)
    logits = FP32_BYTES * plan.tokens * plan.config.vocabulary
    # Biases are cast for the forward pass, too, but no product needs them in the backward pass.
    biases = sum(w.elements for w in weights(plan.config) if w.name.endswith(" bias") and w.component != "norms")
    cached = cast_copies - at_loss.cast_copies + plan.recipe.cast_bytes * biases
    return replace(at_loss, name="forward", temporary=cached + logits + scalars)


def _at_head(plan: StepPlan, cast_copies: int) -> Moment:
    """Return what is there while the head's gradients are computed, where few tokens meet a large vocabulary.

    The log-probabilities are released; the gradients of the logits, of the head's input and of its weights are there.
    Under autocast the weights' gradient is cast to fp32 next.
    """
    at_loss, width, config = _at_loss(plan, cast_copies), plan.recipe.activation_bytes, plan.config
    head, logits = config.vocabulary * config.width, config.vocabulary * plan.tokens
    stream = width * plan.tokens * config.width
    kept = at_loss.logits_loss - FP32_BYTES * logits
    product = Moment(
        "head",
        temporary=width * (logits + head) + stream + 2 * SCALAR_BYTES,
        activations=at_loss.activations,
        cast_copies=at_loss.cast_copies,
        logits_loss=kept,
    )
    if not plan.recipe.cast_bytes:
        return product
    cast = replace(
        product,
        temporary=(width + plan.recipe.gradient_bytes) * head + stream + 2 * SCALAR_BYTES,
        cast_copies=at_loss.cast_copies - plan.recipe.cast_bytes * head,
        logits_loss=kept - stream,
    )
    return max(product, cast, key=lambda moment: moment.total)


def _at_embedding(plan: StepPlan) -> Moment:
    """Return what is there at the end of the backward pass: the embedding's gradient, a row for each of the vocabulary.

    Where the head has the same weights, its part has waited for the embedding's, and there are two and their sum; a
    part that autocast has cast is added to in place.
    """
    config, kernels = plan.config, _kernels(plan)
    table = plan.recipe.gradient_bytes * config.vocabulary * config.width
    stream = kernels.stream_bytes * plan.tokens * config.width
    tables = (2 if plan.recipe.cast_bytes else 3) if config.is_tied else 1
    return Moment("embedding", temporary=tables * table + (stream if tables < 3 else 0) + 2 * SCALAR_BYTES)


def _in_layers(plan: StepPlan) -> Moment:
    """Return what is there when the backward pass enters the last layers: the head's tensors are released.

    Alive are the gradient of the stream (with checkpointing also the one that its group was handed), that of the MLP's
    width (gated: two), and that of the largest product's weights; with a tied embedding also the head's part of its
    gradient, until the backward pass reaches the embedding.
    """
    config, recipe, kernels = plan.config, plan.recipe, _kernels(plan)
    group = checkpoint_group(plan.checkpoint, config.layers)
    inside = [w for w in weights(config) if w.is_gemm and w.component != "lm_head"]
    largest = max(prod(w.shape) for w in inside) + (config.width if config.has_mlp_bias else 0)
    per_layer = sum(w.elements for w in inside) // config.layers
    stream = kernels.stream_bytes * plan.tokens * config.width
    tied = recipe.gradient_bytes * config.vocabulary * config.width if config.is_tied else 0
    wide = recipe.activation_bytes * plan.tokens * config.mlp_width
    entering = Moment(
        "layers",
        temporary=stream * (2 if group else 1) + wide + recipe.gradient_bytes * largest + tied + 2 * SCALAR_BYTES,
        activations=_most_kept_by_layers(plan),
        cast_copies=recipe.cast_bytes * per_layer * (group or config.layers),
    )
    if not config.is_gated:
        return entering
    # The last product is done: its input and its weights' copy are released, gradients of gate and up take the place.
    gated = replace(
        entering,
        temporary=entering.temporary - recipe.gradient_bytes * largest + 2 * wide,
        activations=entering.activations - wide,
        cast_copies=entering.cast_copies - recipe.cast_bytes * config.width * config.mlp_width,
    )
    return max(entering, gated, key=lambda moment: moment.total)


def _most_kept_by_layers(plan: StepPlan) -> int:
    """Return the most that the layers keep at any moment: with checkpointing, when the last group was recomputed.

    The input of that group is kept already; where its first norm keeps its input itself, that is the same tensor.
    """
    config, kernels = plan.config, _kernels(plan)
    kept = sum(_kept_by_layers(plan).values())
    if not checkpoint_group(plan.checkpoint, config.layers) or not kernels.saves_input(config.norm):
        return kept
    return kept - kernels.stream_bytes * plan.tokens * config.width


def _in_optimizer(plan: StepPlan) -> Moment:
    """Return what is there during the update: nothing is kept any more."""
    largest = max(optimizer_bytes(w, "momentum", plan.recipe.moment_bytes) // w.copies for w in weights(plan.config))
    return Moment("optimizer", temporary=UNFUSED.get(plan.optimizer, 0) * largest)
