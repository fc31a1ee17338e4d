"""Interactive roofline plots by Plotly."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from results.record import ProfileOp, Record
from results.show.picture import INK, MUTED
from results.show.terminal import one_line
from results.show.units import duration, number, percent, quantity
from roofline.picture.scene import Point, Roof, Scene, View, module_of
from roofline.picture.style import KIND_DASHES, MARKERS, machine_width
from roofline.picture.texts import OUTSIDE, chosen_for_labels, flat_labels, slope_labels

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BEYOND = 4.0
"""Decades that roofs extend past the view, for zooming out."""
MAX_BARS = 500
"""Maximum number of points with error bars and marks."""
MAX_LABELS = 24
MAX_HOVERED = 8
"""Maximum number of further rows in the text of a point."""
LABEL_SHARE = 0.04
"""Height of a label as a fraction of the axes."""
LABEL_PX = 17
"""Height of a label, pixels."""
LETTER_PX = 7
CHART_PX = (1200, 500)
"""Size of the axes, pixels."""
FLAT = "flat"
SLOPE = "slope"
OUTLIER = "outlier"
"""Names of the labels that `page.js` also shows on a phone."""


def roofline_figure(scene: Scene, estimates: Sequence[dict[str, Any]] = ()) -> Figure:
    """Return the interactive plot; `customdata` of a point is its index in the scene."""
    from plotly.graph_objects import Figure, Scatter

    view = scene.view
    wide = View(
        view.left - BEYOND, view.right + BEYOND, view.bottom - 2 * BEYOND, view.top + BEYOND
    )
    figure = Figure()
    for roof in scene.roofs:
        figure.add_trace(Scatter(_roof_trace(roof, wide)))
    for name, indices in _series(scene).items():
        figure.add_trace(Scatter(_points_trace(name, indices, scene)))
    if len(scene.points) <= MAX_BARS:
        doubtful = [point for point in scene.points if point.doubts]
        above = [point for point in scene.points if point.excess]
        for marked, symbol, size in ((doubtful, "x-thin-open", 13), (above, "circle-open", 20)):
            style = {"symbol": symbol, "size": size, "color": INK, "line": {"width": 1.4}}
            xs = [point.spot[0] for point in marked]
            ys = [point.spot[1] for point in marked]
            figure.add_scatter(
                x=xs, y=ys, mode="markers", marker=style, hoverinfo="skip", showlegend=False
            )
    if estimates:
        hover = [
            f"{one_line(row['name'], 80)}<br>{quantity(row['flops_per_s'], 'FLOP/s')}"
            for row in estimates
        ]
        figure.add_scatter(
            x=[row["intensity"] for row in estimates],
            y=[row["flops_per_s"] for row in estimates],
            mode="markers",
            name="estimate",
            text=list(map(escaped, hover)),
            hoverinfo="text",
            marker={"symbol": "star", "size": 15, "color": INK},
        )
    _annotate(figure, scene)
    spots = [(math.log10(row["intensity"]), math.log10(row["flops_per_s"])) for row in estimates]
    x_range = [
        min([view.left, *(x - 0.3 for x, _ in spots)]),
        max([view.right, *(x + 0.3 for x, _ in spots)]),
    ]
    y_range = [
        min([view.bottom, *(y - 0.3 for _, y in spots)]),
        max([view.top, *(y + 0.3 for _, y in spots)]),
    ]
    axis = {
        "type": "log",
        "dtick": 1,
        "gridcolor": "#E2E2E2",
        "zeroline": False,
        "automargin": False,
    }
    figure.update_layout(
        xaxis=axis
        | {"range": x_range, "title": "Arithmetic intensity (FLOP/byte)", "tickformat": ","},
        yaxis=axis | {"range": y_range, "title": "Performance (FLOP/s)", "tickformat": "~s"},
        height=600,
        margin={"l": 70, "r": 20, "t": 10, "b": 50},
        hovermode="closest",
        font={"color": INK},
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "groupclick": "toggleitem"},
    )
    return figure


def modules_figure(records: Sequence[Record]) -> Figure | None:
    """Return the module tree of a profile as an icicle chart; None if no record is a row of a
    profile.
    """
    from plotly.graph_objects import Figure, Icicle

    times: dict[tuple[str, ...], float] = {}
    for record in records:
        operation = record.details_as(ProfileOp)
        if not operation or not operation.time_s:
            continue
        modules = re.split(r"\.(?!\*)", operation.module or OUTSIDE)  # layers.* is one
        path = ("step", *filter(None, modules), record.op)
        for depth in range(1, len(path) + 1):
            times[path[:depth]] = times.get(path[:depth], 0.0) + operation.time_s
    if not times:
        return None
    ids = {path: "/".join(path) for path in times}
    names = [escaped(one_line(path[-1])) for path in times]
    shares = [f"{duration(time_s)}, {percent(time_s, times['step',])}" for time_s in times.values()]
    tree = Icicle(
        ids=list(ids.values()),
        parents=[ids.get(path[:-1], "") for path in times],
        labels=names,
        values=list(times.values()),
        branchvalues="total",
        text=shares,
        hoverinfo="label+text",
        textinfo="label+text",
    )
    return Figure(tree).update_layout(
        height=420, margin={"l": 5, "r": 5, "t": 5, "b": 5}, paper_bgcolor="#ffffff"
    )


def _roof_trace(roof: Roof, view: View) -> dict[str, Any]:
    ceiling = roof.ceiling
    (x0, y0), (x1, _) = roof.ends(view)
    middle = [x0 ** (1 - share) * x1**share for share in (0.25, 0.5, 0.75)]  # points to hover
    xs = [x0, *middle, x1]
    ys = [y0 if roof.is_flat else x * ceiling.value for x in xs]
    facts = [roof.label]
    if roof.ridge and roof.is_flat:
        facts.append(f"ridge {number(roof.ridge, 3)} FLOP/byte")
    facts += [ceiling.source, ceiling.config or "", ceiling.disturbed or ""]
    dashes = ",".join(
        f"{machine_width(roof.machine) * length:.3g}px" for length in KIND_DASHES[ceiling.kind]
    )
    line: dict[str, Any] = {
        "color": MUTED if roof.is_mix else roof.color,
        "dash": dashes or "solid",
    }
    line["width"] = 0.8 if roof.is_mix else machine_width(roof.machine)
    return {
        "x": xs,
        "y": ys,
        "mode": "lines",
        "line": line,
        "showlegend": False,
        "hoverinfo": "text",
        "text": escaped("<br>".join(one_line(fact, 120) for fact in facts if fact)),
        "name": escaped(roof.label),
    }


def _series(scene: Scene) -> dict[str, list[int]]:
    series: dict[str, list[int]] = {}
    for index, point in enumerate(scene.points):
        filling = f", {scene.fillings[point.is_hollow]}" if point.is_hollow else ""
        series.setdefault(scene.series_name(point) + filling, []).append(index)
    return series


def _points_trace(name: str, indices: Sequence[int], scene: Scene) -> dict[str, Any]:
    points = [scene.points[index] for index in indices]
    first = points[0]
    symbol = list(MARKERS.values())[first.shape % len(MARKERS)]
    if first.is_hollow:
        symbol += "-open"
    # A browser needs 0.3 s for the outlines of 5,000 points.
    outline_px = 1.5 if len(scene.points) <= MAX_BARS else 0
    marker: dict[str, Any] = {"color": first.color, "symbol": symbol, "size": 11.5 - outline_px}
    marker["line"] = {"width": outline_px, "color": first.color}
    if scene.is_profile:
        marker |= {"size": [point.diameter_pt for point in points], "opacity": 0.6}
    trace = {
        "x": [point.spot[0] for point in points],
        "y": [point.spot[1] for point in points],
        "mode": "markers",
        "marker": marker,
        "name": escaped(name),
        "text": [_hover(point) for point in points],
        "hoverinfo": "text",
        "customdata": indices,
    }
    if len(scene.points) <= MAX_BARS and not scene.is_profile:
        trace["error_y"] = {
            "type": "data",
            "array": [point.high - point.y for point in points],
            "arrayminus": [point.y - point.low for point in points],
            "thickness": 1.2,
            "width": 4,
        }
    return trace


def _hover(point: Point) -> str:
    record = point.record
    facts = [
        f"{record.op} {record.case} {record.dtype} {record.provider}",
        (
            f"{duration(record.median_s)}, {quantity(point.y, 'FLOP/s')}, "
            f"{number(point.x, 3)} FLOP/byte"
        ),
    ]
    if point.roofline_pct is not None:
        facts.append(f"{percent(point.roofline_pct, 100)} of its roof")
    if point.share:
        share = percent(point.share)
        facts.append(f"{share} of the step, {module_of(record)}")
    for other in point.others[:MAX_HOVERED]:
        facts.append(f"{other.op} {other.case}, {module_of(other)}")
    if len(point.others) > MAX_HOVERED:
        facts.append(f"and {len(point.others) - MAX_HOVERED} more")
    facts += [point.excess or "", ", ".join(record.flags)]
    return escaped("<br>".join(one_line(fact, 120) for fact in facts if fact))


def _annotate(figure: Figure, scene: Scene) -> None:
    view = scene.view
    min_decades = LABEL_SHARE * (view.top - view.bottom)
    for label in flat_labels(scene, min_decades):
        figure.add_annotation(
            text=escaped(label.lines[0]),
            x=view.right,
            y=math.log10(label.roof.ceiling.value),
            xanchor="right",
            yanchor="top" if label.row < 0 else "bottom",
            name=FLAT,
            yshift=LABEL_PX * max(0, label.row),
            showarrow=False,
            font={"color": label.color},
        )
    for label in slope_labels(scene, 2 * min_decades):
        (x0, _), (x1, _) = label.roof.ends(view)
        x = 0.6 * math.log10(x0) + 0.4 * math.log10(x1)
        figure.add_annotation(
            text=escaped("<br>".join(label.lines)),
            x=x,
            y=x + math.log10(label.roof.ceiling.value),
            align="right",
            xanchor="right",
            yanchor="bottom",
            name=SLOPE,
            showarrow=False,
            font={"color": label.color},
        )
    if scene.is_profile or len(scene.points) <= MAX_LABELS:
        for point, is_left in _apart(scene):
            offset = point.diameter_pt / 2 if scene.is_profile else 6
            x, y = (math.log10(value) for value in point.spot)
            figure.add_annotation(
                text=escaped(point.label or ""),
                x=x,
                y=y,
                xanchor="right" if is_left else "left",
                showarrow=False,
                yanchor="bottom" if point.is_outlier else "top",
                name=OUTLIER if point.is_outlier else None,
                xshift=-offset if is_left else offset,
                font={"size": 12},
            )


def not_drawn(scene: Scene) -> tuple[str, ...]:
    """Return `without` of `caption`: marks that `roofline_figure` does not draw."""
    marks = ("Bars", "Crossed out", "Ringed") if len(scene.points) > MAX_BARS else ()
    labels = () if scene.is_profile or len(scene.points) <= MAX_LABELS else ("Labels",)
    return ("Arrows", "Bands", "Caps", *marks, *labels)


def _apart(scene: Scene) -> list[tuple[Point, bool]]:
    """Return the points whose labels fit, most important first, and whether the label is left of
    its point.
    """
    view = scene.view
    labeled = []
    wide = (view.right - view.left) / CHART_PX[0]
    tall = (view.top - view.bottom) / CHART_PX[1]
    boxes: list[tuple[float, float, float, float]] = []
    for point in chosen_for_labels(scene):
        x, y = (math.log10(value) for value in point.spot)
        length = LETTER_PX * len(point.label or "") * wide
        is_left = x > view.left + 0.85 * (view.right - view.left)
        box = (x - length * is_left, x + length * (not is_left), y - LABEL_PX * tall, y)
        if all(box[1] < b[0] or b[1] < box[0] or box[3] < b[2] or b[3] < box[2] for b in boxes):
            boxes.append(box)
            labeled.append((point, is_left))
    return labeled


def escaped(text: str) -> str:
    """Escape text for Plotly; only line breaks remain markup."""
    return html.escape(text, quote=False).replace("&lt;br&gt;", "<br>")
