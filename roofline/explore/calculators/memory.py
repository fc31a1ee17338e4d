"""What fills the memory of a GPU in training, and does it fit?"""

from __future__ import annotations

from roofline.accounting.answers.answer import memory
from roofline.commands.estimate.text import folded
from roofline.explore import pictures
from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Training memory", "memory", 6


def fields(form: Form) -> Options:
    """Draw the model, its recipe, the micro-batch, and how it is shared."""
    return {
        **form.model(),
        **form.state(),
        **form.number("batch", "1", "sequences of a micro-batch", 1, 256, is_binary=True),
        **form.number("sequence", "2048", "tokens of a sequence", 128, 131072, is_binary=True),
        "checkpoint": form.choice("checkpoint", ["none", "selective", "full", "sqrt"], "none", "recomputation"),
        "kernels": form.choice(
            "kernels", ["fused", "eager"], "fused", "kernels", "eager: the plain ones of transformers"
        ),
        "zero": form.choice("zero", list("0123"), "0", "stage of ZeRO"),
        **form.number("data-parallel", "1", "data-parallel GPUs", 1, 1024, is_binary=True),
        **form.number("tensor-parallel", "1", "tensor-parallel GPUs", 1, 64, is_binary=True),
        **form.gpu(),
    }


def more(asked: Asked, _: Form) -> None:
    """Draw what fills the memory, beside the memory that there is."""
    answer = asked.answer
    parts = [(step.label, step.amount, step.result) for step in folded(answer) if step.amount]
    row = answer.rows[0]
    limit = (f"{row['gpu']}: {memory(row['memory_bytes'])}", row["memory_bytes"])
    pictures.parts(f"{100 * row['used']:.1f} % of {limit[0]}", parts, limit)
