"""Inputs and checks of the fp8 quantization, whose codes are those of Triton's own conversion.

Triton's interpreter converts to fp8 without rounding up into the next power of two (-127.99 becomes
-64) and so do the codes here; on a GPU they are right.
"""

import torch
import triton
import triton.language as tl
from exact import DEVICE, Guarded

BLOCK = 128


@triton.jit
def convert(x_ptr, codes_ptr, n, width: tl.constexpr):
    columns = tl.arange(0, width)
    at = tl.program_id(0) * n + columns
    x = tl.load(x_ptr + at, mask=columns < n)
    tl.store(codes_ptr + at, x.to(codes_ptr.dtype.element_ty), mask=columns < n)


def draw(op, dtype, m, n):
    generator = torch.Generator().manual_seed(1000 * m + n)
    return ((3 * torch.randn((m, n), generator=generator)).to(dtype),)


def check(op, module, x):
    n = BLOCK if op == "quantize-fp8-block" else x.shape[1]
    x = x.to(DEVICE)
    count = x.numel()
    guarded = Guarded(torch.zeros(count + 4 * (count // n), dtype=torch.uint8), 0)
    out = guarded.tensor
    module.KERNELS[op](x, out=out)
    guarded.assert_untouched(op)
    groups = x.float().view(-1, n)
    scales = out[count:].view(torch.float32)
    right = groups.abs().amax(1).clamp(min=1e-10) / 448
    torch.testing.assert_close(scales, right, rtol=2**-22, atol=0)
    codes = torch.empty(count, dtype=torch.uint8, device=DEVICE)
    scaled = groups * (1 / scales)[:, None]
    convert[(count // n,)](scaled, codes.view(torch.float8_e4m3fn), n, triton.next_power_of_2(n))
    assert torch.equal(out[:count], codes), f"{op} {tuple(x.shape)}"


def specials(op, dtype, count):
    (x,) = draw(op, dtype, 4, min(-(-count // BLOCK) * BLOCK, 32768))
    x[0] = 0.0
    x[1, ::2] = -torch.finfo(dtype).max
    x[2] *= 2.0**-20
    x[3, -1] = torch.finfo(dtype).max
    return [(x,)]


def battery(module):
    for op in module.KERNELS:
        for shape in ((3, 128), (33, 128), (2, 384), (1, 1152)):
            check(op, module, *draw(op, torch.float32, *shape))
        check(op, module, *specials(op, torch.float16, 256)[0])
