"""Profiles of a real GPU: kernels belong to the operations that launched them, and what is compiled to its region.

None of these tests has run on a GPU yet.
"""

import pytest
import torch
from torch import nn

from bench.harness.device.device import detect
from bench.harness.profile.profiling import account, compiled, timed
from bench.harness.profile.replay import replayed
from bench.harness.profile.step import ProfiledStep
from bench.harness.profile.target import target_of

pytestmark = pytest.mark.gpu


def step_of(mode="backward"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 4096), nn.GELU(), nn.Linear(4096, 2048)).to("cuda", torch.bfloat16)
    return ProfiledStep(target_of("mlp", model, [torch.randn(512, 2048, device="cuda", dtype=torch.bfloat16)]), mode)


@pytest.mark.parametrize("mode", ["forward", "backward", "train"])
def test_kernels_belong_to_the_operations_that_launched_them(mode):
    step = step_of(mode)
    accounted = account(step)
    timing = timed(step, accounted, detect("cuda"), left_s=1.0)
    for times in timing.steps:
        assert times.parts() == times.step
        computing = [place for place, call in enumerate(accounted.calls) if call.flops]
        assert [accounted.calls[place].op for place in computing if not times.kernels.get(place)] == []


def test_a_compiled_step_has_its_kernels_in_its_regions():
    step = step_of()
    accounted, timing = compiled(step, account(step), detect("cuda"), left_s=1.0)
    regions = [place for place, call in enumerate(accounted.calls) if call.op.startswith("compiled.")]
    assert len(regions) == 2
    (*_, times) = timing.steps
    assert times.parts() == times.step
    assert all(times.kernels.get(place) for place in regions)  # the products


def test_a_product_measured_alone_takes_about_as_long_as_anywhere():
    step = step_of("forward")
    calls = account(step).calls
    place = next(place for place, call in enumerate(calls) if call.matmul_flops)
    found = replayed(step, calls, [place], detect("cuda"))[place]
    assert 0 < found.warm_s < 1
