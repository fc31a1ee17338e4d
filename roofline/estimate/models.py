"""Estimates of parameters, of the FLOPs of a training step, and of training memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Annotated, Unpack

from results.show.units import count, number, percent, quantity
from roofline.accounting import activations, parameters
from roofline.accounting.activations import torch_kernels
from roofline.accounting.built import whole_model
from roofline.accounting.config import ConfigError
from roofline.accounting.flops import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    convention_of,
    train_flops,
)
from roofline.accounting.machines import memory_of
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.presets import values_in
from roofline.accounting.state import (
    OPTIMIZERS,
    RECIPES,
    Lora,
    checkpoint_file_bytes,
    state_bytes,
)
from roofline.accounting.step_memory import MOMENTS, StepPlan, step_memory
from roofline.accounting.storage import storage_note
from roofline.estimate.answer import Answer, Row, Step, steps_of
from roofline.estimate.fitting import fewest_devices, fit_row, fit_warnings
from roofline.estimate.options import (
    Dimensions,
    Routed,
    Sharded,
    Stored,
    machines_of,
    model_of,
    sharding_of,
)
from roofline.estimate.question import Model, Names, Number, Size, Whole, question
from roofline.machine import MEASURED_FIRST

Attention = Annotated[str, ("flash", "unfused")]
Convention = Annotated[str, tuple(CONVENTIONS)]
Recipe = Annotated[str, tuple(RECIPES)]
Optimizer = Annotated[str, tuple(OPTIMIZERS)]


LANDMARKS: Sequence[Row] = (
    {
        "name": "GPT-3",
        "flops": 3.14e23,
        "source": "Brown et al., Language Models are Few-Shot Learners (2020), table D.1",
    },
    {
        "name": "GPT-4",
        "flops": 2e25,
        "source": "speculated, not published by OpenAI: CS336 lecture 2; Epoch AI estimates 2.1e25",
    },
    {
        "name": "US reporting threshold",
        "flops": 1e26,
        "source": "Executive Order 14110 (2023), section 4.2(b)(i); revoked in 2025",
    },
)
"""Training FLOPs of known models, and of a rule."""

LANDMARK_STEP = """\
landmark | {run_flops:number} / {landmark[flops]:number} | {landmark[ratio]:number} x \
{landmark[name]}
"""


def landmark_of(flops: float) -> Row:
    """Return the landmark nearest to a training run by ratio."""
    nearest = min(LANDMARKS, key=lambda landmark: abs(log(flops / landmark["flops"])))
    return nearest | {"ratio": flops / nearest["flops"]}


PARAMS_STEPS = """\
total | sum | {total:count} = {total:number}
active per token | {chosen} | {counts.active:count} = {counts.active:number}
in matrix products | without lookups, norms and biases; with the head | {counts.matmul:count}
"""

FLOPS_STEPS = """\
forward pass | {counts.tokens:,} tokens | {counts.forward_flops:count}
backward pass | {ways:number} x forward, without recomputation | {counts.backward_flops:count}
model FLOPs per step | {counts.tokens:,} tokens | {counts.model_flops:count}
per token | {counts.model_flops:number} / {counts.tokens:,} | {counts.per_token:count}
hardware FLOPs per step | used for HFU; model FLOPs are used for MFU | {counts.hardware_flops:count}
"""

RUN_STEPS = """\
run | {counts.per_token:number} per token x {tokens:number} tokens | {run_flops:number}
run forward | {share:.4g} of them | {run_forward_flops:number}
run backward | the others | {run_backward_flops:number}
"""

MEMORY_STEPS = """\
all state | weights, gradients, optimizer | {all_state:bytes}
all activations | micro-batch {batch} x {sequence}, inputs and temporaries | \
{activation_bytes:bytes}
total | {total_bytes:,} bytes | {total_bytes:bytes}
gradient norm | gradients of a device, read once | {gradient_norm_bytes:bytes}
norm in time | {gradient_norm_bytes:bytes} at the memory bandwidth | {gradient_norm_seconds:time}
clipping | gradients of a device, read and written | {clip_bytes:bytes}
clipping in time | {clip_bytes:bytes} at the memory bandwidth | {clip_seconds:time}
checkpoint file | weights and optimizer state of the whole model | {checkpoint_file_bytes:bytes}
writing it | {checkpoint_file_bytes:bytes} / {disk:bytes} a second | {checkpoint_file_seconds:time}
"""
"""Source of clipping: torch.nn.utils.clip_grad_norm_, which also multiplies below the maximum."""

FIT_COLUMNS = {
    "gpu": "GPU",
    "memory_bytes": "memory",
    "used": "used",
    "headroom_bytes": "headroom",
    "fits": "fits",
    "gpus_needed": "devices needed",
}

KEPT = {
    True: "kept: inputs of layers, and outputs of attention and of every second matmul",
    False: "kept: everything but attention scores",
}
"""What selective checkpointing keeps, with flash attention or without."""


@question
def params(model: Model = None, **options: Unpack[Dimensions]) -> Answer:
    """Parameters of a model by component and weight."""
    try:
        config = model_of(model, options)
    except ConfigError:
        path = Path(options.get("config") or Path(str(model)) / "config.json")
        whole = whole_model(values_in(path), str(path)) if path.is_file() else None
        if whole is None:
            raise
        config = whole
    counts = count_parameters(config)
    steps = []
    for weight in weights(config):
        label = weight.name
        if weight.name != weight.component:
            label = f"{weight.component}: {weight.name}"
        factors = (weight.copies, *weight.shape) if weight.copies > 1 else weight.shape
        arithmetic = " x ".join(map(str, factors))
        steps.append(Step(label, arithmetic, count(weight.elements), weight.elements))
    halves = ("encoder", "decoder")
    parts: Row = {half: counts.components[half] for half in halves if half in counts.components}
    main = ["total", *parts]
    chosen = None
    if counts.active != counts.total:
        main.append("active")
        if config.experts:
            chosen = f"{config.experts.per_token} of {config.experts.count} experts"
    tied = "the head has separate weights"
    if config.is_tied:
        tied = "the head uses the embedding's weights"
    notes = [tied, *config.assumptions]
    total = counts.total
    warnings = []
    if config.composed:
        whole = whole_model(config.composed, config.name)
        of_text = config.assumptions[0]
        notes.remove(of_text)
        if whole is None:
            warnings.append(of_text)
        else:
            total = whole.parameters
            parts = {"language_model": counts.total, "encoders": total - counts.total}
            what = "of images, audio and their projections, as transformers builds them"
            steps.append(Step("encoders", what, count(parts["encoders"]), parts["encoders"]))
            main = ["total", *parts, *main[1:]]
    return Answer(
        main=main,
        title=f"Parameters of {config.name}",
        values={
            "total": total,
            **parts,
            "active": counts.active,
            "matmul": counts.matmul,
            "components": dict(counts.components),
        },
        steps=[*steps, *steps_of(PARAMS_STEPS, total=total, counts=counts, chosen=chosen)],
        warnings=warnings,
        formula=parameters.FORMULA,
        source=f"{config.source}; {parameters.source_of(config)}",
        assumptions=notes,
    )


@question
def flops(
    model: Model = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    tokens: Number | None = None,
    attention: Attention = "flash",
    convention: Convention = DEFAULT_CONVENTION,
    frozen: bool = False,
    checkpoint: str = "none",
    **options: Unpack[Routed],
) -> Answer:
    """FLOPs of a training step by component: those of the model, and those executed; with tokens,
    of the whole run.
    """
    config = model_of(model, options)
    is_flash = attention == "flash"
    counted_by = convention_of(config, convention)
    counts = train_flops(config, sequence, batch, counted_by, checkpoint, is_flash, frozen)
    kernel = "unfused attention"
    if is_flash:
        kernel = "flash attention, which recomputes its scores in the backward pass"
    notes = [
        (
            f"convention '{counted_by}'; a fused multiply-add counts as 2; backward is twice the "
            f"forward pass"
        ),
        (
            "norms, activations, softmax and the optimizer are not counted, unless the convention "
            "includes them"
        ),
        f"{kernel}; recomputation: {checkpoint}",
    ]
    if config.parameters:
        notes = ["6 N excludes attention scores; N counts the parameters used by a token"]
    values: Row = {
        "per_token": counts.per_token,
        "per_step": counts.model_flops,
        "forward_flops": counts.forward_flops,
        "backward_flops": counts.backward_flops,
        "hardware_per_step": counts.hardware_flops,
        "tokens_per_step": counts.tokens,
        "convention": counted_by,
        "components": counts.components,
        "recomputed": counts.recomputed,
    }
    sources = [counts.convention.source, config.source]
    main = ["per_token", "per_step"]
    subject = f"a training step of {config.name}: {batch} x {sequence} tokens"
    steps = []
    for name, amount in counts.components.items():
        forward = counts.forward[name]
        passes = counts.passes(name).items()
        terms = [f"{number(times * forward)} {kind}" for kind, times in passes if times * forward]
        steps.append(Step(name.replace("_", " "), " + ".join(terms), count(amount), amount))
    for name, amount in counts.recomputed.items():
        label = f"recomputed: {name.replace('_', ' ')}"
        steps.append(Step(label, "in the backward pass", count(amount)))
    ways = counts.backward_flops / counts.forward_flops
    steps += steps_of(FLOPS_STEPS, counts=counts, ways=ways)
    if tokens is not None:
        run: Row = {
            "run_flops": counts.model_flops * tokens / counts.tokens,
            "run_forward_flops": counts.forward_flops * tokens / counts.tokens,
            "run_backward_flops": counts.backward_flops * tokens / counts.tokens,
        }
        share = counts.forward_flops / counts.model_flops
        steps += steps_of(RUN_STEPS, counts=counts, tokens=tokens, share=share, **run)
        main = list(run)
        subject = f"training {config.name} on {number(tokens)} tokens"
        landmark = landmark_of(run["run_flops"])
        if landmark["ratio"] > 1e-3:
            sources.append(landmark["source"])
            steps += steps_of(LANDMARK_STEP, run_flops=run["run_flops"], landmark=landmark)
        values |= {"tokens": tokens, **run, "landmark": landmark}
    return Answer(
        main=main,
        title=f"FLOPs of {subject}",
        values=values,
        steps=steps,
        formula=f"per token: {counts.convention.formula}",
        source="; ".join(sources),
        assumptions=[*notes, *config.notes_on(sequence)],
    )


@question
def memory(
    model: Model = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    attention: Attention = "flash",
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    kernels: Annotated[str, ("fused", "cpu")] = "fused",
    checkpoint: str = "none",
    accumulate: Whole = 1,
    gpus: Whole = 1,
    loss_chunks: Whole = 1,
    lora: Whole | None = None,
    lora_on: Names | None = None,
    weight_dtype: Stored | None = None,
    dropout: bool = False,
    disk: Size | None = None,
    **options: Unpack[Sharded],
) -> Answer:
    """Training memory of one device by component, and whether it fits."""
    config = model_of(model, options)
    precision = RECIPES[recipe]
    machines = machines_of(options, is_needed=False)
    saved = torch_kernels(config, precision, "cpu" if kernels == "cpu" else "cuda")
    saved = replace(
        saved,
        is_flash=attention == "flash",
        has_dropout=dropout,
        is_sequence_parallel=options.get("sequence_parallel", False),
    )
    sharding = sharding_of(gpus, options, recipe)
    adapted = Lora(lora, tuple(lora_on or ()), weight_dtype) if lora else None
    plan = StepPlan(
        config=config,
        recipe=precision,
        optimizer=optimizer,
        sequence=sequence,
        batch=batch * accumulate,
        micro_batches=accumulate,
        checkpoint=checkpoint,
        kernels=saved,
        sharding=sharding,
        loss_chunks=loss_chunks,
        lora=adapted,
    )
    whole_state = state_bytes(config, precision, optimizer, lora=adapted)
    main = ["total_bytes"]
    subject = "State"
    sources = [precision.source, OPTIMIZERS[optimizer]]
    step = step_memory(plan)
    parts = step.parts
    state = step.state_bytes
    if not config.parameters:
        main += ["state_bytes", "activation_bytes"]
        subject = "Memory"
        formula = (
            f"state: bytes per parameter of the recipe; {activations.FORMULA}; loss: 4 V "
            f"stored, 8 V of gradients"
        )
        sources += [activations.SOURCE, config.source]
        notes = _memory_notes(plan, step.moment)
    else:
        formula = (
            "N x bytes per parameter of the recipe; ZeRO shards optimizer state, gradients and "
            "weights"
        )
        sources.append("Rajbhandari et al., ZeRO (2020)")
        notes = [
            f"ZeRO {sharding.zero} over {sharding.data_parallel}",
            "activations depend on the model and are not included",
        ]
    total = step.total
    others = total - state
    norm_bytes = parts.get("gradients", 0)
    file_bytes = checkpoint_file_bytes(whole_state)
    values: Row = {
        "zero": plan.sharding.zero,
        "total_bytes": total,
        "components": parts,
        "state_bytes": state,
        "gradient_norm_bytes": norm_bytes,
        "clip_bytes": 2 * norm_bytes,
        "checkpoint_file_bytes": file_bytes,
        "checkpoint_file_seconds": disk and file_bytes / disk,
    }
    steps = []
    for name, part in parts.items():
        if part:
            steps.append(
                Step(name.replace("_", " "), percent(part, total), quantity(part, "B"), part)
            )
    if not config.parameters:
        values |= {
            "activation_bytes": others,
            "sequences_per_step": plan.batch * sharding.data_parallel,
            "moment": step.moment,
        }
    rows = []
    for machine in machines:
        row: Row = {"gpu": machine.slug, "gradient_norm_seconds": None, "clip_seconds": None}
        row |= fit_row(machine, total, least_devices(plan, memory_of(machine)))
        bandwidth = machine.bandwidth(MEASURED_FIRST)
        if bandwidth:
            row["gradient_norm_seconds"] = norm_bytes / bandwidth.value
            row["clip_seconds"] = 2 * norm_bytes / bandwidth.value
        rows.append(row)
    unknown = dict.fromkeys(("gradient_norm_seconds", "clip_seconds", "activation_bytes"))
    facts = unknown | values | (rows[0] if rows else {})
    facts["all_state"] = values.get("activation_bytes") and state
    return Answer(
        main=main,
        title=f"{subject} of training {config.name} on one device: {recipe}, {optimizer}",
        values=values,
        steps=[
            *steps,
            *steps_of(MEMORY_STEPS, batch=batch, sequence=sequence, disk=disk, **facts),
        ],
        formula=formula,
        source="; ".join(sources),
        assumptions=notes,
        rows=rows,
        columns=FIT_COLUMNS,
        warnings=fit_warnings(rows, ZERO_3),
    )


def _memory_notes(plan: StepPlan, moment: str) -> list[str]:
    config = plan.config
    sharding = plan.sharding
    saved = plan.kernels
    attention = "flash" if saved.is_flash else "unfused"
    dropout = "with" if saved.has_dropout else "no"
    run = "fused norms" if saved.is_norm_fused else "unfused norms"
    notes = [
        (
            f"ZeRO {sharding.zero} over {sharding.data_parallel} devices, tensor parallelism of "
            f"{sharding.tensor_parallel}"
        ),
        f"kernels: {run}, {attention} attention, {dropout} dropout",
        f"checkpointing: {plan.checkpoint}",
        f"peak: {MOMENTS[moment]}",
        (
            f"loss: torch's cross entropy, which stores log-probabilities in fp32, in "
            f"{plan.loss_chunks} chunk(s)"
        ),
        (
            f"{plan.batch * sharding.data_parallel} sequences per step, in {plan.micro_batches} "
            f"micro-batch(es) per device"
        ),
        (
            "left out: CUDA context, workspaces, communication buffers, rounding and "
            "fragmentation of the allocator"
        ),
    ]
    if plan.lora and plan.lora.weight_dtype:
        notes.append(storage_note(plan.lora.weight_dtype))
    stages = sharding.pipeline_parallel
    ways = sharding.expert_parallel
    others = [
        (plan.checkpoint == "selective", KEPT[saved.is_flash]),
        (stages > 1, f"the larger of first and last stage of {stages}, with a 1F1B schedule"),
        (ways > 1, f"each of {ways} data-parallel devices stores 1/{ways} of the experts"),
        (plan.lora, "approximate: activations of adapters are left out; the base model is frozen"),
        (
            config.experts,
            "approximate: experts have an even load, and store their gathered inputs and outputs",
        ),
        (
            config.latent,
            (
                "approximate: latent attention stores expanded keys and values, and its low-rank "
                "inputs twice"
            ),
        ),
    ]
    notes += [note for holds, note in others if holds]
    return [*notes, *config.notes_on(plan.sequence)]


ZERO_3 = "with ZeRO 3"


def least_devices(plan: StepPlan, memory_bytes: int) -> int | None:
    """Return the fewest devices on which the step fits with ZeRO 3, None if it never does."""
    ways = plan.sharding

    def fits(groups: int) -> bool:
        shared = replace(ways, zero=3, data_parallel=groups * ways.expert_parallel)
        return step_memory(replace(plan, sharding=shared)).total <= memory_bytes

    groups = fewest_devices(fits)
    each = replace(ways, data_parallel=ways.expert_parallel)
    return groups and groups * each.devices
