"""The two themes of all pictures: on white, and on nearly black."""

from __future__ import annotations

import colorsys
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any

THEMES = ("light", "dark")

DARKEST = 0.09
"""Lightness of the dark background, 0 to 1."""
READABLE_ON_DARK = 4.6
"""Least contrast of lines and words to it; WCAG 2.2 asks for 4.5 of words (success criterion 1.4.3)."""
GRAYISH = 0.12
"""Colors of less saturation are words, frames and backgrounds."""

_drawn_in: ContextVar[str] = ContextVar("theme", default="light")


def add_theme(parser: Any) -> None:
    """Add the option for the colors of a picture, the same for all commands that draw one."""
    parser.add_argument("--theme", choices=THEMES, default="light", help="colors of the picture (default: light)")


@contextlib.contextmanager
def in_theme(theme: str) -> Iterator[None]:
    """Make `tone` return the colors of a theme.

    Raises:
        ValueError: `theme` is not one of `THEMES`.
    """
    if theme not in THEMES:
        raise ValueError(f"unknown theme '{theme}'; known: {', '.join(THEMES)}")
    before = _drawn_in.set(theme)
    try:
        yield
    finally:
        _drawn_in.reset(before)


def tone(color: str) -> str:
    """Return a color of the light theme as it is in the theme that is drawn in."""
    return on_dark(color) if is_dark() else color


def is_dark() -> bool:
    return _drawn_in.get() == "dark"


@cache
def on_dark(color: str) -> str:
    """Return grays turned around, and colors lighter, as saturated as before, until they can be read on the dark."""
    from matplotlib.colors import to_hex, to_rgb

    rgb = to_rgb(color)
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    if max(rgb) - min(rgb) < GRAYISH:
        return to_hex((1 - (1 - DARKEST) * lightness,) * 3)
    background = contrast_to_white(DARKEST, DARKEST, DARKEST)
    while background / contrast_to_white(*colorsys.hls_to_rgb(hue, lightness, saturation)) < READABLE_ON_DARK:
        lightness += 0.01
    return to_hex(colorsys.hls_to_rgb(hue, lightness, saturation))


def contrast_to_white(red: float, green: float, blue: float) -> float:
    """Return the contrast ratio of a color, parts from 0 to 1, to a white background.

    Source: W3C, Web Content Accessibility Guidelines 2.2, definitions of contrast ratio and relative luminance.
    """
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in (red, green, blue)]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)
