"""One place decides what is skipped or left for later, and says why; no test sees the runs or signals of another."""

import itertools
import os
import signal
from collections import Counter

import pytest

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def runs_of_all_tests(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def runs(runs_of_all_tests, monkeypatch):
    """Keep the runs of tests out of the user's: a folder that commands started by a test see too."""
    folder = runs_of_all_tests / str(next(NUMBERS))  # pytest's own numbered folders take longer with each one
    folder.mkdir()
    monkeypatch.setenv("RIDGEPOINT_RUNS", str(folder))
    return folder


@pytest.fixture(autouse=True)
def signals():
    """Put back what the process does on Ctrl-C and SIGTERM.

    A command that ran in this process ignores both at its end, and what a later test starts would inherit that.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads what was asked for
def pytest_cmdline_main(config):
    """Share the whole suite among processes, where pytest-xdist is there and no `-n` says otherwise.

    The default tier takes two thirds of the time so on two cores; more processes would disturb what they measure. Many
    tests of the exhaustive tier wait for commands that they start, so that a third process finds a core that is free.
    Each computes with one thread, as do the commands that it starts: threads of several processes on the same cores
    spend most of their time waiting for each other. Tests of a GPU have it to themselves.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:  # this hook runs in each of the processes too: they share no further
        return
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    on_a_gpu = "gpu" in config.option.markexpr and "not gpu" not in config.option.markexpr
    if is_whole and not on_a_gpu and not config.option.usepdb and getattr(config.option, "numprocesses", 0) is None:
        is_exhaustive = config.option.markexpr.startswith("exhaustive")
        config.option.numprocesses, config.option.dist = 3 if is_exhaustive else 2, "loadfile"
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the variable that numpy, torch and the commands respect
        config.option.loadscopereorder = False  # the order is that of `begin_with_the_longest`


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, help="of each test run so many cases alone, as if it were marked sampled")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what `-m` does not choose
def pytest_collection_modifyitems(config, items):
    leave_most_for_later(items, config.getoption("--sample"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        begin_with_the_longest(items)
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none here"))


def begin_with_the_longest(items):
    """Order files as two processes should take them: the commands of the READMEs, then files of many tests, then few.

    A process that took the commands last would run them for minutes while the other one has nothing to do.
    """
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path.name != "test_readme.py", -count[item.path], str(item.path)))


def leave_most_for_later(items, sample):
    """Make all cases of a test marked `sampled(n)` exhaustive but n, which lie as far apart as they can.

    `sample` is the n of tests without the mark, None for all of their cases.
    """
    cases = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if count := mark.args[0] if mark else sample:
            cases.setdefault((item.nodeid.partition("[")[0], count), []).append(item)
    for (_, count), same in cases.items():
        chosen = {round(index * (len(same) - 1) / max(1, count - 1)) for index in range(count)}
        for index, item in enumerate(same):
            if index not in chosen:
                item.add_marker(pytest.mark.exhaustive)
