"""Profiles of a real GPU: kernels belong to the operations that launched them, and what is compiled
to its region.

None of these tests has run on a GPU yet.
"""

import pytest
import torch
from torch import nn

from bench.harness.device.device import detect
from bench.profiling.step import ProfiledStep, account
from bench.profiling.target import target_of
from bench.profiling.tracing import timed

pytestmark = pytest.mark.gpu


def step_of(mode="backward"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)).to(
        "cuda", torch.bfloat16
    )
    return ProfiledStep(
        target_of("mlp", model, [torch.randn(512, 2048, device="cuda", dtype=torch.bfloat16)]), mode
    )


@pytest.mark.parametrize("mode", ["forward", "backward", "train"])
def test_kernels_belong_to_the_operations_that_launch_them(mode):
    step = step_of(mode)
    breakdown = timed(step, account(step), detect("cuda"), left_s=1.0)
    computing = [operation for operation in breakdown.operations if operation.flops]
    assert [operation.op for operation in computing if not operation.kernels] == []


def test_a_compiled_step_has_its_kernels_in_its_regions():
    step = step_of()
    breakdown = timed(step, account(step), detect("cuda"), left_s=1.0, is_compiled=True)
    regions = [
        operation for operation in breakdown.operations if operation.op.startswith("compiled.")
    ]
    assert len(regions) == 2
    assert all(region.kernels for region in regions)  # the products
