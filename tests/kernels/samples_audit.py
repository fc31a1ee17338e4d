"""Small kernels with the faults that an audit must show, and some whose instruction counts are
known. Not shipped.
"""

# ruff: noqa: N803  constants are in capitals

import triton
import triton.language as tl

NO_KERNEL = 3


@triton.jit
def masked_copy(x_ptr, out_ptr, n, BLOCK):
    """One mask for all: wide accesses only where n is known to be a multiple of 16."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=inside), mask=inside)


@triton.jit
def residual_rmsnorm(x_ptr, residual_ptr, weight_ptr, out_ptr, n, eps, BLOCK):
    """A whole row in the registers of one program; with 65,536 elements in 32 warps they do not
    fit.
    """
    row = tl.program_id(0).to(tl.int64) * n
    lanes = tl.arange(0, BLOCK)
    inside = lanes < n
    x = tl.load(x_ptr + row + lanes, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + row + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(residual_ptr + row + lanes, x, mask=inside)
    scale = 1 / tl.sqrt(tl.sum(x * x) / n + eps)
    weight = tl.load(weight_ptr + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + lanes, x * scale * weight, mask=inside)


@triton.jit
def flat(x_ptr, out_ptr, n, FORMULA, BLOCK):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out_ptr + offsets, FORMULA(tl.load(x_ptr + offsets, mask=inside)), mask=inside)


@triton.jit
def same(x):
    return x


@triton.jit
def silu(x):
    v = x.to(tl.float32)
    return v * tl.sigmoid(v)


@triton.jit
def gelu_erf(x):
    v = x.to(tl.float32)
    return 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))


@triton.jit
def does_not_compile(x_ptr, BLOCK):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.arange(0, BLOCK) + tl.arange(0, 2 * BLOCK))


@triton.jit
def summed(x_ptr, out_ptr, steps, BLOCK):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK * steps + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(steps):
        total += tl.load(x_ptr + offsets)
        offsets += BLOCK
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))
