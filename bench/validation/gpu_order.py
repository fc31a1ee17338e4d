"""A plug-in of pytest that puts the tests of the GPU in the order of how much they tell.

    python -m pytest -p bench.validation.gpu_order -m gpu [--gpu-tests first]

First each version of each family once in bf16 and once in fp32, at one of its larger sizes, as many of a list are of
one element; families in turn, so that a run that is cut off has seen all of them. Then one test of each kind, then the
rest. When a failed test leaves a CUDA context in which nothing works any more, the run ends and says after which test:
what would fail behind it would say nothing.
"""

import math
import re
from collections import Counter, defaultdict

import pytest

FIRST_DTYPES = {"bf16": "bf16", "torch.bfloat16": "bf16", "fp32": "fp32", "torch.float32": "fp32"}
"""How the identifiers of tests write the two dtypes that go first."""


def pytest_addoption(parser):
    text = "first: of each family, version and dtype one test; all: these first, then all others"
    parser.addoption("--gpu-tests", choices=("first", "all"), default="all", help=text)


@pytest.hookimpl(trylast=True)  # after `-m gpu` has left out what is not for a GPU
def pytest_collection_modifyitems(config, items):
    ranked = ranks([item.nodeid for item in items])
    by_name = {item.nodeid: item for item in items}
    wanted = [name for name, rank in ranked if rank == 0 or config.getoption("gpu_tests") == "all"]
    chosen = set(wanted)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [by_name[name] for name in wanted]


def pytest_runtest_logreport(report):
    if report.failed and (problem := context_problem()):
        reason = f"the CUDA context is lost after {report.nodeid}: {problem}"
        pytest.exit(reason, returncode=pytest.ExitCode.TESTS_FAILED)


def context_problem():
    """Return why the GPU takes no work any more, in one line; None where it does, or where there is none."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def ranks(names):
    """Return node ids with their rank, in the order to run: 0 goes first, 1 is one of each kind, 2 the rest."""
    first, kinds = _first(names), _larger(names, _kind)
    ranked = {name: 0 if name in first else 1 if name in kinds else 2 for name in names}
    return [(name, rank) for rank in range(3) for name in _in_turn([name for name in names if ranked[name] == rank])]


def _first(names):
    """Return one test of each file, version and first dtype, of the file's largest group of tests."""
    largest = {}
    for (file, function), _ in Counter((_file(name), _function(name)) for name in names).most_common():
        largest.setdefault(file, function)
    main = [name for name in names if largest[_file(name)] == _function(name)]
    typed = [name for name in main if _dtype(name)]
    with_dtypes = {_file(name) for name in typed}
    untyped = [name for name in main if _file(name) not in with_dtypes]
    return _larger(typed + untyped, lambda name: (_file(name), _version(name), _dtype(name)))


def _larger(names, key):
    """Return of all names with the same key one of a larger size: two thirds up, the largest take the longest."""
    groups = defaultdict(list)
    for name in names:
        groups[key(name)].append(name)
    return {sorted(group, key=_size)[2 * len(group) // 3] for group in groups.values()}


def _in_turn(names):
    """Return the names so that files take turns, each in its own order."""
    seen = Counter()
    turns = []
    for name in names:
        turns.append((seen[_file(name)], name))
        seen[_file(name)] += 1
    return [name for _, name in sorted(turns, key=lambda turn: turn[0])]


def _file(name):
    return name.partition("::")[0]


def _function(name):
    return name.partition("::")[2].partition("[")[0]


def _words(name):
    """Return the parts of a parameter list that begin with a letter: what is no size."""
    return [word for word in _parameters(name) if word[:1].isalpha()]


def _parameters(name):
    return name.partition("[")[2].rstrip("]").split("-")


def _kind(name):
    return _file(name), _function(name), tuple(_words(name))


def _size(name):
    """Return the product of the numbers that a parameter list holds."""
    sizes = [word for word in _parameters(name) if not word[:1].isalpha()]
    return math.prod(int(number) for word in sizes for number in re.findall(r"\d+", word))


def _version(name):
    return next((word for word in _words(name) if re.fullmatch(r"v\d+", word)), None)


def _dtype(name):
    return next((FIRST_DTYPES[word] for word in _words(name) if word in FIRST_DTYPES), None)
