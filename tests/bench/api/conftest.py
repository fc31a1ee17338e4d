"""Measurements of these tests are as short as they can be: what they tell of a time is not looked at."""

import pytest

from bench.harness.api import function as function_meter
from tests.bench.commands import QUICK


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(function_meter, "limits_of", lambda device: QUICK)
