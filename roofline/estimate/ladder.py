"""The estimate `intensity`: operations from elementwise to a large matmul against the ridge of a
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Annotated, Any, NamedTuple, Unpack

from results.show.units import count, number
from roofline.accounting.config import ConfigError
from roofline.accounting.machines import bandwidth_of
from roofline.estimate.answer import Answer, Curve, Step
from roofline.estimate.options import Roofs, Use, sources_of, uses_of
from roofline.estimate.products import OUT_DTYPES
from roofline.estimate.question import SomeOf, extents, question
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


class Rung(NamedTuple):
    """An operation on one machine and dtype."""

    use: Use
    op: str
    shape: tuple[int, ...]

    @property
    def work(self) -> Work:
        dtype = self.use.dtype
        if self.op == "matmul":
            m, n, k = self.shape
            return matmul_work(m, n, k, dtype, OUT_DTYPES.get(dtype, dtype))
        if self.op == "matvec":
            m, n = self.shape
            return matvec_work(m, n, dtype)
        if self.op == "dot":
            return reduction_work(prod(self.shape), FLOPS_PER_ELEMENT[self.op], 2, dtype)
        return elementwise_work(prod(self.shape), FLOPS_PER_ELEMENT[self.op], 1, dtype)

    @property
    def row(self) -> dict[str, Any]:
        machine = self.use.machine
        work = self.work
        vector = (
            machine.vector_peak(self.use.dtype, MEASURED_FIRST) if self.op in VECTOR_OPS else None
        )
        peak = vector.value if vector else self.use.peak
        bandwidth = bandwidth_of(machine)
        flops_per_s = work.flops / min_time_s(work.flops, work.bytes, peak, bandwidth)
        return {
            "op": self.op,
            "shape": "x".join(map(str, self.shape)),
            **self.use.row,
            "flops": work.flops,
            "bytes": work.bytes,
            "intensity": intensity_of(work.flops, work.bytes),
            "bound": bound(work.flops / peak, work.bytes / bandwidth, None),
            "attainable_flops_per_s": flops_per_s,
            "peak_pct": 100 * mfu(flops_per_s, self.use.peak),
        }


@question
def intensity(
    op: Annotated[list[str] | None, SomeOf(tuple(SHAPES))] = None,
    shape: Annotated[tuple[int, ...], extents] | None = None,
    **options: Unpack[Roofs],
) -> Answer:
    """Arithmetic intensity of operations, and the FLOP/s that a machine can reach at it."""
    uses, missing = uses_of(options)
    rows: list[dict[str, Any]] = []
    for use in uses:
        for name in op or SHAPES:
            rows += [rung.row for rung in _rungs(use, name, shape)]
    use = uses[0]
    ridge = _ridge(use)
    side = _side_at_ridge(use)
    product = Rung(use, "matmul", (side,) * 3).work
    machine_columns = {"gpu": "GPU", "dtype": "dtype"} if len(uses) > 1 else {}
    return Answer(
        main=("ridge",),
        title=f"Arithmetic intensity on "
        f"{', '.join(f'{use.machine.slug} in {use.dtype}' for use in uses)}",
        values={"ridge": ridge} if len(uses) == 1 else {},
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
        steps=[
            Step(
                "ridge",
                f"{number(use.peak)} / {number(bandwidth_of(use.machine))} B/s",
                f"{number(ridge)} FLOP/B",
            ),
            Step(
                "matmul at the ridge",
                f"{count(product.flops)} FLOPs / {count(product.bytes)} bytes",
                f"n = {side}",
            ),
        ],
        formula="intensity = FLOPs / bytes; attainable = min(peak, intensity x bandwidth); ridge "
        "= peak / bandwidth",
        source=f"Williams, Waterman and Patterson (2009); CS336 lecture 2; "
        f"{sources_of(use.machine for use in uses)}",
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
            *missing,
        ],
        curve=Curve("FLOP per byte", "attainable FLOP/s", _lines(uses, rows)),
    )


def _ridge(use: Use) -> float:
    return ridge_intensity(use.peak, bandwidth_of(use.machine))


def _side_at_ridge(use: Use) -> int:
    """Return the smallest n of a square matmul at or above the ridge: 2 n^3 / (w n^2), w the bytes
    of A, B and C.
    """
    bytes_per_element = Rung(use, "matmul", (SMALL,) * 3).work.bytes / SMALL**2
    return ceil(_ridge(use) * bytes_per_element / 2)


def _rungs(use: Use, op: str, shape: tuple[int, ...] | None) -> list[Rung]:
    known = SHAPES[op]
    if shape is None:
        sides = sorted({SMALL, _side_at_ridge(use), LARGE})
        return [Rung(use, op, known)] if known else [Rung(use, op, (side,) * 3) for side in sides]
    axes = {"matvec": 2, "matmul": 3}.get(op, len(shape))
    if len(shape) not in (1, axes):
        raise ConfigError(
            f"--shape of {len(shape)} numbers does not fit {op}: write one number or {axes}"
        )
    return [Rung(use, op, shape * axes if len(shape) == 1 else shape)]


def _lines(
    uses: Sequence[Use], rows: Sequence[dict[str, Any]]
) -> dict[str, list[tuple[float, float]]]:
    """Return the roofs over all intensities, and a point for each row."""
    lines = {}
    drawn = [*(row["intensity"] for row in rows), *map(_ridge, uses)]
    for use in uses:
        corners = (min(drawn), _ridge(use), max(drawn))
        roof = [(x, min(use.peak, x * bandwidth_of(use.machine))) for x in corners]
        lines[f"roofline of {use.machine.slug} in {use.dtype}"] = roof
    for row in rows:
        machine = f" {row['gpu']} {row['dtype']}" if len(uses) > 1 else ""
        lines[f"{row['op']} {row['shape']}{machine}"] = [
            (row["intensity"], row["attainable_flops_per_s"])
        ]
    return lines
