"""What a training run needs besides its FLOPs: clipping the gradients, and the file of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results.show.units import duration, size
from roofline.accounting.state import clipping_bytes
from roofline.estimate.answer import Step
from roofline.machine import MEASURED_FIRST, Machine


def upkeep_values(gradient_bytes: int, file_bytes: int, disk: float | None) -> dict[str, Any]:
    """Return the bytes of clipping on one device and of a checkpoint, whose time is None without a bandwidth."""
    values = dict(zip(("gradient_norm_bytes", "clip_bytes"), clipping_bytes(gradient_bytes), strict=True))
    seconds = None if disk is None else file_bytes / disk
    return {**values, "checkpoint_file_bytes": file_bytes, "checkpoint_file_seconds": seconds}


def clipping_row(gradient_bytes: int, machine: Machine) -> dict[str, float | None]:
    """Return the minimum seconds of norm and clipping at the memory bandwidth; None if it is unknown."""
    bandwidth = machine.bandwidth(MEASURED_FIRST)
    times = [moved / bandwidth.value if bandwidth else None for moved in clipping_bytes(gradient_bytes)]
    return dict(zip(("gradient_norm_seconds", "clip_seconds"), times, strict=True))


def upkeep_steps(gradient_bytes: int, file_bytes: int, disk: float | None, machines: Sequence[Machine]) -> list[Step]:
    """Return the steps, with the times of the first machine."""
    times = clipping_row(gradient_bytes, machines[0]).values() if machines else (None, None)
    norm, clip = (
        size(moved) if time_s is None else f"{size(moved)}, {duration(time_s)}"
        for moved, time_s in zip(clipping_bytes(gradient_bytes), times, strict=True)
    )
    steps = [
        Step("gradient norm", "gradients of a device, read once", norm),
        Step("clipping", "gradients of a device, read and written", clip),
        Step("checkpoint file", "weights and optimizer state of the whole model", size(file_bytes)),
    ]
    if disk is not None:
        steps.append(Step("to write it", f"{size(file_bytes)} / {size(disk)}/s", duration(file_bytes / disk)))
    return steps
