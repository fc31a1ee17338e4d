"""Rows of matrices read in whole vectors of 16 bytes, wherever they start.

A row is its body, whole vectors of the output from an aligned address on, and its edge, what lies beside. The rows of
an operand may start elsewhere in a vector than those of the output: then the 16 bytes that one thread needs lie across
two of its vectors. Both are read, and shifted in registers: by 8 bytes, by 4 and by 2, each or not.
"""

import triton
import triton.language as tl

from kernels.launch import TRITON

SPREADS_MIXED_ROWS = TRITON >= (3, 9)
"""Whether Triton shares a mixed row that is alone in its program among threads. 3.6 to 3.8 let each of them hold all of
it: ptxas then works for minutes, and every thread for all."""


@triton.jit
def split(
    offset,  # elements from the start of the output to a row; a multiple of VECTOR unless SHIFTED
    n,  # elements a row
    VECTOR: tl.constexpr,  # elements of 16 bytes
    SHIFTED: tl.constexpr,  # whether rows may start anywhere
    MIXED: tl.constexpr,  # whether rows of other operands start differently
):
    """Return how many elements of the row lie before its body, and how many in it."""
    head = tl.zeros((1, 1), tl.int32)
    body = n // VECTOR * VECTOR
    if SHIFTED:
        head = tl.minimum((-offset & (VECTOR - 1)).to(tl.int32), n)
        # The same for every row, and so that `across` reads nothing beyond it.
        body = tl.maximum(n // VECTOR - (2 if MIXED else 1), 0) * VECTOR
    return head, body


@triton.jit
def edge_columns(
    head,  # elements before the body
    body,  # elements in the body
    EDGE: tl.constexpr,  # a power of two that holds all elements before and after a body
):
    """Return the columns outside the body, the first ones first; from n on they are past the row."""
    lanes = tl.arange(0, EDGE)[None, :]
    return lanes + tl.where(lanes >= head, body, 0)


@triton.jit
def later(
    a,  # 64 bits
    b,  # the 64 bits after them
    skip,  # whether to skip any
    BITS: tl.constexpr,  # how many
):
    """Return 64 bits of a and b, from the first or from a later one on."""
    return tl.where(skip, (a >> BITS) | (b << (64 - BITS)), a)


@triton.jit
def across(
    vectors,  # where the first vector of each row is
    skipped,  # elements of it before the row
    column,  # the rest as in `read`
    body,
    valid,
    COLUMNS: tl.constexpr,
    VECTOR: tl.constexpr,
    EVICT: tl.constexpr,
):
    """Return columns of rows that start inside a vector."""
    pieces = column // VECTOR + tl.arange(0, COLUMNS // VECTOR)[None, :, None]
    halves = vectors.to(tl.pointer_type(tl.uint64), bitcast=True)[:, :, None]
    halves += 2 * pieces + tl.arange(0, 2)[None, None, :]
    inside = (pieces < body // VECTOR) & valid[:, :, None]
    a, b = tl.split(tl.load(halves, mask=inside, other=0, eviction_policy=EVICT))
    c, d = tl.split(tl.load(halves + 2, mask=inside, other=0, eviction_policy=EVICT))
    skip = skipped >= VECTOR // 2
    a, b, c = tl.where(skip, b, a), tl.where(skip, c, b), tl.where(skip, d, c)
    skip = skipped % (VECTOR // 2) >= VECTOR // 4
    a, b, c = later(a, b, skip, 32), later(b, c, skip, 32), later(c, c, skip, 32)
    if VECTOR == 8:
        a, b = later(a, b, skipped % 2 == 1, 16), later(b, c, skipped % 2 == 1, 16)
    shifts = tl.arange(0, VECTOR // 2)[None, None, None, :] * (128 // VECTOR)
    each = (tl.join(a, b)[:, :, :, None] >> shifts.to(tl.uint64)).to(tl.uint16 if VECTOR == 8 else tl.uint32)
    return tl.reshape(each, (skipped.shape[0], COLUMNS)).to(vectors.dtype.element_ty, bitcast=True)


@triton.jit
def read(
    ptr,  # an aligned tensor
    offset,  # elements from its start to the first of each row; multiples of VECTOR unless ACROSS
    column,  # the first column to read, a multiple of VECTOR
    body,  # the columns that are the row's, a multiple of VECTOR
    valid,  # which rows there are
    COLUMNS: tl.constexpr,  # how many to read
    VECTOR: tl.constexpr,  # elements of 16 bytes
    ACROSS: tl.constexpr,  # whether rows may start inside a vector: then two vectors hold what is read as one
    EVICT: tl.constexpr,  # eviction policy
):
    """Return columns of some rows, read in whole vectors; zeros past the body."""
    vectors = ptr + offset // VECTOR * VECTOR
    if ACROSS:
        block = across(vectors, offset % VECTOR, column, body, valid, COLUMNS, VECTOR, EVICT)
    else:
        lanes = column + tl.arange(0, COLUMNS)[None, :]
        block = tl.load(vectors + lanes, mask=(lanes < body) & valid, other=0.0, eviction_policy=EVICT)
    return block


@triton.jit
def write(
    ptr,  # an aligned tensor
    offset,  # elements from its start to the first of each row, multiples of VECTOR
    block,  # what to write
    column,  # where to, a multiple of VECTOR
    body,  # the columns that are the row's, a multiple of VECTOR
    valid,  # which rows there are
    VECTOR: tl.constexpr,  # elements of 16 bytes
    EVICT: tl.constexpr,  # eviction policy
):
    """Write columns of some rows in whole vectors."""
    lanes = column + tl.arange(0, block.shape[1])[None, :]
    ptrs = ptr + offset // VECTOR * VECTOR + lanes  # the same offset, now known to be a multiple
    tl.store(ptrs, block, mask=(lanes < body) & valid, eviction_policy=EVICT)
