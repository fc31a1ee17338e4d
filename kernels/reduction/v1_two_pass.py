"""Version 1 of the reductions: one masked block per program, then one program that adds all partial
sums.

Computes, for vectors of n elements:

    sum   s = x_1 + ... + x_n
    dot   s = x_1 y_1 + ... + x_n y_n

Bytes moved, for elements of e bytes: sum reads n e, dot 2 n e; e written. The partial sums, 4 bytes
for every BLOCK elements of an operand, are written and read again and not counted: 0.2 % of a sum
in fp32, 0.4 % in 16 bits.

Rounding: operands are widened to fp32, so the product of two 16-bit numbers is exact. The sum of a
block is a tree of depth log2 BLOCK, and the partial sums are added in FINISH_BLOCK columns and a
tree. So a term takes part in at most log2 BLOCK + ceil(programs / FINISH_BLOCK) + log2 FINISH_BLOCK
additions in fp32. s is rounded once, to the nearest even. The order is fixed, so the same call
gives the same bits.

There are two passes instead of one with `tl.atomic_add`. Atomics arrive in a different order in
every run, which changes the last bits, round a 16-bit result at every addition, and need a result
that is zeroed first.

What is slow, in the machine code for sm_90: the mask `offsets < n` covers every block, and the
compiler knows nothing about n, so it loads elements one by one, 2 bytes per instruction in a 16-bit
dtype. The second pass is one program that reads 4 bytes per thread and access, so its time grows
with n. Each program has the loads of one step in flight and nothing to do in the meantime.
"""

import itertools

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant, on_any_arch
from kernels.reduction import launchers

WARPS = 4
BLOCK = 1024  # elements per program
FINISH_BLOCK = 1024  # partial sums per step of the second pass


@triton.jit
def terms_of(
    x_ptr,  # elements
    y_ptr,  # as many to multiply them with, or None
    offsets,  # block
    inside,  # block of the same shape: which to read
):
    """Return the terms of a sum or dot product in fp32, 0 for those that are not read."""
    terms = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    if y_ptr is not None:
        terms *= tl.load(y_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    return terms


@triton.jit(do_not_specialize=["n"])
def reduce_block(
    x_ptr,  # n elements
    partial_ptr,  # fp32, one element per program
    n,  # elements, not specialized: one binary serves every n
    y_ptr,  # n elements to multiply x with, or None
    BLOCK: tl.constexpr,  # elements per program, a power of two
):
    program = tl.program_id(0).to(tl.int64)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(partial_ptr + program, tl.sum(terms_of(x_ptr, y_ptr, offsets, offsets < n)))


@triton.jit(do_not_specialize=["count"])
def finish(
    partial_ptr,  # fp32, `count` elements
    out_ptr,  # one element
    count,  # partial sums
    BLOCK: tl.constexpr,  # partial sums per step, a power of two
):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(partial_ptr + offsets, mask=offsets < count, other=0.0)
    tl.store(out_ptr, tl.sum(total))


def _variant(op: str, dtype: torch.dtype, part: str) -> Variant:
    constants = {"BLOCK": BLOCK} | ({"y_ptr": None} if op == "sum" else {})
    moved = BLOCK * dtype.itemsize * (1 if op == "sum" else 2)
    if part == "finish":
        constants = {"BLOCK": FINISH_BLOCK}
        moved = FINISH_BLOCK * 4
    return Variant(
        kernel=finish if part == "finish" else reduce_block,
        constants=constants,
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        part=part,
        types={"partial_ptr": "*fp32"},
        elements=constants["BLOCK"],
        bytes=moved,
    )


VARIANTS = {
    key: _variant(*key) for key in itertools.product(("sum", "dot"), DTYPES, ("partial", "finish"))
}
variants = on_any_arch(VARIANTS)


def _reduce(op: str, x: torch.Tensor, others: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
    n = x.numel()
    programs = max(triton.cdiv(n, BLOCK), 1)  # at least one, because the sum of no elements is 0
    partial = torch.empty(programs, dtype=torch.float32, device=x.device)
    VARIANTS[op, x.dtype, "partial"].launch(programs, x, partial, n, *others)
    VARIANTS[op, x.dtype, "finish"].launch(1, partial, out, programs)


KERNELS = launchers("v1", _reduce)
