"""Estimates of tensors, number formats and matrix products."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import prod
from typing import Annotated, Any, Unpack

from results.show.terminal import one_line
from results.show.units import count, duration, number
from roofline.accounting.config import ConfigError
from roofline.accounting.machines import attainable, peak_of, why_not
from roofline.accounting.number_formats import FORMATS, scale_bytes, shown_in
from roofline.accounting.strides import after, dense_strides
from roofline.estimate.answer import Answer, Step, by_machine
from roofline.estimate.options import Computing, machines_of, sources_of
from roofline.estimate.question import (
    OneOf,
    SomeOf,
    Whole,
    exact,
    extents,
    product_shape,
    question,
    text_of,
    whole,
)
from roofline.machine import MEASURED_FIRST, Machine
from roofline.model import intensity
from roofline.work import DTYPE_BITS, DTYPES, bytes_of, matmul_work

OUT_DTYPES = {
    "fp8e4m3": "bf16",
    "fp8e5m2": "bf16",
    "nvfp4": "bf16",
    "int8": "int32",
    "tf32": "fp32",
}

AXES = {
    (True, True, True): "batch",
    (True, False, True): "m",
    (False, True, True): "n",
    (True, True, False): "k",
}
"""Axis of an index of the matrix product, by whether it is in the first operand, in the second, and
in the result.
"""


def index_sizes(value: object) -> dict[str, int]:
    """Return the extents of indices such as "b=4,s=8" or {"b": 4, "s": 8}."""
    given = value.items() if isinstance(value, Mapping) else ()
    text = ",".join(f"{name}={size}" for name, size in given) or text_of(value)
    pairs = [word.partition("=") for word in text.split(",")]
    if not all(name.strip() and sign for name, sign, _ in pairs):
        raise ConfigError(f"'{one_line(text)}' is not a list of sizes such as b=4,s=8,h=16,k=32")
    return {name.strip(): whole(size) for name, _, size in pairs}


def axes_of(einsum: str, sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the indices of each axis of the matrix product that an einsum of two operands is:
    batch, m, n and k.

    Indices are letters, as torch writes them, or names with spaces between them, as einops does.
    Each is in both operands (batch if it is also in the result, else k), or in one operand and the
    result (m and n).

    Raises:
        ConfigError: it is not an einsum or not a matrix product, or an index has no size.
    """
    from opt_einsum.parser import get_symbol, parse_einsum_input

    index = r"\.{3}|[^\s,.>-]+"
    if not re.search(r"\w\s+\w", einsum) and not {*re.findall(index, einsum)} <= sizes.keys():
        index = index.removesuffix("+")  # letters without spaces
    names = list(dict.fromkeys(re.findall(index, einsum)))
    if missing := [name for name in names if name not in sizes]:
        raise ConfigError(
            f"index '{one_line(missing[0])}' has no size; --sizes has {', '.join(sizes) or 'none'}"
        )
    are_letters = all(len(name) == 1 and name.isalpha() for name in names)
    letters = {
        name: name if are_letters else get_symbol(number) for number, name in enumerate(names)
    }
    operands = [re.findall(index, operand) for operand in einsum.partition("->")[0].split(",")]
    shapes = [tuple(sizes[name] for name in operand) for operand in operands]
    text = re.sub(index, lambda match: letters[match[0]], einsum)
    try:
        terms, result, _ = parse_einsum_input((text, *shapes), shapes=True)
    except ValueError as error:
        raise ConfigError(
            f"'{one_line(einsum)}' is not an einsum: {one_line(str(error))}"
        ) from None
    if len(operands) != 2:
        raise ConfigError(
            f"'{one_line(einsum)}' is not an einsum of two operands such as 'b s h, h k -> b s k'"
        )
    axes: dict[str, list[str]] = {axis: [] for axis in AXES.values()}
    for name, letter in letters.items():
        counts = [term.count(letter) for term in (*terms.split(","), result)]
        axis = AXES.get((counts[0] > 0, counts[1] > 0, counts[2] > 0))
        if axis is None or max(counts) > 1:
            raise ConfigError(
                f"index '{name}' must be in two of the terms of the einsum, once in each"
            )
        axes[axis].append(name)
    if not axes["k"]:
        raise ConfigError("the einsum sums over no index, so it is not a matrix product")
    return axes


def operations(value: object) -> list[str]:
    """Return the operations of a list such as "transpose,reshape:8x4,[:,1]"."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else text_of(value)
    return [word.strip() for word in re.findall(r"\[[^\]]*\]|[^,]+", text)]


@question
def tensor(
    shape: Annotated[tuple[int, ...], extents],
    dtype: Annotated[str, OneOf(DTYPES)] = "fp32",
    then: Annotated[list[str] | None, operations] = None,
) -> Answer:
    """Elements, bytes and strides of a dense tensor, and which operations on it make a view or a
    copy.
    """
    elements = prod(shape)
    strides = list(dense_strides(shape))
    rows = _operations(shape, dtype, then or ())
    stored = bytes_of(elements, dtype)
    scales = scale_bytes(elements, dtype)
    total = stored + scales
    steps = [
        Step("elements", " x ".join(map(str, shape)), count(elements)),
        Step("bytes", f"{elements:,} x {DTYPE_BITS[dtype]} bits / 8", count(stored)),
    ]
    if scales:
        steps.append(Step("block scales", f"{elements:,} / 16, one byte each", count(scales)))
    steps += [
        Step("in GB", f"{total:,} / 10^9", f"{number(total / 1e9)} GB"),
        Step("in GiB", f"{total:,} / 2^30", f"{number(total / 2**30)} GiB"),
        Step(
            "strides",
            "products of the following extents, in elements (row-major)",
            ", ".join(map(str, strides)),
        ),
    ]
    values: dict[str, Any] = {
        "elements": elements,
        "bytes": total,
        "scale_bytes": scales,
        "strides": strides,
        "dtype": dtype,
    }
    notes = ["dense and contiguous; a view needs no bytes", "GB is 10^9 bytes, GiB 2^30"]
    if rows:
        values["copied_bytes"] = sum(row["bytes_copied"] for row in rows)
        notes.append("view or copy as in torch; a copy reads and writes the bytes copied")
    return Answer(
        main=("bytes", "elements", "copied_bytes"),
        title=", ".join([f"A tensor of {'x'.join(map(str, shape))} in {dtype}", *(then or ())]),
        values=values,
        rows=rows,
        rows_key="steps",
        columns={
            "op": "then",
            "result": "result",
            "shape": "shape",
            "strides": "strides",
            "bytes_copied": "copied",
        },
        steps=steps,
        formula="bytes = elements x bits / 8; element i is at offset sum(i x stride)",
        source="CS336 (2025) lecture 2: numel() x element_size()",
        assumptions=notes,
    )


def _operations(shape: tuple[int, ...], dtype: str, then: Sequence[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    strides = dense_strides(shape)
    for operation in then:
        shape, strides, is_copy = after(operation, shape, strides)
        copied = prod(shape) if is_copy else 0
        rows.append(
            {
                "op": operation,
                "result": "copy" if is_copy else "view",
                "shape": "x".join(map(str, shape)),
                "strides": list(strides),
                "bytes_copied": bytes_of(copied, dtype) + scale_bytes(copied, dtype),
            }
        )
    return rows


FORMAT_COLUMNS = {
    "bits": "bits",
    "exponent_bits": "exponent",
    "mantissa_bits": "mantissa",
    "largest": "largest",
    "smallest_normal": "normal from",
    "smallest_subnormal": "smallest",
    "epsilon": "epsilon",
    "decimal_digits": "digits",
}


@question
def dtype(
    dtype: Annotated[list[str] | None, SomeOf(tuple(FORMATS))] = None,
    value: Annotated[Fraction | float, exact] | None = None,
) -> Answer:
    """Ranges and precision of floating-point formats, and a value rounded to each."""
    rows: list[dict[str, Any]] = []
    columns = {"dtype": "dtype", **FORMAT_COLUMNS}
    title = "Floating-point formats"
    values: dict[str, float] = {}
    for name in dtype or FORMATS:
        row: dict[str, Any] = {"dtype": name}
        for key in FORMAT_COLUMNS:
            fact = getattr(FORMATS[name], key)
            row[key] = fact if "bits" in key else float(fact)
        rows.append(row)
    if value is not None:
        columns["value"] = "value"
        title += f", and {float(value):g} in each"
        values["asked"] = float(value)
        for row in rows:
            row["value"] = shown_in(Fraction(value), row["dtype"])
    return Answer(
        title=title,
        values=values,
        steps=(),
        formula="largest (2 - 2^-m) 2^bias, normal from 2^(1 - bias), smallest 2^(1 - bias - m), "
        "epsilon 2^-m",
        source="; ".join(dict.fromkeys(FORMATS[row["dtype"]].source for row in rows)),
        assumptions=[
            "digits: log10 of 2^(m + 1); fewer below `normal from`, none at `smallest`",
            "rounding to nearest, ties to even; half of `smallest` and less becomes 0",
            "fp8e4m3 has no infinity: larger values become 448 or nan, depending on the conversion",
        ],
        rows=rows,
        columns=columns,
    )


@question
def matmul(
    shape: Annotated[tuple[int, int, int], product_shape] | None = None,
    batch: Whole = 1,
    einsum: str | None = None,
    sizes: Annotated[Mapping[str, int], index_sizes] | None = None,
    **options: Unpack[Computing],
) -> Answer:
    """FLOPs and bytes of a matrix product (m, k) x (k, n) or of an einsum, and its minimum time on
    a machine.
    """
    (m, n, k), batch, steps = _product(shape, batch, einsum, sizes)
    has_machine = not {"gpu", "measured", "peak", "bandwidth"}.isdisjoint(options)
    machines = machines_of(options) if has_machine else []
    dtypes = options.get("dtype", ["bf16"])
    rows = [
        _matmul_row((m, n, k), batch, machine, dtype)
        for machine in (machines or (None,))
        for dtype in dtypes
    ]
    row = next((row for row in rows if row["seconds"] is not None), rows[0])
    if machines and row["seconds"] is None:
        peak_of(machines[0], dtypes[0])
    times = f"{batch} x " if batch > 1 else ""
    repeated = f", {batch} times" if batch > 1 else ""
    columns = {"dtype": "dtype", "flops": "FLOPs", "bytes": "bytes", "intensity": "FLOP/B"}
    steps += [
        Step("FLOPs", f"2 x {times}{m} x {n} x {k}", count(row["flops"])),
        Step(
            "bytes",
            f"{times}({m} x {k} + {k} x {n} read, {m} x {n} written)",
            count(row["bytes"]),
        ),
        Step(
            "intensity",
            f"{number(row['flops'])} / {number(row['bytes'])}",
            f"{number(row['intensity'])} FLOP/B",
        ),
    ]
    if machines:
        columns = {"gpu": "GPU", **columns, "seconds": "time", "bound": "bound"}
        for limit, work, rate in LIMITS:
            arithmetic = f"{number(row[work])} / {number(row[rate])}"
            steps.append(Step(limit, arithmetic, duration(row[f"{limit}_s"])))
        longer = f"{duration(row['seconds'])}, {row['bound']}-bound"
        steps.append(Step("time", "the longer one", longer))
    return Answer(
        main=("seconds", "bound") if machines else ("flops", "bytes", "intensity"),
        title=f"Einsum {einsum}" if einsum else f"Matrix product {m}x{n}x{k}{repeated} (MxNxK)",
        **by_machine(rows),
        steps=steps,
        formula="seconds = max(2 m n k / peak, w (m k + k n + m n) / bandwidth)",
        source="; ".join(
            filter(None, ["Williams, Waterman and Patterson (2009)", sources_of(machines)])
        ),
        assumptions=[
            "lower bound: each operand moves once, at full bandwidth and peak",
            "output: bf16 for fp8 and nvfp4, int32 for int8; block scales are not counted",
            *(
                f"{row['gpu']} has {row['reason']} {row['dtype']}"
                for row in rows
                if "reason" in row
            ),
        ],
        columns=columns,
    )


def _product(
    shape: tuple[int, int, int] | None,
    batch: int,
    einsum: str | None,
    sizes: Mapping[str, int] | None,
) -> tuple[tuple[int, int, int], int, list[Step]]:
    """Return the extents (m, n, k) and the batch of a shape or an einsum, and the step that folds
    the einsum.
    """
    if shape is not None and einsum is None and sizes is None:
        return shape, batch, []
    if shape is not None or einsum is None or sizes is None or batch > 1:
        raise ConfigError(
            "expected --shape MxNxK, with --batch for several products, or --einsum with --sizes"
        )
    axes = axes_of(einsum, sizes)
    m, n, k, batch = (
        prod(sizes[index] for index in axes[axis]) for axis in ("m", "n", "k", "batch")
    )
    folded = ", ".join(f"{axis} = {' '.join(indices)}" for axis, indices in axes.items() if indices)
    return (
        (m, n, k),
        batch,
        [Step("as a matmul", folded, f"{f'{batch} x ' if batch > 1 else ''}{m}x{n}x{k}")],
    )


LIMITS = (("compute", "flops", "peak_flops_per_s"), ("memory", "bytes", "bandwidth_bytes_per_s"))
TIMES = ("seconds", "bound", "compute_s", "memory_s", "peak_flops_per_s", "bandwidth_bytes_per_s")


def _matmul_row(
    shape: tuple[int, int, int], batch: int, machine: Machine | None, dtype: str
) -> dict[str, Any]:
    m, n, k = shape
    work = matmul_work(m, n, k, dtype, OUT_DTYPES.get(dtype, dtype), batch)
    row: dict[str, Any] = {"gpu": machine.slug} if machine else {}
    row |= {
        "dtype": dtype,
        "flops": work.flops,
        "bytes": work.bytes,
        "intensity": intensity(work.flops, work.bytes),
    }
    if machine is None:
        return row | {"seconds": None}
    if machine.peak(dtype, MEASURED_FIRST) is None:
        return row | {"seconds": None, "bound": None, "reason": why_not(machine, dtype)}
    limit = attainable(machine, work.flops, work.bytes, dtype)
    return row | {name: getattr(limit, name) for name in TIMES}
