"""What all pictures of the project have in common: colors, sizes of letters, the frame of axes, and the file."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.show.export import write_output
from results.show.terminal import one_line
from results.store.runfile import StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1A1A1A"
MUTED = "#5A5A5A"
GRID = "#E2E2E2"
SPINE = "#B8B8B8"
BAND = "#EEF1F3"
"""Of a range in which nothing is told apart, such as the margin of a comparison."""

SERIES_COLORS = ("#0072B2", "#D55E00", "#009E73", "#882255", "#CC79A7", "#56B4E9", "#E69F00", "#332288")
"""Of the first, second, ... provider, machine or line, where color tells these apart.

Source: Okabe and Ito, Color Universal Design (2008), with wine and indigo of Tol, Colour Schemes (2021).
"""
SERIES_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
"""As many as have no common factor with the colors, so that many series look different, without color too."""

TITLE_PT, SUBTITLE_PT, AXIS_PT, TICK_PT = 15, 11, 11, 10.5
LABEL_PT, POINT_PT, LEGEND_PT, CAPTION_PT = 10.5, 9.5, 9.5, 8.5

SUFFIXES = (".png", ".svg", ".pdf")
PNG_DPI = 200


def plain(text: str, longest: int = 48) -> str:
    """Return `text` as matplotlib draws it in one line: a dollar sign would start a formula there."""
    return one_line(text, longest).replace("$", r"\$")


def series_color(index: int) -> str:
    """Return the color of the `index`-th series; they start over when there are more than colors."""
    return SERIES_COLORS[index % len(SERIES_COLORS)]


def frame(axes: Axes, grid: str = "both") -> None:
    """Give axes the frame of all pictures: two pale spines, a pale grid, no marks at the ticks.

    Args:
        axes: to draw in.
        grid: which of the axes has lines: `x`, `y` or `both`.
    """
    axes.grid(axis=grid, color=GRID, linewidth=0.9)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=TICK_PT, labelcolor=MUTED, pad=6)
    for side in axes.spines.values():
        side.set_color(SPINE)
    axes.spines[["top", "right"]].set_visible(False)


def head(figure: Figure, title: str, subtitle: str) -> float:
    """Write a bold title and the line under it, each wrapped to the width, at the top left of a figure.

    Returns:
        The height that they take, inches.
    """
    from textwrap import wrap

    width, height = figure.get_size_inches()
    y = height - 0.16
    for text, size, weight, color in ((title, TITLE_PT, "bold", INK), (subtitle, SUBTITLE_PT, "normal", MUTED)):
        for line in wrap(text, max(20, int((width - 0.6) * 72 / (size * (0.62 if weight == "bold" else 0.53))))):
            figure.text(0.3 / width, y / height, line, fontsize=size, fontweight=weight, color=color, va="top")
            y -= size / 72 * 1.35
    return float(height - y)


@contextlib.contextmanager
def own_style() -> Iterator[None]:
    """Draw alike on every machine: without the user's style, and quiet about letters that the font lacks."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.hashsalt": "ridgepoint", "pdf.fonttype": 42, "font.family": "DejaVu Sans"})
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure by the suffix of its path, the whole of it or nothing; the same figure gives the same bytes.

    Raises:
        StoreError: the suffix is not one of `SUFFIXES`, or the file cannot be written.
    """
    form = path.suffix.lower()
    if form not in SUFFIXES:
        raise StoreError(f"-o {path}: the suffix names no format; allowed: {', '.join(SUFFIXES)}")
    undated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(form, {})
    content = io.BytesIO()
    with own_style():
        figure.savefig(content, format=form[1:], dpi=PNG_DPI, metadata=undated)
    write_output(path, content.getvalue())
