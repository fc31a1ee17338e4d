"""The roofline plot: ceilings, ridge points and measured points on a log-log plane, as PNG, SVG or PDF.

A decade is as long on both axes, so that a memory bandwidth is a line of 45 degrees.

Source: Williams, Waterman and Patterson, Roofline: an insightful visual performance model for multicore
architectures, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from results.record import Environment, Record
from results.show.picture import check_picture, own_style, plain, save_picture
from roofline.ceilings import Ceilings
from roofline.plot.draw import draw, legend_keys
from roofline.plot.scene import (
    NoCeilingError,
    PlotError,
    PlotMachine,
    build_scene,
    caption,
    title_lines,
)
from roofline.plot.sheet import WIDTHS, AxesSheet, Sheet, view_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "NoCeilingError",
    "PlotError",
    "PlotMachine",
    "draw_roofline",
    "plot_run",
    "run_machine",
]


def draw_roofline(
    machines: Sequence[PlotMachine],
    dtypes: Sequence[str] | None = None,
    title: str | None = None,
    axes: Axes | None = None,
    theme: str = "light",
) -> Figure:
    """Return the roofline of one or several machines with their measured points.

    Args:
        machines: at least one; their names may be anything.
        dtypes: those to draw; None for all that a ceiling is known of.
        title: in place of the names of the machines.
        axes: to draw in, without the caption; a figure of its own where there are none.
        theme: one of `THEMES`.

    Raises:
        PlotError: no machine has a ceiling, or the values are not those of a machine.
    """
    scene = build_scene(machines, dtypes)
    machine_names, kinds = title_lines(scene)
    heading = (plain(title, 200) if title is not None else machine_names, kinds)
    view = view_of(scene)
    with own_style(theme):
        keys = legend_keys(scene)
        if axes is not None:
            given = AxesSheet(view, heading, keys, axes)
            draw(scene, given)
            return given.figure
        longest = caption(scene, len(scene.points), len(scene.flats) + len(scene.slopes))
        sheets = []
        for width in WIDTHS:
            sheet = Sheet(view, heading, keys, longest, width)
            sheets.append((draw(scene, sheet), sheet))
            if not sheets[-1][0].cramped:
                break
        labeling, best = min(sheets, key=lambda drawn: drawn[0].cramped)
        best.write_caption(caption(scene, labeling.unlabeled, labeling.unlabeled_ceilings))
    return best.figure


def run_machine(environment: Environment, records: Sequence[Record]) -> PlotMachine:
    """Return the machine of a run with its records, for `draw_roofline`.

    Raises:
        CeilingError: the ceilings in the environment are not what they should be.
    """
    ceilings = Ceilings.from_dict(environment.hardware)
    if ceilings.name == "unknown":
        ceilings = replace(ceilings, slug=environment.device["slug"], name=environment.device["name"])
    return PlotMachine(ceilings, tuple(records), (environment,))


def plot_run(environment: Environment, records: Sequence[Record], path: Path, theme: str = "light") -> None:
    """Draw the records of one run under the ceilings of its machine, with the dtypes of the records, into a file.

    Args:
        environment: of the run; its `hardware` holds the ceilings.
        records: of the run; those that cannot be drawn are counted in the caption.
        path: the picture to write; its suffix names the format.
        theme: one of `THEMES`.

    Raises:
        NoCeilingError: no ceiling is known.
        StoreError: the suffix is not one of `SUFFIXES`, or the file cannot be written.
        CeilingError: the ceilings in the environment are not what they should be.
    """
    check_picture(path)
    dtypes = list(dict.fromkeys(record.dtype for record in records)) or None
    save_picture(draw_roofline([run_machine(environment, records)], dtypes, theme=theme), path)
