"""Inputs and checks of AdamW, out of place and in place."""

import math

import torch
from exact import EPS32, Expected, Guarded, assert_close

from bench.adamw import PARTS, result_in, write_little


def draw(op, dtype, n):
    p, g, m, v = torch.randn((4, n), generator=torch.Generator().manual_seed(n))
    return (p / 128).to(dtype), g.to(dtype), m, v.square()


def check(op, module, *inputs):
    wide, state = [x.double() for x in inputs], 8 * inputs[0].numel()
    copies = [Guarded(x, math.nan).tensor for x in inputs]
    out = Guarded(torch.zeros(result_in(inputs).numel(), dtype=torch.uint8), 0)
    module.KERNELS[op](*copies, out=out.tensor)
    out.assert_untouched(op)
    m, v = out.tensor[:state].view(torch.float32).chunk(2)
    for part, found in zip(PARTS, (m, v, out.tensor[state:].view(inputs[0].dtype)), strict=True):
        exact = part.reference(*wide)
        assert_close(found, Expected(exact, 4 * EPS32 * part.magnitude(exact, *wide)), part.name)
    module.KERNELS[op](*copies)
    assert torch.equal(result_in(copies), out.tensor), "another result in place"


def specials(op, dtype, count):
    inputs = draw(op, dtype, count)
    write_little(*inputs)
    return [inputs, [torch.full_like(x, math.nan) for x in inputs]]


def battery(module):
    for n in (1, 1000, 1025):
        check("adamw", module, *draw("adamw", torch.float16, n))
    for inputs in specials("adamw", torch.float32, 1040):
        check("adamw", module, *inputs)
