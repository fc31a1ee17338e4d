"""Peak memory of one training step on one device, by component.

It consists of persistent state, activations saved for the backward pass, and temporaries. Their sum
peaks at one of a few moments: in the backward pass of the loss, within the layers, or in the
optimizer. The model may be sharded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, prod

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


@dataclass(frozen=True)
class Moment:
    """Memory above the state at one moment, bytes."""

    name: str
    temporary: int
    """Gradients of activations, and temporaries of the optimizer."""
    layers: ByName = field(default_factory=dict)
    """Activations of the layers, by component as in `activations.model_activations`."""
    cast_copies: int = 0
    """Weights in the compute dtype under autocast."""
    head: ByName = field(default_factory=dict)
    logits: int = 0
    logits_gradients: int = 0
    """Part of `temporary`, as `logits`."""

    @property
    def total(self) -> int:
        return (
            self.temporary + sum(self.layers.values()) + self.cast_copies + sum(self.head.values())
        )


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step on one device at its peak."""

    state: ByName
    """Persistent bytes by component, as in `state.state_bytes`."""
    step_counters: int
    token_ids: int
    """Token ids and targets of the whole step."""
    rotary_table: int
    moment: Moment
    kept_by_layers: int
    """Peak of the activations of the layers, at any moment; checkpointing reduces it."""

    @property
    def inputs(self) -> int:
        return self.token_ids + self.rotary_table

    def components(self) -> ByName:
        moment = self.moment
        held = sum(self.state.values()) + self.step_counters
        weights = self.state["weights"] + self.state.get("gathered_layer", 0)
        gradients = self.state["gradients"]
        sizes = (
            weights,
            gradients,
            held - weights - gradients,
            self.inputs,
            sum(moment.layers.values()),
            moment.cast_copies,
            sum(moment.head.values()),
            moment.temporary,
        )
        return dict(zip(COMPONENTS, sizes, strict=True))

    def parts(self) -> ByName:
        """Return the bytes by part; parts of the layers and the head may be 0 at the moment of the
        peak.
        """
        moment = self.moment
        head = moment.head
        parts = {
            **self.state,
            "step_counters": self.step_counters,
            "cast_copies": moment.cast_copies,
        }
        parts |= {"token_ids": self.token_ids, "rotary_table": self.rotary_table}
        parts["temporary"] = moment.temporary - moment.logits - moment.logits_gradients
        parts = {name: size for name, size in parts.items() if size}
        parts |= {f"activations_{name}": size for name, size in moment.layers.items()}
        if head:
            parts["head_final_norm"] = head["final_norm"] + head["product_input"]
            parts["head_logits"] = moment.logits
            parts["head_logits_fp32"] = head["log_probabilities"]
            parts["head_logits_gradients"] = moment.logits_gradients
        return parts

    @property
    def total(self) -> int:
        return sum(self.components().values())

    def sizes(self) -> ByName:
        return self.components() | {"total": self.total, "kept_by_layers": self.kept_by_layers}


COMPONENTS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "inputs",
    "activations",
    "cast_copies",
    "logits_loss",
    "temporary",
)


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
        return StepMemory(held, 0, 0, 0, Moment("optimizer", 0), 0)
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
        layers = dict.fromkeys(self._kept(1), 0)
        head = dict.fromkeys(self._kept_by_head(), 0)
        return StepMemory(
            state=self.state,
            step_counters=counters,
            token_ids=ids,
            rotary_table=0 if config.position_embeddings else rotations,
            moment=replace(peak, layers=layers | peak.layers, head=head | peak.head),
            kept_by_layers=sum(self._most_kept().values()),
        )

    def _kept(self, micro_batches: int) -> ByName:
        plan = self.plan
        batch = plan.batch // plan.micro_batches
        return model_activations(
            self.config, plan.sequence, batch, self.kernels, plan.checkpoint, micro_batches
        )

    def _stored(self, micro_batches: int) -> ByName:
        saved = self._kept(micro_batches)
        if self.group:
            return {"checkpoints": saved["checkpoints"]}
        is_selective = self.plan.checkpoint == "selective"
        return {
            name: size
            for name, size in saved.items()
            if not (is_selective and name == "attention_scores")
        }

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
        return saved | {"norm_inputs": saved["norm_inputs"] - self.stream}

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
        return {
            "final_norm": (layer["norm_inputs"] + layer["norm_statistics"])
            // self.config.norms_per_layer,
            "product_input": self.kernels.element_bytes * self.rows,
            "log_probabilities": FP32_BYTES * self.logits,
        }

    def _at_loss(self) -> Moment:
        """The gradient of log_softmax is computed, and no activation is released yet."""
        return Moment(
            "loss",
            temporary=2 * FP32_BYTES * self.logits + SCALARS * self.has_head,
            logits_gradients=2 * FP32_BYTES * self.logits,
            layers=self._stored(self.in_flight),
            cast_copies=self.recipe.cast_bytes * self.head if self.group else self.cast_copies,
            head=self._kept_by_head(),
        )

    def _in_forward(self) -> Moment:
        """The loss is computed: the peak with autocast and checkpointing.

        Autocast caches its copies of all weights until the forward pass ends; logits and
        log-probabilities are in fp32.
        """
        at_loss = self._at_loss()
        scalars = SCALARS * self.has_head + (0 if self.plan.micro_batches == 1 else SCALARS // 2)
        # Biases are also cast, but only for the forward pass.
        biases = sum(
            w.elements for w in self.held if w.name.endswith(" bias") and w.component != "norms"
        )
        cached = self.cast_copies - at_loss.cast_copies + self.recipe.cast_bytes * biases
        logits = FP32_BYTES * self.logits
        return replace(
            at_loss,
            name="forward",
            temporary=cached + logits + scalars,
            logits=logits,
            logits_gradients=0,
        )

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
        saved = {name: size for name, size in at_loss.head.items() if name != "log_probabilities"}
        gradients = width * self.logits
        product = replace(
            at_loss,
            name="head",
            temporary=gradients + others,
            logits_gradients=gradients,
            head=saved,
        )
        if not self.recipe.cast_bytes:
            return product
        cast = replace(
            product,
            temporary=self._gradient(self.head) + others,
            logits_gradients=0,
            cast_copies=at_loss.cast_copies - self.recipe.cast_bytes * self.head,
            head={"final_norm": saved["final_norm"]},
        )
        return max(product, cast, key=lambda moment: moment.total)

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
        return Moment("embedding", temporary, layers=self._stored(self.in_flight - 1))

    def _in_layers(self) -> Moment:
        """The backward pass enters the last layers; tensors of the head are released.

        Alive are gradients of the stream (with checkpointing also that of the group's output), of
        the width of the MLP (gated: two), of the weights of the largest matmul, and of a tied head.
        """
        config = self.config
        recipe = self.recipe
        saved = self._most_kept()
        experts = config.experts if "experts" in saved else None
        mlp = "experts" if "experts" in saved else "mlp"
        inside = [w for w in self.held if w.is_gemm and w.component != "lm_head"]
        product = max(prod(w.shape) for w in self.trained if w.is_gemm and w.component != "lm_head")
        largest = recipe.gradient_bytes * (product + config.width * config.has_mlp_bias)
        tied = self._gradient(self.head) if config.is_tied and self.has_embedding else 0
        mlp_width = ceil((experts.mlp_width if experts else config.mlp_width) / self.ways)
        per_token = experts.per_token if experts else 1
        wide = recipe.activation_bytes * self.plan.tokens * mlp_width * per_token
        cast = recipe.cast_bytes * (sum(w.elements for w in inside) // config.layers)
        entering = Moment(
            "layers",
            temporary=self.stream * (2 if self.group else 1) + wide + largest + tied + SCALARS,
            layers=saved,
            cast_copies=cast * (self.group or config.layers),
        )
        if not config.is_gated:
            return entering
        # Input and weight copy of the last matmul are released; gradients of gate and up follow.
        gated = replace(
            entering,
            temporary=entering.temporary - largest + 2 * wide,
            layers=saved | {mlp: saved[mlp] - wide},
            cast_copies=entering.cast_copies - recipe.cast_bytes * config.width * mlp_width,
        )
        return max(entering, gated, key=lambda moment: moment.total)

    def _in_optimizer(self) -> Moment:
        largest = max(
            state.optimizer_bytes(w, "momentum", self.recipe.moment_bytes) // w.copies
            for w in self.trained
        )
        return Moment("optimizer", temporary=UNFUSED.get(self.plan.optimizer, 0) * largest)
