"""How large a model can be trained in the memory of some GPUs?"""

from __future__ import annotations

from roofline.explore.ask import Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Largest model that fits", "fit", 7


def fields(form: Form) -> Options:
    """Draw the GPUs, and what stays in memory for each parameter."""
    gpus = {**form.gpu(), **form.number("gpus", "8", "GPUs", 1, 65536, is_binary=True)}
    if form.choice("by", ["recipe", "bytes"], "recipe", "state by") == "bytes":
        return {**gpus, **form.number("bytes-per-param", "16", "bytes for each parameter", 1, 32)}
    return {**gpus, **form.state()}
