"""Pictures of a page: bars and lines in the colors of the page, and the pages that have a picture of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import floor, log10
from typing import Any

import altair as alt
import streamlit as st

from results.show.table import format_time
from roofline.estimate.answer import Answer, memory
from roofline.estimate.budgets import loss_along
from roofline.estimate.show import folded
from roofline.model import ridge_intensity
from roofline.picture.charts import FAR, MOST_MARKED

ROW = 34
"""Height of a bar, pixels."""

PANEL, LEGEND_ROW = 320, 22
"""Height of a panel with lines and of a line of its legend, pixels."""

COUNTS = {"parameters", "tokens"}
"""What counts in billions, where others count in giga."""

MANY = 6
"""Marks along a logarithmic axis."""


def parts(whole: str, amounts: Sequence[tuple[str, float, str]], limit: tuple[str, float] | None = None) -> None:
    """Draw the parts of a whole as one stacked bar, the largest first.

    Args:
        whole: how much it is, in words.
        amounts: name, amount, and the amount in words of each part.
        limit: name and amount of what the whole may be.
    """
    order = sorted(amounts, key=lambda part: -part[1])
    total = sum(amount for _, amount, _ in order) or 1
    names = [name for name, _, _ in order]
    rows = [
        {"part": name, "amount": float(amount), "is": words, "share": f"{100 * amount / total:.1f} %", "place": place}
        for place, (name, amount, words) in enumerate(order)
    ]
    chart: Any = (
        alt.Chart(_data(rows))
        .mark_bar(height=46)
        .encode(
            x=alt.X("amount:Q", axis=alt.Axis(title=None, labelExpr=_spelled(whole), tickCount=6)),
            color=alt.Color(
                "part:N",
                sort=names,
                scale=alt.Scale(domain=names),
                legend=alt.Legend(title=None, orient="bottom", columns=2, symbolLimit=0, labelLimit=260),
            ),
            order=alt.Order("place:Q"),
            tooltip=["part:N", "is:N", "share:N"],
        )
    )
    if limit:
        line = _data([{"limit": limit[0], "amount": limit[1]}])
        chart += (
            alt.Chart(line)
            .mark_rule(strokeWidth=3, strokeDash=[6, 3], color="#d62728")
            .encode(x="amount:Q", tooltip=["limit:N"])
        )
    st.altair_chart(chart.properties(height=110 + 12 * len(order)), width="stretch")
    if limit:
        st.caption(plain(f"dashed: {limit[0]}"))


def bars(amounts: Sequence[tuple[str, float, str, str]], unit: str) -> None:
    """Draw amounts beside each other on a logarithmic axis where they are far apart.

    Args:
        amounts: name, amount, the amount in words, and the group of each, which has a color of its own.
        unit: of the amounts.
    """
    rows = [
        {"name": name, "amount": float(amount), "is": words, "group": group} for name, amount, words, group in amounts
    ]
    values = [amount for _, amount, _, _ in amounts]
    is_far = _is_far(values)
    scale = alt.Scale(type="log", domain=[min(values) / 2, max(values) * 2]) if is_far else alt.Scale()
    chart: Any = (
        alt.Chart(_data(rows))
        .mark_bar()
        .encode(
            x=alt.X("amount:Q", scale=scale, title=unit, axis=alt.Axis(format="~s")),
            y=alt.Y("name:N", sort=None, title=None, axis=alt.Axis(labelLimit=220)),
            color=alt.Color("group:N", legend=alt.Legend(title=None, orient="bottom")),
            tooltip=["name:N", "is:N", "group:N"],
            **({"x2": alt.datum(min(values) / 2)} if is_far else {}),
        )
    )
    st.altair_chart(chart.properties(height=120 + ROW * len(rows)), width="stretch")


def lines(
    x: str,
    y: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float] | None = None,
    dots: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Draw values along an option, on logarithmic axes where they are far apart.

    Args:
        x: name of the option.
        y: name of the value.
        points: by the name of each line.
        marks: by name, where along the option something turns.
        dots: by name, single points.
    """
    rows = [_place(name, point) for name, line in points.items() for point in line]
    spots = [_place(name, point) for name, point in (dots or {}).items()]
    everything = (*rows, *spots)
    across = alt.X("x:Q", title=x, scale=_scale(rows_x := [row["x"] for row in everything]), axis=_axis(x, rows_x))
    up = alt.Y("y:Q", title=y, scale=_scale(rows_y := [row["y"] for row in everything]), axis=_axis(y, rows_y))
    names = len({row["line"] for row in everything})
    legend = alt.Legend(title=None, orient="bottom", columns=1, labelLimit=300) if names > 1 else None
    color = alt.Color("line:N", sort=None, legend=legend)
    tips = ["line:N", alt.Tooltip("x:Q", format=".4~s", title=x), alt.Tooltip("y:Q", format=".4~s", title=y)]
    chart: Any = (
        alt.Chart(_data(rows))
        .mark_line(point=max(map(len, points.values())) <= MOST_MARKED)
        .encode(x=across, y=up, color=color, tooltip=tips)
    )
    if dots:
        chart += (
            alt.Chart(_data(spots))
            .mark_point(size=220, filled=True, shape="diamond")
            .encode(x=across, y=up, color=color, tooltip=tips)
        )
    if marks:
        turning = _data([{"what": what, "x": place} for what, place in marks.items()])
        chart += alt.Chart(turning).mark_rule(strokeDash=[4, 3], color="#888888").encode(x="x:Q", tooltip=["what:N"])
    st.altair_chart(chart.properties(height=PANEL + LEGEND_ROW * names), width="stretch")
    for name in marks or {}:
        st.caption(plain(f"dashed: {name}"))


def _place(line: str, point: tuple[float, float]) -> dict[str, Any]:
    return {"line": line, "x": float(point[0]), "y": float(point[1])}


def _scale(values: Sequence[float]) -> alt.Scale:
    return alt.Scale(type="log", nice=False) if _is_far(values) else alt.Scale(zero=False)


def _axis(name: str, values: Sequence[float]) -> alt.Axis:
    looks: dict[str, Any] = {"labelExpr": _spelled(name), "labelOverlap": True, "tickCount": MANY}
    if _is_far(values):
        first, last = floor(log10(min(values))), floor(log10(max(values)))
        step, between = max(1, (last - first) // MANY), (1, 2, 5) if last - first < 3 else (1,)
        marks = [mantissa * 10.0**power for power in range(first, last + 1, step) for mantissa in between]
        looks["values"] = [mark for mark in marks if min(values) <= mark <= max(values)]
    return alt.Axis(**looks)


def _spelled(name: str) -> str:
    """Return the expression that spells the marks of an axis: 10B parameters, 10G FLOP/s, 1e-8."""
    short = (
        "replace(format(datum.value, '~s'), 'G', 'B')" if COUNTS & set(name.split()) else "format(datum.value, '~s')"
    )
    is_plain = "datum.value == 0 || (abs(datum.value) >= 1e-6 && abs(datum.value) < 1e18)"
    return f"{is_plain} ? {short} : format(datum.value, '~e')"


def _is_far(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) >= FAR * min(values)


def _data(rows: Sequence[Mapping[str, Any]]) -> alt.Data:
    return alt.Data(values=list(rows))


def plain(text: str) -> str:
    """Return text that Markdown shows as it is: names are a user's own, and none of them may become a link."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&])", r"\\\1", text)


Table = Callable[[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]], None]
"""Shows rows as a table: the rows, and the key and title of each column."""

BUDGETS = {"a tenth": 0.1, "all": 1.0, "ten times": 10.0}

MOST = 8
"""Rows and columns of a tensor's layout that are shown."""


def _budget(answer: Answer, _: Table) -> None:
    """Draw the models that the budget allows, and the loss that they reach by the fit."""
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


def _timed(answer: Answer) -> dict[str, dict[str, Any]]:
    return {f"{row['gpu']} {row['dtype']}": row for row in answer.rows if row["seconds"] is not None}


def _times(answer: Answer, _: Table) -> None:
    """Draw the times beside each other."""
    bars(
        [
            (name, row["seconds"], format_time(row["seconds"]), f"{row['bound']}-bound")
            for name, row in _timed(answer).items()
        ],
        "least time, seconds",
    )


def _roof(answer: Answer, _: Table) -> None:
    """Draw the roof of each machine and dtype, and the product under it."""
    rows = _timed(answer)
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
    """Draw what fills the memory, beside the memory that there is."""
    row = answer.rows[0]
    limit = (f"{row['gpu']}: {memory(row['memory_bytes'])}", row["memory_bytes"])
    amounts = [(step.label, step.amount, step.result) for step in folded(answer) if step.amount]
    parts(f"{100 * row['used']:.1f} % of {limit[0]}", amounts, limit)


def _layout(answer: Answer, _: Table) -> None:
    """Show where the elements of the last two dimensions lie."""
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
    "matmul": _times,
    "memory": _memory,
    "roof": _roof,
    "tensor": _layout,
}
"""What draws the picture of a page; the others draw the curve or the parts of their answer."""
