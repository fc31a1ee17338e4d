"""The thin lines of a roofline plot: other mixes of reads and writes than the fastest."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.plot.labels import Candidate, Spot, along_line
from roofline.plot.scene import Flat, Scene, Slope
from roofline.plot.sheet import View
from roofline.plot.style import si

MIX_WIDTH = 0.8
"""Line width of a mix, in points: less than that of any ceiling."""


def thin_mixes(scene: Scene) -> list[Slope]:
    """Return the measured mixes below the envelope, the fastest first.

    A picture of several machines has none: it could not be told whose they are.
    """
    if scene.is_overlay:
        return []
    ceilings = [slope.bandwidth for slope in scene.slopes]
    return [Slope(0, mix) for mix in scene.machines[0].ceilings.mixes() if mix not in ceilings]


def mix_ends(mix: Slope, flats: Sequence[Flat], view: View) -> tuple[Spot, Spot]:
    """Return where a mix enters the axes, and where it meets the highest measured peak, or leaves the axes."""
    bandwidth = mix.bandwidth.value
    first = max(10**view.left, 10**view.bottom / bandwidth)
    peaks = [flat.peak.value for flat in flats if flat.peak.kind == mix.bandwidth.kind]
    last = min(10**view.right, max(peaks, default=10**view.top) / bandwidth)
    return (first, first * bandwidth), (last, last * bandwidth)


def mixes_label(mixes: Sequence[Slope]) -> str:
    """Return what is written along the lowest of the thin lines: all of them, from the top down."""
    values = [si(mix.bandwidth.value, "B/s").split(" ", 1) for mix in mixes]
    units = {unit for _, unit in values}
    if len(units) > 1:
        return ", ".join(f"{mix.bandwidth.name} {' '.join(value)}" for mix, value in zip(mixes, values, strict=True))
    named = ", ".join(f"{mix.bandwidth.name} {number}" for mix, (number, _) in zip(mixes, values, strict=True))
    return f"{named} {units.pop()}"


def places_below(start: Spot, end: Spot, size: tuple[float, float], liked: float) -> list[Candidate]:
    """Return the places of `along_line` that lie below a rising line, away from the lines above it."""
    slope = (end[1] - start[1]) / (end[0] - start[0])
    places = along_line(start, end, size, liked)
    return [p for p in places if not p.is_on_line and p.y - start[1] < slope * (p.x - start[0])]
