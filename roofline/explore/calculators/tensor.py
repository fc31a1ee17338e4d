"""How large is a tensor in memory, and where does each element lie?"""

from __future__ import annotations

import streamlit as st

from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form
from roofline.work import DTYPES

TITLE, COMMAND, PLACE = "Tensor storage", "tensor", 2

MOST = 8
"""Rows and columns of the layout that are shown."""


def fields(form: Form) -> Options:
    """Draw shape and dtype."""
    shape = form.text("shape", "4x8", "shape", "extents with an x between, such as 49152x12288")
    return {"shape": shape, "dtype": form.choice("dtype", list(DTYPES), "fp32", "dtype")}


def more(asked: Asked, _: Form) -> None:
    """Show where the elements of the last two dimensions lie."""
    strides = asked.answer.values["strides"]
    extents = [int(extent) for extent in asked.answer.steps[0].arithmetic.split(" x ")]
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
