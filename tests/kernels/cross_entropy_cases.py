"""Inputs, fp64 references and error bounds of cross-entropy."""

import math
from collections.abc import Callable

import torch
from exact import EPS32, GUARD, Expected, assert_close, run_guarded
from softmax_cases import FAR_ROWS, FarRows, exponential_error, normal

IGNORED = -100  # torch's default ignore_index
OUTSIDE = (-1, -99, -101, 2**31, 2**32, -(2**31), -(2**63), 2**63 - 1)  # 2^32 is label 0 where 32 bits are kept of it


def labels_for(m: int, v: int) -> torch.Tensor:
    """Draw seeded labels; the first and the last column are among them where there are rows enough."""
    labels = torch.randint(v, (m,), generator=torch.Generator().manual_seed(31 * m + v))
    labels[0] = v - 1
    if m > 1:
        labels[1] = 0
    return labels


def expect_cross_entropy(x: torch.Tensor, labels: torch.Tensor) -> Expected:
    """Evaluate the loss in fp64, with NaN for labels that are no column and 0 for those that are ignored."""
    x = x.double()
    inside = (labels >= 0) & (labels < x.shape[1])
    picked = x.gather(1, labels.where(inside, 0)[:, None]).squeeze(1)
    softmax = torch.softmax(x, 1)
    _, of_sum = exponential_error(x, softmax)
    above = x.amax(1) - picked
    logarithm = torch.log(torch.exp(x - x.amax(1, keepdim=True)).sum(1))
    exact = (above + logarithm).where(inside, math.nan).masked_fill(labels == IGNORED, 0.0)
    # An absolute error of 2^-22 is what a fast logarithm of a number near 1 has.
    return Expected(exact, of_sum.squeeze(1) + EPS32 * (2 + above + logarithm + exact.abs()))


def assert_cross_entropy(out: torch.Tensor, x: torch.Tensor, labels: torch.Tensor, what: str) -> None:
    """Fail where a loss is beyond the bound, or is not exactly 0 where the label is ignored."""
    out, x, labels = out.cpu(), x.cpu(), labels.cpu()
    expected = expect_cross_entropy(x, labels)
    kept = labels != IGNORED  # the bound of an ignored row may be NaN
    assert_close(out[kept], Expected(expected.exact[kept], expected.fp32_error[kept]), what)
    assert not out[~kept].any(), f"{what}: not 0 where the label is ignored"


def check_cross_entropy(
    launcher: Callable[..., None], x: torch.Tensor, labels: torch.Tensor, what: str, device: str = "cpu"
) -> None:
    """Run on dense logits with guards around every tensor, and compare."""
    out = run_guarded(launcher, (x, labels), (len(x),), device, torch.float32)
    assert_cross_entropy(out, x, labels, what)


def check_padded_logits(
    launcher: Callable[..., None], x: torch.Tensor, labels: torch.Tensor, pad: int, device: str = "cpu"
) -> None:
    """Run with `pad` elements of NaN after each row of the logits, and compare."""
    m, v = x.shape
    buffer = torch.full((GUARD + m * (v + pad) + GUARD,), math.nan, dtype=x.dtype, device=device)
    padded = buffer.as_strided((m, v), (v + pad, 1), GUARD)
    padded.copy_(x)
    out = run_guarded(lambda labels, out: launcher(padded, labels, out=out), (labels,), (m,), device, torch.float32)
    assert_cross_entropy(out, x, labels, f"cross-entropy {m}x{v} padded by {pad}")


def special_logits(v: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and labels with special values at the start, in the middle and at the end, and rows of them."""
    info = torch.finfo(dtype)
    x, labels = normal(17, v, dtype), labels_for(17, v)
    for row, value in enumerate((math.nan, math.inf, -math.inf)):
        for place, column in enumerate((0, v // 2, v - 1)):
            x[3 * row + place, column] = value
    labels[6] = 0  # the label's own logit is -inf
    x[9], x[10], x[11] = -math.inf, math.nan, math.inf
    x[12, : v - 1] = -math.inf
    labels[12] = v - 1  # nothing else is left, so the loss is 0
    x[13] = torch.tensor([0.0, -0.0, info.smallest_normal * info.eps, -info.smallest_normal]).repeat(v)[:v].to(dtype)
    x[14, 0], x[14, v - 1] = info.max, info.min
    labels[14] = 0
    x[15], labels[15] = math.nan, IGNORED
    x[16, v // 3] = 300.0  # the loss of the rest is large, its own is nearly 0
    labels[16] = v // 3
    return x, labels


def special_labels(v: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits, and labels that are no column or are ignored beside some that are neither."""
    labels = torch.tensor([0, v, IGNORED, v - 1, *OUTSIDE, v + 1, v // 2])
    return normal(len(labels), v, dtype), labels


def check_far_logits(launcher: Callable[..., None]) -> None:
    """Run on rows of logits that begin beyond 2^31 elements, and compare."""
    x = FarRows(40, torch.float16).rows
    x.copy_(normal(FAR_ROWS, 40, torch.float16))
    labels, out = torch.tensor([3, 0, 39]), torch.empty(FAR_ROWS)
    launcher(x, labels, out=out)
    assert_cross_entropy(out, x, labels, "cross-entropy beyond 2^31 elements")


def check_far_pieces(launcher: Callable[..., None]) -> None:
    """Run on rows beyond 2^31 elements that are long enough to be shared between programs, and compare."""
    x = FarRows(20000, torch.float16).rows
    x.copy_(normal(FAR_ROWS, 20000, torch.float16))
    labels, out = torch.tensor([3, 0, 19999]), torch.empty(FAR_ROWS)
    launcher(x, labels, out=out)
    assert_cross_entropy(out, x, labels, "cross-entropy of pieces beyond 2^31 elements")
