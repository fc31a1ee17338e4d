"""How many GPUs does it take to hold a model, or to train it in time?"""

from __future__ import annotations

from roofline.explore import along
from roofline.explore.ask import Asked, Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "How many GPUs", "gpus", 12


def fields(form: Form) -> Options:
    """Draw the model, its state, the time, and the machine."""
    return {
        **form.model(params="70B"),
        **form.state(),
        **form.number("tokens", "15T", "tokens to train on", 1e9, 1e14, help="may be left out: then the state alone"),
        **form.number("days", "90", "days that it may take", 1, 365),
        **form.gpu(),
        **form.number("mfu", "0.4", "MFU: share of the dense peak", 0.05, 1),
        **form.dtype(),
    }


def more(asked: Asked, _: Form) -> None:
    """Draw the GPUs along the days that it may take, where it is to be trained."""
    if asked.answer.values.get("days"):
        along.draw(asked, "days=1,2,5,10,20,50,100,200,365", {"GPUs": {"gpus": "needed"}})
