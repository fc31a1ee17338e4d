"""Which ways of sharing a model among GPUs fit in their memory?"""

from __future__ import annotations

from itertools import product
from typing import Any

import streamlit as st

from roofline.accounting.config.config import ConfigError
from roofline.commands.estimate.arguments import machines_of, model_of
from roofline.commands.estimate.parts import answer_memory
from roofline.explore.ask import Asked, Options, read
from roofline.explore.form import Form
from roofline.explore.page import table

TITLE, COMMAND, PLACE = "Which parallelism fits", "memory", 10

TENSOR, PIPELINE, EXPERT, MOST_SHOWN = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 4, 8, 16, 64), 24
ORDER = (
    "First what fits, with the least of pipeline, then of tensor, then of expert parallelism, then the lowest stage of "
    "ZeRO: each of them costs communication that is not counted here. The steps are those of the first row. Experts "
    "are shared among data-parallel GPUs."
)


def fields(form: Form) -> Options:
    """Draw the model, the GPUs and the step, and return the first plan."""
    options = {
        **form.model("llama-3-70b"),
        **form.gpu(),
        **form.state(),
        "checkpoint": form.choice("checkpoint", ["none", "selective", "full"], "none", "recomputation"),
        **form.number("batch", "1", "sequences of a micro-batch", 1, 64, is_binary=True),
        **form.number("sequence", "4096", "tokens of a sequence", 128, 131072, is_binary=True),
        **form.switch("sequence-parallel", "tensor parallelism shares norms and inputs, too"),
    }
    devices = form.count("devices", "64", "GPUs", 1, 4096)
    sequences = form.count("step", "512", "sequences of a step on all GPUs", 1, 65536)
    form.kept = plans(options, form, devices, sequences)
    form.said = in_words(form.kept[0])
    return {**options, **form.kept[0]["options"]}


def in_words(plan: dict[str, Any]) -> str:
    """Return how a plan shares the model, and where it does not fit, that none does."""
    ways = f"{plan['data-parallel']} data x {plan['tensor-parallel']} tensor x {plan['pipeline-parallel']} pipeline"
    experts = f", experts among {plan['expert-parallel']}" if plan["expert-parallel"] > 1 else ""
    return f"{ways}{experts}, ZeRO {plan['zero']}" if plan["fits"] else "none fits"


def plans(options: Options, form: Form, devices: int, sequences: int) -> list[dict[str, Any]]:
    """Return all ways to share a model among devices, by `ORDER`.

    Raises:
        ConfigError: there is none.
    """
    found, refused = [], None
    shared = EXPERT if model_of(read(COMMAND, options, form.config)).experts else (1,)
    for zero, tensor, pipeline, expert in product(range(4), TENSOR, PIPELINE, shared):
        data = devices // (tensor * pipeline)
        if data * tensor * pipeline != devices or (zero and data == 1) or data % expert:
            continue
        plan = {"zero": zero, "data-parallel": data, "tensor-parallel": tensor, "pipeline-parallel": pipeline}
        plan["expert-parallel"] = expert
        typed = {name: str(value) for name, value in plan.items() if value != (0 if name == "zero" else 1)}
        args = read(COMMAND, {**options, **typed}, form.config)
        if pipeline > 1:
            args.accumulate = max(1, sequences // (args.batch * data))
            typed["accumulate"] = str(args.accumulate)
        try:
            answer = answer_memory(args)
        except ConfigError as refusal:
            refused = refusal
            continue
        total, held = answer.values["total_bytes"], machines_of(args)[0].memory()
        row = {**plan, "total_bytes": total, "used": total / held, "fits": total <= held}
        found.append({**row, "options": typed})
    if not found:
        raise refused or ConfigError(f"{devices} GPUs cannot be shared out")
    keys = ("pipeline-parallel", "tensor-parallel", "expert-parallel", "zero")
    return sorted(found, key=lambda row: (not row["fits"], *(row[key] if row["fits"] else row["used"] for key in keys)))


def more(_: Asked, form: Form) -> None:
    """Show all ways."""
    fitting = sum(row["fits"] for row in form.kept)
    st.write(f"**{fitting} of {len(form.kept)} ways fit.** {ORDER}")
    columns = [("data-parallel", "data"), ("tensor-parallel", "tensor"), ("pipeline-parallel", "pipeline")]
    if any(row["expert-parallel"] > 1 for row in form.kept):
        columns.append(("expert-parallel", "experts"))
    columns += [("zero", "ZeRO"), ("total_bytes", "one GPU"), ("used", "used"), ("fits", "fits")]
    table(form.kept[:MOST_SHOWN], columns)
