"""Elementwise kernels under Triton's interpreter, against fp64. See test_interpreted.py for how
this is run.
"""

import math

import numpy as np
import pytest
import torch
from elementwise_cases import SEED, check, keep_mask, philox4x32
from families import versions_of

VERSIONS = versions_of("elementwise")
NEWEST = list(VERSIONS.values())[-1]
every_version = pytest.mark.parametrize("version", VERSIONS)


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
