"""The critical batch of decoding: where the batches of a sweep pass from below the ridge point to above it."""

from __future__ import annotations

import math
from itertools import groupby, pairwise
from typing import NamedTuple

from roofline.accounting.inference import critical_batch
from roofline.model import ridge_intensity
from roofline.plot.scene import PlotPoint, Scene
from roofline.plot.style import significant
from roofline.work import DTYPE_BITS

SWEPT = ("decode-block", "decode-step")
"""Ops whose intensity grows with the batch, because it shares the weights."""


class CriticalBatch(NamedTuple):
    """The batch at the ridge point, between two batches that were measured."""

    intensity: float
    """Of the ridge point by which the points are judged, FLOP/byte."""
    flops_per_s: float
    """On the line between the two points."""
    batch: float


def critical_batches(scene: Scene) -> list[CriticalBatch]:
    """Return where sweeps over batches pass the ridge point; none where no two batches lie on its two sides."""
    return [found for sweep in _sweeps(scene) if (found := _crossing(sweep, scene))]


def critical_sentence(scene: Scene) -> str:
    """Return where the critical batch is by the weights alone, where no sweep reaches it; else nothing."""
    if critical_batches(scene):
        return ""
    found = []
    for sweep in _sweeps(scene):
        limits = _limits(sweep[-1], scene)
        if limits:
            batch = critical_batch(*limits, DTYPE_BITS[sweep[-1].record.dtype] / 8)
            found.append(f"batch {significant(batch)} is the critical one by the weights alone")
    return "; ".join(dict.fromkeys(found))


def _sweeps(scene: Scene) -> list[list[PlotPoint]]:
    """Return the points of each op, provider and length of the cache, by their batches."""
    points = [point for point in scene.points if point.record.op in SWEPT and "b" in point.record.shape]

    def key(point: PlotPoint) -> str:
        return repr((point.series, {axis: n for axis, n in point.record.shape.items() if axis != "b"}))

    points = sorted(points, key=lambda point: (key(point), point.record.shape["b"]))
    return [list(group) for _, group in groupby(points, key)]


def _limits(point: PlotPoint, scene: Scene) -> tuple[float, float] | None:
    """Return the peak and the bandwidth that a point is judged by, where both are known."""
    record, ceilings = point.record, scene.machines[point.machine].ceilings
    peak = ceilings.peak(record.dtype)
    bandwidth = ceilings.bandwidth_for(record.bytes_read or 0, record.bytes_written or 0)
    return (peak.value, bandwidth.value) if peak and bandwidth else None


def _crossing(sweep: list[PlotPoint], scene: Scene) -> CriticalBatch | None:
    limits = _limits(sweep[-1], scene)
    if limits is None:
        return None
    ridge = ridge_intensity(*limits)
    for below, above in pairwise(sweep):
        if below.intensity < ridge <= above.intensity:
            share = math.log(ridge / below.intensity) / math.log(above.intensity / below.intensity)
            batches = (below.record.shape["b"], above.record.shape["b"])
            return CriticalBatch(
                ridge,
                below.flops_per_s * (above.flops_per_s / below.flops_per_s) ** share,
                batches[0] * (batches[1] / batches[0]) ** share,
            )
    return None
