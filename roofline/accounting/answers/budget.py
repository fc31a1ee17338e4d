"""Worked answers about budgets: training time, largest model, compute-optimal size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.accounting.answers.answer import Answer, Curve, Step, billions, by_machine, devices, memory, number, size
from roofline.accounting.budget import (
    FITTED_LOSS_SOURCE,
    SECONDS_PER_DAY,
    TOKENS_PER_PARAM,
    affordable_flops,
    compute_optimal_params,
    fitted_loss,
    largest_params,
    six_nd,
    training_seconds,
)
from roofline.accounting.config.config import ConfigError
from roofline.accounting.machines import Machine

Use = tuple[Machine, str]
"""A machine and the dtype that it computes in."""

TRAINING_LEFT_OUT = "left out, unless MFU has it: communication, data, checkpoints, failures, evaluation"


def usable(machines: Sequence[Machine], dtypes: Sequence[str]) -> tuple[list[Use], list[str]]:
    """Return the machines with the dtypes that they have a peak of, and a line for each that they have not.

    Raises:
        ConfigError: none has any.
    """
    uses = [(machine, dtype) for machine in machines for dtype in dtypes]
    found = [(machine, dtype) for machine, dtype in uses if dtype in machine.peaks_flops_per_s]
    if not found:
        machines[0].peak(dtypes[0])
    missing = [f"{machine.slug} has {machine.why_not(dtype)} {dtype}" for machine, dtype in uses]
    return found, [line for line, use in zip(missing, uses, strict=True) if use not in found]


def train_answer(
    flops: float,
    reckoned: str,
    uses: Sequence[Use],
    gpus: int,
    mfu: float | None,
    price: float | None = None,
    notes: Sequence[str] = (),
    size: tuple[float, float] | None = None,
) -> Answer:
    """Return the time of a training run on each machine.

    Args:
        flops: of the whole run.
        reckoned: how they were reckoned, for people.
        uses: machines and dtypes.
        gpus: devices of a kind.
        mfu: share of the peak; None: as the machine has it.
        price: of one device for an hour; None: not known.
        notes: further assumptions.
        size: parameters and tokens, for a picture; None: not known.
    """
    rows: list[dict[str, Any]] = []
    for machine, dtype in uses:
        share, _ = machine.mfu_of(dtype, mfu)
        seconds = training_seconds(flops, machine.peak(dtype), gpus, share)
        row: dict[str, Any] = {"gpu": machine.slug, "dtype": dtype, "gpus": gpus, "mfu": share}
        row |= {"flops": flops, "seconds": seconds} | cost_of(machine, gpus, seconds, price)
        rows.append(row | {"days": seconds / SECONDS_PER_DAY, "device_hours": gpus * seconds / 3600})
    machine, dtype = uses[0]
    row, share = rows[0], rows[0]["mfu"]
    speed = affordable_flops(machine.peak(dtype), gpus, share, 1)
    columns = [("gpu", "GPU"), ("dtype", "dtype"), ("gpus", "GPUs"), ("mfu", "MFU")]
    return Answer(
        main=("days", "device_hours", "price"),
        title=f"Training time on {devices(gpus)}",
        values={"flops": flops} | by_machine(rows),
        steps=[
            Step("FLOPs", reckoned, number(flops)),
            Step("speed", f"{gpus:,} x {number(machine.peak(dtype))} FLOP/s x {share:.4g}", f"{number(speed)} FLOP/s"),
            Step("seconds", f"{number(flops)} / {number(speed)}", f"{number(row['seconds'])} s"),
            Step("days", f"{number(row['seconds'])} / 86,400", number(row["days"])),
            Step("device hours", f"{gpus:,} x {number(row['seconds'])} / 3600", number(row["device_hours"])),
            *_cost_steps(machine, row, price),
        ],
        formula="days = FLOPs / (devices x peak x MFU x 86,400)",
        source="; ".join(dict.fromkeys(machine.source for machine, _ in uses)),
        assumptions=[*_mfu_notes(uses, mfu), *notes, TRAINING_LEFT_OUT],
        rows=rows,
        columns=[*columns, ("days", "days"), ("device_hours", "device hours")],
        worked=f"{machine.slug}, {dtype}",
        curve=None if size is None else size_against_data(six_nd(*size), TOKENS_PER_PARAM, size),
    )


def _cost_steps(machine: Machine, row: dict[str, Any], price: float | None) -> list[Step]:
    steps = []
    if price is not None:
        steps.append(Step("price", f"{number(row['device_hours'])} hours x {price:g}", number(row["price"])))
    if machine.power_w is not None:
        drawn = f"{number(row['device_hours'])} hours x {number(machine.power_w)} W at most"
        steps.append(Step("energy", drawn, f"{number(row['energy_j'] / 3.6e9)} MWh"))
    return steps


def cost_of(machine: Machine, gpus: int, seconds: float, price: float | None) -> dict[str, float | None]:
    """Return the price of devices for a time, and the most energy that they draw, by the power of the datasheet.

    Args:
        machine: a kind of device.
        gpus: devices.
        seconds: that they run.
        price: of one device for an hour; None: not known.
    """
    return {
        "price": None if price is None else price * gpus * seconds / 3600,
        "energy_j": None if machine.power_w is None else machine.power_w * gpus * seconds,
    }


def _mfu_notes(uses: Sequence[Use], mfu: float | None) -> list[str]:
    lines = [machine.mfu_of(dtype, mfu)[1] for machine, dtype in uses]
    return list(dict.fromkeys(lines))


def fit_answer(machines: Sequence[Machine], gpus: int, bytes_per_param: float, reckoned: str) -> Answer:
    """Return the largest model whose state fits on each machine.

    Args:
        machines: kinds of devices.
        gpus: devices of a kind, which share the state evenly.
        bytes_per_param: that stay for each parameter.
        reckoned: how those were reckoned, for people.
    """
    rows: list[dict[str, Any]] = []
    for machine in machines:
        params = int(largest_params(machine.memory(), gpus, bytes_per_param))
        row = {"gpu": machine.slug, "gpus": gpus, "memory_bytes": machine.memory(), "params": params}
        rows.append(row | {"bytes_per_param": bytes_per_param})
    first = rows[0]
    sold = [(m.slug, m.sold_bytes) for m in machines if m.sold_bytes]
    return Answer(
        main=("params",),
        title=f"Largest model whose state fits on {devices(gpus)}",
        warnings=[f"this leaves no headroom; with 10 % left free it is {billions(0.9 * first['params'])} parameters"],
        values=by_machine(rows),
        steps=[
            Step("memory", f"{gpus:,} x {memory(first['memory_bytes'])}", size(gpus * first["memory_bytes"])),
            Step("bytes per parameter", reckoned, f"{bytes_per_param:g}"),
            Step(
                "parameters", f"{size(gpus * first['memory_bytes'])} / {bytes_per_param:g}", billions(first["params"])
            ),
        ],
        formula="N = devices x memory / bytes per parameter",
        source="CS336 (2025) lecture 2; " + "; ".join(dict.fromkeys(machine.source for machine in machines)),
        assumptions=[
            "the state is sharded evenly over all devices (ZeRO 3), nothing is left for activations: an upper bound",
            *(
                f"memory as {slug} reports it; its {size(held)} read as {held / 1e9:g}e9 bytes hold "
                f"{billions(largest_params(held, gpus, bytes_per_param))} parameters"
                for slug, held in sold
            ),
        ],
        rows=rows,
        columns=[("gpu", "GPU"), ("gpus", "GPUs"), ("memory_bytes", "memory"), ("params", "parameters")],
        worked=first["gpu"],
    )


def chinchilla_answer(
    uses: Sequence[Use], gpus: int, days: float, mfu: float | None, tokens_per_param: float, notes: Sequence[str] = ()
) -> Answer:
    """Return the compute-optimal parameters and tokens of a budget of devices and days, on each machine."""
    rows: list[dict[str, Any]] = []
    for machine, dtype in uses:
        share, _ = machine.mfu_of(dtype, mfu)
        flops = affordable_flops(machine.peak(dtype), gpus, share, days * SECONDS_PER_DAY)
        row: dict[str, Any] = {"gpu": machine.slug, "dtype": dtype, "gpus": gpus, "days": days, "mfu": share}
        rows.append(row | optimal_of(flops, tokens_per_param))
    machine, dtype = uses[0]
    row = rows[0]
    budget = f"{gpus:,} x {number(machine.peak(dtype))} x {row['mfu']:.4g} x {days:g} x 86,400"
    columns = [("gpu", "GPU"), ("dtype", "dtype"), ("gpus", "GPUs"), ("mfu", "MFU"), ("flops", "FLOPs")]
    return Answer(
        main=("params", "tokens"),
        title=f"Compute-optimal model for {devices(gpus)} and {days:g} days",
        values=by_machine(rows),
        steps=[Step("FLOPs", budget, number(row["flops"])), *_optimal_steps(row, tokens_per_param)],
        formula=CHINCHILLA_FORMULA,
        source=f"{CHINCHILLA_SOURCE}; " + "; ".join(dict.fromkeys(machine.source for machine, _ in uses)),
        assumptions=[*_mfu_notes(uses, mfu), *chinchilla_notes(tokens_per_param), *notes],
        rows=rows,
        columns=[*columns, ("params", "parameters"), ("tokens", "tokens"), ("fitted_loss", "fitted loss")],
        worked=f"{machine.slug}, {dtype}",
        curve=size_against_data(row["flops"], tokens_per_param),
    )


CHINCHILLA_FORMULA = "C = 6 N D with D = r N, so N = sqrt(C / (6 r))"
CHINCHILLA_SOURCE = "Hoffmann et al., Training Compute-Optimal Large Language Models (2022)"


def compute_answer(flops: float, tokens_per_param: float) -> Answer:
    """Return the compute-optimal parameters and tokens of a number of FLOPs."""
    row = optimal_of(flops, tokens_per_param)
    return Answer(
        main=("params", "tokens"),
        title=f"Compute-optimal model for {number(flops)} FLOPs",
        values=row,
        steps=_optimal_steps(row, tokens_per_param),
        formula=CHINCHILLA_FORMULA,
        source=CHINCHILLA_SOURCE,
        assumptions=chinchilla_notes(tokens_per_param),
        curve=size_against_data(flops, tokens_per_param),
    )


def optimal_of(flops: float, tokens_per_param: float) -> dict[str, float]:
    """Return parameters, tokens and fitted loss of a number of FLOPs.

    Raises:
        ConfigError: the budget is so small that no parameter is left.
    """
    params = compute_optimal_params(flops, tokens_per_param)
    if params < 1:
        raise ConfigError(f"{flops:g} FLOPs are too few for a model of one parameter")
    tokens = tokens_per_param * params
    return {"flops": flops, "params": params, "tokens": tokens, "fitted_loss": fitted_loss(params, tokens)}


SIZES = [10 ** (power / 12) for power in range(-18, 19)]
"""Times the compute-optimal parameters: the models along a budget, from a thirtieth to the thirtyfold."""


def size_against_data(flops: float, tokens_per_param: float, run: tuple[float, float] | None = None) -> Curve:
    """Return the picture of N against D: all models that a budget trains, and those of so many tokens a parameter.

    Args:
        flops: C of 6 N D = C.
        tokens_per_param: r of D = r N; both lines meet in the compute-optimal model.
        run: parameters and tokens of a run, to be compared with it.
    """
    best = compute_optimal_params(flops, tokens_per_param)
    sizes = [best * size for size in SIZES]
    lines = {
        f"{number(flops)} FLOPs: D = C / (6 N)": [(params, flops / (6 * params)) for params in sizes],
        f"{tokens_per_param:g} tokens per parameter": [(params, tokens_per_param * params) for params in sizes],
    }
    dots = {"compute-optimal": (best, tokens_per_param * best)} | ({"this run": run} if run else {})
    return Curve("parameters N", "tokens D", lines, {}, dots)


def loss_along(flops: float) -> list[tuple[float, float]]:
    """Return (parameters, fitted loss) of models that are trained with a compute budget of `flops`.

    The sizes are multiples of the compute-optimal one; the tokens of each are D = C / (6 N).

    Source: `fitted_loss`.
    """
    sizes = (compute_optimal_params(flops) * size for size in SIZES)
    return [(params, fitted_loss(params, flops / (6 * params))) for params in sizes]


def _optimal_steps(row: dict[str, Any], ratio: float) -> list[Step]:
    return [
        Step("parameters", f"sqrt({number(row['flops'])} / {6 * ratio:g})", billions(row["params"])),
        Step("tokens", f"{ratio:g} x {billions(row['params'])}", billions(row["tokens"])),
        Step("fitted loss", "1.69 + 406.4 / N^0.34 + 410.7 / D^0.28", f"{row['fitted_loss']:.3f} nats per token"),
    ]


def chinchilla_notes(ratio: float) -> list[str]:
    """Return what a compute-optimal answer leaves open."""
    return [
        f"{ratio:g} tokens per parameter; 6 N D leaves out attention's own products",
        f"loss: {FITTED_LOSS_SOURCE}",
        "optimal for training alone: a model that is used much is trained smaller and longer",
    ]
