"""What tests of commands start from."""

import pytest

from bench.harness.timing import protocol
from tests.bench import commands


@pytest.fixture
def quick(runs, monkeypatch):
    """Let commands judge by ceilings that are made up, and look at each row only shortly."""
    commands.keep_ceilings(runs)
    monkeypatch.setattr(protocol, "CPU_LIMITS", commands.QUICK)
