"""Worked answers about a model: parameters, FLOPs of a step, memory of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from roofline.accounting import activations, parameters
from roofline.accounting.activations import EAGER_MEASURED, Kernels
from roofline.accounting.answers.answer import Answer, Step, count, memory, number, size
from roofline.accounting.budget import six_nd
from roofline.accounting.config.config import ModelConfig
from roofline.accounting.flops import train_flops
from roofline.accounting.machines import Machine
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.state import OPTIMIZERS, Recipe, Sharding, bytes_per_param, zero_bytes
from roofline.accounting.step_memory import MOMENTS, StepPlan, step_memory


def params_answer(config: ModelConfig) -> Answer:
    """Return the parameters of a model, weight by weight."""
    found = count_parameters(config)
    steps = [
        Step(
            f"{weight.component}: {weight.name}" if weight.name != weight.component else weight.name,
            " x ".join(map(str, ((weight.copies, *weight.shape) if weight.copies > 1 else weight.shape))),
            count(weight.elements),
            weight.elements,
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
        main=("total", "active") if found.active != found.total else ("total",),
        title=f"Parameters of {config.name}",
        values=parameters.to_dict(found),
        steps=steps,
        formula=parameters.FORMULA,
        source=f"{config.source}; {parameters.source_of(config)}",
        assumptions=[tied, *config.assumptions],
    )


def flops_answer(
    config: ModelConfig,
    sequence: int,
    batch: int,
    convention: str,
    recompute: str,
    is_flash: bool,
    is_frozen: bool = False,
    document: int | None = None,
) -> Answer:
    """Return the FLOPs of a training step: what the model needs and what the hardware executes.

    Raises:
        ConfigError: an unknown convention or way of recomputing.
    """
    found = train_flops(config, sequence, batch, convention, recompute, is_flash, is_frozen, document)
    steps = [
        Step(name.replace("_", " "), _parts(found, name), count(flops), flops)
        for name, flops in found.components.items()
    ]
    steps.append(Step("model FLOPs per step", f"{found.tokens:,} tokens", count(found.model_flops)))
    steps.append(Step("per token", f"{number(found.model_flops)} / {found.tokens:,}", count(found.per_token)))
    for name, flops in found.recomputed.items():
        steps.append(Step(f"again: {name.replace('_', ' ')}", "in the backward pass", count(flops)))
    steps.append(Step("hardware FLOPs per step", "for HFU; the model's are for MFU", count(found.hardware_flops)))
    return Answer(
        main=("per_token", "per_step"),
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
            *config.notes_on(sequence),
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


def flops_of_parameters(params: float, sequence: int, batch: int) -> Answer:
    """Return the FLOPs of a training step by the number of parameters alone."""
    tokens, per_token = batch * sequence, six_nd(params, 1)
    return Answer(
        main=("per_token", "per_step"),
        title=f"FLOPs of a training step of {number(params)} parameters: {batch} x {sequence} tokens",
        values={"per_token": per_token, "per_step": per_token * tokens, "tokens_per_step": tokens, "convention": "6nd"},
        steps=[
            Step("per token", f"6 x {number(params)}", count(per_token)),
            Step("per step", f"{count(per_token)} x {tokens:,} tokens", count(per_token * tokens)),
        ],
        formula="6 N D",
        source="Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1",
        assumptions=["6 N leaves out attention's own products; N are the parameters that a token meets"],
    )


def state_of_parameters(
    params: float, recipe: Recipe, optimizer: str, zero: int, devices: int, machines: Sequence[Machine] = ()
) -> Answer:
    """Return the state of training on one device by the number of parameters alone.

    Args:
        params: of the model.
        recipe: in what the state is kept.
        optimizer: whose state does not depend on shapes.
        zero: stage of ZeRO.
        devices: that share the state.
        machines: to say whether it fits.

    Raises:
        ConfigError: the optimizer's state depends on the shapes of the weights.
    """
    whole = max(1, round(params))
    rest = bytes_per_param(recipe, optimizer) - recipe.weight_bytes - recipe.gradient_bytes - recipe.master_bytes
    per_param = {
        "weights": recipe.weight_bytes,
        "gradients": recipe.gradient_bytes,
        "master_weights": recipe.master_bytes,
        "optimizer_states": rest,
    }
    parts_of_one = {name: whole * part for name, part in per_param.items() if part}
    parts = zero_bytes(parts_of_one, zero, devices)
    total = sum(parts.values())
    steps = [Step(name.replace("_", " "), _share(part, total), size(part), part) for name, part in parts.items()]
    return Answer(
        main=("total_bytes",),
        title=f"State of training {number(params)} parameters on one device: {recipe.name}, {optimizer}",
        values={"zero": zero, "total_bytes": total, "components": parts, "state_bytes": total},
        steps=[*steps, Step("total", f"{total:,} bytes", size(total))],
        formula="N x bytes per parameter of the recipe; ZeRO shares the optimizer's, gradients, weights",
        source=f"{recipe.source}; {OPTIMIZERS[optimizer]}; Rajbhandari et al., ZeRO (2020)",
        assumptions=[f"ZeRO {zero} over {devices}", "activations are left out: they depend on the model"],
        rows=(fits := [_fit_row(machine, total, 0, sum(parts_of_one.values())) for machine in machines]),
        columns=FIT_COLUMNS if machines else (),
        warnings=_memory_warnings(fits, total),
    )


FIT_COLUMNS = (
    *(("gpu", "GPU"), ("memory_bytes", "memory"), ("used", "used"), ("headroom_bytes", "headroom")),
    *(("fits", "fits"), ("gpus_needed", "devices needed")),
)

MIN_HEADROOM = 0.1
"""Warn below this fraction of the memory: CUDA context, workspaces and fragmentation are not estimated."""


def memory_answer(plan: StepPlan, machines: Sequence[Machine] = (), is_eager: bool = False) -> Answer:
    """Return the memory of training on one device, by component, and whether it fits on each machine.

    Args:
        plan: the step.
        machines: to say whether it fits.
        is_eager: whether the kernels of the plan are the plain operations of transformers.

    Raises:
        ConfigError: an unknown optimizer or way of checkpointing, or a sharding that cannot be.
    """
    found, config = step_memory(plan), plan.config
    moment, total, of_state = found.moment, found.total, sum(found.state.values())
    batch, sequences = plan.batch // plan.micro_batches, plan.batch * plan.sharding.data_parallel
    parts = {
        **found.state,
        **{"step_counters": found.step_counters, "inputs": found.inputs, "cast_copies": moment.cast_copies},
        **{f"activations_{name}": part for name, part in moment.layers.items()},
        **{f"head_{name}": part for name, part in moment.head.items()},
        "temporary": moment.temporary,
    }
    components, rest = {name: part for name, part in parts.items() if part}, total - of_state
    steps = [Step(name.replace("_", " "), _share(part, total), size(part), part) for name, part in components.items()]
    steps.append(Step("all state", "weights, gradients, optimizer", size(of_state)))
    steps.append(Step("all activations", f"micro-batch {batch} x {plan.sequence}, inputs and temporaries", size(rest)))
    steps.append(Step("total", f"{total:,} bytes", size(total)))
    whole = sum(step_memory(replace(plan, sharding=Sharding())).state.values())
    fits = [_fit_row(machine, total, rest, whole) for machine in machines]
    values = {"total_bytes": total, "components": components, "state_bytes": of_state, "activation_bytes": rest}
    return Answer(
        main=("total_bytes", "state_bytes", "activation_bytes"),
        title=f"Memory of training {config.name} on one device: {plan.recipe.name}, {plan.optimizer}",
        values={"zero": plan.sharding.zero, **values, "sequences_per_step": sequences, "moment": moment.name},
        steps=steps,
        formula=f"state: bytes per parameter of the recipe; {activations.FORMULA}; loss 4 V kept, 8 V beside",
        source=f"{plan.recipe.source}; {OPTIMIZERS[plan.optimizer]}; {activations.SOURCE}; {config.source}",
        assumptions=[*_memory_notes(plan, moment.name, is_eager), *_lacking(plan, machines)],
        rows=fits,
        columns=FIT_COLUMNS if fits else (),
        warnings=_memory_warnings(fits, total),
    )


def _lacking(plan: StepPlan, machines: Sequence[Machine]) -> list[str]:
    """Return a line for each machine that has peaks, but none of the recipe's dtype."""
    dtype = plan.recipe.compute_dtype
    known = [machine for machine in machines if machine.peaks_flops_per_s]
    return [f"{m.slug} has {m.why_not(dtype)} {dtype}" for m in known if dtype not in m.peaks_flops_per_s]


def _memory_notes(plan: StepPlan, moment: str, is_eager: bool) -> list[str]:
    config, sharding, saved = plan.config, plan.sharding, plan.kernels or Kernels()
    attention, dropout = "flash" if saved.is_flash else "unfused", "with" if saved.has_dropout else "no"
    norms = "fused norms" if saved.is_norm_fused else "norms taken apart"
    kernels = "plain operations of transformers" if is_eager else norms
    notes = [
        f"ZeRO {sharding.zero} over {sharding.data_parallel}, tensor parallelism of {sharding.tensor_parallel}",
        f"kernels: {kernels}, {attention} attention, {dropout} dropout",
        f"checkpointing: {plan.checkpoint}",
        f"when most is held: {MOMENTS[moment]}",
        f"loss: torch's cross entropy, which keeps log-probabilities in fp32, in {plan.loss_chunks} part(s)",
        f"{plan.batch * sharding.data_parallel} sequences a step, in {plan.micro_batches} micro-batch(es) on a device",
        "left out: CUDA context, workspaces, buffers of collectives, rounding and fragmentation of the allocator",
    ]
    if sharding.pipeline_parallel > 1:
        stages = f"first and last stage of {sharding.pipeline_parallel}"
        notes.append(f"the fuller one of {stages}, one forward and backward in turn")
    if sharding.expert_parallel > 1:
        kept = f"each keeps 1/{sharding.expert_parallel} of them"
        notes.append(f"experts are shared among {sharding.expert_parallel} data-parallel devices: {kept}")
    if plan.lora_rank:
        notes.append("approximate: adapters' own activations are left out; the base is frozen, in the recipe's weights")
    if is_eager and config.family not in EAGER_MEASURED:
        notes.append(f"approximate: plain operations were compared with real models of {', '.join(EAGER_MEASURED)}")
    if config.experts:
        notes.append("approximate: experts keep what an even load brings them, their inputs gathered, outputs kept")
    if config.latent:
        notes.append("approximate: latent attention keeps expanded keys and values, and its low-rank inputs twice")
    return [*notes, *config.notes_on(plan.sequence)]


def _share(part: int, total: int) -> str:
    return f"{100 * part / total:.1f} %"


def _fit_row(machine: Machine, total: int, activations: int, state: int) -> dict[str, Any]:
    """Return what a plan takes of a device, and how many devices it needs at least.

    Args:
        machine: the device.
        total: bytes of the plan on one device.
        activations: bytes of these that each device keeps for itself.
        state: bytes that all devices together hold once, sharded evenly (ZeRO 3).
    """
    memory_bytes = machine.memory()
    free = memory_bytes - activations
    return {
        "gpu": machine.slug,
        "memory_bytes": memory_bytes,
        "used": total / memory_bytes,
        "headroom_bytes": memory_bytes - total,
        "fits": total <= memory_bytes,
        "gpus_needed": -(-state // free) if free > 0 else None,
    }


def _memory_warnings(rows: Sequence[dict[str, Any]], total: int) -> list[str]:
    lines = []
    for row in rows:
        device = f"{row['gpu']} with {memory(row['memory_bytes'])}"
        if row["fits"]:
            share = row["headroom_bytes"] / row["memory_bytes"]
            if share < MIN_HEADROOM:
                lines.append(f"only {100 * share:.1f} % of {device} is left; workspaces and fragmentation need some")
        elif row["gpus_needed"] is None:
            lines.append(f"does not fit: {size(total)} on one {device}; the activations alone are larger")
        else:
            shared = f"at least {row['gpus_needed']:,} devices hold it, the state sharded evenly (ZeRO 3)"
            lines.append(f"does not fit: {size(total)} on one {device}; {shared}")
    return lines
