"""The table that people read: one renderer for the live run and for a saved one.

Text may come from a file of unknown origin. Whatever a terminal could take for a command is shown as its escape.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from results.record import Environment, Record
from results.show.grid import Column, print_grid
from results.show.judge import Report, judged
from results.show.terminal import one_line, printable
from results.stats.samples import half_width

if TYPE_CHECKING:
    from rich.console import Console

    from results.store.runs import RunSummary

ABSENT = "-"

NOTHING = {ABSENT, "0", "0%"}
"""What a cell says where there is none of it."""

MEMORY = {"measured": "peak memory", "estimated": "predicted"}
"""Columns of a training step, by key of its `memory_bytes`."""

TABLE_COLUMNS = (
    *("op", "case", "dtype", "provider", "fill", "options", "status", "reason", "median", "95% CI"),
    *("GFLOP/s", "GB/s", "FLOP/B", "bound", "MFU", "MBU", "% roof", "% meas", "mix", "flags"),
)
"""What `table_rows` returns of ops; GFLOP/s is TFLOP/s where the fastest row reaches that."""
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def format_number(value: float | None, digits: int = 4) -> str:
    """Return `value` with `digits` significant digits and no exponent where that stays short; `-` for None."""
    if value is None:
        return ABSENT
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def format_time(seconds: float | None) -> str:
    """Return a time in the unit that suits it, such as `12.34 us`; `-` for None."""
    if seconds is None:
        return ABSENT
    scale, unit = next((entry for entry in TIME_UNITS if seconds >= entry[0]), TIME_UNITS[-1])
    return f"{format_number(seconds / scale)} {unit}"


def format_rate(value: float | None, unit: str) -> str:
    """Return a rate with the prefix that suits it, such as `989.4 TFLOP/s` for the unit `FLOP/s`; `-` for None."""
    if value is None:
        return ABSENT
    scale, prefix = next((entry for entry in PREFIXES if value >= entry[0]), (1.0, ""))
    return f"{format_number(value / scale)} {prefix}{unit}"


def format_percent(value: float | None) -> str:
    """Return a percentage with three significant digits; above 100 it is shown as it is. `-` for None."""
    return ABSENT if value is None else f"{format_number(value, 3)}%"


def format_half_width(interval: tuple[float, float] | None, center: float | None) -> str:
    """Return half the width of an interval as a share of its center, such as `±1.2%`; `-` where one is None."""
    if interval is None or center is None:
        return ABSENT
    return f"±{format_number(100 * half_width(interval, center), 2)}%"


def render_table(
    environment: Environment, records: Iterable[Record], console: Console, report: Report | None = None
) -> None:
    """Print a run: the machine and its ceilings, a row for each measurement, then what was not measured, and why.

    Args:
        environment: where the records were taken.
        records: in the order to print.
        console: where to; where its width cannot hold all columns, the least important ones are left out by name.
        report: is told, in one line, of what could not be judged.
    """
    records = list(records)
    scored = list(zip(records, judged(environment, records, report), strict=True))
    for line in header_lines(environment, records):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    measured = [(record, score) for record, score in scored if record.status == "ok"]
    if measured:
        _print_measured(measured, console)
    else:
        console.print("\nno measurement was finished", markup=False, highlight=False)
    for text in dict.fromkeys(_excess(record, score) for record, score in measured if score["excess"]):
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    for causes in dict.fromkeys(score["held_back_by"] for _, score in measured if score["held_back_by"]):
        text = f"memory side or compute side: far below every ceiling, and held back by {causes}"
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
    others = [record for record in records if record.status != "ok"]
    if others:
        _print_others(others, console)


def describe(record: Record) -> list[str]:
    """Return how one row was verified and timed, in a line, and a line for each thing that speaks against it."""
    if record.status != "ok":
        return [f"{name_of(record)}: {record.status}: {record.reason}"]
    checked = record.verified.get("after", {})
    cache = record.cache if record.copies is None else f"{record.cache} ({record.copies} copies)"
    timed = (
        f"{name_of(record)}: {len(record.samples_s)} samples of {record.launches_per_sample} launches "
        f"by {record.method}, {cache}, first call {format_time(record.first_call_s)}, "
        f"host latency {format_time(record.host_latency_s)}"
    )
    if checked:
        seen = f"{checked.get('checked_elements')} of {checked.get('elements')} elements"
        timed += f", verified {seen}{_largest_error(checked)}"
    return [timed, *_ran(record), *(f"  {flag}: {reason}" for flag, reason in record.flag_reasons.items())]


def _ran(record: Record) -> list[str]:
    """Return what one launch starts on a GPU, a line a kernel, below its time as seen in three ways."""
    if record.eager_s is None:
        return []
    each = f"a launch takes {format_time(record.median_s)}, {format_time(record.eager_s)} where the host launches each"
    if not record.launched_kernels:
        return [f"  {each}; torch's profiler recorded no kernel"]
    counts = [kernel.get("count") for kernel in record.launched_kernels]
    count = sum(number for number in counts if isinstance(number, int))
    what = f"{count} kernel{'s' * (count != 1)} take{'s' * (count == 1)}"
    return [f"  {each}; its {what} {format_time(record.kernel_s)}:", *map(_kernel_line, record.launched_kernels)]


def _kernel_line(kernel: Mapping[str, Any]) -> str:
    facts = [("grid", ""), ("block", ""), ("registers", " registers"), ("shared_bytes", " bytes of shared memory")]
    words = [
        f"{'' if unit else key + ' '}{'x'.join(map(str, value)) if isinstance(value, list) else value}{unit}"
        for key, unit in facts
        if (value := kernel.get(key)) is not None
    ]
    name = one_line(str(kernel.get("name")), 100)
    return printable(f"    {kernel.get('count')} x {', '.join([name, *words])}")


def _largest_error(checked: Mapping[str, Any]) -> str:
    """Return how near the bound the worst element is; a random result has no error, it obeys a rule."""
    if checked.get("reference") == "rule":
        return " by the op's own rule"
    return f", largest error {checked.get('max_error_of_bound') or 0:.2g} of the bound"


def name_of(record: Record) -> str:
    """Return what tells a record from the others of its run."""
    return f"{record.op} {record.case} {record.dtype} {record.provider}"


def header_lines(environment: Environment, records: Iterable[Record] = ()) -> list[str]:
    """Return the lines that say what machine this was, what its ceilings are, and what was run on it when."""
    device, git = environment.device, environment.git
    versions = [f"{name} {version}" for name, version in environment.versions.items() if version]
    sha = git.get("sha")
    revision = f"git {str(sha)[:10]}{' with changes' if git.get('dirty') else ''}" if sha else None
    run = f"run {environment.run_id}"
    machine = [f"{device['name']} ({device['slug']})", *versions, environment.started_at, revision, run]
    lines = [", ".join(part for part in machine if part), _ceilings_line(environment.hardware, records)]
    note = environment.hardware.get("note")
    lines += [f"note: {note}" if note else None, shlex.join(environment.argv)]
    return [printable(line) for line in lines if line]


def _ceilings_line(hardware: Mapping[str, Any], records: Iterable[Record]) -> str | None:
    """Return the ceilings that concern the dtypes at hand."""
    dtypes = {record.dtype for record in records}
    entries = hardware.get("entries")
    found: dict[str, list[str]] = {}
    for entry in entries if isinstance(entries, list) else []:
        quantity, name = entry["quantity"], entry["name"]
        if quantity == "bandwidth" or (quantity == "flops" and name in dtypes):
            title, unit = (f"{name} peak", "FLOP/s") if quantity == "flops" else (f"{name} bandwidth", "B/s")
            found.setdefault(title, []).append(f"{format_rate(entry['value'], unit)} {entry['kind']}")
    return "; ".join(f"{title} {', '.join(kinds)}" for title, kinds in found.items()) or None


@dataclass(frozen=True)
class _Column:
    title: str
    cell: Callable[[Record, Mapping[str, Any]], str]
    justify: Literal["left", "right"] = "right"
    leaves: int = 0
    goes_below: int = 0
    heads: bool = False
    is_rare: bool = False
    """Left out where no row has more to say than that there is none of it, or where all say the same word."""


def _options(records: Sequence[Record]) -> list[Column]:
    """Return a column of the options that tell rows apart, such as the recipe of a training step; none without any."""
    found: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.options.items():
            found.setdefault(name, set()).add(str(value))
    telling = {name for name, values in found.items() if len(values) > 1 and name != "process"}
    cells = [", ".join(f"{name} {value}" for name, value in r.options.items() if name in telling) for r in records]
    return [Column("options", cells, goes_below=1)] if any(cells) else []


def _columns(records: Sequence[Record], scores: Sequence[Mapping[str, Any]]) -> list[_Column]:
    fastest = max((score["flops_per_s"] or 0 for score in scores), default=0)
    scale, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")
    return [
        _Column("op", lambda record, _: record.op, "left", heads=True),
        _Column("case", lambda record, _: record.case, "left"),
        _Column("dtype", lambda record, _: record.dtype, "left", heads=True),
        _Column("provider", lambda record, _: record.provider, "left", goes_below=1),
        _Column("fill", lambda record, _: record.fill or ABSENT, "left", is_rare=True),
        _Column("median", lambda record, _: format_time(record.median_s)),
        _Column("95% CI", lambda record, _: format_half_width(record.ci95_s, record.median_s), leaves=8),
        _Column(unit, lambda _, score: _scaled(score["flops_per_s"], scale), is_rare=True),
        _Column("GB/s", lambda _, score: _scaled(score["bytes_per_s"], 1e9), leaves=6, is_rare=True),
        _Column("FLOP/B", lambda _, score: format_number(score["intensity"]), leaves=5, is_rare=True),
        _Column("bound", lambda _, score: _bound(score), "left", leaves=7),
        _Column("MFU", lambda _, score: _share(score["mfu"]), leaves=9, is_rare=True),
        _Column("HFU", lambda _, score: _share(score["hfu"]), leaves=9, is_rare=True),
        _Column("MBU", lambda _, score: _share(score["mbu"]), leaves=4),
        _Column("% roof", lambda _, score: format_percent(score["roofline_pct"])),
        _Column("% meas", lambda _, score: format_percent(_share_of_measured(score)), is_rare=True),
        _Column("mix", lambda _, score: score["mix"] or ABSENT, "left", leaves=1, is_rare=True),
        _Column("tokens/s", lambda _, score: format_number(score["tokens_per_s"]), is_rare=True),
        _Column("% link", lambda _, score: _share(score["link_share"]), is_rare=True),
        _Column("hidden", lambda _, score: _share(score["hidden_share"]), is_rare=True),
        _Column("waits", lambda _, score: _share(score["wait_share"]), is_rare=True),
        _Column("host kept", lambda record, _: format_time(record.host_launch_s), leaves=3, is_rare=True),
        *(
            _Column(name, partial(_phase, name), leaves=4, is_rare=True)
            for name in dict.fromkeys(name for record in records for name in record.phases_s)
        ),
        *(_Column(name, partial(_peak_memory, kind), leaves=4, is_rare=True) for kind, name in MEMORY.items()),
        _Column("first call", lambda record, _: format_time(record.first_call_s), leaves=3),
        _Column("n", lambda record, _: str(len(record.samples_s) or ABSENT), leaves=2),
    ]


def table_rows(
    environment: Environment, records: Iterable[Record], report: Report | None = None
) -> list[dict[str, str]]:
    """Return the table as texts in units for people: a row for each record, whatever its status; an empty text is none.

    Arguments as of `render_table`.
    """
    records = list(records)
    scores = judged(environment, records, report)
    rows = []
    columns = [column for column in _columns(records, scores) if column.title not in ("first call", "n")]
    for record, score in zip(records, scores, strict=True):
        cells = {column.title: column.cell(record, score) for column in columns} | {"flags": _flags(record)}
        options = ", ".join(f"{name} {value}" for name, value in record.options.items())
        first = {title: cells.pop(title) for title in ("op", "case", "dtype", "provider", "fill")}
        first["options"] = options
        rows.append(first | {"status": record.status, "reason": record.reason or ""} | cells)
    return [{title: "" if text == ABSENT else text for title, text in row.items()} for row in rows]


def _scaled_value(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _share(value: float | None) -> str:
    return format_percent(_scaled_value(value, 0.01))


def _phase(name: str, record: Record, _: Mapping[str, Any]) -> str:
    return format_time(record.phases_s.get(name))


def _peak_memory(kind: str, record: Record, _: Mapping[str, Any]) -> str:
    """Return the memory of a training step when most is held, in MB."""
    size_bytes = record.memory_bytes.get(kind, {}).get("total")
    return ABSENT if size_bytes is None else f"{format_number(size_bytes / 1e6)} MB"


def _scaled(value: float | None, scale: float) -> str:
    return format_number(_scaled_value(value, scale))


def _share_of_measured(score: Mapping[str, Any]) -> float | None:
    """Return the share of what was measured here, None where `% roof` is the same: where nothing was published."""
    if score["peak_kind"] == score["bandwidth_kind"] == "measured":
        return None
    share: float | None = score["measured_pct"]
    return share


def _flags(record: Record) -> str:
    flags = list(record.flags)
    if record.converged is False and not any("converge" in flag for flag in flags):
        flags.append("not converged")
    return ", ".join(flags)


def _bound(score: Mapping[str, Any]) -> str:
    """Return what binds; for a row far below every ceiling only the side of the ridge point that it lies on."""
    bound = score["bound"] or ABSENT
    return f"{bound} side" if score["held_back_by"] and bound in ("memory", "compute") else bound


def _excess(record: Record, score: Mapping[str, Any]) -> str:
    return printable(f"{record.op} {record.case} {record.dtype} {record.provider}: {score['excess']}")


def _print_measured(scored: Sequence[tuple[Record, Mapping[str, Any]]], console: Console) -> None:
    columns = _columns([record for record, _ in scored], [score for _, score in scored])
    grid = [
        Column(c.title, [c.cell(record, score) for record, score in scored], c.justify, c.leaves, c.goes_below, c.heads)
        for c in columns
    ]
    provider = next(place for place, column in enumerate(grid) if column.title == "provider")
    grid[provider] = replace(grid[provider], heads=len(set(grid[provider].cells)) == 1)
    silent = {
        column.title
        for column, shown in zip(columns, grid, strict=True)
        if column.is_rare and (set(shown.cells) <= NOTHING or (column.justify == "left" and len(set(shown.cells)) == 1))
    }
    console.print()
    place = next(place for place, column in enumerate(grid) if column.title == "fill")
    grid[place:place] = _options([record for record, _ in scored])
    shown = [column for column in grid if column.title not in silent]
    print_grid(console, shown, [_flags(record) for record, _ in scored], "flags")


MOST_ALIKE = 3
"""So many rows that have one reason not to be measured have a line each; more are told in one."""


def _print_others(records: Sequence[Record], console: Console) -> None:
    """Print what was not measured, and why: a line each, and one line where many rows have the same reason."""
    reasons = Counter((record.status, record.reason) for record in records)
    alone = [record for record in records if reasons[record.status, record.reason] <= MOST_ALIKE]
    console.print()
    if alone:
        _print_alone(alone, console)
    for (status, reason), count in reasons.items():
        if count > MOST_ALIKE:
            ops = dict.fromkeys(one.op for one in records if (one.status, one.reason) == (status, reason))
            text = f"{status}: {count} rows ({', '.join(ops)}): {reason or ABSENT}"
            console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


def _print_alone(records: Sequence[Record], console: Console) -> None:
    names = ("status", "op", "case", "dtype")
    columns = [Column(name, [getattr(record, name) for record in records]) for name in names]
    columns.append(Column("provider", [record.provider for record in records], goes_below=2))
    columns += _options(records)
    print_grid(console, columns, [record.reason or ABSENT for record in records], "reason")


def render_runs(runs: Iterable[RunSummary], console: Console) -> None:
    """Print a list of runs, in the order given."""
    runs = list(runs)
    columns = [
        Column("run", [run.run_id for run in runs]),
        Column("started", [run.started_at or ABSENT for run in runs], leaves=1),
        Column("device", [run.device_slug or ABSENT for run in runs], leaves=2),
        Column("op", [run.op or ABSENT for run in runs]),
        Column("records", [ABSENT if run.records is None else str(run.records) for run in runs], "right"),
    ]
    commands = [f"broken: {run.error}" if run.error else run.command or ABSENT for run in runs]
    print_grid(console, columns, commands, "command")
