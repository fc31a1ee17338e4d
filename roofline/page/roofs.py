"""The roofs of a page: each ceiling of a scene with its ends in the plane, its colors and where it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from results.show.picture import MUTED
from results.show.theme import on_dark
from roofline.ceilings import Ceiling
from roofline.plot.mixes import thin_mixes
from roofline.plot.scene import Flat, Scene, Slope, flat_label, slope_label
from roofline.plot.sheet import View
from roofline.plot.style import KIND_DASHES, machine_width, si

BEYOND = 4.0
"""Decades by which a roof goes on past the first view, for those who zoom out."""


def theme_colors(color: str) -> list[str]:
    """Return a color for a light and for a dark background, as a static picture has it in these themes."""
    return [color, on_dark(color)]


def roofs_of(scene: Scene, view: View) -> list[dict[str, Any]]:
    """Return each roof as a JSON object: what it limits, its two ends as (FLOP/byte, FLOP/s), and how it is drawn.

    Args:
        scene: with the ceilings of all machines.
        view: the first that is shown; roofs go on beyond it.
    """
    left, right = 10 ** (view.left - BEYOND), 10 ** (view.right + BEYOND)
    found = []
    for flat in scene.flats:
        ends = [(flat.ridge or left, flat.peak.value), (right, flat.peak.value)]
        color = scene.ceiling_color(flat.machine, flat.dtype)
        more = {"dtype": flat.dtype, "level": None, "ridge": flat.ridge, "label": flat_label([flat], scene)}
        found.append(_roof(flat.machine, flat.peak, ends, color) | more)
    for slope in scene.slopes:
        color = scene.slope_color(slope.machine)
        found.append(_rising(slope, scene, (left, right), color) | {"label": slope_label(slope, scene)})
    for mix in thin_mixes(scene):
        thin = {"label": f"{mix.bandwidth.name} {si(mix.bandwidth.value, 'B/s')}", "width": 0.8, "level": "mixes"}
        found.append(_rising(mix, scene, (left, right), MUTED) | thin)
    return found


def _rising(slope: Slope, scene: Scene, ends: tuple[float, float], color: str) -> dict[str, Any]:
    """Return a roof of memory, which ends at the last ridge point that it makes with a flat one."""
    bandwidth = slope.bandwidth.value
    mine = [flat for flat in scene.flats if flat.machine == slope.machine]
    last = max(_meeting(mine, slope.bandwidth), default=ends[1])
    known = _roof(slope.machine, slope.bandwidth, [(x, x * bandwidth) for x in (ends[0], last)], color)
    return known | {"dtype": None, "level": "memory", "ridge": None}


def _meeting(flats: Sequence[Flat], bandwidth: Ceiling) -> list[float]:
    """Return where a slope meets its flat ceilings; one that has none of its own meets those of its kind."""
    own = [flat.ridge for flat in flats if flat.bandwidth == bandwidth and flat.ridge]
    return own or [flat.peak.value / bandwidth.value for flat in flats if flat.peak.kind == bandwidth.kind]


def _roof(machine: int, ceiling: Ceiling, ends: Sequence[tuple[float, float]], color: str) -> dict[str, Any]:
    dashes = [machine_width(machine) * length for length in KIND_DASHES[ceiling.kind]]
    return {
        "machine": machine,
        "kind": ceiling.kind,
        "name": ceiling.name,
        "quantity": ceiling.quantity,
        "value": ceiling.value,
        "ci95": ceiling.ci95,
        "p5_p95": ceiling.p5_p95,
        "band": ceiling.band,
        "source": ceiling.source,
        "config": ceiling.config,
        "measured_at": ceiling.measured_at,
        "disturbed": ceiling.disturbed,
        "x": [x for x, _ in ends],
        "y": [y for _, y in ends],
        "colors": theme_colors(color),
        "dash": ",".join(f"{length:.3g}px" for length in dashes) or "solid",
        "width": machine_width(machine),
    }
