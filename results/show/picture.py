"""What all pictures of the project have in common: colors, themes, sizes of letters, the frame of axes, the file."""

from __future__ import annotations

import colorsys
import contextlib
import io
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from results.show.terminal import ADVANCED, Parser, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1A1A1A"
MUTED = "#5A5A5A"
GRID = "#E2E2E2"
SPINE = "#B8B8B8"
BAND = "#EEF1F3"
"""Of a range in which nothing is told apart, such as the margin of a comparison."""

SERIES_COLORS = ("#0072B2", "#009E73", "#882255", "#E69F00", "#332288", "#CC79A7", "#D55E00", "#56B4E9")
"""Of the first, second, ... provider, machine or line, where color tells these apart.

The first five are 9 or more steps of CIE lightness apart, so that gray keeps them apart too.

Source: Okabe and Ito, Color Universal Design (2008), with wine and indigo of Tol, Colour Schemes (2021).
"""
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""As many as have no common factor with the colors, so that many series look different, without color too."""

TITLE_PT, SUBTITLE_PT, AXIS_PT, TICK_PT = 15, 11, 11, 10.5
LABEL_PT, POINT_PT, LEGEND_PT, CAPTION_PT = 10.5, 9.5, 9.5, 8.5

INDENT, EDGE = 0.3, 0.16
"""Left end of words, and room above and below everything, inches."""
LINE_HEIGHT, MEAN_LETTER = 1.35, 0.57
"""Height of a line and width of a letter over the font size."""

SUFFIXES = (".png", ".svg", ".pdf")
PNG_DPI = 200

THEMES = ("light", "dark")

DARKEST = 0.09
"""Lightness of the dark background, 0 to 1."""
READABLE_ON_DARK = 4.6
"""Least contrast of lines and words to it; WCAG 2.2 asks for 4.5 of words (success criterion 1.4.3)."""
GRAYISH = 0.12
"""Colors of less saturation are words, frames and backgrounds."""

_drawn_in: ContextVar[str] = ContextVar("theme", default="light")


def add_picture(parser: Parser, text: str = "save a plot: .png, .svg or .pdf") -> None:
    """Add the options of a plot, the one file that a command writes: its path and its colors."""
    parser.group("output").add_argument("-o", "--output", "--plot", metavar="PATH", type=Path, help=text)
    text = "colors of the plot (default: light)"
    parser.group(ADVANCED).add_argument("--theme", choices=THEMES, default="light", help=text)


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


def plain(text: str, longest: int = 48) -> str:
    """Return `text` as matplotlib draws it in one line: a dollar sign would start a formula there."""
    return one_line(text, longest).replace("$", r"\$")


def end_of(name: str, longest: int) -> str:
    """Return a name with its end, where that of a function is, if there is no room for the whole."""
    shown = one_line(name, 400)
    return shown if len(shown) <= longest else "…" + shown[1 - longest :]


def series_color(index: int) -> str:
    """Return the color of the `index`-th series in the theme drawn in; more series than colors start over."""
    return tone(SERIES_COLORS[index % len(SERIES_COLORS)])


def frame(axes: Axes, grid: str = "both") -> None:
    """Give axes the frame of all pictures: two pale spines, grid lines of the `x` or `y` axis or of both, no ticks."""
    axes.grid(axis=grid, color=tone(GRID), linewidth=0.9)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=TICK_PT, labelcolor=tone(MUTED), pad=6)
    for side in axes.spines.values():
        side.set_color(tone(SPINE))
    axes.spines[["top", "right"]].set_visible(False)


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=100)
    FigureCanvasAgg(figure)
    return figure


def write_head(figure: Figure, title: str, subtitle: str, below: float) -> float:
    """Write a title and a subtitle, wrapped to the width of a figure, and return where they end, a share of its height.

    The figure gets the height that they and the `below` inches under them need.
    """
    width = figure.get_figwidth()
    lines = [(line, TITLE_PT, "bold", tone(INK)) for line in _wrapped(title, width, TITLE_PT * 1.15)]
    lines += [(line, SUBTITLE_PT, "normal", tone(MUTED)) for line in _wrapped(subtitle, width, SUBTITLE_PT)]
    height = below + sum(size for _, size, _, _ in lines) / 72 * LINE_HEIGHT + 2 * EDGE
    figure.set_size_inches(width, height)
    y = height - EDGE
    for line, size, weight, color in lines:
        figure.text(INDENT / width, y / height, line, fontsize=size, fontweight=weight, color=color, va="top")
        y -= size / 72 * LINE_HEIGHT
    return below / height


def write_caption(figure: Figure, text: str, top: float) -> None:
    """Write small words at the foot of a figure, wrapped to its width, from `top` inches down."""
    width, height = figure.get_size_inches()
    for line in _wrapped(text, width, CAPTION_PT):
        figure.text(INDENT / width, top / height, line, fontsize=CAPTION_PT, color=tone(MUTED), va="top")
        top -= CAPTION_PT / 72 * LINE_HEIGHT


def _wrapped(text: str, width: float, size: float) -> list[str]:
    return wrap(text, int((width - 2 * INDENT) * 72 / (size * MEAN_LETTER)), break_on_hyphens=False)


@contextlib.contextmanager
def own_style(theme: str = "light") -> Iterator[None]:
    """Draw alike on every machine: without the user's style, and quiet about letters that the font lacks."""
    import matplotlib

    if theme not in THEMES:
        raise ValueError(f"unknown theme '{theme}'; known: {', '.join(THEMES)}")
    with matplotlib.rc_context(), warnings.catch_warnings():
        _drawn_in.set(theme)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "ridgepoint", "pdf.fonttype": 42, "font.family": "DejaVu Sans"})
        matplotlib.rcParams.update(dict.fromkeys(("figure.facecolor", "axes.facecolor"), tone("white")))
        matplotlib.rcParams.update(dict.fromkeys(("text.color", "axes.labelcolor"), tone(INK)))
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        try:
            yield
        finally:
            _drawn_in.set(THEMES[0])


def check_picture(path: Path) -> None:
    """Raise StoreError for a path that no picture can be written to, before any work is done for it."""
    from results.store.runfile import StoreError

    shown = one_line(str(path), 200)
    if path.suffix.lower() not in SUFFIXES:
        raise StoreError(f"cannot tell the format of '{shown}' by its suffix; allowed: {', '.join(SUFFIXES)}")
    try:
        if path.is_dir():
            raise StoreError(f"cannot write '{shown}': it is a folder; name a picture in it")
        if not next(folder for folder in path.absolute().parents if folder.exists()).is_dir():
            raise StoreError(f"cannot write '{shown}': a part of its folder is a file; choose another place")
    except OSError as error:
        raise StoreError(f"cannot write '{shown}': {error.strerror}") from None


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure by the suffix of its path, the whole of it or nothing; the same figure gives the same bytes."""
    from results.store.runfile import write_output

    check_picture(path)
    form = path.suffix.lower()
    undated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(form, {})
    content = io.BytesIO()
    with own_style():
        figure.savefig(content, format=form[1:], dpi=PNG_DPI, metadata=undated)
    write_output(path, content.getvalue())
