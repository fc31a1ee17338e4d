"""Totals and table of a profiled step, from its saved records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from results.record import Environment, ProfileOp, Record
from results.show.grid import Column, print_grid, print_lines
from results.show.rows import document
from results.show.table import print_header
from results.show.terminal import printable
from results.show.units import ABSENT, duration, number, percent, quantity
from roofline.machine import Machine
from roofline.model import judged, mbu

if TYPE_CHECKING:
    from rich.console import Console

    Scored = tuple[Record, Mapping[str, Any]]

UNATTRIBUTED = "unattributed"
HOST_GAP = "host-gap"
OVERHEAD = "profiler-overhead"
REMAINDERS = {
    UNATTRIBUTED: "operations and kernels outside of counted calls",
    HOST_GAP: "no operation ran: Python, autograd, waiting for the host",
    OVERHEAD: "additional time of the recorded step, compared with a step without the profiler",
}
"""Parts of a step's time outside of operations."""

MAX_SHOWN_FUSIONS = 5
"""Chains of operations that are printed, those that save most."""

MAX_NAMES = 3
"""Maximum number of kernels that are named for a remainder."""
OF_A_STEP = (
    "A step takes {time_s}; under the profiler {profiled_s}, {in_operations} of it in operations.",
    (
        "Times and shares of operations are those of one profiled step, the one nearest to the "
        "time of a step."
    ),
)
OF_A_TRACE = (
    (
        "The trace covers {time_s}, {in_operations} of it in operations. Rows and sums are of all "
        "steps in it."
    ),
    "Its kernels overlap for {overlap_s} on several streams; each counts in full.",
    "It has no shapes for {no_shape}, whose own work is not counted.",
)
SENTENCES = (
    (
        "It computes {flops}, {matmul_flops} of them in products; its operations move "
        "{moved_bytes}: MFU {mfu}, MBU {mbu}."
    ),
    (
        "{memory_bound} of the time is in operations that memory bounds, {compute_bound} in those "
        "that computing bounds."
    ),
    (
        "{neither} of the time is in other operations: launches or both bound them, or no roof is "
        "known."
    ),
    "Where nothing is fused, the same operations move {eager_bytes}.",
    "With every operation at its roof it would take {at_roof_s}.",
    (
        "Rules cover {modelled_flops} of FLOPs and {modelled_bytes} of bytes; rows without one are "
        "flagged unmodelled."
    ),
    (
        "Fusing could save at most {fusable_s} at the memory ceiling: each storage moved once is "
        "{unique_bytes}."
    ),
)
"""Sentences about the totals, with their keys; those about a step or a trace come first."""

OPTIONAL = ("eager_bytes", "fusable_s", "modelled_flops", "overlap_s", "no_shape")
"""Keys whose sentences are left out if there is nothing to say."""


def op_of(record: Record) -> ProfileOp:
    """Return the details of a row of a profile; empty for another row."""
    blank = ProfileOp(module="", phase="", matmul_flops=None)
    return record.details_as(ProfileOp) or blank


def _time_s(record: Record) -> float:
    return op_of(record).time_s or 0.0


def _share(record: Record) -> float:
    return op_of(record).share or 0.0


BY: dict[str, Callable[[Record], str]] = {
    "op": lambda record: record.op,
    "module": lambda record: op_of(record).module,
    "phase": lambda record: op_of(record).phase or record.op,
    "shape": lambda record: record.op if record.op in REMAINDERS else f"{record.op} {record.case}",
    "kernel": lambda record: ", ".join(op_of(record).kernels) or record.op,
}
"""Keys for grouping rows; by module, a row counts in all modules around it."""


def totals_of(environment: Environment, records: Sequence[Record]) -> dict[str, Any]:
    """Return the totals of a step, None if a ceiling is missing; empty if nothing was timed.

    `fusable_s` is the time, at the memory ceiling, of all bytes beyond moving each storage once.
    `attributed` is the fraction of time in counted operations, host gaps and profiler overhead;
    `in_operations` is that of counted operations. `at_roof_s` is the time of the step if each
    operation reached its roof and the host took the same time.
    """
    step = environment.profile
    if step is None:
        return {}
    scored = list(zip(records, judged(environment, records), strict=True))

    def share(is_counted: Callable[[Record, Mapping[str, Any]], bool]) -> float:
        return sum(_share(record) for record, score in scored if is_counted(record, score))

    ceilings = Machine.from_dict(environment.hardware)
    flops = sum(record.flops or 0 for record in records)
    read = sum(record.bytes_read or 0 for record in records)
    written = sum(record.bytes_written or 0 for record in records)
    counts = [(op_of(record).matmul_flops, record.dtype) for record in records]
    products = [(count, ceilings.peak(dtype)) for count, dtype in counts if count]
    peak_s = None
    if all(peak for _, peak in products):
        peak_s = sum(count / peak.value for count, peak in products if peak)
    bandwidth = ceilings.bandwidth_for(read, written)
    unique = step.unique_bytes
    fusable_s = None
    if bandwidth and unique is not None:
        fusable_s = max(0, read + written - unique) / bandwidth.value
    fusing = [
        to_builtins(each) | {"saved_s": each.saved_bytes / bandwidth.value if bandwidth else None}
        for each in step.fusing
    ]
    facts: dict[str, Any] = to_builtins(step)
    return facts | {
        "eager_bytes": step.eager_bytes,
        "fusing": fusing,
        "profiled_s": sum(map(_time_s, records)),
        "flops": flops,
        "matmul_flops": sum(count for count, _ in products),
        "bytes_read": read,
        "bytes_written": written,
        "fusable_s": fusable_s,
        "at_roof_s": sum(_at_roof_s(record, score) for record, score in scored),
        "memory_bound": share(lambda _, score: score["bound"] == "memory"),
        "compute_bound": share(lambda _, score: score["bound"] == "compute"),
        "attributed": share(lambda record, _: record.op != UNATTRIBUTED),
        "in_operations": share(lambda record, _: record.op not in REMAINDERS),
        "phases": _phases(records),
        "mfu": None if peak_s is None else peak_s / step.time_s,
        "mbu": mbu((read + written) / step.time_s, bandwidth.value) if bandwidth else None,
    }


def _phases(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return the FLOPs and the seconds of the operations of each phase."""
    phases = {}
    for phase in ("forward", "backward", "optimizer"):
        if rows := [record for record in records if op_of(record).phase == phase]:
            time_s = sum(map(_time_s, rows))
            phases[phase] = {"flops": sum(record.flops or 0 for record in rows), "time_s": time_s}
    return phases


def _at_roof_s(record: Record, score: Mapping[str, Any]) -> float:
    if record.op == OVERHEAD:
        return 0.0
    time_s = _time_s(record)
    if score["roofline_pct"] is None or not (
        record.flops or record.bytes_read or record.bytes_written
    ):
        return time_s  # no roof
    return time_s * min(1.0, float(score["roofline_pct"]) / 100)


def document_of(environment: Environment, records: Sequence[Record]) -> dict[str, Any]:
    return {"totals": totals_of(environment, records)} | document(environment, records)


def render(
    environment: Environment,
    records: Sequence[Record],
    console: Console,
    top: int = 20,
    by: str | None = None,
    is_whole: bool = False,
) -> None:
    """Print a profile: `top` rows, grouped by a key of `BY` if given; if `is_whole`, all rows and a
    module tree.
    """
    scores = judged(environment, records)
    scored = [
        (record, score)
        for record, score in zip(records, scores, strict=True)
        if record.status == "ok"
    ]
    print_header(environment, records, console)
    if not scored:
        reasons = dict.fromkeys(record.reason for record in records if record.reason)
        return print_lines(
            console, *(printable(f"no time was measured: {reason}") for reason in reasons)
        )
    timed = [record for record, _ in scored]
    totals = totals_of(environment, records)
    texts = sentences(totals) if totals else []
    console.print("", *texts, "", sep="\n", highlight=False)
    if by is not None:
        return _print_groups(timed, by, console, top)
    _print_rows(scored, console, len(scored) if is_whole else top)
    if is_whole:
        console.print()
        _print_groups(timed, "module", console, len(timed))
    return None


def sentences(totals: Mapping[str, Any]) -> list[str]:
    values = dict(totals)
    phases = values.pop("phases")
    values["moved_bytes"] = totals["bytes_read"] + totals["bytes_written"]
    values["neither"] = max(
        0.0, totals["in_operations"] - totals["memory_bound"] - totals["compute_bound"]
    )
    if min(totals["modelled_flops"], totals["modelled_bytes"]) == 1:
        values["modelled_flops"] = None
    no_shape = totals.get("no_shape", {})
    values["no_shape"] = (
        ", ".join(
            f"{op} ({calls} call{'' if calls == 1 else 's'})" for op, calls in no_shape.items()
        )
        or None
    )
    values["overlap_s"] = max(0.0, round(totals["profiled_s"] - totals["time_s"], 9)) or None
    texts = {name: _text(name, value) for name, value in values.items() if name != "fusing"}
    absent = [name for name in OPTIONAL if values.get(name) is None]
    lines = (OF_A_TRACE if "no_shape" in totals else OF_A_STEP) + SENTENCES
    said = [
        line.format(**texts) for line in lines if not any(f"{{{name}}}" in line for name in absent)
    ]
    if len(phases) > 1:
        parts = (
            f"{name} {_text('flops', part['flops'])} in {duration(part['time_s'])}"
            for name, part in phases.items()
        )
        said.insert(1, f"Operations by phase: {', '.join(parts)}.")
    for each in totals["fusing"][:MAX_SHOWN_FUSIONS]:
        if each["saved_s"]:
            saved = duration(each["saved_s"])
            said.append(f"- {fusion_text(each)}: {saved} of {texts['time_s']}")
    return said


def fusion_text(fusion: Mapping[str, Any]) -> str:
    first, *others = fusion["operations"]
    where = f" in {fusion['module']}" if fusion["module"] else ""
    times = f", {fusion['count']} times" if fusion["count"] > 1 else ""
    return f"{' and '.join(dict.fromkeys(others))} into the {first} before{where}{times}"


def _text(name: str, value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_s"):
        return duration(value)
    if name.endswith(("flops", "bytes")) and not name.startswith("modelled"):
        return quantity(value, "FLOP" if name.endswith("flops") else "B")
    return percent(value)


def _print_rows(scored: Sequence[Scored], console: Console, top: int) -> None:
    rows = scored[:top]
    operations = [op_of(record) for record, _ in rows]
    # Views have no roof and no bound.
    moving = [score if moved_bytes(record) else {} for record, score in rows]
    columns = [
        Column("op", [record.op for record, _ in rows]),
        Column("shapes", [record.case for record, _ in rows], goes_below=6),
        Column("count", [str(record.count) for record, _ in rows], "right", 5),
        Column("time", [duration(each.time_s) for each in operations], "right"),
        Column("share", [percent(each.share) for each in operations], "right"),
        Column("FLOPs", [quantity(record.flops) for record, _ in rows], "right", 4),
        Column("bytes", [quantity(moved_bytes(record)) for record, _ in rows], "right", 3),
        Column("FLOP/B", [number(score["intensity"], 3) for _, score in rows], "right", 2),
        Column("bound", [score.get("bound") or ABSENT for score in moving]),
        Column("% roof", [percent(score.get("roofline_pct"), 100) for score in moving], "right"),
        Column("phase", [each.phase for each in operations], leaves=1),
        Column("module", [each.module for each in operations], goes_below=6),
    ]
    print_grid(
        console, columns, [", ".join(_flags(record, score)) for record, score in rows], "flags"
    )
    if rest := scored[top:]:
        share = percent(sum(_share(record) for record, _ in rest))
        shown_by = "--top shows them, of a saved run -v; --format json has all"
        print_lines(console, f"... and {len(rest)} more with {share} of the time: {shown_by}")


def _flags(record: Record, score: Mapping[str, Any]) -> Iterator[str]:
    yield from record.flags
    if score["excess"]:
        yield "above-roof"
    if record.op in REMAINDERS:
        names = op_of(record).kernels
        times = op_of(record).kernels_s
        longest = [
            f"{name} {duration(time_s)}" for name, time_s in zip(names, times, strict=False)
        ][:MAX_NAMES]
        more = [f"and {len(names) - len(longest)} more"] if len(names) > len(longest) else []
        yield REMAINDERS[record.op] + (f": {', '.join([*longest, *more])}" if longest else "")


def _print_groups(records: Sequence[Record], by: str, console: Console, top: int) -> None:
    """Print grouped rows; modules are a tree, each including its submodules."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        name = BY[by](record)
        path = tuple(filter(None, name.split(".")))
        keys = [path[:depth] for depth in range(len(path) + 1)] if by == "module" else [(name,)]
        for key in keys:
            groups.setdefault(key, []).append(record)
    times = {key: sum(map(_time_s, group)) for key, group in groups.items()}
    longest = sorted(times, key=lambda key: -times[key])[:top]
    if by == "module":
        titles = {key: "  " * len(key) + (key[-1] if key else "all") for key in sorted(longest)}
    else:
        titles = {key: key[0] for key in longest}
    shown = [groups[key] for key in titles]
    columns = [
        Column(by, list(titles.values())),
        Column(
            "calls",
            [str(sum(record.count or 0 for record in group)) for group in shown],
            "right",
            1,
        ),
        Column("time", [duration(times[key]) for key in titles], "right"),
        Column(
            "share",
            [percent(sum(map(_share, group))) for group in shown],
            "right",
        ),
        Column(
            "FLOPs",
            [quantity(sum(record.flops or 0 for record in group) or None) for group in shown],
            "right",
        ),
        Column(
            "bytes",
            [
                quantity(sum(moved_bytes(record) or 0 for record in group) or None)
                for group in shown
            ],
            "right",
        ),
    ]
    print_grid(console, columns)
    if len(groups) > top:
        print_lines(console, f"... and {len(groups) - top} more: --top shows them")


def moved_bytes(record: Record) -> int | None:
    return None if record.bytes_read is None else record.bytes_read + (record.bytes_written or 0)
