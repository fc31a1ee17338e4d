"""Roofline plots by matplotlib. Both log axes have the same scale, so a memory bandwidth is a line
of 45 degrees.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import combinations, groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record
from results.show.picture import (
    AXIS_PT,
    INK,
    LABEL_PT,
    LEGEND_PT,
    MUTED,
    POINT_PT,
    frame,
    new_figure,
    own_style,
    plain,
    save_picture,
    tone,
    write_caption,
    write_head,
)
from results.show.units import count, number
from roofline.picture.build import build_scene
from roofline.picture.scene import MAX_DECADES, Point, Roof, Scene
from roofline.picture.style import KIND_DASHES, MARKERS, machine_width, text_color
from roofline.picture.texts import (
    UP_TO_TERA,
    caption,
    flat_labels,
    shared_color,
    slope_labels,
    title_lines,
    version_steps,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

Line = tuple[tuple[float, float], tuple[float, float]]
WIDTH = 11.0
"""Width of the figure, inches."""
LEFT = 0.95
RIGHT = 0.3
"""Margins of the axes, inches."""
TICKS = 0.72
"""Height of the axis labels, inches."""
TICK_WIDTH = 0.6
"""Width of a tick label, inches."""
LEGEND_ROW = 0.25
CAPTION_ROW = 0.17
"""Heights of one row of legend and caption, inches."""
LINE_PT = 15.0
"""Height of a line of a roof label, points."""
LETTER_PT = 6.0
"""Width of a letter of a roof label, points."""
MARKER_PT = 7.5
RING_PT = 16
"""Diameters of markers and of rings around them."""
MIX_WIDTH = 0.8
"""Line width of mixes."""
SAME_SPOT = 0.12
"""Distance of ridge points that share a label, inches."""
TURN = 10.0
"""Dash length of coinciding roofs, line widths."""
LETTERS_PER_INCH = 13.0
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
        if axes is None:
            axes = _new_axes(scene, plain(heading, 200), plain(subtitle, 200), handles)
            unlabeled = _draw(scene, axes)
            write_caption(axes.figure.figure, caption(scene, unlabeled), _caption_height(scene))
        else:
            axes.set_title(plain(heading, 200), fontsize=AXIS_PT, color=tone(INK), loc="left")
            axes.set_facecolor(tone("white"))
            if handles:
                axes.legend(
                    handles=handles,
                    fontsize=LEGEND_PT,
                    frameon=False,
                    loc="upper center",
                    bbox_to_anchor=(0.5, -0.12),
                    ncols=min(4, len(handles)),
                )
            _draw(scene, axes)
        return axes.figure.figure


def plot_run(
    environment: Environment, records: Sequence[Record], path: Path | None, theme: str = "light"
) -> Figure:
    """Draw the records of one run and the ceilings of their dtypes; if there is a path, into a
    file.

    Raises:
        NoCeilingError: no ceiling is known.
        StoreError: unknown suffix, or the file cannot be written.
        CeilingError: invalid ceilings in the environment.
    """
    dtypes = list(dict.fromkeys(record.dtype for record in records)) or None
    figure = draw_roofline(build_scene([(environment, records)], dtypes=dtypes), theme=theme)
    if path is not None:
        save_picture(figure, path)
    return figure


def _caption_height(scene: Scene) -> float:
    letters = len(caption(scene, len(scene.points)))
    return 0.12 + CAPTION_ROW * math.ceil(1.08 * letters / (WIDTH * LETTERS_PER_INCH))


def _new_axes(scene: Scene, title: str, subtitle: str, handles: Sequence[Line2D]) -> Axes:
    wide = WIDTH - LEFT - RIGHT
    tall = wide * scene.view.ratio
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    columns = max(1, min(len(handles), int(wide * LETTERS_PER_INCH / (longest + 6))))
    rows = math.ceil(len(handles) / columns)
    floor = _caption_height(scene) + TICKS
    figure = new_figure(WIDTH, 1.0)
    write_head(figure, title, subtitle, floor + tall + LEGEND_ROW * rows + 0.1)
    height = figure.get_figheight()
    axes = figure.add_axes((LEFT / WIDTH, floor / height, wide / WIDTH, tall / height))
    axes.set_aspect("equal")
    if handles:
        axes.legend(
            handles=handles,
            fontsize=LEGEND_PT,
            frameon=False,
            ncols=columns,
            loc="lower left",
            bbox_to_anchor=(-0.09, 1.0),
            borderpad=0,
            handletextpad=0.4,
            columnspacing=1.4,
        )
    return axes


def _legend_handles(scene: Scene) -> list[Line2D]:
    from matplotlib.lines import Line2D

    handles = []
    if len(scene.kinds) > 1:
        handles += [Line2D([], [], label=kind, **_roof_style(INK, kind)) for kind in scene.kinds]
    if len(scene.machines) > 1:
        for index, known in enumerate(scene.machines):
            color = next((roof.color for roof in scene.roofs if roof.machine == index), INK)
            handles.append(
                Line2D([], [], label=plain(known.slug), **_roof_style(color, "measured", index))
            )
    series = {} if scene.is_profile else {scene.series_name(point): point for point in scene.points}
    if len(series) > 1:
        for name, point in series.items():
            handles.append(
                Line2D(
                    [],
                    [],
                    label=plain(name, MAX_LEGEND_LETTERS),
                    **_marker(point.color, point.shape),
                )
            )
    for is_hollow, name in scene.fillings.items():
        handles.append(Line2D([], [], label=name, **_marker(MUTED, 0, is_hollow)))
    return handles


def _marker(color: str, shape: int, is_hollow: bool = False) -> dict[str, Any]:
    color = tone(color)
    name = list(MARKERS)[shape % len(MARKERS)]
    style = {"color": color, "linestyle": "none", "marker": name, "markersize": MARKER_PT}
    style |= {"markeredgecolor": color, "markeredgewidth": 1.3}
    return style | ({"markerfacecolor": tone("white")} if is_hollow else {})


def _roof_style(
    color: str, kind: str, machine: int = 0, turn: int = 0, turns: int = 1
) -> dict[str, Any]:
    pattern: Any = (0, KIND_DASHES[kind]) if KIND_DASHES[kind] else "solid"
    if turns > 1:
        pattern = (TURN * turn, (TURN, TURN * (turns - 1)))
    return {
        "color": tone(color),
        "linewidth": machine_width(machine),
        "dash_capstyle": "butt",
        "linestyle": pattern,
    }


def _draw(scene: Scene, axes: Axes) -> int:
    _span(axes, scene)
    for roof in scene.roofs:
        if roof.is_mix:
            _draw_roof(axes, scene, roof, {"color": tone(MUTED), "linewidth": MIX_WIDTH}, 2.5)
        elif not roof.is_flat:
            _draw_roof(
                axes, scene, roof, _roof_style(roof.color, roof.ceiling.kind, roof.machine), 3
            )
    for group in scene.flats:
        colors = list(dict.fromkeys(roof.color for roof in group))
        for turn, color in enumerate(colors):
            roof = min(
                (roof for roof in group if roof.color == color), key=lambda roof: roof.ridge or 0
            )
            style = _roof_style(color, roof.ceiling.kind, roof.machine, turn, len(colors))
            _draw_roof(axes, scene, roof, style, 3)
    for roof in scene.roofs:
        if roof.corner:
            style = {
                "marker": "o",
                "markersize": 6,
                "markeredgewidth": 1.6,
                "markeredgecolor": tone(roof.color),
            }
            x, y = roof.corner
            axes.plot([x], [y], markerfacecolor=tone("white"), zorder=5, **style)
    if scene.is_profile:
        for point in sorted(scene.points, key=lambda point: -(point.share or 0)):
            x, y = point.spot
            axes.plot(
                [x],
                [y],
                "o",
                ms=point.diameter_pt,
                color=tone(point.color),
                alpha=0.75,
                mec=tone("white"),
                mew=0.6,
                zorder=7,
            )
    else:
        ordered = sorted(
            scene.points, key=lambda point: (*map(str, point.series), point.x, point.record.flops)
        )
        for _, series in groupby(ordered, key=lambda point: point.series):
            _draw_series(list(series), axes)
        _draw_arrows(scene, axes)
    return _write_labels(scene, axes)


def _span(axes: Axes, scene: Scene) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    view = scene.view
    axes.set(xscale="log", yscale="log", autoscale_on=False)
    axes.set(xlim=(10**view.left, 10**view.right), ylim=(10**view.bottom, 10**view.top))
    wide = axes.get_window_extent().width / axes.figure.dpi
    step = math.ceil(TICK_WIDTH * (view.right - view.left) / wide)  # decades per tick label
    largest = 10**view.top
    unit, prefix = next((entry for entry in UP_TO_TERA if largest >= 5 * entry[0]), UP_TO_TERA[-1])
    for axis, factor in ((axes.xaxis, 1.0), (axes.yaxis, unit)):
        axis.set_major_locator(LogLocator(base=10, numticks=MAX_DECADES))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(partial(_tick_label, factor=factor, step=step)))
    frame(axes)
    axes.set_xlabel(
        "Arithmetic intensity (FLOP/byte)", fontsize=AXIS_PT, color=tone(INK), labelpad=5
    )
    axes.set_ylabel(f"Performance ({prefix}FLOP/s)", fontsize=AXIS_PT, color=tone(INK), labelpad=5)


def _tick_label(value: float, _: int, factor: float, step: int) -> str:
    shown = value / factor
    if round(math.log10(shown)) % step:
        return ""
    return count(shown) if shown > 1 else number(shown, 1)


def _draw_roof(axes: Axes, scene: Scene, roof: Roof, style: dict[str, Any], layer: float) -> None:
    (x0, y0), (x1, y1) = roof.ends(scene.view)
    axes.plot([x0, x1], [y0, y1], zorder=layer, **style)
    if roof.ceiling.band and not roof.is_mix:
        low, high = (bound / roof.ceiling.value for bound in roof.ceiling.band)
        axes.fill_between(
            (x0, x1),
            (y0 * low, y1 * low),
            (y0 * high, y1 * high),
            color=tone(roof.color),
            alpha=0.2,
            linewidth=0,
            zorder=2,
        )


def _draw_series(points: Sequence[Point], axes: Axes) -> None:
    color = tone(points[0].color)
    line = [(point.x, point.y) for point in points if not point.is_outlier]
    axes.plot(
        [x for x, _ in line], [y for _, y in line], color=color, linewidth=1.0, alpha=0.45, zorder=4
    )
    for point in points:
        axes.plot(
            [point.x] * 2,
            [point.low, point.high],
            color=color,
            lw=1.2,
            marker="_",
            ms=5,
            mew=1.2,
            zorder=6,
        )
        if point.cap:
            axes.plot(
                [point.x] * 2, [point.y, point.cap], color=color, lw=0.8, ls=(0, (1, 2)), zorder=4.4
            )
            axes.plot([point.x], [point.cap], color=color, marker="_", ms=13, mew=1.8, zorder=4.6)
        x, y = point.spot
        axes.plot([x], [y], zorder=7, **_marker(point.color, point.shape, point.is_hollow))
        if point.doubts:
            axes.plot([x], [y], "x", ms=11, mew=1.3, mec=tone(INK), zorder=7.5)
        if point.excess:
            axes.plot([x], [y], "o", ms=RING_PT, mfc="none", mec=tone(INK), mew=1.2, zorder=8)


def _draw_arrows(scene: Scene, axes: Axes) -> None:
    style: dict[str, Any] = {
        "arrowstyle": "-|>",
        "mutation_scale": 10,
        "shrinkA": 5,
        "shrinkB": 5,
        "color": tone(MUTED),
    }
    for old, new in version_steps(scene):
        axes.annotate("", new.spot, old.spot, arrowprops=style, zorder=5.5)


def _write_labels(scene: Scene, axes: Axes) -> int:
    import textalloc

    taken = _label_flats(scene, axes) + _label_slopes(scene, axes) + _name_regimes(scene, axes)
    labels = []
    for roofs in _ridges(scene, axes):
        text = "ridge " + ", ".join(dict.fromkeys(number(roof.ridge or 0, 3) for roof in roofs))
        x, y = roofs[0].corner or (0.0, 0.0)
        labels.append((x, y, text, text_color(shared_color(roofs))))
    ridges = len(labels)
    outliers = [point for point in scene.points if point.is_outlier]
    for row, point in enumerate(outliers):
        taken += _write(
            axes,
            point.spot,
            (6.0, 6.0 + LINE_PT * row),
            point.label or "",
            text_color(point.color),
            size=POINT_PT,
            ha="left",
            va="bottom",
        )
    labeled = [
        (point, point.label) for point in scene.points if point.label and not point.is_outlier
    ]
    # Below the module of an operation its name fits where both in one line do not.
    end = ":\n" if scene.is_profile else ": "
    labels += [
        (*point.spot, plain(label, 80).replace(": ", end), text_color(point.color))
        for point, label in labeled
    ]
    if not labels:
        return 0
    xs, ys, texts, colors = zip(*labels, strict=True)
    lines = [roof.ends(scene.view) for roof in scene.roofs]
    lines += [((point.x, point.low), (point.x, point.high)) for point in scene.points]
    lines += [
        ((one.x, one.y), (two.x, two.y))
        for one, two in pairwise(scene.points)
        if one.series == two.series
    ]
    lines += taken
    spots = [point.spot for point in scene.points]
    spots += [roof.corner for roof in scene.roofs if roof.corner]
    if scene.is_profile:
        for point in scene.points:
            lines += _circle(point, axes)
    # textalloc prints if a label does not fit in its first direction.
    with redirect_stdout(io.StringIO()):
        placed = textalloc.allocate(
            axes,
            list(xs),
            list(ys),
            list(texts),
            x_scatter=[x for x, _ in spots],
            y_scatter=[y for _, y in spots],
            x_lines=[[a[0], b[0]] for a, b in lines],
            y_lines=[[a[1], b[1]] for a, b in lines],
            textsize=POINT_PT,
            textcolor=list(colors),
            linecolor=tone(MUTED),
            linewidth=0.7,
            draw_all=False,
            direction=["northwest"] * ridges + ["southeast"] * (len(labels) - ridges),
            min_distance=0.012,
            max_distance=0.25,
            nbr_candidates=300,
            margin=0.006,
            avoid_label_lines_overlap=True,
            avoid_crossing_label_lines=True,
            zorder=9,
        )
    missing = sum(text is None for text in placed[2][ridges:]) if len(placed) > 2 else 0
    return len(scene.points) - len(outliers) - len(labeled) + missing


def _ridges(scene: Scene, axes: Axes) -> list[list[Roof]]:
    groups: list[list[Roof]] = []
    spots: list[Any] = []
    for roof in sorted(scene.roofs, key=lambda roof: roof.corner or (0.0, 0.0)):
        if roof.corner:
            spot = axes.transData.transform(roof.corner)
            if groups and math.dist(spot, spots[-1]) < SAME_SPOT * axes.figure.dpi:
                groups[-1].append(roof)
            else:
                groups.append([roof])
                spots.append(spot)
    return groups


def _circle(point: Point, axes: Axes) -> list[Line]:
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import Affine2D

    x, y = axes.transData.transform(point.spot)
    to_data = (
        Affine2D().scale(point.diameter_pt / 2 / 72 * axes.figure.dpi).translate(x, y)
        - axes.transData
    )
    return list(pairwise(to_data.transform(Outline.unit_regular_polygon(8).vertices)))


def _label_flats(scene: Scene, axes: Axes) -> list[Line]:
    taken = []
    decade = _decade_pt(axes)
    for label in flat_labels(scene, LINE_PT / decade):
        (text,) = label.lines
        y = label.roof.ceiling.value
        is_below = label.row < 0
        rise = -3.0 if is_below else 3.0 + LINE_PT * label.row
        low = math.log10(y) + (rise - (LINE_PT if is_below else 0)) / decade
        x = 10 ** _free_end(scene, len(text) * LETTER_PT / decade, low, LINE_PT / decade)
        style: dict[str, Any] = {"ha": "right", "va": "top" if is_below else "bottom"}
        taken += _write(axes, (x, y), (-4.0, rise), text, text_color(label.color), **style)
    return taken


def _free_end(scene: Scene, wide: float, low: float, tall: float) -> float:
    right = scene.view.right
    spots = [(math.log10(point.spot[0]), math.log10(point.spot[1])) for point in scene.points]
    near = [x for x, y in spots if low - 0.3 * tall < y < low + 1.3 * tall]
    ends = [right - step * wide / 4 for step in range(9)]
    free = [end for end in ends if not any(end - 1.1 * wide < x < end + 0.1 * wide for x in near)]
    return free[0] if free else right


def _decade_pt(axes: Axes) -> float:
    one, ten = axes.transData.transform([(1.0, 1.0), (1.0, 10.0)])
    return 72 * float(ten[1] - one[1]) / axes.figure.dpi


def _label_slopes(scene: Scene, axes: Axes) -> list[Line]:
    one, ten = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    wide, tall = ten - one
    angle = math.degrees(math.atan2(tall, wide))
    taken = []
    for label in slope_labels(scene, 1.5 * LINE_PT / _decade_pt(axes)):
        text = ", ".join(label.lines)
        color = text_color(label.color)
        spot = _along(label.roof, scene, text, axes)
        taken += _write(axes, spot, (-3.0, 3.0), text, color, angle, ha="center", va="bottom")
    if mixes := sorted(
        (roof for roof in scene.roofs if roof.is_mix), key=lambda roof: -roof.ceiling.value
    ):
        text = "other mixes: " + ", ".join(roof.label.removesuffix(" measured") for roof in mixes)
        spot = _along(mixes[-1], scene, text, axes)
        taken += _write(
            axes, spot, (4.0, -4.0), text, tone(MUTED), angle, POINT_PT, ha="center", va="top"
        )
    return taken


def _name_regimes(scene: Scene, axes: Axes) -> list[Line]:
    corners = {roof.corner for roof in scene.roofs if roof.corner}
    if len(corners) != 1 or any(roof.is_flat and not roof.corner for roof in scene.roofs):
        return []
    ((x, y),) = corners
    foot = (x, 10**scene.view.bottom)
    axes.plot(
        [x, x], [foot[1], y], color=tone(MUTED), linewidth=0.9, linestyle=(0, (1, 2.5)), zorder=1.5
    )
    left = _write(
        axes, foot, (-8.0, 4.0), "memory-bound", tone(MUTED), size=POINT_PT, ha="right", va="bottom"
    )
    return left + _write(
        axes, foot, (8.0, 4.0), "compute-bound", tone(MUTED), size=POINT_PT, ha="left", va="bottom"
    )


def _along(roof: Roof, scene: Scene, text: str, axes: Axes) -> tuple[float, float]:
    (x0, _), (x1, _) = roof.ends(scene.view)
    corners = [
        other.corner[0] for other in scene.roofs if other.corner and other.machine == roof.machine
    ]
    half = (len(text) * LETTER_PT / math.sqrt(2) / 2 + LINE_PT) / _decade_pt(axes)  # decades
    end = min([*corners, x1])
    x = x0**0.55 * (end if end > x0 * 10 ** (2 * half) else x1) ** 0.45
    x = max(x, x0 * 10**half)
    return x, x * roof.ceiling.value


def _write(
    axes: Axes,
    spot: tuple[float, float],
    offset_pt: tuple[float, float],
    text: str,
    color: str,
    angle: float = 0.0,
    size: float = LABEL_PT,
    **style: Any,
) -> list[Line]:
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Affine2D

    label = axes.annotate(
        plain(text, 120),
        spot,
        offset_pt,
        textcoords="offset points",
        fontsize=size,
        color=color,
        rotation=angle,
        rotation_mode="anchor",
        zorder=9,
        path_effects=[withStroke(linewidth=2.5, foreground=tone("white"))],
        **style,
    )
    label.set_rotation(0)
    box = label.get_window_extent()
    label.set_rotation(angle)
    scale = axes.figure.dpi / 72
    x, y = axes.transData.transform(spot)
    turn = Affine2D().rotate_deg_around(x + scale * offset_pt[0], y + scale * offset_pt[1], angle)
    return list(combinations(axes.transData.inverted().transform(turn.transform(box.corners())), 2))
