"""The most memory that one training step takes on one device, at which moment, and what it is made of.

State stays from step to step. Above it come what the forward pass keeps for the backward pass, and temporaries. Their
sum has its largest value at one of a few moments: while the loss is differentiated, within the layers, or in the
optimizer. `activations` counts what is kept; this says when, and what is there beside it. Devices may share the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, prod

from roofline.accounting import state
from roofline.accounting.activations import ID_BYTES, Kernels, checkpoint_group, layer_activations, model_activations
from roofline.accounting.config import ModelConfig
from roofline.accounting.state import FP32_BYTES, Recipe, Sharding

STEP_COUNTERS = ("adagrad", "rmsprop", "adam", "adamw")
"""Optimizers of torch that keep an fp32 count of steps for each tensor."""

UNFUSED = {"adagrad": 1, "rmsprop": 1}
"""Copies of the largest weight that an optimizer makes meanwhile, where no fused kernel does all of it."""

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
    """Parts of a step whose gradients are summed up, one after the other."""
    checkpoint: str = "none"
    kernels: Kernels | None = None
    sharding: Sharding = field(default_factory=Sharding)
    loss_chunks: int = 1
    lora_rank: int | None = None

    @property
    def tokens(self) -> int:
        return self.sequence * self.batch // self.micro_batches


MOMENTS = {
    "forward": "at the end of the forward pass",
    "loss": "while the loss is differentiated",
    "head": "while the gradients of the head are computed",
    "layers": "when the backward pass enters the last layers",
    "embedding": "when the backward pass reaches the embedding",
    "optimizer": "while the optimizer updates",
}


@dataclass(frozen=True)
class Moment:
    """What a step holds above its state at one moment, bytes."""

    name: str
    temporary: int
    """Gradients of activations, and what the optimizer needs meanwhile."""
    layers: dict[str, int] = field(default_factory=dict)
    """Kept by the layers, by component as in `activations.model_activations`."""
    cast_copies: int = 0
    """Weights in the compute dtype under autocast, as far as they are kept."""
    head: dict[str, int] = field(default_factory=dict)
    logits: int = 0
    """Part of `temporary`."""
    logits_gradients: int = 0
    """Part of `temporary`."""

    @property
    def total(self) -> int:
        return self.temporary + sum(self.layers.values()) + self.cast_copies + sum(self.head.values())


@dataclass(frozen=True)
class StepMemory:
    """Bytes of a step on one device at the moment when it holds most."""

    state: dict[str, int]
    """What stays from step to step, as in `state.state_bytes`."""
    step_counters: int
    token_ids: int
    """Token ids and targets of the whole step."""
    rotary_table: int
    moment: Moment
    kept_by_layers: int
    """The most that the layers keep at any moment, whether it is this one or not: what checkpointing makes less."""

    @property
    def inputs(self) -> int:
        return self.token_ids + self.rotary_table

    def components(self) -> dict[str, int]:
        moment, held = self.moment, sum(self.state.values()) + self.step_counters
        weights, gradients = self.state["weights"] + self.state.get("gathered_layer", 0), self.state["gradients"]
        of_state = (weights, gradients, held - weights - gradients, self.inputs)
        above = (sum(moment.layers.values()), moment.cast_copies, sum(moment.head.values()), moment.temporary)
        return dict(zip(COMPONENTS, (*of_state, *above), strict=True))

    def parts(self) -> dict[str, int]:
        """Return the bytes by part; parts of the layers and the head may be 0 at the moment of the peak."""
        moment, head = self.moment, self.moment.head
        parts = {**self.state, "step_counters": self.step_counters, "cast_copies": moment.cast_copies}
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

    def sizes(self) -> dict[str, int]:
        return self.components() | {"total": self.total, "kept_by_layers": self.kept_by_layers}


COMPONENTS = (
    *("parameters", "gradients", "optimizer_state", "inputs"),
    *("activations", "cast_copies", "logits_loss", "temporary"),
)


def step_memory(plan: StepPlan) -> StepMemory:
    """Return the memory of a step when it is largest, gradients being kept from step to step.

    Exact for GPT and Llama blocks on one device but for the temporaries within the layers, which are estimated. Of a
    pipeline it is the fuller one of the first stage and the last.

    Source: parts as of `state.state_bytes` and `activations.model_activations`; moments as torch.autograd runs a step.
    """
    stages = [_Stage(plan, is_last).memory() for is_last in (False, True)[: plan.sharding.pipeline_parallel]]
    return max(stages, key=lambda memory: memory.total)


class _Stage:
    """The part of a step on a device of the first or the last stage of a pipeline; of one stage, all of it.

    Source: Narayanan et al. (2021), section 2.2: the first stage has as many micro-batches under way as stages.
    """

    def __init__(self, plan: StepPlan, is_last: bool) -> None:
        sharding, is_whole = plan.sharding, plan.sharding.pipeline_parallel == 1
        self.plan, self.recipe, self.ways = plan, plan.recipe, sharding.tensor_parallel
        self.config = sharding.stage(plan.config)
        kernels = plan.kernels or Kernels(plan.recipe.activation_bytes)
        self.kernels = replace(kernels, tensor_parallel=self.ways)
        self.held = state.held_weights(plan.config, sharding, is_last)
        self.trained = self.held if plan.lora_rank is None else state.adapters(self.held, plan.lora_rank)
        self.state = state.state_bytes(plan.config, plan.recipe, plan.optimizer, sharding, is_last, plan.lora_rank)
        self.cast_copies = state.cast_bytes(plan.config, plan.recipe, self.held)
        self.has_head, self.has_embedding = is_whole or is_last, is_whole or not is_last
        self.under_way = 1 if is_last else min(sharding.pipeline_parallel, plan.micro_batches)
        self.group = checkpoint_group(plan.checkpoint, self.config.layers)
        self.table = ceil(self.config.vocabulary / self.ways) * self.config.width
        """Elements of the embedding, or of the head, on this device."""
        self.head = self.table if self.has_head else 0
        self.logits = ceil(plan.tokens / plan.loss_chunks) * self.head // self.config.width
        self.rows = ceil(plan.tokens * self.config.width / self.kernels.token_ways)
        """Elements of the residual stream on this device."""
        self.stream = self.kernels.stream_bytes * self.rows

    def memory(self) -> StepMemory:
        plan, config = self.plan, self.config
        counters = FP32_BYTES * sum(w.copies for w in self.trained) if plan.optimizer in STEP_COUNTERS else 0
        ids = ID_BYTES * plan.sequence * plan.batch * (self.has_head + self.has_embedding)
        rotations = 2 * plan.recipe.activation_bytes * plan.sequence * config.head_dim
        moments = (
            *(self._at_loss(), self._in_forward(), self._at_head()),
            *(self._in_layers(), self._at_embedding(), self._in_optimizer()),
        )
        peak = max(moments, key=lambda moment: moment.total)
        layers, head = dict.fromkeys(self._kept(1), 0), dict.fromkeys(self._kept_by_head(), 0)
        return StepMemory(
            state=self.state,
            step_counters=counters,
            token_ids=ids,
            rotary_table=0 if config.position_embeddings else rotations,
            moment=replace(peak, layers=layers | peak.layers, head=head | peak.head),
            kept_by_layers=sum(self._most_kept().values()),
        )

    def _kept(self, micro_batches: int) -> dict[str, int]:
        plan, batch = self.plan, self.plan.batch // self.plan.micro_batches
        return model_activations(self.config, plan.sequence, batch, self.kernels, plan.checkpoint, micro_batches)

    def _stored(self, micro_batches: int) -> dict[str, int]:
        kept = self._kept(micro_batches)
        if self.group:
            return {"checkpoints": kept["checkpoints"]}
        is_selective = self.plan.checkpoint == "selective"
        return {name: size for name, size in kept.items() if not (is_selective and name == "attention_scores")}

    def _most_kept(self) -> dict[str, int]:
        """Return the most that the layers keep at any moment: with checkpointing, when the last group was recomputed.

        The input of that group is kept already; where its first norm keeps its input itself, that is the same tensor.
        """
        kept = self._kept(self.under_way)
        if not self.group or not self.kernels.saves_input(self.config.norm):
            return kept
        return kept | {"norm_inputs": kept["norm_inputs"] - self.stream}

    def _gradient(self, elements: int) -> int:
        return self.recipe.gradient_bytes * elements if self.plan.lora_rank is None else 0

    def _kept_by_head(self) -> dict[str, int]:
        """Return what the final norm, the head and the loss keep of a micro-batch: 4 V of log-probabilities a token.

        Source: torch.nn.functional.cross_entropy keeps the fp32 output of log_softmax, not the logits.
        """
        if not self.has_head:
            return {}
        layer = layer_activations(self.config, self.plan.tokens, 1, self.kernels)
        return {
            "final_norm": (layer["norm_inputs"] + layer["norm_statistics"]) // self.config.norms_per_layer,
            "product_input": self.kernels.element_bytes * self.rows,
            "log_probabilities": FP32_BYTES * self.logits,
        }

    def _at_loss(self) -> Moment:
        """The gradient of log_softmax is computed; nothing is released yet. Groups of layers keep their inputs."""
        return Moment(
            "loss",
            temporary=2 * FP32_BYTES * self.logits + SCALARS * self.has_head,
            logits_gradients=2 * FP32_BYTES * self.logits,
            layers=self._stored(self.under_way),
            cast_copies=self.recipe.cast_bytes * self.head if self.group else self.cast_copies,
            head=self._kept_by_head(),
        )

    def _in_forward(self) -> Moment:
        """The loss is computed; largest with autocast and checkpointing.

        Autocast caches its copies of all weights until the forward pass ends, also of those that no layer keeps; the
        logits and their log-probabilities are there in fp32.
        """
        at_loss = self._at_loss()
        scalars = SCALARS * self.has_head + (0 if self.plan.micro_batches == 1 else SCALARS // 2)
        # Biases are cast for the forward pass, too, but no product needs them in the backward pass.
        biases = sum(w.elements for w in self.held if w.name.endswith(" bias") and w.component != "norms")
        cached = self.cast_copies - at_loss.cast_copies + self.recipe.cast_bytes * biases
        logits = FP32_BYTES * self.logits
        return replace(at_loss, name="forward", temporary=cached + logits + scalars, logits=logits, logits_gradients=0)

    def _at_head(self) -> Moment:
        """The head's gradients are computed: largest if few tokens meet a large vocabulary.

        The log-probabilities are released; the gradients of the logits, of the head's input and of its weights are
        there. Under autocast the weights' gradient is cast to fp32 next.
        """
        at_loss, width = self._at_loss(), self.recipe.activation_bytes
        if not self.has_head:
            return at_loss
        table = width * self.head if self.plan.lora_rank is None else 0
        beside = table + width * self.rows + SCALARS
        kept = {name: size for name, size in at_loss.head.items() if name != "log_probabilities"}
        gradients = width * self.logits
        product = replace(at_loss, name="head", temporary=gradients + beside, logits_gradients=gradients, head=kept)
        if not self.recipe.cast_bytes:
            return product
        cast = replace(
            product,
            temporary=self._gradient(self.head) + beside,
            logits_gradients=0,
            cast_copies=at_loss.cast_copies - self.recipe.cast_bytes * self.head,
            head={"final_norm": kept["final_norm"]},
        )
        return max(product, cast, key=lambda moment: moment.total)

    def _at_embedding(self) -> Moment:
        """A backward pass ends with the gradient of the embedding, a row for each of the vocabulary.

        If the head has the same weights, its part has waited for the embedding's, and there are two and their sum;
        a part that autocast has cast is added to in place.
        """
        is_shared = self.config.is_tied and self.has_head and self.has_embedding
        tables = (2 if self.recipe.cast_bytes else 3) if is_shared else 1
        table = self._gradient(self.table) if self.has_embedding else 0
        temporary = tables * table + (self.stream if tables < 3 else 0) + SCALARS
        return Moment("embedding", temporary, layers=self._stored(self.under_way - 1))

    def _in_layers(self) -> Moment:
        """The backward pass enters the last layers: the head's tensors are released.

        Alive are the gradient of the stream (with checkpointing also the one that its group was handed), that of the
        MLP's width (gated: two), and that of the largest product's weights; with a tied embedding also the head's part.
        """
        config, recipe, kept = self.config, self.recipe, self._most_kept()
        mlp, experts = ("experts", config.experts) if "experts" in kept else ("mlp", None)
        inside = [w for w in self.held if w.is_gemm and w.component != "lm_head"]
        product = max(prod(w.shape) for w in self.trained if w.is_gemm and w.component != "lm_head")
        largest = recipe.gradient_bytes * (product + (config.width if config.has_mlp_bias else 0))
        tied = self._gradient(self.head) if config.is_tied and self.has_embedding else 0
        mlp_width = ceil((experts.mlp_width if experts else config.mlp_width) / self.ways)
        wide = recipe.activation_bytes * self.plan.tokens * mlp_width * (experts.per_token if experts else 1)
        cast = recipe.cast_bytes * (sum(w.elements for w in inside) // config.layers)
        entering = Moment(
            "layers",
            temporary=self.stream * (2 if self.group else 1) + wide + largest + tied + SCALARS,
            layers=kept,
            cast_copies=cast * (self.group or config.layers),
        )
        if not config.is_gated:
            return entering
        # The last product is done: its input and its weights' copy are released, gradients of gate and up follow.
        gated = replace(
            entering,
            temporary=entering.temporary - largest + 2 * wide,
            layers=kept | {mlp: kept[mlp] - wide},
            cast_copies=entering.cast_copies - recipe.cast_bytes * config.width * mlp_width,
        )
        return max(entering, gated, key=lambda moment: moment.total)

    def _in_optimizer(self) -> Moment:
        largest = max(state.optimizer_bytes(w, "momentum", self.recipe.moment_bytes) // w.copies for w in self.trained)
        return Moment("optimizer", temporary=UNFUSED.get(self.plan.optimizer, 0) * largest)
