"""How long does a whole reply take, and what does it cost?"""

from __future__ import annotations

from roofline.explore.ask import Options
from roofline.explore.calculators.infer import serving
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "A whole reply", "generate", 13


def fields(form: Form) -> Options:
    """Draw the model, the prompts and replies, the machine and its price."""
    return {
        **serving(form),
        **form.number("output-tokens", "512", "tokens of each reply", 1, 32768, is_binary=True),
        **form.gpu(),
        **form.number("gpus", "1", "GPUs", 1, 64, is_binary=True),
        **form.number("price", "2.5", "price of one GPU for an hour", 0.1, 20),
        **form.dtype(),
    }
