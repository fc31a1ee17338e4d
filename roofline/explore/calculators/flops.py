"""How many FLOPs does a training step take, and in which components?"""

from __future__ import annotations

from roofline.accounting.flops import CONVENTIONS, DEFAULT_CONVENTION, RECOMPUTE
from roofline.explore.ask import Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "FLOPs of a step", "flops", 6


def fields(form: Form) -> Options:
    """Draw the model, the step, and how FLOPs are counted."""
    return {
        **form.model(),
        **form.number("batch", "1", "sequences", 1, 1024, is_binary=True),
        **form.number("sequence", "2048", "tokens of a sequence", 128, 131072, is_binary=True),
        "convention": form.choice("convention", list(CONVENTIONS), DEFAULT_CONVENTION, "convention: what is counted"),
        "recompute": form.choice("recompute", list(RECOMPUTE), "none", "recomputation, for HFU"),
        **form.switch("frozen", "weights are not trained, as under adapters (LoRA)"),
    }
