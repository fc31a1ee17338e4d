"""Pictures of a page: bars and lines in the colors of the page, and the pages that have a picture of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st

from results.show.picture import SERIES_COLORS
from roofline.estimate.answer import Answer, folded, memory
from roofline.estimate.budgets import loss_along
from roofline.model import ridge_intensity
from roofline.picture.charts import FAR, MOST_MARKED
from roofline.picture.interactive import escaped

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PANEL, LEGEND_ROW = 320, 22
"""Heights of a panel with lines and of a line of its legend, pixels."""

COUNTS = {"parameters", "tokens"}
"""What counts in billions (10B), where others count in giga (10G)."""


def parts(whole: str, amounts: Sequence[tuple[str, float, str]], limit: tuple[str, float] | None = None) -> None:
    """Draw the parts of a whole as one stacked bar, the largest first."""
    order = sorted(amounts, key=lambda part: -part[1])
    total = sum(amount for _, amount, _ in order) or 1
    figure = _new_figure()
    for name, amount, words in order:
        text = escaped(f"{name}: {words}, {100 * amount / total:.1f} %")
        figure.add_bar(x=[float(amount)], y=[""], orientation="h", name=escaped(name), hovertext=text, hoverinfo="text")
    if limit:
        figure.add_vline(float(limit[1]), line={"width": 3, "dash": "dash", "color": "#d62728"})
    figure.update_xaxes(title=escaped(whole), **_axis(whole, [total]))
    figure.update_layout(barmode="stack")
    _show(figure, 130 + LEGEND_ROW * len(order))
    if limit:
        st.caption(plain(f"dashed: {limit[0]}"))


def lines(
    x: str,
    y: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float] | None = None,
    dots: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Draw values along an option, on logarithmic axes if they are far apart."""
    figure = _new_figure()
    mode = "lines+markers" if max(map(len, points.values())) <= MOST_MARKED else "lines"
    for name, line in points.items():
        xs, ys = [float(one) for one, _ in line], [float(two) for _, two in line]
        figure.add_scatter(x=xs, y=ys, mode=mode, name=escaped(name))
    for name, (one, two) in (dots or {}).items():
        figure.add_scatter(x=[float(one)], y=[float(two)], mode="markers", name=escaped(name),
                           marker={"size": 14, "symbol": "diamond"})  # fmt: skip
    for place in (marks or {}).values():
        figure.add_vline(float(place), line={"dash": "dash", "color": "#888888", "width": 1})
    everything = [*(point for line in points.values() for point in line), *(dots or {}).values()]
    figure.update_xaxes(title=escaped(x), **_axis(x, [one for one, _ in everything]))
    figure.update_yaxes(title=escaped(y), **_axis(y, [two for _, two in everything]))
    _show(figure, PANEL + LEGEND_ROW * (len(points) + len(dots or {})))
    for name in marks or {}:
        st.caption(plain(f"dashed: {name}"))


def _axis(name: str, values: Sequence[float]) -> dict[str, Any]:
    kind = "log" if min(values) > 0 and max(values) >= FAR * min(values) else "linear"
    return {"type": kind, "exponentformat": "B" if COUNTS & set(name.split()) else "SI", "minor": {"showgrid": False}}


def _new_figure() -> Figure:
    from plotly.graph_objects import Figure

    return Figure()


def _show(figure: Figure, height: int) -> None:
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"}
    below = 50 + LEGEND_ROW * ((len(figure.data) + 1) // 2)
    figure.update_layout(height=height, margin={"l": 10, "r": 10, "t": 10, "b": below}, legend=legend,
                         colorway=SERIES_COLORS, showlegend=len(figure.data) > 1)  # fmt: skip
    st.plotly_chart(figure, width="stretch", config={"displaylogo": False})


def plain(text: str) -> str:
    """Return text that Markdown shows as it is: names are a user's own, and none of them may become a link."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&])", r"\\\1", text)


Table = Callable[[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]], None]
"""Shows rows as a table: the rows, and the key and title of each column."""

BUDGETS = {"a tenth": 0.1, "all": 1.0, "ten times": 10.0}

MOST = 8
"""Rows and columns of a tensor's layout that are shown."""


def _budget(answer: Answer, _: Table) -> None:
    if answer.curve:
        lines(*answer.curve)
    flops = answer.values["flops"]
    losses = {f"{name} of the budget": loss_along(flops * share) for name, share in BUDGETS.items()}
    best = {"the answer": (answer.values["params"], answer.values["fitted_loss"])}
    lines("parameters", "fitted loss, nats per token", losses, dots=best)


def _formats(answer: Answer, table: Table) -> None:
    """Draw range against precision: a format is a line from its smallest to its largest value."""
    ends = ("smallest_subnormal", "largest")
    ranges = {row["dtype"]: [(row[end], row["epsilon"]) for end in ends] for row in answer.rows}
    value = abs(answer.values.get("asked", 0))
    if value:
        table(answer.rows, [("dtype", "format"), ("value", f"what {value:g} becomes"), ("epsilon", "epsilon")])
    lines("magnitude", "epsilon", ranges, {f"the value {value:g}": value} if value else {})


def _roof(answer: Answer, _: Table) -> None:
    rows = {f"{row['gpu']} {row['dtype']}": row for row in answer.rows if row["seconds"] is not None}
    ridges = {n: ridge_intensity(row["peak_flops_per_s"], row["bandwidth_bytes_per_s"]) for n, row in rows.items()}
    ends = [*ridges.values(), *(row["intensity"] for row in rows.values())]
    roofs = {
        name: [
            (x, min(row["peak_flops_per_s"], x * row["bandwidth_bytes_per_s"]))
            for x in (min(ends) / 32, ridges[name], max(ends) * 8)
        ]
        for name, row in rows.items()
    }
    dots = {f"the product, {name}": (row["intensity"], row["flops"] / row["seconds"]) for name, row in rows.items()}
    marks = {f"ridge of {name}, {ridge:.1f} FLOP/B": ridge for name, ridge in ridges.items()}
    lines("arithmetic intensity, FLOP/byte", "attainable FLOP/s", roofs, marks, dots)


def _memory(answer: Answer, _: Table) -> None:
    row = answer.rows[0]
    limit = (f"{row['gpu']}: {memory(row['memory_bytes'])}", row["memory_bytes"])
    amounts = [(step.label, step.amount, step.result) for step in folded(answer) if step.amount]
    parts(f"{100 * row['used']:.1f} % of {limit[0]}", amounts, limit)


def _layout(answer: Answer, _: Table) -> None:
    strides = answer.values["strides"]
    extents = [int(extent) for extent in answer.steps[0].arithmetic.split(" x ")]
    rows, columns = ([1, *extents])[-2:]
    down = strides[-2] if len(strides) > 1 else 0
    st.caption("where each element lies, in elements from the beginning (of further dimensions the first)")
    places = [
        {"row / column": str(row), **{f"{column}": str(row * down + column) for column in range(min(columns, MOST))}}
        for row in range(min(rows, MOST))
    ]
    st.table(places, hide_index=True)
    if rows > MOST or columns > MOST:
        st.caption(f"the first {min(rows, MOST)} of {rows:,} rows and {min(columns, MOST)} of {columns:,} columns")


OF_PAGES: dict[str, Callable[[Answer, Table], None]] = {
    "chinchilla": _budget,
    "dtype": _formats,
    "matmul": _roof,
    "memory": _memory,
    "tensor": _layout,
}
"""What draws the picture of a page; the others draw the curve or the parts of their answer."""
