"""Worked answers about utilization and about how many devices a plan takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from roofline.accounting.answers.answer import Answer, Step, by_machine, devices, memory, number, size
from roofline.accounting.answers.budget import Use
from roofline.accounting.budget import SECONDS_PER_DAY, training_seconds
from roofline.accounting.config.config import ConfigError
from roofline.model import mfu


def mfu_answer(
    counted: Mapping[str, tuple[float, float]],
    asked: str,
    tokens_per_s: float,
    reckoned: str,
    uses: Sequence[Use],
    gpus: int,
    notes: Sequence[str] = (),
) -> Answer:
    """Return the utilization of a training run on each machine, by every convention beside each other.

    Args:
        counted: by convention: FLOPs of a token that the model needs, and that the hardware executes.
        asked: the convention that the answer is given by.
        tokens_per_s: on all devices.
        reckoned: how that was reckoned, for people.
        uses: machines and dtypes.
        gpus: devices of a kind.
        notes: further assumptions.
    """
    rows: list[dict[str, Any]] = []
    for machine, dtype in uses:
        peak = gpus * machine.peak(dtype)
        for convention, (needed, executed) in counted.items():
            row: dict[str, Any] = {"gpu": machine.slug, "dtype": dtype, "gpus": gpus, "convention": convention}
            row |= {"flops_per_token": needed, "flops_per_s": needed * tokens_per_s}
            row |= {"mfu": mfu(needed * tokens_per_s, peak), "hfu": mfu(executed * tokens_per_s, peak)}
            rows.append(row | {"tokens_per_s": tokens_per_s})
    chosen = [row for row in rows if row["convention"] == asked]
    row, (machine, dtype) = chosen[0], uses[0]
    peaks = f"{gpus:,} x {number(machine.peak(dtype))} FLOP/s"
    return Answer(
        title=f"Utilization of {devices(gpus)}",
        values=by_machine(chosen),
        main=("mfu", "hfu", "flops_per_s"),
        warnings=[
            f"{entry['gpu']}, {entry['convention']}: more than the peak; check tokens, devices and dtype"
            for entry in rows
            if entry["hfu"] > 1
        ],
        steps=[
            Step("tokens/s", reckoned, number(tokens_per_s)),
            Step("FLOPs per token", asked, number(row["flops_per_token"])),
            Step("speed", f"{number(row['flops_per_token'])} x {number(tokens_per_s)}", number(row["flops_per_s"])),
            Step("MFU", f"{number(row['flops_per_s'])} / ({peaks})", f"{100 * row['mfu']:.2f} %"),
            Step("HFU", "the same of what is executed", f"{100 * row['hfu']:.2f} %"),
        ],
        formula="MFU = FLOPs per token x tokens/s / (devices x peak); HFU counts what is computed twice, too",
        source="Chowdhery et al., PaLM (2022), appendix B; " + "; ".join(dict.fromkeys(use[0].source for use in uses)),
        assumptions=list(notes),
        rows=rows if len(rows) > 1 else (),
        columns=[
            *(("gpu", "GPU"), ("dtype", "dtype"), ("gpus", "GPUs"), ("convention", "convention")),
            *(("flops_per_token", "FLOPs/token"), ("flops_per_s", "FLOP/s"), ("mfu", "MFU"), ("hfu", "HFU")),
        ],
        worked=f"{machine.slug}, {dtype}",
    )


def measured_mfu_answer(rows: Sequence[dict[str, Any]], source: str) -> Answer:
    """Return the utilization of the training steps of a saved run, as its records and ceilings have it.

    Args:
        rows: one for each record, the keys of `mfu_answer` and `case`.
        source: of the records and the peak.

    Raises:
        ConfigError: there is no training step with a known peak.
    """
    if not rows:
        raise ConfigError(f"no training step with a known peak in {source}")
    best = max(rows, key=lambda row: row["mfu"])
    return Answer(
        title="Utilization of the training steps of a saved run",
        values=dict(best),
        main=("mfu", "hfu", "flops_per_s"),
        steps=[],
        formula="MFU = FLOPs of a step / (its median time x peak); HFU counts what is computed twice, too",
        source=source,
        assumptions=["of several steps, the one with the highest MFU stands first"],
        rows=sorted(rows, key=lambda row: -row["mfu"]),
        columns=[
            *(("case", "case"), ("dtype", "dtype"), ("tokens_per_s", "tokens/s")),
            *(("flops_per_s", "FLOP/s"), ("mfu", "MFU"), ("hfu", "HFU")),
        ],
    )


def gpus_answer(
    uses: Sequence[Use],
    held_bytes: float | None,
    reckoned: str,
    flops: float | None,
    days: float | None,
    share: float | None,
    notes: Sequence[str] = (),
) -> Answer:
    """Return how many devices hold a state, finish a training run in time, or do both.

    Args:
        uses: machines and dtypes.
        held_bytes: of the state on all devices together; None: memory is not asked.
        reckoned: how the bytes were reckoned, for people.
        flops: of the run; None: time is not asked.
        days: that it may take; None: as long as the devices that hold the state need.
        share: MFU; None: as the machine has it.
        notes: further assumptions.
    """
    rows = [_fleet_row(use, held_bytes, flops, days, share) for use in uses]
    row, (machine, dtype) = rows[0], uses[0]
    steps: list[Step] = []
    if held_bytes is not None:
        steps.append(Step("state", reckoned, size(held_bytes)))
        held = f"{size(held_bytes)} / {memory(machine.memory())}, rounded up"
        steps.append(Step("to hold it", held, f"{row['gpus_for_memory']:,}"))
    if row["gpus_for_time"] is not None:
        speed = f"({number(machine.peak(dtype))} x {row['mfu']:.4g} x {days:g} x 86,400)"
        steps.append(Step("in time", f"{number(flops or 0)} FLOPs / {speed}, rounded up", f"{row['gpus_for_time']:,}"))
    steps.append(Step("devices", "the larger", f"{row['gpus']:,}"))
    if row["days"] is not None:
        steps.append(Step("days", f"on {devices(row['gpus'])}", number(row["days"])))
    timed = [] if flops is None else [machine.mfu_of(dtype, share)[1] for machine, dtype in uses]
    return Answer(
        title="Devices needed",
        values=by_machine(rows),
        main=("gpus", "bound", "days"),
        steps=steps,
        formula="devices = max(bytes / memory, FLOPs / (peak x MFU x days x 86,400)), each rounded up",
        source="CS336 (2025) lecture 2; " + "; ".join(dict.fromkeys(use[0].source for use in uses)),
        assumptions=[
            *(["the state is shared evenly (ZeRO 3); nothing is left for activations"] if held_bytes else []),
            *(["speed grows evenly with the devices; MFU has communication in it"] if flops else []),
            *dict.fromkeys(timed),
            *notes,
        ],
        rows=rows,
        columns=[("gpu", "GPU"), ("dtype", "dtype"), ("gpus", "GPUs"), ("bound", "bound by"), ("days", "days")],
        worked=f"{machine.slug}, {dtype}",
    )


def _fleet_row(
    use: Use, held_bytes: float | None, flops: float | None, days: float | None, share: float | None
) -> dict[str, Any]:
    machine, dtype = use
    used = None if flops is None else machine.mfu_of(dtype, share)[0]
    for_memory = None if held_bytes is None else ceil(held_bytes / machine.memory())
    for_time = None
    if flops is not None and days is not None and used is not None:
        for_time = ceil(training_seconds(flops, machine.peak(dtype), 1, used) / (days * SECONDS_PER_DAY))
    gpus = max(for_memory or 1, for_time or 1)
    took = None
    if flops is not None and used is not None:
        took = training_seconds(flops, machine.peak(dtype), gpus, used) / SECONDS_PER_DAY
    return {
        "gpu": machine.slug,
        "dtype": dtype,
        "gpus": gpus,
        "bound": "time" if (for_time or 0) > (for_memory or 0) else "memory",
        "days": took,
        "mfu": used,
        "gpus_for_memory": for_memory,
        "gpus_for_time": for_time,
        "state_bytes": held_bytes,
        "flops": flops,
    }
