"""Sums the operations of a step and what remains of its time, makes records of them, and judges the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.harness.profile.step import Breakdown, Operation
from results.record import DTYPES, MIN_TIME_S, Environment, Record
from results.show.judge import judged
from results.show.rows import document
from results.stats.samples import median
from roofline.ceilings import Ceilings
from roofline.model import mbu, mfu, rate
from roofline.work import dtype_named

NS = 1e-9
MAX_KERNELS = 100
"""Kernels of no counted operation whose times are reported, the longest first."""
MAX_REPLAY_RATIO = 0.2
"""By how much the time of operations measured alone may differ from their time in the step, as a share of it."""
REPLAY_DIFFERS = "replay-differs"
UNATTRIBUTED, HOST_GAP, OVERHEAD = "unattributed", "host-gap", "profiler-overhead"
REMAINDERS = {
    UNATTRIBUTED: "operations and kernels that belong to no counted call",
    HOST_GAP: "no operation ran: Python, autograd, waiting for the host",
    OVERHEAD: "what the recorded step took longer than the same step without a profiler",
}
"""Parts of a step's time outside of its operations."""


def pattern(module: str) -> str:
    """Return the path of a module with `*` for the number of a layer, so that alike layers share a row.

    Of a path of numbers alone, as in a sequence of different modules, all stay.
    """
    if module.replace(".", "").isdigit():
        return module
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


def records_of(breakdown: Breakdown, provider: str) -> list[Record]:
    """Return a record for each row and each remainder, by time; those without time and work are left out."""
    total_ns = breakdown.duration_ns
    rows = [row for row in _rows(breakdown) if _has_work(row) or _sum(row, "time_ns")]
    records = [_timed(_record(row, provider), _sum(row, "time_ns"), total_ns) for row in rows]
    main = main_dtype(breakdown.operations)
    for (name, module), spent_ns in _remainders(breakdown).items():
        if spent_ns:
            options = {"module": module} if module else {}
            extra = {"count": 0, "shapes": "", "dtypes": [], "module": module, "phase": "", "matmul_flops": None}
            if name == UNATTRIBUTED:
                times = breakdown.unattributed
                names = sorted(times, key=lambda kernel: -times[kernel])[:MAX_KERNELS]
                extra |= {"kernels": names, "kernels_s": [times[kernel] * NS for kernel in names]}
            blank = Record(op=name, provider=provider, dtype=main, shape={"calls": 1}, case="-", status="ok")
            records.append(_timed(replace(blank, options=options, extra=extra), spent_ns, total_ns))
    first, *others = sorted(map(_against_replay, records), key=lambda record: -record.extra["time_s"])
    return [replace(first, extra=first.extra | {"step": _facts(breakdown)}), *others]


def failed_records(breakdown: Breakdown, provider: str, reason: str) -> list[Record]:
    """Return a record for each row whose time could not be measured: its work is kept."""
    rows = filter(_has_work, _rows(breakdown))
    return [replace(_record(row, provider), status="failed", reason=reason) for row in rows]


def _rows(breakdown: Breakdown) -> list[list[Operation]]:
    """Return the operations by name, shapes, dtypes, phase and place in the model."""
    rows: dict[Any, list[Operation]] = {}
    for operation in breakdown.operations:
        key = *operation.signature, pattern(operation.module), operation.phase
        rows.setdefault(key, []).append(operation)
    return list(rows.values())


def _sum(row: Sequence[Operation], name: str) -> int:
    return sum(getattr(operation, name) for operation in row)


def _has_work(row: Sequence[Operation]) -> bool:
    return any(operation.flops or operation.bytes_moved for operation in row)


def _record(row: Sequence[Operation], provider: str) -> Record:
    """Return the record of a row, not timed yet."""
    first, module = row[0], pattern(row[0].module)
    names = ("flops", "bytes_read", "bytes_written", "matmul_flops")
    flops, read, written, matmul_flops = (_sum(row, name) if first.is_modelled else None for name in names)
    kernels = sorted(set().union(*(operation.kernels for operation in row)))
    extra: dict[str, Any] = {
        "count": len(row),
        "shapes": first.shapes,
        "dtypes": list(first.dtypes),
        "module": module,
        "phase": first.phase,
        "matmul_flops": matmul_flops,
        **({"kernels": kernels} if kernels else {}),
    }
    if first.alone_s is not None:
        cold_s, warm_s = first.alone_s
        extra |= {"replay_cold_s": cold_s and cold_s * len(row), "replay_warm_s": warm_s * len(row)}
    return Record(
        op=first.op,
        provider=provider,
        dtype=dtype_of(first),
        shape={"calls": len(row)},
        case=first.shapes or "-",
        options={"module": module, "phase": first.phase},
        status="ok",
        flags=first.flags,
        flops=flops,
        bytes_read=read,
        bytes_written=written,
        extra=extra,
    )


def _timed(record: Record, time_ns: int, total_ns: int) -> Record:
    time_s = time_ns * NS
    extra = record.extra | {"time_s": time_s, "share": time_ns / total_ns}
    if time_s < MIN_TIME_S:
        return replace(record, status="skipped", reason="it took no time of its own", extra=extra)
    record = replace(record, samples_s=(time_s,), median_s=time_s, extra=extra)
    return replace(record, launches_per_sample=1, method="host", cache="warm")


def _against_replay(record: Record) -> Record:
    """Return a record that is flagged if its operations take another time alone than in the step."""
    extra = record.extra
    if "replay_warm_s" not in extra or record.status != "ok":
        return record
    is_far = abs(extra["time_s"] / (extra["replay_cold_s"] or extra["replay_warm_s"]) - 1) > MAX_REPLAY_RATIO
    return replace(record, flags=(*record.flags, REPLAY_DIFFERS)) if is_far else record


def _remainders(breakdown: Breakdown) -> dict[tuple[str, str], int]:
    """Return what the recorded step took beside its operations, by its name and, of the host's gaps, by module."""
    gaps: dict[str, int] = {}
    for module, spent in breakdown.gaps.items():
        gaps[pattern(module)] = gaps.get(pattern(module), 0) + spent
    gap = sum(gaps.values())
    beyond = breakdown.duration_ns - round(median(breakdown.samples_s) / NS)
    overhead = min(gap, max(0, beyond))
    left: dict[tuple[str, str], int] = {
        (UNATTRIBUTED, ""): sum(breakdown.unattributed.values()),
        (OVERHEAD, ""): overhead,
    }
    for module, spent in gaps.items():  # each has its part of the overhead; the last takes what rounding left
        taken = overhead * spent // max(1, gap)
        left[HOST_GAP, module] = spent - taken
        overhead, gap = overhead - taken, gap - spent
    return left


def _facts(breakdown: Breakdown) -> dict[str, Any]:
    """Return what the totals need that is not in the rows; the longest row holds it."""

    def modelled(work: Callable[[Operation], int]) -> float:
        """Return the share of work that has a rule; what has none is taken as what a generic rule would give."""
        total = sum(map(work, breakdown.operations))
        known = sum(work(operation) for operation in breakdown.operations if operation.is_modelled)
        return known / total if total else 1.0

    return {
        "time_s": float(median(breakdown.samples_s)),
        "unique_bytes": breakdown.unique_bytes,
        "eager_bytes": breakdown.eager_bytes,
        "modelled_flops": modelled(lambda operation: operation.flops),
        "modelled_bytes": modelled(lambda operation: operation.bytes_moved),
    }


def dtype_of(operation: Operation) -> str:
    """Return the dtype whose peak judges it: that of its first floating-point operand, else of its first."""
    floats = [dtype for dtype in operation.dtypes if "float" in dtype]
    name = dtype_named((floats or operation.dtypes or ("float32",))[0])
    return name if name in DTYPES else "fp32"


def main_dtype(operations: Sequence[Operation]) -> str:
    """Return the dtype of most FLOPs."""
    flops: dict[str, int] = {}
    for operation in operations:
        flops[dtype_of(operation)] = flops.get(dtype_of(operation), 0) + operation.flops
    return max(flops, key=lambda dtype: flops[dtype], default="fp32")


def product_dtypes(operations: Sequence[Operation]) -> tuple[str, ...]:
    """Return the dtypes whose peaks judge a step: those of its products, else the main one."""
    products = dict.fromkeys(dtype_of(operation) for operation in operations if operation.matmul_flops)
    return tuple(products) or (main_dtype(operations),)


def totals_of(environment: Environment, records: Sequence[Record]) -> dict[str, Any]:
    """Return the sums of a step and what follows from them, None if a ceiling is missing; empty if nothing was timed.

    `fusable_s` is the time that the bytes take at the memory ceiling which operations move beyond each storage once.
    `attributed` is the share of time with an owner: a counted operation, a module's gap on the host, or the profiler;
    `in_operations` is that of counted operations alone. `at_roof_s` is the time of the step if each operation reached
    its roof and the host took as long as it does.
    """
    step: dict[str, Any] | None = next((record.extra["step"] for record in records if "step" in record.extra), None)
    if step is None:
        return {}
    ceilings, scores = Ceilings.from_dict(environment.hardware), scores_of(environment, records)
    keys = ("flops", "bytes_read", "bytes_written")
    flops, read, written = (sum(getattr(record, key) or 0 for record in records) for key in keys)
    matmul_flops: dict[str, int] = {}
    for record in records:
        if record.extra["matmul_flops"]:
            matmul_flops[record.dtype] = matmul_flops.get(record.dtype, 0) + record.extra["matmul_flops"]
    peaks = {dtype: ceilings.peak(dtype) for dtype in matmul_flops}
    peak_s = sum(matmul_flops[d] / p.value for d, p in peaks.items() if p) if all(peaks.values()) else None
    bandwidth = ceilings.bandwidth_for(read, written)
    remains: dict[str, float] = dict.fromkeys(REMAINDERS, 0)
    bound: dict[str | None, float] = {"memory": 0, "compute": 0}
    for record, score in zip(records, scores, strict=True):
        share = record.extra["share"]
        if record.op in remains:
            remains[record.op] += share
        bound[score["bound"]] = bound.get(score["bound"], 0) + share
    return step | {
        "profiled_s": sum(record.extra["time_s"] for record in records),
        "flops": flops,
        "matmul_flops": sum(matmul_flops.values()),
        "bytes_read": read,
        "bytes_written": written,
        "fusable_s": max(0, read + written - step["unique_bytes"]) / bandwidth.value if bandwidth else None,
        "at_roof_s": sum(map(_at_roof_s, records, scores)),
        "memory_bound": bound["memory"],
        "compute_bound": bound["compute"],
        "attributed": 1 - remains[UNATTRIBUTED],
        "in_operations": 1 - sum(remains.values()),
        "mfu": None if peak_s is None else mfu(rate(peak_s, step["time_s"]), 1.0),
        "mbu": mbu(rate(read + written, step["time_s"]), bandwidth.value) if bandwidth else None,
    }


def scores_of(environment: Environment, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the judged keys of records by `time_s`; `median_s` of older files is that of all recorded steps."""
    timed = [replace(r, median_s=r.extra["time_s"] or None, samples_s=()) if r.status == "ok" else r for r in records]
    return judged(environment, timed)


def document_of(environment: Environment, records: Sequence[Record]) -> dict[str, Any]:
    """Return a profile as the object that `--format json` prints."""
    whole, scores = document(environment, records), scores_of(environment, records)
    rows = [row | score for row, score in zip(whole["records"], scores, strict=True)]
    return {"environment": whole["environment"], "totals": totals_of(environment, records), "records": rows}


def _at_roof_s(record: Record, score: Mapping[str, Any]) -> float:
    if record.op == OVERHEAD:
        return 0.0
    time_s = float(record.extra["time_s"])
    if score["roofline_pct"] is None or not (record.flops or record.bytes_read or record.bytes_written):
        return time_s  # there is no roof to reach
    return time_s * min(1.0, float(score["roofline_pct"]) / 100)
