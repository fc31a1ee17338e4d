"""Interactive roofline plots by Plotly."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from results.record import Object, ProfileOp, Record
from results.show.picture import INK, MUTED
from results.show.profile import op_of
from results.show.terminal import one_line
from results.show.units import duration, number, percent, quantity
from roofline.picture.scene import Point, Roof, Scene, View
from roofline.picture.style import KIND_DASHES, MARKERS, machine_width
from roofline.picture.texts import (
    OUTSIDE,
    flat_labels,
    ridge_labels,
    slope_labels,
)

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BEYOND = 4.0
"""Decades that roofs extend past the view, for zooming out."""
MAX_BARS = 500
"""Maximum number of points with error bars and outlines: a browser needs 0.3 s for 5,000."""
MIN_TEXT_PX = 12
"""A module without room for its name in this size has none until it is opened."""
LABEL_SHARE = 0.04
"""Height of a label as a fraction of the axes."""
SHARE = "%{label}<br>%{value:.4s}s, %{percentRoot:.3p}<extra></extra>"
"""Text of a module: its time and its part of the step."""
FLAT = "flat"
SLOPE = "slope"
SIDE = "side"
"""Names of the labels, for `page.js`."""


def roofline_figure(scene: Scene) -> Figure:
    """Return the interactive plot; `customdata` of a point is its index in the scene."""
    from plotly.graph_objects import Figure, Scatter

    view = scene.view
    wide = View(
        view.left - BEYOND, view.right + BEYOND, view.bottom - 2 * BEYOND, view.top + BEYOND
    )
    figure = Figure()
    for roof in scene.roofs:
        figure.add_trace(Scatter(_roof_trace(roof, wide)))
    series: dict[str, list[int]] = {}
    for index, point in enumerate(scene.points):
        filling = f", {scene.fillings[True]}" if point.is_hollow else ""
        series.setdefault(scene.series_name(point) + filling, []).append(index)
    for name, indices in series.items():
        figure.add_trace(Scatter(_points_trace(name, indices, scene)))
    doubtful = [point for point in scene.points if point.doubts]
    above = [point for point in scene.points if point.excess]
    for marked, symbol, size in ((doubtful, "x-thin-open", 13), (above, "circle-open", 20)):
        figure.add_scatter(
            x=[point.spot[0] for point in marked],
            y=[point.spot[1] for point in marked],
            mode="markers",
            marker={"symbol": symbol, "size": size, "color": INK, "line": {"width": 1.4}},
            hoverinfo="skip",
            showlegend=False,
        )
    line = LABEL_SHARE * (view.top - view.bottom)
    for label in [*flat_labels(scene, line), *slope_labels(scene, 2 * line)]:
        if label.roof.is_mix:
            continue
        figure.add_annotation(
            text=escaped("<br>".join(label.lines)),
            x=label.x,
            y=label.y,
            align="right",
            xanchor="right",
            yanchor="top" if label.is_below else "bottom",
            name=FLAT if label.roof.is_flat else SLOPE,
            showarrow=False,
            font={"color": label.color},
        )
    _add_ridges(figure, scene)
    axis = {
        "type": "log",
        "dtick": 1,
        "gridcolor": "#E2E2E2",
        "zeroline": False,
        "automargin": False,
    }
    figure.update_xaxes(
        **axis,
        range=[view.left, view.right],
        title="Arithmetic intensity (FLOP/byte)",
        tickformat=",",
    )
    figure.update_yaxes(
        **axis,
        range=[view.bottom, view.top],
        title="Performance (FLOP/s)",
        tickformat="~s",
    )
    figure.update_layout(
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
    tree = Icicle(
        ids=list(ids.values()),
        parents=[ids.get(path[:-1], "") for path in times],
        labels=[escaped(one_line(path[-1])) for path in times],
        values=list(times.values()),
        branchvalues="total",
        hovertemplate=SHARE,
        texttemplate=SHARE,
    )
    return Figure(tree).update_layout(
        height=420,
        margin={"l": 5, "r": 5, "t": 5, "b": 5},
        paper_bgcolor="#ffffff",
        uniformtext={"minsize": MIN_TEXT_PX, "mode": "hide"},
    )


def _roof_trace(roof: Roof, view: View) -> Object:
    ceiling = roof.ceiling
    (x0, y0), (x1, _) = roof.ends(view)
    middle = [x0 ** (1 - share) * x1**share for share in (0.25, 0.5, 0.75)]  # points to hover
    xs = [x0, *middle, x1]
    facts = [roof.label]
    if roof.corner:
        facts.append(f"ridge {number(roof.corner[0], 3)} FLOP/byte")
    facts += [ceiling.source, ceiling.config or "", ceiling.disturbed or ""]
    width = machine_width(roof.machine)
    line = {"color": roof.color, "width": width, "dash": "solid"}
    if KIND_DASHES[ceiling.kind]:
        line["dash"] = ",".join(f"{width * part:.3g}px" for part in KIND_DASHES[ceiling.kind])
    if roof.is_mix:
        line |= {"color": MUTED, "width": 0.8}
    return {
        "x": xs,
        "y": [y0 if roof.is_flat else x * ceiling.value for x in xs],
        "mode": "lines",
        "line": line,
        "showlegend": False,
        "hoverinfo": "text",
        "text": _lines(facts),
        "name": escaped(roof.label),
    }


def _points_trace(name: str, indices: Sequence[int], scene: Scene) -> Object:
    points = [scene.points[index] for index in indices]
    first = points[0]
    is_crowded = len(scene.points) > MAX_BARS
    outline_px = 0 if is_crowded else 1.5
    marker: Object = {
        "color": first.color,
        "symbol": list(MARKERS.values())[first.shape % len(MARKERS)],
        "size": 11.5 - outline_px,
        "line": {"width": outline_px, "color": first.color},
    }
    if first.is_hollow:
        marker["symbol"] += "-open"
    if scene.is_profile:
        marker |= {"size": [point.diameter_pt for point in points], "opacity": 0.6}
    bars = {
        "type": "data",
        "array": [point.high - point.y for point in points],
        "arrayminus": [point.y - point.low for point in points],
        "thickness": 1.2,
        "width": 4,
        "visible": not is_crowded and not scene.is_profile,
    }
    return {
        "x": [point.spot[0] for point in points],
        "y": [point.spot[1] for point in points],
        "mode": "markers",
        "marker": marker,
        "error_y": bars,
        "name": escaped(name),
        "text": list(map(_hover, points)),
        "hoverinfo": "text",
        "customdata": indices,
    }


def _hover(point: Point) -> str:
    record = point.record
    rates = f"{quantity(point.y, 'FLOP/s')}, {number(point.x, 3)} FLOP/byte"
    facts = [
        f"{record.op} {record.case} {record.dtype} {record.provider}",
        f"{duration(record.median_s)}, {rates}",
    ]
    if point.roofline_pct is not None:
        facts.append(f"{percent(point.roofline_pct, 100)} of its roof")
    if point.share:
        facts.append(f"{percent(point.share)} of the step, {op_of(record).module}")
    if point.others:
        facts.append(f"with {len(point.others)} more rows at this place")
    return _lines([*facts, point.excess or "", ", ".join(record.flags)])


def _lines(facts: Sequence[str]) -> str:
    return escaped("<br>".join(one_line(fact, 120) for fact in facts if fact))


def _add_ridges(figure: Figure, scene: Scene) -> None:
    """Name ridge points, and the bounds of all points left and right of them."""
    ridges = ridge_labels(scene)
    view = scene.view
    last_y = math.inf
    for (x, y), (text, color) in sorted(ridges.items(), key=lambda ridge: -ridge[0][1]):
        log_y = math.log10(y)
        if last_y - log_y < LABEL_SHARE * (view.top - view.bottom):
            continue  # its text would cover the last one
        last_y = log_y
        figure.add_annotation(
            text=text,
            x=math.log10(x),
            y=log_y,
            xanchor="right",
            xshift=-4,
            yanchor="bottom",
            showarrow=False,
            font={"color": color},
        )
    xs = sorted(x for x, _ in ridges)
    sides = [(xs[0], "memory-bound", -1), (xs[-1], "compute-bound", 1)] if xs else []
    for x, bound, side in sides:
        figure.add_vline(x, line={"color": MUTED, "width": 1, "dash": "dot"})
        figure.add_annotation(
            text=bound,
            x=math.log10(x),
            y=view.bottom,
            xanchor="left" if side > 0 else "right",
            xshift=4 * side,
            yanchor="bottom",
            name=SIDE,
            showarrow=False,
            font={"color": MUTED},
        )


def escaped(text: str) -> str:
    """Escape text for Plotly; only line breaks remain markup."""
    return html.escape(text, quote=False).replace("&lt;br&gt;", "<br>")
