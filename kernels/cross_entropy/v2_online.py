"""Version 2 of cross-entropy: one read of the logits, 16 bytes an access wherever a row starts and ends.

Computes what version 1 does, in fp32 with the same special values. The logit of the label is fetched once more,
32 bytes a row, which is not counted.

The maximum and the logit are subtracted before the logarithm is added, so that an offset common to a row costs no
digits of its loss. e^d is taken as 2^(d log2(e)) of the difference d from the maximum, never of x itself: folding the
maximum into one multiply-add is an instruction less, but where that add is not fused, logits near 10^4 lose three
digits. The running maximum starts at the lowest finite number, because -inf - -inf, in a row that only begins with
-inf, would be NaN.

Changed against the last version, and why:
- One pass keeps a running maximum and a running sum (Milakov and Gimelshein, "Online normalizer calculation for
  softmax", 2018), so half the bytes are moved. Both are kept for each lane: threads exchange nothing until the end.
- A row is cut where addresses are multiples of 16 elements: a body, and fewer than 16 elements at either end. The body
  is read 16 bytes a thread, whatever v and the stride are, also where a row has 50,257 elements and each starts at
  another remainder; only its last step has a mask.
- A `tl.range` loop with several stages: steps are copied to shared memory ahead of their use.

What it leaves out: rows shared between programs, so fewer rows than multiprocessors leave some idle.
"""

import torch
import triton
import triton.language as tl

from kernels.cross_entropy import read
from kernels.cross_entropy.v1_naive import IGNORED
from kernels.launch import ALIGNMENT_BYTES, DTYPES, Variant
from kernels.online_softmax import top_and_total

WARPS = 8
DEPTH = 4  # elements of each lane in one step
STAGES = 3  # steps in flight


@triton.jit(do_not_specialize=["v", "x_stride"])
def cross_entropy_online(
    x_ptr,  # logits, m rows of v elements, each row dense
    labels_ptr,  # m labels
    out_ptr,  # loss, m elements
    v,  # elements a row, not specialized: one binary serves every v
    x_stride,  # elements from one row of x to the next
    DEPTH: tl.constexpr,  # elements of each lane in one step, a power of two
    LANES: tl.constexpr,  # a power of two; one widest access for each thread
    STAGES: tl.constexpr,  # steps of the loop in flight
):
    """Write the loss of one row."""
    row = tl.program_id(0).to(tl.int64)
    first = row * x_stride
    # Asked for before the loop, so that its two round trips to memory are over when the loop is.
    label = tl.load(labels_ptr + row)
    picked = tl.load(x_ptr + first + label, mask=(label >= 0) & (label < v), other=float("nan")).to(tl.float32)

    top, row_total = top_and_total(x_ptr, first, v, DEPTH, LANES, STAGES)
    loss = (top - picked) + tl.log(row_total)
    tl.store(out_ptr + row, tl.where(label == IGNORED, 0.0, loss))


def _variant(dtype: torch.dtype) -> Variant:
    lanes = WARPS * 32 * ALIGNMENT_BYTES // dtype.itemsize
    return Variant(
        kernel=cross_entropy_online,
        constants={"DEPTH": DEPTH, "LANES": lanes, "STAGES": STAGES},
        options={"num_warps": WARPS, "enable_fp_fusion": True},
        op="cross-entropy",
        dtype=DTYPES[dtype],
        shape_class="any v",
        types={"labels_ptr": "*i64", "out_ptr": "*fp32"},
        elements=DEPTH * lanes,
        bytes=DEPTH * lanes * dtype.itemsize,
    )


VARIANTS: dict[torch.dtype, Variant] = {dtype: _variant(dtype) for dtype in DTYPES}


def variants(arch: int) -> tuple[Variant, ...]:
    return tuple(VARIANTS.values())


def _cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, out: torch.Tensor) -> None:
    m, v, stride = read("cross-entropy v2", logits, labels, out)
    if m:
        VARIANTS[logits.dtype].launch(m, logits, labels, out, v, stride)


KERNELS = {"cross-entropy": _cross_entropy}
