"""Inputs and checks of AdamW, out of place and in place."""

import math

import torch
from exact import EPS32, Expected, Guarded, assert_close

from bench.adamw import OPS, updated, write_hard

STEPS = 8 * EPS32


def draw(op, dtype, n):
    generator = torch.Generator().manual_seed(n)
    p, g, m, v = torch.randn((4, n), generator=generator)
    return (p / 128).to(dtype), g.to(dtype), m, v.square()


def check(op, module, *inputs):
    n, wide = inputs[0].numel(), [x.double() for x in inputs]
    copies = [Guarded(x, math.nan).tensor for x in inputs]
    out = Guarded(torch.zeros(n * (8 + inputs[0].itemsize), dtype=torch.uint8), 0)
    module.KERNELS[op](*copies, out=out.tensor)
    out.assert_untouched(op)
    m, v, p = updated(*wide)
    size, _, less = updated(*(x.abs() for x in wide))
    errors = (size, v, 2 * wide[0].abs() - less)
    parts = out.tensor[: 8 * n].view(torch.float32).split(n) if n else ()
    parts = (*parts, out.tensor[8 * n :].view(inputs[0].dtype))
    for found, exact, error in zip(parts, (m, v, p), errors, strict=True):
        assert_close(found, Expected(exact, error * STEPS), f"{op} {n}")
    module.KERNELS[op](*copies)
    assert torch.equal(OPS[0].result_in(copies), out.tensor), "another result in place"


def specials(op, dtype, count):
    inputs = draw(op, dtype, count)
    write_hard(*inputs)
    return [inputs]


def battery(module):
    for dtype in (torch.float32, torch.float16):
        for n in (1, 1000, 1025):
            check("adamw", module, *draw("adamw", dtype, n))
        check("adamw", module, *specials("adamw", dtype, 1040)[0])
