"""The page of a lecture: one HTML file with its pictures in it, light and dark."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record, Step
from results.show.grid import Row
from results.show.picture import own_style
from results.show.terminal import THEMES
from results.show.units import quantity
from results.store.runfile import write_output
from roofline.accounting.step_memory import COMPONENTS
from roofline.estimate import answer
from roofline.picture.charts import draw_parts
from roofline.picture.figure import plot_run
from roofline.picture.page import policy, stylesheet, template
from roofline.picture.scene import NoCeilingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_SHARE = 0.01
"""Smaller fractions of the memory are not drawn."""


def write_page(
    path: Path,
    environment: Environment,
    records: Sequence[Record],
    rows: Sequence[Row],
    **texts: Any,
) -> None:
    """Write the page; rows have the text of their figure in `figure`; `texts` are other variables
    of the template.
    """
    sections: dict[str, list[Row]] = {}
    for row in rows:
        sections.setdefault(row["section"], []).append(row)
    text = "The measured rows under this machine's roofs"
    pictures = {"Roofline": (uris(partial(plot_run, environment, records, None)), text)}
    measured = [record.details_as(Step) for record in records if record.status == "ok"]
    steps = [step for step in measured if step and step.memory_bytes]
    if steps:
        text = "Memory of an fp32 step: the state is measured, the rest estimated"
        pictures["State"] = uris(partial(memory_parts, steps[0])), text
    page = template("lecture.html").render(
        title="The lecture, measured",
        environment=environment,
        sections=sections,
        pictures=pictures,
        prose=prose(),
        policy=policy([]),
        style=stylesheet(),
        **texts,
    )
    write_output(path, page.encode("utf-8", "backslashreplace"))


def prose() -> dict[str, list[tuple[str, str]]]:
    """Return the paragraphs of README.md by section, each `p` or, for a command, `pre`."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    sections = {}
    for part in text.split("\n## ")[1:]:
        title, *paragraphs = part.strip().split("\n\n")
        blocks = []
        for paragraph in paragraphs:
            kind = "pre" if paragraph.startswith("```") else "p"
            blocks.append((kind, re.sub(r"```(bash)?|`", "", paragraph).strip()))
        sections[title] = blocks
    return sections


def uris(draw: Callable[[str], Figure]) -> dict[str, str]:
    """Return a picture in each theme as a `data:` URI; empty if there is no ceiling to draw."""
    found = {}
    for theme in THEMES:
        content = io.BytesIO()
        try:
            figure = draw(theme)
        except NoCeilingError:
            return {}
        with own_style(theme):
            figure.savefig(content, format="svg", metadata={"Date": None})
        found[theme] = f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"
    return found


def memory_parts(step: Step, theme: str) -> Figure:
    """Return the parts of the peak of a training step: measured if they stay from step to step."""
    estimated = step.memory_bytes["estimated"]
    measured = step.memory_bytes["measured"]
    parts = []
    for name in COMPONENTS:
        size_bytes = measured.get(name) or estimated.get(name) or 0
        if size_bytes > MIN_SHARE * estimated["total"]:
            parts.append(
                answer.Step(name.replace("_", " "), "", quantity(size_bytes, "B"), size_bytes)
            )
    parts.sort(key=lambda part: part.amount or 0)
    return draw_parts("Memory of a step", quantity(estimated["total"], "B"), parts, theme)
