"""Prints a profile for people: where the time goes, what bounds it, what could be gained, then the table."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.harness.profile.report import REMAINDERS, scores_of, totals_of
from results.record import Environment, Record
from results.show.grid import Column, print_grid
from results.show.table import ABSENT, format_number, format_percent, format_rate, format_time, header_lines
from results.show.terminal import WIDE, printable

if TYPE_CHECKING:
    from rich.console import Console

    Scored = tuple[Record, Mapping[str, Any]]

BAR = 40
MOST_NAMES = 3
"""Most kernels that are named for a remainder."""
CLASSES: dict[str, Callable[[Record], bool]] = {
    "products": lambda record: bool(record.extra.get("matmul_flops")),
    "other arithmetic": lambda record: bool(record.flops),
    "data movement": lambda record: bool(record.bytes_read or record.bytes_written),
    "views and bookkeeping": lambda record: record.flops == 0,
    "unmodelled": lambda record: record.op not in REMAINDERS,
}
"""Classes of operations, each with its test; the first that holds counts."""

BY: dict[str, Callable[[Record], str]] = {
    "op": lambda record: record.op,
    "module": lambda record: record.extra["module"] or ABSENT,
    "shape": lambda record: record.op if record.op in REMAINDERS else f"{record.op} {record.case}",
    "kernel": lambda record: ", ".join(record.extra.get("kernels", ())) or record.op,
}
"""Keys by which rows can be grouped."""


def render(
    environment: Environment,
    records: Sequence[Record],
    console: Console,
    top: int = 20,
    by: str | None = None,
    has_tree: bool = False,
) -> None:
    """Print a profile.

    Args:
        environment: where it was taken.
        records: its rows.
        console: where to.
        top: so many rows of the table, the longest.
        by: a key of `BY` that rows are put together by; None: each signature is a row.
        has_tree: whether the tree of the modules follows.
    """
    for line in header_lines(environment, records):
        _line(console, line)
    scored = [
        (record, score)
        for record, score in zip(records, scores_of(environment, records), strict=True)
        if record.status == "ok"
    ]
    if not scored:
        for reason in dict.fromkeys(record.reason for record in records if record.reason):
            _line(console, f"no time was measured: {reason}")
        return
    _line(console, "")
    for line in [*bars(scored), ""]:
        _line(console, line)
    totals = totals_of(environment, records)
    for sentence in sentences(totals) if totals else ():
        for line in [sentence] if console.width >= WIDE else textwrap.wrap(sentence, console.width):
            _line(console, line)
    _line(console, "")
    if by == "module":
        _print_tree(scored, console, top)
    elif by is not None:
        _print_groups(scored, BY[by], by, console, top)
    else:
        _print_rows(scored, console, top)
    if has_tree:
        _line(console, "")
        _print_tree(scored, console, top)


def sentences(totals: Mapping[str, Any]) -> list[str]:
    """Return what the totals mean, a line each."""
    time_s, moved = totals["time_s"], totals["bytes_read"] + totals["bytes_written"]
    flops, products = format_rate(totals["flops"], "FLOP"), format_rate(totals["matmul_flops"], "FLOP")
    profiled, within = format_time(totals["profiled_s"]), _pct(totals["in_operations"])
    memory, compute = _pct(totals["memory_bound"]), _pct(totals["compute_bound"])
    neither = _pct(max(0.0, totals["in_operations"] - totals["memory_bound"] - totals["compute_bound"]))
    used = f"MFU {_pct(totals['mfu'])}, MBU {_pct(totals['mbu'])}"
    lines = [
        f"A step takes {format_time(time_s)}; under the profiler {profiled}, {within} of it in operations.",
        "Times and shares of operations are those of one profiled step, the one nearest to the time of a step.",
        f"It computes {flops}, {products} of them in products; its operations move {format_rate(moved, 'B')}: {used}.",
        f"{memory} of the time is in operations that memory bounds, {compute} in those that computing bounds.",
        f"{neither} of the time is in other operations: launches or both bound them, or no roof is known.",
    ]
    if totals.get("eager_bytes") is not None:
        lines.append(f"Where nothing is fused, the same operations move {format_rate(totals['eager_bytes'], 'B')}.")
    if totals["fusable_s"] is not None:
        lines.append(
            f"Fusing could save at most {format_time(totals['fusable_s'])} at the memory ceiling: each storage moved "
            f"once is {format_rate(totals['unique_bytes'], 'B')}."
        )
    lines.append(f"With every operation at its roof a step would take {format_time(totals['at_roof_s'])}.")
    if min(totals["modelled_flops"], totals["modelled_bytes"]) < 1:
        shares = f"{_pct(totals['modelled_flops'])} of FLOPs and {_pct(totals['modelled_bytes'])} of bytes"
        lines.append(f"Rules cover {shares}; rows without one are flagged unmodelled.")
    return lines


def bars(scored: Sequence[Scored]) -> list[str]:
    """Return a bar for each class of operations and for each remainder, the longest first."""
    shares: dict[str, float] = {}
    for record, _ in scored:
        name = record.op if record.op in REMAINDERS else next(n for n, is_one in CLASSES.items() if is_one(record))
        shares[name] = shares.get(name, 0.0) + record.extra["share"]
    width = max(map(len, shares))
    longest = sorted(shares.items(), key=lambda item: -item[1])
    return [f"{name:<{width}}  {_pct(share):>6}  {'█' * round(BAR * share)}".rstrip() for name, share in longest]


def _print_rows(scored: Sequence[Scored], console: Console, top: int) -> None:
    shown = scored[:top]
    flags = [", ".join(_flags(record, score)) for record, score in shown]
    columns = [
        Column("op", [record.op for record, _ in shown]),
        Column("shapes", [record.case for record, _ in shown], goes_below=True),
        Column("count", [str(record.extra["count"]) for record, _ in shown], "right", 5),
        Column("time", [format_time(record.extra["time_s"]) for record, _ in shown], "right"),
        Column("share", [_pct(record.extra["share"]) for record, _ in shown], "right"),
        *_replay_columns([record for record, _ in shown]),
        Column("FLOPs", [_count(record.flops) for record, _ in shown], "right", 4),
        Column("bytes", [_count(_moved(record)) for record, _ in shown], "right", 3),
        Column("FLOP/B", [format_number(score["intensity"], 3) for _, score in shown], "right", 2),
        Column("bound", [score["bound"] or ABSENT if _moved(record) else ABSENT for record, score in shown]),
        Column("% roof", [_roof(record, score) for record, score in shown], "right"),
        Column("phase", [record.extra["phase"] for record, _ in shown], leaves=1),
        Column("module", [record.extra["module"] for record, _ in shown], goes_below=True),
    ]
    print_grid(console, columns, flags, "flags")
    _print_rest(scored[top:], console)


def _replay_columns(records: Sequence[Record]) -> list[Column]:
    """Return the times of calls measured alone, none where none was."""
    return [
        Column(title, [format_time(record.extra.get(key)) for record in records], "right")
        for title, key in (("cold alone", "replay_cold_s"), ("warm alone", "replay_warm_s"))
        if any(record.extra.get(key) is not None for record in records)
    ]


def _print_groups(
    scored: Sequence[Scored], key: Callable[[Record], str], title: str, console: Console, top: int
) -> None:
    groups: dict[str, list[Record]] = {}
    for record, _ in scored:
        groups.setdefault(key(record), []).append(record)
    _print_sums(sorted(groups.items(), key=lambda item: -_time_s(item[1]))[:top], title, console)
    _print_more(len(groups) - top, console)


def _print_more(more: int, console: Console) -> None:
    if more > 0:
        _line(console, f"... and {more} more: --top shows them")


def _print_tree(scored: Sequence[Scored], console: Console, top: int) -> None:
    """Print the model's tree: each module with what happened in it and below it."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record, _ in scored:
        path = tuple(filter(None, record.extra["module"].split(".")))
        for depth in range(len(path) + 1):
            groups.setdefault(path[:depth], []).append(record)
    kept = set(sorted(groups, key=lambda path: -_time_s(groups[path]))[:top])
    timed = [path for path in sorted(groups) if _time_s(groups[path])]
    shown = [path for path in timed if path in kept]
    rows = [("  " * len(path) + (path[-1] if path else "all"), groups[path]) for path in shown]
    _print_sums(rows, "module", console)
    _print_more(len(timed) - len(shown), console)


def _print_sums(rows: Sequence[tuple[str, Sequence[Record]]], title: str, console: Console) -> None:
    print_grid(
        console,
        [
            Column(title, [name for name, _ in rows]),
            Column("calls", [str(sum(r.extra["count"] for r in records)) for _, records in rows], "right", 1),
            Column("time", [format_time(_time_s(records)) for _, records in rows], "right"),
            Column("share", [_pct(sum(r.extra["share"] for r in records)) for _, records in rows], "right"),
            Column("FLOPs", [_count(_sum(r.flops for r in records)) for _, records in rows], "right"),
            Column("bytes", [_count(_sum(map(_moved, records))) for _, records in rows], "right"),
        ],
    )


def _print_rest(rest: Sequence[Scored], console: Console) -> None:
    if rest:
        share = sum(record.extra["share"] for record, _ in rest)
        _line(
            console, f"... and {len(rest)} more with {_pct(share)} of the time: --top shows them, --format json has all"
        )


def _flags(record: Record, score: Mapping[str, Any]) -> Iterable[str]:
    yield from record.flags
    if score["excess"]:
        yield "above-roof"
    if record.op in REMAINDERS:
        yield REMAINDERS[record.op] + _kernels(record)


def _kernels(record: Record) -> str:
    """Return the names of the few kernels that take most of a remainder, each with its time."""
    names, times = record.extra.get("kernels") or [], record.extra.get("kernels_s") or []
    told = [f"{name} {format_time(time_s)}" for name, time_s in zip(names[:MOST_NAMES], times, strict=False)]
    more = [f"and {len(names) - len(told)} more"] if len(names) > len(told) else []
    return f": {', '.join([*told, *more])}" if told else ""


def _roof(record: Record, score: Mapping[str, Any]) -> str:
    return format_percent(score["roofline_pct"]) if _moved(record) else ABSENT  # a view has no roof


def _time_s(records: Sequence[Record]) -> float:
    return float(sum(record.extra["time_s"] for record in records))


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _moved(record: Record) -> int | None:
    if record.bytes_read is None or record.bytes_written is None:
        return None
    return record.bytes_read + record.bytes_written


def _count(value: int | None) -> str:
    return format_rate(value, "").strip() if value else ABSENT if value is None else "0"


def _pct(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.1f}%"


def _line(console: Console, text: str) -> None:
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
