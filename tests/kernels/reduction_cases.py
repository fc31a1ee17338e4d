"""Inputs, fp64 references and error bounds of the reductions to one number."""

import math

import torch
from exact import DTYPES, EPS32, Expected, assert_close, run_guarded


def depth(n):
    """Return the maximum number of fp32 roundings of a term for n elements, in any version.

    Version 2: one product, ACCESS + LOADS + 2 log2(LANES) + SLOTS / LANES = 8 + 8 + 16 + 4, and a
    round for each 49,152 elements or more (dot in fp32 with 12 programs, in the interpreter).
    Version 1 stays below that.
    """
    return 37 + n // 49152


def expect(x, y=None):
    terms = x.double() if y is None else x.double() * y.double()
    return Expected(terms.sum(), depth(len(x)) * EPS32 / 2 * terms.abs().sum())


def draw(op, dtype, n):
    generator = torch.Generator().manual_seed(n)
    return tuple(
        torch.randn(n, generator=generator).to(dtype) for _ in range(1 if op == "sum" else 2)
    )


def draw_integers(op, dtype, n):
    """Return nonzero integers whose sums are exact in fp32, so that a missing element changes the
    result.
    """
    generator = torch.Generator().manual_seed(n)

    def integers():
        size = torch.randint(1, 4, (n,), generator=generator)
        return (size * (2 * torch.randint(0, 2, (n,), generator=generator) - 1)).to(dtype)

    return tuple(integers() for _ in range(1 if op == "sum" else 2))


def draw_cancelling(op, n):
    x = torch.full((n,), 200.0).half()
    x[n // 2 :] = -200.0
    x[0] = 100.0
    return (x,) if op == "sum" else (x, torch.full((n,), 200.0).half())


def specials(op, dtype, n):
    found = []
    for values in ([math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]):
        for place in (0, n // 2, n - len(values)):
            x, *others = draw(op, dtype, n)
            x[place : place + len(values)] = torch.tensor(values)
            found.append((x, *others))
    for value in (0.0, -0.0, torch.finfo(dtype).smallest_normal / 8):
        x, *others = draw(op, dtype, n)
        found.append((x.fill_(value), *others))
    return found


def check(op, module, *inputs):
    out, expected = run_guarded(module.KERNELS[op], inputs, ()), expect(*inputs)
    assert_close(
        out[None],
        Expected(expected.exact[None], expected.fp32_error[None]),
        f"{op} of {len(inputs[0])}",
    )


def check_exact(op, module, *inputs):
    out, exact = run_guarded(module.KERNELS[op], inputs, ()), expect(*inputs).exact
    assert torch.equal(out, exact.to(out.dtype)), (
        f"{op} of {len(inputs[0])}: {out} where {exact} is exact"
    )


def battery(module):
    for op in module.KERNELS:
        for dtype in DTYPES.values():
            for n in (7, 2049, 16385, 150001):
                check_exact(op, module, *draw_integers(op, dtype, n))
        for n in (127, 16385):
            check(op, module, *draw(op, torch.float16, n))
        check(op, module, *draw_cancelling(op, 40002))
