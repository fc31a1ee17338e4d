"""How long does a whole reply take, and what does it cost?"""

from __future__ import annotations

from roofline.explore import along
from roofline.explore.ask import Asked, Options
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


def more(asked: Asked, _: Form) -> None:
    """Draw speed and price along the batch."""
    panels = {
        "tokens/s": {"tokens_per_s": "of all replies"},
        "price of 10^6 tokens": {"price_per_million_tokens": "price"},
    }
    along.draw(asked, "batch=1:1024:x2", panels)
