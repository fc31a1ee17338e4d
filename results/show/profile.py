"""Totals and table of a profiled step, from its saved records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import to_builtins

from results.record import Environment, Fusion, Object, ProfileOp, Record, Score, StepTotals
from results.show.grid import Cell, Cells, print_cells, print_lines
from results.show.rows import document
from results.show.table import print_header
from results.show.terminal import printable
from results.show.units import ABSENT, duration, number, percent, quantity
from results.show.units import count as counted
from roofline.model import intensity, judged, mbu

if TYPE_CHECKING:
    from rich.console import Console

    Scored = tuple[Record, Score]

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

FUSED_NAMES = {
    "_to_copy": "cast",
    "pow + mean + add + rsqrt + mul + mul": "RMSNorm",
    "pow + mean + add + rsqrt + mul": "RMSNorm",
    "RMSNorm + cast + mul": "RMSNorm",
    "cast + RMSNorm": "RMSNorm",
    "_fused_rms_norm": "RMSNorm",
    "native_layer_norm": "LayerNorm",
    "silu + mul": "SwiGLU",
    "_softmax": "softmax",
    "native_dropout": "dropout",
    "add + RMSNorm": "residual + RMSNorm",
    "add + LayerNorm": "residual + LayerNorm",
}
"""Names of operations in a row, applied in this order."""

MAX_NAMES = 3
"""Maximum number of kernels that are named for a remainder."""

PHASES = ("forward", "backward", "optimizer")

NO_DETAILS = ProfileOp(module="", phase="", matmul_flops=None)


def op_of(record: Record) -> ProfileOp:
    """Return the details of a row of a profile; empty for another row."""
    return record.details_as(ProfileOp) or NO_DETAILS


def group_of(record: Record, by: str) -> str:
    """Return the name of a row's group by `op`, `module`, `phase`, `shape` or `kernel`."""
    details = op_of(record)
    if by == "module":
        return details.module
    if by == "phase" and details.phase:
        return details.phase
    if by == "kernel" and details.kernels:
        return ", ".join(details.kernels)
    if by == "shape" and record.op not in REMAINDERS:
        return f"{record.op} {record.case}"
    return record.op


@dataclass
class Totals:
    """Totals of a profiled step."""

    step: StepTotals
    bandwidth: float | None = None
    """Bytes per second of the memory ceiling; None if it is unknown."""
    profiled_s: float = 0.0
    flops: int = 0
    matmul_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    fusable_s: float | None = None
    """Time, at the memory ceiling, of the bytes that fusing saves."""
    at_roof_s: float = 0.0
    """Time of the step if each operation reached its roof and the host took the same time."""
    memory_bound: float = 0.0
    """Fraction of the time in operations that memory bounds."""
    compute_bound: float = 0.0
    attributed: float = 0.0
    """Fraction of the time in counted operations, host gaps and profiler overhead."""
    in_operations: float = 0.0
    """Fraction of the time in counted operations."""
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    """FLOPs and seconds of the operations of each phase."""
    mfu: float | None = None
    """None if the peak of a dtype is unknown."""
    mbu: float | None = None

    def saved_s(self, fusion: Fusion) -> float:
        """Return the time of the saved bytes; 0 if the bandwidth is unknown."""
        return fusion.saved_bytes / self.bandwidth if self.bandwidth else 0.0

    def to_dict(self) -> Object:
        """Return the totals as JSON outputs have them, with the facts of the step among them."""
        values: Object = to_builtins(self)
        del values["bandwidth"]
        facts: Object = values.pop("step")
        facts["eager_bytes"] = self.step.eager_bytes
        facts["fusing"] = [
            to_builtins(fusion) | {"saved_s": self.saved_s(fusion)} for fusion in self.step.fusing
        ]
        return facts | values


def totals_of(environment: Environment, records: Sequence[Record]) -> Totals | None:
    """Return the totals of a step; None if nothing was timed."""
    step = environment.profile
    if step is None:
        return None
    totals = Totals(step)
    machine = environment.machine
    products_s: list[float | None] = []
    """Seconds of the products of each row at the peak of its dtype."""
    for record, score in zip(records, judged(environment, records), strict=True):
        details = op_of(record)
        time_s = details.time_s or 0.0
        share = details.share or 0.0
        totals.profiled_s += time_s
        totals.flops += record.flops or 0
        totals.bytes_read += record.bytes_read or 0
        totals.bytes_written += record.bytes_written or 0
        if record.op != UNATTRIBUTED:
            totals.attributed += share
        if record.op not in REMAINDERS:
            totals.in_operations += share
        if score["bound"] == "memory":
            totals.memory_bound += share
        if score["bound"] == "compute":
            totals.compute_bound += share
        if record.op != OVERHEAD:
            has_roof = (record.flops or record.moved_bytes) and score["roofline_pct"] is not None
            fraction = min(1.0, float(score["roofline_pct"]) / 100) if has_roof else 1.0
            totals.at_roof_s += time_s * fraction
        if details.phase:
            phase = totals.phases.setdefault(details.phase, {"flops": 0, "time_s": 0.0})
            phase["flops"] += record.flops or 0
            phase["time_s"] += time_s
        if details.matmul_flops:
            totals.matmul_flops += details.matmul_flops
            peak = machine.peak(record.dtype)
            products_s.append(details.matmul_flops / peak.value if peak else None)
    totals.phases = {name: totals.phases[name] for name in PHASES if name in totals.phases}
    if None not in products_s:
        totals.mfu = sum(filter(None, products_s)) / step.time_s
    moved = totals.bytes_read + totals.bytes_written
    bandwidth = machine.bandwidth_for(totals.bytes_read, totals.bytes_written)
    if bandwidth:
        totals.bandwidth = bandwidth.value
        totals.mbu = mbu(moved / step.time_s, bandwidth.value)
        totals.fusable_s = sum(map(totals.saved_s, step.fusing))
    return totals


def document_of(environment: Environment, records: Sequence[Record]) -> Object:
    totals = totals_of(environment, records)
    return {"totals": totals.to_dict() if totals else {}} | document(environment, records)


def render(
    environment: Environment,
    records: Sequence[Record],
    console: Console,
    top: int = 20,
    by: str | None = None,
    is_whole: bool = False,
) -> None:
    """Print a profile: `top` rows, in groups if `by` is given, see `group_of`; if `is_whole`, all
    rows and a module tree.
    """
    print_header(environment, records, console)
    timed = [record for record in records if record.status == "ok"]
    if not timed:
        reasons = dict.fromkeys(record.reason for record in records if record.reason)
        for reason in reasons:
            print_lines(console, printable(f"no time was measured: {reason}"))
        return
    totals = totals_of(environment, records)
    texts = sentences(totals) if totals else []
    console.print("", *texts, "", sep="\n", highlight=False)
    if by is not None:
        _print_groups(timed, by, console, top)
        return
    scored = list(zip(timed, judged(environment, timed), strict=True))
    _print_rows(scored, console, len(timed) if is_whole else top)
    if is_whole:
        console.print()
        _print_groups(timed, "module", console, len(timed))


def sentences(totals: Totals) -> list[str]:
    """Return what is printed above the rows."""
    step = totals.step
    time = duration(step.time_s)
    in_operations = f"{percent(totals.in_operations)} of it in operations."
    if step.no_shape is None:
        profiled = duration(totals.profiled_s)
        said = [f"A step takes {time}; under the profiler {profiled}, {in_operations}"]
    else:
        said = [f"The trace covers {time}, {in_operations} Rows and sums are of all steps in it."]
    if len(totals.phases) > 1:
        parts = [
            f"{name} {quantity(part['flops'], 'FLOP')} in {duration(part['time_s'])}"
            for name, part in totals.phases.items()
        ]
        said.append(f"Operations by phase: {', '.join(parts)}.")
    if step.no_shape is None:
        said.append(
            "Times and shares of operations are those of one profiled step, the one nearest to the "
            "time of a step."
        )
    overlap_s = round(totals.profiled_s - step.time_s, 9)
    if step.no_shape is not None and overlap_s > 0:
        said.append(
            f"Its kernels overlap for {duration(overlap_s)} on several streams; each counts in "
            f"full."
        )
    if step.no_shape:
        calls = [f"{op} ({counted(times, 'call')})" for op, times in step.no_shape.items()]
        said.append(f"It has no shapes for {', '.join(calls)}, whose own work is not counted.")
    moved = quantity(totals.bytes_read + totals.bytes_written, "B")
    neither = max(0.0, totals.in_operations - totals.memory_bound - totals.compute_bound)
    said.append(
        f"It computes {quantity(totals.flops, 'FLOP')}; its operations move {moved}: MBU "
        f"{percent(totals.mbu)}. MFU counts {quantity(totals.matmul_flops, 'FLOP')} of products, "
        f"with every pair of causal attention: {percent(totals.mfu)}."
    )
    said.append(
        f"{percent(totals.memory_bound)} of the time is in operations that memory bounds, "
        f"{percent(totals.compute_bound)} in those that computing bounds."
    )
    said.append(
        f"{percent(neither)} of the time is in other operations: launches or both bound them, or "
        f"no roof is known."
    )
    if step.eager_bytes is not None:
        eager = quantity(step.eager_bytes, "B")
        said.append(f"Where nothing is fused, the same operations move {eager}.")
    at_roof = duration(totals.at_roof_s)
    said.append(f"With every operation at its roof it would take {at_roof}.")
    if min(step.modelled_flops, step.modelled_bytes) != 1:
        said.append(
            f"Rules cover {percent(step.modelled_flops)} of FLOPs and "
            f"{percent(step.modelled_bytes)} of bytes; rows without one are flagged unmodelled."
        )
    if totals.fusable_s:
        said.append(
            f"Fused as torch.compile fuses it would take {duration(totals.fusable_s)} less at the "
            f"memory ceiling:"
        )
        said += fusion_lines(step.fusing, totals.saved_s)
    return said


def fusion_lines(fusions: Sequence[Fusion], saved_s: Callable[[Fusion], float]) -> list[str]:
    """Return the chains that save most, and the others as one; the times add up to the sum."""
    lines = []
    for fusion in fusions[:MAX_SHOWN_FUSIONS]:
        lines.append(f"- {fusion_text(fusion)}: {duration(saved_s(fusion))}")
    others = fusions[MAX_SHOWN_FUSIONS:]
    if others:
        rest_s = sum(map(saved_s, others))
        lines.append(f"- {counted(len(others), 'other chain')}: {duration(rest_s)}")
    return lines


def fusion_text(fusion: Fusion) -> str:
    text = " + ".join(operation.rstrip("_") for operation in fusion.operations)
    for operations, name in FUSED_NAMES.items():
        text = re.sub(rf"(?<!\S){re.escape(operations)}(?!\S)", name, text)
    where = f" in {fusion.module}" if fusion.module else ""
    times = f", {fusion.count} times" if fusion.count > 1 else ""
    return f"{text}{where}{times}"


def intensity_of(record: Record) -> float | None:
    """Return the FLOPs per byte of a row; None if it has no work, or moves nothing."""
    moved = record.moved_bytes
    return None if record.flops is None or moved is None else intensity(record.flops, moved)


def name_cells(record: Record) -> Cells:
    return {
        "op": Cell(record.op),
        "shapes": Cell(record.case, goes_below=6),
        "count": Cell(str(record.count), "right", leaves=5),
    }


def work_cells(record: Record) -> Cells:
    return {
        "FLOPs": Cell(quantity(record.flops), "right", leaves=4),
        "bytes": Cell(quantity(record.moved_bytes), "right", leaves=3),
        "FLOP/B": Cell(number(intensity_of(record), 3), "right", leaves=2),
    }


def module_cell(record: Record) -> Cell:
    return Cell(op_of(record).module, goes_below=6)


def _print_rows(scored: Sequence[Scored], console: Console, top: int) -> None:
    rows = []
    for record, score in scored[:top]:
        details = op_of(record)
        has_roof = record.moved_bytes  # views have none
        bound = score["bound"] if has_roof else None
        share_pct = score["roofline_pct"] if has_roof else None
        row = name_cells(record)
        row["time"] = Cell(duration(details.time_s), "right")
        row["share"] = Cell(percent(details.share), "right")
        row |= work_cells(record)
        row["bound"] = Cell(bound or ABSENT)
        row["% roof"] = Cell(percent(share_pct, 100), "right")
        row["phase"] = Cell(details.phase, leaves=1)
        row["module"] = module_cell(record)
        row["flags"] = Cell(_note(record, score))
        rows.append(row)
    print_cells(console, rows, "flags")
    rest = scored[top:]
    if rest:
        share = percent(sum(op_of(record).share or 0.0 for record, _ in rest))
        shown_by = "--top shows them, of a saved run -v; --format json has all"
        print_lines(console, f"... and {len(rest)} more with {share} of the time: {shown_by}")


def _note(record: Record, score: Score) -> str:
    notes = list(record.flags)
    if score["excess"]:
        notes.append("above-roof")
    if record.op in REMAINDERS:
        notes.append(REMAINDERS[record.op])
        details = op_of(record)
        longest = list(zip(details.kernels, details.kernels_s, strict=False))[:MAX_NAMES]
        kernels = [f"{name} {duration(time_s)}" for name, time_s in longest]
        if len(details.kernels) > len(kernels):
            kernels.append(f"and {len(details.kernels) - len(kernels)} more")
        if kernels:
            notes[-1] += f": {', '.join(kernels)}"
    return ", ".join(notes)


@dataclass
class Group:
    """Sums over rows of a profile; what is unknown counts as 0."""

    calls: int = 0
    time_s: float = 0.0
    share: float = 0.0
    flops: int = 0
    moved_bytes: int = 0

    def add(self, record: Record) -> None:
        details = op_of(record)
        self.calls += record.count or 0
        self.time_s += details.time_s or 0.0
        self.share += details.share or 0.0
        self.flops += record.flops or 0
        self.moved_bytes += record.moved_bytes or 0

    def cells(self) -> Cells:
        return {
            "calls": Cell(str(self.calls), "right", leaves=1),
            "time": Cell(duration(self.time_s), "right"),
            "share": Cell(percent(self.share), "right"),
            "FLOPs": Cell(quantity(self.flops or None), "right"),
            "bytes": Cell(quantity(self.moved_bytes or None), "right"),
        }


def _print_groups(records: Sequence[Record], by: str, console: Console, top: int) -> None:
    """Print grouped rows; modules are a tree, each including its submodules."""
    groups: dict[tuple[str, ...], Group] = defaultdict(Group)
    for record in records:
        path: tuple[str, ...] = (group_of(record, by),)
        if by == "module":
            path = ("all", *filter(None, path[0].split(".")))
            for depth in range(1, len(path)):
                groups[path[:depth]].add(record)
        groups[path].add(record)
    longest = sorted(groups, key=lambda path: -groups[path].time_s)[:top]
    if by == "module":
        longest.sort()
    rows = []
    for path in longest:
        name = "  " * (len(path) - 1) + path[-1]
        rows.append({by: Cell(name)} | groups[path].cells())
    print_cells(console, rows)
    if len(groups) > top:
        print_lines(console, f"... and {len(groups) - top} more: --top shows them")
