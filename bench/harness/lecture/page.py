"""The page of a lecture: one HTML file with its pictures in it, for a phone and for a desktop, light and dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record
from results.show.picture import LABEL_PT, THEMES, frame, new_figure, own_style, series_color
from results.show.units import size
from results.store.runfile import write_output
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline
from roofline.picture.page import policy, stylesheet, template
from roofline.picture.scene import NoCeilingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.2, 4.4
"""Inches: small enough that the text of a picture can be read on a phone."""

MIN_SHARE = 0.01
"""Fraction of the memory; smaller parts are not drawn."""

Draw = Callable[[str], "Figure"]
"""Returns a picture in one of `THEMES`."""


def write_page(
    path: Path,
    environment: Environment,
    records: Sequence[Record],
    rows: Sequence[Mapping[str, Any]],
    trap: Sequence[tuple[str, str, str]],
    note: str,
) -> None:
    """Write the page; a row has the text of its measured figure in `figure`, besides its keys."""
    pictures = {
        "Roofline": (
            lambda theme: ladder(environment, records, theme),
            "Measured operations under this machine's roof",
        ),
        "State": (lambda theme: memory_parts(records, theme), "Where memory goes in a training step in fp32, measured"),
    }
    sections = dict.fromkeys(row["section"] for row in rows)
    text = template("lecture.html").render(
        environment=environment,
        sections={section: [row for row in rows if row["section"] == section] for section in sections},
        pictures={name: (uris(draw), text) for name, (draw, text) in pictures.items() if name in sections},
        trap=trap,
        note=note,
        policy=policy([]),
        style=stylesheet(),
    )
    write_output(path, text.encode("utf-8", "backslashreplace"))


def uris(draw: Draw) -> dict[str, str]:
    """Return a picture in each theme as a `data:` URI; empty if there is nothing to draw."""
    found = {}
    for theme in THEMES:
        try:
            figure, content = draw(theme), io.BytesIO()
        except NoCeilingError:
            return {}
        with own_style(theme):
            figure.savefig(content, format="svg", metadata={"Date": None})
        found[theme] = f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"
    return found


def ladder(environment: Environment, records: Sequence[Record], theme: str) -> Figure:
    ops = [record for record in records if record.units and record.provider == "torch" and record.dtype == "bf16"]
    if not ops:
        raise NoCeilingError("no operation was measured")
    with own_style(theme):
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_axes((0.13, 0.13, 0.84, 0.78))
    return draw_roofline(build_scene([(environment, ops)], dtypes=["bf16"]), "", axes, theme)


def memory_parts(records: Sequence[Record], theme: str) -> Figure:
    step = next((record for record in records if record.memory_bytes and record.status == "ok"), None)
    if step is None:
        raise NoCeilingError("no training step was measured")
    total, sizes = step.memory_bytes["estimated"]["total"], component_sizes(step)
    with own_style(theme):
        figure = new_figure(WIDTH, 0.45 + 0.36 * len(sizes))
        axes = figure.add_axes((0.3, 0.04, 0.42, 0.92))
        frame(axes, "x")
        axes.barh(list(sizes), list(sizes.values()), color=series_color(0))
        for row, part in enumerate(sizes.values()):
            axes.text(part, row, f" {size(part)}, {100 * part / total:.0f} %", va="center", fontsize=LABEL_PT)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    return figure


def component_sizes(step: Record) -> dict[str, int]:
    """Return the parts of the peak of a step, smallest first: measured if they stay from step to step."""
    from roofline.accounting.step_memory import COMPONENTS

    both = step.memory_bytes["estimated"], step.memory_bytes["measured"]
    sizes = {name.replace("_", " "): both[1].get(name) or both[0].get(name) or 0 for name in COMPONENTS}
    drawn = {name: part for name, part in sizes.items() if part > MIN_SHARE * both[0]["total"]}
    return dict(sorted(drawn.items(), key=lambda item: item[1]))
