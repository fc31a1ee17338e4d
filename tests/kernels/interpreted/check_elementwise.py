"""Elementwise kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from bugs_elementwise import BUGS
from elementwise_cases import (
    DROPPED,
    MODULES,
    NEWEST,
    OPS,
    PAIRS,
    SEED,
    check,
    draw,
    expect,
    kept,
    philox4x32,
    specials,
    words,
)
from exact import assert_close
from planted import plant

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
WIDTHS = [1, 7, 256, 513]
ROWS = [1, 5]  # up to 2565 elements, more than a block of every version
LABELED = [f"{op}-{version}" for op, version in PAIRS]
NEWEST_WORDS = MODULES[NEWEST].random_words


def pair(label):
    op, _, version = label.rpartition("-")
    return op, MODULES[version]


def block(module, name):
    return module.VARIANTS["copy", DTYPES[name]].elements


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("label", LABELED)
def test_sizes(label, name, width):
    op, module = pair(label)
    for rows in ROWS:
        check(op, module, *draw(op, DTYPES[name], rows * width, width))


@pytest.mark.parametrize("cols", [1, 16, 48, 511, 513, 1040, 2048, 2500])
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("version", MODULES)
def test_bias_of_every_column(version, name, cols):
    module = MODULES[version]
    rows = max(3, 2 * block(module, name) // cols + 1)
    check("bias-gelu", module, *draw("bias-gelu", DTYPES[name], rows * cols, cols))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("label", LABELED)
def test_special_values_in_full_and_partial_blocks(label, name):
    op, module = pair(label)
    check(op, module, *specials(op, DTYPES[name], block(module, name) + 300 + 7))


@pytest.mark.parametrize("version", MODULES)
def test_fp32_values_that_overflow_or_vanish_on_the_way(version):
    values = torch.tensor([1e20, -1e20, 3e38, -3e38, -100.0, -87.0, -40.0, -13.1, -13.3, 1e-38, -1e-44])
    for op in ("relu", "gelu", "gelu-tanh", "silu"):
        check(op, MODULES[version], values)


@pytest.mark.parametrize("label", LABELED)
def test_result_may_replace_the_first_input(label):
    op, module = pair(label)
    check(op, module, *draw(op, torch.float32, 700), in_place=True)


@pytest.mark.parametrize("label", LABELED)
def test_empty_input_writes_nothing(label):
    op, module = pair(label)
    x, *others = draw(op, torch.float32, 4)
    others = [other[:0] if other.shape == x.shape else other for other in others]
    module.KERNELS[op](x[:0], *others, out=torch.empty_like(x[:0]))


def test_the_negative_tail_of_gelu_keeps_its_digits():
    x = -torch.linspace(0.01, 12.0, 3001)
    out = torch.empty_like(x)
    MODULES[NEWEST].KERNELS["gelu"](x, out=out)
    exact = 0.5 * x.double() * torch.special.erfc(-x.double() * math.sqrt(0.5))
    assert ((out.double() - exact) / exact).abs().max() < 2**-11
    MODULES["v2"].KERNELS["gelu"](x, out=out)
    assert ((out.double() - exact) / exact).abs().max() == 1  # by 1 + erf none is left


# ---- what the comparison can see -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", [op for op in OPS if op not in ("relu", "copy")])
def test_comparison_sees_small_errors(op, name):
    inputs = draw(op, DTYPES[name], 1000)
    expected = expect(op, NEWEST, *inputs)
    right = expected.exact.to(DTYPES[name])
    assert_close(right, expected, op)
    largest = right.abs().argmax()
    for wrong in (right * 1.005, torch.cat((right.flatten()[:-9], torch.zeros(9))).view_as(right).to(right.dtype)):
        with pytest.raises(pytest.fail.Exception):
            assert_close(wrong, expected, op)
    one = right.clone()
    one.view(-1)[largest] += 2 * one.view(-1)[largest].abs() * torch.finfo(DTYPES[name]).eps
    if name == "fp16":  # in fp32 the formula itself may be that far off
        with pytest.raises(pytest.fail.Exception):
            assert_close(one, expected, op)


# ---- dropout -------------------------------------------------------------------------------------------------------

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
def test_reference_gives_the_known_answers(line):
    rounds, *numbers = line.split()
    numbers = [int(number, 16) for number in numbers]
    found = philox4x32(np.array([numbers[:4]]), tuple(numbers[4:6]), int(rounds))
    assert found[0].tolist() == numbers[6:]


@triton.jit
def store_dropped(words_ptr, out_ptr, COUNT: tl.constexpr, DROPOUT: tl.constexpr):  # noqa: N803
    words_of_ones = tl.load(words_ptr + tl.arange(0, COUNT)).to(tl.uint32)
    tl.store(out_ptr + tl.arange(0, COUNT), DROPOUT(tl.full((COUNT,), 1.0, tl.float32), words_of_ones))


def test_the_first_word_that_is_kept_is_the_rounded_share():
    around = torch.tensor([0, 429496729, 429496730, 2**32 - 1])  # 0.1 * 2^32 is 429496729.6
    out = torch.zeros(4)
    store_dropped[(1,)](around, out, COUNT=4, DROPOUT=MODULES[NEWEST].dropout)
    assert (out != 0).tolist() == [False, False, True, True]


@triton.jit
def store_words(seed_ptr, first_ptr, out_ptr, COUNT: tl.constexpr, DRAW: tl.constexpr):  # noqa: N803
    drawn = DRAW(tl.load(seed_ptr), tl.load(first_ptr), COUNT)
    tl.store(out_ptr + tl.arange(0, COUNT), drawn.to(tl.int64))


@pytest.mark.parametrize("first", [0, 1024, 2**34 - 16, 2**40 + 4], ids=hex)
@pytest.mark.parametrize("seed", [0, 1, SEED, -1, -SEED])
def test_all_four_words_are_used_in_order(seed, first):
    out = torch.zeros(64, dtype=torch.int64)
    store_words[(1,)](torch.tensor([seed]), torch.tensor([first]), out, COUNT=64, DRAW=NEWEST_WORDS)
    assert out.tolist() == words(seed, np.arange(first // 4, first // 4 + 16), 7).reshape(-1).tolist()


def mask(version, seed, n, dtype=torch.float32):
    out = torch.empty(n, dtype=dtype)
    MODULES[version].KERNELS["dropout"](torch.ones(n, dtype=dtype), torch.tensor([seed]), out=out)
    return out != 0


@pytest.mark.parametrize("version", MODULES)
@pytest.mark.parametrize("seed", [0, -1, SEED, 2**32])
def test_mask_is_that_of_the_reference(version, seed):
    assert torch.equal(mask(version, seed, 3001), kept(version, seed, 3001))
    assert torch.equal(mask(version, seed, 3001, torch.float16), kept(version, seed, 3001))


@pytest.mark.parametrize("version", MODULES)
def test_mask_looks_random(version):
    n = 2**15
    keep = mask(version, SEED, n).double()
    sigma = math.sqrt(DROPPED * (1 - DROPPED))
    assert abs(keep.mean() - (1 - DROPPED)) < 5 * sigma / math.sqrt(n)
    for part in keep.view(-1, 4).T:  # each word of a counter by itself
        assert abs(part.mean() - (1 - DROPPED)) < 5 * sigma / math.sqrt(n / 4)
    centered = (keep - (1 - DROPPED)) / sigma
    for lag in (1, 2, 3, 4, 7, 8, 16, 32, 128, 256, 1024, 2048, 4096):
        assert abs((centered[lag:] * centered[:-lag]).sum()) < 5 * math.sqrt(n), f"period or correlation at {lag}"


@pytest.mark.parametrize("version", MODULES)
def test_mask_depends_on_seed_and_place_alone(version):
    assert torch.equal(mask(version, SEED, 1000), mask(version, SEED, 3001)[:1000])
    assert torch.equal(mask(version, SEED, 1000), mask(version, SEED, 1000, torch.float16))
    for other in (SEED + 1, SEED ^ 2**40, -SEED):
        differ = (mask(version, SEED, 3001) != mask(version, other, 3001)).double().mean()
        assert abs(differ - 2 * DROPPED * (1 - DROPPED)) < 0.04  # of two independent masks


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.fixture(params=MODULES)
def refused(request):
    version = request.param

    def call(op, *inputs, out):
        with pytest.raises(ValueError, match=rf"^{op} {version}: ") as error:
            MODULES[version].KERNELS[op](*inputs, out=out)
        assert "\n" not in str(error.value)
        return str(error.value)

    return call


def test_layouts_are_refused_not_copied(refused):
    x, out = torch.ones(8, 8), torch.zeros(8, 8)
    assert "strides (1, 8)" in refused("relu", x.t(), out=out)
    assert "strides (2,)" in refused("silu", x.view(-1)[::2], out=torch.zeros(32))
    assert "strides (0,)" in refused("triad", torch.ones(8), torch.ones(1).expand(8), out=torch.zeros(8))
    assert "strides (1, 8)" in refused("dropout", x.t(), torch.tensor([1]), out=out)
    assert "strides (1, 8)" in refused("bias-gelu", x.t(), x[0], out=out)
    assert "out of shape (8, 8) has strides (1, 8)" in refused("copy", x, out=out.t())
    assert "4 bytes past" in refused("gelu", x.view(-1)[1:9], out=torch.zeros(8))
    halves = [torch.ones(9).half()[i : i + 8] for i in (0, 1)]
    assert "y starts 2 bytes past" in refused("mul", *halves, out=torch.zeros(8).half())
    assert not out.any()


def test_dtypes_are_refused(refused):
    x = torch.ones(8)
    assert "x has dtype torch.float64; allowed are torch.float32" in refused("relu", x.double(), out=x.double())
    assert "torch.int32" in refused("copy", x.int(), out=x.int())
    assert "out has dtype torch.float16, x torch.float32" in refused("relu", x, out=x.half())
    assert "residual has dtype" in refused("residual-add", x, x.half(), out=x)
    assert "x is of type list" in refused("relu", [1.0], out=x)


def test_shapes_and_devices_are_refused(refused):
    x = torch.ones(8)
    assert "out has shape (4,); the other operands need (8,)" in refused("relu", x, out=x[:4])
    assert "up has shape (1,)" in refused("swiglu", x, x[:1], out=x)
    assert "1 inputs are given; pass x, y" in refused("add", x, out=x)
    assert "x has shape (8,); two dimensions" in refused("bias-gelu", x, x, out=x)
    assert "bias has shape (4,)" in refused("bias-gelu", x.view(1, 8), x[:4], out=x.view(1, 8))
    assert "out is on meta, x on cpu" in refused("relu", x, out=torch.empty(8, device="meta"))


def test_seeds_are_refused(refused):
    x = torch.ones(8)
    assert "seed is of type int; pass a torch tensor" in refused("dropout", x, 1, out=x)
    assert "seed has dtype torch.int32; torch.int64 is needed" in refused("dropout", x, torch.tensor([1]).int(), out=x)
    assert "seed has shape (); the other operands need (1,)" in refused("dropout", x, torch.tensor(1), out=x)
    assert "seed is on meta, x on cpu" in refused("dropout", x, torch.tensor([1], device="meta"), out=x)
    assert "no offset view" in refused("dropout", x, torch.tensor([1, 2])[1:], out=x)


# ---- planted bugs --------------------------------------------------------------------------------------------------


def battery(module):
    """The quickest set of the checks above that a broken version must not pass: every kernel, every kind of formula."""
    for op in ("copy", "triad", "swiglu", "gelu-tanh", "bias-gelu", "dropout"):
        check(op, module, *specials(op, torch.float16, 307))
        for n in (block(module, "fp16") + 512, 2 * block(module, "fp16") - 1):
            check(op, module, *draw(op, torch.float16, n))
    check("bias-gelu", module, *draw("bias-gelu", torch.float16, 3 * 1000, 1000))
    check("bias-gelu", module, *draw("bias-gelu", torch.float32, 3 * 1040, 1040))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("version", MODULES)
def test_battery_passes_without_a_bug(version):
    battery(MODULES[version])


@pytest.mark.exhaustive
@pytest.mark.parametrize("bug", [bug for bug in BUGS if not bug.only_compiled], ids=lambda bug: bug.label)
def test_planted_bug_is_caught(bug, tmp_path):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        battery(plant(bug, tmp_path))
