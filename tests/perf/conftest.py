"""`gpu_benchmark` is there for these tests also where the repository is not installed, only on pytest's path."""

from bench.harness.fixture import ridgepoint_pytest


def pytest_configure(config):
    # Where it is installed it is registered already: then this changes nothing.
    ridgepoint_pytest.pytest_configure(config)
