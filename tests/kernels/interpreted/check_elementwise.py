"""Elementwise kernels under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import itertools
import math

import pytest
import torch

from kernels.elementwise.v1_flat import KERNELS, VARIANTS

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
BLOCKS = {name: VARIANTS["copy", dtype].constants["BLOCK"] for name, dtype in DTYPES.items()}
SIZES = [
    pytest.param(name, n, id=f"{name}-{n}")
    for name, block in BLOCKS.items()
    for n in (1, 7, 127, block - 1, block, block + 1, 2 * block + 3)
]
SPECIALS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-7, -1e-7, 0.5, -1.0, -3.0, -5.0, -10.0, -88.5, -6e4, 6e4, 2.7]


@pytest.mark.parametrize(("name", "n"), SIZES)
@pytest.mark.parametrize("op", KERNELS)
def test_sizes(op, name, n, draw_inputs, check_elementwise):
    check_elementwise(op, KERNELS[op], *draw_inputs(op, DTYPES[name], n))


@pytest.mark.parametrize("cols", [1, 3, 16, 48, 511, 512, 513, 1000, 1024, 1040, 2500])
@pytest.mark.parametrize("name", DTYPES)
def test_bias_of_every_column(name, cols, draw_inputs, check_elementwise):
    rows = max(3, 2 * BLOCKS[name] // cols + 1)
    check_elementwise("bias-gelu", KERNELS["bias-gelu"], *draw_inputs("bias-gelu", DTYPES[name], rows * cols, cols))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("op", KERNELS)
def test_special_values_in_full_and_partial_blocks(op, name, draw_inputs, check_elementwise):
    pairs = torch.tensor(list(itertools.product(SPECIALS, SPECIALS)), dtype=DTYPES[name])
    pairs = pairs.repeat(BLOCKS[name] // len(pairs) + 1, 1)[: BLOCKS[name] + 7].repeat(2, 1)
    first, second = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    inputs = {1: (first,), 2: (first, second)}[len(draw_inputs(op, DTYPES[name], 1))]
    if op == "bias-gelu":
        inputs = (first[None, :], second)
    check_elementwise(op, KERNELS[op], *inputs)


def test_fp32_values_that_overflow_on_the_way(check_elementwise):
    large = torch.tensor([1e20, -1e20, 3e38, -3e38, -100.0, -87.0, -40.0, 1e-38, -1e-44])
    for op in ("relu", "gelu", "gelu-tanh", "silu"):
        check_elementwise(op, KERNELS[op], large)


@pytest.mark.parametrize("op", KERNELS)
def test_result_may_replace_the_first_input(op, draw_inputs, check_elementwise):
    def in_place(x, *others, out):
        out.copy_(x)
        KERNELS[op](out, *others, out=out)

    check_elementwise(op, in_place, *draw_inputs(op, torch.float32, 700))


@pytest.mark.parametrize("op", KERNELS)
def test_empty_input_writes_nothing(op, draw_inputs):
    x, *others = draw_inputs(op, torch.float32, 4)
    others = [bias[:0] if bias.shape == x.shape else bias for bias in others]
    KERNELS[op](x[:0], *others, out=torch.empty_like(x[:0]))


def refused(op, *inputs, out):
    with pytest.raises(ValueError, match=rf"^{op} v1: ") as error:
        KERNELS[op](*inputs, out=out)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_layouts_are_refused_not_copied():
    x, out = torch.ones(8, 8), torch.zeros(8, 8)
    assert "strides (1, 8)" in refused("relu", x.t(), out=out)
    assert "strides (2,)" in refused("silu", x.view(-1)[::2], out=torch.zeros(32))
    assert "strides (0,)" in refused("add", torch.ones(8), torch.ones(1).expand(8), out=torch.zeros(8))
    assert "out of shape (8, 8) has strides (1, 8)" in refused("copy", x, out=out.t())
    assert "4 bytes past" in refused("gelu", x.view(-1)[1:9], out=torch.zeros(8))
    assert "y starts 2 bytes past" in refused(
        "mul", *(torch.ones(9).half()[i : i + 8] for i in (0, 1)), out=torch.zeros(8).half()
    )
    assert not out.any()


def test_dtypes_are_refused():
    x = torch.ones(8)
    assert "x has dtype torch.float64; allowed are torch.float32" in refused("relu", x.double(), out=x.double())
    assert "torch.int32" in refused("copy", x.int(), out=x.int())
    assert "out has dtype torch.float16, x torch.float32" in refused("relu", x, out=x.half())
    assert "residual has dtype" in refused("residual-add", x, x.half(), out=x)
    assert "x is of type list" in refused("relu", [1.0], out=x)


def test_shapes_and_devices_are_refused():
    x = torch.ones(8)
    assert "out has shape (4,); the other operands need (8,)" in refused("relu", x, out=x[:4])
    assert "y has shape (1,)" in refused("swiglu", x, x[:1], out=x)
    assert "x has shape (8,); two dimensions" in refused("bias-gelu", x, x, out=x)
    assert "bias has shape (4,)" in refused("bias-gelu", x.view(1, 8), x[:4], out=x.view(1, 8))
    assert "out is on meta, x on cpu" in refused("relu", x, out=torch.empty(8, device="meta"))
