"""Estimates of tensors, number formats and matrix products."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Annotated, Any, Unpack

from results.show.units import count, duration, number
from roofline.accounting.machines import attainable, peak_of, why_not
from roofline.accounting.number_formats import FORMATS, scale_bytes, shown_in
from roofline.estimate.answer import Answer, Step, by_machine
from roofline.estimate.options import Computing, machines_of, sources_of
from roofline.estimate.question import OneOf, SomeOf, Whole, exact, extents, product_shape, question
from roofline.machine import MEASURED_FIRST, Machine
from roofline.model import intensity
from roofline.work import DTYPE_BITS, DTYPES, bytes_of, matmul_work

OUT_DTYPES = {"fp8e4m3": "bf16", "fp8e5m2": "bf16", "nvfp4": "bf16", "int8": "int32", "tf32": "fp32"}


@question
def tensor(shape: Annotated[tuple[int, ...], extents], dtype: Annotated[str, OneOf(DTYPES)] = "fp32") -> Answer:
    """Elements, bytes and strides of a dense tensor."""
    elements = prod(shape)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    stored, scales = bytes_of(elements, dtype), scale_bytes(elements, dtype)
    total = stored + scales
    steps = [
        Step("elements", " x ".join(map(str, shape)), count(elements)),
        Step("bytes", f"{elements:,} x {DTYPE_BITS[dtype]} bits / 8", count(stored)),
        *([Step("block scales", f"{elements:,} / 16, one byte each", count(scales))] if scales else []),
        Step("in GB", f"{total:,} / 10^9", f"{number(total / 1e9)} GB"),
        Step("in GiB", f"{total:,} / 2^30", f"{number(total / 2**30)} GiB"),
        Step("strides", "products of the following extents, in elements (row-major)", ", ".join(map(str, strides))),
    ]
    return Answer(
        main=("bytes", "elements"),
        title=f"A tensor of {'x'.join(map(str, shape))} in {dtype}",
        values={"elements": elements, "bytes": total, "scale_bytes": scales, "strides": strides, "dtype": dtype},
        steps=steps,
        formula="bytes = elements x bits / 8; element i is at offset sum(i x stride)",
        source="CS336 (2025) lecture 2: numel() x element_size()",
        assumptions=["dense and contiguous; a view needs no bytes", "GB is 10^9 bytes, GiB 2^30"],
    )


FORMAT_COLUMNS = {
    **{"bits": "bits", "exponent_bits": "exponent", "mantissa_bits": "mantissa", "largest": "largest"},
    **{"smallest_normal": "normal from", "smallest_subnormal": "smallest", "epsilon": "epsilon"},
    "decimal_digits": "digits",
}


@question
def dtype(
    dtype: Annotated[list[str] | None, SomeOf(tuple(FORMATS))] = None,
    value: Annotated[Fraction | float, exact] | None = None,
) -> Answer:
    """Ranges and precision of floating-point formats, and a value rounded to each."""
    rows: list[dict[str, Any]] = []
    for name in dtype or FORMATS:
        row = {key: getattr(FORMATS[name], key) for key in FORMAT_COLUMNS}
        shown = {} if value is None else {"value": shown_in(Fraction(value), name)}
        rows.append({"dtype": name, **{key: float(x) if "bits" not in key else x for key, x in row.items()}, **shown})
    return Answer(
        title="Floating-point formats" if value is None else f"Floating-point formats, and {float(value):g} in each",
        values={} if value is None else {"asked": float(value)},
        steps=(),
        formula="largest (2 - 2^-m) 2^bias, normal from 2^(1 - bias), smallest 2^(1 - bias - m), epsilon 2^-m",
        source="; ".join(dict.fromkeys(FORMATS[row["dtype"]].source for row in rows)),
        assumptions=[
            "digits: log10 of 2^(m + 1); fewer below `normal from`, none at `smallest`",
            "rounding to nearest, ties to even; half of `smallest` and less becomes 0",
            "fp8e4m3 has no infinity: larger values become 448 or nan, depending on the conversion",
        ],
        rows=rows,
        columns={"dtype": "dtype", **FORMAT_COLUMNS, **({} if value is None else {"value": "value"})},
    )


@question
def matmul(
    shape: Annotated[tuple[int, int, int], product_shape], batch: Whole = 1, **options: Unpack[Computing]
) -> Answer:
    """Minimum time of a matrix product (m, k) x (k, n) by the roofline."""
    machines, dtypes = machines_of(options), options.get("dtype", ["bf16"])
    m, n, k = shape
    rows = [_matmul_row(shape, batch, machine, dtype) for machine in machines for dtype in dtypes]
    timed = [row for row in rows if row["seconds"] is not None]
    if not timed:
        peak_of(machines[0], dtypes[0])
    row = timed[0]
    times = f"{batch} x " if batch > 1 else ""
    return Answer(
        main=("seconds", "bound"),
        title=f"Matrix product {m}x{n}x{k}{f', {batch} times' if batch > 1 else ''} (MxNxK)",
        **by_machine(rows),
        steps=[
            Step("FLOPs", f"2 x {times}{m} x {n} x {k}", count(row["flops"])),
            Step("bytes", f"{times}({m} x {k} + {k} x {n} read, {m} x {n} written)", count(row["bytes"])),
            Step("intensity", f"{number(row['flops'])} / {number(row['bytes'])}", f"{number(row['intensity'])} FLOP/B"),
            Step("compute", f"{number(row['flops'])} / {number(row['peak_flops_per_s'])}", duration(row["compute_s"])),
            Step(
                "memory", f"{number(row['bytes'])} / {number(row['bandwidth_bytes_per_s'])}", duration(row["memory_s"])
            ),
            Step("time", "the longer one", f"{duration(row['seconds'])}, {row['bound']}-bound"),
        ],
        formula="seconds = max(2 m n k / peak, w (m k + k n + m n) / bandwidth)",
        source=f"Williams, Waterman and Patterson (2009); {sources_of(machines)}",
        assumptions=[
            "lower bound: each operand moves once, at full bandwidth and peak",
            "output: bf16 for fp8 and nvfp4, int32 for int8; block scales are not counted",
            *(f"{row['gpu']} has {row['reason']} {row['dtype']}" for row in rows if row["seconds"] is None),
        ],
        columns={
            **{"gpu": "GPU", "dtype": "dtype", "flops": "FLOPs", "bytes": "bytes", "intensity": "FLOP/B"},
            **{"seconds": "time", "bound": "bound"},
        },
    )


TIMES = ("seconds", "bound", "compute_s", "memory_s", "peak_flops_per_s", "bandwidth_bytes_per_s")


def _matmul_row(shape: tuple[int, int, int], batch: int, machine: Machine, dtype: str) -> dict[str, Any]:
    work = matmul_work(*shape, dtype, OUT_DTYPES.get(dtype, dtype), batch)
    row: dict[str, Any] = {"gpu": machine.slug, "dtype": dtype, "flops": work.flops, "bytes": work.bytes}
    row["intensity"] = intensity(work.flops, work.bytes)
    if machine.peak(dtype, MEASURED_FIRST) is None:
        return row | {"seconds": None, "bound": None, "reason": why_not(machine, dtype)}
    limit = attainable(machine, work.flops, work.bytes, dtype)
    return row | {name: getattr(limit, name) for name in TIMES}
