"""Version 2 of cross-entropy: reads the logits once, 16 bytes per access for any row start and
length.

Computes the same as version 1, in fp32 with the same special values. The logit of the label is read
a second time, 32 bytes per row that are not counted.

Changes from version 1:
- One pass updates a running maximum and a running sum (Milakov and Gimelshein, "Online normalizer
  calculation for softmax", 2018), so half the bytes are moved. Each lane has its own pair, so
  threads exchange nothing until the end.
- Each row is cut at multiples of 16 elements into a body and fewer than 16 elements at either end.
  The body is read 16 bytes per thread for every v and stride, for example with 50,257 elements per
  row, where each row starts at another offset. Only the last step of the body is masked.
- A `tl.range` loop with several stages copies steps to shared memory ahead of their use, from sm_80
  on.

Precision: the maximum and the logit of the label are subtracted before the logarithm is added, so
an offset common to a row costs no digits. e^d is computed as 2^(d log2(e)) from the difference d to
the maximum. Folding the maximum into one multiply-add would save an instruction, but without fusion
it loses three digits for logits near 10^4. The running maximum starts at the lowest finite number:
in a row that begins with -inf, -inf - -inf would be NaN.

Not supported: programs that share a row, so with fewer rows than multiprocessors some are idle.
"""

import torch
import triton
import triton.language as tl

from kernels.cross_entropy import one_launch
from kernels.cross_entropy.v1_naive import IGNORED, picked_logit
from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant, on_any_arch
from kernels.online_softmax import top_and_total

WARPS = 8
DEPTH = 4  # elements of each lane in one step
STAGES = 3  # steps in flight


@triton.jit(do_not_specialize=["v", "x_stride"])
def cross_entropy_online(
    x_ptr,  # logits, m rows of v elements, each row dense
    labels_ptr,  # m labels
    out_ptr,  # loss, m elements
    v,  # elements per row, not specialized: one binary serves every v
    x_stride,  # elements from one row of x to the next
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
):
    row = tl.program_id(0).to(tl.int64)
    first = row * x_stride
    # Before the loop, so that its two round trips to memory overlap with the loop.
    label = tl.load(labels_ptr + row)
    picked = picked_logit(x_ptr + first, label, v)

    top, row_total = top_and_total(x_ptr, first, v, DEPTH, LANES, STAGES)
    loss = (top - picked) + tl.log(row_total)
    tl.store(out_ptr + row, tl.where(label == IGNORED, 0.0, loss))


def _variant(dtype: torch.dtype) -> Variant:
    lanes = WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize
    return Variant(
        kernel=cross_entropy_online,
        constants={"DEPTH": DEPTH, "LANES": lanes, "STAGES": STAGES},
        warps=WARPS,
        op="cross-entropy",
        dtype=DTYPES[dtype],
        shape_class="any v",
        types={"labels_ptr": "*i64", "out_ptr": "*fp32"},
        elements=DEPTH * lanes,
        bytes=DEPTH * lanes * dtype.itemsize,
    )


VARIANTS = {dtype: _variant(dtype) for dtype in DTYPES}
variants = on_any_arch(VARIANTS)
KERNELS = one_launch("v2", VARIANTS)
