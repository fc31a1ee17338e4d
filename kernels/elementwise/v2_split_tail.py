"""Version 2 of the elementwise kernels: full blocks have no mask, so accesses are wide for any n.

Computes the same as version 1, with the same formulas, bytes and rounding. dropout keeps the same
elements for the same seed.

Changes from version 1:
- A full block takes a path without a mask, where each thread moves 16 bytes per access for any n.
  Only the last block is masked and moves single elements. In bf16 on sm_90 a thread of `copy` loads
  once instead of 8 times.
- bias-gelu divides once per program instead of once per element. It reads the bias 16 bytes at a
  time if a block lies within one row and rows are multiples of 16 elements.

What is slow:
- Instruction issue: erf-GELU in bf16 compiles to 37 instructions per element on sm_90. An H100 that
  moves 3 TB/s has issue slots for about 40, and dropout needs more than that.
- The narrow accesses of the tail take registers from every block: 26 instead of 14 for `copy`.
- A bias whose length is not a multiple of 16 is read element by element, from cache.

The limits of the formulas are those of version 1.
"""

import triton
import triton.language as tl

from kernels.elementwise import launchers, named, variants_of
from kernels.elementwise.v1_masked import OPS as FIRST_OPS
from kernels.launch import ALIGNMENT_BYTES, on_any_arch

WARPS = 4
BLOCK_BYTES = WARPS * 32 * ALIGNMENT_BYTES  # one widest access per thread


@triton.jit(do_not_specialize=["n"], repr=named("split"))
def map_kernel(
    x_ptr,  # first input, n elements
    out_ptr,  # output, n elements
    n,  # number of elements, not specialized: one binary serves every n
    y_ptr,  # second input, n elements, or a 64-bit seed if RANDOM, or None
    FORMULA: tl.constexpr,  # block of x, or blocks of x and of y or random numbers -> block of out
    BLOCK: tl.constexpr,  # elements per program, a power of two
    RANDOM: tl.constexpr,  # whether there is a seed
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    seed = tl.load(y_ptr) if RANDOM else 0
    if start + BLOCK <= n:
        x = tl.load(x_ptr + offsets)
        # Drawn in both branches: before the branch they would need an exchange between threads to
        # the layout of x.
        if RANDOM:
            result = FORMULA(x, tl.rand(seed, offsets))
        else:
            result = FORMULA(x) if y_ptr is None else FORMULA(x, tl.load(y_ptr + offsets))
        tl.store(out_ptr + offsets, result)
    else:
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside)
        if RANDOM:
            result = FORMULA(x, tl.rand(seed, offsets))
        else:
            result = (
                FORMULA(x) if y_ptr is None else FORMULA(x, tl.load(y_ptr + offsets, mask=inside))
            )
        tl.store(out_ptr + offsets, result, mask=inside)


@triton.jit(do_not_specialize=["n"], repr=named("split"))
def row_bias_kernel(
    x_ptr,  # input, n elements in rows of cols elements
    out_ptr,  # output, n elements
    n,  # rows * cols, not specialized: one binary serves every n
    bias_ptr,  # bias, cols elements
    cols,  # elements per row; a multiple of 16 makes the bias loads wide
    FORMULA: tl.constexpr,  # blocks of x and bias -> block of out
    BLOCK: tl.constexpr,  # elements per program, a power of two
):
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lanes = tl.arange(0, BLOCK)
    offsets = start + lanes
    # start < n, so it fits the integer type of n; a 64-bit division costs several times a 32-bit
    # one. No `%`: Triton 3.6 loses its divisibility by 16 and reads the bias element by element.
    first = start.to(n.dtype)
    column = (first - first // cols * cols).to(tl.int32)
    if start + BLOCK <= n:
        x = tl.load(x_ptr + offsets)
        if column + BLOCK <= cols:
            bias = tl.load(bias_ptr + column + lanes)
        else:
            bias = tl.load(bias_ptr + (column + lanes) % cols)
        tl.store(out_ptr + offsets, FORMULA(x, bias))
    else:
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside)
        bias = tl.load(bias_ptr + (column + lanes) % cols, mask=inside)
        tl.store(out_ptr + offsets, FORMULA(x, bias), mask=inside)


OPS = {  # kernel, formula of version 1, and the names of the inputs of one shape
    op: (row_bias_kernel if op == "bias-gelu" else map_kernel, formula, names)
    for op, (_, formula, names) in FIRST_OPS.items()
}

VARIANTS = variants_of(OPS, WARPS, BLOCK_BYTES)
variants = on_any_arch(VARIANTS)

KERNELS = launchers("v2", OPS, VARIANTS, triton.cdiv)
