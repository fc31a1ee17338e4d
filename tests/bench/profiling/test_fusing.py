"""Which operations of a step a compiler could fuse, and the bytes that it would save."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from bench.profiling.operation import chains_of, fusions_of
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import target_of
from results.show.profile import fusion_text

N = 64 * 64 * 4
"""Bytes of a square matrix in fp32."""

A, B = torch.randn(64, 64), torch.randn(64, 64)


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
        (lambda a, b: torch.relu(a @ b), [(["mm", "relu"], 2 * N)]),
        (lambda a, b: torch.relu(a @ b).exp().sum(-1), [(["mm", "relu", "exp", "sum"], 6 * N)]),
        (lambda a, b: torch.relu(a) @ b, []),  # a product joins nothing
        # Another one reads it: it is written.
        (lambda a, b: (lambda c: c.exp() @ c)(a @ b), [(["mm", "exp"], N)]),
        # The other operand was there before.
        (lambda a, b: torch.add(a @ b, a), [(["mm", "add"], 2 * N)]),
        # A view moves nothing.
        (lambda a, b: (lambda c: torch.relu(c.t()))(a @ b), [(["mm", "relu"], 2 * N)]),
    ],
    ids=["relu", "row", "product", "two readers", "residual", "view"],
)
def test_operations_join_the_one_that_wrote_what_they_read(function, chains):
    assert fused(function, A, B) == chains


def test_a_result_that_passed_through_a_product_does_not_come_back():
    def function(a, b):
        first = torch.relu(a @ b)
        product = first @ b  # needs all of `first`
        return first.exp() + product

    assert fused(function, A, B) == [(["mm", "relu", "exp"], 3 * N)]


def test_what_is_updated_in_place_is_read_and_written_once():
    assert fused(lambda a, b: (a @ b).mul_(2).add_(1), A, B) == [(["mm", "mul_", "add_"], 4 * N)]


def test_the_same_chain_of_each_layer_is_one_fusion():
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)))
    (fusion,) = fusions_of(operations_of(nn.Sequential(OrderedDict(blocks=blocks)), A))
    assert (fusion.operations, fusion.count, fusion.saved_bytes) == (
        ("addmm", "gelu"),
        3,
        3 * 2 * N,
    )
    assert fusion_text(fusion) == "gelu into the addmm before in blocks.*.*, 3 times"
