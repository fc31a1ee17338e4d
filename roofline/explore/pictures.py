"""Pictures and tables of a page: those of `estimate -o`, and products under their roofs."""

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
from roofline.estimate.answer import Answer, Row, cell
from roofline.estimate.options import machines_of
from roofline.estimate.question import values_of
from roofline.picture.build import build_scene
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


def table(rows: Sequence[Row], columns: Sequence[tuple[str, str]]) -> None:
    titles = [title for _, title in columns]
    unique = [title + " " * titles[:index].count(title) for index, title in enumerate(titles)]
    cells = [[plain(cell(key, row.get(key))) for key, _ in columns] for row in rows]
    st.table([dict(zip(unique, line, strict=True)) for line in cells], hide_index=True)


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
