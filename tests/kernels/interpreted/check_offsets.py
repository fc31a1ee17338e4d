"""Offsets beyond 2^31 elements, under Triton's interpreter, in memory that is mapped but never filled.

The kernels are called directly with sizes and strides far larger than the tensors handed in. Those tensors
lie in the middle of a mapping that reaches 2^32 bytes to either side, so an offset that wraps round to a
negative number reads zeros and fails a comparison, where elsewhere it would end the process.
"""

import mmap

import pytest
import torch
from elementwise_cases import MODULES, kept
from triton.runtime import interpreter

DTYPE = torch.float16
LIMIT = 2**31  # first element that a 32-bit offset does not reach
SIDE_BYTES = LIMIT * DTYPE.itemsize
MARGIN = 4096  # elements beyond the limit
MAP_NORESERVE = 0x4000  # Linux; named in `mmap` from Python 3.13


class Plane:
    """Elements counted from the middle of a sparse mapping, from -2^31 to a little over 2^31."""

    def __init__(self):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._memory = mmap.mmap(-1, 2 * SIDE_BYTES + MARGIN * DTYPE.itemsize, flags=flags)

    def at(self, element, count):
        offset = SIDE_BYTES + element * DTYPE.itemsize
        return torch.frombuffer(self._memory, dtype=DTYPE, count=count, offset=offset)


@pytest.fixture
def far_program(monkeypatch):
    """Let the only program of a launch take itself for the one whose block starts at element 2^31."""

    def shift(block):
        inner = interpreter.interpreter_builder
        monkeypatch.setattr(inner, "set_grid_idx", lambda x, y, z: setattr(inner, "grid_idx", (LIMIT // block, 0, 0)))

    return shift


@pytest.mark.parametrize("extra", [1.0, 0.5], ids=["full-block", "partial-block"])
@pytest.mark.parametrize("op", ["relu", "add", "bias-gelu", "dropout"])
@pytest.mark.parametrize("version", MODULES)
def test_elementwise_block_beyond_32_bits(version, op, extra, far_program):
    variant = MODULES[version].VARIANTS[op, DTYPE]
    block = variant.constants["BLOCK"]
    count = int(block * extra)
    cols = 48  # no divisor of 2^32: a number of elements that wraps has its columns elsewhere
    columns = torch.arange(LIMIT, LIMIT + count) % cols
    planes = [Plane() for _ in range(2 if op in ("add", "bias-gelu") else 1)]
    out = Plane()
    for plane in planes:
        plane.at(LIMIT, count).copy_(torch.arange(1, count + 1) / 64)
    if op == "bias-gelu":
        planes[1].at(0, cols).copy_(40.0 + torch.arange(cols))  # beyond 8 GELU is the identity in fp16: sums come out
    inputs = [plane.at(0, 16) for plane in planes] + [torch.tensor([7])] * (op == "dropout")
    far_program(block)
    variant.launch(1, *inputs, out.at(0, 16), LIMIT + count, *([cols] * (op == "bias-gelu")))
    first = planes[0].at(LIMIT, count)
    kept_first = torch.where(kept(version, 7, count, first=LIMIT), first.float() / 0.9, 0.0).to(DTYPE)
    expected = {
        "relu": first,
        "add": first + first,
        "bias-gelu": (first + (40.0 + columns)).to(DTYPE),
        "dropout": kept_first,
    }[op]
    torch.testing.assert_close(out.at(LIMIT, count), expected, rtol=torch.finfo(DTYPE).eps, atol=0)
    assert not out.at(-LIMIT, count).any()
    assert not out.at(LIMIT + count, 16).any()
