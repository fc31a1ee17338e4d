"""The rows of a page: one for each record, measured or not, with its place in the plane where it has one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from results.record import Record
from roofline.model import judge, limits_s
from roofline.page.roofs import theme_colors
from roofline.plot.scene import PlotMachine, PlotPoint, Scene

JUDGED = (
    *("flops_per_s", "bytes_per_s", "intensity", "bound", "mfu", "mbu", "roofline_pct", "measured_pct"),
    *("peak_units", "held_back_by", "mix", "excess"),
)
"""What a row shows of the judgment of its record."""
KEPT = ("op", "case", "dtype", "provider", "status", "reason", "median_s", "flops", "method", "cache", "fill")
"""What a row shows of the record itself."""
CLOCKS = ("sm_clock_hz", "temperature_c", "power_w")
SIDE_BY_SIDE = 4
"""How many fillings of a marker there are in the browser."""


def rows_of(scene: Scene) -> dict[str, list[Any]]:
    """Return the records of a scene as columns of JSON values, all of the same length, in the order of its machines.

    Rates and shares are those of the model; `drawn` tells whether the scene has a point for the row.
    """
    points = {id(point.record): point for point in scene.points}
    rows = [
        _row(index, machine.run_of(number), record, machine, points.get(id(record)), scene)
        for index, machine in enumerate(scene.machines)
        for number, record in enumerate(machine.records)
    ]
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _row(
    index: int, run: int, record: Record, machine: PlotMachine, point: PlotPoint | None, scene: Scene
) -> dict[str, Any]:
    try:
        judgment = judge(record, machine.ceilings)
        limits = limits_s(record, machine.ceilings)
    except ArithmeticError:  # counts and times so far apart that their rate is no number
        judgment, limits = None, None
    row: dict[str, Any] = {"machine": index, "run": _first_run(scene, index) + run}
    row |= {name: getattr(record, name) for name in KEPT}
    row |= {name: _finite(getattr(judgment, name, None)) for name in JUDGED}
    low, high = record.ci95_s or (None, None)
    moved = (
        None if record.bytes_read is None or record.bytes_written is None else record.bytes_read + record.bytes_written
    )
    extra = record.extra
    return row | {
        "options": _words(record.options),
        "bytes": moved,
        "samples": len(record.samples_s),
        "ci95_low_s": low,
        "ci95_high_s": high,
        "least_s": _finite(max(limits)) if limits else None,
        "sum_s": _finite(sum(limits)) if limits else None,
        "flags": _flags(record),
        **{name: _number(record.telemetry.get(name)) for name in CLOCKS},
        "module": str(extra["module"]) if extra.get("module") else None,
        "share": _number(extra.get("share")),
        "drawn": point is not None,
        "doubtful": bool(point and point.doubts),
        "low": point.low if point else None,
        "high": point.high if point else None,
        "cap": point.cap if point else None,
        "color": theme_colors(scene.point_color(point)) if point else None,
        "shape": scene.shape(point) if point else None,
        "filling": scene.variant(point) % SIDE_BY_SIDE if point else None,
    }


def _first_run(scene: Scene, machine: int) -> int:
    return sum(len(before.environments) for before in scene.machines[:machine])


def _flags(record: Record) -> dict[str, str]:
    names = [*record.flags, *(["not-converged"] if record.converged is False else [])]
    return {name: str(record.flag_reasons.get(name, "")) for name in dict.fromkeys(names)}


def _words(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items() if value not in (None, ""))


def _number(value: Any) -> float | None:
    """Return a value of a file that may be anything, where it is a number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return _finite(value) if is_number else None


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
