"""Version 1 of AdamW: one pass over parameters, gradients and state.

Computes, with c1 = 1 - 0.9^10 and c2 = 1 - 0.999^10:

    m = 0.9 m + 0.1 g               v = 0.999 v + 0.001 g^2
    p = 0.99 p - 0.01 m / c1 / (sqrt(v / c2) + 1e-8)

Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), algorithm 2.

Bytes moved, for n parameters of e bytes: read n (2 e + 8), written n (e + 8).

Rounding: fp32 arithmetic, one rounding of p at the end. Root and quotient are accurate to 2 ulp.

A program has 1024 parameters, 8 per thread: one access of 16 bytes to p and g in 16 bits, two to m
and v each. On sm_90 in bf16 this takes 33.4 instructions per parameter, of about 220 that memory
leaves time for, and 48 registers. Without `out`, p, m and v are overwritten; else it holds m, v and
p, in bytes.

Limits: accesses are narrower if n is not a multiple of 16.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import (
    DTYPES,
    Variant,
    on_any_arch,
    require_companion,
    require_contiguous,
    require_shape,
    require_tensors,
)

WARPS = 4
BLOCK = 1024
STEP = tl.constexpr(0.01 / (1 - 0.9**10))
ROOT = tl.constexpr((1 - 0.999**10) ** -0.5)


@triton.jit
def adamw_kernel(
    p_ptr,  # parameters
    g_ptr,  # gradients
    m_ptr,  # means of the gradients, fp32
    v_ptr,  # means of their squares, fp32
    p_out_ptr,  # new parameters
    m_out_ptr,  # new m
    v_out_ptr,  # new v
    n,  # number of parameters; a multiple of 16 makes accesses wide
    BLOCK: tl.constexpr,  # parameters per program, a power of two
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    g = tl.load(g_ptr + at, mask=inside).to(tl.float32)
    m = tl.load(m_ptr + at, mask=inside)
    v = tl.load(v_ptr + at, mask=inside)
    p = tl.load(p_ptr + at, mask=inside).to(tl.float32)
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * (g * g)
    p = 0.99 * p - STEP * (m / (tl.sqrt(v) * ROOT + 1e-8))
    tl.store(m_out_ptr + at, m, mask=inside)
    tl.store(v_out_ptr + at, v, mask=inside)
    tl.store(p_out_ptr + at, p, mask=inside)


VARIANTS = {
    dtype: Variant(
        kernel=adamw_kernel,
        constants={"BLOCK": BLOCK},
        warps=WARPS,
        op="adamw",
        dtype=name,
        types=dict.fromkeys(("m_ptr", "v_ptr", "m_out_ptr", "v_out_ptr"), "*fp32"),
        elements=BLOCK,
        bytes=BLOCK * (3 * dtype.itemsize + 16),
    )
    for dtype, name in DTYPES.items()
}
variants = on_any_arch(VARIANTS)


def _launch(*inputs: torch.Tensor, out: torch.Tensor | None = None) -> None:
    label = "adamw v1"
    p, g, m, v = inputs
    require_tensors(label, p=p, g=g)
    require_companion(label, "m", m, torch.float32, ("p", p))
    require_companion(label, "v", v, torch.float32, ("p", p))
    n = p.numel()
    for name, tensor in zip("pgmv", inputs, strict=True):
        require_contiguous(label, **{name: tensor})
        require_shape(label, name, tensor, (n,))
    written = [p, m, v]
    if out is not None:
        require_companion(label, "out", out, torch.uint8, ("p", p))
        require_shape(label, "out", out, (n * (p.itemsize + 8),))
        state = out[: 8 * n].view(torch.float32)
        written = [out[8 * n :].view(p.dtype), state[:n], state[n:]]
    if n:
        VARIANTS[p.dtype].launch(triton.cdiv(n, BLOCK), *inputs, *written, n)


KERNELS = {"adamw": _launch}
