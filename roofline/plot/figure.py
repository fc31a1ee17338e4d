"""The roofline plot: ceilings, ridge points and measured points on a log-log plane, as PNG, SVG or PDF.

A decade is as long on both axes, so that a memory bandwidth is a line of 45 degrees.

Source: Williams, Waterman and Patterson, Roofline: an insightful visual performance model for multicore
architectures, CACM 52(4), 2009.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from results.record import Environment, Record
from results.show.picture import SUFFIXES, new_figure, own_style, plain, save_picture, write_caption, write_head
from results.show.terminal import one_line
from results.show.theme import apply_theme
from results.store.runfile import StoreError
from roofline.ceilings import Ceilings
from roofline.model import peak_of
from roofline.plot.critical import critical_sentence
from roofline.plot.draw import draw, legend_keys
from roofline.plot.panel import draw_panel, draw_strip, names_width, panel_rows, room_for, streams_of, strip_height
from roofline.plot.scene import (
    NO_INTENSITY,
    NoCeilingError,
    PlotError,
    PlotMachine,
    Scene,
    bands_in_words,
    build_scene,
    caption,
    provenance,
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
    "check_path",
    "draw_panels",
    "draw_roofline",
    "plot_run",
    "run_machine",
    "save_figure",
]

MOST_TRIED = 1000
"""With more points than this the widest is taken at once."""
PANELS = ("dtype", "op")
"""What small multiples are parted by."""
MOST_PANELS = 9
PANEL_WIDE, PANEL_TALL, CAPTION_TALL = 5.6, 4.9, 0.75
"""Of a small multiple with all around it, and of the words under all of them, inches."""
BESIDE_PANEL, ABOVE_PANEL, UNDER_PANEL, LEGEND_ROW = 0.85, 0.4, 0.85, 0.2
"""Room around the axes of a small multiple, and of two entries of its legend, inches."""


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
        axes: to draw in, without the caption and the panel; a figure of its own where there are none.
        theme: one of `THEMES`.

    Raises:
        PlotError: no machine has a ceiling, or the values are not those of a machine.
    """
    scene = build_scene(machines, dtypes)
    machine_names, kinds = title_lines(scene)
    heading = (plain(title, 200) if title is not None else machine_names, kinds)
    view, keys = view_of(scene), legend_keys(scene)
    if axes is not None:
        with own_style():
            given = AxesSheet(view, heading, keys, axes)
            draw(scene, given)
            apply_theme(axes, theme)
        return given.figure
    streams = streams_of(machines, dtypes)
    scene = replace(scene, left_out=scene.left_out - Counter({NO_INTENSITY: len(streams)}))
    closing = critical_sentence(scene)
    longest = caption(scene, len(scene.points), len(scene.flats) + len(scene.slopes), closing)
    rows, strip = panel_rows(scene), strip_height(streams)
    with own_style():
        names = names_width(rows, Sheet(view, heading, (), "", WIDTHS[0])) if rows else 0.0
        sheets = []
        for width in WIDTHS if len(scene.points) <= MOST_TRIED else WIDTHS[-1:]:
            sheet = Sheet(view, heading, keys, longest, width, room_for(names) if rows else 0.0, strip)
            sheets.append((draw(scene, sheet), sheet))
            if not sheets[-1][0].cramped:
                break
        labeling, best = min(sheets, key=lambda drawn: drawn[0].cramped)
        if rows:
            draw_panel(rows, scene, best, names)
        if streams:
            draw_strip(streams, scene, best)
        best.write_caption(caption(scene, labeling.unlabeled, labeling.unlabeled_ceilings, closing))
        apply_theme(best.figure, theme)
    return best.figure


def draw_panels(
    machines: Sequence[PlotMachine],
    dtypes: Sequence[str] | None = None,
    by: str = "",
    title: str | None = None,
    theme: str = "light",
) -> Figure:
    """Return the roofline as small multiples: a panel for each dtype or op, all with the same axes.

    Args:
        machines: at least one with a point; their names may be anything.
        dtypes: those to draw; None for all that a ceiling is known of.
        by: one of `PANELS`; empty: by dtype where the points have several, else by op.
        title: in place of the names of the machines.
        theme: one of `THEMES`.

    Raises:
        PlotError: no point can be drawn, no machine has a ceiling, or the values are not those of a machine.
    """
    scene = build_scene(machines, dtypes)
    if not scene.points:
        raise PlotError("no point can be drawn, so there is nothing to part into panels")
    by = by or ("dtype" if len({point.record.dtype for point in scene.points}) > 1 else "op")
    names = list(dict.fromkeys(str(getattr(point.record, by)) for point in scene.points))
    parts = {name: _part_of(scene, by, name) for name in names[:MOST_PANELS]}
    view, columns = view_of(scene), min(len(parts), 3 if len(parts) > 4 else 2)
    rows, legend = -(-len(parts) // columns), max(len(legend_keys(part)) for part in parts.values())
    below = LEGEND_ROW * legend / 2 + UNDER_PANEL
    heading, kinds = title_lines(scene)
    with own_style():
        figure = new_figure(PANEL_WIDE * columns, 1.0)
        tall = PANEL_TALL * rows + CAPTION_TALL
        write_head(figure, plain(title, 200) if title is not None else heading, kinds, tall)
        wide, high = figure.get_size_inches()
        unlabeled = 0
        for number, (name, part) in enumerate(parts.items()):
            left = PANEL_WIDE * (number % columns) + BESIDE_PANEL
            floor = tall - PANEL_TALL * (number // columns + 1) + below
            size = (PANEL_WIDE - BESIDE_PANEL - 0.25, PANEL_TALL - below - ABOVE_PANEL)
            axes = figure.add_axes((left / wide, floor / high, size[0] / wide, size[1] / high))
            labeling = draw(part, AxesSheet(view, (plain(name), ""), legend_keys(part), axes))
            unlabeled += labeling.unlabeled
        write_caption(figure, _panels_caption(scene, by, names[MOST_PANELS:], unlabeled), CAPTION_TALL - 0.1)
        apply_theme(figure, theme)
    return figure


def _part_of(scene: Scene, by: str, name: str) -> Scene:
    """Return a scene with the points of one dtype or op, and with the roofs that these are held against."""
    points = tuple(point for point in scene.points if getattr(point.record, by) == name)
    peaks = [peak_of(point.record, scene.machines[point.machine].ceilings)[0] for point in points]
    held = {(peak.quantity, peak.name) for peak in peaks if peak}
    flats = tuple(flat for flat in scene.flats if (flat.peak.quantity, flat.peak.name) in held)
    return replace(scene, points=points, flats=flats, palette=tuple(scene.providers))


def _panels_caption(scene: Scene, by: str, missing: Sequence[str], unlabeled: int) -> str:
    parts = [*provenance(scene), f"A panel for each {by}, all with the same axes", "Bars: 95 % CI of the median"]
    parts += bands_in_words(scene)
    parts += [f"Without a label: {unlabeled} of {len(scene.points)} points"] if unlabeled else []
    parts += [f"Without a panel: {', '.join(plain(name, 24) for name in missing)}"] if missing else []
    if scene.left_out:
        parts.append("Not drawn: " + ", ".join(f"{count} {reason}" for reason, count in scene.left_out.items()))
    return " ".join(f"{part}." for part in parts)


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
        PlotError: the file cannot be written.
        CeilingError: the ceilings in the environment are not what they should be.
    """
    check_path(path)
    dtypes = list(dict.fromkeys(record.dtype for record in records)) or None
    save_figure(draw_roofline([run_machine(environment, records)], dtypes, theme=theme), path)


def check_path(path: Path) -> None:
    """Refuse a path that no picture can be written to, before any work is done for it.

    Raises:
        PlotError: the suffix is not one of `SUFFIXES`, or its folder can neither be written to nor be made.
    """
    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise PlotError(f"cannot tell the format of '{one_line(str(path), 200)}' by its suffix; allowed: {known}")
    shown = one_line(str(path), 200)
    try:
        nearest = next(folder for folder in path.absolute().parents if folder.exists())
        if path.is_dir():
            raise PlotError(f"cannot write '{shown}': it is a folder; name a picture in it")
    except OSError as error:
        raise PlotError(f"cannot write '{shown}': {error.strerror or error}") from None
    if not nearest.is_dir():
        raise PlotError(f"cannot write '{shown}': a part of its folder is a file; choose another place")
    if not os.access(nearest, os.W_OK):
        raise PlotError(f"cannot write '{shown}': nothing can be written to {one_line(str(nearest), 200)}")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, all of it or nothing; the same figure gives the same bytes.

    Folders are made where they are missing.

    Raises:
        PlotError: the suffix is not one of `SUFFIXES`, or the file cannot be written.
    """
    check_path(path)
    try:
        save_picture(figure, path)
    except StoreError as error:
        raise PlotError(one_line(str(error), 400)) from None
