"""How long does a matrix product take at least, on which GPU and in which dtype?"""

from __future__ import annotations

from results.show.table import format_time
from roofline.explore import pictures
from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form
from roofline.work import DTYPES

TITLE, COMMAND, PLACE = "Matrix product", "matmul", 4


def fields(form: Form) -> Options:
    """Draw the shape of the product, and the machines."""
    return {
        "shape": product(form),
        **form.number("batch", "1", "products of that shape", 1, 4096, is_binary=True),
        **form.gpus("a100-sxm-80gb,h100-sxm"),
        "dtype": form.choices("dtype", list(DTYPES), "fp32,bf16", "dtypes"),
    }


def product(form: Form) -> str:
    """Draw the extents of a product (m, k) x (k, n), and return its shape."""
    extents = {"m": "rows of A", "n": "columns of B", "k": "columns of A, rows of B"}
    typed = [
        form.number(name, "4096", f"{name}: {what}", 1, 65536, is_binary=True)[name] for name, what in extents.items()
    ]
    return "x".join(typed)


def more(asked: Asked, _: Form) -> None:
    """Draw the times beside each other."""
    rows = [row for row in asked.answer.rows if row["seconds"] is not None]
    times = [(f"{row['gpu']} {row['dtype']}", row["seconds"], format_time(row["seconds"])) for row in rows]
    grouped = [(*time, f"{row['bound']}-bound") for time, row in zip(times, rows, strict=True)]
    pictures.bars(grouped, "least time, seconds")
