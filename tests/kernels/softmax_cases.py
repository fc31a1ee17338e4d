"""Inputs, fp64 references and error bounds of softmax, and what cross-entropy shares with it.

The bound of an element is relative to the element: the values of a wide softmax are near 1e-5, where an absolute
tolerance of the usual size lets a row of zeros pass.
"""

import math
import mmap
from collections.abc import Callable

import torch
from exact import EPS32, GUARD, TINY32, UNWRITTEN, Expected, assert_close, run_guarded

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
FAR_STRIDE = 2**30  # of rows; the third begins at 2^31 elements, which a 32-bit offset does not reach
FAR_ROWS = 3
MAP_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13


def normal(m: int, n: int, dtype: torch.dtype, scale: float = 3.0, offset: float = 0.0) -> torch.Tensor:
    """Draw a seeded matrix."""
    generator = torch.Generator().manual_seed(1000 * m + n)
    return (scale * torch.randn((m, n), generator=generator) + offset).to(dtype)


def exponential_error(x: torch.Tensor, softmax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bound the relative errors of exp(x_ij - max_i) and of their sum over j, in fp32 without the final rounding.

    The difference, log2(e) and their product are rounded, which an exponential multiplies by the difference; the
    exponential itself is good to 2 ulp. A sum of positive terms keeps the mean error of its terms and adds a rounding
    for each addition on the way, and a rescaling in each step that finds a higher maximum.
    """
    below = x.amax(1, keepdim=True) - x
    of_each = (2 + 1.2 * below.nan_to_num(0.0, 0.0, 0.0)) * EPS32
    depth = 24 + 4 * x.shape[1] / 4096
    return of_each, (softmax.nan_to_num(0.0) * of_each).sum(1, keepdim=True) + depth * EPS32 / 2


def expect_softmax(x: torch.Tensor) -> Expected:
    """Evaluate softmax in fp64."""
    x = x.double()
    exact = torch.softmax(x, 1)
    of_each, of_sum = exponential_error(x, exact)
    return Expected(exact, exact * (of_each + of_sum + 2 * EPS32) + 2 * TINY32)


def assert_softmax(out: torch.Tensor, x: torch.Tensor, what: str) -> None:
    """Fail where an element of `out` is beyond the bound, or is not 0 for -inf, or where rows do not sum to 1."""
    out, x = out.cpu(), x.cpu()
    expected = expect_softmax(x)
    assert_close(out, expected, what)
    finite = ~expected.exact.isnan()
    assert not out[(x == -math.inf) & finite].any(), f"{what}: not 0 for -inf"
    info = torch.finfo(out.dtype)
    ulp = info.eps * (expected.exact + info.smallest_normal)
    slack = (0.5 * ulp + expected.fp32_error).sum(1)
    rows = finite.all(1)
    assert ((out.double().sum(1) - 1).abs() <= slack)[rows].all(), f"{what}: rows do not sum to 1"


def check_softmax(launcher: Callable[..., None], x: torch.Tensor, what: str, device: str = "cpu") -> None:
    """Run on a dense matrix with guards around it, and compare."""
    assert_softmax(run_guarded(launcher, (x,), tuple(x.shape), device), x, what)


def check_padded(launcher: Callable[..., None], x: torch.Tensor, pads: tuple[int, int], device: str = "cpu") -> None:
    """Run with NaN after each row of x and marks after each row of out, `pads` elements of each, and compare."""
    m, n = x.shape
    room = GUARD + m * (n + max(pads)) + GUARD  # for a kernel that takes one stride for the other
    source = torch.full((room,), math.nan, dtype=x.dtype, device=device)
    target = torch.full((room,), UNWRITTEN, dtype=x.dtype, device=device)
    operands = [
        buffer.as_strided((m, n), (n + pad, 1), GUARD) for buffer, pad in zip((source, target), pads, strict=True)
    ]
    operands[0].copy_(x)
    launcher(operands[0], out=operands[1])
    assert_softmax(operands[1], x, f"softmax {m}x{n} padded by {pads}")
    operands[1].fill_(UNWRITTEN)
    assert (target == UNWRITTEN).all(), "wrote beside the rows"


FEW_SPECIAL_ROWS = [0, 2, 4, 8, 9, 12, 14]  # one of each kind, for rows that take long


def special_rows(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of special values at the start, in the middle and at the end, and rows of nothing else."""
    info = torch.finfo(dtype)
    x = normal(15, n, dtype)
    for row, value in enumerate((math.nan, math.inf, -math.inf)):
        for place, column in enumerate((0, n // 2, n - 1)):
            x[3 * row + place, column] = value
    x[9], x[10], x[11] = -math.inf, math.nan, math.inf
    x[12, : n - 1] = -math.inf  # only the last is left
    x[13] = (
        torch.tensor([0.0, -0.0, info.smallest_normal * info.eps, -info.smallest_normal])
        .repeat(n // 4 + 1)[:n]
        .to(dtype)
    )
    x[14, 0], x[14, n - 1] = info.max, info.min
    return x


class FarRows:
    """Rows FAR_STRIDE elements apart in a sparse mapping, with as much room before them as behind.

    Memory that nobody touches is never there. An offset that wraps round to a negative number reads zeros, or writes
    where nobody looks, and ends no process.
    """

    def __init__(self, n: int, dtype: torch.dtype, count: int = FAR_ROWS) -> None:
        elements = FAR_STRIDE * (count - 1)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        memory = mmap.mmap(-1, (2 * elements + n + 2**16) * dtype.itemsize, flags=flags)
        everything = torch.frombuffer(memory, dtype=dtype)
        self.rows = everything.as_strided((count, n), (FAR_STRIDE, 1), elements)


def check_far_rows(launcher: Callable[..., None], n: int = 40) -> None:
    """Run on rows that begin beyond 2^31 elements of x and of out, and compare."""
    x, out = FarRows(n, torch.float16).rows, FarRows(n, torch.float16).rows
    x.copy_(normal(FAR_ROWS, n, torch.float16))
    launcher(x, out=out)
    assert_softmax(out, x, "softmax beyond 2^31 elements")


def check_far_output(launcher: Callable[..., None]) -> None:
    """Run on dense rows, with those of out 2^30 elements apart: 2^31 behind those of x in the end.

    Not for a battery: a planted bug that takes the stride of out for x would end the process.
    """
    near = normal(FAR_ROWS + 1, 48, torch.float16)  # one more, so that the rows are 2^31 elements apart in the end
    out = FarRows(48, torch.float16, FAR_ROWS + 1).rows
    launcher(near, out=out)
    assert_softmax(out, near, "softmax into rows that begin far behind those of x")
