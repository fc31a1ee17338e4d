"""What tests of commands start from."""

import pytest
import torch

from bench.harness.timing import protocol
from tests.bench import commands


@pytest.fixture
def quick(runs, monkeypatch):
    """Let commands judge by ceilings that are made up, and look at each row only shortly."""
    commands.keep_ceilings(runs)
    monkeypatch.setitem(protocol.LIMITS, "cpu", commands.QUICK)


@pytest.fixture
def one_thread():
    """Compute small tensors with one thread: on a busy machine several wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
