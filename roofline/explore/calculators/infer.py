"""How fast can a model read a prompt and write tokens, and from which batch on is it bound by compute?"""

from __future__ import annotations

from roofline.explore import along
from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Prefill and decode", "infer", 9

MOST_BATCH = 4096
OVER = {"batch": f"batch=1:{MOST_BATCH}:x2", "prompt": "prompt=128:131072:x2"}
"""Options that the answer is drawn along."""

PANELS = {
    "seconds": {"prefill_seconds": "prefill", "decode_seconds": "one step of decoding"},
    "tokens/s": {"tokens_per_s": "of all sequences"},
}


def fields(form: Form) -> Options:
    """Draw the model, the batch and its contexts, and the machine."""
    return {**serving(form), **form.gpu(), **form.number("gpus", "1", "GPUs", 1, 64, is_binary=True), **form.dtype()}


def serving(form: Form) -> Options:
    """Draw the model, what it lies in, the batch and the prompts."""
    stored = ["as computed", "fp8e4m3", "int8", "int4", "nvfp4", "mxfp4"]
    weights = form.choice("weight-dtype", stored, stored[0], "weights in")
    return {
        **form.model(params="8B", is_preset=True),
        **form.number("batch", "1", "sequences at once", 1, MOST_BATCH, is_binary=True),
        **form.number("prompt", "2048", "tokens of each prompt", 128, 131072, is_binary=True),
        "weight-dtype": "" if weights == stored[0] else weights,
        "kv-dtype": form.choice("kv-dtype", ["bf16", "fp8e4m3", "int8", "fp32"], "bf16", "cache in"),
    }


def more(asked: Asked, form: Form) -> None:
    """Draw times and speed along the batch or along the context."""
    option = form.choice("against", list(OVER), "batch", "drawn against")
    turn = asked.answer.rows[0]["critical_batch"]
    marks = {f"critical batch {turn:,}": turn} if option == "batch" and turn and turn <= MOST_BATCH else {}
    along.draw(asked, OVER[option], PANELS, marks)
