"""How fast can a model read a prompt and write tokens, and from which batch on is it bound by compute?"""

from __future__ import annotations

import streamlit as st

from roofline.explore import pictures
from roofline.explore.ask import Asked, Options, command_line, sweep
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Prefill and decode", "infer", 9

OVER = {"batch": "batch=1:4096:x2", "prompt": "prompt=128:131072:x2"}
"""Options that the answer is drawn along."""


def fields(form: Form) -> Options:
    """Draw the model, the batch and its contexts, and the machine."""
    return {**serving(form), **form.gpu(), **form.number("gpus", "1", "GPUs", 1, 64, is_binary=True), **form.dtype()}


def serving(form: Form) -> Options:
    """Draw the model, what it lies in, the batch and the prompts."""
    stored = ["as computed", "fp8e4m3", "int8", "int4", "nvfp4", "mxfp4"]
    weights = form.choice("weight-dtype", stored, stored[0], "weights in")
    return {
        **form.model(params="8B", is_preset=True),
        **form.number("batch", "1", "sequences at once", 1, 4096, is_binary=True),
        **form.number("prompt", "2048", "tokens of each prompt", 128, 131072, is_binary=True),
        "weight-dtype": "" if weights == stored[0] else weights,
        "kv-dtype": form.choice("kv-dtype", ["bf16", "fp8e4m3", "int8", "fp32"], "bf16", "cache in"),
    }


def more(asked: Asked, form: Form) -> None:
    """Draw speed and times along the batch and along the context."""
    option = form.choice("against", list(OVER), "batch", "drawn against")
    words, rows = sweep(asked, option, OVER[option])
    st.code(command_line(words), language="bash", wrap_lines=True)
    along = [(row[option], row) for row in rows if row.get("decode_seconds")]
    times = {
        "prefill": [(x, row["prefill_seconds"]) for x, row in along],
        "one step of decoding": [(x, row["decode_seconds"]) for x, row in along],
    }
    turn = asked.answer.rows[0]["critical_batch"]
    marks = {f"critical batch {turn:,}": turn} if option == "batch" and turn and turn <= 4096 else {}
    pictures.lines(f"Times against {option}", option, "seconds", times, marks)
    speed = {"tokens/s of all sequences": [(x, row["tokens_per_s"]) for x, row in along]}
    pictures.lines(f"Speed against {option}", option, "tokens/s", speed, marks)
