"""Inputs, fp64 references and error bounds of the matrix-vector product, in every dtype and with
int8 weights.
"""

import itertools
import math

import torch
from exact import EPS32, FAR, Expected, assert_close, far_rows, run_apart, run_guarded


def depth(n):
    """Return the most fp32 additions a term takes part in, for n columns, in any of the versions.

    Version 2 in fp32 has the longest way: blocks of 256 columns one after another, then a tree. The
    rest is that tree (8), or the fixed part of version 3: 16 in an access, 4 loads, 7 for the
    lanes, 6 and 1 for splits, 2 for edges.
    """
    return math.ceil(n / 256) + 36


def expect(a, x, scales=None):
    """Evaluate the product in fp64. NaN and infinities of a row leave no bound for the row, nor
    need one.
    """
    a, x = a.double(), x.double()
    exact, magnitude = a @ x, a.abs() @ x.abs()
    error = depth(len(x)) * EPS32 / 2 * magnitude
    if scales is None:
        return Expected(exact, error)
    scaled = exact * scales.double()
    return Expected(scaled, error * scales.double().abs() + scaled.abs() * EPS32 / 2)


def draw(op, dtype, m, n):
    generator = torch.Generator().manual_seed(1000 * m + n)
    x = torch.randn(n, generator=generator).to(dtype)
    if op == "matvec":
        return torch.randn((m, n), generator=generator).to(dtype), x
    a = torch.randint(-128, 128, (m, n), generator=generator, dtype=torch.int8)
    return a, x, torch.rand(m, generator=generator) / 64 - 0.004


def draw_integers(op, dtype, m, n):
    """Draw inputs whose products and sums are integers that fp32 holds, so that the result must be
    exact.
    """
    small = torch.randint(-3, 4, (m + 1, n), generator=torch.Generator().manual_seed(n))
    x = small[m].to(dtype)
    if op == "matvec":
        return small[:m].to(dtype), x
    return small[:m].to(torch.int8), x, torch.exp2(torch.arange(m) % 3 - 1.0)


def draw_cancelling(op, n):
    a = torch.full((2, n), 100, dtype=torch.int8 if op == "matvec-int8" else torch.float16)
    a[:, n // 2 :] = -100
    a[1, 0] = 50
    return a, torch.full((n,), 200.0).half(), *([torch.ones(2)] if op == "matvec-int8" else [])


def specials(op, dtype, n):
    """Return inputs with special values in single rows, or in x, which reach every row, with
    denormals and zeros.
    """
    values = (math.nan, math.inf, -math.inf)
    a, x, *scales = draw(op, dtype, 24, n)
    for row, (value, column) in enumerate(itertools.product(values, (0, n // 3, n // 2, n - 1))):
        if op == "matvec":
            a[2 * row, column] = value
        else:
            scales[0][2 * row] = value
    found = [(a, x, *scales)]
    for value in values[:2]:
        a, x, *scales = draw(op, dtype, 5, n)
        x[n - 1] = value
        a[2, n - 1] = 0  # 0 * inf is NaN
        found.append((a, x, *scales))
    a, x, *scales = draw(op, dtype, 4, n)
    a[:3] = torch.tensor([[0], [1], [-1]])
    tiny = torch.finfo(dtype).smallest_normal / 4
    return [*found, (a, torch.full_like(x, tiny), *scales), (a, torch.full_like(x, -0.0), *scales)]


def check(op, module, *inputs):
    out = run_guarded(module.KERNELS[op], inputs, inputs[0].shape[:1], inputs[1].dtype)
    assert_close(out, expect(*inputs), f"{op} {tuple(inputs[0].shape)}")


def check_exact(op, module, *inputs):
    out = run_guarded(module.KERNELS[op], inputs, inputs[0].shape[:1], inputs[1].dtype)
    exact = expect(*inputs).exact
    assert torch.equal(out, exact.to(out.dtype)), (
        f"{op} {tuple(inputs[0].shape)}: integers come out inexact"
    )


def check_apart(op, module, dtype, m, n, pads):
    inputs = draw(op, dtype, m, n)
    out = run_apart(module.KERNELS[op], inputs, [n + pads[0]], (m,), out_dtype=dtype)
    assert_close(out, expect(*inputs), f"{op} {m}x{n} padded by {pads[0]}")


def check_far_rows(op, module, stride=FAR):
    is_int8 = op == "matvec-int8"
    numbers = torch.arange(1, 5)
    a = far_rows(
        numbers[:, None].expand(4, 40).to(torch.int8 if is_int8 else torch.float16), stride
    )
    out = torch.zeros(4).half()
    module.KERNELS[op](a, torch.ones(40).half(), *([torch.ones(4)] if is_int8 else []), out=out)
    assert torch.equal(out, (40 * numbers).half()), f"{op}: rows beyond 2^31 elements"


def battery(module):
    """Far rows come last: beyond their last one there is no memory, and reading it would end the
    process.
    """
    for op in module.KERNELS:
        for pad in (90, 105):  # strides of 1201 and 1216
            check_apart(op, module, torch.float16, 9, 1111, [pad])
        check(op, module, *draw_cancelling(op, 16384))
        for m, n in ((3, 127), (18, 1041), (5, 2048), (3, 16401)):
            check(op, module, *draw(op, torch.float16, m, n))
            check_exact(op, module, *draw_integers(op, torch.float32, m, n))
        check_far_rows(op, module)
        check_far_rows(op, module, FAR + 1)
