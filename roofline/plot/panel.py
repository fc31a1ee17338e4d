"""What stands beside the plane: shares of the roof of many points, and the bandwidth of ops without FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from results.record import Record
from results.show.picture import AXIS_PT, INK, MUTED, POINT_PT, frame, plain, series_color
from roofline.model import rate
from roofline.plot.marks import CROSS, marker
from roofline.plot.scene import PlotMachine, PlotPoint, Scene
from roofline.plot.sheet import TICK_SPACE, Sheet
from roofline.plot.style import dtype_color, line_pattern, short_case, significant

LEAST_ROWS, MOST_ROWS = 4, 30
"""Rows that say something, and rows that have room."""
ROW_LETTERS = 30
PLOT_WIDTH = 3.1
"""Width of the part of the panel in which the points are, inches."""
MARGIN = 0.3
MOST_STREAMS, STREAM_ROW = 8, 0.3
"""Rows of the strip of ops without FLOPs, and the height of one, inches."""


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


@dataclass(frozen=True)
class Stream:
    """A record without FLOPs, such as a copy, which has no place in the plane."""

    machine: int
    record: Record
    bytes_per_s: float


def streams_of(machines: Sequence[PlotMachine], dtypes: Sequence[str] | None = None) -> list[Stream]:
    """Return the records that move bytes and compute nothing.

    Args:
        machines: with their records.
        dtypes: those to draw; None for all.
    """
    found = []
    for index, machine in enumerate(machines):
        for record in machine.records:
            moved = (record.bytes_read or 0) + (record.bytes_written or 0)
            is_wanted = record.status == "ok" and (dtypes is None or record.dtype in dtypes)
            if is_wanted and record.flops == 0 and moved and record.median_s and "share" not in record.extra:
                found.append(Stream(index, record, rate(moved, record.median_s)))
    return found


def strip_height(streams: Sequence[Stream]) -> float:
    """Return the height of the strip with its axis, inches; nothing where there is none."""
    rows = min(MOST_STREAMS, len({stream.record.op for stream in streams}))
    return STREAM_ROW * rows + TICK_SPACE + 0.1 if rows else 0.0


def draw_strip(streams: Sequence[Stream], scene: Scene, sheet: Sheet) -> None:
    """Draw the bandwidth of ops without FLOPs under the plane, with the ceilings of memory as lines.

    Args:
        streams: at least one; of more than `MOST_STREAMS` ops the fastest are drawn, and the axis says so.
        scene: tells the ceilings.
        sheet: with the room of `strip_height`.
    """
    best: dict[str, float] = {}
    for stream in streams:
        best[stream.record.op] = max(best.get(stream.record.op, 0.0), stream.bytes_per_s)
    ops = sorted(best, key=lambda op: -best[op])
    shown = ops[:MOST_STREAMS]
    names = [plain(op, ROW_LETTERS) for op in shown]
    left = max(sheet.left, MARGIN + max(sheet.measure(name, POINT_PT)[0] for name in names) + 0.1)
    bottom, tall = sheet.floor - sheet.strip, STREAM_ROW * len(shown)
    right = sheet.left + sheet.wide
    place = (left / sheet.width, bottom / sheet.height, (right - left) / sheet.width, tall / sheet.height)
    axes = sheet.figure.add_axes(place)
    frame(axes, "x")
    roofs = [slope.bandwidth.value for slope in scene.slopes]
    axes.set_xlim(0, 1.15 * max([*roofs, *best.values()]) / 1e9)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_yticks(range(len(shown)), names)
    axes.tick_params(axis="y", labelsize=POINT_PT, labelcolor=INK, pad=4)
    counted = f", fastest {len(shown)} of {len(ops)}" if len(shown) < len(ops) else ""
    axes.set_xlabel(f"Bandwidth of ops without FLOPs (GB/s){counted}", fontsize=AXIS_PT, color=INK, labelpad=5)
    for slope in scene.slopes:
        pattern = line_pattern(slope.bandwidth.kind)
        style: dict[str, Any] = {
            "color": scene.slope_color(slope.machine),
            "linestyle": pattern if pattern[1] else "solid",
        }
        axes.axvline(slope.bandwidth.value / 1e9, linewidth=1.4, zorder=3, **style)
    for stream in streams:
        if stream.record.op in shown:
            color = series_color(stream.machine) if scene.is_overlay else dtype_color(stream.record.dtype)
            look = marker(color, 0, int(stream.record.cache == "warm"))
            axes.plot([stream.bytes_per_s / 1e9], [shown.index(stream.record.op)], **look, zorder=7)
    for number, op in enumerate(shown):
        words: dict[str, Any] = {
            "xytext": (7, 0),
            "textcoords": "offset points",
            "va": "center",
            "fontsize": POINT_PT,
            "zorder": 9,
        }
        axes.annotate(f"{best[op] / 1e9:,.4g}", (best[op] / 1e9, number), color=INK, **words)
