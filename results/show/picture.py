"""Colors, themes, font sizes, axes and files of all plots."""

from __future__ import annotations

import colorsys
import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from results.show.terminal import THEMES, one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1A1A1A"
MUTED = "#5A5A5A"
GRID = "#E2E2E2"
SPINE = "#B8B8B8"
BAND = "#EEF1F3"
"""Background of a range without distinction, such as the margin of a comparison."""

SERIES_COLORS = (
    "#0072B2",
    "#009E73",
    "#882255",
    "#E69F00",
    "#332288",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
)
"""Colors of providers, machines or lines. The first five differ by at least 9 in CIE lightness, for
grayscale.

Source: Okabe and Ito, Color Universal Design (2008), with wine and indigo of Tol, Colour Schemes
(2021).
"""
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""Their number is coprime to that of the colors, so that many series differ."""

TITLE_PT = 15
SUBTITLE_PT = 11
AXIS_PT = 11
TICK_PT = 10.5
LABEL_PT = 10.5
POINT_PT = 9.5
LEGEND_PT = 9.5
CAPTION_PT = 8.5

MAX_LETTERS = 400
"""Of a title or a subtitle."""
INDENT = 0.3
"""Left margin of texts, inches."""
EDGE = 0.16
"""Margin above and below, inches."""
LINE_HEIGHT = 1.35
"""Line height as a multiple of the font size."""
MEAN_LETTER = 0.57
"""Mean letter width as a multiple of the font size."""

SUFFIXES = (".png", ".svg", ".pdf")
PNG_DPI = 200

DARKEST = 0.09
"""Lightness of the dark background, 0 to 1."""
MIN_CONTRAST = 4.6
"""Minimum contrast of lines and texts to it; WCAG 2.2 requires 4.5 for texts (success criterion
1.4.3).
"""
MIN_CHROMA = 0.12
"""Less saturated colors are those of texts, frames and backgrounds."""

_drawn_in: ContextVar[str] = ContextVar("theme", default="light")


def tone(color: str) -> str:
    return on_dark(color) if is_dark() else color


def is_dark() -> bool:
    return _drawn_in.get() == "dark"


@cache
def on_dark(color: str) -> str:
    """Return a color for the dark theme: grays are inverted, colors get lighter up to
    `MIN_CONTRAST`.
    """
    from matplotlib.colors import to_hex, to_rgb

    rgb = to_rgb(color)
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    if max(rgb) - min(rgb) < MIN_CHROMA:
        return to_hex((1 - (1 - DARKEST) * lightness,) * 3)
    background = contrast_to_white(DARKEST, DARKEST, DARKEST)
    while (
        background / contrast_to_white(*colorsys.hls_to_rgb(hue, lightness, saturation))
        < MIN_CONTRAST
    ):
        lightness += 0.01
    return to_hex(colorsys.hls_to_rgb(hue, lightness, saturation))


def contrast_to_white(red: float, green: float, blue: float) -> float:
    """Return the contrast ratio of a color, with components from 0 to 1, to a white background.

    Source: W3C, Web Content Accessibility Guidelines 2.2, definitions of contrast ratio and
    relative luminance.
    """
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (red, green, blue)
    ]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def plain(text: str, longest: int = 48) -> str:
    """Return `text` in one line for matplotlib, where a dollar sign would start a formula."""
    return one_line(text, longest).replace("$", r"\$")


def end_of(name: str, longest: int) -> str:
    """Shorten a name to its end, where the name of a function is."""
    shown = one_line(name, 400)
    return shown if len(shown) <= longest else "…" + shown[1 - longest :]


def series_color(index: int) -> str:
    return tone(SERIES_COLORS[index % len(SERIES_COLORS)])


def frame(axes: Axes, grid: str = "both") -> None:
    axes.grid(axis=grid, color=tone(GRID), linewidth=0.9)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=TICK_PT, labelcolor=tone(MUTED), pad=6)
    for side in axes.spines.values():
        side.set_color(tone(SPINE))
    axes.spines[["top", "right"]].set_visible(False)


def titled_figure(width: float, title: str, subtitle: str, below: float) -> tuple[Figure, float]:
    """Return a figure with a wrapped title and subtitle, and `below` inches under them, with the
    end of the subtitle as a fraction of the height.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, below), dpi=100)
    FigureCanvasAgg(figure)

    def png() -> bytes:
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=PNG_DPI / 2)
        return stream.getvalue()

    # Without it a notebook shows a figure only if pyplot is imported.
    figure._repr_png_ = png  # type: ignore[attr-defined]
    head = wrapped(plain(title, MAX_LETTERS), width, TITLE_PT * 1.15)
    foot = wrapped(plain(subtitle, MAX_LETTERS), width, SUBTITLE_PT)
    texts_pt = len(head) * TITLE_PT + len(foot) * SUBTITLE_PT
    height = below + texts_pt / 72 * LINE_HEIGHT + 2 * EDGE
    figure.set_size_inches(width, height)
    top = write_lines(figure, head, height - EDGE, TITLE_PT, INK, "bold")
    write_lines(figure, foot, top, SUBTITLE_PT)
    return figure, below / height


def write_lines(
    figure: Figure,
    lines: Iterable[str],
    top: float,
    size: float,
    color: str = MUTED,
    weight: str = "normal",
) -> float:
    """Write lines from `top` inches above the lower edge downwards; return where they end."""
    width, height = figure.get_size_inches()
    ink = tone(color)
    for line in lines:
        figure.text(
            INDENT / width,
            top / height,
            line,
            fontsize=size,
            fontweight=weight,
            color=ink,
            va="top",
        )
        top -= size / 72 * LINE_HEIGHT
    return top


def wrapped(text: str, width: float, size: float) -> list[str]:
    """Return the lines of a text of this font size in a figure of this width, inches."""
    return wrap(text, int((width - 2 * INDENT) * 72 / (size * MEAN_LETTER)), break_on_hyphens=False)


@contextlib.contextmanager
def own_style(theme: str = "light") -> Iterator[None]:
    """Draw without the user's style, and without warnings about missing glyphs."""
    import matplotlib

    if theme not in THEMES:
        raise ValueError(f"unknown theme '{theme}' (choose from {', '.join(THEMES)})")
    with matplotlib.rc_context(), warnings.catch_warnings():
        _drawn_in.set(theme)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": "roofmark",
                "pdf.fonttype": 42,
                "font.family": "DejaVu Sans",
                "figure.facecolor": tone("white"),
                "axes.facecolor": tone("white"),
                "text.color": tone(INK),
                "axes.labelcolor": tone(INK),
                "axes.labelsize": AXIS_PT,
                "legend.fontsize": LEGEND_PT,
                "legend.frameon": False,
            }
        )
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        try:
            yield
        finally:
            _drawn_in.set(THEMES[0])


def check_picture(path: Path) -> None:
    """Raise StoreError if no plot can be written to a path, before any work is done."""
    from results.store.runfile import StoreError

    shown = one_line(str(path), 200)
    if path.suffix.lower() not in SUFFIXES:
        raise StoreError(
            f"cannot tell the format of '{shown}' by its suffix; allowed: {', '.join(SUFFIXES)}"
        )
    try:
        if path.is_dir():
            raise StoreError(f"cannot write '{shown}': it is a directory; name a file in it")
        if not next(folder for folder in path.absolute().parents if folder.exists()).is_dir():
            raise StoreError(f"cannot write '{shown}': a parent is a file; choose another path")
    except OSError as error:
        raise StoreError(f"cannot write '{shown}': {error.strerror}") from None


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure in the format of its suffix; the same figure gives the same bytes."""
    from results.store.runfile import write_output

    check_picture(path)
    form = path.suffix.lower()
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(form, {})
    content = io.BytesIO()
    with own_style():
        figure.savefig(content, format=form[1:], dpi=PNG_DPI, metadata=undated)
    write_output(path, content.getvalue())
