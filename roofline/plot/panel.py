"""The panel beside a roofline of many points: what share of its ceiling each op reaches, sorted."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.plot.scene import PlotPoint, Scene
from roofline.plot.sheet import LABEL_PT, POINT_PT, Sheet
from roofline.plot.style import GRID, INK, MUTED, plain, significant

LEAST_POINTS = 21
"""From so many points on the panel stands beside the plane, in which they crowd."""
MOST_ROWS = 40
WIDTH = 3.4
"""Of its axes, inches."""
GAP = 0.35
"""Between the plane and the names of the rows, inches."""
MARGIN = 0.65
"""Right of its axes, for the largest share of each row, inches."""


@dataclass(frozen=True)
class PanelRow:
    """The points of one op, dtype and provider."""

    label: str
    points: tuple[PlotPoint, ...]

    @property
    def best_pct(self) -> float:
        """The largest share of the ceiling that binds, in percent."""
        return max(point.roofline_pct or 0 for point in self.points)


def panel_rows(scene: Scene) -> list[PanelRow]:
    """Return a row for each series of points that are judged, the best first; none where there are few points."""
    if len(scene.points) < LEAST_POINTS:
        return []
    found: dict[tuple[object, ...], list[PlotPoint]] = {}
    for point in scene.points:
        if point.roofline_pct is not None:
            found.setdefault(point.series, []).append(point)
    rows = [PanelRow(_label(points[0], scene), tuple(points)) for points in found.values()]
    return sorted(rows, key=lambda row: (-row.best_pct, row.label))


def _label(point: PlotPoint, scene: Scene) -> str:
    record = point.record
    words = [plain(scene.machines[point.machine].ceilings.slug, 16)] if scene.is_overlay else []
    words += [plain(record.op, 20), plain(record.dtype, 10)]
    return " ".join(words + [plain(record.provider, 22)] * (len(scene.providers) > 1))


def panel_width(rows: list[PanelRow]) -> float:
    """Return how much wider the figure is for the panel, inches."""
    if not rows:
        return 0.0
    letters = max(len(row.label) for row in rows[:MOST_ROWS])
    return GAP + letters * POINT_PT / 72 * 0.62 + WIDTH + MARGIN


def draw_panel(rows: list[PanelRow], scene: Scene, sheet: Sheet) -> None:
    """Draw a line of points for each row, and the largest share at its end."""
    shown = rows[:MOST_ROWS]
    total = sheet.width + sheet.beside
    left = total - WIDTH - MARGIN
    frame = (left / total, sheet.floor / sheet.height, WIDTH / total, (sheet.ceiling - sheet.floor) / sheet.height)
    axes = sheet.figure.add_axes(frame)
    right = max(100.0, *(row.best_pct for row in shown))
    for place, row in enumerate(shown):
        shares = [point.roofline_pct or 0 for point in row.points]
        color = scene.color_of(row.points[0])
        axes.plot([min(shares), max(shares)], [place, place], color=color, linewidth=1, alpha=0.45)
        axes.plot(shares, [place] * len(shares), "o", color=color, markersize=4, alpha=0.85)
        text = f"{significant(row.best_pct, 2 if row.best_pct < 100 else 3)} %"
        axes.text(right * 1.03, place, text, fontsize=POINT_PT, color=INK, va="center", clip_on=False)
    axes.axvline(100, color=MUTED, linewidth=1, linestyle=(0, (1, 2.5)))
    axes.set(xlim=(0, right * 1.02), ylim=(len(shown) - 0.4, -0.6))
    axes.set_yticks(range(len(shown)), [row.label for row in shown], fontsize=POINT_PT, color=INK)
    axes.tick_params(length=0, labelsize=POINT_PT)
    axes.tick_params(axis="x", labelcolor=MUTED)
    axes.grid(axis="x", color=GRID, linewidth=0.9)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    hidden = f", best {len(shown)} of {len(rows)}" if len(shown) < len(rows) else ""
    axes.set_xlabel(f"% of its ceiling, by op{hidden}", fontsize=LABEL_PT, color=INK, labelpad=5)
