"""Where does an operation lie under the roofline of a GPU?"""

from __future__ import annotations

from roofline.explore import pictures
from roofline.explore.ask import Asked, Options
from roofline.explore.calculators.matmul import product
from roofline.explore.form import Form
from roofline.model import ridge_intensity
from roofline.work import DTYPES

TITLE, COMMAND, PLACE = "Roofline", "matmul", 8


def fields(form: Form) -> Options:
    """Draw a product whose extents move it along the roof, and the machines."""
    shape = product(form)
    return {**form.gpus("h100-sxm"), "dtype": form.choices("dtype", list(DTYPES), "bf16", "dtypes"), "shape": shape}


def more(asked: Asked, _: Form) -> None:
    """Draw the roof of each machine and dtype, and the operation under it."""
    rows = [row for row in asked.answer.rows if row["seconds"] is not None]
    limits = {f"{row['gpu']} {row['dtype']}": (row["peak_flops_per_s"], row["bandwidth_bytes_per_s"]) for row in rows}
    ridges = {name: ridge_intensity(*limit) for name, limit in limits.items()}
    ends = [*ridges.values(), *(row["intensity"] for row in rows)]
    lowest, highest = min(ends) / 32, max(ends) * 8
    roofs = {
        name: [(x, min(peak, x * bandwidth)) for x in (lowest, ridges[name], highest)]
        for name, (peak, bandwidth) in limits.items()
    }
    dots = {
        f"the product, {name}": (row["intensity"], row["flops"] / row["seconds"])
        for name, row in zip(limits, rows, strict=True)
    }
    marks = {f"ridge of {name}, {ridge:.1f} FLOP/B": ridge for name, ridge in ridges.items()}
    pictures.lines("arithmetic intensity, FLOP/byte", "attainable FLOP/s", roofs, marks, dots)
