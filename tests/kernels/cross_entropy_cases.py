"""Inputs, fp64 references and error bounds of cross-entropy."""

import math

import torch
from exact import DTYPES, EPS32, Expected, assert_close, far_rows, run_apart, run_guarded
from softmax_cases import exponential_error, normal

IGNORED = -100  # torch's default ignore_index
OUTSIDE = (-1, -99, -101, 2**31, 2**32, -(2**31), -(2**63), 2**63 - 1)  # 2^32 is label 0 in 32 bits


def draw(op, dtype, m, v, scale=3.0, offset=0.0):
    labels = torch.randint(max(v, 1), (m,), generator=torch.Generator().manual_seed(31 * m + v))
    labels[:2] = torch.tensor([v - 1, 0])[:m]
    return normal(m, v, dtype, scale, offset), labels


def expect(x, labels):
    x = x.double()
    inside = (labels >= 0) & (labels < x.shape[1])
    picked = x.gather(1, labels.where(inside, 0)[:, None]).squeeze(1)
    _, of_sum = exponential_error(x, torch.softmax(x, 1))
    above = x.amax(1) - picked
    logarithm = torch.log(torch.exp(x - x.amax(1, keepdim=True)).sum(1))
    exact = (above + logarithm).where(inside, math.nan).masked_fill(labels == IGNORED, 0.0)
    # An absolute error of 2^-22 is what a fast logarithm of a number near 1 has.
    return Expected(exact, of_sum.squeeze(1) + EPS32 * (2 + above + logarithm + exact.abs()))


def compare(out, x, labels, what="cross-entropy"):
    out, x, labels = out.cpu(), x.cpu(), labels.cpu()
    expected = expect(x, labels)
    used = labels != IGNORED  # the bound of an ignored row may be NaN
    assert_close(out[used], Expected(expected.exact[used], expected.fp32_error[used]), what)
    assert not out[~used].any(), f"{what}: not 0 where the label is ignored"


def check(op, module, x, labels):
    out = run_guarded(module.KERNELS[op], (x, labels), (len(x),), torch.float32)
    compare(out, x, labels, f"cross-entropy {tuple(x.shape)}")


def check_apart(op, module, dtype, m, v, pads):
    x, labels = draw(op, dtype, m, v)
    out = run_apart(module.KERNELS[op], (x, labels), [v + pads[0]], (m,), out_dtype=torch.float32)
    compare(out, x, labels, f"cross-entropy {m}x{v} padded by {pads[0]}")


def special_logits(v, dtype):
    info = torch.finfo(dtype)
    x, labels = draw("cross-entropy", dtype, 17, v)
    for row, value in enumerate((math.nan, math.inf, -math.inf)):
        for place, column in enumerate((0, v // 2, v - 1)):
            x[3 * row + place, column] = value
    labels[6] = 0  # the label's own logit is -inf
    x[9], x[10], x[11] = -math.inf, math.nan, math.inf
    x[12, : v - 1] = -math.inf
    labels[12] = v - 1  # nothing else is left, so the loss is 0
    x[13] = (
        torch.tensor([0.0, -0.0, info.smallest_normal * info.eps, -info.smallest_normal])
        .repeat(v)[:v]
        .to(dtype)
    )
    x[14, 0], x[14, v - 1] = info.max, info.min
    labels[14] = 0
    x[15], labels[15] = math.nan, IGNORED
    x[16, v // 3] = 300.0  # the loss of the rest is large, its own is nearly 0
    labels[16] = v // 3
    return x, labels


def special_labels(v, dtype):
    labels = torch.tensor([0, v, IGNORED, v - 1, *OUTSIDE, v + 1, v // 2])
    return normal(len(labels), v, dtype), labels


def specials(op, dtype, v):
    return [special_logits(v, dtype), special_labels(v, dtype)]


def check_far_logits(module, v=40):
    x, labels, out = normal(3, v, torch.float16), torch.tensor([3, 0, v - 1]), torch.empty(3)
    module.KERNELS["cross-entropy"](far_rows(x), labels, out=out)
    compare(out, x, labels, "cross-entropy beyond 2^31 elements")


def battery(module):
    check_far_logits(module)
    for dtype in DTYPES.values():
        for m, v in ((2, 1), (2, 7), (2, 256), (2, 1030), (2, 20011)):
            check("cross-entropy", module, *draw("cross-entropy", dtype, m, v))
        for v, pad in ((24, 16), (24, 5), (20003, 3)):
            check_apart("cross-entropy", module, dtype, 2, v, [pad])
        check("cross-entropy", module, *special_labels(24, dtype))
        check("cross-entropy", module, *special_logits(1029, dtype))
    for v, dtype in ((1029, torch.float32), (1029, torch.float16), (20005, torch.float16)):
        check("cross-entropy", module, torch.full((1, v), 3e4).to(dtype), torch.tensor([v - 1]))
        check("cross-entropy", module, *draw("cross-entropy", dtype, 1, v, 60.0, 3e4))
    check_far_logits(module, 20000)
    check("cross-entropy", module, *draw("cross-entropy", torch.float32, 1, 262200))
    check("cross-entropy", module, *special_labels(20005, torch.float16))
    check("cross-entropy", module, *special_logits(20005, torch.float16))
