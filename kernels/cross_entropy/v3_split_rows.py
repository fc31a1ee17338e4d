"""Version 3 of cross-entropy: as version 2, and several programs share a row if there are few rows.

Computes the same as version 2, with the same rounding except for the order of the sums.

Changes from version 2: with fewer than 264 rows, two per multiprocessor of an H100, version 2
leaves memory bandwidth unused. Here such a row is cut into up to 32 pieces, at most one per loop
step. Each program writes the maximum and the sum of its piece, and a second, small launch combines
them. With 264 rows or more, only the kernel of version 2 runs.

The order of the sums depends only on the shape, so results are reproducible. They may differ in the
last bits from those of a row that is not shared, for example the same row in a larger batch.

Bytes: 8 more are written and read per piece, which are not counted. Two small buffers for the
pieces come from torch's allocator in every call.

Limits: the second launch costs a few microseconds, which is noticeable if the first is as short.
Letting the last program combine the pieces would avoid it, but needs a counter that has to be
zeroed.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from kernels.cross_entropy import launchers, v2_online
from kernels.cross_entropy.v1_naive import IGNORED, picked_logit
from kernels.launch import DTYPES, Variant
from kernels.online_softmax import LOG2_E, LOWEST, UNIT, row_partial

MIN_PROGRAMS = 264  # two for each multiprocessor of an H100 SXM
MAX_SPLITS = 32  # programs of one row


@triton.jit(do_not_specialize=["v", "x_stride", "splits"])
def cross_entropy_finish(
    x_ptr,  # logits, m rows of v elements, each row dense
    labels_ptr,  # m labels
    tops_ptr,  # maximum of each piece, m rows of `splits` elements
    totals_ptr,  # sum of each piece, m rows of `splits` elements
    out_ptr,  # loss, m elements
    v,  # elements per row
    x_stride,  # elements from one row of x to the next
    splits,  # pieces per row
    MAX_SPLITS: tl.constexpr,  # at least `splits`, a power of two
):
    """Write the loss of one row from the maxima and sums of its pieces."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels_ptr + row)
    picked = picked_logit(x_ptr + row * x_stride, label, v)
    lanes = tl.arange(0, MAX_SPLITS)
    tops = tl.load(tops_ptr + row * splits + lanes, mask=lanes < splits, other=LOWEST)
    totals = tl.load(totals_ptr + row * splits + lanes, mask=lanes < splits, other=0.0)
    top = tl.max(tops, axis=0)
    total = tl.sum(totals * tl.exp2((tops - top) * LOG2_E), axis=0)
    tl.store(out_ptr + row, tl.where(label == IGNORED, 0.0, (top - picked) + tl.log(total)))


STEP = {dtype: v2_online.VARIANTS[dtype].elements for dtype in DTYPES}
"""Elements per step of the loop, the same as in version 2."""


def _partial(dtype: torch.dtype) -> Variant:
    whole = v2_online.VARIANTS[dtype]
    return replace(
        whole,
        kernel=row_partial,
        part="partial",
        shape_class=f"m < {MIN_PROGRAMS}, v > {STEP[dtype]}",
        types={"tops_ptr": "*fp32", "totals_ptr": "*fp32"},
    )


def _finish(dtype: torch.dtype) -> Variant:
    return Variant(
        kernel=cross_entropy_finish,
        constants={"MAX_SPLITS": MAX_SPLITS},
        warps=1,
        op="cross-entropy",
        dtype=DTYPES[dtype],
        part="finish",
        shape_class=f"m < {MIN_PROGRAMS}, v > {STEP[dtype]}",
        types={
            "labels_ptr": "*i64",
            "tops_ptr": "*fp32",
            "totals_ptr": "*fp32",
            "out_ptr": "*fp32",
        },
        elements=MAX_SPLITS,
        bytes=2 * 4 * MAX_SPLITS,  # a maximum and a sum of each piece
    )


PARTIAL = {dtype: _partial(dtype) for dtype in DTYPES}
FINISH = {dtype: _finish(dtype) for dtype in DTYPES}


def variants(arch: int) -> tuple[Variant, ...]:
    return (*v2_online.variants(arch), *PARTIAL.values(), *FINISH.values())


def split(m: int, v: int, step: int) -> tuple[int, int]:
    """Return the pieces per row and the elements per piece; the last piece may be shorter."""
    pieces = min(triton.cdiv(MIN_PROGRAMS, m), triton.cdiv(v, step), MAX_SPLITS)
    chunk = triton.cdiv(triton.cdiv(v, pieces), UNIT.value) * UNIT.value
    return triton.cdiv(v, chunk), chunk


def _launch(logits: torch.Tensor, labels: torch.Tensor, out: torch.Tensor, stride: int) -> None:
    m, v = logits.shape
    dtype = logits.dtype
    splits, chunk = split(m, v, STEP[dtype])
    if splits == 1:
        v2_online.VARIANTS[dtype].launch(m, logits, labels, out, v, stride)
        return
    tops, totals = (
        torch.empty((m, splits), dtype=torch.float32, device=logits.device) for _ in range(2)
    )
    PARTIAL[dtype].launch(m * splits, logits, tops, totals, v, stride, 0, splits, chunk)
    FINISH[dtype].launch(m, logits, labels, tops, totals, out, v, stride, splits)


KERNELS = launchers("v3", _launch)
