"""Worked answers about tensors, number formats and matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any

from roofline.accounting.answers.answer import Answer, Step, by_machine, count, duration, number
from roofline.accounting.config.config import ConfigError
from roofline.accounting.machines import Machine
from roofline.accounting.number_formats import FORMATS, scale_bytes, shown_in
from roofline.model import intensity
from roofline.work import DTYPE_BITS, bytes_of, matmul_work

OUT_DTYPES = {"fp8e4m3": "bf16", "fp8e5m2": "bf16", "nvfp4": "bf16", "int8": "int32", "tf32": "fp32"}
"""In what a product of the dtype is written; the others are written as they are read."""


FORMAT_COLUMNS = (
    ("dtype", "dtype"),
    ("bits", "bits"),
    ("exponent_bits", "exponent"),
    ("mantissa_bits", "mantissa"),
    ("largest", "largest"),
    ("smallest_normal", "normal from"),
    ("smallest_subnormal", "smallest"),
    ("epsilon", "epsilon"),
    ("decimal_digits", "digits"),
)


def tensor_answer(shape: Sequence[int], dtype: str) -> Answer:
    """Return elements, strides and bytes of a dense tensor.

    Args:
        shape: its extents.
        dtype: a dtype of `roofline.work`.
    """
    elements = prod(shape)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    stored, scales = bytes_of(elements, dtype), scale_bytes(elements, dtype)
    total = stored + scales
    bits = DTYPE_BITS[dtype]
    steps = [
        Step("elements", " x ".join(map(str, shape)), count(elements)),
        Step("bytes", f"{elements:,} x {bits} bits / 8", count(stored)),
    ]
    if scales:
        steps.append(Step("block scales", f"{elements:,} / 16, one byte each", count(scales)))
    steps += [
        Step("in GB", f"{total:,} / 10^9", f"{number(total / 1e9)} GB"),
        Step("in GiB", f"{total:,} / 2^30", f"{number(total / 2**30)} GiB"),
        Step("strides", "products of the extents behind, row-major, in elements", ", ".join(map(str, strides))),
    ]
    return Answer(
        main=("bytes", "elements"),
        title=f"A tensor of {'x'.join(map(str, shape))} in {dtype}",
        values={"elements": elements, "bytes": total, "scale_bytes": scales, "strides": strides, "dtype": dtype},
        steps=steps,
        formula="bytes = elements x bits / 8; an index i lies at sum(i x stride)",
        source="CS336 (2025) lecture 2: numel() x element_size()",
        assumptions=["dense and contiguous; a view has no bytes of its own", "GB is 10^9 bytes, GiB 2^30"],
    )


def dtype_answer(names: Sequence[str], value: Fraction | None = None) -> Answer:
    """Return ranges and steps of number formats, and what a value becomes in each.

    Raises:
        ConfigError: a name is no floating-point format.
    """
    for name in names:
        if name not in FORMATS:
            raise ConfigError(f"no floating-point format '{name}'; known: {', '.join(FORMATS)}")
    rows: list[dict[str, Any]] = []
    for name in names:
        entry = FORMATS[name]
        row: dict[str, Any] = {
            "dtype": name,
            "bits": entry.bits,
            "exponent_bits": entry.exponent_bits,
            "mantissa_bits": entry.mantissa_bits,
            "largest": float(entry.largest),
            "smallest_normal": float(entry.smallest_normal),
            "smallest_subnormal": float(entry.smallest_subnormal),
            "epsilon": float(entry.epsilon),
            "decimal_digits": entry.decimal_digits,
        }
        rows.append(row if value is None else row | {"value": shown_in(value, name)})
    return Answer(
        title="Floating-point formats" if value is None else f"Floating-point formats, and {float(value):g} in each",
        values={} if value is None else {"asked": float(value)},
        steps=(),
        formula="largest (2 - 2^-m) 2^bias, normal from 2^(1 - bias), smallest 2^(1 - bias - m), epsilon 2^-m",
        source="; ".join(dict.fromkeys(FORMATS[name].source for name in names)),
        assumptions=[
            "digits are log10 of 2^(m + 1); below `normal from` they become fewer, down to none at `smallest`",
            "values are rounded to the nearest, ties to even; half of `smallest` and less becomes 0",
            "fp8e4m3 has no infinity: a value too large becomes 448 or nan, as the conversion is told",
        ],
        rows=rows,
        columns=FORMAT_COLUMNS if value is None else [*FORMAT_COLUMNS, ("value", "value")],
    )


def matmul_answer(
    shape: tuple[int, int, int], machines: Sequence[Machine], dtypes: Sequence[str], batch: int = 1
) -> Answer:
    """Return the least time of a matrix product (m, k) x (k, n) on each machine in each dtype.

    Args:
        shape: m, n and k.
        machines: the devices.
        dtypes: of the operands.
        batch: products of that shape.

    Raises:
        ConfigError: no machine has a peak of any of the dtypes.
    """
    m, n, k = shape
    rows = [_matmul_row(m, n, k, batch, machine, dtype) for machine in machines for dtype in dtypes]
    timed = [row for row in rows if row["seconds"] is not None]
    if not timed:
        for machine in machines:
            machine.peak(dtypes[0])
    row = timed[0]
    title = f"Matrix product {m}x{n}x{k}" + (f", {batch} times" if batch > 1 else "")
    missing = [f"{row['gpu']} has {row['reason']} {row['dtype']}" for row in rows if row["seconds"] is None]
    columns = [("gpu", "GPU"), ("dtype", "dtype"), ("flops", "FLOPs"), ("bytes", "bytes"), ("intensity", "FLOP/B")]
    return Answer(
        main=("seconds", "bound"),
        title=f"{title} (MxNxK)",
        values=by_machine(rows),
        steps=_matmul_steps(row, shape, batch),
        formula="seconds = max(2 m n k / peak, w (m k + k n + m n) / bandwidth)",
        source="Williams, Waterman and Patterson (2009); "
        + "; ".join(dict.fromkeys(machine.source for machine in machines)),
        assumptions=[
            "a lower bound: each operand moves once, at full bandwidth, and the peak is reached",
            "fp8 and nvfp4 are written as bf16, int8 as int32; scales of blocks are left out",
            *missing,
        ],
        rows=rows,
        columns=[*columns, ("seconds", "time"), ("bound", "bound")],
        worked=f"{row['gpu']}, {row['dtype']}",
    )


def _matmul_steps(row: dict[str, Any], shape: tuple[int, int, int], batch: int) -> list[Step]:
    m, n, k = shape
    times = f"{batch} x " if batch > 1 else ""
    return [
        Step("FLOPs", f"2 x {times}{m} x {n} x {k}", count(row["flops"])),
        Step("bytes", f"{times}({m} x {k} + {k} x {n} read, {m} x {n} written)", count(row["bytes"])),
        Step("intensity", f"{number(row['flops'])} / {number(row['bytes'])}", f"{number(row['intensity'])} FLOP/B"),
        Step("compute", f"{number(row['flops'])} / {number(row['peak_flops_per_s'])}", duration(row["compute_s"])),
        Step("memory", f"{number(row['bytes'])} / {number(row['bandwidth_bytes_per_s'])}", duration(row["memory_s"])),
        Step("time", "the longer of the two", f"{duration(row['seconds'])}, {row['bound']}-bound"),
    ]


def _matmul_row(m: int, n: int, k: int, batch: int, machine: Machine, dtype: str) -> dict[str, Any]:
    work = matmul_work(m, n, k, dtype, OUT_DTYPES.get(dtype, dtype), batch)
    row: dict[str, Any] = {
        "gpu": machine.slug,
        "dtype": dtype,
        "flops": work.flops,
        "bytes": work.bytes,
        "intensity": intensity(work.flops, work.bytes),
        "seconds": None,
        "bound": None,
    }
    if dtype not in machine.peaks_flops_per_s:
        return row | {"reason": machine.why_not(dtype)}
    found = machine.attainable(work.flops, work.bytes, dtype)
    told = ("seconds", "bound", "compute_s", "memory_s", "peak_flops_per_s", "bandwidth_bytes_per_s")
    return row | {name: getattr(found, name) for name in told}
