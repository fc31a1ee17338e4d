"""Records of the operations of a profiled step, and of the rest of its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from msgspec import structs

from bench.profiling.operation import (
    NO_SHAPE,
    Breakdown,
    Operation,
    fusions_of,
    pattern,
    summed,
)
from results.record import MIN_TIME_S, Object, ProfileOp, Record, StepTotals
from results.show.profile import HOST_GAP, OTHER_STEPS, OVERHEAD, UNATTRIBUTED, op_of

NS = 1e-9


def records_of(breakdown: Breakdown) -> list[Record]:
    """Return a record for each row and remainder with time or work, the longest first."""
    parts = [*_rows(breakdown), *_remainders(breakdown)]
    parts.sort(key=lambda part: -part[1])
    # Kernels that overlap make the sum of the parts of a trace longer than its time.
    sum_ns = breakdown.duration_ns
    duration_ns = sum(breakdown.samples_s) / NS if breakdown.is_trace else sum_ns
    records = []
    for record, spent_ns in parts:
        time_s = spent_ns * NS
        timed = structs.replace(op_of(record), time_s=time_s, share=spent_ns / duration_ns)
        record = replace(record, details=timed)
        if time_s < MIN_TIME_S:
            record = replace(record, status="skipped", reason="it took no time")
        else:
            record = replace(
                record,
                samples_s=(time_s,),
                median_s=time_s,
                launches_per_sample=1,
                method="host",
                cache="warm",
            )
        records.append(record)
    return records


def work_records(breakdown: Breakdown) -> list[Record]:
    """Return a record for each row, with its work and no time."""
    return [record for record, _ in _rows(breakdown)]


def _rows(breakdown: Breakdown) -> Iterator[tuple[Record, float]]:
    """Return a record for each row, with its work, and its nanoseconds; rows without time and work
    only if there is no other.
    """
    rows: dict[Any, list[Operation]] = {}
    for operation in breakdown.operations:
        call = operation.op, operation.shapes, operation.dtypes
        place = pattern(operation.module), operation.phase
        rows.setdefault((call, place), []).append(operation)
    totals = [(row, summed(row)) for row in rows.values()]
    shown = [
        (row, total) for row, total in totals if total.time_ns or total.flops or total.bytes_moved
    ]
    for row, total in shown or totals:
        first = row[0]
        module = pattern(first.module)
        work: Object = {}
        if first.is_modelled:
            work = {
                "flops": total.flops,
                "bytes_read": total.bytes_read,
                "bytes_written": total.bytes_written,
                "units": "matrix" if total.matmul_flops else "vector",
            }
        record = Record(
            op=first.op,
            provider="torch",
            dtype=first.dtype,
            shape={"calls": len(row)},
            case=first.shapes or "-",
            options={"module": module, "phase": first.phase},
            status="ok",
            flags=first.flags,
            count=len(row),
            details=ProfileOp(
                module=module,
                phase=first.phase,
                matmul_flops=total.matmul_flops if first.is_modelled else None,
                shapes=first.shapes,
                dtypes=first.dtypes,
                **kernel_fields(total.kernels),
            ),
            **work,
        )
        yield record, total.time_ns


def kernel_fields(kernels: Mapping[str, Sequence[int]]) -> Object:
    """Return the names, times and numbers of kernels as `ProfileOp` has them, the longest first."""
    longest = sorted(kernels, key=lambda name: -sum(kernels[name]))
    return {
        "kernels": tuple(longest),
        "kernels_s": tuple(sum(kernels[name]) * NS for name in longest),
        "kernel_calls": tuple(len(kernels[name]) for name in longest),
    }


def _remainders(breakdown: Breakdown) -> Iterator[tuple[Record, float]]:
    """Return what is no operation, with its nanoseconds."""
    dtype = main_dtype(breakdown.operations)
    spent: dict[tuple[str, str], float] = {}
    """Nanoseconds by name and module."""
    if breakdown.unattributed:
        spent[UNATTRIBUTED, ""] = sum(map(sum, breakdown.unattributed.values()))
    if breakdown.others_ns:
        spent[OTHER_STEPS, ""] = breakdown.others_ns
    gap_ns = breakdown.gaps.total()
    overhead_ns = 0
    if not breakdown.is_trace:
        longer_ns = breakdown.duration_ns - round(median(breakdown.samples_s) / NS)
        overhead_ns = min(gap_ns, max(0, longer_ns))
    if overhead_ns:
        spent[OVERHEAD, ""] = overhead_ns
    gaps: Counter[str] = Counter()
    for module, module_ns in breakdown.gaps.items():
        gaps[pattern(module)] += module_ns
    for module, module_ns in gaps.items():
        left_ns = module_ns * (1 - overhead_ns / max(1, gap_ns))  # each has a part of the overhead
        if left_ns:
            spent[HOST_GAP, module] = left_ns
    kernels = {UNATTRIBUTED: breakdown.unattributed}
    for (op, module), spent_ns in spent.items():
        record = Record(
            op=op,
            provider="torch",
            dtype=dtype,
            shape={"calls": 1},
            case="-",
            status="ok",
            options={"module": module} if module else {},
            count=0,
            details=ProfileOp(module=module, **kernel_fields(kernels.get(op, {}))),
        )
        yield record, spent_ns


def step_of(breakdown: Breakdown) -> StepTotals:
    """Return the facts for the totals that are not in the rows."""
    no_shape = None
    if breakdown.is_trace:
        no_shape = Counter(each.op for each in breakdown.operations if each.shapes == NO_SHAPE)
    return StepTotals(
        time_s=float(median(breakdown.samples_s)),
        eager_bytes=breakdown.eager_bytes,
        no_shape=no_shape,
        steps_s=tuple(breakdown.steps_s),
        early_s=sum(breakdown.early_s),
        early_kernels=len(breakdown.early_s),
        communication_s=breakdown.communication_s,
        exposed_s=breakdown.exposed_s,
        fusing=tuple(fusions_of(breakdown.operations)),
    )


def main_dtype(rows: Iterable[Operation | Record]) -> str:
    flops: Counter[str] = Counter()
    for row in rows:
        flops[row.dtype] += row.flops or 0
    return flops.most_common(1)[0][0] if flops else "fp32"


def product_dtypes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return the dtypes whose peaks apply to a step: those of its matmuls, else the main one."""
    products = dict.fromkeys(record.dtype for record in records if op_of(record).matmul_flops)
    return tuple(products) or (main_dtype(records),)
