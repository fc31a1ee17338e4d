"""Pictures of a page: those of `estimate --plot`, and the pages that have a picture of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import streamlit as st

from roofline.estimate.answer import Answer, folded, memory
from roofline.estimate.budgets import loss_along
from roofline.model import ridge_intensity
from roofline.picture.charts import draw_answer, draw_lines, draw_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWING = Lock()
"""Matplotlib's styles are global, and two windows of a browser are two threads."""


def show(draw: Callable[..., Figure], *words: Any) -> None:
    """Show what a function of `picture.charts` draws, in the theme of the page."""
    with DRAWING:
        st.pyplot(draw(*words, st.context.theme.type or "light"), width="stretch")


def plain(text: str) -> str:
    """Return text that Markdown shows as it is: names are a user's own, and none of them may become a link."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&])", r"\\\1", text)


Table = Callable[[Sequence[Mapping[str, Any]], Sequence[tuple[str, str]]], None]

BUDGETS = {"a tenth": 0.1, "all": 1.0, "ten times": 10.0}


def _budget(answer: Answer, _: Table) -> None:
    show(draw_answer, answer)
    flops = answer.values["flops"]
    losses = {f"{name} of the budget": loss_along(flops * share) for name, share in BUDGETS.items()}
    losses["the answer"] = [(answer.values["params"], answer.values["fitted_loss"])]
    show(draw_lines, answer.title, "parameters", "fitted loss, nats per token", losses, {})


def _formats(answer: Answer, table: Table) -> None:
    ends = ("smallest_subnormal", "largest")
    ranges = {row["dtype"]: [(row[end], row["epsilon"]) for end in ends] for row in answer.rows}
    value = abs(answer.values.get("asked", 0))
    if value:
        table(answer.rows, [("dtype", "format"), ("value", f"what {value:g} becomes"), ("epsilon", "epsilon")])
    marks = {f"the value {value:g}": value} if value else {}
    show(draw_lines, answer.title, "magnitude", "epsilon", ranges, marks)


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
    roofs |= {f"the product, {name}": [(row["intensity"], row["flops"] / row["seconds"])] for name, row in rows.items()}
    marks = {f"ridge of {name}, {ridge:.1f} FLOP/B": ridge for name, ridge in ridges.items()}
    show(draw_lines, answer.title, "arithmetic intensity, FLOP/byte", "attainable FLOP/s", roofs, marks)


def _memory(answer: Answer, _: Table) -> None:
    row = answer.rows[0]
    used = f"{100 * row['used']:.1f} % of {row['gpu']}: {memory(row['memory_bytes'])}"
    amounts = [(step.label, step.amount, step.result) for step in folded(answer) if step.amount]
    show(draw_parts, answer.title, used, amounts)


OF_PAGES: dict[str, Callable[[Answer, Table], None]] = {
    "chinchilla": _budget,
    "dtype": _formats,
    "matmul": _roof,
    "memory": _memory,
}
