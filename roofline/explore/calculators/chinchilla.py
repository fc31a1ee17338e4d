"""Which model and how many tokens make the best use of a compute budget?"""

from __future__ import annotations

from roofline.accounting.answers.budget import loss_along
from roofline.explore import pictures
from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Compute budget", "chinchilla", 7


def fields(form: Form) -> Options:
    """Draw the budget, as machines and days or as FLOPs."""
    ratio = form.number("tokens-per-param", "20", "tokens for each parameter", 1, 2000)
    if form.choice("by", ["GPUs and days", "FLOPs"], "GPUs and days", "budget by") == "FLOPs":
        return {**form.number("flops", "1e23", "FLOPs", 1e18, 1e27), **ratio}
    return {
        **form.gpu(),
        **form.number("gpus", "32", "GPUs", 1, 65536, is_binary=True),
        **form.number("days", "14", "days", 0.1, 365),
        **form.number("mfu", "0.5", "MFU: share of the dense peak", 0.05, 1),
        **form.dtype(),
        **ratio,
    }


def more(asked: Asked, _: Form) -> None:
    """Draw the models that the budget allows, and the loss that they reach by the fit."""
    answer = asked.answer
    if answer.curve:
        pictures.lines(*answer.curve)
    flops = answer.values["flops"]
    losses = {f"{name} of the budget": loss_along(flops * share) for name, share in BUDGETS.items()}
    best = {"the answer": (answer.values["params"], answer.values["fitted_loss"])}
    pictures.lines("parameters", "fitted loss, nats per token", losses, dots=best)


BUDGETS = {"a tenth": 0.1, "all": 1.0, "ten times": 10.0}
