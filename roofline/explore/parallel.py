"""The page of all ways to share a model among GPUs, and which of them fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import streamlit as st

from roofline import estimate
from roofline.accounting.config.config import ConfigError
from roofline.estimate.values import whole
from roofline.explore.form import Form, Options

TENSOR, PIPELINE, EXPERT, MOST_SHOWN = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 4, 8, 16, 64), 24
ORDER = (
    "First what fits, with the least of pipeline, then of tensor, then of expert parallelism, then the lowest stage of "
    "ZeRO: each of them costs communication that is not counted here. The steps are those of the first row. Experts "
    "are shared among data-parallel GPUs."
)


def plans(form: Form, options: Options) -> list[dict[str, Any]]:
    """Draw how many GPUs and sequences there are, and return all ways to share the model among them, by `ORDER`.

    Raises:
        ConfigError: there is none.
    """
    count = form.count("devices", "64", "GPUs")
    sequences = form.count("step", "512", "sequences of a step on all GPUs")
    found, refused = [], None
    for zero, tensor, pipeline, expert in product(range(4), TENSOR, PIPELINE, EXPERT):
        data = count // (tensor * pipeline)
        if data * tensor * pipeline != count or (zero and data == 1) or data % expert:
            continue
        plan = {"zero": zero, "data-parallel": data, "tensor-parallel": tensor, "pipeline-parallel": pipeline}
        plan["expert-parallel"] = expert
        typed = {name: str(value) for name, value in plan.items() if value != (0 if name == "zero" else 1)}
        if pipeline > 1:
            typed["accumulate"] = str(max(1, sequences // (whole(options["batch"] or 1) * data)))
        try:
            row = estimate.memory(**form.values({**options, **typed})).rows[0]
        except ConfigError as refusal:
            refused = refusal
            continue
        total = row["memory_bytes"] - row["headroom_bytes"]
        found.append({**plan, "total_bytes": total, "used": row["used"], "fits": row["fits"], "options": typed})
    if not found:
        raise refused or ConfigError(f"{count} GPUs cannot be shared out")
    keys = ("pipeline-parallel", "tensor-parallel", "expert-parallel", "zero")
    return sorted(found, key=lambda row: (not row["fits"], *(row[key] if row["fits"] else row["used"] for key in keys)))


def in_words(plan: Mapping[str, Any]) -> str:
    """Return how a plan shares the model, or that none fits."""
    ways = f"{plan['data-parallel']} data x {plan['tensor-parallel']} tensor x {plan['pipeline-parallel']} pipeline"
    experts = f", experts among {plan['expert-parallel']}" if plan["expert-parallel"] > 1 else ""
    return f"{ways}{experts}, ZeRO {plan['zero']}" if plan["fits"] else "none fits"


def show(found: Sequence[Mapping[str, Any]], table: Callable[..., None]) -> None:
    """Show all ways."""
    st.write(f"**{sum(row['fits'] for row in found)} of {len(found)} ways fit.** {ORDER}")
    columns = [("data-parallel", "data"), ("tensor-parallel", "tensor"), ("pipeline-parallel", "pipeline")]
    if any(row["expert-parallel"] > 1 for row in found):
        columns.append(("expert-parallel", "experts"))
    columns += [("zero", "ZeRO"), ("total_bytes", "one GPU"), ("used", "used"), ("fits", "fits")]
    table(found[:MOST_SHOWN], columns)
