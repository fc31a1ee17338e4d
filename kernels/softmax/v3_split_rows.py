"""Version 3 of softmax: as version 2, and several programs share a row where rows are few, or too wide for the cache.

Computes what version 2 does, with the same rounding but for the order of the sums.

Changed against the last version, and why:
- Fewer rows than multiprocessors leave some of them idle in version 2, which gives each row to one program. Here such
  rows are cut into up to 128 pieces of at least one step. A first launch finds the maximum and the sum of each piece, a
  second one combines those of its row and writes its piece.
- A row of 131,072 columns and more is read twice by version 2. With one such row on each multiprocessor of an H100
  they are 35 MB in 16 bits and more, so that beyond 190,000 columns the second read comes from memory. Here so many
  rows at a time go through both launches as take half of the cache, and the second read finds them there.

Nothing depends on which program comes first, so the same call gives the same bits on the same GPU; they may differ in
their last bits from those of a row that is not shared.

What it leaves out: the second launch costs its microseconds where the first lasts as few. Programs of one row that
wait for each other, as in a cluster, would read it once; an interpreter that runs programs one by one could not test
them.
"""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, gpu_of
from kernels.online_softmax import LOG2_E, LOWEST, MAX_COLUMNS, UNIT, cuts, top_and_total
from kernels.softmax import v2_aligned
from kernels.softmax.operands import Operands, launcher
from kernels.softmax.v2_aligned import out_shift

PIECE_WARPS = 4
DEPTH = 4  # elements of each lane in one step
STAGES = 3  # steps in flight
MAX_SPLITS = 128  # programs of one row
PROGRAMS_A_PROCESSOR = 2  # what splitting aims at
FEWEST_STEPS = 4  # of a row that is split because rows are few
WIDE = 2**17  # columns from which rows are split, however many they are
CACHE_SHARE = 2  # rows in flight take at most this fraction of the cache, `1 / CACHE_SHARE`


@triton.jit(do_not_specialize=["n", "x_stride", "first_row", "splits", "chunk"])
def softmax_partial(
    x_ptr,  # input, rows of n elements, each row dense
    tops_ptr,  # maximum of each piece, `splits` elements a row of this launch
    totals_ptr,  # sum of each piece, as many
    n,  # elements a row
    x_stride,  # elements from one row of x to the next
    first_row,  # of this launch
    splits,  # pieces a row
    chunk,  # elements a piece, but for the last of a row, which may be shorter but not empty
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


@triton.jit(do_not_specialize=["n", "x_stride", "out_stride", "first_row", "splits", "chunk"])
def softmax_finish(
    x_ptr,  # input, rows of n elements, each row dense
    tops_ptr,  # maximum of each piece, `splits` elements a row of this launch
    totals_ptr,  # sum of each piece, as many
    out_ptr,  # output, rows of n elements, each row dense
    n,  # elements a row
    x_stride,  # elements from one row of x to the next
    out_stride,  # elements from one row of out to the next
    first_row,  # of this launch
    splits,  # pieces a row
    chunk,  # elements a piece, but for the last of a row
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    """Write the softmax of one piece of a row."""
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
    x_body, out_body = x_ptr + body, out_ptr + (body + shift)
    for start in tl.range(0, full, STEP, num_stages=STAGES):
        x = tl.load(x_body + start + lanes, eviction_policy="evict_first").to(tl.float32)
        tl.store(out_body + start + lanes, tl.exp2((x - top) * LOG2_E) * scale, eviction_policy="evict_first")
    inside = lanes < length - full
    x_rest = tl.load(x_body + full + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_body + full + lanes, tl.exp2((x_rest - top) * LOG2_E) * scale, mask=inside)


def _variant(dtype: torch.dtype, part: str) -> Variant:
    lanes = PIECE_WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize
    constants = {"DEPTH": DEPTH, "LANES": lanes, "STAGES": STAGES}
    if part != "partial":
        constants["MAX_SPLITS"] = MAX_SPLITS
    return Variant(
        kernel=softmax_partial if part == "partial" else softmax_finish,
        constants=constants,
        options={"num_warps": PIECE_WARPS, "enable_fp_fusion": True},
        op="softmax",
        dtype=DTYPES[dtype],
        part=part,
        shape_class="shared rows",
        types={"tops_ptr": "*fp32", "totals_ptr": "*fp32"},
        elements=DEPTH * lanes,
        bytes=(1 if part == "partial" else 2) * DEPTH * lanes * dtype.itemsize,
    )


SHARED: dict[tuple[torch.dtype, str], Variant] = {
    (dtype, part): _variant(dtype, part) for dtype in DTYPES for part in ("partial", "finish")
}


def variants(arch: int) -> tuple[Variant, ...]:
    """Return every variant compiled for an architecture, 80 for sm_80; here they are the same for all."""
    return (*v2_aligned.variants(arch), *SHARED.values())


def split(rows: int, n: int, step: int, processors: int) -> tuple[int, int]:
    """Return into how many pieces a row is cut, and the elements of each; the last may be shorter.

    Args:
        rows: Rows that are in flight together.
        n: Elements a row.
        step: Elements of one step of the loop, which is the least worth a program.
        processors: Multiprocessors.
    """
    wanted = min(triton.cdiv(PROGRAMS_A_PROCESSOR * processors, rows), triton.cdiv(n, step), MAX_SPLITS)
    chunk = triton.cdiv(triton.cdiv(n, wanted), UNIT.value) * UNIT.value
    return triton.cdiv(n, chunk), chunk


def is_shared(m: int, n: int, step: int, processors: int) -> bool:
    """Return whether programs share rows: where they are few, or one on each multiprocessor exceeds the cache."""
    return n >= WIDE or (m < processors and n >= FEWEST_STEPS * step)


def _launch(asked: Operands, x: torch.Tensor, out: torch.Tensor) -> None:
    gpu = gpu_of(x.device)
    partial, finish = SHARED[x.dtype, "partial"], SHARED[x.dtype, "finish"]
    if not is_shared(asked.m, asked.n, partial.elements, gpu.processors):
        v2_aligned.launch(asked, x, out)
        return
    together = min(asked.m, max(1, gpu.cache_bytes // CACHE_SHARE // (asked.n * x.element_size())))
    splits, chunk = split(together, asked.n, partial.elements, gpu.processors)
    tops, totals = (torch.empty((together, splits), dtype=torch.float32, device=x.device) for _ in range(2))
    for first in range(0, asked.m, together):
        programs = min(together, asked.m - first) * splits
        sizes = (first, splits, chunk)
        partial.launch(programs, x, tops, totals, asked.n, asked.x_stride, *sizes)
        finish.launch(programs, x, tops, totals, out, asked.n, asked.x_stride, asked.out_stride, *sizes)


KERNELS: dict[str, Callable[..., None]] = {"softmax": launcher("v3", MAX_COLUMNS, _launch, UNIT.value)}
