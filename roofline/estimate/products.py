"""Estimates of tensors, number formats and matrix products."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product as pairs
from math import frexp, prod
from typing import Annotated, NamedTuple, Unpack

from results.show.terminal import one_line
from roofline.accounting.config import ConfigError
from roofline.accounting.machines import attainable, peak_of, why_not
from roofline.accounting.number_formats import (
    FORMATS,
    INTEGERS,
    SCALE_BLOCK,
    scale_bytes,
    shown_in,
)
from roofline.accounting.strides import after, dense_strides
from roofline.estimate.answer import Answer, Curve, Row, by_machine, steps_of
from roofline.estimate.options import Computing, machines_of, sources_of
from roofline.estimate.question import (
    Whole,
    exact,
    extents,
    named,
    product_shape,
    question,
    text_of,
    whole,
)
from roofline.machine import MEASURED_FIRST, Machine
from roofline.model import intensity, ridge_intensity
from roofline.work import DTYPE_BITS, bytes_of, matmul_work

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
    sizes = named(value)
    if "" in (*sizes, *sizes.values()):
        raise ConfigError(
            f"'{one_line(str(value))}' is not a list of sizes such as b=4,s=8,h=16,k=32"
        )
    return {name: whole(size) for name, size in sizes.items()}


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
    missing = [name for name in names if name not in sizes]
    if missing:
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


MAX_ROWS = 8
MAX_COLUMNS = 64
"""Of a tensor, that are drawn."""

TENSOR_STEPS = """\
elements | {extents} | {elements:count}
bytes | {elements:,} x {bits} bits / 8 | {stored:count}
block scales | {elements:,} / {block}, one byte each | {scales:count}
in GB | {total:,} / 10^9 | {gigabytes:number} GB
in GiB | {total:,} / 2^30 | {total:memory}
strides | products of the following extents, in elements (row-major) | {strides}
position | of the element {index}: {products} | {position}
"""


@question
def tensor(
    shape: Annotated[tuple[int, ...], extents],
    dtype: Annotated[str, tuple(DTYPE_BITS)] = "fp32",
    index: str | None = None,
    then: Annotated[Sequence[str] | None, operations] = None,
) -> Answer:
    """Elements, bytes and strides of a dense tensor, and which operations on it make a view or a
    copy.
    """
    elements = prod(shape)
    strides = dense_strides(shape)
    stored = bytes_of(elements, dtype)
    scales = scale_bytes(elements, dtype)
    total = stored + scales
    values: Row = {
        "elements": elements,
        "bytes": total,
        "scale_bytes": scales,
        "strides": list(strides),
        "dtype": dtype,
    }
    products = None
    if index is not None:
        if not re.fullmatch(r"\d{1,18}(,\d{1,18})*", index):
            raise ConfigError(f"--index '{one_line(index)}' is not an index such as 1,2")
        after(f"[{index}]", shape, strides)  # raises an error if it is not in the tensor
        places = list(zip(map(int, index.split(",")), strides, strict=False))
        products = " + ".join(f"{place} x {stride}" for place, stride in places)
        values["position"] = sum(map(prod, places))
    notes = ["dense and contiguous; a view needs no bytes", "GB is 10^9 bytes, GiB 2^30"]
    steps = steps_of(
        TENSOR_STEPS,
        extents=" x ".join(map(str, shape)),
        elements=elements,
        bits=DTYPE_BITS[dtype],
        stored=stored,
        scales=scales or None,
        block=SCALE_BLOCK.get(dtype),
        total=total,
        gigabytes=total / 1e9,
        strides=", ".join(map(str, strides)),
        index=index,
        products=products,
        position=values.get("position"),
    )
    title = [f"A tensor of {'x'.join(map(str, shape))} in {dtype}"]
    rows: list[Row] = []
    start = 0
    for operation in then or ():
        shape, strides, is_copy, skipped = after(operation, shape, strides)
        start += skipped
        row: Row = {
            "op": operation,
            "result": "view",
            "shape": "x".join(map(str, shape)),
            "strides": list(strides),
            "bytes_copied": 0,
        }
        if is_copy:
            start = 0
            row["result"] = "copy"
            row["bytes_copied"] = bytes_of(prod(shape), dtype) + scale_bytes(prod(shape), dtype)
        rows.append(row)
        title.append(operation)
    if rows:
        values["copied_bytes"] = sum(row["bytes_copied"] for row in rows)
        notes.append("view or copy as in torch; a copy reads and writes the bytes copied")
    tall, wide = (1, 1, *shape)[-2:]
    down, right = (0, 0, *strides)[-2:]
    lines = {}
    for line in range(min(tall, MAX_ROWS)):
        columns = range(min(wide, MAX_COLUMNS))
        lines[f"row {line}"] = [
            (column, start + line * down + column * right) for column in columns
        ]
    return Answer(
        main=("bytes", "elements", "position", "copied_bytes"),
        curve=Curve("column", "position in storage", lines),
        title=", ".join(title),
        values=values,
        rows=rows,
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
    dtype: Annotated[list[str] | None, (*FORMATS, *INTEGERS)] = None,
    value: Annotated[Fraction | float, exact] | None = None,
) -> Answer:
    """Ranges and precision of floating-point formats and integers, and a value in each."""
    rows = []
    columns = {"dtype": "dtype", **FORMAT_COLUMNS, "lowest": "lowest"}
    title = "Number formats"
    values: Row = {}
    sources = []
    if value is not None:
        columns["value"] = "value"
        title += f", and {float(value):g} in each"
        values["asked"] = float(value)
    ranges: dict[str, list[tuple[float, float]]] = {}
    for name in dtype or (*FORMATS, *INTEGERS):
        row: Row = {"dtype": name}
        rows.append(row)
        if value is not None:
            row["value"] = shown_in(Fraction(value), name)
        if name in INTEGERS:
            row |= {"bits": DTYPE_BITS[name]}
            row |= {"lowest": INTEGERS[name][0], "largest": INTEGERS[name][-1]}
            sources.append("torch, which stores integers in two's complement")
            continue
        for key in FORMAT_COLUMNS:
            fact = getattr(FORMATS[name], key)
            row[key] = fact if "bits" in key else float(fact)
        row["lowest"] = -row["largest"]
        ends = row["smallest_normal"], row["largest"]
        ranges[name] = [(frexp(end)[1] - 1, row["decimal_digits"]) for end in ends]
        sources.append(FORMATS[name].source)
    return Answer(
        title=title,
        values=values,
        steps=(),
        curve=Curve("power of 2", "decimal digits", ranges) if ranges else None,
        formula="largest (2 - 2^-m) 2^bias, normal from 2^(1 - bias), smallest 2^(1 - bias - m), "
        "epsilon 2^-m",
        source="; ".join(dict.fromkeys(sources)),
        assumptions=[
            "digits: log10 of 2^(m + 1); fewer below `normal from`, none at `smallest`",
            "rounding to nearest, ties to even; half of `smallest` and less becomes 0",
            "integers: fractions are cut off, and numbers out of range have no value",
            "fp8e4m3 has no infinity: larger values become 448 or nan, depending on the conversion",
        ],
        rows=rows,
        columns=columns,
    )


MATMUL_STEPS = """\
as a matmul | {product.folded} | {times}{product.m}x{product.n}x{product.k}
FLOPs | 2 x {times}{product.m} x {product.n} x {product.k} | {flops:count}
bytes | {times}({product.m} x {product.k} + {product.k} x {product.n} read, {product.m} x \
{product.n} written) | {bytes:count}
intensity | {flops:number} / {bytes:number} | {intensity:number} FLOP/B
compute | {flops:number} / {peak_flops_per_s:number} | {compute_s:time}
memory | {bytes:number} / {bandwidth_bytes_per_s:number} | {memory_s:time}
time | the longer one | {seconds:time}, {bound}-bound
"""


class _Product(NamedTuple):
    m: int
    n: int
    k: int
    batch: int
    folded: str | None = None
    """The indices of an einsum by axis."""


@question
def matmul(
    shape: Annotated[tuple[int, int, int], product_shape] | None = None,
    rows: Whole | None = None,
    batch: Whole = 1,
    einsum: str | None = None,
    sizes: Annotated[Mapping[str, int], index_sizes] | None = None,
    **options: Unpack[Computing],
) -> Answer:
    """FLOPs and bytes of a matrix product (m, k) x (k, n) or of an einsum, and its minimum time on
    a machine.
    """
    if shape and rows:
        shape = (rows, *shape[1:])
    product = _product(shape, batch, einsum, sizes)
    machines = machines_of(options, is_needed=False)
    dtypes = options.get("dtype", ["bf16"])
    columns = {"dtype": "dtype", "flops": "FLOPs", "bytes": "bytes", "intensity": "FLOP/B"}
    main = ["intensity", "flops", "bytes"]
    sources = ["Williams, Waterman and Patterson (2009)"]
    notes = [
        "lower bound: each operand moves once, at full bandwidth and peak",
        "output: bf16 for fp8 and nvfp4, int32 for int8; block scales are not counted",
    ]
    answers = [_matmul_row(product, None, dtype) for dtype in dtypes]
    row = answers[0]
    curve = None
    if machines:
        answers = [_matmul_row(product, *at) for at in pairs(machines, dtypes)]
        timed = [row for row in answers if row["seconds"] is not None]
        if not timed:
            peak_of(machines[0], dtypes[0])
        row = timed[0]
        columns = {"gpu": "GPU", **columns, "seconds": "time", "bound": "bound"}
        main = ["seconds", "bound", "intensity", "flops"]
        sources.append(sources_of(machines))
        roofs = {}
        points = {}
        for at in timed:
            name = f"{at['gpu']} in {at['dtype']}"
            roofs[name] = (at["peak_flops_per_s"], at["bandwidth_bytes_per_s"])
            points[f"this product on {name}"] = (at["intensity"], at["flops"] / at["seconds"])
        curve = under_roofs(roofs, points)
        lacking = [row for row in answers if "reason" in row]
        notes += [f"{row['gpu']} has {row['reason']} {row['dtype']}" for row in lacking]
    facts = dict.fromkeys(TIMES) | row
    times = ""
    repeated = ""
    if product.batch > 1:
        times = f"{product.batch} x "
        repeated = f", {product.batch} times"
    title = f"Matrix product {product.m}x{product.n}x{product.k}{repeated} (MxNxK)"
    if einsum:
        title = f"Einsum {einsum}"
    return Answer(
        main=main,
        title=title,
        **by_machine(answers),
        steps=steps_of(MATMUL_STEPS, **facts, product=product, times=times),
        formula="seconds = max(2 m n k / peak, w (m k + k n + m n) / bandwidth)",
        source="; ".join(filter(None, sources)),
        assumptions=notes,
        columns=columns,
        curve=curve,
    )


def _product(
    shape: tuple[int, int, int] | None,
    batch: int,
    einsum: str | None,
    sizes: Mapping[str, int] | None,
) -> _Product:
    if shape is not None and einsum is None and sizes is None:
        return _Product(*shape, batch)
    if shape is not None or einsum is None or sizes is None or batch > 1:
        raise ConfigError(
            "expected --shape MxNxK, with --batch for several products, or --einsum with --sizes"
        )
    axes = axes_of(einsum, sizes)
    extent = {axis: prod(sizes[index] for index in indices) for axis, indices in axes.items()}
    folded = [f"{axis} = {' '.join(indices)}" for axis, indices in axes.items() if indices]
    return _Product(**extent, folded=", ".join(folded))


WIDER = 20
"""Factor by which rooflines extend beyond their ridges and the points, so that both sides show."""


def under_roofs(
    roofs: Mapping[str, tuple[float, float]], points: Mapping[str, tuple[float, float]]
) -> Curve:
    """Return the plot of points (FLOP/B and FLOP/s) under rooflines (peak FLOP/s and bytes/s)."""
    ridges = {name: ridge_intensity(*roof) for name, roof in roofs.items()}
    xs = [*ridges.values(), *(x for x, _ in points.values())]
    lines = {}
    for name, (peak, bandwidth) in roofs.items():
        corners = (min(xs) / WIDER, ridges[name], max(xs) * WIDER)
        lines[f"roofline of {name}"] = [(x, min(peak, x * bandwidth)) for x in corners]
    lines |= {name: [point] for name, point in points.items()}
    return Curve("FLOP per byte", "FLOP/s", lines)


TIMES = ("seconds", "bound", "compute_s", "memory_s", "peak_flops_per_s", "bandwidth_bytes_per_s")


def _matmul_row(product: _Product, machine: Machine | None, dtype: str) -> Row:
    out_dtype = OUT_DTYPES.get(dtype, dtype)
    work = matmul_work(product.m, product.n, product.k, dtype, out_dtype, product.batch)
    row: Row = {"gpu": machine.slug} if machine else {}
    row |= {"dtype": dtype, "flops": work.flops, "bytes": work.bytes}
    row |= {"intensity": intensity(work.flops, work.bytes), "seconds": None}
    if machine is None:
        return row
    if machine.peak(dtype, MEASURED_FIRST) is None:
        return row | {"bound": None, "reason": why_not(machine, dtype)}
    limit = attainable(machine, work.flops, work.bytes, dtype)
    return row | {name: getattr(limit, name) for name in TIMES}
