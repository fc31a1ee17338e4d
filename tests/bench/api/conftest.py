"""Keep measurements as short as possible: these tests do not check the times."""

import pytest

from bench.harness.timing.protocol import LIMITS
from tests.bench.commands import QUICK


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setitem(LIMITS, "cpu", QUICK)
