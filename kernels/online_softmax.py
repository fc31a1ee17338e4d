"""Building blocks of softmax and cross-entropy: rows cut for wide accesses, and online maximum and
sum.

A row is cut at multiples of `UNIT` elements into a body, which is accessed 16 bytes per thread for
any row start, and fewer than `UNIT` elements at either end. Source of the running maximum and sum:
Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
"""

import triton
import triton.language as tl

MAX_COLUMNS = 2**30  # a column number plus one step still fits 32 bits
UNIT = tl.constexpr(16)  # elements; the divisor that Triton infers for integers
EDGES = tl.constexpr(32)  # elements at both ends of a row together, at most
LOG2_E = tl.constexpr(1.4426950408889634)  # log2(e)
LOWEST = tl.constexpr(-3.4028234663852886e38)  # of fp32


@triton.jit
def cuts(
    first,  # offset of the first element of a row, or of a piece of one, int64
    count,  # elements
):
    """Cut a row at multiples of UNIT; return start and length of the body, and offsets and mask of
    both ends.
    """
    last = first + count
    body = (first + UNIT - 1) // UNIT * UNIT
    units = tl.maximum(last // UNIT - body // UNIT, 0)
    length = units.to(tl.int32) * UNIT
    lanes = tl.arange(0, EDGES)
    is_head = lanes < UNIT
    edges = tl.where(is_head, first + lanes, last // UNIT * UNIT + lanes - UNIT)
    # A row between two multiples of UNIT has only a head.
    return body, length, edges, (edges < last) & ((edges < body) == is_head)


@triton.jit
def running(
    highest,  # maximum so far, a lane
    total,  # sum so far of exponentials of the difference from it, a lane
    x,  # DEPTH further elements of each lane
):
    """Update the running maximum and sum of each lane with one step of elements."""
    x = x.to(tl.float32)
    higher = tl.maximum(highest, tl.max(x, axis=0))
    e = tl.exp2((x - higher[None, :]) * LOG2_E)
    return higher, total * tl.exp2((highest - higher) * LOG2_E) + tl.sum(e, axis=0)


@triton.jit
def walked(
    x_ptr,  # row of logits
    body,  # offset of its body, a multiple of UNIT
    length,  # elements of the body
    edges,  # offsets of both ends
    edge_inside,  # which of them to read
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
    POLICY: tl.constexpr,  # eviction policy of the steps
):
    """Read a row cut by `cuts`. Return its maximum, the sum of the exponentials of the differences
    from it, and the elements behind the last step and at both ends.
    """
    STEP: tl.constexpr = DEPTH * LANES
    lanes = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    full = length // STEP * STEP
    x_body = x_ptr + body
    highest = tl.full((LANES,), LOWEST, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    for start in tl.range(0, full, STEP, num_stages=STAGES):
        x = tl.load(x_body + start + lanes, eviction_policy=POLICY)
        highest, total = running(highest, total, x)
    x_rest = tl.load(x_body + full + lanes, mask=lanes < length - full, other=float("-inf"))
    highest, total = running(highest, total, x_rest)
    x_edge = tl.load(x_ptr + edges, mask=edge_inside, other=float("-inf")).to(tl.float32)

    top = tl.maximum(tl.max(highest, axis=0), tl.max(x_edge, axis=0))
    of_lanes = tl.sum(total * tl.exp2((highest - top) * LOG2_E), axis=0)
    of_edges = tl.sum(tl.exp2((x_edge - top) * LOG2_E), axis=0)
    return top, of_lanes + of_edges, x_rest, x_edge


@triton.jit
def top_and_total(
    x_ptr,  # logits
    first,  # offset of the piece's first element, int64
    count,  # elements of the piece
    DEPTH: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Return the maximum of a piece of a row, and the sum of the exponentials of the differences
    from it.
    """
    body, length, edges, edge_inside = cuts(first, count)
    top, total, _, _ = walked(
        x_ptr, body, length, edges, edge_inside, DEPTH, LANES, STAGES, "evict_first"
    )
    return top, total


@triton.jit(do_not_specialize=["n", "x_stride", "first_row", "splits", "chunk"])
def row_partial(
    x_ptr,  # input, rows of n elements, each row dense
    tops_ptr,  # maximum of each piece, `splits` elements per row of this launch
    totals_ptr,  # sum of each piece, as many
    n,  # elements per row
    x_stride,  # elements from one row of x to the next
    first_row,  # of this launch
    splits,  # pieces per row
    chunk,  # elements per piece; the last piece of a row may be shorter, but not empty
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
):
    """Write the maximum and the sum of one piece of a row."""
    program = tl.program_id(0).to(tl.int64)
    row = program // splits
    begin = (program - row * splits) * chunk
    first = (first_row + row) * x_stride + begin
    top, total = top_and_total(x_ptr, first, tl.minimum(n - begin, chunk), DEPTH, LANES, STAGES)
    tl.store(tops_ptr + program, top)
    tl.store(totals_ptr + program, total)
