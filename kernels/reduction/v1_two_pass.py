"""Version 1 of the reductions: one masked block a program, then one program for all partial sums.

Computes, for vectors of n elements:

    sum   s = x_1 + ... + x_n
    dot   s = x_1 y_1 + ... + x_n y_n

Bytes moved, for elements of e bytes: sum reads n e, dot 2 n e; e written. The partial sums, 4 bytes for every
BLOCK elements and operand, are written and read again, and not counted: 0.2 % of a sum in fp32, 0.4 % in 16 bits.

Rounding: operands are widened to fp32, so a product of two 16-bit numbers is exact. The sum of a block is a tree of
depth log2 BLOCK, the partial sums are added up in FINISH_BLOCK columns and a tree: a term takes part in at most
log2 BLOCK + ceil(programs / FINISH_BLOCK) + log2 FINISH_BLOCK additions in fp32. One rounding to the dtype of s, to
the nearest even. The order is fixed, so the same call gives the same bits.

Changed against the last version: nothing, this is the starting point. Two passes and not one with `tl.atomic_add` on
the result: atomics come in another order in every run, and so does the last bit of the sum; a 16-bit result would be
rounded at every one of them, and without fp32 scratch there is no way around it; and the result must be zeroed first.

What it costs, as the compiler shows it for sm_90: the mask `offsets < n` covers every block, and nothing is known of
n, so elements are loaded one by one, 2 bytes an instruction in a 16-bit dtype. The second pass is one program that
reads 4 bytes of scratch a thread and access, so it takes ever longer as n grows. Each program has one step's loads in
flight and nothing to do while it waits.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import DTYPES, Variant
from kernels.reduction import launchers

WARPS = 4
BLOCK = 1024  # elements a program
FINISH_BLOCK = 1024  # partial sums a step of the second pass


@triton.jit(do_not_specialize=["n"])
def reduce_block(
    x_ptr,  # n elements
    partial_ptr,  # fp32, one element a program
    n,  # elements, not specialized: one binary serves every n
    y_ptr,  # n elements to multiply x with, or None
    BLOCK: tl.constexpr,  # elements a program, a power of two
):
    """Write the sum of one block of x, or of x times y."""
    program = tl.program_id(0).to(tl.int64)
    offsets = program * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    terms = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    if y_ptr is not None:
        terms *= tl.load(y_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    tl.store(partial_ptr + program, tl.sum(terms))


@triton.jit(do_not_specialize=["count"])
def finish(
    partial_ptr,  # fp32, `count` elements
    out_ptr,  # one element
    count,  # partial sums
    BLOCK: tl.constexpr,  # of them a step, a power of two
):
    """Write the sum of all partial sums."""
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, count, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(partial_ptr + offsets, mask=offsets < count, other=0.0)
    tl.store(out_ptr, tl.sum(total))


OPTIONS = {"num_warps": WARPS, "enable_fp_fusion": True}


def _variant(op: str, dtype: torch.dtype) -> Variant:
    vectors = 1 if op == "sum" else 2
    return Variant(
        kernel=reduce_block,
        constants={"BLOCK": BLOCK} | ({"y_ptr": None} if op == "sum" else {}),
        options=OPTIONS,
        op=op,
        dtype=DTYPES[dtype],
        part="partial",
        types={"partial_ptr": "*fp32"},
        elements=BLOCK,
        bytes=BLOCK * dtype.itemsize * vectors,
    )


def _finish_variant(op: str, dtype: torch.dtype) -> Variant:
    return Variant(
        kernel=finish,
        constants={"BLOCK": FINISH_BLOCK},
        options=OPTIONS,
        op=op,
        dtype=DTYPES[dtype],
        part="finish",
        types={"partial_ptr": "*fp32"},
        elements=FINISH_BLOCK,
        bytes=FINISH_BLOCK * 4,
    )


VARIANTS: dict[tuple[str, torch.dtype], tuple[Variant, Variant]] = {
    (op, dtype): (_variant(op, dtype), _finish_variant(op, dtype)) for op in ("sum", "dot") for dtype in DTYPES
}


def variants(arch: int) -> tuple[Variant, ...]:
    return tuple(variant for both in VARIANTS.values() for variant in both)


def _reduce(op: str, x: torch.Tensor, others: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
    n = x.numel()
    programs = max(triton.cdiv(n, BLOCK), 1)  # one for no elements too: their sum is 0
    partial = torch.empty(programs, dtype=torch.float32, device=x.device)
    first, last = VARIANTS[op, x.dtype]
    first.launch(programs, x, partial, n, *others)
    last.launch(1, partial, out, programs)


KERNELS = launchers("v1", _reduce)
