"""The sheet of a roofline plot: title, legend, axes and caption, laid out in inches so that nothing is clipped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from results.show.picture import AXIS_PT, CAPTION_PT, INK, LEGEND_PT, MUTED, SUBTITLE_PT, TITLE_PT, frame
from results.show.theme import tone
from roofline.plot.labels import Box, Spot
from roofline.plot.scene import WIDEST_DECADES, PlotError, Scene
from roofline.plot.style import rate_unit, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, RIGHT, TOP, BOTTOM = 0.95, 0.36, 0.16, 0.12
"""Margins around the axes (left, right) and around everything (top, bottom), inches."""
WIDTHS = (9.0, 11.0, 13.5)
"""Widths of the figure in inches; a wider one is taken only where the labels have no room on a narrower one."""
PT = 1 / 72
"""A point of print in inches."""
CIRCLE_MARGIN = 0.06
"""Least distance from the circle of a part of a profile to the axes, inches."""
INDENT = 0.3
"""Left end of title, legend and caption, inches."""
RATIOS = (0.55, 0.85)
"""Least and largest height of the axes over their width."""
ROW_HEIGHT = 0.26
"""Of the legend, inches."""
LINE_HEIGHT = 1.35
"""Of a line of text over its font size."""
TICK_SPACE = 0.62
"""Height of tick labels and axis label."""
TICK_WIDTH = 0.6
"""Room for the longest label of a decade, inches."""


@dataclass(frozen=True)
class View:
    """The part of the plane that is drawn, as decimal logarithms."""

    left: float
    right: float
    bottom: float
    top: float

    @property
    def ratio(self) -> float:
        """Height over width of the axes, with a decade as long in both directions."""
        return (self.top - self.bottom) / (self.right - self.left)


def view_of(scene: Scene) -> View:
    """Return a view that holds all ridge points and points, with room for labels and for ceilings past the last point.

    Raises:
        PlotError: the values are too far apart to be those of a machine.
    """
    ridges = [math.log10(flat.ridge) for flat in scene.flats if flat.ridge]
    points = [math.log10(point.intensity) for point in scene.points]
    slopes = [math.log10(slope.bandwidth.value) for slope in scene.slopes]
    flats = [math.log10(flat.peak.value) for flat in scene.flats]
    low = [math.log10(min(point.low, point.flops_per_s)) for point in scene.points]
    high = [math.log10(max(point.high, point.flops_per_s)) for point in scene.points]
    corners = ridges or points or [0.0]
    past = 0.5 if len(flats) <= 2 else 0.9  # several ceilings are labeled past the points
    before, after = (0.7, 1.1) if points else (1.2, 1.5)
    left = min([min(corners) - before, *(point - 0.35 for point in points)])
    right = max([max(corners) + after, *(point + past for point in points)])
    reached = flats or [slope + (left + right) / 2 for slope in slopes]
    top = max([*reached, *high]) + (right - left) * (0.05 + 0.02 * len(scene.kinds))  # each kind brings a label more
    bottom = min([min(reached) - 0.6, *(max(slopes) + left for _ in slopes[:1]), *(value - 0.3 for value in low)])
    if max(right - left, top - bottom) > WIDEST_DECADES:
        raise PlotError(f"ceilings and points span more than {WIDEST_DECADES} decades: the values cannot be right")
    view = fitted(View(left, right, bottom, top))
    return around_circles(view, scene) if scene.is_profile else view


def around_circles(view: View, scene: Scene) -> View:
    """Return a larger view that holds all circles of a profile whole, on the narrowest sheet and so on every other."""
    wide = WIDTHS[0] - LEFT - RIGHT
    spots = [(math.log10(p.intensity), math.log10(p.flops_per_s), p.diameter_pt) for p in scene.points]
    while True:
        inch = (view.right - view.left) / wide  # in decades; it grows with the view, and the circles with it
        circles = [(x, y, (size * PT / 2 + CIRCLE_MARGIN / 2) * inch) for x, y, size in spots]
        if all(
            view.left <= x - r and x + r <= view.right and view.bottom <= y - r and y + r <= view.top
            for x, y, r in circles
        ):
            return view
        circles = [(x, y, r + CIRCLE_MARGIN / 2 * inch) for x, y, r in circles]
        view = fitted(
            replace(
                view,
                left=min(view.left, *(x - r for x, _, r in circles)),
                right=max(view.right, *(x + r for x, _, r in circles)),
                bottom=min(view.bottom, *(y - r for _, y, r in circles)),
                top=max(view.top, *(y + r for _, y, r in circles)),
            )
        )


def fitted(view: View) -> View:
    """Return a larger view whose shape is within `RATIOS`."""
    least, largest = RATIOS
    tall, wide = view.top - view.bottom, view.right - view.left
    if view.ratio > largest:
        more = tall / largest - wide
        return replace(view, left=view.left - 0.4 * more, right=view.right + 0.6 * more)
    if view.ratio < least:
        return replace(view, bottom=view.top - least * wide)
    return view


@dataclass(frozen=True)
class Key:
    """One entry of the legend."""

    label: str
    style: dict[str, Any] = field(default_factory=dict)
    """How the sample is drawn, as arguments of a line; nothing for the heading of a group."""
    is_line: bool = False
    """Whether the sample is a line; else it is one marker."""

    @property
    def sample_width(self) -> float:
        """Width of the sample with the space after it, inches."""
        return 0.0 if not self.style else 0.52 if self.is_line else 0.22


class Sheet:
    """A figure with its axes, and the words around them."""

    is_small = False
    """Whether labels are short, for want of room."""

    def __init__(
        self,
        view: View,
        title: tuple[str, str],
        keys: Sequence[Key],
        caption: str,
        width: float,
    ) -> None:
        """Lay out the sheet.

        Args:
            view: the part of the plane in the axes.
            title: the title and the line under it.
            keys: entries of the legend.
            caption: text under the axes; room is kept for it, `write_caption` writes it.
            width: of the figure, inches.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.view, self.left, self.width = view, LEFT, width
        self.figure: Figure = Figure(figsize=(width, 1), dpi=100)
        canvas: Any = FigureCanvasAgg(self.figure)
        self._renderer = canvas.get_renderer()
        self._measures: dict[tuple[str, float, str], tuple[float, float]] = {}
        titles = self._wrapped(title[0], TITLE_PT, "bold")
        rows = self._rows(keys)
        head = _lines_height(len(titles), TITLE_PT) + _lines_height(1, SUBTITLE_PT) + ROW_HEIGHT * len(rows) + 0.12
        self.floor = BOTTOM + _lines_height(len(self._wrapped(caption, CAPTION_PT)), CAPTION_PT) + TICK_SPACE
        self.ceiling = self.floor + self.wide * view.ratio
        self.height = self.ceiling + head + TOP
        self.figure.set_size_inches(self.width, self.height)
        self.axes = self._axes()
        self._write_head(titles, title[1], rows)

    @property
    def wide(self) -> float:
        """Width of the axes, inches."""
        return self.width - self.left - RIGHT

    @property
    def bounds(self) -> Box:
        """The axes in inches, less a thin margin: where labels may be."""
        return (self.left + 0.05, self.floor + 0.05, self.width - RIGHT, self.ceiling - 0.02)

    def inches(self, x: float, y: float) -> Spot:
        """Return where a point of the plane lies, in inches from the lower left corner of the figure."""
        scale = self.wide / (self.view.right - self.view.left)
        return (
            self.left + (math.log10(x) - self.view.left) * scale,
            self.floor + (math.log10(y) - self.view.bottom) * scale,
        )

    def measure(self, text: str, size: float, weight: str = "normal") -> tuple[float, float]:
        """Return width and height of a line of text in inches."""
        key = (text, size, weight)
        if key not in self._measures:
            from matplotlib.text import Text

            artist = Text(0, 0, text, fontsize=size, fontweight=weight, figure=self.figure)
            box = artist.get_window_extent(self._renderer)
            self._measures[key] = (box.width / self.figure.dpi, box.height / self.figure.dpi)
        return self._measures[key]

    def write(self, x: float, y: float, text: str, size: float, **style: Any) -> None:
        """Write a line of text at a place in inches."""
        style = {"color": tone(INK), "va": "center"} | style
        self.figure.text(x, y, text, fontsize=size, transform=self.figure.dpi_scale_trans, **style)

    def plot(self, spots: Iterable[Spot], **style: Any) -> None:
        """Draw a line, or markers, at places of the plane."""
        xs, ys = zip(*spots, strict=True)
        self.axes.plot(xs, ys, **style)

    def draw_line(self, spots: Iterable[Spot], **style: Any) -> None:
        """Draw a line, or markers, at places in inches."""
        from matplotlib.lines import Line2D

        xs, ys = zip(*spots, strict=True)
        self.figure.add_artist(Line2D(xs, ys, transform=self.figure.dpi_scale_trans, **style))

    def write_caption(self, caption: str) -> None:
        """Write the text under the axes, wrapped to the width of the figure."""
        y = self.floor - TICK_SPACE
        for line in self._wrapped(caption, CAPTION_PT):
            self.write(INDENT, y, line, CAPTION_PT, color=tone(MUTED), va="top")
            y -= CAPTION_PT / 72 * LINE_HEIGHT

    def _axes(self) -> Axes:
        wide, tall = self.wide, self.ceiling - self.floor
        place = (self.left / self.width, self.floor / self.height, wide / self.width, tall / self.height)
        axes: Axes = self.figure.add_axes(place)
        _span(axes, self.view, wide)
        axes.set_aspect("equal")
        return axes

    def _write_head(self, titles: list[str], subtitle: str, rows: list[list[tuple[float, Key]]]) -> None:
        y = self.height - TOP
        for line in titles:
            self.write(INDENT, y, line, TITLE_PT, fontweight="bold", va="top")
            y -= TITLE_PT / 72 * LINE_HEIGHT
        self.write(INDENT, y, subtitle, SUBTITLE_PT, color=tone(MUTED), va="top")
        y -= SUBTITLE_PT / 72 * LINE_HEIGHT + 0.18
        for row in rows:
            for x, key in row:
                if key.style:
                    self.draw_line([(x, y), (x + 0.44, y)] if key.is_line else [(x + 0.08, y)], **key.style)
                color = tone(INK if key.style else MUTED)
                self.write(x + key.sample_width, y, key.label, LEGEND_PT, color=color)
            y -= ROW_HEIGHT

    def _rows(self, keys: Sequence[Key]) -> list[list[tuple[float, Key]]]:
        rows: list[list[tuple[float, Key]]] = []
        x = self.width
        widths = [key.sample_width + self.measure(key.label, LEGEND_PT)[0] for key in keys]
        for key, width, following in zip(keys, widths, (*widths, 0.0)[1:], strict=True):
            needed = width if key.style else width + 0.12 + following  # a heading stands before its first entry
            if x + needed > self.width - RIGHT:
                rows.append([])
                x = INDENT
            rows[-1].append((x, key))
            x += width + (0.25 if key.style else 0.12)
        return rows

    def _wrapped(self, text: str, size: float, weight: str = "normal") -> list[str]:
        room = self.width - INDENT - RIGHT
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.measure(longer, size, weight)[0] <= room:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines


def _span(axes: Axes, view: View, wide: float) -> None:
    """Give axes the limits, the ticks and the names of a view; `wide` is their width in inches."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set(xscale="log", yscale="log", autoscale_on=False)
    axes.set(xlim=(10**view.left, 10**view.right), ylim=(10**view.bottom, 10**view.top))
    y_unit, y_name = rate_unit(10**view.top)
    step = math.ceil(TICK_WIDTH * (view.right - view.left) / wide)  # decades from number to number
    for axis, factor in ((axes.xaxis, 1.0), (axes.yaxis, y_unit)):
        axis.set_major_locator(LogLocator(base=10, numticks=WIDEST_DECADES))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(partial(_tick_of_step, factor=factor, step=step)))
    frame(axes)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)", fontsize=AXIS_PT, color=tone(INK), labelpad=5)
    axes.set_ylabel(f"Performance ({y_name})", fontsize=AXIS_PT, color=tone(INK), labelpad=5)


class AxesSheet(Sheet):
    """Axes of somebody's own figure as a sheet: the title above them, the legend below them, and no caption."""

    is_small = True

    def __init__(self, view: View, title: tuple[str, str], keys: Sequence[Key], axes: Axes) -> None:
        """Take axes over.

        Args:
            view: the part of the plane in the axes; a decade may be longer on one of them.
            title: the title and the line under it, of which the first is written.
            keys: entries of the legend.
            axes: where they are now, as large as they are now.
        """
        from matplotlib.backends.backend_agg import RendererAgg

        self.view, self.axes = view, axes
        figure: Any = axes.figure
        self.figure = figure.figure  # of a part of a figure the whole
        dpi = self.figure.dpi
        make: Any = RendererAgg
        self._renderer = make(*self.figure.bbox.size, dpi)
        self._measures = {}
        box = axes.get_window_extent(self._renderer)
        self.left, self.floor, self.width, self.ceiling = box.x0 / dpi, box.y0 / dpi, box.x1 / dpi + RIGHT, box.y1 / dpi
        _span(axes, view, self.wide)
        axes.set_facecolor(tone("white"))
        axes.set_title(title[0], fontsize=AXIS_PT, color=tone(INK), loc="left")
        self._write_legend(keys)

    def inches(self, x: float, y: float) -> Spot:
        """Return where a point of the plane lies, in inches from the lower left corner of the figure."""
        view = self.view
        across = (math.log10(x) - view.left) / (view.right - view.left)
        up = (math.log10(y) - view.bottom) / (view.top - view.bottom)
        return self.left + across * self.wide, self.floor + up * (self.ceiling - self.floor)

    def write(self, x: float, y: float, text: str, size: float, **style: Any) -> None:
        """Write a line of text at a place in inches, so that it moves with the axes."""
        style = {"color": tone(INK), "va": "center"} | style
        self.axes.text(*self._share(x, y), text, fontsize=size, transform=self.axes.transAxes, **style)

    def draw_line(self, spots: Iterable[Spot], **style: Any) -> None:
        """Draw a line, or markers, at places in inches, so that they move with the axes."""
        from matplotlib.lines import Line2D

        xs, ys = zip(*(self._share(*spot) for spot in spots), strict=True)
        self.axes.add_artist(Line2D(xs, ys, transform=self.axes.transAxes, **style))

    def write_caption(self, caption: str) -> None:
        """Write nothing: what stands under somebody's axes is theirs."""

    def _share(self, x: float, y: float) -> Spot:
        return (x - self.left) / self.wide, (y - self.floor) / (self.ceiling - self.floor)

    def _write_legend(self, keys: Sequence[Key]) -> None:
        from matplotlib.lines import Line2D

        shown = [key for key in keys if key.style]
        if shown:
            handles = [Line2D([], [], label=key.label, **key.style) for key in shown]
            style: dict[str, Any] = {"frameon": False, "fontsize": LEGEND_PT, "labelcolor": tone(INK)}
            place = (0, -TICK_SPACE / (self.ceiling - self.floor))
            columns = max(1, min(len(handles), int(self.wide / 1.6)))
            self.axes.legend(handles=handles, loc="upper left", bbox_to_anchor=place, ncols=columns, **style)


def _tick_of_step(value: float, _: object, factor: float, step: int) -> str:
    """Return the label of a decade, or none between two labels that would meet."""
    return tick(value / factor) if round(math.log10(value / factor)) % step == 0 else ""


def _lines_height(lines: int, size: float) -> float:
    return lines * size / 72 * LINE_HEIGHT
