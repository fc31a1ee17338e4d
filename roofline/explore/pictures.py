"""Pictures of a page: those of `estimate --plot`, and the pages that have a picture of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import streamlit as st

from roofline.estimate.answer import Answer, cell
from roofline.estimate.budgets import loss_along
from roofline.model import ridge_intensity
from roofline.picture.charts import draw_answer, draw_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWING = Lock()
"""Matplotlib's styles are global, and two windows of a browser are two threads."""


def show(draw: Callable[..., Figure], *words: Any) -> None:
    with DRAWING:
        st.pyplot(draw(*words, st.context.theme.type or "light"), width="stretch")


def plain(text: str) -> str:
    """Return text that Markdown shows as it is: names are a user's own, and none of them may become a link."""
    return re.sub(r"([\\`*_{}\[\]()<>#+!|~$:&])", r"\\\1", text)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[tuple[str, str]]) -> None:
    titles = [title for _, title in columns]
    apart = [title + " " * titles[:place].count(title) for place, title in enumerate(titles)]
    cells = [[plain(cell(key, row.get(key))) for key, _ in columns] for row in rows]
    st.table([dict(zip(apart, line, strict=True)) for line in cells], hide_index=True)


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
        table(answer.rows, [("dtype", "format"), ("value", f"what {value:g} becomes"), ("epsilon", "epsilon")])
    marks = {f"the value {value:g}": value} if value else {}
    show(draw_lines, answer.title, "magnitude", "epsilon", ranges, marks)


def _roof(answer: Answer) -> None:
    rows = {f"{row['gpu']} {row['dtype']}": row for row in answer.rows if row["seconds"] is not None}
    ridges = {n: ridge_intensity(row["peak_flops_per_s"], row["bandwidth_bytes_per_s"]) for n, row in rows.items()}
    ends = [*ridges.values(), *(row["intensity"] for row in rows.values())]
    roofs = {}
    for name, row in rows.items():
        peak, bandwidth = row["peak_flops_per_s"], row["bandwidth_bytes_per_s"]
        roofs[name] = [(x, min(peak, x * bandwidth)) for x in (min(ends) / 32, ridges[name], max(ends) * 8)]
    roofs |= {f"the product, {name}": [(row["intensity"], row["flops"] / row["seconds"])] for name, row in rows.items()}
    show(draw_lines, answer.title, "arithmetic intensity, FLOP/byte", "attainable FLOP/s", roofs, {})


OF_PAGES: dict[str, Callable[[Answer], None]] = {"chinchilla": _budget, "dtype": _formats, "matmul": _roof}
