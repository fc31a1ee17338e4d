"""A roofline in characters, for a terminal."""

from __future__ import annotations

import math
from itertools import cycle
from string import ascii_letters

from results.show.units import number
from roofline.picture.scene import Scene
from roofline.picture.texts import point_label, title_lines

HEIGHT = 20


def in_characters(scene: Scene, width: int) -> str:
    """Return the roofs, and a letter for each point with a line that names it; `width` is from
    40.
    """
    from numpy import geomspace

    view = scene.view
    rows = [[" "] * width for _ in range(HEIGHT)]

    def put(x: float, y: float, text: str) -> None:
        down = (view.top - math.log10(y)) / (view.top - view.bottom)
        right = (math.log10(x) - view.left) / (view.right - view.left)
        start = min(round(right * (width - 1)), width - len(text))
        rows[round(down * (HEIGHT - 1))][start : start + len(text)] = text

    for roof in scene.roofs:
        if not roof.is_mix:
            ends = roof.ends(view)
            for x, y in geomspace(*ends, 2 * width):
                put(x, y, "/-"[roof.is_flat])
            put(*ends[roof.is_flat], f" {roof.label} ")
    lines = []
    for letter, point in zip(cycle(ascii_letters), scene.points, strict=False):
        put(*point.spot, letter)
        lines.append(f"{letter}  {point_label(point, scene, is_first=True)}")
    axis = f"{number(10**view.left, 2)} to {number(10**view.right, 2)} FLOP/byte"
    return "\n".join([*title_lines(scene), *map("".join, rows), axis, *lines])
