"""Measurements of these tests are as short as they can be: what they tell of a time is not looked at."""

import pytest

from bench.harness.timing.protocol import LIMITS
from tests.bench.commands import QUICK


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(LIMITS, "cpu", QUICK)
