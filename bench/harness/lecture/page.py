"""The page of a lecture: one HTML file with its pictures in it, for a phone and for a desktop,
light and dark.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record
from results.show.picture import LABEL_PT, THEMES, frame, new_figure, own_style, series_color
from results.show.units import size
from results.store.runfile import write_output
from roofline.accounting.step_memory import COMPONENTS
from roofline.picture.build import build_scene
from roofline.picture.figure import draw_roofline
from roofline.picture.page import policy, stylesheet, template
from roofline.picture.scene import NoCeilingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.2, 4.4
"""Inches: small enough that the text of a picture can be read on a phone."""

LADDER = {(op, "torch", "ok") for op in ("relu", "gelu", "dot", "matvec", "matmul")}
"""Op, provider and status of the records of the ladder."""

MIN_SHARE = 0.01
"""Smaller fractions of the memory are not drawn."""


def write_page(
    path: Path,
    environment: Environment,
    records: Sequence[Record],
    rows: Sequence[Mapping[str, Any]],
    **texts: Any,
) -> None:
    """Write the page; rows have the text of their figure in `figure`; `texts` are other variables
    of the template.
    """
    pictures = {
        "Roofline": (
            partial(ladder, environment, records),
            (
                "Operations under this machine's roof, measured; a cross marks a doubtful time, a "
                "ring one above the roof"
            ),
        ),
        "State": (
            partial(memory_parts, records),
            "Memory of an fp32 step: the state is measured, the rest estimated",
        ),
    }
    sections = dict.fromkeys(row["section"] for row in rows)
    page = template("lecture.html").render(
        title="The lecture, measured",
        environment=environment,
        sections={
            section: [row for row in rows if row["section"] == section] for section in sections
        },
        pictures={
            name: (uris(draw), text) for name, (draw, text) in pictures.items() if name in sections
        },
        policy=policy([]),
        style=stylesheet(),
        **texts,
    )
    write_output(path, page.encode("utf-8", "backslashreplace"))


def uris(draw: Callable[[str], Figure]) -> dict[str, str]:
    """Return a picture in each theme as a `data:` URI; empty if nothing to draw was measured."""
    found = {}
    for theme in THEMES:
        try:
            figure = draw(theme)
            content = io.BytesIO()
        except NoCeilingError:
            return {}
        with own_style(theme):
            figure.savefig(content, format="svg", metadata={"Date": None})
        found[theme] = f"data:image/svg+xml;base64,{base64.b64encode(content.getvalue()).decode()}"
    return found


def ladder(environment: Environment, records: Sequence[Record], theme: str) -> Figure:
    ops = list(
        {r.op: r for r in reversed(records) if (r.op, r.provider, r.status) in LADDER}.values()
    )
    if not ops:
        raise NoCeilingError("no operation was measured")
    with own_style(theme):
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_axes((0.13, 0.13, 0.8, 0.78))
    scene = build_scene([(environment, ops)], dtypes=[ops[0].dtype])
    roofs = tuple(roof for roof in scene.roofs if not roof.is_mix)  # too narrow for their label
    # Longer labels do not all fit.
    points = tuple(replace(point, label=point.record.op) for point in scene.points)
    scene = replace(scene, roofs=roofs, points=points)
    draw_roofline(scene, "", axes, theme)
    if legend := axes.get_legend():
        legend.remove()  # each point has its label
    return figure


def memory_parts(records: Sequence[Record], theme: str) -> Figure:
    """Return the parts of the peak of the first training step: measured if they stay from step to
    step.
    """
    step = next(
        (record for record in records if record.memory_bytes and record.status == "ok"), None
    )
    if step is None:
        raise NoCeilingError("no training step was measured")
    estimated = step.memory_bytes["estimated"]
    measured = step.memory_bytes["measured"]
    sizes = {
        name.replace("_", " "): measured.get(name) or estimated.get(name) or 0
        for name in COMPONENTS
    }
    shares = {
        name: part / estimated["total"]
        for name, part in sorted(sizes.items(), key=lambda item: item[1])
    }
    shown = {name: share for name, share in shares.items() if share > MIN_SHARE}
    with own_style(theme):
        figure = new_figure(WIDTH, 0.45 + 0.36 * len(shown))
        axes = figure.add_axes((0.3, 0.04, 0.42, 0.92))
        frame(axes, "x")
        axes.barh(list(shown), list(shown.values()), color=series_color(0))
        for row, (name, share) in enumerate(shown.items()):
            axes.text(
                share,
                row,
                f" {size(sizes[name])}, {100 * share:.0f} %",
                va="center",
                fontsize=LABEL_PT,
            )
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
    return figure
