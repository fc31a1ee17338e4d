"""Whether something fits in the memory of devices, and how many of them it takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from results.show.units import quantity
from roofline.estimate.answer import Row
from roofline.machine import Machine

MAX_DEVICES = 10**6

UTILIZATION = 0.9
"""Fraction of the memory that can be used, as vLLM's `gpu_memory_utilization`: CUDA context,
workspaces and fragmentation, which are not estimated, take the rest.
"""


def fewest_devices(is_enough: Callable[[int], bool]) -> int | None:
    """Return the fewest devices that are enough, None if no number of them is."""
    devices = bisect_left(range(MAX_DEVICES), True, lo=1, key=is_enough)
    return None if devices == MAX_DEVICES else devices


def fit_row(machine: Machine, total: int, gpus_needed: int | None, gpus: int = 1) -> Row:
    """Return how `total` bytes fit in the memory of devices; None if it is unknown."""
    row: Row = dict.fromkeys(("memory_bytes", "used", "headroom_bytes", "fits"))
    memory_bytes = machine.usable_memory_bytes
    if memory_bytes is not None:
        available = gpus * memory_bytes
        row["memory_bytes"] = memory_bytes
        row["used"] = total / available
        row["headroom_bytes"] = available - total
        row["fits"] = total <= available
    return row | {"gpus_needed": gpus_needed}


def fit_warnings(rows: Sequence[Row], more: str, gpus: int = 1) -> list[str]:
    """Return a warning for each row of `fit_row` that uses too much; `more` says how it is shared
    by the devices that are needed.
    """
    lines = []
    for row in rows:
        used = row["used"] or 0
        memory_bytes = row["memory_bytes"] or 0
        device = f"{gpus:,} x {row['gpu']} with {quantity(memory_bytes, 'B')}"
        if used > 1:
            needed = "no number of devices is enough"
            if row["gpus_needed"]:
                needed = f"at least {row['gpus_needed']:,} devices are needed"
            held = quantity(used * gpus * memory_bytes, "B")
            lines.append(f"does not fit: {held} on {device}; {needed} {more}")
        elif used > UTILIZATION:
            left = f"only {100 * (1 - used):.1f} % of {device}"
            lines.append(f"{left} is left for workspaces and fragmentation")
    return lines
