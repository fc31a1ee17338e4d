"""Which operations of a step a compiler could fuse, and the bytes that it would save."""

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.profiling.operation import chains_of, fusions_of
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import target_of
from results.record import Fusion
from results.show.profile import fusion_lines

N = 64 * 64 * 4
"""Bytes of a square matrix in fp32."""

A, B = torch.randn(64, 64), torch.randn(64, 64)
WEIGHT = torch.ones(64)
ROWS = torch.arange(8)


def operations_of(function, *args, mode="forward"):
    return account(ProfiledStep(target_of("f", function, args), mode)).operations


def fused(function, *args, mode="forward"):
    chains = chains_of(operations_of(function, *args, mode=mode))
    return [
        ([one.op.removeprefix("aten.") for one in chain], saved_bytes)
        for chain, saved_bytes in chains
    ]


@pytest.mark.parametrize(
    ("function", "chains"),
    [
        (lambda a, b: torch.relu(a @ b), []),  # a library computes the product
        (lambda a, b: torch.relu(a).exp().sum(-1), [(["relu", "exp", "sum"], 4 * N)]),
        # A product reads it: it is written.
        (lambda a, b: (lambda c: c.exp() @ c)(torch.relu(a)), [(["relu", "exp"], N)]),
        # The other operand was there before.
        (lambda a, b: torch.add(a.exp(), b), [(["exp", "add"], 2 * N)]),
        # It waits for the second product: inductor makes one kernel of both.
        (lambda a, b: functional.silu(a @ b) * (b @ a), [(["silu", "mul"], 2 * N)]),
        # The second product needs the result of the first operation.
        (lambda a, b: (lambda c: c + c @ a)(torch.relu(a @ b)), []),
        # A view moves nothing.
        (lambda a, b: torch.relu(a.exp().t()), [(["exp", "relu"], 2 * N)]),
        # Each row is a block's, but the sum of a column or of everything is one of all blocks.
        (lambda a, b: a.exp() - a.sum(-1, keepdim=True), [(["sum", "sub"], 64 * 4 * 2)]),
        (lambda a, b: a - a.exp().sum(0), [(["exp", "sum"], 2 * N)]),
        (
            lambda a, b: functional.layer_norm(functional.embedding(ROWS, a), (64,)),
            [(["embedding", "native_layer_norm"], 2 * 8 * 64 * 4)],
        ),
    ],
)
def test_operations_join_the_one_that_wrote_what_they_read(function, chains):
    assert fused(function, A, B) == chains


def test_a_result_that_passed_through_a_product_does_not_come_back():
    def function(a, b):
        first = torch.relu(a)
        product = first @ b  # needs all of `first`
        return first.exp() + product

    assert fused(function, A, B) == [(["relu", "exp"], N)]


def test_what_is_updated_in_place_is_read_and_written_once():
    assert fused(lambda a, b: a.exp().mul_(2).add_(1), A, B) == [(["exp", "mul_", "add_"], 4 * N)]


def line_of(fusion):
    (line,) = fusion_lines([fusion], 1.0)
    return line.removeprefix("- ").rpartition(":")[0]


def test_the_same_chain_of_each_layer_is_one_fusion():
    blocks = nn.Sequential(*(nn.Sequential(nn.GELU(), nn.ReLU(), nn.Linear(64, 64)) for _ in "abc"))
    (fusion,) = fusions_of(operations_of(nn.Sequential(OrderedDict(blocks=blocks)), A))
    assert (fusion.operations, fusion.count, fusion.saved_bytes) == (
        ("gelu", "relu"),
        3,
        3 * 2 * N,
    )
    assert line_of(fusion) == "gelu + relu in blocks.*.*, 3 times"


def test_chains_have_the_names_of_layers():
    def function(a, b):
        return functional.rms_norm(a + b, (64,), WEIGHT) @ b

    (fusion,) = fusions_of(operations_of(function, A, B))
    assert line_of(fusion) == "residual + RMSNorm"

    def gated(a, b):
        return functional.silu(a @ b) * (b @ a)

    (fusion,) = fusions_of(operations_of(gated, A, B))
    assert line_of(fusion) == "SwiGLU"

    def turned(x):
        return torch.cat([-x[:, 32:], x[:, :32]], -1)

    (fusion,) = fusions_of(operations_of(lambda a, b: a * b + turned(a) * b, A, B))
    assert line_of(fusion) == "rotary embedding"

    names = ("div_", "mul", "gelu_backward")
    backward = Fusion(module="", operations=names, count=1, saved_bytes=8)
    assert line_of(backward) == "dropout + GELU backward"


def test_the_lines_of_chains_add_up_to_their_sum():
    fusions = [
        Fusion(module=name, operations=("exp", "mul"), count=1, saved_bytes=2**place)
        for place, name in enumerate("abcdefgh")
    ]
    lines = fusion_lines(fusions, 1.0)
    assert lines[-1] == "- 3 other chains: 224 s"
    assert len(lines) == 6
