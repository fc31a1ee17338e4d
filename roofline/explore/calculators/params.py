"""How many parameters does a transformer have, and in which components?"""

from __future__ import annotations

from roofline.explore.ask import Options
from roofline.explore.form import Form

TITLE, COMMAND, PLACE = "Parameters", "params", 5


def fields(form: Form) -> Options:
    """Draw the model."""
    return form.model()
