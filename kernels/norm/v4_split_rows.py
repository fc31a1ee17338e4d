"""Version 4 of the row norms: as version 3, and several programs share a row if rows are few or too
wide for the cache.

Computes the same as version 3, with the same rounding except for the order of the sums.

Changes from version 3:
- Few rows: version 3 gives a wide row to one program, so with fewer rows than multiprocessors some
  are idle. Here such rows are cut into up to 128 pieces. A first launch writes the sums of each
  piece, and the residual sum; a second one adds the sums of its row and writes its piece.
- Wide rows: version 3 reads a row of 131,072 columns or more twice. With one such row per
  multiprocessor of an H100 the rows take 35 MB or more in 16 bits, so beyond 190,000 columns the
  second read comes from memory. Here both launches process only as many rows at a time as fill half
  of the cache, so the second read hits in cache.

Results do not depend on the order in which programs run, so the same call on the same GPU gives the
same bits.

Limits: the second launch costs a few microseconds, which is noticeable if the first is as short.
Programs of one row that wait for each other, as in a thread block cluster, would read the row once,
but Triton's interpreter, which runs programs one by one, could not test them.
"""

import itertools

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, MAX_PIECES, Variant, gpu_of, pieces_of
from kernels.norm import Operands, launchers, v3_tiles
from kernels.norm.v1_naive import LAYER_EPS, RMS_EPS
from kernels.norm.v3_tiles import (
    DROP,
    KEEP,
    MAX_COLUMNS,
    differences,
    inverse_deviation,
    sum_of_squares,
    weighted,
)

WARPS = 4
ACCESSES = 4  # of 16 bytes, in flight for each thread
SIZES = ("first_row", "splits", "steps")  # one binary serves all values of them


@triton.jit
def place(
    splits,  # pieces per row
    steps,  # of a piece
):
    """Return the number of the program, its row in this launch, and the first step of its piece."""
    program = tl.program_id(0).to(tl.int64)
    row = program // splits
    return program, row, (program - row * splits).to(tl.int32) * steps


@triton.jit(do_not_specialize=SIZES)
def rms_partial(
    x_ptr,  # x, rows of n elements
    r_ptr,  # residual, as many rows; not read unless RESIDUAL
    out_ptr,  # the sum, as many rows; not written unless RESIDUAL
    squares_ptr,  # sum of squares of each piece, `splits` elements per row of this launch
    n,  # columns; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    r_stride,  # the same of the residual
    out_stride,  # the same of the sum
    first_row,  # of this launch
    splits,  # pieces per row
    steps,  # of a piece; the last piece may have fewer
    RESIDUAL: tl.constexpr,  # whether there is a residual
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step
):
    """Write the sum of squares of a piece of x, or of the sum of x and the residual, and that
    sum.
    """
    program, row, first_step = place(splits, steps)
    row += first_row
    squares = sum_of_squares(
        x_ptr + row * x_stride,
        r_ptr + row * r_stride,
        out_ptr + row * out_stride,
        n,
        first_step,
        first_step + steps,
        RESIDUAL,
        WIDTH,
        ACCESSES,
    )
    tl.store(squares_ptr + program, squares)


@triton.jit(do_not_specialize=SIZES)
def rms_finish(
    x_ptr,  # x, or the sum of x and the residual: rows of n elements
    w_ptr,  # weight, n elements
    squares_ptr,  # sum of squares of each piece, `splits` elements per row of this launch
    out_ptr,  # y, as many rows, `plane` elements behind
    n,  # columns; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    out_stride,  # the same of y
    plane,  # elements from the start of out to y; a multiple of 16 makes stores wide
    first_row,  # of this launch
    splits,  # pieces per row
    steps,  # of a piece; the last piece may have fewer
    EPS: tl.constexpr,  # added to the mean of squares
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    _, row, first_step = place(splits, steps)
    pieces = tl.arange(0, MAX_SPLITS)
    squares = tl.sum(tl.load(squares_ptr + row * splits + pieces, mask=pieces < splits, other=0.0))
    scale = tl.rsqrt(squares / n + EPS)
    row += first_row
    for step in range(first_step, first_step + steps):
        columns = step * (WIDTH * ACCESSES) + tl.arange(0, WIDTH * ACCESSES)
        inside = columns < n
        x, w = weighted(x_ptr + row * x_stride, w_ptr, columns, inside)
        out_ptrs = out_ptr + plane + row * out_stride + columns
        tl.store(out_ptrs, x * scale * w, mask=inside, eviction_policy=DROP)


@triton.jit(do_not_specialize=SIZES)
def layer_partial(
    x_ptr,  # x, rows of n elements
    sums_ptr,  # three numbers of each piece, three times `splits` elements per row of this launch
    n,  # columns, at least WIDTH; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    first_row,  # of this launch
    splits,  # pieces per row
    steps,  # of a piece; the last piece may have fewer
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step
):
    """Write a number near the mean of the row, and the sums of the differences from it and of their
    squares.
    """
    program, row, first_step = place(splits, steps)
    x_row = x_ptr + (first_row + row) * x_stride
    near_mean = tl.sum(tl.load(x_row + tl.arange(0, WIDTH)).to(tl.float32)) / WIDTH
    end = first_step + steps
    total, squares = differences(x_row, near_mean, n, first_step, end, WIDTH, ACCESSES)
    tl.store(sums_ptr + 3 * program, near_mean)
    tl.store(sums_ptr + 3 * program + 1, tl.sum(total))
    tl.store(sums_ptr + 3 * program + 2, tl.sum(squares))


@triton.jit(do_not_specialize=SIZES)
def layer_finish(
    x_ptr,  # x, rows of n elements
    w_ptr,  # weight, n elements
    b_ptr,  # bias, n elements
    sums_ptr,  # three numbers of each piece, three times `splits` elements per row of this launch
    out_ptr,  # y, as many rows
    n,  # columns; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    out_stride,  # the same of y
    first_row,  # of this launch
    splits,  # pieces per row
    steps,  # of a piece; the last piece may have fewer
    EPS: tl.constexpr,  # added to the variance
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    _, row, first_step = place(splits, steps)
    pieces = tl.arange(0, MAX_SPLITS)
    sums_of_row = sums_ptr + 3 * row * splits
    near_mean = tl.load(sums_of_row)
    # Of the differences.
    mean = tl.sum(tl.load(sums_of_row + 3 * pieces + 1, mask=pieces < splits, other=0.0)) / n
    squares = tl.sum(tl.load(sums_of_row + 3 * pieces + 2, mask=pieces < splits, other=0.0))
    scale = inverse_deviation(squares / n, mean, EPS)
    row += first_row
    for step in range(first_step, first_step + steps):
        columns = step * (WIDTH * ACCESSES) + tl.arange(0, WIDTH * ACCESSES)
        inside = columns < n
        x, w = weighted(x_ptr + row * x_stride, w_ptr, columns, inside)
        b = tl.load(b_ptr + columns, mask=inside, eviction_policy=KEEP).to(tl.float32)
        y = (x - near_mean - mean) * scale * w + b
        tl.store(out_ptr + row * out_stride + columns, y, mask=inside, eviction_policy=DROP)


KERNELS_OF = {
    ("rmsnorm", "partial"): (rms_partial, {"RESIDUAL": False}),
    ("rmsnorm", "finish"): (rms_finish, {"EPS": RMS_EPS, "MAX_SPLITS": MAX_PIECES}),
    ("residual-rmsnorm", "partial"): (rms_partial, {"RESIDUAL": True}),
    ("residual-rmsnorm", "finish"): (rms_finish, {"EPS": RMS_EPS, "MAX_SPLITS": MAX_PIECES}),
    ("layernorm", "partial"): (layer_partial, {}),
    ("layernorm", "finish"): (layer_finish, {"EPS": LAYER_EPS, "MAX_SPLITS": MAX_PIECES}),
}
MOVED = {("rmsnorm", "partial"): 1, ("layernorm", "partial"): 1, ("residual-rmsnorm", "partial"): 3}
"""Matrices that a launch moves, if not two, one read and one written."""


def _variant(op: str, dtype: torch.dtype, part: str) -> Variant:
    kernel, constants = KERNELS_OF[op, part]
    width = WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize
    return Variant(
        kernel=kernel,
        constants=constants | {"WIDTH": width, "ACCESSES": ACCESSES},
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        part=part,
        shape_class="shared rows",
        types={"squares_ptr": "*fp32"} if "rms" in op else {"sums_ptr": "*fp32"},
        elements=width * ACCESSES,
        bytes=MOVED.get((op, part), 2) * width * ACCESSES * dtype.itemsize,
    )


SHARED = {
    (op, dtype, part): _variant(op, dtype, part)
    for (op, part), dtype in itertools.product(KERNELS_OF, DTYPES)
}


def variants(arch: int) -> tuple[Variant, ...]:
    return (*v3_tiles.variants(arch), *SHARED.values())


def _launch(op: str, operands: Operands) -> None:
    out = operands.out
    partial = SHARED[op, out.dtype, "partial"]
    finish = SHARED[op, out.dtype, "finish"]
    step = partial.elements
    pieces = pieces_of(
        operands.m, operands.n, operands.n * out.element_size(), step, step, gpu_of(out.device)
    )
    if pieces is None:
        v3_tiles.launch(op, operands)
        return
    count = (3 if op == "layernorm" else 1) * pieces.rows * pieces.count
    sums = torch.empty(count, dtype=torch.float32, device=out.device)
    x = operands.inputs[0]
    x_stride = operands.strides[0]
    out_stride = operands.strides[-1]
    for first in range(0, operands.m, pieces.rows):
        programs = min(pieces.rows, operands.m - first) * pieces.count
        sizes = (first, pieces.count, pieces.elements // step)
        if op == "layernorm":
            partial.launch(programs, x, sums, operands.n, x_stride, *sizes)
            finish.launch(
                programs,
                x,
                *operands.inputs[2:],
                sums,
                out,
                operands.n,
                x_stride,
                out_stride,
                *sizes,
            )
            continue
        partial.launch(
            programs, x, operands.inputs[1], out, sums, operands.n, *operands.strides, *sizes
        )
        summed, stride = (out[0], out_stride) if op == "residual-rmsnorm" else (x, x_stride)
        finish.launch(
            programs,
            summed,
            operands.inputs[2],
            sums,
            out,
            operands.n,
            stride,
            out_stride,
            operands.plane,
            *sizes,
        )


KERNELS = launchers("v4", MAX_COLUMNS, _launch)
