"""Elementwise kernels under Triton's interpreter, against fp64. See test_interpreted.py for how
this is run.
"""

import math

import numpy as np
import pytest
import torch
from elementwise_cases import DROPPED, SEED, check, draw, keep_mask, philox4x32
from exact import DTYPES, Plane
from families import versions_of
from triton.runtime import interpreter

VERSIONS = versions_of("elementwise")
NEWEST = list(VERSIONS.values())[-1]
every_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.mark.parametrize("cols", [1, 16, 48, 511, 513, 1040, 2048, 2500])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@every_version
def test_bias_of_every_column(version, dtype, cols):
    rows = max(3, 2 * VERSIONS[version].VARIANTS["copy", dtype].elements // cols + 1)
    check("bias-gelu", VERSIONS[version], *draw("bias-gelu", dtype, rows * cols, cols))


@every_version
def test_fp32_overflow_and_underflow_inside_a_formula(version):
    values = torch.tensor(
        [1e20, -1e20, 3e38, -3e38, -100.0, -87.0, -40.0, -13.1, -13.3, 1e-38, -1e-44]
    )
    for op in ("relu", "gelu", "gelu-tanh", "silu"):
        check(op, VERSIONS[version], values)


def test_the_negative_tail_of_gelu_keeps_its_digits():
    x = -torch.linspace(0.01, 12.0, 3001)
    out = torch.empty_like(x)
    NEWEST.KERNELS["gelu"](x, out=out)
    exact = 0.5 * x.double() * torch.special.erfc(-x.double() * math.sqrt(0.5))
    assert ((out.double() - exact) / exact).abs().max() < 2**-11
    VERSIONS["v1"].KERNELS["gelu"](x, out=out)
    assert ((out.double() - exact) / exact).abs().max() == 1  # by 1 + erf none is left


KNOWN_ANSWERS = """
7  00000000 00000000 00000000 00000000 00000000 00000000  5f6fb709 0d893f64 4f121f81 4f730a48
7  ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff  5207ddc2 45165e59 4d8ee751 8c52f662
7  243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0  4dfccaba 190a87f0 c47362ba b6b5242a
10 00000000 00000000 00000000 00000000 00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8
10 ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd
10 243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1
"""
"""Rounds, counter, key, words of Philox4x32. Source: Random123, `tests/kat_vectors`."""


@pytest.mark.parametrize("line", KNOWN_ANSWERS.strip().splitlines())
def test_philox_reference_matches_published_vectors(line):
    rounds, *numbers = line.split()
    numbers = [int(number, 16) for number in numbers]
    found = philox4x32(np.array([numbers[:4]]), tuple(numbers[4:6]), int(rounds))
    assert found[0].tolist() == numbers[6:]


def mask(version, seed, n, dtype=torch.float32):
    out = torch.empty(n, dtype=dtype)
    VERSIONS[version].KERNELS["dropout"](torch.ones(n, dtype=dtype), torch.tensor([seed]), out=out)
    return out != 0


@every_version
@pytest.mark.parametrize("seed", [0, -1, SEED, 2**32])
def test_dropout_mask_matches_the_reference(version, seed):
    assert torch.equal(mask(version, seed, 3001), keep_mask(version, seed, 3001))
    assert torch.equal(mask(version, seed, 3001, torch.float16), keep_mask(version, seed, 3001))


@every_version
def test_dropout_mask_is_random(version):
    n = 2**15
    keep = mask(version, SEED, n).double()
    sigma = math.sqrt(DROPPED * (1 - DROPPED))
    assert abs(keep.mean() - (1 - DROPPED)) < 5 * sigma / math.sqrt(n)
    for part in keep.view(-1, 4).T:  # each word of a counter by itself
        assert abs(part.mean() - (1 - DROPPED)) < 5 * sigma / math.sqrt(n / 4)
    centered = (keep - (1 - DROPPED)) / sigma
    for lag in (1, 2, 3, 4, 7, 8, 16, 32, 128, 256, 1024, 2048, 4096):
        assert abs((centered[lag:] * centered[:-lag]).sum()) < 5 * math.sqrt(n), (
            f"period or correlation at {lag}"
        )


DTYPE = torch.float16
LIMIT = 2**31  # first element that a 32-bit offset does not reach


class Elements(Plane):
    def at(self, element, count):
        return self.strided((count,), (1,), element)


@pytest.fixture
def far_program(monkeypatch):
    def shift(block):
        inner = interpreter.interpreter_builder
        monkeypatch.setattr(
            inner,
            "set_grid_idx",
            lambda x, y, z: setattr(inner, "grid_idx", (LIMIT // block, 0, 0)),
        )

    return shift


@pytest.mark.parametrize("extra", [1.0, 0.5], ids=["full-block", "partial-block"])
@pytest.mark.parametrize("op", ["relu", "add", "bias-gelu", "dropout"])
@every_version
def test_elementwise_offsets_beyond_32_bits(version, op, extra, far_program):
    variant = VERSIONS[version].VARIANTS[op, DTYPE]
    block = variant.constants["BLOCK"]
    count = int(block * extra)
    cols = 48  # no divisor of 2^32: a number of elements that wraps has its columns elsewhere
    planes = [Elements() for _ in range(2 if op in ("add", "bias-gelu") else 1)]
    out = Elements()
    for plane in planes:
        plane.at(LIMIT, count).copy_(torch.arange(1, count + 1) / 64)
    if op == "bias-gelu":
        # Beyond 8 GELU is the identity in fp16: sums come out.
        planes[1].at(0, cols).copy_(40.0 + torch.arange(cols))
    inputs = [plane.at(0, 16) for plane in planes] + [torch.tensor([7])] * (op == "dropout")
    far_program(block)
    x, *others = inputs
    variant.launch(1, x, out.at(0, 16), LIMIT + count, *others, *([cols] * (op == "bias-gelu")))
    first = planes[0].at(LIMIT, count)
    expected = {
        "relu": first,
        "add": first + first,
        "bias-gelu": (first + (40.0 + torch.arange(LIMIT, LIMIT + count) % cols)).to(DTYPE),
        "dropout": torch.where(
            keep_mask(version, 7, count, first=LIMIT), first.float() / 0.9, 0.0
        ).to(DTYPE),
    }[op]
    torch.testing.assert_close(out.at(LIMIT, count), expected, rtol=torch.finfo(DTYPE).eps, atol=0)
    assert not out.at(-LIMIT, count).any()
    assert not out.at(LIMIT + count, 16).any()
