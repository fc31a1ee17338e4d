"""Version 2 of softmax: rows of any width, 16 bytes per access for any row start and length, no
spills.

Computes the same as version 1, with the same bytes moved and the same special values. Rows of more
than 32,768 elements are read a second time, from L2 as far as it still has them. Those reads are
not counted.

Changes from version 1:
- Each row is cut at multiples of 16 elements into a body and fewer than 16 elements at either end.
  The body is accessed 16 bytes per thread for every n and stride, where version 1 falls back to 8
  accesses of 2 bytes. Rows of x and out must be aligned alike, so strides with
  `(x_stride - out_stride) % 16 != 0` are rejected.
- A thread has at most 64 elements. The 65,536 elements that 1024 threads of version 1 hold spill.
- Longer rows are read in steps that update a running maximum and sum per lane, so threads exchange
  nothing in the first pass (Milakov and Gimelshein, "Online normalizer calculation for softmax",
  2018). The second pass runs from the end of the row to its start, because L2 still has what was
  read last. One program of 16 warps fills most of a multiprocessor, so few rows compete for L2.

Rounding: all arithmetic is fp32. e^d is computed as 2^(d log2(e)) from the difference d to the
maximum. Folding the maximum into one multiply-add would save an instruction, but without fusion it
loses three digits for logits near 10^4. Each row needs one division; its elements are multiplied by
the reciprocal and rounded once to the dtype of out, to the nearest even. The running maximum starts
at the lowest finite number: in a row that begins with -inf, -inf - -inf would be NaN.

Not supported: programs that share a row, so with fewer rows than multiprocessors some are idle;
loading the next row during the reduction of this one; several short rows in one program.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, on_any_arch
from kernels.online_softmax import LOG2_E, MAX_COLUMNS, UNIT, cuts, walked
from kernels.softmax import launcher

# By elements of a row in registers.
WARPS = {256: 1, 1024: 1, 2048: 2, 4096: 4, 8192: 8, 16384: 16, 32768: 16}
WALK_WARPS = 16
DEPTH = 4  # elements of each lane in one step
STAGES = 3  # steps in flight


@triton.jit
def out_shift(
    row,  # int64
    x_stride,
    out_stride,  # differs by a multiple of UNIT
):
    """Return the offset of a row of out minus that of the same row of x, in elements."""
    return (row * out_stride - row * x_stride) // UNIT * UNIT


@triton.jit(do_not_specialize=["n", "x_stride", "out_stride"])
def softmax_row(
    x_ptr,  # input, m rows of n elements, each row dense
    out_ptr,  # output, m rows of n elements, each row dense
    n,  # elements per row, not specialized: one binary serves every n
    x_stride,  # elements from one row of x to the next
    out_stride,  # elements from one row of out to the next
    BLOCK: tl.constexpr,  # at least n, a power of two
):
    """Write the softmax of one row that fits the registers of a program."""
    row = tl.program_id(0).to(tl.int64)
    body, length, edges, edge_inside = cuts(row * x_stride, n)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < length
    x = tl.load(x_ptr + body + lanes, mask=inside, other=float("-inf")).to(tl.float32)
    x_edge = tl.load(x_ptr + edges, mask=edge_inside, other=float("-inf")).to(tl.float32)
    highest = tl.maximum(tl.max(x, axis=0), tl.max(x_edge, axis=0))
    e = tl.exp2((x - highest) * LOG2_E)
    e_edge = tl.exp2((x_edge - highest) * LOG2_E)
    scale = 1.0 / (tl.sum(e, axis=0) + tl.sum(e_edge, axis=0))
    shift = out_shift(row, x_stride, out_stride)
    tl.store(out_ptr + (body + shift) + lanes, e * scale, mask=inside)
    tl.store(out_ptr + shift + edges, e_edge * scale, mask=edge_inside)


@triton.jit(do_not_specialize=["n", "x_stride", "out_stride"])
def softmax_walk(
    x_ptr,  # input, m rows of n elements, each row dense
    out_ptr,  # output, m rows of n elements, each row dense
    n,  # elements per row, not specialized: one binary serves every n
    x_stride,  # elements from one row of x to the next
    out_stride,  # elements from one row of out to the next
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loops in flight
):
    """Write the softmax of one row in two passes, the second from the end of the row to its
    start.
    """
    STEP: tl.constexpr = DEPTH * LANES
    row = tl.program_id(0).to(tl.int64)
    body, length, edges, edge_inside = cuts(row * x_stride, n)
    lanes = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    full = length // STEP * STEP
    x_body = x_ptr + body
    top, total, x_rest, x_edge = walked(
        x_ptr, body, length, edges, edge_inside, DEPTH, LANES, STAGES, "evict_last"
    )
    scale = 1.0 / total
    shift = out_shift(row, x_stride, out_stride)
    out_body = out_ptr + (body + shift)
    tl.store(out_ptr + shift + edges, tl.exp2((x_edge - top) * LOG2_E) * scale, mask=edge_inside)
    tl.store(
        out_body + full + lanes,
        tl.exp2((x_rest.to(tl.float32) - top) * LOG2_E) * scale,
        mask=lanes < length - full,
    )
    for back in tl.range(0, full, STEP, num_stages=STAGES):
        start = full - STEP - back
        x_again = tl.load(x_body + start + lanes, eviction_policy="evict_first").to(tl.float32)
        tl.store(
            out_body + start + lanes,
            tl.exp2((x_again - top) * LOG2_E) * scale,
            eviction_policy="evict_first",
        )


def _variant(
    dtype: torch.dtype, kernel: Any, warps: int, constants: dict[str, int], shape_class: str
) -> Variant:
    elements = constants.get("BLOCK") or constants["DEPTH"] * constants["LANES"]
    return Variant(
        kernel=kernel,
        constants=constants,
        warps=warps,
        op="softmax",
        dtype=DTYPES[dtype],
        shape_class=shape_class,
        elements=elements,
        bytes=2 * elements * dtype.itemsize,
    )


ROWS = {
    (dtype, block): _variant(dtype, softmax_row, warps, {"BLOCK": block}, f"n <= {block}")
    for dtype in DTYPES
    for block, warps in WARPS.items()
}
WALKS = {
    dtype: _variant(
        dtype,
        softmax_walk,
        WALK_WARPS,
        {
            "DEPTH": DEPTH,
            "LANES": WALK_WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize,
            "STAGES": STAGES,
        },
        f"n > {max(WARPS)}",
    )
    for dtype in DTYPES
}


variants = on_any_arch(ROWS | WALKS)


def launch(x: torch.Tensor, out: torch.Tensor, x_stride: int, out_stride: int) -> None:
    """Launch the kernel for rows that programs do not share."""
    m, n = x.shape
    block = next((block for block in WARPS if block >= n), None)
    variant = WALKS[x.dtype] if block is None else ROWS[x.dtype, block]
    variant.launch(m, x, out, n, x_stride, out_stride)


KERNELS = {"softmax": launcher("v2", MAX_COLUMNS, launch, UNIT.value)}
