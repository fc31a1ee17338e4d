"""The table that people read: one renderer for the live run and for a saved one.

Text may come from a file of unknown origin. Whatever a terminal could take for a command is shown as its escape.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from results.record import Environment, Record
from results.show.grid import Column, print_grid
from results.show.judge import Report, judged
from results.show.terminal import one_line, printable
from results.stats.samples import half_width, median

if TYPE_CHECKING:
    from rich.console import Console

    from results.store.runs import RunSummary

ABSENT = "-"

ALWAYS = {"op", "case", "dtype", "provider", "median", "95% CI", "bound", "MBU", "% roof", "first call", "n"}
"""Columns that are shown whatever they say."""

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
    dtypes = {record.dtype for record in records}
    entries = hardware.get("entries")
    found: dict[str, list[str]] = {}
    for entry in entries if isinstance(entries, list) else []:
        quantity, name = entry["quantity"], entry["name"]
        if quantity == "bandwidth" or (quantity == "flops" and name in dtypes):
            title, unit = (f"{name} peak", "FLOP/s") if quantity == "flops" else (f"{name} bandwidth", "B/s")
            found.setdefault(title, []).append(f"{format_rate(entry['value'], unit)} {entry['kind']}")
    return "; ".join(f"{title} {', '.join(kinds)}" for title, kinds in found.items()) or None


def _options(records: Sequence[Record]) -> list[Column]:
    """Return a column of the options that tell rows apart, such as the recipe of a training step; none without any."""
    found: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.options.items():
            found.setdefault(name, set()).add(str(value))
    telling = {name for name, values in found.items() if len(values) > 1 and name != "process"}
    cells = [", ".join(f"{name} {value}" for name, value in r.options.items() if name in telling) for r in records]
    return [Column("options", cells, goes_below=1)] if any(cells) else []


def _columns(records: Sequence[Record], scores: Sequence[Mapping[str, Any]]) -> list[Column]:
    fastest = max((score["flops_per_s"] or 0 for score in scores), default=0)
    scale, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")

    def of_records(cell: Callable[[Record], str]) -> list[str]:
        return [cell(record) for record in records]

    def of_scores(key: str, shown: Callable[[Any], str]) -> list[str]:
        return [shown(score[key]) for score in scores]

    def memory(kind: str) -> list[str]:
        return of_records(lambda record: _megabytes(record.memory_bytes.get(kind, {}).get("total")))

    phases = dict.fromkeys(name for record in records for name in record.phases_s)
    has_one_provider = len({record.provider for record in records}) == 1
    return [
        Column("op", of_records(lambda record: record.op), heads=True),
        Column("case", of_records(lambda record: record.case)),
        Column("dtype", of_records(lambda record: record.dtype), heads=True),
        Column("provider", of_records(lambda record: record.provider), goes_below=1, heads=has_one_provider),
        Column("fill", of_records(lambda record: record.fill or ABSENT)),
        Column("median", of_records(lambda record: format_time(record.median_s)), "right"),
        Column("95% CI", of_records(lambda one: format_half_width(one.ci95_s, one.median_s)), "right", leaves=8),
        Column(unit, of_scores("flops_per_s", partial(_scaled, scale=scale)), "right"),
        Column("GB/s", of_scores("bytes_per_s", partial(_scaled, scale=1e9)), "right", leaves=6),
        Column("FLOP/B", of_scores("intensity", format_number), "right", leaves=5),
        Column("bound", [_bound(score) for score in scores], leaves=7),
        Column("MFU", of_scores("mfu", _share), "right", leaves=9),
        Column("HFU", of_scores("hfu", _share), "right", leaves=9),
        Column("MBU", of_scores("mbu", _share), "right", leaves=4),
        Column("% roof", of_scores("roofline_pct", format_percent), "right"),
        Column("% meas", [format_percent(_share_of_measured(score)) for score in scores], "right"),
        Column("mix", of_scores("mix", lambda mix: mix or ABSENT), leaves=1),
        Column("tokens/s", of_scores("tokens_per_s", format_number), "right"),
        Column("% link", of_scores("link_share", _share), "right"),
        Column("hidden", of_scores("hidden_share", _share), "right"),
        Column("waits", of_scores("wait_share", _share), "right"),
        Column("device", of_records(lambda record: format_time(record.device_s)), "right", leaves=3),
        Column("lost to host", of_records(_lost_to_host), "right", leaves=3),
        Column("work", of_records(_work), "right", leaves=3),
        Column("host kept", of_records(lambda record: format_time(record.host_launch_s)), "right", leaves=3),
        *(
            Column(name, [format_time(record.phases_s.get(name)) for record in records], "right", leaves=4)
            for name in phases
        ),
        *(Column(name, memory(kind), "right", leaves=4) for kind, name in MEMORY.items()),
        Column("first call", of_records(lambda record: format_time(record.first_call_s)), "right", leaves=3),
        Column("n", of_records(lambda record: str(len(record.samples_s) or ABSENT)), "right", leaves=2),
    ]


def table_rows(
    environment: Environment, records: Iterable[Record], report: Report | None = None
) -> list[dict[str, str]]:
    """Return the table as texts in units for people: a row for each record, whatever its status; an empty text is none.

    Arguments as of `render_table`.
    """
    records = list(records)
    columns = _columns(records, judged(environment, records, report))
    cells = {column.title: column.cells for column in columns if column.title not in ("first call", "n")}
    first = {title: cells.pop(title) for title in ("op", "case", "dtype", "provider", "fill")}
    first["options"] = [", ".join(f"{name} {value}" for name, value in one.options.items()) for one in records]
    first |= {"status": [one.status for one in records], "reason": [one.reason or "" for one in records]}
    cells = first | cells | {"flags": [_flags(record) for record in records]}
    return [
        {title: "" if column[row] == ABSENT else column[row] for title, column in cells.items()}
        for row in range(len(records))
    ]


def _lost_to_host(record: Record) -> str:
    """Return the fraction of a training step in which a GPU waits for the host."""
    if record.device_s is None or record.median_s is None:
        return ABSENT
    return format_percent(100 * max(0.0, 1 - record.device_s / record.median_s))


def _work(record: Record) -> str:
    """Return the seconds of the work of a step that loads batches, alone."""
    return format_time(median(record.compute_s)) if record.waits_s and record.compute_s else ABSENT


def _scaled_value(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _share(value: float | None) -> str:
    return format_percent(_scaled_value(value, 0.01))


def _megabytes(size_bytes: float | None) -> str:
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
    records = [record for record, _ in scored]
    columns = _columns(records, [score for _, score in scored])
    shown = [column for column in columns if column.title in ALWAYS or not _is_silent(column)]
    place = 1 + next(place for place, column in enumerate(shown) if column.title == "provider")
    shown[place:place] = _options(records)
    console.print()
    print_grid(console, shown, [_flags(record) for record in records], "flags")


def _is_silent(column: Column) -> bool:
    """Return whether no cell says more than that there is nothing, or all have the same word."""
    cells = set(column.cells)
    return cells <= NOTHING or (column.side == "left" and len(cells) == 1)


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
