"""Pictures of a page: those of `estimate -o`, and the pages that have a picture of their own."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import streamlit as st

from results.show.picture import on_dark
from roofline import estimate
from roofline.estimate.answer import Answer, cell
from roofline.estimate.options import machines_of
from roofline.estimate.question import values_of
from roofline.estimate.scaling import loss_along
from roofline.picture.build import build_scene
from roofline.picture.charts import draw_answer, draw_lines
from roofline.picture.interactive import roofline_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWING = Lock()
"""Matplotlib's styles are global, and each browser window has a thread."""


def show(draw: Callable[..., Figure], *words: Any) -> None:
    """Show a picture within the page; the URL of a separate file would expire when a value
    changes.
    """
    svg = io.StringIO()
    with DRAWING:
        draw(*words, st.context.theme.type or "light").savefig(svg, format="svg")
    st.image(svg.getvalue(), width="stretch")


def plain(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&])", r"\\\1", text)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
    titles = [title for _, title in columns]
    unique = [title + " " * titles[:index].count(title) for index, title in enumerate(titles)]
    cells = [[plain(cell(key, row.get(key))) for key, _ in columns] for row in rows]
    st.table([dict(zip(unique, line, strict=True)) for line in cells], hide_index=True)


BUDGETS = {"a tenth": 0.1, "all": 1.0, "ten times": 10.0}


def _budget(answer: Answer) -> None:
    show(draw_answer, answer)
    flops = answer.values["flops"]
    losses = {f"{name} of the budget": loss_along(flops * share) for name, share in BUDGETS.items()}
    losses["the answer"] = [(answer.values["params"], answer.values["fitted_loss"])]
    show(draw_lines, answer.title, "parameters", "fitted loss, nats per token", losses, {})


def _formats(answer: Answer) -> None:
    ends = ("smallest_subnormal", "largest")
    ranges = {row["dtype"]: [(row[end], row["epsilon"]) for end in ends] for row in answer.rows}
    value = abs(answer.values.get("asked", 0))
    if value:
        table(
            answer.rows,
            [("dtype", "format"), ("value", f"{value:g} rounded"), ("epsilon", "epsilon")],
        )
    marks = {f"the value {value:g}": value} if value else {}
    show(draw_lines, answer.title, "magnitude", "epsilon", ranges, marks)


def show_roofs(answer: Answer, given: Mapping[str, Any]) -> None:
    rows = [row for row in answer.rows if row["seconds"] is not None]
    if not rows:
        return  # without a machine
    scene = build_scene(
        [], machines_of(values_of(estimate.matmul, given)), [row["dtype"] for row in rows]
    )
    stars = [
        {
            **row,
            "name": f"{row['gpu']} {row['dtype']}",
            "flops_per_s": row["flops"] / row["seconds"],
        }
        for row in rows
    ]
    figure = roofline_figure(scene, stars).to_json()
    if st.context.theme.type == "dark":
        figure = re.sub(r"#[0-9A-Fa-f]{6}\b", lambda color: on_dark(color[0]), figure)
    st.plotly_chart(json.loads(figure), theme=None)


OF_PAGES: dict[str, Callable[[Answer], None]] = {"chinchilla": _budget, "dtype": _formats}
