"""Version 3 of the row norms: several short rows per program, and two passes over wide rows.

Computes the same as version 1, with the same bytes and rounding, except for the mean of layernorm
(below).

Changes from version 1 (there is no version 2, whose warps were 4 to 16 by the width of a row):
- Up to 1024 columns a program reduces several rows together, so its warps do not wait for a single
  row.
- A thread has 32 elements instead of 4 to 256. Weight and bias are loaded after the sums, so they
  and the row are not in registers together. So more programs share a multiprocessor, and one loads
  during the reduction of another.
- Wider rows are read in two passes, the second one backward, because L1 and then L2 still have what
  was read last. The registers hold loads in flight, 64 KB per multiprocessor. A `tl.range` pipeline
  would take its buffers from L1.
- layernorm sums differences from a number k near the mean of the row. For rows in registers k is
  the mean itself, in two passes it is the mean of the first columns. So the error depends on the
  spread of a row and not on its mean.
  Source: Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance" (1983).

Limits: programs do not share a row; if the rows in flight exceed L2, a part is read twice. If n or
a row stride is not a multiple of 16, no access is 16 bytes wide. If squares overflow, the root
counts as infinite, as in torch: rmsnorm gives 0, layernorm its bias.
"""

import itertools
import math

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant
from kernels.norm import Operands, launchers
from kernels.norm.v1_naive import CONSTANTS

# 32 elements per thread.
ROWS_BLOCK_WARPS = (
    (16, 256, 4),
    (4, 1024, 4),
    (1, 4096, 4),
    (1, 8192, 8),
    (1, 16384, 16),
)
ACCESSES = 4  # of 16 bytes, in flight for each thread of a wide row
MAX_COLUMNS = 2**30  # a column number plus one tile still fits 32 bits
KEEP = tl.constexpr("evict_last")  # for data that is read again
DROP = tl.constexpr("evict_first")  # for other data


@triton.jit
def rounded_sum(x, r):  # blocks of one shape and dtype
    return (x.to(tl.float32) + r.to(tl.float32)).to(x.dtype)


@triton.jit
def inverse_deviation(
    mean_square,  # of the differences from a number near the mean
    mean,  # of the same differences
    EPS: tl.constexpr,  # added to the variance
):
    """Return 1 / sqrt(variance + EPS), or 0 if the squares overflowed."""
    variance = tl.maximum(mean_square - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.rsqrt(tl.where(mean_square == float("inf"), mean_square, variance) + EPS)


@triton.jit(do_not_specialize=["m"])
def norm_rows(
    x_ptr,  # x, m rows of n elements
    r_ptr,  # residual, m rows of n elements; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, m rows of n elements; before it the sum, as many, if RESIDUAL
    m,  # rows
    n,  # columns, at most BLOCK; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y, or 0; a multiple of 16 makes stores of y wide
    b_ptr,  # bias of layernorm, n elements, or None
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    ROWS: tl.constexpr,  # rows per program, a power of two
    BLOCK: tl.constexpr,  # columns, a power of two
):
    """Write the norm of ROWS rows of x, or of the sum of x and the residual."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    inside = (rows < m) & (columns < n)
    x = tl.load(x_ptr + rows * x_stride + columns, mask=inside, other=0.0)
    out_ptrs = out_ptr + rows * out_stride + columns
    if RESIDUAL:
        x = rounded_sum(x, tl.load(r_ptr + rows * r_stride + columns, mask=inside, other=0.0))
        tl.store(out_ptrs, x, mask=inside)
        out_ptrs += plane
    x = x.to(tl.float32)
    if b_ptr is None:
        scale = tl.rsqrt(tl.sum(x * x, axis=1)[:, None] / n + EPS)
    else:
        x = tl.where(inside, x - tl.sum(x, axis=1)[:, None] / n, 0.0)
        mean = tl.sum(x, axis=1)[:, None] / n  # rounding error of the mean
        scale = inverse_deviation(tl.sum(x * x, axis=1)[:, None] / n, mean, EPS)
        x -= mean
    y = x * scale * tl.load(w_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
    if b_ptr is not None:
        y += tl.load(b_ptr + columns, mask=columns < n, other=0.0).to(tl.float32)
    tl.store(out_ptrs, y, mask=inside)


@triton.jit
def sum_of_squares(
    x_row,  # x, one row of n elements
    r_row,  # residual, as many; not read unless RESIDUAL
    sum_row,  # the sum, as many; not written unless RESIDUAL
    n,  # columns
    first,  # step of the loop
    end,  # the step behind the last
    RESIDUAL: tl.constexpr,  # whether there is a residual
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Return the sum of squares of some steps of x, or of the sum of x and the residual, and write
    that sum.
    """
    squares = tl.zeros((WIDTH,), tl.float32)
    for step in range(first, end):
        for access in tl.static_range(ACCESSES):
            columns = (step * ACCESSES + access) * WIDTH + tl.arange(0, WIDTH)
            inside = columns < n
            x = tl.load(
                x_row + columns, mask=inside, other=0.0, eviction_policy=DROP if RESIDUAL else KEEP
            )
            if RESIDUAL:
                x = rounded_sum(
                    x, tl.load(r_row + columns, mask=inside, other=0.0, eviction_policy=DROP)
                )
                tl.store(sum_row + columns, x, mask=inside, eviction_policy=KEEP)
            squares += x.to(tl.float32) * x.to(tl.float32)
    return tl.sum(squares)


@triton.jit
def differences(
    x_row,  # x, one row of n elements
    near_mean,  # a number near its mean
    n,  # columns
    first,  # step of the loop
    end,  # the step behind the last
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Return the sums of the differences of some steps of x from the number, and of their squares,
    for each lane.
    """
    total = tl.zeros((WIDTH,), tl.float32)
    squares = tl.zeros((WIDTH,), tl.float32)
    for step in range(first, end):
        for access in tl.static_range(ACCESSES):
            columns = (step * ACCESSES + access) * WIDTH + tl.arange(0, WIDTH)
            x = tl.load(x_row + columns, mask=columns < n, other=0.0, eviction_policy=KEEP).to(
                tl.float32
            )
            d = tl.where(columns < n, x - near_mean, 0.0)
            total += d
            squares += d * d
    return total, squares


@triton.jit
def weighted(
    x_row,  # x, one row of n elements, not read again
    w_ptr,  # weight, n elements
    columns,  # block
    inside,  # block of the same shape: which to read
):
    """Return elements of x and their weights in fp32."""
    x = tl.load(x_row + columns, mask=inside, eviction_policy=DROP).to(tl.float32)
    return x, tl.load(w_ptr + columns, mask=inside, eviction_policy=KEEP).to(tl.float32)


@triton.jit
def norm_tiles(
    x_ptr,  # x, one row of n elements per program
    r_ptr,  # residual, as many rows; not read unless RESIDUAL
    w_ptr,  # weight, n elements
    out_ptr,  # y, as many rows; before it the sum, as many, if RESIDUAL
    n,  # columns, at least WIDTH; a multiple of 16 makes accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes accesses wide
    r_stride,  # the same of the residual
    out_stride,  # the same of y
    plane,  # elements from the sum to y, or 0; a multiple of 16 makes stores of y wide
    b_ptr,  # bias of layernorm, n elements, or None
    EPS: tl.constexpr,  # added to the mean of squares
    RESIDUAL: tl.constexpr,  # whether there is a residual
    WIDTH: tl.constexpr,  # columns of one access of all threads
    ACCESSES: tl.constexpr,  # of each thread in one step of a loop
):
    """Write the norm of a wide row of x, or of the sum of x and the residual."""
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_stride
    r_row = r_ptr + row * r_stride
    out_row = out_ptr + row * out_stride
    steps = tl.cdiv(n, WIDTH * ACCESSES)
    if b_ptr is None:
        squares = sum_of_squares(x_row, r_row, out_row, n, 0, steps, RESIDUAL, WIDTH, ACCESSES)
        scale = tl.rsqrt(squares / n + EPS)
    else:
        near_mean = tl.sum(tl.load(x_row + tl.arange(0, WIDTH)).to(tl.float32)) / WIDTH
        total, squares = differences(x_row, near_mean, n, 0, steps, WIDTH, ACCESSES)
        mean = tl.sum(total) / n  # of the differences
        scale = inverse_deviation(tl.sum(squares) / n, mean, EPS)
    if RESIDUAL:
        tl.debug_barrier()  # a thread may read a sum that another has stored
        x_row = out_row
        out_row += plane
    for step in range(steps):
        columns = (steps - 1 - step) * (WIDTH * ACCESSES) + tl.arange(0, WIDTH * ACCESSES)
        inside = columns < n
        x, w = weighted(x_row, w_ptr, columns, inside)
        if b_ptr is None:
            y = x * scale * w
        else:
            b = tl.load(b_ptr + columns, mask=inside, eviction_policy=KEEP).to(tl.float32)
            y = (x - near_mean - mean) * scale * w + b
        tl.store(out_row + columns, y, mask=inside, eviction_policy=DROP)


def _variants(op: str, dtype: torch.dtype) -> list[tuple[int, Variant]]:
    """Return maximum columns and variant of each configuration, narrow rows first."""
    # Other rows of 16,384 columns in registers leave no room for a second program, or spill on
    # sm_80.
    longest = 16384 if op == "rmsnorm" and dtype.itemsize == 2 else 8192
    configs = [
        (n, norm_rows, warps, {"ROWS": m, "BLOCK": n})
        for m, n, warps in ROWS_BLOCK_WARPS
        if n <= longest
    ]
    # Fewer, larger programs read fewer rows of 256k at a time.
    for limit, warps in ((2**17, 16), (MAX_COLUMNS, 32)):
        width = warps * 32 * ALIGNMENT_BYTES // dtype.itemsize
        configs.append((limit, norm_tiles, warps, {"WIDTH": width, "ACCESSES": ACCESSES}))
    variants_by_limit = []
    for limit, kernel, warps, sizes in configs:
        elements = math.prod(sizes.values())
        variant = Variant(
            kernel=kernel,
            constants=CONSTANTS[op] | sizes,
            warps=warps,
            op=op,
            dtype=DTYPES[dtype],
            shape_class=f"n <= {limit}",
            elements=elements,
            bytes=elements * dtype.itemsize * (4 if op == "residual-rmsnorm" else 2),
        )
        variants_by_limit.append((limit, variant))
    return variants_by_limit


VARIANTS = {(op, dtype): _variants(op, dtype) for op, dtype in itertools.product(CONSTANTS, DTYPES)}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return the variants, the same for every architecture.

    For wide rows `elements` and `bytes` are those of a step of both loops. residual-rmsnorm counts
    the elements of one matrix.
    """
    return tuple(variant for _, variant in itertools.chain.from_iterable(VARIANTS.values()))


def launch(op: str, operands: Operands) -> None:
    """Launch the kernel of an operation for rows that programs do not share."""
    variant = next(
        variant for limit, variant in VARIANTS[op, operands.out.dtype] if operands.n <= limit
    )
    rows = variant.constants.get("ROWS")
    first_sizes = (operands.m,) if rows else ()
    variant.launch(triton.cdiv(operands.m, rows or 1), *operands.arguments(*first_sizes))


KERNELS = launchers("v3", MAX_COLUMNS, launch)
