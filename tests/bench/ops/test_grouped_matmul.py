"""The grouped matmul: compared with a loop, planted mistakes, its tokens per expert and its
work.
"""

import pytest
import torch

from bench.grouped_matmul import OPS, OPTIONS, ends_of, library, reference, tokens_of
from bench.harness.data.verify import check
from bench.harness.op import Case, UnsupportedCaseError
from roofline.work import grouped_matmul_work, matmul_work
from tests.bench.commands import inputs_of

(OP,) = OPS


def case_of(t, n=32, k=48, dtype="fp32", experts=4, load="even"):
    return Case.of(
        OP.name, dtype, {"t": t, "n": n, "k": k}, OPTIONS, {"experts": experts, "load": load}
    )


def data_of(case, fill="uniform"):
    return inputs_of(OP, case, fill)


def test_the_reference_uses_the_matrix_of_each_tokens_expert():
    x, weights, _ = data_of(case_of(7, dtype="fp64")).inputs
    ends = torch.tensor([2, 2, 6, 7], dtype=torch.int32)
    experts = (0, 0, 2, 2, 2, 2, 3)
    expected = torch.stack([x[i] @ weights[expert] for i, expert in enumerate(experts)])
    assert torch.allclose(reference(x, weights, ends), expected, rtol=1e-12)


@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.parametrize("load", ["even", "skewed"])
def test_torch_grouped_matmul_is_right_in_every_dtype_and_load(dtype, load, fill):
    for tokens in (1, 3, 130):
        case = case_of(tokens, dtype=dtype, load=load)
        data = data_of(case, fill)
        found = check(OP, case, data, library(*data.inputs))
        assert found.is_right, f"{tokens}: {found.reason}"
        assert found.checked_elements == found.elements


@pytest.mark.parametrize("rows", [slice(0, 3), slice(2, 9, 4), slice(8, 9), slice(0, 9)])
@pytest.mark.parametrize("load", ["even", "skewed"])
def test_rows_of_the_inputs_give_the_same_rows_of_the_result(rows, load):
    data = data_of(case_of(9, dtype="fp64", experts=5, load=load))
    inputs, part = OP.take_rows(data.inputs, reference(*data.inputs), rows)
    assert len(part) == len(range(9)[rows])
    assert torch.allclose(reference(*inputs), part, rtol=1e-12)


MISTAKES = {
    "a token at the wrong expert": lambda x, weights, ends: library(
        x, weights, ends + (ends == ends[0]).int()
    ),
    "one matrix for all": lambda x, weights, ends: x @ weights[0],
    "experts in another order": lambda x, weights, ends: library(x, weights.flip(0), ends),
    "the last token left out": lambda x, weights, ends: torch.cat(
        (library(x, weights, ends)[:-1], x[-1:, :32] * 0)
    ),
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_grouped_matmul_is_detected(mistake, dtype):
    case = case_of(64, dtype=dtype)
    data = data_of(case)
    assert not check(OP, case, data, MISTAKES[mistake](*data.inputs)).is_right


@pytest.mark.parametrize(
    ("tokens", "experts", "load", "shared"),
    [
        (8, 4, "even", [2, 2, 2, 2]),
        (10, 4, "even", [2, 3, 2, 3]),
        (25, 4, "skewed", [12, 6, 4, 3]),  # 12/25, 6/25, 4/25 and 3/25 of them
        (2, 4, "skewed", [0, 1, 0, 1]),
    ],
)
def test_tokens_are_divided_into_exact_counts(tokens, experts, load, shared):
    ends = ends_of(case_of(tokens, experts=experts, load=load))
    assert tokens_of(ends) == shared
    assert ends[-1] == tokens


def test_grouped_matmul_work_by_hand():
    """Experts have 2, 0 and 3 tokens: two matrices of 7 x 11 are read."""
    work = grouped_matmul_work((2, 0, 3), 11, 7, "bf16")
    assert work.flops == 2 * 5 * 11 * 7
    assert work.bytes_read == 2 * (5 * 7 + 2 * 7 * 11) + 4 * 3
    assert work.bytes_written == 2 * 5 * 11
    assert OP.work(case_of(2, 16, 32, "bf16")) == grouped_matmul_work((0, 1, 0, 1), 16, 32, "bf16")
    grouped, product = (
        grouped_matmul_work((64,), 32, 48, "fp32"),
        matmul_work(64, 32, 48, "fp32", "fp32"),
    )
    assert (grouped.flops, grouped.bytes_written) == (product.flops, product.bytes_written)
    assert grouped.bytes_read == product.bytes_read + 4


@pytest.mark.parametrize(("dtype", "multiple"), [("bf16", 8), ("fp32", 4)])
def test_extents_that_torch_does_not_support_are_rejected(dtype, multiple):
    OP.check(case_of(3, multiple, multiple, dtype), "cuda")
    OP.check(case_of(3, 5, 7, "fp64"), "cuda")
    for n, k in ((multiple, multiple + 1), (multiple // 2, multiple)):
        with pytest.raises(
            UnsupportedCaseError, match=f"{dtype} needs n and k that are multiples of {multiple}"
        ):
            OP.check(case_of(3, n, k, dtype), "cuda")
