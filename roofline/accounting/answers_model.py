"""Worked answers about a model: parameters, FLOPs of a step, memory of training."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.accounting import activations, parameters
from roofline.accounting.activations import Kernels, head_activations, model_activations
from roofline.accounting.answer import Answer, Step, count, number, size
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.flops import train_flops
from roofline.accounting.machines import Machine
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.state import OPTIMIZERS, Recipe, Sharding, state_bytes


def params_answer(config: ModelConfig) -> Answer:
    """Return the parameters of a model, weight by weight."""
    found = count_parameters(config)
    steps = [
        Step(
            f"{weight.component}: {weight.name}" if weight.name != weight.component else weight.name,
            " x ".join(map(str, ((weight.copies, *weight.shape) if weight.copies > 1 else weight.shape))),
            count(weight.elements),
        )
        for weight in weights(config)
    ]
    steps.append(Step("total", "sum", f"{count(found.total)} = {number(found.total / 1e9)}e9"))
    if found.active != found.total and config.experts:
        chosen = f"{config.experts.per_token} of {config.experts.count} experts"
        steps.append(Step("active per token", chosen, f"{count(found.active)} = {number(found.active / 1e9)}e9"))
    steps.append(Step("in matrix products", "no lookups, norms, biases; with the head", count(found.matmul)))
    tied = "the head uses the embedding's weights" if config.is_tied else "the head has weights of its own"
    return Answer(
        title=f"Parameters of {config.name}",
        values=parameters.to_dict(found),
        steps=steps,
        formula=parameters.FORMULA,
        source=f"{config.source}; {parameters.SOURCE}",
        assumptions=[tied, *config.assumptions],
    )


def flops_answer(
    config: ModelConfig, sequence: int, batch: int, convention: str, recompute: str, is_flash: bool
) -> Answer:
    """Return the FLOPs of a training step: what the model needs and what the hardware executes.

    Raises:
        ConfigError: an unknown convention or way of recomputing.
    """
    found = train_flops(config, sequence, batch, convention, recompute, is_flash)
    steps = [
        Step(name.replace("_", " "), _parts(found, name), count(flops)) for name, flops in found.components.items()
    ]
    steps.append(Step("model FLOPs per step", f"{found.tokens:,} tokens", count(found.model_flops)))
    steps.append(Step("per token", f"{number(found.model_flops)} / {found.tokens:,}", count(found.per_token)))
    for name, flops in found.recomputed.items():
        steps.append(Step(f"again: {name.replace('_', ' ')}", "in the backward pass", count(flops)))
    steps.append(Step("hardware FLOPs per step", "for HFU; the model's are for MFU", count(found.hardware_flops)))
    return Answer(
        title=f"FLOPs of a training step of {config.name}: {batch} x {sequence} tokens",
        values={
            "per_token": found.per_token,
            "per_step": found.model_flops,
            "hardware_per_step": found.hardware_flops,
            "tokens_per_step": found.tokens,
            "convention": convention,
            "components": found.components,
            "recomputed": found.recomputed,
        },
        steps=steps,
        formula=f"per token: {found.convention.formula}",
        source=f"{found.convention.source}; {config.source}",
        assumptions=[
            f"convention '{convention}'; a fused multiply-add counts as 2; backward is twice the forward pass",
            "norms, activations, softmax and the optimizer are left out, but where the convention names them",
            _attention_note(is_flash, recompute),
            *config.assumptions,
        ],
    )


def _parts(found: object, name: str) -> str:
    """Return forward, dgrad and wgrad of a component as a sum."""
    kinds = ("forward", "input_gradients", "weight_gradients")
    parts = [getattr(found, kind).get(name, 0) for kind in kinds]
    words = ("forward", "dgrad", "wgrad")
    return " + ".join(f"{number(part)} {word}" for part, word in zip(parts, words, strict=True) if part)


def _attention_note(is_flash: bool, recompute: str) -> str:
    kernel = (
        "flash attention, which computes its scores again in the backward pass" if is_flash else "unfused attention"
    )
    return f"{kernel}; recomputation: {recompute}"


def memory_answer(
    config: ModelConfig,
    recipe: Recipe,
    optimizer: str,
    sequence: int,
    batch: int,
    checkpoint: str = "none",
    sharding: Sharding | None = None,
    is_flash: bool = True,
    has_dropout: bool = False,
    accumulate: int = 1,
    machines: Sequence[Machine] = (),
) -> Answer:
    """Return the memory of training on one device, by component.

    Raises:
        ConfigError: an unknown optimizer or way of checkpointing, or a sharding that cannot be.
    """
    sharding = sharding or Sharding()
    if optimizer not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer {optimizer!r}; known: {', '.join(OPTIMIZERS)}")
    kernels = Kernels(
        element_bytes=recipe.activation_bytes,
        residual_bytes=4 if recipe.name == "amp" else None,
        is_flash=is_flash,
        has_dropout=has_dropout,
    )
    ways = sharding.tensor_parallel
    state = state_bytes(config, recipe, optimizer, sharding)
    kept = model_activations(config, sequence, batch, kernels, checkpoint, ways)
    head = head_activations(config, sequence, batch, recipe.activation_bytes, tensor_parallel=ways)
    components = {
        **state,
        **{f"activations_{name}": part for name, part in kept.items()},
        **{name if name == "token_ids" else f"head_{name}": part for name, part in head.items()},
    }
    total = sum(components.values())
    steps = [Step(name.replace("_", " "), _share(part, total), size(part)) for name, part in components.items()]
    steps.append(Step("all state", "weights, gradients, optimizer", size(sum(state.values()))))
    steps.append(
        Step("all activations", f"micro-batch {batch} x {sequence}", size(sum(kept.values()) + sum(head.values())))
    )
    steps.append(Step("total", f"{total:,} bytes", size(total)))
    fits = [_fit_row(machine, total) for machine in machines]
    global_batch = batch * accumulate * sharding.data_parallel
    return Answer(
        title=f"Memory of training {config.name} on one device: {recipe.name}, {optimizer}",
        values={
            "total_bytes": total,
            "components": components,
            "state_bytes": sum(state.values()),
            "activation_bytes": sum(kept.values()) + sum(head.values()),
            "sequences_per_step": global_batch,
        },
        steps=steps,
        formula=f"state: bytes per parameter of the recipe; {activations.FORMULA}; logits 2 + 4 + their gradients",
        source=f"{recipe.source}; {OPTIMIZERS[optimizer]}; {activations.SOURCE}; {config.source}",
        assumptions=[
            f"ZeRO {sharding.zero} over {sharding.data_parallel}, tensor parallelism of {ways}",
            f"{'flash' if is_flash else 'unfused'} attention, checkpointing: {checkpoint}",
            f"{global_batch} sequences a step; of {accumulate} micro-batch(es) on a device one is in memory",
            "left out: CUDA context, workspaces, buffers of collectives, rounding and fragmentation of the allocator",
            *config.assumptions,
        ],
        rows=fits,
        columns=[("gpu", "GPU"), ("memory_bytes", "memory"), ("used", "used"), ("fits", "fits")] if fits else (),
    )


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %"


def _fit_row(machine: Machine, total: int) -> dict[str, object]:
    memory = machine.memory()
    return {"gpu": machine.slug, "memory_bytes": memory, "used": total / memory, "fits": total <= memory}
