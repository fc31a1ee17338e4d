"""Version 4 of the row norms: as version 3, and programs share a row where rows are few, or too wide for the cache.

Computes what version 3 does, with the same rounding but for the order of the sums.

Changed against the last version:
- Fewer rows than multiprocessors leave some of them idle in version 3, which gives a wide row to one program. Here such
  rows are cut into up to 128 pieces. A first launch writes the sums of each piece, and the residual sum; a second one
  adds those of its row and writes its piece.
- A row of 131,072 columns and more is read twice by version 3. With one such row on each multiprocessor of an H100 they
  are 35 MB in 16 bits and more, so that beyond 190,000 columns the second read comes from memory. Here so many rows at
  a time go through both launches as take half of the cache, and the second read finds them there.
- layernorm keeps of each piece the mean of its first columns, the mean of the differences from it, and the sum of
  squares around both, and combines them as differences from the first piece. So the error follows the spread of a row,
  whatever its mean. Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983).

Nothing depends on which program comes first, so the same call gives the same bits on the same GPU.

What it leaves out: the second launch costs its microseconds where the first lasts as few. Programs of one row that
wait for each other, as in a cluster, would read it once; an interpreter that runs programs one by one could not test
them.
"""

import itertools
from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, gpu_of
from kernels.norm import v3_vectors
from kernels.norm.operands import Operands, launchers
from kernels.norm.rows import edge_columns, read, split, write
from kernels.norm.v3_vectors import LAYOUTS, MAX_COLUMNS, inverse_deviation, layout_of, rounded_sum

RMS_EPS = v3_vectors.RMS_EPS
LAYER_EPS = v3_vectors.LAYER_EPS
WARPS = 4
ACCESSES = 4  # of 16 bytes, in flight for each thread
MAX_SPLITS = 128  # programs of one row
PROGRAMS_A_PROCESSOR = 2  # what splitting aims at
FEWEST_STEPS = 4  # of a row that is split because rows are few
WIDE = 2**17  # columns from which rows are split, however many they are
CACHE_SHARE = 2  # rows in flight take at most this fraction of the cache, `1 / CACHE_SHARE`
DROP = tl.constexpr("evict_first")  # what is not read again
KEEP = tl.constexpr("evict_last")  # what is
SIZES = ("n", "x_stride", "r_stride", "out_stride", "plane", "first_row", "splits", "chunk")  # one binary for all


@triton.jit
def piece(
    program,  # its number, int64
    first_row,  # of this launch
    splits,  # pieces a row
):
    """Return the row of a program as a block, the row's number in this launch, and the program's piece of it."""
    row = program // splits
    return first_row + row + tl.zeros((1, 1), tl.int64), row, (program - row * splits).to(tl.int32)


@triton.jit
def columns_of(
    place,  # of the program in its row
    body,  # columns that are read in whole vectors
    chunk,  # columns of a piece, a multiple of VECTOR
    VECTOR: tl.constexpr,  # elements of 16 bytes
):
    """Return where the columns of a piece begin and end, as multiples of VECTOR that the compiler can see."""
    vectors = chunk // VECTOR
    return place * vectors * VECTOR, tl.minimum(body // VECTOR, (place + 1) * vectors) * VECTOR


@triton.jit(do_not_specialize=SIZES)
def rms_partial(
    x_ptr,  # x, rows of n elements
    r_ptr,  # residual, as many rows; not read unless RESIDUAL
    out_ptr,  # the sum, as many rows; not written unless RESIDUAL
    squares_ptr,  # sum of squares of each piece, `splits` elements a row of this launch
    n,  # columns
    x_stride,  # elements from one row of x to the next
    r_stride,  # the same of the residual
    out_stride,  # the same of the sum
    first_row,  # of this launch
    splits,  # pieces a row
    chunk,  # columns of a piece, a multiple of WIDTH; the last one may have fewer, or none
    RESIDUAL: tl.constexpr,  # whether there is a residual
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether operands are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write the sum of squares of a piece of x, or of the sum of x and the residual, and that sum."""
    program = tl.program_id(0).to(tl.int64)
    row, _, place = piece(program, first_row, splits)
    valid = row >= 0
    head, body = split(row * out_stride, n, VECTOR, SHIFTED, MIXED)
    begin, end = columns_of(place, body, chunk, VECTOR)
    columns = edge_columns(head, body, EDGE)
    loose = columns < tl.where(place == 0, n, 0)  # the first piece has them
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=loose, other=0.0)
    if RESIDUAL:
        x_edge = rounded_sum(x_edge, tl.load(r_ptr + row * r_stride + columns, mask=loose, other=0.0))
        tl.store(out_ptr + row * out_stride + columns, x_edge, mask=loose)
    squares = tl.zeros((1, WIDTH), tl.float32)
    for tile in range(tl.cdiv(tl.minimum(n - begin, chunk), WIDTH * ACCESSES)):
        for access in tl.static_range(ACCESSES):
            at = begin + (tile * ACCESSES + access) * WIDTH
            x = read(x_ptr, row * x_stride + head, at, end, valid, WIDTH, VECTOR, MIXED, DROP if RESIDUAL else KEEP)
            if RESIDUAL:
                x = rounded_sum(x, read(r_ptr, row * r_stride + head, at, end, valid, WIDTH, VECTOR, MIXED, DROP))
                write(out_ptr, row * out_stride + head, x, at, end, valid, VECTOR, KEEP)
            squares += x.to(tl.float32) * x.to(tl.float32)
    edge_squares = tl.sum(x_edge.to(tl.float32) * x_edge.to(tl.float32))
    tl.store(squares_ptr + program, tl.sum(squares) + edge_squares)


@triton.jit(do_not_specialize=SIZES)
def rms_finish(
    x_ptr,  # x, or the sum of x and the residual: rows of n elements
    w_ptr,  # weight, n elements
    squares_ptr,  # sum of squares of each piece, `splits` elements a row of this launch
    out_ptr,  # y, as many rows, `plane` elements behind
    n,  # columns
    x_stride,  # elements from one row of x to the next
    out_stride,  # the same of y
    plane,  # elements from the start of out to y
    first_row,  # of this launch
    splits,  # pieces a row
    chunk,  # columns of a piece, a multiple of WIDTH
    EPS: tl.constexpr,  # added to the mean of squares
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether operands are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    """Write the RMSNorm of a piece of a row."""
    row, number, place = piece(tl.program_id(0).to(tl.int64), first_row, splits)
    valid = row >= 0
    pieces = tl.arange(0, MAX_SPLITS)
    squares = tl.sum(tl.load(squares_ptr + number * splits + pieces, mask=pieces < splits, other=0.0))
    scale = tl.rsqrt(squares / n + EPS)
    y = plane + row * out_stride
    head, body = split(y, n, VECTOR, SHIFTED, MIXED)
    begin, end = columns_of(place, body, chunk, VECTOR)
    columns = edge_columns(head, body, EDGE)
    loose = columns < tl.where(place == 0, n, 0)  # the first piece has them
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=loose, other=0.0).to(tl.float32)
    w_edge = tl.load(w_ptr + columns, mask=loose, other=0.0).to(tl.float32)
    tl.store(out_ptr + y + columns, x_edge * scale * w_edge, mask=loose)
    for tile in range(tl.cdiv(tl.minimum(n - begin, chunk), WIDTH * ACCESSES)):
        at = begin + tile * (WIDTH * ACCESSES)
        x = read(x_ptr, row * x_stride + head, at, end, valid, WIDTH * ACCESSES, VECTOR, MIXED, DROP).to(tl.float32)
        w = read(w_ptr, head, at, end, valid, WIDTH * ACCESSES, VECTOR, SHIFTED, KEEP).to(tl.float32)
        write(out_ptr, y + head, x * scale * w, at, end, valid, VECTOR, DROP)


@triton.jit(do_not_specialize=SIZES)
def layer_partial(
    x_ptr,  # x, rows of n elements
    sums_ptr,  # three numbers of each piece, three times `splits` elements a row of this launch
    n,  # columns
    x_stride,  # elements from one row of x to the next
    out_stride,  # the same of y
    first_row,  # of this launch
    splits,  # pieces a row
    chunk,  # columns of a piece, a multiple of WIDTH; the last one may have fewer, or none
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether x and y are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write a number near the mean of a piece of x, the mean of the differences, and their squares around it."""
    program = tl.program_id(0).to(tl.int64)
    row, number, place = piece(program, first_row, splits)
    valid = row >= 0
    head, body = split(row * out_stride, n, VECTOR, SHIFTED, MIXED)
    begin, end = columns_of(place, body, chunk, VECTOR)
    some = read(x_ptr, row * x_stride + head, begin, end, valid, WIDTH, VECTOR, MIXED, KEEP)
    pivot = tl.sum(some.to(tl.float32), axis=1)[:, None] / tl.maximum(tl.minimum(end - begin, WIDTH), 1)
    columns = edge_columns(head, body, EDGE)
    loose = columns < tl.where(place == 0, n, 0)  # the first piece has them
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=loose, other=0.0).to(tl.float32)
    d_edge = tl.where(loose, x_edge - pivot, 0.0)
    total = tl.zeros((1, WIDTH), tl.float32)
    squares = tl.zeros((1, WIDTH), tl.float32)
    for tile in range(tl.cdiv(tl.minimum(n - begin, chunk), WIDTH * ACCESSES)):
        for access in tl.static_range(ACCESSES):
            at = begin + (tile * ACCESSES + access) * WIDTH
            x = read(x_ptr, row * x_stride + head, at, end, valid, WIDTH, VECTOR, MIXED, KEEP).to(tl.float32)
            d = tl.where(at + tl.arange(0, WIDTH)[None, :] < end, x - pivot, 0.0)
            total += d
            squares += d * d
    count = tl.maximum(end - begin, 0) + tl.where(place == 0, n - body, 0)
    sum_of_d = (tl.sum(total, axis=1) + tl.sum(d_edge, axis=1))[:, None]
    mean = sum_of_d / tl.maximum(count, 1)
    around = (tl.sum(squares, axis=1) + tl.sum(d_edge * d_edge, axis=1))[:, None]
    # Where squares overflow it stays infinite, so that all of the row is seen to.
    around = tl.where(around == float("inf"), around, around - sum_of_d * mean)
    at_place = sums_ptr + number * (3 * splits) + place + tl.zeros((1, 1), tl.int32)
    tl.store(at_place, pivot)
    tl.store(at_place + splits, mean)
    tl.store(at_place + 2 * splits, around)


@triton.jit(do_not_specialize=SIZES)
def layer_finish(
    x_ptr,  # x, rows of n elements
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    sums_ptr,  # three numbers of each piece, three times `splits` elements a row of this launch
    out_ptr,  # y, as many rows
    n,  # columns
    x_stride,  # elements from one row of x to the next
    out_stride,  # the same of y
    first_row,  # of this launch
    splits,  # pieces a row
    chunk,  # columns of a piece, a multiple of WIDTH
    EPS: tl.constexpr,  # added to the variance
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether x and y are shifted by different counts
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EDGE: tl.constexpr,  # room for the columns outside the body, a power of two
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    """Write the LayerNorm of a piece of a row."""
    row, number, place = piece(tl.program_id(0).to(tl.int64), first_row, splits)
    valid = row >= 0
    head, body = split(row * out_stride, n, VECTOR, SHIFTED, MIXED)
    sums_ptr += number * (3 * splits)
    pieces = tl.arange(0, MAX_SPLITS)[None, :]
    inside = pieces < splits
    pivots = tl.load(sums_ptr + pieces, mask=inside, other=0.0)
    means = tl.load(sums_ptr + splits + pieces, mask=inside, other=0.0)
    around = tl.load(sums_ptr + 2 * splits + pieces, mask=inside, other=0.0)
    counts = tl.maximum(tl.minimum(body - pieces * chunk, chunk), 0) + tl.where(pieces == 0, n - body, 0)
    # In terms of the first piece's number, so that nothing cancels.
    pivot = tl.load(sums_ptr)
    apart = tl.where(inside & (counts > 0), pivots - pivot + means, 0.0)
    mean = tl.sum(counts * apart, axis=1)[:, None] / n
    squares = tl.sum(around + counts * (apart - mean) * (apart - mean), axis=1)[:, None]
    scale = inverse_deviation(squares / n, 0.0, EPS)
    begin, end = columns_of(place, body, chunk, VECTOR)
    columns = edge_columns(head, body, EDGE)
    loose = columns < tl.where(place == 0, n, 0)  # the first piece has them
    x_edge = tl.load(x_ptr + row * x_stride + columns, mask=loose, other=0.0).to(tl.float32)
    w_edge = tl.load(w_ptr + columns, mask=loose, other=0.0).to(tl.float32)
    b_edge = tl.load(b_ptr + columns, mask=loose, other=0.0).to(tl.float32)
    y_edge = (x_edge - pivot - mean) * scale * w_edge + b_edge
    tl.store(out_ptr + row * out_stride + columns, y_edge, mask=loose)
    for tile in range(tl.cdiv(tl.minimum(n - begin, chunk), WIDTH * ACCESSES)):
        at = begin + tile * (WIDTH * ACCESSES)
        x = read(x_ptr, row * x_stride + head, at, end, valid, WIDTH * ACCESSES, VECTOR, MIXED, DROP).to(tl.float32)
        w = read(w_ptr, head, at, end, valid, WIDTH * ACCESSES, VECTOR, SHIFTED, KEEP).to(tl.float32)
        b = read(b_ptr, head, at, end, valid, WIDTH * ACCESSES, VECTOR, SHIFTED, KEEP).to(tl.float32)
        write(out_ptr, row * out_stride + head, (x - pivot - mean) * scale * w + b, at, end, valid, VECTOR, DROP)


KERNELS_OF = {
    ("rmsnorm", "partial"): (rms_partial, {"RESIDUAL": False}),
    ("rmsnorm", "finish"): (rms_finish, {"EPS": RMS_EPS}),
    ("residual-rmsnorm", "partial"): (rms_partial, {"RESIDUAL": True}),
    ("residual-rmsnorm", "finish"): (rms_finish, {"EPS": RMS_EPS}),
    ("layernorm", "partial"): (layer_partial, {}),
    ("layernorm", "finish"): (layer_finish, {"EPS": LAYER_EPS}),
}
MOVED = {("rmsnorm", "partial"): 1, ("layernorm", "partial"): 1, ("residual-rmsnorm", "partial"): 3}
"""Matrices that a launch moves, where it is not a read and a write."""


def _variant(op: str, dtype: torch.dtype, layout: str, part: str) -> Variant:
    kernel, constants = KERNELS_OF[op, part]
    vector = ALIGNMENT_BYTES // dtype.itemsize
    width = WARPS * 32 * vector
    constants = constants | {"SHIFTED": layout != "aligned", "MIXED": layout == "mixed", "VECTOR": vector}
    accesses = ACCESSES // 2 if layout == "mixed" else ACCESSES  # shifts need registers: a residual would spill some
    constants |= {"EDGE": max(vector << LAYOUTS.index(layout), 32), "WIDTH": width, "ACCESSES": accesses}
    if part == "finish":
        constants["MAX_SPLITS"] = MAX_SPLITS
    return Variant(
        kernel=kernel,
        constants=constants,
        options={"num_warps": WARPS, "enable_fp_fusion": True},
        op=op,
        dtype=DTYPES[dtype],
        part=part,
        shape_class="shared rows" + ("" if layout == "aligned" else f", {layout} rows"),
        types={"squares_ptr": "*fp32"} if "rms" in op else {"sums_ptr": "*fp32"},
        elements=width * accesses,
        bytes=MOVED.get((op, part), 2) * width * accesses * dtype.itemsize,
    )


SHARED: dict[tuple[str, torch.dtype, str, str], Variant] = {
    (op, dtype, layout, part): _variant(op, dtype, layout, part)
    for (op, part), dtype, layout in itertools.product(KERNELS_OF, DTYPES, LAYOUTS)
}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return everything this file compiles, the same for every architecture."""
    return (*v3_vectors.variants(arch), *SHARED.values())


def split_of(rows: int, n: int, width: int, processors: int) -> tuple[int, int]:
    """Return into how many pieces a row is cut, and the columns of each, but for the last.

    Args:
        rows: Rows that are in flight together.
        n: Columns.
        width: Columns of one access of all threads, of which a piece is a multiple.
        processors: Multiprocessors.
    """
    wanted = min(triton.cdiv(PROGRAMS_A_PROCESSOR * processors, rows), triton.cdiv(n, width), MAX_SPLITS)
    chunk = triton.cdiv(triton.cdiv(n, wanted), width) * width
    return triton.cdiv(n, chunk), chunk


def is_shared(m: int, n: int, step: int, processors: int) -> bool:
    """Return whether programs share rows: where they are few, or one on each multiprocessor exceeds the cache."""
    return n >= WIDE or (m < processors and n >= FEWEST_STEPS * step)


def _launch(op: str, asked: Operands) -> None:
    out, gpu = asked.out, gpu_of(asked.out.device)
    layout = layout_of(asked)
    partial, finish = (SHARED[op, out.dtype, layout, part] for part in ("partial", "finish"))
    if not is_shared(asked.m, asked.n, partial.elements, gpu.processors):
        v3_vectors.launch(op, asked)
        return
    row_bytes = asked.n * out.element_size()
    together = min(asked.m, max(1, gpu.cache_bytes // CACHE_SHARE // row_bytes))
    splits, chunk = split_of(together, asked.n, partial.constants["WIDTH"], gpu.processors)
    sums = torch.empty((3 if op == "layernorm" else 1) * together * splits, dtype=torch.float32, device=out.device)
    x, x_stride, out_stride = asked.inputs[0], asked.strides[0], asked.strides[-1]
    for first in range(0, asked.m, together):
        programs, sizes = min(together, asked.m - first) * splits, (first, splits, chunk)
        if op == "layernorm":
            partial.launch(programs, x, sums, asked.n, x_stride, out_stride, *sizes)
            finish.launch(programs, x, *asked.inputs[1:], sums, out, asked.n, x_stride, out_stride, *sizes)
            continue
        has_residual = op == "residual-rmsnorm"
        residual, r_stride = (asked.inputs[1], asked.strides[1]) if has_residual else (x, x_stride)
        strides = (x_stride, r_stride, out_stride)
        partial.launch(programs, x, residual, out, sums, asked.n, *strides, *sizes)
        summed, stride = (out[0], out_stride) if has_residual else (x, x_stride)
        normed = (asked.n, stride, out_stride, asked.plane)
        finish.start(programs, summed, asked.inputs[-1], sums, out, *normed, *sizes)  # the sum is a part of out


KERNELS: dict[str, Callable[..., None]] = launchers("v4", MAX_COLUMNS, _launch)
