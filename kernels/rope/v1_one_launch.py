"""Version 1 of the rotary position embedding: queries and keys in one launch, some heads of a token
per program.

Computes, for each pair (a, b) of a head of d elements, with c and s from the tables of its token:

    (a c - b s, b c + a s)

The pairs are elements i and i + d/2 (rope) or 2i and 2i + 1 (rope-interleaved).

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021), section
3.4.2.

Bytes moved, for t tokens with h query and key heads and elements of e bytes: read t d (h + 1) e,
written t d h e. The tables of a token are read once per program, after the first time from cache.

Rounding: fp32 arithmetic, one rounding at the end.

A program computes 512 pairs of heads of one token, either of q or of k, with 64 threads. Pairs are
loaded as they lie in memory, with accesses of 16 bytes, and separated afterwards. On sm_90 in bf16
this takes 12.1 to 15.1 instructions per element and 32 to 34 registers.

Limits: accesses are narrower if d/2 is not a multiple of 16. Lanes idle if d/2 is not a power of
two, and in the last program of q or k of a token if the heads do not fill it. Heads of more than
1024 elements and tensors that are not contiguous are rejected.
"""

import itertools
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.launch import (
    DTYPES,
    Variant,
    on_any_arch,
    require_contiguous,
    require_shape,
    require_tensors,
)

OPS = ("rope", "rope-interleaved")
WARPS = 2
PAIRS = 512  # per program
HALVES = (32, 64, 128, 256, 512)  # pairs of a head; a head takes the smallest that holds it


@triton.jit
def rope_kernel(
    q_ptr,  # queries (t, q_heads, 2 half)
    k_ptr,  # keys (t, k_heads, 2 half)
    cos_ptr,  # table (t, half)
    sin_ptr,  # table (t, half)
    out_ptr,  # results (t, q_heads + k_heads, 2 half)
    q_heads,  # query heads of a token
    k_heads,  # key heads of a token
    half,  # pairs of a head; a multiple of 16 makes accesses wide
    INTERLEAVED: tl.constexpr,  # whether the elements of a pair are neighbors
    HEADS: tl.constexpr,  # heads per program, a power of two
    HALF: tl.constexpr,  # a power of two from half
):
    q_blocks = tl.cdiv(q_heads, HEADS)
    blocks = q_blocks + tl.cdiv(k_heads, HEADS)
    token = (tl.program_id(0) // blocks).to(tl.int64)
    block = (tl.program_id(0) % blocks).to(tl.int64)
    pairs = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + token * half + pairs, mask=pairs < half).to(tl.float32)
    sin = tl.load(sin_ptr + token * half + pairs, mask=pairs < half).to(tl.float32)
    out_row = token * (q_heads + k_heads)
    if block < q_blocks:
        x_ptr = q_ptr + token * q_heads * (2 * half)
        heads = q_heads
    else:
        x_ptr = k_ptr + token * k_heads * (2 * half)
        heads = k_heads
        out_row += q_heads
        block -= q_blocks
    head = block * HEADS + tl.arange(0, HEADS)[:, None]
    columns = tl.arange(0, 2 * HALF)[None, :]
    at = columns if INTERLEAVED else columns // HALF * half + columns % HALF
    inside = (head < heads) & (columns < 2 * half if INTERLEAVED else columns % HALF < half)
    at += head * (2 * half)
    x = tl.load(x_ptr + at, mask=inside).to(tl.float32)
    if INTERLEAVED:
        x = tl.reshape(x, (HEADS, HALF, 2))
    else:
        x = tl.permute(tl.reshape(x, (HEADS, 2, HALF)), (0, 2, 1))
    a, b = tl.split(x)
    y = tl.join(a * cos - b * sin, b * cos + a * sin)
    y = tl.reshape(y if INTERLEAVED else tl.permute(y, (0, 2, 1)), (HEADS, 2 * HALF))
    tl.store(out_ptr + out_row * (2 * half) + at, y, mask=inside)


def _variant(op: str, dtype: torch.dtype, half: int) -> Variant:
    return Variant(
        kernel=rope_kernel,
        constants={"INTERLEAVED": op == OPS[1], "HEADS": PAIRS // half, "HALF": half},
        warps=WARPS,
        op=op,
        dtype=DTYPES[dtype],
        shape_class=f"head-dim <= {2 * half}",
        elements=2 * PAIRS,
        bytes=4 * PAIRS * dtype.itemsize,  # the tables come from the cache
    )


VARIANTS = {key: _variant(*key) for key in itertools.product(OPS, DTYPES, HALVES)}
"""By operation, dtype and pairs of a head."""
variants = on_any_arch(VARIANTS)


def _launch(op: str, *inputs: torch.Tensor, out: torch.Tensor) -> None:
    """Launch the variant with the smallest block that holds the pairs of a head."""
    label = f"{op} v1"
    tensors = dict(zip(("q", "k", "cos", "sin", "out"), (*inputs, out), strict=True))
    require_tensors(label, **tensors)
    require_contiguous(label, **tensors)
    q, k, cos, sin = inputs
    if q.dim() != 3 or k.dim() != 3 or q.shape[2] not in range(0, 2 * HALVES[-1] + 1, 2):
        raise ValueError(
            f"{label}: q and k have shapes {tuple(q.shape)} and {tuple(k.shape)}; expected (tokens,"
            f" heads, elements) with an even number of at most {2 * HALVES[-1]} elements"
        )
    t, q_heads, d = q.shape
    k_heads = k.shape[1]
    require_shape(label, "k", k, (t, k_heads, d))
    require_shape(label, "cos", cos, (t, d // 2))
    require_shape(label, "sin", sin, (t, d // 2))
    require_shape(label, "out", out, (t, q_heads + k_heads, d))
    if out.numel():
        variant = VARIANTS[op, out.dtype, min(half for half in HALVES if d <= 2 * half)]
        heads = variant.constants["HEADS"]
        blocks = triton.cdiv(q_heads, heads) + triton.cdiv(k_heads, heads)
        variant.launch(t * blocks, *inputs, out, q_heads, k_heads, d // 2)


KERNELS = {op: partial(_launch, op) for op in OPS}
