"""Estimates of a model: its parameters, the FLOPs of a training step, the memory of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Unpack

from results.show.units import count, number, size
from results.show.units import memory as in_gib
from roofline.accounting import activations, parameters
from roofline.accounting.activations import EAGER_MEASURED, Kernels, torch_kernels
from roofline.accounting.flops import CONVENTIONS, DEFAULT_CONVENTION, FlopCount, convention_of, train_flops
from roofline.accounting.machines import memory_of, why_not
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.state import OPTIMIZERS, RECIPES, Sharding, state_bytes
from roofline.accounting.step_memory import MOMENTS, StepPlan, step_memory
from roofline.estimate.answer import Answer, Step
from roofline.estimate.options import Dimensions, Training, machines_of, model_of
from roofline.estimate.question import Model, Number, OneOf, Whole, question
from roofline.machine import MEASURED_FIRST, Machine

Attention = Annotated[str, OneOf(("flash", "unfused"))]
Convention = Annotated[str, OneOf(tuple(CONVENTIONS))]
Recipe = Annotated[str, OneOf(tuple(RECIPES))]
Optimizer = Annotated[str, OneOf(tuple(OPTIMIZERS))]


@question
def params(model: Model | None = None, **options: Unpack[Dimensions]) -> Answer:
    """Parameters of a model by component, weight by weight."""
    config = model_of(model, options)
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
        values={
            **{"total": found.total, "active": found.active, "matmul": found.matmul},
            "components": dict(found.components),
        },
        steps=steps,
        formula=parameters.FORMULA,
        source=f"{config.source}; {parameters.source_of(config)}",
        assumptions=[tied, *config.assumptions],
    )


@question
def flops(
    model: Model | None = None,
    params: Number | None = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    attention: Attention = "flash",
    convention: Convention = DEFAULT_CONVENTION,
    frozen: bool = False,
    document: Whole | None = None,
    checkpoint: str = "none",
    **options: Unpack[Dimensions],
) -> Answer:
    """FLOPs of a training step by component: what the model needs, and what the hardware executes."""
    config, is_flash = model_of(model, options, params), attention == "flash"
    counted_by = convention_of(config, convention, DEFAULT_CONVENTION)
    found = train_flops(config, sequence, batch, counted_by, checkpoint, is_flash, frozen, document)
    notes = [f"convention '{counted_by}'; a fused multiply-add counts as 2; backward is twice the forward pass"]
    if params is not None:
        notes = ["6 N leaves out attention's own products; N are the parameters that a token meets"]
    else:
        kernel = "flash attention, which computes its scores again in the backward pass"
        notes.append("norms, activations, softmax and the optimizer are left out, but where the convention names them")
        notes.append(f"{kernel if is_flash else 'unfused attention'}; recomputation: {checkpoint}")
    return Answer(
        main=("per_token", "per_step"),
        title=f"FLOPs of a training step of {config.name}: {batch} x {sequence} tokens",
        values={
            "per_token": found.per_token,
            "per_step": found.model_flops,
            "hardware_per_step": found.hardware_flops,
            "tokens_per_step": found.tokens,
            "convention": counted_by,
            "components": found.components,
            "recomputed": found.recomputed,
        },
        steps=_flops_steps(found),
        formula=f"per token: {found.convention.formula}",
        source=f"{found.convention.source}; {config.source}",
        assumptions=[*notes, *config.notes_on(sequence)],
    )


def _flops_steps(found: FlopCount) -> list[Step]:
    kinds = {"forward": found.forward, "dgrad": found.input_gradients, "wgrad": found.weight_gradients}
    steps = [
        Step(
            name.replace("_", " "),
            " + ".join(f"{number(part[name])} {kind}" for kind, part in kinds.items() if part.get(name)),
            count(amount),
            amount,
        )
        for name, amount in found.components.items()
    ]
    steps.append(Step("model FLOPs per step", f"{found.tokens:,} tokens", count(found.model_flops)))
    steps.append(Step("per token", f"{number(found.model_flops)} / {found.tokens:,}", count(found.per_token)))
    for name, amount in found.recomputed.items():
        steps.append(Step(f"again: {name.replace('_', ' ')}", "in the backward pass", count(amount)))
    return [*steps, Step("hardware FLOPs per step", "for HFU; the model's are for MFU", count(found.hardware_flops))]


FIT_COLUMNS = {
    **{"gpu": "GPU", "memory_bytes": "memory", "used": "used", "headroom_bytes": "headroom"},
    **{"fits": "fits", "gpus_needed": "devices needed"},
}

MIN_HEADROOM = 0.1
"""Warn below this fraction of the memory: CUDA context, workspaces and fragmentation are not estimated."""


@question
def memory(
    model: Model | None = None,
    params: Number | None = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    attention: Attention = "flash",
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    kernels: Annotated[Literal["fused", "eager", "cpu"], OneOf(("fused", "eager", "cpu"))] = "fused",
    checkpoint: str = "none",
    accumulate: Whole = 1,
    zero: Annotated[int, OneOf(("0", "1", "2", "3"))] = 0,
    data_parallel: Whole = 1,
    tensor_parallel: Whole = 1,
    pipeline_parallel: Whole = 1,
    expert_parallel: Whole = 1,
    sequence_parallel: bool = False,
    loss_chunks: Whole = 1,
    lora: Whole | None = None,
    dropout: bool = False,
    memory: Number | None = None,
    **options: Unpack[Training],
) -> Answer:
    """Memory of training on one device, by component, and whether it fits on each machine."""
    config, kept = model_of(model, options, params), RECIPES[recipe]
    is_asked = memory is not None or not options.keys().isdisjoint(("gpu", "measured"))
    machines = machines_of(options, memory) if is_asked else []
    saved = torch_kernels(config, kept, "cpu" if kernels == "cpu" else "cuda", kernels == "eager")
    is_flash = saved.is_flash and attention == "flash"
    sharding = Sharding(int(zero), data_parallel, tensor_parallel, pipeline_parallel, expert_parallel)
    whole = sum(state_bytes(config, kept, optimizer, lora_rank=lora).values())
    plan = StepPlan(
        config=config,
        recipe=kept,
        optimizer=optimizer,
        sequence=sequence,
        batch=batch * accumulate,
        micro_batches=accumulate,
        checkpoint=checkpoint,
        kernels=replace(saved, is_flash=is_flash, has_dropout=dropout, is_sequence_parallel=sequence_parallel),
        sharding=sharding,
        loss_chunks=loss_chunks,
        lora_rank=lora,
    )
    found = None if params is not None else step_memory(plan)
    parts = found.parts() if found else state_bytes(config, kept, optimizer, sharding)
    total = sum(parts.values())
    state = sum(found.state.values()) if found else total
    values = {"zero": sharding.zero, "total_bytes": total, "components": parts, "state_bytes": state}
    steps = [
        Step(name.replace("_", " "), f"{100 * part / total:.1f} %", size(part), part)
        for name, part in parts.items()
        if part
    ]
    formula = "N x bytes per parameter of the recipe; ZeRO shares the optimizer's, gradients, weights"
    sources = [kept.source, OPTIMIZERS[optimizer], "Rajbhandari et al., ZeRO (2020)"]
    notes = [f"ZeRO {zero} over {data_parallel}", "activations are left out: they depend on the model"]
    if found:
        values |= {"activation_bytes": total - state, "sequences_per_step": plan.batch * data_parallel}
        values["moment"] = found.moment.name
        held = f"micro-batch {batch} x {sequence}, inputs and temporaries"
        steps.append(Step("all state", "weights, gradients, optimizer", size(state)))
        steps.append(Step("all activations", held, size(total - state)))
        formula = f"state: bytes per parameter of the recipe; {activations.FORMULA}; loss 4 V kept, 8 V beside"
        sources = [*sources[:2], activations.SOURCE, config.source]
        notes = _memory_notes(plan, found.moment.name, kernels)
        lacking = [m for m in machines if m.entries and m.peak(kept.compute_dtype, MEASURED_FIRST) is None]
        notes += [f"{m.slug} has {why_not(m, kept.compute_dtype)} {kept.compute_dtype}" for m in lacking]
    fits = [_fit_row(machine, total, total - state, whole) for machine in machines]
    return Answer(
        main=("total_bytes", "state_bytes", "activation_bytes") if found else ("total_bytes",),
        title=f"{'Memory' if found else 'State'} of training {config.name} on one device: {recipe}, {optimizer}",
        values=values,
        steps=[*steps, Step("total", f"{total:,} bytes", size(total))],
        formula=formula,
        source="; ".join(sources),
        assumptions=notes,
        rows=fits,
        columns=FIT_COLUMNS,
        warnings=_memory_warnings(fits, total),
    )


def _memory_notes(plan: StepPlan, moment: str, kernels: str) -> list[str]:
    config, sharding, saved = plan.config, plan.sharding, plan.kernels or Kernels()
    attention, dropout = "flash" if saved.is_flash else "unfused", "with" if saved.has_dropout else "no"
    is_eager = kernels == "eager"
    fused = "fused norms" if saved.is_norm_fused else "norms taken apart"
    run = "plain operations of transformers" if is_eager else fused
    notes = [
        f"ZeRO {sharding.zero} over {sharding.data_parallel}, tensor parallelism of {sharding.tensor_parallel}",
        f"kernels: {run}, {attention} attention, {dropout} dropout",
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


def _fit_row(machine: Machine, total: int, activation_bytes: int, state: int) -> dict[str, Any]:
    memory_bytes = memory_of(machine)
    free = memory_bytes - activation_bytes
    return {
        "gpu": machine.slug,
        "memory_bytes": memory_bytes,
        "used": total / memory_bytes,
        "headroom_bytes": memory_bytes - total,
        "fits": total <= memory_bytes,
        "gpus_needed": -(-state // free) if free > 0 else None,
    }


def _memory_warnings(rows: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    lines = []
    for row in rows:
        device = f"{row['gpu']} with {in_gib(row['memory_bytes'])}"
        share = row["headroom_bytes"] / row["memory_bytes"]
        if 0 <= share < MIN_HEADROOM:
            lines.append(f"only {100 * share:.1f} % of {device} is left; workspaces and fragmentation need some")
        elif share < 0 and row["gpus_needed"] is None:
            lines.append(f"does not fit: {size(total)} on one {device}; the activations alone are larger")
        elif share < 0:
            shared = f"at least {row['gpus_needed']:,} devices hold it, the state sharded evenly (ZeRO 3)"
            lines.append(f"does not fit: {size(total)} on one {device}; {shared}")
    return lines
