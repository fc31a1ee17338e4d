"""Error bounds and guarded tensors shared by the tests of all kernel families.

Every result is judged against fp64 with a bound on each element. The bound has two parts: half a unit in
the last place (ulp) of the output dtype for the one final rounding, and the error the formula may collect
in fp32 before it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

EPS32 = 2.0**-23  # distance from 1 to the next fp32 number, that is two rounding errors
TINY32 = 2.0**-126  # an fp32 exponential below this is flushed to zero
GUARD = 64  # elements before and after a tensor; a multiple of 16 bytes in every dtype
UNWRITTEN = -77.0


@dataclass(frozen=True)
class Expected:
    """The exact result, and the error allowed before the final rounding; None if not even that may differ."""

    exact: torch.Tensor
    fp32_error: torch.Tensor | None


def assert_close(out: torch.Tensor, expected: Expected, what: str) -> None:
    """Fail on the first element further from the exact value than the bound, naming it."""
    out, info, exact = out.cpu(), torch.finfo(out.dtype), expected.exact
    assert out.shape == exact.shape
    error = (out.double() - exact).abs()
    if expected.fp32_error is None:
        inside = error == 0
    else:
        ulp = torch.exp2(exact.abs().clamp(min=info.smallest_normal).log2().floor()) * info.eps
        inside = error <= 0.5 * ulp + expected.fp32_error
    rounded = exact.to(out.dtype)
    special = ~torch.isfinite(rounded)  # also where a finite value is beyond the range of the dtype
    same_special = (out == rounded) | (torch.isnan(out) & torch.isnan(rounded))
    wrong = ~torch.where(special, same_special, inside)
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        found = f"{wrong.sum()} of {out.numel()} elements, first {list(first)}: {out[first]:.9g}"
        pytest.fail(f"{what}: wrong in {found} where {exact[first]:.9g} is exact")


class Guarded:
    """A dense tensor in the middle of a longer buffer, so that accesses beyond its ends can be seen."""

    def __init__(self, values: torch.Tensor, fill: float, device: str) -> None:
        self.fill = fill if values.dtype.is_floating_point else torch.iinfo(values.dtype).max - 5
        self.buffer = torch.full((values.numel() + 2 * GUARD,), self.fill, dtype=values.dtype, device=device)
        self.tensor = self.buffer[GUARD : GUARD + values.numel()].view(values.shape)
        self.tensor.copy_(values)

    def assert_untouched(self, what: str) -> None:
        """Fail if anything was written before or after the tensor."""
        outside = torch.cat((self.buffer[:GUARD], self.buffer[-GUARD:]))
        assert bool((outside == self.fill).all()), f"{what}: wrote outside its output"


def run_guarded(
    launcher: Callable[..., None],
    inputs: tuple[torch.Tensor, ...],
    out_shape: tuple[int, ...],
    device: str,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Launch on copies of the inputs surrounded by NaN, so that a read beyond an end shows in the result."""
    copies = [Guarded(tensor, math.nan, device).tensor for tensor in inputs]
    out = Guarded(torch.full(out_shape, UNWRITTEN, dtype=out_dtype or inputs[0].dtype), UNWRITTEN, device)
    launcher(*copies, out=out.tensor)
    out.assert_untouched("kernel")
    return out.tensor
