"""Estimates of training time, utilization, devices needed, and the largest and the compute-optimal
model.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import Annotated, Unpack

from results.show.units import count, number, quantity
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.flops import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    FlopCount,
    convention_of,
    train_flops,
)
from roofline.accounting.machines import PUBLISHED_MFU, memory_of
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import OPTIMIZERS, RECIPES, bytes_per_param, state_bytes
from roofline.estimate.answer import Answer, Row, by_machine, steps_of
from roofline.estimate.fitting import fit_row, fit_warnings
from roofline.estimate.layout import SECONDS_PER_DAY, predicted, step_plan
from roofline.estimate.models import (
    LANDMARK_STEP,
    ZERO_3,
    Convention,
    Optimizer,
    Recipe,
    landmark_of,
)
from roofline.estimate.options import (
    LAYOUT,
    Held,
    Needed,
    Running,
    Stepping,
    Training,
    Uses,
    machines_of,
    model_of,
    sharding_of,
    sources_of,
    uses_of,
)
from roofline.estimate.question import Model, Number, Whole, question
from roofline.model import mfu as share_of

TRAINED = {"gpu": "GPU", "dtype": "dtype", "gpus": "GPUs", "mfu": "MFU"}

LEFT_OUT = (
    "left out, unless included in MFU: communication, data loading, checkpoints, failures, "
    "evaluation"
)

TRAIN_STEPS = (
    """\
FLOPs | {counted} | {flops:number}
speed | {gpus:,} x {use.peak:number} FLOP/s x {mfu:.4g} | {speed:number} FLOP/s
seconds | {flops:number} / {speed:number} | {seconds:number} s
days | {seconds:number} / 86,400 | {days:number}
device hours | {gpus:,} x {seconds:number} / 3600 | {device_hours:number}
price | {device_hours:number} hours x {price_per_hour:g} | {price:number}
energy | {device_hours:number} hours x {use.machine.tdp_w:number} W at most | \
{energy_mwh:number} MWh
CO2 | {energy_mwh:number} MWh x {carbon:g} g/kWh, without hosts and cooling | {co2_t:number} t
"""
    + LANDMARK_STEP
    + """\
state of a device | {state_bytes:bytes} / {gpus:,} | {state_each:bytes}
headroom | {memory_bytes:bytes} - {state_each:bytes}, for activations | {headroom_bytes:bytes}
"""
)

MFU_STEPS = """\
tokens/s | {batch} x {sequence} / {seconds_per_step:number} s | {tokens_per_s:number}
tokens/s | {tokens:number} / ({days:g} x 86,400) | {tokens_per_s:number}
FLOPs per token | {convention}: {arithmetic} | {flops_per_token:number}
speed | {flops_per_token:number} x {tokens_per_s:number} | {flops_per_s:number}
MFU | {flops_per_s:number} / ({gpus:,} x {use.peak:number} FLOP/s) | {mfu:percent}
HFU | the same for executed FLOPs | {hfu:percent}
landmark | published runs | {published}
"""

GPUS_STEPS = """\
state | {params:number} x {each:g} bytes, {counted} | {state_bytes:bytes}
to hold it | {state_bytes:bytes} / {use.machine.usable_memory_bytes:bytes}, rounded up | \
{gpus_for_memory:,}
in time | {flops:number} FLOPs / ({peak:number} x {mfu:.4g} x {given_days:g} x 86,400), rounded \
up | {gpus_for_time:,}
devices | the larger | {gpus:,}
days | on {gpus:devices} | {days:number}
"""

FIT_STEPS = """\
memory | {gpus:,} x {memory_bytes:bytes} | {total_bytes:bytes}
bytes per parameter | {counted} | {bytes_per_param:g}
parameters | {total_bytes:bytes} / {bytes_per_param:g} | {params:number}
"""

HOFFMANN = "Hoffmann et al., Training Compute-Optimal Large Language Models (2022)"
TOKENS_PER_PARAM = 20
"""Source: Hoffmann et al. (2022): about 20 tokens per parameter."""
FITTED_LOSS = "1.69 + 406.4 / N^0.34 + 410.7 / D^0.28"
"""L = E + A / N^alpha + B / D^beta.

Source: Hoffmann et al. (2022), equation 10; Besiroglu et al. (2024) dispute its constants."""

CHINCHILLA_STEPS = """\
FLOPs | {gpus:,} x {peak:number} x {mfu:.4g} x {days:g} x 86,400 | {flops:number}
parameters | sqrt({flops:number} / {flops_of_one:g}) | {params:number}
tokens | {tokens_per_param:g} x {params:number} | {tokens:number}
fitted loss | {fitted} | {fitted_loss:.3f} nats per token
"""


def _notes_on_flops(config: ModelConfig, sequence: int, counts: FlopCount) -> list[str]:
    if config.parameters:
        return ["6 N D excludes attention scores; N counts the parameters used by a token"]
    note = f"convention '{counts.convention.name}': {counts.convention.formula}"
    note += f"; sequences of {sequence} tokens"
    return [note, *config.notes_on(sequence)]


@question
def train(
    tokens: Number | None = None,
    days: Number | None = None,
    model: Model = None,
    sequence: Whole = 2048,
    convention: Convention = DEFAULT_CONVENTION,
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    gpus: Whole = 1,
    carbon: Number | None = None,
    **options: Unpack[Stepping],
) -> Answer:
    """Duration, price and needs of a training run, or its tokens.

    With a layout, it is the time of a step.
    """
    config = model_of(model, options)
    if tokens and days:
        raise ConfigError(
            "--tokens and --days are mutually exclusive; `python -m roofline estimate gpus` takes "
            "both and says how many devices it takes"
        )
    if not (tokens or days) or options.keys() & LAYOUT:
        if config.parameters:
            raise ConfigError(
                "--params: expected --tokens or --days, and no layout; a step needs layers"
            )
        if days or carbon or convention != DEFAULT_CONVENTION:
            raise ConfigError(
                "with a layout, the answer is the time of a step; remove --convention, --days or "
                "--carbon"
            )
        sharding = sharding_of(gpus, options, recipe)
        plan = step_plan(config, recipe, optimizer, sequence, sharding, options)
        return predicted(plan, tokens, options)
    uses = uses_of(options, trains=True)
    run = train_flops(config, sequence, convention=convention_of(config, convention))
    whole_state = sum(state_bytes(config, RECIPES[recipe], optimizer).values())
    state_each = -(-whole_state // gpus)
    rows = []
    for use in uses.uses:
        trained = tokens or (days or 0) * SECONDS_PER_DAY * use.speed(gpus) / run.per_token
        flops = run.per_token * trained
        seconds = flops / use.speed(gpus)
        row = use.row | use.cost(gpus, seconds)
        row |= {
            "gpus": gpus,
            "mfu": use.mfu,
            "flops": flops,
            "tokens": trained,
            "seconds": seconds,
            "days": seconds / SECONDS_PER_DAY,
            "device_hours": gpus * seconds / 3600,
        }
        if carbon:
            if row["energy_j"] is None:
                raise ConfigError(f"--carbon: the power of {use.machine.slug} is unknown")
            row["co2_t"] = row["energy_j"] / 3.6e9 * carbon / 1000
        memory_bytes = use.machine.usable_memory_bytes
        needed = -(-whole_state // memory_bytes) if memory_bytes else None
        rows.append(row | fit_row(use.machine, state_each, needed))
    row = rows[0]
    use = uses.uses[0]
    flops = row["flops"]
    landmark = landmark_of(flops)
    steps = steps_of(
        TRAIN_STEPS,
        **{"co2_t": None, **row},
        use=use,
        counted=f"({run.arithmetic}) x {number(row['tokens'])}",
        speed=use.speed(gpus),
        price_per_hour=use.price,
        energy_mwh=row["energy_j"] and row["energy_j"] / 3.6e9,
        carbon=carbon,
        run_flops=flops,
        landmark=landmark,
        state_bytes=whole_state,
        state_each=state_each,
    )
    columns = {**TRAINED, "tokens": "tokens", "days": "days", "device_hours": "device hours"}
    if "price" in options:
        columns["price"] = "price"
    if carbon:
        columns["co2_t"] = "t of CO2"
    sharing = (
        f"state ({recipe}, {optimizer}: {OPTIMIZERS[optimizer]}) is sharded evenly (ZeRO 3); "
        f"`memory` has the size of a checkpoint"
    )
    return Answer(
        main=("tokens" if days else "days", "device_hours", "price", "co2_t"),
        title=f"Training time on {count(gpus, 'device')}",
        warnings=fit_warnings(rows, ZERO_3),
        **by_machine(rows, flops=flops, landmark=landmark, state_bytes=state_each),
        steps=steps,
        formula="days = FLOPs / (devices x peak x MFU x 86,400)",
        source=f"{uses.source}; {landmark['source']}",
        assumptions=[*uses.notes, *_notes_on_flops(config, sequence, run), sharing, LEFT_OUT],
        columns=columns,
    )


@question
def mfu(
    model: Model = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    tokens_per_s: Number | None = None,
    seconds_per_step: Number | None = None,
    tokens: Number | None = None,
    days: Number | None = None,
    checkpoint: str = "none",
    convention: Annotated[list[str], tuple(CONVENTIONS)] | None = None,
    gpus: Whole = 1,
    **options: Unpack[Running],
) -> Answer:
    """MFU and HFU of a training run, by one or several conventions."""
    if [tokens_per_s, seconds_per_step, days].count(None) != 2:
        raise ConfigError(
            "expected --tokens-per-s, or --seconds-per-step with --batch and --sequence, or --days "
            "with --tokens; the MFU of a saved run is in `python -m results show RUN`"
        )
    if seconds_per_step is not None:
        tokens_per_s = batch * sequence / seconds_per_step
    elif days is not None and tokens is not None:
        tokens_per_s = tokens / (days * SECONDS_PER_DAY)
    speed = float(tokens_per_s or 0)
    uses = uses_of(options)
    config = model_of(model, options)
    notes = ["HFU: flash attention computes its scores twice", f"sequences of {sequence} tokens"]
    if config.parameters:
        notes = ["6 N excludes attention scores"]
    asked = [convention_of(config, name) for name in convention or [DEFAULT_CONVENTION]]
    notes += [f"convention '{name}': {CONVENTIONS[name].formula}" for name in asked]
    rows = []
    for use in uses.uses:
        for name in asked:
            counts = train_flops(config, sequence, 1, name, checkpoint)
            reached = counts.per_token * speed
            executed = counts.hardware_flops / counts.tokens * speed
            row = use.row | {
                "gpus": gpus,
                "convention": name,
                "flops_per_token": counts.per_token,
                "arithmetic": counts.arithmetic,
                "flops_per_s": reached,
                "mfu": share_of(reached, use.speed(gpus)),
                "hfu": share_of(executed, use.speed(gpus)),
                "tokens_per_s": speed,
            }
            rows.append(row)
    row = rows[0]
    too_fast = [f"{row['gpu']}, {row['convention']}" for row in rows if row["hfu"] > 1]
    return Answer(
        title=f"Utilization of {count(gpus, 'device')}",
        **by_machine(rows),
        main=("mfu", "hfu", "flops_per_s"),
        warnings=[f"{name}: above the peak; check tokens, devices and dtype" for name in too_fast],
        steps=steps_of(
            MFU_STEPS,
            published=PUBLISHED_MFU,
            **row,
            use=uses.uses[0],
            batch=batch,
            sequence=sequence,
            seconds_per_step=seconds_per_step,
            tokens=tokens,
            days=days,
        ),
        formula="MFU = FLOPs per token x tokens/s / (devices x peak); HFU includes recomputation",
        source=f"Chowdhery et al., PaLM (2022), appendix B; {uses.source}",
        assumptions=[*notes, *config.notes_on(sequence), *uses.notes],
        columns={
            "gpu": "GPU",
            "dtype": "dtype",
            "gpus": "GPUs",
            "convention": "convention",
            "flops_per_token": "FLOPs/token",
            "flops_per_s": "FLOP/s",
            "mfu": "MFU",
            "hfu": "HFU",
        },
    )


@question
def gpus(
    model: Model = None,
    bytes_per_param: Number | None = None,
    recipe: Recipe | None = None,
    optimizer: Optimizer | None = None,
    tokens: Number | None = None,
    days: Number | None = None,
    sequence: Whole = 2048,
    convention: Convention = DEFAULT_CONVENTION,
    **options: Unpack[Needed],
) -> Answer:
    """Number of devices needed to hold a model, or to train it in time."""
    uses = uses_of(options, trains=tokens is not None)
    each, counted, optimized = _bytes_per_param(bytes_per_param, recipe, optimizer)
    config = model_of(model, options)
    total = count_parameters(config).total
    state = total * each
    flops = None
    notes = ["the state is sharded evenly (ZeRO 3), with no room for activations", *optimized]
    if tokens is not None:
        run = train_flops(config, sequence, convention=convention_of(config, convention))
        flops = run.per_token * tokens
        notes.append("speed is proportional to the number of devices; MFU includes communication")
        notes += _notes_on_flops(config, sequence, run)
    rows = []
    for use in uses.uses:
        for_memory = ceil(state / memory_of(use.machine))
        row = use.row | {
            "gpus": for_memory,
            "bound": "memory",
            "days": None,
            "mfu": None,
            "gpus_for_memory": for_memory,
            "gpus_for_time": None,
            "state_bytes": state,
            "flops": flops,
        }
        if flops is not None:
            days_of_one = flops / use.speed(1) / SECONDS_PER_DAY
            if days is not None:
                row["gpus_for_time"] = ceil(days_of_one / days)
                row["gpus"] = max(for_memory, row["gpus_for_time"])
            if row["gpus"] > for_memory:
                row["bound"] = "time"
            row["days"] = flops / use.speed(row["gpus"]) / SECONDS_PER_DAY
            row["mfu"] = use.mfu
        rows.append(row)
    use = uses.uses[0]
    return Answer(
        title="Devices needed",
        **by_machine(rows),
        main=("gpus", "bound", "days"),
        steps=steps_of(
            GPUS_STEPS,
            **rows[0],
            use=use,
            peak=use.peak,
            params=total,
            each=each,
            counted=counted,
            given_days=days,
        ),
        formula="devices = max(bytes / memory, FLOPs / (peak x MFU x days x 86,400)), each "
        "rounded up",
        source=f"CS336 (2025) lecture 2; {uses.source}",
        assumptions=[*notes, *uses.notes],
        columns={
            "gpu": "GPU",
            "dtype": "dtype",
            "gpus": "GPUs",
            "bound": "bound by",
            "days": "days",
        },
    )


def _bytes_per_param(
    given: float | None, recipe: str | None, optimizer: str | None
) -> tuple[float, str, list[str]]:
    """Return the bytes, their origin and notes on them."""
    if given is not None and (recipe or optimizer):
        raise ConfigError("--bytes-per-param and --recipe or --optimizer are mutually exclusive")
    if given is not None:
        return given, "as given", []
    precision = RECIPES[recipe or "fp32"]
    optimizer = optimizer or "adamw"
    counted = f"{precision.name}, {optimizer}: {precision.source}"
    notes = [f"{optimizer}: {OPTIMIZERS[optimizer]}"]
    return bytes_per_param(precision, optimizer), counted, notes


@question
def fit(
    bytes_per_param: Number | None = None,
    recipe: Recipe | None = None,
    optimizer: Optimizer | None = None,
    gpus: Whole = 1,
    **options: Unpack[Held],
) -> Answer:
    """Largest model whose state fits in the memory of devices."""
    machines = machines_of(options)
    each, counted, optimized = _bytes_per_param(bytes_per_param, recipe, optimizer)
    notes = ["upper bound: the state is sharded evenly (ZeRO 3), without activations", *optimized]
    rows: list[Row] = []
    for machine in machines:
        memory_bytes = memory_of(machine)
        row: Row = {
            "gpu": machine.slug,
            "gpus": gpus,
            "memory_bytes": memory_bytes,
            "params": int(memory_bytes * gpus / each),
            "bytes_per_param": each,
        }
        rows.append(row)
        sold = (machine.memory_bytes or 0) * 10**9 // 2**30
        if sold:
            notes.append(
                f"memory as {machine.slug} reports it; its nominal {quantity(sold, 'B')}, taken as "
                f"{sold / 1e9:g}e9 bytes, holds {number(sold * gpus / each)} parameters"
            )
    row = rows[0]
    total_bytes = gpus * row["memory_bytes"]
    spared = number(0.9 * row["params"])
    return Answer(
        main=("params",),
        title=f"Largest model whose state fits on {count(gpus, 'device')}",
        warnings=[f"this fills the memory; if 10 % stays free: {spared} parameters"],
        **by_machine(rows),
        steps=steps_of(FIT_STEPS, **row, counted=counted, total_bytes=total_bytes),
        formula="N = devices x memory / bytes per parameter",
        source=f"CS336 (2025) lecture 2; {sources_of(machines)}",
        assumptions=notes,
        columns={"gpu": "GPU", "gpus": "GPUs", "memory_bytes": "memory", "params": "parameters"},
    )


@question
def chinchilla(
    flops: Number | None = None,
    days: Number | None = None,
    tokens_per_param: Number = TOKENS_PER_PARAM,
    gpus: Whole = 1,
    **options: Unpack[Training],
) -> Answer:
    """Compute-optimal model for a number of FLOPs, or for devices and days."""
    if flops is None and days is None:
        raise ConfigError("expected a budget: --gpu SLUG --gpus N --days DAYS, or --flops FLOPS")
    if flops is not None and days is not None:
        raise ConfigError("--flops and a machine with --days are mutually exclusive")
    uses = Uses([], [])
    rows: list[Row] = []
    facts: Row = {"gpus": gpus, "days": days, "mfu": None, "peak": None}
    if flops is not None:
        budget = f"{number(flops)} FLOPs"
        facts |= _optimal_of(flops, tokens_per_param)
        answer: Row = {"values": _optimal_of(flops, tokens_per_param)}
    elif days is not None:
        budget = f"{count(gpus, 'device')} and {days:g} days"
        uses = uses_of(options, trains=True)
        for use in uses.uses:
            optimum = _optimal_of(use.speed(gpus) * (days * SECONDS_PER_DAY), tokens_per_param)
            rows.append(use.row | {"gpus": gpus, "days": days, "mfu": use.mfu} | optimum)
        answer = by_machine(rows)
        facts |= rows[0] | {"peak": uses.uses[0].peak}
    return Answer(
        main=("params", "tokens"),
        title=f"Compute-optimal model for {budget}",
        **answer,
        steps=steps_of(
            CHINCHILLA_STEPS,
            fitted=FITTED_LOSS,
            tokens_per_param=tokens_per_param,
            flops_of_one=6 * tokens_per_param,
            **facts,
        ),
        formula="C = 6 N D with D = r N, so N = sqrt(C / (6 r))",
        source="; ".join(filter(None, [HOFFMANN, uses.source])),
        assumptions=[
            f"{tokens_per_param:g} tokens per parameter; 6 N D excludes attention scores",
            (
                "loss: Hoffmann et al. (2022), equation 10; Besiroglu et al. (2024) dispute its "
                "constants"
            ),
            "optimal for training only: frequent inference favors a smaller model trained longer",
            *uses.notes,
        ],
        columns={
            **TRAINED,
            "flops": "FLOPs",
            "params": "parameters",
            "tokens": "tokens",
            "fitted_loss": "fitted loss",
        },
    )


def _optimal_of(flops: float, tokens_per_param: float) -> Row:
    """Return N of 6 N D = C with D = r N, which is sqrt(C / (6 r)), and the fitted loss.

    Source: Kaplan et al., Scaling Laws for Neural Language Models (2020), section 2.1; Hoffmann et
    al. (2022).
    """
    params = sqrt(flops / (6 * tokens_per_param))
    if params < 1:
        raise ConfigError(f"{flops:g} FLOPs do not suffice for a model of one parameter")
    tokens = tokens_per_param * params
    loss = 1.69 + 406.4 / params**0.34 + 410.7 / tokens**0.28  # FITTED_LOSS
    return {"flops": flops, "params": params, "tokens": tokens, "fitted_loss": loss}
