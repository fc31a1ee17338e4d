"""python -m results history: one case over all runs, by date and revision, each compared with the run before."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from results.compare.command import Output, add_margin, add_output
from results.compare.selection import add_records, add_runs, wanted_of
from results.history.series import METRICS, HistoryPoint, Series, heading, history, short_date
from results.show.grid import Column, Table, print_grid
from results.show.table import ABSENT, format_half_width, format_percent, format_rate, format_time
from results.show.terminal import table_console
from results.stats.comparison import UNKNOWN
from results.store.runfile import StoreError
from results.store.runs import list_runs

if TYPE_CHECKING:
    from rich.console import Console

EPILOG = """A run is marked if the definition of its op changed since the previous run (`op_sha256`, without
comments): the time may have changed because the op did.

examples:
  python -m results history --op gelu --dtype bf16 --case 67108864 --provider triton-v2
  python -m results history --op matmul --dtype bf16 --case 4096x4096x4096 --metric mfu -o history.png
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_records(parser)
    add_runs(parser, "only runs")
    parser.add_argument("--metric", choices=tuple(METRICS), default="time", help="what is shown (default: time)")
    add_margin(parser)
    add_output(parser)


def run(options: argparse.Namespace, directory: Path, stdout: TextIO) -> Output:
    """Return the history that the options name, and save its plot if that is requested.

    Raises:
        StoreError: nothing fits or too much does, a folder cannot be read, or the picture cannot be written.
    """
    from results.history.plot import draw
    from results.show.picture import check_picture, save_picture

    if options.output is not None:
        check_picture(options.output)
    runs = [run for run in list_runs(directory, counts_records=False) if run.started_s >= (options.since or 0.0)]
    if not runs:
        since = "" if options.since is None else " since then"
        raise StoreError(f"there is no run in {directory}{since}: python -m bench.matmul makes one")
    series = history(runs, wanted_of(options), options.metric, options.margin, options.gpu)
    if options.output is not None:
        save_picture(draw(series, options.theme), options.output)
    notes = tuple(dict.fromkeys(note for one in series for note in one.notes))
    return Output(as_text(series, options.format, stdout), notes, 0, options.output, series[0].problems)


def as_text(series: Sequence[Series], form: str, file: TextIO) -> str:
    """Return a history as `table`, as wide as `file` can show, or in another of `TABLE_FORMATS`."""
    if form == "table":
        console = table_console(file)
        with console.capture() as text:
            _print_table(series, console)
        return text.get()
    table = Table(
        rows=lambda: [_flat_row(one, point) for one in series for point in one.points],
        shown=lambda: [_cells(one, point) for one in series for point in one.points],
        document=lambda: {"series": [_json_series(one) for one in series]},
        head=f"**{heading(series)}**\n",
    )
    return table.render(form)


def _json_series(one: Series) -> dict[str, Any]:
    known = {name: getattr(one.key, name) for name in ("op", "dtype", "case", "options", "fill", "cache")}
    known |= {"provider": one.provider, "device": one.device, "metric": one.metric}
    return known | {"points": [_json_point(point) for point in one.points]}


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


def _flat_row(one: Series, point: HistoryPoint) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(one.key, name) for name in ("op", "dtype", "case")}
    row |= {"provider": one.provider, "metric": one.metric}
    for name, value in _json_point(point).items():
        if name in ("ci95_s", "ci95", "ratio_ci95"):
            row |= {f"{name}_low": value[0] if value else None, f"{name}_high": value[1] if value else None}
        else:
            row[name] = ",".join(value) if name == "flags" else value
    return row


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


def _print_table(series: Sequence[Series], console: Console) -> None:
    rows = [_cells(one, point) for one in series for point in one.points]
    leaving = {"run": 1, "time ratio to last": 2}
    columns = [
        Column(
            title,
            [row[title] for row in rows],
            "left" if title in ("date", "revision", "provider", "verdict", "run") else "right",
            leaving.get(title, 0),
            goes_below=int(title == "provider"),
            heads=title == "provider",
            styles=["bold" if row["change"] else "" for row in rows],
        )
        for title in rows[0]
        if title not in ("change", "flags")
    ]
    console.print(f"{heading(series)}\n", markup=False, highlight=False, soft_wrap=True)
    print_grid(console, columns, ["; ".join(filter(None, (row["flags"], row["change"]))) for row in rows], "flags")
