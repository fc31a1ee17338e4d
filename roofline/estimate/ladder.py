"""The estimate `intensity`: operations from elementwise to a large matmul against the ridge of a
machine.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Annotated, Unpack

from roofline.accounting.config import ConfigError
from roofline.accounting.machines import bandwidth_of
from roofline.estimate.answer import Answer, Curve, Row, steps_of
from roofline.estimate.options import Roofs, Use, uses_of
from roofline.estimate.products import OUT_DTYPES
from roofline.estimate.question import extents, question
from roofline.machine import MEASURED_FIRST
from roofline.model import bound, mfu, min_time_s, ridge_intensity
from roofline.model import intensity as intensity_of
from roofline.work import (
    FLOPS_PER_ELEMENT,
    VECTOR_OPS,
    Work,
    elementwise_work,
    matmul_work,
    matvec_work,
    reduction_work,
)

SHAPES = {
    "relu": (4096, 4096),
    "gelu": (4096, 4096),
    "dot": (2**24,),
    "matvec": (8192, 8192),
    "matmul": None,
}
"""Default shapes; matmuls have `SMALL`, the size at the ridge, and `LARGE`."""
SMALL = 256
LARGE = 8192

STEPS = (
    ("ridge", "{peak:number} / {bandwidth:number} B/s", "{ridge:number} FLOP/B"),
    ("matmul at the ridge", "{product.flops:count} FLOPs / {product.bytes:count} bytes", "n = {n}"),
)


@question
def intensity(
    op: Annotated[list[str] | None, tuple(SHAPES)] = None,
    shape: Annotated[tuple[int, ...], extents] | None = None,
    **options: Unpack[Roofs],
) -> Answer:
    """Arithmetic intensity of operations, and the FLOP/s that a machine can reach at it."""
    uses = uses_of(options)
    rows: list[Row] = []
    ridges = []
    names = []
    values = {}
    machine_columns = {"gpu": "GPU", "dtype": "dtype"}
    for use in uses.uses:
        ridges.append(ridge_intensity(use.peak, bandwidth_of(use.machine)))
        names.append(f"{use.machine.slug} in {use.dtype}")
        for name in op or SHAPES:
            rows += [_row(use, name, extent) for extent in _shapes(use, name, shape)]
    if len(names) == 1:
        values["ridge"] = ridges[0]
        machine_columns = {}
    lines = {}
    drawn = [*(row["intensity"] for row in rows), *ridges]
    for name, use, ridge in zip(names, uses.uses, ridges, strict=True):
        bandwidth = bandwidth_of(use.machine)
        corners = (min(drawn), ridge, max(drawn))
        lines[f"roofline of {name}"] = [(x, min(use.peak, x * bandwidth)) for x in corners]
    for row in rows:
        label = " ".join(row[key] for key in ("op", "shape", *machine_columns))
        lines[label] = [(row["intensity"], row["attainable_flops_per_s"])]
    use = uses.uses[0]
    side = _side_at_ridge(use)
    return Answer(
        main=("ridge",),
        title=f"Arithmetic intensity on {', '.join(names)}",
        values=values,
        rows=rows,
        columns={
            "op": "op",
            "shape": "shape",
            **machine_columns,
            "flops": "FLOPs",
            "bytes": "bytes",
            "intensity": "FLOP/B",
            "bound": "bound",
            "attainable_flops_per_s": "attainable",
            "peak_pct": "% of peak",
        },
        steps=steps_of(
            STEPS,
            peak=use.peak,
            bandwidth=bandwidth_of(use.machine),
            ridge=ridges[0],
            product=_work("matmul", (side, side, side), use.dtype),
            n=side,
        ),
        formula="intensity = FLOPs / bytes; attainable = min(peak, intensity x bandwidth); ridge "
        "= peak / bandwidth",
        source=f"Williams, Waterman and Patterson (2009); CS336 lecture 2; {uses.source}",
        assumptions=[
            (
                "each input is read once and each output written once; GELU counts 20 FLOPs per "
                "element"
            ),
            "memory-bound below the ridge; mixed if the times of compute and memory are within 10 %",  # noqa: E501
            (
                "% of peak: of the dense peak of matmuls; relu, gelu and dot are limited by the "
                "peak of the vector units"
            ),
            *uses.notes,
        ],
        curve=Curve("FLOP per byte", "attainable FLOP/s", lines),
    )


def _work(op: str, shape: tuple[int, ...], dtype: str) -> Work:
    if op == "matmul":
        m, n, k = shape
        return matmul_work(m, n, k, dtype, OUT_DTYPES.get(dtype, dtype))
    if op == "matvec":
        m, n = shape
        return matvec_work(m, n, dtype)
    if op == "dot":
        return reduction_work(prod(shape), FLOPS_PER_ELEMENT[op], 2, dtype)
    return elementwise_work(prod(shape), FLOPS_PER_ELEMENT[op], 1, dtype)


def _row(use: Use, op: str, shape: tuple[int, ...]) -> Row:
    work = _work(op, shape, use.dtype)
    peak = use.peak
    if op in VECTOR_OPS and (vector := use.machine.vector_peak(use.dtype, MEASURED_FIRST)):
        peak = vector.value
    bandwidth = bandwidth_of(use.machine)
    flops_per_s = work.flops / min_time_s(work.flops, work.bytes, peak, bandwidth)
    row: Row = {"op": op, "shape": "x".join(map(str, shape)), **use.row}
    row |= {"flops": work.flops, "bytes": work.bytes}
    row["intensity"] = intensity_of(work.flops, work.bytes)
    row["bound"] = bound(compute=work.flops / peak, memory=work.bytes / bandwidth)
    row["attainable_flops_per_s"] = flops_per_s
    row["peak_pct"] = 100 * mfu(flops_per_s, use.peak)
    return row


def _side_at_ridge(use: Use) -> int:
    """Return the smallest n of a square matmul at or above the ridge: 2 n^3 / (w n^2), w the bytes
    of A, B and C.
    """
    bytes_per_element = _work("matmul", (SMALL, SMALL, SMALL), use.dtype).bytes / SMALL**2
    return ceil(ridge_intensity(use.peak, bandwidth_of(use.machine)) * bytes_per_element / 2)


def _shapes(use: Use, op: str, given: tuple[int, ...] | None) -> list[tuple[int, ...]]:
    """Return the shapes of an operation: the given one, or those of `SHAPES`."""
    known = SHAPES[op]
    if given is None and known:
        return [known]
    if given is None:
        sides = sorted({SMALL, _side_at_ridge(use), LARGE})
        return [(side, side, side) for side in sides]
    axes = {"matvec": 2, "matmul": 3}.get(op, len(given))
    if len(given) not in (1, axes):
        raise ConfigError(
            f"--shape of {len(given)} numbers does not fit {op}: write one number or {axes}"
        )
    return [given * axes if len(given) == 1 else given]
