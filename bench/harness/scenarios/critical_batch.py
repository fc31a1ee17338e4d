"""From which batch on decoding is bound by compute: by the formula, by the roofline of each row, and by the times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from results.record import Environment, Record
from roofline.accounting.inference import critical_batch
from roofline.ceilings import Ceilings
from roofline.model import judge
from roofline.work import DTYPE_BITS


def critical_batch_lines(environment: Environment, records: Sequence[Record]) -> list[str]:
    """Return a line for each sweep over batches: what was predicted, and what was found.

    Args:
        environment: of the run; its `hardware` holds the ceilings.
        records: of ops whose weights are shared by a batch `b`, at KV length `s`.
    """
    ceilings = Ceilings.from_dict(environment.hardware)
    measured = [record for record in records if record.status == "ok" and record.median_s]
    lines = []
    for key, group in groupby(sorted(measured, key=_sweep), key=_sweep):
        sweep = sorted(group, key=lambda record: record.shape["b"])
        if len(sweep) > 1:
            op, case, dtype, provider, _, length = key
            lines.append(f"{op} {case} {dtype} {provider}, KV length {length}: {_found(sweep, ceilings)}")
    return lines


def _sweep(record: Record) -> tuple[str, str, str, str, str, int]:
    """Return what the records of one sweep over batches share."""
    options = record.case.partition(":")[2]
    return record.op, options, record.dtype, record.provider, str(record.fill), record.shape["s"]


def _found(sweep: Sequence[Record], ceilings: Ceilings) -> str:
    """Return prediction and findings of one sweep, the smallest batch first."""
    first, last = sweep[0], sweep[-1]
    judged = [(record.shape["b"], judge(record, ceilings).bound) for record in sweep]
    parts = [_predicted(first, ceilings)]
    turns = [next(group) for _, group in groupby(judged, key=lambda entry: entry[1])]
    if turns[0][1] is not None:
        parts.append("bound by " + ", ".join(f"{bound} from batch {batch} on" for batch, bound in turns))
    if judged[-1][1] == "compute":
        parts.append(
            f"measured: batch {first.shape['b']} takes the time of {meeting_batch(first, last):.3g} sequences at the "
            f"rate of batch {last.shape['b']}"
        )
    return "; ".join(parts)


def _predicted(record: Record, ceilings: Ceilings) -> str:
    peak = ceilings.peak(record.dtype)
    bandwidth = ceilings.bandwidth_for(record.bytes_read or 0, record.bytes_written or 0)
    if peak is None or bandwidth is None:
        return "no critical batch is predicted without a peak and a bandwidth"
    batch = critical_batch(peak.value, bandwidth.value, DTYPE_BITS[record.dtype] / 8)
    return (
        f"critical batch {batch:.3g} predicted, without the cache ({peak.kind} {peak.value / 1e12:.3g} TFLOP/s, "
        f"{bandwidth.kind} {bandwidth.value / 1e9:.3g} GB/s)"
    )


def meeting_batch(first: Record, last: Record) -> float:
    """Return the batch at which the time of a small batch, taken as constant, meets the rate of a large one.

    Below the critical batch a step takes as long as reading the weights, above it as long as its FLOPs: t(1) and
    t(B) / B are those two, so that t(1) B / t(B) is the critical batch as measured.

    Source: the two limits of Pope et al., Efficiently Scaling Transformer Inference (2022); where they meet is ours.
    """
    return (first.median_s or math.nan) * last.shape["b"] / (last.median_s or math.nan)
