"""Matrix-vector kernel under Triton's interpreter, against fp64. See test_interpreted.py for how this is run."""

import math

import pytest
import torch

from kernels.matvec.v1_rows import KERNELS, ROWS, VARIANTS

MATVEC = KERNELS["matvec"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
BLOCKS = {name: VARIANTS["matvec", dtype].constants["BLOCK"] for name, dtype in DTYPES.items()}
SHAPES = [(1, 1), (3, 5), (129, 1000), (ROWS, 16), (ROWS + 1, 127), (1, 4099), (2, 512), (5, 513), (7, 1024), (6, 2049)]


def normal(shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("name", DTYPES)
def test_matvec(name, shape, check_matvec):
    check_matvec(MATVEC, normal(shape, DTYPES[name]), normal(shape[1:], DTYPES[name]), BLOCKS[name])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("n", [1, 100, 1111])
def test_padded_rows_are_walked_by_their_stride(name, n, check_matvec):
    storage = torch.full((9, 1200), math.nan, dtype=DTYPES[name])
    storage[:, :n] = normal((9, n), DTYPES[name])

    def padded(a, x, *, out):
        MATVEC(storage[:, :n], x, out=out)

    check_matvec(padded, storage[:, :n], normal((n,), DTYPES[name]), BLOCKS[name])


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 600], ids=["full-block", "partial-block"])
def test_special_values_stay_in_their_row(special, column, check_matvec):
    a, x = normal((6, 601), torch.float32), normal((601,), torch.float32)
    a[4, column] = special
    check_matvec(MATVEC, a, x, BLOCKS["fp32"])


def test_fp16_sums_beyond_fp16_range_on_the_way(check_matvec):
    a = torch.full((2, 2048), 200.0).half()
    a[:, 1024:] = -200.0
    check_matvec(MATVEC, a, torch.full((2048,), 200.0).half(), BLOCKS["fp16"])


def test_no_columns_give_zeros_and_no_rows_give_nothing():
    out = torch.ones(3)
    MATVEC(torch.empty(3, 0), torch.empty(0), out=out)
    assert not out.any()
    MATVEC(torch.empty(0, 3), torch.empty(3), out=out[:0])


def refused(a, x, *, out):
    with pytest.raises(ValueError, match=r"^matvec v1: ") as error:
        MATVEC(a, x, out=out)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_unfit_operands_are_refused():
    a, x, out = torch.ones(4, 8), torch.ones(8), torch.zeros(4)
    assert "strides (1, 4)" in refused(torch.ones(8, 4).t(), x, out=out)
    assert "strides (0, 1)" in refused(x.expand(4, 8), x, out=out)
    assert "strides (4, 1); rows must be dense and must not overlap" in refused(
        torch.ones(40).as_strided((4, 8), (4, 1)), x, out=out
    )
    assert "x of shape (8,) has strides (2,)" in refused(a, torch.ones(16)[::2], out=out)
    assert "a starts 4 bytes past" in refused(torch.ones(4, 9)[:, 1:], x, out=out)
    assert "a has dtype torch.float64" in refused(a.double(), x, out=out)
    assert "x has dtype torch.float16, a torch.float32" in refused(a, x.half(), out=out)
    assert "a has shape (8,); two dimensions" in refused(x, x, out=out)
    assert "x has shape (4,)" in refused(a, x[:4], out=out)
    assert "out has shape (8,)" in refused(a, x, out=torch.zeros(8))
    assert not out.any()
