"""Sizes as a user writes them: numbers, products, ranges, bytes; and invalid ones."""

import pytest

from bench.elementwise import OPS as ELEMENTWISE
from bench.harness.op import MAX_CASES, ShapeError, parse_shapes, parse_size
from bench.matmul import OPS as MATMUL
from bench.matvec import OPS as MATVEC

MATMUL_OP = MATMUL[0]
MATVEC_OP = MATVEC[0]
OP = {op.name: op for op in ELEMENTWISE}


def mnk(*shapes):
    return [dict(zip("mnk", shape, strict=True)) for shape in shapes]


@pytest.mark.parametrize(
    ("words", "shapes"),
    [
        (["4096"], [(4096, 4096, 4096)]),
        (["1x2x3"], [(1, 2, 3)]),
        (["128", "64x32x16"], [(128, 128, 128), (64, 32, 16)]),
        (["1024:4096:1024"], [(1024,) * 3, (2048,) * 3, (3072,) * 3, (4096,) * 3]),
        (
            ["100:350:100"],
            [(100,) * 3, (200,) * 3, (300,) * 3],
        ),  # a stop that is not met is not passed
        (["64:64:1"], [(64, 64, 64)]),
        (["1:2:1x8x16:32:16"], [(1, 8, 16), (1, 8, 32), (2, 8, 16), (2, 8, 32)]),
        (
            ["64", "64x64x64", "64:128:64"],
            [(64,) * 3, (128,) * 3],
        ),  # each once, in the order written
        (["007"], [(7, 7, 7)]),
        (["999999999999999999x1x1"], [(10**18 - 1, 1, 1)]),
    ],
)
def test_shapes_of_matmul(words, shapes):
    assert parse_shapes(words, MATMUL_OP) == mnk(*shapes)


def test_a_single_extent_is_expanded_by_each_op():
    assert parse_shapes(["8", "3x5"], MATVEC_OP) == [{"m": 8, "n": 8}, {"m": 3, "n": 5}]
    assert parse_shapes(["8", "3x5", "2x2x2"], OP["relu"]) == [{"n": 8}, {"n": 15}]
    rows_of_4096 = [
        {"m": 1, "n": 4096},
        {"m": 3, "n": 4096},
        {"m": 1, "n": 100},
        {"m": 3, "n": 5},
    ]  # rounded up
    assert parse_shapes(["4096", "8193", "100", "3x5"], OP["bias-gelu"]) == rows_of_4096


@pytest.mark.parametrize(
    ("words", "op"),
    [
        ([f"1:{MAX_CASES + 1}:1"], "matmul"),
        (["1:101:1x1:100:1x1"], "matmul"),
        (["x".join(["1:2:1"] * 60)], "relu"),  # 2^60 products, but only 61 counts of elements
    ],
)
def test_too_many_shapes_are_rejected_before_expansion(words, op):
    with pytest.raises(ShapeError, match="makes more than 10000 cases"):
        parse_shapes(words, MATMUL_OP if op == "matmul" else OP[op])
    assert len(parse_shapes([f"1:{MAX_CASES}:1"], MATMUL_OP)) == MAX_CASES


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("1B", 1),
        ("1kb", 1000),
        ("0.5KiB", 512),
        ("256 MiB", 2**28),
        ("1GB", 10**9),
        ("1GiB", 2**30),
        ("0.57KB", 570),  # 0.57 x 1000 is 569.9999999999999 in floating point
        ("123456789012345GB", 123_456_789_012_345 * 10**9),
    ],
)
def test_sizes_are_exact(text, size_bytes):
    assert parse_size(text) == size_bytes
