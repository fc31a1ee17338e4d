"""Totals and table of a profiled step, from its saved records."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from results.record import Environment, Fusion, Object, ProfileOp, Record, Score, StepTotals
from results.show.category import IDLE, OTHER, category_of
from results.show.grid import Cell, Cells, Table, print_cells, print_lines
from results.show.rows import document
from results.show.table import print_header, table_of_run
from results.show.terminal import printable
from results.show.units import ABSENT, duration, number, percent, quantity
from results.show.units import count as counted
from roofline.model import judged, mbu

if TYPE_CHECKING:
    from rich.console import Console

    Scored = tuple[Record, Score]

UNATTRIBUTED = "unattributed"
HOST_GAP = "host-gap"
OVERHEAD = "profiler-overhead"
OTHER_STEPS = "other-steps"
REMAINDERS = {
    UNATTRIBUTED: "operations and kernels outside of counted calls",
    HOST_GAP: "no operation ran: Python, autograd, waiting for the host",
    OVERHEAD: "additional time of the recorded step, compared with a step without the profiler",
    OTHER_STEPS: "only kernels of other steps ran",
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
    "neg + cat + mul + add": "rotary embedding",
    "pow + mul + add + mul + tanh + add + mul": "GELU",
    "_softmax": "softmax",
    "_softmax_backward_data": "softmax backward",
    "native_layer_norm_backward": "LayerNorm backward",
    "gelu_backward": "GELU backward",
    "silu_backward": "SiLU backward",
    "native_dropout": "dropout",
    "native_dropout_backward": "dropout backward",
    "add + RMSNorm": "residual + RMSNorm",
    "add + LayerNorm": "residual + LayerNorm",
}
"""Names of operations in a row, applied in this order."""

MAX_NAMES = 3
"""Maximum number of kernels that are named for a remainder."""

MAX_NAME = 100
"""Characters of a kernel's name that are shown: names of C++ templates may have thousands."""

LAUNCH_BOUND = 0.5
MAX_LAUNCH_S = 1e-3
"""Fraction of the time that a GPU is idle above which the host is the bottleneck, and the longest
idle time for each kernel in which it still launches: an operation takes it 10 to 200 us. In longer
ones it compiles, loads data or pauses.
"""

MOSTLY = 0.995
"""Fraction of the time above which what has no rule is not mentioned."""

LATENCY_S = 10e-6
LATENCY_PCT = 50.0
"""A shorter GPU kernel at less of its roof is bound by latency: of its launch, of the memory, and
of filling the GPU. An empty kernel takes 2 to 3 us.
"""

BOUNDS = ("memory", "compute", "mixed", "cache", "launch", "latency")
PHASES = ("forward", "backward", "optimizer")

NO_DETAILS = ProfileOp()


def op_of(record: Record) -> ProfileOp:
    """Return the details of a row of a profile; empty for another row."""
    return record.details_as(ProfileOp) or NO_DETAILS


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
    bounds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BOUNDS, 0.0))
    """Fraction of the time by what bounds it; `latency` are kernels too short to reach a roof."""
    in_operations: float = 0.0
    """Fraction of the time in operations."""
    counted: float = 0.0
    """Fraction of the time in operations with a rule for their work."""
    busy: float = 0.0
    """Fraction of the time in operations and kernels."""
    kernels: int = 0
    """Number of GPU kernels."""
    idle: float | None = None
    """Fraction of the time in which a GPU ran nothing; None on a CPU."""
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    """FLOPs and seconds of the operations of each phase."""
    mfu: float | None = None
    """None if the peak of a dtype is unknown."""
    mbu: float | None = None

    def to_dict(self) -> Object:
        """Return the totals as JSON outputs have them, with the facts of the step among them."""
        values: Object = to_builtins(self)
        del values["bandwidth"]
        del values["step"]
        values |= {f"{name}_bound": share for name, share in values.pop("bounds").items()}
        facts = self.step.to_dict()
        facts["eager_bytes"] = self.step.eager_bytes
        for entry in facts.setdefault("fusing", []):
            entry["saved_s"] = entry["saved_bytes"] / self.bandwidth if self.bandwidth else 0.0
        return facts | values


def totals_of(environment: Environment, records: Sequence[Record]) -> Totals | None:
    """Return the totals of a step; None if nothing was timed."""
    step = environment.profile
    if step is None:
        return None
    totals = Totals(step)
    machine = environment.machine
    totals.idle = None if environment.device["type"] == "cpu" else 0.0
    products_s = []
    """Seconds of the products of each row at the peak of its dtype."""
    for record, score in scored(environment, records):
        details = op_of(record)
        time_s = details.time_s or 0.0
        share = details.share or 0.0
        totals.profiled_s += time_s
        totals.kernels += sum(details.kernel_calls)
        totals.flops += record.flops or 0
        totals.bytes_read += record.bytes_read or 0
        totals.bytes_written += record.bytes_written or 0
        if record.op not in REMAINDERS:
            totals.in_operations += share
        if record.flops is not None:
            totals.counted += share
        if record.op == HOST_GAP and totals.idle is not None:
            totals.idle += share
        if record.op not in (HOST_GAP, OVERHEAD, OTHER_STEPS):
            totals.busy += share
        if score["bound"]:
            totals.bounds[score["bound"]] += share
        if record.op != OVERHEAD:
            totals.at_roof_s += time_s * score["roof_fraction"]
        if details.phase:
            phase = totals.phases.setdefault(details.phase, {"flops": 0, "time_s": 0.0})
            phase["flops"] += record.flops or 0
            phase["time_s"] += time_s
        if details.matmul_flops:
            totals.matmul_flops += details.matmul_flops
            peak = machine.peak(record.dtype)
            products_s.append(details.matmul_flops / peak.value if peak else None)
    totals.phases = {name: totals.phases[name] for name in PHASES if name in totals.phases}
    if totals.counted and None not in products_s:
        totals.mfu = sum(filter(None, products_s)) / step.time_s
    moved = totals.bytes_read + totals.bytes_written
    bandwidth = machine.bandwidth_for(totals.bytes_read, totals.bytes_written)
    if bandwidth:
        totals.bandwidth = bandwidth.value
        totals.mbu = mbu(moved / step.time_s, bandwidth.value)
        totals.fusable_s = sum(fusion.saved_bytes / bandwidth.value for fusion in step.fusing)
    return totals


def scored(environment: Environment, records: Sequence[Record]) -> list[Scored]:
    """Return the records with their scores; the bound is `latency` where the longest kernel of a
    call is too short. `roof_fraction` is the time of a row at its roof as a fraction of its time; 1
    if it has no roof.
    """
    every: list[Scored] = []
    for record, score in judged(environment, records):
        details = op_of(record)
        # Older files have no numbers of calls.
        kernels = zip(details.kernels_s, details.kernel_calls, strict=False)
        longest_s = max((time_s / max(1, calls) for time_s, calls in kernels), default=LATENCY_S)
        is_short = longest_s < LATENCY_S
        if is_short and score["bound"] and score["roofline_pct"] < LATENCY_PCT:
            score["bound"] = "latency"
        has_roof = (record.flops or record.moved_bytes) and score["roofline_pct"] is not None
        score["roof_fraction"] = min(1.0, score["roofline_pct"] / 100) if has_roof else 1.0
        every.append((record, score))
    return every


def document_of(environment: Environment, records: Sequence[Record]) -> Object:
    totals = totals_of(environment, records)
    return {"totals": totals.to_dict() if totals else {}} | document(environment, records)


def table_of(
    environment: Environment, records: Sequence[Record], by: str | None = None, **how: Any
) -> Table:
    """Return a profile as a table: its rows, or all groups of rows if `by` is given; see `render`
    for the others.
    """
    table = replace(
        table_of_run(environment, records, partial(render, by=by, **how)),
        document=lambda: document_of(environment, records),
    )
    if by is None:
        return table
    groups = groups_of(scored(environment, records), by)
    rows = [group.row(by, ".".join(path)) for path, group in groups.items()]
    cells = [group.cells(by, ".".join(path)) for path, group in groups.items()]
    return replace(
        table,
        rows=lambda: rows,
        cells=lambda: cells,
        document=lambda: document_of(environment, records) | {"groups": rows},
    )


def render(
    environment: Environment,
    records: Sequence[Record],
    console: Console,
    top: int = 20,
    by: str | None = None,
    is_whole: bool = False,
) -> None:
    """Print a profile: `top` rows, in groups if `by` is given, see `groups_of`; if `is_whole`, all
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
    rows = scored(environment, timed)
    if by is not None:
        _print_groups(rows, by, console, top)
        return
    _print_rows(rows, console, len(timed) if is_whole else top)
    if is_whole:
        console.print()
        _print_groups(rows, "module", console, len(timed))


def sentences(totals: Totals) -> list[str]:
    """Return what is printed above the rows."""
    step = totals.step
    said = []
    if totals.idle is not None:
        is_launching = totals.idle * step.time_s < MAX_LAUNCH_S * totals.kernels
        is_bound = is_launching and totals.idle > LAUNCH_BOUND
        advice = ": launch-bound; try CUDA graphs or torch.compile" if is_bound else ""
        said.append(f"The GPU was idle {percent(totals.idle)} of the time{advice}.")
    time = duration(step.time_s)
    if step.no_shape is None:
        profiled = duration(totals.profiled_s)
        share = percent(totals.in_operations)
        said.append(
            f"A step takes {time}; under the profiler {profiled}, {share} of it in operations."
        )
    else:
        operations = duration(totals.in_operations * step.time_s)
        said.append(
            f"The recorded time is {time}; the times of its operations sum to {operations}."
        )
    if len(totals.phases) > 1:
        parts = []
        for name, part in totals.phases.items():
            flops = f" ({quantity(part['flops'], 'FLOP')})" if part["flops"] else ""
            parts.append(f"{name} {duration(part['time_s'])}{flops}")
        said.append(f"Operations by phase: {', '.join(parts)}.")
    if step.no_shape is not None:
        said += trace_sentences(totals)
    if totals.flops or totals.bytes_read or totals.bytes_written:
        said += work_sentences(totals)
    if totals.bandwidth and totals.fusable_s:
        said.append(
            f"Fusing these chains, as torch.compile does, would save "
            f"{duration(totals.fusable_s)} at the memory ceiling:"
        )
        said += fusion_lines(step.fusing, totals.bandwidth)
    return said


def trace_sentences(totals: Totals) -> list[str]:
    """Return what is said of a recorded trace only."""
    step = totals.step
    said = []
    if step.steps_s:
        each_s = duration(mean(step.steps_s))
        said.append(
            f"It has {len(step.steps_s)} steps, on the host {each_s} in the mean "
            f"({duration(min(step.steps_s))} to {duration(max(step.steps_s))}); --step N reads one."
        )
    if step.early_kernels:
        said.append(
            f"{counted(step.early_kernels, 'kernel')}, {duration(step.early_s)} in all, had been "
            f"launched before the recording began; they are left out."
        )
    overlap_s = round(totals.profiled_s - step.time_s, 9)
    if overlap_s > 0:
        whole = percent(totals.profiled_s / step.time_s)
        said.append(
            f"Its kernels overlap for {duration(overlap_s)}; each counts in full, so the rows add "
            f"up to {whole} of the time."
        )
    if step.communication_s:
        hidden_s = max(0.0, step.communication_s - step.exposed_s)
        said.append(
            f"Communication between GPUs took {duration(step.communication_s)}: "
            f"{duration(step.exposed_s)} exposed, {duration(hidden_s)} hidden by other kernels."
        )
    calls = (step.no_shape or {}).items()
    without = ", ".join(f"{op} ({counted(times, 'call')})" for op, times in calls)
    if without and not totals.counted:
        said.append("It has no shapes; record it with record_shapes=True to see FLOPs and bytes.")
    elif without:
        said.append(f"It has no shapes for {without}, whose own work is not counted.")
    return said


def work_sentences(totals: Totals) -> list[str]:
    """Return what is said of the counted work, and of which part of the time it is."""
    step = totals.step
    moved = quantity(totals.bytes_read + totals.bytes_written, "B")
    said = []
    said.append(
        f"It computes {quantity(totals.flops, 'FLOP')}; its operations move {moved}: MBU "
        f"{percent(totals.mbu)}."
    )
    if totals.matmul_flops:
        mfu = "unknown" if totals.mfu is None else percent(totals.mfu)
        said.append(
            f"MFU {mfu}: its matmuls compute "
            f"{quantity(totals.matmul_flops, 'FLOP')}; causal attention counts "
            f"every pair of tokens here, above only those that it computes."
        )
    covered = totals.counted / totals.busy if totals.busy else 1.0
    if covered < MOSTLY:
        said.append(
            f"Rules cover {percent(covered)} of the time in operations and kernels. The other "
            f"{percent(1 - covered)}, flagged unmodelled, counts as time but not as work in MFU "
            f"and MBU."
        )
    is_above = max(totals.mfu or 0.0, totals.mbu or 0.0) > 1
    if step.no_shape is not None and is_above:
        cause = "the work ran on a GPU whose kernels are not in the trace"
        if totals.idle is not None:
            cause = "the GPU is faster than the one of its roofs, or kernels are missing"
        said.append(f"MFU or MBU is above 100%: {cause}, or the data came from caches.")
    if totals.bandwidth:
        shares = [f"{name} {percent(share)}" for name, share in totals.bounds.items() if share]
        said.append(f"Time by bound: {', '.join(shares)}.")
        if totals.at_roof_s < step.time_s:
            at_roof = duration(totals.at_roof_s)
            # At their roofs, the kernels of a trace may overlap or not.
            time = "step would take" if step.no_shape is None else "recording would take at most"
            part = ""
            if covered < MOSTLY:
                part = f" with a rule, {percent(covered)} of the time in operations and kernels,"
            said.append(f"If every operation{part} reached its roof, the {time} {at_roof}.")
    if step.eager_bytes is not None:
        said.append(f"Without fusion, the same operations move {quantity(step.eager_bytes, 'B')}.")
    return said


def fusion_lines(fusions: Sequence[Fusion], bytes_per_s: float) -> list[str]:
    """Return the chains that save most, and the others as one; the times add up to the sum."""
    lines = []
    for fusion in fusions[:MAX_SHOWN_FUSIONS]:
        text = " + ".join(fusion.operations).replace("div_ + mul", "dropout")  # the mask, in place
        text = re.sub(r"_(?!\S)", "", text)
        for operations, name in FUSED_NAMES.items():
            text = re.sub(rf"(?<!\S){re.escape(operations)}(?!\S)", name, text)
        where = f" in {fusion.module}" if fusion.module else ""
        times = f", {fusion.count} times" if fusion.count > 1 else ""
        lines.append(f"- {text}{where}{times}: {duration(fusion.saved_bytes / bytes_per_s)}")
    others = fusions[MAX_SHOWN_FUSIONS:]
    if others:
        rest_s = sum(fusion.saved_bytes / bytes_per_s for fusion in others)
        lines.append(f"- {counted(len(others), 'other chain')}: {duration(rest_s)}")
    return lines


def work_cells(record: Record, flops_per_byte: float | None) -> Cells:
    return {
        "FLOPs": Cell(quantity(record.flops), "right", leaves=6),
        "bytes": Cell(quantity(record.moved_bytes), "right", leaves=5),
        "FLOP/B": Cell(number(flops_per_byte, 3), "right", leaves=2),
    }


def _print_rows(every: Sequence[Scored], console: Console, top: int) -> None:
    rows = []
    for record, score in every[:top]:
        details = op_of(record)
        if not record.moved_bytes:  # a view has no roof
            score = {**score, "bound": None, "roofline_pct": None}
        row = {"op": Cell(record.op), "shapes": Cell(record.case, leaves=6)}
        row |= details.cells(record, score)
        row |= work_cells(record, score["intensity"])
        row["FLOP/s"] = Cell(quantity(score["flops_per_s"] or None), "right", leaves=4)
        row["B/s"] = Cell(quantity(score["bytes_per_s"] or None), "right", leaves=3)
        row["bound"] = Cell(score["bound"] or ABSENT)
        row["% roof"] = Cell(percent(score["roofline_pct"], 100), "right")
        row["phase"] = Cell(details.phase, leaves=1)
        row["module"] = Cell(details.module, leaves=6)
        notes = list(record.flags)
        if score["excess"]:
            notes.append("above-roof")
        if record.op in REMAINDERS:
            longest = list(zip(details.kernels, details.kernels_s, strict=False))[:MAX_NAMES]
            kernels = [f"{cut(name)} {duration(time_s)}" for name, time_s in longest]
            if len(details.kernels) > len(kernels):
                kernels.append(f"and {len(details.kernels) - len(kernels)} more")
            notes.append(REMAINDERS[record.op])
            if kernels:
                notes[-1] += f": {', '.join(kernels)}"
        row["flags"] = Cell(", ".join(notes))
        rows.append(row)
    print_cells(console, rows, "flags", hint="--format csv has all")
    rest = every[top:]
    if rest:
        share = percent(sum(op_of(record).share or 0.0 for record, _ in rest))
        shown_by = "--top shows them (of a saved run: -v); --format json has all"
        print_lines(console, f"... and {len(rest)} more with {share} of the time: {shown_by}")


def cut(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 3]}..."


@dataclass
class Group:
    """Sums over rows of a profile, or over parts of rows; what is unknown counts as 0."""

    calls: int = 0
    time_s: float = 0.0
    share: float = 0.0
    flops: int = 0
    moved_bytes: int = 0
    counted_s: float = 0.0
    """Time of the rows with a rule for their work."""
    saved_s: float = 0.0
    """Time that the rows would take less at their roofs."""
    operations: dict[str, None] = field(default_factory=dict)

    def add(self, record: Record, score: Score, time_s: float, calls: int, is_whole: bool) -> None:
        """Add a row, or a part of it, whose work is unknown."""
        details = op_of(record)
        self.calls += calls
        self.time_s += time_s
        self.share += (details.share or 0.0) * time_s / (details.time_s or 1.0)
        self.operations[record.op] = None
        if is_whole and record.flops is not None:
            self.flops += record.flops
            self.moved_bytes += record.moved_bytes or 0
            self.counted_s += time_s
            self.saved_s += time_s * (1 - score["roof_fraction"])

    def row(self, by: str, name: str) -> Object:
        """Return the group as a row; its rates are those of the counted part of the time."""
        row = {
            by: name,
            "calls": self.calls,
            "time_s": self.time_s,
            "share": self.share,
            "flops": self.flops or None,
            "moved_bytes": self.moved_bytes or None,
            "flops_per_s": self._rate(self.flops),
            "bytes_per_s": self._rate(self.moved_bytes),
            "counted": self.counted_s / self.time_s if self.time_s else None,
        }
        if by == "category":
            row["roof_saves_s"] = self.saved_s or None
        if by == "kernel":
            row["operations"] = ",".join(self.operations)
        return row

    def _rate(self, work: int) -> float | None:
        return work / self.counted_s if work and self.counted_s else None

    def cells(self, by: str, name: str) -> Cells:
        row = self.row(by, name)
        cells = {by: Cell(cut(name), leaves=6)}
        for title, (key, text_of, leaves) in GROUP_COLUMNS.items():
            if key in row:
                cells[title] = Cell(text_of(row[key]), "right", leaves)
        if by == "kernel":
            cells["operation"] = Cell(", ".join(list(self.operations)[:MAX_NAMES]))
        return cells


GROUP_COLUMNS: dict[str, tuple[str, Callable[[Any], str], int]] = {
    "calls": ("calls", str, 1),
    "time": ("time_s", duration, 0),
    "share": ("share", percent, 0),
    "FLOPs": ("flops", quantity, 2),
    "bytes": ("moved_bytes", quantity, 2),
    "FLOP/s": ("flops_per_s", quantity, 3),
    "B/s": ("bytes_per_s", quantity, 3),
    "counted": ("counted", percent, 3),
    "roof saves": ("roof_saves_s", duration, 0),
}
"""Key, text and order on a narrow terminal of the columns of groups."""


def parts_of(record: Record, by: str) -> list[tuple[str, float, int]]:
    """Return the groups that a row belongs to by `kernel` or `category`, with the time and the
    number of calls in each.

    What has a rule belongs to the category of its operation, other time to those of its kernels.
    """
    details = op_of(record)
    time_s = details.time_s or 0.0
    of_operation = record.op
    if by == "category":
        of_operation = IDLE if record.op == HOST_GAP else category_of(record.op)
    is_divided = details.kernel_calls and (by == "kernel" or record.flops is None)
    if not is_divided:
        return [(of_operation, time_s, record.count or 0)]
    parts = []
    for name, kernel_s, calls in zip(
        details.kernels, details.kernels_s, details.kernel_calls, strict=True
    ):
        group = name
        if by == "category":
            group = category_of(name)
            group = of_operation if group == OTHER else group
        parts.append((group, kernel_s, calls))
    return parts


def groups_of(every: Sequence[Scored], by: str) -> dict[tuple[str, ...], Group]:
    """Return the groups of rows by `op`, `module`, `phase`, `shape`, `kernel` or `category`, the
    longest first.

    The name of a group is a tuple of one text. Modules are a tree: the parts of a path, where each
    module includes its submodules.
    """
    groups: dict[tuple[str, ...], Group] = defaultdict(Group)
    for record, score in every:
        if record.status != "ok":  # it took no time
            continue
        if by in ("kernel", "category"):
            parts = parts_of(record, by)
            for name, time_s, calls in parts:
                groups[name,].add(record, score, time_s, calls, len(parts) == 1)
            continue
        details = op_of(record)
        path: tuple[str, ...] = (record.op,)
        if by == "module":
            path = ("all", *filter(None, details.module.split(".")))
        elif by == "phase":
            path = (details.phase or record.op,)
        elif by == "shape" and record.op not in REMAINDERS:
            path = (f"{record.op} {record.case}",)
        for depth in range(1, len(path) + 1):
            time_s = details.time_s or 0.0
            groups[path[:depth]].add(record, score, time_s, record.count or 0, is_whole=True)
    return dict(sorted(groups.items(), key=lambda item: -item[1].time_s))


def _print_groups(every: Sequence[Scored], by: str, console: Console, top: int) -> None:
    groups = groups_of(every, by)
    longest = list(groups)[:top]
    if by == "module":
        longest.sort()
    rows = []
    for path in longest:
        name = "  " * (len(path) - 1) + path[-1]
        rows.append(groups[path].cells(by, name))
    print_cells(console, rows)
    if len(groups) > top:
        print_lines(console, f"... and {len(groups) - top} more: --top shows them")
