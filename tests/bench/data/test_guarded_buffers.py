"""What is done to inputs, and to the memory around an output, is seen when they are looked at again."""

import pytest
import torch

from bench.harness.data.guarded_buffers import GUARD_BYTES, MUTATED, GuardedBuffers
from bench.harness.data.inputs import InputSet
from tests.bench.data.test_verify import CPU


@pytest.fixture
def sets():
    return [InputSet((torch.arange(64.0), torch.ones(8)), torch.zeros(64)) for _ in range(2)]


def test_memory_that_nobody_touched_is_as_it_was(sets):
    guarded = GuardedBuffers(sets, CPU, has_guards=True)
    sets[1].out.fill_(3.0)  # what an output is for
    assert guarded.harm() is None


@pytest.mark.parametrize(("copy", "place"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("has_guards", [True, False])
def test_one_changed_element_of_any_input_of_any_copy_is_seen(sets, copy, place, has_guards):
    guarded = GuardedBuffers(sets, CPU, has_guards)
    sets[copy].inputs[place][-1] += 1
    assert guarded.harm() == MUTATED


@pytest.mark.parametrize(("at", "side"), [(-1, "before"), (64, "behind")])
def test_one_element_beside_an_output_is_seen(sets, at, side):
    guarded = GuardedBuffers(sets, CPU, has_guards=True)
    out = sets[1].out
    place = out.storage_offset() + at
    assert out.element_size() <= GUARD_BYTES
    torch.as_strided(out, (1,), (1,), place).fill_(7.0)
    assert guarded.harm() == f"writes outside of its output: the bytes {side} it have changed"
