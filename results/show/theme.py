"""Pictures on a dark background or in gray: the same picture, place by place, in other colors."""

from __future__ import annotations

import colorsys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.show.picture import contrast_to_white, own_style, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THEMES = ("light", "dark", "print")
"""`light`: on white; `dark`: on nearly black; `print`: on white, in grays as a printer without color makes them."""

DARKEST = 0.09
"""Lightness of the dark background, 0 to 1."""
READABLE_ON_DARK = 4.6
"""Least contrast of lines and words to it; WCAG 2.2 asks for 4.5 of words (success criterion 1.4.3)."""
LEAST_ON_PAPER = 3.0
"""Least contrast of lines to paper; WCAG 2.2 asks for 3 of graphics (success criterion 1.4.11)."""
GRAYISH = 0.12
"""Colors of less saturation are words, frames and backgrounds."""
PROPERTIES = ("color", "markeredgecolor", "markerfacecolor", "markerfacecoloralt", "facecolor", "edgecolor")
STROKE_PT = 2.5
"""Of the rim in the color of the background around words, points."""


def add_theme(parser: Any) -> None:
    """Add the option that says in which colors a picture is drawn, the same for all commands that draw one."""
    parser.add_argument("--theme", choices=THEMES, default="light", help="colors; print: grays (default: light)")


def save_in_theme(figure: Figure, path: Path, theme: str) -> None:
    """Give a figure the colors of a theme and write it, as `save_picture` does.

    Raises:
        StoreError: the suffix names no format, or the file cannot be written.
    """
    with own_style():
        apply_theme(figure, theme)
    save_picture(figure, path)


def apply_theme(drawn: Figure | Axes, theme: str) -> None:
    """Give a drawn picture, or axes, the colors of a theme; nothing moves.

    Args:
        drawn: in the colors of `light`.
        theme: one of `THEMES`.

    Raises:
        ValueError: there is no such theme.
    """
    if theme not in THEMES:
        raise ValueError(f"unknown theme '{theme}'; known: {', '.join(THEMES)}")
    if theme == "light":
        return
    from matplotlib.axis import Axis
    from matplotlib.text import Text

    axes = drawn.findobj(Axis)
    ticks = {id(part) for axis in axes for part in axis.findobj() if part is not axis.label}
    for artist in drawn.findobj():
        if id(artist) in ticks or hasattr(artist, "patch"):
            continue  # what has a patch as its background says the color of that
        _recolor(artist, theme)
        if isinstance(artist, Text):
            _recolor_text(artist, theme)
    for axis in axes:
        known = axis.get_tick_params()
        wanted = {name: known[name] for name in ("labelcolor", "grid_color") if name in known}
        axis.set_tick_params(**{name: turned(color, theme) for name, color in wanted.items()})


def _recolor(artist: Any, theme: str) -> None:
    found = {}
    for name in PROPERTIES:
        if hasattr(artist, f"get_{name}") and hasattr(artist, f"set_{name}"):
            found[name] = getattr(artist, f"get_{name}")()
    alpha = artist.get_alpha()
    for name, color in found.items():
        if isinstance(color, str) or len(color):
            getattr(artist, f"set_{name}")(_turned_all(color, theme, alpha))


def _recolor_text(text: Any, theme: str) -> None:
    from matplotlib.patheffects import withStroke

    if text.get_bbox_patch() is not None:
        _recolor(text.get_bbox_patch(), theme)
    if text.get_path_effects():
        text.set_path_effects([withStroke(linewidth=STROKE_PT, foreground=turned("white", theme))])


def _turned_all(color: Any, theme: str, alpha: float | None) -> Any:
    """Return one color or rows of them in a theme; the opacity that the artist itself has is not applied twice."""
    if not isinstance(color, str) and not isinstance(color[0], int | float):
        return [_turned_all(tuple(float(part) for part in row), theme, alpha) for row in color]
    return turned(color, theme, keeps_alpha=alpha is None)


def turned(color: Any, theme: str, keeps_alpha: bool = True) -> Any:
    """Return a color of `light` in a theme; what is not drawn at all stays so.

    Args:
        color: as matplotlib takes it.
        theme: one of `THEMES`.
        keeps_alpha: whether its opacity goes with it.
    """
    from matplotlib.colors import to_rgba

    red, green, blue, alpha = to_rgba(color)
    if theme == "light" or alpha == 0:
        return color
    rgb = (red, green, blue)
    new = _on_dark(rgb) if theme == "dark" else _on_paper(rgb)
    return (*new, alpha) if keeps_alpha else new


def _on_dark(rgb: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return grays turned around, and colors lighter, as saturated as before, until they can be read on the dark."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    if max(rgb) - min(rgb) < GRAYISH:
        gray = 1 - (1 - DARKEST) * lightness
        return (gray, gray, gray)
    background = contrast_to_white(DARKEST, DARKEST, DARKEST)
    while background / contrast_to_white(*colorsys.hls_to_rgb(hue, lightness, saturation)) < READABLE_ON_DARK:
        lightness += 0.01
    return colorsys.hls_to_rgb(hue, lightness, saturation)


def _on_paper(rgb: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the gray of the same luminance; of a color one that is seen on paper."""
    gray = next(step / 255 for step in range(256) if contrast_to_white(*[step / 255] * 3) <= contrast_to_white(*rgb))
    if max(rgb) - min(rgb) >= GRAYISH:
        while contrast_to_white(gray, gray, gray) < LEAST_ON_PAPER:
            gray -= 1 / 255
    return (gray, gray, gray)
