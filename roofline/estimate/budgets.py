"""Estimates of training time, utilization, devices needed, and the largest and the compute-optimal
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any, Unpack

from results.show.terminal import say
from results.show.units import count, gibibytes, number, quantity
from roofline.accounting.config import ConfigError, ModelConfig
from roofline.accounting.flops import CONVENTIONS, convention_of, train_flops
from roofline.accounting.machines import memory_of, mfu_of
from roofline.accounting.parameters import count_parameters
from roofline.accounting.state import OPTIMIZERS, RECIPES, bytes_per_param, state_bytes
from roofline.estimate import scaling
from roofline.estimate.answer import Answer, Step, by_machine
from roofline.estimate.layout import (
    LAYOUT,
    SECONDS_PER_DAY,
    Shared,
    predicted,
    sharding_of,
    step_plan,
)
from roofline.estimate.models import (
    Convention,
    Optimizer,
    Recipe,
    clipping_row,
    fit_row,
    memory_warnings,
    upkeep,
)
from roofline.estimate.options import (
    Computing,
    Machines,
    Serving,
    Use,
    machines_of,
    model_of,
    sources_of,
    uses_of,
)
from roofline.estimate.question import Model, Number, Share, Whole, question
from roofline.model import mfu as share_of

TRAINED = {"gpu": "GPU", "dtype": "dtype", "gpus": "GPUs", "mfu": "MFU"}

LEFT_OUT = (
    "left out, unless included in MFU: communication, data loading, checkpoints, failures, "
    "evaluation"
)


def _training_uses(
    options: Mapping[str, Any], mfu: float | None, memory: float | None = None
) -> tuple[list[Use], list[str]]:
    """Return machines with their MFU, and notes; stderr reports an MFU assumed for a measured
    run.
    """
    uses, missing = uses_of(options, memory)
    trained = []
    notes = []
    for use in uses:
        share, origin = mfu_of(use.machine, use.dtype, mfu)
        if use.machine.run and mfu is None and use.dtype not in use.machine.mfu:
            say(f"note: {origin}")
        trained.append(use._replace(mfu=share))
        notes.append(origin)
    return trained, [*dict.fromkeys(notes), *missing]


def _run_flops(
    config: ModelConfig, tokens: float, sequence: int, convention: str
) -> tuple[float, str, list[str]]:
    counts = train_flops(config, sequence, convention=convention_of(config, convention, "6nd"))
    flops = counts.per_token * tokens
    if config.parameters:
        notes = ["6 N D excludes attention scores; N counts the parameters used by a token"]
        return flops, f"6 x {number(config.parameters)} x {number(tokens)}", notes
    notes = [
        f"convention '{convention}': {counts.convention.formula}; sequences of {sequence} tokens"
    ]
    return (
        flops,
        f"{number(counts.per_token)} per token x {number(tokens)}",
        [*notes, *config.notes_on(sequence)],
    )


@question
def train(
    tokens: Number | None = None,
    model: Model | None = None,
    params: Number | None = None,
    sequence: Whole = 2048,
    convention: Convention = "6nd",
    recipe: Recipe = "bf16-master",
    optimizer: Optimizer = "adamw",
    disk: Number | None = None,
    gpus: Whole = 1,
    price: Number | None = None,
    mfu: Share | None = None,
    **options: Unpack[Shared],
) -> Answer:
    """Duration, price and needs of a training run; with a layout, the time of a step."""
    config = model_of(model, options, params)
    if tokens is None or options.keys() & LAYOUT:
        if params is not None:
            problem = "expected no layout with --params"
            if tokens is None:
                problem = "the following arguments are required: --tokens"
            raise ConfigError(f"{problem}, or --model for the time of a step")
        if disk is not None or convention != "6nd":
            raise ConfigError("the time of a step takes neither --convention nor --disk")
        plan = step_plan(config, recipe, optimizer, sequence, sharding_of(gpus, options), options)
        return predicted(plan, tokens, price, mfu, options)
    uses, notes = _training_uses(options, mfu)
    flops, counted, counting = _run_flops(config, tokens, sequence, convention)
    state = state_bytes(config, RECIPES[recipe], optimizer)
    state_each = -(-sum(state.values()) // gpus)
    gradients_each = -(-state["gradients"] // gpus)
    rows: list[dict[str, Any]] = []
    for use in uses:
        seconds = flops / use.speed(gpus)
        row = use.row | {"gpus": gpus, "mfu": use.mfu, "flops": flops, "seconds": seconds}
        row |= use.cost(gpus, seconds, price)
        row |= {"days": seconds / SECONDS_PER_DAY, "device_hours": gpus * seconds / 3600}
        row |= clipping_row(gradients_each, use.machine)
        if use.machine.usable_memory_bytes is not None:
            row |= fit_row(use.machine, state_each, 0, sum(state.values()))
        rows.append(row)
    sharing = (
        f"state ({recipe}, {optimizer}: {OPTIMIZERS[optimizer]}) and clipping are sharded "
        f"evenly (ZeRO 3)"
    )
    row = rows[0]
    use = uses[0]
    speed = number(use.speed(gpus))
    hours = number(row["device_hours"])
    steps = [
        Step("FLOPs", counted, number(flops)),
        Step("speed", f"{gpus:,} x {number(use.peak)} FLOP/s x {use.mfu:.4g}", f"{speed} FLOP/s"),
        Step("seconds", f"{number(flops)} / {speed}", f"{number(row['seconds'])} s"),
        Step("days", f"{number(row['seconds'])} / 86,400", number(row["days"])),
        Step("device hours", f"{gpus:,} x {number(row['seconds'])} / 3600", hours),
    ]
    if price is not None:
        steps.append(Step("price", f"{hours} hours x {price:g}", number(row["price"])))
    if use.machine.tdp_w is not None:
        drawn = f"{hours} hours x {number(use.machine.tdp_w)} W at most"
        steps.append(Step("energy", drawn, f"{number(row['energy_j'] / 3.6e9)} MWh"))
    landmark, step = scaling.landmark_of(flops)
    steps += [
        step,
        Step(
            "state of a device",
            f"{quantity(sum(state.values()), 'B')} / {gpus:,}",
            quantity(state_each, "B"),
        ),
    ]
    if "headroom_bytes" in row:
        left = f"{gibibytes(memory_of(use.machine))} - {quantity(state_each, 'B')}, for activations"
        steps.append(Step("headroom", left, quantity(row["headroom_bytes"], "B")))
    upkept, upkeep_steps = upkeep(gradients_each, state, disk, row)
    active = count_parameters(config).active
    return Answer(
        main=("days", "device_hours", "price"),
        title=f"Training time on {count(gpus, 'device')}",
        warnings=memory_warnings([row for row in rows if "fits" in row], state_each),
        **by_machine(rows, flops=flops, **landmark, state_bytes=state_each, **upkept),
        steps=[*steps, *upkeep_steps],
        formula="days = FLOPs / (devices x peak x MFU x 86,400)",
        source=f"{sources_of(use.machine for use in uses)}; {landmark['landmark']['source']}",
        assumptions=[*notes, *counting, sharing, LEFT_OUT],
        columns={**TRAINED, "days": "days", "device_hours": "device hours"},
        curve=scaling.size_against_data(
            scaling.six_nd(active, tokens), scaling.TOKENS_PER_PARAM, run=(active, tokens)
        ),
    )


@question
def mfu(
    model: Model | None = None,
    params: Number | None = None,
    sequence: Whole = 2048,
    batch: Whole = 1,
    tokens_per_s: Number | None = None,
    seconds_per_step: Number | None = None,
    tokens: Number | None = None,
    days: Number | None = None,
    checkpoint: str = "none",
    convention: Convention = "palm",
    gpus: Whole = 1,
    **options: Unpack[Serving],
) -> Answer:
    """MFU and HFU of a training run, by each convention."""
    speed, counted = _tokens_per_s(sequence, batch, tokens_per_s, seconds_per_step, tokens, days)
    uses, missing = uses_of(options)
    config = model_of(model, options, params)
    main_convention = convention_of(config, convention, "palm")
    has_core = [
        name
        for name, entry in CONVENTIONS.items()
        if name == main_convention or entry.mask or checkpoint != "selective"
    ]
    counted_by = [main_convention] if config.parameters else has_core
    rows: list[dict[str, Any]] = []
    for use in uses:
        for name in counted_by:
            counts = train_flops(config, sequence, 1, name, checkpoint)
            reached = counts.per_token * speed
            executed = counts.hardware_flops / counts.tokens * speed
            row = use.row | {"gpus": gpus, "convention": name, "flops_per_token": counts.per_token}
            row |= {"flops_per_s": reached, "mfu": share_of(reached, use.speed(gpus))}
            rows.append(row | {"hfu": share_of(executed, use.speed(gpus)), "tokens_per_s": speed})
    chosen = [row for row in rows if row["convention"] == main_convention]
    row = chosen[0]
    reached_by = f"({gpus:,} x {number(uses[0].peak)} FLOP/s)"
    notes = ["HFU: flash attention computes its scores twice", f"sequences of {sequence} tokens"]
    if config.parameters:
        notes = ["6 N excludes attention scores"]
    return Answer(
        title=f"Utilization of {count(gpus, 'device')}",
        **by_machine(chosen) | {"rows": rows if len(rows) > 1 else ()},
        main=("mfu", "hfu", "flops_per_s"),
        warnings=[
            f"{entry['gpu']}, {entry['convention']}: above the peak; check tokens, devices and "
            f"dtype"
            for entry in rows
            if entry["hfu"] > 1
        ],
        steps=[
            Step("tokens/s", counted, number(speed)),
            Step("FLOPs per token", main_convention, number(row["flops_per_token"])),
            Step(
                "speed",
                f"{number(row['flops_per_token'])} x {number(speed)}",
                number(row["flops_per_s"]),
            ),
            Step(
                "MFU", f"{number(row['flops_per_s'])} / {reached_by}", f"{100 * row['mfu']:.2f} %"
            ),
            Step("HFU", "the same for executed FLOPs", f"{100 * row['hfu']:.2f} %"),
        ],
        formula="MFU = FLOPs per token x tokens/s / (devices x peak); HFU includes recomputation",
        source=f"Chowdhery et al., PaLM (2022), appendix B; "
        f"{sources_of(use.machine for use in uses)}",
        assumptions=[*notes, *config.notes_on(sequence), *missing],
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


def _tokens_per_s(
    sequence: int,
    batch: int,
    tokens_per_s: float | None,
    seconds_per_step: float | None,
    tokens: float | None,
    days: float | None,
) -> tuple[float, str]:
    if [tokens_per_s, seconds_per_step, days].count(None) != 2:
        raise ConfigError(
            "expected one of --tokens-per-s; --seconds-per-step with --batch and --sequence; "
            "--days with --tokens; for a saved run see python -m results show RUN"
        )
    if tokens_per_s is not None:
        return float(tokens_per_s), "as given"
    if seconds_per_step is not None:
        return (
            batch * sequence / seconds_per_step,
            f"{batch} x {sequence} / {number(seconds_per_step)} s",
        )
    if tokens is None or days is None:
        raise ConfigError("--days requires --tokens")
    return tokens / (days * SECONDS_PER_DAY), f"{number(tokens)} / ({days:g} x 86,400)"


@question
def gpus(
    model: Model | None = None,
    params: Number | None = None,
    bytes_per_param: Number | None = None,
    recipe: Recipe | None = None,
    optimizer: Optimizer = "adamw",
    tokens: Number | None = None,
    days: Number | None = None,
    sequence: Whole = 2048,
    convention: Convention = "6nd",
    mfu: Share | None = None,
    memory: Number | None = None,
    **options: Unpack[Serving],
) -> Answer:
    """Number of devices needed to hold a model, or to train it in time."""
    if days is not None and tokens is None:
        raise ConfigError("--days requires --tokens")
    if tokens is None:
        uses, notes = uses_of(options, memory)
    else:
        uses, notes = _training_uses(options, mfu, memory)
    each, counted = _bytes_per_param(bytes_per_param, recipe, optimizer)
    config = model_of(model, options, params)
    total = count_parameters(config).total
    state = total * each
    flops = None
    counting = ["the state is sharded evenly (ZeRO 3), with no room for activations"]
    if bytes_per_param is None:
        counting.append(f"{optimizer}: {OPTIMIZERS[optimizer]}")
    if tokens is not None:
        flops, _, more = _run_flops(config, tokens, sequence, convention)
        counting += [
            "speed is proportional to the number of devices; MFU includes communication",
            *more,
        ]
    rows = [_fleet_row(use, state, flops, days) for use in uses]
    row = rows[0]
    use = uses[0]
    memory_each = f"{quantity(state, 'B')} / {gibibytes(memory_of(use.machine))}, rounded up"
    steps = [
        Step("state", f"{number(total)} x {each:g} bytes, {counted}", quantity(state, "B")),
        Step("to hold it", memory_each, f"{row['gpus_for_memory']:,}"),
    ]
    if row["gpus_for_time"] is not None:
        speed = f"({number(use.peak)} x {use.mfu:.4g} x {days:g} x 86,400)"
        steps.append(
            Step(
                "in time",
                f"{number(flops or 0)} FLOPs / {speed}, rounded up",
                f"{row['gpus_for_time']:,}",
            )
        )
    steps.append(Step("devices", "the larger", f"{row['gpus']:,}"))
    if row["days"] is not None:
        steps.append(Step("days", f"on {count(row['gpus'], 'device')}", number(row["days"])))
    return Answer(
        title="Devices needed",
        **by_machine(rows),
        main=("gpus", "bound", "days"),
        steps=steps,
        formula="devices = max(bytes / memory, FLOPs / (peak x MFU x days x 86,400)), each "
        "rounded up",
        source=f"CS336 (2025) lecture 2; {sources_of(use.machine for use in uses)}",
        assumptions=[*counting, *notes],
        columns={
            "gpu": "GPU",
            "dtype": "dtype",
            "gpus": "GPUs",
            "bound": "bound by",
            "days": "days",
        },
    )


def _bytes_per_param(given: float | None, recipe: str | None, optimizer: str) -> tuple[float, str]:
    if given is not None and recipe is not None:
        raise ConfigError("--bytes-per-param and --recipe are mutually exclusive")
    if given is not None:
        return given, "as given"
    precision = RECIPES[recipe or "fp32"]
    counted = f"{precision.name}, {optimizer}: {precision.source}"
    return bytes_per_param(precision, optimizer), counted


def _fleet_row(use: Use, state: float, flops: float | None, days: float | None) -> dict[str, Any]:
    for_memory = gpus = ceil(state / memory_of(use.machine))
    for_time = duration_days = None
    if flops is not None:
        for_time = None if days is None else ceil(flops / use.speed(1) / SECONDS_PER_DAY / days)
        gpus = max(for_memory, for_time or 1)
        duration_days = flops / use.speed(gpus) / SECONDS_PER_DAY
    return {
        **use.row,
        "gpus": gpus,
        "bound": "time" if (for_time or 0) > for_memory else "memory",
        "days": duration_days,
        "mfu": None if flops is None else use.mfu,
        "gpus_for_memory": for_memory,
        "gpus_for_time": for_time,
        "state_bytes": state,
        "flops": flops,
    }


@question
def fit(
    bytes_per_param: Number | None = None,
    recipe: Recipe | None = None,
    optimizer: Optimizer = "adamw",
    gpus: Whole = 1,
    memory: Number | None = None,
    **options: Unpack[Machines],
) -> Answer:
    """Largest model whose state fits in the memory of devices."""
    machines = machines_of(options, memory)
    each, counted = _bytes_per_param(bytes_per_param, recipe, optimizer)
    rows: list[dict[str, Any]] = []
    for machine in machines:
        params = int(memory_of(machine) * gpus / each)
        row = {
            "gpu": machine.slug,
            "gpus": gpus,
            "memory_bytes": memory_of(machine),
            "params": params,
        }
        rows.append(row | {"bytes_per_param": each})
    first = rows[0]
    total = quantity(gpus * first["memory_bytes"], "B")
    notes = [
        (
            "upper bound: the state is sharded evenly over all devices (ZeRO 3), with no room for "
            "activations"
        )
    ]
    if bytes_per_param is None:
        notes.append(f"{optimizer}: {OPTIMIZERS[optimizer]}")
    for machine in machines:
        sold = (machine.memory_bytes or 0) * 10**9 // 2**30
        if sold:
            notes.append(
                f"memory as {machine.slug} reports it; its {quantity(sold, 'B')} read as "
                f"{sold / 1e9:g}e9 bytes hold {number(sold * gpus / each)} parameters"
            )
    return Answer(
        main=("params",),
        title=f"Largest model whose state fits on {count(gpus, 'device')}",
        warnings=[
            (
                f"no headroom; with 10 % of the memory free: {number(0.9 * first['params'])} "
                f"parameters"
            )
        ],
        **by_machine(rows),
        steps=[
            Step("memory", f"{gpus:,} x {gibibytes(first['memory_bytes'])}", total),
            Step("bytes per parameter", counted, f"{each:g}"),
            Step("parameters", f"{total} / {each:g}", number(first["params"])),
        ],
        formula="N = devices x memory / bytes per parameter",
        source=f"CS336 (2025) lecture 2; {sources_of(machines)}",
        assumptions=notes,
        columns={"gpu": "GPU", "gpus": "GPUs", "memory_bytes": "memory", "params": "parameters"},
    )


@question
def chinchilla(
    flops: Number | None = None,
    days: Number | None = None,
    tokens_per_param: Number = scaling.TOKENS_PER_PARAM,
    gpus: Whole = 1,
    mfu: Share | None = None,
    **options: Unpack[Computing],
) -> Answer:
    """Compute-optimal model for a number of FLOPs, or for devices and days."""
    if flops is None and days is None:
        raise ConfigError("expected a budget: --gpu SLUG --gpus N --days DAYS, or --flops FLOPS")
    if flops is not None and (
        days is not None or not options.keys().isdisjoint(("gpu", "measured"))
    ):
        raise ConfigError("--flops and a machine with --days are mutually exclusive")
    uses: list[Use] = []
    notes: list[str] = []
    if days is not None:
        uses, notes = _training_uses(options, mfu)
    rows: list[dict[str, Any]] = []
    for use in uses:
        of_budget = use.speed(gpus) * ((days or 0) * SECONDS_PER_DAY)
        row = use.row | {"gpus": gpus, "days": days, "mfu": use.mfu}
        rows.append(row | _optimal_of(of_budget, tokens_per_param))
    row = rows[0] if rows else _optimal_of(flops or 0, tokens_per_param)
    budget = (
        f"{number(row['flops'])} FLOPs"
        if not uses
        else f"{count(gpus, 'device')} and {days:g} days"
    )
    spent = [
        f"{gpus:,} x {number(use.peak)} x {use.mfu:.4g} x {days:g} x 86,400" for use in uses[:1]
    ]
    optimum = f"sqrt({number(row['flops'])} / {scaling.six_nd(1, tokens_per_param):g})"
    return Answer(
        main=("params", "tokens"),
        title=f"Compute-optimal model for {budget}",
        **(by_machine(rows) if uses else {"values": row}),
        steps=[
            *(Step("FLOPs", arithmetic, number(row["flops"])) for arithmetic in spent),
            Step("parameters", optimum, number(row["params"])),
            Step(
                "tokens",
                f"{tokens_per_param:g} x {number(row['params'])}",
                number(row["tokens"]),
            ),
            Step("fitted loss", scaling.FITTED_LOSS, f"{row['fitted_loss']:.3f} nats per token"),
        ],
        formula="C = 6 N D with D = r N, so N = sqrt(C / (6 r))",
        source="; ".join(dict.fromkeys([scaling.HOFFMANN, *(use.machine.source for use in uses)])),
        assumptions=[
            f"{tokens_per_param:g} tokens per parameter; 6 N D excludes attention scores",
            (
                "loss: Hoffmann et al. (2022), equation 10; Besiroglu et al. (2024) dispute its "
                "constants"
            ),
            "optimal for training only: frequent inference favors a smaller model trained longer",
            *notes,
        ],
        columns={
            **TRAINED,
            "flops": "FLOPs",
            "params": "parameters",
            "tokens": "tokens",
            "fitted_loss": "fitted loss",
        },
        curve=scaling.size_against_data(row["flops"], tokens_per_param),
    )


def _optimal_of(flops: float, tokens_per_param: float) -> dict[str, float]:
    params = scaling.compute_optimal_params(flops, tokens_per_param)
    if params < 1:
        raise ConfigError(f"{flops:g} FLOPs do not suffice for a model of one parameter")
    tokens = tokens_per_param * params
    return {
        "flops": flops,
        "params": params,
        "tokens": tokens,
        "fitted_loss": scaling.fitted_loss(params, tokens),
    }
