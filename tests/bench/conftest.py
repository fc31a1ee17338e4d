"""Fixtures for tests of commands."""

import pytest
import torch

from bench.harness.calibrate import bandwidth, peaks, setup
from bench.harness.device.device import MIB
from bench.harness.timing import protocol
from tests.bench import commands


@pytest.fixture
def quick(runs, monkeypatch):
    """Save made-up ceilings, and measure each row only briefly."""
    commands.keep_ceilings(runs)
    monkeypatch.setitem(protocol.LIMITS, "cpu", commands.QUICK)


@pytest.fixture
def tiny_calibration(monkeypatch):
    """Calibrate in a few milliseconds."""
    tiny = setup.QUICK._replace(screening_s=0.01, confirming_s=0.02)
    monkeypatch.setattr(setup, "QUICK", tiny)
    monkeypatch.setattr(setup, "FULL", tiny)
    monkeypatch.setattr(bandwidth, "BRIEF", tiny)
    monkeypatch.setattr(bandwidth, "operand_bytes", lambda device: 4 * MIB)
    monkeypatch.setattr(peaks, "CPU_SHAPES", ("64", "128"))


@pytest.fixture
def one_thread():
    """Use one thread for small tensors: on a busy machine several threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
