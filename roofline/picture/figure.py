"""Roofline plots by matplotlib, in landscape."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.record import Environment, Object, Record
from results.show.picture import (
    AXIS_PT,
    CAPTION_PT,
    INK,
    LABEL_PT,
    MUTED,
    POINT_PT,
    frame,
    own_style,
    plain,
    save_picture,
    titled_figure,
    tone,
    wrapped,
    write_lines,
)
from results.show.units import count, number
from roofline.picture.build import build_scene
from roofline.picture.scene import Point, Roof, Scene, Spot
from roofline.picture.style import KIND_DASHES, MARKERS, machine_width, text_color
from roofline.picture.texts import (
    UP_TO_TERA,
    caption,
    flat_labels,
    ridge_labels,
    shared_color,
    slope_labels,
    title_lines,
    version_steps,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation

Line = tuple[Spot, Spot]
WIDTH = 11.0
"""Width of the figure, inches."""
LEFT = 0.95
RIGHT = 0.3
"""Margins of the axes, inches."""
HEIGHT = 4.6
"""Height of the axes, inches."""
TICKS = 0.84
"""Height of the axis labels, inches."""
LEGEND_ROW = 0.25
CAPTION_ROW = 0.17
"""Heights of one row of legend and caption, inches."""
LINE_PT = 15.0
"""Height of a line of a roof label, points."""
MARKER_PT = 7.5
RING_PT = 16
"""Diameters of markers and of rings around them."""
MIX_WIDTH = 0.8
"""Line width of mixes."""
LETTERS_PER_INCH = 13.3
MAX_LEGEND_LETTERS = 90


def draw_roofline(
    scene: Scene, title: str | None = None, axes: Axes | None = None, theme: str = "light"
) -> Figure:
    """Return the plot of a scene.

    Args:
        scene: result of `build_scene`.
        title: title (default: names of the machines).
        axes: axes to draw in, without the caption; None for a new figure.
        theme: one of `THEMES`.
    """
    names, subtitle = title_lines(scene)
    heading = names if title is None else title
    with own_style(theme):
        handles = _legend_handles(scene)
        if axes is not None:
            axes.set_title(plain(heading, 200), fontsize=AXIS_PT, color=tone(INK), loc="left")
            axes.set_facecolor(tone("white"))
            if handles:
                axes.legend(
                    handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4
                )
            _draw(scene, axes)
            return axes.figure.figure
        lines = wrapped(caption(scene, _marks(scene)), WIDTH, CAPTION_PT)
        foot = CAPTION_ROW * len(lines)
        wide = WIDTH - LEFT - RIGHT
        longest = max((len(str(handle.get_label())) for handle in handles), default=0)
        columns = max(1, int(wide * LETTERS_PER_INCH / (longest + 5)))
        rows = math.ceil(len(handles) / columns)
        below = foot + TICKS + HEIGHT + LEGEND_ROW * rows + 0.1
        figure, _ = titled_figure(WIDTH, heading, subtitle, below)
        tall = figure.get_figheight()
        axes = figure.add_axes((LEFT / WIDTH, (foot + TICKS) / tall, wide / WIDTH, HEIGHT / tall))
        if handles:
            axes.legend(
                handles=handles,
                ncols=columns,
                loc="lower left",
                bbox_to_anchor=(-0.09, 1.0),
                borderpad=0,
                handletextpad=0.4,
                columnspacing=1.4,
            )
        _draw(scene, axes)
        write_lines(figure, lines, foot + 0.12, CAPTION_PT)
        return figure


def plot_run(
    environment: Environment, records: Sequence[Record], path: Path | None, theme: str = "light"
) -> Figure:
    """Draw the records of one run and the ceilings of their dtypes; if there is a path, into a
    file.

    Raises:
        NoCeilingError: no ceiling is known.
        StoreError: unknown suffix, or the file cannot be written.
    """
    dtypes = list(dict.fromkeys(record.dtype for record in records)) or None
    figure = draw_roofline(build_scene([(environment, records)], dtypes=dtypes), theme=theme)
    if path is not None:
        save_picture(figure, path)
    return figure


def _legend_handles(scene: Scene) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = []
    if len(scene.kinds) > 1:
        for kind in scene.kinds:
            handles.append(Line2D([], [], label=kind, **_line(INK, kind, 0)))
    if len(scene.machines) > 1:
        first = {roof.machine: roof.color for roof in reversed(scene.roofs)}
        for index, known in enumerate(scene.machines):
            style = _line(first.get(index, INK), "measured", index)
            handles.append(Line2D([], [], label=plain(known.slug), **style))
    series = {} if scene.is_profile else {scene.series_name(point): point for point in scene.points}
    if len(series) > 1:
        for name, point in series.items():
            style = _marker(point.color, point.shape)
            handles.append(Line2D([], [], label=plain(name, MAX_LEGEND_LETTERS), **style))
    for is_hollow, name in scene.fillings.items():
        handles.append(Line2D([], [], label=name, **_marker(MUTED, 0, is_hollow)))
    return handles


def _marks(scene: Scene) -> list[str]:
    """Return what the caption says about labels and marks."""
    if not scene.points:
        return []
    if scene.is_profile:
        drawn_pct = 100 * sum(point.share for point in scene.points)
        named = "module, operation" if scene.has_modules else "operation"
        return [
            f"Labels: {named}, share of time",
            f"Area: that share, {drawn_pct:.0f} % in all points",
        ]
    labels = "Labels: shape"
    if any(point.roofline_pct is not None for point in scene.points):
        labels += ", fraction of the roof"
        if any(len(known.mixes) > 1 for known in scene.machines):
            labels += " for the row's mix of reads and writes"
    marks = [labels, "Bars: 95 % CI of the median"]
    if version_steps(scene):
        marks.append("Arrows: from version to version, or from run to run")
    if any(point.cap for point in scene.points):
        marks.append("Caps: FLOPs over the launch floor, if below the roof")
    if any(roof.ceiling.band for roof in scene.roofs if not roof.is_mix):
        marks.append(
            "Bands: p5 to p95 of the samples of a measured roof, else the 95 % CI of its median"
        )
    return marks


def _marker(color: str, shape: int, is_hollow: bool = False) -> Object:
    return {
        "color": tone(color),
        "linestyle": "none",
        "marker": list(MARKERS)[shape % len(MARKERS)],
        "markersize": MARKER_PT,
        "markeredgewidth": 1.3,
        "markerfacecolor": tone("white" if is_hollow else color),
    }


def _line(color: str, kind: str, machine: int) -> Object:
    return {
        "color": tone(color),
        "linewidth": machine_width(machine),
        "dash_capstyle": "butt",
        "linestyle": (0, KIND_DASHES[kind]) if KIND_DASHES[kind] else "solid",
    }


def _draw(scene: Scene, axes: Axes) -> None:
    """Draw all but title, legend and caption."""
    _span(axes, scene)
    for roof in scene.roofs:
        style = _line(roof.color, roof.ceiling.kind, roof.machine)
        if roof.is_mix:
            _draw_roof(axes, scene, roof, {"color": tone(MUTED), "linewidth": MIX_WIDTH}, 2.5)
        elif not roof.is_flat:
            _draw_roof(axes, scene, roof, style, 3)
        if roof.corner:
            axes.plot(
                *roof.corner,
                "o",
                markersize=6,
                markeredgewidth=1.6,
                markeredgecolor=tone(roof.color),
                markerfacecolor=tone("white"),
                zorder=5,
            )
    for group in scene.flats:
        longest = min(group, key=lambda roof: roof.ridge or 0)
        style = _line(shared_color(group), longest.ceiling.kind, longest.machine)
        _draw_roof(axes, scene, longest, style, 3)
    series: dict[tuple[object, ...], list[Point]] = {}
    for point in sorted(scene.points, key=lambda point: (-(point.share), point.x, point.y)):
        if scene.is_profile:
            style = {"color": tone(point.color), "markeredgecolor": tone("white"), "alpha": 0.75}
            axes.plot(*point.spot, "o", ms=point.diameter_pt, mew=0.6, zorder=7, **style)
        else:
            series.setdefault(point.series, []).append(point)
    for points in series.values():
        _draw_series(points, axes)
    for old, new in version_steps(scene):
        style = {"arrowstyle": "-|>", "mutation_scale": 10, "color": tone(MUTED)}
        style |= {"shrinkA": 5, "shrinkB": 5}
        axes.annotate("", new.spot, old.spot, arrowprops=style, zorder=5.5)
    _label_roofs(scene, axes)
    _name_regimes(scene, axes)
    _label_points(scene, axes)


def _span(axes: Axes, scene: Scene) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    view = scene.view
    axes.set(xscale="log", yscale="log", autoscale_on=False)
    axes.set(xlim=(10**view.left, 10**view.right), ylim=(10**view.bottom, 10**view.top))
    largest = 10**view.top
    unit, prefix = next((entry for entry in UP_TO_TERA if largest >= 5 * entry[0]), UP_TO_TERA[-1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=12))
        axis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value / unit)))
    frame(axes)
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel(f"Performance ({prefix}FLOP/s)")


def _tick(value: float) -> str:
    return count(value) if value > 1 else number(value, 1)


def _draw_roof(axes: Axes, scene: Scene, roof: Roof, style: Object, layer: float) -> None:
    (x0, y0), (x1, y1) = roof.ends(scene.view)
    axes.plot([x0, x1], [y0, y1], zorder=layer, **style)
    if roof.ceiling.band and not roof.is_mix:
        low, high = (bound / roof.ceiling.value for bound in roof.ceiling.band)
        lows = (y0 * low, y1 * low)
        highs = (y0 * high, y1 * high)
        style = {"color": tone(roof.color), "alpha": 0.2, "linewidth": 0}
        axes.fill_between((x0, x1), lows, highs, zorder=2, **style)


def _draw_series(points: Sequence[Point], axes: Axes) -> None:
    color = tone(points[0].color)
    inside = [point for point in points if not point.is_outlier]
    xs = [point.x for point in inside]
    axes.plot(xs, [point.y for point in inside], color=color, linewidth=1, alpha=0.45, zorder=4)
    for point in points:
        at = [point.x, point.x]
        bar: Object = {"color": color, "marker": "_", "linewidth": 1.2, "markersize": 5}
        axes.plot(at, [point.low, point.high], markeredgewidth=1.2, zorder=6, **bar)
        if point.cap:
            axes.plot(at, [point.y, point.cap], color=color, lw=0.8, ls=(0, (1, 2)), zorder=4.4)
            axes.plot(point.x, point.cap, color=color, marker="_", ms=13, mew=1.8, zorder=4.6)
        axes.plot(*point.spot, zorder=7, **_marker(point.color, point.shape, point.is_hollow))
        if point.doubts:
            axes.plot(*point.spot, "x", ms=11, mew=1.3, mec=tone(INK), zorder=7.5)
        if point.excess:
            axes.plot(*point.spot, "o", ms=RING_PT, mfc="none", mec=tone(INK), mew=1.2, zorder=8)


def _write(
    axes: Axes,
    spot: Spot,
    offset_pt: Spot,
    text: str,
    color: str,
    **style: Any,
) -> Annotation:
    from matplotlib.patheffects import withStroke

    return axes.annotate(
        plain(text, 120),
        spot,
        offset_pt,
        textcoords="offset points",
        color=color,
        rotation_mode="anchor",
        zorder=9,
        path_effects=[withStroke(linewidth=2.5, foreground=tone("white"))],
        **{"fontsize": LABEL_PT} | style,
    )


def _label_roofs(scene: Scene, axes: Axes) -> None:
    one, ten = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    wide, tall = 72 / axes.figure.dpi * (ten - one)  # of a decade, points
    angle = math.degrees(math.atan2(tall, wide))
    line = LINE_PT / tall
    for label in [*flat_labels(scene, line), *slope_labels(scene, 1.2 * line)]:
        rise = -4.0 if label.is_below else 3.0
        offset = (-4.0, rise)
        style: Object = {"ha": "right", "va": "top" if label.is_below else "bottom"}
        if not label.roof.is_flat:
            offset = (-rise, rise)
            style |= {"ha": "center", "rotation": angle}
        if label.roof.is_mix:
            style["fontsize"] = POINT_PT
        text = ", ".join(label.lines)
        _write(axes, (10**label.x, 10**label.y), offset, text, text_color(label.color), **style)


def _name_regimes(scene: Scene, axes: Axes) -> None:
    """Say what is left and right of the ridge point, if there is only one."""
    corners = list({roof.corner for roof in scene.roofs if roof.is_flat})
    if len(corners) != 1 or corners[0] is None:
        return
    x, y = corners[0]
    foot = (x, 10**scene.view.bottom)
    color = tone(MUTED)
    axes.plot([x, x], [foot[1], y], color=color, linewidth=0.9, linestyle=(0, (1, 2.5)), zorder=1.5)
    style = {"fontsize": POINT_PT, "va": "bottom"}
    _write(axes, foot, (-8, 4), "memory-bound", color, ha="right", **style)
    _write(axes, foot, (8, 4), "compute-bound", color, ha="left", **style)


def _label_points(scene: Scene, axes: Axes) -> None:
    """Write the labels of ridge points and points where they fit."""
    import textalloc
    from matplotlib.transforms import Affine2D
    from numpy import transpose

    ridges = ridge_labels(scene)
    labels = [(corner, text, text_color(color)) for corner, (text, color) in ridges.items()]
    outliers = 0
    for point in scene.points:
        color = text_color(point.color)
        if point.is_outlier:
            offset = (6.0, 6.0 + LINE_PT * outliers)
            style = {"fontsize": POINT_PT, "va": "bottom"}
            _write(axes, point.spot, offset, point.label or "", color, **style)
            outliers += 1
        elif point.label:
            # Below the module of an operation its name fits where both in one line do not.
            end = ":\n" if scene.is_profile else ": "
            labels.append((point.spot, plain(point.label, 80).replace(": ", end), color))
    if not labels:
        return
    spots = [*ridges, *(point.spot for point in scene.points)]
    radii_px = [0.0] * len(spots)
    lines: list[Line] = [roof.ends(scene.view) for roof in scene.roofs]
    for text in axes.texts:
        angle = text.get_rotation()
        text.set_rotation(0)
        corners = text.get_window_extent().corners()
        text.set_rotation(angle)
        x, y = text.get_transform().transform(text.get_position())
        turn = Affine2D().rotate_deg_around(x, y, angle) - axes.transData
        lines += combinations(turn.transform(corners), 2)
    if scene.is_profile:
        radii_pt = [point.diameter_pt / 2 for point in scene.points]
        radii_px[len(ridges) :] = [radius / 72 * axes.figure.dpi for radius in radii_pt]
    else:
        lines += [((point.x, point.low), (point.x, point.high)) for point in scene.points]
        for one, two in pairwise(scene.points):
            if one.series == two.series:
                lines.append((one.spot, two.spot))
    places, texts, colors = zip(*labels, strict=True)
    x_texts, y_texts = transpose(places)
    x_spots, y_spots = transpose(spots)
    # textalloc prints if a label does not fit in its first direction.
    with redirect_stdout(io.StringIO()):
        textalloc.allocate(
            axes,
            x_texts,
            y_texts,
            list(texts),
            x_scatter=x_spots,
            y_scatter=y_spots,
            scatter_sizes=radii_px,  # type: ignore[arg-type]
            x_lines=[[a[0], b[0]] for a, b in lines],
            y_lines=[[a[1], b[1]] for a, b in lines],
            textsize=POINT_PT,
            textcolor=list(colors),
            linecolor=tone(MUTED),
            linewidth=0.7,
            draw_all=False,
            min_distance=0.012,
            max_distance=0.25,
            nbr_candidates=300,
            margin=0.006,
            avoid_label_lines_overlap=True,
            avoid_crossing_label_lines=True,
            zorder=9,
        )
