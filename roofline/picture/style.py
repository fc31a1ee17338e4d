"""Style of roofline plots: colors of dtypes, dashes of kinds of ceilings, markers.

Colors distinguish machines if there are several, else providers if there is one dtype, else dtypes.
Nothing depends on color alone: dtypes differ in lightness, kinds in dashes, machines in width, all
others in shape, filling or label.
"""

from __future__ import annotations

import re

from results.show.picture import MIN_CONTRAST, SERIES_COLORS, contrast_to_white, is_dark, tone
from results.show.terminal import one_line

DTYPE_COLORS = {
    "fp64": "#000000",
    "fp32": "#882255",
    "tf32": "#E69F00",
    "fp16": "#56B4E9",
    "bf16": "#0072B2",
    "fp8e4m3": "#009E73",
    "fp8e5m2": "#D55E00",
    "int8": "#CC79A7",
    "nvfp4": "#332288",
}
"""The four that meet most often (fp32, bf16, fp8e4m3, tf32) are 12 or more steps of CIE lightness
apart.

Source: Okabe and Ito, Color Universal Design (2008), with wine and indigo of Tol, Colour Schemes
(2021), in place of its yellow, which is too pale for a thin line, and of a second blue. The closest
pair differs by 16 (CIE76) for any of the three dichromacies simulated after Machado, Oliveira and
Fernandes (2009).
"""

FOREIGN_COLOR = "#7A7A7A"

MARKERS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
    "p": "pentagon",
    "h": "hexagon",
    "d": "diamond-tall",
}
"""Matplotlib marker -> Plotly symbol, one per series of one machine in order of appearance."""

KIND_DASHES: dict[str, tuple[float, ...]] = {
    "measured": (),
    "datasheet": (5, 2.2),
    "clock-limited": (6.5, 1.8, 1.2, 1.8),
    "power-limited": (6.5, 1.8, 1.2, 1.8, 1.2, 1.8),
    "derived": (1.2, 1.8),
}
"""Lengths of dash and gap, line widths; empty for a solid line."""

MACHINE_WIDTHS = (2.2, 1.4, 2.8, 1.0)
"""Line width of the ceilings by machine, points."""

MAX_MACHINES = len(SERIES_COLORS)


def text_color(color: str) -> str:
    """Return a readable text color for an object in a color of the light theme."""
    if is_dark():
        return tone(color)
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(color)
    shade = 1.0
    while contrast_to_white(red * shade, green * shade, blue * shade) < MIN_CONTRAST:
        shade -= 0.02
    return to_hex((red * shade, green * shade, blue * shade))


def machine_width(index: int) -> float:
    return MACHINE_WIDTHS[index % len(MACHINE_WIDTHS)]


def short_case(case: str) -> str:
    """Shorten a case: `4096x4096x4096:nt` becomes `4096³ nt`."""
    return one_line(re.sub(r"^([0-9]+)x\1x\1(?=:|$)", r"\1³", case).replace(":", " "), 28)
