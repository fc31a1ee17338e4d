"""Inputs, fp64 references and error bounds of softmax, and what cross-entropy shares with it.

The bound of an element is relative to the element: the values of a wide softmax are near 1e-5,
where an absolute tolerance of the usual size lets a row of zeros pass.
"""

import math
from unittest.mock import patch

import torch
from exact import DTYPES, EPS32, TINY32, Expected, assert_close, far_rows, run_apart, run_guarded

import kernels.launch

FEW_SPECIAL_ROWS = [0, 2, 4, 8, 9, 12, 14]  # one of each kind, for rows that take long


def normal(m, n, dtype, scale=3.0, offset=0.0):
    generator = torch.Generator().manual_seed(1000 * m + n)
    return (scale * torch.randn((m, n), generator=generator) + offset).to(dtype)


def draw(op, dtype, m, n, scale=3.0, offset=0.0):
    return (normal(m, n, dtype, scale, offset),)


def exponential_error(x, softmax):
    """Bound the relative errors of exp(x_ij - max_i) and of their sum over j, in fp32 without the
    final rounding.

    The difference, log2(e) and their product are rounded, which an exponential multiplies by the
    difference; the exponential itself is good to 2 ulp. A sum of positive terms keeps the mean
    error of its terms and adds a rounding for each addition on the way, and a rescaling in each
    step that finds a higher maximum.
    """
    below = x.amax(1, keepdim=True) - x
    of_each = (2 + 1.2 * below.nan_to_num(0.0, 0.0, 0.0)) * EPS32
    depth = 24 + 4 * x.shape[1] / 4096
    return of_each, (softmax.nan_to_num(0.0) * of_each).sum(1, keepdim=True) + depth * EPS32 / 2


def compare(out, x, what="softmax"):
    out, x = out.cpu(), x.cpu()
    wide = x.double()
    exact = torch.softmax(wide, 1)
    of_each, of_sum = exponential_error(wide, exact)
    expected = Expected(exact, exact * (of_each + of_sum + 2 * EPS32) + 2 * TINY32)
    assert_close(out, expected, what)
    finite = ~exact.isnan()
    assert not out[(x == -math.inf) & finite].any(), f"{what}: not 0 for -inf"
    info = torch.finfo(out.dtype)
    slack = (0.5 * info.eps * (exact + info.smallest_normal) + expected.fp32_error).sum(1)
    rows = finite.all(1)
    assert ((out.double().sum(1) - 1).abs() <= slack)[rows].all(), f"{what}: rows do not sum to 1"


def check(op, module, x):
    out = run_guarded(module.KERNELS[op], (x,), tuple(x.shape))
    compare(out, x, f"softmax {tuple(x.shape)}")


def check_apart(op, module, dtype, m, n, pads):
    x = normal(m, n, dtype)
    out = run_apart(module.KERNELS[op], (x,), [n + pads[0]], (m, n), n + pads[1])
    compare(out, x, f"softmax {m}x{n} padded by {pads}")


def specials(op, dtype, n):
    info = torch.finfo(dtype)
    x = normal(15, n, dtype)
    for row, value in enumerate((math.nan, math.inf, -math.inf)):
        for place, column in enumerate((0, n // 2, n - 1)):
            x[3 * row + place, column] = value
    x[9], x[10], x[11] = -math.inf, math.nan, math.inf
    x[12, : n - 1] = -math.inf  # only the last is left
    tiny = torch.tensor([0.0, -0.0, info.smallest_normal * info.eps, -info.smallest_normal])
    x[13] = tiny.repeat(n // 4 + 1)[:n].to(dtype)
    x[14, 0], x[14, n - 1] = info.max, info.min
    late = normal(2, n, dtype)
    late[:, : n * 5 // 6] = -math.inf  # a maximum that comes late
    return [(x[FEW_SPECIAL_ROWS] if n > 2000 else x,), (late,)]


def check_far_rows(module, n=40):
    x = normal(3, n, torch.float16)
    out = far_rows(torch.zeros_like(x))
    module.KERNELS["softmax"](far_rows(x), out=out)
    compare(out, x, "softmax beyond 2^31 elements")


def battery(module):
    check_far_rows(module)
    check_far_rows(module, 16400)  # which programs share
    # A row at a time.
    with patch.object(kernels.launch, "stand_in", kernels.launch.Gpu(90, 4, 70_000)):
        check("softmax", module, normal(3, 17000, torch.float16))
    for dtype in DTYPES.values():
        for m, n in ((3, 1), (3, 7), (2, 256), (2, 1030), (1, 33007)):
            check("softmax", module, normal(m, n, dtype))
        for n, pads in ((24, (16, 0)), (24, (3, 19)), (33003, (16, 32))):
            check_apart("softmax", module, dtype, 2, n, pads)
        for n in (2029, 33005):
            check("softmax", module, torch.zeros((1, n), dtype=dtype))
            check("softmax", module, normal(1, n, dtype, 60.0, 3e4))
            check("softmax", module, *specials("softmax", dtype, n)[0])
