"""Version 1 of softmax: holds each row as one power-of-two block, with a mask.

Computes out_ij = exp(x_ij - max_k x_ik) / sum_k exp(x_ik - max_l x_il) for x of shape (m, n), along
the last axis.

Bytes moved, for elements of e bytes: read m n e, written m n e. Row strides may be larger than n.

Rounding: operands are widened to fp32, all arithmetic is fp32, and the result is rounded once, to
the nearest even.

Special values, as in torch: a row with NaN or +inf is NaN, -inf gives 0, and a row of only -inf is
NaN. `tl.max` drops NaN, but exp(NaN - max) is NaN and makes the sum, and so the whole row, NaN.

This is the kernel of the textbooks. What is slow, on sm_80, sm_90 and sm_100:
- the mask prevents wide accesses to the whole row, not only to its end, unless n is a multiple of
  16;
- so does a row stride that is not a multiple of 16, because only the first row is known to be
  aligned;
- with 65,536 columns the 1024 threads of a program have 64 registers each for 64 elements each. The
  row spills to local memory, and no model of the bytes includes that traffic.

Not supported: rows of more than 65,536 elements; several short rows in one program.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant, on_any_arch
from kernels.softmax import launcher

# By elements of the block.
WARPS = {1024: 4, 2048: 4, 4096: 8, 8192: 8, 16384: 16, 32768: 16, 65536: 32}


@triton.jit
def softmax_masked(
    x_ptr,  # input, m rows of n elements, each row dense
    out_ptr,  # output, m rows of n elements, each row dense
    n,  # elements per row; a multiple of 16 makes the accesses wide
    x_stride,  # elements from one row of x to the next; a multiple of 16 makes the loads wide
    out_stride,  # elements from one row of out to the next; a multiple of 16 makes the stores wide
    BLOCK: tl.constexpr,  # at least n, a power of two
):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < n
    x = tl.load(x_ptr + row * x_stride + lanes, mask=inside, other=float("-inf")).to(tl.float32)
    exponentials = tl.exp(x - tl.max(x, axis=0))
    total = tl.sum(exponentials, axis=0)
    tl.store(out_ptr + row * out_stride + lanes, exponentials / total, mask=inside)


VARIANTS = {
    (dtype, block): Variant(
        kernel=softmax_masked,
        constants={"BLOCK": block},
        warps=warps,
        op="softmax",
        dtype=name,
        shape_class=f"n <= {block}",
        elements=block,
        bytes=2 * block * dtype.itemsize,
    )
    for dtype, name in DTYPES.items()
    for block, warps in WARPS.items()
}
variants = on_any_arch(VARIANTS)


def _launch(x: torch.Tensor, out: torch.Tensor, x_stride: int, out_stride: int) -> None:
    m, n = x.shape
    block = min(size for size in WARPS if size >= n)
    VARIANTS[x.dtype, block].launch(m, x, out, n, x_stride, out_stride)


KERNELS = {"softmax": launcher("v1", max(WARPS), _launch)}
