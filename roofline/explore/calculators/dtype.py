"""Which numbers can a floating-point format hold, and what becomes of a value in it?"""

from __future__ import annotations

from roofline.accounting.number_formats import FORMATS
from roofline.explore import pictures
from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form
from roofline.explore.page import table

TITLE, COMMAND, PLACE = "Number formats", "dtype", 3

COMMON = "fp32,tf32,fp16,bf16,fp8e4m3,fp8e5m2,nvfp4"
"""All but fp64, whose range hides that of the others."""


def fields(form: Form) -> Options:
    """Draw the formats, and a value."""
    chosen = form.choices("dtype", list(FORMATS), COMMON, "formats")
    return {"dtype": chosen, "value": form.text("value", "1e-8", "a value", "such as 1e-8, 70000 or -0.1")}


def more(asked: Asked, _: Form) -> None:
    """Draw range against precision: a format is a line from its smallest to its largest value."""
    rows = asked.answer.rows
    lines = {
        row["dtype"]: [(row["smallest_subnormal"], row["epsilon"]), (row["largest"], row["epsilon"])] for row in rows
    }
    value = abs(asked.answer.values.get("asked", 0))
    marks = {f"the value {value:g}": value} if value else {}
    if value:
        table(rows, [("dtype", "format"), ("value", f"what {value:g} becomes"), ("epsilon", "epsilon")])
    pictures.lines("magnitude", "epsilon", lines, marks)
