"""Estimates of parameters, of the FLOPs of a training step, and of training memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Unpack

from results.show.units import count, duration, gibibytes, number, quantity
from roofline.accounting import activations, parameters
from roofline.accounting.activations import EAGER_MEASURED, Kernels, torch_kernels
from roofline.accounting.flops import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    FlopCount,
    convention_of,
    train_flops,
)
from roofline.accounting.machines import memory_of, why_not
from roofline.accounting.parameters import count_parameters, weights
from roofline.accounting.state import (
    OPTIMIZERS,
    RECIPES,
    Sharding,
    checkpoint_file_bytes,
    clipping_bytes,
    state_bytes,
)
from roofline.accounting.step_memory import MOMENTS, StepPlan, step_memory
from roofline.estimate.answer import Answer, Step
from roofline.estimate.options import Dimensions, Training, machines_of, model_of
from roofline.estimate.question import Model, Number, OneOf, Whole, question
from roofline.estimate.scaling import landmark_of
from roofline.machine import MEASURED_FIRST, Machine

Attention = Annotated[str, OneOf(("flash", "unfused"))]
Convention = Annotated[str, OneOf(tuple(CONVENTIONS))]
Recipe = Annotated[str, OneOf(tuple(RECIPES))]
Optimizer = Annotated[str, OneOf(tuple(OPTIMIZERS))]


@question
def params(model: Model | None = None, **options: Unpack[Dimensions]) -> Answer:
    """Parameters of a model by component and weight."""
    config = model_of(model, options)
    counts = count_parameters(config)
    steps = []
    for weight in weights(config):
        label = weight.name
        if weight.name != weight.component:
            label = f"{weight.component}: {weight.name}"
        factors = (weight.copies, *weight.shape) if weight.copies > 1 else weight.shape
        arithmetic = " x ".join(map(str, factors))
        steps.append(Step(label, arithmetic, count(weight.elements), weight.elements))
    steps.append(Step("total", "sum", f"{count(counts.total)} = {number(counts.total)}"))
    if counts.active != counts.total and config.experts:
        chosen = f"{config.experts.per_token} of {config.experts.count} experts"
        steps.append(
            Step(
                "active per token",
                chosen,
                f"{count(counts.active)} = {number(counts.active)}",
            )
        )
    steps.append(
        Step(
            "in matrix products",
            "without lookups, norms and biases; with the head",
            count(counts.matmul),
        )
    )
    tied = "the head has separate weights"
    if config.is_tied:
        tied = "the head uses the embedding's weights"
    return Answer(
        main=("total", "active") if counts.active != counts.total else ("total",),
        title=f"Parameters of {config.name}",
        values={
            "total": counts.total,
            "active": counts.active,
            "matmul": counts.matmul,
            "components": dict(counts.components),
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
    tokens: Number | None = None,
    attention: Attention = "flash",
    convention: Convention | None = None,
    frozen: bool = False,
    document: Whole | None = None,
    checkpoint: str = "none",
    **options: Unpack[Dimensions],
) -> Answer:
    """FLOPs of a training step by component: those of the model, and those executed; with tokens,
    of the whole run.
    """
    config = model_of(model, options, params)
    is_flash = attention == "flash"
    counted_by = convention_of(
        config, convention or ("6nd" if tokens else DEFAULT_CONVENTION), DEFAULT_CONVENTION
    )
    counts = train_flops(
        config, sequence, batch, counted_by, checkpoint, is_flash, frozen, document
    )
    notes = [
        (
            f"convention '{counted_by}'; a fused multiply-add counts as 2; backward is twice the "
            f"forward pass"
        )
    ]
    if params is not None:
        notes = ["6 N excludes attention scores; N counts the parameters used by a token"]
    else:
        kernel = "flash attention, which recomputes its scores in the backward pass"
        notes.append(
            "norms, activations, softmax and the optimizer are not counted, unless the convention "
            "includes them"
        )
        notes.append(f"{kernel if is_flash else 'unfused attention'}; recomputation: {checkpoint}")
    main: tuple[str, ...] = ("per_token", "per_step")
    subject = f"a training step of {config.name}: {batch} x {sequence} tokens"
    sources = [counts.convention.source, config.source]
    run: dict[str, Any] = {}
    steps = _flops_steps(counts)
    if tokens is not None:
        main = ("run_flops", "run_forward_flops", "run_backward_flops")
        subject = f"training {config.name} on {number(tokens)} tokens"
        run, run_steps = _run_of(counts, tokens)
        sources.append(run["landmark"]["source"])
        steps += run_steps
    return Answer(
        main=main,
        title=f"FLOPs of {subject}",
        values={
            "per_token": counts.per_token,
            "per_step": counts.model_flops,
            "forward_flops": counts.forward_flops,
            "backward_flops": counts.backward_flops,
            "hardware_per_step": counts.hardware_flops,
            "tokens_per_step": counts.tokens,
            "convention": counted_by,
            "components": counts.components,
            "recomputed": counts.recomputed,
            **run,
        },
        steps=steps,
        formula=f"per token: {counts.convention.formula}",
        source="; ".join(sources),
        assumptions=[*notes, *config.notes_on(sequence)],
    )


def _run_of(counts: FlopCount, tokens: float) -> tuple[dict[str, Any], list[Step]]:
    """Return the FLOPs of a training run as values and steps."""
    parts = {
        "run": counts.model_flops,
        "run forward": counts.forward_flops,
        "run backward": counts.backward_flops,
    }
    run = {name: part * tokens / counts.tokens for name, part in parts.items()}
    steps = [
        Step(
            name,
            f"{number(part / counts.tokens)} per token x {number(tokens)} tokens",
            number(run[name]),
        )
        for name, part in parts.items()
    ]
    landmark, step = landmark_of(run["run"])
    values = {f"{name.replace(' ', '_')}_flops": value for name, value in run.items()}
    return {"tokens": tokens, **values, **landmark}, [*steps, step]


def _flops_steps(counts: FlopCount) -> list[Step]:
    kinds = {
        "forward": counts.forward,
        "dgrad": counts.input_gradients,
        "wgrad": counts.weight_gradients,
    }
    steps = [
        Step(
            name.replace("_", " "),
            " + ".join(
                f"{number(part[name])} {kind}" for kind, part in kinds.items() if part.get(name)
            ),
            count(amount),
            amount,
        )
        for name, amount in counts.components.items()
    ]
    backward = (
        f"{number(counts.backward_flops / counts.forward_flops)} x forward, without recomputation"
    )
    steps.append(Step("forward pass", f"{counts.tokens:,} tokens", count(counts.forward_flops)))
    steps.append(Step("backward pass", backward, count(counts.backward_flops)))
    steps.append(
        Step("model FLOPs per step", f"{counts.tokens:,} tokens", count(counts.model_flops))
    )
    steps.append(
        Step(
            "per token",
            f"{number(counts.model_flops)} / {counts.tokens:,}",
            count(counts.per_token),
        )
    )
    for name, amount in counts.recomputed.items():
        steps.append(
            Step(f"recomputed: {name.replace('_', ' ')}", "in the backward pass", count(amount))
        )
    return [
        *steps,
        Step(
            "hardware FLOPs per step",
            "used for HFU; model FLOPs are used for MFU",
            count(counts.hardware_flops),
        ),
    ]


FIT_COLUMNS = {
    "gpu": "GPU",
    "memory_bytes": "memory",
    "used": "used",
    "headroom_bytes": "headroom",
    "fits": "fits",
    "gpus_needed": "devices needed",
}

MIN_HEADROOM = 0.1
"""Warn below this fraction of the memory: CUDA context, workspaces and fragmentation are not
estimated.
"""


@question
def memory(
    model: Model | None = None,
    params: Number | None = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    attention: Attention = "flash",
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    kernels: Annotated[
        Literal["fused", "eager", "cpu"], OneOf(("fused", "eager", "cpu"))
    ] = "fused",
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
    disk: Number | None = None,
    memory: Number | None = None,
    **options: Unpack[Training],
) -> Answer:
    """Training memory of one device by component, and whether it fits."""
    config = model_of(model, options, params)
    precision = RECIPES[recipe]
    has_machines = memory is not None or not options.keys().isdisjoint(("gpu", "measured"))
    machines = machines_of(options, memory) if has_machines else []
    saved = torch_kernels(
        config, precision, "cpu" if kernels == "cpu" else "cuda", kernels == "eager"
    )
    is_flash = saved.is_flash and attention == "flash"
    sharding = Sharding(
        int(zero), data_parallel, tensor_parallel, pipeline_parallel, expert_parallel
    )
    whole_state = state_bytes(config, precision, optimizer, lora_rank=lora)
    plan = StepPlan(
        config=config,
        recipe=precision,
        optimizer=optimizer,
        sequence=sequence,
        batch=batch * accumulate,
        micro_batches=accumulate,
        checkpoint=checkpoint,
        kernels=replace(
            saved, is_flash=is_flash, has_dropout=dropout, is_sequence_parallel=sequence_parallel
        ),
        sharding=sharding,
        loss_chunks=loss_chunks,
        lora_rank=lora,
    )
    step = None if params is not None else step_memory(plan)
    parts = step.parts() if step else state_bytes(config, precision, optimizer, sharding)
    total = sum(parts.values())
    state = sum(step.state.values()) if step else total
    gradient_bytes = parts.get("gradients", 0)
    values = {
        "zero": sharding.zero,
        "total_bytes": total,
        "components": parts,
        "state_bytes": state,
    }
    steps = [
        Step(name.replace("_", " "), f"{100 * part / total:.1f} %", quantity(part, "B"), part)
        for name, part in parts.items()
        if part
    ]
    formula = (
        "N x bytes per parameter of the recipe; ZeRO shards optimizer state, gradients and weights"
    )
    sources = [precision.source, OPTIMIZERS[optimizer], "Rajbhandari et al., ZeRO (2020)"]
    notes = [
        f"ZeRO {zero} over {data_parallel}",
        "activations depend on the model and are not included",
    ]
    if step:
        values |= {
            "activation_bytes": total - state,
            "sequences_per_step": plan.batch * data_parallel,
        }
        values["moment"] = step.moment.name
        detail = f"micro-batch {batch} x {sequence}, inputs and temporaries"
        steps.append(Step("all state", "weights, gradients, optimizer", quantity(state, "B")))
        steps.append(Step("all activations", detail, quantity(total - state, "B")))
        formula = (
            f"state: bytes per parameter of the recipe; {activations.FORMULA}; loss: 4 V "
            f"stored, 8 V of gradients"
        )
        sources = [*sources[:2], activations.SOURCE, config.source]
        notes = _memory_notes(plan, step.moment.name, kernels)
        lacking = [
            m
            for m in machines
            if m.entries and m.peak(precision.compute_dtype, MEASURED_FIRST) is None
        ]
        notes += [
            f"{m.slug} has {why_not(m, precision.compute_dtype)} {precision.compute_dtype}"
            for m in lacking
        ]
    fits = [
        fit_row(machine, total, total - state, sum(whole_state.values()))
        | clipping_row(gradient_bytes, machine)
        for machine in machines
    ]
    upkept, upkeep_steps = upkeep(gradient_bytes, whole_state, disk, fits[0] if fits else {})
    steps += [Step("total", f"{total:,} bytes", quantity(total, "B")), *upkeep_steps]
    return Answer(
        main=("total_bytes", "state_bytes", "activation_bytes") if step else ("total_bytes",),
        title=f"{'Memory' if step else 'State'} of training {config.name} on one device: "
        f"{recipe}, {optimizer}",
        values=values | upkept,
        steps=steps,
        formula=formula,
        source="; ".join(sources),
        assumptions=notes,
        rows=fits,
        columns=FIT_COLUMNS,
        warnings=memory_warnings(fits, total),
    )


def _memory_notes(plan: StepPlan, moment: str, kernels: str) -> list[str]:
    config = plan.config
    sharding = plan.sharding
    saved = plan.kernels or Kernels()
    attention = "flash" if saved.is_flash else "unfused"
    dropout = "with" if saved.has_dropout else "no"
    is_eager = kernels == "eager"
    fused = "fused norms" if saved.is_norm_fused else "unfused norms"
    run = "eager ones of transformers" if is_eager else fused
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
    if sharding.pipeline_parallel > 1:
        notes.append(
            f"the larger of first and last stage of {sharding.pipeline_parallel}, with a 1F1B "
            f"schedule"
        )
    if sharding.expert_parallel > 1:
        ways = sharding.expert_parallel
        notes.append(f"each of {ways} data-parallel devices stores 1/{ways} of the experts")
    if plan.lora_rank:
        notes.append("approximate: activations of adapters are left out; the base model is frozen")
    if is_eager and config.family not in EAGER_MEASURED:
        notes.append(f"approximate: eager kernels were validated for {', '.join(EAGER_MEASURED)}")
    if config.experts:
        notes.append(
            "approximate: experts have an even load, and store their gathered inputs and outputs"
        )
    if config.latent:
        notes.append(
            "approximate: latent attention stores expanded keys and values, and its low-rank "
            "inputs twice"
        )
    return [*notes, *config.notes_on(plan.sequence)]


def fit_row(machine: Machine, total: int, activation_bytes: int, state: int) -> dict[str, Any]:
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


def memory_warnings(rows: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    lines = []
    for row in rows:
        device = f"{row['gpu']} with {gibibytes(row['memory_bytes'])}"
        share = row["headroom_bytes"] / row["memory_bytes"]
        if 0 <= share < MIN_HEADROOM:
            lines.append(
                f"only {100 * share:.1f} % of {device} is left for workspaces and fragmentation"
            )
        elif share < 0 and row["gpus_needed"] is None:
            lines.append(
                f"does not fit: {quantity(total, 'B')} on one {device}; even the activations do "
                f"not fit"
            )
        elif share < 0:
            shared = (
                f"at least {row['gpus_needed']:,} devices are needed with the state sharded "
                f"evenly (ZeRO 3)"
            )
            lines.append(f"does not fit: {quantity(total, 'B')} on one {device}; {shared}")
    return lines


def clipping_row(gradient_bytes: int, machine: Machine) -> dict[str, float | None]:
    """Return the minimum seconds of norm and clipping at the memory bandwidth; None if it is
    unknown.
    """
    bandwidth = machine.bandwidth(MEASURED_FIRST)
    times = [
        moved / bandwidth.value if bandwidth else None for moved in clipping_bytes(gradient_bytes)
    ]
    return dict(zip(("gradient_norm_seconds", "clip_seconds"), times, strict=True))


def upkeep(
    gradient_bytes: int, state: Mapping[str, int], disk: float | None, times: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Step]]:
    """Return values and steps of clipping on one device, with the times of `clipping_row`, and of a
    checkpoint.
    """
    norm_bytes, clip_bytes = clipping_bytes(gradient_bytes)
    file_bytes = checkpoint_file_bytes(state)
    parts = {
        "gradient norm": (
            "gradients of a device, read once",
            norm_bytes,
            times.get("gradient_norm_seconds"),
        ),
        "clipping": (
            "gradients of a device, read and written",
            clip_bytes,
            times.get("clip_seconds"),
        ),
        "checkpoint file": (
            "weights and optimizer state of the whole model",
            file_bytes,
            disk and file_bytes / disk,
        ),
    }
    steps = [
        Step(
            name,
            moved,
            quantity(amount, "B")
            if seconds is None
            else f"{quantity(amount, 'B')}, {duration(seconds)}",
        )
        for name, (moved, amount, seconds) in parts.items()
    ]
    values = {
        "gradient_norm_bytes": norm_bytes,
        "clip_bytes": clip_bytes,
        "checkpoint_file_bytes": file_bytes,
    }
    return values | {"checkpoint_file_seconds": disk and file_bytes / disk}, steps
