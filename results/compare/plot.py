"""The picture of a comparison: the ratios with their intervals on the left, what each version reaches on the right."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.compare.comparison import Compared
from results.compare.output import foremost, headline
from results.compare.row import ComparedRow
from results.compare.sides import METRICS
from results.show.export import write_output
from results.show.table import printable
from results.stats.comparison import FASTER, SAME, SLOWER, UNKNOWN, UNSURE
from results.store.runfile import StoreError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")

DRAWN_ROWS = 40
"""Rows that a page has room for; of more, those that matter most are drawn."""

LABEL_LETTERS = 44

CRUSHING = 2.5
"""A ratio beyond it would leave the others no room on a linear axis."""

DPI = 150

COLORS = {SLOWER: "#c0392b", FASTER: "#1e8449", UNSURE: "#b9770e", SAME: "#5d6d7e"}
MARKS = {SLOWER: ">", FASTER: "<", UNSURE: "o", SAME: "s"}
"""One for each verdict, so that color is not all that tells them apart."""

SIDE_COLORS = ("#aab7b8", "#2e86c1")
"""Of baseline and candidate."""


def check_picture(path: Path) -> None:
    """Refuse a picture whose format its name does not tell, before any work is done for it.

    Raises:
        StoreError: the suffix is not one of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise StoreError(f"-o {path}: the suffix names no format; allowed: {', '.join(SUFFIXES)}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure, the whole of it or nothing; the same figure gives the same bytes.

    Raises:
        StoreError: the file cannot be written, or its suffix is not one of `SUFFIXES`.
    """
    import matplotlib

    check_picture(path)
    form = path.suffix.lower().removeprefix(".")
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "ridgepoint"}):
        figure.savefig(content, format=form, dpi=DPI, metadata=undated)
    write_output(path, content.getvalue())


def one_line(text: str, letters: int = LABEL_LETTERS) -> str:
    """Return a text as matplotlib draws it in one line: printable, cut, and without the start of a formula."""
    shown = printable(text)
    return (shown if len(shown) <= letters else shown[: letters - 1] + "…").replace("$", r"\$")


def draw(compared: Compared) -> Figure:
    """Return the picture of a comparison."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = foremost(compared, DRAWN_ROWS)
    figure = Figure(figsize=(12, 1.9 + 0.34 * len(rows)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    _draw_ratios(left, rows, compared)
    _draw_reached(right, rows, compared)
    title = one_line(headline(compared), 160).replace("; geometric", ";\ngeometric")
    if len(rows) < len(compared.rows):
        title += f"\n{len(rows)} of {len(compared.rows):,} rows drawn, those that matter most"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _draw_ratios(axes: Axes, rows: Sequence[ComparedRow], compared: Compared) -> None:
    margin, is_time = compared.request.margin, compared.request.metric == "time"
    axes.axvspan(1 / (1 + margin), 1 + margin, color="#ebedef", zorder=0, label=f"margin {100 * margin:g} %")
    axes.axvline(1, color="#7f8c8d", linewidth=0.8, zorder=1)
    labeled = set()
    for place, row in enumerate(rows):
        ratio, (low, high) = row.compared.ratio, row.compared.ci95
        if not is_time:
            ratio, low, high = 1 / ratio, 1 / high, (1 / low if low else 0)
        verdict = row.compared.verdict
        spread = None if row.compared.ci95 == UNKNOWN else [[max(0, ratio - low)], [max(0, high - ratio)]]
        label = None if verdict in labeled else verdict
        labeled.add(verdict)
        axes.errorbar(
            [ratio], [place], xerr=spread, fmt=MARKS[verdict], color=COLORS[verdict], label=label, capsize=3, zorder=2
        )
    low, high = axes.get_xlim()
    if high > CRUSHING or 0 < low < 1 / CRUSHING:
        _use_log_axis(axes)
    axes.set_yticks(range(len(rows)), [one_line(_name(row)) for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    side = "left is faster" if is_time else "right is faster"
    axes.set_xlabel(f"{METRICS[compared.request.metric]}, candidate over baseline, 95 % CI ({side})", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=5, frameon=False, borderaxespad=3.6)
    axes.spines[["top", "right"]].set_visible(False)


def _use_log_axis(axes: Axes) -> None:
    """Show ratios in decades, so that one that is far off leaves room for the others."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _name(row: ComparedRow) -> str:
    provider = row.candidate.provider if row.key.provider or row.candidate.provider != row.baseline.provider else ""
    return " ".join(part for part in (row.key.op, row.key.case, row.key.dtype, provider) if part)


def _draw_reached(axes: Axes, rows: Sequence[ComparedRow], compared: Compared) -> None:
    """Draw what share of the ceiling that binds both reach; bytes per second where a row has no ceiling."""
    shares = [(row.baseline.of_ceiling, row.candidate.of_ceiling) for row in rows]
    has_shares = all(before is not None and after is not None for before, after in shares)
    if has_shares:
        pairs = [(100 * before[0], 100 * after[0]) for before, after in shares if before and after]
    else:
        pairs = [((row.baseline.bytes_per_s or 0) / 1e9, (row.candidate.bytes_per_s or 0) / 1e9) for row in rows]
    are_several = len({row.candidate.label for row in rows}) > 1
    for side, name in enumerate((compared.baseline, "candidate" if are_several else compared.candidate)):
        at = [place + (side - 0.5) * 0.36 for place in range(len(rows))]
        axes.barh(at, [pair[side] for pair in pairs], height=0.34, color=SIDE_COLORS[side], label=one_line(name, 30))
    axes.set_xlabel("% of the ceiling that binds" if has_shares else "GB/s of compulsory bytes", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", left=False)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, frameon=False, borderaxespad=3.6)
    axes.spines[["top", "right"]].set_visible(False)
