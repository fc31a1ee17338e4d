"""Version 3 of the matrix-vector product: 16-byte accesses everywhere, columns split if rows are
few, int8 weights.

Computes, for A of shape (m, n) with dense rows of any stride, x of shape (n,), y of shape (m,):

    matvec        y_i = sum_j A_ij x_j       A, x and y in one dtype
    matvec-int8   y_i = s_i sum_j A_ij x_j   A int8, the scales s fp32, x and y in one dtype

The second uses weights quantized row by row. They are widened to fp32 in registers and never stored
as such.

Bytes moved, for elements of A of w bytes and of x of e: read m n w + n e, written m e; matvec-int8
also reads 4 m of scales. Every program reads x again, expected from cache and not counted. If
columns are split, one fp32 number for each row and split is written and read again. That is below 1
% of A from 1 KiB per row and split on, and not counted.

Rounding: operands are widened to fp32, so the product of two 16-bit numbers, or of an int8 and a
16-bit number, is exact. All sums are fp32, in an order that depends only on the shape, the strides
and the number of multiprocessors, so the same call gives the same bits. Each term takes part in at
most

    ACCESS + LOADS + steps + log2(LANES)
        + (splits > 1) (ceil(splits / TILE_SPLITS) + log2(TILE_SPLITS))

fp32 additions (and one product), each with an error of at most 2^-24 of its result. To first order
the error is below that count times 2^-24 sum_j |A_ij x_j|. Then the scale is applied and y is
rounded once, to the nearest even.
Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), section 4.2, for
sums in any order.

Changes from version 1:
- a program computes several rows, so each block of x is loaded once for all of them;
- int8 weights, 16 in one access of a thread;
- columns are split among programs if the rows alone are too few to give every multiprocessor work.
  Each program writes its partial sum to scratch memory, and a second launch adds the sums of each
  row in order. Atomics would add in a different order in every run, and would round 16-bit outputs
  at every addition;
- only the remainder after the last full step is masked, by whole accesses, so all of A is read 16
  bytes at a time. Only fewer than ACCESS elements at an end of a row are read one by one, once;
- if the row stride is not a multiple of 16 bytes, rows start at different offsets within an access,
  but every ACCESS-th row starts at the same one. A program takes such rows, so one shifted block of
  x serves all of them and A is still read 16 bytes at a time. x is then read by elements, from
  cache;
- the products of one access are added within its thread before they reach the running sum, so a row
  needs one register per thread instead of ACCESS. With 34 to 40 registers per thread in bf16, a
  multiprocessor of an H100 holds 12 programs, each with two accesses to A in flight per thread: 48
  KiB. That hides latency without a pipeline through shared memory and without a barrier in the
  loop, and the small programs keep the end of the grid short;
- A is loaded with `evict_first`, because it is read once while all programs read x;
- rows past m read row 0 instead of being masked, and are not stored.

Limits: a row of more than 512 bytes but much less than 2048 leaves threads of its program idle.
Split columns need a second launch. An int8 weight takes about 3.5 instructions, one of them a
conversion, which some architectures issue at a fraction of the rate of others.
"""

from dataclasses import dataclass
from functools import cache, partial

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, gpu_of
from kernels.matvec import read

WARPS = 4
PROGRAMS_PER_SM = 2  # with fewer programs, columns are split
SPLIT_PROGRAMS_PER_SM = 4  # target of the split
TILE_ROWS = 16  # of the second launch
TILE_SPLITS = 64  # of the second launch


@dataclass(frozen=True)
class Config:
    """How a program reads A."""

    rows: int
    """Rows per program, a power of two."""
    lanes: int
    """Adjacent accesses in a row, by neighboring threads."""
    loads: int
    """Accesses per thread, row and step, all in flight together."""


CONFIGS = {
    # One warp per row, for rows of at most 32 accesses, 512 bytes.
    "narrow": Config(rows=16, lanes=32, loads=1),
    "wide": Config(rows=2, lanes=128, loads=2),
    # Row stride not a multiple of 16 bytes; x is read by elements.
    "shifted": Config(rows=4, lanes=128, loads=1),
    "split": Config(rows=1, lanes=128, loads=4),  # few rows
    "split shifted": Config(rows=1, lanes=128, loads=2),
}
"""Configurations by shape class; see `plan` for their limits."""


@triton.jit
def _access_sums(
    a_ptr,  # first element of each of ROWS rows, a multiple of 16 bytes, shape (ROWS, 1)
    x_ptr,  # element of x that belongs to it
    left,  # columns to read, a multiple of ACCESS; None: all of the step, without a mask
    ROWS: tl.constexpr,  # rows per program
    LANES: tl.constexpr,  # adjacent accesses
    ACCESS: tl.constexpr,  # elements of A in 16 bytes
    LOADS: tl.constexpr,  # accesses of a thread to each row
):
    """Return the sum of the products of one step, for each row and lane, in fp32."""
    lanes = tl.arange(0, LOADS * LANES * ACCESS)
    # Two-dimensional for x too: in the layout of A it needs no exchange between threads, and
    # without a mask the compiler merges the equal loads.
    columns = tl.broadcast_to(lanes[None, :], (ROWS, LOADS * LANES * ACCESS))
    if left is None:
        a = tl.load(a_ptr + columns, eviction_policy="evict_first")
        x = tl.load(x_ptr + columns)
    else:
        a = tl.load(a_ptr + columns, mask=columns < left, other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + columns, mask=columns < left, other=0.0)
    products = tl.reshape(a.to(tl.float32) * x.to(tl.float32), (ROWS, LOADS, LANES, ACCESS))
    return tl.sum(tl.sum(products, axis=3), axis=1)


@triton.jit(do_not_specialize=["m", "n", "row_stride", "splits", "steps"])
def matvec_split(
    a_ptr,  # A, m rows of n elements, each row dense
    x_ptr,  # x, n elements
    out_ptr,  # m elements of y; or fp32 scratch, `splits` elements per row
    m,  # rows of A
    n,  # columns of A
    row_stride,  # from one row of A to the next: accesses if ALIGNED, else elements
    splits,  # programs that share the columns of a row
    steps,  # full steps for each of them
    scales_ptr,  # one fp32 factor per row, or None
    ROWS: tl.constexpr,  # rows per program, a power of two
    LANES: tl.constexpr,  # adjacent accesses, a power of two
    ACCESS: tl.constexpr,  # elements of A in 16 bytes
    LOADS: tl.constexpr,  # accesses of a thread to each row in a step
    ALIGNED: tl.constexpr,  # whether every row starts at a multiple of 16 bytes
):
    """Write the products of ROWS rows of A with x, or with this program's part of x."""
    STEP: tl.constexpr = LANES * LOADS  # accesses
    program = tl.program_id(0)
    group = (program // splits).to(tl.int64)
    split = (program % splits).to(tl.int64)
    if ALIGNED:
        rows = group * ROWS + tl.arange(0, ROWS)
        head = split * 0
        inside = rows < m
        first = tl.where(inside, rows, 0) * row_stride * ACCESS
        body = first
    else:
        phase = group % ACCESS
        rows = group // ACCESS * (ACCESS * ROWS) + phase + ACCESS * tl.arange(0, ROWS)
        # Elements before the first whole access, the same for all these rows.
        head = tl.minimum((ACCESS - phase * row_stride % ACCESS) % ACCESS, n.to(tl.int64))
        inside = rows < m
        # Row 0 has no elements before its first access, so skipping some reads nothing past its
        # end.
        first = tl.where(inside, rows, 0) * row_stride
        body = (first + (ACCESS - 1)) // ACCESS * ACCESS
    accesses = (n - head) // ACCESS
    start = tl.minimum(split * steps * STEP, accesses)
    end = tl.minimum(start + steps * STEP, accesses)
    full_end = start + (end - start) // STEP * STEP

    partial = tl.zeros((ROWS, LANES), dtype=tl.float32)
    for at in range(start, full_end, STEP):
        a_at = a_ptr + (body + at * ACCESS)[:, None]
        x_at = x_ptr + head + at * ACCESS
        partial += _access_sums(a_at, x_at, None, ROWS, LANES, ACCESS, LOADS)
    if full_end < end:
        a_at = a_ptr + (body + full_end * ACCESS)[:, None]
        x_at = x_ptr + head + full_end * ACCESS
        partial += _access_sums(a_at, x_at, (end - full_end) * ACCESS, ROWS, LANES, ACCESS, LOADS)
    total = tl.sum(partial, axis=1)

    body_end = head + accesses * ACCESS
    if (split == 0) & (n - body_end + head > 0):
        lanes = tl.arange(0, 2 * ACCESS)
        columns = tl.where(lanes < ACCESS, lanes, body_end + lanes - ACCESS)
        edge = columns < tl.where(lanes < ACCESS, head, n)
        a = tl.load(a_ptr + first[:, None] + columns[None, :], mask=edge[None, :], other=0.0)
        x = tl.load(x_ptr + columns, mask=edge, other=0.0)
        total += tl.sum(a.to(tl.float32) * x.to(tl.float32)[None, :], axis=1)

    if scales_ptr is not None:
        total *= tl.load(scales_ptr + rows, mask=inside, other=0.0)
    tl.store(out_ptr + rows * splits + split, total, mask=inside)


@triton.jit(do_not_specialize=["m", "splits"])
def matvec_finish(
    partial_ptr,  # fp32, `splits` elements for each of m rows
    out_ptr,  # y, m elements
    m,  # rows
    splits,  # partial sums per row
    scales_ptr,  # one fp32 factor per row, or None
    ROWS: tl.constexpr,  # rows per program, a power of two
    SPLITS: tl.constexpr,  # partial sums per step, a power of two
):
    """Write the sums of the partial sums of ROWS rows, in order."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_inside = rows < m
    lanes = tl.arange(0, SPLITS)
    partial = tl.zeros((ROWS, SPLITS), dtype=tl.float32)
    for start in range(0, splits, SPLITS):
        inside = row_inside[:, None] & (start + lanes < splits)[None, :]
        partial += tl.load(
            partial_ptr + (rows * splits)[:, None] + (start + lanes)[None, :],
            mask=inside,
            other=0.0,
        )
    total = tl.sum(partial, axis=1)
    if scales_ptr is not None:
        total *= tl.load(scales_ptr + rows, mask=row_inside, other=0.0)
    tl.store(out_ptr + rows, total, mask=row_inside)


@cache
def variant(op: str, dtype: torch.dtype, shape_class: str) -> Variant:
    """Return the kernel that reads A, for the dtype of x and a key of `CONFIGS`."""
    config = CONFIGS[shape_class]
    is_int8 = op == "matvec-int8"
    is_split = shape_class.startswith("split")
    a_bytes = 1 if is_int8 else dtype.itemsize
    constants: dict[str, int | bool | None] = {
        "ROWS": config.rows,
        "LANES": config.lanes,
        "ACCESS": ALIGNMENT_BYTES // a_bytes,
        "LOADS": config.loads,
        "ALIGNED": not shape_class.endswith("shifted"),
    }
    types = {"a_ptr": "*i8"} if is_int8 else {}
    if is_split:
        types["out_ptr"] = "*fp32"
    if is_int8 and not is_split:
        types["scales_ptr"] = "*fp32"
    else:
        constants["scales_ptr"] = None  # a partial sum is not scaled yet
    step_bytes = config.rows * config.lanes * config.loads * ALIGNMENT_BYTES
    return Variant(
        kernel=matvec_split,
        constants=constants,
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        part="partial" if is_split else "",
        shape_class=shape_class,
        types=types,
        elements=step_bytes // a_bytes,
        bytes=step_bytes,
    )


@cache
def finish_variant(op: str, dtype: torch.dtype) -> Variant:
    is_int8 = op == "matvec-int8"
    return Variant(
        kernel=matvec_finish,
        constants={"ROWS": TILE_ROWS, "SPLITS": TILE_SPLITS}
        | ({} if is_int8 else {"scales_ptr": None}),
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        part="finish",
        shape_class="split",
        types={"partial_ptr": "*fp32"} | ({"scales_ptr": "*fp32"} if is_int8 else {}),
        elements=TILE_ROWS * TILE_SPLITS,
        bytes=TILE_ROWS * TILE_SPLITS * 4,
    )


def variants(arch: int) -> tuple[Variant, ...]:
    result: list[Variant] = []
    for op in KERNELS:
        for dtype in DTYPES:
            result += [variant(op, dtype, shape_class) for shape_class in CONFIGS]
            result.append(finish_variant(op, dtype))
    return tuple(result)


@dataclass(frozen=True)
class Plan:
    """Kernel, grid and split for one shape."""

    shape_class: str
    programs: int
    splits: int
    """Programs that share the columns of a row."""
    steps: int
    """Steps per program; the last one may be partial."""


def plan(m: int, n: int, element_bytes: int, row_stride: int, sm_count: int) -> Plan:
    """Choose class, grid and split for A (m, n) of `element_bytes` per element, rows `row_stride`
    elements apart.
    """
    access = ALIGNMENT_BYTES // element_bytes
    is_aligned = row_stride % access == 0
    shape_class = "shifted"
    if is_aligned:
        shape_class = "narrow" if n <= access * CONFIGS["narrow"].lanes else "wide"
    programs = _row_groups(m, CONFIGS[shape_class], access, is_aligned)
    splits = 1
    splittable = "split" if is_aligned else "split shifted"
    config = CONFIGS[splittable]
    step = config.lanes * config.loads * access
    if programs < PROGRAMS_PER_SM * sm_count and n >= 2 * step:
        # All programs have the same number of steps, except that the last one may have fewer.
        groups = _row_groups(m, config, access, is_aligned)
        all_steps = triton.cdiv(n, step)
        splits = min(all_steps, triton.cdiv(SPLIT_PROGRAMS_PER_SM * sm_count, min(m, groups)))
        steps = triton.cdiv(all_steps, splits)
        splits = triton.cdiv(all_steps, steps)
    if splits == 1:
        config = CONFIGS[shape_class]
        return Plan(shape_class, programs, 1, triton.cdiv(n, config.lanes * config.loads * access))
    return Plan(splittable, groups * splits, splits, steps)


def _row_groups(m: int, config: Config, access: int, is_aligned: bool) -> int:
    """Return the number of programs that cover m rows; a program takes unaligned rows of equal
    offset.
    """
    return (
        triton.cdiv(m, config.rows) if is_aligned else triton.cdiv(m, config.rows * access) * access
    )


def _launch(
    op: str, a: torch.Tensor, x: torch.Tensor, *scales: torch.Tensor, out: torch.Tensor
) -> None:
    row_stride = read(f"{op} v3", a, x, out, *scales, unit=ALIGNMENT_BYTES)
    m, n = a.shape
    if m == 0:
        return
    chosen = plan(m, n, a.element_size(), row_stride, gpu_of(a.device).processors)
    kernel = variant(op, x.dtype, chosen.shape_class)
    if kernel.constants["ALIGNED"]:
        row_stride //= kernel.constants["ACCESS"]
    sizes = (m, n, row_stride, chosen.splits, chosen.steps)
    if chosen.splits == 1:
        kernel.launch(chosen.programs, a, x, out, *sizes, *scales)
        return
    # From torch's allocator at every launch, so that it is safe on any stream and in a CUDA graph.
    sums = torch.empty((m, chosen.splits), dtype=torch.float32, device=a.device)
    kernel.launch(chosen.programs, a, x, sums, *sizes)
    finish = finish_variant(op, x.dtype)
    finish.launch(triton.cdiv(m, TILE_ROWS), sums, out, m, chosen.splits, *scales)


KERNELS = {op: partial(_launch, op) for op in ("matvec", "matvec-int8")}
