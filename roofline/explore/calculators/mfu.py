"""Which share of the peak does a training run reach?"""

from __future__ import annotations

from roofline.explore.ask import Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "MFU", "mfu", 11

WAYS = ("tokens a second", "seconds a step", "days of the run")


def fields(form: Form) -> Options:
    """Draw the model, the speed of its run, and the machines."""
    return {
        **form.model(params="540B"),
        **_speed(form),
        **form.number("sequence", "2048", "tokens of a sequence", 128, 131072, is_binary=True),
        **form.gpu("tpu-v4"),
        **form.number("gpus", "6144", "GPUs", 1, 65536, is_binary=True),
        **form.dtype(),
    }


def _speed(form: Form) -> Options:
    way = form.choice("speed", WAYS, WAYS[0], "speed by")
    if way == WAYS[0]:
        return form.number("tokens-per-s", "238e3", "tokens/s on all GPUs", 100, 1e8)
    if way == WAYS[1]:
        return {
            **form.number("seconds-per-step", "17", "seconds of a step", 0.01, 1000),
            **form.number("batch", "2048", "sequences of a step", 1, 65536, is_binary=True),
        }
    return {**form.number("days", "60", "days", 0.1, 365), **form.number("tokens", "780B", "tokens", 1e9, 1e14)}
