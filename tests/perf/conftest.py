"""Tests of the tools in `bench/validation`, and of times: none of them runs by default."""

from pathlib import Path

import pytest

from bench.harness.fixture import ridgepoint_pytest


def pytest_configure(config):
    # `gpu_benchmark` is there also where the repository is not installed; where it is, this changes nothing.
    ridgepoint_pytest.pytest_configure(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.exhaustive)
