"""Version 1 of cross-entropy: reads each row twice, once for its maximum and once for the sum.

Computes loss_i = log(sum_j exp(x_ij)) - x_ij at j = label_i, for logits x of shape (m, v) and int64
labels of shape (m,). The loss is fp32 for every dtype of the logits.

The label -100, torch's default `ignore_index`, gives a loss of 0 even if its row has NaN. Any other
label outside 0 .. v-1 gives NaN and reads no logit.

Bytes moved, for logits of e bytes: read m v e + 8 m, written 4 m. These are the compulsory bytes;
this version reads the logits twice and moves up to 2 m v e.

Rounding: logits are widened to fp32, all arithmetic is fp32, and the loss is not rounded again.

Special values, as in torch: a row with NaN or +inf, or with only -inf, has the loss NaN; a label
whose logit is -inf has the loss +inf. `tl.max` drops NaN, but exp(NaN - max) is NaN and makes the
sum NaN.

This version follows the formula. What is slow:
- the second read of a row comes from memory again once the active rows exceed L2;
- every step is masked, so loads are wide only if v and the row stride are multiples of 16;
- all threads exchange the maximum in every step before the next step can use it;
- loads in a loop without `tl.dot` are not started ahead.
"""

import triton
import triton.language as tl

from kernels.cross_entropy import one_launch
from kernels.launch import DTYPES, Variant, on_any_arch

WARPS = 8
BLOCK = 4096  # columns per step
IGNORED = tl.constexpr(-100)  # the label that torch ignores by default


@triton.jit
def picked_logit(
    row_ptr,  # logits, one row of v elements
    label,  # any number
    v,  # elements
):
    """Return the logit of a label in fp32, NaN if there is no such label."""
    inside = (label >= 0) & (label < v)
    return tl.load(row_ptr + label, mask=inside, other=float("nan")).to(tl.float32)


@triton.jit
def cross_entropy_masked(
    x_ptr,  # logits, m rows of v elements, each row dense
    labels_ptr,  # m labels
    out_ptr,  # loss, m elements
    v,  # elements per row; a multiple of 16 makes the loads wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes the loads wide
    BLOCK: tl.constexpr,  # columns per step, a power of two
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = x_ptr + row * x_stride
    lanes = tl.arange(0, BLOCK)
    highest = float("-inf")
    for start in range(0, v, BLOCK):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < v, other=float("-inf")).to(
            tl.float32
        )
        highest = tl.maximum(highest, tl.max(x, axis=0))
    total = 0.0
    for start in range(0, v, BLOCK):
        x = tl.load(row_ptr + start + lanes, mask=start + lanes < v, other=float("-inf")).to(
            tl.float32
        )
        total += tl.sum(tl.exp(x - highest), axis=0)
    label = tl.load(labels_ptr + row)
    picked = picked_logit(row_ptr, label, v)
    loss = (highest - picked) + tl.log(total)
    tl.store(out_ptr + row, tl.where(label == IGNORED, 0.0, loss))


VARIANTS = {
    dtype: Variant(
        kernel=cross_entropy_masked,
        constants={"BLOCK": BLOCK},
        warps=WARPS,
        op="cross-entropy",
        dtype=name,
        shape_class="any v",
        types={"labels_ptr": "*i64", "out_ptr": "*fp32"},
        elements=BLOCK,
        bytes=BLOCK * dtype.itemsize,
    )
    for dtype, name in DTYPES.items()
}
variants = on_any_arch(VARIANTS)
KERNELS = one_launch("v1", VARIANTS)
