"""A history as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TextIO

from results.history.segments import METRICS, HistoryPoint, Series, short_date
from results.show.export import Table
from results.show.grid import Column, print_grid
from results.show.table import ABSENT, format_half_width, format_percent, format_rate, format_time
from results.show.terminal import printable, table_console
from results.stats.comparison import UNKNOWN


def as_text(series: Sequence[Series], form: str, file: TextIO) -> str:
    """Return a history as `table`, as wide as `file` can show, or in another of `TABLE_FORMATS`."""
    if form == "table":
        return print_table(series, file)
    table = Table(
        rows=lambda: _flat_rows(series),
        shown=lambda: [_cells(one, point) for one in series for point in one.points],
        document=lambda: {"series": [_json_series(one) for one in series]},
        head=f"**{heading(series)}**\n",
    )
    return table.render(form)


def _json_series(one: Series) -> dict[str, Any]:
    known: dict[str, Any] = {"op": one.key.op, "dtype": one.key.dtype, "case": one.key.case, "options": one.key.options}
    known |= {"fill": one.key.fill, "cache": one.key.cache, "provider": one.provider}
    return known | {"device": one.device, "metric": one.metric, "points": [_json_point(point) for point in one.points]}


def _json_point(point: HistoryPoint) -> dict[str, Any]:
    change = point.since_last
    return {
        "run_id": point.run_id,
        "started_at": point.started_at,
        "revision": point.revision,
        "source_sha256": point.records[0].source_sha256,
        "op_sha256": point.records[0].op_sha256,
        "path": str(point.run.path),
        "median_s": point.median_s,
        "ci95_s": list(point.ci95_s) if point.ci95_s else None,
        "value": point.value,
        "ci95": list(point.ci95) if point.ci95 else None,
        "ratio_to_last": change.ratio if change else None,
        "ratio_ci95": list(change.ci95) if change and change.ci95 != UNKNOWN else None,
        "verdict": change.verdict if change else None,
        "reason": change.reason if change else None,
        "flags": list(point.flags),
        "is_redefined": point.is_redefined,
    }


def _flat_rows(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a row for each run and provider."""
    rows = []
    for one in series:
        for point in one.points:
            row: dict[str, Any] = {name: getattr(one.key, name) for name in ("op", "dtype", "case")}
            row["provider"] = one.provider
            for name, value in (row | {"metric": one.metric} | _json_point(point)).items():
                if name in ("ci95_s", "ci95", "ratio_ci95"):
                    row |= {f"{name}_low": value[0] if value else None, f"{name}_high": value[1] if value else None}
                else:
                    row[name] = ",".join(value) if name == "flags" else value
            rows.append(row)
    return rows


def heading(series: Sequence[Series]) -> str:
    """Return what the history is of, in one line."""
    key = series[0].key
    words = (key.op, key.case, key.dtype, key.fill, key.cache, f"on {series[0].device}")
    return printable(" ".join(word for word in words if word))


def _shown(value: float, metric: str) -> str:
    if metric == "time":
        return format_time(value)
    return format_rate(value, "FLOP/s") if metric == "flops" else format_percent(100 * value)


def _cells(one: Series, point: HistoryPoint) -> dict[str, str]:
    change = point.since_last
    return {
        "date": short_date(point.started_at),
        "revision": point.revision or ABSENT,
        "provider": one.provider,
        METRICS[one.metric]: _shown(point.value, one.metric),
        "95% CI": format_half_width(point.ci95, point.value),
        "time ratio to last": f"{change.ratio:.4f}" if change else ABSENT,
        "verdict": change.verdict if change else ABSENT,
        "flags": ", ".join(point.flags),
        "change": "<- the op was redefined" if point.is_redefined else "",
        "run": point.run_id,
    }


def print_table(series: Sequence[Series], file: TextIO) -> str:
    """Return the table for people."""
    console = table_console(file)
    rows = [_cells(one, point) for one in series for point in one.points]
    leaving = {"run": 1, "time ratio to last": 2}
    words = {"date", "revision", "provider", "verdict", "run"}
    columns = [
        Column(
            title,
            [row[title] for row in rows],
            "left" if title in words else "right",
            leaving.get(title, 0),
            goes_below=int(title == "provider"),
            heads=title == "provider",
            styles=["bold" if row["change"] else "" for row in rows],
        )
        for title in rows[0]
        if title not in ("change", "flags")
    ]
    with console.capture() as text:
        console.print(f"{heading(series)}\n", markup=False, highlight=False, soft_wrap=True)
        notes = ["; ".join(text for text in (row["flags"], row["change"]) if text) for row in rows]
        print_grid(console, columns, notes, "flags")
    return text.get()
