"""Records of the operations of a profiled step, and of the rest of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from msgspec import structs

from bench.harness.profile.operation import NO_SHAPE, Breakdown, Operation, fusions_of, pattern
from results.record import MIN_TIME_S, ProfileOp, Record, StepTotals
from results.show.profile import HOST_GAP, OVERHEAD, UNATTRIBUTED, op_of

NS = 1e-9
MAX_KERNELS = 100
"""Maximum number of reported kernels outside of counted operations, the longest first."""

MAX_FUSIONS = 20
"""Chains of operations that a profile saves, those that save most."""


def records_of(breakdown: Breakdown) -> list[Record]:
    """Return a record for each row and remainder with time or work, the longest first."""
    rows = [
        (_record(row), float(sum(operation.time_ns for operation in row)))
        for row in _rows(breakdown)
    ]
    rows = sorted([*rows, *_remainders(breakdown)], key=lambda row: -row[1])
    return [
        _timed(record, spent_ns * NS, spent_ns / breakdown.duration_ns) for record, spent_ns in rows
    ]


def work_records(breakdown: Breakdown) -> list[Record]:
    """Return a record for each row, with its work and no time."""
    return [_record(row) for row in _rows(breakdown)]


def _rows(breakdown: Breakdown) -> list[list[Operation]]:
    rows: dict[Any, list[Operation]] = {}
    for operation in breakdown.operations:
        signature = operation.op, operation.shapes, operation.dtypes
        rows.setdefault((signature, pattern(operation.module), operation.phase), []).append(
            operation
        )
    shown = [
        row
        for row in rows.values()
        if any(one.time_ns or one.flops or one.bytes_moved for one in row)
    ]
    return shown or list(rows.values())


def _record(row: Sequence[Operation]) -> Record:
    first = row[0]
    module = pattern(row[0].module)

    def total(name: str) -> int | None:
        return sum(getattr(operation, name) for operation in row) if first.is_modelled else None

    details = ProfileOp(
        module=module,
        phase=first.phase,
        matmul_flops=total("matmul_flops"),
        shapes=first.shapes,
        dtypes=first.dtypes,
        kernels=tuple(sorted(set().union(*(operation.kernels for operation in row)))),
    )
    units = None
    if details.matmul_flops is not None:
        units = "matrix" if details.matmul_flops else "vector"
    return Record(
        op=first.op,
        provider="torch",
        dtype=first.dtype,
        shape={"calls": len(row)},
        case=first.shapes or "-",
        options={"module": module, "phase": first.phase},
        status="ok",
        flags=first.flags,
        flops=total("flops"),
        bytes_read=total("bytes_read"),
        bytes_written=total("bytes_written"),
        units=units,
        count=len(row),
        details=details,
    )


def _timed(record: Record, time_s: float, share: float) -> Record:
    record = replace(record, details=structs.replace(op_of(record), time_s=time_s, share=share))
    if time_s < MIN_TIME_S:
        return replace(record, status="skipped", reason="it took no time")
    record = replace(record, samples_s=(time_s,), median_s=time_s)
    return replace(record, launches_per_sample=1, method="host", cache="warm")


def _remainders(breakdown: Breakdown) -> Iterator[tuple[Record, float]]:
    details = ProfileOp(module="", phase="", matmul_flops=None)
    dtype = main_dtype(breakdown.operations)
    blank = Record(
        op="",
        provider="torch",
        dtype=dtype,
        shape={"calls": 1},
        case="-",
        status="ok",
        options={},
        count=0,
        details=details,
    )
    if nobodys := breakdown.unattributed.most_common(MAX_KERNELS):
        named = structs.replace(
            details,
            kernels=tuple(name for name, _ in nobodys),
            kernels_s=tuple(spent * NS for _, spent in nobodys),
        )
        yield replace(blank, op=UNATTRIBUTED, details=named), breakdown.unattributed.total()
    gap = breakdown.gaps.total()
    longer = (
        0 if breakdown.is_trace else breakdown.duration_ns - round(median(breakdown.samples_s) / NS)
    )
    overhead = min(gap, max(0, longer))
    if overhead:
        yield replace(blank, op=OVERHEAD), overhead
    gaps: Counter[str] = Counter()
    for module, spent in breakdown.gaps.items():
        gaps[pattern(module)] += spent
    for module, spent in gaps.items():
        if left := spent * (1 - overhead / max(1, gap)):  # each has a part of the overhead
            options = {"module": module} if module else {}
            inside = structs.replace(details, module=module)
            yield replace(blank, op=HOST_GAP, options=options, details=inside), left


def step_of(breakdown: Breakdown) -> StepTotals:
    """Return the facts for the totals that are not in the rows."""
    # Work without a rule counts by the generic rules.
    operations = breakdown.operations
    flops = sum(operation.flops for operation in operations)
    moved = sum(operation.bytes_moved for operation in operations)
    modelled = [operation for operation in operations if operation.is_modelled]
    known_flops = sum(operation.flops for operation in modelled)
    known_bytes = sum(operation.bytes_moved for operation in modelled)
    unshaped: Counter[str] = Counter()
    if breakdown.is_trace:
        unshaped.update(each.op for each in operations if each.shapes == NO_SHAPE)
    return StepTotals(
        time_s=float(median(breakdown.samples_s)),
        unique_bytes=breakdown.unique_bytes,
        eager_bytes=breakdown.eager_bytes,
        modelled_flops=known_flops / flops if flops else 1.0,
        modelled_bytes=known_bytes / moved if moved else 1.0,
        no_shape=dict(unshaped) if breakdown.is_trace else None,
        fusing=tuple(fusions_of(breakdown.operations)[:MAX_FUSIONS]),
    )


def main_dtype(rows: Iterable[Operation | Record]) -> str:
    flops: Counter[str] = Counter()
    for row in rows:
        flops[row.dtype] += row.flops or 0
    return max(flops, key=lambda dtype: flops[dtype], default="fp32")


def product_dtypes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the dtypes whose peaks apply to a step: those of its matmuls, else the main one."""
    products = dict.fromkeys(record.dtype for record in records if op_of(record).matmul_flops)
    return tuple(products) or (main_dtype(records),)
