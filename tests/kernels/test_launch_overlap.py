"""An output that shares memory with an input is refused in every family; some may be the input itself."""

import pytest
import torch

import kernels.launch
from kernels.cross_entropy import v3_split_rows
from kernels.elementwise import v3_lean
from kernels.launch import require_apart
from kernels.matvec import v3_split_k
from kernels.norm import v3_tiles
from kernels.reduction import v2_one_launch
from kernels.softmax import v2_aligned

pytestmark = [
    pytest.mark.sampled(2),
    pytest.mark.skipif(kernels.launch.INTERPRETED, reason="interpreted kernels are not compiled"),
]

BUFFER = torch.zeros(4096)


def flat(start, count):
    return BUFFER[start : start + count]


def matrix(start, rows, columns, distance=None):
    return BUFFER.as_strided((rows, columns), (distance or columns, 1), start)


def labels(rows):
    return torch.zeros(rows, dtype=torch.int64)


OVERLAPS = {
    "gelu": (v3_lean, (flat(0, 64),), flat(16, 64), "x"),
    "add": (v3_lean, (torch.zeros(64), flat(32, 64)), flat(0, 64), "y"),
    "bias-gelu": (v3_lean, (torch.zeros(4, 16), flat(0, 16)), matrix(0, 4, 16), "bias"),
    "rmsnorm": (v3_tiles, (matrix(0, 4, 16), torch.ones(16)), matrix(16, 4, 16), "x"),
    "softmax": (v2_aligned, (matrix(0, 4, 16, 32),), matrix(8, 4, 16, 32), "x"),
    "matvec": (v3_split_k, (matrix(0, 16, 16), torch.ones(16)), flat(240, 16), "a"),
    "sum": (v2_one_launch, (flat(0, 64),), BUFFER[32], "x"),
    "cross-entropy": (v3_split_rows, (matrix(0, 4, 16), labels(4)), flat(60, 4), "x"),  # as its kernel calls the logits
}


@pytest.mark.parametrize("op", OVERLAPS)
def test_an_output_that_overlaps_an_input_is_refused(launches, op):
    module, inputs, out, name = OVERLAPS[op]
    with pytest.raises(ValueError, match=rf"^{op}: out shares memory with {name}; pass ") as error:
        module.KERNELS[op](*inputs, out=out)
    assert "\n" not in str(error.value)
    assert not launches


@pytest.mark.parametrize("op", ["gelu", "softmax"])
def test_an_output_may_be_the_input_itself(launches, op):
    x = matrix(0, 4, 64)
    (v3_lean if op == "gelu" else v2_aligned).KERNELS[op](x, out=x)
    assert len(launches) == 1


def test_a_vector_that_others_still_read_is_no_output(launches):
    x = flat(0, 16)
    with pytest.raises(ValueError, match=r"^matvec: out shares memory with x; pass one of its own$"):
        v3_split_k.KERNELS["matvec"](torch.zeros(16, 16), x, out=x)
    assert not launches


def test_columns_of_one_buffer_are_apart(launches):
    v2_aligned.KERNELS["softmax"](matrix(0, 4, 16, 32), out=matrix(16, 4, 16, 32))
    assert len(launches) == 1


@pytest.mark.parametrize(
    ("out", "x", "is_apart"),
    [
        (flat(0, 16), flat(16, 16), True),
        (flat(16, 16), flat(0, 16), True),
        (flat(16, 16), flat(0, 17), False),
        (flat(0, 17), flat(16, 16), False),
        (flat(0, 0), flat(0, 16), True),
        (matrix(0, 4, 16, 32), matrix(16, 4, 16, 32), True),
        (matrix(16, 4, 16, 32), matrix(0, 4, 16, 32), True),
        (matrix(0, 4, 16, 32), matrix(15, 4, 16, 32), False),
        (matrix(0, 4, 16, 32), matrix(17, 4, 16, 32), False),
        (matrix(0, 4, 16, 32), matrix(16, 4, 16, 48), False),  # the second row of x reaches the third of out
        (matrix(0, 4, 16, 32).mT, matrix(16, 4, 16, 32), False),  # apart, but not as rows of both
    ],
)
def test_memory_is_compared_byte_by_byte_and_row_by_row(out, x, is_apart):
    if is_apart:
        require_apart("op", out, {"x": x})
        return
    with pytest.raises(ValueError, match=r"^op: out shares memory with x; pass one of its own$"):
        require_apart("op", out, {"x": x})
