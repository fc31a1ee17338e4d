"""Bytes of weights, gradients and optimizer states, by recipe and optimizer, optionally sharded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import NamedTuple

from roofline.accounting.config import ByName, ConfigError, ModelConfig, model_of_size
from roofline.accounting.parameters import Weight, weights
from roofline.accounting.storage import stored_bytes

FP32_BYTES = 4


FP8_SOURCE = (
    "Transformer Engine on Hopper: bf16 weights, an fp8 copy and its transpose; "
    "activations counted as bf16"
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Precision of the training state: bytes per parameter."""

    name: str
    source: str
    weight_bytes: int = 2
    gradient_bytes: int = 2
    master_bytes: int = 0
    """Bytes of an fp32 copy of the weights for the optimizer; 0 without one."""
    moment_bytes: int = 4
    cast_bytes: int = 0
    """Bytes of copies of matmul weights in the compute dtype, during forward and backward."""
    activation_bytes: int = 2
    compute_dtype: str = "bf16"
    least_zero: int = 0
    """ZeRO stage without which the recipe makes no sense."""


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="fp32",
            source="CS336 (2025) lecture 2: 4 + 4 + 8 = 16 with AdamW",
            weight_bytes=4,
            gradient_bytes=4,
            activation_bytes=4,
            compute_dtype="fp32",
        ),
        Recipe(
            name="amp",
            source="torch.autocast: fp32 parameters and a cached bf16 copy",
            weight_bytes=4,
            gradient_bytes=4,
            cast_bytes=2,
        ),
        Recipe(
            name="fsdp",
            source="torch.distributed.fsdp.MixedPrecisionPolicy: fp32 shards, gathered in bf16",
            weight_bytes=4,
            gradient_bytes=4,
            least_zero=3,
        ),
        Recipe(
            name="bf16-master",
            source="Rajbhandari et al., ZeRO (2020): 2 + 2 + 12 = 16 with Adam",
            master_bytes=4,
        ),
        Recipe(
            name="bf16-master-fp32-grad",
            source="Megatron-LM theoretical memory: 18 bytes with Adam",
            gradient_bytes=4,
            master_bytes=4,
        ),
        Recipe(
            name="bf16-fp32-moments",
            source="CS336 (2026) lecture 2: 2 + 2 + 8 = 12 with AdamW",
        ),
        Recipe(
            name="bf16",
            source="torch.optim.AdamW on bf16 parameters: its moments are bf16 too",
            moment_bytes=2,
        ),
        Recipe(
            name="fp8",
            source=FP8_SOURCE,
            master_bytes=4,
            cast_bytes=2,
            compute_dtype="fp8e4m3",
        ),
    )
}

OPTIMIZERS = {
    "sgd": "no state",
    "momentum": "one moment",
    "adagrad": "one sum of squares",
    "rmsprop": "one mean of squares",
    "adam": "two moments",
    "adamw": "two moments",
    "lion": "one moment; Chen et al. (2023)",
    "adafactor": "row and column means of squares, fp32; Shazeer and Stern (2018), without a "
    "first moment (2 more bytes per parameter in bf16); without a model, of square "
    "matrices of 4096",
    "adam-8bit": "two moments of 1 byte and an fp32 scale for each 256; Dettmers et al. (2022), "
    "bitsandbytes",
    "muon": "one moment for the matrices of the layers, AdamW for everything else; Jordan et al. "
    "(2024)",
}

MOMENTS = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2, "lion": 1}

BLOCK = 256
"""Values that share one scale in 8-bit Adam. Source: bitsandbytes, blockwise quantization."""
MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors keep fp32 moments. Source: bitsandbytes, `min_8bit_size`."""

FACTORED_WIDTH = 4096
"""Width of the square matrices that Adafactor factors if only the number of parameters is known."""

ROWS_DIVIDED = ("embedding", "output", "down")

OUTSIDE_LAYERS = ("embedding", "positions", "lm_head")


def optimizer_bytes(weight: Weight, optimizer: str, moment_bytes: int) -> int:
    size = prod(weight.shape)
    if optimizer in MOMENTS:
        return MOMENTS[optimizer] * moment_bytes * weight.elements
    if weight.component == "parameters":
        if optimizer == "adafactor":
            return 2 * FP32_BYTES * weight.elements // FACTORED_WIDTH
        allowed = ", ".join((*MOMENTS, "adafactor"))
        raise ConfigError(
            f"the state of {optimizer!r} requires a model; without one choose from {allowed}"
        )
    if optimizer == "adafactor":
        return FP32_BYTES * weight.copies * (sum(weight.shape) if len(weight.shape) == 2 else size)
    if optimizer == "adam-8bit":
        small = 2 * FP32_BYTES * size
        return weight.copies * (
            small if size < MIN_8BIT_ELEMENTS else 2 * (size + FP32_BYTES * ceil(size / BLOCK))
        )
    # Muon
    is_hidden_matrix = len(weight.shape) == 2 and weight.component not in OUTSIDE_LAYERS
    return (1 if is_hidden_matrix else 2) * moment_bytes * weight.elements


def bytes_per_param(recipe: Recipe, optimizer: str) -> int | float:
    """Return the bytes of training state per parameter; an integer unless Adafactor adds a
    fraction.
    """
    total = sum(state_bytes(model_of_size(FACTORED_WIDTH), recipe, optimizer).values())
    whole, rest = divmod(total, FACTORED_WIDTH)
    return total / FACTORED_WIDTH if rest else whole


def checkpoint_file_bytes(state: Mapping[str, int]) -> int:
    """Return the bytes of a checkpoint from those of `state_bytes`: weights and optimizer state,
    without gradients.

    Source: `state_dict()` of model and optimizer, as torch.save writes them.
    """
    return sum(size for name, size in state.items() if name in SHARDED_FROM and name != "gradients")


SHARDED_FROM = {"weights": 3, "gradients": 2, "master_weights": 1, "optimizer_states": 1}
"""First ZeRO stage that shards each component over data-parallel devices."""


@dataclass(frozen=True)
class Sharding:
    """Sharding of a model over devices."""

    zero: int = 0
    """ZeRO stage, see `SHARDED_FROM`."""
    data_parallel: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    """Stages of equal layers; the first also has the embedding, the last the head."""
    expert_parallel: int = 1
    """Data-parallel devices that split the routed experts of a layer."""
    context_parallel: int = 1
    """Devices that split each sequence and have the same weights."""

    @property
    def same_weights(self) -> int:
        """Devices with the same weights, except for experts: ZeRO shards over them."""
        return self.data_parallel * self.context_parallel

    @property
    def devices(self) -> int:
        return self.same_weights * self.tensor_parallel * self.pipeline_parallel

    def replicas_of_experts(self) -> int:
        """Return the number of data-parallel devices that store the same experts."""
        if self.data_parallel > 1 and self.data_parallel % self.expert_parallel:
            ways = self.expert_parallel
            raise ConfigError(
                f"--data-parallel {self.data_parallel} is not a multiple of --expert-parallel "
                f"{ways}"
            )
        return max(1, self.data_parallel // self.expert_parallel) * self.context_parallel

    def stage(self, config: ModelConfig) -> ModelConfig:
        if self.pipeline_parallel > config.layers:
            raise ConfigError(
                f"{self.pipeline_parallel} pipeline stages exceed the {config.layers} layers"
            )
        return config.with_layers(-(-config.layers // self.pipeline_parallel))


def held_weights(config: ModelConfig, sharding: Sharding, is_last: bool = False) -> list[Weight]:
    """Return the weights on one device: its pipeline stage, heads and experts.

    Source: Shoeybi et al., Megatron-LM (2019); Narayanan et al. (2021); Lepikhin et al., GShard
    (2020).
    """
    ways = sharding.expert_parallel
    if ways > 1 and (config.experts is None or config.experts.count % ways):
        count = config.experts.count if config.experts else 0
        raise ConfigError(f"--expert-parallel {ways} does not divide {count} experts")
    held = [
        shard(weight, config, sharding.tensor_parallel)
        for weight in weights(sharding.stage(config))
    ]
    if sharding.pipeline_parallel > 1:
        left_out = ("positions", "" if config.is_tied else "embedding") if is_last else ("lm_head",)
        held = [weight for weight in held if weight.component not in left_out]
    return [replace(w, copies=w.copies // ways) if w.component == "experts" else w for w in held]


class Lora(NamedTuple):
    """Adapters, and how the frozen model under them is stored."""

    rank: int
    matrices: tuple[str, ...] = ()
    """Names of the weights that have adapters; empty: all matmuls of the layers."""
    weight_dtype: str | None = None
    """Of the frozen weights, as in `storage.STORAGES` (QLoRA); None: that of the recipe."""


def adapters(base: Iterable[Weight], lora: Lora) -> list[Weight]:
    """Return two narrow matrices for each adapted matmul of the layers.

    Source: Hu et al., LoRA (2021).
    """
    products = [weight for weight in base if weight.is_layer_product]
    known = list(dict.fromkeys(weight.name for weight in products))
    for name in lora.matrices:
        if name not in known:
            raise ConfigError(f"--lora-on: no matrix {name!r}; the layers have {', '.join(known)}")
    pairs: list[Weight] = []
    for w in products:
        if w.name in (lora.matrices or known):
            name = f"{w.name} adapter"
            pairs += [
                Weight(name, w.component, (side, lora.rank), w.copies, is_gemm=True)
                for side in w.shape
            ]
    return pairs


def state_bytes(
    config: ModelConfig,
    recipe: Recipe,
    optimizer: str,
    sharding: Sharding | None = None,
    is_last: bool = False,
    lora: Lora | None = None,
) -> ByName:
    """Return the bytes of the training state on one device, by component.

    With adapters, the base model has no gradients, master weights and moments. ZeRO 3 over several
    devices adds the weights of one gathered layer.

    Source: Rajbhandari et al., ZeRO (2020), figure 1; tensor parallelism as in Megatron-LM.
    """
    sharding = sharding or Sharding()
    base = held_weights(config, sharding, is_last)
    trained = base if lora is None else adapters(base, lora)
    parts = dict.fromkeys(SHARDED_FROM, 0)
    for are_experts, devices in (
        (False, sharding.same_weights),
        (True, sharding.replicas_of_experts()),
    ):
        kept = [w for w in base if (w.component == "experts") is are_experts]
        updated = [w for w in trained if (w.component == "experts") is are_experts]
        elements = sum(weight.elements for weight in updated)
        held = recipe.weight_bytes * sum(weight.elements for weight in kept)
        if lora:
            if lora.weight_dtype:
                held = stored_bytes(kept, lora.weight_dtype)
            held += recipe.weight_bytes * elements
        sizes = {
            "weights": held,
            "gradients": recipe.gradient_bytes * elements,
            "master_weights": recipe.master_bytes * elements,
            "optimizer_states": sum(
                optimizer_bytes(weight, optimizer, recipe.moment_bytes) for weight in updated
            ),
        }
        for name, size in sizes.items():
            parts[name] += -(-size // devices) if sharding.zero >= SHARDED_FROM[name] else size
    if sharding.zero == 3 and sharding.same_weights > 1 and not config.parameters:
        # Autocast casts a gathered weight only for its matmul.
        gathered_bytes = recipe.weight_bytes if recipe.cast_bytes else recipe.activation_bytes
        layers = sharding.stage(config).layers
        outside = [w.elements for w in base if w.component in OUTSIDE_LAYERS]
        inside = sum(w.elements for w in base) - sum(outside)
        parts["gathered_layer"] = gathered_bytes * max([-(-inside // layers), *outside])
    return {name: size for name, size in parts.items() if size}


def cast_bytes(config: ModelConfig, recipe: Recipe, held: Iterable[Weight]) -> int:
    is_multiplied = (
        w for w in held if w.is_gemm or (config.is_tied and w.component == "embedding")
    )
    return recipe.cast_bytes * sum(weight.elements for weight in is_multiplied)


def shard(weight: Weight, config: ModelConfig, ways: int) -> Weight:
    """Return the part of a weight on one of `ways` tensor-parallel devices.

    Heads, MLP widths and the vocabulary are split. Norms, routers, learned positions and the narrow
    projections of latent attention are replicated, and so are key and value heads if there are
    fewer than devices.

    Source: Shoeybi et al., Megatron-LM (2019), section 3; Megatron-LM for grouped heads and
    experts.
    """
    if ways == 1 or not weight.split:
        return weight
    if config.heads % ways:
        raise ConfigError(f"--tensor-parallel {ways} does not divide {config.heads} heads")
    if weight.split == "kv_heads":
        ways = min(ways, config.kv_heads)
    shape = list(weight.shape)
    index = 0 if weight.name in ROWS_DIVIDED else len(shape) - 1
    shape[index] = -(-shape[index] // ways)
    return replace(weight, shape=tuple(shape))
