"""Pictures of a page: bars and lines in the colors of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Any

import altair as alt
import streamlit as st

from roofline.plot.estimates import FAR, MOST_MARKED

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
        {"part": name, "amount": amount, "is": words, "share": f"{100 * amount / total:.1f} %", "place": place}
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
    rows = [{"name": name, "amount": amount, "is": words, "group": group} for name, amount, words, group in amounts]
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
    return {"line": line, "x": point[0], "y": point[1]}


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
