"""The panel beside the roofline of many points: what share of its roof each reaches, by op, the best op first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from results.show.picture import AXIS_PT, INK, MUTED, POINT_PT, frame, plain
from roofline.plot.marks import CROSS, marker
from roofline.plot.scene import PlotPoint, Scene
from roofline.plot.sheet import Sheet
from roofline.plot.style import short_case, significant

LEAST_ROWS, MOST_ROWS = 4, 30
"""Rows that say something, and rows that have room."""
ROW_LETTERS = 30
PLOT_WIDTH = 3.1
"""Width of the part of the panel in which the points are, inches."""
MARGIN = 0.3


@dataclass(frozen=True)
class PanelRow:
    """One line of the panel."""

    name: str
    points: tuple[PlotPoint, ...]

    @property
    def best(self) -> float:
        """The highest share of the roof, percent."""
        return max(point.roofline_pct or 0 for point in self.points)


def panel_rows(scene: Scene) -> list[PanelRow]:
    """Return the rows of the panel, the best first; none where there are few points or no share is known.

    A row is an op, with its machine and dtype where there are several; where that would make few rows, with its
    provider, and then its case, too.
    """
    points = [point for point in scene.points if point.roofline_pct is not None]
    if not scene.has_panel:
        return []
    rows: list[PanelRow] = []
    for parts in (
        ("machine", "op", "dtype"),
        ("machine", "op", "dtype", "provider"),
        ("machine", "op", "dtype", "case"),
    ):
        longer = _rows_by(parts, points, scene)
        if len(rows) > 1 and len(longer) > MOST_ROWS:
            break
        rows = longer
        if len(rows) >= LEAST_ROWS:
            break
    return sorted(rows, key=lambda row: -row.best)


def _rows_by(parts: Sequence[str], points: Sequence[PlotPoint], scene: Scene) -> list[PanelRow]:
    words = {part: [_word(point, part, scene) for point in points] for part in parts}
    told = [part for part in parts if len(set(words[part])) > 1] or ["op"]
    groups: dict[str, list[PlotPoint]] = {}
    for index, point in enumerate(points):
        groups.setdefault(" ".join(words[part][index] for part in told), []).append(point)
    return [PanelRow(plain(name, ROW_LETTERS), tuple(group)) for name, group in groups.items()]


def _word(point: PlotPoint, part: str, scene: Scene) -> str:
    if part == "machine":
        return scene.machines[point.machine].ceilings.slug
    return short_case(point.record.case) if part == "case" else str(getattr(point.record, part))


def names_width(rows: Sequence[PanelRow], sheet_of: Sheet) -> float:
    """Return the width of the names of rows, inches."""
    return max(sheet_of.measure(row.name, POINT_PT)[0] for row in rows)


def room_for(width: float) -> float:
    """Return the width of the panel with names of `width`, inches."""
    return MARGIN + width + PLOT_WIDTH


def draw_panel(rows: Sequence[PanelRow], scene: Scene, sheet: Sheet, width: float) -> None:
    """Draw the rows into the room that a sheet keeps free at its left.

    Args:
        rows: the best first; of more than `MOST_ROWS` the first are drawn, and the axis says so.
        scene: tells the markers.
        sheet: with that room.
        width: of the names of the rows, inches.
    """
    shown = rows[:MOST_ROWS]
    left = MARGIN + width + 0.1
    place = (
        left / sheet.width,
        sheet.floor / sheet.height,
        PLOT_WIDTH / sheet.width,
        (sheet.ceiling - sheet.floor) / sheet.height,
    )
    axes = sheet.figure.add_axes(place)
    frame(axes, "x")
    highest = max(row.best for row in shown)
    axes.set_xlim(0, max(112.0, 1.12 * highest))
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(range(len(shown)), [row.name for row in shown])
    axes.tick_params(axis="y", labelsize=POINT_PT, labelcolor=INK, pad=4)
    counted = f", best {len(shown)} of {len(rows)}" if len(shown) < len(rows) else ""
    axes.set_xlabel(f"% of its roof{counted}", fontsize=AXIS_PT, color=INK, labelpad=5)
    axes.axvline(100, color=INK, linewidth=1.4)
    for number, row in enumerate(shown):
        shares = [point.roofline_pct or 0 for point in row.points]
        axes.plot([min(shares), max(shares)], [number, number], color=MUTED, linewidth=0.8, alpha=0.5, zorder=4)
        looks: dict[tuple[str, int, int], list[float]] = {}
        for point, share in zip(row.points, shares, strict=True):
            look = (scene.point_color(point), scene.shape(point), scene.variant(point))
            looks.setdefault(look, []).append(share)
        for look, alike in looks.items():
            axes.plot(alike, [number] * len(alike), **marker(*look) | {"markersize": 5.5}, zorder=7)
        doubtful = [share for point, share in zip(row.points, shares, strict=True) if point.doubts]
        axes.plot(doubtful, [number] * len(doubtful), **CROSS | {"markersize": 8}, zorder=7.5)
        axes.annotate(
            f"{significant(row.best, 2 if row.best < 100 else 3)} %",
            (row.best, number),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=POINT_PT,
            color=INK,
            zorder=9,
        )
