"""Offsets of elementwise kernels beyond 2^31 elements, under Triton's interpreter, in memory that is never filled.

The kernels are called directly with sizes far larger than the tensors handed in.
"""

import pytest
import torch
from elementwise_cases import kept
from exact import Plane
from families import versions_of
from triton.runtime import interpreter

VERSIONS = versions_of("elementwise")
DTYPE = torch.float16
LIMIT = 2**31  # first element that a 32-bit offset does not reach


class Elements(Plane):
    def at(self, element, count):
        return self.strided((count,), (1,), element)


@pytest.fixture
def far_program(monkeypatch):
    """Let the only program of a launch take itself for the one whose block starts at element 2^31."""

    def shift(block):
        inner = interpreter.interpreter_builder
        monkeypatch.setattr(inner, "set_grid_idx", lambda x, y, z: setattr(inner, "grid_idx", (LIMIT // block, 0, 0)))

    return shift


@pytest.mark.parametrize("extra", [1.0, 0.5], ids=["full-block", "partial-block"])
@pytest.mark.parametrize("op", ["relu", "add", "bias-gelu", "dropout"])
@pytest.mark.parametrize("version", VERSIONS)
def test_elementwise_block_beyond_32_bits(version, op, extra, far_program):
    variant = VERSIONS[version].VARIANTS[op, DTYPE]
    block = variant.constants["BLOCK"]
    count = int(block * extra)
    cols = 48  # no divisor of 2^32: a number of elements that wraps has its columns elsewhere
    planes = [Elements() for _ in range(2 if op in ("add", "bias-gelu") else 1)]
    out = Elements()
    for plane in planes:
        plane.at(LIMIT, count).copy_(torch.arange(1, count + 1) / 64)
    if op == "bias-gelu":
        planes[1].at(0, cols).copy_(40.0 + torch.arange(cols))  # beyond 8 GELU is the identity in fp16: sums come out
    inputs = [plane.at(0, 16) for plane in planes] + [torch.tensor([7])] * (op == "dropout")
    far_program(block)
    variant.launch(1, *inputs, out.at(0, 16), LIMIT + count, *([cols] * (op == "bias-gelu")))
    first = planes[0].at(LIMIT, count)
    expected = {
        "relu": first,
        "add": first + first,
        "bias-gelu": (first + (40.0 + torch.arange(LIMIT, LIMIT + count) % cols)).to(DTYPE),
        "dropout": torch.where(kept(version, 7, count, first=LIMIT), first.float() / 0.9, 0.0).to(DTYPE),
    }[op]
    torch.testing.assert_close(out.at(LIMIT, count), expected, rtol=torch.finfo(DTYPE).eps, atol=0)
    assert not out.at(-LIMIT, count).any()
    assert not out.at(LIMIT + count, 16).any()
