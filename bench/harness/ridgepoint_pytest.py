"""The pytest plug-in as every pytest run loads it: a fixture's name, and nothing that takes time or can fail.

pytest imports this module at each start in an environment where Ridgepoint is installed, also for projects that have
nothing to do with it. So it is installed as a top-level module of a name that nobody else has, and `bench`, which may
be somebody else's there, is imported when a test asks for the fixture. What the fixture does is in `pytest_plugin.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

NAME = "ridgepoint-gpu-benchmark"
OURS = ("bench", "kernels", "roofline", "results")


def pytest_configure(config: pytest.Config) -> None:
    """Offer `gpu_benchmark`: the real one where pytest-benchmark is loaded, else one that says what is missing."""
    if config.pluginmanager.hasplugin(NAME):
        return
    is_there = config.getoption("--benchmark-disable", None) is not None
    config.pluginmanager.register(Fixture() if is_there else FixtureWithoutBenchmark(), NAME)


class Fixture:
    """The fixture beside pytest-benchmark's own, and its part of what is printed."""

    def __init__(self) -> None:
        self._used: list[Any] = []

    @pytest.fixture
    def gpu_benchmark(self, benchmark: Any) -> Any:
        """Measure a function by Ridgepoint's protocol, on a GPU or a CPU; shown and kept by pytest-benchmark."""
        fixture = _implementation().GpuBenchmark(benchmark)
        self._used.append(fixture)
        return fixture

    @pytest.hookimpl(hookwrapper=True, optionalhook=True)
    def pytest_benchmark_group_stats(self, benchmarks: Sequence[dict[str, Any]]) -> Any:
        """Write what was reached beside the names in the table."""
        yield
        if self._used:
            _implementation().annotate(benchmarks)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Say what machine it was, and what speaks against a measurement."""
        if self._used and not config.getoption("--benchmark-quiet", False):
            for line in _implementation().summary(self._used):
                terminalreporter.write_line(line)


class FixtureWithoutBenchmark:
    """Stands in where pytest-benchmark is missing, so that only the tests that need it fail."""

    @pytest.fixture
    def gpu_benchmark(self) -> None:
        """Fail with what is missing: this fixture needs pytest-benchmark."""
        pytest.fail(
            "gpu_benchmark: pytest-benchmark is not loaded; pip install 'pytest-benchmark>=5', "
            "and leave out '-p no:benchmark'",
            pytrace=False,
        )


def _implementation() -> ModuleType:
    """Return the module that measures; fail in one line where it cannot be imported."""
    try:
        from bench.harness import pytest_plugin
    except ImportError as error:
        reason = _why_not(error)
    else:
        return pytest_plugin
    pytest.fail(f"gpu_benchmark: {reason}", pytrace=False)


def _why_not(error: ImportError) -> str:
    """Return in one line why Ridgepoint cannot be imported."""
    top = (error.name or "").partition(".")[0]
    if top not in OURS:
        return str(error).partition("\n")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module in sys.modules that nothing was loaded from
        spec = None
    if spec is None:
        return "Ridgepoint runs from its repository: pip install -e <the repository>"
    where = spec.origin or ", ".join(spec.submodule_search_locations or ())
    return (
        f"'{top}' is imported from {where}, which is not Ridgepoint's; "
        "put Ridgepoint's repository in front (PYTHONPATH), or rename the other one"
    )
