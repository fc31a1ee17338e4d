"""Version 3 of the row norms: whole vectors wherever rows start, several short rows a program, wide rows walked twice.

Computes what version 1 does, with the same bytes moved and the same rounding, but for the mean of layernorm, see below.

Changed against version 2:
- Every operand is accessed by 16 bytes, for every n and stride. A row is its body, whole vectors of the output, and
  its edge, less than four vectors beside it, which alone is accessed by elements. Three layouts differ: "aligned",
  all rows start at multiples of 16 bytes; "shifted", the rows of all matrices start anywhere, but alike, as those of
  contiguous matrices of odd n do; "mixed", each starts where it will. What is not aligned with the output, in shifted
  rows weight and bias, is read as two vectors for one and shifted in registers: see rows.py. Of bf16 that is some 3
  instructions an element, where reads by elements take 8 times the accesses. If the two results of residual-rmsnorm
  are not aligned with each other, the sum is read back, from cache, as the second one is aligned.
- Up to 1027 columns a program takes several rows and reduces them together. Shifted rows that are one vector's count
  of rows apart are shifted alike, so a program takes those, and reads and shifts weight and bias once for all.
- 32 elements a thread, not 64: programs share a multiprocessor, and one loads while one reduces.
- Wider rows are walked twice, the second time backward: what was read last is in L1 and then in L2. Registers are
  for loads in flight, 64 KB a multiprocessor. A `tl.range` pipeline would take its buffers from L1.
- layernorm corrects its mean. In registers, the mean of x - mean(x) is taken off again; in two walks, sums are of
  x - k, with k the mean of the first columns. So the error follows the spread of a row, whatever its mean.
  Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983).

What it leaves out: one row over several programs; where the rows in flight exceed L2, a part is read twice. Where
squares overflow, the root counts as infinite, as in torch: rmsnorm gives 0, layernorm its bias.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant
from kernels.norm.operands import Operands, launchers
from kernels.norm.rows import SPREADS_MIXED_ROWS, edge_columns, read, split, write

RMS_EPS = 1e-6
LAYER_EPS = 1e-5
ROWS_BLOCK_WARPS = ((16, 256, 4), (4, 1024, 4), (1, 4096, 4), (1, 8192, 8), (1, 16384, 16))  # 32 elements a thread
ACCESSES = 4  # of 16 bytes, in flight for each thread of a wide row
LAYOUTS = ("aligned", "shifted", "mixed")  # how rows start: at multiples of 16 bytes, anywhere but alike, anywhere
MAX_COLUMNS = 2**30  # a column number plus one tile still fits 32 bits
KEEP = tl.constexpr("evict_last")  # what is read again
DROP = tl.constexpr("evict_first")  # what is not
SIZES = ("m", "n", "x_stride", "r_stride", "out_stride", "plane")  # one binary serves all values of them


@triton.jit
def rounded_sum(x, r):  # blocks of one shape and dtype
    """Return the sum of x and a residual, in the dtype of both."""
    return (x.to(tl.float32) + r.to(tl.float32)).to(x.dtype)


@triton.jit(do_not_specialize=SIZES)
def rms_rows(
    x_ptr,  # x, m rows of n elements
    r_ptr,  # residual, m rows of n elements; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, m rows of n elements; before it the sum, as many, if RESIDUAL
    m,  # rows
    n,  # columns, at most BLOCK + 3
    x_stride,  # elements from one row of x to the next
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether operands are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    ROWS: tl.constexpr,  # rows a program, a power of two
    BLOCK: tl.constexpr,  # columns of the body, a power of two
):
    """Write the RMSNorm of ROWS rows of x, or of the sum of x and the residual."""
    APART: tl.constexpr = VECTOR if SHIFTED else 1  # rows so far apart are shifted alike
    program = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    first = program // APART * (APART * ROWS) + program % APART
    rows = first + tl.arange(0, ROWS)[:, None] * APART
    valid = rows < m
    head, body = split(first * out_stride, n, VECTOR, SHIFTED, MIXED)
    x = read(x_ptr, rows * x_stride + head, 0, body, valid, BLOCK, VECTOR, MIXED, "")
    if RESIDUAL:
        x = rounded_sum(x, read(r_ptr, rows * r_stride + head, 0, body, valid, BLOCK, VECTOR, MIXED, ""))
        write(out_ptr, rows * out_stride + head, x, 0, body, valid, VECTOR, "")
    squares = tl.sum(x.to(tl.float32) * x.to(tl.float32), axis=1)[:, None]
    columns = edge_columns(head, body, EDGE)
    loose = valid & (columns < n)
    x_edge = tl.zeros((ROWS, EDGE), x.dtype)
    if SHIFTED or n % VECTOR != 0:
        x_edge = tl.load(x_ptr + rows * x_stride + columns, mask=loose, other=0.0)
        if RESIDUAL:
            x_edge = rounded_sum(x_edge, tl.load(r_ptr + rows * r_stride + columns, mask=loose, other=0.0))
            tl.store(out_ptr + rows * out_stride + columns, x_edge, mask=loose)
        squares += tl.sum(x_edge.to(tl.float32) * x_edge.to(tl.float32), axis=1)[:, None]
    scale = tl.rsqrt(squares / n + EPS)
    y = rows * out_stride
    if RESIDUAL:
        y += plane
    if RESIDUAL and MIXED:
        tl.debug_barrier()  # a thread may read a sum that another has stored
        head, body = split(plane + first * out_stride, n, VECTOR, SHIFTED, MIXED)
        x = read(out_ptr, rows * out_stride + head, 0, body, valid, BLOCK, VECTOR, True, "")
        columns = edge_columns(head, body, EDGE)
        loose = valid & (columns < n)
        x_edge = tl.load(out_ptr + rows * out_stride + columns, mask=loose, other=0.0)
    w = read(w_ptr, head, 0, body, head >= 0, BLOCK, VECTOR, SHIFTED, "").to(tl.float32)
    write(out_ptr, y + head, x.to(tl.float32) * scale * w, 0, body, valid, VECTOR, "")
    if SHIFTED or n % VECTOR != 0:
        w_edge = tl.load(w_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
        tl.store(out_ptr + y + columns, x_edge.to(tl.float32) * scale * w_edge, mask=loose)


@triton.jit
def inverse_deviation(
    mean_square,  # of what differs from a mean or near it
    mean,  # of the same
    EPS: tl.constexpr,  # added to the variance
):
    """Return 1 / sqrt(variance + EPS), 0 where squares overflowed."""
    variance = tl.maximum(mean_square - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.rsqrt(tl.where(mean_square == float("inf"), mean_square, variance) + EPS)


@triton.jit(do_not_specialize=SIZES)
def layer_rows(
    x_ptr,  # x, m rows of n elements
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    out_ptr,  # y, m rows of n elements
    m,  # rows
    n,  # columns, at most BLOCK + 3
    x_stride,  # elements from one row of x to the next
    out_stride,  # the same of y
    EPS: tl.constexpr,  # added to the variance
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether x and y are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    ROWS: tl.constexpr,  # rows a program, a power of two
    BLOCK: tl.constexpr,  # columns of the body, a power of two
):
    """Write the LayerNorm of ROWS rows of x."""
    APART: tl.constexpr = VECTOR if SHIFTED else 1  # rows so far apart are shifted alike
    program = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    first = program // APART * (APART * ROWS) + program % APART
    rows = first + tl.arange(0, ROWS)[:, None] * APART
    valid = rows < m
    head, body = split(first * out_stride, n, VECTOR, SHIFTED, MIXED)
    x = read(x_ptr, rows * x_stride + head, 0, body, valid, BLOCK, VECTOR, MIXED, "").to(tl.float32)
    total = tl.sum(x, axis=1)[:, None]
    columns = edge_columns(head, body, EDGE)
    loose = valid & (columns < n)
    x_edge = tl.zeros((ROWS, EDGE), tl.float32)
    if SHIFTED or n % VECTOR != 0:
        x_edge = tl.load(x_ptr + rows * x_stride + columns, mask=loose, other=0.0).to(tl.float32)
        total += tl.sum(x_edge, axis=1)[:, None]
    d = tl.where(valid & (tl.arange(0, BLOCK)[None, :] < body), x - total / n, 0.0)
    # What rounding left of the mean: that of a row around 1e4 is off by up to 5e-4.
    rest = tl.sum(d, axis=1)[:, None]
    squares = tl.sum(d * d, axis=1)[:, None]
    if SHIFTED or n % VECTOR != 0:
        x_edge = tl.where(loose, x_edge - total / n, 0.0)
        rest += tl.sum(x_edge, axis=1)[:, None]
        squares += tl.sum(x_edge * x_edge, axis=1)[:, None]
    rest = rest / n
    scale = inverse_deviation(squares / n, rest, EPS)
    w = read(w_ptr, head, 0, body, head >= 0, BLOCK, VECTOR, SHIFTED, "").to(tl.float32)
    b = read(b_ptr, head, 0, body, head >= 0, BLOCK, VECTOR, SHIFTED, "").to(tl.float32)
    write(out_ptr, rows * out_stride + head, (d - rest) * scale * w + b, 0, body, valid, VECTOR, "")
    if SHIFTED or n % VECTOR != 0:
        w_edge = tl.load(w_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
        b_edge = tl.load(b_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
        tl.store(out_ptr + rows * out_stride + columns, (x_edge - rest) * scale * w_edge + b_edge, mask=loose)


@triton.jit(do_not_specialize=SIZES)
def rms_tiles(
    x_ptr,  # x, one row of n elements a program
    r_ptr,  # residual, as many rows; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, as many rows; before it the sum, as many, if RESIDUAL
    n,  # columns
    x_stride,  # elements from one row of x to the next
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether operands are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write the RMSNorm of a wide row of x, or of the sum of x and the residual."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    valid = row >= 0
    head, body = split(row * out_stride, n, VECTOR, SHIFTED, MIXED)
    columns = edge_columns(head, body, EDGE)
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=columns < n, other=0.0)
    if RESIDUAL:
        x_edge = rounded_sum(x_edge, tl.load(r_ptr + row * r_stride + columns, mask=columns < n, other=0.0))
        tl.store(out_ptr + row * out_stride + columns, x_edge, mask=columns < n)
    squares = tl.zeros((1, WIDTH), tl.float32)
    tiles = tl.cdiv(body, WIDTH * ACCESSES)
    for tile in range(tiles):
        for access in tl.static_range(ACCESSES):
            at = (tile * ACCESSES + access) * WIDTH
            x = read(x_ptr, row * x_stride + head, at, body, valid, WIDTH, VECTOR, MIXED, DROP if RESIDUAL else KEEP)
            if RESIDUAL:
                x = rounded_sum(x, read(r_ptr, row * r_stride + head, at, body, valid, WIDTH, VECTOR, MIXED, DROP))
                write(out_ptr, row * out_stride + head, x, at, body, valid, VECTOR, KEEP)
            squares += x.to(tl.float32) * x.to(tl.float32)
    squares = tl.sum(squares, axis=1)[:, None] + tl.sum(x_edge.to(tl.float32) * x_edge.to(tl.float32), axis=1)[:, None]
    scale = tl.rsqrt(squares / n + EPS)
    again_ptr, again, y = x_ptr, row * x_stride, row * out_stride
    if RESIDUAL:
        tl.debug_barrier()  # a thread may read a sum that another has stored
        again_ptr, again, y = out_ptr, row * out_stride, plane + row * out_stride
        head, body = split(y, n, VECTOR, SHIFTED, MIXED)
        columns = edge_columns(head, body, EDGE)
        x_edge = tl.load(again_ptr + again + columns, mask=columns < n, other=0.0)
    w_edge = tl.load(w_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
    tl.store(out_ptr + y + columns, x_edge.to(tl.float32) * scale * w_edge, mask=columns < n)
    for step in range(tiles):
        at = (tiles - 1 - step) * (WIDTH * ACCESSES)
        x = read(again_ptr, again + head, at, body, valid, WIDTH * ACCESSES, VECTOR, MIXED, DROP).to(tl.float32)
        w = read(w_ptr, head, at, body, valid, WIDTH * ACCESSES, VECTOR, SHIFTED, KEEP).to(tl.float32)
        write(out_ptr, y + head, x * scale * w, at, body, valid, VECTOR, DROP)


@triton.jit(do_not_specialize=SIZES)
def layer_tiles(
    x_ptr,  # x, one row of n elements a program
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    out_ptr,  # y, as many rows
    n,  # columns, more than WIDTH + 3 VECTOR
    x_stride,  # elements from one row of x to the next
    out_stride,  # the same of y
    EPS: tl.constexpr,  # added to the variance
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether x and y are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write the LayerNorm of a wide row of x."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros((1, 1), tl.int64)
    valid = row >= 0
    head, body = split(row * out_stride, n, VECTOR, SHIFTED, MIXED)
    tiles = tl.cdiv(body, WIDTH * ACCESSES)
    # Some mean of the row itself is near enough to its mean for nothing to cancel in sums of what differs from it.
    some = read(x_ptr, row * x_stride + head, 0, body, valid, WIDTH, VECTOR, MIXED, KEEP)
    pivot = tl.sum(some.to(tl.float32), axis=1)[:, None] / WIDTH
    columns = edge_columns(head, body, EDGE)
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=columns < n, other=0.0).to(tl.float32)
    d_edge = tl.where(columns < n, x_edge - pivot, 0.0)
    total = tl.zeros((1, WIDTH), tl.float32)
    squares = tl.zeros((1, WIDTH), tl.float32)
    for tile in range(tiles):
        for access in tl.static_range(ACCESSES):
            at = (tile * ACCESSES + access) * WIDTH
            x = read(x_ptr, row * x_stride + head, at, body, valid, WIDTH, VECTOR, MIXED, KEEP).to(tl.float32)
            d = tl.where(at + tl.arange(0, WIDTH)[None, :] < body, x - pivot, 0.0)
            total += d
            squares += d * d
    mean = (tl.sum(total, axis=1) + tl.sum(d_edge, axis=1))[:, None] / n  # of the differences
    squares = (tl.sum(squares, axis=1) + tl.sum(d_edge * d_edge, axis=1))[:, None]
    scale = inverse_deviation(squares / n, mean, EPS)
    w_edge = tl.load(w_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
    b_edge = tl.load(b_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
    y_edge = (d_edge - mean) * scale * w_edge + b_edge
    tl.store(out_ptr + row * out_stride + columns, y_edge, mask=columns < n)
    for step in range(tiles):
        at = (tiles - 1 - step) * (WIDTH * ACCESSES)
        x = read(x_ptr, row * x_stride + head, at, body, valid, WIDTH * ACCESSES, VECTOR, MIXED, DROP).to(tl.float32)
        w = read(w_ptr, head, at, body, valid, WIDTH * ACCESSES, VECTOR, SHIFTED, KEEP).to(tl.float32)
        b = read(b_ptr, head, at, body, valid, WIDTH * ACCESSES, VECTOR, SHIFTED, KEEP).to(tl.float32)
        y = (x - pivot - mean) * scale * w + b
        write(out_ptr, row * out_stride + head, y, at, body, valid, VECTOR, DROP)


_KERNELS = {
    "rmsnorm": (rms_rows, rms_tiles, {"EPS": RMS_EPS, "RESIDUAL": False}),
    "layernorm": (layer_rows, layer_tiles, {"EPS": LAYER_EPS}),
    "residual-rmsnorm": (rms_rows, rms_tiles, {"EPS": RMS_EPS, "RESIDUAL": True}),
}


def _configs(op: str, dtype: torch.dtype, layout: str) -> list[tuple[int, Any, int, dict[str, int]]]:
    """Return longest body, kernel, warps and sizes of each variant, narrow rows first."""
    rows, tiles, _ = _KERNELS[op]
    # Anything else of 16,384 columns, kept in registers, leaves no room for a second program, or spills on sm_80.
    longest = 16384 if op == "rmsnorm" and dtype.itemsize == 2 and layout == "aligned" else 8192
    configs = [(n, rows, warps, {"ROWS": m, "BLOCK": n}) for m, n, warps in ROWS_BLOCK_WARPS if n <= longest]
    if layout == "mixed" and not SPREADS_MIXED_ROWS:  # four rows together, up to where the body fills a wide access
        last = 2048 + 3 * (ALIGNMENT_BYTES // dtype.itemsize) - 4
        configs = [*configs[:2], (last, rows, 8, {"ROWS": 4, "BLOCK": 2048})]
    # Fewer, larger programs keep fewer rows of 256k in L2; layouts with shifts need more registers than those leave.
    for limit, warps in ((2**17, 16), (MAX_COLUMNS, 32)) if layout == "aligned" else ((MAX_COLUMNS, 8),):
        width = warps * 32 * ALIGNMENT_BYTES // dtype.itemsize
        configs.append((limit, tiles, warps, {"WIDTH": width, "ACCESSES": ACCESSES}))
    return configs


def _variants(op: str, dtype: torch.dtype, layout: str) -> list[tuple[int, Variant]]:
    """Return the variants of an operation, narrow rows first, each with the longest body it is for."""
    found, vector = [], ALIGNMENT_BYTES // dtype.itemsize
    constants = _KERNELS[op][2] | {"SHIFTED": layout != "aligned", "MIXED": layout == "mixed", "VECTOR": vector}
    for limit, kernel, warps, sizes in _configs(op, dtype, layout):
        options = {"num_warps": warps, "enable_fp_fusion": True}
        if op == "layernorm" and dtype.itemsize == 2 and layout == "aligned" and limit == 4096:
            options["maxnreg"] = 80  # left to itself, ptxas aims at 72 for sm_80 and spills
        # Several rows take a place a thread, or their layout differs from that of the body, which costs exchanges.
        edge = max(vector << LAYOUTS.index(layout), min(32, 128 // sizes.get("ROWS", 1)))
        shapes = f"n <= {min(limit + 3, MAX_COLUMNS)}" + ("" if layout == "aligned" else f", {layout} rows")
        moved = (elements := math.prod(sizes.values())) * dtype.itemsize * (4 if op == "residual-rmsnorm" else 2)
        names = {"op": op, "dtype": DTYPES[dtype], "shape_class": shapes, "elements": elements, "bytes": moved}
        found.append((limit, Variant(kernel, constants | {"EDGE": edge} | sizes, options, **names)))
    return found


VARIANTS: dict[tuple[str, torch.dtype, str], list[tuple[int, Variant]]] = {
    (op, dtype, layout): _variants(op, dtype, layout)
    for op, dtype, layout in itertools.product(_KERNELS, DTYPES, LAYOUTS)
}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return everything this file compiles, the same for every architecture.

    For wide rows `elements` and `bytes` are of a step of both loops; of residual-rmsnorm, elements of one matrix.
    """
    return tuple(variant for limits in VARIANTS.values() for _, variant in limits)


def layout_of(asked: Operands) -> str:
    """Return how the rows of a norm start, one of `LAYOUTS`."""
    vector = ALIGNMENT_BYTES // asked.out.element_size()
    shifts = {stride % vector for stride in asked.strides}
    alike = len(shifts) == 1 and asked.plane % vector == 0
    return "mixed" if not alike else "shifted" if shifts != {0} else "aligned"


def launch(op: str, asked: Operands) -> None:
    """Start the kernel of an operation on rows that need not be shared among programs."""
    layout, vector = layout_of(asked), ALIGNMENT_BYTES // asked.out.element_size()
    variant = next(variant for limit, variant in VARIANTS[op, asked.out.dtype, layout] if asked.n <= limit + 3)
    operands, sizes = [*asked.inputs, asked.out], [asked.n, *asked.strides]
    if op != "layernorm":
        sizes = [asked.n, asked.strides[0], *asked.strides[-2:], asked.plane]
        operands = [asked.inputs[0], *operands] if op == "rmsnorm" else operands
    rows, apart = variant.constants.get("ROWS"), 1 if layout == "aligned" else vector
    groups, rest = divmod(asked.m, (rows or 1) * apart)
    variant.launch(groups * apart + min(rest, apart), *operands, *([asked.m] if rows else []), *sizes)


KERNELS: dict[str, Callable[..., None]] = launchers("v3", MAX_COLUMNS, launch)
