"""The table of a run, live or saved."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from results.record import Environment, Record, Score, name_of, text_of
from results.show.grid import (
    Cell,
    Cells,
    Table,
    drop_silent,
    escaped,
    print_cells,
    print_lines,
)
from results.show.rows import COLUMNS, document, flat_rows
from results.show.terminal import printable
from results.show.units import ABSENT, duration, format_half_width, number, percent, quantity
from roofline.limits import ROOFS
from roofline.model import judged

if TYPE_CHECKING:
    from rich.console import Console

    from results.store.runs import RunSummary

MAX_ROWS_PER_REASON = 3
"""Maximum number of rows with the same reason that get a line each; more rows share a line."""

ALWAYS = {
    "op",
    "case",
    "dtype",
    "provider",
    "median",
    "95% CI",
    "bound",
    "MBU",
    "% roof",
    "first call",
    "n",
    "flags",
}
"""Columns that are shown even if empty."""

ROOF_NAMES = {roof.name for roof in ROOFS}


Render = Callable[[Environment, Sequence[Record], "Console"], None]
"""Prints a run as a table."""


def table_of_run(
    environment: Environment, records: Iterable[Record], render: Render | None = None
) -> Table:
    """Return a run as a table, which `render` prints, by default `render_table`."""
    records = list(records)

    def head() -> str:
        lines = map(escaped, header_lines(environment, records))
        return "".join(f"- {line}\n" for line in lines) + "\n"

    return Table(
        rows=lambda: flat_rows(environment, records),
        columns=COLUMNS,
        cells=lambda: table_cells(environment, records),
        document=lambda: document(environment, records),
        draw=partial(render or render_table, environment, records),
        head=head,
    )


def render_table(
    environment: Environment,
    records: Iterable[Record],
    console: Console,
) -> None:
    """Print a run: the machine and its ceilings, a row for each measurement, then rows without one
    and the reason.
    """
    measured = []
    others = []
    records = list(records)
    for record, score in judged(environment, records):
        if record.status == "ok":
            measured.append((record, score))
        else:
            others.append(record)
    print_header(environment, records, console)
    if measured:
        _print_measured(measured, console)
    else:
        print_lines(console, "\nno row was measured")
    remarks: dict[str, None] = {}
    for record, score in measured:
        if score["excess"]:
            remarks[f"{name_of(record)}: {score['excess']}"] = None
        causes = score["held_back_by"]
        if causes and score["bound"] in ROOF_NAMES:
            remarks[
                "bound 'memory side' or 'compute side': less than 30 % of every ceiling is "
                f"reached; {causes} may be the limit"
            ] = None
    print_lines(console, *map(printable, remarks))
    if others:
        _print_others(others, console)


def describe(record: Record) -> list[str]:
    """Return a line on how a row was verified and timed, and a line for each flag."""
    if record.status != "ok":
        return [f"{name_of(record)}: {record.status}: {record.reason}"]
    copies = "" if record.copies is None else f" ({record.copies} copies)"
    timed = (
        f"{name_of(record)}: {len(record.samples_s)} samples of {record.launches_per_sample} "
        f"launches by {record.method}, {record.cache}{copies}, first call "
        f"{duration(record.first_call_s)}, host latency {duration(record.host_latency_s)}"
    )
    checked = record.verified.get("after")
    if checked:
        error = f", largest error {checked.get('max_error_of_bound') or 0:.2g} of the bound"
        if checked.get("reference") == "rule":
            error = " by the op's own rule"
        elements = f"{checked.get('checked_elements')} of {checked.get('elements')} elements"
        timed += f", verified {elements}{error}"
    lines = [timed]
    for flag, reason in record.flag_reasons.items():
        lines.append(f"  {flag}: {reason}")
    return lines


def print_header(environment: Environment, records: Iterable[Record], console: Console) -> None:
    *lines, command = header_lines(environment, records)
    print_lines(console, *lines)
    # In one piece, to copy it.
    console.print(command, markup=False, highlight=False, soft_wrap=True)


def header_lines(environment: Environment, records: Iterable[Record] = ()) -> list[str]:
    device = environment.device
    git = environment.git
    versions = [f"{name} {version}" for name, version in environment.versions.items() if version]
    sha = git.get("sha")
    revision = f"git {str(sha)[:10]}{' with changes' if git.get('dirty') else ''}" if sha else None
    run = f"run {environment.run_id}"
    machine = [
        f"{device['name']} ({device['slug']})",
        *versions,
        environment.started_at,
        revision,
        run,
    ]
    dtypes = {record.dtype for record in records}
    ceilings = defaultdict(list)
    for entry in environment.machine.entries:
        is_peak = entry.quantity == "flops" and entry.name in dtypes
        if is_peak or entry.unit == "B/s":
            ceilings[entry.title].append(f"{quantity(entry.value, entry.unit)} {entry.kind}")
    note = environment.machine.note
    lines = [
        ", ".join(filter(None, machine)),
        "; ".join(f"{title} {', '.join(kinds)}" for title, kinds in ceilings.items()),
        f"note: {note}" if note else None,
        shlex.join(environment.argv),
    ]
    return [printable(line) for line in lines if line]


def _rate_unit(scored: Iterable[tuple[Record, Score]]) -> tuple[float, str]:
    fastest = max((score["flops_per_s"] or 0 for _, score in scored), default=0)
    return (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")


def _cells(record: Record, score: Score, unit: tuple[float, str], options: Iterable[str]) -> Cells:
    """Return the cells of a row, with these options and rates in this unit."""
    scale, rate = unit
    flops_per_s = score["flops_per_s"]
    bytes_per_s = score["bytes_per_s"]
    known = record.options.items()
    shown = [f"{name} {value}" for name, value in known if name in options and value != ""]
    is_measured = score["peak_kind"] == score["bandwidth_kind"] == "measured"
    of_measured = None if is_measured else score["measured_pct"]
    bound = score["bound"] or ABSENT
    if score["held_back_by"] and bound in ROOF_NAMES:
        bound += " side"
    cells = {
        "op": Cell(record.op),
        "case": Cell(record.case),
        "dtype": Cell(record.dtype, leaves=11),
        "provider": Cell(record.provider, leaves=10),
        "fill": Cell(record.fill or ABSENT, leaves=9),
        "options": Cell(", ".join(shown), leaves=9),
        "status": Cell(record.status),
        "reason": Cell(record.reason or ""),
        "median": Cell(duration(record.median_s), "right"),
        "95% CI": Cell(format_half_width(record.ci95_s, record.median_s), "right", leaves=13),
        rate: Cell(number(flops_per_s and flops_per_s / scale), "right"),
        "GB/s": Cell(number(bytes_per_s and bytes_per_s / 1e9), "right", leaves=8),
        "FLOP/B": Cell(number(score["intensity"]), "right", leaves=5),
        "bound": Cell(bound, leaves=12),
        "MFU": Cell(percent(score["mfu"]), "right", leaves=14),
        "HFU": Cell(percent(score["hfu"]), "right", leaves=8),
        "MBU": Cell(percent(score["mbu"]), "right", leaves=4),
        "% roof": Cell(percent(score["roofline_pct"], 100), "right", leaves=9),
        "% meas": Cell(percent(of_measured, 100), "right", leaves=6),
        "mix": Cell(score["mix"] or ABSENT, leaves=1),
        "peak memory": Cell(quantity(record.peak_memory_bytes, "B"), "right", leaves=8),
    }
    if record.details:
        cells |= record.details.cells(record, score)
    cells["first call"] = Cell(duration(record.first_call_s), "right", leaves=3)
    cells["n"] = Cell(str(len(record.samples_s) or ABSENT), "right", leaves=2)
    cells["flags"] = Cell(", ".join(record.flags))
    return cells


def table_cells(environment: Environment, records: Iterable[Record]) -> list[Cells]:
    """Return a row for each record; empty for what is unknown."""
    scored = judged(environment, records)
    unit = _rate_unit(scored)
    rows = []
    for record, score in scored:
        row = _cells(record, score, unit, record.options)
        row |= {title: Cell("") for title, cell in row.items() if cell.text == ABSENT}
        del row["first call"], row["n"]
        rows.append(row)
    return rows


def _print_measured(scored: Sequence[tuple[Record, Score]], console: Console) -> None:
    unit = _rate_unit(scored)
    names = set().union(*(record.options for record, _ in scored))
    values = defaultdict(set)
    for record, _ in scored:
        for name in names:
            values[record.op, name].add(str(record.options.get(name)))
    # The options that differ between the rows of an op, or that some of them lack.
    telling = {name for (_, name), shown in values.items() if len(shown) > 1}
    rows = [_cells(record, score, unit, telling) for record, score in scored]
    console.print()
    drop_silent(rows, ALWAYS)
    print_cells(console, rows, "flags", ("op", "dtype", "provider"), "--format csv has all")


def _print_others(records: Sequence[Record], console: Console) -> None:
    """Print a line for each row, or for many rows with the same reason."""
    by_reason: dict[tuple[str, str | None], list[Record]] = {}
    for record in records:
        by_reason.setdefault((record.status, record.reason), []).append(record)
    lines = [""]
    for (status, reason), alike in by_reason.items():
        names = [f"{name_of(record)} {text_of(record.options)}".strip() for record in alike]
        if len(alike) > MAX_ROWS_PER_REASON:
            ops = dict.fromkeys(record.op for record in alike)
            names = [f"{len(alike)} rows ({', '.join(ops)})"]
        lines += [printable(f"{status}: {name}: {reason or ABSENT}") for name in names]
    print_lines(console, *lines)


def render_runs(runs: Iterable[RunSummary], console: Console) -> None:
    rows = []
    for run in runs:
        records = ABSENT if run.records is None else str(run.records)
        command = f"broken: {run.error}" if run.error else run.command or ABSENT
        row = {
            "run": Cell(run.run_id),
            "started": Cell(run.started_at or ABSENT, leaves=1),
            "device": Cell(run.device_slug or ABSENT, leaves=2),
            "op": Cell(run.op or ABSENT),
            "records": Cell(records, "right"),
            "command": Cell(command),
        }
        rows.append(row)
    print_cells(console, rows, "command")
