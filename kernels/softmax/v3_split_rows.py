"""Version 3 of softmax: as version 2, and several programs share a row if rows are few or too wide
for the cache.

Computes the same as version 2, with the same rounding except for the order of the sums.

Changes from version 2:
- Few rows: version 2 gives each row to one program, so with fewer rows than multiprocessors some
  are idle. Here such rows are cut into up to 128 pieces, at most one per loop step. A first launch
  computes the maximum and the sum of each piece, a second one combines those of its row and writes
  its piece.
- Wide rows: version 2 reads a row of 131,072 columns or more twice. With one such row per
  multiprocessor of an H100 the rows take 35 MB or more in 16 bits, so beyond 190,000 columns the
  second read comes from memory. Here both launches process only as many rows at a time as fill half
  of the cache, so the second read hits in cache.

Results do not depend on the order in which programs run, so the same call on the same GPU gives the
same bits. They may differ in the last bits from those of a row that is not shared.

Limits: the second launch costs a few microseconds, which is noticeable if the first is as short.
Programs of one row that wait for each other, as in a thread block cluster, would read the row once,
but Triton's interpreter, which runs programs one by one, could not test them.
"""

import itertools

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, MAX_PIECES, Variant, gpu_of, pieces_of
from kernels.online_softmax import LOG2_E, LOWEST, MAX_COLUMNS, UNIT, cuts, row_partial
from kernels.softmax import launcher, v2_aligned
from kernels.softmax.v2_aligned import out_shift

PIECE_WARPS = 4
DEPTH = 4  # elements of each lane in one step
STAGES = 3  # steps in flight


@triton.jit(do_not_specialize=["n", "x_stride", "out_stride", "first_row", "splits", "chunk"])
def softmax_finish(
    x_ptr,  # input, rows of n elements, each row dense
    tops_ptr,  # maximum of each piece, `splits` elements per row of this launch
    totals_ptr,  # sum of each piece, as many
    out_ptr,  # output, rows of n elements, each row dense
    n,  # elements per row
    x_stride,  # elements from one row of x to the next
    out_stride,  # elements from one row of out to the next
    first_row,  # of this launch
    splits,  # pieces per row
    chunk,  # elements per piece; the last piece of a row may be shorter
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    STEP: tl.constexpr = DEPTH * LANES
    program = tl.program_id(0).to(tl.int64)
    row = program // splits
    pieces = tl.arange(0, MAX_SPLITS)
    tops = tl.load(tops_ptr + row * splits + pieces, mask=pieces < splits, other=LOWEST)
    totals = tl.load(totals_ptr + row * splits + pieces, mask=pieces < splits, other=0.0)
    top = tl.max(tops, axis=0)
    scale = 1.0 / tl.sum(totals * tl.exp2((tops - top) * LOG2_E), axis=0)

    begin = (program - row * splits) * chunk
    row += first_row
    body, length, edges, edge_inside = cuts(row * x_stride + begin, tl.minimum(n - begin, chunk))
    shift = out_shift(row, x_stride, out_stride)
    x_edge = tl.load(x_ptr + edges, mask=edge_inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + shift + edges, tl.exp2((x_edge - top) * LOG2_E) * scale, mask=edge_inside)
    lanes = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    full = length // STEP * STEP
    x_body = x_ptr + body
    out_body = out_ptr + (body + shift)
    for start in tl.range(0, full, STEP, num_stages=STAGES):
        x = tl.load(x_body + start + lanes, eviction_policy="evict_first").to(tl.float32)
        tl.store(
            out_body + start + lanes,
            tl.exp2((x - top) * LOG2_E) * scale,
            eviction_policy="evict_first",
        )
    inside = lanes < length - full
    x_rest = tl.load(x_body + full + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_body + full + lanes, tl.exp2((x_rest - top) * LOG2_E) * scale, mask=inside)


def _variant(dtype: torch.dtype, part: str) -> Variant:
    lanes = PIECE_WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize
    constants = {"DEPTH": DEPTH, "LANES": lanes, "STAGES": STAGES}
    if part != "partial":
        constants["MAX_SPLITS"] = MAX_PIECES
    return Variant(
        kernel=row_partial if part == "partial" else softmax_finish,
        constants=constants,
        warps=PIECE_WARPS,
        op="softmax",
        dtype=DTYPES[dtype],
        part=part,
        shape_class="shared rows",
        types={"tops_ptr": "*fp32", "totals_ptr": "*fp32"},
        elements=DEPTH * lanes,
        bytes=(1 if part == "partial" else 2) * DEPTH * lanes * dtype.itemsize,
    )


SHARED = {
    (dtype, part): _variant(dtype, part)
    for dtype, part in itertools.product(DTYPES, ("partial", "finish"))
}


def variants(arch: int) -> tuple[Variant, ...]:
    return (*v2_aligned.variants(arch), *SHARED.values())


def _launch(x: torch.Tensor, out: torch.Tensor, x_stride: int, out_stride: int) -> None:
    partial = SHARED[x.dtype, "partial"]
    finish = SHARED[x.dtype, "finish"]
    m, n = x.shape
    pieces = pieces_of(m, n, n * x.element_size(), partial.elements, UNIT.value, gpu_of(x.device))
    if pieces is None:
        v2_aligned.launch(x, out, x_stride, out_stride)
        return
    sizes_of_sums = (pieces.rows, pieces.count)
    tops, totals = (
        torch.empty(sizes_of_sums, dtype=torch.float32, device=x.device) for _ in range(2)
    )
    for first in range(0, m, pieces.rows):
        programs = min(pieces.rows, m - first) * pieces.count
        sizes = (first, pieces.count, pieces.elements)
        partial.launch(programs, x, tops, totals, n, x_stride, *sizes)
        finish.launch(programs, x, tops, totals, out, n, x_stride, out_stride, *sizes)


KERNELS = {"softmax": launcher("v3", MAX_COLUMNS, _launch, UNIT.value)}
