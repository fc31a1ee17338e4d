"""A calibration of a few milliseconds."""

import pytest

from bench.harness.calibrate import bandwidth, calibration, peaks, setup
from bench.harness.device.device import MIB


@pytest.fixture
def tiny_calibration(monkeypatch):
    tiny = setup.QUICK._replace(screening_s=0.01, confirming_s=0.02)
    for module in (setup, calibration):
        monkeypatch.setattr(module, "QUICK", tiny)
        monkeypatch.setattr(module, "FULL", tiny)
    monkeypatch.setattr(bandwidth, "operand_bytes", lambda device: 4 * MIB)
    monkeypatch.setattr(peaks, "CPU_EXTENTS", ((64, 64, 64), (128, 128, 128)))
