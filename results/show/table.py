"""The table of a run, live or saved."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

from results.record import Copy, Environment, Loop, Record, Step, name_of
from results.show.grid import Column, Table, escaped, print_grid, print_lines, rows_of
from results.show.rows import COLUMNS, document, flat_rows
from results.show.terminal import one_line, printable
from results.show.units import ABSENT, duration, number, percent, quantity, uncertainty
from results.stats.samples import half_width
from roofline.limits import LIMITS
from roofline.machine import Machine
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
}
"""Columns that are shown even if empty."""

ROOFS = {limit.name for limit in LIMITS if limit.is_roof}
NOTHING = {ABSENT, "0", "0%"}
"""Cells without a value."""


def format_half_width(interval: tuple[float, float] | None, center: float | None) -> str:
    """Return half the width of an interval as a share of its center, such as `±1.2%`; `-` where one
    is None.
    """
    if interval is None or center is None:
        return ABSENT
    return uncertainty(half_width(interval, center))


def table_of_run(
    environment: Environment,
    records: Iterable[Record],
    draw: Callable[[Console], object] | None = None,
    content: Callable[[], Any] | None = None,
) -> Table:
    """Return a run as a table; `content` replaces the JSON document, and `draw` prints the table on
    a terminal.
    """
    records = list(records)
    return Table(
        rows=lambda: flat_rows(environment, records),
        columns=COLUMNS,
        shown=lambda: table_rows(environment, records),
        titles=lambda: [column.title for column in _all_columns([], [])],
        document=content or (lambda: document(environment, records)),
        draw=draw,
        head=lambda: (
            "".join(f"- {escaped(line)}\n" for line in header_lines(environment, records)) + "\n"
        ),
    )


def render_table(
    environment: Environment,
    records: Iterable[Record],
    console: Console,
) -> None:
    """Print a run: the machine and its ceilings, a row for each measurement, then rows without one
    and the reason.
    """
    records = list(records)
    scored = list(zip(records, judged(environment, records), strict=True))
    print_header(environment, records, console)
    measured = [(record, score) for record, score in scored if record.status == "ok"]
    if measured:
        _print_measured(measured, console)
    else:
        print_lines(console, "\nno row was measured")
    remarks = [
        f"{name_of(record)}: {score['excess']}" for record, score in measured if score["excess"]
    ]
    for causes in dict.fromkeys(
        score["held_back_by"] for _, score in measured if score["held_back_by"]
    ):
        remarks.append(f"memory side or compute side: far below every ceiling, limited by {causes}")
    print_lines(console, *map(printable, dict.fromkeys(remarks)), style="yellow")
    others = [record for record in records if record.status != "ok"]
    if others:
        _print_others(others, console)


def describe(record: Record) -> list[str]:
    """Return a line on how a row was verified and timed, and a line for each flag."""
    if record.status != "ok":
        return [f"{name_of(record)}: {record.status}: {record.reason}"]
    checked = record.verified.get("after", {})
    cache = record.cache if record.copies is None else f"{record.cache} ({record.copies} copies)"
    timed = (
        f"{name_of(record)}: {len(record.samples_s)} samples of {record.launches_per_sample} "
        f"launches by {record.method}, {cache}, first call {duration(record.first_call_s)}, "
        f"host latency {duration(record.host_latency_s)}"
    )
    if checked:
        error = f", largest error {checked.get('max_error_of_bound') or 0:.2g} of the bound"
        error = " by the op's own rule" if checked.get("reference") == "rule" else error
        timed += (
            f", verified {checked.get('checked_elements')} of {checked.get('elements')} "
            f"elements{error}"
        )
    return [
        timed,
        *_ran(record),
        *(f"  {flag}: {reason}" for flag, reason in record.flag_reasons.items()),
    ]


def _ran(record: Record) -> list[str]:
    if record.eager_s is None:
        return []
    each = (
        f"a launch takes {duration(record.median_s)}, or {duration(record.eager_s)} if "
        f"launched separately"
    )
    if not record.launched_kernels:
        return [f"  {each}; torch's profiler recorded no kernel"]
    counts = [kernel.get("count") for kernel in record.launched_kernels]
    count = sum(number for number in counts if isinstance(number, int))
    kernels = "1 kernel takes" if count == 1 else f"{count} kernels take"
    return [
        f"  {each}; its {kernels} {duration(record.kernel_s)}:",
        *map(_kernel_line, record.launched_kernels),
    ]


def _kernel_line(kernel: Mapping[str, Any]) -> str:
    facts = [
        ("grid", ""),
        ("block", ""),
        ("registers", " registers"),
        ("shared_bytes", " bytes of shared memory"),
    ]
    words = [one_line(str(kernel.get("name")), 100)]
    for key, unit in facts:
        value = kernel.get(key)
        if value is not None:
            text = "x".join(map(str, value)) if isinstance(value, list) else value
            words.append(f"{text}{unit}" if unit else f"{key} {text}")
    return printable(f"    {kernel.get('count')} x {', '.join(words)}")


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
    lines = [
        ", ".join(part for part in machine if part),
        _ceilings_line(environment.machine, records),
    ]
    note = environment.machine.note
    lines += [f"note: {note}" if note else None, shlex.join(environment.argv)]
    return [printable(line) for line in lines if line]


def _ceilings_line(machine: Machine, records: Iterable[Record]) -> str | None:
    dtypes = {record.dtype for record in records}
    ceilings: dict[str, list[str]] = {}
    for entry in machine.entries:
        is_peak = entry.quantity == "flops" and entry.name in dtypes
        if is_peak or entry.unit == "B/s":
            ceilings.setdefault(entry.title, []).append(
                f"{quantity(entry.value, entry.unit)} {entry.kind}"
            )
    return "; ".join(f"{title} {', '.join(kinds)}" for title, kinds in ceilings.items()) or None


def _options(records: Sequence[Record]) -> list[Column]:
    def differs(record: Record, name: str) -> bool:
        shown = {
            str(other.options.get(name))
            for other in records
            if name in other.options or other.op == record.op
        }
        return len(shown) > 1

    telling = set()
    for record in records:
        telling |= {name for name in record.options if differs(record, name)}
    cells = [
        ", ".join(f"{name} {value}" for name, value in r.options.items() if name in telling)
        for r in records
    ]
    return [Column("options", cells, goes_below=9)] if any(cells) else []


def _columns(records: Sequence[Record], scores: Sequence[Mapping[str, Any]]) -> list[Column]:
    fastest = max((score["flops_per_s"] or 0 for score in scores), default=0)
    scale, unit = (1e12, "TFLOP/s") if fastest >= 1e12 else (1e9, "GFLOP/s")
    steps = [record.details_as(Step) or Step() for record in records]
    copies = [record.details_as(Copy) or Copy() for record in records]
    loops = [record.details_as(Loop) for record in records]
    phases = dict.fromkeys(chain.from_iterable(step.phases_s for step in steps))
    has_one_provider = len({record.provider for record in records}) == 1

    def words(title: str, cell: Callable[[Record], str], **layout: Any) -> Column:
        return Column(title, list(map(cell, records)), **layout)

    def times(title: str, seconds: Callable[[Record], float | None], leaves: int = 0) -> Column:
        return Column(title, [duration(seconds(record)) for record in records], "right", leaves)

    def rates(
        title: str, key: str, shown: Callable[[float | None], str], leaves: int = 0
    ) -> Column:
        return Column(title, [shown(score[key]) for score in scores], "right", leaves)

    def megabytes(title: str, kind: str) -> Column:
        sizes = [step.memory_bytes.get(kind, {}).get("total") for step in steps]
        shown = [ABSENT if size is None else f"{number(size / 1e6)} MB" for size in sizes]
        return Column(title, shown, "right", leaves=4)

    return [
        words("op", lambda record: record.op, heads=True),
        words("case", lambda record: record.case),
        words("dtype", lambda record: record.dtype, heads=True),
        words("provider", lambda record: record.provider, goes_below=11, heads=has_one_provider),
        words("fill", lambda record: record.fill or ABSENT, goes_below=11),
        times("median", lambda record: record.median_s),
        words(
            "95% CI",
            lambda record: format_half_width(record.ci95_s, record.median_s),
            side="right",
            leaves=12,
        ),
        rates(unit, "flops_per_s", partial(_scaled, scale=scale)),
        rates("GB/s", "bytes_per_s", partial(_scaled, scale=1e9), leaves=8),
        rates("FLOP/B", "intensity", number, leaves=5),
        Column("bound", [_bound(score) for score in scores], leaves=7),
        rates("MFU", "mfu", percent, leaves=13),
        rates("HFU", "hfu", percent, leaves=10),
        rates("MBU", "mbu", percent, leaves=4),
        rates("% roof", "roofline_pct", partial(percent, whole=100), leaves=9),
        Column("% meas", [_of_measured(score) for score in scores], "right", leaves=6),
        Column("mix", [score["mix"] or ABSENT for score in scores], leaves=1),
        rates("tokens/s", "tokens_per_s", number),
        rates("% link", "link_share", percent),
        rates("hidden", "hidden_share", percent),
        rates("waits", "wait_share", percent),
        Column("device", [duration(step.device_s) for step in steps], "right", 3),
        words("lost to host", _lost_to_host, side="right", leaves=3),
        Column("work", list(map(_work_of_loop, loops)), "right", 3),
        Column("host kept", [duration(copy.host_launch_s) for copy in copies], "right", 3),
        *(
            Column(name, [duration(step.phases_s.get(name)) for step in steps], "right", 4)
            for name in phases
        ),
        megabytes("peak memory", "measured"),
        megabytes("predicted", "estimated"),
        times("first call", lambda record: record.first_call_s, leaves=3),
        words("n", lambda record: str(len(record.samples_s) or ABSENT), side="right", leaves=2),
    ]


def table_rows(environment: Environment, records: Iterable[Record]) -> list[dict[str, str]]:
    records = list(records)
    rows = rows_of(_all_columns(records, judged(environment, records)))
    return [{title: "" if text == ABSENT else text for title, text in row.items()} for row in rows]


def _all_columns(records: Sequence[Record], scores: Sequence[Mapping[str, Any]]) -> list[Column]:
    columns = _columns(records, scores)[:-2]  # without `first call` and `n`
    options = [
        ", ".join(f"{name} {value}" for name, value in record.options.items()) for record in records
    ]
    status = Column("status", [record.status for record in records])
    reason = Column("reason", [record.reason or "" for record in records])
    flags = Column("flags", list(map(_flags, records)))
    # The first five are op, case, dtype, provider and fill.
    return [*columns[:5], Column("options", options), status, reason, *columns[5:], flags]


def _lost_to_host(record: Record) -> str:
    step = record.details_as(Step)
    if step is None or step.device_s is None or record.median_s is None:
        return ABSENT
    return percent(max(0.0, 1 - step.device_s / record.median_s))


def _work_of_loop(loop: Loop | None) -> str:
    return duration(median(loop.compute_s) if loop and loop.compute_s else None)


def _scaled(value: float | None, scale: float) -> str:
    return number(None if value is None else value / scale)


def _of_measured(score: Mapping[str, Any]) -> str:
    is_measured = score["peak_kind"] == score["bandwidth_kind"] == "measured"
    return ABSENT if is_measured else percent(score["measured_pct"], 100)


def _flags(record: Record) -> str:
    flags = list(record.flags)
    if record.converged is False and not any("converge" in flag for flag in flags):
        flags.append("not converged")
    return ", ".join(flags)


def _bound(score: Mapping[str, Any]) -> str:
    bound = score["bound"] or ABSENT
    return f"{bound} side" if score["held_back_by"] and bound in ROOFS else bound


def _print_measured(scored: Sequence[tuple[Record, Mapping[str, Any]]], console: Console) -> None:
    records = [record for record, _ in scored]
    columns = _columns(records, [score for _, score in scored])
    shown = [column for column in columns if column.title in ALWAYS or not _is_silent(column)]
    index = 1 + next(index for index, column in enumerate(shown) if column.title == "provider")
    shown[index:index] = _options(records)
    console.print()
    print_grid(console, shown, [_flags(record) for record in records], "flags")


def _is_silent(column: Column) -> bool:
    cells = set(column.cells)
    return cells <= NOTHING or (column.side == "left" and len(cells) == 1)


def _print_others(records: Sequence[Record], console: Console) -> None:
    reasons = Counter((record.status, record.reason) for record in records)
    alone = [
        record for record in records if reasons[record.status, record.reason] <= MAX_ROWS_PER_REASON
    ]
    console.print()
    if alone:
        names = ("status", "op", "case", "dtype")
        columns = [Column(name, [getattr(record, name) for record in alone]) for name in names]
        columns.append(Column("provider", [record.provider for record in alone], goes_below=2))
        columns += _options(alone)
        print_grid(console, columns, [record.reason or ABSENT for record in alone], "reason")
    for (status, reason), count in reasons.items():
        if count > MAX_ROWS_PER_REASON:
            ops = dict.fromkeys(
                record.op
                for record in records
                if (record.status, record.reason) == (status, reason)
            )
            text = f"{status}: {count} rows ({', '.join(ops)}): {reason or ABSENT}"
            print_lines(console, printable(text))


def render_runs(runs: Iterable[RunSummary], console: Console) -> None:
    runs = list(runs)
    columns = [
        Column("run", [run.run_id for run in runs]),
        Column("started", [run.started_at or ABSENT for run in runs], leaves=1),
        Column("device", [run.device_slug or ABSENT for run in runs], leaves=2),
        Column("op", [run.op or ABSENT for run in runs]),
        Column(
            "records",
            [ABSENT if run.records is None else str(run.records) for run in runs],
            "right",
        ),
    ]
    commands = [f"broken: {run.error}" if run.error else run.command or ABSENT for run in runs]
    print_grid(console, columns, commands, "command")
