"""Version 1 of the matrix-vector product: one row per program, one masked loop over its columns.

Computes y_i = sum_j A_ij x_j for A of shape (m, n) with dense rows of any stride, x of shape (n,),
y of shape (m,).

Bytes moved, for elements of e bytes: read (m n + n) e, written m e. Every program reads x again;
all but the first of those reads are expected to hit in cache and are not counted.

Rounding: operands are widened to fp32, so the product of two 16-bit numbers is exact. Each of BLOCK
positions has a partial sum in fp32. They are added in a tree at the end, and y is rounded once, to
the nearest even.

This is the straightforward loop. What is slow, in the machine code for sm_90:
- the mask `columns < n` covers every step. The compiler knows nothing about n, so it cannot assume
  that two neighbors are on the same side of it, and loads each element with a separate instruction,
  2 bytes in a 16-bit dtype;
- a loop without `tl.dot` is not pipelined: the loads of a step wait for the sums of the step
  before;
- x is read for every row, so there are as many loads of x as of A.

Not supported: int8 weights.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant, on_any_arch
from kernels.matvec import read

WARPS = 4
BLOCK = 1024  # columns per step


@triton.jit(do_not_specialize=["n"])
def matvec_naive(
    a_ptr,  # A, rows of n elements, each row dense
    x_ptr,  # x, n elements
    out_ptr,  # y, one element per row
    n,  # columns of A, not specialized: one binary serves every n
    row_stride,  # elements from one row of A to the next
    BLOCK: tl.constexpr,  # columns per step, a power of two
):
    row = tl.program_id(0).to(tl.int64)
    partial = tl.zeros((BLOCK,), dtype=tl.float32)
    # In 64 bits: the last block may end beyond 2^31 even if n is below.
    for start in range(0, n.to(tl.int64), BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < n
        a = tl.load(a_ptr + row * row_stride + columns, mask=inside, other=0.0)
        x = tl.load(x_ptr + columns, mask=inside, other=0.0)
        partial += a.to(tl.float32) * x.to(tl.float32)
    tl.store(out_ptr + row, tl.sum(partial))


VARIANTS = {
    ("matvec", dtype): Variant(
        kernel=matvec_naive,
        constants={"BLOCK": BLOCK},
        warps=WARPS,
        op="matvec",
        dtype=DTYPES[dtype],
        elements=BLOCK,
        bytes=BLOCK * dtype.itemsize,
    )
    for dtype in DTYPES
}
variants = on_any_arch(VARIANTS)


def _matvec(a: torch.Tensor, x: torch.Tensor, *, out: torch.Tensor) -> None:
    stride = read("matvec v1", a, x, out)
    if out.numel():
        VARIANTS["matvec", a.dtype].launch(a.shape[0], a, x, out, a.shape[1], stride)


KERNELS = {"matvec": _matvec}
