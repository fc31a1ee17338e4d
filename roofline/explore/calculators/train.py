"""How long does a training run take, and what does it cost?"""

from __future__ import annotations

from roofline.explore.ask import Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Training time", "train", 1


def fields(form: Form) -> Options:
    """Draw the model, the tokens, and the machines."""
    return {
        **form.model(params="70B"),
        **form.number("tokens", "15T", "tokens to train on", 1e9, 1e14),
        **form.gpu(),
        **form.number("gpus", "1024", "GPUs", 1, 65536, is_binary=True),
        **form.number("mfu", "0.5", "MFU: share of the dense peak", 0.05, 1, help="published runs reach 0.38 to 0.57"),
        **form.dtype(),
        **form.number("price", "", "price of one GPU for an hour", 0.1, 20),
    }
