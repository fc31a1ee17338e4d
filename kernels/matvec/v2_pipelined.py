"""Version 2 of the matrix-vector product: four rows per program, and a pipelined loop over the
columns.

Computes the same as version 1, with the same bytes moved. Each of ROWS x BLOCK positions has a
partial sum in fp32.

Changes from version 1:
- only the last, partial block of columns is masked. If the row stride is a multiple of 16 elements,
  every load of a full block is 16 bytes per thread, for any n;
- the `tl.range` loop has several stages, which from sm_80 on become asynchronous copies to shared
  memory three steps ahead of their use. The launch option `num_stages` does not pipeline loads in a
  loop without `tl.dot`;
- a program computes four rows, so each block of x is loaded once for all four.

Limits: columns are not split among programs. With fewer than about 4 rows per multiprocessor, some
multiprocessors have no work, so a short and wide A runs far below the memory ceiling. A partial
block of columns, and all of a matrix whose row stride is not a multiple of 16 elements, is read
element by element. No int8 weights.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant, on_any_arch
from kernels.matvec import read

WARPS = 4
ROWS = 4  # each block of x is used for this many rows
BLOCK_ROW_BYTES = 1024  # of one row in one step of the loop
STAGES = 4  # steps in flight


@triton.jit(do_not_specialize=["m", "n"])
def matvec_rows(
    a_ptr,  # A, m rows of n elements, each row dense
    x_ptr,  # x, n elements
    out_ptr,  # y, m elements
    m,  # rows of A, not specialized: one binary serves every m
    n,  # columns of A, not specialized: one binary serves every n
    row_stride,  # elements from one row of A to the next; a multiple of 16 makes the loads wide
    ROWS: tl.constexpr,  # rows per program, a power of two
    BLOCK: tl.constexpr,  # columns per step, a power of two
    STAGES: tl.constexpr,  # steps of the loop in flight
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    row_inside = rows < m
    row_ptrs = a_ptr + rows[:, None] * row_stride
    partial = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    full = n // BLOCK * BLOCK
    for start in tl.range(0, full, BLOCK, num_stages=STAGES):
        a = tl.load(row_ptrs + (start + lanes)[None, :], mask=row_inside[:, None], other=0.0)
        x = tl.load(x_ptr + start + lanes)
        partial += a.to(tl.float32) * x.to(tl.float32)[None, :]
    if full < n:
        # Without `full`: the sum may exceed 2^31 even if n does not.
        inside = lanes < n - full
        a = tl.load(
            row_ptrs + (full + lanes)[None, :],
            mask=row_inside[:, None] & inside[None, :],
            other=0.0,
        )
        x = tl.load(x_ptr + full + lanes, mask=inside, other=0.0)
        partial += a.to(tl.float32) * x.to(tl.float32)[None, :]
    tl.store(out_ptr + rows, tl.sum(partial, axis=1), mask=row_inside)


VARIANTS: dict[tuple[str, torch.dtype], Variant] = {
    ("matvec", dtype): Variant(
        kernel=matvec_rows,
        constants={"ROWS": ROWS, "BLOCK": BLOCK_ROW_BYTES // dtype.itemsize, "STAGES": STAGES},
        options={"num_warps": WARPS, "enable_fp_fusion": True},
        op="matvec",
        dtype=DTYPES[dtype],
        elements=ROWS * BLOCK_ROW_BYTES // dtype.itemsize,
        bytes=ROWS * BLOCK_ROW_BYTES,
    )
    for dtype in DTYPES
}
variants = on_any_arch(VARIANTS)


def _matvec(a: torch.Tensor, x: torch.Tensor, *, out: torch.Tensor) -> None:
    stride = read("matvec v2", a, x, out)
    if out.numel():
        VARIANTS["matvec", a.dtype].launch(
            triton.cdiv(a.shape[0], ROWS), a, x, out, *a.shape, stride
        )


KERNELS = {"matvec": _matvec}
