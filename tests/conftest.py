"""Which tests are skipped or run only in the exhaustive tier; separate runs and signal handlers for
each test.
"""

import atexit
import gc
import itertools
import os
import signal
from collections import Counter

import pytest

NUMBERS = itertools.count()

gc.disable()  # until all tests are collected, see below: a quarter of the time to collect them


@pytest.fixture(scope="session")
def runs_of_all_tests(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def runs(runs_of_all_tests, monkeypatch):
    """Save runs of tests, and of the commands they start, in a separate directory."""
    # Pytest's own numbered folders take longer with each one.
    folder = runs_of_all_tests / str(next(NUMBERS))
    folder.mkdir()
    monkeypatch.setenv("ROOFMARK_RUNS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def signals():
    """Restore the handlers of Ctrl-C and SIGTERM.

    A command run in this process ignores both at its end, and processes of later tests would
    inherit that.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def error_of(capsys):
    """Returns a function of an exit code that returns the error of the command: its only output, a
    line on stderr.
    """

    def check(code, expected=2):
        out, err = capsys.readouterr()
        assert (code, out, err.count("\n")) == (expected, "", 1), out + err
        return err

    return check


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the options
def pytest_cmdline_main(config):
    """Run the whole suite in several processes if pytest-xdist is installed and `-n` is not given.

    On two cores, two processes need two thirds of the time for the default tier; more would make
    measurements noisy. Many tests of the exhaustive tier wait for commands, so it runs in four.
    Each process and its commands use one thread: several would mostly wait for each other. GPU
    tests are not run in parallel.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # the hook also runs in each worker process
        return
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    on_a_gpu = "gpu" in config.option.markexpr and "not gpu" not in config.option.markexpr
    if (
        is_whole
        and not on_a_gpu
        and not config.option.usepdb
        and getattr(config.option, "numprocesses", 0) is None
    ):
        is_exhaustive = config.option.markexpr.startswith("exhaustive")
        config.option.numprocesses, config.option.dist = 4 if is_exhaustive else 2, "loadfile"
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # respected by numpy, torch and the commands
        config.option.loadscopereorder = False  # keep the order of `begin_with_the_longest`


def pytest_addoption(parser):
    parser.addoption(
        "--sample", type=int, help="number of cases to run of each test that is not marked sampled"
    )
    parser.addoption(
        "--every",
        type=int,
        default=1,
        help="run one in N of the cases that the default tier leaves to the exhaustive one",
    )


@pytest.hookimpl(tryfirst=True)  # before pytest applies `-m`
def pytest_collection_modifyitems(config, items):
    left_out = leave_most_for_later(
        items, config.getoption("--sample"), config.getoption("--every")
    )
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
    if "PYTEST_XDIST_WORKER" in os.environ:
        begin_with_the_longest(items)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))


LONGEST = (
    "test_audit_shipped.py",
    "test_interpreted.py",
    "test_collectives.py",
    "test_simulation.py",
    "test_rented_gpu.py",
    "test_compile.py",
    "test_readme.py",
    "test_fleet.py",
    "test_packaging.py",
    "test_compiled.py",
    "test_problems.py",
    "test_adversary.py",
    "test_explore_browser.py",
    "test_kernelbench.py",
    "test_user_kernel.py",
    "test_compare_live_processes.py",
    "test_two_revisions.py",
    "test_compare_functions.py",
    "test_compare_problems.py",
    "test_definition.py",
    "test_lecture.py",
)
"""Files that take the longest, in the order in which they start."""


def begin_with_the_longest(items):
    count = Counter(item.path for item in items)
    place = {name: index for index, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: (
            place.get(item.path.name, len(LONGEST)),
            -count[item.path],
            str(item.path),
        )
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    gc.freeze()  # what was imported and collected stays
    atexit.register(gc.unfreeze)  # some libraries report what is never freed
    gc.enable()


def leave_most_for_later(items, sample, every):
    """Mark all cases of a `sampled(n)` test as exhaustive except n evenly spaced ones.

    `sample` is the n of tests without the mark, None for all of their cases. Return the exhaustive
    cases to leave out: all but one in `every` of each test.
    """
    cases = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if count := mark.args[0] if mark else sample:
            cases.setdefault((item.nodeid.partition("[")[0], count), []).append(item)
    left_out = set()
    for (_, count), same in cases.items():
        chosen = {round(index * (len(same) - 1) / max(1, count - 1)) for index in range(count)}
        later = [item for index, item in enumerate(same) if index not in chosen]
        for item in later:
            item.add_marker(pytest.mark.exhaustive)
        left_out.update(item for index, item in enumerate(later) if index % every)
    return left_out
