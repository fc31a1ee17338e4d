"""Error bounds and guarded tensors shared by the tests of all kernel families.

Every element is compared with an fp64 reference. Its bound has two parts: half a unit in the last
place (ulp) of the output dtype for the final rounding, and the fp32 error of the formula before it.
"""

import math
import mmap
from dataclasses import dataclass

import pytest
import torch

from kernels.launch import INTERPRETED

EPS32 = 2.0**-23  # distance from 1 to the next fp32 number, that is two rounding errors
TINY32 = 2.0**-126  # an fp32 exponential below this is flushed to zero
GUARD = 64  # elements before and after a tensor; a multiple of 16 bytes in every dtype
UNWRITTEN = -77.0
# A row stride: the third row begins at 2^31 elements, which a 32-bit offset does not reach.
FAR = 2**30
MAP_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}  # the interpreter truncates bf16


@dataclass(frozen=True)
class Expected:
    """The exact result, and the error allowed before the final rounding; None if not even that may
    differ.
    """

    exact: torch.Tensor
    fp32_error: torch.Tensor | None


def assert_close(out, expected, what):
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
    def __init__(self, values, fill):
        self.fill = fill if values.dtype.is_floating_point else torch.iinfo(values.dtype).max - 5
        self.buffer = torch.full(
            (values.numel() + 2 * GUARD,), self.fill, dtype=values.dtype, device=DEVICE
        )
        self.tensor = self.buffer[GUARD : GUARD + values.numel()].view(values.shape)
        self.tensor.copy_(values)

    def assert_untouched(self, what):
        outside = torch.cat((self.buffer[:GUARD], self.buffer[-GUARD:]))
        assert bool((outside == self.fill).all()), f"{what}: wrote outside its output"


def run_guarded(
    launcher,
    inputs,
    out_shape,
    out_dtype=None,
):
    """Launch on copies of the inputs surrounded by NaN, so that reads beyond them show in the
    result.
    """
    copies = [Guarded(tensor, math.nan).tensor for tensor in inputs]
    out = Guarded(torch.full(out_shape, UNWRITTEN, dtype=out_dtype or inputs[0].dtype), UNWRITTEN)
    launcher(*copies, out=out.tensor)
    out.assert_untouched("kernel")
    return out.tensor.cpu()


def apart(values, stride, fill):
    """Return a copy of a matrix, or of a stack, whose rows lie `stride` elements apart amid `fill`,
    and its memory.

    There is room behind it for a kernel that takes a larger stride for this one.
    """
    *planes, m, n = values.shape
    count = math.prod(planes) * m * stride
    memory = torch.full((count + GUARD * (m + 2),), fill).to(values.dtype).to(DEVICE)
    view = memory[GUARD : GUARD + count].view(*planes, m, stride)[..., :n]
    view.copy_(values)
    return view, memory


def run_apart(
    launcher,
    inputs,
    strides,
    out_shape,
    out_stride=None,
    out_dtype=None,
):
    """Launch on copies of the inputs, with NaN between the rows of the first, and look between the
    rows of out.

    `strides` has one for each input whose rows lie apart; `out_stride` is None for an output of one
    dimension.
    """
    fills = [math.nan if tensor.dtype.is_floating_point else 113 for tensor in inputs]
    views = [apart(*given)[0] for given in zip(inputs, strides, fills, strict=False)]
    others = [Guarded(tensor, math.nan).tensor for tensor in inputs[len(strides) :]]
    shape = out_shape if out_stride else (1, *out_shape)
    blank = torch.full(shape, UNWRITTEN).to(out_dtype or inputs[0].dtype)
    out, memory = apart(blank, out_stride or shape[-1], UNWRITTEN)
    out = out if out_stride else out[0]
    launcher(*views, *others, out=out)
    found = out.clone().cpu()
    out.fill_(UNWRITTEN)
    assert (memory == UNWRITTEN).all(), "wrote between rows, or outside of them"
    return found


class Plane:
    """Memory that is mapped and never filled: 2^32 elements after its middle, 2^31 before it.

    An offset that wraps round to a negative number reads zeros there, where elsewhere it would end
    the process.
    """

    def __init__(self, dtype=torch.float16, margin=2**17):
        self.before = 2**31 + margin
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        memory = mmap.mmap(-1, (self.before + 2**32 + margin) * dtype.itemsize, flags=flags)
        self._elements = torch.frombuffer(memory, dtype=dtype)

    def strided(self, shape, strides, start=0):
        return self._elements.as_strided(shape, strides, self.before + start)


def far_rows(values, stride=FAR):
    """Return a copy of a matrix whose third row begins at 2^31 elements, which a 32-bit offset does
    not reach.
    """
    return Plane(values.dtype).strided(tuple(values.shape), (stride, 1)).copy_(values)


def rejection(launcher, label, *inputs, out):
    before = out.clone() if out.device.type == "cpu" else None
    with pytest.raises(ValueError, match=rf"^{label}: ") as error:
        launcher(*inputs, out=out)
    assert "\n" not in str(error.value)
    assert before is None or torch.equal(before, out)
    return str(error.value)


def version_of(module):
    """Return `v3` for the module of `v3_lean.py`, also for a copy of it with another module
    name.
    """
    return module.__file__.rpartition("/")[2].partition("_")[0]
