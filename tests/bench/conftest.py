"""Fixtures for tests of commands."""

import pytest
import torch

from bench.harness.timing import protocol
from tests.bench import commands


@pytest.fixture
def quick(runs, monkeypatch):
    """Save made-up ceilings, and measure each row only briefly."""
    commands.keep_ceilings(runs)
    monkeypatch.setitem(protocol.LIMITS, "cpu", commands.QUICK)


@pytest.fixture
def one_thread():
    """Use one thread for small tensors: on a busy machine several threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
