"""The marks of points: one style for the plane and the legend."""

from __future__ import annotations

from typing import Any

from results.show.picture import INK
from results.show.theme import tone
from roofline.plot.style import FILLINGS, MARKERS, pick

MARKER_PT = 7.5
"""Diameter of the marker of a point."""


def cross() -> dict[str, Any]:
    """Return the style of the cross over a point that flags speak against."""
    look = {"marker": "x", "markersize": 11, "markeredgewidth": 1.3, "markeredgecolor": tone(INK)}
    return look | {"linestyle": "none"}


def cap(color: str) -> dict[str, Any]:
    """Return the style of the cap over a point, which is wider than an error bar and has no bar of its own."""
    return {"color": color, "linestyle": "none", "marker": "_", "markersize": 13, "markeredgewidth": 1.8}


def marker(color: str, shape: int, variant: int) -> dict[str, Any]:
    """Return the style of a marker without a line.

    Args:
        color: of the point.
        shape: index of the op or the provider that shapes tell apart.
        variant: index of the filling.
    """
    filling = pick(FILLINGS, variant)
    style = {"color": color, "linestyle": "none", "marker": pick(MARKERS, shape), "markersize": MARKER_PT}
    style |= {"markeredgecolor": color, "markeredgewidth": 1.3, "markerfacecoloralt": tone("white")}
    if filling == "none":
        return style | {"markerfacecolor": tone("white")}
    return style | {"fillstyle": filling}
