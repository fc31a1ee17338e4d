"""Sums calls and their times to the rows and totals of a profile, and makes records of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from results.record import DTYPES, MIN_TIME_S, Environment, Record
from results.show.judge import judged
from roofline.ceilings import Ceilings
from roofline.model import mbu, mfu, rate
from roofline.work import dtype_named

if TYPE_CHECKING:
    from bench.harness.profile.account import Accounted, Call
    from bench.harness.profile.join import StepTimes
    from bench.harness.profile.replay import Replayed

NS = 1e-9
MOST_KERNELS = 100
"""Kernels of no counted call whose times are reported, the longest first."""
REPLAYED, FAR = 0.95, 0.2
"""Share of the time whose operations are measured alone, and by how much that may differ from the time in the step."""
REPLAY_DIFFERS = "replay-differs"
UNATTRIBUTED, HOST_GAP, OVERHEAD = "unattributed", "host-gap", "profiler-overhead"
REMAINDERS = {
    UNATTRIBUTED: "operations and kernels that belong to no counted call",
    HOST_GAP: "no operation ran: Python, autograd, waiting for the host",
    OVERHEAD: "what the recorded step took longer than the same step without a profiler",
}
"""Parts of a step's time outside of its operations."""


@dataclass
class CallRow:
    """All calls of a step with the same operation, shapes, dtypes, phase and place in the model."""

    first: Call
    module: str
    """With `*` for the number of a layer."""
    count: int = 0
    flops: int = 0
    matmul_flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    times_ns: list[int] = field(default_factory=list)
    """Of all calls together, for each recorded step."""
    kernels: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Timing:
    """What was measured of a step."""

    samples_s: Sequence[float]
    """Of the whole step, without a profiler."""
    steps: Sequence[StepTimes]

    @property
    def unprofiled_s(self) -> float:
        """Median seconds of the whole step."""
        from results.stats.samples import median

        return float(median(self.samples_s))

    @property
    def chosen(self) -> int:
        """The recorded step that took most nearly as long as one without a profiler: its parts are the report's."""
        return min(range(len(self.steps)), key=lambda place: abs(self.steps[place].step - self.unprofiled_s / NS))

    def remainders_ns(self, place: int) -> dict[tuple[str, str], int]:
        """Return what a recorded step took beside its operations, by its name and, of the host's gaps, by module."""
        step = self.steps[place]
        gaps: dict[str, int] = {}
        for module, spent in step.gaps.items():
            gaps[pattern(module)] = gaps.get(pattern(module), 0) + spent
        gap = sum(gaps.values())
        overhead = ahead = min(gap, max(0, step.step - round(self.unprofiled_s / NS)))
        left: dict[tuple[str, str], int] = {}
        for module, spent in gaps.items():  # each has its part of the overhead; the last takes what rounding left
            taken = ahead * spent // max(1, gap)
            left[HOST_GAP, module] = spent - taken
            ahead, gap = ahead - taken, gap - spent
        return {(UNATTRIBUTED, ""): sum(step.unattributed.values()), (OVERHEAD, ""): overhead} | left


def pattern(module: str) -> str:
    """Return the path of a module with `*` for the number of a layer, so that alike layers share a row.

    Of a path of numbers alone, as in a sequence of different modules, all stay.
    """
    if module.replace(".", "").isdigit():
        return module
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


def rows_of(calls: Sequence[Call], steps: Sequence[StepTimes] = ()) -> list[CallRow]:
    """Return the calls summed by signature, each with its time in each step."""
    rows: dict[Any, CallRow] = {}
    for place, call in enumerate(calls):
        module = pattern(call.module)
        key = call.op, call.shapes, call.dtypes, module, call.phase
        row = rows.setdefault(key, CallRow(call, module, times_ns=[0] * len(steps)))
        row.count += 1
        row.flops += call.flops
        row.matmul_flops += call.matmul_flops
        row.bytes_read += call.bytes_read
        row.bytes_written += call.bytes_written
        for number, step in enumerate(steps):
            row.times_ns[number] += step.calls.get(place, 0)
            row.kernels.update(step.kernels.get(place, ()))
    return list(rows.values())


def worth_replaying(calls: Sequence[Call], timing: Timing) -> list[int]:
    """Return the place of one call of each signature, those that take `REPLAYED` of the time of all, longest first."""
    times_ns: dict[Any, int] = {}
    first: dict[Any, int] = {}
    for place, spent in timing.steps[timing.chosen].calls.items():
        if calls[place].bytes_read or calls[place].bytes_written:
            key = signature(calls[place])
            times_ns[key] = times_ns.get(key, 0) + spent
            first[key] = min(place, first.get(key, place))
    wanted, found = REPLAYED * sum(times_ns.values()), []
    for key in sorted(times_ns, key=lambda key: -times_ns[key]):
        if wanted <= 0:
            break
        wanted -= times_ns[key]
        found.append(first[key])
    return found


def signature(call: Call) -> Any:
    """Return what decides the work of a call: the operation, shapes and dtypes."""
    return call.op, call.shapes, call.dtypes


def with_replays(records: Sequence[Record], calls: Sequence[Call], replays: Mapping[int, Replayed]) -> list[Record]:
    """Return records with the times of their calls measured alone, flagged where they differ from those in step."""
    by_signature = {signature(calls[place]): alone for place, alone in replays.items()}
    found = []
    for record in records:
        own = record.op, record.extra["shapes"], tuple(record.extra["dtypes"])
        alone = by_signature.get(own) if record.status == "ok" else None
        if alone is not None:
            count, time_s = record.extra["count"], record.extra["time_s"]
            cold_s = None if alone.cold_s is None else alone.cold_s * count
            extra = {"replay_cold_s": cold_s, "replay_warm_s": alone.warm_s * count}
            is_far = abs(time_s / (cold_s or alone.warm_s * count) - 1) > FAR
            flags = (*record.flags, REPLAY_DIFFERS) if is_far else record.flags
            record = replace(record, extra=record.extra | extra, flags=flags)
        found.append(record)
    return found


def records_of(accounted: Accounted, timing: Timing, provider: str) -> list[Record]:
    """Return a record for each row and each remainder, by time; those without time and work are left out."""
    chosen = timing.chosen
    total_ns = timing.steps[chosen].step
    rows = [
        row
        for row in rows_of(accounted.calls, timing.steps)
        if any(row.times_ns) or row.bytes_read or row.bytes_written or row.flops
    ]
    found = [_timed(replace(_blank(row, provider), status="ok"), row.times_ns, chosen, total_ns) for row in rows]
    main = main_dtype(accounted.calls)
    each = [timing.remainders_ns(place) for place in range(len(timing.steps))]
    for name, module in dict.fromkeys(key for one in each for key in one):
        times_ns = [one.get((name, module), 0) for one in each]
        if any(times_ns):
            extra = {"count": 0, "shapes": "", "dtypes": [], "module": module, "phase": "", "matmul_flops": None}
            blank = Record(op=name, provider=provider, dtype=main, shape={"calls": 1}, case="-", status="ok")
            if name == UNATTRIBUTED:
                of_step = timing.steps[chosen].unattributed
                names = sorted(of_step, key=lambda kernel: -of_step[kernel])[:MOST_KERNELS]
                extra |= {"kernels": names, "kernels_s": [of_step[kernel] * NS for kernel in names]}
            options = {"module": module} if module else {}
            found.append(_timed(replace(blank, options=options, extra=extra), times_ns, chosen, total_ns))
    first, *others = sorted(found, key=lambda record: -record.extra["time_s"])
    return [replace(first, extra=first.extra | {"step": _facts(accounted, timing)}), *others]


def _facts(accounted: Accounted, timing: Timing) -> dict[str, Any]:
    """Return what the totals need that is not in the rows; the longest row holds it."""
    calls = accounted.calls
    known = [call for call in calls if call.is_modelled]
    return {
        "time_s": timing.unprofiled_s,
        "unique_bytes": accounted.unique_bytes,
        "eager_bytes": accounted.eager_bytes,
        "modelled_flops": _share(known, calls, lambda call: call.flops),
        "modelled_bytes": _share(known, calls, lambda call: call.bytes_read + call.bytes_written),
    }


def failed_records(accounted: Accounted, provider: str, reason: str) -> list[Record]:
    """Return a record for each row whose time could not be measured: its work is kept."""
    return [
        replace(_blank(row, provider), status="failed", reason=reason)
        for row in rows_of(accounted.calls)
        if row.bytes_read or row.bytes_written or row.flops
    ]


def _blank(row: CallRow, provider: str) -> Record:
    call = row.first
    is_modelled = call.is_modelled
    return Record(
        op=call.op,
        provider=provider,
        dtype=dtype_of(call),
        shape={"calls": row.count},
        case=call.shapes or "-",
        options={"module": row.module, "phase": call.phase},
        status="skipped",
        flops=row.flops if is_modelled else None,
        bytes_read=row.bytes_read if is_modelled else None,
        bytes_written=row.bytes_written if is_modelled else None,
        flags=call.flags,
        extra={
            "count": row.count,
            "shapes": call.shapes,
            "dtypes": list(call.dtypes),
            "module": row.module,
            "phase": call.phase,
            "matmul_flops": row.matmul_flops if is_modelled else None,
            **({"kernels": sorted(row.kernels)} if row.kernels else {}),
        },
    )


def _timed(blank: Record, times_ns: Sequence[int], chosen: int, total_ns: int) -> Record:
    """Return a record with its time in the chosen step, whose rows sum to the step."""
    time_s = times_ns[chosen] * NS
    extra = blank.extra | {"time_s": time_s, "share": times_ns[chosen] / total_ns}
    if time_s < MIN_TIME_S:
        return replace(blank, status="skipped", reason="it took no time of its own", extra=extra)
    return replace(
        blank,
        samples_s=(time_s,),
        launches_per_sample=1,
        method="host",
        cache="warm",
        median_s=time_s,
        extra=extra,
    )


def dtype_of(call: Call) -> str:
    """Return the dtype whose peak judges a call: that of its first floating-point operand, else of its first."""
    floats = [dtype for dtype in call.dtypes if "float" in dtype]
    found = dtype_named((floats or call.dtypes or ("float32",))[0])
    return found if found in DTYPES else "fp32"


def main_dtype(calls: Sequence[Call]) -> str:
    """Return the dtype of most FLOPs."""
    by_dtype: dict[str, int] = {}
    for call in calls:
        by_dtype[dtype_of(call)] = by_dtype.get(dtype_of(call), 0) + call.flops
    return max(by_dtype, key=lambda dtype: by_dtype[dtype], default="fp32")


def product_dtypes(calls: Sequence[Call]) -> tuple[str, ...]:
    """Return the dtypes whose peaks judge a step: those of its products, else the main one."""
    return tuple(dict.fromkeys(dtype_of(call) for call in calls if call.matmul_flops)) or (main_dtype(calls),)


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
    ceilings = Ceilings.from_dict(environment.hardware)
    keys = ("flops", "bytes_read", "bytes_written")
    flops, read, written = (sum(getattr(record, key) or 0 for record in records) for key in keys)
    matmul_flops: dict[str, int] = {}
    for record in records:
        if record.extra["matmul_flops"]:
            matmul_flops[record.dtype] = matmul_flops.get(record.dtype, 0) + record.extra["matmul_flops"]
    bandwidth = ceilings.bandwidth_for(read, written)
    remains = {name: sum(r.extra["share"] for r in records if r.op == name) for name in REMAINDERS}
    scores = scores_of(environment, records)
    spent = {
        kind: sum(r.extra["share"] for r, s in zip(records, scores, strict=True) if s["bound"] == kind)
        for kind in BOUNDS
    }
    at_roof = [_at_roof_s(record, score) for record, score in zip(records, scores, strict=True)]
    peaks = {dtype: ceilings.peak(dtype) for dtype in matmul_flops}
    peak_s = sum(matmul_flops[d] / p.value for d, p in peaks.items() if p) if all(peaks.values()) else None
    return step | {
        "profiled_s": sum(record.extra["time_s"] for record in records),
        "flops": flops,
        "matmul_flops": sum(matmul_flops.values()),
        "bytes_read": read,
        "bytes_written": written,
        "fusable_s": max(0, read + written - step["unique_bytes"]) / bandwidth.value if bandwidth else None,
        "at_roof_s": sum(at_roof),
        "memory_bound": spent["memory"],
        "compute_bound": spent["compute"],
        "attributed": 1 - remains[UNATTRIBUTED],
        "in_operations": 1 - sum(remains.values()),
        "mfu": None if peak_s is None else mfu(rate(peak_s, step["time_s"]), 1.0),
        "mbu": mbu(rate(read + written, step["time_s"]), bandwidth.value) if bandwidth else None,
    }


BOUNDS = ("memory", "compute")
"""Bounds whose share of the time is among the totals."""


def scores_of(environment: Environment, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the judged keys of records by `time_s`; `median_s` of older files is that of all recorded steps."""
    timed = [replace(r, median_s=r.extra["time_s"] or None, samples_s=()) if r.status == "ok" else r for r in records]
    return judged(environment, timed)


def document_of(environment: Environment, records: Sequence[Record]) -> dict[str, Any]:
    """Return a profile as the object that `--format json` prints."""
    from results.show.rows import document

    whole, scores = document(environment, records), scores_of(environment, records)
    rows = [row | score for row, score in zip(whole["records"], scores, strict=True)]
    return {"environment": whole["environment"], "totals": totals_of(environment, records), "records": rows}


def _share(known: Sequence[Call], calls: Sequence[Call], work: Any) -> float:
    """Return the share of work that has a rule; what has none is taken as what a generic rule would give."""
    total = sum(map(work, calls))
    return sum(map(work, known)) / total if total else 1.0


def _at_roof_s(record: Record, score: Mapping[str, Any]) -> float:
    if record.op == OVERHEAD:
        return 0.0
    time_s = float(record.extra["time_s"])
    if score["roofline_pct"] is None or not (record.flops or record.bytes_read or record.bytes_written):
        return time_s  # there is no roof to reach
    return time_s * min(1.0, float(score["roofline_pct"]) / 100)
